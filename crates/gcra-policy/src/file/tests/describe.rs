//! Policies in words.

use std::time::{Duration, UNIX_EPOCH};

use crate::answers::Var;
use crate::file::document;
use crate::file::tests::{SETTLED, api, good};

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
    the limit that denies a request is charged 1 cell, which adds at most 10m to the wait
    overrides, unlimited: 1 IPv4 network, 1 IPv6 network
    overrides, deny: 1 IPv4 address
policy 'login', for the message 'login'
    every request is blocked
    for each value of the message's args (IPv6 by /64)
    only observes, and blocks no request
variables, in the scope txn: blocked, remaining, retry_after"
    );
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
    assert_eq!(policies.warnings, []);
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
    let haproxy = policies.haproxy_text();
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
        let printed = policies.haproxy_text();
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
    let printed = with("1m", "1").haproxy_text();
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

#[test]
fn a_change_is_said_by_policy() {
    let file = |read: &str, rest: &str| {
        good(&format!("[policy.read]\nlimits = \"{read}\"\nkey = [\"ip\"]\n{rest}"))
    };
    let now = std::time::UNIX_EPOCH;
    let old = file("20/s burst 40", "[policy.old]\nlimits = \"1/s\"\n");
    let rest = "penalty = { cells = 2, ceiling = \"1m\" }\n[policy.new]\nlimits = \"1/s\"\n";
    let changes = file("10/s burst 20", rest).changes_since(&old, now);
    let read = "policy 'read': 20 per second, up to 40 at once: at most 60 in any second -> 10 \
                per second, up to 20 at once: at most 30 in any second; the limit that denies a \
                request is charged 2 cells, which adds at most 1m to the wait";
    assert_eq!(changes, [read, "policy 'old' is gone", "policy 'new' is new"]);
    assert_eq!(old.changes_since(&old, now), [""; 0]);
}
