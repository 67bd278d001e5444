//! The tables of HAProxy's figures with and without limiters.

use std::fmt::Write as _;

use crate::median::median;
use crate::setups::{self, Group};
use crate::{Figures, Latency, Row, host};

impl Row {
    fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    /// The median of the ratios within a round: what moves with the machine moves both.
    fn ratio(&self, to: &Self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(
            self.rounds.iter().zip(&to.rounds).map(|(one, other)| of(one) / of(other)).collect(),
        )
    }
}

fn legend(group: Group) -> &'static str {
    match group {
        Group::Asking => "Asked about every request of one client, none of which is denied:",
        Group::Light => {
            "100/s with a burst of 20. Of 20 requests, 19 are from clients that make no other, \
             and one is from\none of 2 clients far above their limit:"
        }
        Group::Heavy => {
            "100/s with a burst of 20, and one client that sends as fast as it can, so that \
             nearly all is\ndenied:"
        }
        Group::Share => {
            "Asked about a share of the requests, by `event ... if { rand(1000) lt N }`:"
        }
    }
}

/// The section of the page: the CPU of all versions, and how fast the last one was.
pub(crate) fn section(rows: &[Row], rounds: usize, seconds: u64) -> String {
    let versions = versions(rows);
    let last = versions.last().expect("one version at least");
    let mut out = format!(
        "## Through HAProxy\n\n\
         wrk with one thread and 32 connections, HAProxy with one thread and the agent run on the \
         same\ncores. Medians of {rounds} interleaved rounds of {seconds} s\n({}).\n\
         Microseconds of CPU for each request, of HAProxy and of the agent. In parentheses: both \
         together,\nrelative to HAProxy with a stick table, the median of the rounds' ratios.\n\n",
        host::description(),
    );
    for group in Group::ALL.into_iter().filter(|group| *group != Group::Share) {
        let rows: Vec<_> = rows.iter().filter(|row| row.setup.group == group).collect();
        if !rows.is_empty() {
            writeln!(out, "{}\n", legend(group)).unwrap();
            cpu_table(&mut out, &rows, &versions);
            // With the other loads wrk saw the same.
            if group == Group::Asking {
                let of_last: Vec<_> =
                    rows.into_iter().filter(|row| row.version == *last).collect();
                writeln!(out, "The same with HAProxy {last}, as wrk saw it:\n").unwrap();
                short_table(&mut out, &of_last);
            }
        }
    }
    out
}

/// The versions, in the order of the rows.
fn versions(rows: &[Row]) -> Vec<String> {
    let mut versions: Vec<_> = rows.iter().map(|row| row.version.clone()).collect();
    versions.dedup();
    versions
}

/// A row for each limiter, a column for each version.
fn cpu_table(out: &mut String, rows: &[&Row], versions: &[String]) {
    let both = |figures: &Figures| figures.haproxy_us + figures.agent_us;
    let row_of = |version: &str, name: &str| {
        rows.iter().find(|row| row.version == version && row.setup.name == name)
    };
    writeln!(out, "| limiter | {} |", versions.join(" | ")).unwrap();
    writeln!(out, "|---|{}", "---:|".repeat(versions.len())).unwrap();
    for row in rows.iter().filter(|row| row.version == versions[0]) {
        write!(out, "| {}", row.setup.name).unwrap();
        for version in versions {
            let cell = row_of(version, &row.setup.name).map(|row| {
                let haproxy = row.median(|figures| figures.haproxy_us);
                let agent = row.median(|figures| figures.agent_us);
                let ratio = row_of(version, setups::STICK_TABLE)
                    .map_or(f64::NAN, |stick_table| row.ratio(stick_table, both));
                format!("{haproxy:.1} + {agent:.1} ({ratio:.2})")
            });
            write!(out, " | {}", cell.unwrap_or_default()).unwrap();
        }
        writeln!(out, " |").unwrap();
    }
    writeln!(out).unwrap();
}

/// All tables, for the terminal.
pub(crate) fn text(
    rows: &[Row],
    blind: &[(String, [Latency; 5])],
    left_out: &[String],
    rounds: usize,
    seconds: u64,
) -> String {
    let mut out = format!(
        "Medians of {rounds} rounds of {seconds} s. Overhead is the share of the requests per \
         second without a limiter that is lost, the median of the rounds'. Other programs took \
         {:.0} % of the machine: if that is much, read CPU per request only. {}.\n\n",
        100.0 * median(rows.iter().map(|row| row.median(|round| round.others)).collect()),
        host::description()
    );
    for group in Group::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.setup.group == group).collect();
        if !rows.is_empty() {
            writeln!(out, "{}\n", legend(group)).unwrap();
            table(&mut out, &rows);
        }
    }
    if !blind.is_empty() {
        writeln!(
            out,
            "One request at a time, and a handler that waits before it answers: microseconds from \
             the request to the answer, median and 99th percentile. (Timers of tokio count whole \
             milliseconds and end one or two late.)\n\n\
             | HAProxy | not asked    | 0 ms         | 1 ms         | 10 ms            \
             | 100 ms           |\n\
             | ------- | -----------: | -----------: | -----------: | ---------------: \
             | ---------------: |"
        )
        .unwrap();
        for (version, latencies) in blind {
            let [none, zero, one, ten, hundred] =
                latencies.map(|[p50, p99]| format!("{p50:.0}, {p99:.0}"));
            writeln!(
                out,
                "| {version:<7} | {none:>12} | {zero:>12} | {one:>12} | {ten:>16} \
                 | {hundred:>16} |"
            )
            .unwrap();
        }
        writeln!(out).unwrap();
    }
    if !left_out.is_empty() {
        writeln!(out, "Left out: {}.\n", left_out.join("; ")).unwrap();
    }
    out
}

/// The figures of wrk.
fn short_table(out: &mut String, rows: &[&Row]) {
    writeln!(
        out,
        "| limiter               | requests/s | p50 µs | p99 µs |\n\
         | --------------------- | ---------: | -----: | -----: |"
    )
    .unwrap();
    for row in rows {
        writeln!(
            out,
            "| {:<21} | {:>10.0} | {:>6.0} | {:>6.0} |",
            row.setup.name,
            row.median(|round| round.per_second),
            row.median(|round| round.p50_us),
            row.median(|round| round.p99_us),
        )
        .unwrap();
    }
    writeln!(out).unwrap();
}

fn table(out: &mut String, rows: &[&Row]) {
    writeln!(
        out,
        "| HAProxy | limiter               |   req/s | overhead | p50 µs | p99 µs | p99.9 µs \
         | CPU HAProxy µs | CPU agent µs | asked about |\n\
         | ------- | --------------------- | ------: | -------: | -----: | -----: | -------: \
         | -------------: | -----------: | ----------: |"
    )
    .unwrap();
    for row in rows {
        let base = rows
            .iter()
            .find(|base| base.version == row.version && base.setup.name == setups::NO_LIMITER);
        let overhead = base
            .map_or(f64::NAN, |base| 100.0 * (1.0 - row.ratio(base, |round| round.per_second)));
        let asked = match row.rounds[0].asked {
            Some(_) => {
                format!("{:.1} %", 100.0 * row.median(|round| round.asked.unwrap_or_default()))
            }
            None => String::new(),
        };
        writeln!(
            out,
            "| {:<7} | {:<21} | {:>7.0} | {:>6.1} % | {:>6.0} | {:>6.0} | {:>8.0} \
             | {:>14.1} | {:>12.2} | {asked:>11} |",
            row.version,
            row.setup.name,
            row.median(|round| round.per_second),
            overhead,
            row.median(|round| round.p50_us),
            row.median(|round| round.p99_us),
            row.median(|round| round.p999_us),
            row.median(|round| round.haproxy_us),
            row.median(|round| round.agent_us),
        )
        .unwrap();
    }
    writeln!(out).unwrap();
}
