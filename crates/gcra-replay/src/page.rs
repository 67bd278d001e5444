//! Text that grows, of lines that fit a width.

use gcra_text::columns::{self, Column, length, wrap};

pub(crate) struct Page {
    pub text: String,
    pub width: usize,
}

impl Page {
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
        let width = self.width.saturating_sub(2);
        let height = columns::height(&columns, width);
        for line in columns::lines(columns, width, height, 0) {
            self.line(&format!("  {line}"));
        }
    }
}
