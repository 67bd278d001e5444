//! Columns of text that fit a width: the least important are left out, and the heading says how
//! many.

use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};

use crate::plural::Count;

/// The columns are this far apart.
const GAP: usize = 2;

/// The flexible column is not made narrower than its heading or this to keep another one.
const NARROW: usize = 16;

/// No column is wider, whatever another process has written.
const WIDEST: usize = 1000;

/// A row that says how many are missing needs one row above it to be of use.
pub(crate) const LEAST: usize = 3;

pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) cells: Vec<(String, Style)>,
    /// Numbers stand on the right.
    pub(crate) is_number: bool,
    /// It gets the width that is left, and its text is cut if that is too little. There is one.
    pub(crate) is_flexible: bool,
    /// The column with the highest rank is left out first; those with 0 are kept.
    pub(crate) rank: u8,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(text, _)| length(text));
        cells.chain([length(&self.heading)]).max().unwrap_or(0).min(WIDEST)
    }
}

/// A heading and the rows below it, in at most so many lines.
pub(crate) fn lines(mut columns: Vec<Column>, width: usize, height: usize) -> Vec<Line<'static>> {
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let all = columns.len();
    let mark = |columns: &[Column]| match all - columns.len() {
        0 => String::new(),
        left_out => format!(" +{}", Count(left_out, "column", "columns")),
    };
    let needed = |columns: &[Column]| -> usize {
        let least = |column: &Column| match column.width() {
            width if column.is_flexible => {
                width.min(NARROW).max(length(&column.heading) + length(&mark(columns)))
            }
            width => width,
        };
        columns.iter().map(|column| GAP + least(column)).sum::<usize>().saturating_sub(GAP)
    };
    // Ends when only columns with the rank 0 are left.
    while needed(&columns) > width {
        let last = columns.iter().map(|column| column.rank).max().unwrap_or(0);
        if last == 0 {
            break;
        }
        columns.retain(|column| column.rank < last);
    }
    let mark = mark(&columns);
    if let Some(column) = columns.iter_mut().find(|column| column.is_flexible) {
        column.heading = format!("{}{mark}", column.heading).trim_start().to_owned();
    }
    let widths: Vec<_> = columns.iter().map(Column::width).collect();
    let total = widths.iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
    let too_wide = total.saturating_sub(width);
    let line = |cell: &dyn Fn(&Column) -> (String, Style)| {
        let mut spans = Vec::new();
        for (at, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let narrower = if column.is_flexible { too_wide } else { 0 };
            let width = width.saturating_sub(narrower);
            let (text, style) = cell(column);
            let text = cut(&text, width);
            let text = if column.is_number {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            };
            if at > 0 {
                spans.push(Span::raw(" ".repeat(GAP)));
            }
            spans.push(Span::styled(text, style));
        }
        Line::from(spans)
    };
    let mut lines = vec![line(&|column| (column.heading.clone(), Style::new().dim()))];
    let space = height.saturating_sub(1);
    let shown = if rows > space { space.saturating_sub(1) } else { rows };
    for row in 0..shown {
        lines.push(line(&|column| column.cells.get(row).cloned().unwrap_or_default()));
    }
    if rows > shown {
        lines.push(Line::from(format!("+{} more", rows - shown)).dim());
    }
    lines.truncate(height);
    lines
}

/// The beginning of a text, with "…" where it is cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect()
}

/// In characters: all texts here are in Latin letters, and others come out a little wrong.
pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}
