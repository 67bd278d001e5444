//! The agent under systemd: what it notifies, and the units in `deploy/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::cell::RefCell;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;
use support::spop::Spop;
use support::{
    Agent, CopiedAgent, NOBODY, PATIENCE, Process, directory, needs, uninterrupted, wait_until,
};
use tempfile::TempDir;

/// The highest exposure that `systemd-analyze security` may find for the units, times 10. It says
/// 0.9.
const EXPOSURE: &str = "10";

/// A group that stands for HAProxy's.
const HAPROXY: u32 = 4242;

/// The service manager's end of the notifications.
struct Systemd {
    socket: UnixDatagram,
    /// The value of `NOTIFY_SOCKET`.
    name: String,
    last: RefCell<String>,
}

impl Systemd {
    fn at(path: &Path) -> Self {
        Self::on(UnixDatagram::bind(path).unwrap(), path.to_str().unwrap().to_owned())
    }

    fn abstract_socket(test: &str) -> Self {
        // A process that another test is just starting may still hold the last one's socket.
        static SOCKETS: AtomicU32 = AtomicU32::new(0);
        let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
        let name = format!("gcra-spoa-{test}-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self::on(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
    }

    fn on(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, name, last: RefCell::default() }
    }

    /// The next notification of the watchdog, or the next other one. The status is renewed from
    /// time to time, and a notification that says the same as the last one is no news.
    fn next(&self, watchdog: bool) -> String {
        loop {
            let mut message = [0; 4096];
            let length = uninterrupted(|| self.socket.recv(&mut message));
            let length = length.expect("the agent notifies");
            let message = String::from_utf8(message[..length].to_vec()).unwrap();
            let is_watchdog = message == "WATCHDOG=1\n";
            if watchdog && is_watchdog {
                return message;
            }
            if !watchdog && !is_watchdog && *self.last.borrow() != message {
                self.last.replace(message.clone());
                return message;
            }
        }
    }

    fn nothing_more(&self) {
        self.socket.set_nonblocking(true).unwrap();
        let mut message = [0; 4096];
        if let Ok(length) = self.socket.recv(&mut message) {
            panic!("{}", String::from_utf8_lossy(&message[..length]));
        }
    }
}

fn agent(table: &Path, systemd: &Systemd, args: &[&str]) -> Command {
    let mut command = Command::new(support::agent_binary());
    command.args(["--slots", "4096", "--listen", "127.0.0.1:0", "--table"]).arg(table);
    command.args(args).env("NOTIFY_SOCKET", &systemd.name);
    command.env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
    command
}

#[test]
fn systemd_learns_of_the_start_each_reload_and_the_stop() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let write = |limits: &str| {
        // In one step, so that the agent does not see an empty file, and refuses it.
        let new = directory.path().join("new");
        fs::write(&new, format!("[policy.a]\nkey = [\"ip\"]\nlimits = {limits}\n")).unwrap();
        fs::rename(new, &file).unwrap();
    };
    write("[\"10/h\"]");
    let table = directory.path().join("table");
    // Once by signals, and once because the agent notices the change.
    for (systemd, watch) in [
        (Systemd::at(&directory.path().join("notify")), None),
        (Systemd::abstract_socket("learns"), Some("--watch")),
    ] {
        write("[\"10/h\"]");
        let config = ["--config", file.to_str().unwrap()];
        let config: Vec<_> = config.into_iter().chain(watch).collect();
        let mut agent = Agent::start_command(&mut agent(&table, &systemd, &config));
        let serving = "READY=1\nSTATUS=serving 1 policy to 0 connections, 0 NOTIFYs answered\n";
        assert_eq!(systemd.next(false), serving);
        for (limits, ready) in [
            ("[\"20/h\"]", serving.to_owned()),
            (
                "nonsense",
                serving.replace(
                    "answered\n",
                    "answered; the file was REFUSED when it was last read, see the log\n",
                ),
            ),
            ("[\"30/h\"]", serving.to_owned()),
        ]
        .into_iter()
        .take(if watch.is_some() { 1 } else { 3 })
        {
            write(limits);
            if watch.is_none() {
                agent.process.signal(Signal::HUP);
            }
            let reloading = systemd.next(false);
            let lines: Vec<_> = reloading.lines().collect();
            assert_eq!(lines[0], "RELOADING=1");
            let micros = lines[1].strip_prefix("MONOTONIC_USEC=").unwrap();
            assert!(micros.parse::<u64>().unwrap() > 0, "{reloading}");
            assert_eq!(lines[2..], [&*format!("STATUS=reading {}", file.display())]);
            assert_eq!(systemd.next(false), ready);
        }
        assert!(agent.process.stop().success());
        assert_eq!(systemd.next(false), "STOPPING=1\nSTATUS=stopping\n");
        systemd.nothing_more();
    }
}

#[test]
fn ready_means_that_it_answers_and_that_no_signal_kills_it() {
    let directory = directory();
    let systemd = Systemd::at(&directory.path().join("notify"));
    let socket = directory.path().join("agent.sock");
    for _ in 0..5 {
        systemd.last.take();
        let mut command = agent(&directory.path().join("table"), &systemd, &["--rate", "10/h"]);
        command.arg("--listen").arg(format!("unix:{}", socket.display()));
        let mut process = Process::start("gcra-spoa", &mut command);
        assert!(systemd.next(false).starts_with("READY=1\n"));
        UnixStream::connect(&socket).expect("it listens");
        process.signal(Signal::HUP);
        assert!(process.stop().success());
        // The reload may come first. It ends even if there is no file to read.
        let mut said = vec![systemd.next(false)];
        while !said.last().unwrap().starts_with("STOPPING=1\n") {
            said.push(systemd.next(false));
        }
        assert!(said.len() == 1 || said[0].starts_with("RELOADING=1\n"), "{said:?}");
    }
}

#[test]
fn the_watchdog_gets_its_beats_even_while_the_agent_leaves() {
    let directory = directory();
    let systemd = Systemd::at(&directory.path().join("notify"));
    // The process is the one that systemd means, because the shell becomes the agent.
    let mut script = Command::new("sh");
    script.args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh"]);
    let agent =
        agent(&directory.path().join("table"), &systemd, &["--rate", "10/h", "--drain", "5m"]);
    script.arg(agent.get_program()).args(agent.get_args());
    script.env("NOTIFY_SOCKET", &systemd.name).env("WATCHDOG_USEC", "600000");
    let agent = Agent::start_command(&mut script);
    assert!(systemd.next(false).starts_with("READY=1\n"));
    for _ in 0..3 {
        systemd.next(true);
    }
    let spop = Spop::connect(&agent.address);
    agent.process.signal(Signal::TERM);
    assert_eq!(systemd.next(false), "STOPPING=1\nSTATUS=stopping\n");
    for _ in 0..2 {
        systemd.next(true);
    }
    drop(spop);
}

#[test]
fn an_agent_that_does_not_start_is_not_ready() {
    let directory = directory();
    let systemd = Systemd::at(&directory.path().join("notify"));
    let table = directory.path().join("table");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mistake = directory.path().join("mistake.toml");
    fs::write(&mistake, "nonsense").unwrap();
    for args in [
        &["--rate", "10/h", "--listen", &address][..],
        &["--rate", "10/h", "--admin", &address],
        &["--config", mistake.to_str().unwrap()],
    ] {
        let mut process = Process::start("gcra-spoa", &mut agent(&table, &systemd, args));
        assert!(!process.wait().success(), "{args:?}");
    }
    systemd.nothing_more();
}

/// The journal notes the time itself, and `journalctl -p warning` finds warnings.
#[test]
fn the_journal_gets_lines_with_a_priority_and_without_a_time() {
    let directory = directory();
    let systemd = Systemd::at(&directory.path().join("notify"));
    let journal = fs::File::create(directory.path().join("journal")).unwrap();
    let stream = journal.metadata().unwrap();
    let mut command = agent(&directory.path().join("table"), &systemd, &["--rate", "10/h"]);
    command.env_remove("RUST_LOG");
    command.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
    let mut agent = command.stderr(journal).spawn().unwrap();
    assert!(systemd.next(false).starts_with("READY=1\n"));
    let pid = rustix::process::Pid::from_child(&agent);
    rustix::process::kill_process(pid, Signal::USR2).unwrap();
    let text = || fs::read_to_string(directory.path().join("journal")).unwrap();
    wait_until("it warns", || text().contains("\n<4>SIGUSR2 is ignored"));
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
    assert!(text().starts_with("<6>gcra-spoa "), "{}", text());
    assert!(text().lines().all(|line| line.starts_with('<')), "{}", text());
}

/// A service manager that is not there does not keep the agent from its work.
#[test]
fn a_notify_socket_that_leads_nowhere_is_a_warning() {
    let directory = directory();
    let table = directory.path().join("table");
    for (name, said) in [
        (directory.path().join("nothing").display().to_string(), "could not notify"),
        ("vsock:2:1234".to_owned(), "it begins with neither / nor @"),
    ] {
        let mut systemd = Systemd::abstract_socket("nowhere");
        systemd.name = name;
        let agent = Agent::start_command(&mut agent(&table, &systemd, &["--rate", "10/h"]));
        wait_until("it warns", || agent.process.lines().iter().any(|line| line.contains(said)));
        Spop::connect(&agent.address).ask(&[]);
        agent.stop();
    }
}

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)
}

/// The units as they are installed, with these drop-ins, and with the program of the tests.
fn installed(drop_ins: &[(&str, &str)]) -> TempDir {
    let directory = directory();
    let install = |file: &str, to: PathBuf| {
        let text = fs::read_to_string(deploy(file)).unwrap();
        let binary = support::agent_binary();
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, text.replace("/usr/local/bin/gcra-spoa", binary.to_str().unwrap())).unwrap();
    };
    for unit in ["gcra-spoa@.service", "gcra-spoa@.socket"] {
        install(unit, directory.path().join(unit));
    }
    for (unit, drop_in) in drop_ins {
        install(drop_in, directory.path().join(format!("{unit}.d")).join(drop_in));
    }
    directory
}

/// Each way to install the units.
const INSTALLATIONS: [&[(&str, &str)]; 5] = [
    &[],
    &[("gcra-spoa@.service", "store-network.conf")],
    &[("gcra-spoa@.service", "unix-socket.conf")],
    &[("gcra-spoa@.service", "held-socket.conf")],
    &[("gcra-spoa@.service", "held-socket.conf"), ("gcra-spoa@.socket", "held-unix-socket.conf")],
];

fn systemd_analyze(units: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("systemd-analyze");
    // A colon at the end stands for systemd's own units.
    command.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display())).args(args);
    command.output().unwrap()
}

fn is_systemd_here() -> Result<(), String> {
    match Command::new("systemd-analyze").arg("--help").output() {
        Err(_) => Err("systemd-analyze is not installed".to_owned()),
        // Since systemd 250.
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("--offline") => Ok(()),
        Ok(_) => Err("systemd-analyze is older than 250".to_owned()),
    }
}

#[test]
fn systemd_finds_no_mistake_in_the_units() {
    needs!(is_systemd_here());
    for drop_ins in INSTALLATIONS {
        let units = installed(drop_ins);
        for unit in ["gcra-spoa@9000.service", "gcra-spoa@9000.socket"] {
            let path = units.path().join(unit);
            let path = path.to_str().unwrap();
            let output = systemd_analyze(units.path(), &["verify", "--man=no", path]);
            let said = String::from_utf8_lossy(&output.stderr);
            // It may complain about other units of this machine.
            let about_ours = said.lines().filter(|line| line.contains("gcra")).count();
            assert!(about_ours == 0, "{unit} with {drop_ins:?}: {said}");
        }
    }
}

#[test]
fn the_units_expose_little() {
    needs!(is_systemd_here());
    for drop_ins in INSTALLATIONS {
        let units = installed(drop_ins);
        let path = units.path().join("gcra-spoa@9000.service");
        let threshold = format!("--threshold={EXPOSURE}");
        let args =
            ["security", "--offline=true", "--no-pager", &threshold, path.to_str().unwrap()];
        let output = systemd_analyze(units.path(), &args);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("Overall exposure level"),
            "{drop_ins:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The last value of a setting in the units' section `[Service]`, as systemd reads it.
fn setting(name: &str, files: &[&str]) -> Option<String> {
    let mut value = None;
    for file in files {
        let text = fs::read_to_string(deploy(file)).unwrap().replace("\\\n", " ");
        for line in text.lines() {
            if let Some(text) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                value = Some(text.to_owned()).filter(|text| !text.is_empty());
            }
        }
    }
    value
}

/// The parts that systemd would find and provide for an agent: program, directories and
/// configuration.
struct Machine {
    directory: TempDir,
    program: CopiedAgent,
    port: u16,
}

impl Machine {
    fn new() -> Self {
        let directory = directory();
        let run = directory.path().join("gcra-spoa");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // As a package installs it, whatever the umask was when the sources were written.
        let config = directory.path().join("gcra-spoa.toml");
        fs::copy(deploy("gcra-spoa.toml"), &config).unwrap();
        fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).unwrap();
        // This takes a while, in which a port may be taken.
        let program = CopiedAgent::new();
        // With four digits, so that there is a port with a 1 in front of it.
        let both = |port: &u16| {
            let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port));
            bind(*port).is_ok() && bind(10_000 + *port).is_ok()
        };
        // `free_port` returns none twice, and ports from 10 000 on.
        let ports =
            std::iter::repeat_with(|| support::free_port(Ipv4Addr::LOCALHOST.into()).port());
        let port = ports.take(20_000).map(|port| 1024 + port % 8976).find(both);
        let port = port.expect("two free ports");
        Self { directory, program, port }
    }

    fn run(&self) -> PathBuf {
        self.directory.path().join("gcra-spoa")
    }

    /// A command line of the units, as the user of the agents if that is possible.
    fn command(&self, name: &str, files: &[&str]) -> Command {
        let line = setting(name, files).unwrap();
        let config = self.directory.path().join("gcra-spoa.toml");
        let line = line
            .replace("/usr/local/bin/gcra-spoa", self.program.path().to_str().unwrap())
            .replace("/etc/gcra-spoa/gcra-spoa.toml", config.to_str().unwrap())
            .replace("/run/gcra-spoa", self.run().to_str().unwrap())
            .replace("%i", &self.port.to_string());
        // A + means that systemd starts it as root.
        let mut words = line.trim_start_matches('+').split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("RUNTIME_DIRECTORY", self.run()).env_remove("RUST_LOG");
        if rustix::process::geteuid().is_root() {
            let group = setting("Group", files).map_or(NOBODY, |_| HAPROXY);
            chown(self.run(), Some(NOBODY), Some(group)).unwrap();
            command.uid(NOBODY).gid(group);
        }
        let mode = setting("RuntimeDirectoryMode", files).unwrap();
        let mode = u32::from_str_radix(&mode, 8).unwrap();
        fs::set_permissions(self.run(), PermissionsExt::from_mode(mode)).unwrap();
        command
    }
}

/// Whether the agents run as another user here, as they do under systemd.
fn unprivileged(machine: &Machine) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can start processes of other users".to_owned());
    }
    machine.program.as_nobody()
}

#[test]
fn the_units_start_and_reload_agents_with_the_shipped_file() {
    let machine = Machine::new();
    let unit = ["gcra-spoa@.service"];
    let agent = Agent::start_command(machine.command("ExecStart", &unit).args(["--drain", "0"]));
    assert_eq!(agent.address, format!("127.0.0.1:{}", machine.port));
    let answer = Spop::connect(&agent.address)
        .ask(&[("check", &[("ip", "192.0.2.1".parse::<std::net::IpAddr>().unwrap().into())])]);
    assert_eq!(answer.len(), 1, "the file's policy is for the message of spoe-gcra.conf");

    let reload = || machine.command("ExecReload", &unit).output().unwrap();
    // An agent that stood still for a while is not taken for alive, and not asked.
    wait_until("the agent has reloaded", || {
        let output = reload();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        output.status.success() && said.contains("in force in 1 agent")
    });
    // A file with mistakes is refused, and no agent is asked.
    fs::write(machine.directory.path().join("gcra-spoa.toml"), "nonsense").unwrap();
    let output = reload();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no agent was asked to reload"), "{said}");
    agent.stop();
}

/// HAProxy's group, and no others, may connect to the socket.
#[test]
fn haproxys_group_may_connect_to_the_units_unix_socket() {
    let machine = Machine::new();
    needs!(unprivileged(&machine));
    let files = ["gcra-spoa@.service", "unix-socket.conf"];
    let agent = Agent::start_command(machine.command("ExecStart", &files).args(["--drain", "0"]));
    let socket = machine.run().join(format!("agent-{}.sock", machine.port));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let table = machine.run().join("gcra-spoa.table");
    assert_eq!(fs::metadata(&table).unwrap().permissions().mode() & 0o777, 0o600);

    let as_user = |group: u32, test: &str, path: &Path| {
        let mut command = Command::new("test");
        command.arg(test).arg(path).uid(NOBODY - 1).gid(group);
        command.status().unwrap().success()
    };
    // To connect, a process must be able to write to the socket.
    assert!(as_user(HAPROXY, "-w", &socket), "HAProxy's group can connect");
    assert!(!as_user(HAPROXY, "-r", &table), "and cannot read the table");
    assert!(!as_user(NOBODY, "-w", &socket), "another group cannot connect");
    agent.stop();
}

#[test]
fn the_agent_serves_a_socket_that_systemd_holds() {
    let machine = Machine::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let files = ["gcra-spoa@.service", "held-socket.conf"];
    let unit = machine.command("ExecStart", &files);
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 </dev/null";
    command.args(["-c", script, "sh"]).arg(unit.get_program()).args(unit.get_args());
    command.stdin(OwnedFd::from(listener)).env("RUNTIME_DIRECTORY", machine.run());
    let agent = Agent::start_command(&mut command);
    assert_eq!(agent.address, address.to_string());
    Spop::connect(&agent.address).ask(&[]);
    agent.stop();
}

/// Every file in the folder is explained by its README.
#[test]
fn the_readme_names_every_file() {
    let readme = fs::read_to_string(deploy("README.md")).unwrap();
    let names = fs::read_dir(deploy("")).unwrap().map(|entry| entry.unwrap().file_name());
    let missing: Vec<_> = names
        .filter(|name| name != "README.md" && !readme.contains(name.to_str().unwrap()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
