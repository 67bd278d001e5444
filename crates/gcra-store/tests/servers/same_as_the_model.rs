//! The scripts answer as `gcra_lease::Record` does, and keep the same record.

use std::time::Duration;

use gcra_lease::{
    Ask, AskNumber, Charge, Charged, HostId, Limit, Micros, Record, Reply, StoreTime, Window,
};
use gcra_store::{Bucket, Names, script};
use proptest::prelude::*;
use redis::{Cmd, Pipeline, Value};

use crate::support::{Server, needs, programs, valkey};

const START: StoreTime = StoreTime(1_800_000_000_000_000);

/// A script with a clock that the test sets: the last argument.
fn with_clock(source: &str) -> String {
    assert_eq!(source.matches("redis.call('TIME')").count(), 1);
    source.replace("redis.call('TIME')", "{ 0, ARGV[4] }")
}

#[derive(Clone, Debug)]
struct Step {
    what: What,
    passes: i64,
}

#[derive(Clone, Debug)]
enum What {
    /// With a number that is so many above the last one of the host.
    Ask(Ask, i64),
    Charge(Charge),
}

/// What is said to it.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Reply(Option<Reply>),
    Charged(u64, Charged),
}

fn any_step() -> impl Strategy<Value = Step> {
    let charge = any_charge().prop_map(What::Charge);
    (prop_oneof![1 => any_ask(), 1 => charge], any_time())
        .prop_map(|(what, passes)| Step { what, passes })
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
    let take = (cells(), prop_oneof![Just(0_u32), Just(1), cells()], delay);
    prop_oneof![
        4 => take.prop_map(|(cells, needs, max_delay)| {
            Charge::Take { cells, needs, max_delay: Micros(max_delay) }
        }),
        1 => cells().prop_map(|cells| Charge::More { cells }),
        1 => cells().prop_map(|cells| Charge::Less { cells }),
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
            owes: debt / 2,
            holds,
            want: want.max(least),
            least,
            validity: Micros(validity),
        };
        What::Ask(ask, number)
    })
}

fn any_limit() -> impl Strategy<Value = Limit> {
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
    let rate = (numbers, longest, beyond).prop_map(|((interval_ns, burst), longest, beyond)| {
        let limit = Limit::new(Duration::from_nanos(interval_ns), burst).unwrap();
        // One cell a year for 64 years is too long.
        let limit = limit.with_most_owed(burst + beyond).unwrap_or(limit);
        limit.with_longest_validity(Micros(longest))
    });
    // Windows that begin a little before and after the clock does.
    let begin = 1_799_999_996..1_800_000_004_u64;
    let count =
        (prop::sample::select(vec![1_u32, 30, 200, u32::MAX]), begin).prop_map(|(most, begin)| {
            Limit::count(most, Window { begin, end: begin + 3_600 }).unwrap()
        });
    prop_oneof![3 => rate, 1 => count]
}

/// When it was changed, what was owed, the cells of all leases; and of each lease the host, the
/// cells, the expiry and the number of the last ask.
type Content = (u64, u64, u32, Vec<(u64, u32, u64, u64)>);

/// A record as it lies in the store.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was looked at")]
fn written(bytes: &[u8]) -> Content {
    let eight = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).unwrap();
    let whole = |at: usize| {
        let number = f64::from_le_bytes(eight(at));
        assert!(number.fract() == 0.0 && (0.0..2_f64.powi(53)).contains(&number), "{number}");
        number as u64
    };
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let leases = (44..bytes.len())
        .step_by(28)
        .map(|at| (u64::from_le_bytes(eight(at)), four(at + 8), whole(at + 12), whole(at + 20)));
    (whole(0), whole(8), four(24), leases.collect())
}

fn of_model(record: &Record, now: StoreTime) -> Content {
    let leases: Vec<_> = record
        .leases()
        .iter()
        .map(|lease| (lease.host.0, lease.cells, lease.expiry.0, lease.number.0))
        .collect();
    (now.0, record.owed().0, leases.iter().map(|lease| lease.1).sum(), leases)
}

fn bytes_of(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Asks and charges of one bucket, one after the other. Each answer and each record is compared.
struct Compared<'a> {
    connection: &'a mut redis::Connection,
    bucket: Bucket,
    strict: bool,
}

impl Compared<'_> {
    /// `begin` makes the record that is not there. A charge supposes more than an ask.
    fn run(
        &mut self,
        steps: &[Step],
        mut now: StoreTime,
        numbers: &mut [u64; 8],
        mut record: Option<Record>,
        mut begin: impl FnMut(StoreTime, Option<&Charge>) -> Record,
    ) -> (StoreTime, Option<Record>) {
        let sources = [script::ASK_SOURCE, script::CHARGE_SOURCE].map(with_clock);
        let mut pipeline = Pipeline::new();
        let mut expected = Vec::new();
        let (limit, text) = (*self.bucket.limit(), script::By::Text);
        for (step, place) in steps.iter().zip(1..) {
            let (command, source) = match &step.what {
                // Nothing of a count is lent.
                What::Ask(..) if limit.window().is_some() => continue,
                What::Ask(ask, number) => {
                    now = StoreTime(now.0.saturating_add_signed(step.passes));
                    let last = &mut numbers[usize::try_from(ask.host.0 & 7).unwrap()];
                    *last = last.saturating_add_signed(*number);
                    let ask = Ask { number: AskNumber(*last), ..*ask };
                    let record = record.get_or_insert_with(|| begin(now, None));
                    let said = Said::Reply(record.ask(&limit, now, &ask));
                    expected.push((step, said, of_model(record, now)));
                    (script::command(&self.bucket, &ask, self.strict, text), &sources[0])
                }
                What::Charge(charge) => {
                    now = StoreTime(now.0.saturating_add_signed(step.passes));
                    let record = record.get_or_insert_with(|| begin(now, Some(charge)));
                    let charged = record.charge_at_once(&limit, now, charge);
                    expected.push((step, Said::Charged(place, charged), of_model(record, now)));
                    let bucket = &self.bucket;
                    let command = script::charge_command(bucket, place, charge, self.strict, text);
                    (command, &sources[1])
                }
            };
            let mut with_clock = Cmd::new();
            for (place, argument) in command.unwrap().args_iter().enumerate() {
                match argument {
                    _ if place == 1 => with_clock.arg(source),
                    redis::Arg::Simple(argument) => with_clock.arg(argument),
                    other => panic!("{other:?}"),
                };
            }
            with_clock.arg(now.0);
            pipeline.add_command(with_clock);
            pipeline.cmd("GET").arg(self.bucket.name());
        }
        if expected.is_empty() {
            return (now, record);
        }
        let answers: Vec<Value> = pipeline.query(self.connection).unwrap();
        for (answer, (step, said, model)) in answers.chunks(2).zip(expected) {
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
        (now, record)
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

#[test]
fn the_script_says_the_same_as_the_model() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let mut connection = connect(&server);
        let (mut key, mut asked) = (0_u64, 0);
        let steps = prop::collection::vec(any_step(), 1..60);
        check(cases(40), (any_limit(), steps), |(limit, steps)| {
            key += 1;
            asked += steps.len();
            let bucket = Names::new(b"").bucket("p.l", &key.to_le_bytes(), limit);
            let mut compared = Compared { connection: &mut connection, bucket, strict: false };
            compared.run(&steps, START, &mut [0; 8], None, |now, _| Record::new(now));
        });
        println!("{}: {asked} asks and charges", program.display());
    }
}

#[test]
fn changed_numbers_begin_with_what_was_owed_before() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let mut key = 0_u64;
    let steps = || prop::collection::vec(any_step(), 1..20);
    let all = (any_limit(), any_limit(), prop::option::weighted(0.8, steps()), steps());
    check(cases(40), all, |(earlier, limit, first, then)| {
        key += 1;
        let names = Names::new(b"");
        let name = |limit| names.bucket("p.l", &key.to_le_bytes(), limit);
        let mut numbers = [0; 8];
        let mut compared =
            Compared { connection: &mut connection, bucket: name(earlier), strict: false };
        let (mut now, mut before) = (START, None);
        if let Some(first) = first {
            let new = |now, _: Option<&Charge>| Record::new(now);
            (now, before) = compared.run(&first, now, &mut numbers, None, new);
        }
        compared.bucket = name(limit).changed_from(earlier);
        if compared.bucket.name() == name(earlier).name() {
            return;
        }
        compared.run(&then, now, &mut numbers, None, |now, _| match before.clone() {
            Some(before) => before.carried_over(&earlier, &limit, now),
            None => Record::new(now),
        });
    });
}

#[test]
fn a_strict_store_that_lost_its_memory_begins_with_all_that_may_be_owed() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let steps = || prop::collection::vec(any_step(), 1..20);
    let bucket = |key: &u64, limit| Names::new(b"").bucket("p.l", &key.to_le_bytes(), limit);
    let any = Limit::new(Duration::from_secs(1), 1).unwrap();
    // A key has its tag under every limit.
    let same_tag: Vec<u64> =
        (0..).filter(|key| bucket(key, any).name().starts_with("{gcra:007}")).take(5).collect();
    // The first key opens the epoch; the others come later, or by a clock that went back.
    let keys = prop::collection::vec((-5_000_000..5_000_000_i64, steps()), 1..5);
    check(cases(40), (any_limit(), keys), |(limit, keys)| {
        server_forgets(&mut connection);
        let mut epoch = None;
        for ((later, steps), key) in keys.into_iter().zip(&same_tag) {
            let mut compared =
                Compared { connection: &mut connection, bucket: bucket(key, limit), strict: true };
            let begin = |now: StoreTime, charge: Option<&Charge>| {
                let epoch = epoch.get_or_insert(now);
                *epoch = now.min(*epoch);
                match charge {
                    None => Record::after_loss(&limit, *epoch, now),
                    Some(charge) => Record::charged_after_loss(&limit, *epoch, now, charge),
                }
            };
            let now = StoreTime(START.0.saturating_add_signed(later));
            compared.run(&steps, now, &mut [0; 8], None, begin);
        }
    });
}

fn server_forgets(connection: &mut redis::Connection) {
    redis::cmd("FLUSHALL").exec(connection).unwrap();
}
