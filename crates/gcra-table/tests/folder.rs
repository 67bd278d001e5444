//! Tables that are found in a folder that is kept open, whatever its path is by now.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use gcra_table::{
    Folder, Name, Nanos, OpenErrorKind, Opened, Quota, Slots, Table, read_clock_files,
};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

fn slots(count: u64) -> Slots {
    Slots::new(count).unwrap()
}

/// A directory, the path of a table in it, and the folder.
fn folder() -> (TempDir, std::path::PathBuf, Folder) {
    read_clock_files().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let path = inside.join("table");
    let folder = Folder::of(&path).unwrap();
    (directory, path, folder)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_table_is_made_found_and_followed_in_a_folder_that_has_moved() {
    let (directory, path, folder) = folder();
    let moved = directory.path().join("moved");
    fs::rename(directory.path().join("inside"), &moved).unwrap();
    let (table, opened) = Table::open_or_create_in(&folder, &path, Some(slots(64))).unwrap();
    assert_eq!((opened, names(&moved)), (Opened::Created, vec!["table".to_owned()]));
    let (again, opened) = Table::open_or_create_in(&folder, &path, None).unwrap();
    assert_eq!(opened, Opened::Joined);
    let quota = Quota::new(Nanos::from_secs(60), 1).unwrap();
    let key = table.hash(b"key");
    assert!(table.charge(key, quota, 1, &mut table.reading()).is_allowed());
    assert!(!again.charge(key, quota, 1, &mut again.reading()).is_allowed());
    assert_eq!(
        (table.name(), Table::inspect_in(&folder, &path).unwrap().slots().get()),
        (Name::Ours, 64)
    );

    // A resize knows its present path. A decision meets the successor before the beat does.
    Table::resize(&moved.join("table"), slots(256), Duration::ZERO).unwrap();
    assert!(!table.charge(key, quota, 1, &mut table.reading()).is_allowed());
    let other = table.hash(b"other");
    assert!(table.charge(other, quota, 1, &mut table.reading()).is_allowed());
    let next = table.successor().unwrap().unwrap();
    assert_eq!((next.slots().get(), next.name()), (256, Name::Ours));
    fs::remove_file(moved.join("table")).unwrap();
    assert_eq!(next.name(), Name::Nothing);
}

#[test]
fn what_a_killed_process_has_left_is_made_anew() {
    let (_directory, path, folder) = folder();
    let new = path.with_file_name(".table.new");
    fs::write(&new, vec![7; 3_000_000]).unwrap();
    let (table, opened) = Table::open_or_create_in(&folder, &path, Some(slots(64))).unwrap();
    assert_eq!(opened, Opened::Created);
    assert_eq!(path.metadata().unwrap().len(), table.bytes());
    assert_eq!(names(path.parent().unwrap()), ["table"]);
}

/// Two that make it at once would have two tables.
#[test]
fn of_many_that_make_it_at_once_one_does() {
    for _ in 0..20 {
        let (_directory, path, folder) = folder();
        let opened: Vec<_> = thread::scope(|scope| {
            let open = || Table::open_or_create_in(&folder, &path, Some(slots(64)));
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let opened = opened.into_iter().filter_map(|opened| match opened {
            Ok((_, opened)) => Some(opened),
            // It tries again later.
            Err(error) => {
                assert!(matches!(error.kind(), OpenErrorKind::Locked), "{error:?}");
                None
            }
        });
        assert_eq!(opened.filter(|opened| *opened == Opened::Created).count(), 1);
        assert_eq!(names(path.parent().unwrap()), ["table"]);
    }
}

#[test]
fn a_process_that_keeps_a_folder_open_does_not_wait_for_a_lock() {
    let (_directory, path, folder) = folder();
    drop(Table::open_or_create_in(&folder, &path, Some(slots(64))).unwrap());
    let other = File::open(&path).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    let error = Table::open_or_create_in(&folder, &path, None).unwrap_err();
    assert!(matches!(error.kind(), OpenErrorKind::Locked), "{error:?}");
    drop(other);
    assert!(Table::open_or_create_in(&folder, &path, None).is_ok());
}
