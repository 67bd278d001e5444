//! The usual requests, by the bytes that HAProxy has sent: one message with one arg, under one
//! limit.
//!
//! This is the path of nearly all requests of nearly all installations, and it takes a third of
//! the instructions of the way through [`Question`] and [`Reply`](spop_agent::Reply). It decides
//! and counts by the same functions. It knows in advance what the other way has found out about an
//! earlier request of the same shape: see docs/internals/SHAPES.md.

use std::sync::OnceLock;

use arrayvec::ArrayVec;
use gcra_policy::RuleAt;
use gcra_policy::key_bytes::write_part;
use gcra_table::{BucketPlace, KeyHash, Table};
use spop_agent::{Arg, Request, Shape, ShapedNotifies, Value};

use crate::borrower::Borrower;
use crate::counting::count_on;
use crate::decide::lent::Lent;
use crate::decide::local::{decide, decide_usual};
use crate::known_shapes::{KnownShape, KnownShapes, MOST_SHAPES};
use crate::message_key::write;
use crate::policies_in_force::{DecisionPath, Each, InForce};
use crate::question::Question;
use crate::round::Round;
use crate::stats::{Lane, LaneStats};

impl KnownShape {
    /// The question about a request of this shape.
    #[inline(always)]
    fn question(&self, key: KeyHash, rule: RuleAt) -> Question {
        Question { policy: self.policy, rule, cells: self.cells, key }
    }

    /// The known shape of a request whose question came out as this one. `None` if the next
    /// request of the shape may have another policy, or a key that is not made of the arg.
    fn of(
        in_force: &InForce,
        shape: &Shape<&[u8]>,
        arg: Arg<'_>,
        question: Question,
    ) -> Option<Self> {
        let policies = &in_force.policies.list[..=question.policy];
        // Which policy a message has may depend on its values.
        if policies.iter().any(|policy| policy.when.is_some()) {
            return None;
        }
        let policy = policies.last()?;
        let key = &policy.key;
        let is_whole_key = match &key.args[..] {
            [] => true,
            [known] => *known.name == *arg.name,
            _ => false,
        };
        if !is_whole_key || policy.price.arg().is_some() || !is_answered(in_force, question.policy)
        {
            return None;
        }
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
    fn find(&self, table: &Table, in_force: &InForce, value: Value<'_>) -> (KeyHash, RuleAt) {
        if self.is_as_sent {
            return (hash_as_sent(table, value), RuleAt::new(None));
        }
        let policy = &in_force.policies.list[self.policy];
        let (part, rule) = policy.first_part(value);
        let mut hasher = table.hasher();
        write(&mut hasher, &policy.key, part);
        (hasher.finish(), RuleAt::new(rule))
    }
}

/// The hash of a key that is one value as it is.
#[inline(always)]
fn hash_as_sent(table: &Table, value: Value<'_>) -> KeyHash {
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
        in_force: &InForce,
        request: &Request<'_>,
        question: Question,
    ) {
        if !std::mem::replace(has_learned, true) {
            self.learn(in_force, request, question);
        }
    }

    /// Learns the shape of a request whose question came out as this one, unless it is known.
    #[cold]
    fn learn(&self, in_force: &InForce, request: &Request<'_>, question: Question) {
        let Some(shape) = request.shape() else { return };
        let Some(arg) = request.messages().next().and_then(|message| message.args().next()) else {
            return;
        };
        for known in &self.0 {
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
    }

    /// Adds the shapes to a list, with what is in force for them.
    #[inline]
    fn add_to<'r>(
        &'r self,
        list: &mut ArrayVec<ShapeInForce<'r>, MOST_SHAPES>,
        in_force: &'r InForce,
        lane: Lane,
        is_lent: bool,
    ) {
        for known in self.0.iter().map_while(OnceLock::get) {
            let Each { path, stats, .. } = &in_force.each[known.policy];
            // Without a store nothing is lent.
            if is_lent || !matches!(path, DecisionPath::UsualShared(_)) {
                list.push(ShapeInForce { known, path, stats: stats.on(lane) });
            }
        }
    }
}

/// Whether requests of the policy at this place are answered by their shapes.
fn is_answered(in_force: &InForce, policy: usize) -> bool {
    let Each { path, reads_messages, .. } = &in_force.each[policy];
    match path {
        DecisionPath::Usual(_) | DecisionPath::UsualShared(_) => true,
        DecisionPath::Plain => !reads_messages && in_force.policies.answers.others.is_empty(),
        DecisionPath::Full => false,
    }
}

struct ShapeInForce<'r> {
    known: &'r KnownShape,
    path: &'r DecisionPath,
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
        borrower: Option<&Borrower>,
        notifies: &mut ShapedNotifies<'_, '_>,
    ) {
        let Self { table, in_force, now, lane, audit, leases, .. } = self;
        let (table, in_force): (&Table, &InForce) = (table, in_force);
        let leases = leases.as_ref().map(|leases| &***leases);
        let mut shapes = ArrayVec::new();
        in_force.shapes.add_to(&mut shapes, in_force, *lane, leases.is_some());
        let answers = in_force.blocked.each_ref().map(|answer| notifies.as_answer(answer));
        let ([first, ..], [Some(pass), Some(block)], None) = (&shapes[..], answers, audit) else {
            return;
        };
        let (mut at, mut shape) = (0, first);
        loop {
            let mut pending = ArrayVec::<Pending<'_>, { ShapedNotifies::QUEUE }>::new();
            let mut misses = 0;
            while !pending.is_full() {
                let known = shape.known;
                let ipv4 = |ip| match known.is_as_sent {
                    true => (hash_as_sent(table, Value::Ipv4(ip)), RuleAt::new(None)),
                    false => known.find(table, in_force, Value::Ipv4(ip)),
                };
                let other = |value| known.find(table, in_force, value);
                let Some((key, rule)) = notifies.read(&known.shape, ipv4, other) else {
                    // HAProxy may send several shapes in turn.
                    misses += 1;
                    at = if at + 1 < shapes.len() { at + 1 } else { 0 };
                    match shapes.get(at) {
                        Some(next) if misses < shapes.len() => shape = next,
                        _ => break,
                    }
                    continue;
                };
                misses = 0;
                let place = match shape.path {
                    DecisionPath::Usual(usual) => Some(table.place(usual.key(key), &usual.quota)),
                    DecisionPath::UsualShared(usual) => {
                        if let Some(leases) = leases {
                            leases.prefetch(usual.lease_key(key));
                        }
                        None
                    }
                    DecisionPath::Plain | DecisionPath::Full => {
                        let question = known.question(key, rule);
                        question.prefetch(table, &in_force.policies, None);
                        None
                    }
                };
                pending.push(Pending { shape, key, rule, place });
            }
            for Pending { shape, key, rule, place } in &pending {
                let &&ShapeInForce { known, path, stats } = shape;
                let question = known.question(*key, *rule);
                let message = || notifies.message();
                let verdict = match (path, place) {
                    (DecisionPath::Usual(usual), Some(place)) => {
                        let verdict = decide_usual(table, now, usual, place, question);
                        count_on(stats, in_force, question, verdict, message);
                        verdict
                    }
                    (DecisionPath::UsualShared(usual), _) => {
                        let (lane, now) = (*lane, now.time());
                        let lent = Lent { table, in_force, usual, lane, borrower, leases, now };
                        match lent.spend(question, message) {
                            Some(verdict) => verdict,
                            None => return,
                        }
                    }
                    _ => {
                        let verdict = decide(table, now, in_force, question, None, None, message);
                        count_on(stats, in_force, question, verdict, message);
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
