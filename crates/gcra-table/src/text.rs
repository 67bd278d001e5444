//! Text that another process wrote into the header.

/// The text with a question mark in the place of each character that a terminal would not show.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_printable = |c: char| "\\'\"".contains(c) || c.escape_debug().len() == 1;
    text.chars().map(|c| if is_printable(c) { c } else { '?' }).collect()
}
