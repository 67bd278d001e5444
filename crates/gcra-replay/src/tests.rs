//! The parts of a replay: the engine against GCRA as it is written in a textbook, the mapping, and
//! counts in bounded memory.

use std::collections::HashMap;
use std::path::Path;

use gcra_limiter::verdict::Outcome;
use gcra_policy::Policies;
use gcra_policy::file::document;
use gcra_table::{Rate, Slots};
use haproxy_log::Format;
use proptest::prelude::*;

use super::engine::Engine;
use super::mapping::{Described, Fields, Mapping};
use super::replayed_config::flags_of;
use super::tally::{LogTally, decide_request};
use super::wanted::{WantedArg, WantedMessage};

fn policies(text: &str) -> Policies {
    document::parse(Path::new("new.toml"), text).unwrap()
}

/// A mapping of args by `--map`, with its own description, for lines of the HTTP format.
fn mapping(text: &str, args: &[&str]) -> Result<(Mapping, Described, Vec<String>), String> {
    let format = Format::http();
    let captures = ["Host".to_owned(), "X-Api-Key".to_owned()];
    let (mut fields, mut described) = (Fields::new(&format, &captures), Described::default());
    let args: Vec<_> = args.iter().map(|arg| WantedArg::parse(arg).unwrap()).collect();
    let mapping = Mapping::new(&policies(text), &[], &args, &mut fields, &mut described)?;
    described.note_unused(&args);
    Ok((mapping, described, fields.selected))
}

fn pairs(described: &Described) -> Vec<(&str, &str)> {
    described.mapped.iter().map(|mapped| (&*mapped.arg, &*mapped.field)).collect()
}

const IP: &str = "[policy.api]\nlimits = '2/s'\nkey = ['ip']\n";

/// The args of the one message that is written for these values, as an operator writes them.
fn asked(mapping: &mut Mapping, values: &[Option<&[u8]>]) -> Vec<(String, String)> {
    mapping.clear();
    mapping.write(values);
    let message = mapping.written().messages.remove(0);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    message
        .args()
        .map(|arg| (text(arg.name), gcra_policy::key::Shown(arg.value).to_string()))
        .collect()
}

#[test]
fn args_are_found_by_their_names() {
    let text = "[policy.api]\nlimits = '2/s'\nkey = ['ip', 'path', 'else method']\n\
                when = { frontend = 'web' }\n";
    let (_, described, selected) = mapping(text, &[]).unwrap();
    let expected = [("ip", "ci"), ("path", "path"), ("method", "method"), ("frontend", "ft")];
    assert_eq!(pairs(&described).len(), expected.len());
    assert_eq!(selected.len(), expected.len());
    for (arg, field) in pairs(&described) {
        let other = expected.iter().find(|(name, _)| *name == arg).unwrap().1;
        let is_it = field == other || ["HM", "HP", "HPO"].contains(&field);
        assert!(is_it, "{arg}={field}");
    }
}

#[test]
fn an_arg_can_be_a_field_a_constant_or_nothing() {
    let (mut written, _, selected) = mapping(IP, &["ip=%ci"]).unwrap();
    assert_eq!(selected, ["ci"]);
    let ip = |value: &str| vec![("ip".to_owned(), value.to_owned())];
    assert_eq!(asked(&mut written, &[Some(b"192.0.2.1")]), ip("192.0.2.1"));
    assert_eq!(asked(&mut written, &[Some(b"2001:db8::1")]), ip("2001:db8::1"));
    assert_eq!(asked(&mut written, &[Some(b"unix")]), ip("null:"), "no address");
    assert_eq!(asked(&mut written, &[None]), ip("null:"));
    for (arg, value, expected) in [
        ("ip=%ci,ipmask(24,48)", "192.0.2.1", "192.0.2.0"),
        ("ip=%ci,ipmask(24,48)", "2001:db8:0:1::1", "2001:db8::"),
        ("ip=%[src],ipmask(32,64)", "192.0.2.1", "192.0.2.1"),
        ("ip=hr.0,str", "192.0.2.1", "str:192.0.2.1"),
        ("ip=hr.0,int", "17", "int64:17"),
        // As `req.hdr_ip` reads a header.
        ("ip=hr.0,ip", "192.0.2.1, 203.0.113.7", "203.0.113.7"),
        ("ip=hr.0,ip,-1", "192.0.2.1, [2001:db8::1]:443 ", "2001:db8::1"),
        ("ip=hr.0,ip,1", "192.0.2.1:80, 203.0.113.7", "192.0.2.1"),
        ("ip=hr.0,ip,1", "unknown, 203.0.113.7", "null:"),
        ("ip=hr.0,ip,-2,ipmask(24,48)", "192.0.2.1, 203.0.113.7", "192.0.2.0"),
        ("ip=req.hdr_ip(host)", "192.0.2.1, 203.0.113.7", "203.0.113.7"),
        ("ip=req.hdr_ip(Host,1),ipmask(24,48)", "192.0.2.1, 203.0.113.7", "192.0.2.0"),
        ("ip=hr.0,str", "192.0.2.1, 203.0.113.7", "str:192.0.2.1, 203.0.113.7"),
        ("ip=%{+Q}ci", "192.0.2.1", "192.0.2.1"),
        ("ip=str:gold", "", "gold"),
        ("ip=null:", "", "null:"),
        ("ip=ST", "+200", "int64:200"),
        ("ip=x-api-key,str", "a", "a"),
        ("ip=req.fhdr(X-API-Key),str", "a", "a"),
    ] {
        let (mut mapping, _, _) = mapping(IP, &[arg]).unwrap();
        assert_eq!(asked(&mut mapping, &[Some(value.as_bytes())]), ip(expected), "{arg}");
    }
    let long = [b'x'; 100_000];
    let (mut mapping, _, _) = mapping(IP, &["ip=hr.0,str"]).unwrap();
    assert_eq!(asked(&mut mapping, &[Some(&long)])[0].1.len(), long.len());
}

#[test]
fn captured_headers_have_names() {
    let text = "[policy.api]\nlimits = '2/s'\nkey = ['host', 'x_api_key']\n";
    let (_, described, selected) = mapping(text, &[]).unwrap();
    assert_eq!(pairs(&described), [("host", "hr.0"), ("x_api_key", "hr.1")]);
    assert_eq!(selected, ["hr.0", "hr.1"]);
}

#[test]
fn what_cannot_be_mapped_is_a_sentence() {
    let error = |args: &[&str]| mapping(IP, args).err().unwrap();
    assert!(error(&["ip=nothing"]).contains("has no field 'nothing' for --map ip=nothing"));
    assert!(error(&["ip=ci,upper"]).contains("'upper' in --map ip=ci,upper is not a converter"));
    assert!(error(&["ip=ci,ipmask(33)"]).contains("write ipmask(32,64)"));
    for place in ["0", "-11", "x"] {
        let map = format!("ip=hr.0,ip,{place}");
        let said = error(&[&map]);
        assert!(said.contains("ip,1 for the first address and ip,-1 for the last"), "{said}");
    }
    let (_, described, _) = mapping(IP, &["user=hr.0"]).unwrap();
    assert_eq!(described.notes, ["no policy uses the arg 'user' of --map"]);
    let text = IP.replace("key", "cost = 'price'\nkey");
    let (_, described, _) = mapping(&text, &[]).unwrap();
    assert!(described.notes[0].contains("so each request costs 1"), "{:?}", described.notes);
    for text in ["", "ip", "ip=", "=ci"] {
        assert!(WantedArg::parse(text).unwrap_err().contains("is not ARG=FIELD"), "{text}");
    }
    for text in ["", "a if", "a when b", "a if b c", "a if path /login", "a if =b", "a if b="] {
        assert!(WantedMessage::parse(text).unwrap_err().contains("'NAME if ARG'"), "{text}");
    }
}

/// The conditions of `--message` on args, by the values of their fields.
#[test]
fn a_message_is_sent_where_its_conditions_hold() {
    let format = Format::http();
    let text = "[policy.login]\nlimits = '2/s'\nkey = ['ip']\n";
    for (message, sent) in [
        ("login", [true, true, true, true]),
        ("login if path=/login", [true, true, false, false]),
        ("login if path=/login method=POST", [true, false, false, false]),
        ("login unless path=/login method=POST", [false, true, true, true]),
        ("login if path=/log*", [true, true, true, false]),
        ("login if method=post", [false; 4]),
        ("login if path", [true, true, true, false]),
        ("login unless path", [false, false, false, true]),
        ("login if plan=gold", [true; 4]),
        ("login if plan=silver", [false; 4]),
    ] {
        let (mut fields, mut described) = (Fields::new(&format, &[]), Described::default());
        let args = ["plan=str:gold"].map(|arg| WantedArg::parse(arg).unwrap());
        let messages = [WantedMessage::parse(message).unwrap()];
        let policies = policies(text);
        let mut mapping =
            Mapping::new(&policies, &messages, &args, &mut fields, &mut described).unwrap();
        let found = [
            ("POST", Some("/login")),
            ("GET", Some("/login")),
            ("POST", Some("/login/")),
            ("POST", None),
        ]
        .map(|(method, path)| {
            let value = |field: &String| match field.as_str() {
                "path" | "HPO" => path.map(str::as_bytes),
                "HM" => Some(method.as_bytes()),
                _ => Some(&b"192.0.2.1"[..]),
            };
            let values: Vec<_> = fields.selected.iter().map(value).collect();
            mapping.clear();
            mapping.write(&values);
            !mapping.written().messages.is_empty()
        });
        assert_eq!(found, sent, "{message}: {:?}", fields.selected);
    }
}

/// A hint must not lead to another client for each list of addresses.
#[test]
fn a_hint_does_not_make_strings_of_addresses() {
    for (arg, value, hint) in [
        ("ip=hr.0,ip", "192.0.2.1, unknown", None),
        ("ip=hr.0,ip", "a line of a log, from 192.0.2.1", None),
        ("ip=%ci", "unix", None),
        ("ip=hr.0", "customer-7", Some("or --map ip=hr.0,str")),
    ] {
        let format = Format::http();
        let (mut fields, mut described) = (Fields::new(&format, &[]), Described::default());
        let args = [WantedArg::parse(arg).unwrap()];
        let mut mapping =
            Mapping::new(&policies(IP), &[], &args, &mut fields, &mut described).unwrap();
        mapping.write(&[Some(value.as_bytes())]);
        mapping.describe(&fields, &mut described);
        let [note] = &described.notes[..] else { panic!("{:?}", described.notes) };
        assert!(note.contains("are no addresses"), "{note}");
        assert_eq!(note.contains(",str"), hint.is_some(), "{note}");
        assert!(note.contains(hint.unwrap_or_default()), "{note}");
    }
}

/// A side of a replay, to ask by address.
struct Asker {
    engine: Engine,
    mapping: Mapping,
    tally: LogTally,
}

impl Asker {
    fn new(text: &str) -> Self {
        let (mapping, _, _) = mapping(text, &["ip=%ci"]).unwrap();
        let engine = Engine::new(policies(text), Slots::new(1024).unwrap()).unwrap();
        let tally = LogTally::new(engine.policies());
        Self { engine, mapping, tally }
    }

    fn is_blocked(&mut self, at: i64, ip: &str) -> bool {
        self.mapping.clear();
        self.mapping.write(&[Some(ip.as_bytes())]);
        self.engine.advance_to(at);
        self.tally.begin(at);
        let Self { engine, mapping, tally } = self;
        let messages = mapping.written().messages;
        let asked = messages.iter().map(|message| (message, engine.question(message)));
        decide_request(engine, asked, tally).is(Outcome::Blocked)
    }
}

proptest! {
    /// Times in microseconds, some of them before the ones before: those count as the latest one.
    #[test]
    fn an_engine_decides_as_a_textbook_does(
        interval_ms in 1_u64..2_000,
        burst in 1_u64..20,
        requests in prop::collection::vec((-5_000_i64..400_000, 0_u8..3), 1..200),
    ) {
        let text = format!(
            "[policy.api]\nlimits = '1/{interval_ms}ms burst {burst}'\nkey = ['ip']\n"
        );
        let mut asker = Asker::new(&text);
        let interval = i64::try_from(interval_ms * 1_000).unwrap();
        let tolerance = interval * i64::try_from(burst - 1).unwrap();
        let (mut at, mut latest) = (1_763_700_000_000_000_i64, i64::MIN);
        let mut tats: HashMap<u8, i64> = HashMap::new();
        for (later, client) in requests {
            at += later;
            latest = latest.max(at);
            let tat = tats.entry(client).or_insert(i64::MIN);
            let is_allowed = *tat <= latest.saturating_add(tolerance);
            if is_allowed {
                *tat = latest.max(*tat) + interval;
            }
            let is_blocked = asker.is_blocked(at, &format!("192.0.2.{client}"));
            prop_assert_eq!(is_blocked, !is_allowed);
        }
    }
}

#[test]
fn of_many_blocked_clients_those_with_the_most_requests_are_kept() {
    let mut asker = Asker::new("[policy.api]\nlimits = 'deny'\nkey = ['ip']\n");
    let mut at = 1_763_700_000_000_000_i64;
    for number in 0..20_000_u32 {
        at += 10_000;
        let ip = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
        assert!(asker.is_blocked(at, &ip));
        if number % 100 == 7 {
            assert!(asker.is_blocked(at, "192.0.2.1"));
        }
        if number > 15_000 && number % 10 == 0 {
            assert!(asker.is_blocked(at, "192.0.2.2"));
        }
    }
    let most = asker.tally.most_hit(3, |client| client.hit);
    let names: Vec<_> = most.iter().map(|(client, hit)| (&*hit.name, client.hit)).collect();
    assert_eq!(names[..2], [("192.0.2.2", 499), ("192.0.2.1", 200)]);
    let policy = &asker.tally.policies[0];
    assert_eq!((policy.clients.count(), policy.clients_hit.count()), (20_002, 20_002));
    assert_eq!((policy.hit, policy.reasons.denied), (20_699, 20_699));
}

#[test]
fn a_quota_is_written_as_the_flags_that_give_it() {
    for (rate, burst, flags) in [
        ("100/s", 20, "--rate 100/s --burst 20"),
        ("3/s", 3, "--rate 3/s --burst 3"),
        ("5/m", 3, "--rate 5/m --burst 3"),
        ("10/h", 10, "--rate 10/h --burst 10"),
        ("1000/d", 1, "--rate 1000/d --burst 1"),
        ("1/10s", 1, "--rate 6/m --burst 1"),
        ("1/7s", 1, "--rate 1/7s --burst 1"),
        ("1/3d", 1, "--rate 1/3d --burst 1"),
        ("0.5/s", 1, "--rate 30/m --burst 1"),
        ("1000000/ms", 1, "--rate 1000000000/s --burst 1"),
    ] {
        let quota = rate.parse::<Rate>().unwrap().quota(Some(burst)).unwrap();
        assert_eq!(flags_of(quota).unwrap(), flags, "{rate}");
    }
}
