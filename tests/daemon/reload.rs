//! `gcra-spoa reload`, SIGHUP and `check` with real agents, real files, and what can go wrong.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gcra_table::board::{Board, ReloadAnswer};
use gcra_table::{Slots, Table};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::process::Signal;
use spop_codec::Value;
use tempfile::TempDir;

use crate::support;
use crate::support::spop::Spop;
use crate::support::{Agent, Process, directory, in_time, needs, wait_until};

const FIVE: &str = "[policy.check]\nlimits = \"5/h\"\n";
const SEVEN: &str = "[policy.check]\nlimits = \"7/h\"\n";

/// Where the entries of the processes lie in a table, and how large each is.
const ENTRIES: u64 = 0x20000;
const ENTRY_BYTES: u64 = 256;

/// A folder with a table and configurations.
struct Place(TempDir);

impl Place {
    fn new(config: &str) -> Self {
        let place = Self(directory());
        fs::write(place.config(), config).unwrap();
        place
    }

    fn table(&self) -> PathBuf {
        self.0.path().join("table")
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("gcra-spoa.toml")
    }

    fn agent(&self) -> Agent {
        self.agent_by(&self.config())
    }

    fn agent_by(&self, config: &Path) -> Agent {
        let mut command = Command::new(support::agent_binary());
        Agent::start_command(self.arguments(&mut command, config))
    }

    fn arguments<'c>(&self, command: &'c mut Command, config: &Path) -> &'c mut Command {
        command.arg("--config").arg(config).arg("--table").arg(self.table());
        command.args(["--slots", "1024", "--drain", "0", "--listen", "127.0.0.1:0"])
    }

    /// Runs the command until no agent is late. Returns whether it succeeded, and its output.
    fn reload(&self) -> (bool, String) {
        said_by(in_time(|| self.reload_with(&[])))
    }

    /// The same, also if an agent is late.
    fn reload_once(&self) -> (bool, String) {
        said_by(self.reload_with(&[]))
    }

    fn reload_with(&self, args: &[&str]) -> Output {
        let table = self.table();
        self.command("reload", &[&["--table", table.to_str().unwrap()], args].concat())
    }

    fn command(&self, name: &str, args: &[&str]) -> Output {
        let mut command = Command::new(support::agent_binary());
        command.arg(name).arg("--config").arg(self.config()).args(args).output().unwrap()
    }

    /// The line that says how many agents have put their files in force.
    fn in_force(&self, count: usize, alive: usize) -> String {
        let share = match (count, alive) {
            (1, 1) => "1 agent".to_owned(),
            _ if count == alive => format!("all {alive} agents"),
            _ => format!("{count} of {alive} agents"),
        };
        format!("{} is valid; its limits are in force in {share}\n", self.config().display())
    }
}

fn said_by(output: Output) -> (bool, String) {
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn said(process: &Process, text: &str) -> usize {
    process.lines().iter().filter(|line| line.contains(text)).count()
}

/// Waits until the log has so many lines with the text. An agent has written them when it answers
/// a command, and they are read by another thread of the test.
fn says(process: &Process, text: &str, count: usize) {
    wait_until(&format!("the log says '{text}'"), || said(process, text) >= count);
    assert_eq!(said(process, text), count, "{text}");
}

/// How many requests the agent allows a client that has made none.
fn limit(agent: &Agent, client: u8) -> usize {
    Spop::connect(&agent.address).allowed(&[("ip", Value::Ipv4([192, 0, 2, client].into()))], 20)
}

/// Where a store would be. No agent waits for it to start or to reload.
const STORE: &str = "[store]\nurl = \"redis://127.0.0.1:1\"\n";

/// An agent connects to its store when it starts, and only then.
#[test]
fn another_store_needs_a_restart() {
    let shared = FIVE.to_owned() + "shared = true\n";
    let place = Place::new(&format!("{STORE}{shared}"));
    let agent = place.agent();
    let store = "store: redis://127.0.0.1:1, for which a request waits at most 20ms";
    says(&agent.process, store, 1);
    says(&agent.process, "    shared with all machines that use the store; ", 1);
    let warning = "[store] of the file has changed since this agent was started, and the agent \
                   keeps the old one; restart the agent";
    let other = STORE.replace(":1", ":2");
    let changed = [format!("{other}{shared}"), format!("{STORE}wait = \"30ms\"\n{shared}")];
    for (number, text) in (1..).zip(changed.iter().map(String::as_str).chain([FIVE])) {
        fs::write(place.config(), text).unwrap();
        let (is_success, text) = place.reload();
        assert!(is_success, "{text}");
        assert!(text.starts_with(&format!("{}warning: {warning}\n", place.in_force(1, 1))));
        says(&agent.process, warning, number);
    }
    // The store with which the agent was started is what counts, and not the last one.
    fs::write(place.config(), format!("{STORE}{}", shared.replace('5', "7"))).unwrap();
    let (is_success, text) = place.reload();
    assert!(is_success && text.starts_with(&place.in_force(1, 1)), "{text}");
    assert!(!text.contains(warning), "{text}");
    assert_eq!(said(&agent.process, warning), 3);
}

/// Without a store, a policy that is shared would be decided as if the store were away.
#[test]
fn an_agent_without_a_store_cannot_begin_to_share() {
    let place = Place::new(FIVE);
    let agent = place.agent();
    fs::write(place.config(), format!("{STORE}{SEVEN}shared = true\n")).unwrap();
    let (is_success, text) = place.reload();
    let why = "policy 'check' is shared, and this agent was started without a store; restart the \
               agent";
    assert!(!is_success && text.contains(why), "{text}");
    says(&agent.process, why, 1);
    assert_eq!(limit(&agent, 1), 5, "the policies in force have not changed");
}

/// As for the messages of requests: responses would charge nothing any more.
#[test]
fn a_message_that_settles_nothing_any_more_is_named() {
    let text = "[policy.login]\nlimits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"login-failed\"\n";
    let place = Place::new(text);
    let agent = place.agent();
    fs::write(place.config(), text.replace("failed", "fail")).unwrap();
    let warning = "responses in messages 'login-failed' settle nothing any more; they settled \
                   policy 'login'; is a name misspelled?";
    let (is_success, said) = place.reload();
    assert!(is_success, "{said}");
    assert_eq!(said, format!("{}warning: {warning}\n", place.in_force(1, 1)));
    says(&agent.process, warning, 1);
}

/// Otherwise a misspelled name switches a limit off, and the command says that all is well.
#[test]
fn a_message_that_loses_its_policy_is_named() {
    let place = Place::new(FIVE);
    let agents = [place.agent(), place.agent()];
    fs::write(place.config(), FIVE.replace("check", "chek")).unwrap();
    let warning = "no policy is for the messages 'check' any more, so they get no decision; \
                   policy 'check' was in force for them; is a name misspelled?";
    let (is_success, text) = place.reload();
    assert!(is_success, "{text}");
    assert_eq!(text, format!("{}warning: {warning}\n", place.in_force(2, 2)));
    agents.iter().for_each(|agent| says(&agent.process, warning, 1));
    // It is said about the change, and the next reload changes nothing.
    let (is_success, text) = place.reload();
    assert!(is_success && text == place.in_force(2, 2), "{text}");
}

#[test]
fn the_others_are_told_when_one_was_killed_a_moment_ago() {
    let place = Place::new(FIVE);
    let mut agents = [place.agent(), place.agent(), place.agent()];
    assert_eq!(limit(&agents[1], 1), 5);
    fs::write(place.config(), SEVEN).unwrap();
    agents[0].process.kill();
    let killed = Instant::now();
    let pid = agents[0].process.id();
    let listed = Table::inspect(&place.table()).unwrap().board().listed_processes();
    let entry = listed.iter().find(|process| process.pid == pid).unwrap();
    // Until it was looked up, which is later.
    let silent = Duration::from_nanos(entry.silent.unwrap().0);
    let (is_success, said) = place.reload();
    assert!(is_success, "{said}");
    // A busy machine may ask too late.
    let is_early = killed.elapsed() + silent < Duration::from_secs(4);
    let dead = match is_early || said.contains(" was killed ") {
        true => format!("agent {pid} was killed less than 5 s ago\n"),
        false => String::new(),
    };
    assert_eq!(said, place.in_force(2, 2) + &dead);
    assert_eq!((limit(&agents[1], 2), limit(&agents[2], 3)), (7, 7));

    // An agent that starts later may have read its file before the file changed, so it answers as
    // well.
    let later = place.agent();
    wait_until("it has read its file again", || {
        self::said(&later.process, "was read again: nothing has changed") == 1
    });
    let [_, one, two] = agents;
    let all = [one, two, later];
    let (is_success, said) = place.reload();
    assert!(is_success && said.starts_with(&place.in_force(3, 3)), "{said}");
    let json = in_time(|| place.reload_with(&["--json"]));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json["agents"], &json["in_force"], &json["unlisted"]),
        (&3.into(), &3.into(), &0.into())
    );
    for agent in all {
        agent.stop();
    }
    let (is_success, said) = place.reload_once();
    assert!(!is_success && said.contains("no agent uses"), "{said}");
}

#[test]
fn seventy_agents_are_told() {
    let place = Place::new(FIVE);
    let agents: Vec<_> = (0..70).map(|_| place.agent()).collect();
    fs::write(place.config(), SEVEN).unwrap();
    let (is_success, said) = place.reload();
    assert!(is_success, "{said}");
    assert_eq!(said, place.in_force(70, 70));
    for (agent, client) in agents.iter().zip(1..) {
        assert_eq!(limit(agent, client), 7);
    }
}

#[test]
fn each_agent_that_has_it_not_in_force_is_named() {
    let place = Place::new(FIVE);
    let (bad, one, stopped) = (place.0.path().join("bad.toml"), place.agent(), place.agent());
    fs::write(&bad, FIVE).unwrap();
    let refusing = [place.agent_by(&bad), place.agent_by(&bad)];
    let by_flags = Agent::start_with(
        &place.table(),
        &["--rate", "5/h", "--drain", "0", "--listen", "127.0.0.1:0"],
    );
    fs::write(place.config(), SEVEN).unwrap();
    fs::write(&bad, "[policy.check]\nlimits = \"7/fortnight\"\nmod = 1\n").unwrap();
    stopped.process.signal(Signal::STOP);

    let (is_success, said) = place.reload();
    assert!(!is_success, "{said}");
    assert!(said.starts_with(&place.in_force(1, 5)), "{said}");
    let pids = |agents: &[Agent]| {
        let mut pids: Vec<_> = agents.iter().map(|agent| agent.process.id().to_string()).collect();
        pids.reverse();
        let backwards = pids.join(", ");
        pids.reverse();
        [pids.join(", "), backwards]
    };
    let expected = |pids: &String| {
        let path = bad.display();
        format!(
            "\nagents {pids} refused their files and keep the policies in force: \
             {path}:2: '7/fortnight' is"
        )
    };
    assert!(pids(&refusing).iter().any(|pids| said.contains(&expected(pids))), "{said}");
    let pid = by_flags.process.id();
    let flags = format!(
        "\nagent {pid} has its limit from the command line, so it has nothing to reload\n"
    );
    assert!(said.contains(&flags), "{said}");
    let pid = stopped.process.id();
    let stop =
        format!("\nagent {pid} is stopped (SIGSTOP); it reads its file when it continues\n");
    assert!(said.contains(&stop), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
    assert_eq!((limit(&one, 1), limit(&refusing[0], 2), limit(&by_flags, 3)), (7, 5, 5));

    stopped.process.signal(Signal::CONT);
    wait_until("it has read its file", || self::said(&stopped.process, "was read again") == 1);
    assert_eq!(limit(&stopped, 4), 7);
}

#[test]
fn agents_with_different_limits_are_noticed() {
    let place = Place::new(FIVE);
    let info = || {
        let table = place.table();
        let args = ["table", "info", "--table", table.to_str().unwrap()];
        let output = Command::new(support::agent_binary()).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // The same limits, in a file with another name and other words.
    let (same, one) = (place.0.path().join("same.toml"), place.agent());
    fs::write(&same, format!("# The same.\n{FIVE}")).unwrap();
    let two = place.agent_by(&same);
    assert!(!info().contains("limits:"), "{}", info());

    fs::write(&same, SEVEN).unwrap();
    let (is_success, said) = place.reload();
    assert!(!is_success, "{said}");
    let expected = format!(
        "agent {} has read its own file, which has other limits: it was started with another \
         --config, or the file has changed in the meantime\n",
        two.process.id()
    );
    assert_eq!(said, place.in_force(1, 2) + &expected);
    let said = info();
    assert!(said.contains("\nlimits: not all agents have the same, so a client can"), "{said}");
    for agent in [&one, &two] {
        let group = format!("\n  one set of limits in agent {}\n", agent.process.id());
        assert!(said.contains(&group), "{said}");
    }

    // An agent that starts beside them says so at once, and the others once it has lasted.
    let three = place.agent();
    let warning = format!("agent {} has other limits than this agent", two.process.id());
    wait_until("the new agent warns", || self::said(&three.process, &warning) == 1);
    wait_until("the first agent warns", || self::said(&one.process, &warning) == 1);
    fs::write(&same, FIVE).unwrap();
    assert!(place.reload().0);
    wait_until("all is well", || {
        self::said(&one.process, "all agents of the table have the same limits again") == 1
    });
    assert_eq!(self::said(&one.process, &warning), 1);
}

#[test]
fn an_agent_that_was_stopped_long_ago_is_named() {
    let place = Place::new(FIVE);
    let (one, stopped) = (place.agent(), place.agent());
    let pid = stopped.process.id();
    let waiting = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let waiting = Sleeper(waiting);
    stopped.process.signal(Signal::STOP);
    let table = Table::inspect(&place.table()).unwrap();
    wait_until("it is silent for 5 s", || {
        !table
            .board()
            .listed_processes()
            .iter()
            .any(|process| process.pid == pid && process.is_alive())
    });
    // A stopped process that has the id of an agent that was killed, and a forged second entry.
    let waiting_pid = rustix::process::Pid::from_child(&waiting.0);
    rustix::process::kill_process(waiting_pid, Signal::STOP).unwrap();
    let stat = format!("/proc/{}/stat", waiting.0.id());
    wait_until("sleep is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
    let is_old = |entry: &mut [u8; 256]| entry[..8].copy_from_slice(&1_u64.to_ne_bytes());
    forge(&place.table(), 300, waiting.0.id(), is_old);
    forge(&place.table(), 301, pid, is_old);

    fs::write(place.config(), SEVEN).unwrap();
    let (is_success, said) = place.reload();
    let stop = format!("agent {pid} is stopped (SIGSTOP); it reads its file when it continues\n");
    assert_eq!((is_success, said), (false, place.in_force(1, 2) + &stop));
    let output = in_time(|| place.reload_with(&["--json"]));
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["agents"], &json["in_force"]), (&2.into(), &1.into()));
    let other = &json["others"][0];
    assert_eq!((&other["pid"], &other["outcome"]), (&pid.into(), &"stopped".into()));

    stopped.process.signal(Signal::CONT);
    wait_until("it has read its file", || self::said(&stopped.process, "was read again") > 0);
    assert_eq!((limit(&one, 1), limit(&stopped, 2)), (7, 7));
}

/// A process that is not an agent. It is killed at the end of the test.
struct Sleeper(std::process::Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An entry as any process of the table's user could write it.
fn forge(table: &Path, place: u64, pid: u32, change: impl FnOnce(&mut [u8; 256])) {
    let file = OpenOptions::new().read(true).write(true).open(table).unwrap();
    let mut last = [0; 8];
    file.read_exact_at(&mut last, 1024).unwrap();
    let mut entry = [0; 256];
    entry[..8].copy_from_slice(&last);
    entry[8..12].copy_from_slice(&pid.to_ne_bytes());
    entry[12..16].copy_from_slice(&77_u32.to_ne_bytes());
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    entry[16..24].copy_from_slice(&namespace.to_ne_bytes());
    change(&mut entry);
    file.write_all_at(&entry, ENTRIES + ENTRY_BYTES * place).unwrap();
}

#[test]
fn an_entry_that_names_another_process_does_it_no_harm() {
    let place = Place::new(FIVE);
    let agent = place.agent();
    // A SIGHUP would end it.
    let victim = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let mut victim = Sleeper(victim);
    let silent = format!(
        "agent {} has been silent for 5 s: it is dead, stopped, or gets no CPU time\n",
        victim.0.id()
    );
    // An entry holds for some seconds. A busy machine may ask later.
    let mut said = String::new();
    let is_named = (0..5).any(|_| {
        forge(&place.table(), 300, victim.0.id(), |_| {});
        let is_success;
        (is_success, said) = place.reload_once();
        assert_eq!(victim.0.try_wait().unwrap(), None, "it got a signal: {said}");
        !is_success && said == place.in_force(1, 2) + &silent
    });
    assert!(is_named, "{said}");
    wait_until("it is read again", || self::said(&agent.process, "was read again") > 0);

    // An answer that would change the terminal, and ids without a process.
    let is_named = (0..5).any(|_| {
        forge(&place.table(), 301, 0x7fff_ffff, |_| {});
        forge(&place.table(), 302, u32::MAX, |entry| {
            entry[24..32].copy_from_slice(&(u64::MAX / 2).to_ne_bytes());
            entry[32..36].copy_from_slice(&2_u32.to_ne_bytes());
            entry[36..40].copy_from_slice(&u32::MAX.to_ne_bytes());
            entry[40..].fill(b'\n');
            entry[40..61].copy_from_slice(b"\x1b[2J\x1b]0;title\x07 \xff \r\x08\xc2\x9b");
        });
        let is_success;
        (is_success, said) = place.reload_once();
        assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
        !is_success && said.contains("keeps the policies in force: ?[2J?]0;title?")
    });
    assert!(is_named, "{said}");
}

#[test]
fn an_agent_in_another_pid_namespace_answers() {
    let place = Place::new(FIVE);
    let mut unshare = Command::new("unshare");
    // A user other than root needs a user namespace for that.
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    let tried = Command::new("unshare").args(unshare.get_args()).arg("true").output();
    needs!(match tried {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("'unshare' cannot make a pid namespace".to_owned()),
    });
    unshare.arg(support::agent_binary());
    let inside = Agent::start_command(place.arguments(&mut unshare, &place.config()));
    let outside = place.agent();
    let info = Command::new(support::agent_binary())
        .args(["table", "info", "--table"])
        .arg(place.table())
        .output()
        .unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("1 in another pid namespace (alive "), "{info}");
    fs::write(place.config(), SEVEN).unwrap();
    let (is_success, said) = place.reload();
    assert!(is_success, "{said}");
    assert_eq!(said, place.in_force(2, 2));
    assert_eq!((limit(&inside, 1), limit(&outside, 2)), (7, 7));
}

/// This process fills the list by opening the table once for each entry.
#[test]
fn agents_for_which_the_list_has_no_room_are_told_too() {
    let place = Place::new(FIVE);
    let open =
        || Table::open_or_create(&place.table(), Some(Slots::new(1024).unwrap())).unwrap().0;
    let tables: Vec<_> = (0..Board::MOST_PROCESSES).map(|_| open()).collect();
    let is_over = AtomicBool::new(false);
    let answer = || {
        for table in &tables {
            table.beat();
            if let Some(asked) = table.board().reload_asked() {
                table.board().answer_reload(asked, &ReloadAnswer::InForce);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                answer();
                thread::sleep(Duration::from_millis(100));
            }
        });
        let outcome = std::panic::catch_unwind(|| {
            let agents = [place.agent(), place.agent()];
            fs::write(place.config(), SEVEN).unwrap();
            let more = " also asked, and cannot answer: the table's list has space for 512\n";
            // The table sees them by their beats of once a second, which may come too late here.
            wait_until("the others are seen, too", || {
                let (is_success, said) = place.reload();
                assert!(is_success && said.starts_with(&place.in_force(512, 512)), "{said}");
                said.ends_with(more) && said.contains("\nabout ")
            });
            for (agent, client) in agents.iter().zip(1..) {
                wait_until("it has read its file", || {
                    self::said(&agent.process, "was read again, and is in force") == 1
                });
                assert_eq!(limit(agent, client), 7);
            }
        });
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn what_is_no_regular_file_is_refused_and_nobody_waits_for_it() {
    let config = |list: &str| {
        format!("{FIVE}[[policy.check.lists]]\nfile = \"{list}\"\nlimits = \"unlimited\"\n")
    };
    let place = Place::new(&config("list"));
    let list = place.0.path().join("list");
    fs::write(&list, "192.0.2.77\n").unwrap();
    let mut agent = place.agent();
    let make_fifo = |path: &Path| {
        fs::remove_file(path).unwrap();
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };

    // First the list, then the file itself.
    make_fifo(&list);
    agent.process.signal(Signal::HUP);
    let sentence = "it is a FIFO; name a regular file";
    wait_until("the list is refused", || said(&agent.process, sentence) == 1);
    assert_eq!(
        said(&agent.process, &format!("cannot read the list {}: {sentence}", list.display())),
        1
    );
    for (target, what) in [
        ("list", "it is a FIFO"),
        ("/dev/zero", "it is a device"),
        ("/dev", "it is a directory"),
        ("socket", "it is a socket or a device"),
    ] {
        let _socket = (target == "socket")
            .then(|| UnixListener::bind(place.0.path().join("socket")).unwrap());
        fs::write(place.config(), config(target)).unwrap();
        let output = place.command("check", &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("{what}; name a regular file")), "{error}");
    }
    make_fifo(&place.config());
    for command in ["check", "reload"] {
        let output = place.command(command, &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().contains(sentence));
    }
    agent.process.signal(Signal::HUP);
    let of_config = format!("{}: {sentence}", place.config().display());
    wait_until("the file is refused", || said(&agent.process, &of_config) == 1);
    assert_eq!(limit(&agent, 1), 5, "the policies in force have not changed");
    assert!(agent.process.stop().success());
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let place = Place::new("");
    // Sparse: it takes no space.
    File::create(place.config()).unwrap().set_len((32 << 20) + 1).unwrap();
    let output = place.command("check", &[]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains(
            "it is too large: a configuration may have 32 MiB, and 256 MiB together with its lists"
        ),
        "{error}"
    );
}

/// Reading 40 million lines takes seconds. The agent must do everything else in the meantime.
#[test]
fn an_agent_ends_while_it_reads() {
    let place = Place::new(FIVE);
    fs::write(place.0.path().join("list"), vec![b'\n'; 40_000_000]).unwrap();
    let with_list =
        format!("{SEVEN}[[policy.check.lists]]\nfile = \"list\"\nlimits = \"unlimited\"\n");
    let ends_before = |client: u8| {
        fs::write(place.config(), FIVE).unwrap();
        let mut agent = place.agent();
        fs::write(place.config(), &with_list).unwrap();
        agent.process.signal(Signal::HUP);
        let threads = format!("/proc/{}/task", agent.process.id());
        wait_until("it reads", || {
            let names = fs::read_dir(&threads).unwrap().flatten();
            let mut names =
                names.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
            names.any(|name| name == "reader\n") || said(&agent.process, "was read again") > 0
        });
        let allowed = limit(&agent, client);
        assert!(agent.process.stop().success());
        let is_before = said(&agent.process, "was read again") == 0;
        assert!(allowed == 5 || !is_before, "it decides meanwhile: {allowed}");
        is_before
    };
    // On a busy machine the list may be read before the agent is told to end.
    assert!((1..=5).any(ends_before), "it waits until the list is read");
}

/// Whether a process has opened this file.
fn has_opened(pid: u32, path: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut paths = files.filter_map(|file| fs::read_link(file.path()).ok());
    paths.any(|opened| opened == path)
}

/// A script may send the signal as soon as it has started an agent.
#[test]
fn signals_to_an_agent_that_is_starting_are_obeyed_later() {
    let place = Place::new(FIVE);
    drop(Table::open_or_create(&place.table(), Some(Slots::new(1024).unwrap())).unwrap());
    for flags in [&["--rate", "5/h"][..], &["--config", place.config().to_str().unwrap()]] {
        // The agent cannot go on while another process has the lock.
        let table = File::open(place.table()).unwrap();
        flock(&table, FlockOperation::LockExclusive).unwrap();
        let mut command = Command::new(support::agent_binary());
        command.arg("--table").arg(place.table()).args(flags);
        command.args(["--drain", "0", "--listen", "127.0.0.1:0"]);
        let mut process = Process::start("gcra-spoa", &mut command);
        wait_until("the agent waits", || has_opened(process.id(), &place.table()));
        for _ in 0..10 {
            process.signal(Signal::HUP);
        }
        drop(table);
        wait_until("the agent listens", || {
            process.signal(Signal::HUP);
            said(&process, "listening on ") == 1
        });
        let obeyed = match flags[0] {
            "--config" => "was read again: nothing has changed",
            _ => "so there is no file to read",
        };
        wait_until("the signal is obeyed", || said(&process, obeyed) > 0);
        assert!(process.stop().success());
    }
    // While the kernel loads the program, only who starts it can see to that.
    let script = format!(
        "trap '' HUP; echo begins; exec {} --config {} --table {} --listen 127.0.0.1:0",
        support::agent_binary().display(),
        place.config().display(),
        place.table().display()
    );
    let process = Process::start("gcra-spoa", Command::new("sh").args(["-c", &script]));
    wait_until("it begins", || said(&process, "begins") == 1);
    wait_until("the agent listens", || {
        process.signal(Signal::HUP);
        said(&process, "listening on ") == 1
    });
    wait_until("the signal is obeyed", || {
        process.signal(Signal::HUP);
        said(&process, "was read again: nothing has changed") > 0
    });
}

#[test]
fn many_signals_make_few_readings_and_few_lines() {
    let place = Place::new(FIVE);
    let agent = place.agent();
    let begin = Instant::now();
    let is_enough = |lines: usize| {
        // At most one reading for each look, and there are four looks a second.
        let most = 2 + usize::try_from(begin.elapsed().as_millis()).unwrap() / 250;
        assert!(lines <= most, "{lines} lines, and at most {most} readings");
    };
    for round in 0..20_000 {
        agent.process.signal(Signal::HUP);
        if round % 1000 == 0 {
            is_enough(said(&agent.process, "was read again: nothing has changed"));
        }
    }
    wait_until("it is read again", || said(&agent.process, "nothing has changed") > 0);
    // Looked at once: the last signal may lead to another reading.
    let lines = agent.process.lines();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    is_enough(count("was read again"));
    assert_eq!(count("was read again"), count("nothing has changed"));
    assert_eq!(
        said(&agent.process, "5 per hour"),
        1,
        "unchanged policies are logged only at the start"
    );

    // The same mistakes again.
    fs::write(place.config(), "[policy.check]\nlimits = \"7/fortnight\"\n").unwrap();
    for text in ["was refused; the policies in force", "still has the same mistakes"] {
        wait_until(text, || {
            agent.process.signal(Signal::HUP);
            said(&agent.process, text) > 0
        });
    }
    assert_eq!(said(&agent.process, "7/fortnight"), 1);
}

/// A file of the database of time zones: so many hours before UTC, always.
fn zone_of(hours: u8) -> Vec<u8> {
    let block = |version: &[u8]| {
        let counts = [0_u32, 0, 0, 0, 1, 4].map(u32::to_be_bytes).concat();
        let zone = [&i32::from(hours).wrapping_mul(3600).to_be_bytes()[..], &[0, 0], b"ABC\0"];
        [b"TZif", version, &[0; 15], &counts[..], &zone.concat()].concat()
    };
    [block(b"2"), block(b"2"), format!("\n<+{hours:02}>-{hours}\n").into_bytes()].concat()
}

/// An update of the system's rules changes no byte of the configuration.
#[test]
fn other_rules_of_a_time_zone_come_into_force_by_a_reload() {
    let config = "answer = [\"reset\"]\n[policy.check]\nlimits = { count = 9, window = \
                  \"day Europe/Berlin\" }\n";
    let place = Place::new(config);
    let zones = place.0.path().join("zones");
    fs::create_dir_all(zones.join("Europe")).unwrap();
    let set = |hours| fs::write(zones.join("Europe/Berlin"), zone_of(hours)).unwrap();
    let start = || {
        let mut command = Command::new(support::agent_binary());
        let command = place.arguments(&mut command, &place.config()).env("TZDIR", &zones);
        Agent::start_command(command)
    };
    set(1);
    let agent = start();
    let mut spop = Spop::connect(&agent.address);
    let mut ends_in = |client: &str| {
        let seconds = spop.ask_by(&[("check", &[("ip", client.into())])], |_, name, value| {
            let Value::Uint64(seconds) = value else { return None };
            (name == "reset").then_some(seconds)
        });
        seconds.into_iter().flatten().next().expect("the end of the window")
    };
    let before = ends_in("one");
    set(7);
    let other = start();
    let is_told = || {
        [&agent, &other].iter().any(|it| said(&it.process, "has other limits than this agent") > 0)
    };
    wait_until("the agents have other limits", is_told);
    agent.process.signal(Signal::HUP);
    wait_until("the rules are in force", || {
        said(&agent.process, "was read again, and is in") == 1
    });
    let hours = before.abs_diff(ends_in("another")).div_ceil(3600);
    assert!((5..=19).contains(&hours), "6 hours earlier, or 18 later: {hours}");
}
