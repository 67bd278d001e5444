//! docs/BENCHMARKS.md: each bench that writes to it has a section, between two marks.

use std::fs;

/// Replaces what stands between a section's marks.
pub(crate) fn write(name: &str, section: &str) {
    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/BENCHMARKS.md");
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let page = fs::read_to_string(PATH).unwrap();
    let (before, rest) = page.split_once(&begin).expect("the page has the mark of the section");
    let (_, after) = rest.split_once(&end).expect("the page has a mark where the section ends");
    fs::write(PATH, format!("{before}{begin}\n{section}{end}{after}")).unwrap();
}
