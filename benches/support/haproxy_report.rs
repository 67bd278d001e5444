//! The tables of what HAProxy does with and without limiters, and the plot.

use std::fmt::Write as _;

use crate::bars::{Chart, Panel};
use crate::setups::{self, Group};
use crate::{Figures, Latency, Row, page};

/// A figure of all rounds.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { f64::NAN } else { values[values.len() / 2] }
}

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

fn find<'a>(rows: &'a [Row], version: &str, group: Group, name: &str) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.version == version && row.setup.group == group && row.setup.name == name)
}

/// The versions, in the order of the rows.
fn versions(rows: &[Row]) -> Vec<&str> {
    let mut versions: Vec<_> = rows.iter().map(|row| &row.version[..]).collect();
    versions.dedup();
    versions
}

fn legend(group: Group) -> &'static str {
    match group {
        Group::Asking => {
            "### Asked about every request\n\nOne client, of whose requests none is denied. \"Constant answer\" is the server of this project \
             around a handler that sets `blocked` to false: what asking costs whoever answers. \"Go agent\" is one of \
             negasus/haproxy-spoe-go, as its readme writes one. The stick table has a `http_req_rate(1s)`.\n"
        }
        Group::Light => {
            "### Asking less: mostly light clients\n\n100/s with a burst of 20. Of 20 requests 19 are from clients that make no other, and one \
             is from one of 2 clients that are far above their limit.\n"
        }
        Group::Heavy => {
            "### Asking less: one heavy client\n\n100/s with a burst of 20, and one client that sends all there is, so that nearly everything is \
             denied.\n"
        }
        Group::Share => {
            "### Which share is asked about\n\nAs HAProxy's own test of its filters does it: `event ... if { rand(1000) lt N }`.\n"
        }
    }
}

pub(crate) fn section(
    rows: &[Row],
    blind: &[(String, [Latency; 5])],
    left_out: &[String],
    command: &str,
    rounds: usize,
    seconds: u64,
) -> String {
    let mut section = String::from("## Through HAProxy\n\n");
    let out = &mut section;
    writeln!(
        out,
        "wrk with one thread and 32 connections for {seconds} s, HAProxy with one thread and `http-request return`; medians of {rounds} \
         interleaved rounds, each with processes of its own. wrk, HAProxy and the agent share the machine's cores, so what an agent takes \
         is not there for HAProxy: an upper bound of what it costs. CPU is the kernel's accounting, per request. Overhead is what \
         is lost of the requests per second without a limiter, the median of the rounds'. Other programs took {:.0} % of the machine \
         meanwhile: the more, the less do requests per second say, and CPU per request is what to read. {}. The command was\n",
        100.0 * median(rows.iter().map(|row| row.median(|round| round.others)).collect()),
        page::machine()
    )
    .unwrap();
    writeln!(out, "    {command}\n\n![CPU per request as bars](bench-haproxy.svg)\n").unwrap();
    writeln!(out, "{}", aims(rows)).unwrap();
    for group in Group::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.setup.group == group).collect();
        if !rows.is_empty() {
            writeln!(out, "{}", legend(group)).unwrap();
            table(out, &rows);
        }
    }
    if !blind.is_empty() {
        writeln!(
            out,
            "### One request at a time, and an agent that takes its time\n\nMicroseconds from the request to the answer, median and 99th \
             percentile; the handler waits so long before it answers. (Timers of tokio count whole milliseconds and end one or two late.)\n\n\
             | HAProxy | not asked    | 0 ms         | 1 ms         | 10 ms            | 100 ms           |\n\
             | ------- | -----------: | -----------: | -----------: | ---------------: | ---------------: |"
        )
        .unwrap();
        for (version, latencies) in blind {
            let [none, zero, one, ten, hundred] =
                latencies.map(|[p50, p99]| format!("{p50:.0}, {p99:.0}"));
            writeln!(
                out,
                "| {version:<7} | {none:>12} | {zero:>12} | {one:>12} | {ten:>16} | {hundred:>16} |"
            )
            .unwrap();
        }
        writeln!(out).unwrap();
    }
    if !left_out.is_empty() {
        writeln!(out, "Left out: {}.\n", left_out.join("; ")).unwrap();
    }
    section
}

fn table(out: &mut String, rows: &[&Row]) {
    writeln!(
        out,
        "| HAProxy | limiter               |   req/s | overhead | p50 µs | p99 µs | p99.9 µs | CPU HAProxy µs | CPU agent µs | asked about |\n\
         | ------- | --------------------- | ------: | -------: | -----: | -----: | -------: | -------------: | -----------: | ----------: |"
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
            "| {:<7} | {:<21} | {:>7.0} | {:>6.1} % | {:>6.0} | {:>6.0} | {:>8.0} | {:>14.1} | {:>12.2} | {asked:>11} |",
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

/// What was aimed at, and whether it was reached.
fn aims(rows: &[Row]) -> String {
    let mut out = String::from(
        "| aim | HAProxy | measured | reached |\n| --- | ------- | -------: | ------- |\n",
    );
    let mut aim = |what: &str, version: &str, measured: f64, reached: bool, unit: &str| {
        let digits = if unit.is_empty() { 2 } else { 1 };
        let reached = if reached { "yes" } else { "**no**" };
        writeln!(out, "| {what} | {version} | {measured:.digits$}{unit} | {reached} |").unwrap();
    };
    for version in versions(rows) {
        let find = |group, name| find(rows, version, group, name);
        let cpu = |round: &Figures| round.agent_us;
        let speed = |round: &Figures| round.per_second;
        let asking = |name| find(Group::Asking, name);
        for (transport, ours, constant, go, faster) in [
            ("TCP", setups::OURS, setups::CONSTANT, setups::GO, 1.25),
            ("Unix", setups::OURS_UNIX, setups::CONSTANT_UNIX, setups::GO_UNIX, 1.4),
        ] {
            let Some(ours) = asking(ours) else { continue };
            if let Some(constant) = asking(constant) {
                let ratio = ours.ratio(constant, cpu);
                let what = format!(
                    "the agent's CPU at most 1.1 times that of a constant answer, {transport}"
                );
                aim(&what, version, ratio, ratio <= 1.1, "");
            }
            if let Some(go) = asking(go) {
                let ratio = ours.ratio(go, cpu);
                let what =
                    format!("the agent's CPU at most 0.35 times the Go agent's, {transport}");
                aim(&what, version, ratio, ratio <= 0.35, "");
                // On the newest, where HAProxy itself takes most of the time.
                if version.starts_with("3.2") {
                    let ratio = ours.ratio(go, speed);
                    let what = format!(
                        "at least {faster} times the req/s with the Go agent, {transport}"
                    );
                    aim(&what, version, ratio, ratio >= faster, "");
                }
            }
        }
        if let Some(table) = find(Group::Light, setups::STICK_TABLE) {
            for name in [setups::EVERY_KTH, setups::ASK_LESS] {
                let Some(less) = find(Group::Light, name) else { continue };
                let lost = 100.0 * (1.0 - less.ratio(table, speed));
                let what = format!(
                    "{name} with mostly light clients at most 3 % slower than a stick table"
                );
                aim(&what, version, lost, lost <= 3.0, " %");
                let more =
                    100.0 * (less.ratio(table, |round| round.haproxy_us + round.agent_us) - 1.0);
                let what = format!(
                    "{name} with mostly light clients at most 3 % more CPU, HAProxy and agent, than a stick table"
                );
                aim(&what, version, more, more <= 3.0, " %");
            }
        }
    }
    out
}

/// CPU per request of HAProxy and agent together, for each version.
pub(crate) fn plot(rows: &[Row]) -> String {
    const COLOURS: [&str; 4] = ["#c4c4c4", "#8c8c8c", "#7dbcea", "#1f6fb4"];
    let versions = versions(rows);
    let names: Vec<_> = versions.iter().map(|version| format!("HAProxy {version}")).collect();
    let series: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| (&name[..], COLOURS[index % COLOURS.len()]))
        .collect();
    let cpu = |row: &Row| row.median(|round| round.haproxy_us + round.agent_us);
    let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for Row { setup, .. } in rows.iter().filter(|row| row.setup.group != Group::Share) {
        let label = match setup.group {
            Group::Asking | Group::Share => setup.name.clone(),
            Group::Light | Group::Heavy => format!("{}: {}", setup.group.name(), setup.name),
        };
        if groups.iter().all(|(known, _)| *known != label) {
            let values = versions
                .iter()
                .map(|version| find(rows, version, setup.group, &setup.name).map(cpu))
                .collect();
            groups.push((label, values));
        }
    }
    let panel = Panel {
        title: "",
        axis: "µs of CPU per request, HAProxy and agent (logarithmic)",
        from: 1.0,
        groups,
    };
    Chart { series: &series, panels: &[panel] }.svg()
}
