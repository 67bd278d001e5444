//! The report for a terminal.

use std::fmt::{self, Write as _};
use std::time::Duration;

use gcra_text::columns::{Column, Style, cut};
use gcra_text::count::Count;
use gcra_text::duration::{Left, Utc};

use crate::page::Page;
use crate::report::{
    Against, Bad, BlockedClient, PolicyReport, Report, Timeline, WithoutDecision,
};
use crate::suggest::grid::f64_from;
use crate::tally::Totals;

/// How many clients and bad lines are listed.
const MOST_CLIENTS: usize = 10;
const MOST_BAD: usize = 8;

impl Report {
    /// The report, for a terminal with so many columns, or for a file.
    pub(crate) fn in_words(&self, columns: Option<usize>) -> String {
        let mut page = Page::new(columns);
        self.log(&mut page);
        if self.configuration.new.is_some() {
            page.blank();
            if let Some(caution) = &self.caution {
                page.item("Note: ", caution);
                page.blank();
            }
            self.totals(&mut page);
            for policy in &self.policies {
                page.blank();
                policy.write(&mut page);
            }
            page.blank();
            self.timeline.write(&mut page);
            self.clients(&mut page);
            if let Some(against) = &self.against {
                page.blank();
                against.write(self, &mut page);
            }
        }
        if let Some(suggestions) = &self.suggest {
            page.blank();
            suggestions.write(&mut page);
        }
        write_bad(&self.bad, self.lines, &mut page);
        write_notes(&self.notes, &mut page);
        page.text.trim_end().to_owned()
    }

    fn log(&self, page: &mut Page) {
        let files = files_in_words(&self.files);
        let mut read = format!(
            "{} of {files} in {}",
            Count(Grouped(self.requests), "request", "requests"),
            self.format
        );
        if let (Some(first), Some(last)) = (self.first, self.last) {
            let seconds = Duration::try_from_secs_f64(last - first).unwrap_or_default();
            let _ = write!(
                read,
                ", from {} to {} ({}), by {}",
                Utc(whole(first)),
                Utc(whole(last)),
                Left(seconds.max(Duration::from_secs(1))),
                self.time
            );
        }
        page.item("Log       ", &read);
        let mapping = self.mapping.iter();
        let mapping: Vec<_> =
            mapping.map(|mapped| format!("{}={}", mapped.arg, mapped.field)).collect();
        if !mapping.is_empty() {
            page.item("Args      ", &mapping.join(", "));
        }
        if self.messages.len() > 1 {
            page.item("Messages  ", &self.messages.join(", "));
        }
        if let Some(new) = &self.configuration.new {
            page.item("Limits    ", new);
        }
        if let Some(old) = &self.configuration.old {
            page.item("Against   ", old);
        }
    }

    fn totals(&self, page: &mut Page) {
        let Totals { allowed, blocked, would_block, delayed, undecided, unmatched } =
            self.total.requests;
        let all = allowed + blocked + would_block + undecided + unmatched;
        let of_clients = |clients: u64| {
            format!(", of {} of {}", Grouped(clients), clients_in_words(self.total.clients))
        };
        let mut line = |name: &str, count: u64, rest: &str| {
            page.line(&format!("{name:<12}{:>14} {:>8}{rest}", Grouped(count), share(count, all)));
        };
        line("allowed", allowed, "");
        if delayed > 0 {
            line("  delayed", delayed, ", which are among the allowed");
        }
        line("blocked", blocked, &of_clients(self.total.clients_blocked));
        if would_block > 0 {
            line("would block", would_block, &of_clients(self.total.clients_would_block));
        }
        if undecided > 0 {
            line("undecided", undecided, ", without a value for the key");
        }
        if unmatched > 0 {
            line("no policy", unmatched, "");
        }
        if let Some(answers) = &self.log_answers {
            let mut said = format!(
                "The log itself has {} of 429 and {} of 403",
                Count(Grouped(answers.too_many_requests), "answer", "answers"),
                Grouped(answers.forbidden)
            );
            if let Some(blocked) = answers.blocked {
                let _ = write!(
                    said,
                    ", and says of {} that an agent blocked {}",
                    Count(Grouped(blocked), "request", "requests"),
                    if blocked == 1 { "it" } else { "them" }
                );
            }
            page.item("", &format!("{said}."));
            if let Some(undecided) = &answers.undecided {
                self.undecided(undecided, page);
            }
        }
    }

    /// How many requests had no decision, as the log says.
    fn undecided(&self, undecided: &WithoutDecision, page: &mut Page) {
        let WithoutDecision { requests, by_err, cut } = undecided;
        if *requests > 0 {
            let each: Vec<_> = by_err
                .iter()
                .map(|it| format!("{} with err={} ({})", Grouped(it.requests), it.err, it.why))
                .collect();
            let said = format!(
                "It says of {} ({}) that HAProxy got no decision: {}.",
                Count(Grouped(*requests), "request", "requests"),
                share(*requests, self.requests),
                each.join(", ")
            );
            page.item("", &said);
        }
        if *cut > 0 {
            let said = format!(
                "{} before blocked= and err=, so it is not known whether there was a decision.",
                Count(Grouped(*cut), "line is cut", "lines are cut")
            );
            page.item("", &said);
        }
    }

    /// The clients with the most blocked requests.
    fn clients(&self, page: &mut Page) {
        if self.most_blocked.is_empty() {
            return;
        }
        page.blank();
        page.line("The most blocked clients, and those that would be");
        let shown = &self.most_blocked[..self.most_blocked.len().min(MOST_CLIENTS)];
        let column = |heading: &str, rank: u8, text: &dyn Fn(&BlockedClient) -> String| Column {
            heading: heading.to_owned(),
            cells: shown.iter().map(|client| (text(client), Style::Plain)).collect(),
            is_number: true,
            is_flexible: false,
            rank,
        };
        let has_several_policies = self.policies.len() > 1;
        let mut list = vec![
            Column {
                is_number: false,
                is_flexible: true,
                ..column("client", 0, &|client| client.client.clone())
            },
            column("blocked", 0, &|client| {
                Grouped(client.blocked + client.would_block).to_string()
            }),
            column("requests", 2, &|client| Grouped(client.requests).to_string()),
            column("most in 1 s", 3, &|client| Grouped(client.peak.per_second).to_string()),
            column("longest wait", 1, &|client| wait(client.worst_wait)),
        ];
        if has_several_policies {
            let policy = column("policy", 4, &|client| client.policy.clone());
            list.push(Column { is_number: false, ..policy });
        }
        page.columns(list);
        if self.most_blocked.len() > shown.len() {
            page.line("  more of them with --json and --html");
        }
    }
}

/// The logs of a report: the file, or how many there are.
pub(crate) fn files_in_words(files: &[String]) -> String {
    match files {
        [file] => file.clone(),
        files => format!("{} files", files.len()),
    }
}

/// The notes of a report, if it has any.
pub(crate) fn write_notes(notes: &[String], page: &mut Page) {
    if notes.is_empty() {
        return;
    }
    page.blank();
    page.line("Notes");
    notes.iter().for_each(|note| page.item("  ", note));
}

/// The lines of a log that were not used, if there are any.
pub(crate) fn write_bad(bad: &[Bad], lines: u64, page: &mut Page) {
    if bad.is_empty() {
        return;
    }
    page.blank();
    let count = bad.iter().map(|bad| bad.count).sum::<u64>();
    page.line(&format!(
        "{} of {} {} not used; the first of each kind:",
        Count(Grouped(count), "line", "lines"),
        Grouped(lines),
        if count == 1 { "was" } else { "were" }
    ));
    for bad in bad.iter().take(MOST_BAD) {
        let place = format!("{}, {}:{}", bad.kind, bad.file, bad.line);
        page.item("  ", &format!("{} × {place}", Grouped(bad.count)));
        page.line(&format!("      {}", cut(&bad.excerpt, page.cut_at.saturating_sub(6))));
    }
}

impl PolicyReport {
    fn write(&self, page: &mut Page) {
        let observes = if self.observes { "; it only observes" } else { "" };
        page.item("", &format!("Policy {}: {}{observes}", self.name, self.in_words));
        let hit = self.blocked + self.would_block;
        let all = self.allowed + hit;
        let word = if self.observes { "would block" } else { "blocked" };
        let counts = format!(
            "{} allowed, {} {word} ({}), {} of {} hit",
            Grouped(self.allowed),
            Grouped(hit),
            share(hit, all),
            Grouped(self.clients_blocked),
            clients_in_words(self.clients)
        );
        page.item("  ", &counts);
        if self.delayed > 0 {
            page.line(&format!("  {} of the allowed were delayed", Grouped(self.delayed)));
        }
        for limit in &self.limits {
            let name = if limit.is_override { "an override" } else { &limit.name };
            let hit = limit.blocked + limit.would_block;
            let longest = match hit {
                0 => String::new(),
                _ => format!(", longest wait {}", wait(limit.worst_wait)),
            };
            let limit = format!("limit {name}, {}: {} {word}{longest}", limit.limit, Grouped(hit));
            page.item("  ", &limit);
        }
        for (count, why) in [
            (self.reasons.denied, "by the rule deny"),
            (self.reasons.oversize, "because the cost is above the burst"),
        ] {
            if count > 0 {
                page.line(&format!("  {} {word} {why}", Grouped(count)));
            }
        }
        if self.undecided > 0 {
            let undecided = Count(Grouped(self.undecided), "request", "requests");
            page.line(&format!("  {undecided} undecided"));
        }
    }
}

impl Timeline {
    /// Two rows of bars: all requests, and those that are blocked or would be.
    fn write(&self, page: &mut Page) {
        let hit: Vec<u64> =
            self.blocked.iter().zip(&self.would_block).map(|(one, other)| one + other).collect();
        let all: Vec<u64> =
            self.allowed.iter().zip(&hit).map(|(one, other)| one + other).collect();
        write_series(page, &Utc(self.start), self.step, &[("requests", &all), ("blocked", &hit)]);
    }
}

/// A row of bars for each series of a timeline, with its name.
pub(crate) fn write_series(
    page: &mut Page,
    start: &dyn fmt::Display,
    step: u64,
    series: &[(&str, &[u64])],
) {
    let space = page.width.saturating_sub(11).max(10);
    let length = series.iter().map(|(_, series)| series.len()).max().unwrap_or(0);
    let each = length.div_ceil(space).max(1);
    let step = Duration::from_secs(step.saturating_mul(each as u64));
    page.item("", &format!("Over time from {start}, {} a column", Left(step)));
    for (name, series) in series {
        let sums: Vec<u64> = series.chunks(each).map(|chunk| chunk.iter().sum()).collect();
        let most = sums.iter().copied().max().unwrap_or(0);
        page.line(&format!("  {name:<9}{}", bars(&sums, most)));
        page.line(&format!("           at most {} in a column", Grouped(most)));
    }
}

impl Against {
    fn write(&self, report: &Report, page: &mut Page) {
        let (new, old) = (&report.total.requests, &self.total.requests);
        page.line("What changes");
        let mut line = |name: &str, before: u64, now: u64| {
            page.line(&format!(
                "  {name:<12}{:>14} before, {:>14} now",
                Grouped(before),
                Grouped(now)
            ));
        };
        line("allowed", old.allowed, new.allowed);
        if new.delayed + old.delayed > 0 {
            line("  delayed", old.delayed, new.delayed);
        }
        line("blocked", old.blocked, new.blocked);
        if new.would_block + old.would_block > 0 {
            line("would block", old.would_block, new.would_block);
        }
        let requests = |count: u64| Count(Grouped(count), "request", "requests");
        for (count, what, clients) in [
            (self.newly_blocked, "blocked", self.clients_newly_blocked),
            (self.newly_allowed, "allowed", self.clients_newly_allowed),
        ] {
            let (requests, clients) = (requests(count), clients_in_words(clients));
            page.item("  ", &format!("{requests} newly {what}, of {clients}"));
        }
        if self.newly_would_block > 0 {
            let requests = requests(self.newly_would_block);
            page.item("  ", &format!("{requests} that would be newly blocked"));
        }
        for newly in self.most_newly_blocked.iter().take(MOST_CLIENTS) {
            let requests = Grouped(newly.requests);
            page.item("    ", &format!("{}: {requests} newly blocked", newly.client));
        }
    }
}

/// Bars of eight heights. Where there is anything, there is at least the lowest.
fn bars(series: &[u64], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |count: &u64| match count.saturating_mul(8).checked_div(most) {
        Some(eighths) if *count > 0 => BARS[usize::try_from(eighths).unwrap_or(0).min(7)],
        _ => ' ',
    };
    series.iter().map(bar).collect()
}

/// A count with commas between thousands.
#[derive(PartialEq)]
pub(crate) struct Grouped(pub(crate) u64);

impl From<u8> for Grouped {
    fn from(count: u8) -> Self {
        Self(count.into())
    }
}

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// "0.4 %". Nothing but all is 100 %, and nothing but nothing is 0 %.
pub(crate) fn share(part: u64, all: u64) -> String {
    let percent = f64_from(part) * 100.0 / f64_from(all.max(1));
    match () {
        () if part == 0 => "0 %".to_owned(),
        () if part == all => "100 %".to_owned(),
        () if percent < 0.01 => "<0.01 %".to_owned(),
        () if percent > 99.99 => ">99.99 %".to_owned(),
        () if !(1.0..=99.0).contains(&percent) => format!("{percent:.2} %"),
        () => format!("{percent:.1} %"),
    }
}

fn clients_in_words(count: u64) -> String {
    Count(Grouped(count), "client", "clients").to_string()
}

fn wait(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds) {
        Ok(wait) if !wait.is_zero() => Left(wait).to_string(),
        _ => "-".to_owned(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds since 1970")]
fn whole(seconds: f64) -> u64 {
    seconds.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_anything_there_is_a_bar() {
        assert_eq!(bars(&[0, 1, 100, 450, 800], 800), " ▁▂▅█");
        assert_eq!(bars(&[0, 0], 0), "  ");
    }
}
