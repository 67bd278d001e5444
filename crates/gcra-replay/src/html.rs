//! The page of a report: one file that needs nothing else, and lets nothing of the log become
//! markup or script.

use ring::digest::{SHA256, digest};
use serde_json::Value;

const TEMPLATE: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");

/// The words and the script of a kind of report.
pub(crate) struct Kind {
    title: &'static str,
    /// The command that prints the same numbers.
    command: &'static str,
    script: &'static str,
}

macro_rules! script {
    ($own:literal) => {
        concat!(
            include_str!("../../gcra-text/src/page_parts.js"),
            include_str!("report_elements.js"),
            include_str!($own)
        )
    };
}

pub(crate) const OF_REPLAY: Kind = Kind {
    title: "Replay: what limits would have done",
    command: "replay",
    script: script!("report.js"),
};

pub(crate) const OF_BLOCKED: Kind =
    Kind { title: "Who was blocked", command: "blocked", script: script!("blocked/report.js") };

/// The page of a report, from its JSON.
///
/// The policy in it allows this style and this script, by their digests, and nothing else: no
/// other script, no picture, no font, no connection, no form.
pub(crate) fn page(kind: &Kind, report: &Value) -> String {
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        source(STYLE),
        source(kind.script)
    );
    // JSON that ends no script element and begins no comment in it. This character can only be in
    // strings, where the escape means the same.
    let data = report.to_string().replace('<', "\\u003c");
    let mut page = String::with_capacity(data.len() + 64 * 1024);
    // In one pass, so that nothing that is put in is read as a placeholder.
    for (at, piece) in TEMPLATE.split("{{").enumerate() {
        let (name, rest) =
            if at == 0 { ("", piece) } else { piece.split_once("}}").unwrap_or_default() };
        page.push_str(match name {
            "policy" => &policy,
            "style" => STYLE,
            "script" => kind.script,
            "title" => kind.title,
            "command" => kind.command,
            "report" => &data,
            _ => "",
        });
        page.push_str(rest);
    }
    page
}

/// How a Content-Security-Policy names an inline style or script.
fn source(text: &str) -> String {
    format!("'sha256-{}'", base64(digest(&SHA256, text.as_bytes()).as_ref()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            (0..3).fold(0, |bits, at| bits << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            text.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn base64_of_rfc_4648() {
        let words = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let written = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(words.map(|word| base64(word.as_bytes())), written);
    }

    #[test]
    fn the_page_is_small_and_whole() {
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && !STYLE.contains('<'));
        for kind in [OF_REPLAY, OF_BLOCKED] {
            let page = page(&kind, &json!({"version": 1}));
            assert!(page.len() < 60_000, "{}", page.len());
            assert!(!page.contains("{{"), "a placeholder is left");
            for part in [STYLE, kind.script, kind.title, r#">{"version":1}</script>"#] {
                assert!(page.contains(part));
            }
            // The digest of the text between the tags, and not of other text near it.
            let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
            assert!(page.contains(&source(style)));
            assert!(!kind.script.contains("</script") && !kind.script.contains("innerHTML"));
        }
    }

    /// Texts that would end the element of the data, or begin another.
    const HOSTILE: &str =
        concat!(r"(</script>|<!--|-->|\{\{script\}\}", r"|[&<>\u{2028}]|\PC|.){0,40}",);

    proptest! {
        /// Whatever a log says, it stays in the element of the data, and arrives unchanged.
        #[test]
        fn nothing_of_a_log_gets_out(text in HOSTILE) {
            let report = json!({"client": text, "files": [{ &text: 1 }]});
            let page = page(&OF_REPLAY, &report);
            let begin = r#"<script type="application/json" id="report">"#;
            let (_, rest) = page.split_once(begin).unwrap();
            let (data, rest) = rest.split_once("</script>").unwrap();
            prop_assert!(!data.contains('<'));
            prop_assert_eq!(serde_json::from_str::<Value>(data).unwrap(), report);
            prop_assert!(rest.starts_with("\n<script>\"use strict\""), "{}", &rest[..40]);
        }
    }
}
