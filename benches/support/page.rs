//! docs/BENCHMARKS.md: each bench that writes to it has a section, between two marks.

use std::fs;
use std::path::Path;

/// Replaces what stands between a section's marks.
pub(crate) fn write(name: &str, section: &str) {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let path = folders.map(|folder| folder.join("docs/BENCHMARKS.md")).find(|path| path.is_file());
    let path = path.expect("the page, in the folder of the workspace");
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(&begin).expect("the page has the mark of the section");
    let (_, after) = rest.split_once(&end).expect("the page has a mark where the section ends");
    fs::write(path, format!("{before}{begin}\n{section}{end}{after}")).unwrap();
}
