//! Whole decisions in a time that stands still: a limiter with policies from a text, asked over a
//! socket, reloaded at will.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod changes;
mod debts_in_the_store;
mod fleet;
mod limits_of_messages;
mod same_limit;
mod settings;
mod settled;
mod unasked;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use clap::Parser as _;
use gcra_inspect::explanation::{Explanation, RuleKind, SharedSources, explain};
use gcra_inspect::key_meanings::named;
use gcra_limiter::heaviest::Minutes;
use gcra_limiter::limiter::Limiter;
use gcra_limiter::policies_in_force::{DecisionPath, InForce};
use gcra_limiter::question::Question;
use gcra_limiter::stats::Stats;
use gcra_limiter::undecided::Undecided;
use gcra_limiter::verdict::{NEWLY_BLOCKED, Outcome, Reason};
use gcra_limiter::written_message::WrittenMessage;
use gcra_policy::answers::Answers;
use gcra_policy::file::document;
use gcra_policy::flags::{LimitFlags, policies_of_flags};
use gcra_policy::key::{NamedValue, Shown};
use gcra_policy::{Policies, policy_id};
use gcra_table::{Exemption, KeyHash, ManualClock, Nanos, Slots, Table};
use proptest::prelude::*;
use spop_agent::testing::{Answer, Client};
use spop_agent::{Agent, Scope, Value};

struct Scenario {
    table: Arc<ArcSwap<Table>>,
    clock: ManualClock,
    policies: Arc<ArcSwap<InForce>>,
    stats: Stats,
    undecided: Arc<Undecided>,
    client: Client,
}

fn policies(text: &str) -> Policies {
    document::parse(Path::new("gcra-spoa.toml"), text)
        .unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

impl Scenario {
    async fn new(text: &str) -> Self {
        Self::of(policies(text)).await
    }

    async fn of(policies: Policies) -> Self {
        let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let stats = Stats::new(NonZeroUsize::MIN);
        Self::on(Arc::new(ArcSwap::from_pointee(table)), clock, stats, policies).await
    }

    async fn on(
        table: Arc<ArcSwap<Table>>,
        clock: ManualClock,
        stats: Stats,
        policies: Policies,
    ) -> Self {
        let in_force = InForce::at_start(policies, &stats, &table.load());
        let policies = Arc::new(ArcSwap::from_pointee(in_force));
        let limiter = Limiter::new(table.clone(), policies.clone());
        let undecided = limiter.undecided();
        let client = Client::of(Agent::new(limiter)).await.unwrap();
        Self { table, clock, policies, stats, undecided, client }
    }

    /// Another process, with this configuration, on the same table.
    async fn another(&self, text: &str) -> Self {
        let stats = Stats::new(NonZeroUsize::MIN);
        Self::on(self.table.clone(), self.clock.clone(), stats, policies(text)).await
    }

    fn reload(&self, text: &str) {
        let next =
            self.policies.load().replaced_by(policies(text), &self.stats, &self.table.load());
        self.policies.store(Arc::new(next));
        self.housekeeping();
    }

    fn housekeeping(&self) {
        let now = self.table.load().now();
        if let Some(next) = self.policies.load().without_old(&self.stats, now) {
            self.policies.store(Arc::new(next));
        }
        let exemptions = self.table.load().exemptions();
        if let Some(next) = self.policies.load().with_exemptions(&exemptions, &self.stats, now) {
            self.policies.store(Arc::new(next));
        }
    }

    /// Exempts a key from a policy for a time, or ends that with a time of 0.
    fn exempt(&self, policy: &str, key: &str, seconds: u64) {
        let table = self.table.load();
        let exemption = Exemption {
            policy: policy_id(policy),
            key: self.key_of(policy, key).unwrap_or(table.hash(b"")),
            until: table.now().saturating_add(Nanos::from_secs(seconds)),
            client: key.to_owned(),
        };
        table.exempt(&exemption).unwrap();
        self.housekeeping();
    }

    /// The hash of a key in the policy with this name, if there is one.
    fn key_of(&self, policy: &str, key: &str) -> Option<KeyHash> {
        let in_force = self.policies.load();
        let list = &in_force.policies.list;
        let at = list.iter().position(|found| *found.name == *policy)?;
        let meaning = named(&key.parse().unwrap(), &list[at].key.args).unwrap();
        let message = WrittenMessage::new(b"", &meaning.args).unwrap();
        let table = self.table.load();
        Some(Question::under(&in_force, &table, at, &message.message().unwrap()).unwrap().key)
    }

    /// What is in force, as a command makes it of what the agent keeps in a file.
    fn told(&self) -> InForce {
        let (in_force, table) = (self.policies.load(), self.table.load());
        let made =
            |policies: &Policies| policies.origin.as_ref().unwrap().policies().unwrap().unwrap();
        let history = in_force.earlier.history().iter();
        let history = history.map(|(former, ended)| (made(former), *ended)).collect();
        InForce::of_history(history, made(&in_force.policies), &table)
    }

    /// What `explain` says about a message with these args.
    fn explain(&self, args: &[(&str, Value<'_>)]) -> Explanation {
        let named = |(name, value): &(&str, Value<'_>)| NamedValue {
            name: (*name).to_owned(),
            value: Shown(*value).to_string().parse().unwrap(),
        };
        let args: Vec<_> = args.iter().map(named).collect();
        let message = WrittenMessage::new(b"api", &args).unwrap();
        let message = message.message().unwrap();
        explain(&self.told(), &self.table.load(), SharedSources::default(), &message)
    }

    /// The outcomes that were counted for a policy.
    fn counts(&self, policy: &str) -> [u64; 4] {
        let [allowed, would_block, blocked, undecided, _] = self.stats.policy(policy).counts();
        [allowed, would_block, blocked, undecided]
    }

    /// How many requests a trial has denied that its policy has allowed.
    fn newly_blocked(&self, trial: &str) -> u64 {
        self.stats.policy(trial).counts()[NEWLY_BLOCKED]
    }

    fn advance_ms(&self, ms: u64) {
        self.clock.advance(Nanos::from_millis(ms));
        self.housekeeping();
    }

    async fn ask(&mut self, args: &[(&str, Value<'_>)]) -> Answer {
        self.client.ask(&[("api", args)]).await.unwrap()
    }

    async fn passes(&mut self, ip: &str) -> bool {
        let answer = self.ask(&[("ip", address(ip))]).await;
        answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(false))
    }

    /// How many of so many requests, all at once, pass.
    async fn passed(&mut self, ip: &str, requests: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..requests {
            passed += u32::from(self.passes(ip).await);
        }
        passed
    }
}

fn address(ip: &str) -> Value<'static> {
    ip.parse::<IpAddr>().unwrap().into()
}

fn number(answer: &Answer, name: &str) -> u64 {
    match answer.var(Scope::Transaction, name) {
        Some(Value::Uint64(number)) => number,
        Some(Value::Uint32(number)) => number.into(),
        other => panic!("{name} is {other:?}"),
    }
}

/// A bucket has one name in the lists, however the client spells its key.
#[tokio::test]
async fn a_client_has_one_name_with_lowercase() {
    let text = "[policy.api]\nlimits = \"9/s\"\nkey = [\"host\"]\nlowercase = true\n";
    let mut scenario = Scenario::new(text).await;
    let mut listed = Vec::new();
    for host in ["SHOP.Example.com", "shop.example.com", "Shop.example.COM"] {
        scenario.ask(&[("host", host.into())]).await;
        // Names are made when somebody looks.
        listed = scenario.stats.policy("api").heaviest(Outcome::Allowed, Minutes::Now).heaviest;
    }
    let [client] = &listed[..] else { panic!("{listed:?}") };
    assert!(client.client.starts_with("shop…(16)#"), "{}", client.client);
    assert_eq!(client.requests, 3);
}

/// A throttled address must not free the network that it is grouped with, nor use its limit up;
/// nor the other way round.
#[tokio::test]
async fn an_override_within_a_group_has_a_bucket_of_its_own() {
    let cases = [
        ("1000/h", "5/s burst 5", ["2001:db8::1", "2001:db8::2"], (1000, 5)),
        ("10/s burst 20", "1000/h", ["2001:db8::1", "2001:db8::2"], (20, 1000)),
        ("10/h burst 7", "10/h burst 7", ["2001:db8::", "2001:db8::2"], (7, 7)),
        ("10/h burst 7", "5/s burst 5", ["192.0.2.1", "192.0.2.2"], (7, 5)),
        ("10/h burst 7", "5/s burst 5", ["192.0.2.0", "::ffff:192.0.2.2"], (7, 5)),
    ];
    for (group, limit, [one, other], bursts) in cases {
        let mut scenario = Scenario::new(&format!(
            "[policy.api]\nlimits = \"{group}\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
             [policy.api.overrides]\n\"{one}\" = \"{limit}\"\n"
        ))
        .await;
        let mut passed = (0, 0);
        for _ in 0..1500 {
            passed.0 += u32::from(scenario.passes(other).await);
            passed.1 += u32::from(scenario.passes(one).await);
        }
        assert_eq!(passed, bursts, "{group}, {one} {limit}");
    }
}

#[tokio::test]
async fn overrides_within_overrides_and_side_by_side_have_buckets_of_their_own() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"10/h burst 2\"\nkey = [\"ip\"]\n[policy.api.overrides]\n\
         \"2001:db8:0:0:1::/80\" = \"10/h burst 3\"\n\"2001:db8:0:0:1::5\" = \"10/h burst 3\"\n\
         \"2001:db8:0:0:1::6\" = \"10/h burst 3\"\n\"2001:db8:1::/48\" = \"10/h burst 4\"\n",
    )
    .await;
    assert_eq!(scenario.passed("2001:db8::7", 9).await, 2, "the policy's group");
    assert_eq!(scenario.passed("2001:db8:0:0:1::7", 9).await, 3);
    assert_eq!(
        scenario.passed("2001:db8:0:0:1::8", 9).await,
        0,
        "the network of the override is one client"
    );
    assert_eq!(scenario.passed("2001:db8:0:0:1::5", 9).await, 3);
    assert_eq!(scenario.passed("2001:db8:0:0:1::6", 9).await, 3);
    assert_eq!(scenario.passed("2001:db8:1:1::1", 9).await, 4);
    assert_eq!(
        scenario.passed("2001:db8:1:2::1", 9).await,
        4,
        "wider than a group: each group is a client"
    );
    assert_eq!(scenario.passed("2001:db8:1:2::2", 9).await, 0);
}

fn limits(limits: &str) -> String {
    format!("[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\n")
}

#[tokio::test]
async fn a_raised_limit_helps_a_blocked_client_at_once_and_in_proportion() {
    let mut scenario = Scenario::new(&limits("\"100/h\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 100);
    assert_eq!(scenario.passed("192.0.2.2", 40).await, 40);
    scenario.reload(&limits("\"1000/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900);
    assert_eq!(scenario.passed("192.0.2.2", 2000).await, 960);
    assert_eq!(scenario.passed("192.0.2.3", 2000).await, 1000);
    // Twice as fast: the wait is half as long.
    let mut scenario = Scenario::new(&limits("\"10/m burst 5\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    scenario.reload(&limits("\"20/m burst 5\""));
    assert!(!scenario.passes("192.0.2.1").await);
    scenario.advance_ms(2_999);
    assert!(!scenario.passes("192.0.2.1").await);
    scenario.advance_ms(1);
    assert!(scenario.passes("192.0.2.1").await);
}

#[tokio::test]
async fn a_debt_survives_lowering_raising_and_taking_back() {
    let mut scenario = Scenario::new(&limits("\"1000/d\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 50).await, 50);
    scenario.reload(&limits("\"100/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 50, "50 of 100 were used");
    scenario.reload(&limits("\"1000/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900, "100 of 1000 were used");
    scenario.reload(&limits("\"100/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 0);
    scenario.reload(&limits("\"99/d\""));
    scenario.reload(&limits("\"98/d\""));
    scenario.reload(&limits("\"97/d\""));
    assert_eq!(
        scenario.passed("192.0.2.1", 200).await,
        0,
        "several changes, and no request between them"
    );
    // A day later nothing of that is left. (The interval is rounded up, so it takes a few
    // nanoseconds more.)
    scenario.advance_ms(86_400_001);
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 97);
}

#[tokio::test]
async fn an_idle_client_has_its_full_burst_whatever_it_owed_long_before_a_change() {
    let mut scenario = Scenario::new(&limits("\"10/h\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 20).await, 10);
    scenario.reload(&limits("\"100/s burst 20\""));
    assert_eq!(scenario.passed("192.0.2.1", 40).await, 10);
    for _ in 0..5 {
        scenario.advance_ms(200);
        assert_eq!(scenario.passed("192.0.2.1", 40).await, 20, "the old hour matters no more");
    }
}

#[tokio::test]
async fn a_debt_goes_along_into_an_override_and_back_and_into_another_group() {
    let with =
        |overrides: &str| format!("{}[policy.api.overrides]\n{overrides}\n", limits("\"100/h\""));
    let mut scenario = Scenario::new(&with("")).await;
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 100);
    scenario.reload(&with("\"192.0.2.1\" = \"1000/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900);
    scenario.reload(&with("\"192.0.2.0/24\" = \"1001/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 1);
    scenario.reload(&with("\"192.0.2.1\" = \"unlimited\""));
    assert_eq!(scenario.passed("192.0.2.1", 50).await, 50);
    scenario.reload(&with(""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 0, "its old bucket is there still");

    let prefix = |bits: u8| format!("{}ipv6_prefix = {bits}\n", limits("\"10/h\""));
    let mut scenario = Scenario::new(&prefix(64)).await;
    assert_eq!(scenario.passed("2001:db8::1", 7).await, 7);
    scenario.reload(&prefix(56));
    assert_eq!(scenario.passed("2001:db8::2", 10).await, 3);
}

#[tokio::test]
async fn a_debt_survives_a_restart_with_other_numbers() {
    let mut before = Scenario::new(&limits("\"100/h\"")).await;
    assert_eq!(before.passed("192.0.2.1", 200).await, 100);
    let mut raised = before.another(&limits("\"1000/h\"")).await;
    let mut second = before.another(&limits("\"1000/h\"")).await;
    assert_eq!(raised.passed("192.0.2.1", 450).await, 450);
    assert_eq!(second.passed("192.0.2.1", 2000).await, 450, "one limit, whichever is asked");
    assert_eq!(before.passed("192.0.2.1", 200).await, 0, "the one that was not restarted yet");
    raised.advance_ms(10_000);
    // And back, an hour or so later: what was used meanwhile is owed.
    let mut again = before.another(&limits("\"100/h\"")).await;
    assert_eq!(again.passed("192.0.2.1", 200).await, 0);
    again.advance_ms(3_600_001);
    assert_eq!(again.passed("192.0.2.1", 200).await, 100);
}

/// A fleet of which a part has the new numbers already, and whose agents start again and again.
#[tokio::test]
async fn restarts_to_and_fro_forgive_nothing_of_a_third_limit() {
    let mut first = Scenario::new(&limits("\"1/d burst 20\"")).await;
    assert_eq!(first.passed("192.0.2.1", 30).await, 20);
    for round in 0..12 {
        let numbers = ["\"2/d burst 20\"", "\"2/d burst 19\""][round % 2];
        let mut agent = first.another(&limits(numbers)).await;
        assert_eq!(agent.passed("192.0.2.1", 30).await, 0, "round {round}");
        agent.reload(&limits("\"2/d burst 18\""));
        agent.reload(&limits(numbers));
        assert_eq!(agent.passed("192.0.2.1", 30).await, 0, "round {round}");
    }
}

/// No part of a cell is added by each change.
#[tokio::test]
async fn restarts_to_and_fro_add_nothing_to_a_debt() {
    let mut agent = Scenario::new(&limits("\"3/d burst 7\"")).await;
    for (numbers, requests) in [("1/d burst 7", 2), ("3/d burst 7", 1), ("1/d burst 7", 10)] {
        agent.advance_ms(1);
        agent = agent.another(&limits(&format!("\"{numbers}\""))).await;
        let passed = agent.passed("192.0.2.1", requests).await;
        assert_eq!(passed, requests.min(4));
    }
}

/// An override does not start with the debt of the rest of its group.
#[tokio::test]
async fn a_restart_carries_nothing_from_a_group_to_an_override() {
    let config = |limit: &str| {
        format!("{}[policy.api.overrides]\n\"2001:db8::1\" = \"10/h burst 9\"\n", limits(limit))
    };
    let mut before = Scenario::new(&config("\"10/h burst 5\"")).await;
    assert_eq!(before.passed("2001:db8::2", 20).await, 5);
    let mut after = before.another(&config("\"10/h burst 6\"")).await;
    assert_eq!(after.passed("2001:db8::1", 20).await, 9);
    assert_eq!(after.passed("2001:db8::2", 20).await, 1);
}

/// Agents that are out of step for a while: together they allow at most the sum of what each
/// allows.
#[tokio::test]
async fn agents_with_different_numbers_allow_at_most_the_sum() {
    let mut old = Scenario::new(&limits("\"1000/d burst 20\"")).await;
    let mut new = old.another(&limits("\"1000/d burst 30\"")).await;
    let mut passed = (0, 0);
    for _ in 0..5000 {
        passed.0 += u32::from(old.passes("192.0.2.1").await);
        passed.1 += u32::from(new.passes("192.0.2.1").await);
    }
    assert!(passed.0 <= 20 && passed.1 <= 30 && passed.0 + passed.1 >= 30, "{passed:?}");
}

/// Whatever is changed and in whatever order: what was allowed is at most what each of the limits
/// allows, added up.
#[tokio::test]
async fn reloads_over_and_over_forgive_nothing() {
    let mut scenario = Scenario::new(&limits("\"1000/d burst 20\"")).await;
    let mut passed = 0;
    for round in 0..200 {
        passed += scenario.passed("192.0.2.1", 5).await;
        scenario.reload(&limits(
            ["\"1000/d burst 20\"", "\"1000/d burst 30\"", "\"500/d burst 10\""][round % 3],
        ));
    }
    // All of it was one debt, so it is not even the sum, but the largest burst.
    assert_eq!(passed, 30);
}

/// A client that waits as long as its answer says is allowed.
#[tokio::test]
async fn the_wait_in_the_answer_includes_the_penalty() {
    for (limits, text) in [
        ("\"2/s burst 3\"", "one limit"),
        ("[\"2/s burst 3\", \"1000/h\"]", "two limits"),
        ("[\"1000/h burst 3\", \"2/s burst 3\"]", "two limits that both deny"),
    ] {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"retry_after_ms\", \"retry_after\", \"reset\", \"remaining\"]\n\
             [policy.api]\nlimits = {limits}\n\
             key = [\"ip\"]\npenalty = {{ cells = 1, ceiling = \"10s\" }}\n"
        ))
        .await;
        assert_eq!(scenario.passed("192.0.2.1", 3).await, 3);
        let mut passed = 0;
        for _ in 0..20 {
            let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
            let wait_ms = number(&answer, "retry_after_ms");
            assert_eq!(number(&answer, "retry_after"), wait_ms.div_ceil(1000));
            assert!(number(&answer, "reset") * 1000 >= wait_ms);
            passed += u32::from(wait_ms == 0);
            if wait_ms > 0 {
                assert_eq!(number(&answer, "remaining"), 0);
                scenario.advance_ms(wait_ms - 1);
                // Asking too early would be charged, and is not tried here; a millisecond later it
                // passes.
                scenario.advance_ms(1);
            }
        }
        assert_eq!(passed, 10, "{text}: every second request");
    }
}

/// A request with a cost of 0 is never blocked or charged, not by a penalty either.
#[tokio::test]
async fn a_peek_is_never_blocked_or_charged() {
    for (limits, wait_ms) in
        [("\"2/s burst 3\"", 1000), ("[\"2/s burst 3\", \"1000/h burst 3\"]", 7200)]
    {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"retry_after_ms\", \"reset\"]\n[policy.api]\nlimits = {limits}\n\
             key = [\"ip\"]\ncost = \"cost\"\n\
             penalty = {{ cells = 1, ceiling = \"10s\" }}\n"
        ))
        .await;
        let ip = address("192.0.2.1");
        for cost in [3, 1] {
            scenario.ask(&[("ip", ip), ("cost", Value::Int32(cost))]).await;
        }
        let mut resets = Vec::new();
        for _ in 0..6 {
            let answer = scenario.ask(&[("ip", ip), ("cost", Value::Int32(0))]).await;
            assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(false)));
            assert_eq!(number(&answer, "retry_after_ms"), wait_ms, "until one cell is there");
            resets.push(number(&answer, "reset"));
        }
        assert!(resets.iter().all(|reset| *reset == resets[0]), "{resets:?}");
    }
}

/// The numbers of an answer are those of the most restrictive limit, however many there are.
#[tokio::test]
async fn the_limit_that_blocks_is_answered_behind_any_number_of_others() {
    let four = "[\"100/h\", \"100/h\", \"100/h\", \"100/h\"]";
    let mut scenario = Scenario::new(&format!(
        "answer = [\"retry_after\", \"remaining\"]\n[policy.a]\nlimits = {four}\n\
         [policy.b]\nlimits = {four}\n[policy.c]\nlimits = [\"1/h\"]\n"
    ))
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    scenario.client.ask(&[("c", &ip)]).await.unwrap();
    let answer = scenario.client.ask(&[("a", &ip), ("b", &ip), ("c", &ip)]).await.unwrap();
    assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)));
    assert_eq!((number(&answer, "retry_after"), number(&answer, "remaining")), (3600, 0));
}

/// What the answer says about a request with these args: `None` is no decision.
async fn blocked(scenario: &mut Scenario, args: &[(&str, Value<'_>)]) -> Option<bool> {
    match scenario.ask(args).await.var(Scope::Transaction, "blocked") {
        Some(Value::Bool(blocked)) => Some(blocked),
        None => None,
        other => panic!("blocked is {other:?}"),
    }
}

#[tokio::test]
async fn a_request_without_a_value_for_the_key_has_no_decision() {
    let file = |more: &str| format!("[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\"]\n{more}");
    let plain = Scenario::of(flags(&["--rate", "1/d", "--key", "ip"])).await;
    let exact = Scenario::new(&file("ipv6_prefix = 128\n")).await;
    for mut scenario in [plain, exact, Scenario::new(&file("")).await] {
        for _ in 0..2 {
            assert_eq!(blocked(&mut scenario, &[("ip", Value::Null)]).await, None);
            assert_eq!(blocked(&mut scenario, &[("host", address("192.0.2.1"))]).await, None);
        }
        assert_eq!(blocked(&mut scenario, &[("ip", address("192.0.2.1"))]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[("ip", address("192.0.2.1"))]).await, Some(true));
    }
    // Without the names of args, null is one of the values.
    let mut all = Scenario::of(flags(&["--rate", "1/d"])).await;
    let args = [("ip", address("192.0.2.1")), ("key", Value::Null)];
    assert_eq!(blocked(&mut all, &args).await, Some(false));
    assert_eq!(blocked(&mut all, &args).await, Some(true));
}

#[tokio::test]
async fn another_arg_stands_for_one_without_a_value() {
    let key = "key = [\"key\", \"else token\", \"else ip\"]";
    let mut scenario = Scenario::new(&format!(
        "[policy.api]\nlimits = \"1/d\"\n{key}\nipv4_prefix = 24\n[policy.api.overrides]\n\
         \"198.51.100.0/24\" = \"2/d\"\n\"gold\" = \"3/d\"\n"
    ))
    .await;
    let ip = |ip: &str| ("ip", address(ip));
    let (null, text) = (Value::Null, |text: &'static str| Value::String(text.as_bytes()));
    for (args, passes) in [
        (vec![("key", text("a")), ip("192.0.2.1")], 1),
        (vec![("key", null), ip("192.0.2.1")], 1),
        // The address is grouped, also where the arg is missing.
        (vec![ip("192.0.2.2")], 0),
        (vec![ip("192.0.3.2")], 1),
        // A value of the arg, of the first fallback and of the second are different clients.
        (vec![("key", null), ("token", text("a")), ip("192.0.2.1")], 1),
        (vec![("key", null), ("token", null), ("ip", text("a"))], 1),
        (vec![("key", address("192.0.2.1"))], 1),
        // Overrides are looked up by the value that is used.
        (vec![("key", null), ip("198.51.100.7")], 2),
        (vec![("key", text("b")), ip("198.51.100.7")], 1),
        (vec![("token", text("gold")), ip("198.51.100.7")], 3),
        (vec![("key", text("gold"))], 3),
    ] {
        let mut passed = 0;
        for _ in 0..5 {
            passed += u32::from(blocked(&mut scenario, &args).await == Some(false));
        }
        assert_eq!(passed, passes, "{args:?}");
    }
    assert_eq!(blocked(&mut scenario, &[("key", null), ("ip", null)]).await, None);
}

#[tokio::test]
async fn null_is_a_value_of_the_key_where_the_policy_says_so() {
    let of_flags = flags(&["--rate", "1/d", "--key", "ip,key,else null"]);
    let of_a_file =
        policies("[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\", \"key\", \"else null\"]\n");
    for policies in [of_flags, of_a_file] {
        let mut scenario = Scenario::of(policies).await;
        let (one, other) = (("ip", address("192.0.2.1")), ("ip", address("192.0.2.2")));
        assert_eq!(blocked(&mut scenario, &[one, ("key", Value::Null)]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[one]).await, Some(true));
        assert_eq!(blocked(&mut scenario, &[other]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[("key", Value::Null)]).await, None);
    }
}

/// A file gets a fallback: clients with a value go on, and those without one begin anew.
#[tokio::test]
async fn a_debt_survives_a_new_fallback() {
    let mut scenario = Scenario::new(&limits("\"5/d\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    scenario.reload("[policy.api]\nlimits = \"6/d\"\nkey = [\"ip\", \"else host\"]\n");
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 1);
    let host = [("ip", Value::Null), ("host", address("192.0.2.1"))];
    assert_eq!(blocked(&mut scenario, &host).await, Some(false));
}

#[tokio::test]
async fn the_log_says_why_the_last_message_had_no_decision() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\", \"key\", \"else token\"]\ncost = \"n\"\n\
         [policy.gold]\nmessage = \"plans\"\nwhen = { plan = \"gold\" }\nlimits = \"1/d\"\n",
    )
    .await;
    let (ip, key) = (("ip", address("192.0.2.1")), ("key", Value::String(b"k")));
    for (args, said) in [
        (vec![key], "the arg 'ip' is missing; compare"),
        (vec![("ip", Value::Null), key], "the arg 'ip' is null, as for a header"),
        (vec![ip, ("key", Value::Null)], "the arg 'key' and all its fallbacks in 'key' are null"),
        (vec![ip], "the arg 'key' is missing"),
        (vec![ip, key, ("n", Value::Int32(-1))], "the arg 'n' is not a valid cost"),
    ] {
        scenario.ask(&[]).await;
        scenario.ask(&args).await;
        let sentence = scenario.undecided.about_undecided(2);
        let start = "2 messages got no decision; of the last one, 'api' for policy 'api', ";
        let rest = sentence.strip_prefix(start).unwrap_or_else(|| panic!("{sentence}"));
        assert!(rest.starts_with(said), "{sentence}");
    }
    let long = "\x1b[2J".repeat(100);
    for (message, said) in [
        ("apii", "the last one was 'apii'; compare the names"),
        ("plans", "the last one was 'plans', and the 'when' of no policy for it fitted"),
        (&long, "the last one was '?[2J?[2J"),
    ] {
        scenario.client.ask(&[(message, &[][..])]).await.unwrap();
        let sentence = scenario.undecided.about_unmatched(1);
        let start = "1 message matched no policy and got no decision; ";
        let rest = sentence.strip_prefix(start).unwrap_or_else(|| panic!("{sentence}"));
        assert!(rest.starts_with(said) && rest.len() < 200, "{sentence}");
    }
}

/// Prefixes and overrides are for addresses, so a text that is one is noticed.
#[tokio::test]
async fn an_address_that_is_sent_as_a_text_is_noticed() {
    let text = "[policy.api]\nlimits = \"1/h\"\nkey = [\"ip\"]\n[policy.all]\nlimits = \"1/h\"\n";
    let mut scenario = Scenario::new(text).await;
    let noticed = |scenario: &Scenario, policy| {
        scenario.stats.policy(policy).text_address().map(|arg| arg.to_string())
    };
    scenario.ask(&[("ip", address("192.0.2.1")), ("of", "192.0.2.1".into())]).await;
    scenario.ask(&[("ip", "192.0.2.300".into())]).await;
    assert_eq!(noticed(&scenario, "api"), None);
    scenario.ask(&[("ip", "192.0.2.1".into())]).await;
    assert_eq!(noticed(&scenario, "api").as_deref(), Some("ip"));
    let args = [("of\x1b", "2001:db8::1".into())];
    scenario.client.ask(&[("all", &args[..])]).await.unwrap();
    assert_eq!(noticed(&scenario, "all").as_deref(), Some("of?"));
}

/// An arg that HAProxy does not send at all is a mistake in its configuration. Null is not.
#[tokio::test]
async fn the_log_says_what_a_request_or_its_response_lacks() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"100/h burst 100\"\nkey = [\"key\"]\nreserve = \
         \"estimate\"\ncost = \"tokens\"\nsettle = \"usage\"\n",
    )
    .await;
    let null = Value::Null;
    let (key, estimate) = (("key", Value::String(b"k")), ("estimate", null));
    let said = |scenario: &Scenario| {
        let count = scenario.undecided.unsettled.swap(0, Ordering::Relaxed);
        (count > 0).then(|| scenario.undecided.about_unsettled(count))
    };
    scenario.ask(&[key, estimate]).await;
    assert_eq!(said(&scenario), None);
    scenario.ask(&[key, ("estimate", "20".into())]).await;
    assert_eq!(said(&scenario), None, "a string of digits is a number");
    scenario.ask(&[key]).await;
    let sentence = said(&scenario).unwrap();
    let start = "1 message for policy 'api' said too little: of the last one, 'api', the arg \
                 'estimate' is missing, so nothing is reserved; write it into the 'args' line";
    assert!(sentence.starts_with(start), "{sentence}");
    let (tokens, reserved) = (("tokens", Value::Int32(3)), ("reserved", null));
    for (args, expected) in [
        (vec![key, tokens, reserved], None),
        (vec![key, ("tokens", null), reserved], None),
        (
            vec![key, reserved],
            Some("the arg 'tokens' is missing, so what is reserved stays charged; write it into"),
        ),
        (
            vec![key, ("tokens", "12,345".into()), reserved],
            Some("the arg 'tokens' is not a number of cells, so what is reserved stays charged"),
        ),
        (
            vec![key, tokens],
            Some("the arg 'reserved' is missing, so each request is charged twice; write it into"),
        ),
    ] {
        scenario.client.ask(&[("usage", &args[..])]).await.unwrap();
        let sentence = said(&scenario);
        match expected {
            None => assert_eq!(sentence, None),
            Some(expected) => {
                let sentence = sentence.unwrap();
                assert!(sentence.contains("of the last one, 'usage', "), "{sentence}");
                assert!(sentence.contains(expected), "{sentence}");
            }
        }
    }
    let args = [("key", null), tokens, reserved];
    scenario.client.ask(&[("usage", &args[..])]).await.unwrap();
    let sentence = scenario.undecided.about_undecided(1);
    let expected = "the arg 'key' is null, because HAProxy does not know it any more when the \
                    response comes; keep it with 'http-request set-var(txn.key)', and send \
                    key=var(txn.key)";
    assert!(sentence.ends_with(expected), "{sentence}");
    scenario.reload(
        "[policy.api]\nwhen = { plan = \"gold\" }\nlimits = \"9/h\"\nkey = [\"key\"]\nsettle = \
         \"usage\"\n",
    );
    scenario.client.ask(&[("usage", &[key][..])]).await.unwrap();
    let sentence = scenario.undecided.about_unmatched(1);
    assert!(sentence.contains("; let it have the arg of 'when', as the message"), "{sentence}");
}

/// A limit that is only observed changes nothing in the answer of one that is enforced.
#[tokio::test]
async fn a_policy_that_observes_leaves_the_numbers_of_the_others_alone() {
    let mut scenario = Scenario::new(
        "answer = [\"retry_after\", \"limit\", \"ratelimit\"]\n\
         [policy.api]\nlimits = \"60/m burst 1\"\nkey = [\"ip\"]\n\
         [policy.trial]\nlimits = \"1/d\"\nkey = [\"ip\"]\nmode = \"observe\"\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    for messages in [["api", "trial"], ["trial", "api"]] {
        for (pause_ms, blocked, retry_after) in [(2000, false, 0), (0, true, 1), (1000, false, 0)]
        {
            scenario.advance_ms(pause_ms);
            let asked = messages.map(|message| (message, &ip[..]));
            let answer = scenario.client.ask(&asked).await.unwrap();
            assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(blocked)));
            assert_eq!(number(&answer, "retry_after"), retry_after);
            assert_eq!(number(&answer, "limit"), 1);
            let fields = answer.var(Scope::Transaction, "ratelimit").unwrap();
            assert!(!format!("{fields:?}").contains("trial"), "{fields:?}");
        }
    }
    let answer = scenario.client.ask(&[("trial", &ip)]).await.unwrap();
    assert_eq!(number(&answer, "retry_after"), 86_400 - 4, "alone, it answers for itself");
}

/// A trial is charged beside the limit in force, and shows in `would_block` only.
#[tokio::test]
async fn a_trial_blocks_nothing_and_says_what_it_would_block() {
    let mut scenario = Scenario::new(
        "answer = [\"would_block\", \"policy\", \"reason\", \"remaining\", \"ratelimit\"]\n\
         [policy.api]\nlimits = \"1/h burst 5\"\nobserve = [\"1/h burst 3\", \"1/d burst 9\"]\n\
         key = [\"ip\"]\n[policy.api.overrides]\n\"192.0.2.9\" = \"1/d burst 4\"\n",
    )
    .await;
    for request in 0..7 {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        let var = |name| answer.var(Scope::Transaction, name);
        assert_eq!(var("blocked"), Some(Value::Bool(request >= 5)), "{request}");
        assert_eq!(var("would_block"), Some(Value::Bool(request >= 3)), "{request}");
        assert_eq!(number(&answer, "remaining"), 4_u64.saturating_sub(request), "{request}");
        let policy = if (3..5).contains(&request) { "api.observe" } else { "api" };
        assert_eq!(var("policy"), Some(policy.into()), "{request}");
        assert_eq!(var("reason"), (request >= 3).then(|| "limit".into()), "{request}");
        let fields = format!("{:?}", var("ratelimit"));
        assert!(!fields.contains("observe"), "{fields}");
    }
    assert_eq!(scenario.counts("api"), [5, 0, 2, 0]);
    // Also when a limit in force has blocked the request.
    assert_eq!(scenario.counts("api.observe"), [3, 4, 0, 0]);
    assert_eq!(scenario.passed("192.0.2.9", 5).await, 4, "an override is not tried");
    assert_eq!(scenario.counts("api.observe"), [3, 4, 0, 0]);
}

/// A rule of HAProxy may deny a request by these numbers.
#[tokio::test]
async fn the_numbers_of_a_trial_are_not_answered() {
    for limits in ["unlimited", "deny"] {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"remaining\", \"retry_after\", \"ratelimit\", \"reason\"]\n\
             [policy.api]\nlimits = \"{limits}\"\nobserve = \"1/h burst 1\"\nkey = [\"ip\"]\n"
        ))
        .await;
        for reason in [None, Some("limit")] {
            let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
            let var = |name| answer.var(Scope::Transaction, name);
            assert_eq!(var("blocked"), Some(Value::Bool(limits == "deny")));
            let numbers = ["remaining", "retry_after", "ratelimit"].map(var);
            assert_eq!(numbers, [None, None, None]);
            let reason = if limits == "deny" { Some("denied") } else { reason };
            assert_eq!(var("reason"), reason.map(Value::from));
        }
        assert_eq!(scenario.counts("api.observe"), [1, 1, 0, 0]);
    }
}

#[tokio::test]
async fn a_trial_keeps_its_debts_when_it_changes() {
    let with = |trial: &str| format!("{}observe = \"{trial}\"\n", limits("\"100/d\""));
    let mut scenario = Scenario::new(&with("10/d")).await;
    assert_eq!(scenario.passed("192.0.2.1", 10).await, 10);
    scenario.reload(&with("20/d"));
    assert_eq!(scenario.passed("192.0.2.1", 20).await, 20);
    assert_eq!(scenario.counts("api.observe"), [20, 10, 0, 0]);
    scenario.advance_ms(1);
    let mut restarted = scenario.another(&with("25/d")).await;
    assert_eq!(restarted.passed("192.0.2.1", 20).await, 20);
    assert_eq!(restarted.counts("api.observe"), [5, 15, 0, 0]);
    // Without it, its limits are not charged any more.
    restarted.reload(&limits("\"100/d\""));
    assert_eq!(restarted.passed("192.0.2.1", 60).await, 50);
    assert_eq!(restarted.counts("api.observe"), [5, 15, 0, 0]);
}

#[tokio::test]
async fn an_exempt_client_is_allowed_without_a_charge_until_it_ends() {
    let file = "[policy.api]\nlimits = \"1/d burst 2\"\nkey = [\"ip\"]\nobserve = \"1/d\"\n\
                penalty = { ceiling = \"10d\" }\nipv6_prefix = 128\n[policy.api.overrides]\n\
                \"192.0.2.8\" = \"deny\"\n\"192.0.2.9\" = \"1/d burst 1\"\n\
                [policy.other]\nmessage = \"other\"\nlimits = \"1/d\"\n";
    let plain = "[policy.api]\nlimits = \"1/d burst 2\"\nkey = [\"ip\"]\nipv6_prefix = 128\n";
    for text in [file, plain] {
        let mut scenario = Scenario::new(text).await;
        assert_eq!(scenario.passed("192.0.2.1", 5).await, 2);
        let before = [scenario.counts("api"), scenario.counts("api.observe")];
        for client in ["192.0.2.1", "192.0.2.8", "192.0.2.9"] {
            scenario.exempt("api", client, 60);
            assert_eq!(scenario.passed(client, 20).await, 20, "{client}");
        }
        let [allowed, would_block, blocked, _] = scenario.counts("api");
        assert_eq!((allowed - before[0][0], would_block, blocked - before[0][2]), (60, 0, 0));
        assert_eq!(scenario.counts("api.observe"), before[1]);
        assert_eq!(scenario.passed("192.0.2.2", 5).await, 2, "another client");
        // By the clock at the decision: the housekeeping has not read it again.
        scenario.clock.advance(Nanos::from_secs(59));
        assert!(scenario.passes("192.0.2.1").await);
        scenario.clock.advance(Nanos::from_secs(1));
        assert!(!scenario.passes("192.0.2.1").await, "as blocked as before");
        scenario.housekeeping();
        assert!(!scenario.passes("192.0.2.1").await);
        // A reload leaves it alone, and it can be ended.
        scenario.exempt("api", "192.0.2.1", 60);
        scenario.reload(&format!("{plain}penalty = {{ ceiling = \"2d\" }}\n"));
        assert!(scenario.passes("192.0.2.1").await);
        scenario.exempt("api", "192.0.2.1", 0);
        assert!(!scenario.passes("192.0.2.1").await);
        scenario.exempt("nowhere", "192.0.2.1", 60);
        assert!(!scenario.passes("192.0.2.1").await, "that is for another policy");
    }
}

/// Only a policy with an exemption leaves the short path, and only as long as it has one.
#[tokio::test]
async fn a_policy_without_exemptions_keeps_its_short_path() {
    let one = |name: &str| format!("[policy.{name}]\nlimits = \"1/d\"\nkey = [\"ip\"]\n");
    let scenario = Scenario::new(&(one("api") + &one("other"))).await;
    let usual = || {
        let in_force = scenario.policies.load();
        in_force
            .each
            .iter()
            .map(|each| matches!(each.path, DecisionPath::Usual(_)))
            .collect::<Vec<_>>()
    };
    assert_eq!(usual(), [true, true]);
    scenario.exempt("other", "192.0.2.1", 60);
    assert_eq!(usual(), [true, false]);
    scenario.advance_ms(60_000);
    assert_eq!(usual(), [true, true]);
}

#[tokio::test]
async fn a_cost_that_can_never_be_allowed_is_the_stronger_reason() {
    let mut scenario = Scenario::new(
        "answer = [\"reason\"]\n[policy.api]\nlimits = [\"10/h burst 10\", \"1000/s burst 2\"]\n\
         key = [\"ip\"]\ncost = \"cost\"\n",
    )
    .await;
    let ip = address("192.0.2.1");
    for _ in 0..5 {
        scenario.ask(&[("ip", ip), ("cost", Value::Int32(2))]).await;
        scenario.advance_ms(10);
    }
    let answer = scenario.ask(&[("ip", ip), ("cost", Value::Int32(3))]).await;
    assert_eq!(answer.var(Scope::Transaction, "reason"), Some(Value::String(b"oversize")));
}

#[tokio::test]
async fn the_largest_cost_is_above_the_largest_burst() {
    let mut scenario =
        Scenario::of(flags(&["--rate", "1000000/ms", "--burst", "4294967294", "--cost", "cost"]))
            .await;
    for cost in [1_u64 << 32, u64::MAX, u64::from(u32::MAX)] {
        let answer = scenario.ask(&[("cost", Value::Uint64(cost))]).await;
        assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)), "{cost}");
    }
}

/// The flags that make a policy, as a command line has them.
#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    limit: LimitFlags,
}

/// The policies of these flags.
fn flags(flags: &[&str]) -> Policies {
    let Flags { limit } = Flags::parse_from(["gcra-spoa"].iter().chain(flags));
    policies_of_flags(&limit, None, Answers::blocked_only()).expect("the flags are valid")
}

/// How many cells a client asks for, after how many milliseconds.
fn step() -> impl Strategy<Value = (u64, u8, i32)> {
    (prop_oneof![Just(0), 0..2000_u64], 0..3_u8, prop_oneof![Just(1), 0..7_i32])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A trial changes nothing but `would_block`, and counts what a policy with these limits that
    /// only observes would count; and how much of that passes, which is in the list, too.
    #[test]
    fn a_trial_is_a_policy_beside_that_observes(
        steps in prop::collection::vec(step(), 1..60),
        (rate, burst, more) in (1..5_u32, 1..9_u32, 0..8_usize),
        (trial_rate, trial_burst, trial_more) in (1..5_u32, 1..9_u32, any::<bool>()),
    ) {
        let limit = format!("{rate}/s burst {burst}");
        let (limits, penalty) = match more {
            0 => ("\"deny\"".to_owned(), ""),
            1 => ("\"unlimited\"".to_owned(), ""),
            2 | 3 => (format!("[\"{limit}\", \"2/s burst 3\"]"), ""),
            4 => (format!("\"{limit}\""), "penalty = { ceiling = \"2s\" }\n"),
            _ => (format!("\"{limit}\""), ""),
        };
        let trial = format!("{trial_rate}/s burst {trial_burst}");
        let another = if trial_more { ", \"2/s burst 4\"" } else { "" };
        let trial = format!("\"{trial}\"{another}");
        let policy = |limits: &str, more: &str| {
            format!(
                "answer = [\"would_block\"]\n[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\n\
                 cost = \"cost\"\n{more}"
            )
        };
        let overrides = "[policy.api.overrides]\n\"192.0.2.2\" = \"2/s burst 2\"\n";
        let without = policy(&limits, &format!("{penalty}{overrides}"));
        let with = policy(&limits, &format!("{penalty}observe = [{trial}]\n{overrides}"));
        let beside = policy(&format!("[{trial}]"), "mode = \"observe\"\n");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (answers, counts, newly_blocked) = runtime.block_on(async {
            let mut with = Scenario::new(&with).await;
            let mut without = Scenario::new(&without).await;
            let mut beside = Scenario::new(&beside).await;
            let mut answers = Vec::new();
            for (pause_ms, client, cells) in &steps {
                let pause = Nanos::from_millis(*pause_ms);
                let args = [
                    ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                    ("cost", Value::Int32(*cells)),
                ];
                let truth = |answer: &Answer, name| {
                    answer.var(Scope::Transaction, name) == Some(Value::Bool(true))
                };
                for scenario in [&with, &without, &beside] {
                    scenario.clock.advance(pause);
                }
                let (one, other) = (with.ask(&args).await, without.ask(&args).await);
                // The client with an override is not tried.
                let tried = *client != 2 && truth(&beside.ask(&args).await, "would_block");
                answers.push((
                    [truth(&one, "blocked"), truth(&one, "would_block")],
                    [truth(&other, "blocked"), truth(&other, "blocked") || tried],
                ));
            }
            let trial = with.stats.policy("api.observe");
            let listed = trial.heaviest(Outcome::WouldBlock, Minutes::Now);
            let listed: u64 = listed.heaviest.iter().map(|client| client.requests).sum();
            let newly_blocked = [with.newly_blocked("api.observe"), listed];
            (answers, [with.counts("api.observe"), beside.counts("api")], newly_blocked)
        });
        for (step, (with, without)) in answers.iter().enumerate() {
            prop_assert_eq!(with, without, "step {}", step);
        }
        prop_assert_eq!(counts[0], counts[1]);
        let passed = answers.iter().filter(|(with, _)| *with == [false, true]).count() as u64;
        prop_assert_eq!(newly_blocked, [passed; 2]);
    }

    /// One limit decides the same, whether it comes from flags or from a file, in the usual case
    /// and in all others: with more variables, with an override for another client, with a
    /// second limit that never denies, with a trial, with an arg that could stand for the key,
    /// with another client that is exempt, with an earlier policy under which no client owes
    /// anything, and in a policy that only observes.
    #[test]
    fn every_shape_of_a_limit_decides_the_same(
        steps in prop::collection::vec(step(), 1..40),
        rate in 1..5_u32,
        burst in 1..9_u32,
    ) {
        let limit = format!("{rate}/s burst {burst}");
        let policy = |limits: &str, more: &str| {
            format!("[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\ncost = \"cost\"\n{more}")
        };
        let one = policy(&format!("\"{limit}\""), "");
        let with_variables = format!("answer = [\"reason\", \"ratelimit\", \"remaining\"]\n{one}");
        let with_override = format!("{one}[policy.api.overrides]\n\"203.0.113.9\" = \"deny\"\n");
        let with_two = policy(&format!("[\"{limit}\", \"1000000/s\"]"), "");
        let with_trial = policy(&format!("\"{limit}\""), "observe = \"1/d\"\n");
        let with_fallback = one.replace("[\"ip\"]", "[\"ip\", \"else other\"]");
        let observed = policy(&format!("\"{limit}\""), "mode = \"observe\"\n");
        let observed = format!("answer = [\"would_block\"]\n{observed}");
        let earlier = policy("\"1/s burst 1\"", "");
        let (rate, burst) = (format!("{rate}/s"), burst.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answers = runtime.block_on(async {
            let reloaded = Scenario::new(&earlier).await;
            reloaded.reload(&one);
            let of_flags =
                flags(&["--rate", &rate, "--burst", &burst, "--key", "ip", "--cost", "cost"]);
            let with_exemption = Scenario::new(&one).await;
            with_exemption.exempt("api", "203.0.113.9", 3600);
            let mut shapes = vec![Scenario::of(of_flags).await, reloaded, with_exemption];
            for text in [
                &one, &with_variables, &with_override, &with_two, &with_trial, &with_fallback,
                &observed,
            ] {
                shapes.push(Scenario::new(text).await);
            }
            let observed = shapes.len() - 1;
            let mut answers = Vec::new();
            for (pause_ms, client, cells) in &steps {
                let ip = Value::Ipv4([192, 0, 2, *client].into());
                let mut said = Vec::new();
                for (place, shape) in shapes.iter_mut().enumerate() {
                    shape.clock.advance(Nanos::from_millis(*pause_ms));
                    let answer = shape.ask(&[("ip", ip), ("cost", Value::Int32(*cells))]).await;
                    let name = if place == observed { "would_block" } else { "blocked" };
                    said.push(answer.var(Scope::Transaction, name) == Some(Value::Bool(true)));
                }
                answers.push(said);
            }
            answers
        });
        for (step, said) in answers.iter().enumerate() {
            prop_assert!(said.iter().all(|one| *one == said[0]), "step {}: {:?}", step, said);
        }
    }
}

/// A request of a queue: when it came in, or when it left, in nanoseconds, and what it costs.
type Left = (u64, u32);

/// When a request leaves a queue that lets nobody overtake and keeps to a limit: at the earliest
/// moment at which what has left in each interval before it stays within `burst + t / T`.
fn leaves(queue: &[Left], (now, cells): Left, interval_ns: u64, burst: u32) -> u64 {
    let mut within = u64::from(cells);
    let earliest = queue.iter().rev().map(|&(at, cells)| {
        within += u64::from(cells);
        at + within.saturating_sub(burst.into()) * interval_ns
    });
    earliest.max().unwrap_or(0).max(queue.last().map_or(0, |(at, _)| *at)).max(now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two agents on one table are one queue for each client. Each answer is that of the queue:
    /// the delay to the millisecond, and what would wait for too long is blocked, with the time
    /// until the queue is short enough. A request that costs nothing never waits.
    #[test]
    fn with_max_delay_all_agents_are_one_queue(
        steps in prop::collection::vec((step(), any::<bool>()), 1..80),
        (rate, burst, max_delay_ms) in (1..9_u32, 1..7_u32, 1..4_000_u64),
        second in prop::option::of((1..9_u32, 1..7_u32)),
        has_override in any::<bool>(),
    ) {
        let limit = |(rate, burst)| format!("\"{rate}/s burst {burst}\"");
        let own = (rate, burst);
        let several = second.map_or(String::new(), |more| format!(", {}", limit(more)));
        let of_policy = if has_override { "\"1/d\"".to_owned() } else { limit(own) + &several };
        let overrides = (0..4).map(|client| {
            format!("\"192.0.2.{client}\" = [{}{several}]\n", limit(own))
        });
        let overrides: String = overrides.filter(|_| has_override).collect();
        let text = format!(
            "answer = [\"retry_after_ms\", \"remaining\", \"reset\"]\n[policy.api]\n\
             limits = [{of_policy}]\nkey = [\"ip\"]\ncost = \"cost\"\n\
             max_delay = \"{max_delay_ms}ms\"\n[policy.api.overrides]\n{overrides}"
        );
        let interval = |rate: u32| 1_000_000_000_u64.div_ceil(rate.into());
        let limits: Vec<_> = [own].into_iter().chain(second).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut first = Scenario::new(&text).await;
            let mut other = first.another(&text).await;
            let mut queues = vec![vec![Vec::<Left>::new(); limits.len()]; 4];
            let mut delayed = 0;
            for ((pause_ms, client, cells), by_other) in &steps {
                first.clock.advance(Nanos::from_millis(*pause_ms));
                let now = first.table.load().now().0;
                let agent = if *by_other { &mut other } else { &mut first };
                let args = [
                    ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                    ("cost", Value::Int32(*cells)),
                ];
                let answer = agent.ask(&args).await;
                let blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
                let said = (blocked, number(&answer, "delay_ms"));
                let cells = u32::try_from(*cells).unwrap();
                let queue = &mut queues[usize::from(*client)];
                let delays: Vec<_> = limits
                    .iter()
                    .zip(&*queue)
                    .map(|(limit, queue)| {
                        leaves(queue, (now, cells), interval(limit.0), limit.1) - now
                    })
                    .collect();
                let longest = delays.iter().copied().max().unwrap_or(0);
                let most = max_delay_ms * 1_000_000;
                let expected = match cells {
                    0 => (false, 0),
                    _ if limits.iter().any(|limit| cells > limit.1) => (true, 0),
                    _ if longest > most => {
                        let wait_ms = (longest - most).div_ceil(1_000_000);
                        if number(&answer, "retry_after_ms") != wait_ms {
                            return Err(format!("{answer:?} instead of a wait of {wait_ms} ms"));
                        }
                        (true, 0)
                    }
                    _ => {
                        for (queue, delay) in queue.iter_mut().zip(&delays) {
                            queue.push((now + delay, cells));
                        }
                        (false, longest.div_ceil(1_000_000))
                    }
                };
                if said != expected {
                    return Err(format!("{said:?} instead of {expected:?}"));
                }
                if expected.1 > 0 {
                    delayed += 1;
                    let [left, wait] = ["remaining", "retry_after_ms"].map(|name| {
                        number(&answer, name)
                    });
                    // A full burst is owed, and more.
                    if (left, wait) != (0, 0) || number(&answer, "reset") * 1_000 < expected.1 {
                        return Err(format!("{answer:?}"));
                    }
                }
            }
            let counted = [&first, &other].map(|agent| agent.stats.policy("api").delayed());
            match counted.iter().sum::<u64>() {
                sum if sum == delayed => Ok(()),
                sum => Err(format!("{sum} were counted instead of {delayed}")),
            }
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// A client in the queue stays in it when the limits change: as many requests as it owes go before
/// the next one, at the new rate.
#[tokio::test]
async fn a_queue_is_kept_when_limits_change() {
    let text = |limit: &str, more: &str| {
        format!(
            "answer = [\"retry_after_ms\"]\n[policy.api]\nlimits = \"{limit}\"\nkey = \
             [\"ip\"]\n{more}"
        )
    };
    let ip = [("ip", address("192.0.2.1"))];
    let mut scenario = Scenario::new(&text("10/s burst 1", "max_delay = \"2s\"\n")).await;
    for place in 0..=10 {
        assert_eq!(number(&scenario.ask(&ip).await, "delay_ms"), place * 100);
    }
    let said = scenario.explain(&ip).in_words();
    assert!(said.contains("a request now is allowed, with a delay of 1100 ms\n"), "{said}");
    assert!(
        said.contains(
            "none of 1 left; a request now is delayed by 1100 ms, all 1 again in 1100 ms"
        ),
        "{said}"
    );
    // The 11 requests are 11 at the new rate.
    let changed = text("5/s burst 1", "max_delay = \"3s\"\n");
    scenario.reload(&changed);
    assert_eq!(number(&scenario.ask(&ip).await, "delay_ms"), 11 * 200);
    // A process that starts finds them in the table, and so does one after it.
    scenario.advance_ms(100);
    let mut started = scenario.another(&changed).await;
    assert_eq!(number(&started.ask(&ip).await, "delay_ms"), 12 * 200 - 100);
    scenario.advance_ms(100);
    let mut restarted = scenario.another(&text("5/s burst 1", "max_delay = \"4s\"\n")).await;
    assert_eq!(number(&restarted.ask(&ip).await, "delay_ms"), 13 * 200 - 200);
    // Up to the longest delay, which is shorter now.
    scenario.reload(&text("5/s burst 1", "max_delay = \"1s\"\n"));
    let answer = scenario.ask(&ip).await;
    assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)));
    assert_eq!(number(&answer, "retry_after_ms"), 200);
    assert_eq!(number(&answer, "delay_ms"), 0);
    let said = scenario.explain(&ip).in_words();
    let blocked = "blocked; the next one is allowed in 200 ms with a delay of 1000 ms\n";
    assert!(said.contains(blocked), "{said}");
    let next = "blocked; the next request is allowed in 200 ms with a delay of 1000 ms, all 1 ";
    assert!(said.contains(next), "{said}");
    // Without it, a full burst is owed.
    scenario.reload(&text("5/s burst 1", ""));
    let answer = scenario.ask(&ip).await;
    assert_eq!(number(&answer, "retry_after_ms"), 200);
    assert_eq!(answer.var(Scope::Transaction, "delay_ms"), None);
}

/// A policy that only observes, and a trial, delay nothing. They count what they would delay.
#[tokio::test]
async fn what_only_observes_delays_nothing() {
    let ip = [("ip", address("192.0.2.1"))];
    for (text, policy) in [
        ("limits = \"1/s burst 2\"\nmode = \"observe\"", "api"),
        ("limits = \"unlimited\"\nobserve = \"1/s burst 2\"", "api.observe"),
    ] {
        let text = format!(
            "answer = [\"would_block\"]\n[policy.api]\nkey = [\"ip\"]\nmax_delay = \"2s\"\n{text}"
        );
        let mut scenario = Scenario::new(&text).await;
        for place in 0..6 {
            let answer = scenario.ask(&ip).await;
            assert_eq!(answer.var(Scope::Transaction, "delay_ms"), None);
            let would_block = answer.var(Scope::Transaction, "would_block");
            assert_eq!(would_block, Some(Value::Bool(place >= 4)), "{place}");
        }
        assert_eq!(scenario.counts(policy), [4, 2, 0, 0]);
        assert_eq!(scenario.stats.policy(policy).delayed(), 2);
    }
}

/// HAProxy may ask twice about a request. The second answer leaves the delay of the first one as
/// it is, unless the policy that decides about it delays requests, too.
#[tokio::test]
async fn an_answer_leaves_the_delay_of_another_policy_as_it_is() {
    let mut scenario = Scenario::new(
        "answer = [\"reason\"]\n[policy.api]\nlimits = \"1/s burst 1\"\nkey = [\"ip\"]\n\
         max_delay = \"2s\"\n[policy.api.overrides]\n\"192.0.2.8\" = \"unlimited\"\n\
         [policy.more]\nlimits = \"1/s burst 2\"\nkey = [\"ip\"]\n[policy.tried]\n\
         limits = \"1/s burst 1\"\nmode = \"observe\"\nmax_delay = \"1s\"\nkey = [\"ip\"]\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    let none = Some(Value::Null);
    let delay = |value: u32| Some(Value::Uint32(value));
    for (messages, expected) in [
        (&["api"][..], delay(0)),
        (&["api"], delay(1_000)),
        (&["more"], none),
        (&["tried"], none),
        (&["tried", "more"], none),
        // What is blocked does not wait, whoever blocks it.
        (&["more"], delay(0)),
        (&["more", "api"], delay(0)),
    ] {
        let messages: Vec<_> = messages.iter().map(|name| (*name, &ip[..])).collect();
        let answer = scenario.client.ask(&messages).await.unwrap();
        let said = answer.var(Scope::Transaction, "delay_ms").or(Some(Value::Null));
        assert_eq!(said, expected, "{messages:?}: {answer:?}");
    }
    for (client, exempt) in [("192.0.2.8", false), ("192.0.2.9", true)] {
        if exempt {
            scenario.exempt("api", client, 60);
        }
        let answer = scenario.ask(&[("ip", address(client))]).await;
        assert_eq!(answer.var(Scope::Transaction, "delay_ms"), delay(0), "{client}");
    }
}

/// HAProxy may agree to frames of 256 bytes. What does not fit then is left out whole, and never
/// the delay, without which the limit would be exceeded.
#[tokio::test]
async fn the_delay_is_in_the_smallest_answer() {
    let [one, two] = ["api", "more"].map(|name| {
        format!(
            "[policy.policy-with-a-name-as-long-as-this-{name}]\nmessage = \"{name}\"\n\
             limits = \"2/s burst 2\"\nkey = [\"ip\"]\nmax_delay = \"2s\"\n"
        )
    });
    let names = [
        "headers",
        "ratelimit",
        "policy",
        "reason",
        "would_block",
        "remaining",
        "limit",
        "retry_after",
        "retry_after_ms",
        "reset",
        "delay_ms",
    ];
    let ip = [("ip", address("192.0.2.1"))];
    for place in 0..names.len() {
        let mut answer = names;
        answer.rotate_left(place);
        let text = format!("answer = {answer:?}\n{one}{two}");
        let mut whole = Scenario::new(&text).await;
        let mut small = Scenario::new(&text).await;
        assert!(policies(&text).about_frames(16_380).is_none());
        let said = policies(&text).about_frames(256).unwrap();
        assert!(said.starts_with("with --max-frame-size 256 some answers may be too "), "{said}");
        let mut limits = spop_agent::Limits::default();
        limits.max_frame_size = 256;
        let limiter = Limiter::new(small.table.clone(), small.policies.clone());
        small.client = Client::of(Agent::new(limiter).limits(limits)).await.unwrap();
        let both = [("api", &ip[..]), ("more", &ip)];
        let (mut delayed, mut left_out) = (0, 0);
        for messages in [&both[..1]; 7].into_iter().chain([&both[..]; 7]) {
            let whole = whole.client.ask(messages).await.unwrap();
            let small = small.client.ask(messages).await.unwrap();
            for name in ["blocked"].into_iter().chain(names) {
                let value = small.var(Scope::Transaction, name);
                let is_short = ["blocked", "delay_ms"].contains(&name);
                if is_short || value.is_some() {
                    assert_eq!(value, whole.var(Scope::Transaction, name), "{name}: {small:?}");
                }
            }
            delayed += u32::from(number(&small, "delay_ms") > 0);
            // What comes after a list that does not fit is in the answer all the same.
            if small.var(Scope::Transaction, "headers").is_none() {
                left_out += 1;
                let next = small.var(Scope::Transaction, "policy");
                assert!(place > 0 || next.is_some(), "{small:?}");
            }
        }
        assert_eq!(delayed, 4);
        assert!(left_out >= 7, "two policies have longer header fields");
    }
}

/// A client that asks while it is blocked pays the penalty on top of its place in the queue.
#[tokio::test]
async fn a_penalty_comes_on_top_of_the_longest_delay() {
    let mut scenario = Scenario::new(
        "answer = [\"retry_after_ms\"]\n[policy.api]\nlimits = \"10/s burst 1\"\n\
         key = [\"ip\"]\nmax_delay = \"150ms\"\npenalty = { cells = 2, ceiling = \"200ms\" }\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    let mut said = Vec::new();
    for _ in 0..5 {
        let answer = scenario.ask(&ip).await;
        said.push((number(&answer, "delay_ms"), number(&answer, "retry_after_ms")));
    }
    // The third one would wait for 200 ms, which is 50 too many, and pays 200 ms. Then the ceiling
    // is reached.
    assert_eq!(said, [(0, 0), (100, 0), (0, 250), (0, 250), (0, 250)]);
    scenario.advance_ms(250);
    let answer = scenario.ask(&ip).await;
    assert_eq!((number(&answer, "delay_ms"), number(&answer, "retry_after_ms")), (150, 0));
}

/// What a file can say in the property below: limits, and everything that changes what they do.
#[derive(Clone, Debug)]
struct Shape {
    limits: Vec<(u32, u32)>,
    /// Beside them, so many in each hour of a zone.
    count: Option<u32>,
    overridden: Option<&'static str>,
    has_penalty: bool,
    max_delay_ms: u64,
    observes: bool,
    has_trial: bool,
    prefix: u8,
    has_fallback: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let overrides = [None, Some("2/s burst 4"), Some("unlimited"), Some("deny")];
    (
        (prop::collection::vec((1..4_u32, 1..7_u32), 1..3), prop::option::of(1..12_u32)),
        prop::sample::select(overrides.to_vec()),
        (any::<bool>(), prop::sample::select(vec![0, 0, 300, 1_500])),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::sample::select(vec![24_u8, 31, 32]),
        any::<bool>(),
    )
        .prop_map(|(limits, overridden, more, observes, has_trial, prefix, has_fallback)| {
            Shape {
                limits: limits.0,
                count: limits.1,
                overridden,
                has_penalty: more.0,
                max_delay_ms: more.1,
                observes,
                has_trial,
                prefix,
                has_fallback,
            }
        })
}

impl Shape {
    fn text(&self) -> String {
        let Self { limits, prefix, .. } = self;
        let mut limits: Vec<_> =
            limits.iter().map(|(rate, burst)| format!("\"{rate}/s burst {burst}\"")).collect();
        let count = |count| format!("{{ count = {count}, window = \"hour Asia/Kolkata\" }}");
        limits.extend(self.count.map(count));
        let key = if self.has_fallback { "\"user\", \"else ip\"" } else { "\"ip\"" };
        let mut text = format!(
            "answer = [\"would_block\", \"retry_after_ms\", \"reason\", \"policy\"]\n\
             [policy.gold]\nmessage = \"api\"\nwhen = {{ plan = \"gold\" }}\n\
             limits = \"5/s\"\nkey = [\"ip\"]\n\
             [policy.api]\nlimits = [{}]\nkey = [{key}]\ncost = \"cost\"\n\
             lowercase = true\nipv4_prefix = {prefix}\n",
            limits.join(", ")
        );
        if self.max_delay_ms > 0 {
            text.push_str(&format!("max_delay = \"{}ms\"\n", self.max_delay_ms));
        }
        for (is_wanted, line) in [
            (self.has_penalty, "penalty = { cells = 1, ceiling = \"5s\" }\n"),
            (self.observes, "mode = \"observe\"\n"),
            (self.has_trial && !self.observes, "observe = [\"1/s burst 2\"]\n"),
        ] {
            text.push_str(if is_wanted { line } else { "" });
        }
        if let Some(limits) = self.overridden {
            text.push_str(&format!("[policy.api.overrides]\n\"192.0.2.1\" = \"{limits}\"\n"));
        }
        text
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// What `explain` says about a request before it is sent is what the agent answers then:
    /// whatever the policies, after reloads, and for clients that are exempt.
    #[test]
    fn explain_predicts_the_answer(
        shapes in prop::collection::vec(shape(), 1..4),
        steps in prop::collection::vec((step(), 0..12_u8, 0..12_u8), 1..40),
    ) {
        let outcome = explain_predicts(&shapes, 1, &steps);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    /// Also what is owed by the keys and numbers of several changes, of which the register says
    /// nothing.
    #[test]
    fn explain_predicts_the_answer_after_many_reloads(
        shapes in prop::collection::vec(shape(), 3..6),
        steps in prop::collection::vec((short_step(), 0..12_u8, 0..4_u8), 20..60),
    ) {
        let outcome = explain_predicts(&shapes, 4, &steps);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// As [`step`], in which little is paid off.
fn short_step() -> impl Strategy<Value = (u64, u8, i32)> {
    (0..150_u64, 0..3_u8, 0..4_i32)
}

/// Takes these steps: a step, what happens before it (a reload, if the number is below
/// `reloads`), and what else is in its message.
fn explain_predicts(
    shapes: &[Shape],
    reloads: u8,
    steps: &[((u64, u8, i32), u8, u8)],
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut next = shapes.iter().cycle();
        let mut scenario = Scenario::new(&next.next().unwrap().text()).await;
        for ((pause_ms, client, cells), event, more) in steps {
            scenario.advance_ms(*pause_ms);
            match event {
                event if *event < reloads => {
                    // The table's register tells by the time which numbers came later, and no two
                    // reloads of a process are in one nanosecond.
                    scenario.clock.advance(Nanos(1));
                    scenario.reload(&next.next().unwrap().text());
                }
                11 => scenario.exempt("api", "ip=192.0.2.1", 1),
                _ => {}
            }
            let mut args = vec![
                ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                ("cost", Value::Int32(*cells)),
            ];
            match more {
                0 => args.push(("plan", "gold".into())),
                1 => args.push(("user", "Alice".into())),
                2 => args.push(("user", "ALICE".into())),
                3 => args.push(("user", Value::Null)),
                _ => {}
            }
            let explanation = scenario.explain(&args);
            let answer = scenario.ask(&args).await;
            if let Some(difference) = difference(&explanation, &answer) {
                return Err(format!("{difference}: {explanation:#?} {answer:#?}"));
            }
        }
        Ok(())
    })
}

/// What an explanation and the answer to its message say differently.
fn difference(explanation: &Explanation, answer: &Answer) -> Option<&'static str> {
    let decided = explanation.decided.as_ref().expect("all args are there");
    let var = |name: &str| answer.var(Scope::Transaction, name);
    let text = |name: &str| {
        let bytes = var(name)?.as_bytes().map(Vec::from)?;
        Some(String::from_utf8(bytes).unwrap())
    };
    if var("blocked") != Some(Value::Bool(decided.blocked)) {
        return Some("blocked");
    }
    if var("would_block") != Some(Value::Bool(decided.would_block)) {
        return Some("would_block");
    }
    let wait = match var("retry_after_ms") {
        Some(_) => number(answer, "retry_after_ms"),
        None => 0,
    };
    if decided.exempt_ms.is_some() {
        return (wait > 0).then_some("wait of an exempt client");
    }
    let delay = var("delay_ms").map_or(0, |_| number(answer, "delay_ms"));
    if decided.delay_ms != delay {
        return Some("delay_ms");
    }
    if decided.rule == RuleKind::Limits && decided.retry_after_ms_if_asked != wait {
        return Some("retry_after_ms");
    }
    // A limit that is only observed gives the verdict where no limit in force does.
    if text("policy").is_some_and(|name| name.ends_with(".observe")) {
        return None;
    }
    if explanation.policy != text("policy") {
        return Some("policy");
    }
    (decided.reason.map(Reason::as_str) != text("reason").as_deref()).then_some("reason")
}

const FAILED_LOGINS: &str = "answer = [\"remaining\", \"retry_after\"]\n[policy.api]\nlimits = \
                             \"3/m\"\nkey = [\"ip\"]\nsettle = \"failed\"\n";

const TOKENS: &str = "answer = [\"remaining\"]\n[policy.api]\nlimits = \"10/s burst 100\"\n\
                      key = [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\nsettle = \
                      \"usage\"\nmax_debt = \"5s\"\n";

impl Scenario {
    /// The value of an integer variable.
    fn integer(answer: &Answer, name: &str) -> Option<i64> {
        answer
            .var(Scope::Transaction, name)
            .and_then(|value| value.as_integer())
            .map(|integer| i64::try_from(integer).unwrap())
    }

    fn is_blocked(answer: &Answer) -> bool {
        answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true))
    }

    /// What the answer has reserved.
    fn reserved(answer: &Answer) -> Option<String> {
        let reserved = answer.var(Scope::Transaction, "reserved")?;
        Some(String::from_utf8(reserved.as_bytes()?.to_vec()).unwrap())
    }

    /// The same, as if it had been reserved so many milliseconds after 1970.
    fn reserved_at(answer: &Answer, ms: u128) -> String {
        let reserved = Self::reserved(answer).unwrap();
        let words: Vec<_> = reserved.split(' ').collect();
        let [policy, cells, _, marks] = words[..] else { panic!("{reserved}") };
        format!("{policy} {cells} {ms} {marks}")
    }

    async fn estimate(&mut self, key: &str, estimate: Value<'_>) -> Answer {
        self.ask(&[("key", key.into()), ("estimate", estimate)]).await
    }

    async fn settle(&mut self, key: &str, tokens: Value<'_>, reserved: Option<&str>) -> Answer {
        let reserved = reserved.map_or(Value::Null, Value::from);
        let args = [("key", key.into()), ("tokens", tokens), ("reserved", reserved)];
        self.client.ask(&[("usage", &args)]).await.unwrap()
    }

    fn settled(&self, policy: &str) -> ([u64; 7], [u64; 4]) {
        let stats = self.stats.policy(policy);
        (stats.settled().map(|(_, count)| count), stats.settled_cells().map(|(_, count)| count))
    }
}

#[tokio::test]
async fn only_responses_charge_and_a_request_needs_a_cell() {
    let mut scenario = Scenario::new(FAILED_LOGINS).await;
    let ip: Value<'_> = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    for left in [3, 2, 1] {
        for _ in 0..5 {
            let answer = scenario.ask(&[("ip", ip)]).await;
            assert!(!Scenario::is_blocked(&answer));
            assert_eq!(Scenario::integer(&answer, "remaining"), Some(left));
        }
        let failed = scenario.client.ask(&[("failed", &[("ip", ip)])]).await.unwrap();
        assert_eq!(Scenario::integer(&failed, "remaining"), Some(left - 1));
        for name in ["blocked", "retry_after", "reserved"] {
            assert_eq!(failed.var(Scope::Transaction, name), None, "that is of the request");
        }
    }
    let answer = scenario.ask(&[("ip", ip)]).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::integer(&answer, "retry_after"), Some(20));
    assert_eq!(scenario.counts("api"), [15, 0, 1, 0], "responses are no requests");
    let words = scenario.explain(&[("ip", ip)]).in_words();
    assert!(
        words.contains("a request now is blocked; the next one is allowed in 20 s"),
        "{words}"
    );
    // Those that were under way fail, too.
    for _ in 0..2 {
        scenario.client.ask(&[("failed", &[("ip", ip)])]).await.unwrap();
    }
    let words = scenario.explain(&[("ip", ip)]).in_words();
    let beyond = "; 40 s of that is beyond the burst, charged by responses";
    assert!(words.contains(beyond), "{words}");
    scenario.advance_ms(59_999);
    assert!(Scenario::is_blocked(&scenario.ask(&[("ip", ip)]).await));
    scenario.advance_ms(1);
    assert!(!Scenario::is_blocked(&scenario.ask(&[("ip", ip)]).await));
    assert_eq!(scenario.settled("api"), ([5, 0, 0, 0, 0, 0, 0], [5, 0, 2, 0]));
    // A response without a key settles nothing.
    scenario.client.ask(&[("failed", &[("ip", Value::Null)])]).await.unwrap();
    assert_eq!(scenario.counts("api")[3], 1);
}

#[tokio::test]
async fn what_a_response_cost_corrects_what_was_reserved() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 60_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(40));
    let reserved = Scenario::reserved(&answer).unwrap();
    assert!(reserved.starts_with("api 60 "), "{reserved}");
    let answer = scenario.estimate("a", 41_i32.into()).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None);

    // It has cost less: the rest is given back, and can be spent.
    let answer = scenario.settle("a", "10".into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    assert_eq!(scenario.settled("api"), ([0, 1, 0, 0, 0, 0, 0], [0, 50, 0, 0]));
    // It has cost more: beyond the burst, and up to the largest debt, which are 50 cells.
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let answer = scenario.settle("a", 130_i64.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(0));
    scenario.settle("a", 110_i32.into(), None).await;
    assert_eq!(scenario.settled("api"), ([2, 1, 0, 0, 0, 0, 0], [50, 50, 50, 100]));
    // The debt is 150 cells now.
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(Scenario::is_blocked(&answer), "a request needs a cell, whatever it reserves");
    scenario.advance_ms(5_099);
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    scenario.advance_ms(1);
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(!Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None, "nothing is reserved");
    assert_eq!(scenario.counts("api")[0], 3);

    // Another client: the response says nothing, or what was reserved.
    let answer = scenario.estimate("b", 70_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let costs: [Value<'_>; 4] = [Value::Null, (-1_i32).into(), "much".into(), 70_u64.into()];
    for cost in costs {
        let answer = scenario.settle("b", cost, Some(&reserved)).await;
        assert_eq!(Scenario::integer(&answer, "remaining"), Some(30), "{cost:?}");
    }
    let (outcomes, _) = scenario.settled("api");
    assert_eq!(outcomes[2..], [1, 0, 0, 3, 0]);
}

#[tokio::test]
async fn a_late_response_gives_nothing_back_and_still_charges() {
    let mut scenario = Scenario::new(TOKENS).await;
    let asked = scenario.estimate("a", 70_i32.into()).await;
    let now = gcra_limiter::reservations::wall_clock().as_millis();
    let late = Scenario::reserved_at(&asked, now - 601_000);
    let answer = scenario.settle("a", 10_i32.into(), Some(&late)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(30));
    assert_eq!(scenario.settled("api").0, [0, 0, 0, 1, 0, 0, 0]);
    let answer = scenario.settle("a", 80_i32.into(), Some(&late)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(20));
    // A clock that is ahead, on another machine.
    let early = Scenario::reserved_at(&asked, now + 3_600_000);
    let answer = scenario.settle("a", 60_i32.into(), Some(&early)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(30));
}

#[tokio::test]
async fn each_policy_and_each_limit_is_settled_for_itself() {
    let text = "answer = [\"ratelimit\"]\n\
                [policy.api]\nlimits = [{ name = \"few\", rate = \"1/h\", burst = 10 }, \
                { name = \"many\", rate = \"1/h\", burst = 100 }]\nkey = [\"key\"]\n\
                reserve = 5\ncost = \"tokens\"\nsettle = \"usage\"\nmax_debt = \"2h\"\n\
                [policy.tenant]\nlimits = \"1/h burst 50\"\nkey = [\"tenant\"]\nreserve = 7\n\
                cost = \"tokens\"\nsettle = \"usage-tenant\"\n";
    let mut scenario = Scenario::new(text).await;
    let (key, tenant) = (("key", "a".into()), ("tenant", "t".into()));
    let answer = scenario.client.ask(&[("api", &[key]), ("tenant", &[tenant])]).await.unwrap();
    let reserved = Scenario::reserved(&answer).unwrap();
    let entries: Vec<Vec<_>> = reserved.split(", ").map(|it| it.split(' ').collect()).collect();
    let [api, tenants] = &entries[..] else { panic!("{reserved}") };
    assert_eq!((&api[..2], &tenants[..2]), (&["api", "5"][..], &["tenant", "7"][..]));
    let marks = [api, tenants].map(|entry| entry[3].split('.').count());
    assert_eq!(marks, [2, 1], "one for each limit");
    let text = |answer: &Answer| {
        let value = answer.var(Scope::Transaction, "ratelimit").unwrap();
        let text = String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap();
        text.split(";t=").map(|it| it.rsplit_once(' ').map_or(it, |it| it.1).to_owned()).collect()
    };
    let left: Vec<String> = text(&answer);
    assert_eq!(left[..3], ["\"api.few\";r=5", "\"api.many\";r=95", "\"tenant\";r=43"]);
    // The smaller limit can owe 12 cells, and the larger one all of it.
    let brought = ("reserved", reserved.as_str().into());
    let both = [
        ("usage", &[key, ("tokens", 20_i32.into()), brought][..]),
        ("usage-tenant", &[tenant, ("tokens", 2_i32.into()), brought][..]),
    ];
    let answer = scenario.client.ask(&both).await.unwrap();
    let left: Vec<String> = text(&answer);
    assert_eq!(left[..3], ["\"api.few\";r=0", "\"api.many\";r=80", "\"tenant\";r=48"]);
    assert_eq!(scenario.settled("api"), ([1, 0, 0, 0, 0, 0, 0], [15, 0, 2, 8]));
    assert_eq!(scenario.settled("tenant"), ([0, 1, 0, 0, 0, 0, 0], [0, 5, 0, 0]));
    // One of the two limits has no cell.
    assert!(Scenario::is_blocked(&scenario.ask(&[key]).await));
}

#[tokio::test]
async fn settling_knows_overrides_modes_and_exemptions() {
    let more = "mode = \"observe\"\n[policy.api.overrides]\nunlimited = \"unlimited\"\n\
                large = \"10/s burst 1000\"\n";
    let mut scenario = Scenario::new(&format!("{TOKENS}{more}")).await;
    let answer = scenario.estimate("unlimited", 60_i32.into()).await;
    assert_eq!(Scenario::reserved(&answer), None, "nothing is charged");
    scenario.settle("unlimited", 60_i32.into(), None).await;
    let answer = scenario.estimate("large", 600_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let answer = scenario.settle("large", 100_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(900));
    // What would be blocked goes on, and its response is charged.
    scenario.estimate("a", 100_i32.into()).await;
    let answer = scenario.estimate("a", 10_i32.into()).await;
    assert!(!Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None, "nothing was reserved for it");
    let before = scenario.settled("api").1[0];
    scenario.settle("a", 10_i32.into(), None).await;
    assert_eq!(scenario.settled("api").1[0] - before, 10);

    let mut scenario = Scenario::new(TOKENS).await;
    scenario.exempt("api", "a", 60);
    let answer = scenario.estimate("a", 60_i32.into()).await;
    assert_eq!(Scenario::reserved(&answer), None);
    scenario.settle("a", 60_i32.into(), None).await;
    scenario.exempt("api", "a", 0);
    let answer = scenario.estimate("a", Value::Null).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(100));
}

#[tokio::test]
async fn what_responses_charged_and_what_is_reserved_survive_a_reload() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.reload(&TOKENS.replace("10/s burst 100", "20/s burst 200"));
    // 80 of the 90 come back.
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(190));
    let answer = scenario.estimate("a", 20_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(170));
    // 30 cells are owed. 40 beyond the burst of 200 are 2 s at this rate, and 40 cells later.
    scenario.settle("a", 210_i32.into(), None).await;
    scenario.reload(&TOKENS.replace("10/s burst 100", "40/s burst 100"));
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    // 240 cells: the burst of 100, and 5 s of debt, which are 200 cells here.
    scenario.advance_ms(140 * 25 + 24);
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    scenario.advance_ms(1);
    assert!(!Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
}

/// What another request has carried into the bucket of the new numbers stays there: of what is in
/// it nobody knows any more where it was charged.
#[tokio::test]
async fn what_was_carried_over_is_not_given_back() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.reload(&TOKENS.replace("10/s burst 100", "20/s burst 200"));
    let answer = scenario.estimate("a", 20_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    assert_eq!(scenario.settled("api"), ([0, 1, 0, 0, 0, 0, 0], [0, 80, 0, 0]));
}

/// Two agents with different numbers: a response frees nothing in a bucket that its request was
/// not charged in, whichever of them has started last.
#[tokio::test]
async fn a_response_gives_cells_back_only_where_they_were_charged() {
    let group = |prefix: u8| format!("{TOKENS}ipv4_prefix = {prefix}\n");
    for (first, second, ip) in [
        (TOKENS.to_owned(), TOKENS.replace("10/s", "20/s"), "a"),
        (TOKENS.replace("10/s", "20/s"), TOKENS.to_owned(), "a"),
        (TOKENS.to_owned(), TOKENS.replace("burst 100", "burst 120"), "a"),
        (TOKENS.to_owned(), TOKENS.replace("5s", "6s"), "a"),
        (group(24), group(32), "192.0.2.200"),
        (
            TOKENS.to_owned(),
            format!("{TOKENS}[policy.api.overrides]\n\"a\" = \"10/s burst 90\"\n"),
            "a",
        ),
    ] {
        let key = ip.parse().map_or(Value::String(ip.as_bytes()), |ip: IpAddr| ip.into());
        for changes_by_reload in [false, true] {
            let mut a = Scenario::new(&first).await;
            let mut b = match changes_by_reload {
                false => a.another(&second).await,
                true => {
                    let b = a.another(&first).await;
                    b.reload(&second);
                    b
                }
            };
            let (mut spent, mut reserved_at_b) = (0, Vec::new());
            for _ in 0..40 {
                // At the first one, all is spent that was reserved.
                let request = [("key", key), ("estimate", 10_i32.into())];
                spent += 10 * i32::from(!Scenario::is_blocked(&a.ask(&request).await));
                // At the second one, nothing is, and all of it is given back, at either.
                let answer = b.ask(&request).await;
                if let Some(reserved) = Scenario::reserved(&answer) {
                    reserved_at_b.push(reserved);
                }
                let Some(reserved) = reserved_at_b.pop() else { continue };
                let response = [
                    ("key", key),
                    ("tokens", 0_i32.into()),
                    ("reserved", reserved.as_str().into()),
                ];
                let agent = if spent % 20 == 0 { &mut a } else { &mut b };
                agent.client.ask(&[("usage", &response)]).await.unwrap();
            }
            let burst = if first.contains("burst 120") { 120 } else { 100 };
            assert_eq!(spent, burst, "{second}, by a reload: {changes_by_reload}");
        }
    }
}

/// A cell of 3/s takes a third of a second, which is no whole number of nanoseconds.
#[tokio::test]
async fn all_cells_that_come_back_in_max_debt_can_be_owed() {
    let text = "[policy.api]\nlimits = LIMIT\nkey = [\"key\"]\ncost = \"tokens\"\nsettle = \
                \"usage\"\nmax_debt = \"1s\"\n";
    for (limit, overdrawn) in [
        ("\"3/s burst 2\"", 3),
        ("\"7/s burst 2\"", 7),
        ("\"10/s burst 2\"", 10),
        ("\"1000000/s burst 2\"", 1_000_000),
        // Of two cells that take 4/3 s, only one fits.
        ("\"3/2s burst 2\"", 1),
        ("\"1/d burst 2\"", 0),
        ("{ arg = \"plan\", default = \"3/s burst 2\", most = \"10/s burst 9\" }", 3),
    ] {
        let mut scenario = Scenario::new(&text.replace("LIMIT", limit)).await;
        let args = [("key", "a".into()), ("tokens", 2_000_000_i32.into())];
        scenario.client.ask(&[("usage", &args)]).await.unwrap();
        let [charged, _, beyond, _] = scenario.settled("api").1;
        if limit.starts_with('{') {
            // What counts is the limit with the most.
            assert_eq!(charged, 19, "{limit}");
            let words = scenario.explain(&[("key", "a".into())]).in_words();
            assert!(words.contains("all 2 again in 1667 ms"), "{words}");
        } else {
            assert_eq!((charged, beyond), (2 + overdrawn, overdrawn), "{limit}");
        }
    }
}

/// `reset` and the `t` of the header field are one number, also where nothing is owed, and after a
/// response was settled.
#[tokio::test]
async fn the_header_field_says_when_the_burst_is_back_as_reset_does() {
    let text = "answer = [\"ratelimit\", \"reset\"]\n[policy.api]\nlimits = LIMIT\nkey = \
                [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\nsettle = \"usage\"\n";
    for (limit, is_counted) in [("\"3/m\"", false), ("{ count = 3, window = \"day\" }", true)] {
        let mut scenario = Scenario::new(&text.replace("LIMIT", limit)).await;
        let now = gcra_limiter::reservations::wall_clock().as_secs();
        scenario.clock.set_wall((now - now % 86_400 + 86_400 - 1_000) * 1_000_000_000);
        let check = |answer: &Answer, left: u32, reset: u64| {
            let reset = if is_counted { 1_000 } else { reset };
            assert_eq!(number(answer, "reset"), reset, "{limit}");
            assert_eq!(text_of(answer, "ratelimit"), Some(format!("\"api\";r={left};t={reset}")));
        };
        // A request that only looks.
        check(&scenario.estimate("a", 0_i32.into()).await, 3, 0);
        let answer = scenario.estimate("a", 2_i32.into()).await;
        check(&answer, 1, 40);
        check(&scenario.settle("a", 1_i32.into(), None).await, 0, 60);
        if !is_counted {
            let reserved = Scenario::reserved(&answer);
            check(&scenario.settle("b", 0_i32.into(), reserved.as_deref()).await, 3, 0);
        }
    }
}

/// What happens in a run: a pause in milliseconds, the client, what its request reserves; and then
/// which of the requests under way gets its response, and what that says it has cost.
type SettledStep = (u64, u8, i32, Option<(usize, Option<i32>)>);

fn settled_step() -> impl Strategy<Value = SettledStep> {
    let pause = prop_oneof![Just(0), 0..3000_u64];
    let response = (0..6_usize, prop::option::weighted(0.9, prop_oneof![0..9_i32, 0..60]));
    (pause, 0..3_u8, prop_oneof![Just(0), 0..12_i32], prop::option::of(response))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two agents on one table decide and settle as a bucket for each client and limit does that
    /// is written down naively: what is owed goes down with the time.
    #[test]
    fn all_agents_settle_one_debt(
        steps in prop::collection::vec((settled_step(), any::<bool>()), 1..80),
        limits in prop::collection::vec((1..9_u32, 1..15_u32), 1..4),
        max_debt_s in 1..6_u32,
    ) {
        let each: Vec<_> =
            limits.iter().map(|(rate, burst)| format!("\"{rate}/s burst {burst}\"")).collect();
        let text = format!(
            "[policy.api]\nlimits = [{}]\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \
             \"tokens\"\nsettle = \"usage\"\nmax_debt = \"{max_debt_s}s\"\n",
            each.join(", ")
        );
        let interval = |rate: u32| 1_000_000_000_u64.div_ceil(rate.into());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut first = Scenario::new(&text).await;
            let mut other = first.another(&text).await;
            let mut owed = vec![vec![0_u64; limits.len()]; 3];
            let mut under_way = Vec::new();
            // What was charged, given back and forgiven under the limit with the most.
            let mut sums = [0_u64; 3];
            for ((pause_ms, client, estimate, response), by_other) in &steps {
                let pause = Nanos::from_millis(*pause_ms);
                first.clock.advance(pause);
                owed.iter_mut().flatten().for_each(|owed| *owed = owed.saturating_sub(pause.0));
                let agent = if *by_other { &mut other } else { &mut first };
                let key = ["a", "b", "c"][usize::from(*client)];
                let answer = agent.estimate(key, (*estimate).into()).await;
                let reserves = u64::try_from(*estimate).unwrap();
                let mine = &mut owed[usize::from(*client)];
                let blocks = |((rate, burst), owed): (&(u32, u32), &u64)| {
                    owed + reserves.max(1) * interval(*rate) > u64::from(*burst) * interval(*rate)
                };
                let blocked = limits.iter().zip(&*mine).any(blocks);
                if Scenario::is_blocked(&answer) != blocked {
                    return Err(format!("{answer:?}, and {mine:?} are owed"));
                }
                let reserved = Scenario::reserved(&answer);
                if reserved.is_some() != (!blocked && reserves > 0) {
                    return Err(format!("{reserved:?}"));
                }
                if !blocked {
                    for ((rate, _), owed) in limits.iter().zip(mine) {
                        *owed += reserves * interval(*rate);
                    }
                    under_way.push((*client, reserves, reserved));
                }
                let Some((which, cost)) = response.filter(|_| !under_way.is_empty()) else {
                    continue;
                };
                let (client, reserves, reserved) = under_way.remove(which % under_way.len());
                let key = ["a", "b", "c"][usize::from(client)];
                let cost_said = cost.map_or(Value::Null, Value::from);
                agent.settle(key, cost_said, reserved.as_deref()).await;
                let Some(cost) = cost.and_then(|cost| u64::try_from(cost).ok()) else { continue };
                let (more, less) = (cost.saturating_sub(reserves), reserves.saturating_sub(cost));
                let mut most = [0; 3];
                for ((rate, burst), owed) in limits.iter().zip(&mut owed[usize::from(client)]) {
                    let interval = interval(*rate);
                    // All cells that come back in `max_debt`, also where none takes a whole
                    // number of nanoseconds.
                    let cells = u64::from(*burst) + u64::from(max_debt_s) * u64::from(*rate);
                    let fits = (cells * interval).saturating_sub(*owed) / interval;
                    let charged = more.min(fits);
                    let given = (less * interval).min(*owed);
                    *owed = *owed + charged * interval - given;
                    let cells = [charged, given / interval, more - charged];
                    for (most, cells) in most.iter_mut().zip(cells) {
                        *most = cells.max(*most);
                    }
                }
                sums.iter_mut().zip(most).for_each(|(sum, most)| *sum += most);
            }
            let counted = [&first, &other].map(|agent| agent.settled("api").1);
            let counted = [0, 1, 3].map(|kind| counted[0][kind] + counted[1][kind]);
            if counted == sums { Ok(()) } else { Err(format!("{counted:?}, and not {sums:?}")) }
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// What is due at this time, in nanoseconds after 1970.
fn wall(time: &str) -> u64 {
    let time: jiff::Timestamp = time.parse().unwrap();
    u64::try_from(time.as_nanosecond()).unwrap()
}

const CONTRACT: &str = "answer = [\"retry_after\", \"remaining\", \"reset\", \"limit\", \
                        \"ratelimit\", \"ratelimit_policy\", \"reason\"]\n\
                        [policy.api]\nlimits = { count = 5, window = \"day Europe/Berlin\" }\n\
                        key = [\"ip\"]\n";

fn text_of(answer: &Answer, name: &str) -> Option<String> {
    let bytes = answer.var(Scope::Transaction, name)?.as_bytes().map(Vec::from)?;
    Some(String::from_utf8(bytes).unwrap())
}

/// A response counts in the window of its own moment, also beyond the count, and what is reserved
/// in a window comes back in that window only.
#[tokio::test]
async fn responses_settle_what_is_counted_in_a_window() {
    let text = "answer = [\"remaining\", \"retry_after\"]\n[policy.api]\nlimits = { count = 100, \
                window = \"day UTC\" }\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \
                \"tokens\"\nsettle = \"usage\"\n";
    let mut scenario = Scenario::new(text).await;
    // The moment of a reservation is that of the real clock.
    let now = gcra_limiter::reservations::wall_clock();
    let today = now.as_secs() - now.as_secs() % 86_400;
    let set = |scenario: &Scenario, at: u64| scenario.clock.set_wall(at * 1_000_000_000);
    set(&scenario, today + 86_399);
    let answer = scenario.estimate("a", 60_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(40));
    let reserved = Scenario::reserved_at(&answer, u128::from(today + 43_200) * 1000);
    let within = text.replace("settle =", "settle_within = \"1d\"\nsettle =");
    scenario.reload(&within);
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    // More than the count: no further request in this window.
    let answer = scenario.settle("a", 95_i32.into(), None).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(0));
    assert_eq!(scenario.settled("api"), ([1, 1, 0, 0, 0, 0, 0], [95, 50, 5, 0]));
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::integer(&answer, "retry_after"), Some(1));
    // The next day begins at 0, and what was reserved the day before does not come back there.
    set(&scenario, today + 86_400);
    let answer = scenario.estimate("a", 30_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(70));
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(70));
    assert_eq!(scenario.settled("api"), ([1, 1, 0, 1, 0, 0, 0], [95, 50, 5, 0]), "late");
}

/// The largest number that a window holds is never passed, and nothing that came near it is lost.
#[tokio::test]
async fn responses_fill_a_window_up_to_the_largest_number() {
    let mut scenario = Scenario::new(
        "answer = [\"remaining\"]\n[policy.api]\nlimits = { count = 4000000000, window = \
         \"day UTC\" }\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\n\
         settle = \"usage\"\n",
    )
    .await;
    let remaining = |answer: &Answer| Scenario::integer(answer, "remaining");
    let reserved = Scenario::reserved(&scenario.estimate("a", 1_i32.into()).await).unwrap();
    let answer = scenario.settle("a", 3_899_999_999_i64.into(), None).await;
    assert_eq!(remaining(&answer), Some(100_000_000));
    let answer = scenario.settle("a", 500_000_000_i64.into(), None).await;
    assert_eq!(remaining(&answer), Some(0));
    // 2^32 - 1 are counted, and the rest is not.
    let most = u64::from(u32::MAX);
    let forgiven = 4_400_000_000 - most;
    assert_eq!(scenario.settled("api").1, [most - 1, 0, most - 4_000_000_000, forgiven]);
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
    // How much there was beyond it is not known, so nothing of it comes back.
    let reserved = reserved.replace("api 1 ", "api 1000000000 ");
    let answer = scenario.settle("a", 0_i32.into(), Some(&reserved)).await;
    assert_eq!(remaining(&answer), Some(0));
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
}

#[tokio::test]
async fn a_count_begins_again_at_midnight() {
    let mut scenario = Scenario::new(CONTRACT).await;
    scenario.clock.set_wall(wall("2026-03-28T23:00:00Z"));
    for left in (0..5).rev() {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        assert_eq!((number(&answer, "remaining"), number(&answer, "limit")), (left, 5));
        assert_eq!((number(&answer, "retry_after"), number(&answer, "reset")), (0, 23 * 3600));
        assert_eq!(text_of(&answer, "reason"), None);
        assert_eq!(text_of(&answer, "ratelimit"), Some(format!("\"api\";r={left};t=82800")));
        assert_eq!(text_of(&answer, "ratelimit_policy").as_deref(), Some("\"api\";q=5;w=86400"));
    }
    for (pause_ms, wait_s) in [(0, 23 * 3600), (1, 23 * 3600), (999, 23 * 3600 - 1)] {
        scenario.advance_ms(pause_ms);
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        assert_eq!((number(&answer, "remaining"), number(&answer, "retry_after")), (0, wait_s));
        assert_eq!(text_of(&answer, "reason").as_deref(), Some("limit"));
    }
    // A client that waits as long as its answer says is allowed, and not a moment before.
    scenario.advance_ms((23 * 3600 - 1) * 1000 - 1);
    assert_eq!(scenario.passed("192.0.2.1", 2).await, 0);
    assert_eq!(scenario.passed("192.0.2.2", 9).await, 5);
    scenario.advance_ms(1);
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    assert_eq!(scenario.passed("192.0.2.2", 9).await, 5, "that of yesterday and that of today");
}

#[tokio::test]
async fn agents_of_one_table_count_together_and_an_explanation_says_the_window() {
    let mut one = Scenario::new(CONTRACT).await;
    one.clock.set_wall(wall("2026-10-25T00:30:00Z"));
    let mut other = one.another(CONTRACT).await;
    assert_eq!(one.passed("192.0.2.1", 3).await + other.passed("192.0.2.1", 9).await, 5);
    assert_eq!(one.passed("192.0.2.1", 3).await, 0);
    let explanation = one.explain(&[("ip", address("192.0.2.1"))]);
    let decided = explanation.decided.as_ref().unwrap();
    assert!(decided.blocked && decided.limits[0].remaining == 0);
    assert_eq!(decided.limits[0].window.as_deref(), Some("day Europe/Berlin"));
    let words = explanation.in_words();
    assert!(words.contains("5 per calendar day in Europe/Berlin"), "{words}");
    // This day has 25 hours.
    assert_eq!(decided.retry_after_ms, 22 * 3_600_000 + 1_800_000);
    assert!(words.contains("the window ends at 2026-10-26 00:00:00 in Europe/Berlin"), "{words}");
}

/// What the rate denies is not counted, and what the count denies is not charged.
#[tokio::test]
async fn a_count_and_a_rate_are_charged_all_or_none() {
    let mut scenario = Scenario::new(
        "answer = [\"ratelimit\", \"retry_after\"]\n[policy.api]\nkey = [\"ip\"]\n\
         cost = \"cost\"\nlimits = [\"1/s burst 3\", { name = \"contract\", count = 7, \
         window = \"hour\" }]\n",
    )
    .await;
    let state = |answer: &Answer| {
        let blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
        (blocked, text_of(answer, "ratelimit").unwrap())
    };
    let said = |blocked, free, owed, left, ends| {
        (blocked, format!("\"api.1\";r={free};t={owed}, \"api.contract\";r={left};t={ends}"))
    };
    let cost = |cost| [("ip", address("192.0.2.1")), ("cost", Value::Int32(cost))];
    assert_eq!(state(&scenario.ask(&cost(3)).await), said(false, 0, 3, 4, 3599));
    // By the rate.
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(true, 0, 3, 4, 3599));
    scenario.advance_ms(3000);
    assert_eq!(state(&scenario.ask(&cost(3)).await), said(false, 0, 3, 1, 3596));
    scenario.advance_ms(3000);
    // By the count. A cost of 0 only asks.
    let answer = scenario.ask(&cost(2)).await;
    assert_eq!(state(&answer), said(true, 3, 0, 1, 3593));
    assert_eq!(number(&answer, "retry_after"), 3593);
    assert_eq!(state(&scenario.ask(&cost(0)).await), said(false, 3, 0, 1, 3593));
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(false, 2, 1, 0, 3593));
    assert_eq!(state(&scenario.ask(&cost(0)).await), said(false, 2, 1, 0, 3593));
    // More than the count, and more than the burst, can never be allowed.
    scenario.advance_ms(3_593_000);
    assert_eq!(state(&scenario.ask(&cost(8)).await), said(true, 3, 0, 7, 3600));
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(false, 2, 1, 6, 3600));
}

#[tokio::test]
async fn another_count_goes_on_and_another_window_begins() {
    let file = |limit: &str| format!("[policy.api]\nkey = [\"ip\"]\nlimits = {limit}\n");
    let day = |count| file(&format!("{{ count = {count}, window = \"day Asia/Kolkata\" }}"));
    let mut scenario = Scenario::new(&day(5)).await;
    scenario.clock.set_wall(wall("2026-03-28T20:00:00Z"));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    scenario.reload(&day(8));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 3);
    scenario.reload(&day(4));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 0);
    let decided = scenario.explain(&[("ip", address("192.0.2.1"))]).decided.unwrap();
    assert_eq!((decided.limits[0].remaining, decided.limits[0].penalty_ms), (0, 0));
    scenario.reload(&day(9));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 1);
    // Also for an override, which counts in the same windows.
    scenario.reload(&format!(
        "{}[policy.api.overrides]\n\"192.0.2.1\" = {{ count = 12, window = \"day \
         Asia/Kolkata\" }}\n",
        day(9)
    ));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 3);
    // By a restart.
    let mut other = scenario.another(&day(13)).await;
    assert_eq!(other.passed("192.0.2.1", 9).await, 1);
    for (limit, passes) in [
        ("{ count = 5, window = \"day Asia/Tokyo\" }", 5),
        ("{ count = 5, window = \"week Asia/Kolkata\" }", 5),
        ("\"6/h\"", 6),
        ("{ count = 14, window = \"day Asia/Kolkata\" }", 1),
        ("\"6/h\"", 0),
    ] {
        scenario.reload(&file(limit));
        assert_eq!(scenario.passed("192.0.2.1", 9).await, passes, "{limit}");
    }
}

/// The contract of all clients together, beside that of each.
#[tokio::test]
async fn a_count_can_have_a_key_of_its_own() {
    let mut scenario = Scenario::new(
        "[policy.api]\nkey = [\"ip\"]\n\
         limits = [{ name = \"each\", count = 3, window = \"hour\" }, \
         { name = \"all\", count = 7, window = \"day\", key = [] }]\n",
    )
    .await;
    for (client, passes) in [(1, 3), (2, 3), (3, 1), (4, 0), (1, 0)] {
        assert_eq!(scenario.passed(&format!("192.0.2.{client}"), 5).await, passes, "{client}");
    }
    scenario.advance_ms(3_600_000);
    assert_eq!(scenario.passed("192.0.2.1", 5).await, 0, "what all have used");
    scenario.advance_ms(23 * 3_600_000);
    assert_eq!(scenario.passed("192.0.2.1", 5).await, 3);
}

#[tokio::test]
async fn a_count_can_be_observed_and_is_not_part_of_a_penalty_or_a_delay() {
    let count = "{ name = \"count\", count = 3, window = \"hour\" }";
    let mut scenario = Scenario::new(&format!(
        "[policy.api]\nlimits = \"100/s\"\nobserve = {count}\nkey = [\"ip\"]\n"
    ))
    .await;
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 9);
    let [allowed, would_block, ..] = scenario.counts("api.observe");
    assert_eq!((allowed, would_block), (3, 6), "{:?}", scenario.counts("api.observe"));

    let mut scenario = Scenario::new(&format!(
        "answer = [\"retry_after\"]\n[policy.api]\nlimits = [\"1/s burst 1\", {count}]\n\
         key = [\"ip\"]\npenalty = {{ cells = 1, ceiling = \"1s\" }}\nmax_delay = \"1s\"\n"
    ))
    .await;
    let mut said = Vec::new();
    for _ in 0..5 {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        said.push((number(&answer, "delay_ms"), number(&answer, "retry_after")));
        scenario.advance_ms(1000);
    }
    // The clock began at 1 s.
    assert_eq!(said, [(0, 0), (0, 0), (0, 0), (0, 3596), (0, 3595)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A count in hours and a limit with a rate, as their promises are: in each hour of the zone,
    /// and in any time.
    #[test]
    fn in_each_window_and_in_any_time_no_more_is_allowed(
        most in 1_u64..40,
        steps in prop::collection::vec((0_u64..200_000, 1_i32..4), 1..200),
    ) {
        const BURST: u64 = 6;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut scenario = Scenario::new(&format!(
                "[policy.api]\nkey = [\"ip\"]\ncost = \"cost\"\n\
                 limits = [{{ count = {most}, window = \"hour Asia/Kolkata\" }}, \
                 \"1/10s burst {BURST}\"]\n"
            ))
            .await;
            let start = wall("2026-03-28T20:17:00Z") / 1_000_000;
            scenario.clock.set_wall(start * 1_000_000);
            let (mut now_ms, mut counted) = (start, std::collections::HashMap::new());
            let mut allowed: Vec<(u64, u64)> = Vec::new();
            for (pause_ms, cost) in &steps {
                scenario.advance_ms(*pause_ms);
                now_ms += pause_ms;
                let hour = counted.entry((now_ms + 1_800_000) / 3_600_000).or_insert(0_u64);
                let cells = u64::from(cost.unsigned_abs());
                let mut within = cells;
                let conforms = allowed.iter().rev().all(|(at, cells)| {
                    within += cells;
                    within <= BURST + (now_ms - at) / 10_000
                });
                let expected = *hour + cells <= most && conforms;
                let args = [("ip", address("192.0.2.1")), ("cost", Value::Int32(*cost))];
                let answer = scenario.ask(&args).await;
                let blocked = answer.var(Scope::Transaction, "blocked");
                if blocked != Some(Value::Bool(!expected)) {
                    return Err(format!("{blocked:?} at {now_ms}: {hour} of {most}"));
                }
                if expected {
                    *hour += cells;
                    allowed.push((now_ms, cells));
                }
            }
            Ok(())
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}
