//! The usual requests, by the bytes that HAProxy has sent: one message with one arg, under one
//! limit.
//!
//! This is the path of nearly all requests of nearly all installations, and it takes a third of
//! the instructions of the way through [`Question`] and [`Reply`]. It decides
//! and counts by the same functions. It knows in advance what the other way has found out about an
//! earlier request of the same shape: see docs/internals/SHAPES.md.

// ADR 49: Usual requests are answered by their shapes.

use std::sync::OnceLock;

use arrayvec::ArrayVec;
use gcra_policy::key_bytes::write_part;
use gcra_policy::{Policy, RuleAt};
use gcra_table::{BucketPlace, KeyHash, Table};
use spop_agent::{Arg, Reply, Request, Shape, ShapedNotifies, Value};

use crate::active_policies::{ActivePolicies, ActivePolicy, DecisionPath};
use crate::counting::count;
use crate::decide::lease_spender::LeaseSpender;
use crate::decide::local::{decide, decide_single};
use crate::decide::plain::Plain;
use crate::known_shapes::{KnownShape, KnownShapes, MOST_SHAPES};
use crate::lease_client::LeaseClient;
use crate::message_key::write;
use crate::question::Question;
use crate::round::Round;
use crate::stats::{Lane, LaneStats};

impl KnownShape {
    /// The question about a request of this shape.
    #[inline(always)]
    fn question(&self, key: KeyHash, rule: RuleAt) -> Question {
        Question { policy: self.policy, rule, cells: self.cells, key }
    }

    /// The known shape of a request whose question came out as this one; `None` if its requests
    /// cannot be decided by it.
    fn of(
        in_force: &ActivePolicies,
        shape: &Shape<&[u8]>,
        arg: Arg<'_>,
        question: Question,
    ) -> Option<Self> {
        let policy = policy_of_shape(in_force, arg, question)?;
        let key = &policy.key;
        Some(Self {
            shape: Shape::new(shape.bytes().into())?,
            policy: question.policy,
            cells: question.cells,
            is_as_sent: policy.overrides.is_empty()
                && match arg.value {
                    Value::Ipv4(_) => key.ipv4_prefix == 32,
                    Value::Ipv6(_) => {
                        (key.ipv4_prefix, key.ipv6_prefix) == (32, 128) && key.nat64.0.is_empty()
                    }
                    _ => !key.lowercase,
                },
        })
    }

    /// The hash of the key that is this value, and the rule for it: what [`Question::new`] finds.
    #[inline(never)]
    fn find(&self, table: &Table, policy: &Policy, value: Value<'_>) -> (KeyHash, RuleAt) {
        if self.is_as_sent {
            return (hash_as_sent(table, value), RuleAt::new(None));
        }
        let (part, rule) = policy.first_part(value);
        let mut hasher = table.hasher();
        write(&mut hasher, &policy.key, part);
        (hasher.finish(), RuleAt::new(rule))
    }
}

/// The hash of a key that is one value as it is.
#[inline(always)]
pub(crate) fn hash_as_sent(table: &Table, value: Value<'_>) -> KeyHash {
    let mut hasher = table.hasher();
    write_part(&mut hasher, value);
    hasher.finish()
}

impl KnownShapes {
    /// As [`learn`](Self::learn), for the first request of a round that shows its shape.
    #[inline(always)]
    pub(crate) fn learn_once(
        &self,
        has_learned: &mut bool,
        in_force: &ActivePolicies,
        request: &Request<'_>,
        question: Question,
    ) {
        if !std::mem::replace(has_learned, true) {
            self.learn(in_force, request, question);
        }
    }

    /// Learns the shape of a request whose question came out as this one, unless it is known.
    #[cold]
    fn learn(&self, in_force: &ActivePolicies, request: &Request<'_>, question: Question) {
        let Some(shape) = request.shape() else { return };
        let Some(arg) = request.messages().next().and_then(|message| message.args().next()) else {
            return;
        };
        for known in &self.list {
            let known = match known.get() {
                Some(known) => known,
                None => {
                    let Some(new) = KnownShape::of(in_force, &shape, arg, question) else {
                        return;
                    };
                    known.get_or_init(|| new)
                }
            };
            // Another thread may have learned it meanwhile.
            if known.shape.bytes() == shape.bytes() {
                return;
            }
        }
        if policy_of_shape(in_force, arg, question).is_some() {
            self.count_missed();
        }
    }

    /// Adds the shapes to a list, with their path and statistics in force.
    #[inline]
    fn add_to<'r>(
        &'r self,
        list: &mut ArrayVec<ShapeInForce<'r>, MOST_SHAPES>,
        in_force: &'r ActivePolicies,
        lane: Lane,
        is_lent: bool,
    ) {
        for known in self.list.iter().map_while(OnceLock::get) {
            let row = in_force.row(known.policy);
            // Without a store nothing is lent.
            if is_lent || !matches!(row.path, DecisionPath::SingleLease(_)) {
                list.push(ShapeInForce { known, row, stats: row.stats.on(lane) });
            }
        }
    }
}

/// The policy that decides each request of the shape that one with this arg and this question has.
/// `None` if the next request of the shape may have another policy, or a key that is not made of
/// the arg.
fn policy_of_shape<'p>(
    in_force: &'p ActivePolicies,
    arg: Arg<'_>,
    question: Question,
) -> Option<&'p Policy> {
    let rows = in_force.rows().get(..=question.policy)?;
    // Which policy a message has may depend on its values.
    if rows.iter().any(|row| row.policy.when.is_some()) {
        return None;
    }
    let row = rows.last()?;
    let policy = &*row.policy;
    let is_whole_key = match &policy.key.args[..] {
        [] => true,
        [known] => *known.name == *arg.name,
        _ => false,
    };
    let is_by_key = is_whole_key && policy.price.arg().is_none();
    (is_by_key && is_answered(row)).then_some(policy)
}

/// Whether requests of the policy in this row are answered by their shapes.
fn is_answered(row: &ActivePolicy) -> bool {
    match row.path {
        DecisionPath::SingleCharge(_) | DecisionPath::SingleLease(_) => true,
        DecisionPath::Plain => !row.reads_messages,
        DecisionPath::Full => false,
    }
}

struct ShapeInForce<'r> {
    known: &'r KnownShape,
    row: &'r ActivePolicy,
    stats: LaneStats<'r>,
}

/// A request that is read, and whose buckets are on their way from memory.
struct Pending<'r> {
    shape: &'r ShapeInForce<'r>,
    key: KeyHash,
    rule: RuleAt,
    /// For the usual way.
    place: Option<BucketPlace<'r>>,
}

impl Round {
    /// Answers requests whose shapes are known, up to the first that has to be decided in another
    /// way.
    pub(crate) fn answer_known(
        &mut self,
        lease_client: Option<&LeaseClient>,
        notifies: &mut ShapedNotifies<'_, '_>,
    ) {
        let Self { table, in_force, now, lane, audit, leases, .. } = self;
        let (table, in_force): (&Table, &ActivePolicies) = (table, in_force);
        let leases = leases.as_ref().map(|leases| &***leases);
        let mut shapes = ArrayVec::new();
        in_force.shapes.add_to(&mut shapes, in_force, *lane, leases.is_some());
        let answers = in_force.blocked.each_ref().map(|answer| notifies.as_answer(answer));
        let ([first, ..], [Some(pass), Some(block)], None) = (&shapes[..], answers, audit) else {
            return;
        };
        let has_variables = !in_force.policies.answers.others.is_empty();
        let (mut at, mut shape) = (0, first);
        // HAProxy may send several shapes by turns: which one came behind each the last time.
        let (mut behind, mut last, mut take_turns) = ([0; MOST_SHAPES], 0, false);
        loop {
            let mut pending = ArrayVec::<Pending<'_>, { ShapedNotifies::QUEUE }>::new();
            let mut misses = 0;
            while !pending.is_full() {
                let ShapeInForce { known, row, .. } = *shape;
                let ipv4 = |ip| match known.is_as_sent {
                    true => (hash_as_sent(table, Value::Ipv4(ip)), RuleAt::new(None)),
                    false => known.find(table, &row.policy, Value::Ipv4(ip)),
                };
                let other = |value| known.find(table, &row.policy, value);
                let Some((key, rule)) = notifies.read(&known.shape, ipv4, other) else {
                    misses += 1;
                    at = if at + 1 < shapes.len() { at + 1 } else { 0 };
                    match shapes.get(at) {
                        Some(next) if misses < shapes.len() => shape = next,
                        _ => break,
                    }
                    continue;
                };
                if misses > 0 {
                    (behind[last], take_turns, misses) = (at, true, 0);
                }
                let place = match &row.path {
                    DecisionPath::SingleCharge(single) => {
                        Some(table.place(single.key(key), &single.quota))
                    }
                    DecisionPath::SingleLease(single) => {
                        if let Some(leases) = leases {
                            leases.prefetch(single.lease_key(key));
                        }
                        None
                    }
                    DecisionPath::Plain | DecisionPath::Full => {
                        let question = known.question(key, rule);
                        question.prefetch(table, in_force, None);
                        None
                    }
                };
                pending.push(Pending { shape, key, rule, place });
                if take_turns && let Some(next) = shapes.get(behind[at]) {
                    (last, at, shape) = (at, behind[at], next);
                }
            }
            for Pending { shape, key, rule, place } in &pending {
                let &&ShapeInForce { known, row, stats } = shape;
                let question = known.question(*key, *rule);
                let message = || notifies.first().message();
                let verdict = match (&row.path, place) {
                    (DecisionPath::SingleCharge(single), Some(place)) => {
                        let verdict = decide_single(table, now, single, place, question);
                        count(in_force, row, stats, question, verdict, message);
                        verdict
                    }
                    (DecisionPath::SingleLease(single), _) => {
                        let (lane, now) = (*lane, now.time());
                        let lent = LeaseSpender {
                            table,
                            in_force,
                            row,
                            single,
                            lane,
                            lease_client,
                            leases,
                            now,
                        };
                        match lent.spend(question, message) {
                            Some(verdict) => verdict,
                            None => return,
                        }
                    }
                    _ if has_variables => {
                        let (plain, notify) =
                            (Plain { table, in_force, row, stats }, notifies.first());
                        let message = || notify.message();
                        let answer =
                            |reply: &mut Reply<'_>| plain.answer(now, question, message, reply);
                        if !notifies.answer_with(answer) {
                            return;
                        }
                        continue;
                    }
                    _ => {
                        let verdict = decide(table, now, row, question, None, None, message);
                        count(in_force, row, stats, question, verdict, message);
                        verdict
                    }
                };
                if !notifies.answer(if verdict.is_blocked() { block } else { pass }) {
                    return;
                }
            }
            if !pending.is_full() {
                return;
            }
            // A round may have thousands of requests, and the thread may be kept from running in
            // it. Another process may charge their keys meanwhile, by a later time; by the old one
            // they would be denied what is left.
            now.advance_to(table.now());
        }
    }
}
