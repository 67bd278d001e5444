//! Leases in a file: which process makes it, when it is replaced, and what is left of a limit when
//! processes are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gcra_lease::{
    Ask, AskNumber, AskReply, HostId, HostTime, Look, Micros, Record, SharedLimit, Step,
    StoreTime, Wish,
};
use gcra_table::{
    LeaseKey, LeaseNeed, LeaseNumbers, Leases, Nanos, OpenError, OpenErrorKind, Opened, Replaced,
    Slots, StoreId, Table,
};
use tempfile::TempDir;

const PATIENCE: Micros = Micros::from_millis(50);
const STORE: StoreId = StoreId([7; 16]);

fn slots() -> Slots {
    Slots::new(64).unwrap()
}

/// A table in a file on tmpfs, and where its leases are.
fn table() -> (TempDir, Table, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let table = open_table(&directory.path().join("table"));
    let leases = directory.path().join("table.leases");
    (directory, table, leases)
}

fn open_table(path: &Path) -> Table {
    patiently(|| Table::open_or_create(path, Some(slots()))).0
}

fn open(table: &Table) -> (Leases, Opened) {
    patiently(|| Leases::open_or_create(table, STORE, slots()))
}

/// Opens a file, again if others have held its lock for too long.
fn patiently<T>(open: impl Fn() -> Result<T, OpenError>) -> T {
    loop {
        match open() {
            Err(error) if matches!(error.kind(), OpenErrorKind::Locked) => {}
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

fn key(table: &Table, name: &str) -> LeaseKey {
    LeaseKey::new(table.hash(name.as_bytes()), LeaseNumbers::new(&[BURST.into()]))
}

const BURST: u32 = 400;

/// One cell an hour: what is charged in a test stays charged.
fn limit() -> SharedLimit {
    SharedLimit::new(Duration::from_secs(3_600), BURST).unwrap()
}

fn wish(want: u32) -> Wish {
    Wish { want, least: 1, validity: Micros::from_millis(500) }
}

fn now(table: &Table) -> HostTime {
    HostTime::from(table.now())
}

#[test]
fn the_first_process_makes_the_file_and_others_join_it() {
    let (_directory, table, path) = table();
    assert!(!path.exists() && Leases::inspect(&table).unwrap().is_none());
    let (first, opened) = open(&table);
    assert_eq!(opened, Opened::Created);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o600, 8192 + 64 * 16));
    assert_eq!((first.entries(), first.bytes()), (32, metadata.len()));

    // Another number of slots is only for a file that has to be made.
    let (second, opened) =
        Leases::open_or_create(&table, STORE, Slots::new(256).unwrap()).unwrap();
    assert_eq!((opened, second.entries()), (Opened::Joined, 32));
    assert_eq!(first.host(), second.host());
    let key = key(&table, "a");
    // All at once, because an ask has half a second and a slow machine may need more.
    let now = now(&table);
    let sent = first.ask(key, &limit(), now, PATIENCE, wish(3)).unwrap();
    assert_eq!(second.ask(key, &limit(), now, PATIENCE, wish(3)), None, "one asks");
    let mut record = Record::new(StoreTime(0));
    let reply = record.ask(&limit(), StoreTime(0), &sent.ask).unwrap();
    assert!(second.reply(key, now, &sent, &reply), "a process takes the reply of another");
    assert_eq!(first.spend(key, now, 2).unwrap().left(), 1);
    assert!(second.spend(key, now, 2).is_none() && second.spend(key, now, 1).is_some());
    let sent = second.ask(key, &limit(), now, PATIENCE, wish(1)).unwrap();
    assert_eq!((sent.ask.spent, sent.ask.number), (3, AskNumber(first.asks())));
    assert_eq!(Leases::inspect(&table).unwrap().unwrap().asks(), first.asks());
}

#[test]
fn processes_that_start_at_once_are_one_host() {
    let (directory, _table, path) = table();
    for round in 0..20 {
        let hosts = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let (leases, _) = open(&open_table(&directory.path().join("table")));
                    hosts.lock().unwrap().push(leases.host());
                });
            }
        });
        let hosts = hosts.into_inner().unwrap();
        assert!(hosts.iter().all(|host| *host == hosts[0]), "{hosts:?}");
        // The next ones find nothing, or a damaged file.
        match round % 2 {
            0 => fs::remove_file(&path).unwrap(),
            _ => damage(&path, 80),
        }
    }
}

/// Flips a bit of the header.
fn damage(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_file_that_does_not_fit_is_replaced_and_the_host_is_another_one() {
    let (directory, table, path) = table();
    let (mut last, _) = open(&table);
    let mut replaced = |what: &str, table: &Table| {
        assert!(Leases::inspect(table).unwrap().is_none(), "{what}: looking changes nothing");
        let next = last.successor(table, slots()).unwrap().expect(what);
        assert_ne!(next.host(), last.host(), "{what}");
        assert_eq!(open(table).0.host(), next.host(), "{what}");
        assert!(next.successor(table, slots()).unwrap().is_none());
        last = next;
    };
    fs::remove_file(&path).unwrap();
    replaced("it was removed", &table);
    // Another table: its keys are hashed in another way.
    drop(table);
    fs::remove_file(directory.path().join("table")).unwrap();
    let table = open_table(&directory.path().join("table"));
    replaced("another table", &table);

    // A running process goes on with a file that it has open, and whose header it has read. One
    // that starts replaces it.
    for at in [8, 24, 40, 56, 64, 72, 80, 96, 112, 120, 128] {
        damage(&path, at);
        let (leases, opened) = open(&table);
        assert_eq!(opened, Opened::Created, "byte {at}");
        assert_ne!(leases.host(), last.host());
        let next = last.successor(&table, slots()).unwrap().expect("it has lost its name");
        assert_eq!(next.host(), leases.host());
        last = next;
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8192 + 128 * 16).unwrap();
    assert_eq!(open(&table).1, Opened::Created, "it has grown");
}

#[test]
fn a_file_of_another_version_is_left_alone_by_those_that_run() {
    let (_directory, table, path) = table();
    let (ours, _) = open(&table);
    fs::remove_file(&path).unwrap();
    let (theirs, _) = open(&table);
    damage(&path, 8);
    assert!(ours.successor(&table, slots()).unwrap().is_none());
    drop(theirs);
    assert_eq!(open(&table).1, Opened::Created, "one that starts needs a file");
}

#[test]
fn leases_of_another_store_are_replaced_and_left_alone_by_those_that_run() {
    let (_directory, table, _) = table();
    let of = |store| Leases::open_or_create(&table, StoreId([store; 16]), slots()).unwrap().0;
    let (ours, theirs) = (of(1), of(2));
    assert_eq!((ours.replaced(), theirs.replaced()), (None, Some(Replaced::OtherStore)));
    assert_ne!(ours.host(), theirs.host());
    // Neither takes the name from the other while they run.
    for leases in [&ours, &theirs, &ours] {
        assert!(leases.successor(&table, slots()).unwrap().is_none());
    }
    assert!(ours.is_displaced() && !theirs.is_displaced());
    assert_eq!(Leases::inspect(&table).unwrap().unwrap().host(), theirs.host());
    // One that starts makes a file, and others of its store join it.
    let again = of(1);
    assert_ne!(again.host(), ours.host());
    let next = ours.successor(&table, slots()).unwrap().expect("there is one of its store");
    assert_eq!((next.host(), next.replaced()), (again.host(), None));
    assert!(theirs.successor(&table, slots()).unwrap().is_none());
    assert!(theirs.is_displaced());
}

#[test]
fn a_copy_is_replaced() {
    let (directory, table, path) = table();
    let (ours, _) = open(&table);
    let copy = directory.path().join("copy");
    fs::copy(directory.path().join("table"), &copy).unwrap();
    fs::copy(&path, directory.path().join("copy.leases")).unwrap();
    let (theirs, opened) = open(&open_table(&copy));
    assert_eq!((opened, theirs.replaced()), (Opened::Created, Some(Replaced::Copied)));
    assert_ne!(ours.host(), theirs.host());
    // A copy in the place of a file is nobody's.
    fs::remove_file(&path).unwrap();
    fs::copy(directory.path().join("copy.leases"), &path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let ours = ours.successor(&table, slots()).unwrap().expect("it has lost its name");
    assert_eq!(ours.replaced(), Some(Replaced::Copied));
    // A file that was moved is the same one.
    let moved = directory.path().join("moved");
    fs::rename(directory.path().join("table"), &moved).unwrap();
    fs::rename(&path, directory.path().join("moved.leases")).unwrap();
    assert_eq!(open(&open_table(&moved)).0.host(), ours.host());
}

#[test]
fn what_is_not_ours_is_refused_and_stays() {
    let (directory, table, path) = table();
    let refused = |text: &str| {
        let error = Leases::open_or_create(&table, STORE, slots()).expect_err("it was opened");
        assert_eq!(error.path(), path);
        assert!(error.to_string().contains(text), "{error}");
        assert!(fs::symlink_metadata(&path).is_ok(), "it was removed");
    };
    fs::write(&path, "notes").unwrap();
    refused("it is not a file of leases");
    fs::copy(directory.path().join("table"), &path).unwrap();
    refused("it is not a file of leases");
    fs::remove_file(&path).unwrap();
    symlink(directory.path().join("table"), &path).unwrap();
    refused("symbolic link");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("a directory");
    fs::remove_dir(&path).unwrap();
    let (leases, _) = open(&table);
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    refused("mode 0640");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, directory.path().join("other")).unwrap();
    refused("2 names");
    fs::remove_file(directory.path().join("other")).unwrap();
    assert_eq!(open(&table).0.host(), leases.host());
    let error = Table::open_or_create(&path, Some(slots())).expect_err("it is no table");
    assert!(matches!(error.kind(), OpenErrorKind::Foreign), "{error}");
}

#[test]
fn leases_stay_through_a_resize_of_the_table() {
    let (directory, table, _) = table();
    let (leases, _) = open(&table);
    let path = directory.path().join("table");
    Table::resize(&path, Slots::new(256).unwrap(), Duration::ZERO).unwrap();
    table.beat();
    let table = table.successor().unwrap().expect("it was resized");
    assert!(leases.successor(&table, slots()).unwrap().is_none());
    let again = open_table_of(&path, 256);
    assert_eq!(open(&again).0.host(), leases.host());
}

fn open_table_of(path: &Path, slots: u64) -> Table {
    Table::open_or_create(path, Some(Slots::new(slots).unwrap())).unwrap().0
}

#[test]
fn leases_of_a_table_in_memory_are_in_memory() {
    let table = Table::in_memory(slots()).unwrap();
    let (leases, opened) = open(&table);
    assert_eq!((opened, leases.entries()), (Opened::Created, 32));
    assert!(leases.successor(&table, slots()).unwrap().is_none());
    assert!(Leases::inspect(&table).unwrap().is_none());
    assert_ne!(open(&table).0.host(), leases.host());

    // They end, too.
    let day = Nanos::from_secs(86_400);
    let (table, clock) = Table::with_manual_clock(slots()).unwrap();
    let (leases, _) = open(&table);
    clock.advance(day.saturating_mul(49));
    assert!(leases.successor(&table, slots()).unwrap().is_none());
    clock.advance(day);
    let next = leases.successor(&table, slots()).unwrap().expect("50 days");
    assert_ne!(next.host(), leases.host());
}

/// Threads ask for cells of more keys than there are entries, and spend them under two limits at
/// once. Nothing drains.
#[test]
fn threads_spend_no_cell_twice() {
    const KEYS: usize = 12;
    let table = Table::in_memory(slots()).unwrap();
    let (leases, _) = Leases::open_or_create(&table, STORE, Slots::new(16).unwrap()).unwrap();
    let records: Vec<_> =
        (0..KEYS).map(|_| Mutex::new(Record::new(StoreTime(now(&table).0)))).collect();
    let spent: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let get = |which: usize, key: LeaseKey, least: u32| {
        let wish = Wish { want: least + 5, least, validity: Micros::from_millis(100) };
        let Some(sent) = leases.ask(key, &limit(), now(&table), PATIENCE, wish) else {
            return;
        };
        let clock = StoreTime(now(&table).0);
        let reply = records[which].lock().unwrap().ask(&limit(), clock, &sent.ask);
        match reply {
            Some(_) if sent.ask.number.0 % 11 == 0 => drop(leases.void(key, now(&table), &sent)),
            Some(reply) => drop(leases.reply(key, now(&table), &sent, &reply)),
            None => {}
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (table, leases, spent, get) = (&table, &leases, &spent, &get);
            scope.spawn(move || {
                for round in 0..3_000_usize {
                    let both = [(round + thread) % KEYS, (round * round + 5 * thread) % KEYS];
                    let needs = both.map(|which| LeaseNeed {
                        key: key(table, &which.to_string()),
                        cells: 1,
                        burst: BURST,
                    });
                    match leases.decide(now(table), &needs, PATIENCE) {
                        Step::Allow => both.iter().for_each(|which| {
                            spent[*which].fetch_add(1, Ordering::Relaxed);
                        }),
                        Step::Ask { limit, least } => get(both[limit], needs[limit].key, least),
                        _ => {}
                    }
                }
            });
        }
    });
    let spent: Vec<_> = spent.into_iter().map(AtomicU64::into_inner).collect();
    println!("{spent:?} cells of a burst of {BURST} each, {} evictions", leases.evictions());
    assert!(spent.iter().all(|cells| *cells <= u64::from(BURST)), "{spent:?}");
    assert!(spent.iter().sum::<u64>() > 100 && leases.evictions() > 0);
    assert_eq!(leases.check(now(&table)), []);
}

/// The words of a child about an ask, and those that it gets about the reply.
fn say(ask: &Ask) -> String {
    let Ask { host, number, fresh, spent, debt, owed_ago: _, holds, want, least, validity } = ask;
    let (host, number, fresh, validity) = (host.0, number.0, u32::from(*fresh), validity.0);
    format!("ask {host} {number} {fresh} {spent} {debt} {holds} {want} {least} {validity}")
}

fn hear(words: &[u64]) -> Ask {
    let small = |at: usize| u32::try_from(words[at]).unwrap();
    Ask {
        host: HostId(words[0]),
        number: AskNumber(words[1]),
        fresh: words[2] > 0,
        spent: small(3),
        debt: small(4),
        owed_ago: Ask::NOTHING_OWED,
        holds: small(5),
        want: small(6),
        least: small(7),
        validity: Micros(words[8]),
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// A process of the test below: it spends cells of one key, and asks its parent for more.
#[test]
#[ignore = "a process that another test starts"]
fn child() {
    let Some(path) = std::env::var_os("GCRA_LEASES_OF") else {
        return;
    };
    let table = open_table(Path::new(&path));
    let (leases, _) = open(&table);
    let key = key(&table, "client");
    let mut lines = std::io::stdin().lines();
    let say = |text: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "@{text}").and_then(|()| out.flush()).is_ok()
    };
    loop {
        match leases.look(key, now(&table), 1, PATIENCE) {
            Look::Enough => {
                if leases.spend(key, now(&table), 1).is_some() && !say("spent 1".into()) {
                    return;
                }
            }
            Look::Lacking => {
                if let Some(sent) = leases.ask(key, &limit(), now(&table), PATIENCE, wish(7)) {
                    if !say(self::say(&sent.ask)) {
                        return;
                    }
                    let Some(Ok(line)) = lines.next() else { return };
                    let words = numbers(&line);
                    let [kept, granted, wait, ..] = words[..] else {
                        // It was ignored.
                        continue;
                    };
                    let reply = AskReply {
                        number: sent.ask.number,
                        kept: u32::try_from(kept).unwrap(),
                        granted: u32::try_from(granted).unwrap(),
                        free: 0,
                        // In this test a host may ask at any time.
                        come_back_after: Micros(wait.min(5_000)),
                        scarce: false,
                        lent: false,
                        hosts: 1,
                        now: StoreTime(0),
                    };
                    leases.reply(key, now(&table), &sent, &reply);
                }
            }
            Look::Waiting { .. } | Look::Blocked { .. } => {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

struct Started {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn start(path: &Path) -> Started {
    // tests/aarch64 names a script that runs this program in qemu.
    let program = std::env::var_os("GCRA_TEST_PROGRAM")
        .map_or_else(|| std::env::current_exe().unwrap(), Into::into);
    let mut child = Command::new(program)
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("GCRA_LEASES_OF", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    Started { child, input, output }
}

/// Processes spend one burst between them, and are killed all the time, at any instruction. The
/// parent is the store. Not one cell too many is spent, and not many are lost.
#[test]
fn killed_processes_spend_no_cell_twice() {
    let (directory, table, _) = table();
    let path = directory.path().join("table");
    open(&table);
    let record = Mutex::new(Record::new(StoreTime(now(&table).0)));
    let (spent, kills, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..3_u64 {
            let (path, table, record, spent, kills, ends) =
                (&path, &table, &record, &spent, &kills, &ends);
            scope.spawn(move || {
                for life in 0..12_u64 {
                    let Started { mut child, mut input, output } = start(path);
                    // Where it is killed: after a number of its lines, which come at any moment.
                    let mut left = 5 + (life * 7 + worker * 13).cast_signed() % 40;
                    for line in output.lines() {
                        let Ok(line) = line else { break };
                        let Some((_, said)) = line.split_once('@') else { continue };
                        let words = numbers(said);
                        if said.starts_with("spent") {
                            spent.fetch_add(1, Ordering::Relaxed);
                        } else if let [_, _, _, _, _, _, _, _, _] = words[..] {
                            let ask = hear(&words);
                            let clock = StoreTime(now(table).0);
                            let reply = record.lock().unwrap().ask(&limit(), clock, &ask);
                            let text = reply.map_or("ignored".to_owned(), |reply| {
                                let AskReply { kept, granted, come_back_after, .. } = reply;
                                format!("{kept} {granted} {}", come_back_after.0)
                            });
                            ends.fetch_add(
                                u64::from(reply.is_some_and(|reply| reply.granted == 0)),
                                Ordering::Relaxed,
                            );
                            // A child that is dead does not hear it.
                            let _ = writeln!(input, "{text}");
                        }
                        // The lines that it wrote before are still read.
                        left -= 1;
                        if left == 0 {
                            child.kill().unwrap();
                            kills.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    let _ = child.wait();
                }
            });
        }
    });
    let (spent, kills) = (spent.into_inner(), kills.into_inner());
    println!(
        "{spent} cells of a burst of {BURST}, {kills} kills, {} asks denied",
        ends.into_inner()
    );
    assert!(spent <= u64::from(BURST), "{spent} cells of a burst of {BURST}");
    assert!(kills > 10 && spent > 50, "{kills} kills, {spent} cells");
}

#[test]
fn each_part_of_the_store_is_used_by_itself_and_all_processes_see_it() {
    let (_directory, table, _) = table();
    let [(one, _), (other, _)] = [open(&table), open(&table)];
    let at = |ms: u64| HostTime(5_000_000 + ms * 1_000);
    assert!(one.part_used_ago(0, at(0)) > Micros::from_millis(60_000), "never");
    one.use_part(1_023, at(0));
    other.use_part(7, at(1_000));
    let ago = |part, ms| other.part_used_ago(part, at(ms)).0 / 1_000;
    assert_eq!([ago(1_023, 0), ago(1_023, 2_600), ago(7, 2_600)], [0, 2_600, 1_600]);
    assert_eq!(ago(7, 990), 0, "a clock that was read before");
    // There are no such parts.
    one.use_part(1_024, at(0));
    assert!(other.part_used_ago(1_024, at(0)) > Micros::from_millis(60_000));
}
