//! The sentences of the agent's log, as they stand in the source code.

use std::fs;
use std::path::{Path, PathBuf};

/// How a sentence is logged.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    Error,
    Warn,
    Info,
    /// It is put together in a file of [`SENTENCES`].
    Part,
}

/// A sentence of the log, or a part of one, with the placeholders of its format string.
#[derive(Debug)]
pub struct Sentence {
    /// The path of its source in the repository.
    pub file: String,
    pub level: Level,
    pub text: String,
}

/// The text before a sentence that is logged.
const CALLS: [(&str, Level); 5] = [
    ("log::error!(", Level::Error),
    (".panicked(", Level::Error),
    ("log::warn!(", Level::Warn),
    (".warn(format_args!(", Level::Warn),
    ("log::info!(", Level::Info),
];

/// Files in which sentences for the log are put together.
const SENTENCES: [&str; 6] = [
    "crates/gcra-admin/src/agreement.rs",
    "crates/gcra-spoa/housekeeping/store_reports.rs",
    "crates/gcra-limiter/src/mistaken_args.rs",
    "crates/gcra-limiter/src/haproxy_undecided.rs",
    "crates/gcra-limiter/src/undecided.rs",
    "crates/spop-agent/src/end.rs",
];

/// All sentences that the source code of the daemon and its libraries can log.
pub fn sentences_of_the_log() -> Vec<Sentence> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = [
        "crates/gcra-spoa",
        "crates/gcra-admin/src",
        "crates/gcra-inspect/src",
        "crates/gcra-limiter/src",
        "crates/gcra-lua/src",
        "crates/gcra-policy/src",
        "crates/gcra-replay/src",
        "crates/gcra-text/src",
        "crates/spop-agent/src",
        "crates/spop-codec/src",
        "crates/gcra-table/src",
        "crates/gcra-store/src",
    ]
    .map(|folder| root.join(folder))
    .into();
    let mut sentences = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let file = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            for (before, text) in literals(&fs::read_to_string(&path).unwrap()) {
                let call = CALLS.iter().find(|(call, _)| before.ends_with(call));
                let level = match call.map(|(_, level)| *level) {
                    Some(level @ (Level::Error | Level::Warn)) => level,
                    _ if SENTENCES.contains(&&*file) => Level::Part,
                    Some(level) => level,
                    None => continue,
                };
                sentences.push(Sentence { file: file.clone(), level, text });
            }
        }
    }
    sentences
}

/// The string literals in a piece of source code outside its tests and comments, each with the
/// code before it.
fn literals(source: &str) -> Vec<(String, String)> {
    let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap();
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let (mut literals, mut rest) = (Vec::new(), &code[..]);
    while let Some((before, after)) = rest.split_once('"') {
        if before.ends_with('\'') || before.ends_with("b'") {
            rest = after;
            continue;
        }
        let (mut text, mut end, mut escaped) = (String::new(), after.len(), false);
        for (index, character) in after.char_indices() {
            match (escaped, character) {
                (true, 'n') => text.push('\n'),
                (true, other) => text.push(other),
                (false, '"') => {
                    end = index;
                    break;
                }
                (false, '\\') => {}
                (false, other) => text.push(other),
            }
            escaped = !escaped && character == '\\';
        }
        literals.push((before.trim_end().to_owned(), text));
        rest = after.get(end + 1..).unwrap_or_default();
    }
    literals
}

/// The words of a text, without what marks code in Markdown.
pub fn words(text: &str) -> String {
    let text = text.replace(['`', '\''], "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first words of a message: of its first piece between placeholders that has at least three.
pub fn first_words(message: &str) -> Option<String> {
    message.split(['{', '}']).step_by(2).find_map(|piece| {
        let piece = words(piece.trim_start_matches([' ', ',', ';', ':', '.', '(', ')']));
        let first: Vec<_> = piece.split(' ').take(4).collect();
        let first = (first.len() >= 3).then(|| first.join(" "))?;
        Some(first.trim_end_matches([',', ';', ':', '.']).to_owned())
    })
}
