//! The identity of a limit: the table, the leases, and the store agree about it.

use gcra_limiter::decide::claim::bucket_of;
use gcra_limiter::limit_bucket::LimitBucket;
use gcra_limiter::message_key::hash_key;
use gcra_policy::RuleAt;
use gcra_store::Names;
use gcra_table::LeaseKey;
use proptest::strategy::ValueTree as _;

use super::*;

/// A limit of a policy, as its file has it.
fn limit() -> impl Strategy<Value = String> {
    let name = prop::option::of(prop::sample::select(vec!["1", "2", "most", "x"]));
    let key =
        prop::sample::select(vec!["", ", key = []", ", key = [\"ip\"]", ", ipv4_prefix = 24"]);
    let rate = (1..4_u32, 1..4_u32).prop_map(|(rate, burst)| {
        let numbers = format!("{rate}/h burst {burst}");
        (format!("rate = \"{rate}/h\", burst = {burst}"), numbers)
    });
    let window = prop::sample::select(vec!["day", "day Europe/Berlin", "hour", "month"]);
    let count = (1..3_u32, window)
        .prop_map(|(count, window)| format!("count = {count}, window = \"{window}\""));
    let numbers = prop_oneof![
        4 => rate.clone().prop_map(|(numbers, _)| numbers),
        1 => count,
        1 => rate.prop_map(|(_, text)| {
            format!("arg = \"plan\", default = \"{text}\", most = \"9/h burst 9\"")
        }),
    ];
    (name, key, numbers).prop_map(|(name, key, numbers)| {
        let name = name.map(|name| format!("name = \"{name}\", ")).unwrap_or_default();
        format!("{{ {name}{numbers}{key} }}")
    })
}

/// A file with a shared policy; `None` if it has mistakes.
fn file() -> impl Strategy<Value = String> {
    let list = || prop::collection::vec(limit(), 1..3).prop_map(|limits| limits.join(", "));
    const CEILINGS: [&str; 4] = ["50ms", "55ms", "1h", "90m"];
    let setting = prop::sample::select(vec!["", "max_delay", "penalty", "settle"]);
    let setting =
        (setting, prop::sample::select(&CEILINGS[..])).prop_map(|(setting, time)| match setting {
            "max_delay" => format!("max_delay = \"{time}\"\n"),
            "penalty" => format!("penalty = {{ ceiling = \"{time}\" }}\n"),
            "settle" => {
                format!("cost = \"cost\"\nsettle = \"done\"\nmax_debt = \"{time}\"\n")
            }
            _ => String::new(),
        });
    let of_policy = (list(), setting, prop::option::of(list()), prop::option::of(list()));
    let name = prop::sample::select(vec!["p", "q"]);
    (name, of_policy).prop_map(|(name, (limits, setting, trial, overridden))| {
        let trial = trial.map(|trial| format!("observe = [{trial}]\n")).unwrap_or_default();
        let overridden = overridden
            .map(|limits| format!("[policy.{name}.overrides]\n\"192.0.2.0/24\" = [{limits}]\n"));
        format!(
            "[store]\nurl = \"redis://127.0.0.1\"\n[policy.{name}]\nshared = true\n\
             without_store = \"closed\"\nmessage = \"m\"\nkey = [\"ip\"]\n{setting}{trial}\
             limits = [{limits}]\n{}",
            overridden.unwrap_or_default()
        )
    })
}

/// A limit of a client, as it is known in the table, to the leases, and in the store.
#[derive(Debug, PartialEq)]
struct Known {
    limit: String,
    bucket: u32,
    lease: Option<LeaseKey>,
    record: (String, [u64; 5]),
}

/// The limits that these messages have under the policies of a file, which are the same before and
/// after it has come into force.
fn known(table: &Table, text: &str) -> Vec<Known> {
    let parsed = document::parse(Path::new("gcra-spoa.toml"), text);
    let Ok(mut policies) = parsed else { return Vec::new() };
    let before = known_under(table, &policies);
    policies.come_into_force(table);
    let all = known_under(table, &policies);
    assert_eq!(all, before);
    all
}

fn known_under(table: &Table, policies: &Policies) -> Vec<Known> {
    let names = Names::new(b"");
    let mut all = Vec::new();
    for args in [["ip=192.0.2.1", "plan=2/h"], ["ip=198.51.100.1", "plan=2/h burst 1"]] {
        let args = args.map(|arg| arg.parse().unwrap());
        let written = WrittenMessage::new(b"m", &args).unwrap();
        let message = written.message().unwrap();
        for policy in &policies.list {
            let (key, overridden) = hash_key(table.hasher(), policy, &message).unwrap();
            for limit in policy.rule(RuleAt::new(overridden)).limits() {
                let now = table.wall_reading();
                let bucket = LimitBucket::of(table, limit, key, Some(&message));
                let (quota, second) = (bucket.quota, now.second());
                let record = bucket_of(&names, policy, limit, quota, &message, second).unwrap();
                all.push(Known {
                    limit: format!("{} of {args:?}: {}", limit.label, limit.words.text),
                    bucket: bucket.mark(table, limit),
                    lease: limit.calendar().is_none().then(|| bucket.lease_key(limit)),
                    record: (record.name(), record.limit().numbers()),
                });
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Two limits are the same one in the table, for the leases and in the store, or in none.
    #[test]
    fn one_limit_is_one_everywhere(first in file(), second in file()) {
        let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        clock.set_wall(1_795_640_400_000_000_000);
        let mut all = known(&table, &first);
        all.extend(known(&table, &second));
        for (place, one) in all.iter().enumerate() {
            for other in &all[place..] {
                let is_same = one.bucket == other.bucket;
                let what = format!("{} and {}\n{first}\n{second}", one.limit, other.limit);
                prop_assert_eq!(one.record == other.record, is_same, "record of {}", what);
                if one.lease.is_some() && other.lease.is_some() {
                    prop_assert_eq!(one.lease == other.lease, is_same, "lease of {}", what);
                }
            }
        }
    }
}

/// Most of the random files have no mistakes, so the property is about something.
#[test]
fn the_files_have_limits() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
    let files = (0..300).map(|_| file().new_tree(&mut runner).unwrap().current());
    let good = files.filter(|text| !known(&table, text).is_empty()).count();
    assert!(good > 100, "{good} of 300");
}
