//! The configuration file, as any text and as text made of its own words: it is read, or each
//! mistake is reported. A report is one line about a line that is there. All reports together are
//! not much longer than the text.
//!
//! An input is a byte that chooses, and then the text or the choices that make it.

use std::path::Path;
use std::time::UNIX_EPOCH;

use arbitrary::{Result, Unstructured};
use gcra_policy::file::document::parse;

use crate::text;

/// A folder that is not there. So the name of a list, made by chance, is no file of this machine.
const FILE: &str = "/nonexistent/fuzz.toml";

const HEADS: [&str; 12] = [
    "[policy.a]",
    "[policy.a-b_c]",
    "[policy.\"\"]",
    "[policy.b.overrides]",
    "[[policy.a.lists]]",
    "[policy]",
    "[[policy]]",
    "[policy.a.penalty]",
    "[policy.a.when]",
    "[policy.\"x y\"]",
    "[answer]",
    "[policy.c",
];

const KEYS: [&str; 30] = [
    "scope",
    "answer",
    "policy",
    "message",
    "when",
    "limits",
    "key",
    "ipv4_prefix",
    "ipv6_prefix",
    "lowercase",
    "cost",
    "mode",
    "penalty",
    "overrides",
    "lists",
    "file",
    "cells",
    "ceiling",
    "name",
    "rate",
    "burst",
    "\"192.0.2.0/24\"",
    "\"2001:db8::/32\"",
    "\"192.0.2.1\"",
    "\"::ffff:192.0.2.1\"",
    "\"1.2.3.4/33\"",
    "bob",
    "limit",
    "\"\"",
    "policy.a.limits",
];

const VALUES: &[&str] = &[
    "\"10/s\"",
    "\"10/s burst 20\"",
    "\"1000/h\"",
    "\"0/s\"",
    "\"1/4000d\"",
    "\"18446744073709551615/ms\"",
    "\"0.0000000000000000001/s\"",
    "\"1/s burst 4294967296\"",
    "\"1/s burst 0\"",
    "\"1/s burst -1\"",
    "\"deny\"",
    "\"unlimited\"",
    "\"deny burst 3\"",
    "\"\"",
    "\" \"",
    "\"txn\"",
    "\"proc\"",
    "\"enforce\"",
    "\"observe\"",
    "\"obsrve\"",
    "\"10m\"",
    "\"30d\"",
    "\"31d\"",
    "\"99999999999d\"",
    "\"0s\"",
    "\"ip\"",
    "\"a\"",
    "\"remaining\"",
    "\"ratelimit\"",
    "\"ratelimit_policy\"",
    "\"headers\"",
    "\"bandwidth\"",
    "\"blocked\"",
    "\"lists.txt\"",
    "true",
    "false",
    "0",
    "1",
    "32",
    "33",
    "128",
    "-1",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "0xff",
    "0b1",
    "1.5",
    "inf",
    "nan",
    "1979-05-27",
    "'''\n'''",
    "\"\"\"a\nb\"\"\"",
    "\"\\u0000\"",
    "\"\u{e4}\u{1f600}\"",
    "\"",
];

/// One input.
pub fn run(input: &[u8]) {
    // An input that ends early gives zeros, and no error that matters.
    let _ = chosen(&mut Unstructured::new(input));
}

fn chosen(u: &mut Unstructured<'_>) -> Result<()> {
    if u.arbitrary::<u8>()? % 4 == 0 {
        let rest = u.bytes(u.len())?;
        check(&String::from_utf8_lossy(rest));
        return Ok(());
    }
    let mut document = String::new();
    while !u.is_empty() && document.len() < 1 << 16 {
        match u.arbitrary::<u8>()? % 16 {
            0..3 => document.push_str(u.choose(&HEADS)?),
            3 => {
                // Many of the same kind.
                let name = u.arbitrary::<u8>()?;
                (0..name).for_each(|number| {
                    document.push_str(&format!("[policy.p{number}]\nlimits = \"1/s\"\n"));
                });
            }
            4 => document.push_str(text(u)?),
            5 => document.push('#'),
            _ => {
                document.push_str(u.choose(&KEYS)?);
                document.push_str(" = ");
                value(u, &mut document, 3)?;
            }
        }
        document.push('\n');
    }
    check(&document);
    Ok(())
}

/// A value, a list or an inline table, at most so deep.
fn value(u: &mut Unstructured<'_>, document: &mut String, depth: u8) -> Result<()> {
    match u.arbitrary::<u8>()? % 8 {
        0 | 1 if depth > 0 => {
            document.push('[');
            for _ in 0..u.arbitrary::<u8>()? % 6 {
                value(u, document, depth - 1)?;
                document.push_str(", ");
            }
            document.push(']');
        }
        2 | 3 if depth > 0 => {
            document.push_str("{ ");
            for place in 0..u.arbitrary::<u8>()? % 4 {
                document.push_str(if place > 0 { ", " } else { "" });
                document.push_str(u.choose(&KEYS)?);
                document.push_str(" = ");
                value(u, document, depth - 1)?;
            }
            document.push_str(" }");
        }
        4 => {
            document.push('"');
            document.push_str(text(u)?);
            document.push('"');
        }
        _ => document.push_str(u.choose(VALUES)?),
    }
    Ok(())
}

fn check(document: &str) {
    match parse(Path::new(FILE), document) {
        Ok(policies) => {
            let haproxy: String = policies.for_haproxy().into_iter().map(|it| it.text).collect();
            let words = policies.in_words(UNIX_EPOCH);
            assert!(!words.is_empty() && haproxy.contains("spoe-agent"), "{document}");
        }
        Err(mistakes) => {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            assert!(!mistakes.is_empty(), "it is wrong, and nobody says why: {document}");
            let lines = document.matches('\n').count() + 1;
            let is_more = |mistake: &String| {
                mistake.starts_with(&format!("{FILE}: and "))
                    && mistake.trim_end_matches('s').ends_with(" more mistake")
            };
            let (told, rest) = mistakes
                .split_at(mistakes.len() - usize::from(mistakes.last().is_some_and(is_more)));
            assert!(
                told.len() == 100 || rest.is_empty(),
                "only {} mistakes are told, and not all",
                told.len()
            );
            for mistake in told {
                let line = mistake
                    .strip_prefix(FILE)
                    .and_then(|rest| rest.strip_prefix(':'))
                    .and_then(|rest| rest.split_once(": "))
                    .and_then(|(line, what)| Some((line.parse::<usize>().ok()?, what)));
                let Some((line, what)) = line else {
                    panic!("{mistake:?} has no line: {document}")
                };
                assert!(
                    (1..=lines).contains(&line),
                    "{mistake:?}: there are {lines} lines: {document}"
                );
                assert!(
                    !what.is_empty() && !mistake.contains(['\n', '\r']),
                    "{mistake:?}: {document}"
                );
            }
            let told: usize = mistakes.iter().map(String::len).sum();
            assert!(told <= 1000 + 400 * document.len(), "{told} bytes are told about {document}");
        }
    }
}
