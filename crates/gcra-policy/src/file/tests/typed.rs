//! Texts of a file that stand for values that HAProxy sends with a type: integers, booleans,
//! addresses.

use std::net::{IpAddr, Ipv6Addr};

use gcra_text::embedded::embedded_v4;
use proptest::prelude::*;
use spop_codec::{Message, Value};

use crate::file::tests::good;
use crate::key::{NamedValue, WrittenValue};
use crate::key_bytes::write_part;
use crate::key_parts::network_v6;
use crate::limit::Rule;
use crate::policies::Policies;
use crate::policy::RuleAt;
use crate::texts::{Misfit, ValueKind};

fn ip(text: &str) -> Value<'static> {
    text.parse::<IpAddr>().unwrap().into()
}

/// Calls `ask` with a message that has these args.
fn with_message<T>(args: &[(&str, Value<'_>)], ask: impl FnOnce(&Message<'_>) -> T) -> T {
    let mut bytes = [0; 1024];
    let id = spop_codec::FrameId { stream: 1, frame: 1 };
    let mut writer = spop_codec::haproxy::NotifyWriter::new(&mut bytes, id).unwrap();
    writer.message(b"api").unwrap();
    for (name, value) in args {
        writer.arg(name.as_bytes(), *value).unwrap();
    }
    let length = writer.finish();
    let (frame, _) = spop_codec::decode(&bytes[..length], 1024).unwrap().unwrap();
    let spop_codec::Frame::Notify(notify) = frame else { panic!("a NOTIFY") };
    ask(&notify.messages().next().unwrap())
}

/// The rule for a value of the key `v`.
fn rule(policies: &Policies, value: Value<'_>) -> Rule {
    let policy = &policies.list[0];
    policy.rule(RuleAt::new(policy.override_for(value).map(|found| found.rule))).clone()
}

fn with_overrides(entries: &[&str]) -> Policies {
    let lines: String = entries.iter().map(|entry| format!("\"{entry}\" = \"deny\"\n")).collect();
    good(&format!(
        "nat64 = [\"2001:db8:64::/96\"]\n[policy.api]\nkey = [\"v\"]\nlimits = \"1/s\"\n\
         [policy.api.overrides]\n{lines}"
    ))
}

fn with_when(values: &[&str]) -> Policies {
    good(&format!(
        "nat64 = [\"2001:db8:64::/96\"]\n[policy.api]\nkey = [\"ip\"]\nlimits = \"1/s\"\n\
         when = {{ v = {values:?} }}\n"
    ))
}

fn fits(policies: &Policies, value: Value<'_>) -> bool {
    with_message(&[("v", value)], |message| policies.of(message).is_some())
}

#[test]
fn a_text_is_the_same_in_when_and_in_overrides() {
    let all: [(&str, &[Value<'_>], &[Value<'_>]); 7] = [
        (
            "443",
            &[443_i32.into(), 443_u32.into(), 443_i64.into(), 443_u64.into(), "443".into()],
            &[444_i64.into(), "0443".into(), true.into(), Value::Null],
        ),
        ("-1", &[(-1_i32).into(), (-1_i64).into()], &[1_i64.into(), u64::MAX.into()]),
        ("18446744073709551615", &[u64::MAX.into()], &[(-1_i64).into()]),
        ("true", &[true.into(), "true".into()], &[false.into(), 1_i64.into(), "1".into()]),
        ("0", &[false.into(), 0_i64.into(), "0".into()], &[true.into(), "false".into()]),
        ("0443", &["0443".into(), b"0443"[..].into()], &[443_i64.into()]),
        ("+1", &["+1".into()], &[1_i64.into(), true.into()]),
    ];
    for (text, meant, others) in all {
        let (overrides, when) = (with_overrides(&[text]), with_when(&[text]));
        for value in meant {
            assert_eq!(rule(&overrides, *value), Rule::Deny, "{text} {value:?}");
            assert!(fits(&when, *value), "{text} {value:?}");
        }
        for value in others {
            assert_ne!(rule(&overrides, *value), Rule::Deny, "{text} {value:?}");
            assert!(!fits(&when, *value), "{text} {value:?}");
        }
    }
}

#[test]
fn an_address_in_when_is_that_address_or_that_string() {
    let when = with_when(&["192.0.2.7", "2001:DB8::1", "198.51.100.0/24"]);
    for text in [
        "192.0.2.7",
        "::ffff:192.0.2.7",
        "64:ff9b::192.0.2.7",
        "2001:db8:64::192.0.2.7",
        "2002:c000:207:1::1",
        "2001:db8::1",
        "198.51.100.9",
    ] {
        assert!(fits(&when, ip(text)), "{text}");
    }
    for text in ["192.0.2.8", "2001:db8::2", "64:ff9b::192.0.2.8", "2001:db8:65::192.0.2.7"] {
        assert!(!fits(&when, ip(text)), "{text}");
    }
    // A string is compared by its bytes.
    assert!(fits(&when, "192.0.2.7".into()) && fits(&when, "2001:DB8::1".into()));
    assert!(!fits(&when, "2001:db8::1".into()) && !fits(&when, "198.51.100.9".into()));
}

/// The forms of one client behind translators.
const CLIENT: [&str; 6] = [
    "192.0.2.7",
    "::ffff:192.0.2.7",
    "64:ff9b::192.0.2.7",
    "2001:db8:64::192.0.2.7",
    "2002:c000:207::1",
    "2002:c000:207:ffff::1",
];

#[test]
fn an_override_is_for_an_ipv4_client_in_each_of_its_forms() {
    for written in ["192.0.2.7", "64:ff9b::192.0.2.7", "2001:db8:64::192.0.2.7", "192.0.2.0/24"] {
        let policies = with_overrides(&[written]);
        for text in CLIENT {
            assert_eq!(rule(&policies, ip(text)), Rule::Deny, "{written} {text}");
        }
        assert_ne!(rule(&policies, ip("64:ff9b::198.51.100.1")), Rule::Deny, "{written}");
    }
    // Who writes a prefix of translators does not mean all of IPv4, and still means what is in it.
    for (written, inside) in [
        ("64:ff9b::/96", "64:ff9b::192.0.2.7"),
        ("2001:db8:64::/96", "2001:db8:64::192.0.2.7"),
        ("2002::/16", "2002:c000:207::1"),
        ("::/0", "64:ff9b::192.0.2.7"),
    ] {
        let policies = with_overrides(&[written]);
        assert_eq!(rule(&policies, ip(inside)), Rule::Deny, "{written}");
        for text in ["192.0.2.7", "::ffff:192.0.2.7"] {
            assert_ne!(rule(&policies, ip(text)), Rule::Deny, "{written} {text}");
        }
    }
}

/// The key of a client of the first policy, as bytes.
fn key_of(policies: &Policies, value: Value<'_>) -> Vec<u8> {
    let policy = &policies.list[0];
    let (part, _) = policy.first_part(value);
    let mut bytes = Vec::new();
    write_part(&mut bytes, part.value);
    bytes.push(part.narrowed.unwrap_or_default());
    bytes
}

#[test]
fn an_ipv4_client_has_one_key() {
    for settings in ["", "ipv4_prefix = 24\n", "ipv6_prefix = 128\n", "ipv6_prefix = 0\n"] {
        let policies = good(&format!(
            "nat64 = [\"2001:db8:64::/96\"]\n[policy.api]\nkey = [\"v\"]\nlimits = \"1/s\"\n\
             {settings}"
        ));
        for text in CLIENT {
            let (one, other) = (key_of(&policies, ip(CLIENT[0])), key_of(&policies, ip(text)));
            assert_eq!(one, other, "{settings} {text}");
        }
        let others = ["64:ff9b::198.51.100.7", "2002:c633:6407::1", "2001:db8:65::192.0.2.7"];
        for text in others {
            assert_ne!(key_of(&policies, ip(CLIENT[0])), key_of(&policies, ip(text)), "{text}");
        }
    }
    // Without the setting, an own prefix is an address as any other.
    let policies = good("[policy.api]\nkey = [\"v\"]\nlimits = \"1/s\"\n");
    assert_ne!(key_of(&policies, ip(CLIENT[0])), key_of(&policies, ip(CLIENT[3])));
    assert_eq!(key_of(&policies, ip(CLIENT[0])), key_of(&policies, ip(CLIENT[2])));
}

proptest! {
    /// The group of an address, by a slow way: its IPv4 address if it has one, else its /64.
    #[test]
    fn a_group_is_what_the_naive_way_says(prefix in 0_usize..7, last in any::<u128>()) {
        let prefixes: [(&str, u32); 7] = [
            ("::ffff:0:0", 96), ("64:ff9b::", 96), ("2001:db8:64::", 96), ("2002::", 16),
            ("2001:db8::", 32), ("64:ff9b::1:0:0", 96), ("::", 0),
        ];
        let (first, bits) = prefixes[prefix];
        let rest = if bits == 0 { last } else { last & (u128::MAX >> bits) };
        let address = Ipv6Addr::from_bits(first.parse::<Ipv6Addr>().unwrap().to_bits() | rest);
        let own = network_v6(address, 96) == "2001:db8:64::".parse::<Ipv6Addr>().unwrap();
        let octets = address.octets();
        let v4 = |from: usize| <[u8; 4]>::try_from(&octets[from..from + 4]).unwrap();
        let naive = match address.segments() {
            [0, 0, 0, 0, 0, 0xffff, ..] => Some(v4(12)),
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(v4(12)).filter(|ip| *ip != [0; 4]),
            [0x2002, ..] => Some(v4(2)),
            _ => None,
        };
        prop_assert_eq!(embedded_v4(address).map(|ip| ip.octets()), naive);
        let naive = naive.or_else(|| Some(v4(12)).filter(|ip| own && *ip != [0; 4]));
        let group: Value<'_> = match naive {
            Some(ip) => Value::Ipv4(ip.into()),
            None => Value::Ipv6(network_v6(address, 64)),
        };
        let policies = good(
            "nat64 = [\"2001:db8:64::/96\"]\n[policy.api]\nkey = [\"v\"]\nlimits = \"1/s\"\n",
        );
        prop_assert_eq!(policies.list[0].first_part(Value::Ipv6(address)).0.value, group);
    }
}

#[test]
fn the_override_of_a_typed_value_is_named() {
    let policies = with_overrides(&["443", "true", "2002::/16"]);
    let entry = |value| {
        with_message(&[("v", value)], |message| {
            let entry = policies.list[0].override_entry(message);
            entry.map(|(_, entry)| entry.to_string())
        })
    };
    assert_eq!(entry(443_i64.into()).as_deref(), Some("443"));
    assert_eq!(entry(true.into()).as_deref(), Some("true"));
    assert_eq!(entry(ip("2002:c000:207::1")).as_deref(), Some("2002::/16"));
    assert_eq!(entry(1_i64.into()), None);
}

#[test]
fn what_can_never_match_is_found() {
    let misfit = |policies: &Policies, args: &[(&str, Value<'_>)]| {
        with_message(args, |message| policies.list[0].misfit(message))
    };
    let found = |arg: &str, kind, is_in_when| {
        Some(Misfit { args: vec![(arg.as_bytes().into(), kind)], is_in_when })
    };
    let when = with_when(&["443", "https"]);
    assert_eq!(misfit(&when, &[("v", 443_i64.into())]), found("v", ValueKind::Integer, true));
    assert_eq!(misfit(&when, &[("v", ip("192.0.2.1"))]), found("v", ValueKind::Address, true));
    assert_eq!(misfit(&when, &[("v", "443".into())]), None);
    assert_eq!(misfit(&when, &[("v", Value::Null)]), None);
    assert_eq!(misfit(&with_when(&["443", "0"]), &[("v", 7_i64.into())]), None);
    assert_eq!(
        misfit(&with_when(&["0443"]), &[("v", 7_i64.into())]),
        found("v", ValueKind::Integer, true)
    );
    let overrides = with_overrides(&["443", "https"]);
    assert_eq!(
        misfit(&overrides, &[("v", 443_i64.into())]),
        found("v", ValueKind::Integer, false)
    );
    assert_eq!(misfit(&overrides, &[("v", "443".into())]), None);
    assert_eq!(misfit(&overrides, &[("v", Value::Null)]), None);
    let hosts = with_overrides(&["192.0.2.1", "192.0.2.2", "office.example.com"]);
    assert_eq!(misfit(&hosts, &[("v", ip("192.0.2.9"))]), found("v", ValueKind::Address, false));
    // A fallback may be of any kind, as long as it is not known.
    let text = "[policy.api]\nkey = [\"user\", \"else ip\"]\nlimits = \"1/s\"\n\
                [policy.api.overrides]\n\"alice\" = \"deny\"\n";
    let policies = good(text);
    assert_eq!(misfit(&policies, &[("user", Value::Null), ("ip", ip("192.0.2.9"))]), None);
    assert_eq!(misfit(&policies, &[("user", "bob".into()), ("ip", ip("192.0.2.9"))]), None);
    let both = misfit(&policies, &[("user", 7_i64.into()), ("ip", ip("192.0.2.9"))]);
    assert_eq!(both.unwrap().args.len(), 2);
}

#[test]
fn a_key_of_a_command_has_the_same_forms() {
    let value = |text: &str| text.parse::<NamedValue>().unwrap().value;
    for text in CLIENT.into_iter().filter(|text| !text.starts_with("2001")) {
        assert_eq!(value(&format!("ip={text}")), WrittenValue::Ip("192.0.2.7".parse().unwrap()));
    }
}
