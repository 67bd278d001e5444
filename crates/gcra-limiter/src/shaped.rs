//! The usual requests, by the bytes that HAProxy has sent: one message with one arg, under one
//! limit.
//!
//! This is the path of nearly all requests of nearly all installations, and it takes a third of
//! the instructions of the way through [`Question`] and [`Reply`](spop_agent::Reply). It decides
//! and counts by the same functions. It knows in advance what the other way has found out about an
//! earlier request of the same shape: see docs/internals/SHAPES.md.

// ADR 49: Usual requests are answered by their shapes.

use std::net::Ipv6Addr;
use std::sync::OnceLock;

use arrayvec::ArrayVec;
use gcra_policy::key_bytes::write_part;
use gcra_policy::{Policy, RuleAt};
use gcra_table::{BucketPlace, KeyHash, Table};
use spop_agent::{Arg, Request, Shape, ShapedNotifies, Value};

use crate::active_policies::{ActivePolicies, ActivePolicy, DecisionPath};
use crate::decide::path::{Decided, OneMessage};
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

    /// The hash of the key that is a value, and the rule for it: what [`Question::new`] finds.
    /// `of` says of which kind the value is. It stays in registers.
    #[inline(always)]
    fn find<'v, V>(
        &self,
        table: &Table,
        row: &ActivePolicy,
        value: V,
        of: impl Fn(V) -> Value<'v>,
    ) -> (KeyHash, RuleAt) {
        if !self.is_as_sent {
            return find_grouped(table, row, value, of);
        }
        let key = match of(value) {
            Value::Ipv6(ip) => hash_ipv6(table, ip),
            Value::String(string) => hash_string(table, string),
            value => hash_as_sent(table, value),
        };
        (key, RuleAt::new(None))
    }
}

/// The same where the policy has something to say about the value.
#[inline(never)]
fn find_grouped<'v, V>(
    table: &Table,
    row: &ActivePolicy,
    value: V,
    of: impl Fn(V) -> Value<'v>,
) -> (KeyHash, RuleAt) {
    let (part, rule) = row.policy.first_part(of(value));
    let mut hasher = table.hasher();
    write(&mut hasher, &row.policy.key, part);
    (hasher.finish(), RuleAt::new(rule))
}

/// The hash of a key that is one value as it is.
#[inline(always)]
pub(crate) fn hash_as_sent(table: &Table, value: Value<'_>) -> KeyHash {
    let mut hasher = table.hasher();
    write_part(&mut hasher, value);
    hasher.finish()
}

/// The same of an address, apart from the code for IPv4, which is the usual one.
#[inline(never)]
fn hash_ipv6(table: &Table, ip: Ipv6Addr) -> KeyHash {
    hash_as_sent(table, Value::Ipv6(ip))
}

#[inline(never)]
fn hash_string(table: &Table, string: &[u8]) -> KeyHash {
    hash_as_sent(table, Value::String(string))
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

    /// Adds the shapes to a list, with their policies and statistics in force.
    #[inline]
    fn add_to<'r>(
        &'r self,
        list: &mut ArrayVec<ShapeInForce<'r>, MOST_SHAPES>,
        in_force: &'r ActivePolicies,
        lane: Lane,
    ) {
        for known in self.list.iter().map_while(OnceLock::get) {
            let row = in_force.row(known.policy);
            list.push(ShapeInForce { known, row, stats: row.stats.on(lane) });
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
    let is_decided = !row.reads_messages && !matches!(row.path, DecisionPath::Full);
    (is_by_key && is_decided).then_some(policy)
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
    /// For the usual path.
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
        let one = OneMessage { table, in_force, borrowing: lease_client.zip(leases) };
        let mut shapes = ArrayVec::new();
        in_force.shapes.add_to(&mut shapes, in_force, *lane);
        let answers = in_force.blocked.each_ref().map(|answer| notifies.as_answer(answer));
        let ([first, ..], [Some(pass), Some(block)], None) = (&shapes[..], answers, audit) else {
            return;
        };
        let (mut at, mut shape) = (0, first);
        // HAProxy may send several shapes by turns: which one came behind each the last time.
        let (mut behind, mut last, mut take_turns) = ([0; MOST_SHAPES], 0, false);
        loop {
            let mut pending = ArrayVec::<Pending<'_>, { ShapedNotifies::QUEUE }>::new();
            let mut misses = 0;
            while !pending.is_full() {
                let ShapeInForce { known, row, .. } = *shape;
                let ipv4 = |ip| known.find(table, row, ip, Value::Ipv4);
                let ipv6 = |ip| known.find(table, row, ip, Value::Ipv6);
                let string = |string| known.find(table, row, string, Value::String);
                let Some((key, rule)) = notifies.read(&known.shape, ipv4, ipv6, string) else {
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
                let place = one.prefetch(row, (key, rule), || None);
                pending.push(Pending { shape, key, rule, place });
                if take_turns && let Some(next) = shapes.get(behind[at]) {
                    (last, at, shape) = (at, behind[at], next);
                }
            }
            for Pending { shape, key, rule, place } in &pending {
                let &&ShapeInForce { known, row, stats } = shape;
                let question = || known.question(*key, *rule);
                let message = || notifies.first().message();
                let is_more = match one.decide(row, stats, now, question, *place, message) {
                    Decided::Blocked(true) => notifies.answer(block),
                    Decided::Blocked(false) => notifies.answer(pass),
                    Decided::ByAnswer => {
                        let notify = notifies.first();
                        notifies.answer_with(|reply| {
                            let message = || notify.message();
                            one.answer(row, stats, now, question(), message, reply);
                        })
                    }
                    Decided::No => false,
                };
                if !is_more {
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
