//! Suggestions in words, for a terminal.

use gcra_text::count::Count;

use super::peaks::Bin;
use super::suggestions::Suggestions;
use crate::page::Page;

/// Bars are not longer, however wide the terminal is.
const LONGEST_BAR: usize = 40;

/// Clients that are described in a terminal. The JSON has more.
const SHOWN_SUSPECTS: usize = 8;

impl Suggestions {
    /// Lines that fit the page where names and numbers allow it.
    pub(crate) fn write(&self, page: &mut Page) {
        page.line(&format!(
            "Limits for {}: {}, {}",
            self.key,
            Count(self.clients, "client", "clients"),
            Count(self.requests, "request", "requests")
        ));
        if !self.suggestions.is_empty() {
            let goal = format!(
                "The tight one would have {} fewer than {} % of the {}.",
                if self.target_of == "clients" { "touched" } else { "blocked" },
                self.target * 100.0,
                self.target_of
            );
            page.item("  ", &goal);
            page.blank();
        }
        let rate = longest(self.suggestions.iter().map(|limit| limit.rate.len()));
        let burst = longest(self.suggestions.iter().map(|limit| limit.burst.to_string().len()));
        for limit in &self.suggestions {
            page.line(&format!(
                "  {:<9} {:>rate$} burst {:>burst$}   touches {} ({} %), blocks {} ({} %)",
                limit.name,
                limit.rate,
                limit.burst,
                Count(limit.clients_touched, "client", "clients"),
                percent(limit.clients_touched, self.clients),
                Count(limit.requests_blocked, "request", "requests"),
                percent(limit.requests_blocked, self.requests),
            ));
            page.item("            ", &limit.why);
        }
        if !self.peaks.is_empty() {
            page.blank();
            page.item(
                "  ",
                "Clients by the requests of their busiest second (twice as many clients make a \
                 bar one step longer)",
            );
            bars(&self.peaks, page);
        }
        if !self.suspects.is_empty() {
            page.blank();
            page.line("  The busiest clients");
        }
        for suspect in self.suspects.iter().take(SHOWN_SUSPECTS) {
            page.line(&format!(
                "  {}: {}, {} in a second, {} in a minute{}",
                suspect.client,
                Count(suspect.requests, "request", "requests"),
                suspect.peak,
                suspect.busiest_minute,
                match &suspect.touched_by[..] {
                    [] => String::new(),
                    [name] => format!(", blocked by {name}"),
                    [.., name] => format!(", blocked up to {name}"),
                },
            ));
        }
        if !self.cannot_tell.is_empty() {
            page.blank();
            page.line("  What this log cannot tell");
        }
        self.cannot_tell.iter().for_each(|sentence| page.item("  ", sentence));
    }
}

/// A bar for each range of counts. Its length is the logarithm of the clients, because the few
/// busiest ones are what matters.
fn bars(bins: &[Bin], page: &mut Page) {
    let label = |bin: &Bin| match (bin.from, bin.to) {
        (from, to) if from == to => from.to_string(),
        (from, u32::MAX) => format!("{from} or more"),
        (from, to) => format!("{from} to {to}"),
    };
    let labels = longest(bins.iter().map(|bin| label(bin).len()));
    let counts = longest(bins.iter().map(|bin| bin.clients.to_string().len()));
    let longest_bar = page.width.saturating_sub(labels + counts + 6).clamp(8, LONGEST_BAR);
    let size = |clients: u64| u64::BITS - clients.leading_zeros();
    let largest = bins.iter().map(|bin| size(bin.clients)).max().unwrap_or(1).max(1) as usize;
    for bin in bins {
        let bar = "▇".repeat((size(bin.clients) as usize * longest_bar).div_ceil(largest));
        page.line(&format!("  {:>labels$}  {:>counts$}  {bar}", label(bin), bin.clients));
    }
}

fn longest(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.max().unwrap_or(0)
}

/// "0.02": two digits that count, so that a few of many are not none.
fn percent(part: u64, whole: u64) -> String {
    let percent = 100.0 * super::grid::f64_from(part) / super::grid::f64_from(whole.max(1));
    match percent {
        0.0 => "0".into(),
        percent if percent < 0.01 => "<0.01".into(),
        percent if percent < 1.0 => format!("{percent:.2}"),
        percent if percent < 10.0 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    }
}
