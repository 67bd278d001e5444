//! Text that a terminal shows as it is: no character of it is obeyed or hidden.
//!
//! Commands repeat what they were given, and show what agents say. Both can come from a client: a
//! KEY was copied from a log, or another program answers in the place of an agent.

use std::fmt::{self, Write as _};

/// Whether a terminal obeys a character or does not show it. Such characters are control and
/// format characters (such as those that change the direction of text), and spaces that are not
/// the usual one. Others are drawn on the character before, or Unicode does not define them, or
/// they are blank although they are letters or symbols.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_control() } else { c.escape_debug().len() > 1 || is_blank(c) }
}

/// Whether a character is blank, although the standard library takes it for visible. Such
/// characters are the letters among Unicode's `Default_Ignorable_Code_Point` (fillers of Hangul),
/// the Braille pattern without dots, and the musical symbol without a note head.
const fn is_blank(c: char) -> bool {
    matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' | '\u{1d159}')
}

/// A string in which each hidden character is an escape, such as `\u{1b}`.
pub struct Visible<'a>(pub &'a str);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match is_hidden(c) {
            true if is_blank(c) => write!(f, "{}", c.escape_unicode()),
            true => write!(f, "{}", c.escape_debug()),
            false => f.write_char(c),
        })
    }
}

/// The same for several lines.
pub fn visible_lines(text: &str) -> String {
    text.split('\n').map(|line| Visible(line).to_string()).collect::<Vec<_>>().join("\n")
}

/// A word for a shell. If it has hidden characters, its bytes are escaped as bash reads them.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:/,@%+=-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.contains(is_hidden) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let escaped = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if is_hidden(c) => {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).bytes();
            bytes.map(|byte| format!("\\x{byte:02x}")).collect()
        }
        c => c.to_string(),
    };
    format!("$'{}'", text.chars().map(escaped).collect::<String>())
}

/// JSON with the same values, in which each hidden character is an escape.
pub fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hidden(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a string does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// JSON with a question mark in the place of each hidden character of its strings.
///
/// It works on the text, because the values of a long text need many times its space.
pub fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    let mut rest = json;
    // Each round takes at least one character.
    while let Some(c) = rest.chars().next() {
        let (length, shows) = match c {
            '\\' => escape(rest),
            // Between values these are white space, and in a string they are no JSON.
            '\n' | '\r' | '\t' => (1, true),
            c => (c.len_utf8(), !is_hidden(c)),
        };
        let (taken, left) = rest.split_at_checked(length).unwrap_or((rest, ""));
        printable.push_str(if shows { taken } else { "?" });
        rest = left;
    }
    printable
}

/// The length of the escape that a string begins with, and whether its character is shown. An
/// escape that is not valid is left to the parser.
fn escape(text: &str) -> (usize, bool) {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    match text.as_bytes().get(1) {
        Some(b'b' | b'f' | b'n' | b'r' | b't') => (2, false),
        Some(b'"' | b'\\' | b'/') => (2, true),
        _ => {
            let Some(first) = unit(text) else { return (1, true) };
            let second = text.get(6..).and_then(unit).unwrap_or_default();
            match char::decode_utf16([first, second]).next() {
                Some(Ok(c)) => (6 * c.len_utf16(), !is_hidden(c)),
                _ => (6, true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of these is obeyed or not shown by some terminal.
    const HOSTILE: &str = "\0\t\n\r\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{61c}\u{200b}\u{200d}\u{2028}\
                           \u{2029}\u{202e}\u{2066}\u{301}\u{feff}\u{e0001}\u{3164}\u{115f}\
                           \u{1160}\u{ffa0}\u{2800}\u{1d159}";

    /// `Default_Ignorable_Code_Point` of Unicode's `DerivedCoreProperties.txt`.
    const IGNORABLE: &[std::ops::RangeInclusive<u32>] = &[
        0xad..=0xad,
        0x34f..=0x34f,
        0x61c..=0x61c,
        0x115f..=0x1160,
        0x17b4..=0x17b5,
        0x180b..=0x180f,
        0x200b..=0x200f,
        0x202a..=0x202e,
        0x2060..=0x206f,
        0x3164..=0x3164,
        0xfe00..=0xfe0f,
        0xfeff..=0xfeff,
        0xffa0..=0xffa0,
        0xfff0..=0xfff8,
        0x1bca0..=0x1bca3,
        0x1d173..=0x1d17a,
        0xe0000..=0xe0fff,
    ];

    #[test]
    fn what_unicode_says_may_be_ignored_is_an_escape() {
        for c in IGNORABLE.iter().cloned().flatten().filter_map(char::from_u32) {
            assert!(is_hidden(c), "{c:?}");
            let shown = Visible(&c.to_string()).to_string();
            assert_eq!(shown, format!("\\u{{{:x}}}", u32::from(c)));
        }
    }

    #[test]
    fn what_a_terminal_would_obey_or_hide_is_an_escape() {
        for c in HOSTILE.chars() {
            assert!(is_hidden(c), "{c:?}");
        }
        let plain = "a\\'\" é…#日本😀";
        assert_eq!(Visible(plain).to_string(), plain);
        assert_eq!(Visible("\u{1b}[2J\u{202e}\n").to_string(), r"\u{1b}[2J\u{202e}\n");
        assert_eq!(visible_lines("a\u{9b}\nb\r"), "a\\u{9b}\nb\\r");
    }

    #[test]
    fn a_word_for_a_shell_is_what_it_was() {
        for (text, word) in [
            ("192.0.2.1,/a", "192.0.2.1,/a"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
            ("a\u{9b}'\\\n", r"$'a\xc2\x9b\'\\\x0a'"),
        ] {
            assert_eq!(quoted(text), word);
        }
    }

    #[test]
    fn escaped_json_has_the_same_values() {
        let json = serde_json::to_string(HOSTILE).unwrap();
        let escaped = escaped_json(&json);
        assert!(!escaped.contains(is_hidden), "{escaped:?}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), HOSTILE);
    }

    #[test]
    fn no_string_of_printable_json_has_hidden_characters() {
        let count = HOSTILE.chars().count();
        let raw = serde_json::to_string(HOSTILE).unwrap();
        for json in [&raw, &escaped_json(&raw)] {
            let read: String = serde_json::from_str(&printable_json(json)).unwrap();
            assert_eq!(read, "?".repeat(count), "{json:?}");
        }
        for same in [
            "{\n\t\"a\\\\n\": [\"\\\"\\/\\u00e9\\ud83d\\ude00 é😀\", 1]\r\n}",
            "\"\\ud83d\"",
            "\"\\ud83d\\u0041\"",
            "\\",
            "\\u00",
            "\\u+123",
            "\\x",
            "\\uéé",
        ] {
            assert_eq!(printable_json(same), same);
        }
    }
}
