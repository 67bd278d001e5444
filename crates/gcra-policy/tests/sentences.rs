//! The sentences of the reader of configuration files about each case in `sentences/`.
//!
//! A file there begins with a template, up to `====`. A case is what stands in the place of its
//! `{}`, and behind it, a `=>` before each, all sentences about it with their lines in the file,
//! or `valid`. `\u{d}` is a character that cannot be seen, and a line with `##` is a heading.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gcra_policy::file::document::parse;

/// Words of the parsers and of Rust, which say nothing to an operator.
const FOREIGN: [&str; 9] = [
    "expected ",
    "invalid type",
    "variant",
    "struct",
    "deserial",
    "TOML parse",
    "unquoted",
    "inline table",
    "dotted key",
];

/// The text with the characters that its escapes stand for.
fn unescaped(text: &str) -> String {
    let mut pieces = text.split("\\u{");
    let mut plain = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let (digits, rest) = piece.split_once('}').unwrap();
        plain.push(char::from_u32(u32::from_str_radix(digits, 16).unwrap()).unwrap());
        plain.push_str(rest);
    }
    plain
}

/// The cases of a file: the number of the first line, the text, and what is said about it.
fn cases(text: &str) -> Vec<(usize, String, Vec<String>)> {
    let (mut cases, mut is_over): (Vec<(usize, String, Vec<String>)>, _) = (Vec::new(), true);
    let lines = (1..).zip(text.lines()).skip_while(|(_, line)| *line != "====").skip(1);
    for (number, line) in lines.filter(|(_, line)| !line.starts_with("##")) {
        match (line.strip_prefix("=> "), cases.last_mut()) {
            (Some(sentence), Some((.., sentences))) => {
                sentences.push(unescaped(sentence));
                is_over = true;
            }
            (None, _) if is_over && line.is_empty() => {}
            (None, Some((_, case, _))) if !is_over => write!(case, "\n{line}").unwrap(),
            _ => {
                cases.push((number, line.to_owned(), Vec::new()));
                is_over = false;
            }
        }
    }
    cases
}

#[test]
fn each_case_gets_its_sentences_and_no_others() {
    let (mut count, mut wrong) = (0, String::new());
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentences")).unwrap()
    {
        let file = entry.unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        let (template, _) = text.split_once("====\n").unwrap();
        for (line, case, sentences) in cases(&text) {
            count += 1;
            let configuration = template.replace("{}", &unescaped(&case));
            let said = match parse(Path::new("x.toml"), &configuration) {
                Ok(policies) if policies.warnings.is_empty() => {
                    vec!["x.toml:valid".to_owned().into()]
                }
                Ok(policies) => policies.warnings,
                Err(mistakes) => mistakes,
            };
            let said: Vec<_> = said.iter().map(|it| it.trim_start_matches("x.toml:")).collect();
            let is_foreign = said.iter().any(|it| FOREIGN.iter().any(|word| it.contains(word)));
            if said != sentences || is_foreign {
                let said = said.join("\n=> ");
                write!(wrong, "{}:{line}:\n{case}\n=> {said}\n", file.display()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty() && count > 0, "{count} cases; what is said of others is\n{wrong}");
}
