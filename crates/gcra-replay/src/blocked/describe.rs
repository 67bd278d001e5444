//! Who was blocked, for a terminal.

use std::time::Duration;

use gcra_text::columns::{Column, Style};
use gcra_text::count::Count;
use gcra_text::duration::Wait;

use super::findings::at_in_zone;
use super::report::{BlockedReport, BlockedTimeline};
use crate::describe::{Grouped, files_in_words, share, write_bad, write_notes, write_series};
use crate::page::Page;

/// How many rows of clients are listed.
const MOST_CLIENTS: usize = 20;

impl BlockedReport {
    /// The report, for a terminal with so many columns, or for a file.
    pub(crate) fn in_words(&self, columns: Option<usize>) -> String {
        let mut page = Page::new(columns);
        self.log(&mut page);
        page.blank();
        self.totals(&mut page);
        if self.blocked > 0 {
            page.blank();
            self.by_cause(&mut page);
            page.blank();
            self.by_client(&mut page);
        }
        page.blank();
        self.timeline.write(&mut page, |second| self.at(second));
        write_bad(&self.bad, self.lines, &mut page);
        write_notes(&self.notes, &mut page);
        page.text.trim_end().to_owned()
    }

    /// A moment in the time zone of the log.
    fn at(&self, seconds: i64) -> String {
        at_in_zone(seconds + i64::from(self.utc_offset), self.utc_offset)
    }

    fn log(&self, page: &mut Page) {
        let files = files_in_words(&self.files);
        let read = format!(
            "{} of {files} in {}, by {}",
            Count(Grouped(self.log_requests), "request", "requests"),
            self.format,
            self.time
        );
        page.item("Log       ", &read);
        let counted = format!(
            "{} from {} to {}",
            Count(Grouped(self.requests), "request", "requests"),
            self.at(self.first),
            self.at(self.last)
        );
        page.item("Counted   ", &counted);
        let client = self.client.iter().map(|client| format!("{client}, "));
        page.item(
            "Client    ",
            &format!("{}by {}", client.collect::<String>(), self.client_field),
        );
    }

    fn totals(&self, page: &mut Page) {
        let mut line = |name: &str, count: u64, rest: &str| {
            let share = share(count, self.requests);
            page.line(&format!("{name:<12}{:>14} {share:>8}{rest}", Grouped(count)));
        };
        line("allowed", self.allowed, "");
        let clients = Count(Grouped(self.clients_blocked), "client", "clients");
        line("blocked", self.blocked, &format!(", of {clients}"));
        line("no decision", self.no_decision.requests, "");
        for of in &self.no_decision.by_err {
            line(&format!("  err={}", of.err), of.requests, &format!(", {}", of.why));
        }
        if self.not_readable > 0 {
            line("not readable", self.not_readable, ", 'blocked' is neither 0 nor 1");
        }
        if self.not_asked > 0 {
            let why = ", HAProxy did not ask, or the line is cut";
            line("not asked", self.not_asked, why);
        }
    }

    fn by_cause(&self, page: &mut Page) {
        page.line("By policy and limit");
        let mut columns = causes(&self.causes, |row| [&row.policy, &row.limit, &row.reason]);
        columns.push(numbers("blocked", 0, &self.causes, |row| Grouped(row.blocked).to_string()));
        columns.push(numbers("clients", 1, &self.causes, |row| Grouped(row.clients).to_string()));
        columns.push(numbers("longest wait", 1, &self.causes, |row| wait(row.longest_wait)));
        page.columns(columns);
    }

    fn by_client(&self, page: &mut Page) {
        page.line("Blocked clients");
        let shown = &self.clients[..self.clients.len().min(MOST_CLIENTS)];
        let mut columns = vec![Column {
            is_number: false,
            is_flexible: true,
            ..numbers("client", 0, shown, |row| match &row.known_as {
                Some(words) => format!("{} ({words})", row.client),
                None => row.client.clone(),
            })
        }];
        columns.extend(causes(shown, |row| [&row.policy, &row.limit, &row.reason]));
        columns.push(numbers("blocked", 0, shown, |row| Grouped(row.blocked).to_string()));
        // The day is named above, unless there are several.
        let day = |seconds: i64| self.at(seconds).chars().take(10).collect::<String>();
        let is_one_day = day(self.first) == day(self.last);
        let at = |seconds: i64| {
            let at: String = self.at(seconds).chars().take(19).collect();
            if is_one_day { at.chars().skip(11).collect() } else { at }
        };
        columns.push(numbers("first", 1, shown, |row| at(row.first)));
        columns.push(numbers("last", 1, shown, |row| at(row.last)));
        columns.push(numbers("longest wait", 2, shown, |row| wait(row.longest_wait)));
        page.columns(columns);
        if self.clients.len() > shown.len() {
            let more = (self.clients.len() - shown.len()) as u64;
            page.line(&format!("  {} more with --json and --html", Grouped(more)));
        }
    }
}

/// The columns for policy, limit and reason, without those that no row has.
fn causes<R>(rows: &[R], of: impl Fn(&R) -> [&Option<String>; 3]) -> Vec<Column> {
    let named = [("policy", 3), ("limit", 0), ("reason", 3)].into_iter().enumerate();
    let is_said = |place: usize| rows.iter().any(|row| of(row)[place].is_some());
    let said = named.filter(|(place, _)| is_said(*place));
    said.map(|(place, (heading, rank))| {
        let text = |row: &R| of(row)[place].clone().unwrap_or_else(|| "-".to_owned());
        Column { is_number: false, ..numbers(heading, rank, rows, text) }
    })
    .collect()
}

fn numbers<R>(heading: &str, rank: u8, rows: &[R], text: impl Fn(&R) -> String) -> Column {
    Column {
        heading: heading.to_owned(),
        cells: rows.iter().map(|row| (text(row), Style::Plain)).collect(),
        is_number: true,
        is_flexible: false,
        rank,
    }
}

/// How long a client was told to wait: "12 s", "10 min 2 s".
fn wait(seconds: Option<u64>) -> String {
    seconds.map_or("-".to_owned(), |seconds| Wait(Duration::from_secs(seconds)).to_string())
}

impl BlockedTimeline {
    fn write(&self, page: &mut Page, at: impl Fn(i64) -> String) {
        let start = at(i64::try_from(self.start).unwrap_or(0));
        let series = [
            ("allowed", &self.allowed),
            ("blocked", &self.blocked),
            ("no answer", &self.no_decision),
        ];
        let counted = series.map(|(name, series)| (name, &**series));
        let has_any = |(_, series): &(&str, &[u64])| series.iter().any(|count| *count > 0);
        let counted: Vec<_> = counted.into_iter().filter(has_any).collect();
        write_series(page, &start, self.step, &counted);
    }
}
