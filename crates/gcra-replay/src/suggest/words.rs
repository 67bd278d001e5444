//! Suggestions in words, for a terminal.

use std::fmt::Write as _;

use gcra_text::columns::wrap;
use gcra_text::count::Count;

use super::peaks::Bin;
use super::suggestions::{Suggestion, Suggestions};

/// Bars are not longer, however wide the terminal is.
const LONGEST_BAR: usize = 40;

/// Clients that are described in a terminal. The JSON has more.
const SHOWN_SUSPECTS: usize = 8;

impl Suggestions {
    /// Lines for a terminal, at most `width` columns each where names and numbers allow it.
    pub(crate) fn in_words(&self, width: usize) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(width.max(40), &mut text);
        text
    }

    fn write(&self, width: usize, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "Limits for {}: {}, {}",
            self.key,
            Count(self.clients, "client", "clients"),
            Count(self.requests, "request", "requests")
        )?;
        let goal = format!(
            "The tight one would have {} fewer than {} % of the {}.",
            if self.target_of == "clients" { "touched" } else { "blocked" },
            self.target * 100.0,
            self.target_of
        );
        if !self.suggestions.is_empty() {
            indented(&goal, "  ", width, text);
            writeln!(text)?;
        }
        let rate = longest(self.suggestions.iter().map(|limit| limit.rate.len()));
        let burst = longest(self.suggestions.iter().map(|limit| limit.burst.to_string().len()));
        for Suggestion {
            name,
            rate: written,
            burst: most,
            clients_touched,
            requests_blocked,
            why,
            ..
        } in &self.suggestions
        {
            writeln!(
                text,
                "  {name:<9} {written:>rate$} burst {most:>burst$}   touches {} ({} %), blocks {} \
                 ({} %)",
                Count(*clients_touched, "client", "clients"),
                percent(*clients_touched, self.clients),
                Count(*requests_blocked, "request", "requests"),
                percent(*requests_blocked, self.requests),
            )?;
            indented(why, "            ", width, text);
        }
        if !self.peaks.is_empty() {
            writeln!(text, "\n  Clients by the requests of their busiest second")?;
            bars(&self.peaks, width, text)?;
        }
        if !self.suspects.is_empty() {
            writeln!(text, "\n  The busiest clients")?;
        }
        for suspect in self.suspects.iter().take(SHOWN_SUSPECTS) {
            writeln!(
                text,
                "  {}: {}, {} in a second, {} in a minute{}",
                suspect.client,
                Count(suspect.requests, "request", "requests"),
                suspect.peak,
                suspect.busiest_minute,
                match suspect.touched_by.last() {
                    Some(name) if suspect.touched_by.len() == 1 => format!(", blocked by {name}"),
                    Some(name) => format!(", blocked up to {name}"),
                    None => String::new(),
                },
            )?;
        }
        if !self.cannot_tell.is_empty() {
            writeln!(text, "\n  What this log cannot tell")?;
        }
        for sentence in &self.cannot_tell {
            indented(sentence, "  ", width, text);
        }
        Ok(())
    }
}

/// A bar for each range of counts. Its length is the logarithm of the clients, because the few
/// busiest ones are what matters.
fn bars(bins: &[Bin], width: usize, text: &mut String) -> std::fmt::Result {
    let label = |bin: &Bin| match (bin.from, bin.to) {
        (from, to) if from == to => from.to_string(),
        (from, u32::MAX) => format!("{from} or more"),
        (from, to) => format!("{from} to {to}"),
    };
    let labels = longest(bins.iter().map(|bin| label(bin).len()));
    let counts = longest(bins.iter().map(|bin| bin.clients.to_string().len()));
    let longest_bar = width.saturating_sub(labels + counts + 6).clamp(8, LONGEST_BAR);
    let size = |clients: u64| u64::BITS - clients.leading_zeros();
    let largest = bins.iter().map(|bin| size(bin.clients)).max().unwrap_or(1).max(1) as usize;
    for bin in bins {
        let length = (size(bin.clients) as usize * longest_bar).div_ceil(largest);
        let line =
            format!("  {:>labels$}  {:>counts$}  {}", label(bin), bin.clients, "▇".repeat(length));
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
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

fn indented(words: &str, indent: &str, width: usize, text: &mut String) {
    wrap(indent, indent.len(), words, width, text);
}
