//! The figures beside other agents: tables, a plot, and the aims.

use std::fmt::Write as _;

use crate::bars::{Chart, Panel, short};
use crate::page::machine;
use crate::{ECHO, LOADS, Load, NEGASUS, OURS, PEERS, SPAWN, SPOP};

/// What one run gave, or the medians of several.
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

/// What was measured, and how.
pub(crate) struct Report<'a> {
    pub tcp: Results,
    pub unix: Results,
    pub rounds: usize,
    pub seconds: f64,
    /// The share of the machine's cores that other programs took meanwhile.
    pub others: f64,
    pub command: String,
    /// What could not be measured, and why.
    pub left_out: &'a [String],
}

const LEGEND: &str = "\
* **gcra-spoa**: the daemon, `--rate 100/s --burst 20` on a table of 2^20 slots: it decides about each NOTIFY. One thread, its default.
* **echo**: one thread, epoll, nothing parsed: for as many bytes as a NOTIFY has, it sends the bytes of one ACK. The limit of this
  machine's sockets; nobody can be much faster.
* **spawn + mpsc**: a tokio task for each NOTIFY, an unbounded channel, one task that takes all answers that have gathered and
  writes them at once, mimalloc. A design that is often chosen; written for this comparison with our codec.
* **spop crate**: spop 0.12.0 with tokio, as its example is written, with TCP_NODELAY and without its printing.
* **negasus**: github.com/negasus/haproxy-spoe-go 1.0.7, as its readme is written, without a log. It gets smaller bursts (200 000 and
  4 x 50 000): it keeps all that has come in memory.
* **DropMorePackets**: github.com/dropmorepackets/haproxy-go 0.1.1, with a handler as its tests have them. Several workers write to one
  connection, so it is offered one NOTIFY at a time only. (Go's checksum database does not know this version. benches/peers/go/go.sum
  names what it was when it was first fetched here.)

A NOTIFY has one message with one IPv4 arg, random among a million addresses; the answer sets one variable. The others answer
`false` without deciding anything. The load generator is one thread on the same cores and checks every ACK: it must name a NOTIFY
that is in flight (in any order, each once; echo's can't) and set the variable. CPU is the agent's, user and kernel, from the
kernel's accounting. Memory is the peak, without shared memory (our table: 16 MiB). Each figure is of a process of its own that
was warmed up with the same load. A burst is sent whole, as fast as it is taken; a window of 64 keeps 64 NOTIFYs in flight on each
connection.
";

const BUSY: &str = "\
**The machine was busy with other work**, which took cores from agents and load generator alike. What depends on waking up (one at
a time, p99, p99.9) is then mostly that work, and an agent faster than echo is chance. Measure again on a quiet machine before
relying on these figures.
";

type Figure = fn(&Figures) -> f64;

impl Report<'_> {
    /// The section of the page. It is as legible on a terminal.
    pub(crate) fn section(&self) -> String {
        let mut section = String::from("## The agent beside others\n\n");
        let out = &mut section;
        let Self { rounds, seconds, others, command, .. } = self;
        writeln!(
            out,
            "Medians of {rounds} interleaved rounds, {seconds} s or one burst for each figure."
        )
        .unwrap();
        writeln!(
            out,
            "{}; other programs took {:.0} % of it meanwhile. The command was\n\n    {command}\n",
            machine(),
            100.0 * others
        )
        .unwrap();
        if *others > 0.1 {
            writeln!(out, "{BUSY}").unwrap();
        }
        writeln!(out, "![The same as bars](bench-peers.svg)\n").unwrap();
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
        self.aims(out);
        writeln!(out, "\n### What they are\n\n{LEGEND}").unwrap();
        if !self.left_out.is_empty() {
            writeln!(out, "Left out: {}.\n", self.left_out.join("; ")).unwrap();
        }
        section
    }

    pub(crate) fn plot(&self) -> String {
        let series: Vec<_> = PEERS
            .into_iter()
            .zip(["#1f6fb4", "#c4c4c4", "#8c8c8c", "#6d6d6d", "#4d4d4d", "#2e2e2e"])
            .collect();
        let groups = |figure: Figure| -> Vec<_> {
            let row = |(load, row): (&Load, &[Option<Figures>; PEERS.len()])| {
                (
                    load.name.to_owned(),
                    row.iter().map(|figures| figures.as_ref().map(figure)).collect(),
                )
            };
            LOADS.iter().zip(&self.tcp).map(row).collect()
        };
        let panels = [
            Panel {
                title: "TCP: more is better",
                axis: "NOTIFYs per second (logarithmic)",
                from: 10_000.0,
                groups: groups(|figures| figures.per_second),
            },
            Panel {
                title: "TCP: less is better",
                axis: "ns of the agent's CPU a NOTIFY (logarithmic)",
                from: 1.0,
                groups: groups(|figures| figures.cpu_ns),
            },
        ];
        Chart { series: &series, panels: &panels }.svg()
    }

    /// What the project wants to reach over TCP, and whether it did.
    fn aims(&self, out: &mut String) {
        let [burst, bursts, window, windows, one, ones, _] = &self.tcp;
        let rate: Figure = |figures| figures.per_second;
        let cpu: Figure = |figures| figures.cpu_ns;
        let p50: Figure = |figures| figures.latency_us[0];
        let tail: Figure = |figures| figures.latency_us[2];
        let ours =
            |row: &[Option<Figures>; PEERS.len()], figure: Figure| row[OURS].as_ref().map(figure);
        let times = |row, peer, figure| ratio(row, peer, figure);
        let memory = self
            .tcp
            .iter()
            .filter_map(|row| row[OURS])
            .map(|figures| figures.peak_mib)
            .fold(0.0, f64::max);

        writeln!(
            out,
            "### Aims, and whether they are met\n\n| aim, over TCP | measured | met |\n| --- | ---: | --- |"
        )
        .unwrap();
        let mut aim =
            |text: &str, measured: Option<f64>, unit: &str, is_met: &dyn Fn(f64) -> bool| {
                let (measured, met) = match measured {
                    None => ("not measured".to_owned(), "-"),
                    Some(value) => {
                        (format!("{value:.2}{unit}"), if is_met(value) { "yes" } else { "**no**" })
                    }
                };
                writeln!(out, "| {text} | {measured} | {met} |").unwrap();
            };
        aim("burst, 1 connection: 18 x spawn + mpsc", times(burst, SPAWN, rate), " x", &|x| {
            x >= 18.0
        });
        aim("burst, 1 connection: 15 x spop crate", times(burst, SPOP, rate), " x", &|x| {
            x >= 15.0
        });
        aim("burst, 1 connection: 100 x negasus", times(burst, NEGASUS, rate), " x", &|x| {
            x >= 100.0
        });
        aim("burst, 1 connection: at most 70 ns of CPU", ours(burst, cpu), " ns", &|ns| {
            ns <= 70.0
        });
        aim("burst, 4 connections: 30 x spawn + mpsc", times(bursts, SPAWN, rate), " x", &|x| {
            x >= 30.0
        });
        aim(
            "window of 64, 8 connections: 20 x spawn + mpsc",
            times(windows, SPAWN, rate),
            " x",
            &|x| x >= 20.0,
        );
        aim("… 99.9 % within 500 µs", ours(windows, tail), " µs", &|us| us <= 500.0);
        aim("… 0.85 x echo", times(windows, ECHO, rate), " x", &|x| x >= 0.85);
        aim(
            "window of 64, 1 connection: 1.5 x spawn + mpsc",
            times(window, SPAWN, rate),
            " x",
            &|x| x >= 1.5,
        );
        aim("… 0.85 x echo", times(window, ECHO, rate), " x", &|x| x >= 0.85);
        aim(
            "one at a time, 1 connection: CPU at most 1.03 x echo",
            times(one, ECHO, cpu),
            " x",
            &|x| x <= 1.03,
        );
        aim("… p50 at most 1.03 x echo", times(one, ECHO, p50), " x", &|x| x <= 1.03);
        aim(
            "one at a time, 8 connections: 1.15 x spawn + mpsc",
            times(ones, SPAWN, rate),
            " x",
            &|x| x >= 1.15,
        );
        aim("… p99.9 at most 0.2 x spawn + mpsc", times(ones, SPAWN, tail), " x", &|x| x <= 0.2);
        aim(
            "at most 6 MiB of memory beside the table, in all loads",
            Some(memory),
            " MiB",
            &|mib| mib <= 6.0,
        );
    }
}

/// Ours divided by a peer's.
fn ratio(row: &[Option<Figures>; PEERS.len()], peer: usize, figure: Figure) -> Option<f64> {
    Some(figure(row[OURS].as_ref()?) / figure(row[peer].as_ref()?))
}

fn ratios(out: &mut String, results: &Results) {
    let mut lines = String::new();
    header(&mut lines, "gcra-spoa is so many times as fast as", &PEERS[1..]);
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
