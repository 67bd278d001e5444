//! Files that are no table of this machine and user, and machines without space for one.

use super::*;

#[test]
fn a_file_that_is_not_a_table_is_refused() {
    let (directory, path) = place();
    for content in [&b""[..], b"short", &[b'x'; 8192], &[0; 5120], &[0xff; 5120]] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = refused(&path);
        assert!(matches!(error.kind(), OpenErrorKind::Foreign), "{error:?}");
        assert_eq!(fs::read(&path).unwrap(), content);
        // To change the mode of such a file would be wrong advice.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(refused(&path).kind(), OpenErrorKind::Foreign));
    }
    fs::remove_file(&path).unwrap();

    let kind = |kind: &str| format!("it is {kind}");
    fs::create_dir(&path).unwrap();
    assert_eq!(refusal(&path), kind("a directory"));
    fs::remove_dir(&path).unwrap();

    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(refusal(&path), kind("not a regular file"));
    fs::remove_file(&path).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(refusal(&path), kind("a socket or a device"));
    drop(socket);
    fs::remove_file(&path).unwrap();

    let real = directory.path().join("real");
    drop(open(&real));
    symlink(&real, &path).unwrap();
    assert_eq!(refusal(&path), "it is a symbolic link");
    fs::remove_file(&path).unwrap();

    fs::hard_link(&real, &path).unwrap();
    assert!(matches!(refused(&path).kind(), OpenErrorKind::Links { count: 2 }));
}

#[test]
fn a_table_that_others_may_touch_is_refused() {
    let (_directory, path) = place();
    drop(open(&path));
    for (mode, shown) in [(0o620, "0620"), (0o604, "0604"), (0o4600, "4600")] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(refusal(&path), format!("it has mode {shown} instead of 0600"));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        return skip("only root can make a table of another owner");
    }
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(refusal(&path), format!("it belongs to user 12345, and this is user {user}"));
    // Root may look at it.
    assert_eq!(Table::inspect(&path).unwrap().slots(), slots());
}

#[test]
fn a_table_of_another_size_or_layout_is_refused() {
    let (_directory, path) = place();
    drop(open(&path));
    let error = Table::open_or_create(&path, Some(Slots::new(128).unwrap())).unwrap_err();
    assert_eq!(without_path(&error), "it has 64 slots, and 128 were asked for");
    assert_eq!(Table::open_or_create(&path, None).unwrap().0.slots(), slots());

    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    for length in [whole - 1, whole + 4096, HEADER_BYTES, 4096, 128] {
        file.set_len(length).unwrap();
        let cut = format!("it is {length} bytes long, and its header says {whole}");
        assert_eq!(refusal(&path), cut);
    }
    file.set_len(whole).unwrap();

    let refusal_with = |at: u64, bytes: &[u8]| {
        let before = fs::read(&path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let sentence = refusal(&path);
        file.write_all_at(&before, 0).unwrap();
        sentence
    };
    assert_eq!(refusal_with(8, &[9]), "it has layout 9, and this version reads layout 7");
    assert_eq!(
        refusal_with(40, &[0; 8]),
        "it was made by a build that hashes keys differently, or its header is damaged"
    );
    let damaged = |how: &str| format!("its header is damaged: {how}");
    let slots = "no table can have its number of slots";
    for number in [0, 7, 65, 1 << 40, u64::MAX] {
        assert_eq!(refusal_with(16, &u64::to_ne_bytes(number)), damaged(slots), "{number}");
    }
    for base in [i64::MIN, -i64::MAX / 2, i64::MAX] {
        assert_eq!(
            refusal_with(112, &base.to_ne_bytes()),
            damaged("its time is out of range"),
            "{base}"
        );
    }
    drop(open(&path));
}

#[test]
fn a_missing_directory_and_a_full_or_read_only_file_system_are_errors() {
    let (directory, _) = place();
    let missing = directory.path().join("none/table");
    let error = refused(&missing);
    assert_eq!(without_path(&error), "could not create it");
    let why = std::error::Error::source(&error).unwrap().to_string();
    let none = directory.path().join("none");
    assert_eq!(why, format!("the directory {} does not exist", none.display()));

    let Some(mount) = Mount::new(directory.path().join("small"), "size=512k") else {
        return skip("not allowed to mount a full and a read-only file system");
    };
    let path = mount.0.join("table");
    let error = Table::open_or_create(&path, Some(Slots::DEFAULT)).unwrap_err();
    assert_eq!(without_path(&error), "could not reserve its space");
    assert_eq!(cause(&error), io::ErrorKind::StorageFull);
    assert!(!path.exists());
    // The table that fits is all there: filling the rest takes nothing from it.
    let (table, _) = open(&path);
    fs::write(mount.0.join("filler"), vec![1; 1 << 20]).unwrap_err();
    for n in 0..10_000_u32 {
        let _ = table.charge(table.hash(&n.to_ne_bytes()), hourly(1), 1, &mut table.reading());
    }
    assert_eq!(table.occupancy().live, 64);
    drop(table);

    let mut remount = Command::new("mount");
    assert!(remount.args(["-o", "remount,ro"]).arg(&mount.0).status().unwrap().success());
    for (path, doing) in
        [(path, "could not open it"), (mount.0.join("new"), "could not create it")]
    {
        let error = refused(&path);
        assert_eq!(without_path(&error), doing);
        assert_eq!(cause(&error), io::ErrorKind::ReadOnlyFilesystem);
    }
}

/// The other end of [`child_under`].
#[test]
fn opening_child() {
    if let Ok(path) = std::env::var("GCRA_TABLE_OPEN") {
        let slots =
            Slots::new(std::env::var("GCRA_TABLE_SLOTS").unwrap().parse().unwrap()).unwrap();
        if let Ok(left) = std::env::var("GCRA_TABLE_ADDRESS_SPACE") {
            limit_address_space(left.parse().unwrap());
        }
        match Table::open_or_create(Path::new(&path), Some(slots)) {
            Ok((_, opened)) => println!("opened: {opened:?}"),
            Err(error) => println!("refused: {error}: {:?}", std::error::Error::source(&error)),
        }
    }
}

/// Leaves this process only `left` more bytes of address space than it uses now.
fn limit_address_space(left: u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used_kib: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = Some(used_kib * 1024 + left);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
}

#[test]
fn too_little_address_space_is_an_error() {
    let (_directory, path) = place();
    // 32 MiB of slots, and half of that left.
    let setup = format!("export GCRA_TABLE_ADDRESS_SPACE={}", 16 << 20);
    let said = child_under(&setup, &path, 1 << 21);
    let sentence = format!("refused: table {}: could not map it: ", path.display());
    assert!(said.contains(&sentence) && said.contains("code: 12"), "{said}");
}

#[test]
fn too_little_memory_in_the_cgroup_is_an_error_before_it_kills() {
    let (_directory, path) = place();
    // Version 1 or 2 of the cgroups, whichever this machine has.
    let setup = "
        for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
            group=$root/gcra-test-$$
            mkdir $group || continue
            bytes=33554432
            if echo $bytes >$group/memory.max || echo $bytes >$group/memory.limit_in_bytes; then
                (while kill -0 $$; do sleep 0.2; done; sleep 0.2; rmdir $group) >/dev/null &
                echo $$ >$group/cgroup.procs && break
            fi
            rmdir $group
        done 2>/dev/null
        test \"$(cat $group/cgroup.procs 2>/dev/null)\" || { echo no cgroup; exit; }";
    let said = child_under(setup, &path, 1 << 22);
    if said.contains("no cgroup") {
        return skip("not allowed to make a cgroup with a memory limit");
    }
    let begin = format!(
        "refused: table {}: it takes 67502080 bytes of memory, and the cgroup's limit leaves ",
        path.display()
    );
    assert!(said.contains(&begin), "{said}");
    assert!(child_under(setup, &path, 1 << 12).contains("opened: Created"));
}

/// Any difference is refused, however small, and however long the table has not been used.
///
/// The kernel refuses an offset that would make a clock negative, so only a machine that has run
/// for longer could set a clock back. All offsets here are ahead.
#[test]
fn another_clock_is_refused() {
    let (_directory, path) = place();
    let (table, _) = open(&path);
    let child =
        |offset: &str, path: &Path| child_unshared(&format!("-T --boottime {offset}"), "", path);
    let Some(said) = child("0", &path) else {
        return skip("not allowed to make a time namespace with another clock");
    };
    assert!(said.contains("opened: Joined"), "{said}");
    let sentence = |theirs: &str, ours: &str| {
        format!(
            "it is used with the clock of another time namespace, where CLOCK_BOOTTIME is \
             {theirs} s ahead of the machine's; here it is {ours} s"
        )
    };
    for offset in ["1", "4", "3600", "25920000"] {
        let before = fs::read(&path).unwrap();
        let said = child(offset, &path).unwrap();
        assert!(said.contains(&sentence("0", offset)), "{offset}: {said}");
        assert_eq!(fs::read(&path).unwrap(), before, "it was changed");
    }
    drop(table);
    let said = child("25920000", &path).unwrap();
    assert!(said.contains(&sentence("0", "25920000")), "no process uses it: {said}");

    // And behind the others: the table is made by processes whose clock is ahead.
    for offset in ["1", "3600"] {
        fs::remove_file(&path).unwrap();
        let said = child(offset, &path).unwrap();
        assert!(said.contains("opened: Created"), "{said}");
        assert_eq!(refusal(&path), sentence(offset, "0"));
        assert!(child(offset, &path).unwrap().contains("opened: Joined"));
    }
}

#[test]
fn without_proc_the_missing_file_is_named() {
    let (_directory, path) = place();
    drop(open(&path));
    let sentence = |path: &Path| {
        let file = "/proc/sys/kernel/random/boot_id";
        format!("refused: table {}: could not read {file}, which its clock needs", path.display())
    };
    for mount in ["mount -t tmpfs none /proc", "mount -t proc -o subset=pid proc /proc"] {
        let Some(said) = child_unshared("-m", &format!("{mount} || exit"), &path) else {
            skip(&format!("not allowed to '{mount}'"));
            continue;
        };
        assert!(said.contains(&sentence(&path)), "{mount}: {said}");
        // And none is made.
        let other = path.with_extension("other");
        let said = child_unshared("-m", mount, &other).unwrap();
        assert!(said.contains(&sentence(&other)) && !other.exists(), "{mount}: {said}");
    }
}
