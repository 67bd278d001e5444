//! The script answers as `gcra_lease::Record` does, and keeps the same record.

use std::time::Duration;

use gcra_lease::{Ask, AskNumber, HostId, Limit, Micros, Record, StoreTime};
use gcra_store::{Bucket, Names, script};
use proptest::prelude::*;
use redis::{Cmd, Pipeline, Value};

use crate::support::{Server, needs, programs, valkey};

const START: StoreTime = StoreTime(1_800_000_000_000_000);

/// The script with a clock that the test sets: the last argument.
fn source() -> String {
    let source = script::SOURCE;
    assert_eq!(source.matches("redis.call('TIME')").count(), 1);
    source.replace("redis.call('TIME')", "{ 0, ARGV[4] }")
}

#[derive(Clone, Debug)]
struct Step {
    ask: Ask,
    /// How many above the last number of this host.
    number: i64,
    passes: i64,
}

fn any_step() -> impl Strategy<Value = Step> {
    let numbers = (0..40_u32, 0..40_u32, 0..40_u32, 0..25_u32);
    let kind = (
        1..6_u64,
        -1..3_i64,
        prop::bool::weighted(0.1),
        prop_oneof![9 => Just(0_u32), 1 => 0..60_u32],
        prop_oneof![Just(0_u32), Just(1), Just(25)],
        prop::sample::select(vec![0_u64, 22_000, 500_000, 2_000_000, 9_000_000]),
        prop_oneof![
            20 => 0..20_000_i64,
            10 => 0..3_000_000_i64,
            1 => -3_000_000..0_i64,
            1 => 0..40_000_000_000_i64,
        ],
    );
    (numbers, kind).prop_map(|((spent, holds, want, any), kind)| {
        let (host, number, fresh, debt, most, validity, passes) = kind;
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
        Step { ask, number, passes }
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
    (numbers, longest, beyond).prop_map(|((interval_ns, burst), longest, beyond)| {
        let limit = Limit::new(Duration::from_nanos(interval_ns), burst).unwrap();
        // One cell a year for 64 years is too long.
        let limit = limit.with_most_owed(burst + beyond).unwrap_or(limit);
        limit.with_longest_validity(Micros(longest))
    })
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

/// Asks of one bucket, one after the other, and compares each answer and each record.
struct Compared<'a> {
    connection: &'a mut redis::Connection,
    source: String,
    bucket: Bucket,
    strict: bool,
}

impl Compared<'_> {
    fn run(
        &mut self,
        steps: &[Step],
        mut now: StoreTime,
        numbers: &mut [u64; 8],
        mut record: Option<Record>,
        mut begin: impl FnMut(StoreTime) -> Record,
    ) -> (StoreTime, Option<Record>) {
        let mut pipeline = Pipeline::new();
        let mut expected = Vec::new();
        for step in steps {
            now = StoreTime(now.0.saturating_add_signed(step.passes));
            let last = &mut numbers[usize::try_from(step.ask.host.0 & 7).unwrap()];
            *last = last.saturating_add_signed(step.number);
            let ask = Ask { number: AskNumber(*last), ..step.ask };
            let limit = *self.bucket.limit();
            let record = record.get_or_insert_with(|| begin(now));
            let reply = record.ask(&limit, now, &ask);
            expected.push((ask, reply, of_model(record, now)));

            let cmd = script::command(&self.bucket, &ask, self.strict, script::By::Text).unwrap();
            let mut with_clock = Cmd::new();
            for (place, argument) in cmd.args_iter().enumerate() {
                match argument {
                    _ if place == 1 => with_clock.arg(&self.source),
                    redis::Arg::Simple(argument) => with_clock.arg(argument),
                    other => panic!("{other:?}"),
                };
            }
            with_clock.arg(now.0);
            pipeline.add_command(with_clock);
            pipeline.cmd("GET").arg(self.bucket.name());
        }
        let answers: Vec<Value> = pipeline.query(self.connection).unwrap();
        for (answer, (ask, reply, model)) in answers.chunks(2).zip(expected) {
            assert_eq!(script::reply(bytes_of(&answer[0])), Ok(reply), "{ask:?}");
            assert_eq!(written(bytes_of(&answer[1])), model, "{ask:?}");
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
            let mut compared =
                Compared { connection: &mut connection, source: source(), bucket, strict: false };
            compared.run(&steps, START, &mut [0; 8], None, Record::new);
        });
        println!("{}: {asked} asks", program.display());
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
        let mut compared = Compared {
            connection: &mut connection,
            source: source(),
            bucket: name(earlier),
            strict: false,
        };
        let (mut now, mut before) = (START, None);
        if let Some(first) = first {
            (now, before) = compared.run(&first, now, &mut numbers, None, Record::new);
        }
        if earlier == limit {
            return;
        }
        compared.bucket = name(limit).changed_from(earlier);
        compared.run(&then, now, &mut numbers, None, |now| match before.clone() {
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
    let same_tag: Vec<u64> =
        (0..).filter(|key| bucket(key, any).name().starts_with("{gcra:007}")).take(5).collect();
    // The first key opens the epoch; the others come later, or by a clock that went back.
    let keys = prop::collection::vec((-5_000_000..5_000_000_i64, steps()), 1..5);
    check(cases(40), (any_limit(), keys), |(limit, keys)| {
        server_forgets(&mut connection);
        let mut epoch = None;
        for ((later, steps), key) in keys.into_iter().zip(&same_tag) {
            let mut compared = Compared {
                connection: &mut connection,
                source: source(),
                bucket: bucket(key, limit),
                strict: true,
            };
            let begin = |now: StoreTime| {
                let epoch = epoch.get_or_insert(now);
                *epoch = now.min(*epoch);
                Record::after_loss(&limit, *epoch, now)
            };
            let now = StoreTime(START.0.saturating_add_signed(later));
            compared.run(&steps, now, &mut [0; 8], None, begin);
        }
    });
}

fn server_forgets(connection: &mut redis::Connection) {
    redis::cmd("FLUSHALL").exec(connection).unwrap();
}
