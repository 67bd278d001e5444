use std::path::Path;

use spop_agent::Value;

use crate::answers::Var;
use crate::file::document;
use crate::file::secrets::Readers;
use crate::limit::Rule;
use crate::policies::Policies;
use crate::policy::RuleAt;

fn parse(text: &str) -> Result<Policies, Vec<String>> {
    document::parse(Path::new("gcra-spoa.toml"), text)
}

fn good(text: &str) -> Policies {
    parse(text).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// The warnings about a file, without its name.
fn warnings(text: &str) -> Vec<String> {
    let warnings = good(text).warnings;
    let start = "gcra-spoa.toml:";
    warnings.iter().map(|warning| warning.strip_prefix(start).unwrap().to_owned()).collect()
}

/// The same without those about slots, which long limits have.
fn not_about_slots(text: &str) -> Vec<String> {
    let mut warnings = warnings(text);
    warnings.retain(|warning| !warning.contains("a slot of the table"));
    warnings
}

#[test]
fn long_limits_are_warned_of_because_of_their_slots() {
    let file = |limits: &str, more: &str| {
        format!("[policy.api]\nkey = [\"ip\"]\nlimits = {limits}\n{more}")
    };
    let day = "[\"100/s\", { count = 10000, window = \"day\" }, \"10000/d\"]";
    assert_eq!(warnings(&file(day, "")), [""; 0]);
    for (limits, long) in [
        ("{ count = 10000, window = \"week\" }", "7.0 d"),
        ("[\"100/s\", { count = 10000, window = \"month\" }]", "30 d"),
        ("\"10/d burst 70\"", "7.0 d"),
    ] {
        let expected = format!(
            "1: warning: each client of policy 'api' can keep a slot of the table for {long}; \
             start the agents with --slots of at least twice the clients of that time (the usual \
             table has 1048576), or some are forgotten"
        );
        assert_eq!(warnings(&file(limits, "")), [expected]);
        let shared = "shared = true\nwithout_store = \"closed\"\n\
                      [store]\nurl = \"redis://127.0.0.1\"\n";
        assert_eq!(warnings(&file(limits, shared)), [""; 0], "it is in the store");
    }
}

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
        policies.in_words(),
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
fn every_mistake_is_reported_with_its_line() {
    let mistakes = parse(
        r#"scope = "transaction"
answers = ["remaining"]
answer = ["remaning", "remaining", "remaining"]
[policy.api]
limit = "10/s"
limits = ["10/s brust 20", "10/fortnight", { rate = "10/s", brust = 5 }]
key = ["ip", ""]
cost = "ip"
ipv6_prefix = 129
mode = "observed"
when = "gold"
penalty = { cells = -1 }
[policy.api.overrides]
"192.0.2.0/33" = "unlimited"
"10.0.0.1" = "100/s brust"
[[policy.api.lists]]
file = "nowhere.txt"
limits = "unlimited"
[policy."a b"]
limits = []
[policy.other]
message = "api"
"#,
    )
    .unwrap_err();
    let expected = [
        "1: 'transaction' is not a scope; use one of proc, sess, txn, req, res",
        "2: 'answers' is not a setting of the file; did you mean 'answer'?",
        "3: 'remaning' is not a variable; did you mean 'remaining'?",
        "3: answer names 'remaining' twice; once is enough",
        "5: 'limit' is not a setting of policy 'api'; did you mean 'limits'?",
        "6: '10/s brust 20' is not a valid limit; write COUNT/PERIOD or COUNT/PERIOD burst \
         COUNT, such as \"10/s burst 20\"",
        "6: '10/fortnight' is not a rate: ",
        "6: 'brust' is not a setting of a limit; did you mean 'burst'?",
        "7: key has an empty name; write the names of args, such as [\"ip\", \"path\"]",
        "8: key and cost both name 'ip', so each cost would have a bucket of its own; leave it \
         out \
         of key",
        "9: ipv6_prefix must be a whole number from 0 to 128, without quotes",
        "10: 'observed' is not a mode; did you mean 'observe'?",
        "11: when must name one arg and its values, such as { plan = \"gold\" } or { plan = \
         [\"gold\", \"silver\"] }",
        "12: cells must be a whole number from 1 to 4294967295, without quotes",
        "12: penalty has no ceiling, so a client could stay blocked without end; write ceiling = \
         \"10m\"",
        "14: '192.0.2.0/33' is not an address or network; write one, such as 192.0.2.1 or \
         192.0.2.0/24, or str:192.0.2.0/33 for the text itself",
        "15: '100/s brust' is not a valid limit; write COUNT/PERIOD or COUNT/PERIOD burst \
         COUNT, such as \"10/s burst 20\"",
        "16: cannot read the list nowhere.txt: No such file or directory (os error 2)",
        "19: 'a b' is not a valid name for a policy: use letters, digits, '-' and '_', at most 64 \
         of them",
        "20: limits is empty; write \"unlimited\" to block no request",
        "21: policy 'other' has no limits; write limits = [\"100/s burst 20\"], or \"deny\" or \
         \"unlimited\"",
    ];
    assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
    for (mistake, expected) in mistakes.iter().zip(expected) {
        let expected = format!("gcra-spoa.toml:{expected}");
        // How a rate is written is explained by its own crate.
        assert!(
            *mistake == expected || expected.ends_with(": ") && mistake.starts_with(&expected),
            "{mistake}\n{expected}"
        );
    }
}

#[test]
fn a_mistake_in_the_syntax_is_reported_with_its_line() {
    let wrong = |text: &str, mistakes: &[&str]| {
        let expected: Vec<_> =
            mistakes.iter().map(|mistake| format!("gcra-spoa.toml:{mistake}")).collect();
        assert_eq!(parse(text).unwrap_err(), expected, "{text}");
    };
    wrong(
        "[policy.api]\nlimits = 10/s\nkey = [path, ip]\n",
        &[
            "2: '10/s' is a string, which needs quotes; write \"10/s\"",
            "3: 'path' is a string, which needs quotes; write \"path\"",
            "3: 'ip' is a string, which needs quotes; write \"ip\"",
        ],
    );
    wrong(
        "[policy.api]\nlimits = \"1/s\"\n[policy.api]\nlimits = \"1/s\"\n",
        &["3: [policy.api] is defined twice, first in line 1; keep only one of the two"],
    );
    // The other mistakes are reported as well, but not what only follows from these.
    wrong(
        "[policy.api]\nlimits = 10/s\nkey = ip\nmode = \"dryrun\"\n[policy.b]\nlimits = \"1/x\"\n",
        &[
            "2: '10/s' is a string, which needs quotes; write \"10/s\"",
            "3: 'ip' is a string, which needs quotes; write \"ip\"",
            "4: to block no request, and only count those that would be blocked, write mode = \
             \"observe\"",
            "6: '1/x' is not a rate: the period must end in ms, s, m, h or d, or in sec, min, \
             hour or day (rates are COUNT/PERIOD, like 100/s, 0.5/s, 10/m, 1000/d or 100/250ms)",
        ],
    );
    wrong(
        "[policy.api]\nlimits = \"1/s\"\nkey: [\"ip\"]\n",
        &["3: 'key:' is not a key; write key = VALUE, or [key] for a table"],
    );
    wrong(
        "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n192.0.2.1 = \"deny\"\n\
         192.0.2.0/24 = \"deny\"\n",
        &["5: the key '192.0.2.0/24' needs quotes, because it has characters other than \
             letters, \
           digits, '-' and '_'; write \"192.0.2.0/24\""],
    );
    wrong(
        "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n192.0.2.1 = \"deny\"\n\
         \"192.0.2.2\" = \"deny\"\n",
        &["4: the key '192.0.2.1' needs quotes; write \"192.0.2.1\""],
    );
    // Nothing of the file moves the cursor of a terminal.
    wrong(
        "[policy.api]\nlimits = \"1/s\"\n\"\\u001b[2J\" = 1\n\"a\\rb\" = 1\n",
        &[
            "3: '\u{fffd}[2J' is not a setting of policy 'api'; use one of message, when, \
             limits, observe, key, ipv4_prefix, ipv6_prefix, lowercase, cost, settle, reserve, \
             max_debt, settle_within, mode, penalty, bandwidth, max_delay, shared, \
             without_store, open_for, overrides, lists",
            "4: 'a\u{fffd}b' is not a setting of policy 'api'; use one of message, when, \
             limits, observe, key, ipv4_prefix, ipv6_prefix, lowercase, cost, settle, reserve, \
             max_debt, settle_within, mode, penalty, bandwidth, max_delay, shared, \
             without_store, open_for, overrides, lists",
        ],
    );
    // This key has quotes, and its value is a limit with a typing error.
    wrong(
        "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n\
         \"192.0.2.1\" = { bust = 5, rate = \"10/s\" }\n",
        &["4: 'bust' is not a setting of a limit; did you mean 'burst'?"],
    );
}

#[test]
fn a_trial_is_a_policy_of_its_own_behind_all_others() {
    let policies = good(
        "answer = [\"ratelimit\"]\n[policy.api]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\n\
         limits = \"100/s\"\nobserve = [\"50/s\", { name = \"hourly\", rate = \"1000/h\" }]\n\
         key = [\"ip\"]\npenalty = { ceiling = \"1m\" }\n[policy.api.overrides]\n\
         \"192.0.2.1\" = \"deny\"\n[policy.b]\nmessage = \"m\"\nlimits = \"1/s\"\n\
         observe = \"2/s\"\n",
    );
    let names: Vec<_> = policies.list.iter().map(|policy| &*policy.name).collect();
    assert_eq!(names, ["api", "b", "api.observe", "b.observe"]);
    let [api, b, trial, _] = &policies.list[..] else { unreachable!() };
    assert_eq!((api.trial, b.trial, trial.trial), (Some(2), Some(3), None));
    assert_eq!((&trial.key, &trial.when, &trial.message), (&api.key, &api.when, &api.message));
    assert!(trial.observes && trial.penalty.is_none() && trial.overrides.is_empty());
    let labels: Vec<_> = trial.limits().map(|limit| &*limit.label).collect();
    assert_eq!(labels, ["api.observe.1", "api.observe.hourly"]);
    assert!(trial.limits().all(|limit| api.limits().all(|other| other.id != limit.id)));
    let words = policies.in_words();
    let trials: Vec<_> = words.lines().filter(|line| line.starts_with("    observe")).collect();
    assert_eq!(
        trials,
        [
            "    observe, which blocks no request: 50 per second, up to 50 at once; and 1000 per \
             hour, up to 1000 at once",
            "    observe, which blocks no request: 2 per second, up to 2 at once",
        ]
    );
    assert_eq!(words.lines().filter(|line| line.starts_with("policy ")).count(), 2, "{words}");
    assert_eq!(policies.for_haproxy().matches("\nspoe-message ").count(), 1);
}

/// So an operator can put `mode = "observe"` into every policy when too much is blocked.
#[test]
fn a_policy_that_only_observes_may_have_a_trial() {
    let policies = parse(
        "[policy.api]\nlimits = \"5/s\"\nobserve = \"1/s\"\nmode = \"observe\"\n\
         key = [\"ip\"]\n",
    )
    .unwrap();
    assert!(policies.list.iter().all(|policy| policy.observes), "{:?}", policies.list);
    let [warning] = &policies.warnings[..] else { panic!("{:?}", policies.warnings) };
    let said = "gcra-spoa.toml:3: warning: policy 'api' blocks no request by its limits either";
    assert!(warning.starts_with(said), "{warning}");
}

#[test]
fn a_wrong_trial_is_a_mistake() {
    for (settings, said) in [
        ("observe = \"deny\"", "'deny' cannot be observed; write observe = [\"50/s burst 100\"]"),
        ("observe = \"unlimited\"", "'unlimited' cannot be observed; write"),
        ("observe = []", "observe is empty; write"),
        ("observe = [\"1/s\", \"2/s\", \"3/s\", \"4/s\", \"5/s\"]", "observe has 5 entries, and"),
        ("observe = true", "observe must be a limit or a list of limits; write"),
        ("observe = [\"50/s brust 2\"]", "'50/s brust 2' is not a valid limit; write"),
        ("observe = [\"deny\"]", "'deny' must stand alone"),
        (
            "observe = \"1/s\"\n[policy.api.overrides]\n\
             a = [\"1/s\", { name = \"observe\", rate = \"1/h\" }]",
            "a limit of policy 'api' is called 'observe', and 'api.observe' is the name of the",
        ),
    ] {
        let mistakes =
            parse(&format!("[policy.api]\nlimits = \"1/s\"\n{settings}\n")).unwrap_err();
        let expected = format!("gcra-spoa.toml:3: {said}");
        assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:?}");
    }
    let name = "n".repeat(64);
    let trial = format!("{{ name = \"{name}\", rate = \"1/s\" }}");
    let mistakes = parse(&format!(
        "answer = [\"ratelimit\", \"ratelimit_policy\"]\n[policy.{name}]\nlimits = \"unlimited\"\n\
         observe = [{trial}, \"1/s\", \"2/s\", \"3/s\"]\n"
    ))
    .unwrap_err();
    assert!(mistakes[0].contains(".observe' an answer may have"), "{mistakes:?}");
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
    let words = policies.in_words();
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
    let sample =
        "    args key=req.fhdr(x-api-key) plan=req.fhdr(x-api-key),map(/etc/haproxy/plans.map)";
    assert_eq!(args, Some(sample), "{haproxy}");
}

#[test]
fn a_wrong_key_or_arg_of_a_limit_is_a_mistake() {
    for (settings, said) in [
        (
            "limits = { rate = \"1/s\", key = \"ip\" }",
            "key must be a list of strings; write key = [\"ip\"]",
        ),
        ("limits = { rate = \"1/s\", key = [\"ip=src\"] }", "'ip=src' in key is an arg with"),
        (
            "limits = { rate = \"1/s\", ipv4_prefix = 33 }",
            "ipv4_prefix must be a whole number from 0 to 32, without quotes",
        ),
        (
            "limits = { arg = \"plan\" }",
            "the limit has no 'default', a limit for messages without valid numbers; and no 'mo",
        ),
        (
            "limits = { arg = \"plan\", default = \"2/s\", most = \"1/s\" }",
            "the default is above 'most' in its rate or its burst; lower the default, or raise",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/s burst 5\", most = \"9/s burst 4\" }",
            "the default is above 'most' in its rate or its burst; lower the default, or raise",
        ),
        (
            "limits = { arg = \"plan\", default = \"deny\", most = \"1/s\" }",
            "default = \"deny\" is not possible, because default is a limit itself; write",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/s\", most = \"unlimited\" }",
            "most = \"unlimited\" is not possible, because most is a limit itself; write",
        ),
        (
            "limits = { rate = \"1/s\", cost = \"n\" }",
            "'cost' belongs to the policy; write it below the header of the policy",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/s\", most = \"2/s\", shared = true }",
            "'shared' belongs to the policy; write it below the header of the policy",
        ),
        (
            "limits = { arg = \"ip\", default = \"1/s\", most = \"2/s\" }",
            "key and the arg of a limit both name 'ip', so each value would have a bucket of its",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/s\", most = \"2/s\", rate = \"1/s\" }",
            "a limit whose numbers are in an arg has no rate of its own; leave it out, and write",
        ),
        (
            "limits = [\"1/s\", { arg = \"a\", default = \"1/s\", most = \"2/s\" }, { arg = \
             \"b\", default = \"1/s\", most = \"2/s\" }]",
            "these are 5 limits, because one whose numbers are in an arg counts twice: it has its",
        ),
    ] {
        let text = format!("[policy.api]\nkey = [\"ip\"]\n{settings}\n");
        let mistakes = parse(&text).unwrap_err();
        let expected = format!("gcra-spoa.toml:3: {said}");
        assert!(mistakes[0].starts_with(&expected), "{mistakes:#?} instead of {expected}");
    }
    // Each new number would begin without debts, and under a 'most' of its own.
    let text = "[policy.api]\nlimits = { arg = \"rl\", default = \"1/s\", most = \"2/s\" }\n";
    let mistakes = parse(text).unwrap_err();
    let expected = "gcra-spoa.toml:2: without a key, policy 'api' counts by all args, so each \
                    value of 'rl' would have a bucket of its own; write";
    assert!(mistakes[0].starts_with(expected), "{mistakes:#?}");
    let text = "[policy.api]\nlimits = [\"1/s\", { rate = \"5/s\", key = [] }]\n";
    let mistakes = parse(text).unwrap_err();
    let expected = "gcra-spoa.toml:2: a limit has a key of its own, so policy 'api' needs a 'key'";
    assert!(mistakes.len() == 1 && mistakes[0].starts_with(expected), "{mistakes:#?}");
}

#[test]
fn warnings_about_limits_with_a_key_or_an_arg() {
    let policies =
        |limits: &str| good(&format!("[policy.api]\nkey = [\"ip\"]\nlimits = {limits}\n"));
    let by_arg = "{ arg = \"plan\", default = \"1/s\", most = \"9/s\" }";
    let all = policies(&format!("[\"5/s burst 5\", {by_arg}, \"90/s\"]"));
    assert!(all.warnings.iter().all(|said| !said.contains("9 per second")), "{:?}", all.warnings);
    let words = policies(by_arg).in_words();
    for burst in
        ["up to 1 at once (no burst given: 1, the count)", "(no burst given: 9, the count)"]
    {
        assert!(words.contains(burst), "{words}");
    }
    let all = policies("[\"5/s\", { rate = \"9/s\", key = [], ipv4_prefix = 24 }]");
    let said =
        "with key = [] all clients count together, so ipv4_prefix does nothing; leave it out";
    assert!(all.warnings.len() == 1 && all.warnings[0].ends_with(said), "{:?}", all.warnings);
}

/// A limit by another key has no penalty, so it does not matter how slow it is.
#[test]
fn a_penalty_is_not_compared_with_limits_by_other_keys() {
    let policies = good(
        "[policy.api]\nkey = [\"ip\"]\npenalty = { ceiling = \"1m\" }\nlimits = [\"1/s\", { \
         name = \"all\", rate = \"10/d\", key = [] }]\n",
    );
    let limits: Vec<_> = policies.list[0].limits().collect();
    let beyond = |place: usize| limits[place].quota.most_owed() > limits[place].quota.drain_time();
    assert!(beyond(0) && !beyond(1), "{limits:?}");
}

/// An arg is a part of a key, or a cost, or the numbers of a limit.
#[test]
fn an_arg_of_a_limits_key_is_nothing_else() {
    const PLAN: &str = "{ name = \"plan\", arg = \"plan\", default = \"1/s\", most = \"2/s\" }";
    let by = |key: &str| format!("{{ name = \"h\", rate = \"1/s\", key = [{key}] }}");
    let [n, or_n, plan] = ["\"n\"", "\"x\", \"else n\"", "\"x\", \"else plan\""].map(by);
    let cost_and_key = "cost and the key of the limit 'api.h' both name 'n', so each number would \
                        have a bucket of its own; leave it out of that key";
    for (settings, line, said) in [
        (format!("cost = \"n\"\nlimits = {n}"), 3, cost_and_key),
        (format!("cost = \"n\"\nlimits = [\"1/s\", {or_n}]"), 3, cost_and_key),
        (
            format!("limits = \"1/s\"\ncost = \"n\"\nobserve = [{or_n}]"),
            4,
            "cost and the key of the limit 'api.observe.h' both name 'n'",
        ),
        (
            format!("limits = \"1/s\"\ncost = \"n\"\noverrides = {{ \"192.0.2.1\" = {n} }}"),
            4,
            cost_and_key,
        ),
        (
            format!("limits = {n}\nsettle = \"done\"\nreserve = \"n\"\ncost = \"c\""),
            5,
            "reserve and the key of the limit 'api.h' both name 'n'",
        ),
        (
            format!("cost = \"plan\"\nlimits = {PLAN}"),
            3,
            "cost and the arg of the limit 'api.plan' both name 'plan', and no value is both",
        ),
        (
            format!("cost = \"plan\"\nlimits = \"1/s\"\nobserve = {PLAN}"),
            3,
            "cost and the arg of the limit 'api.observe.plan' both name 'plan'",
        ),
        (
            format!("limits = [{PLAN}, {plan}]"),
            1,
            "the key of the limit 'api.h' and the arg of the limit 'api.plan' both name 'plan', \
             so each value would have a bucket of its own; leave it out of that key",
        ),
        (
            format!("limits = {PLAN}\nobserve = {plan}"),
            1,
            "the key of the limit 'api.observe.h' and the arg of the limit 'api.plan' both name",
        ),
    ] {
        let mistakes = parse(&format!("[policy.api]\nkey = [\"ip\"]\n{settings}\n")).unwrap_err();
        let expected = format!("gcra-spoa.toml:{line}: {said}");
        let fits = mistakes.len() == 1 && mistakes[0].starts_with(&expected);
        assert!(fits, "{mistakes:#?} instead of {expected}");
    }
    // What is wrong with the policy's key is said once.
    let text = "[policy.api]\nkey = [\"n\"]\ncost = \"n\"\nlimits = { rate = \"1/s\", \
                ipv4_prefix = 24 }\n";
    assert_eq!(parse(text).unwrap_err().len(), 1);
}

/// A limit for more clients is not idle because another one is stricter for each of them.
#[test]
fn a_limit_with_another_key_always_matters() {
    let warnings = |limits: &str| {
        good(&format!("[policy.api]\nkey = [\"ip\"]\nlimits = [\"1/s\", {limits}]\n")).warnings
    };
    assert_eq!(warnings("{ rate = \"2/s\" }").len(), 1);
    assert_eq!(warnings("{ rate = \"2/s\", ipv4_prefix = 24 }"), Vec::<String>::new());
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
        let all = policies.in_words();
        assert!(all.lines().any(|line| line.trim() == words), "{all}");
        let printed = policies.for_haproxy();
        let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
        assert_eq!(args.contains("ip=src"), key.contains("ip"), "{args}");
    }
}

#[test]
fn a_wrong_fallback_is_a_mistake() {
    for (key, said) in [
        ("\"else ip\"", "'else ip' is the first entry of key, so there is no arg that it"),
        ("\"ip\", \"else \"", "'else ' in key names no arg; write 'else ARG'"),
        ("\"ip\", \"else\"", "'else' in key names no arg"),
        ("\"ip\", \"else ip\"", "key names 'ip' twice; once is enough"),
        ("\"a\", \"else b\", \"b\"", "key names 'b' twice; once is enough"),
        ("\"a\", \"else null\", \"else b\"", "'else b' in key is never used, because"),
        ("\"a\", \"else null\", \"else null\"", "'else null' in key is never used, because"),
        ("\"a\", \"or b\"", "'or b' in key is not the name of an arg, because it has"),
        ("\"a else b\"", "'a else b' in key is not the name of an arg"),
        ("\"a\", \"else b else c\"", "'else b else c' in key is not the name of an arg"),
    ] {
        let mistakes =
            parse(&format!("[policy.api]\nlimits = \"1/s\"\nkey = [{key}]\n")).unwrap_err();
        let expected = format!("gcra-spoa.toml:3: {said}");
        assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:?}");
    }
    let many: String = (0..9).map(|number| format!(", \"else a{number}\"")).collect();
    let mistakes =
        parse(&format!("[policy.api]\nlimits = \"1/s\"\nkey = [\"a\"{many}]\n")).unwrap_err();
    assert!(mistakes[0].ends_with("'a' in key has more than 8 fallbacks; leave some out"));
    let mistakes =
        parse("[policy.api]\nlimits = \"1/s\"\nkey = [\"a\", \"else n\"]\ncost = \"n\"\n")
            .unwrap_err();
    assert!(mistakes[0].contains("key and cost both name 'n'"), "{mistakes:?}");
}

#[test]
fn the_args_for_haproxy_are_those_of_all_policies_of_a_message() {
    let policies = parse(
        "[policy.a]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\nlimits = \"1/s\"\n\
         [policy.b]\nmessage = \"m\"\nkey = [\"ip\"]\ncost = \"c\"\nlimits = \"1/s\"\n",
    )
    .unwrap();
    let printed = policies.for_haproxy();
    let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
    assert_eq!(args, "ip=src plan=src,map_ip(/etc/haproxy/plans.map,b) c=int(1)");
}

/// Without the arg the trial would say nothing about any request.
#[test]
fn the_args_for_haproxy_are_also_those_of_trials() {
    let policies = good(
        "[policy.api]\nkey = [\"ip\"]\nlimits = \"1/s\"\nobserve = [{ rate = \"2/s\", key = \
         [\"host\", \"else path\"] }, { arg = \"plan\", default = \"1/s\", most = \"2/s\" }]\n",
    );
    let printed = policies.for_haproxy();
    let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
    let host = "host=req.hdr(host),field(1,:),lower";
    assert_eq!(args, format!("ip=src {host} path=path plan=src,map_ip(/etc/haproxy/plans.map)"));
    assert!(printed.contains("# plan: create /etc/haproxy/plans.map, "), "{printed}");
}

#[test]
fn a_file_without_a_policy_is_a_mistake() {
    for text in ["", "[policy]\n", "policy = {}\n", "scope = \"sess\"\n\n[policy]\n"] {
        let mistakes = parse(text).unwrap_err();
        let at_all =
            mistakes.iter().any(|mistake| mistake.contains("there is no policy; write one"));
        assert!(mistakes.len() == 1 && at_all, "{text:?}: {mistakes:?}");
    }
}

#[test]
fn a_policy_that_never_applies_is_a_mistake() {
    let mistakes = parse(
        "[policy.a]\nmessage=\"m\"\nlimits=\"1/s\"\n[policy.b]\nmessage=\"m\"\n\
               when={x=\"1\"}\nlimits=\"1/s\"\n",
    )
    .unwrap_err();
    assert_eq!(
        mistakes,
        ["gcra-spoa.toml:4: policy 'b' never applies, because policy 'a' above it is for the \
             same message; put 'b' first"]
    );
    let mistakes = parse(
        "[policy.a]\nmessage=\"m\"\nlimits=\"1/s\"\n[policy.b]\nmessage=\"m\"\nlimits=\"1/s\"\n",
    );
    assert!(mistakes.unwrap_err()[0].ends_with("; put 'b' first, and give it a 'when'"));
    // The other way round it is right.
    good(
        "[policy.b]\nmessage=\"m\"\nwhen={x=\"1\"}\nlimits=\"1/s\"\n[policy.a]\nmessage=\"m\"\n\
         limits=\"1/s\"\n",
    );
}

#[test]
fn of_networks_the_smallest_counts() {
    let policies = good(
        r#"[policy.api]
limits = "1/s"
[policy.api.overrides]
"10.0.0.0/8" = "unlimited"
"10.1.0.0/16" = "deny"
"10.1.2.3" = "5/s"
"2001:db8::/32" = "deny"
"Partner" = "100/s"
"#,
    );
    let policy = &policies.list[0];
    let rule = |value: Value<'_>| {
        policy.rule(RuleAt::new(policy.override_for(value).map(|found| found.rule)))
    };
    let ip = |text: &str| Value::from(text.parse::<std::net::IpAddr>().unwrap());
    let burst = |rule: &Rule| match rule {
        Rule::Limits(limits) => limits[0].quota.burst(),
        Rule::Deny | Rule::Unlimited => 0,
    };
    assert_eq!(*rule(ip("10.2.0.1")), Rule::Unlimited);
    assert_eq!(*rule(ip("10.1.9.9")), Rule::Deny);
    assert_eq!(*rule(ip("::ffff:10.1.9.9")), Rule::Deny, "the same address");
    assert_eq!(burst(rule(ip("10.1.2.3"))), 5);
    assert_eq!(*rule(ip("2001:db8:1::1")), Rule::Deny);
    assert_eq!(burst(rule("Partner".into())), 100);
    for other in [ip("192.0.2.1"), ip("2001:db9::1"), "partner".into(), Value::Null, 1_i64.into()]
    {
        assert_eq!(burst(rule(other)), 1, "{other:?}");
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
    let words = policies.in_words();
    for line in [
        "    overrides, 100 per second, up to 5 at once: 1 IPv6 network",
        "    overrides, unlimited: 1 IPv4 address, 1 IPv4 network (partners.txt)",
        "    overrides, deny: 1 IPv4 address (overrides, bad.txt)",
    ] {
        assert!(words.lines().any(|found| found == line), "{line} is not in\n{words}");
    }
}

/// A policy with this override, and one with a list of this one line; or what is wrong with it.
fn with_override(text: &str) -> [Result<Policies, Vec<String>>; 2] {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("list.txt"), format!("{text}\n")).unwrap();
    let table = "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n";
    let list = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                limits = \"deny\"\n";
    let file = directory.path().join("gcra-spoa.toml");
    [parse(&format!("{table}'{text}' = \"deny\"\n")), document::parse(&file, list)]
}

/// A typing error in a list of denied addresses must not allow one of them.
#[test]
fn what_is_nearly_an_address_is_a_mistake() {
    for text in [
        "300.1.1.1",
        "192.0.2.256",
        "010.0.0.1",
        "192.0.2",
        "192.0.2.",
        "192.0.2.1.",
        "192.0.2.l",
        "192.O.2.1",
        "1.2.3.4/-1",
        "1.2.3.4/33",
        "1.2.3.4/",
        "1.2.3.4/024",
        "1.2.3.4/24/24",
        "1.2.3.4/ 24",
        "1.2.3.4 /24",
        "1.2.3.4/255.255.255.0",
        "10/8",
        "10.0.*.*",
        "*",
        "192.0.2.1-192.0.2.9",
        "192.0.2.1-9",
        "192.0.2.1:80",
        "192.0.2.1 192.0.2.2",
        "192.0.2.1, 192.0.2.2",
        "192.0.2.0/24;",
        "deny 192.0.2.1",
        "192.0.2.1\u{feff}",
        "192.0.2.1\u{200b}",
        "2001:db8::/129",
        "2001:db8:/32",
        "2001:db8::l",
        "2001:db8:::1",
        "[2001:db8::1]",
        "[2001:db8::1]:80",
        "fe80::1%eth0",
        "fe80::1%eth0/64",
        "::ffff:300.0.0.1",
        "2001.db8::1",
        "2001:db8",
        "2001:db8/32",
        "fe80:1",
        "12:34",
    ] {
        for outcome in with_override(text) {
            let mistakes = outcome.expect_err(text);
            assert!(
                mistakes.len() == 1
                    && mistakes[0].contains(&format!("'{text}' is not an address or network; "))
                    && mistakes[0].contains(", or str:"),
                "{text:?}: {mistakes:?}"
            );
        }
    }
    for (text, meant) in [
        ("10.0.0,1", "10.0.0.1"),
        ("10,0,0,1", "10.0.0.1"),
        ("10-0-0-1", "10.0.0.1"),
        ("10_0_0_1", "10.0.0.1"),
        ("10\u{ff0e}0\u{ff0e}0\u{ff0e}1", "10.0.0.1"),
        ("10\u{3002}0\u{3002}0\u{3002}1", "10.0.0.1"),
        ("10,0,0,0/8", "10.0.0.0/8"),
        ("10.0.0.0 / 8", "10.0.0.0/8"),
        ("10,0,0,1/8", "10.0.0.0/8 or 10.0.0.1/32"),
        ("\"10.0.0.1\"", "10.0.0.1"),
        ("\"10.0.0.0/8\"", "10.0.0.0/8"),
        ("\"2001:db8::1\"", "2001:db8::1"),
        ("\u{201c}10.0.0.1\u{201d}", "10.0.0.1"),
        ("0x0a000001", "10.0.0.1"),
        ("0X0A000001", "10.0.0.1"),
    ] {
        for outcome in with_override(text) {
            let mistakes = outcome.expect_err(text);
            let said = format!(
                "'{text}' is not an address or network; write {meant}, or str:{text} for the \
                 text itself"
            );
            assert!(mistakes.len() == 1 && mistakes[0].ends_with(&said), "{text:?}: {mistakes:?}");
        }
    }
    // A list cannot have these: its lines are trimmed, and may be empty.
    for (text, said) in [
        ("", "'' is empty; write an address, a network or a value"),
        (" 1.2.3.4", "' 1.2.3.4' has white space around it"),
        ("partner\t", "has white space around it"),
    ] {
        let [table, list] = with_override(text);
        let mistakes = table.expect_err(text);
        assert!(mistakes.len() == 1 && mistakes[0].contains(said), "{text:?}: {mistakes:?}");
        assert!(list.is_ok());
    }
    for (text, said) in [
        (
            "1.2.3.4/24",
            "'1.2.3.4/24' is not the first address of its network; write 1.2.3.0/24 for the \
             network, or 1.2.3.4/32 for the one address",
        ),
        ("2001:db8::1/32", "write 2001:db8::/32 for the network, or 2001:db8::1/128 for the"),
        (
            "::ffff:10.0.0.1/104",
            "write ::ffff:10.0.0.0/104 for the network, or ::ffff:10.0.0.1/128",
        ),
    ] {
        for outcome in with_override(text) {
            let mistakes = outcome.expect_err(text);
            assert!(mistakes.len() == 1 && mistakes[0].contains(said), "{text:?}: {mistakes:?}");
        }
    }
}

#[test]
fn a_comment_in_a_list_begins_with_a_hash() {
    for (text, mark) in
        [("; partners", ";"), (";10.0.0.1", ";"), ("// partners", "//"), ("//10.0.0.1", "//")]
    {
        let [_, list] = with_override(text);
        let mistakes = list.expect_err(text);
        let said = format!(
            "line 1: '{text}' begins with '{mark}'; write # before a comment, or str:{text} for \
             the text itself"
        );
        assert!(mistakes.len() == 1 && mistakes[0].ends_with(&said), "{text:?}: {mistakes:?}");
        let [_, list] = with_override(&format!("str:{text}"));
        assert!(list.unwrap().list[0].override_for(text.into()).is_some(), "{text:?}");
    }
    let [_, list] = with_override("# 10.0.0.1");
    assert!(list.is_ok());
}

#[test]
fn an_override_is_for_an_address_a_network_or_a_value() {
    let matches = |text: &str, value: Value<'_>| {
        with_override(text).map(|outcome| {
            let policies = outcome.unwrap_or_else(|mistakes| panic!("{text:?}: {mistakes:?}"));
            policies.list[0].override_for(value).is_some()
        })
    };
    let ip = |text: &str| Value::from(text.parse::<std::net::IpAddr>().unwrap());
    for (text, value) in [
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3/32", "::ffff:10.1.2.3"),
        ("0.0.0.0/0", "10.1.2.3"),
        ("2001:db8::/32", "2001:db8::1"),
        ("2001:DB8::1", "2001:db8::1"),
        // An IPv4 address is the same in either form, here too.
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::ffff:10.0.0.0/104", "10.1.2.3"),
        ("::ffff:0.0.0.0/96", "10.1.2.3"),
    ] {
        assert_eq!(matches(text, ip(value)), [true; 2], "{text}");
    }
    for value in [
        "a/b",
        "Partner",
        "12345",
        "-1",
        "user:123:45",
        "/login",
        "/24",
        "/1/2",
        "app1:8080",
        "www.example.com",
        "http://192.0.2.1/",
        "ec2-192-0-2-1.example.com",
        "App::Module",
        "curl/7.88.1",
        "123e4567-e89b-12d3",
        "null:",
        "Mozilla/5.0 (X11; Linux x86_64)",
        "a b",
        "bob",
        "\"bob\"",
        "a-b",
        "a,b",
        "key_1",
        "http://10.0.0.1",
        "2024-01-02",
        "2024-01-02T10:30",
        "10-0-0-1.example.com",
        "0x0a0000",
        "c:/windows",
    ] {
        assert_eq!(matches(value, value.into()), [true; 2], "{value}");
    }
    // What looks like an address and is meant as a string says so, as on the command line.
    for value in
        ["300.1.1.1", "10.1.2.3", "1.2.3", "*", "str:x", "a", "10:30", "10-0-0-1", "0x0a000001"]
    {
        assert_eq!(matches(&format!("str:{value}"), value.into()), [true; 2], "{value}");
    }
    assert_eq!(matches("str:10.1.2.3", ip("10.1.2.3")), [false; 2]);
    let [table, _] = with_override("str: with space ");
    assert!(table.unwrap().list[0].override_for(" with space ".into()).is_some());
}

#[test]
fn a_penalty_that_is_never_charged_is_a_mistake() {
    let with = |limits: &str, penalty: &str| {
        parse(&format!("[policy.api]\nlimits = {limits}\npenalty = {penalty}\n")).map(|_| ())
    };
    let wrong = |sentence: &str| Err(vec![format!("gcra-spoa.toml:3: {sentence}")]);
    assert_eq!(
        with("\"2/s burst 3\"", "{ ceiling = \"400ms\" }"),
        wrong(
            "the penalty of policy 'api' is never charged to the limit '2 per second, up to 3 at \
             once': its 1 cell takes 500ms to pay off, more than the ceiling; write a ceiling of \
             at least \"500ms\""
        )
    );
    assert_eq!(with("\"2/s burst 3\"", "{ ceiling = \"500ms\" }"), Ok(()));
    assert_eq!(
        with(
            "[\"10/s\", { name = \"daily\", rate = \"1000/d\" }]",
            "{ cells = 10, ceiling = \"10m\" }"
        ),
        wrong(
            "the penalty of policy 'api' is never charged to the limit '1000 per day, up to 1000 \
             at once': its 10 cells take 864s to pay off, more than the ceiling; write a ceiling \
             of at least \"864s\""
        )
    );
    assert_eq!(
        with("\"1/d\"", "{ cells = 31, ceiling = \"1d\" }"),
        wrong(
            "the penalty of policy 'api' is never charged to the limit '1 per day, up to 1 at \
             once': its 31 cells take 31d to pay off, more than any ceiling; write at most 30 \
             cells"
        )
    );
    assert_eq!(
        with("\"1/s\"", "{ cells = 0, ceiling = \"1d\" }"),
        wrong("cells must be a whole number from 1 to 4294967295, without quotes")
    );
    // The same for the limits of overrides.
    let text = "[policy.api]\nlimits = \"10/s\"\npenalty = { ceiling = \"1s\" }\n\
                [policy.api.overrides]\n\"192.0.2.1\" = \"1/m\"\n";
    let mistakes = parse(text).unwrap_err();
    assert!(
        mistakes.len() == 1 && mistakes[0].contains("'1 per minute, up to 1 at once'"),
        "{mistakes:?}"
    );
}

/// Each policy, and its mistake; none if it is right.
#[test]
fn what_max_delay_cannot_do_is_a_mistake() {
    let limits = "limits = \"10/s burst 5\"\nmax_delay";
    let longest =
        "'25d' is longer than HAProxy can hold a request; write up to 24d, such as \"2s\"";
    for (policy, mistake) in [
        (format!("{limits} = \"2s\""), ""),
        (format!("{limits} = \"1ms\""), ""),
        (format!("{limits} = \"24d\""), ""),
        (format!("{limits} = \"2000000us\""), ""),
        (format!("{limits} = \"25d\""), longest),
        (
            format!("{limits} = \"0s\""),
            "with max_delay = \"0s\" no request is delayed; leave it out, or write a time, such \
             as \"2s\"",
        ),
        (
            format!("{limits} = \"1500us\""),
            "'1500us' is not a whole number of milliseconds, in which HAProxy counts; write one, \
             such as \"1ms\" or \"2s\"",
        ),
        (format!("{limits} = 2"), "max_delay must be a string, such as \"2s\""),
        (
            format!("{limits} = \"2 seconds\""),
            "'2 seconds' is not a valid time; write a whole number and a unit (ms, s, m, h or d), \
             up to 24d, such as \"2s\"",
        ),
        (
            "limits = \"deny\"\nmax_delay = \"2s\"".to_owned(),
            "max_delay of policy 'api' has no effect, because the policy has no limit with a \
             rate; leave it out",
        ),
        (
            "limits = \"1/1000d\"\nmax_delay = \"2s\"\noverrides = { a = \"1/1459d\" }".to_owned(),
            "",
        ),
        (
            "limits = \"1/1460d\"\nmax_delay = \"2s\"".to_owned(),
            "max_delay of policy 'api' is too long for the limit '1 per 1460 days, up to 1 at \
             once': a debt of 1461 days is too large; at most 1460 days can be counted; lower \
             max_delay or the burst",
        ),
        (
            "limits = \"1/s\"\nmax_delay = \"2s\"\noverrides = { a = \"1/d burst 1460\" }"
                .to_owned(),
            "max_delay of policy 'api' is too long for the limit '1 per day, up to 1460 at once' \
             of its overrides: a debt of 1461 days is too large; at most 1460 days can be \
             counted; lower max_delay or the burst",
        ),
        (
            "limits = \"1/s\"\nmax_delay = \"2s\"\nobserve = \"1/1460d\"".to_owned(),
            "max_delay of policy 'api' is too long for the limit '1 per 1460 days, up to 1 at \
             once' of its observe: a debt of 1461 days is too large; at most 1460 days can be \
             counted; lower max_delay or the burst",
        ),
        ("limits = \"unlimited\"\nmax_delay = \"2s\"\nobserve = \"1/s\"".to_owned(), ""),
        (
            "limits = \"1/s\"\nshared = true\nmax_delay = \"2s\"\n[store]\nurl = \"redis://a\""
                .to_owned(),
            "policy 'api' is shared and has max_delay, so no machine can have a share of its \
             limits while the store is away; write without_store = \"closed\" to block requests \
             then, or \"open\" to allow them for a time",
        ),
        (
            format!(
                "{limits} = \"2s\"\nshared = true\nwithout_store = \"open\"\n[store]\nurl = \
                 \"redis://a\""
            ),
            "",
        ),
    ] {
        let expected = match mistake {
            "" => Ok(()),
            mistake => Err(vec![format!("gcra-spoa.toml:3: {mistake}")]),
        };
        assert_eq!(parse(&api(&policy)).map(|_| ()), expected, "{policy}");
    }
}

/// HAProxy must be told how long a request has to wait, so that is answered without being named.
#[test]
fn what_can_be_delayed_is_answered_with_its_delay() {
    let names = |text: &str| {
        let answers = good(text).answers.others;
        answers.iter().map(|var| var.name().as_str().to_owned()).collect::<Vec<_>>()
    };
    let delaying = api("limits = \"1/s\"\nmax_delay = \"2s\"");
    let plain = api("limits = \"1/s\"");
    assert_eq!(names(&delaying), ["delay_ms"]);
    assert_eq!(names(&format!("answer = [\"policy\"]\n{delaying}")), ["delay_ms", "policy"]);
    assert_eq!(names(&format!("answer = [\"delay_ms\"]\n{delaying}")), ["delay_ms"]);
    assert_eq!(names(&plain), [""; 0]);
    assert_eq!(
        parse(&format!("answer = [\"delay_ms\"]\n{plain}")).unwrap_err(),
        ["gcra-spoa.toml:1: answer names 'delay_ms', and no policy has max_delay; write \
             max_delay in a policy, or leave delay_ms out"]
    );
    // Each request needs a variable of its own.
    for (scope, is_right) in
        [("proc", false), ("sess", false), ("txn", true), ("req", true), ("res", true)]
    {
        let mistake = format!(
            "gcra-spoa.toml:1: with scope = \"{scope}\" requests share one delay_ms, so that one \
             could wait for the delay of another; for max_delay write scope = \"txn\""
        );
        let said = parse(&format!("scope = \"{scope}\"\n{delaying}")).map(|_| ());
        assert_eq!(said, if is_right { Ok(()) } else { Err(vec![mistake]) });
        good(&format!("scope = \"{scope}\"\n{plain}"));
    }
    // The overrides and the trial have it, too.
    let text = format!("{delaying}observe = \"2/s\"\noverrides = {{ a = \"3/s\" }}\n");
    let delays: Vec<_> = good(&text)
        .list
        .iter()
        .flat_map(|policy| {
            policy.limits().map(|limit| limit.quota.max_delay().millis_ceil()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(delays, [2_000; 3]);
    assert!(good(&text).in_words().contains(
        "\n    a request over the limit is delayed if it has to wait for at most 2s, else \
         blocked\n    HAProxy must hold what is delayed: this needs HAProxy 3.2 or later, and its \
         rule 'pause'\n"
    ));
    let observing = good(&format!("{delaying}mode = \"observe\"\n")).in_words();
    assert!(!observing.contains("HAProxy must hold"), "{observing}");
    let printed = good(&delaying).for_haproxy();
    let [deny, held] = ["http-request deny", "http-request pause"].map(|rule| printed.find(rule));
    assert!(deny.is_some() && deny < held, "what is denied does not wait first: {printed}");
    assert!(printed.contains(" delay_ms=%[var(txn.gcra.delay_ms)] err="), "{printed}");
    let pause = "\n    http-request pause var(txn.gcra.delay_ms) if { var(txn.gcra.delay_ms) -m \
                 int gt 0 }\n";
    assert!(printed.contains(pause), "{printed}");
    assert!(!good(&plain).for_haproxy().contains("pause"));
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
fn what_haproxy_has_to_be_told_names_everything() {
    let text = good(
        r#"answer = ["retry_after", "ratelimit", "ratelimit_policy"]
[policy.gold]
message = "api"
when = { plan = "gold" }
limits = "10/s"
key = ["ip"]
[policy.api]
limits = "1/s"
key = ["ip", "path"]
cost = "n"
[policy.login]
limits = "5/m"
"#,
    )
    .for_haproxy();
    for line in [
        "    messages api login",
        "    # plan: create /etc/haproxy/plans.map, with a line for each address ('ADDRESS \
         gold'); the others are 'api'",
        "    # n: int(1) charges each request one cell",
        "    args ip=src path=path plan=src,map_ip(/etc/haproxy/plans.map,api) n=int(1)",
        "    event on-frontend-http-request if EDIT-THIS",
        "leave out the condition, from 'if' on.",
        "    args ip=src\n",
        "http-after-response set-header RateLimit %[var(txn.gcra.ratelimit)]",
        "hdr Retry-After \"%[var(txn.gcra.retry_after)]\" if { var(txn.gcra.blocked) -m bool }",
        "    # To see them in the log, add these to 'answer' in the agents' file: \"policy\", \
         \"reason\"",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    // The log line is that of the shipped files.
    let printed = text.lines().find(|line| line.starts_with("    log-format")).unwrap();
    let shipped = include_str!("../../../../haproxy/policies.cfg");
    assert!(shipped.lines().any(|line| line == printed), "{printed}");
    // In other scopes there is only what HAProxy can have.
    let in_scope = |scope: &str| {
        good(&format!(
            "scope = \"{scope}\"\nanswer = [\"ratelimit\"]\n[policy.a]\nlimits = \"1/s\"\n"
        ))
        .for_haproxy()
    };
    let text = in_scope("res");
    for line in ["event on-http-response\n", "http-response deny", "var(res.gcra.ratelimit)"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let text = in_scope("sess");
    for line in [
        "    # rule of haproxy/tcp.cfg.\n    event on-frontend-http-request\n",
        "sess.gcra.blocked",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let text = in_scope("req");
    assert!(!text.contains("http-after-response") && !text.contains("log-format"), "{text}");
}

#[test]
fn a_bandwidth_that_cannot_work_is_a_mistake() {
    let answer = "answer = [\"bandwidth\"]\n";
    let with =
        |settings: &str| parse(&format!("{answer}[policy.api]\nlimits = \"10/s\"\n{settings}\n"));
    let policies = with("bandwidth = { full = \"10m\", least = \"512\" }").unwrap();
    assert!(policies.warnings.is_empty(), "{:?}", policies.warnings);
    let fact = "\n    each response gets 10m bytes per second, down to 512 as the burst is used\n";
    assert!(policies.in_words().contains(fact), "{}", policies.in_words());
    for (settings, said) in [
        ("", "1: answer names 'bandwidth', but no policy has it; write bandwidth = { full = "),
        ("bandwidth = \"10m\"", "4: bandwidth must be a table; write bandwidth = { full = "),
        ("bandwidth = { full = \"10m\" }", "4: bandwidth has no least; write bandwidth = { full"),
        ("bandwidth = { least = \"10m\" }", "4: bandwidth has no full; write bandwidth = { full"),
        (
            "bandwidth = { full = \"10k\", least = \"1m\" }",
            "4: least is more than full in bandwidth; write a least of at most \"10k\"",
        ),
        (
            "bandwidth = { full = \"1m\", least = \"0\" }",
            "4: '0' in least is not a number of bytes per second from 1 to 1g; write a whole",
        ),
        (
            "bandwidth = { full = \"10MB/s\", least = \"1\" }",
            "4: '10MB/s' in full is not a number",
        ),
        ("bandwidth = { full = 10, least = \"1\" }", "4: full must be a string, such as \"10m\""),
        (
            "bandwidth = { fall = \"10m\", full = \"10m\", least = \"1\" }",
            "4: 'fall' is not a setting of bandwidth; did you mean 'full'?",
        ),
    ] {
        let mistakes = with(settings).unwrap_err();
        let expected = format!("gcra-spoa.toml:{said}");
        assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:?}");
    }
    let mistakes =
        with("full = \"10m\"\nbandwidth = { full = \"1m\", least = \"1\" }").unwrap_err();
    assert!(
        mistakes[0].contains("'full' belongs to a bandwidth; write bandwidth"),
        "{mistakes:?}"
    );
    let setting = "bandwidth = { full = \"1m\", least = \"1\" }\n";
    let mistakes =
        parse(&format!("{answer}[policy.a]\nlimits = \"deny\"\n{setting}")).unwrap_err();
    assert!(mistakes[0].contains("4: the bandwidth of policy 'a' is never used"), "{mistakes:?}");
    // An override may have the limits.
    let overridden = "[policy.a.overrides]\n\"192.0.2.1\" = \"1/s\"\n";
    good(&format!("{answer}[policy.a]\nlimits = \"unlimited\"\n{setting}{overridden}"));

    // With a burst of 1 there is nothing between full and least, unless a request costs nothing.
    let small = |more: &str| warnings(&format!("{answer}[policy.a]\n{setting}{more}"));
    let one = "limits = [\"1/s\", \"9/m\"]\n";
    assert_eq!(
        small(one),
        ["3: warning: each allowed request of policy 'a' gets the least bandwidth, because one \
          request uses up a burst of 1; write a larger burst"]
    );
    assert_eq!(small("limits = \"2/s\"\n"), [""; 0]);
    assert_eq!(small(&format!("{one}cost = \"n\"\n")), [""; 0]);
    assert_eq!(small(&format!("{one}overrides = {{ a = \"5/s\" }}\n")), [""; 0]);
    let text = format!("{answer}[policy.a]\nlimits = \"1/s\"\n");
    for (full, fact) in [("1", "each response gets 1 byte per second\n"), ("2", "2 bytes per ")] {
        let text = format!("{text}bandwidth = {{ full = \"{full}\", least = \"1\" }}\n");
        assert!(good(&text).in_words().contains(fact), "{fact}");
    }
    let printed = good(&format!("{text}{setting}")).for_haproxy();
    assert!(printed.contains(" bandwidth=%[var(txn.gcra.bandwidth)] err="), "{printed}");

    let said = warnings(&format!("[policy.a]\nlimits = \"2/s\"\n{setting}"));
    assert!(
        said.len() == 1 && said[0].starts_with("3: warning: this bandwidth slows no response, "),
        "{said:?}"
    );
    let said =
        warnings(&format!("{answer}[policy.a]\nlimits = \"2/s\"\nmode = \"observe\"\n{setting}"));
    assert!(
        said.len() == 1 && said[0].contains("the bandwidth of policy 'a' slows no response as"),
        "{said:?}"
    );
}

#[test]
fn header_fields_that_do_not_fit_are_a_mistake() {
    let config = |name: &str, answer: &str| {
        let limits = r#"limits = ["1/s", "2/m", "3/h", "4/d"]"#;
        parse(&format!(
            "answer = [{answer}]\n[policy.{name}]\n{limits}\n[policy.other]\nlimits = \"1/s\"\n"
        ))
    };
    assert!(config("api", "\"ratelimit\", \"ratelimit_policy\"").is_ok());
    let long = "a".repeat(64);
    let mistakes = config(&long, "\"ratelimit\", \"ratelimit_policy\"").unwrap_err();
    assert!(
        mistakes[0].contains(
            "an answer may have 1692 bytes, and at most 815 are certain to fit into \
                              HAProxy's buffers; use shorter names"
        ),
        "{mistakes:?}"
    );
    assert!(config(&long, "\"retry_after\"").is_ok());
}

/// The mistakes of a file with `count` wrong overrides, and the CPU time that this thread spent on
/// them, in nanoseconds.
fn with_mistakes(count: usize) -> (Vec<String>, u128) {
    use rustix::time::{ClockId, clock_gettime};
    let spent = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        u128::from(time.tv_sec.unsigned_abs()) * 1_000_000_000
            + u128::from(time.tv_nsec.unsigned_abs())
    };
    let overrides: String =
        (0..count).map(|number| format!("k{number} = \"5/fortnight\"\n")).collect();
    let text = format!("[policy.api]\nlimits = \"5/s\"\n[policy.api.overrides]\n{overrides}");
    let before = spent();
    let mistakes = parse(&text).unwrap_err();
    (mistakes, spent() - before)
}

#[test]
fn a_hundred_mistakes_are_reported_and_the_number_of_the_others() {
    let (mistakes, _) = with_mistakes(5_000);
    assert_eq!(mistakes.len(), 101);
    for (mistake, line) in mistakes[..100].iter().zip(4..) {
        assert!(
            mistake.starts_with(&format!("gcra-spoa.toml:{line}: '5/fortnight'")),
            "{mistake}"
        );
    }
    assert_eq!(mistakes[100], "gcra-spoa.toml: and 4900 more mistakes");
    assert_eq!(with_mistakes(100).0.len(), 100);
}

/// Reading takes time in proportion to the mistakes: eight times as many take eight times as long,
/// and would take 64 times as long if each were compared with those before it. The least of three
/// counts, because a cache may be cold.
#[test]
fn the_time_grows_in_proportion_to_the_mistakes() {
    let least = |count| (0..3).map(|_| with_mistakes(count).1).min().unwrap();
    let (few, many) = (least(2_000), least(16_000));
    assert!(many < 24 * few, "{few} ns for 2000 mistakes, {many} ns for 16 000");
}

#[test]
fn each_policy_that_never_applies_is_reported_once() {
    let hidden: String = (1..2_000)
        .map(|number| format!("[policy.p{number}]\nmessage = \"a\"\nlimits = \"1/s\"\n"))
        .collect();
    let mistakes =
        parse(&format!("[policy.p0]\nmessage = \"a\"\nlimits = \"1/s\"\n{hidden}")).unwrap_err();
    assert_eq!(mistakes.len(), 101);
    assert!(
        mistakes[0].starts_with(
            "gcra-spoa.toml:4: policy 'p1' never applies, because policy 'p0' above it"
        ),
        "{}",
        mistakes[0]
    );
    assert_eq!(mistakes[100], "gcra-spoa.toml: and 1899 more mistakes");
}

#[test]
fn what_would_do_nothing_is_a_mistake() {
    for (policy, mistake) in [
        (
            "limits = \"unlimited\"\npenalty = { ceiling = \"1m\" }",
            "3: the penalty of policy 'a' is never charged",
        ),
        (
            "limits = \"deny\"\npenalty = { ceiling = \"1m\" }",
            "3: the penalty of policy 'a' is never charged",
        ),
        ("limits = \"1/s\"\nwhen = { plan = [] }", "3: when must name one arg and its values"),
        (
            "limits = \"1/s\"\ncost = \"\"",
            "3: cost is empty; write the name of an arg, or leave it out",
        ),
        (
            "limits = \"1/s\"\nmessage = \"\"",
            "3: message is empty; write the name of a spoe-message",
        ),
        ("limits = \"1/s\"\nkey = [\"ip\", \"ip\"]", "3: key names 'ip' twice; once is enough"),
        (
            "limits = \"1/s\"\nkey = []",
            "3: key is empty; leave it out if all args make the key, or write the names of args, \
             such as [\"ip\"]",
        ),
        (
            "limits = \"1/s\"\nwhen = { plan = [\"x\", \"x\"] }",
            "3: when names 'x' twice; once is enough",
        ),
        (
            "limits = \"1/s\"\nmessage = \"a b\"",
            "3: 'a b' is not the name of a spoe-message, because HAProxy allows no ' ' in it; use \
             letters, digits, '-', '_', '.' and ':'",
        ),
    ] {
        let mistakes = parse(&format!("[policy.a]\n{policy}\n")).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(mistake), "{policy}: {mistakes:?}");
    }
    good(
        "[policy.a]\nlimits = \"unlimited\"\npenalty = { ceiling = \"1m\" }\n\
         [policy.a.overrides]\n\"10.0.0.1\" = \"1/s\"\n",
    );
}

/// A map tells API keys apart if there are any.
#[test]
fn a_plan_belongs_to_an_api_key() {
    let text = good(
        "[policy.gold]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\nlimits = \"9/s\"\n\
         key = [\"ip\", \"key\"]\n[policy.free]\nmessage = \"m\"\nlimits = \"1/s\"\n",
    )
    .for_haproxy();
    for line in [
        "    # plan: create /etc/haproxy/plans.map, with a line for each key ('KEY gold'); the \
         others are 'free'\n",
        "    # key: a request without this header gets no decision, unless the policy has an \
         'else' in its key\n",
        "    # policy 'free' has no 'key', so all args are its key but those of its 'when' \
         and 'cost'\n",
        "    args ip=src key=req.fhdr(x-api-key) plan=req.fhdr(x-api-key),map(/etc/haproxy/plans.\
         map,free)\n    event on-frontend-http-request\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// A file whose policy has these settings, from line 2 on.
fn api(settings: &str) -> String {
    format!("[policy.api]\n{settings}\n")
}

#[test]
fn what_is_probably_not_meant_gets_a_warning() {
    for (text, warning) in [
        (
            api("limits = [\"10/s\", \"20/s burst 30\"]"),
            "2: warning: the limit '20 per second, up to 30 at once' never matters, because '10 \
             per second, up to 10 at once' allows no more at once and no more in the long run; \
             leave it out",
        ),
        (
            // The second of two equal limits.
            api("limits = [\n\"10/s\",\n\"10/s\"]"),
            "4: warning: the limit '10 per second, up to 10 at once' never matters, ",
        ),
        (
            api("limits = [\n\"10/s burst 30\",\n\"5/s burst 30\"]"),
            "3: warning: the limit '10 per second, up to 30 at once' never matters, because '5 ",
        ),
        (
            api("limits = \"1/s\"\nipv6_prefix = 0"),
            "3: warning: with ipv6_prefix = 0 all IPv6 addresses share one bucket; write up to \
             128",
        ),
        (
            api("limits = \"1/s\"\nwhen = { plan = \"gold\" }\nkey = [\"plan\"]"),
            "3: warning: the key of policy 'api' has only the arg 'plan', so all requests with \
             the same plan share one bucket; add the arg that tells clients apart, such as \"ip\"",
        ),
        (
            api("limits = \"1/s\"\n[policy.api.overrides]\n\"10.0.0.1\" = \"deny\"\n\
                 \"10.0.0.2\" = \"deny\"\noffice = \"deny\""),
            "6: warning: 'office' is a text among addresses, so no address will ever match it; \
             write an address, or str: in front of it if it is meant",
        ),
        (
            "[policy.a]\nmessage = \"m\"\nwhen = { plan = [\"x\", \"y\"] }\nlimits = \"1/s\"\n\
             [policy.b]\nmessage = \"m\"\nwhen = { plan = [\"y\", \"z\"] }\nlimits = \"1/s\"\n"
                .to_owned(),
            "5: warning: policy 'b' never gets the value 'y' of 'plan', because policy 'a' above \
             it has it, for the same message; leave it out of one of the two",
        ),
    ] {
        let found = warnings(&text);
        assert!(found.len() == 1 && found[0].starts_with(warning), "{text}: {found:#?}");
    }
}

#[test]
fn what_may_be_meant_gets_no_warning() {
    for text in [
        api("limits = [\"10/s\", \"100/m\"]"),
        api("limits = [\"10/s burst 30\", \"11/s burst 29\"]"),
        api("limits = \"1/s\"\nwhen = { plan = \"gold\" }\nkey = [\"plan\", \"ip\"]"),
        // One arg is an address and the other one a text.
        api("limits = \"1/s\"\nkey = [\"ip\", \"path\"]\n[policy.api.overrides]\n\
             \"10.0.0.1\" = \"deny\"\n\"10.0.0.2\" = \"deny\"\n\"/a\" = \"deny\""),
        api("limits = \"1/s\"\n[policy.api.overrides]\n\"10.0.0.1\" = \"deny\"\n\
             \"10.0.0.2\" = \"deny\"\n\"str:office\" = \"deny\""),
        api("limits = \"1/s\"\n[policy.api.overrides]\noffice = \"deny\"\nhome = \"deny\""),
    ] {
        assert_eq!(warnings(&text), [""; 0], "{text}");
    }
}

#[test]
fn a_warning_about_a_list_names_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("list.txt");
    let file = directory.path().join("gcra-spoa.toml");
    let warnings = |lines: &str| {
        std::fs::write(&list, lines).unwrap();
        let text = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                    limits = \"deny\"\n";
        document::parse(&file, text).map(|policies| policies.warnings)
    };
    let at = |line: u8| {
        format!("{}:3: warning: the list {}, line {line}: ", file.display(), list.display())
    };
    let found = warnings("# ours\n10.0.0.1\n10.0.0.2 # two\noffice\nstr:home\nlab#1\n").unwrap();
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(
        found[1],
        at(4)
            + "'office' is a text among addresses, so no address will ever match it; write an \
               address, or str: in front of it if it is meant"
    );
    assert_eq!(
        found[0],
        at(6)
            + "the # is part of the value 'lab#1', because a comment begins after white space; \
               write white space before the #, or str:lab#1 if it is meant"
    );
    let found = warnings("\"alice\"\n").unwrap();
    assert_eq!(
        found,
        [at(1)
            + "the quotes are part of the value \"alice\", because a list needs none; write \
               alice, or str:\"alice\" if they are meant"]
    );
    let found = warnings("str:\"alice\"\nbob\t# a friend\nal#ice\n").unwrap();
    assert!(found.len() == 1 && found[0].starts_with(&at(3)), "{found:#?}");
    let mistakes = warnings("10.0.0.1#one\n").unwrap_err();
    assert!(mistakes[0].contains("write white space before the comment"), "{mistakes:#?}");
    // Of many there are only the first, and behind them the number of the others.
    let many: String = (0..50).map(|number| format!("\"a{number}\"\n")).collect();
    let found = warnings(&many).unwrap();
    assert_eq!(found.len(), 11);
    for (warning, number) in found.iter().zip(1..=10) {
        assert!(warning.starts_with(&at(number)), "{found:#?}");
    }
    assert!(found[10].contains("has 40 more entries with quotes"), "{found:#?}");
}

#[test]
fn warnings_are_counted_although_not_all_are_lines() {
    let policies: String = (0..150)
        .map(|number| format!("[policy.p{number}]\nlimits = [\"10/s\", \"20/s burst 30\"]\n"))
        .collect();
    let policies = good(&policies);
    assert_eq!((policies.warnings.len(), policies.warning_count), (101, 150));
    assert_eq!(policies.warnings[100], "gcra-spoa.toml: and 50 more warnings");

    let directory = tempfile::tempdir().unwrap();
    let many: String = (0..50).map(|number| format!("\"a{number}\"\n")).collect();
    std::fs::write(directory.path().join("list.txt"), many).unwrap();
    let text = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                limits = \"deny\"\n";
    let policies = document::parse(&directory.path().join("gcra-spoa.toml"), text).unwrap();
    assert_eq!((policies.warnings.len(), policies.warning_count), (11, 50));
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
        let all = good(&api(&format!("limits = \"1/s\"\n{settings}"))).in_words();
        assert!(all.lines().any(|line| line.trim() == words), "{settings}: {all}");
    }
}

#[test]
fn a_retry_after_is_printed_only_if_the_agent_says_it() {
    let printed =
        |answer: &str| good(&format!("{answer}\n{}", api("limits = \"1/h\""))).for_haproxy();
    let without = printed("");
    assert!(!without.contains("hdr Retry-After"), "{without}");
    let comment = "    # For a Retry-After header, add \"retry_after\" to 'answer' in the agents' \
                   file, and\n    # print this again.\n    http-request deny status 429 ";
    assert!(without.contains(comment), "{without}");
    let with = printed("answer = [\"retry_after\"]");
    assert!(with.contains("hdr Retry-After \"%[var(txn.gcra.retry_after)]\" if {"), "{with}");
    assert!(!with.contains("For a Retry-After header"), "{with}");
}

/// Files in haproxy/ cut addresses to their /64, so that the agent never sees these.
#[test]
fn an_override_for_less_than_a_64_gets_a_warning() {
    let of = |settings: &str| {
        warnings(&api(&format!(
            "limits = \"1/s\"\n{settings}[policy.api.overrides]\n\
            \"2001:db8::/64\" = \"deny\"\n\"192.0.2.1\" = \"deny\"\n\
            \"::ffff:192.0.2.2\" = \"deny\"\n\"2001:db8:0:1::1\" = \"deny\"\n\
            \"2001:db8:0:2::/80\" = \"deny\"\n"
        )))
    };
    let found = of("key = [\"ip\"]\n");
    assert_eq!(
        found,
        ["8: warning: the override '2001:db8:0:1::1' and 1 more override of policy 'api' are \
             for less than a /64; they apply only if HAProxy sends whole addresses (args ip=src), \
             and never with ip=src,ipmask(32,64), as in some files of haproxy/",]
    );
    assert_eq!(of("ipv6_prefix = 128\n"), [""; 0]);
    assert_eq!(of("ipv6_prefix = 56\n").len(), 1);
}

#[test]
fn an_override_that_is_there_twice_is_named_with_both_lines() {
    let mistakes = parse(
        "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n\"10.0.0.9\" = \"deny\"\n\
         \"10.0.0.1/32\" = \"deny\"\n\n\"10.0.0.1\" = \"unlimited\"\n",
    )
    .unwrap_err();
    assert_eq!(
        mistakes,
        ["gcra-spoa.toml:7: '10.0.0.1' is the same as '10.0.0.1/32' in line 5; leave one of the \
          two out"]
    );
}

#[test]
fn a_file_in_another_language_is_recognized() {
    for (text, said) in [
        (
            "{\"policy\": {\"a\": {\"limits\": \"1/s\"}}}\n",
            "1: this is JSON, and the file must be TOML; ",
        ),
        ("\n{\n  \"policy\": {}\n}\n", "2: this is JSON, and the file must be TOML; "),
        (
            "# Mine.\nglobal\n    log stdout\nfrontend web\n",
            "2: this is a HAProxy configuration; name the agents' file, such as /etc/",
        ),
        ("[gcra]\nspoe-agent gcra\n", "2: this is a HAProxy configuration; name the agents' "),
        ("---\npolicy:\n  a:\n    limits: 1/s\n", "1: this is YAML, and the file must be TOML; "),
        ("<policy/>\n", "1: this is XML, and the file must be TOML; "),
    ] {
        let mistakes = parse(text).unwrap_err();
        let expected = format!("gcra-spoa.toml:{said}");
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(&expected),
            "{text}: {mistakes:#?}"
        );
    }
}

#[test]
fn a_policy_whose_values_are_all_taken_is_a_mistake() {
    let policy = |name: &str, values: &str| {
        let when = format!("when = {{ plan = [{values}] }}");
        format!("[policy.{name}]\nmessage = \"m\"\n{when}\nlimits = \"1/s\"\n")
    };
    let text = [policy("a", "'x'"), policy("b", "'y'"), policy("c", "'y', 'x'")].concat();
    assert_eq!(
        parse(&text).unwrap_err(),
        ["gcra-spoa.toml:9: policy 'c' never applies, because policies 'b' and 'a' above it \
          have all values of its 'when', for the same message; leave the policy or those values \
          out"]
    );
    // Another arg can have another value.
    let other = text.replace("plan = ['y', 'x']", "tier = ['y', 'x']");
    assert_eq!(good(&other).list.len(), 3);
}

/// What people write who know other programs, or are in a hurry.
#[test]
fn each_wrong_setting_gets_one_clear_sentence() {
    let mistakes = |text: &str| parse(text).unwrap_err();
    for (settings, sentence) in [
        ("limits = 10", "2: limits must be a limit, such as \"10/s burst 20\", a list"),
        ("limits = \"block\"", "2: 'block' is not a limit; write one, such as \"10/s burst 20\""),
        ("limits = \"10/s, 9/h\"", "2: '10/s, 9/h' is not one limit; write a list with a string"),
        ("limits = \"9 per hour\"", "2: '9 per hour' is not a valid limit; write \"9/hour\""),
        (
            "limits = \"10/s burst=9\"",
            "2: '10/s burst=9' is not a valid limit; write \"10/s burst 9\"",
        ),
        (
            "limits = \"3/m, burst 20\"",
            "2: '3/m, burst 20' is not a valid limit; write \"3/m burst 20\"",
        ),
        ("limits = \"10 r/s\"", "2: '10 r/s' is not a valid limit; write \"10/s\""),
        (
            "limits = \"10/s burst -1\"",
            "2: '10/s burst -1' is not a valid limit; a burst is a whole number from 1 to \
             4294967294",
        ),
        ("limits = \"10/s burst 0\"", "2: a burst of 0 allows nothing; the smallest is 1"),
        (
            "limits = { count = 5 }",
            "2: the limit has a count and no window; write window = \"day Europe/Berlin\"",
        ),
        (
            "limits = { window = \"day\" }",
            "2: the limit has a window and no count; write count = 10000",
        ),
        (
            "limits = { count = 5, window = \"day\", burst = 9 }",
            "2: a limit has a count in a window or a rate, not both; leave burst out, or write it",
        ),
        (
            "limits = { count = 5, window = \"day\", rate = \"9/s\" }",
            "2: a limit has a count in a window or a rate, not both; leave rate out, or write it",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/s\", most = \"2/s\", count = 9 }",
            "2: a limit whose numbers are in an arg has no count of its own; leave it out, and",
        ),
        (
            "limits = { count = 0, window = \"day\" }",
            "2: count must be a whole number from 1 to 4000000000, without quotes",
        ),
        (
            "limits = { count = 4_000_000_001, window = \"day\" }",
            "2: count must be a whole number from 1 to 4000000000, without quotes",
        ),
        (
            "limits = { count = 5, window = \"days Europe/Berlin\" }",
            "2: 'days' is not a unit of windows; did you mean \"day Europe/Berlin\"?",
        ),
        (
            "limits = { count = 5, window = \"day Berlin\" }",
            "2: 'Berlin' is not a time zone; did you mean \"day Europe/Berlin\"?",
        ),
        (
            "limits = { count = 5, window = 7 }",
            "2: window must be a string, such as \"day Europe/Berlin\"",
        ),
        (
            "limits = { name = \"a\" }",
            "2: the limit has no rate; write rate = \"10/s\", or count = 10000 and window = \"day",
        ),
        (
            "limits = { count = 5, window = \"day\" }\nmax_delay = \"1s\"",
            "3: max_delay of policy 'api' has no effect, because the policy has no limit with a",
        ),
        (
            "key = [\"ip\"]\nlimits = { rate = \"1/s\", key = [] }\n\
             penalty = { ceiling = \"1m\" }",
            "4: the penalty of policy 'api' is never charged, because each of its limits has",
        ),
        (
            "limits = { arg = \"plan\", default = \"1/h\", most = \"9/s\" }\n\
             penalty = { ceiling = \"1m\" }\nkey = [\"ip\"]",
            "3: the penalty of policy 'api' is never charged to the limit '1 per hour, up to 1 at \
             once (the default)': its 1 cell takes 1h to pay off, more than the ceiling; write",
        ),
        (
            "limits = { count = 5, window = \"day\" }\npenalty = { ceiling = \"1m\" }",
            "3: the penalty of policy 'api' is never charged, because the policy has no limit",
        ),
        (
            "limits = { rate = \"3/m burst 5\" }",
            "2: '3/m burst 5' is not a rate; write rate = \"3/m\", burst = 5",
        ),
        (
            "limits = { rate = \"100 per minute\" }",
            "2: '100 per minute' is not a rate; write rate = \"100/minute\"",
        ),
        (
            "limits = \"1/s\"\npenalty = { ceiling = \"5 minutes\" }",
            "3: '5 minutes' is not a valid time; ",
        ),
        ("limits = \"10/week\"", "2: '10/week' is not a rate: the period must end in ms, s,"),
        ("limits = { rate = 10 }", "2: rate must be a string, such as \"10/s\""),
        ("limits = { burst = 1 }", "2: the limit has no rate; write rate = \"10/s\""),
        (
            "limits = \"1/s\"\nkey = \"ip\"",
            "3: key must be a list of strings; write key = [\"ip\"]",
        ),
        (
            "limits = \"1/s\"\nkey = [\"ip=src\"]",
            "3: 'ip=src' in key is an arg with its sample; write only its name, 'ip'",
        ),
        (
            "limits = \"1/s\"\ncost = \"$n\"",
            "3: '$n' in cost is not the name of an arg, because it has a '$'; write the name that",
        ),
        (
            "limits = \"1/s\"\nwhen = { plan = 7 }",
            "3: the values of 'plan' in when must be strings; write { plan = \"7\" }",
        ),
        (
            "limits = \"1/s\"\nwhen = { plan = [\"a\", 7, true] }",
            "3: the values of 'plan' in when must be strings; write { plan = [\"a\", \"7\", \
             \"true\"] }",
        ),
        ("limits = \"1/s\"\nburst = 5", "3: 'burst' belongs to a limit; write limits = \"10/s"),
        ("limits = \"1/s\"\nscope = \"txn\"", "3: 'scope' is for the whole file; write it above"),
        ("limits = \"1/s\"\nmode = \"shadow\"", "3: to block no request, and only count those"),
        ("limits = \"1/s\"\nipv6_prefix = /64", "3: '/64' is not a number; write 64"),
        ("limits = \"1/s\"; key = [\"ip\"]", "2: something stands behind the value; write one"),
    ] {
        let found = mistakes(&api(settings));
        let expected = format!("gcra-spoa.toml:{sentence}");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{settings}: {found:#?}");
    }
    // Outside of policies there is often no policy at all, which is said as well.
    for (text, sentence) in [
        (
            "[policy]\nlimits = \"1/s\"",
            "2: 'limits' belongs to a policy, which has a name; write [",
        ),
        (
            "limits = \"1/s\"",
            "1: 'limits' belongs to a policy; write it below a header such as [p",
        ),
        (
            "rate = \"1/s\"",
            "1: 'rate' belongs to a limit; write [policy.api], and below it limits",
        ),
        (
            "[api]\nlimits = \"1/s\"",
            "1: 'api' is not a setting of the file; for a policy write [p",
        ),
        (
            "listen = \"::1\"",
            "1: 'listen' is a setting of the agent's command line; write --listen",
        ),
    ] {
        let found = mistakes(text);
        let expected = format!("gcra-spoa.toml:{sentence}");
        assert!(found[0].starts_with(&expected) && found.len() <= 2, "{text}: {found:#?}");
    }
}

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

/// Each of these files was written by someone once. One of their mistakes says what to write, and
/// none has a word that only a programmer knows.
#[test]
fn each_wrong_file_says_what_to_write() {
    let one = |settings: &str| format!("[policy.api]\nlimits = \"1/s\"\n{settings}\n");
    for (text, sentence) in [
        // Values of another type.
        (one("mode = null"), "3: TOML has no 'null'; leave the line out for the default"),
        (one("key = None"), "3: TOML has no 'None'; leave the line out for the default"),
        (one("key = \"ip\""), "3: key must be a list of strings; write key = [\"ip\"]"),
        (
            one("key = [\"ip\", 7]"),
            "3: key must be a list of strings; write key = [\"ip\", \"7\"]",
        ),
        (one("cost = 5"), "3: cost must be a string, the name of an arg"),
        (one("lowercase = \"true\""), "3: lowercase must be true or false, without quotes"),
        (
            one("ipv4_prefix = \"24\""),
            "3: ipv4_prefix must be a whole number from 0 to 32, without",
        ),
        (
            one("overrides = [\"10.0.0.1\"]"),
            "3: overrides must be a table; write [policy.api.overri",
        ),
        (
            one("overrides = { \"10.0.0.1\" = 5 }"),
            "3: the override '10.0.0.1' must be a limit, such",
        ),
        (
            one("overrides = { \"10.0.0.1\" = [] }"),
            "3: the override '10.0.0.1' is empty; write \"unl",
        ),
        (one("penalty = { ceiling = 10 }"), "3: ceiling must be a string, such as \"10m\""),
        (
            one("when = { \"\" = \"x\" }"),
            "3: when names no arg; write the name of an arg of the messa",
        ),
        (
            one("lists = [{ file = \"\", limits = \"deny\" }]"),
            "3: file is empty; write the path of",
        ),
        (
            one("lists = [{ file = \"no.txt\", limits = \"deny\" }]"),
            "3: cannot read the list no.txt: ",
        ),
        ("[policy.api]\nlimits = [\"\"]\n".to_owned(), "2: '' is not a limit; write one, such as"),
        (
            "[policy.api]\nlimits = [\"1/s\", \" \"]\n".to_owned(),
            "2: ' ' is not a limit; write one",
        ),
        (one("observe = [\"\"]"), "3: '' is not a limit; write one, such as"),
        (
            "[policy.api]\nlimits = { rate = \"deny\" }\n".to_owned(),
            "2: 'deny' must stand alone; write limits = \"deny\"",
        ),
        // Settings in another place.
        (
            one("listen = \"::1\""),
            "3: 'listen' is a setting of the agent's command line; write --listen",
        ),
        (
            one("ceiling = \"1m\""),
            "3: 'ceiling' belongs to a penalty; write penalty = { cells = 1, ceil",
        ),
        (one("file = \"x\""), "3: 'file' belongs to a list; write [[policy.api.lists]] above it"),
        (one("name = \"x\""), "3: a policy has its name in its header; leave 'name' out"),
        (
            one("[policy.api.overrides]\nmode = \"observe\""),
            "4: 'mode' below [policy.api.overrides] is an override for the value 'mode'; write it \
             above that header, or \"mode\" in quotes if the value is meant",
        ),
        (
            one("[[policy.api.lists]]\nmode = \"observe\""),
            "4: 'mode' below [[policy.api.lists]] is not a setting of a list; write it above that",
        ),
        (
            "[polcy.api]\nlimits = \"1/s\"\n".to_owned(),
            "1: 'polcy' is not a setting of the file; did",
        ),
        (
            "[Policy.api]\nlimits = \"1/s\"\n".to_owned(),
            "1: 'Policy' is not a setting of the file; d",
        ),
        (
            "[policy.api.v2]\nlimits = \"1/s\"\n".to_owned(),
            "1: the name of a policy has no dots; write [policy.api-v2]",
        ),
        (
            "[policy.api.penalties]\ncells = 1\n".to_owned(),
            "1: 'penalties' is not a setting of policy 'api'; did you mean 'penalty'?",
        ),
        (
            "[[policy.api]]\nlimits = \"1/s\"\n".to_owned(),
            "1: policy.api is a list; write [policy.api]",
        ),
        (
            "policy.api = \"1/s\"\n".to_owned(),
            "1: policy.api must be a table; write [policy.api], and",
        ),
        // Syntax.
        (
            "[policy.api!]\nlimits = \"1/s\"\n".to_owned(),
            "1: 'api!' in the header has a '!'; names have",
        ),
        (
            "[policy.caf\u{e9}]\nlimits = \"1/s\"\n".to_owned(),
            "1: 'caf\u{e9}' in the header has a '\u{e9}';",
        ),
        (
            "[policy.api]]\nlimits = \"1/s\"\n".to_owned(),
            "1: something stands behind the header; wr",
        ),
        (
            "[policy.api] limits = \"1/s\"\n".to_owned(),
            "1: something stands behind the header; write",
        ),
        (
            "policy.api]\nlimits = \"1/s\"\n".to_owned(),
            "1: the header has no opening [; write [policy.",
        ),
        (
            "[policy.api]\nlimits == \"1/s\"\n".to_owned(),
            "2: there is one = too many; write KEY = VA",
        ),
        ("[policy.api]\nlimits = [\"1/s\",,]\n".to_owned(), "2: there is one comma too many"),
        (one("ipv4_prefix = 1_"), "3: '1_' is not a number; write digits alone, such as 24"),
        (one("limits.rate = \"1/s\""), "3: 'limits' is defined twice; keep only one of the two"),
        (
            "[policy.api]\rlimits = \"1/s\"\r".to_owned(),
            "1: a line ends in a carriage return alone; s",
        ),
        (
            "[policy.api]\nlimits = 1/s burst=5\n".to_owned(),
            "2: '1/s burst=5' needs quotes; write \"1/s",
        ),
        (
            one("key\u{a0}= [\"ip\"]"),
            "3: there is an invisible character, U+00A0; write a space in its",
        ),
        (
            one("key = [\"ip\"]\u{200b}"),
            "3: there is an invisible character, U+200B; write a space i",
        ),
        (
            "<<<<<<< HEAD\n".to_owned() + &one(""),
            "1: this is a mark of a merge conflict; keep one of th",
        ),
        (
            one("=======\nmode = \"x\""),
            "3: this is a mark of a merge conflict; keep one of the two",
        ),
        (
            "{{ x }}\n".to_owned() + &one(""),
            "1: this is a template; fill it in before an agent reads",
        ),
        (
            "[policy.api]\nlimits = {{ x }}\n".to_owned(),
            "2: this is a template; fill it in before an",
        ),
        (String::new(), "1: there is no policy; write one, such as [policy.api] with limits"),
    ] {
        let mistakes = match parse(&text) {
            Ok(policies) => panic!("{text} is valid: {}", policies.in_words()),
            Err(mistakes) => mistakes,
        };
        let expected = format!("gcra-spoa.toml:{sentence}");
        assert!(
            mistakes.iter().any(|mistake| mistake.starts_with(&expected)),
            "{text}\n{expected}\n{mistakes:#?}"
        );
        for word in FOREIGN {
            assert!(mistakes.iter().all(|mistake| !mistake.contains(word)), "{mistakes:#?}");
        }
    }
}

/// A policy that is left out of the list without a mistake would limit nothing, and say nothing.
#[test]
fn no_policy_is_lost_without_a_mistake() {
    let values =
        ["7", "true", "[]", "{}", "\"\"", "\" \"", "[\"\"]", "[[]]", "{ rate = \"\" }", "nan"];
    for setting in
        ["message", "when", "limits", "observe", "key", "cost", "mode", "penalty", "max_delay"]
    {
        for value in values {
            let limits = if setting == "limits" { "" } else { "limits = \"1/s\"\n" };
            if let Ok(policies) = parse(&api(&format!("{limits}{setting} = {value}"))) {
                assert_eq!(policies.without_trials().count(), 1, "{setting} = {value}");
            }
        }
    }
}

#[test]
fn a_file_that_is_no_text_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gcra-spoa.toml");
    let list = directory.path().join("list.txt");
    let utf16 =
        |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let good = "[policy.api]\nlimits = \"1/s\"\n";
    for (bytes, said) in [
        (utf16(&format!("\u{feff}{good}")), "it is in UTF-16; save it as UTF-8"),
        (utf16(good), "it is in UTF-16; save it as UTF-8"),
        (
            b"\x7fELF\x02\x01\x01\0\0\0".to_vec(),
            "it is not a text, because line 1 has a zero byte",
        ),
        (format!("{good}# \u{e9}").replace('\u{e9}', "!").into_bytes(), ""),
        ([good.as_bytes(), b"# \xe9\n"].concat(), "line 3 is not UTF-8; save the file as UTF-8"),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        match document::read(&file, Readers::OfFile) {
            Ok(_) => assert_eq!(said, ""),
            Err(mistakes) => {
                let expected = format!("cannot read {}: {said}", file.display());
                assert!(!said.is_empty() && mistakes == [expected], "{mistakes:?}");
            }
        }
    }
    // What Windows adds to a text changes nothing, neither here nor in a list.
    let windows = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let text = format!("{good}[[policy.api.lists]]\nfile = \"list.txt\"\nlimits = \"deny\"\n");
    std::fs::write(&file, windows(&text)).unwrap();
    std::fs::write(&list, windows("10.0.0.1\nalice\n")).unwrap();
    let policies = document::read(&file, Readers::OfFile).unwrap();
    let policy = &policies.list[0];
    for value in [Value::Ipv4([10, 0, 0, 1].into()), "alice".into()] {
        assert!(policy.override_for(value).is_some(), "{value:?}");
    }
}

#[test]
fn a_policy_can_be_switched_to_observe_and_back() {
    let text = "\
[policy.api]
message = \"check\"
key = [\"ip\"]
limits = \"10/s burst 20\"
[policy.api.overrides]
\"192.0.2.0/24\" = \"1/s\"
[policy.trial]
message = \"trial\"
key = [\"ip\"]
limits = \"1/s\"
mode = \"observe\"
";
    let policies = document::parse(Path::new("f"), text).unwrap();
    let switched = policies.observing("api", true).unwrap().unwrap();
    assert!(switched.list[0].observes && !policies.list[0].observes);
    assert_eq!(switched.list[0].overrides, policies.list[0].overrides);
    assert_ne!(switched.limits_digest, policies.limits_digest, "other agents notice");
    assert_ne!(switched.text_digest, policies.text_digest, "a reload ends it");
    assert_eq!(switched.switched.iter().map(|name| &**name).collect::<Vec<_>>(), ["api"]);
    assert!(switched.observing("api", true).unwrap().is_none(), "it does already");
    let back = switched.observing("api", false).unwrap().unwrap();
    assert_eq!((back.limits_digest, back.switched.len()), (policies.limits_digest, 0));
    let said = policies.observing("nosuch", true).unwrap_err();
    assert_eq!(said, "there is no policy 'nosuch'; there are api, trial");
    assert!(policies.observing("trial", false).unwrap_err().contains("its file says so"));
}

#[test]
fn a_max_debt_shorter_than_a_cell_is_a_warning() {
    let text = |limits: &str, more: &str| {
        api(&format!("limits = {limits}\nkey = [\"ip\"]\nsettle = \"failed\"\n{more}"))
    };
    for (limits, more, warning) in [
        ("\"1/h\"", "", ""),
        ("\"7/h\"", "", ""),
        ("\"3/s burst 2\"", "max_debt = \"1s\"", ""),
        ("\"1/d\"", "max_debt = \"1d\"", ""),
        ("{ count = 3, window = \"day\" }", "", ""),
        (
            "[\"5/s\", \"1/d burst 6\"]",
            "max_debt = \"1h\"",
            "5: warning: in policy 'api', responses charge nothing beyond the burst of the limit \
             '1 per day, up to 6 at once', because one cell takes 1d to be paid off and max_debt \
             is 1h; write max_debt = \"1d\" or more",
        ),
        (
            "{ arg = \"plan\", default = \"7/d\", most = \"9/s\" }",
            "",
            "4: warning: in policy 'api', responses charge nothing beyond the burst of the limit \
             '7 per day, up to 7 at once (the default)', because one cell takes 12343s to be paid \
             off and max_debt is 1h; write max_debt = \"12343s\" or more",
        ),
        (
            "\"1/40d\"",
            "max_debt = \"30d\"",
            "5: warning: in policy 'api', responses charge nothing beyond the burst of the limit \
             '1 per 40 days, up to 1 at once', because one cell takes 40d to be paid off \
             and max_debt is 30d; raise the rate to a cell in 30d or less, and write max_debt = \
             \"30d\"",
        ),
    ] {
        let expected: &[&str] = if warning.is_empty() { &[] } else { &[warning] };
        assert_eq!(not_about_slots(&text(limits, more)), expected, "{limits}");
    }
}

#[test]
fn one_mistake_is_one_sentence() {
    let settled = |more: &str| api(&format!("{SETTLED}\n{more}"));
    for (text, mistake) in [
        (
            settled("reserve = \"\""),
            "5: reserve is empty; write a number of cells, or the name of an arg, or leave it out",
        ),
        (
            settled("settle_within = \"2d\""),
            "5: settle_within has no effect without reserve, because nothing is given back; \
             leave it out",
        ),
        (
            api("limits = \"3/m\"\nreserve = 1\nsettle_within = \"2d\"\nmax_debt = \"1y\""),
            "3: reserve, max_debt and settle_within have no effect without settle; write settle \
             = \"MESSAGE\", the spoe-message of the response, or leave them out",
        ),
        (
            api("limits = { arg = \"plan\", count = 0, window = \"2 day\" }"),
            "2: a limit whose numbers are in an arg has no count or window of its own; leave them \
             out, and write { arg = \"plan\", default = \"10/s burst 20\", most = \"1000/s burst \
             2000\" }",
        ),
        (
            api("limits = { arg = \"plan\" }"),
            "2: the limit has no 'default', a limit for messages without valid numbers; and no \
             'most', the highest limit that a message can ask for; write { arg = \"plan\", \
             default = \"10/s burst 20\", most = \"1000/s burst 2000\" }",
        ),
        (
            api("limits = { rate = \"1/s\", burst = 5, count = 3 }"),
            "2: a limit has a count in a window or a rate, not both; leave rate and burst out, or \
             write them as a limit of their own",
        ),
    ] {
        assert_eq!(parse(&text).unwrap_err(), [format!("gcra-spoa.toml:{mistake}")], "{text}");
    }
}

/// The start of a policy that is settled.
const SETTLED: &str = "limits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"failed\"";

#[test]
fn what_settle_cannot_do_is_a_mistake() {
    let with = |more: &str| api(&format!("{SETTLED}\n{more}"));
    for (text, mistake) in [
        (with(""), ""),
        (with("reserve = 3\nmax_debt = \"30d\"\nsettle_within = \"1s\""), ""),
        (with("reserve = \"estimate\"\ncost = \"tokens\"\nmode = \"observe\""), ""),
        (with("overrides = { \"192.0.2.1\" = \"unlimited\" }"), ""),
        (
            api("limits = \"3/m\"\nreserve = 1"),
            "3: reserve has no effect without settle; write settle = \"MESSAGE\", the \
             spoe-message of the response, or leave reserve out",
        ),
        (
            api("limits = \"3/m\"\nmax_debt = \"1h\""),
            "3: max_debt has no effect without settle; write settle = \"MESSAGE\", the \
             spoe-message of the response, or leave max_debt out",
        ),
        (
            with("settle_within = \"1h\""),
            "5: settle_within has no effect without reserve, because nothing is given back; \
             leave it out",
        ),
        (
            api("limits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"api\""),
            "4: settle and message of policy 'api' both name 'api'; give the response a \
             spoe-message of its own",
        ),
        (
            api("limits = \"3/m\"\nsettle = \"failed\""),
            "3: policy 'api' has settle and no key, and the messages of a request and of its \
             response have different args; write the names of those that tell clients apart, \
             such as key = [\"ip\"]",
        ),
        (
            api("limits = \"deny\"\nkey = [\"ip\"]\nsettle = \"failed\""),
            "4: settle of policy 'api' has no effect, because the policy has no limit; leave it \
             out",
        ),
        (
            with("reserve = 4"),
            "5: policy 'api' would block every request under the limit '3 per minute, up to 3 at \
             once', because reserve is more than its burst; write a reserve of at most 3",
        ),
        (with("reserve = \"2\""), "5: reserve is a number in quotes; write reserve = 2"),
        (
            with("reserve = \"ip\""),
            "5: key and reserve both name 'ip', so each number of cells would have a bucket of \
             its own; leave it out of key",
        ),
        (
            with("reserve = \"estimate\""),
            "5: without cost each response costs one cell, so the rest of what 'estimate' \
             reserves would always be given back; write the arg of the response that says what \
             the request has cost, such as cost = \"tokens\"",
        ),
        (
            with("reserve = -1"),
            "5: reserve must be a whole number from 0 to 4294967295, without quotes",
        ),
        (
            with("cost = \"reserved\""),
            "4: policy 'api' has settle, and then the arg 'reserved' is what the agent has \
             answered; give the other arg another name",
        ),
        (
            with("max_debt = \"31d\""),
            "5: '31d' in max_debt is not a time from 1s to 30d; write a whole number and a unit \
             (us, ms, s, m, h or d), such as \"1h\"",
        ),
        (
            with("max_delay = \"1s\""),
            "4: policy 'api' cannot have max_delay and settle, because a response could move the \
             place of requests that wait already; leave one of them out",
        ),
        (
            with("penalty = { cells = 1, ceiling = \"10m\" }"),
            "4: policy 'api' cannot have penalty and settle, because both let a client owe more \
             than its burst, by rules of their own; leave one of them out",
        ),
        (
            with("observe = \"1/m\""),
            "4: policy 'api' cannot have observe and settle, because what a trial has reserved \
             is not sent back by the response; leave one of them out",
        ),
        (
            with("shared = true\n[store]\nurl = \"redis://a\""),
            "5: policy 'api' is shared and has settle, so no machine can have a share of \
             its limits while the store is away; write without_store = \"closed\" to block \
             requests then, or \"open\" to allow them for a time",
        ),
        (
            with("[policy.failed]\nlimits = \"1/s\""),
            "1: policy 'api' is settled by the message 'failed', and policy 'failed' is for it; \
             give the response a spoe-message of its own",
        ),
        (
            with("[policy.other]\nlimits = \"3/m\"\nkey = [\"user\"]\nsettle = \"failed\""),
            "5: the message 'failed' settles policy 'api', so it cannot settle policy 'other' for \
             the same requests; give each a spoe-message of its own, or a 'when' that tells them \
             apart",
        ),
        (
            format!("answer = [\"reserved\"]\n{}", with("")),
            "1: answer names 'reserved', and no policy has reserve; write reserve in a policy \
             with settle, or leave reserved out",
        ),
        (
            format!("scope = \"sess\"\n{}", with("reserve = 1")),
            "2: policy 'api' has reserve, and the variables of the scope sess are not those of \
             one request and its response; write scope = \"txn\"",
        ),
    ] {
        let expected = match mistake {
            "" => Ok(()),
            mistake => Err(vec![format!("gcra-spoa.toml:{mistake}")]),
        };
        assert_eq!(parse(&text).map(|_| ()), expected, "{text}");
    }
    // Plans can have one message for all their responses.
    let plan = |name: &str, when: &str| {
        format!("[policy.{name}]\nmessage = \"m\"\n{when}{SETTLED}\nreserve = 2\n")
    };
    let plans = plan("gold", "when = { plan = \"gold\" }\n") + &plan("free", "");
    let policies = good(&plans);
    assert_eq!(policies.answers.others, [Var::Reserved]);
    assert_eq!(policies.list[1].settle.as_ref().unwrap().message, b"failed"[..].into());
    let words = policies.in_words();
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
fn both_messages_of_a_settled_policy_are_printed_for_haproxy() {
    let tokens = "[policy.llm]\nlimits = \"100000/m\"\nkey = [\"key\", \"else ip\"]\n\
                  reserve = 500\ncost = \"tokens\"\nsettle = \"llm-usage\"\n";
    let printed = good(tokens).for_haproxy();
    for lines in [
        "    messages llm llm-usage\n",
        "spoe-message llm\n    args key=req.fhdr(x-api-key) ip=src\n    event \
         on-frontend-http-request\n",
        "spoe-message llm-usage\n    # tokens: write its sample, for example res.fhdr(x-tokens) \
         for a header of the response\n    args key=var(txn.request_key) ip=src tokens=EDIT-THIS \
         reserved=var(txn.gcra.reserved)\n    # Each response to a request that was decided.\n    \
         event on-http-response if { var(txn.gcra.blocked) -m found }\n",
        "    http-request set-var(txn.request_key) req.fhdr(x-api-key)\n",
    ] {
        assert!(printed.contains(lines), "{lines}\n{printed}");
    }
    let printed = good(&api(SETTLED)).for_haproxy();
    let lines = "spoe-message failed\n    args ip=src\n    # Which responses cost a cell? For \
                 example those with { status 401 }.\n    event on-http-response if { \
                 var(txn.gcra.blocked) -m found } EDIT-THIS\n";
    assert!(printed.contains(lines), "{printed}");
    assert!(!printed.contains("set-var"), "{printed}");
}

#[test]
fn a_count_in_words_says_when_it_begins_again() {
    let text = "[policy.api]\nkey = [\"ip\"]\nlimits = [\"20/s\", { name = \"contract\", \
                count = 10000, window = \"day europe/berlin\" }]\n";
    let words = good(text).in_words();
    let line = words.lines().find(|line| line.contains("api.contract")).unwrap();
    let next = line.strip_prefix(
        "    api.contract: 10000 per calendar day in Europe/Berlin: from midnight to midnight, so \
         up to 20000 shortly before and after a midnight; the next day begins at ",
    );
    let next = next.unwrap_or_else(|| panic!("{line}"));
    let (berlin, utc) = next.split_once(", ").unwrap();
    assert!(berlin.ends_with(" 00:00:00 in Europe/Berlin"), "{next}");
    assert!(utc.ends_with(" 22:00:00 in UTC") || utc.ends_with(" 23:00:00 in UTC"), "{next}");
    assert!(!good(&text.replace("europe/berlin", "utc")).in_words().contains("in UTC, "));
}

#[test]
fn counts_that_nobody_needs_get_a_warning() {
    let count = |count, window| format!("{{ count = {count}, window = \"{window}\" }}");
    let warned =
        |one: String, other: String| not_about_slots(&api(&format!("limits = [{one}, {other}]")));
    assert!(warned(count(5, "day"), count(5, "week")).is_empty());
    assert!(warned(count(5, "day"), "\"1/h burst 5\"".to_owned()).is_empty());
    assert_eq!(
        warned(count(5, "day"), count(6, "day UTC")),
        ["2: warning: the limit '6 per calendar day in UTC' never matters, \
             because '5 per calendar day in UTC' allows no more at once and no more in the long \
             run; leave it out"]
    );
}

/// What a client owes on all machines slows it, which only the store knows.
#[test]
fn a_bandwidth_that_machines_share_asks_the_store() {
    let shared = |without: &str| {
        format!(
            "answer = [\"bandwidth\"]\n[store]\nurl = \"redis://store.example\"\n[policy.api]\n\
             limits = \"1/s burst 9\"\nbandwidth = {{ full = \"1m\", least = \"1k\" }}\n\
             shared = true\n{without}\n"
        )
    };
    let wrong = parse(&shared("")).unwrap_err();
    let says = "gcra-spoa.toml:7: policy 'api' is shared and has bandwidth, so";
    assert!(wrong[0].starts_with(says), "{wrong:?}");
    let policies = good(&shared("without_store = \"closed\""));
    assert!(policies.list[0].shared.is_some_and(|shared| shared.at_once));
}

#[test]
fn a_count_in_a_strict_store_gets_a_warning() {
    let file = |strict: &str| {
        format!(
            "[store]\nurl = \"redis://store.example\"\n{strict}\n[policy.api]\nlimits = {{ count \
             = 5, window = \"day\" }}\nshared = true\nwithout_store = \"closed\"\n"
        )
    };
    let warned = warnings(&file("strict = true"));
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("all clients are blocked until the window ends"), "{warned:?}");
    assert!(warnings(&file("")).is_empty());
}

#[test]
fn a_count_is_refused_where_it_cannot_be() {
    let count = "{ count = 5, window = \"day\" }";
    for (text, says) in [
        (
            format!(
                "answer = [\"bandwidth\"]\n[policy.api]\nlimits = {count}\n\
                 bandwidth = {{ full = \"1m\", least = \"1k\" }}\n"
            ),
            "4: policy 'api' cannot have a bandwidth and a limit with a window, because what is \
             counted in a window comes back all at once; leave one of them out",
        ),
        (
            format!(
                "[store]\nurl = \"redis://store.example\"\n[policy.api]\n\
                 limits = [\"1/s\", {count}]\nshared = true\n"
            ),
            "5: policy 'api' is shared and has a limit with a window, so no machine can have \
             a share of its limits while the store is away; write without_store = \"closed\" to \
             block requests then, or \"open\" to allow them for a time",
        ),
    ] {
        assert_eq!(parse(&text).unwrap_err(), [format!("gcra-spoa.toml:{says}")]);
    }
}

/// A mistake hides no other one in the same policy.
#[test]
fn a_missing_list_and_wrong_limits_are_named_together() {
    let mistakes = parse(
        "[policy.api]\nmessage = 5\nlimits = \"1/s\"\nmode = \"none\"\n\
         [[policy.api.lists]]\nfile = \"nowhere.txt\"\nlimits = \"unlimitted\"\n\
         [[policy.api.lists]]\nfile = \"nowhere-either.txt\"\n",
    )
    .unwrap_err();
    for said in [
        "2: message must be a string",
        "4: 'none' is not a mode",
        "5: cannot read the list ",
        "7: ",
        "8: cannot read the list ",
        "8: a list needs file and limits",
    ] {
        let begin = format!("gcra-spoa.toml:{said}");
        assert!(mistakes.iter().any(|it| it.starts_with(&begin)), "{said}: {mistakes:#?}");
    }
    assert_eq!(mistakes.len(), 6, "{mistakes:#?}");
}
