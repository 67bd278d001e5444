//! The tables of figures beside other agents.

use std::fmt::Write as _;

use crate::{LOADS, Load, OURS, PEERS, host};

/// The figures of one run, or the medians of several.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub per_second: f64,
    /// Microseconds that 50, 99 and 99.9 % of the NOTIFYs took at most.
    pub latency_us: [f64; 3],
    pub cpu_ns: f64,
    pub peak_mib: f64,
}

/// A row for each load of a socket, a column for each peer; `None` where there is no figure.
pub(crate) type Results = [[Option<Figures>; PEERS.len()]; LOADS.len()];

/// The figures of all peers, and how they were measured.
pub(crate) struct Report<'a> {
    pub tcp: Results,
    pub unix: Results,
    pub rounds: usize,
    pub seconds: f64,
    /// The share of the machine's cores that other programs took meanwhile.
    pub others: f64,
    /// The peers that could not be measured, and why.
    pub left_out: &'a [String],
}

const LEGEND: &str = "\
* **gcra-spoa**: the agent with its default of one worker, `--rate 100/s --burst 20`, on a table of
  2^20 slots. It decides about each NOTIFY; the others answer `false` without deciding anything.
* **echo**: one thread, epoll, nothing parsed. For as many bytes as a NOTIFY has it sends the bytes
  of one ACK. This is the limit of the machine's sockets.
* **spawn + mpsc**: a tokio task for each NOTIFY, an unbounded channel, one task that writes all
  answers that have gathered, mimalloc. A common design, written for this comparison with our
  codec.
* **spop crate**: spop 0.12.0 with tokio, as in its example, with TCP_NODELAY and without printing.
* **negasus**: github.com/negasus/haproxy-spoe-go 1.0.7, as in its readme, without a log. It gets
  smaller bursts (200 000 and 4 x 50 000), because it keeps everything that has arrived in memory.
* **DropMorePackets**: github.com/dropmorepackets/haproxy-go 0.1.1, with a handler as in its tests.
  Several workers write to one connection, so it gets one NOTIFY at a time only. (Go's checksum
  database does not know this version; benches/peers/go/go.sum has the sums of the first fetch.)

A NOTIFY has one message with one IPv4 arg, random among a million addresses; the answer sets one
variable. The load generator is one thread on the same cores and checks every ACK: it must name a
NOTIFY that is in flight (in any order, each once; echo's cannot) and set the variable. CPU is the
agent's, user and kernel, from the kernel's accounting. Memory is the peak, without shared memory
(our table: 16 MiB). Each figure is from a process of its own that was warmed up with the same
load. A burst is sent as fast as it is taken; a window of 64 keeps 64 NOTIFYs in flight per
connection.
";

const BUSY: &str = "\
**The machine was busy with other work**, which took cores from agents and load generator alike.
Figures that depend on waking up (one at a time, p99, p99.9) are then mostly about that work.
Measure again on a quiet machine.
";

type Figure = fn(&Figures) -> f64;

impl Report<'_> {
    /// All tables, as Markdown.
    pub(crate) fn text(&self) -> String {
        let mut section = String::from("# The agent beside others\n\n");
        let out = &mut section;
        let Self { rounds, seconds, others, .. } = self;
        writeln!(
            out,
            "Medians of {rounds} interleaved rounds, {seconds} s or one burst for each figure."
        )
        .unwrap();
        writeln!(
            out,
            "{}; other programs took {:.0} % of it meanwhile.\n",
            host::description(),
            100.0 * others
        )
        .unwrap();
        if *others > 0.1 {
            writeln!(out, "{BUSY}").unwrap();
        }
        for (socket, results) in [("TCP", &self.tcp), ("Unix socket", &self.unix)] {
            writeln!(out, "### {socket}\n").unwrap();
            table(out, "NOTIFYs/s", &PEERS, &LOADS, results, |figures| short(figures.per_second));
            ratios(out, results);
            table(out, "CPU a NOTIFY", &PEERS, &LOADS, results, |figures| time(figures.cpu_ns));
            table(out, "p50 / p99 / p99.9 in µs", &PEERS, &LOADS[2..], &results[2..], |figures| {
                figures
                    .latency_us
                    .map(|us| if us < 99.5 { format!("{us:.1}") } else { format!("{us:.0}") })
                    .join(" / ")
            });
            table(out, "peak memory, MiB", &PEERS, &LOADS, results, |figures| {
                format!("{:.1}", figures.peak_mib)
            });
        }
        writeln!(out, "\n### What they are\n\n{LEGEND}").unwrap();
        if !self.left_out.is_empty() {
            writeln!(out, "Left out: {}.\n", self.left_out.join("; ")).unwrap();
        }
        section
    }
}

/// Ours divided by a peer's.
fn ratio(row: &[Option<Figures>; PEERS.len()], peer: usize, figure: Figure) -> Option<f64> {
    Some(figure(row[OURS].as_ref()?) / figure(row[peer].as_ref()?))
}

fn ratios(out: &mut String, results: &Results) {
    let mut lines = String::new();
    header(&mut lines, "gcra-spoa's rate / that of", &PEERS[1..]);
    for (load, row) in LOADS.iter().zip(results) {
        write!(lines, "| {:<36} |", load.name).unwrap();
        for peer in 1..PEERS.len() {
            let cell = ratio(row, peer, |figures| figures.per_second)
                .map_or("-".to_owned(), |x| format!("{x:.2}"));
            write!(lines, " {cell:>20} |").unwrap();
        }
        lines.push('\n');
    }
    writeln!(out, "{lines}").unwrap();
}

fn table(
    out: &mut String,
    what: &str,
    peers: &[&str],
    loads: &[Load],
    results: &[[Option<Figures>; PEERS.len()]],
    cell: impl Fn(&Figures) -> String,
) {
    header(out, what, peers);
    for (load, row) in loads.iter().zip(results) {
        write!(out, "| {:<36} |", load.name).unwrap();
        for figures in row {
            write!(out, " {:>20} |", figures.as_ref().map_or("-".to_owned(), &cell)).unwrap();
        }
        out.push('\n');
    }
    out.push('\n');
}

fn header(out: &mut String, what: &str, peers: &[&str]) {
    write!(out, "| {what:<36} |").unwrap();
    peers.iter().for_each(|peer| write!(out, " {peer:>20} |").unwrap());
    write!(out, "\n| {:-<36} |", "").unwrap();
    peers.iter().for_each(|_| write!(out, " {:->19}: |", "").unwrap());
    out.push('\n');
}

fn time(ns: f64) -> String {
    if ns < 999.5 { format!("{ns:.0} ns") } else { format!("{:.1} µs", ns / 1e3) }
}

/// Three digits are enough from 10 000 on.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        ..9_999.5 => return format!("{value:.0}"),
        ..999_500.0 => (value / 1e3, "k"),
        _ => (value / 1e6, "M"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}
