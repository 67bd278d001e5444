//! Whole files.

use std::path::Path;
use std::time::UNIX_EPOCH;

use spop_codec::Value;

use crate::file::document;
use crate::file::secrets::Readers;
use crate::file::tests::{api, good, parse, sentences, warnings};

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
    let words = policies.in_words(UNIX_EPOCH);
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
    assert_eq!(policies.haproxy_text().matches("\nspoe-message ").count(), 2);
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
fn warnings_about_limits_with_a_key_or_an_arg() {
    let policies =
        |limits: &str| good(&format!("[policy.api]\nkey = [\"ip\"]\nlimits = {limits}\n"));
    let by_arg = "{ arg = \"plan\", default = \"1/s\", most = \"9/s\" }";
    let all = policies(&format!("[\"5/s burst 5\", {by_arg}, \"90/s\"]"));
    assert!(all.warnings.iter().all(|said| !said.contains("9 per second")), "{:?}", all.warnings);
    let words = policies(by_arg).in_words(UNIX_EPOCH);
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
    let beyond = |place: usize| {
        limits[place].quota(None).most_owed() > limits[place].quota(None).drain_time()
    };
    assert!(beyond(0) && !beyond(1), "{limits:?}");
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
            policy
                .limits()
                .map(|limit| limit.quota(None).max_delay().millis_ceil())
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(delays, [2_000; 3]);
    assert!(good(&text).in_words(UNIX_EPOCH).contains(
        "\n    a request over the limit is delayed if it has to wait for at most 2s, else \
         blocked\n    HAProxy must hold what is delayed: this needs HAProxy 3.2 or later, and its \
         rule 'pause'\n"
    ));
    let observing = good(&format!("{delaying}mode = \"observe\"\n")).in_words(UNIX_EPOCH);
    assert!(!observing.contains("HAProxy must hold"), "{observing}");
    let printed = good(&delaying).haproxy_text();
    let [deny, held] = ["http-request deny", "http-request pause"].map(|rule| printed.find(rule));
    assert!(deny.is_some() && deny < held, "what is denied does not wait first: {printed}");
    assert!(printed.contains(" delay_ms=%[var(txn.gcra.delay_ms)] err="), "{printed}");
    let pause = "\n    http-request pause var(txn.gcra.delay_ms) if { var(txn.gcra.delay_ms) -m \
                 int gt 0 }\n";
    assert!(printed.contains(pause), "{printed}");
    assert!(!good(&plain).haproxy_text().contains("pause"));
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
            "it is not a text file, because line 1 has a zero byte",
        ),
        (format!("{good}# \u{e9}").replace('\u{e9}', "!").into_bytes(), ""),
        ([good.as_bytes(), b"# \xe9\n"].concat(), "line 3 is not UTF-8; save the file as UTF-8"),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        match document::read(&file, Readers::OfFile) {
            Ok(_) => assert_eq!(said, ""),
            Err(mistakes) => {
                let expected = format!("cannot read {}: {said}", file.display());
                assert!(!said.is_empty() && sentences(&mistakes) == [expected], "{mistakes:?}");
            }
        }
    }
    // The bytes that Windows adds to a file change nothing, neither here nor in a list.
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
    let said = policies.observing("nosuch", true).unwrap_err().to_string();
    assert_eq!(said, "there is no policy 'nosuch'; there are api, trial");
    assert!(
        policies.observing("trial", false).unwrap_err().to_string().contains("its file says so")
    );
}

/// The debt of a client on all machines slows it, and only the store knows that debt.
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
