//! Columns of text that fit a width: the least important are left out, and the last line says how
//! many.

use std::fmt;

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Red,
    Yellow,
}

/// A line of pieces of text, each in its style. It is displayed without them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Styled(pub Vec<(String, Style)>);

impl Styled {
    pub fn new(text: impl Into<String>, style: Style) -> Self {
        Self(vec![(text.into(), style)])
    }

    pub fn length(&self) -> usize {
        self.0.iter().map(|(text, _)| length(text)).sum()
    }

    /// The line, cut to this width with a mark.
    pub fn fitted(self, width: usize) -> Self {
        if self.length() <= width {
            return self;
        }
        let mut left = width;
        let mut pieces = Vec::new();
        for (text, style) in self.0 {
            let is_last = length(&text) >= left;
            // Something is behind a piece that just fits.
            let text = if is_last { cut(&format!("{text}…"), left) } else { text };
            left -= length(&text);
            pieces.push((text, style));
            if is_last {
                break;
            }
        }
        Self(pieces)
    }
}

impl fmt::Display for Styled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(text, _)| f.write_str(text))
    }
}

/// The columns are this far apart.
const GAP: usize = 2;

/// The flexible column is not made narrower than its heading or this to keep another one.
const NARROW: usize = 16;

/// No column is wider, whatever another process has written.
const WIDEST: usize = 1000;

/// A column with its heading, and how it takes part when the width is too small.
pub struct Column {
    pub heading: String,
    pub cells: Vec<(String, Style)>,
    /// Numbers stand on the right.
    pub is_number: bool,
    /// It gets the width that is left, and its text is cut if that is too little. There is one.
    pub is_flexible: bool,
    /// The column with the highest rank is left out first; those with 0 are kept.
    pub rank: u8,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(text, _)| length(text));
        cells.chain([length(&self.heading)]).max().unwrap_or(0).min(WIDEST)
    }
}

/// The highest rank of the columns that fit the width together.
fn last_rank(columns: &[Column], width: usize) -> u8 {
    let least = |column: &Column| match column.width() {
        width if column.is_flexible => width.min(NARROW).max(length(&column.heading)),
        width => width,
    };
    let mut ranks: Vec<_> = columns.iter().map(|column| column.rank).collect();
    ranks.sort_unstable();
    let fits = |rank: &u8| {
        let kept = columns.iter().filter(|column| column.rank <= *rank);
        kept.map(|column| GAP + least(column)).sum::<usize>().saturating_sub(GAP) <= width
    };
    ranks.into_iter().rev().find(fits).unwrap_or(0)
}

/// A heading and the rows below it, in at most so many lines.
pub fn lines(mut columns: Vec<Column>, width: usize, height: usize) -> Vec<Styled> {
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let (all, last) = (columns.len(), last_rank(&columns, width));
    columns.retain(|column| column.rank <= last);
    let left_out = all - columns.len();
    let widths: Vec<_> = columns.iter().map(Column::width).collect();
    let total = widths.iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
    let too_wide = total.saturating_sub(width);
    let line = |cell: &dyn Fn(&Column) -> (String, Style)| {
        let mut pieces = Vec::new();
        for (at, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let narrower = if column.is_flexible { too_wide } else { 0 };
            let width = width.saturating_sub(narrower);
            let (text, style) = cell(column);
            let text = cut(&text, width);
            let text = match column.is_number {
                true => format!("{text:>width$}"),
                false => format!("{text:<width$}"),
            };
            if at > 0 {
                pieces.push((" ".repeat(GAP), Style::Plain));
            }
            pieces.push((text, style));
        }
        Styled(pieces)
    };
    let mut lines = vec![line(&|column| (column.heading.clone(), Style::Dim))];
    let space = height.saturating_sub(1);
    let shown = if rows > space { space.saturating_sub(1) } else { rows };
    for row in 0..shown {
        lines.push(line(&|column| column.cells.get(row).cloned().unwrap_or_default()));
    }
    let more = (rows > shown).then(|| format!("+{} more", rows - shown));
    let wider = match left_out {
        0 => None,
        1 => Some("1 more column needs a wider terminal".to_owned()),
        count => Some(format!("{count} more columns need a wider terminal")),
    };
    let notes: Vec<_> = [more, wider].into_iter().flatten().collect();
    if !notes.is_empty() {
        lines.push(Styled::new(notes.join("; "), Style::Dim));
    }
    lines.truncate(height);
    lines
}

/// The beginning of a string, with "…" where it is cut.
pub fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect()
}

/// Adds a string behind a heading to `out`, in lines of at most `width` where words allow it.
/// Lines after the first begin with `indent` spaces.
pub fn wrap(heading: &str, indent: usize, text: &str, width: usize, out: &mut String) {
    let mut line = heading.to_owned();
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && length(&line) + 1 + length(word) > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// In characters: all strings here are in Latin letters, and others come out a little wrong.
pub fn length(text: &str) -> usize {
    text.chars().count()
}
