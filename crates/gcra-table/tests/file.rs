//! The table file: who makes it, who joins it, and what is refused with which sentence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gcra_table::{Opened, Quota, Slots, Table};
use tempfile::TempDir;

fn slots() -> Slots {
    Slots::new(64).unwrap()
}

/// One cell an hour: what is charged in a test stays charged.
fn hourly(burst: u32) -> Quota {
    Quota::new(NonZeroU64::new(3_600_000_000_000).unwrap(), NonZeroU32::new(burst).unwrap()).unwrap()
}

/// A directory, on tmpfs as in production, and a path in it.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("table");
    (directory, path)
}

fn open(path: &Path) -> (Table, Opened) {
    Table::open_or_create(path, Some(slots())).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(path: &Path) -> String {
    let before = fs::symlink_metadata(path).map(|metadata| metadata.len()).ok();
    let error = Table::open_or_create(path, Some(slots())).expect_err("it was opened").to_string();
    assert!(error.contains(path.to_str().unwrap()), "names the file: {error}");
    assert_eq!(fs::symlink_metadata(path).map(|metadata| metadata.len()).ok(), before, "it was changed");
    error
}

#[test]
fn the_first_makes_it_and_the_others_join_it() {
    let (_directory, path) = place();
    let (first, made) = open(&path);
    let (second, joined) = open(&path);
    assert_eq!((made, joined), (Opened::Created, Opened::Joined));
    assert_eq!(fs::metadata(&path).unwrap().len(), 4096 + 64 * 16);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);

    let key = first.hash(b"a");
    assert_eq!(key, second.hash(b"a"));
    assert!(first.charge(key, hourly(2), 1, &mut first.now()).is_allowed());
    assert!(second.charge(key, hourly(2), 1, &mut second.now()).is_allowed());
    assert!(!first.charge(key, hourly(2), 1, &mut first.now()).is_allowed());

    drop((first, second));
    let (third, _) = open(&path);
    assert!(!third.charge(key, hourly(2), 1, &mut third.now()).is_allowed(), "it was forgotten");
}

#[test]
fn two_tables_hash_differently() {
    let (_first, first) = place();
    let (_second, second) = place();
    assert_ne!(open(&first).0.hash(b"a"), open(&second).0.hash(b"a"));
}

#[test]
fn what_is_no_table_is_refused() {
    let (directory, path) = place();
    for content in [&b""[..], b"short", &[b'x'; 8192]] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(refusal(&path).contains("is no table of gcra-spoa"), "{}", refusal(&path));
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(refusal(&path).contains("is a directory"));
    fs::remove_dir(&path).unwrap();

    let real = directory.path().join("real");
    drop(open(&real));
    symlink(&real, &path).unwrap();
    assert!(refusal(&path).contains("is a symbolic link"));
    fs::remove_file(&path).unwrap();

    fs::hard_link(&real, &path).unwrap();
    assert!(refusal(&path).contains("has 2 names"));
    fs::remove_file(&path).unwrap();

    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(refusal(&path).contains("is not a regular file"));
    fs::remove_file(&path).unwrap();

    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(refusal(&path).contains("is a socket"));
}

#[test]
fn a_table_that_others_may_touch_is_refused() {
    let (_directory, path) = place();
    drop(open(&path));
    fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
    assert!(refusal(&path).contains("has mode 0620"));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        assert!(refusal(&path).contains("belongs to user 12345"));
    } else {
        eprintln!("not root: the refusal of another owner's table was not tried");
    }
}

#[test]
fn a_table_of_another_size_or_layout_is_refused() {
    let (_directory, path) = place();
    drop(open(&path));
    let error = Table::open_or_create(&path, Some(Slots::new(128).unwrap())).unwrap_err().to_string();
    assert!(
        error.contains(
            "has 64 slots, and --slots asks for 128; leave --slots out to take what it has, or change it with"
        ),
        "{error}"
    );

    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    for length in [whole - 1, whole + 4096, 4096] {
        file.set_len(length).unwrap();
        assert!(refusal(&path).contains("it was cut or grown"));
    }
    file.set_len(whole).unwrap();

    let patch = |at: u64, byte: u8| {
        let mut file = &file;
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte]).unwrap();
    };
    patch(8, 9);
    assert!(refusal(&path).contains("has layout 9, and this version reads layout 2"));
    patch(8, 2);
    patch(40, 0);
    patch(41, 0);
    assert!(refusal(&path).contains("hashes keys differently"));
}

#[test]
fn a_missing_directory_and_a_full_file_system_are_told() {
    let (directory, _) = place();
    assert!(refusal(&directory.path().join("none/table")).contains("/none does not exist"));

    let mount = directory.path().join("small");
    fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "small"]).arg(&mount).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("not allowed to mount a small tmpfs: a full file system was not tried");
        return;
    }
    let path = mount.join("table");
    let error = Table::open_or_create(&path, Some(Slots::DEFAULT)).unwrap_err().to_string();
    let made = path.exists();
    drop(open(&path));
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    assert!(error.contains("No space left on device") && error.contains("fewer --slots"), "{error}");
    assert!(!made);
}

#[test]
fn after_a_reboot_the_time_goes_on() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let key = table.hash(b"a");
    assert!(table.charge(key, hourly(1), 1, &mut table.now()).is_allowed());
    let before = table.now();
    drop(table);
    // Another boot, as far as the header says.
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(96)).unwrap();
    file.write_all(&[0xab; 16]).unwrap();
    let (table, _) = open(&path);
    let now = table.now();
    assert!(now >= before && now - before < 60_000_000_000, "{before} {now}");
    assert!(!table.charge(key, hourly(1), 1, &mut table.now()).is_allowed());
}

/// The other end of the tests with processes: this test binary, started again.
#[test]
fn child() {
    let Ok(path) = std::env::var("GCRA_TABLE_CHILD") else {
        return;
    };
    let (table, opened) = open(Path::new(&path));
    if opened == Opened::Created {
        println!("created");
    }
    let key = table.hash(b"hot");
    let allowed =
        (0..200_000).filter(|_| table.charge(key, hourly(10_000), 1, &mut table.now()).is_allowed()).count();
    println!("allowed {allowed}");
}

fn start_child(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("GCRA_TABLE_CHILD", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_start_together_share_one_table_and_one_limit() {
    for _ in 0..5 {
        let (_directory, path) = place();
        let children: Vec<_> = (0..8).map(|_| start_child(&path)).collect();
        let (mut created, mut allowed) = (0, 0);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            for line in String::from_utf8(output.stdout).unwrap().lines() {
                // The test harness writes its own words in front.
                if line.ends_with("created") {
                    created += 1;
                }
                if let Some((_, count)) = line.split_once("allowed ") {
                    allowed += count.parse::<u32>().unwrap();
                }
            }
        }
        assert_eq!((created, allowed), (1, 10_000));
    }
}
