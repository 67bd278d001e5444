//! The table file: which process makes it, which join it, and which files are refused.
//!
//! Some tests need a mount, a namespace, a cgroup or another user. Where that is not allowed, they
//! say so and check less, unless `GCRA_NO_SKIPS` is set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod refused;
mod resize;

use std::collections::HashSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gcra_table::board::{Board, Order, OrderError, OrderKind, OrderTarget, Profile};
use gcra_table::{
    FaultKind, LimitSalt, Name, Nanos, OpenError, OpenErrorKind, Opened, Quota, Slots, Table,
    limit_id,
};

use tempfile::TempDir;

/// Where the lines begin.
const HEADER_BYTES: u64 = 0x60000;

/// Where the entries of processes begin.
const PROCESSES_AT: u64 = 0x20000;

fn slots() -> Slots {
    Slots::new(64).unwrap()
}

/// One cell an hour: what is charged in a test stays charged.
fn hourly(burst: u32) -> Quota {
    Quota::new(HOUR, burst).unwrap()
}

const HOUR: Nanos = Nanos::from_secs(3_600);

/// Says that a part of a test cannot be done here. With `GCRA_NO_SKIPS` that is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("GCRA_NO_SKIPS").is_none(), "{why}");
    // Not by `eprintln`, which shows only what failing tests say.
    let _ = writeln!(io::stderr(), "\n*** SKIPPED in tests/file.rs: {why}\n");
}

/// A directory, on tmpfs as in production, and a path in it.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("table");
    (directory, path)
}

/// Opens it, again if others have held its lock for too long.
fn open(path: &Path) -> (Table, Opened) {
    loop {
        match Table::open_or_create(path, Some(slots())) {
            Err(error) if matches!(error.kind(), OpenErrorKind::Locked) => {}
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// The error with which the file is refused, which leaves it as it was.
fn refused(path: &Path) -> OpenError {
    let before = fs::symlink_metadata(path).map(|metadata| metadata.len()).ok();
    let error = Table::open_or_create(path, Some(slots())).expect_err("it was opened");
    assert_eq!(error.path(), path);
    let after = fs::symlink_metadata(path).map(|metadata| metadata.len()).ok();
    assert_eq!(after, before, "it was changed");
    error
}

/// The text of that error, without the path.
fn refusal(path: &Path) -> String {
    without_path(&refused(path))
}

fn without_path(error: &OpenError) -> String {
    let begin = format!("table {}: ", error.path().display());
    error.to_string().strip_prefix(&begin).expect("the path is named").to_owned()
}

/// The error of the system behind an error.
fn cause(error: &OpenError) -> io::ErrorKind {
    match error.kind() {
        OpenErrorKind::Io { source, .. } | OpenErrorKind::Proc { source, .. } => source.kind(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_makes_it_and_the_others_join_it() {
    let (_directory, path) = place();
    let (first, made) = open(&path);
    let (second, joined) = open(&path);
    assert_eq!((made, joined), (Opened::Created, Opened::Joined));
    assert_eq!(fs::metadata(&path).unwrap().len(), HEADER_BYTES + 64 * 16);
    assert_eq!(first.bytes(), HEADER_BYTES + 64 * 16);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);

    let key = first.hash(b"a");
    assert_eq!(key, second.hash(b"a"));
    assert!(first.charge(key, hourly(2), 1, &mut first.reading()).is_allowed());
    assert!(second.charge(key, hourly(2), 1, &mut second.reading()).is_allowed());
    assert!(!first.charge(key, hourly(2), 1, &mut first.reading()).is_allowed());

    drop((first, second));
    let (third, _) = open(&path);
    assert!(
        !third.charge(key, hourly(2), 1, &mut third.reading()).is_allowed(),
        "it was forgotten"
    );
}

#[test]
fn two_tables_hash_differently() {
    let (_first, first) = place();
    let (_second, second) = place();
    assert_ne!(open(&first).0.hash(b"a"), open(&second).0.hash(b"a"));
}

/// A header with random bytes is refused or used, and does no harm.
#[test]
fn a_header_of_random_bytes_does_no_harm() {
    let (_directory, path) = place();
    drop(open(&path));
    let before = fs::read(&path).unwrap();
    let mut random = 1_u64;
    let mut refused = 0;
    for _ in 0..2_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let byte = u8::try_from(random >> 56).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&before, 0).unwrap();
        // One byte of the fixed fields; or eight bytes of the fields that change, or of the first
        // entries of processes.
        let (at, length) = match random >> 32 & 3 {
            0 | 1 => ((random >> 34) % 128, 1),
            2 => (1024 + (random >> 34) % 192, 8),
            _ => (PROCESSES_AT + (random >> 34) % 512, 8),
        };
        file.write_all_at(&vec![byte; length], at).unwrap();
        match Table::open_or_create(&path, Some(slots())) {
            Ok((table, _)) => {
                let _ = table.charge(table.hash(b"a"), hourly(1), 1, &mut table.reading());
                table.beat();
                assert!(table.successor().is_err() || table.successor().unwrap().is_none());
                let _ = (table.board().processes(), table.check(), table.occupancy());
            }
            Err(_) => refused += 1,
        }
    }
    assert!((300..1_700).contains(&refused), "{refused} were refused");
}

/// Mounts a tmpfs for the time of a test.
struct Mount(PathBuf);

impl Mount {
    /// `None` if this user may not mount.
    fn new(path: PathBuf, options: &str) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "gcra-test"]).arg(&path);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// The command that starts the program of these tests again. tests/aarch64 names a script that
/// does it in qemu.
fn this_program() -> std::path::PathBuf {
    std::env::var_os("GCRA_TEST_PROGRAM")
        .map_or_else(|| std::env::current_exe().unwrap(), Into::into)
}

/// The output of a child that opens the table, started by `sh -c SETUP; exec CHILD`.
fn child_under(setup: &str, path: &Path, slots: u64) -> String {
    let binary = this_program();
    let script = format!(
        "{setup}\nexec \"$0\" --exact refused::opening_child --nocapture --test-threads=1"
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(binary).stderr(Stdio::null());
    shell.env("GCRA_TABLE_OPEN", path).env("GCRA_TABLE_SLOTS", slots.to_string());
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
}

/// As [`child_under`], in namespaces of its own. `None` if that is not allowed.
fn child_unshared(unshare: &str, setup: &str, path: &Path) -> Option<String> {
    let setup = format!(
        "test \"$inner\" ||\n\
         {{ inner=1 exec unshare {unshare} sh -c \"$inside\" \"$0\"; exit; }}\n\
         {setup}\n\
         echo inside"
    );
    let script = format!(
        "{setup}\nexec \"$0\" --exact refused::opening_child --nocapture --test-threads=1"
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(this_program()).stderr(Stdio::null());
    shell.env("inside", &script).env("GCRA_TABLE_OPEN", path).env("GCRA_TABLE_SLOTS", "64");
    let said = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    said.contains("inside").then_some(said)
}

/// The time in the header is checked after a boot too: one that is out of range would allow
/// everything.
#[test]
fn a_damaged_time_is_refused_after_a_boot_too() {
    let (_directory, path) = place();
    drop(open(&path));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let header = fs::read(&path).unwrap();
    let sentence = "its header is damaged: its time is out of range";
    for last in [(1 << 59) + 1, (1 << 60) + 5, (1 << 60) - 2_000_000_000, u64::MAX] {
        for is_reboot in [false, true] {
            file.write_all_at(&header, 0).unwrap();
            if is_reboot {
                reboot(&path, 0);
            }
            file.write_all_at(&last.to_ne_bytes(), 1024).unwrap();
            assert_eq!(refusal(&path), sentence, "{last}, after a boot: {is_reboot}");
        }
    }
    file.write_all_at(&header, 0).unwrap();
    reboot(&path, 0);
    file.write_all_at(&u64::MAX.to_ne_bytes(), 1032).unwrap();
    assert_eq!(refusal(&path), sentence, "the wall clock");
    file.write_all_at(&header, 0).unwrap();
    drop(open(&path));
}

/// A container can have a boot id of its own. As long as a process is alive in the table, its time
/// must not be set anew.
#[test]
fn another_boot_id_beside_a_live_process_is_no_boot() {
    while attach_with_another_boot_id().is_none() {}
}

/// `None` if the process beat so seldom that it may have counted as dead.
fn attach_with_another_boot_id() -> Option<()> {
    /// Who sees another boot id waits for a beat for 2.5 s.
    const IN_TIME: Duration = Duration::from_secs(2);

    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    assert!(table.charge(key, hourly(1), 1, &mut table.reading()).is_allowed());
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let fixed = || {
        let mut bytes = [0; 128];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = fixed();
    let stop = AtomicBool::new(false);
    // The last beat, and the longest time between two of them.
    let beats = Mutex::new((Instant::now(), Duration::ZERO));
    let in_time = || {
        let (last, longest) = *beats.lock().unwrap();
        (last.elapsed().max(longest) < IN_TIME).then_some(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                table.beat();
                // Were this taken for a boot, the clock would have been set forward by an hour.
                let wall = u64::from_ne_bytes(wall_of(&file)).saturating_sub(3_600_000_000_000);
                file.write_all_at(&wall.to_ne_bytes(), 1032).unwrap();
                let (last, longest) = &mut *beats.lock().unwrap();
                *longest = last.elapsed().max(*longest);
                *last = Instant::now();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        // Also when an assertion fails.
        let _stop = SetWhenDropped(&stop);
        let setup = "echo 12345678-9abc-def0-1234-56789abcdef0 >\"$GCRA_TABLE_OPEN.id\" &&
            mount --bind \"$GCRA_TABLE_OPEN.id\" /proc/sys/kernel/random/boot_id || exit";
        let said = child_unshared("-m", setup, &path);
        in_time()?;
        match said {
            Some(said) => assert!(said.contains("opened: Joined"), "{said}"),
            None => skip("not allowed to mount another boot id"),
        }
        let said = child_unshared("-m -T --boottime 3600", setup, &path);
        in_time()?;
        if let Some(said) = said {
            assert!(said.contains("with the clock of another time namespace"), "{said}");
        }
        assert_eq!(fixed(), before, "the header of a table in use was rewritten");
        // The same from the other side: the table has another id than this process.
        file.write_all_at(&[0xab; 16], 96).unwrap();
        let other = fixed();
        let (joined, opened) = open(&path);
        let found = fixed();
        in_time()?;
        assert_eq!((opened, found), (Opened::Joined, other));
        assert!(!joined.charge(key, hourly(1), 1, &mut joined.reading()).is_allowed());
        Some(())
    })
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn wall_of(file: &fs::File) -> [u8; 8] {
    let mut wall = [0; 8];
    file.read_exact_at(&mut wall, 1032).unwrap();
    wall
}

/// Writes the table's header as one from another boot, `away` seconds ago by the wall clock.
fn reboot(path: &Path, away_s: i64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all_at(&[0xab; 16], 96).unwrap();
    // The machine's clock begins anew: with the old base it does not say the time at which the
    // table was last used.
    file.write_all_at(&i64::to_ne_bytes(86_400_000_000_000), 112).unwrap();
    let wall = u64::from_ne_bytes(wall_of(&file)).saturating_add_signed(-away_s * 1_000_000_000);
    file.write_all_at(&wall.to_ne_bytes(), 1032).unwrap();
}

#[test]
fn after_a_reboot_limits_of_hours_go_on() {
    const HOUR: i64 = 3600;
    // One cell an hour and a burst of ten, all used up. For each time that the machine was off:
    // how many are allowed again.
    for (away_s, back) in [
        (0, 0),
        (HOUR, 1),
        (5 * HOUR + HOUR / 2, 5),
        (30 * HOUR, 10),
        // The wall clock was set back meanwhile: the time counts as none, so the limit is too
        // strict.
        (-24 * HOUR, 0),
        // Or forward by years: it counts as a week.
        (3 * 365 * 24 * HOUR, 10),
    ] {
        let (_directory, path) = place();
        let (table, _) = open(&path);
        let key = table.hash(b"a");
        let before = table.now();
        let mut now = table.reading();
        assert_eq!(
            (0..11).filter(|_| table.charge(key, hourly(10), 1, &mut now).is_allowed()).count(),
            10
        );
        table.beat();
        drop(table);
        reboot(&path, away_s);
        let (table, opened) = open(&path);
        assert_eq!(opened, Opened::Joined);
        assert!(table.now() >= before, "time went back");
        let (other, _) = open(&path);
        let earlier = table.now();
        let between = other.now();
        assert!((earlier..=table.now()).contains(&between), "both have the same time");
        let mut now = table.reading();
        let allowed =
            (0..20).filter(|_| table.charge(key, hourly(10), 1, &mut now).is_allowed()).count();
        assert_eq!(allowed, back, "{away_s} s away");
    }
    // A limit of months is forgiven a week at most.
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let began = Instant::now();
    let before = table.now();
    table.beat();
    drop(table);
    reboot(&path, 3 * 365 * 24 * HOUR);
    let passed = Duration::from(open(&path).0.now().saturating_since(before));
    let week = Duration::from_secs(7 * 86_400);
    assert!((week..=week + began.elapsed()).contains(&passed), "{passed:?}");
}

/// Whatever is in the slots, the table answers, and after one drain time its answers are right.
#[test]
fn slots_of_random_bytes_heal() {
    let (_directory, path) = place();
    drop(open(&path));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut random = 7_u64;
    for round in 0..200 {
        let fill: Vec<u8> = (0..64 * 16)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                [0xff, 0x7f, u8::try_from(random >> 56).unwrap()][round % 3]
            })
            .collect();
        file.write_all_at(&fill, HEADER_BYTES).unwrap();
        let (table, _) = open(&path);
        // A millisecond to drain.
        let quota = Quota::new(Nanos(100_000), 10).unwrap();
        for n in 0..100_u32 {
            let _ = table.charge(table.hash(&n.to_ne_bytes()), quota, 1, &mut table.reading());
        }
        std::thread::sleep(Duration::from_millis(2));
        for n in 0..5_u32 {
            let key = table.hash(&n.to_ne_bytes());
            let mut now = table.reading();
            let allowed =
                (0..11).filter(|_| table.charge(key, quota, 1, &mut now).is_allowed()).count();
            assert_eq!(allowed, 10, "key {n} in round {round}");
        }
    }
}

/// A resize that was killed after each of its steps, and what the next one does then.
#[test]
fn processes_introduce_themselves_and_follow_orders() {
    let (_directory, path) = place();
    let (one, _) = open(&path);
    let (two, _) = open(&path);
    let profile = Profile {
        limits: 7,
        has_file: true,
        salt: 5,
        admin: Some("127.0.0.1:9101".parse().unwrap()),
    };
    let other = Profile { limits: 8, has_file: false, salt: 0, admin: None };
    let seen = |table: &Table| -> Vec<_> {
        table.board().processes().iter().map(|process| process.profile).collect()
    };
    assert_eq!(seen(&two), [None, None]);
    one.board().introduce(&profile);
    assert_eq!(seen(&two), [Some(profile), None]);
    two.board().introduce(&other);
    one.board().introduce(&Profile { limits: 9, ..profile });
    assert_eq!(seen(&one), [Some(Profile { limits: 9, ..profile }), Some(other)]);

    let command = Table::inspect(&path).unwrap();
    let now = command.now();
    let order = |target, hours: u64| Order {
        policy: limit_id(&[b"api"]),
        kind: OrderKind::Block,
        target,
        until: now.saturating_add(Nanos::from_secs(hours * 3600)),
        given: now,
        since: now.saturating_add(Nanos::from_secs(7)),
        key: "192.0.2.7".to_owned(),
        note: "INC-1 anna".to_owned(),
        giver: "anna".to_owned(),
    };
    let network = OrderTarget::Network { first: "10.1.2.0".parse().unwrap(), prefix: 24 };
    let client = OrderTarget::Client { key: command.hash(b"a"), groups: [Some(32), None] };
    let (short, long) = (order(client, 1), order(network, 2));
    command.board().give_order(&short).unwrap();
    command.board().give_order(&long).unwrap();
    assert_eq!(one.board().orders(), [short.clone(), long.clone()]);
    command.board().end_order(&short).unwrap();
    assert_eq!(two.board().orders(), std::slice::from_ref(&long));
    let policy = limit_id(&[b"api"]);
    let first = command.board().reset_policy(policy, "anna").unwrap();
    let reset = command.board().reset_policy(policy, "bert").unwrap();
    assert!(reset.at > first.at && reset.giver == "bert");
    assert_eq!(two.board().resets(), std::slice::from_ref(&reset));

    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    assert_eq!(Table::inspect(&path).unwrap().board().orders(), std::slice::from_ref(&long));
    assert_eq!(
        one.board().give_order(&long),
        Err(OrderError::BeingResized),
        "this file is not used now"
    );
    let next = one.successor().unwrap().unwrap();
    assert_eq!((next.board().orders(), next.board().resets()), (vec![long], vec![reset]));
    assert_eq!(one.board().reset_policy(policy, "anna"), Err(OrderError::BeingResized));
    next.beat();
    next.board().introduce(&profile);
    assert_eq!(seen(&next), [Some(profile)]);
}

#[test]
fn what_is_looked_up_has_a_bucket_or_has_none() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let (key, quota) = (table.hash(b"a"), Quota::new(Nanos::from_millis(1), 2).unwrap());
    assert_eq!(table.look_up(key, quota, table.now()), None);
    let mut now = table.reading();
    assert!(table.charge(key, quota, 1, &mut now).is_allowed());
    assert_eq!(table.look_up(key, quota, now.time()), Some(Nanos::from_millis(1)));
    let later = now.time().saturating_add(Nanos::from_secs(1));
    assert_eq!(table.look_up(key, quota, later), Some(Nanos::ZERO), "paid off, and still there");
    assert_eq!(table.reset(key, quota, later), Some(Nanos::ZERO));
    assert_eq!(table.look_up(key, quota, table.now()), None);
}

fn successor(path: &Path) -> PathBuf {
    path.with_extension("next")
}

/// The salt that tells the limits apart is in no file of the operator, so all processes have to
/// get it from the table.
#[test]
fn a_limit_has_one_salt_in_all_processes_and_after_a_resize() {
    let (_directory, path) = place();
    let ids = [0, 1, limit_id(&[b"api", b"1"]), limit_id(&[b"api", b"2"])];
    let salts = |table: &Table| ids.map(|id| table.limit_salt(id));
    let (first, _) = open(&path);
    assert_eq!(salts(&first)[0], LimitSalt::NONE);
    let distinct: HashSet<_> = salts(&first).into_iter().collect();
    assert_eq!(distinct.len(), ids.len());
    assert_eq!(salts(&open(&path).0), salts(&first));
    assert_eq!(salts(&Table::inspect(&path).unwrap()), salts(&first));
    let key = |table: &Table| table.hash(b"a").under(table.limit_salt(ids[2]));
    assert!(first.charge(key(&first), hourly(5), 5, &mut first.reading()).is_allowed());
    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    let resized = Table::open_or_create(&path, None).unwrap().0;
    assert_eq!(salts(&resized), salts(&first));
    assert!(!resized.charge(key(&resized), hourly(5), 1, &mut resized.reading()).is_allowed());
    let (_directory, path) = place();
    let other = open(&path).0;
    assert!(ids[1..].iter().all(|id| other.limit_salt(*id) != first.limit_salt(*id)), "a secret");
}

/// A slot that is sealed and was never used.
const SEALED: u128 = 1 << 126;

#[test]
fn a_table_that_is_removed_or_replaced_in_use_is_noticed() {
    let (_directory, path) = place();
    let (first, _) = open(&path);
    assert_eq!(first.name(), Name::Ours);
    fs::remove_file(&path).unwrap();
    assert_eq!(first.name(), Name::Nothing);
    // A file that is not a table is left alone.
    fs::write(&path, [b'x'; 8192]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(first.name(), Name::AnotherFile);
    assert_eq!(fs::read(&path).unwrap(), [b'x'; 8192]);
    fs::remove_file(&path).unwrap();

    let (second, opened) = open(&path);
    assert_eq!((opened, second.name()), (Opened::Created, Name::Ours));
    assert!(!second.board().has_strangers());
    assert_eq!(first.name(), Name::AnotherFile);
    assert!(
        second.board().has_strangers() && Table::inspect(&path).unwrap().board().has_strangers()
    );
    // A resize replaces the file as well, and the processes that use it follow.
    let before = fs::read(&path).unwrap();
    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    assert_eq!(second.name(), Name::Ours);
    let third = second.successor().unwrap().unwrap();
    assert_eq!((third.name(), first.name()), (Name::Ours, Name::AnotherFile));
    // They move a moment before the new file gets the name.
    fs::rename(&path, successor(&path)).unwrap();
    fs::write(&path, before).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(third.name(), Name::Ours);
    fs::remove_file(&path).unwrap();
    assert_eq!(third.name(), Name::Nothing, "it will never get it");
    drop(open(&path));
    assert_eq!(third.name(), Name::AnotherFile);
}

#[test]
fn a_copy_with_holes_has_its_space_reserved_before_it_is_used() {
    let (directory, _) = place();
    let Some(mount) = Mount::new(directory.path().join("small"), "size=4m") else {
        return skip("not allowed to mount a full file system");
    };
    let (path, copy) = (mount.0.join("table"), mount.0.join("copy"));
    drop(Table::open_or_create(&path, Some(Slots::new(1 << 16).unwrap())).unwrap());
    let mut cp = Command::new("cp");
    assert!(cp.args(["-p", "--sparse=always"]).args([&path, &copy]).status().unwrap().success());
    let again = copy.with_extension("again");
    assert!(
        Command::new("cp")
            .args(["-p", "--sparse=always"])
            .args([&copy, &again])
            .status()
            .unwrap()
            .success()
    );
    assert!(child_under("", &again, 1 << 16).contains("opened: Joined"), "there is space");
    assert!(
        fs::metadata(&again)
            .map(|metadata| std::os::unix::fs::MetadataExt::blocks(&metadata))
            .unwrap()
            >= 2048
    );
    fs::write(mount.0.join("filler"), vec![1; 4 << 20]).unwrap_err();
    let said = child_under("", &copy, 1 << 16);
    let sentence = format!("refused: table {}: could not reserve its space", copy.display());
    assert!(said.contains(&sentence) && said.contains("code: 28"), "{said}");
}

#[test]
fn a_limit_of_file_sizes_is_an_error_before_it_kills() {
    let (_directory, path) = place();
    let sentence = format!("refused: table {}: it takes a file of ", path.display());
    let said = child_under("ulimit -f 1024", &path, 1 << 20);
    assert!(said.contains(&sentence), "{said}");
    assert!(!path.exists());
    // A whole table can be used, and a copy with holes is refused.
    drop(open(&path));
    assert!(child_under("ulimit -f 0", &path, 64).contains("opened: Joined"));
    let length = fs::metadata(&path).unwrap().len();
    let header = fs::read(&path).unwrap()[..2048].to_vec();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(length).unwrap();
    file.write_all_at(&header, 0).unwrap();
    let said = child_under("ulimit -f 0", &path, 64);
    assert!(said.contains(&sentence), "{said}");
}

#[test]
fn with_any_umask_the_file_can_be_used() {
    for umask in ["0777", "0077", "0000"] {
        let (_directory, path) = place();
        let said = child_under(&format!("umask {umask}"), &path, 64);
        assert!(said.contains("opened: Created"), "{umask}: {said}");
        assert_eq!(open(&path).1, Opened::Joined, "{umask}");
    }
}

fn open_any(path: &Path) -> Table {
    Table::open_or_create(path, None).unwrap().0
}

/// The other end of the test with eight processes: this test binary, started again.
#[test]
fn child() {
    let Ok(path) = std::env::var("GCRA_TABLE_CHILD") else {
        return;
    };
    let (table, opened) = open(Path::new(&path));
    if opened == Opened::Created {
        println!("created");
    }
    // All begin together, so that they meet where cells are left.
    let start = Instant::now();
    while table.board().listed_processes().len() < CHILDREN
        && start.elapsed() < Duration::from_secs(60)
    {
        thread::yield_now();
    }
    let key = table.hash(b"hot");
    let allowed = (0..5_000)
        .filter(|_| table.charge(key, hourly(20_000), 1, &mut table.reading()).is_allowed())
        .count();
    println!("allowed {allowed}");
}

/// How many processes charge together.
const CHILDREN: usize = 8;

fn start_child(path: &Path) -> Child {
    Command::new(this_program())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("GCRA_TABLE_CHILD", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_charge_together_share_one_limit() {
    for _ in 0..5 {
        let (_directory, path) = place();
        let children: Vec<_> = (0..CHILDREN).map(|_| start_child(&path)).collect();
        let (mut created, mut allowed) = (0, 0);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            for line in String::from_utf8(output.stdout).unwrap().lines() {
                // The test harness may write its own words in front.
                if line.ends_with("created") {
                    created += 1;
                }
                if let Some((_, count)) = line.split_once("allowed ") {
                    allowed += count.parse::<u32>().unwrap();
                }
            }
        }
        assert_eq!((created, allowed), (1, 20_000));
    }
}

/// Each open table counts as a process.
#[test]
fn up_to_512_processes_are_listed_and_more_of_them_work() {
    while list_512_processes().is_none() {}
}

/// `None` if it took so long that one that had beaten may have counted as silent.
fn list_512_processes() -> Option<()> {
    /// A new process takes the place of one that was silent for 5 s.
    const IN_TIME: Duration = Duration::from_secs(4);

    fn beat<'t>(tables: impl IntoIterator<Item = &'t Table>) -> Instant {
        let began = Instant::now();
        tables.into_iter().for_each(Table::beat);
        began
    }

    let in_time = |began: Instant| (began.elapsed() < IN_TIME).then_some(());
    let (_directory, path) = place();
    let looker = open(&path).0;
    let listed = Board::MOST_PROCESSES - 1;
    let mut others: Vec<Table> = Vec::new();
    for _ in 1..Board::MOST_PROCESSES + 3 {
        let began = beat(others.iter().take(listed).chain([&looker]));
        others.push(open(&path).0);
        in_time(began)?;
    }
    let began = beat(others.iter().take(listed).chain([&looker]));
    let seen = (looker.board().processes().len(), looker.board().unlisted_beats());
    in_time(began)?;
    assert_eq!(seen, (512, 3));
    let key = looker.hash(b"a");
    for table in &others {
        table.beat();
        let _ = table.charge(key, hourly(1000), 1, &mut table.reading());
    }
    let seen = (looker.board().processes().len(), looker.board().unlisted_beats());
    in_time(began)?;
    assert_eq!(seen, (512, 6));
    let left = (0..1000)
        .filter(|_| looker.charge(key, hourly(1000), 1, &mut looker.reading()).is_allowed());
    assert_eq!(left.count(), 1000 - others.len(), "all were charged");

    others.truncate(256);
    let began = beat(others.iter().chain([&looker]));
    let seen = looker.board().processes().len();
    in_time(began)?;
    assert_eq!(seen, 257);
    let began = beat(others.iter().chain([&looker]));
    let last = open(&path).0;
    let seen = (looker.board().processes().len(), last.board().unlisted_beats());
    in_time(began)?;
    assert_eq!(seen, (258, 6));
    Some(())
}

/// The other end of the races to make a table. Each line of its standard input names a table.
#[test]
fn racing_child() {
    if std::env::var("GCRA_TABLE_RACE").is_err() {
        return;
    }
    for line in std::io::stdin().lines() {
        let path = line.unwrap();
        let (table, opened) = open(Path::new(&path));
        if std::env::var("GCRA_TABLE_CUT").is_ok() {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        }
        let allowed =
            table.charge(table.hash(b"hot"), hourly(7), 1, &mut table.reading()).is_allowed();
        println!("race {opened:?} {allowed}");
    }
}

#[test]
fn fifty_processes_race_for_a_new_table_a_hundred_times() {
    const PROCESSES: usize = 50;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(this_program())
                .args(["--exact", "racing_child", "--nocapture", "--test-threads=1"])
                .env("GCRA_TABLE_RACE", "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()).lines())
        .collect();
    for race in 0..100 {
        let path = directory.path().join(format!("table{race}"));
        for child in &mut children {
            writeln!(child.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
        }
        let answers: Vec<_> = outputs
            .iter_mut()
            .map(|lines| {
                lines
                    .map(Result::unwrap)
                    .find_map(|line| Some(line.split_once("race ")?.1.to_owned()))
            })
            .map(Option::unwrap)
            .collect();
        let count = |word: &str| answers.iter().filter(|answer| answer.contains(word)).count();
        assert_eq!((count("Created"), count("Joined")), (1, PROCESSES - 1), "{answers:?}");
        assert_eq!(count("true"), 7, "one limit for all of them");
        assert_eq!(
            Table::inspect(&path).unwrap().board().attachments(),
            u32::try_from(PROCESSES).unwrap() + 1
        );
        fs::remove_file(path).unwrap();
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    drop(outputs);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A process that cuts a table in use kills the processes that use it. The next one says why.
#[test]
fn a_live_table_that_is_cut_ends_its_processes_and_is_refused_afterwards() {
    use std::os::unix::process::ExitStatusExt as _;

    let (_directory, path) = place();
    drop(open(&path));
    let mut child = Command::new(this_program())
        .args(["--exact", "racing_child", "--nocapture", "--test-threads=1"])
        .env("GCRA_TABLE_RACE", "1")
        .env("GCRA_TABLE_CUT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(7), "SIGBUS: {output:?}");
    assert!(matches!(refused(&path).kind(), OpenErrorKind::Length { found: 4096, .. }));
}
