//! The results as bars: an SVG with a panel for each number of threads and a logarithmic axis.

use std::fmt::Write as _;

use crate::limiters::LIMITERS;
use crate::report::Row;

/// The limiters that are shown, by their place: ours in blue, the others in grey.
const SHOWN: [(usize, &str); 5] =
    [(2, "#1f6fb4"), (3, "#7dbcea"), (4, "#4d4d4d"), (5, "#8c8c8c"), (6, "#c4c4c4")];

// In pixels.
const BAR: f64 = 13.0;
const GROUP: f64 = BAR * SHOWN.len() as f64 + 12.0;
const LABELS: f64 = 180.0;
const PANEL: f64 = 380.0;
/// Holds the value behind the longest bar.
const GAP: f64 = 50.0;
const TOP: f64 = 76.0;
const AXIS: f64 = 46.0;

pub(crate) fn svg(rows: &[Row]) -> String {
    let panels = [1, 2].map(|threads| rows.iter().filter(|row| row.threads == threads).collect::<Vec<_>>());
    let bottom = TOP + GROUP * panels.each_ref().map(Vec::len).into_iter().max().unwrap() as f64;
    let (width, height) = (LABELS + 2.0 * (PANEL + GAP), bottom + AXIS);
    let longest = rows.iter().flat_map(|row| row.ns).fold(10.0, f64::max);
    // The axis begins with 1 ns.
    let length = |ns: f64| PANEL * ns.max(1.0).log10() / longest.log10();

    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' \
         font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
    );
    let mut x = LABELS;
    for (limiter, colour) in SHOWN {
        rect(&mut svg, [x, 16.0, 12.0, 12.0], colour);
        text(&mut svg, x + 18.0, 26.0, "start", LIMITERS[limiter]);
        // Letters are at most 8 wide.
        x += 40.0 + 8.0 * LIMITERS[limiter].len() as f64;
    }
    for (panel, (rows, threads)) in panels.iter().zip(["1 thread", "2 threads"]).enumerate() {
        let left = LABELS + panel as f64 * (PANEL + GAP);
        let middle = left + PANEL / 2.0;
        text(&mut svg, middle, TOP - 18.0, "middle", threads);
        text(&mut svg, middle, bottom + 36.0, "middle", "ns per decision and thread (logarithmic)");
        for tick in [1.0, 10.0, 100.0, 1_000.0, 10_000.0].into_iter().filter(|tick| *tick <= longest) {
            let x = left + length(tick);
            rect(&mut svg, [x, TOP - 6.0, 1.0, bottom - TOP + 6.0], "#dddddd");
            text(&mut svg, x, bottom + 16.0, "middle", &tick.to_string());
        }
        for (group, row) in rows.iter().enumerate() {
            let top = TOP + GROUP * group as f64;
            if panel == 0 {
                text(&mut svg, left - 10.0, top + GROUP / 2.0 - 2.0, "end", &row.load);
            }
            for (bar, (limiter, colour)) in SHOWN.iter().enumerate() {
                let (y, ns) = (top + BAR * bar as f64, row.ns[*limiter]);
                rect(&mut svg, [left, y, length(ns), BAR - 1.0], colour);
                text(&mut svg, left + length(ns) + 4.0, y + BAR - 3.0, "start", &format!("{ns:.0}"));
            }
        }
    }
    svg + "</svg>\n"
}

fn rect(svg: &mut String, [x, y, width, height]: [f64; 4], colour: &str) {
    writeln!(svg, "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}'/>")
        .unwrap();
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    writeln!(svg, "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='#222222'>{text}</text>").unwrap();
}
