//! A table that is resized while processes use it, some of which die.

use std::sync::atomic::AtomicU32;

use super::*;

#[test]
fn a_resized_table_keeps_what_is_owed() {
    let (_directory, path) = place();
    // So many slots that there is one for each key, wherever its hash leads.
    let (table, _) = Table::open_or_create(&path, Some(Slots::new(1024).unwrap())).unwrap();
    for n in 0..20_u32 {
        for _ in 0..=n % 3 {
            let key = table.hash(&n.to_ne_bytes());
            assert!(table.charge(key, hourly(3), 1, &mut table.reading()).is_allowed());
        }
    }
    assert!(table.successor().unwrap().is_none());
    let resize = |slots: u64| Table::resize(&path, Slots::new(slots).unwrap(), Duration::ZERO);
    let resized = resize(4096).unwrap();
    assert_eq!((resized.from.get(), resized.to.get()), (1024, 4096));
    assert_eq!((resized.carried, resized.evicted), (20, 0));
    assert_eq!(without_path(&resize(4096).unwrap_err()), "it has 4096 slots already");

    // A process that has the old file open finds the buckets, and the new table.
    let owed = |table: &Table, n: u32| {
        let owed = table.owed(table.hash(&n.to_ne_bytes()), hourly(3), table.now());
        owed.div_ceil(HOUR)
    };
    let next = table.successor().unwrap().unwrap();
    let (joined, opened) = Table::open_or_create(&path, None).unwrap();
    assert_eq!((opened, joined.slots().get(), joined.generation()), (Opened::Joined, 4096, 1));
    for n in 0..20 {
        for table in [&table, &*next, &joined] {
            assert_eq!(owed(table, n), u64::from(n % 3 + 1), "key {n}");
        }
        let key = table.hash(&n.to_ne_bytes());
        let left = (0..3)
            .filter(|_| table.charge(key, hourly(3), 1, &mut table.reading()).is_allowed())
            .count();
        assert_eq!(left, 2 - n as usize % 3);
        assert!(!joined.charge(key, hourly(3), 1, &mut joined.reading()).is_allowed());
    }
    assert!(joined.check().is_empty() && table.check().is_empty());

    // Twice more, while a process still has the first file; to fewer slots than are live.
    let evicted = resize(8).unwrap().evicted;
    assert!(evicted >= 12, "{evicted}");
    assert_eq!(Table::open_or_create(&path, None).unwrap().0.occupancy().live, 8);
    resize(1024).unwrap();
    let last = table.successor().unwrap().unwrap().successor().unwrap().unwrap();
    assert_eq!(last.slots().get(), 1024);
    assert_eq!(last.evictions().evicted_live, evicted);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the old files are gone");
}

/// For any process that hears a count, with any of the files open, and while the table moves.
#[test]
fn what_was_heard_is_new_once_over_resizes() {
    let (_directory, path) = place();
    let (first, _) = open(&path);
    let (second, _) = open(&path);
    let source = first.hash(b"source");
    assert_eq!(first.board().hear(source, 1, 10), 10);
    assert_eq!(second.board().hear(source, 1, 12), 2);
    let notice = Duration::from_millis(50);
    let resize = |slots| Table::resize(&path, Slots::new(slots).unwrap(), notice).unwrap();
    let ends = AtomicBool::new(false);
    let count = AtomicU32::new(12);
    let hear = |table: &Table| {
        let mut sum = 0;
        while !ends.load(Ordering::Relaxed) {
            let told = count.fetch_add(1, Ordering::Relaxed) + 1;
            sum += u64::from(table.board().hear(source, 1, told));
        }
        sum
    };
    let new: u64 = thread::scope(|scope| {
        let threads = [&first, &second].map(|table| scope.spawn(|| hear(table)));
        for slots in [128, 32, 64] {
            resize(slots);
        }
        ends.store(true, Ordering::Relaxed);
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    let count = count.into_inner();
    assert_eq!(new + 12, u64::from(count));
    let (joined, _) = Table::open_or_create(&path, None).unwrap();
    for table in [&first, &second, &joined] {
        assert_eq!(table.board().hear(source, 1, count), 0);
    }
    assert_eq!(joined.board().hear(source, 1, count + 1), 1);
    assert_eq!(first.board().hear(source, 1, count + 1), 0);
}

#[test]
fn an_interrupted_resize_can_be_finished() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    assert!(table.charge(key, hourly(2), 1, &mut table.reading()).is_allowed());
    let next = path.with_extension("next");

    // The new file was made, and not announced.
    let mut leftover = fs::read(&path).unwrap();
    leftover[48] += 1;
    fs::write(&next, leftover).unwrap();
    fs::set_permissions(&next, Permissions::from_mode(0o600)).unwrap();
    let resize = |slots: u64| Table::resize(&path, Slots::new(slots).unwrap(), Duration::ZERO);
    assert_eq!(resize(128).unwrap().carried, 1);

    // Announced, and no bucket moved: a file made by hand from the one before it, in which the
    // flag is set.
    let current = table.successor().unwrap().unwrap();
    let mut header = fs::read(&path).unwrap();
    header[48] += 1;
    header[16..24].copy_from_slice(&32_u64.to_ne_bytes());
    header[1024..].fill(0);
    header.resize(usize::try_from(HEADER_BYTES).unwrap() + 32 * 16, 0);
    fs::write(&next, header).unwrap();
    fs::set_permissions(&next, Permissions::from_mode(0o600)).unwrap();
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&1_u32.to_ne_bytes(), 1044)
        .unwrap();
    assert!(current.successor().unwrap().is_none(), "it is not complete");
    assert!(current.is_being_resized());
    assert_eq!(current.reset(key, hourly(2), current.now()), None);
    assert!(
        current.charge(key, hourly(2), 1, &mut current.reading()).is_allowed(),
        "the second of two"
    );
    assert_eq!(without_path(&resize(64).unwrap_err()), "a resize to 32 slots was interrupted");
    assert_eq!(resize(32).unwrap().carried, 1);
    for table in [&table, &*current, &open_any(&path)] {
        assert!(!table.charge(key, hourly(2), 1, &mut table.reading()).is_allowed());
    }
    assert_eq!(resize(64).unwrap().carried, 1);
}

/// The other end of the tests that interrupt a resize.
#[test]
fn resizing_child() {
    if let Ok(path) = std::env::var("GCRA_TABLE_RESIZE") {
        let notice = std::env::var("GCRA_TABLE_NOTICE_MS").unwrap().parse().unwrap();
        let resized = Table::resize(
            Path::new(&path),
            Slots::new(128).unwrap(),
            Duration::from_millis(notice),
        );
        println!(
            "resized: {}",
            resized.map_or_else(|error| error.to_string(), |_| "done".to_owned())
        );
    }
}

/// Begins to resize `table` to 128 slots in another process, and returns when it waits for the
/// others to notice.
fn begin_resize(table: &Table, path: &Path, notice_ms: u64) -> KillOnDrop {
    let child = Command::new(this_program())
        .args(["--exact", "resize::resizing_child", "--nocapture", "--test-threads=1"])
        .env("GCRA_TABLE_RESIZE", path)
        .env("GCRA_TABLE_NOTICE_MS", notice_ms.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = KillOnDrop(child);
    loop {
        let has_ended = child.0.try_wait().unwrap().is_some();
        if table.is_being_resized() {
            return child;
        }
        assert!(!has_ended, "it ended without a resize");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct KillOnDrop(Child);

impl KillOnDrop {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

const FOR_EVER_MS: u64 = 3_600_000;

#[test]
fn one_resize_runs_at_a_time_and_a_dead_one_is_finished() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    assert!(table.charge(key, hourly(2), 1, &mut table.reading()).is_allowed());
    let resize = |slots: u64| Table::resize(&path, Slots::new(slots).unwrap(), Duration::ZERO);
    let first = begin_resize(&table, &path, FOR_EVER_MS);
    let busy = "another process is resizing it to 128 slots";
    for slots in [128, 256] {
        // It takes the lock a moment after it has announced the new file.
        loop {
            let error = resize(slots).expect_err("two at once");
            match error.kind() {
                OpenErrorKind::ResizeInterrupted { .. } => {}
                _ => break assert_eq!(without_path(&error), busy),
            }
        }
    }
    // The half-made file is not a table yet, also if it is opened by its name.
    let half = successor(&path);
    for error in
        [Table::inspect(&half), Table::open_or_create(&half, None).map(|(table, _)| table)]
    {
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), OpenErrorKind::Unfinished), "{error}");
    }

    first.signal(rustix::process::Signal::STOP);
    assert_eq!(without_path(&resize(128).unwrap_err()), busy, "a stopped one can continue");
    drop(first);
    let interrupted = "a resize to 128 slots was interrupted";
    assert_eq!(without_path(&resize(256).unwrap_err()), interrupted);
    assert_eq!(resize(128).unwrap().carried, 1);
    assert!(!half.exists());
    for table in [&table, &open_any(&path)] {
        let mut now = table.reading();
        let allowed =
            (0..3).filter(|_| table.charge(key, hourly(2), 1, &mut now).is_allowed()).count();
        assert_eq!(allowed, usize::from(table.slots().get() == 64), "the second of two, once");
    }
}

/// The file at the successor's name is renamed only if it is the one to which the buckets were
/// carried.
#[test]
fn a_file_in_the_successors_place_does_not_get_the_name() {
    for _ in 0..20 {
        let (_directory, path) = place();
        let (table, _) = open(&path);
        let key = table.hash(b"a");
        assert!(table.charge(key, hourly(1), 1, &mut table.reading()).is_allowed());
        let inode =
            |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&path);
        let mut child = begin_resize(&table, &path, 1_000);
        child.signal(rustix::process::Signal::STOP);
        if inode(&path) != before || !successor(&path).exists() {
            // This machine was too slow, and the resize had finished. Once more.
            continue;
        }
        let half = fs::read(successor(&path)).unwrap();
        fs::remove_file(successor(&path)).unwrap();
        fs::write(successor(&path), half).unwrap();
        fs::set_permissions(successor(&path), Permissions::from_mode(0o600)).unwrap();
        child.signal(rustix::process::Signal::CONT);
        let mut output = String::new();
        std::io::Read::read_to_string(&mut child.0.stdout.take().unwrap(), &mut output).unwrap();
        if !output.contains("so the new file did not get its name") {
            // It was replaced before the other process opened it, so the buckets were carried to
            // it.
            assert!(output.contains("resized: done") || output.contains("is gone"), "{output}");
            let joined = open_any(&path);
            assert!(
                !joined.charge(key, hourly(1), 1, &mut joined.reading()).is_allowed(),
                "a bucket was lost"
            );
            continue;
        }
        assert_eq!(inode(&path), before);
        return;
    }
    skip("this machine is too slow to replace a file within a second");
}

/// A table is resized when it is too small, which is when most is evicted.
#[test]
fn evictions_during_a_resize_are_counted_once_whichever_process_dies() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let mut fresh = 0_u32;
    let mut charge = |table: &Table, keys: u32| {
        for _ in 0..keys {
            fresh += 1;
            let key = table.hash(&fresh.to_ne_bytes());
            assert!(table.charge(key, hourly(1), 1, &mut table.reading()).is_allowed());
        }
    };
    // Until every slot is live: from then on each new key costs one.
    while table.occupancy().live < 64 {
        charge(&table, 1);
    }
    let before = table.evictions().evicted_live;
    charge(&table, 10);
    assert_eq!(table.evictions().evicted_live, before + 10);
    let child = begin_resize(&table, &path, FOR_EVER_MS);
    charge(&table, 20);
    assert_eq!(table.evictions().evicted_live, before + 30);
    drop(child);
    charge(&table, 30);
    let during = table.evictions();
    assert_eq!(during.evicted_live, before + 60);
    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    // 64 were carried to 128 slots; a few may have found all of theirs taken.
    let joined = open_any(&path);
    let next = table.successor().unwrap().unwrap();
    for table in [&table, &joined, &*next] {
        let evictions = table.evictions();
        assert!((before + 60..before + 70).contains(&evictions.evicted_live), "{evictions:?}");
        assert!(evictions.forgiven >= during.forgiven, "the counter went back");
    }
    assert_eq!(table.evictions(), joined.evictions());
    // And once more.
    let before = joined.evictions();
    Table::resize(&path, slots(), Duration::ZERO).unwrap();
    assert!(open_any(&path).evictions().evicted_live >= before.evicted_live);
    assert_eq!(open_any(&path).evictions(), joined.successor().unwrap().unwrap().evictions());
}

/// A process that has not noticed the resize yet does not bring back what a reset forgave.
#[test]
fn a_reset_after_a_resize_holds_for_processes_on_the_old_file() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    let allowed = |table: &Table| {
        let mut now = table.reading();
        (0..9).filter(|_| table.charge(key, hourly(5), 1, &mut now).is_allowed()).count()
    };
    assert_eq!(allowed(&table), 5);
    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    assert_eq!(table.reset(key, hourly(5), table.now()), None, "not in the old file");
    let inspected = Table::inspect(&path).unwrap();
    assert!(inspected.reset(key, hourly(5), inspected.now()).unwrap() > Nanos::ZERO);
    assert_eq!(table.owed(key, hourly(5), table.now()), Nanos::ZERO);
    assert_eq!(allowed(&table), 5, "the old debt came back");
    assert_eq!(allowed(&inspected), 0);
}

/// A header that makes a file its own successor does no harm.
#[test]
fn a_table_is_not_its_own_successor() {
    let (_directory, path) = place();
    for (generation, complete) in [(u64::MAX, 0_u32), (u64::MAX, 1), (7, 1), (0, 0), (1 << 32, 1)]
    {
        drop(open(&path));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&generation.to_ne_bytes(), 48).unwrap();
        file.write_all_at(&[1_u32, complete].map(u32::to_ne_bytes).concat(), 1044).unwrap();
        let lines = fs::metadata(&path).unwrap().len() - 64 * 16;
        file.write_all_at(&SEALED.to_ne_bytes().repeat(64), lines).unwrap();
        if generation == u64::MAX {
            let damaged = "its header is damaged: no table was resized that often";
            assert_eq!(refusal(&path), damaged);
        } else {
            let (table, _) = open(&path);
            for n in 0..100_u32 {
                let key = table.hash(&n.to_ne_bytes());
                assert!(!table.charge(key, hourly(5), 1, &mut table.reading()).is_allowed());
                assert!(table.successor().is_err());
            }
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            assert!(
                maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).count() <= 3,
                "{maps}"
            );
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn without_its_successor_a_moved_key_is_denied() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    assert!(table.charge(key, hourly(2), 1, &mut table.reading()).is_allowed());
    Table::resize(&path, Slots::new(128).unwrap(), Duration::ZERO).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!table.charge(key, hourly(2), 1, &mut table.reading()).is_allowed());
    let gone = "it was being resized, and the file that takes over from it is gone";
    assert_eq!(without_path(&table.successor().unwrap_err()), gone);
}

/// Its sealed slots stay sealed, and nothing else shows that.
#[test]
fn a_table_whose_successor_is_gone_is_at_fault() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let child = begin_resize(&table, &path, FOR_EVER_MS);
    let faults = || {
        let table = Table::inspect(&path).unwrap();
        let faults = table.check();
        assert!(faults.iter().all(|fault| !fault.heals() && fault.slot().is_none()));
        let texts = faults.iter().map(ToString::to_string).collect::<Vec<_>>();
        let successor_fault = table.successor_fault().map(|fault| fault.to_string());
        assert_eq!(successor_fault, texts.first().cloned());
        texts
    };
    assert_eq!(faults(), [""; 0], "the resize runs");
    drop(child);
    assert_eq!(faults(), [""; 0], "another resize can finish it");

    let gone = "it is being resized, and the file that takes over from it is gone";
    // A copy of the table has the table's own generation, so it is not its successor.
    let whole = fs::read(successor(&path)).unwrap();
    fs::write(successor(&path), fs::read(&path).unwrap()).unwrap();
    assert_eq!(faults(), [gone]);
    fs::remove_file(successor(&path)).unwrap();
    assert_eq!(faults(), [gone]);
    symlink("elsewhere", successor(&path)).unwrap();
    let Some(fault) = Table::inspect(&path).unwrap().successor_fault() else { panic!("a fault") };
    match fault.kind() {
        FaultKind::SuccessorUnusable { why } => {
            assert!(matches!(why.kind(), OpenErrorKind::Symlink), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let sentence = "it is being resized, and its successor cannot be opened: ";
    assert!(faults()[0].starts_with(sentence), "{fault}");

    // With the file put back there is no fault.
    fs::remove_file(successor(&path)).unwrap();
    fs::write(successor(&path), whole).unwrap();
    fs::set_permissions(successor(&path), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(faults(), [""; 0]);
}
