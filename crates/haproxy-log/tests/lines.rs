//! Single lines and small logs: prefixes, formats, what is bad, and what a value is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use haproxy_log::{BadKind, Format, Unknown};
use support::{all, one};

const LINE: &str = "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe~ be/s1 0/0/1/2/3 200 512 - - \
                    ---- 1/1/0/0/+0 0/0 {example.com|curl 7 (x)} {} \"GET /a/b?q=1 HTTP/1.1\"";
const AT: i64 = 1_795_383_573_123_000;

#[test]
fn a_prefix_of_any_kind() {
    for prefix in [
        "",
        "<134>",
        "<134>Nov 22 21:39:33 haproxy[12]: ",
        "<134>Nov  2 21:39:33 host haproxy[12]: ",
        "Nov  2 21:39:33 10.0.0.1 haproxy[12]: ",
        "<134>1 2026-11-22T21:39:33.123+01:00 host haproxy 12 - - ",
        "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 ID47 [a@1 b=\"c d\"][g@2 h=\"i\"] ",
        "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - - \u{FEFF}",
        "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - [a@1 b=\"c d\"] \u{FEFF}",
        "2026-11-22T21:39:33+0100 host haproxy[12]: ",
        "2026-11-22T21:39:33.123456789Z stdout F ",
        "[pod/haproxy-7d/haproxy] ",
        "[pod/haproxy-7d/haproxy] 2026-11-22T21:39:33.123456789Z ",
        "haproxy-1  | ",
        "haproxy-7d haproxy ",
        "\u{FEFF}",
        "\0\0\0\0",
        "Nov 22 21:39:33 host haproxy[12]: Nov 22 21:39:33 other haproxy[13]: ",
    ] {
        for end in ["", "\r", "  "] {
            let line = format!("{prefix}{LINE}{end}");
            let (at, fields) = one(&Format::http(), &line, &["ci", "cp", "f", "path", "hr.1"]);
            assert_eq!(at, AT, "{line}");
            let expected = ["192.0.2.1", "5321", "fe", "/a/b", "curl 7 (x)"];
            assert_eq!(fields, expected.map(|text| Some(text.to_owned())), "{line}");
        }
    }
}

#[test]
fn a_line_within_a_json_object() {
    let escaped = LINE.replace('"', "\\\"");
    for line in [
        format!(
            "{{\"log\":\"{escaped}\\n\",\"stream\":\"stdout\",\"time\":\"2026-11-22T21:39:34Z\"}}"
        ),
        format!("{{\"__CURSOR\":\"s=1\",\"PRIORITY\":\"6\",\"MESSAGE\":\"{escaped}\"}}"),
        format!("{{\"log\":\"<134>Nov 22 21:39:33 haproxy[12]: {escaped}\"}}"),
        // Under any name, also beside other texts, and in another object.
        format!("{{\"labels\":{{}},\"line\":\"{escaped}\"}}"),
        format!("{{\"id\":\"a b c d e f g h i j k l m\",\"textPayload\":\"{escaped}\"}}"),
        format!("{{\"result\":{{\"_raw\":\"<134>Nov 22 21:39:33 haproxy[12]: {escaped}\"}}}}"),
        format!("{{\"message\":\"no line of a log at all\",\"event\":\"{escaped}\"}}"),
    ] {
        let (at, fields) = one(&Format::http(), &line, &["ci", "r"]);
        assert_eq!(at, AT);
        assert_eq!(fields[1].as_deref(), Some("GET /a/b?q=1 HTTP/1.1"));
        let guessed = Format::guess(format!("{line}\n").as_bytes()).unwrap();
        assert_eq!(guessed.name(), "the HTTP format");
    }
}

/// In one line, in a line for each object, and in several for each.
#[test]
fn a_json_list_is_an_object_in_each_line() {
    let object =
        r#"{"time":"2026-11-22T21:39:33.123Z","ip":"192.0.2.1","a":"],\\\"[{","l":[1,2]}"#;
    let wrapped = format!("{{\"line\":\"{}\"}}", LINE.replace('"', "\\\""));
    for (object, name) in [(object, "ip"), (&wrapped, "ci")] {
        let pretty = object.replace("\",\"", "\",\n    \"").replacen('{', "{\n    ", 1);
        for list in [
            format!("[{object},{object},{object}]"),
            format!("[{object},\n{object},\n{object}\n]\n"),
            format!("[\n{object},\n{object},\n{object}]\n"),
            format!("[\r\n  {object}\r\n, {object}\r\n, {object}\r\n]\r\n"),
            format!("\u{FEFF}[\n  {pretty},\n  {pretty},\n  {pretty}\n]\n"),
        ] {
            let input = haproxy_log::Input::stream("a log", std::io::Cursor::new(list.clone()));
            let format = Format::guess(&input.sample().unwrap()).expect(&list);
            let (requests, counts) = all(&format, list.as_bytes(), &[name]);
            assert_eq!((requests.len(), counts.bad.len()), (3, 0), "{list}\n{counts:#?}");
            assert_eq!(requests[2], (AT, vec![Some("192.0.2.1".to_owned())]));
        }
    }
    // No list of objects.
    for text in [format!("[pod/a/b] {LINE}\n"), format!("[{{x}}] {LINE}\n")] {
        let (requests, _) = all(&Format::http(), text.as_bytes(), &[]);
        assert_eq!(requests.len(), 1, "{text}");
    }
}

#[test]
fn values_that_are_absent_or_encoded() {
    let line = "unix:1 [22/Nov/2026:21:39:33.123] fe fe/<NOSRV> -1/-1/-1/-1/3 503 512 a=b c - \
                SC-- 1/1/0/0/0 0/0 {|a#7Cb} \"GET /a#22b#23 HTTP/1.1\"";
    // A captured cookie with a space in it.
    let names = ["ci", "cp", "s", "CC", "CS", "hr.0", "hr.1", "hr.2", "HPO", "query"];
    let (_, fields) = one(&Format::http(), line, &names);
    let fields: Vec<&str> = fields.iter().map(|field| field.as_deref().unwrap_or("-")).collect();
    assert_eq!(fields, ["unix", "1", "-", "a=b", "c -", "-", "a|b", "-", "/a\"b#", "-"]);
}

#[test]
fn requests_in_all_forms_of_a_uri() {
    for (request, method, path, query, host) in [
        ("GET / HTTP/1.1", "GET", "/", "-", "-"),
        ("GET /?a=b?c HTTP/1.1", "GET", "/", "a=b?c", "-"),
        ("GET https://a.example:8443/x/y?z HTTP/2.0", "GET", "/x/y", "z", "a.example:8443"),
        ("GET https://a.example?z HTTP/2.0", "GET", "-", "z", "a.example"),
        ("OPTIONS * HTTP/1.1", "OPTIONS", "-", "-", "-"),
        ("CONNECT a.example:443 HTTP/1.1", "CONNECT", "-", "-", "-"),
        ("GET /a:b://c HTTP/1.1", "GET", "/a:b://c", "-", "-"),
        ("GET /old", "GET", "/old", "-", "-"),
    ] {
        let line = LINE.replace("GET /a/b?q=1 HTTP/1.1", request);
        let names = ["method", "path", "query", "host"];
        let (_, fields) = one(&Format::http(), &line, &names);
        let fields: Vec<&str> =
            fields.iter().map(|field| field.as_deref().unwrap_or("-")).collect();
        assert_eq!(fields, [method, path, query, host], "{request}");
    }
}

#[test]
fn lines_that_are_not_requests_are_counted_by_kind() {
    let log = [
        "Nov 22 21:39:33 host haproxy[12]: Proxy fe started.",
        "Nov 22 21:39:33 host haproxy[12]: Server be/s1 is DOWN, reason: Layer4 timeout.",
        "Nov 22 21:39:33 host haproxy[12]: Connect from 10.0.0.1:1 to 10.0.0.2:80 (fe/HTTP)",
        "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe/1: SSL handshake failure",
        "Nov 22 21:39:33 host sshd[99]: Accepted publickey for root",
        "SPOE: [gcra] <EVENT:on-frontend-http-request> sid=46 st=257 0 47/24",
        &LINE.replace("GET /a/b?q=1 HTTP/1.1", "<BADREQ>"),
        "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe be/s1 0/0/3 512 -- 1/1/0/0/0 0/0",
        &LINE.replace("22/Nov/2026:21", "99/Nov/2026:21"),
        &"x".repeat(70_000),
        &LINE[..70],
        "",
        "\0\0\0",
        "not a line of a log",
        "\u{1b}[31m\u{7f}",
        LINE,
    ]
    .join("\n");
    let (requests, counts) = all(&Format::http(), log.as_bytes(), &["ci"]);
    assert_eq!((counts.lines, counts.entries, requests.len()), (16, 1, 1));
    let bad: Vec<(BadKind, u64, u64)> =
        counts.bad.iter().map(|bad| (bad.kind, bad.count, bad.line)).collect();
    assert_eq!(
        bad,
        [
            (BadKind::NotARequest, 6, 1),
            (BadKind::NoRequest, 1, 7),
            (BadKind::OtherFormat, 1, 8),
            (BadKind::Date, 1, 9),
            (BadKind::TooLong, 1, 10),
            (BadKind::Truncated, 1, 11),
            (BadKind::Unknown, 2, 14),
        ]
    );
    assert_eq!(counts.bad[6].excerpt, "not a line of a log");
    assert!(counts.bad[4].excerpt.chars().count() < 200);
}

#[test]
fn a_line_that_ends_within_a_text_is_a_request() {
    let end = LINE.find("/b?q").unwrap();
    let (requests, counts) =
        all(&Format::http(), &LINE.as_bytes()[..end], &["ci", "path", "query"]);
    assert_eq!((counts.entries, counts.truncated, counts.bad.len()), (1, 1, 0));
    assert_eq!(requests[0].1, [Some("192.0.2.1".to_owned()), Some("/a".to_owned()), None]);
    // Every other beginning of the line is bad or such a request, and never another request.
    for end in 0..LINE.len() {
        let (_, counts) = all(&Format::http(), &LINE.as_bytes()[..end], &["ci"]);
        assert_eq!(counts.entries, counts.truncated, "{}", &LINE[..end]);
    }
}

/// The fields behind the request are cut off together with it, and have no wrong value.
#[test]
fn a_line_that_ends_behind_its_request_is_a_request() {
    let line = "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe be/s1 0/0/1/2/3 200 512 ---- \
                1/1/0/0/0 0/0 \"GET /a HTTP/1.1\" blocked=1 policy=check reason=limit \
                retry_after=60 err=-";
    let format = Format::guess(format!("{line}\n").as_bytes()).unwrap();
    let names = ["ci", "path", "var(txn.gcra.blocked)", "var(txn.gcra.policy)"];
    let behind = line.rfind('"').unwrap() + 1;
    for end in behind..line.len() - 1 {
        let (requests, counts) = all(&format, &line.as_bytes()[..end], &names);
        assert_eq!((counts.entries, counts.truncated), (1, 1), "{}", &line[..end]);
        let expected = [Some("192.0.2.1".to_owned()), Some("/a".to_owned()), None, None];
        assert_eq!(requests[0].1, expected, "{}", &line[..end]);
    }
    let (_, whole) = all(&format, line.as_bytes(), &names);
    assert_eq!((whole.entries, whole.truncated), (1, 0));
}

#[test]
fn the_request_date_is_made_from_what_there_is() {
    for (string, line, expected, words) in [
        (
            "%ci [%tr] %t",
            "1.1.1.1 [22/Nov/2026:21:39:33.123] 22/Nov/2026:21:00:00.000",
            0,
            "the request date (%tr)",
        ),
        (
            "%ci [%t] %Th/%Ti",
            "1.1.1.1 [22/Nov/2026:21:39:33.023] 40/60",
            0,
            "the accept date (%t + %Th + %Ti)",
        ),
        (
            "%ci [%t] %Th/%Ti",
            "1.1.1.1 [22/Nov/2026:21:39:33.123] 40/-1",
            0,
            "the accept date (%t + %Th + %Ti)",
        ),
        (
            "%ci [%t] %Tq/%TR",
            "1.1.1.1 [22/Nov/2026:21:39:33.023] 110/10",
            0,
            "the accept date (%t + %Tq - %TR)",
        ),
        (
            "%ci [%t] %Tq/%Tw",
            "1.1.1.1 [22/Nov/2026:21:39:33.023] 100/1",
            0,
            "the accept date (%t + %Tq)",
        ),
        (
            "%ci [%t] %Tq/%Tw",
            "1.1.1.1 [22/Nov/2026:21:39:33.123] -1/1",
            0,
            "the accept date (%t + %Tq)",
        ),
        (
            "%ci [%trg] %ms",
            "1.1.1.1 [22/Nov/2026:21:39:33 +0000] 123",
            0,
            "the request date (%trg + %ms)",
        ),
        (
            "%ci [%Tl] %ms",
            "1.1.1.1 [22/Nov/2026:22:39:33 +0100] 123",
            0,
            "the accept date (%Tl + %ms)",
        ),
        ("%ci %Ts.%ms", "1.1.1.1 1795383573.123", 0, "the accept date (%Ts + %ms)"),
        (
            "%ci %[request_date(us)] %t",
            "1.1.1.1 1795383573123000 22/Nov/2026:21:00:00.000",
            0,
            "the request date (%[request_date(us)])",
        ),
        (
            "%ci %[accept_date(ms)]",
            "1.1.1.1 1795383573123",
            0,
            "the accept date (%[accept_date(ms)])",
        ),
        (
            "%ci %[date,ltime(%Y-%m-%dT%H:%M:%S)].%ms",
            "1.1.1.1 2026-11-22T21:39:33.123",
            -123_000,
            "the date of the line (%[date,ltime(%Y-%m-%dT%H:%M:%S)])",
        ),
    ] {
        let format = Format::compile(string).unwrap();
        assert_eq!(format.time(), words);
        let (at, fields) = one(&format, line, &["ci"]);
        assert_eq!(at - AT, expected, "{string} {line}");
        assert_eq!(fields[0].as_deref(), Some("1.1.1.1"));
    }
}

#[test]
fn log_formats_with_faults_are_refused() {
    for (string, message) in [
        ("%ci", "it has no date: add %tr (or, for TCP, %t) to the log-format"),
        ("%tr %zz", "the unknown name '%zz' at position 5"),
        ("%tr %{+Z}ci", "the unknown flag 'Z' at position 5"),
        ("%tr %{+Qci", "'%{' without '}' at position 5"),
        ("%tr %[src", "'%[' without ']' at position 5"),
        ("%tr %(a b)ci", "a name with other characters than a-z, 0-9, '_' and '-' at position 5"),
        ("%tr 100%", "'%' without a name (write '%%' for the character itself) at position 8"),
        ("%tr %b%s", "nothing between 'b' and 's' says where the first ends"),
        ("%{+cbor}o %(a)tr", "CBOR, which cannot be read, at position 1"),
    ] {
        let error = Format::compile(string).unwrap_err().to_string();
        assert_eq!(error, format!("the log-format cannot be used: {message}"), "{string}");
    }
    let unknown = Format::http().select(&["ci", "si"]).unwrap_err();
    assert_eq!(unknown.to_string(), "the log has no field 'si'");
}

#[test]
fn a_log_format_may_be_given_as_in_the_configuration() {
    let line = "1.1.1.1 [22/Nov/2026:21:39:33.123] \"GET / HTTP/1.1\" 100%";
    for string in [
        "%ci [%tr] %{+Q}r 100%%",
        "\"%ci [%tr] %{+Q}r 100%%\"",
        "log-format \"%ci [%tr] \\\"%r\\\" 100%%\"",
        "   log-format %ci\\ [%tr]\\ %{+Q}r\\ 100%%",
        "'%ci [%tr] \"%r\" 100%%'",
    ] {
        let (at, fields) = one(&Format::compile(string).unwrap(), line, &["path", "%ci"]);
        assert_eq!(at, AT);
        assert_eq!(fields, ["/", "1.1.1.1"].map(|text| Some(text.to_owned())), "{string}");
    }
}

/// The string may have the quotes and backslashes of the configuration, or not: the lines say it.
#[test]
fn a_log_format_is_read_as_the_lines_need_it() {
    let date = "22/Nov/2026:21:39:33.123";
    let plain = format!("1.1.1.1 [{date}] 200 a \"GET / HTTP/1.1\"");
    for (string, line) in [
        (r#"%ci\ [%tr]\ %ST\ "%CC"\ %{+Q}r"#, &plain),
        (r#""%ci [%tr] "'%ST %CC %{+Q}r'"#, &plain),
        (r#"%ci [%tr] %ST %CC "%r""#, &plain),
        (r"%ci [%tr] %ST %CC \x22%r\x22", &plain),
        (r#""%ci [%tr] ${NO_SUCH-%ST} %CC \"%r\"""#, &plain),
        (r#""%ci\t%tr\t%ST\x7c%r""#, &format!("1.1.1.1\t{date}\t200|GET / HTTP/1.1")),
        (r"%ci\t%tr\t%r", &format!("1.1.1.1\t{date}\tGET / HTTP/1.1")),
        (r"%ci\t%tr\t%r", &format!("1.1.1.1\\t{date}\\tGET / HTTP/1.1")),
    ] {
        let format = Format::compile_for(string, format!("{line}\n").as_bytes()).unwrap();
        let (at, fields) = one(&format, line, &["ci", "path"]);
        assert_eq!(at, AT, "{string}");
        assert_eq!(fields, ["1.1.1.1", "/"].map(|text| Some(text.to_owned())), "{string}");
    }
    let line = format!("{LINE} end");
    for string in [
        "\"$HAPROXY_HTTP_LOG_FMT end\"",
        "$HAPROXY_HTTP_LOG_FMT end",
        "${HAPROXY_HTTP_LOG_FMT} end",
        "log-format \"${HAPROXY_HTTP_LOG_FMT} ${TIER-end}\"",
    ] {
        let (_, fields) = one(&Format::compile(string).unwrap(), &line, &["path"]);
        assert_eq!(fields, [Some("/a/b".to_owned())], "{string}");
    }
    let unknown = "the log-format cannot be used: the environment variable 'TIER' is not known \
                   here: write its value in its place";
    for string in ["\"${TIER} $HAPROXY_HTTP_LOG_FMT\"", "%ci [%tr] $TIER", "%ci [%tr] ${TIER}"] {
        let error = Format::compile_for(string, format!("{plain}\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), unknown, "{string}");
    }
}

/// It has the host and the path in the place of a URI.
#[test]
fn the_format_of_the_ingress_controller() {
    let line = LINE.replace("/a/b?q=1", "app.example.com/cart");
    let format = Format::guess(format!("{line}\n{line}\n").as_bytes()).unwrap();
    assert_eq!(format.name(), "the format of HAProxy's ingress controller");
    let (_, fields) = one(&format, &line, &["method", "path", "host", "HV"]);
    let expected = ["GET", "/cart", "app.example.com", "HTTP/1.1"];
    assert_eq!(fields, expected.map(|text| Some(text.to_owned())));
    for request in ["GET * HTTP/1.1", "GET http://a/b HTTP/1.1", "CONNECT a:443 HTTP/1.1"] {
        let line = LINE.replace("GET /a/b?q=1 HTTP/1.1", request);
        let format = Format::guess(format!("{line}\n").as_bytes()).unwrap();
        assert_eq!(format.name(), "the HTTP format", "{request}");
    }
}

#[test]
fn a_weak_first_value_does_not_swallow_the_prefix() {
    let format = Format::compile("%[var(txn.name)] %HM %tr").unwrap();
    let message = "a b GET 22/Nov/2026:21:39:33.123";
    for prefix in
        ["", "<134>Nov 22 21:39:33 host haproxy[12]: ", "2026-11-22T21:39:33Z host haproxy[1]: "]
    {
        let (_, fields) = one(&format, &format!("{prefix}{message}"), &["var(txn.name)", "HM"]);
        assert_eq!(fields, ["a b", "GET"].map(|text| Some(text.to_owned())));
    }
}

#[test]
fn an_address_at_the_start_is_not_a_part_of_the_prefix() {
    for string in ["%ci %[req.hdr(x)] %tr %HM", "%[src] %[req.hdr(x)] %tr %HM", "%ci %hr %tr %HM"]
    {
        let format = Format::compile(string).unwrap();
        let names = [if string.starts_with("%ci") { "%ci" } else { "src" }, "HM"];
        let header = if string.contains("%hr") { "{-}" } else { "-" };
        let message = format!("192.0.2.4 {header} 22/Nov/2026:21:39:33.123 GET");
        for prefix in [
            "",
            "Nov 22 21:39:33 lb haproxy[1]: ",
            "<134>Nov 22 21:39:33 localhost haproxy[1]: ",
            "<134>1 2026-11-22T21:39:33Z lb haproxy 1 - - ",
        ] {
            let (_, fields) = one(&format, &format!("{prefix}{message}"), &names);
            assert_eq!(fields, ["192.0.2.4", "GET"].map(|text| Some(text.to_owned())), "{string}");
        }
        for address in ["2001:db8::1", "::1", "::ffff:192.0.2.1", "1:2:3:4:5:6:7:8", "unix"] {
            let line = message.replace("192.0.2.4", address);
            let (_, fields) = one(&format, &line, &names);
            assert_eq!(fields[0].as_deref(), Some(address));
        }
    }
}

#[test]
fn of_several_dates_in_json_the_most_exact_is_taken() {
    let lines: String = [100, 300, 500]
        .iter()
        .map(|ms| {
            format!(
                "{{\"ip\":\"192.0.2.1\",\"t\":\"22/Nov/2026:21:39:33.{ms}\",\
                 \"ts\":1795383573}}\n"
            )
        })
        .collect();
    let format = Format::guess(lines.as_bytes()).unwrap();
    assert_eq!(format.time(), "the date \"t\"");
}

#[test]
fn json_in_many_forms() {
    let format = Format::json();
    let names = ["ip", "http.path", "list", "n", "e", "o"];
    for (line, expected) in [
        (
            r#"{"time":"2026-11-22T21:39:33.123Z","ip":"1.1.1.1"}"#,
            ["1.1.1.1", "-", "-", "-", "-", "-"],
        ),
        (
            r#"{ "ip" : "1.1.1.1" , "http" : {"path" : "/a", "x" : {} }, "tr" : 1795383573123 }"#,
            ["1.1.1.1", "/a", "-", "-", "-", "-"],
        ),
        (
            r#"{"list":[1,{"a":"]"}],"n":null,"e":"","ts":1795383573.123,"o":true}"#,
            ["-", "-", r#"[1,{"a":"]"}]"#, "-", "-", "true"],
        ),
        (
            r#"{"t":"22\/Nov\/2026:21:39:33.123","ip":"\u00e9\ud83d\ude00\n\"","n":-1.5e3}"#,
            ["é😀\n\"", "-", "-", "-1.5e3", "-", "-"],
        ),
        (
            r#"Nov 22 21:39:33 h haproxy[1]: @cee: {"Ts":1,"t":"2026-11-22T21:39:33.123Z"}"#,
            ["-"; 6],
        ),
    ] {
        let (at, fields) = one(&format, line, &names);
        assert_eq!(at, AT, "{line}");
        let fields: Vec<&str> =
            fields.iter().map(|field| field.as_deref().unwrap_or("-")).collect();
        assert_eq!(fields, expected, "{line}");
    }
    for (line, kind) in [
        (r#"{"ip":"1.1.1.1"}"#, BadKind::Unknown),
        (r#"{"time":"yesterday"}"#, BadKind::Date),
        (r#"{"time":"2026-11-22T21:39:33.123Z","ip":"1.1"#, BadKind::Truncated),
        (r#"{"time":"2026-11-22T21:39:33.123Z","r":"<BADREQ>"}"#, BadKind::NoRequest),
        (r#"{"time":"2026-11-22T21:39:33.123Z","r":"<BADREQ> <BADREQ>"}"#, BadKind::NoRequest),
        (r#"{"time" "2026-11-22T21:39:33.123Z"}"#, BadKind::Unknown),
        (r#"{"time":"2026-11-22T21:39:33.123Z"}}"#, BadKind::Unknown),
        (r#"{"time":"2026-11-22T21:39:33.123Z",}"#, BadKind::Unknown),
        ("[]", BadKind::Unknown),
        (&"{\"a\":".repeat(1000), BadKind::Unknown),
    ] {
        let (_, counts) = all(&format, line.as_bytes(), &["ip"]);
        assert_eq!((counts.entries, counts.bad.len()), (0, 1), "{line}");
        assert_eq!(counts.bad[0].kind, kind, "{line}");
    }
}

#[test]
fn the_format_is_guessed() {
    let tcp = "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe be/s1 0/0/3 512 -- 1/1/0/0/0 0/0";
    let start = "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe~ be/s1 0/0/1/2/3 200 512 ---- \
                 1/1/0/0/0 0/0 \"GET / HTTP/1.1\"";
    let end = "blocked=0 policy=- reason=- retry_after=- err=-";
    for (line, name) in [
        (LINE, "the HTTP format"),
        (tcp, "the TCP format"),
        (&format!("{start} {end}"), "the log-format of gcra-spoa"),
        (&format!("{start} estimate=3 {end}"), "the log-format of gcra-spoa with estimates"),
        (&format!("{tcp} {end}"), "the log-format of gcra-spoa for TCP"),
        (&format!("{LINE} 0/0/0/0/0 -/TLSv1.3/TLS_AES"), "the HTTPS format"),
        (&format!("{LINE} \"more\""), "the HTTP format with more at its end"),
        (&format!("{tcp} sni=x"), "the TCP format with more at its end"),
        (r#"{"when":1,"time":"2026-11-22T21:39:33.123Z","a":{"b":1}}"#, "JSON"),
    ] {
        let sample = format!("Nov 22 21:39:33 h haproxy[1]: Proxy started.\n{line}\n{line}\n{{");
        let format = Format::guess(sample.as_bytes()).unwrap();
        assert_eq!(format.name(), name, "{line}");
        let names: Vec<&str> = format.fields().iter().map(|field| field.name()).collect();
        format.select(&names).unwrap();
        if name == "JSON" {
            assert_eq!(names, ["when", "time", "a.b"]);
        }
    }
    // A date of another name, and a number that is none under the name of one.
    let line =
        r#"{"time":0.25,"s":{"port":54321,"when":"22/Nov/2026:21:39:33.123"},"ip":"1.1.1.1"}"#;
    let format = Format::guess(format!("{line}\n{line}\n").as_bytes()).unwrap();
    assert_eq!(format.time(), "the date \"s.when\"");
    assert_eq!(one(&format, line, &["ip"]), (AT, vec![Some("1.1.1.1".to_owned())]));
    assert!(Format::guess(b"{\"port\":54321}\n").is_none());
    assert!(Format::guess(b"nothing\nof the kind\n").is_none());
    assert!(Format::guess(b"").is_none());
}

#[test]
fn a_log_that_has_no_known_format_is_of_a_kind() {
    for (line, kind) in [
        ("Connect from 192.0.2.7:1 to 192.0.2.1:80 (www/HTTP)", Unknown::Connections),
        (r#"{"log":"Connect from 192.0.2.7:1 to [::1]:80 (www/HTTP)"}"#, Unknown::Connections),
        (r#"{"ip":"192.0.2.7","took":0.2}"#, Unknown::JsonWithoutDate),
        ("Connect from home", Unknown::Other),
        ("level=info msg={}", Unknown::Other),
        ("", Unknown::Other),
    ] {
        let log = format!("Nov 22 21:39:33 h haproxy[1]: Proxy www started.\n{line}\n{line}\n");
        assert_eq!(Format::why_unknown(log.as_bytes()), kind, "{line}");
        assert!(Format::guess(log.as_bytes()).is_none(), "{line}");
    }
}

#[test]
fn a_hostile_line_takes_linear_time() {
    // Two free strings, and a line full of texts that could be the end of the first.
    let format = Format::compile("%[var(a)] x%[var(b)]y %b %{+Q}[var(c)] z %tr").unwrap();
    for piece in [" x", " xy ", " xy a", "y ", " xy a \"", "\\\"", "{", "\"a\":", " "] {
        let line = piece.repeat(65_000 / piece.len());
        let begin = std::time::Instant::now();
        for format in [&format, &Format::http(), &Format::clf(), &Format::json()] {
            let (_, counts) = all(format, line.as_bytes(), &[]);
            assert_eq!(counts.entries, 0);
        }
        // Quadratic time would be minutes. The bound is for the slowest machine.
        assert!(begin.elapsed().as_secs() < 60, "{piece:?}");
    }
}
