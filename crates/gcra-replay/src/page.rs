//! Text that grows, of lines that fit a width.

use gcra_text::columns::{self, Column, length, wrap};

/// The narrowest page. A narrower terminal wraps its lines.
const NARROWEST: usize = 40;

/// The widest line of text, which is read better than a wider one.
const WIDEST: usize = 100;

pub(crate) struct Page {
    pub text: String,
    /// Of sentences, and of a plot.
    pub width: usize,
    /// Of tables and excerpts, which are cut.
    pub cut_at: usize,
}

impl Page {
    /// For a terminal with so many columns. Nothing is cut for a file or a pipe, `None`.
    pub(crate) fn new(columns: Option<usize>) -> Self {
        let width = columns.unwrap_or(80).clamp(NARROWEST, WIDEST);
        let cut_at = columns.map_or(usize::MAX, |columns| columns.max(NARROWEST));
        Self { text: String::new(), width, cut_at }
    }

    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub(crate) fn blank(&mut self) {
        self.text.push('\n');
    }

    /// A text behind a heading, wrapped at spaces and indented as far as the heading reaches.
    pub(crate) fn item(&mut self, heading: &str, text: &str) {
        let indent = length(heading).max(2 * usize::from(heading.is_empty()));
        wrap(heading, indent, text, self.width, &mut self.text);
    }

    pub(crate) fn columns(&mut self, columns: Vec<Column>) {
        let width = self.cut_at.saturating_sub(2);
        for line in columns::lines(columns, width, usize::MAX) {
            self.line(&format!("  {line}"));
        }
    }
}
