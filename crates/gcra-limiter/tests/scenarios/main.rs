//! Whole decisions in a time that stands still: a limiter with policies from a text, asked over a
//! socket, reloaded at will.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod answers;
mod changes;
mod debts;
mod debts_in_the_store;
mod delays;
mod explained;
mod fleet;
mod keys;
mod limits_of_messages;
mod resets;
mod same_limit;
mod settings;
mod settled;
mod settling;
mod trials;
mod unsettled;
mod windows;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use clap::Parser as _;
use gcra_inspect::explanation::{Explanation, RuleKind, SharedSources, explain};
use gcra_inspect::key_readings::named;
use gcra_limiter::active_policies::{ActivePolicies, DecisionPath};
use gcra_limiter::earlier_policies::PolicyHistory;
use gcra_limiter::heaviest::Minutes;
use gcra_limiter::limiter::Limiter;
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
use gcra_table::board::{Order, OrderKind, OrderTarget};
use gcra_table::{ManualClock, Nanos, Slots, Table, Time};
use proptest::prelude::*;
use spop_agent::testing::{Answer, Client};
use spop_agent::{Agent, Scope, Value};

/// What agents keep beside their table: each text that was in force, its begin and its end.
type Kept = Arc<Mutex<Vec<(String, Time, Time)>>>;

struct Scenario {
    kept: Kept,
    table: Arc<ArcSwap<Table>>,
    clock: ManualClock,
    policies: Arc<ArcSwap<ActivePolicies>>,
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
        let scenario = Self::of(policies(text)).await;
        scenario.keep(text);
        scenario
    }

    async fn of(policies: Policies) -> Self {
        let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let stats = Stats::new(NonZeroUsize::MIN);
        let history = PolicyHistory::since(table.now());
        let table = Arc::new(ArcSwap::from_pointee(table));
        Self::on(Kept::default(), table, clock, stats, policies, history).await
    }

    async fn on(
        kept: Kept,
        table: Arc<ArcSwap<Table>>,
        clock: ManualClock,
        stats: Stats,
        policies: Policies,
        history: PolicyHistory,
    ) -> Self {
        let in_force = ActivePolicies::after(history, policies, &stats, &table.load());
        let policies = Arc::new(ArcSwap::from_pointee(in_force));
        let limiter = Limiter::new(table.clone(), policies.clone());
        let undecided = limiter.undecided();
        let client = Client::of(Agent::new(limiter)).await.unwrap();
        Self { kept, table, clock, policies, stats, undecided, client }
    }

    /// Another process, with this configuration, on the same table.
    async fn another(&self, text: &str) -> Self {
        self.keep(text);
        let history = self.history_of(text);
        let (stats, kept) = (Stats::new(NonZeroUsize::MIN), self.kept.clone());
        let (table, clock) = (self.table.clone(), self.clock.clone());
        Self::on(kept, table, clock, stats, policies(text), history).await
    }

    /// Writes down that a text comes into force, as the file of policies does.
    fn keep(&self, text: &str) {
        let (mut kept, now) = (self.kept.lock().unwrap(), self.table.load().now());
        if !kept.iter().any(|(known, ..)| known == text) {
            kept.push((text.to_owned(), Time::ZERO, Time::ZERO));
        }
        for (known, since, ended) in kept.iter_mut() {
            let is_in_force = *since > *ended;
            match known == text {
                true if !is_in_force => *since = now,
                false if is_in_force => *ended = now,
                _ => {}
            }
        }
    }

    /// What was in force before a text, as the file of policies says it.
    fn history_of(&self, text: &str) -> PolicyHistory {
        let kept = self.kept.lock().unwrap();
        let mut former: Vec<_> =
            kept.iter().filter(|(known, _, ended)| known != text && *ended > Time::ZERO).collect();
        former.sort_by_key(|(.., ended)| *ended);
        let mut history =
            PolicyHistory::since(kept.iter().map(|(_, since, _)| *since).min().unwrap());
        for (former, since, ended) in former {
            history.push(Arc::new(policies(former)), *since, *ended);
        }
        history
    }

    fn reload(&self, text: &str) {
        self.keep(text);
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
        let next = self.policies.load().with_orders(&self.table.load(), &self.stats);
        if let Some(next) = next {
            self.policies.store(Arc::new(next));
        }
    }

    /// Exempts a key from a policy for a time, or ends that with a time of 0.
    fn exempt(&self, policy: &str, key: &str, seconds: u64) {
        self.order(OrderKind::Exempt, policy, key, seconds);
    }

    /// Gives an order about a key or a network, or ends it with a time of 0.
    fn order(&self, kind: OrderKind, policy: &str, key: &str, seconds: u64) {
        let table = self.table.load();
        let client = || {
            let none = OrderTarget::Client { key: table.hash(b""), groups: [None; 2] };
            self.client_of(policy, key).unwrap_or(none)
        };
        let network = key.split_once('/').and_then(|(first, prefix)| {
            let (first, prefix) = (first.parse().ok()?, prefix.parse().ok()?);
            Some(OrderTarget::Network { first, prefix })
        });
        let order = Order {
            policy: policy_id(policy),
            kind,
            target: network.unwrap_or_else(client),
            until: table.now().saturating_add(Nanos::from_secs(seconds)),
            given: table.now(),
            since: table.now(),
            key: key.to_owned(),
            note: String::new(),
            giver: "anna".to_owned(),
        };
        table.board().give_order(&order).unwrap();
        self.housekeeping();
    }

    /// The client with a key in the policy with this name, if there is one.
    fn client_of(&self, policy: &str, key: &str) -> Option<OrderTarget> {
        let in_force = self.policies.load();
        let list = &in_force.policies.list;
        let at = list.iter().position(|found| *found.name == *policy)?;
        let meaning = named(&key.parse().unwrap(), &list[at].key.args).unwrap();
        let message = WrittenMessage::new(b"", &meaning.args).unwrap();
        let (table, message) = (self.table.load(), message.message().unwrap());
        let key = Question::under(&in_force, &table, at, &message).unwrap().key;
        Some(OrderTarget::Client { key, groups: list[at].groups_of_client(&message) })
    }

    /// The policies in force, as a command makes them of the file that the agent keeps.
    fn told(&self) -> ActivePolicies {
        let (in_force, table) = (self.policies.load(), self.table.load());
        let made =
            |policies: &Policies| policies.origin.as_ref().unwrap().policies().unwrap().unwrap();
        let known = &in_force.history;
        let mut history = PolicyHistory::since(known.begun);
        for former in known.former() {
            history.push(Arc::new(made(&former.policies)), former.since, former.ended);
        }
        let stats = Stats::new(NonZeroUsize::MIN);
        ActivePolicies::after(history, made(&in_force.policies), &stats, &table)
    }

    /// The explanation of a message with these args.
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

fn limits(limits: &str) -> String {
    format!("[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\n")
}

/// Whether the answer blocks a request with these args: `None` is no decision.
async fn blocked(scenario: &mut Scenario, args: &[(&str, Value<'_>)]) -> Option<bool> {
    match scenario.ask(args).await.var(Scope::Transaction, "blocked") {
        Some(Value::Bool(blocked)) => Some(blocked),
        None => None,
        other => panic!("blocked is {other:?}"),
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

    /// The reservation in the answer.
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

    fn settled(&self, policy: &str) -> ([u64; 7], [u64; 5]) {
        let stats = self.stats.policy(policy);
        let (settled, cells) = (stats.seldom.settled.each(), stats.seldom.settled_cells.each());
        (settled.map(|(_, count)| count), cells.map(|(_, count)| count))
    }
}

/// This time, in nanoseconds after 1970.
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
