//! The scripts answer as `gcra_lease::Records` do, and keep the same records.

use std::time::Duration;

use gcra_lease::{
    Ask, AskNumber, AskReply, Change, Charge, Charged, HostId, Micros, Record, Records,
    SharedLimit, StoreTime, Units, Window,
};
use gcra_store::script::{self, StoreKind};
use gcra_store::{Bucket, Names};
use proptest::prelude::*;
use redis::{Cmd, Pipeline, Value};

use crate::support::{Server, needs, programs, valkey};

const START: StoreTime = StoreTime(1_800_000_000_000_000);

/// A script with a clock that the test sets: the last argument.
fn with_clock(source: &str) -> String {
    assert_eq!(source.matches("redis.call('TIME')").count(), 1);
    source.replace("redis.call('TIME')", "{ 0, ARGV[5] }")
}

#[derive(Clone, Debug)]
struct Step {
    what: What,
    passes: i64,
    /// By which of the numbers of the limit, modulo how many it has.
    numbers: usize,
    /// How long ago it got them, and how many cells are owed at most because of others.
    change: Option<(u64, u32)>,
}

#[derive(Clone, Debug)]
enum What {
    /// With a number that is so many above the last one of the host.
    Ask(Ask, i64),
    Charge(Charge),
}

/// The answers to it.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Reply(Option<AskReply>),
    Charged(u64, Charged),
}

fn any_step() -> impl Strategy<Value = Step> {
    let charge = any_charge().prop_map(What::Charge);
    let ago = prop_oneof![Just(0), 0..3_000_000_u64, 0..40_000_000_000_u64];
    let change = prop::option::of((ago, prop_oneof![Just(20_u32), 0..300_u32]));
    (prop_oneof![1 => any_ask(), 1 => charge], any_time(), 0..9_usize, change)
        .prop_map(|(what, passes, numbers, change)| Step { what, passes, numbers, change })
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![
        20 => 0..20_000_i64,
        10 => 0..3_000_000_i64,
        1 => -3_000_000..0_i64,
        1 => 0..40_000_000_000_i64,
    ]
}

fn any_charge() -> impl Strategy<Value = Charge> {
    let cells = || prop_oneof![30 => 0..30_u32, 1 => Just(u32::MAX)];
    let hours = 50 * 3_600_000_000_u64;
    let delay = prop::sample::select(vec![0, 0, 50_000, 3_000_000, 400_000_000, hours]);
    let taken_at = prop::option::of((0..1_000_000_u64).prop_map(|at| StoreTime(START.0 + at)));
    let take = (cells(), prop_oneof![Just(0_u32), Just(1), cells()], delay);
    prop_oneof![
        4 => take.prop_map(|(cells, needs, max_delay)| {
            Charge::Take { cells, needs, max_delay: Micros(max_delay) }
        }),
        1 => cells().prop_map(|cells| Charge::More { cells }),
        1 => (cells(), taken_at).prop_map(|(cells, taken_at)| Charge::Less { cells, taken_at }),
    ]
}

fn any_ask() -> impl Strategy<Value = What> {
    let numbers = (0..40_u32, 0..40_u32, 0..40_u32, 0..25_u32);
    let kind = (
        1..6_u64,
        -1..3_i64,
        prop::bool::weighted(0.1),
        prop_oneof![9 => Just(0_u32), 1 => 0..60_u32],
        prop_oneof![Just(0_u32), Just(1), Just(25)],
        prop::sample::select(vec![0_u64, 22_000, 500_000, 2_000_000, 9_000_000]),
    );
    (numbers, kind).prop_map(|((spent, holds, want, any), kind)| {
        let (host, number, fresh, debt, most, validity) = kind;
        let least = any.min(most);
        let ask = Ask {
            // Bytes that mean something in Lua's patterns, and bytes that stand elsewhere, too.
            host: HostId(if host == 5 { 0 } else { 0x2525_2e2a_0000_0000 | host }),
            number: AskNumber(0),
            fresh,
            spent,
            debt,
            owed_ago: match debt {
                0 => Ask::NOTHING_OWED,
                debt => Micros(u64::from(debt) * 40_000),
            },
            holds,
            want: want.max(least),
            least,
            validity: Micros(validity),
        };
        What::Ask(ask, number)
    })
}

/// The numbers that a limit has in turn: of those of a count, only the count changes.
fn any_limits() -> impl Strategy<Value = Vec<SharedLimit>> {
    let counts = (any_count(), 1..40_u32).prop_map(|(count, other)| {
        vec![count, SharedLimit::count(other, count.window().unwrap()).unwrap()]
    });
    prop_oneof![3 => prop::collection::vec(any_rate(), 1..4), 1 => counts]
}

fn any_rate() -> impl Strategy<Value = SharedLimit> {
    let numbers = prop_oneof![
        Just((100_u64, 10_000_000_u32)), // 10M/s
        Just((333_333, 200)),
        Just((1_000_001, 20)),
        Just((10_000_000, 7)),
        Just((10_000_000, 1)),
        Just((365 * 86_400 * 1_000_000_000, 4)),
    ];
    let longest = prop_oneof![3 => Just(2_000_000_u64), 1 => Just(50_000)];
    let beyond = prop_oneof![2 => Just(0_u32), 1 => Just(3), 1 => Just(60)];
    (numbers, longest, beyond).prop_map(|((interval_ns, burst), longest, beyond)| {
        let limit = SharedLimit::new(Duration::from_nanos(interval_ns), burst).unwrap();
        // One cell a year for 64 years is too long.
        let limit = limit.with_most_owed(burst + beyond).unwrap_or(limit);
        limit.with_longest_validity(Micros(longest))
    })
}

fn any_count() -> impl Strategy<Value = SharedLimit> {
    // Windows that begin a little before and after the clock does.
    let begin = 1_799_999_996..1_800_000_004_u64;
    (prop::sample::select(vec![1_u32, 30, 200, u32::MAX]), begin).prop_map(|(most, begin)| {
        SharedLimit::count(most, Window { begin, end: begin + 3_600 }).unwrap()
    })
}

/// The burst, the ceiling, a cell and the longest validity; then when the record was changed, the
/// debt, and the cells of all leases. Of each lease: the host, the cells, the expiry and the
/// number of the last ask.
type Content = ([u64; 4], u64, u64, u32, Vec<(u64, u32, u64, u64)>);

/// The records as they lie in the store.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was looked at")]
fn written(bytes: &[u8]) -> Vec<Content> {
    let eight = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).unwrap();
    let whole = |at: usize| {
        let number = f64::from_le_bytes(eight(at));
        assert!(number.fract() == 0.0 && (0.0..2_f64.powi(53)).contains(&number), "{number}");
        number as u64
    };
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut all, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let numbers = [four(at).into(), four(at + 4).into(), whole(at + 8), four(at + 24).into()];
        let (begin, count) = (at + 32, usize::try_from(four(at + 28)).unwrap());
        let leases = (0..count).map(|lease| begin + 44 + 28 * lease);
        let leases = leases.map(|at| {
            (u64::from_le_bytes(eight(at)), four(at + 8), whole(at + 12), whole(at + 20))
        });
        all.push((numbers, whole(begin), whole(begin + 8), four(begin + 24), leases.collect()));
        at = begin + 44 + 28 * count;
    }
    all
}

fn of_model(records: &Records, now: StoreTime) -> Vec<Content> {
    let each = |(limit, record): &(SharedLimit, Record)| {
        let leases: Vec<_> = record
            .leases()
            .iter()
            .map(|lease| (lease.host.0, lease.cells, lease.expiry.0, lease.number.0))
            .collect();
        let lent = leases.iter().map(|lease| lease.1).sum();
        let [burst, ceiling] = [limit.burst(), limit.ceiling()].map(u64::from);
        let numbers = [burst, ceiling, limit.cells(1).0, limit.longest_validity().0];
        (numbers, now.0, record.owed().0, lent, leases)
    };
    records.each().iter().map(each).collect()
}

fn bytes_of(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Asks and charges of one key, one after the other. Each answer and all records are compared.
struct Compared<'a> {
    connection: &'a mut redis::Connection,
    /// The bucket under each of the numbers.
    buckets: Vec<Bucket>,
    kind: StoreKind,
    records: Records,
    /// The records of the client under a key from before.
    now: StoreTime,
    numbers: [u64; 8],
}

impl<'a> Compared<'a> {
    fn new(connection: &'a mut redis::Connection, key: &[u8], limits: &[SharedLimit]) -> Self {
        let bucket = |limit: &SharedLimit| Names::new(b"").bucket("p.l", key, *limit);
        Self {
            connection,
            buckets: limits.iter().map(bucket).collect(),
            kind: StoreKind::default(),
            records: Records::default(),
            now: START,
            numbers: [0; 8],
        }
    }

    /// `begin` makes the record of a key that is not known. A charge supposes more than an ask.
    fn run(
        &mut self,
        steps: &[Step],
        mut begin: impl FnMut(&SharedLimit, StoreTime, Option<&Charge>) -> Record,
    ) {
        let sources = [script::ASK_SOURCE, script::CHARGE_SOURCE].map(with_clock);
        let mut pipeline = Pipeline::new();
        let (mut expected, text) = (Vec::new(), script::By::Text);
        for (step, place) in steps.iter().zip(1..) {
            let bucket = &self.buckets[step.numbers % self.buckets.len()];
            let limit = *bucket.limit();
            // Nothing of a count is lent.
            if matches!(step.what, What::Ask(..)) && limit.window().is_some() {
                continue;
            }
            let change = step.change.map_or(Change::NONE, |(ago, cells)| Change {
                ago: Micros(ago),
                most: Units(limit.cells(cells).0.min(1 << 50)),
            });
            self.now = StoreTime(self.now.0.saturating_add_signed(step.passes));
            let (now, records) = (self.now, &mut self.records);
            let (command, source, said) = match &step.what {
                What::Ask(ask, number) => {
                    let last = &mut self.numbers[usize::try_from(ask.host.0 & 7).unwrap()];
                    *last = last.saturating_add_signed(*number);
                    let ask = Ask { number: AskNumber(*last), ..*ask };
                    let begin = || begin(&limit, now, None);
                    let of = (&limit, &change);
                    let said = Said::Reply(records.ask(of, now, begin, &ask));
                    (script::command(bucket, &ask, self.kind, text), &sources[0], said)
                }
                What::Charge(charge) => {
                    let begin = || begin(&limit, now, Some(charge));
                    let of = (&limit, &change);
                    let charged = records.charge_at_once(of, now, begin, charge);
                    let said = Said::Charged(place, charged);
                    let command = script::charge_command(bucket, place, charge, self.kind, text);
                    (command, &sources[1], said)
                }
            };
            expected.push((step, limit, said, of_model(records, now)));
            let command = command.unwrap();
            let (mut with_clock, count) = (Cmd::new(), command.args_iter().count());
            for (place, argument) in command.args_iter().enumerate() {
                match argument {
                    _ if place == 1 => with_clock.arg(source),
                    _ if place == count - 2 => {
                        #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
                        let doubles = [change.ago.0 as f64, change.most.0 as f64];
                        with_clock.arg(doubles.map(f64::to_le_bytes).concat())
                    }
                    redis::Arg::Simple(argument) => with_clock.arg(argument),
                    other => panic!("{other:?}"),
                };
            }
            with_clock.arg(now.0);
            pipeline.add_command(with_clock);
            pipeline.cmd("GET").arg(bucket.name());
        }
        if expected.is_empty() {
            return;
        }
        let answers: Vec<Value> = pipeline.query(self.connection).unwrap();
        for (answer, (step, limit, said, model)) in answers.chunks(2).zip(expected) {
            let bytes = bytes_of(&answer[0]);
            let says = match &step.what {
                What::Ask(..) => Said::Reply(script::reply(bytes).unwrap()),
                What::Charge(_) => {
                    let (number, charged) = script::charged(bytes).unwrap();
                    Said::Charged(number, charged)
                }
            };
            assert_eq!(says, said, "{step:?} {limit:?}");
            assert_eq!(written(bytes_of(&answer[1])), model, "{step:?} {limit:?}");
        }
    }
}

fn cases(default: u32) -> u32 {
    let scale = std::env::var("GCRA_STORE_SCALE").map_or(1, |scale| scale.parse().unwrap());
    default * scale
}

fn connect(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn check<S: Strategy>(cases: u32, strategy: S, mut test: impl FnMut(S::Value)) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let test = std::cell::RefCell::new(&mut test);
    runner
        .run(&strategy, |value| {
            (test.borrow_mut())(value);
            Ok(())
        })
        .unwrap();
}

fn new_record(_: &SharedLimit, now: StoreTime, _: Option<&Charge>) -> Record {
    Record::new(now)
}

#[test]
fn the_script_says_the_same_as_the_model() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let mut connection = connect(&server);
        let (mut key, mut asked) = (0_u64, 0);
        let steps = prop::collection::vec(any_step(), 1..60);
        check(cases(60), (any_limits(), steps), |(limits, steps)| {
            key += 1;
            asked += steps.len();
            let mut compared = Compared::new(&mut connection, &key.to_le_bytes(), &limits);
            compared.run(&steps, new_record);
        });
        println!("{}: {asked} asks and charges", program.display());
    }
}

#[test]
fn a_strict_store_that_lost_its_memory_begins_with_all_that_may_be_owed() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let steps = || prop::collection::vec(any_step(), 1..20);
    let any = SharedLimit::new(Duration::from_secs(1), 1).unwrap();
    // A key has its tag under every limit.
    let tag = |key: &u64| Names::new(b"").bucket("p.l", &key.to_le_bytes(), any).name();
    let same_tag: Vec<u64> =
        (0..).filter(|key| tag(key).starts_with("{gcra:007}")).take(5).collect();
    // The first key opens the epoch; the others come later, or by a clock that went back.
    let keys = prop::collection::vec((-5_000_000..5_000_000_i64, steps()), 1..5);
    check(cases(40), (any_limits(), keys), |(limits, keys)| {
        server_forgets(&mut connection);
        let mut epoch = None;
        for ((later, steps), key) in keys.into_iter().zip(&same_tag) {
            let mut compared = Compared::new(&mut connection, &key.to_le_bytes(), &limits);
            compared.kind.is_strict = true;
            compared.now = StoreTime(START.0.saturating_add_signed(later));
            compared.run(&steps, |limit, now, charge| {
                let epoch = epoch.get_or_insert(now);
                *epoch = now.min(*epoch);
                match charge {
                    None => Record::after_loss(limit, *epoch, now),
                    Some(charge) => Record::charged_after_loss(limit, *epoch, now, charge),
                }
            });
        }
    });
}

fn server_forgets(connection: &mut redis::Connection) {
    redis::cmd("FLUSHALL").exec(connection).unwrap();
}
