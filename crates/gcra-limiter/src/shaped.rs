//! The usual requests, by the bytes that HAProxy has sent: one message with one arg, under one
//! limit.
//!
//! This is the path of nearly all requests of nearly all installations, and it takes a third of
//! the instructions of the way through [`Question`] and [`Reply`](spop_agent::Reply). It decides
//! and counts by the same functions. What it knows in advance is what the other way has found out
//! about an earlier request of the same shape: see docs/internals/SHAPES.md.

use std::sync::OnceLock;

use arrayvec::ArrayVec;
use gcra_policy::RuleAt;
use gcra_policy::key_bytes::write_part;
use gcra_table::{BucketPlace, KeyHash, Table};
use spop_agent::{Arg, Request, Shape, ShapedNotifies, Value};

use crate::counting::count_on;
use crate::decide::local::decide_usual;
use crate::known_shapes::{KnownShape, KnownShapes, MOST_SHAPES};
use crate::limiter::{Lent, Limiter, Round};
use crate::message_key::write;
use crate::policies_in_force::{DecisionPath, InForce, Usual};
use crate::question::Question;
use crate::stats::{Lane, LaneStats};

impl KnownShape {
    /// What is known of the shape of a request whose question came out as this one. `None` if the
    /// next request of the shape may have another policy, or a key that is not made of the arg.
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
        let is_usual = !matches!(in_force.each[question.policy].path, DecisionPath::Full);
        if !is_usual || !is_whole_key || policy.price.arg().is_some() {
            return None;
        }
        Some(Self {
            shape: Shape::new(shape.bytes().into())?,
            policy: question.policy,
            cells: question.cells,
            is_as_sent: match arg.value {
                Value::Ipv4(_) => key.ipv4_prefix == 32,
                Value::Ipv6(_) => key.ipv4_prefix == 32 && key.ipv6_prefix == 128,
                _ => !key.lowercase,
            },
        })
    }

    /// The hash of the key that is this value: what [`Question::new`] finds.
    #[inline(never)]
    fn hash(&self, table: &Table, in_force: &InForce, value: Value<'_>) -> KeyHash {
        if self.is_as_sent {
            return hash_as_sent(table, value);
        }
        let mut hasher = table.hasher();
        let key = &in_force.policies.list[self.policy].key;
        write(&mut hasher, key, key.group(value, 0));
        hasher.finish()
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
    /// Learns the shape of a request whose question came out as this one, unless it is known.
    #[cold]
    pub(crate) fn learn(&self, in_force: &InForce, request: &Request<'_>, question: Question) {
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

    /// The shapes with what is in force for them. `is_lent` is whether there is a store that lends
    /// cells.
    fn in_force<'r>(
        &'r self,
        in_force: &'r InForce,
        lane: Lane,
        is_lent: bool,
    ) -> ArrayVec<ShapeInForce<'r>, MOST_SHAPES> {
        let known = self.0.iter().map_while(OnceLock::get);
        known
            .filter_map(|known| {
                let each = &in_force.each[known.policy];
                let (usual, is_shared) = match &each.path {
                    DecisionPath::Usual(usual) => (usual, false),
                    DecisionPath::UsualShared(usual) if is_lent => (usual, true),
                    _ => return None,
                };
                Some(ShapeInForce { known, usual, stats: each.stats.on(lane), is_shared })
            })
            .collect()
    }
}

/// A shape, and what is in force for its requests.
struct ShapeInForce<'r> {
    known: &'r KnownShape,
    usual: &'r Usual,
    stats: LaneStats<'r>,
    /// Whether cells are spent that the store has lent.
    is_shared: bool,
}

/// A request that is read, and whose bucket is on its way from memory.
struct Pending<'r> {
    shape: &'r ShapeInForce<'r>,
    key: KeyHash,
    /// `None` if it is not a bucket that is charged.
    place: Option<BucketPlace<'r>>,
}

impl Limiter {
    /// Answers requests whose shapes are known, up to the first that has to be decided in another
    /// way.
    pub(crate) fn answer_known(&self, round: &mut Round, notifies: &mut ShapedNotifies<'_, '_>) {
        let Round { table, in_force, now, lane, audit, leases, .. } = round;
        let (table, in_force): (&Table, &InForce) = (table, in_force);
        let leases = leases.as_ref().map(|leases| &***leases);
        let shapes = in_force.shapes.in_force(in_force, *lane, leases.is_some());
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
                    true => hash_as_sent(table, Value::Ipv4(ip)),
                    false => known.hash(table, in_force, Value::Ipv4(ip)),
                };
                let other = |value| known.hash(table, in_force, value);
                let Some(key) = notifies.read(&known.shape, ipv4, other) else {
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
                let place = match leases.filter(|_| shape.is_shared) {
                    None => Some(table.place(shape.usual.key(key), &shape.usual.quota)),
                    Some(leases) => {
                        leases.prefetch(shape.usual.lease_key(key));
                        None
                    }
                };
                pending.push(Pending { shape, key, place });
            }
            for Pending { shape, key, place } in &pending {
                let &&ShapeInForce { known, usual, stats, .. } = shape;
                let &KnownShape { policy, cells, .. } = known;
                let question = Question { policy, rule: RuleAt::new(None), cells, key: *key };
                let message = || notifies.message();
                let verdict = match place {
                    Some(place) => {
                        let verdict = decide_usual(table, now, usual, place, question);
                        count_on(stats, in_force, question, verdict, message);
                        verdict
                    }
                    None => {
                        let (lane, now) = (*lane, now.time());
                        let lent = Lent { table, in_force, usual, lane, leases, now };
                        match self.spend(lent, question, message) {
                            Some(verdict) => verdict,
                            None => return,
                        }
                    }
                };
                if !notifies.answer(if verdict.is_blocked() { block } else { pass }) {
                    return;
                }
            }
            if !pending.is_full() {
                return;
            }
        }
    }
}
