//! Policies in words.

use std::time::{Duration, UNIX_EPOCH};

use crate::answers::Var;
use crate::file::document;
use crate::file::tests::{SETTLED, api, good, parse};

#[test]
fn a_file_in_words() {
    let policies = good(
        r#"
answer = ["remaining", "retry_after"]

[policy.gold]
message = "api"
when = { plan = ["gold", "silver"] }
limits = ["100/s burst 200", { name = "hourly", rate = "10000/h", burst = 500 }]
key = ["key"]
lowercase = true

[policy.api]
limits = "10/s"
key = ["ip", "path"]
cost = "n"
ipv4_prefix = 24
penalty = { ceiling = "10m" }

[policy.api.overrides]
"192.0.2.0/24" = "unlimited"
"2001:db8::/32" = "unlimited"
"198.51.100.7" = "deny"

[policy.login]
limits = "deny"
mode = "observe"
"#,
    );
    assert_eq!(
        policies.in_words(UNIX_EPOCH),
        "policy 'gold', for the message 'api' when plan is 'gold' or 'silver'
    gold.1: 100 per second, up to 200 at once: at most 300 in any second
    gold.hourly: 10000 per hour, up to 500 at once: at most 10500 in any hour
    for each key, ignoring case
policy 'api', for the message 'api'
    10 per second, up to 10 at once: at most 20 in any second (no burst given: 10, the \
     count)
    for each ip and path (IPv4 by /24, IPv6 by /64), with the cost in n
    each blocked request is charged 1 cell, which adds at most 10m to the wait
    overrides, unlimited: 1 IPv4 network, 1 IPv6 network
    overrides, deny: 1 IPv4 address
policy 'login', for the message 'login'
    every request is blocked
    for each value of the message's args (IPv6 by /64)
    only observes, and blocks no request
variables, in the scope txn: blocked, remaining, retry_after"
    );
}

#[test]
fn what_is_kept_in_reserve_in_words() {
    let of = |limits: &str, more: &str| {
        let text = format!("limits = {limits}\nkey = [\"ip\"]\ncost = \"cost\"\n{more}");
        let policies = good(&api(&text));
        let lines = policies.list[0].lines(&policies, UNIX_EPOCH);
        assert_eq!(lines[lines.len() - 5], "    for each ip (IPv6 by /64), with the cost in cost");
        (lines[lines.len() - 4..].join("\n"), policies.list[0].in_words())
    };
    let (lines, line) = of("\"100/s burst 20\"", "unasked = 7");
    assert_eq!(
        lines,
        "    HAProxy may let 7 requests of a client pass between two questions
    with 7 cells in reserve agents decide with up to 13 at once
    HAProxy must remember a client that is silent for at least 1s
    each reload of HAProxy lets up to 7 more pass, because there is no 'reload_every'"
    );
    assert_eq!(
        line,
        "100 per second, up to 20 at once, for each ip (IPv6 by /64), with the cost in cost, 7 \
         cells in reserve"
    );
    let limits = "[\"100/s burst 50\", \"5/h burst 60\"]";
    let (lines, _) = of(limits, "unasked = 7\nasked_by = 2\nreload_every = \"1d\"");
    assert_eq!(
        lines,
        "    each of 2 HAProxy processes may let 7 requests of a client pass between two questions
    with 28 cells in reserve (7 for each of 2 processes before a reload, and 7 after it) agents \
         decide with 99.999 per second, up to 22 at once; and with 3.833 per hour, up to 32 at once
    HAProxy must remember a client that is silent for at least 1d
    HAProxy may be reloaded 1d after the last process that was replaced has ended"
    );
    let (lines, _) = of("{ count = 100, window = \"day\" }", "unasked = 1");
    assert_eq!(
        lines,
        "    HAProxy may let 1 request of a client pass between two questions
    with 1 cell in reserve agents decide with 99 per calendar day in UTC
    HAProxy must remember a client that is silent for at least 25h
    each reload of HAProxy lets up to 1 more pass, because there is no 'reload_every'"
    );
}

/// A refusal never suggests numbers that would be refused, too.
#[test]
fn each_number_that_is_suggested_for_a_reserve_would_do() {
    let read = |burst: &str, what: &str, unasked: &str, more: &str| {
        let limits = match what {
            "count" => format!("{{ count = {burst}, window = \"day\" }}"),
            _ => format!("\"{what} burst {burst}\""),
        };
        let unasked = if unasked.is_empty() { "" } else { &format!("unasked = {unasked}\n") };
        let text = format!("limits = {limits}\nkey = [\"ip\"]\ncost = \"cost\"\n{unasked}{more}");
        parse(&api(&text)).map_err(|mistakes| mistakes.join("\n"))
    };
    let number = |sentence: &str, before: &str| {
        let (_, rest) = sentence.split_once(before)?;
        Some(rest.split([' ', ',']).next().unwrap().to_owned())
    };
    let mut suggested = [0; 5];
    for (burst, what) in [
        ("14", "1/s"),
        ("4000000", "1/s"),
        ("4000000", "2/m"),
        ("4000000", "1000000/s"),
        ("3", "1/d"),
        ("20", "1/d"),
        ("300", "1/d"),
        ("14", "count"),
    ] {
        for unasked in ["1", "7", "150", "4294967294"] {
            for asked_by in [1, 2, 1_000_000] {
                for reloads in ["", "1s", "8s", "20d", "365d"] {
                    let asked_by = format!("asked_by = {asked_by}\n");
                    let of = |unasked: &str, burst: &str, reloads: &str| {
                        let reloads = match reloads {
                            "" => String::new(),
                            every => format!("reload_every = \"{every}\"\n"),
                        };
                        read(burst, what, unasked, &format!("{asked_by}{reloads}"))
                    };
                    let Err(sentence) = of(unasked, burst, reloads) else { continue };
                    if what == "count" && !reloads.is_empty() {
                        continue;
                    }
                    let would_do = [
                        number(&sentence, "of at least ")
                            .map(|burst| of(unasked, &burst, reloads)),
                        // All that are less, too; 0 is not written.
                        number(&sentence, "or unasked = ").map(|most| of(&most, burst, reloads)),
                        number(&sentence, "write unasked = ")
                            .map(|most| of(&most, burst, reloads)),
                        number(&sentence, "much longer than ").map(|_| of(unasked, burst, "365d")),
                        sentence
                            .contains("leave reload_every out")
                            .then(|| of(unasked, burst, "")),
                    ];
                    for (count, result) in suggested.iter_mut().zip(would_do) {
                        *count += i32::from(result.is_some());
                        assert!(result.is_none_or(|it| it.is_ok()), "{what} {burst}: {sentence}");
                    }
                }
            }
        }
    }
    assert!(suggested.iter().all(|count| *count > 0), "{suggested:?}");
}

/// Limits by other keys, and limits whose numbers messages say.
#[test]
fn a_limit_with_a_key_or_an_arg_in_words() {
    let policies = good(
        "[policy.api]\nkey = [\"ip\"]\nlimits = [\"10/s\", { name = \"net\", rate = \"100/s\", \
         ipv4_prefix = 24, ipv6_prefix = 48 }, { name = \"all\", rate = \"10/s\", key = [] }]\n\
         [policy.plan]\nkey = [\"key\"]\nlimits = { arg = \"plan\", default = \"1/s burst 5\", \
         most = \"100/s burst 200\" }\n",
    );
    assert_eq!(policies.warnings, Vec::<String>::new());
    let words = policies.in_words(UNIX_EPOCH);
    for line in [
        "    api.1: 10 per second, up to 10 at once: at most 20 in any second (no burst given: \
         10, the count)",
        "    api.net: 100 per second, up to 100 at once, for each ip (IPv4 by /24, IPv6 by /48): \
         at most 200 in any second (no burst given: 100, the count)",
        "    api.all: 10 per second, up to 10 at once, for all clients together: at most 20 in \
         any second (no burst given: 10, the count)",
        "    plan: the limit in the arg 'plan', or 1 per second, up to 5 at once: at most 100 per \
         second, up to 200 at once",
        "    plan.most: 100 per second, up to 200 at once: at most 300 in any second",
    ] {
        assert!(words.lines().any(|said| said == line), "{line}\n{words}");
    }
    let haproxy = policies.for_haproxy();
    let args = haproxy.lines().find(|line| line.contains("plan="));
    let sample = "    args key=req.fhdr(x-api-key),sha2(256),hex \
                  plan=req.fhdr(x-api-key),map(/etc/haproxy/plans.map)";
    assert_eq!(args, Some(sample), "{haproxy}");
}

#[test]
fn fallbacks_in_words() {
    for (key, words) in [
        ("\"key\", \"else ip\"", "for each key, or ip where there is none"),
        ("\"key\", \"else  null\"", "for each key, or null where there is none"),
        (
            "\"ip\", \"key\", \"else token\", \"else null\", \"path\"",
            "for each ip and key, or token, or null where there is none, and path",
        ),
    ] {
        let policies =
            good(&format!("[policy.api]\nlimits = \"1/s\"\nipv6_prefix = 128\nkey = [{key}]\n"));
        let all = policies.in_words(UNIX_EPOCH);
        assert!(all.lines().any(|line| line.trim() == words), "{all}");
        let printed = policies.for_haproxy();
        let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
        assert_eq!(args.contains("ip=src"), key.contains("ip"), "{args}");
    }
}

#[test]
fn overrides_in_words_name_their_lists() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("partners.txt"), "192.0.2.0/24\n10.0.0.1\n").unwrap();
    std::fs::write(directory.path().join("bad.txt"), "# none yet\n").unwrap();
    let text = r#"[policy.api]
limits = "1/s burst 5"
[policy.api.overrides]
"2001:db8::/32" = "100/s burst 5"
"10.0.0.2" = "deny"
[[policy.api.lists]]
file = "partners.txt"
limits = "unlimited"
[[policy.api.lists]]
file = "bad.txt"
limits = "deny"
"#;
    let policies = document::parse(&directory.path().join("gcra-spoa.toml"), text).unwrap();
    let words = policies.in_words(UNIX_EPOCH);
    for line in [
        "    overrides, 100 per second, up to 5 at once: 1 IPv6 network",
        "    overrides, unlimited: 1 IPv4 address, 1 IPv4 network (partners.txt)",
        "    overrides, deny: 1 IPv4 address (overrides, bad.txt)",
    ] {
        assert!(words.lines().any(|found| found == line), "{line} is not in\n{words}");
    }
}

/// The log has these lines at each reload, and the live page has them, too.
#[test]
fn many_overrides_take_few_lines() {
    let overrides: String =
        (1..=2000).map(|i| format!("\"k{i}\" = \"{i}/s burst {}\"\n", i + 1)).collect();
    let text = format!("[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n{overrides}");
    let words = good(&text).in_words(UNIX_EPOCH);
    let of_overrides: Vec<_> = words.lines().filter(|line| line.contains("overrides, ")).collect();
    assert_eq!(of_overrides.len(), 101, "{words}");
    let first = "    overrides, 1 per second, up to 2 at once: 1 value";
    let last = "    overrides, 1900 other limits; 'gcra-spoa explain' says which a client has";
    assert!(of_overrides.contains(&first) && of_overrides.contains(&last), "{words}");
}

/// A limit is found by its names after its numbers have changed.
#[test]
fn a_limit_is_known_by_its_names() {
    let ids = |text: &str| {
        good(text)
            .list
            .iter()
            .flat_map(|policy| policy.limits().map(|limit| limit.id).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let first = ids(
        "[policy.a]\nlimits=[\"1/s\", {name=\"x\", rate=\"1/h\"}]\n[policy.b]\nlimits=\"1/s\"\n",
    );
    let second =
        ids("[policy.a]\nlimits=[\"9/s burst 3\", {name=\"x\", rate=\"7/d\"}]\n[policy.b]\n\
         limits=\"5/m\"\n");
    assert_eq!(first, second);
    assert!(first[0] != first[1] && first[0] != first[2], "each limit has an id of its own");
}

#[test]
fn a_bandwidth_in_words_and_for_haproxy() {
    let with = |full: &str, least: &str| {
        let bandwidth = format!("bandwidth = {{ full = \"{full}\", least = \"{least}\" }}");
        good(&format!("answer = [\"bandwidth\"]\n[policy.a]\nlimits = \"9/s\"\n{bandwidth}\n"))
    };
    for (full, least, fact) in [
        (
            "10m",
            "512",
            "each response gets 10m bytes per second, down to 512 as the burst is used",
        ),
        ("1", "1", "each response gets 1 byte per second"),
        ("2", "1", "each response gets 2 bytes per second, down to 1 as the burst is used"),
    ] {
        let words = with(full, least).in_words(UNIX_EPOCH);
        assert!(words.contains(&format!("\n    {fact}\n")), "{fact}: {words}");
    }
    let printed = with("1m", "1").for_haproxy();
    assert!(printed.contains(" bandwidth=%[var(txn.gcra.bandwidth)] err="), "{printed}");
}

/// A name that is usually that of an address is followed by how addresses are grouped.
#[test]
fn only_addresses_are_grouped_in_words() {
    for (settings, words) in [
        ("key = [\"key\"]", "for each key"),
        ("key = [\"user\", \"path\"]", "for each user and path"),
        ("key = [\"ip\"]", "for each ip (IPv6 by /64)"),
        (
            "key = [\"key\", \"else src\"]",
            "for each key, or src where there is none (IPv6 by /64)",
        ),
        ("key = [\"client-ip\"]", "for each client-ip (IPv6 by /64)"),
        ("key = [\"real_ip\"]", "for each real_ip (IPv6 by /64)"),
        ("key = [\"xff\"]\nipv6_prefix = 56", "for each xff (IPv6 by /56)"),
        (
            "key = [\"xff\"]\n[policy.api.overrides]\n\"10.0.0.0/8\" = \"deny\"",
            "for each xff (IPv6 by /64)",
        ),
        ("", "for each value of the message's args (IPv6 by /64)"),
    ] {
        let all = good(&api(&format!("limits = \"1/s\"\n{settings}"))).in_words(UNIX_EPOCH);
        assert!(all.lines().any(|line| line.trim() == words), "{settings}: {all}");
    }
}

/// Plans can have one message for all their responses.
#[test]
fn plans_can_have_one_message_for_their_responses() {
    let plan = |name: &str, when: &str| {
        format!("[policy.{name}]\nmessage = \"m\"\n{when}{SETTLED}\nreserve = 2\n")
    };
    let plans = plan("gold", "when = { plan = \"gold\" }\n") + &plan("free", "");
    let policies = good(&plans);
    assert_eq!(policies.answers.others, [Var::Reserved]);
    assert_eq!(policies.list[1].settle().unwrap().message, b"failed"[..].into());
    let words = policies.in_words(UNIX_EPOCH);
    assert!(
        words.contains(
            "each request reserves 2 cells; the message 'failed' charges one cell\n    responses \
             charge beyond the burst, up to 1h of debt\n    what was reserved too much is given \
             back within 10m"
        ),
        "{words}"
    );
}

#[test]
fn a_count_in_words_says_when_it_begins_again() {
    let text = "[policy.api]\nkey = [\"ip\"]\nlimits = [\"20/s\", { name = \"contract\", \
                count = 10000, window = \"day europe/berlin\" }]\n";
    let now = UNIX_EPOCH + Duration::from_secs(1_774_738_800); // 2026-03-29 00:00 in Berlin
    let words = good(text).in_words(now);
    let line = words.lines().find(|line| line.contains("api.contract")).unwrap();
    assert_eq!(
        line,
        "    api.contract: 10000 per calendar day in Europe/Berlin: from midnight to midnight, so \
         up to 20000 shortly before and after a midnight; the next day begins at 2026-03-30 \
         00:00:00 in Europe/Berlin, 2026-03-29 22:00:00 in UTC"
    );
    let in_utc = good(&text.replace("europe/berlin", "utc")).in_words(now);
    assert!(in_utc.contains("; the next day begins at 2026-03-29 00:00:00 in UTC\n"), "{in_utc}");
}
