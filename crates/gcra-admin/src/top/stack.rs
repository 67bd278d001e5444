//! Lists one below the other, or side by side.

use gcra_text::columns::{self, Column, Style, Styled};
use gcra_text::count::Count;

/// Lists one below the other, the first one without as many rows as were scrolled. If they do not
/// fit, each gets a share of the lines, the first one a double share; on a low terminal the first
/// one gets what it needs. `how` says how to see the lists that are left out.
pub(super) fn stack(
    mut lists: Vec<Vec<Column>>,
    width: usize,
    height: usize,
    scrolled: usize,
    is_low: bool,
    how: &str,
) -> Vec<Styled> {
    let mut above = 0;
    if let Some(first) = lists.first_mut() {
        let rows = first.iter().map(|column| column.cells.len()).max().unwrap_or(0);
        above = scrolled.min(rows.saturating_sub(1));
        for column in first.iter_mut() {
            column.cells.drain(..above.min(column.cells.len()));
        }
    }
    let needs: Vec<_> = lists.iter().map(|list| columns::height(list, width)).collect();
    let gap = usize::from(!is_low);
    // Each list takes a blank line as well, except the last one.
    let mut left = height.saturating_add(gap);
    let mut heights = Vec::new();
    for (at, need) in needs.iter().enumerate() {
        let is_last = at + 1 == needs.len();
        let least = match is_low && at == 0 {
            // A line is left to name the others.
            true => (*need).min(left.saturating_sub(usize::from(!is_last))),
            false => (*need).min(columns::LEAST),
        };
        // The others are named if not all of them fit.
        let others = usize::from(at > 0 && !is_last);
        if least + gap + others > left || least == 0 {
            break;
        }
        heights.push(least);
        left -= least + gap;
    }
    let missing = lists.len() - heights.len();
    if missing > 0 {
        // For the line that says so.
        left = left.saturating_sub(1);
    }
    // Each round gives a line to a list, or is the last one.
    let mut gives = true;
    while gives && left > 0 {
        gives = false;
        for at in [0].into_iter().chain(0..heights.len()) {
            if left > 0
                && let (Some(height), Some(need)) = (heights.get_mut(at), needs.get(at))
                && *height < *need
            {
                *height += 1;
                left -= 1;
                gives = true;
            }
        }
    }
    let mut lines: Vec<Styled> = Vec::new();
    for (list, height) in lists.into_iter().zip(heights) {
        if !lines.is_empty() && !is_low {
            lines.push(Styled::default());
        }
        lines.extend(columns::lines(list, width, height, std::mem::take(&mut above)));
    }
    if missing > 0 && lines.len() < height {
        let more = Count(missing, "more list", "more lists");
        lines.push(Styled::new(format!("+{more}{how}"), Style::Dim));
    }
    lines
}

pub(super) fn beside(
    left: Vec<Styled>,
    right: Vec<Styled>,
    width: usize,
    gap: usize,
) -> Vec<Styled> {
    let height = left.len().max(right.len());
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    (0..height)
        .map(|_| {
            let mut line = left.next().unwrap_or_default().fitted(width);
            let missing = width.saturating_sub(line.length()) + gap;
            line.0.push((" ".repeat(missing), Style::Plain));
            line.0.extend(right.next().unwrap_or_default().0);
            line
        })
        .collect()
}
