//! How it starts and lives: what is refused, which user and root it has, reloads and resizes.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::set_up::{BY_ADDRESS, Program, SetUp, programs, says};
use crate::support::{
    self, Client, CopiedAgent, NOBODY, Process, directory, free_port, needs, wait_until,
};

/// The output of HAProxy's check for these words; it has to refuse them.
fn refused(program: &Program, table: &Path, words: &str) -> String {
    let (is_right, said) = SetUp::new(table, words, BY_ADDRESS).check(program);
    assert!(!is_right, "{:?} {words}: {said}", program.version);
    said
}

#[test]
fn what_is_wrong_is_refused_with_a_sentence_before_anything_runs() {
    needs!(support::haproxy());
    let shared = "[store]\nurl = \"redis://127.0.0.1\"\n[policy.a]\nlimits = \"9/d\"\nshared = \
                  true\n";
    let settled = "[policy.a]\nlimits = \"9/d burst 5\"\nkey = [\"ip\"]\nsettle = \
                   \"done\"\nreserve = \"n\"\ncost = \"n\"\n";
    let delayed = "[policy.a]\nlimits = \"9/s burst 5\"\nmax_delay = \"1s\"\n";
    let bandwidth = "answer = [\"bandwidth\"]\n[policy.a]\nlimits = \"9/h\"\nbandwidth = { \
                     full = \"2m\", least = \"1m\" }\n";
    for program in programs() {
        let folder = directory();
        let (table, file) = (folder.path().join("table"), folder.path().join("policies.toml"));
        for (words, said) in [
            ("", "write --config and a file with policies, or --rate for one limit"),
            ("--rate 9", "'9' is not a rate"),
            ("--rate 9/d --bursts 3", "'--bursts' is not a setting of gcra.lua"),
            ("--rate 9/d --store redis://a", "'--store' is not a setting of gcra.lua"),
            ("--rate 9/d --slots 7", "7"),
            ("--config /none.toml", "/none.toml"),
            ("--config /none.toml --rate 9/d", "cannot be used with"),
        ] {
            let found = refused(&program, &table, words);
            assert!(found.contains("gcra.lua: ") && found.contains(said), "{words}: {found}");
        }
        for (text, said) in [
            (shared, "policy 'a' is shared with other machines, which only an agent can do"),
            (settled, "policy 'a' is settled by responses"),
            (delayed, "policy 'a' delays requests"),
            (bandwidth, "policy 'a' limits the bandwidth"),
            ("[policy.a]\n", "limits"),
        ] {
            fs::write(&file, text).unwrap();
            let found = refused(&program, &table, &format!("--config {}", file.display()));
            assert!(found.contains(said), "{found}");
        }
        assert!(!table.exists(), "a check makes no table");
        let found = refused(&program, &folder.path().join("no/table"), "--rate 9/d");
        assert!(found.contains("cannot use the folder of the table"), "{found}");
    }
}

#[test]
fn a_table_that_cannot_be_used_is_refused() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let table = folder.path().join("table");
        let words = "--rate 9/d --slots 4096";
        fs::write(&table, "something else").unwrap();
        assert!(refused(&program, &table, words).contains("is not a table of gcra-spoa"));
        fs::remove_file(&table).unwrap();
        drop(SetUp::new(&table, words, BY_ADDRESS).start(&program));
        let found = refused(&program, &table, "--rate 9/d --slots 8192");
        assert!(found.contains("has 4096 slots, and --slots asks for 8192"), "{found}");
        // Another layout: its number stands behind the magic.
        let mut bytes = fs::read(&table).unwrap();
        bytes[8] = bytes[8].wrapping_add(1);
        fs::write(&table, bytes).unwrap();
        assert!(refused(&program, &table, words).contains("it has layout "));
    }
}

/// As an operator runs it: a master, a user, and a root without any file. The table does not exist
/// before that, as after a boot.
/// Reloads HAProxy until the new worker has `opened` the table. The master of HAProxy 3.0 loses
/// one signal of ten that comes while a former worker ends, so it is sent again.
fn reload(master: &Process, opened: impl Fn() -> bool) {
    let mut last = None;
    wait_until("the new worker has opened the table", || {
        if last.is_none_or(|last: Instant| last.elapsed() > Duration::from_secs(5)) {
            master.signal(Signal::USR2);
            last = Some(Instant::now());
        }
        opened()
    });
}

#[test]
fn with_a_user_and_another_root_it_makes_the_table_and_follows_resizes_and_reloads() {
    needs!(support::haproxy());
    let agent = CopiedAgent::new();
    needs!(agent.as_nobody());
    for program in programs() {
        let folder = directory();
        let path = |name: &str| folder.path().join(name);
        let table = path("shm/table");
        for name in ["shm", "root"] {
            fs::create_dir(path(name)).unwrap();
        }
        chown(path("shm"), Some(NOBODY), Some(NOBODY)).unwrap();
        for name in ["", "shm"] {
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let root = path("root");
        let global = format!(
            "nbthread 4\n    chroot {}\n    uid {NOBODY}\n    gid {NOBODY}",
            root.display()
        );
        let set_up = SetUp::new(&table, "--rate 40/d --burst 20", BY_ADDRESS).global(&global);
        assert!(set_up.check(&program).0, "{}", set_up.check(&program).1);
        let frontend = free_port(std::net::Ipv4Addr::LOCALHOST.into());
        let cfg = path("in-process.cfg");
        fs::write(&cfg, set_up.text(program.version, &frontend.to_string())).unwrap();
        let mut command = Command::new(&program.path);
        let mut master = Process::start("haproxy", command.args(["-W", "-f"]).arg(&cfg));
        let opened = || {
            let lines = master.lines();
            // HAProxy logs each line to standard error, too.
            lines.iter().filter(|line| line.starts_with("gcra: table ")).count()
        };
        wait_until("the table is open", || opened() == 1);
        let passed = |count: usize| {
            let mut client = Client::new(frontend);
            (0..count).filter(|_| client.get("/").is_ok_and(|it| it.status == 200)).count()
        };
        let version = program.version;
        assert_eq!(passed(30), 20, "{version:?}");
        assert_eq!(table.metadata().unwrap().uid(), NOBODY);
        let left: Vec<_> = fs::read_dir(path("shm")).unwrap().map(|it| it.unwrap()).collect();
        assert!(left.iter().all(|it| !it.file_name().to_string_lossy().contains(".new")));

        let run = |words: &[&str]| {
            let mut command = Command::new(agent.path());
            command.args(words).arg("--table").arg(&table).uid(NOBODY).gid(NOBODY);
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{output:?}");
            text
        };
        let said = run(&["table", "resize", "--slots", "4096"]);
        assert!(said.contains("moved"), "{said}");
        assert_eq!(passed(10), 0, "{version:?}: the debt was carried over");
        wait_until("it has moved", || says(&master, "gcra: the table was resized", "4096"));
        assert_eq!(passed(10), 0);

        reload(&master, || opened() >= 2);
        assert_eq!(passed(10), 0, "{version:?}: the debt was kept");
        let said = run(&["table", "get", "127.0.0.1"]);
        assert!(said.contains("blocked") && said.contains("all 20 again"), "{said}");

        // Other limits: what a client owes is known from the file beside the table.
        let mut other = set_up.clone();
        other.words = other.words.replace("--rate 40/d --burst 20", "--rate 30/d --burst 10");
        fs::write(&cfg, other.text(program.version, &frontend.to_string())).unwrap();
        // The signal before may have been sent twice. Then a worker with the former limits has
        // opened the table, too.
        let said = || run(&["table", "get", "127.0.0.1"]);
        reload(&master, || opened() >= 3 && said().contains("all 10 again"));
        assert_eq!(passed(10), 0, "{version:?}: the debt was carried over");
        let said = said();
        assert!(said.contains("blocked") && said.contains("all 10 again"), "{said}");
        wait_until("the old worker is gone", || {
            let info = run(&["table", "info"]);
            info.contains("used by process ")
        });
        master.stop();
    }
}

/// The user of HAProxy has to be that of the agents. Before HAProxy has changed its user that is
/// not known.
#[test]
fn a_table_of_another_user_limits_nothing_and_the_log_says_so() {
    needs!(support::haproxy());
    let agent = CopiedAgent::new();
    needs!(agent.as_nobody());
    for program in programs() {
        let folder = directory();
        let table = folder.path().join("table");
        drop(SetUp::new(&table, "--rate 9/d", BY_ADDRESS).start(&program));
        chown(&table, Some(NOBODY), Some(NOBODY)).unwrap();
        let set_up = SetUp::new(&table, "--rate 9/d", BY_ADDRESS);
        let running = set_up.start_now(&program);
        wait_until("the log says so", || {
            running.says("belongs to user 65534", "no request is limited")
        });
        assert_eq!(running.passed(30, "/", &[]), 30);
        // It tries again.
        chown(&table, Some(0), Some(0)).unwrap();
        running.haproxy.process.wait_for_table();
        assert_eq!(running.passed(30, "/", &[]), 9);
    }
}

#[test]
fn one_state_for_all_threads_limits_too() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let table = folder.path().join("table");
        let set_up = SetUp::new(&table, "--rate 9/d", BY_ADDRESS);
        let text = set_up.text(program.version, "\"${GCRA_HTTP}\"");
        let cfg = folder.path().join("one-state.cfg");
        fs::write(&cfg, text.replace("lua-load-per-thread", "lua-load")).unwrap();
        let haproxy = support::Haproxy::start_program(&program.path, cfg.to_str().unwrap(), &[]);
        haproxy.process.wait_for_table();
        let mut client = Client::new(haproxy.frontend);
        let passed = (0..20).filter(|_| client.get("/").unwrap().status == 200).count();
        assert_eq!(passed, 9, "{:?}", program.version);
    }
}
