//! Processes that charge one table while they are killed, stopped, restarted, and while the table
//! is resized under them.
//!
//! Three processes of two threads each ask for hot keys, for keys that come and go, and for keys
//! seen once. Half of the time these are new keys of a slow limit, so many that the table is full:
//! no hot key may be forgotten for them. A supervisor sends SIGKILL, or SIGSTOP and a while later
//! SIGCONT, at random moments, and lets the table grow and shrink. Up to three resizes run at
//! once, and are killed and stopped as well. Each allowed cell is written to a log with the clock
//! reading it was decided by, plus its delay: one of the hot keys is a queue of all processes.
//! Afterwards every key's log is held against its limit, over every interval. Two keys are counted
//! in windows of the wall clock, and each of their windows is held against the count.
//!
//! A few seconds in `cargo test`; `make soak` takes longer. `GCRA_STRESS_SECONDS` and
//! `GCRA_STRESS_SEED` are read. The seed is printed: it repeats what was chosen, though not when
//! the kernel let it happen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use gcra_table::{KeyHash, Nanos, Quota, Slots, Table, Window};
use rustix::process::{Pid, Signal, kill_process};

const PROCESSES: u32 = 3;
const THREADS: u64 = 2;
const SLOTS: u64 = 1024;
/// So many resizes may run at once.
const RESIZERS: usize = 3;

const HOT: u32 = 4;
/// One of the hot keys.
const QUEUED: u32 = 0;
const WARM: u32 = 200;
/// So many of the warm keys are asked for at a time, for so long; then others, while these drain
/// and lose their slots.
const WARM_AT_ONCE: u32 = 20;
const WARM_TURN_NS: u64 = 20_000_000;

/// The keys that are counted in windows, in logs.
const COUNTED: std::ops::Range<u32> = 1_000_000..1_000_002;
/// So many cells in each window.
const MOST: u32 = 3000;

/// How long the windows are: so that there are few of them in any run, because their buckets stay
/// for an hour.
fn window_s() -> u64 {
    (seconds() / 8).max(1)
}

/// How long the test runs.
fn seconds() -> u64 {
    std::env::var("GCRA_STRESS_SECONDS").map_or(8, |seconds| seconds.parse().unwrap())
}

/// The window of this moment, and when it began.
fn window(table: &Table) -> (Window, u64) {
    let now = table.wall_reading();
    let start = now.wall_ns() / 1_000_000_000 / window_s() * window_s();
    let [from, to] = [start, start + window_s()].map(|second| i64::try_from(second).unwrap());
    (Window::new(1, from, now.time_at(to)), start)
}

/// 5000 per second, up to 50 at once.
fn hot() -> Quota {
    quota(200_000, 50)
}

/// The same with a queue of up to 10 ms: 50 cells.
fn queued() -> Quota {
    hot().with_max_delay(Nanos::from_millis(10)).unwrap()
}

/// 200 per second, up to 3 at once: drained in 15 ms.
fn warm() -> Quota {
    quota(5_000_000, 3)
}

/// Drained in 20 us: its slot is anybody's at once.
fn fresh() -> Quota {
    quota(20_000, 1)
}

/// The limit that fills the table: it takes 1000 s to drain, 100 000 times as long as that of the
/// hot keys. One cell is a 5000th of it, and is paid off after 0.2 s.
fn slow() -> Quota {
    quota(200_000_000, 5_000)
}

/// The table is full for so long, and then has space for as long.
const FULL_TURN_NS: u64 = 500_000_000;

fn quota(interval_ns: u64, burst: u32) -> Quota {
    Quota::new(Nanos(interval_ns), burst).unwrap()
}

fn quota_of(key: u32) -> Quota {
    match key {
        QUEUED => queued(),
        key if key < HOT => hot(),
        _ => warm(),
    }
}

fn hash_of(table: &Table, key: u32) -> KeyHash {
    table.hash(&key.to_le_bytes())
}

/// The other end: this test binary, started again by the supervisor.
#[test]
fn child() {
    let Ok(role) = std::env::var("GCRA_STRESS_CHILD") else {
        return;
    };
    let table = PathBuf::from(std::env::var("GCRA_STRESS_TABLE").unwrap());
    let argument = std::env::var("GCRA_STRESS_ARGUMENT").unwrap();
    match role.as_str() {
        "charge" => charge(&table, argument.parse().unwrap()),
        "resize" => resize(&table, argument.parse().unwrap()),
        other => panic!("{other}"),
    }
}

/// `slots` is the size; an odd number asks for the size below it, with some notice.
fn resize(path: &Path, slots: u64) {
    // Mostly no notice at all: the others find out in the middle of a decision.
    let notice = Duration::from_millis(200 * (slots % 2));
    if let Err(error) = Table::resize(path, Slots::new(slots & !1).unwrap(), notice) {
        println!("{error}");
    }
}

/// Charges until it is killed.
fn charge(path: &Path, seed: u64) {
    let log = path.with_file_name(format!("{seed}.log"));
    let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let table = Arc::new(Table::open_or_create(path, None).unwrap().0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, log) = (table.clone(), &log);
            scope
                .spawn(move || charge_thread(table, log, Rng::with_seed(seed * THREADS + thread)));
        }
    });
}

fn charge_thread(mut table: Arc<Table>, log: &File, mut random: Rng) {
    loop {
        if let Some(next) = table.successor().unwrap() {
            table = next;
        }
        table.beat();
        // One reading of the clock for a while, as for all that came in one read.
        let mut now = table.reading();
        for _ in 0..=random.u32(..32) {
            let key = match random.u32(..5) {
                4 => {
                    let key = random.u32(COUNTED);
                    let ((window, start), hash) = (window(&table), hash_of(&table, key));
                    // A window that ended while this process was stopped has no cell of it.
                    let tally = table.count(hash, window, MOST, 1, &mut now);
                    if tally.is_ok_and(|tally| tally.is_allowed()) {
                        write_down(log, key, start);
                    }
                    continue;
                }
                0 => random.u32(..HOT),
                1 => {
                    let turn = u32::try_from(
                        now.time().0 / WARM_TURN_NS % u64::from(WARM / WARM_AT_ONCE),
                    )
                    .unwrap();
                    HOT + turn * WARM_AT_ONCE + random.u32(..WARM_AT_ONCE)
                }
                _ => {
                    let is_full = (now.time().0 / FULL_TURN_NS).is_multiple_of(2);
                    let quota = if is_full { slow() } else { fresh() };
                    let key = table.hash(&random.u64(..).to_le_bytes());
                    let _ = table.charge(key, quota, 1, &mut now);
                    continue;
                }
            };
            let quota = quota_of(key);
            let decision = table.charge(hash_of(&table, key), quota, 1, &mut now);
            if decision.is_allowed() {
                let leaves = now.time().saturating_add(quota.delay(decision.owed()));
                write_down(log, key, leaves.0);
            }
        }
    }
}

/// Writes down an allowed cell.
fn write_down(mut log: &File, key: u32, at: u64) {
    let mut entry = [0; 12];
    entry[..4].copy_from_slice(&key.to_le_bytes());
    entry[4..].copy_from_slice(&at.to_le_bytes());
    // A process killed before this line has a cell that nobody counts: one per thread and kill.
    log.write_all(&entry).unwrap();
}

/// The program that starts these tests again. tests/aarch64 names a script that does it in qemu.
fn this_program() -> PathBuf {
    std::env::var_os("GCRA_TEST_PROGRAM")
        .map_or_else(|| std::env::current_exe().unwrap(), Into::into)
}

/// The supervisor's state of a process.
struct Process {
    child: Child,
    wake_at: Option<Instant>,
}

impl Process {
    fn start(role: &str, table: &Path, argument: u64) -> Self {
        let child = Command::new(this_program())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("GCRA_STRESS_CHILD", role)
            .env("GCRA_STRESS_TABLE", table)
            .env("GCRA_STRESS_ARGUMENT", argument.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, wake_at: None }
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // A resize may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    fn stop_for(&mut self, time: Duration) {
        self.send(Signal::STOP);
        self.wake_at = Some(Instant::now() + time);
    }

    fn wake_if_due(&mut self) {
        if self.wake_at.is_some_and(|at| at <= Instant::now()) {
            self.send(Signal::CONT);
            self.wake_at = None;
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends it at whatever instruction it is.
    fn kill(&mut self) {
        // A resize may have ended by itself.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Debug, Default)]
struct Done {
    kills: u32,
    stops: u32,
    resizes: u32,
}

impl Done {
    fn is_enough(&self) -> bool {
        self.kills > 20 && self.stops > 5 && self.resizes > 0
    }
}

/// Whether the hot keys were hot, and a window was used. Otherwise that no key got too much says
/// little.
fn is_telling(logs: &BTreeMap<u32, Vec<u64>>) -> bool {
    let cells = |key: u32| logs.get(&key).map_or(&[][..], Vec::as_slice);
    let mut windows =
        COUNTED.clone().flat_map(|key| cells(key).chunk_by(u64::eq)).map(<[u64]>::len);
    (0..HOT).all(|key| cells(key).len() > 10 * hot().burst() as usize)
        && COUNTED.clone().all(|key| !cells(key).is_empty())
        && windows.any(|cells| cells > MOST as usize / 2)
}

/// For this time, or on a busy machine until enough was done.
fn supervise(table: &Path, random: &mut Rng, time: Duration) -> Done {
    let mut done = Done::default();
    let mut seed = random.u64(..) >> 8;
    let mut start = || {
        seed += 1;
        Process::start("charge", table, seed)
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut resizers: [Option<Process>; RESIZERS] = Default::default();
    let began = Instant::now();
    let mut look = time;
    while began.elapsed() < 10 * time {
        if began.elapsed() >= look && done.is_enough() {
            if is_telling(&read_logs(table.parent().unwrap())) {
                break;
            }
            look = began.elapsed() + Duration::from_secs(1);
        }
        // Then a process perhaps takes longer to start than it lives.
        let longest = if look == time { 6_000 } else { 60_000 };
        thread::sleep(Duration::from_micros(random.u32(..longest).into()));
        processes.iter_mut().chain(resizers.iter_mut().flatten()).for_each(Process::wake_if_due);
        let process = &mut processes[random.u32(..PROCESSES) as usize];
        match random.u32(..100) {
            0..30 => {
                process.kill();
                *process = start();
                done.kills += 1;
            }
            30..45 if process.wake_at.is_none() => {
                process.stop_for(Duration::from_millis(random.u32(..60).into()));
                done.stops += 1;
            }
            45..95 => {
                let resizer = &mut resizers[random.u32(..3) as usize];
                resizer.take_if(|running| running.has_ended());
                match resizer {
                    // So that another one comes, finishes and begins the next before it goes on.
                    Some(running) if random.u32(..4) > 0 => {
                        running.stop_for(Duration::from_millis(random.u32(..1_500).into()));
                    }
                    Some(_) => *resizer = None,
                    None => {
                        let slots = [SLOTS, 2 * SLOTS][random.u32(..2) as usize];
                        let with_notice = u64::from(random.u32(..2) == 0);
                        *resizer = Some(Process::start("resize", table, slots + with_notice));
                        done.resizes += 1;
                    }
                }
            }
            _ => {}
        }
    }
    // A resize that was interrupted can be finished, by one who asks for the size that was begun.
    drop(resizers);
    for slots in [SLOTS, 2 * SLOTS] {
        let _ = Table::resize(table, Slots::new(slots).unwrap(), Duration::ZERO);
    }
    done
}

/// The allowed cells of each key, by the moments at which they may go on: the clock readings of
/// their decisions, and their delays.
fn read_logs(directory: &Path) -> BTreeMap<u32, Vec<u64>> {
    let mut allowed: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            for entry in fs::read(path).unwrap().as_chunks::<12>().0 {
                let key = u32::from_le_bytes(entry[..4].try_into().unwrap());
                allowed
                    .entry(key)
                    .or_default()
                    .push(u64::from_le_bytes(entry[4..].try_into().unwrap()));
            }
        }
    }
    allowed.values_mut().for_each(|readings| readings.sort_unstable());
    allowed
}

/// How many of the cells are too many: for some interval of length t more than `burst + t / T`.
fn excess(readings: &[u64], quota: Quota) -> usize {
    let mut level_ns = 0;
    let mut last = readings.first().copied().unwrap_or(0);
    readings
        .iter()
        .filter(|reading| {
            level_ns =
                u64::saturating_sub(level_ns, *reading - last) + quota.emission_interval().0;
            last = **reading;
            let too_many = level_ns > quota.drain_time().0;
            if too_many {
                level_ns -= quota.emission_interval().0;
            }
            too_many
        })
        .count()
}

#[test]
fn killed_stopped_and_resized_no_key_gets_too_much_and_nothing_is_left_unusable() {
    let variable =
        |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seed =
        variable("GCRA_STRESS_SEED").unwrap_or_else(|| u64::from(std::process::id()) * 1_000_003);
    println!("GCRA_STRESS_SEED={seed}");
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("table");
    drop(Table::open_or_create(&path, Some(Slots::new(SLOTS).unwrap())).unwrap());

    let done = supervise(&path, &mut Rng::with_seed(seed), Duration::from_secs(seconds()));
    let table = Table::inspect(&path).unwrap();
    let evictions = table.evictions();
    let mut logs = read_logs(directory.path());
    let is_telling = is_telling(&logs);
    let counted: Vec<_> = COUNTED.filter_map(|key| logs.remove(&key)).collect();
    let cells: usize = logs.values().map(Vec::len).sum();
    println!("{done:?}, {cells} cells of {} keys, {evictions:?}", logs.len());

    // Every key, every interval. The keys that are evicted for want of space are those of the slow
    // limit. Each owes a smaller part of its limit than any other key, and there are some among
    // any eight slots.
    let too_many: usize =
        logs.iter().map(|(key, readings)| excess(readings, quota_of(*key))).sum();
    assert_eq!(too_many, 0, "cells too many (seed {seed})");
    assert!(is_telling, "the hot keys were not hot, or no window was used");

    // Every window. One cell of the count is a larger part of it than one of the slow limit.
    let windows: Vec<usize> =
        counted.iter().flat_map(|starts| starts.chunk_by(u64::eq)).map(<[u64]>::len).collect();
    println!("cells in windows: {windows:?}");
    let over = windows.iter().map(|cells| cells.saturating_sub(MOST as usize)).sum::<usize>();
    assert_eq!(over, 0, "cells too many in windows (seed {seed})");
    assert!(done.is_enough(), "{done:?}");

    assert!(table.check().is_empty(), "{:?} (seed {seed})", table.check());
    assert_eq!(table.gave_up(), 0);
    while table.occupancy().live > windows.len() as u64 {
        thread::sleep(Duration::from_millis(5));
    }
    // A client that was idle has its whole burst, and a whole queue behind it.
    for key in 0..HOT + WARM {
        let (key, quota) = (hash_of(&table, key), quota_of(key));
        let mut now = table.reading();
        let queue = quota.max_delay().div_ceil(quota.emission_interval());
        let asked = 0..=u64::from(quota.burst()) + queue;
        let decisions: Vec<_> = asked
            .map(|_| table.charge(key, quota, 1, &mut now))
            .filter(|decision| decision.is_allowed())
            .collect();
        let at_once = decisions.iter().filter(|it| quota.delay(it.owed()) == Nanos::ZERO).count();
        assert_eq!(at_once, quota.burst() as usize);
        assert_eq!(decisions.len() as u64, u64::from(quota.burst()) + queue);
    }
    // Every slot can be taken.
    let mut random = Rng::with_seed(seed);
    let hour = quota(3_600_000_000_000, 1);
    for _ in 0..40 * table.slots().get() {
        let _ =
            table.charge(table.hash(&random.u64(..).to_le_bytes()), hour, 1, &mut table.reading());
    }
    assert_eq!(table.occupancy().live, u64::from(table.slots().get()), "{:?}", table.occupancy());
}
