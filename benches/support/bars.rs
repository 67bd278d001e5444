//! Figures as bars: an SVG with panels side by side, each with a logarithmic axis of its own.

use std::fmt::Write as _;

/// What is shown. All panels have the same groups.
pub(crate) struct Chart<'a> {
    /// A name and a colour for each bar of a group.
    pub series: &'a [(&'a str, &'a str)],
    pub panels: &'a [Panel<'a>],
}

pub(crate) struct Panel<'a> {
    pub title: &'a str,
    pub axis: &'a str,
    /// The value where bars begin.
    pub from: f64,
    /// What was measured, and a value for each of the series that has one.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

// In pixels.
const BAR: f64 = 13.0;
const LABELS: f64 = 180.0;
const PANEL: f64 = 380.0;
/// Holds the value behind the longest bar.
const GAP: f64 = 50.0;
const TOP: f64 = 76.0;
const AXIS: f64 = 46.0;

impl Chart<'_> {
    pub(crate) fn svg(&self) -> String {
        let group_height = BAR * self.series.len() as f64 + 12.0;
        let groups = self.panels.iter().map(|panel| panel.groups.len()).max().unwrap();
        let bottom = TOP + group_height * groups as f64;
        let (width, height) = (LABELS + self.panels.len() as f64 * (PANEL + GAP), bottom + AXIS);

        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' \
             font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
        );
        let mut x = LABELS;
        for (name, colour) in self.series {
            rect(&mut svg, [x, 16.0, 12.0, 12.0], colour);
            text(&mut svg, x + 18.0, 26.0, "start", name);
            // Letters are at most 8 wide.
            x += 40.0 + 8.0 * name.len() as f64;
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let left = LABELS + index as f64 * (PANEL + GAP);
            let middle = left + PANEL / 2.0;
            let values = panel.groups.iter().flat_map(|(_, values)| values).flatten();
            let longest = values.fold(10.0 * panel.from, |longest, value| longest.max(*value));
            let length = |value: f64| {
                PANEL * (value.max(panel.from) / panel.from).log10()
                    / (longest / panel.from).log10()
            };
            text(&mut svg, middle, TOP - 18.0, "middle", panel.title);
            text(&mut svg, middle, bottom + 36.0, "middle", panel.axis);
            let mut tick = panel.from;
            while tick <= longest {
                let x = left + length(tick);
                rect(&mut svg, [x, TOP - 6.0, 1.0, bottom - TOP + 6.0], "#dddddd");
                text(&mut svg, x, bottom + 16.0, "middle", &short(tick));
                tick *= 10.0;
            }
            for (group, (label, values)) in panel.groups.iter().enumerate() {
                let top = TOP + group_height * group as f64;
                if index == 0 {
                    text(&mut svg, left - 10.0, top + group_height / 2.0 - 2.0, "end", label);
                }
                for (bar, (value, (_, colour))) in values.iter().zip(self.series).enumerate() {
                    let y = top + BAR * bar as f64;
                    let Some(value) = *value else { continue };
                    rect(&mut svg, [left, y, length(value), BAR - 1.0], colour);
                    text(
                        &mut svg,
                        left + length(value) + 4.0,
                        y + BAR - 3.0,
                        "start",
                        &short(value),
                    );
                }
            }
        }
        svg + "</svg>\n"
    }
}

/// Three digits are enough from 10 000 on.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value {
        ..9_999.5 => return format!("{value:.0}"),
        ..999_500.0 => (value / 1e3, "k"),
        _ => (value / 1e6, "M"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

fn rect(svg: &mut String, [x, y, width, height]: [f64; 4], colour: &str) {
    writeln!(
        svg,
        "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}'/>"
    )
    .unwrap();
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    writeln!(
        svg,
        "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='#222222'>{text}</text>"
    )
    .unwrap();
}
