//! Any log-format: what a naive writer wrote, the reader reads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use haproxy_log::Format;
use proptest::prelude::*;
use support::{all, one};

/// A value of a log-format, its name, and how a line has it.
#[derive(Debug, Clone)]
struct Item {
    format: String,
    name: String,
    written: String,
    value: Option<String>,
}

fn item(format: &str, written: String, value: Option<String>) -> Item {
    let name = format.trim_start_matches('%').to_owned();
    Item { format: format.to_owned(), name, written, value }
}

/// As HAProxy writes '"' and '#' in requests and headers.
fn encoded(text: &str, also: &[char]) -> String {
    let encode = |c: char| match c {
        '"' | '#' => format!("#{:02X}", c as u32),
        c if also.contains(&c) => format!("#{:02X}", c as u32),
        c => c.to_string(),
    };
    text.chars().map(encode).collect()
}

fn number(name: &'static str) -> impl Strategy<Value = Item> {
    any::<i32>().prop_map(move |n| item(name, n.to_string(), Some(n.to_string())))
}

fn word(name: &'static str) -> impl Strategy<Value = Item> {
    "[a-zA-Z0-9_.:-]{2,12}".prop_map(move |text| item(name, text.clone(), Some(text)))
}

fn address() -> impl Strategy<Value = Item> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|bytes| std::net::IpAddr::from(bytes).to_string()),
        any::<[u16; 8]>().prop_map(|words| std::net::IpAddr::from(words).to_string()),
        Just("unix".to_owned()),
    ]
    .prop_map(|text| item("%ci", text.clone(), Some(text)))
}

fn request() -> impl Strategy<Value = Item> {
    ("[A-Z]{3,7}", "/[ -~&&[^ ]]{0,30}", "HTTP/[0-3]\\.[01]").prop_map(|(method, uri, version)| {
        let request = format!("{method} {uri} {version}");
        let written = format!("\"{}\"", encoded(&request, &[]));
        Item { format: "%{+Q}r".into(), name: "r".into(), written, value: Some(request) }
    })
}

fn headers() -> impl Strategy<Value = Item> {
    prop::collection::vec("[ -~]{0,12}", 1..4).prop_map(|headers| {
        let list: Vec<String> =
            headers.iter().map(|header| encoded(header, &['{', '|', '}'])).collect();
        let value = headers.join("\u{1}");
        Item {
            format: "%hr".into(),
            name: "hr".into(),
            written: format!("{{{}}}", list.join("|")),
            value: Some(value),
        }
    })
}

/// A string that the client chose, in quotes and escaped.
fn text() -> impl Strategy<Value = Item> {
    "[ -~]{0,20}".prop_map(|text| {
        let written: String = text
            .chars()
            .flat_map(|c| if "\"\\]".contains(c) { vec!['\\', c] } else { vec![c] })
            .collect();
        Item {
            format: "%{+Q,+E}[var(txn.text)]".into(),
            name: "var(txn.text)".into(),
            written: format!("\"{written}\""),
            value: Some(text).filter(|text| !text.is_empty() && text != "-"),
        }
    })
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let absent = Just(item("%s", "<NOSRV>".into(), None));
    let each = prop_oneof![
        address(),
        request(),
        headers(),
        text(),
        absent,
        number("%ST"),
        number("%B"),
        number("%Tw"),
        number("%sq"),
        number("%pid"),
        word("%ft"),
        word("%b"),
        word("%sslv"),
        word("%H"),
    ];
    prop::collection::vec(each, 0..8).prop_map(|mut items| {
        // Each name once.
        let mut seen = Vec::new();
        items.retain(|item| {
            let new = !seen.contains(&item.name);
            seen.push(item.name.clone());
            new
        });
        items
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        items in items(),
        date_at in any::<prop::sample::Index>(),
        milliseconds in 0_i64..1000,
        between in prop::collection::vec(prop::sample::select(vec![" ", " | ", " x=", "  "]), 10),
        prefix in prop_oneof![Just(""), Just("<134>Nov  2 21:39:33 host haproxy[12]: ")],
    ) {
        let mut parts: Vec<(String, String)> =
            items.iter().map(|item| (item.format.clone(), item.written.clone())).collect();
        // First an address, so that the prefix cannot be a part of the message.
        let date = ("[%tr]".to_owned(), format!("[22/Nov/2026:21:39:33.{milliseconds:03}]"));
        parts.insert(date_at.index(parts.len() + 1), date);
        let (mut format, mut line) = ("%fi".to_owned(), format!("{prefix}10.0.0.1"));
        for ((part, written), between) in parts.iter().zip(&between) {
            format += between;
            format += part;
            line += if *between == "  " { " " } else { between };
            line += written;
        }
        let compiled = Format::compile(&format).unwrap();
        let mut names: Vec<String> = Vec::new();
        let mut expected = Vec::new();
        for item in &items {
            if item.name == "hr" {
                let value = item.value.clone().unwrap();
                for (number, header) in value.split('\u{1}').enumerate() {
                    names.push(format!("hr.{number}"));
                    let absent = header.is_empty() || header == "-";
                    expected.push((!absent).then(|| header.to_owned()));
                }
            } else {
                names.push(item.name.clone());
                expected.push(item.value.clone());
            }
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (at, fields) = one(&compiled, &line, &names);
        prop_assert_eq!(at, (1_795_383_573_000 + milliseconds) * 1000);
        prop_assert_eq!(fields, expected, "{} {}", format, line);
    }

    #[test]
    fn any_bytes_are_lines_or_bad(log in prop::collection::vec(any::<u8>(), 0..2000)) {
        let lines = log.split(|&byte| byte == b'\n').count() as u64;
        for format in [Format::http(), Format::clf(), Format::json()] {
            let (requests, counts) = all(&format, &log, &[]);
            prop_assert_eq!(requests.len() as u64, counts.entries);
            prop_assert!(counts.lines <= lines && counts.lines + 1 >= lines);
        }
        let _ = Format::guess(&log);
        let _ = Format::compile(&String::from_utf8_lossy(&log));
    }

    #[test]
    fn any_damage_to_a_line_is_survived(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut line = b"192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe~ be/s1 0/0/1/2/3 200 512 - \
            - ---- 1/1/0/0/0 0/0 {a|b} {} \"GET /a/b?q=1 HTTP/1.1\"".to_vec();
        let at = at.index(line.len());
        line[at] = byte;
        line.truncate(cut.index(line.len()) + 1);
        let (_, counts) = all(&Format::http(), &line, &["ci", "path"]);
        let bad: u64 = counts.bad.iter().map(|bad| bad.count).sum();
        prop_assert!(counts.entries + bad <= 2);
    }
}

proptest! {
    /// Whatever stands for a log-format is one, or is refused.
    #[test]
    fn any_text_can_be_given_as_a_log_format(
        text in r#"([%\\\\'"${}x \[\]-]|\\\\x|%ci|%tr|\PC){0,30}"#,
    ) {
        let _ = Format::compile_for(&text, text.as_bytes());
    }
}
