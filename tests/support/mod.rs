//! The programs that the tests and the demo start and talk to: agents, HAProxy, and HTTP clients.
//! Each of them ends when its value is dropped, even if a test fails.
#![allow(dead_code, reason = "every user of this module uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "tests"
)]

pub mod admin;
pub mod documents;
pub mod host;
pub mod log_sentences;
pub mod proxy;
pub mod recorded;
pub mod server_groups;
mod skip;
pub mod spop;
pub mod valkey;

pub(crate) use skip::needs;
pub use skip::skip;

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use valkey::{PATIENCE, uninterrupted, wait_until};

/// Whether there is an HAProxy to test with. If `$HAPROXY` names one, it must run.
pub fn haproxy() -> Result<(), String> {
    match find_haproxy() {
        Some(_) => Ok(()),
        None => Err("HAProxy is not installed".into()),
    }
}

/// Whether the HAProxy to test with has this version, such as (3, 2), or a later one.
pub fn haproxy_since(version: (u32, u32)) -> Result<(), String> {
    haproxy()?;
    let (major, minor) = haproxy_version();
    if (major, minor) >= version {
        return Ok(());
    }
    Err(format!("it needs HAProxy {}.{}, not {major}.{minor}", version.0, version.1))
}

/// Whether this machine has the address `::1`.
pub fn ipv6() -> Result<(), String> {
    match TcpListener::bind("[::1]:0") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("there is no IPv6 ({error})")),
    }
}

/// The promtool that `PROMTOOL` names, the system's, or the one that `make promtool` fetched.
pub fn find_promtool() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let target = option_env!("CARGO_TARGET_TMPDIR").map(Path::new);
    let fetched = target.map(|path| path.with_file_name("promtool/promtool"));
    env::var_os("PROMTOOL")
        .map(PathBuf::from)
        .into_iter()
        .chain(env::split_paths(&path).map(|directory| directory.join("promtool")))
        .chain(fetched)
        .find(|path| path.is_file())
}

/// Whether there is a promtool, which reads metrics, rules and their tests as Prometheus does.
pub fn promtool() -> Result<(), String> {
    find_promtool().map(drop).ok_or_else(|| "there is no promtool".into())
}

/// Whether certificates can be made.
pub fn openssl() -> Result<(), String> {
    let run = Command::new("openssl").arg("version").output();
    run.map(drop).map_err(|_| "openssl is not installed".into())
}

/// A file with a certificate and its key.
pub fn certificate(directory: &Path) -> PathBuf {
    let [pem, key] = ["certificate.pem", "certificate.key"].map(|name| directory.join(name));
    let make = "req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost";
    let mut openssl = Command::new("openssl");
    openssl.args(make.split(' ')).arg("-keyout").arg(&key).arg("-out").arg(&pem);
    let run = openssl.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let both = fs::read_to_string(&pem).unwrap() + &fs::read_to_string(&key).unwrap();
    fs::write(&pem, both).unwrap();
    pem
}

/// A directory of its own for a table, sockets and lists: in memory, if there is enough of it. A
/// container often has a /dev/shm of 64 MiB.
pub fn directory() -> TempDir {
    let is_enough = rustix::fs::statvfs("/dev/shm")
        .is_ok_and(|shm| shm.f_bavail.saturating_mul(shm.f_frsize) >= 256 << 20);
    let in_memory = is_enough.then(|| tempfile::tempdir_in("/dev/shm")).and_then(Result::ok);
    in_memory.unwrap_or_else(|| tempfile::tempdir().expect("$TMPDIR can be written to"))
}

/// A port on which no process listens now. It is below the ports that the kernel gives to clients
/// (32768 and above), so that no client gets it in the meantime. No port is returned twice,
/// because tests run at the same time.
pub fn free_port(ip: IpAddr) -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let free = (0..20_000).find_map(|_| {
        let next =
            std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(10_000 + next % 20_000).ok()?;
        TcpListener::bind((ip, port)).ok()?.local_addr().ok()
    });
    free.expect("a free port")
}

/// Runs a command to agents, and again while it ends because one was late: it does not answer
/// within 15 s, or has given no sign of life for 5 s. A busy machine may be that slow.
pub fn in_time(run: impl FnMut() -> Output) -> Output {
    let in_words = [" within 15 s", " silent for 5 s", "no agent uses the table "];
    let in_json = [r#""outcome":"waiting""#, r#""outcome":"silent""#];
    again_while(&[&in_words[..], &in_json].concat(), run)
}

/// Runs a command, and up to four times again while it fails and says one of these words.
pub fn again_while(words: &[&str], mut run: impl FnMut() -> Output) -> Output {
    let mut output = run();
    for _ in 0..4 {
        if output.status.success() || !says_any(&output, words) {
            break;
        }
        output = run();
    }
    output
}

fn says_any(output: &Output, words: &[&str]) -> bool {
    let said = [&*output.stdout, &output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    words.iter().any(|words| said.contains(words))
}

/// The output of a command about agents that run. On a busy machine it may take one for dead, and
/// is repeated then, unless it ends something, which it would not find again.
pub fn output_beside_agents(command: &mut Command) -> Output {
    let words = ["no agent uses the table", " silent for 5 s", " within 15 s"];
    let ends_something = command.get_args().any(|arg| arg == "reset" || arg == "--end");
    let mut output = command.output().unwrap();
    let start = Instant::now();
    let is_early = || start.elapsed() < Duration::from_secs(10);
    while !ends_something && is_early() && says_any(&output, &words) {
        thread::sleep(Duration::from_millis(100));
        output = command.output().unwrap();
    }
    output
}

/// A child process whose output is kept. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// A file and not a pipe, so that a test finds each line as soon as it is written.
    output: File,
}

impl Process {
    pub fn start(name: &str, command: &mut Command) -> Self {
        let output = tempfile::tempfile().expect("$TMPDIR can be written to");
        let [stdout, stderr] = [(); 2].map(|()| output.try_clone().unwrap());
        let child = command.stdout(stdout).stderr(stderr).spawn();
        let child = child.unwrap_or_else(|error| panic!("could not start {name}: {error}"));
        Self { name: name.to_owned(), child, output }
    }

    /// The lines that it has written so far.
    pub fn lines(&self) -> Vec<String> {
        let mut bytes = vec![0; usize::try_from(self.output.metadata().unwrap().len()).unwrap()];
        self.output.read_exact_at(&mut bytes, 0).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let (lines, _) = text.rsplit_once('\n').unwrap_or_default();
        lines.lines().map(ToOwned::to_owned).collect()
    }

    /// Waits until an HAProxy that decides itself has its table.
    pub fn wait_for_table(&self) {
        let is_open = |line: &String| line.contains("gcra: table ") && line.contains(" slots, ");
        let start = Instant::now();
        while !self.lines().iter().any(is_open) {
            assert!(start.elapsed() < PATIENCE, "no table is open: {:#?}", self.lines());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is ours");
    }

    /// Sends SIGTERM, and returns how the process ended.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{} does not end: {:#?}", self.name, self.lines());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGKILL: the process cannot do anything more.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("---- {} ----\n{}", self.name, self.lines().join("\n"));
        }
    }
}

/// A running `gcra-spoa`.
#[derive(Debug)]
pub struct Agent {
    pub process: Process,
    /// The address where it listens, as HAProxy would write it.
    pub address: String,
}

/// Two agents with the policies of a file: on one table, or, with a store, as on two machines that
/// share all of them.
pub fn two_agents(
    directory: &Path,
    policies: &Path,
    store: Option<&valkey::Server>,
) -> [Agent; 2] {
    let Some(store) = store else {
        let args = ["--config", policies.to_str().unwrap()];
        return [(); 2].map(|()| Agent::start(&directory.join("table"), &args));
    };
    let (mut text, mut has_policy) = (String::new(), false);
    for line in std::fs::read_to_string(policies).unwrap().lines() {
        text.push_str(line);
        text.push('\n');
        if line.starts_with("[policy.") {
            text.push_str("shared = true\nwithout_store = \"closed\"\n");
            has_policy = true;
        }
    }
    assert!(has_policy, "{text}");
    // A machine for tests may stand still for longer than a request should wait.
    text.push_str(&format!("[store]\nurl = \"{}\"\nwait = \"10s\"\n", store.url()));
    let file = directory.join("shared.toml");
    std::fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let agents = ["one", "other"].map(|table| Agent::start(&directory.join(table), &args));
    for agent in &agents {
        let is_used = |line: &String| line.contains("is used");
        wait_until("the store is used", || agent.process.lines().iter().any(is_used));
    }
    agents
}

impl Agent {
    /// Starts one on a free port.
    pub fn start(table: &Path, args: &[&str]) -> Self {
        Self::start_at(table, "127.0.0.1:0", args)
    }

    pub fn start_at(table: &Path, listen: &str, args: &[&str]) -> Self {
        Self::start_with(
            table,
            &[&["--slots", "4096", "--drain", "0", "--listen", listen], args].concat(),
        )
    }

    /// Starts one with these arguments and no others but the table.
    pub fn start_with(table: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(agent_binary());
        Self::start_command(command.arg("--table").arg(table).args(args))
    }

    /// Starts one by another command.
    pub fn start_command(command: &mut Command) -> Self {
        let process = Process::start("gcra-spoa", command.env_remove("RUST_LOG"));
        let mut address = None;
        wait_until("the agent listens", || {
            let lines = process.lines();
            address = lines
                .iter()
                .find_map(|line| line.split_once("listening on "))
                .map(|(_, address)| address.to_owned());
            address.is_some()
        });
        Self { process, address: address.unwrap() }
    }

    /// Stops it in order. Returns how many NOTIFYs it has answered.
    pub fn stop(self) -> u64 {
        self.stop_and_count().0
    }

    /// The same, and on how many connections.
    pub fn stop_and_count(mut self) -> (u64, u64) {
        let status = self.process.stop();
        assert!(status.success(), "{status}");
        let mut counted = None;
        // Another thread collects the lines.
        wait_until("the agent says what it did", || {
            let lines = self.process.lines();
            let line = lines.iter().find_map(|line| line.split_once("stopped after "));
            counted = line.map(|(_, rest)| {
                let mut numbers = rest.split([' ', ',']).filter_map(|word| word.parse().ok());
                (numbers.next().unwrap(), numbers.next().unwrap())
            });
            counted.is_some()
        });
        counted.unwrap()
    }
}

/// The agent's program: the one that was built for the tests, or the one beside the demo.
pub fn agent_binary() -> PathBuf {
    match option_env!("CARGO_BIN_EXE_gcra-spoa") {
        Some(path) => path.into(),
        None => env::current_exe().expect("this program").with_file_name("../gcra-spoa"),
    }
}

/// The folder of the workspace: benches are in packages of their own.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").is_file()).expect("the workspace")
}

/// Cargo, as it is started outside of a test.
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    // Cargo's variables about a test's package would be a reason to build some dependencies again.
    for (name, _) in env::vars_os() {
        let about_it = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if about_it.iter().any(|it| name.to_string_lossy().starts_with(it)) {
            command.env_remove(name);
        }
    }
    command
}

/// The user and group without rights.
pub const NOBODY: u32 = 65534;

/// A copy of the agent's program that every user can start. The target directory may be in a
/// folder that only its owner may enter.
#[derive(Debug)]
pub struct CopiedAgent {
    directory: TempDir,
}

impl CopiedAgent {
    pub fn new() -> Self {
        // Not in /dev/shm, where containers often allow no programs.
        let directory = tempfile::tempdir().expect("$TMPDIR can be written to");
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // By a process of its own: a program that is open for writing cannot be started, and a
        // child of another test may have what this process has open.
        let mut copy = Command::new("cp");
        assert!(copy.arg(agent_binary()).arg(directory.path()).status().unwrap().success());
        let copied = Self { directory };
        // It was built by a user whose umask may be 077.
        fs::set_permissions(copied.path(), PermissionsExt::from_mode(0o755)).unwrap();
        copied
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("gcra-spoa")
    }

    /// Whether it can be started as the user [`NOBODY`], which only root can try.
    pub fn as_nobody(&self) -> Result<(), String> {
        let mut command = Command::new(self.path());
        match command.arg("--version").uid(NOBODY).gid(NOBODY).output() {
            Ok(output) if output.status.success() => Ok(()),
            _ => Err("the user nobody cannot start a program in the directory for temporary \
                      files"
                .to_owned()),
        }
    }
}

/// The HAProxy to test with: `$HAPROXY`, or the one that is installed.
pub fn haproxy_binary() -> PathBuf {
    find_haproxy().expect(
        "HAProxy is not installed; install the package 'haproxy', or name its program with \
         HAPROXY=/path",
    )
}

/// The version of HAProxy that is tested: (3, 2).
pub fn haproxy_version() -> (u32, u32) {
    version_of(&haproxy_binary())
}

fn version_of(program: &Path) -> (u32, u32) {
    let output = Command::new(program).arg("-v").output().expect("HAProxy");
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split(' ').nth(2).and_then(parse_version);
    version.unwrap_or_else(|| panic!("what version is '{text}'?"))
}

/// A HAProxy to test with, and its version.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub version: (u32, u32),
}

/// The HAProxy of `$HAPROXY`; without that the installed one and 3.4, if `tests/get-haproxy.sh`
/// has fetched it.
pub fn programs() -> Vec<Program> {
    let mut paths = vec![haproxy_binary()];
    let target = option_env!("CARGO_TARGET_TMPDIR").map(Path::new);
    let fetched = target.map(|path| path.with_file_name("haproxy/3.4/haproxy"));
    if env::var_os("HAPROXY").is_none() {
        paths.extend(fetched.filter(|path| path.is_file()));
    }
    let mut programs = Vec::<Program>::new();
    for path in paths {
        let version = version_of(&path);
        if programs.iter().all(|program| program.version != version) {
            programs.push(Program { path, version });
        }
    }
    programs
}

/// The first two numbers of a version, whatever follows them.
pub fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn find_haproxy() -> Option<PathBuf> {
    if let Some(path) = env::var_os("HAPROXY") {
        return Some(path.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    env::split_paths(&path)
        .chain(sbin)
        .map(|directory| directory.join("haproxy"))
        .find(|path| path.is_file())
}

/// The folder of configurations that users copy.
pub fn haproxy_folder() -> PathBuf {
    root().join("haproxy")
}

/// A folder with the module for HAProxy's Lua under its name, `gcra_lua.so`.
pub fn lua_module() -> PathBuf {
    // It was built with this program, and lies beside it.
    let built = env::current_exe().unwrap().with_file_name("libgcra_lua.so");
    let folder = Path::new(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("target/tmp")).join("lua");
    fs::create_dir_all(&folder).unwrap();
    let (link, new) =
        (folder.join("gcra_lua.so"), folder.join(format!("{}.new", std::process::id())));
    if fs::read_link(&link).ok().as_deref() != Some(&*built) {
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(&built, &new).unwrap();
        fs::rename(&new, &link).unwrap();
    }
    folder
}

/// A running HAProxy with one of the project's configurations.
#[derive(Debug)]
pub struct Haproxy {
    pub process: Process,
    /// Where clients connect to.
    pub frontend: SocketAddr,
    directory: TempDir,
    /// The command that it was started with, to start it again.
    command: Command,
    /// Something that must live as long as this HAProxy.
    pub configuration: Option<TempDir>,
}

/// The times in the shipped files and in those of the examples, and the times for tests: a busy
/// machine may stand still for longer than an operator wants a request to wait.
const PATIENT_TIMES: [(&str, &str); 10] = [
    ("timeout processing 100ms", "timeout processing 20s"),
    ("timeout processing 500ms", "timeout processing 20s"),
    ("timeout hello 100ms", "timeout hello 20s"),
    ("timeout idle 150ms", "timeout idle 30s"),
    ("timeout server 300ms", "timeout server 60s"),
    ("timeout connect 30ms", "timeout connect 10s"),
    ("timeout connect 100ms", "timeout connect 10s"),
    ("timeout check 300ms", "timeout check 20s"),
    ("timeout http-request 10s", "timeout http-request 60s"),
    ("timeout http-keep-alive 10s", "timeout http-keep-alive 60s"),
];

/// A shipped file's text with the times for tests.
pub fn patient(text: &str) -> String {
    PATIENT_TIMES
        .iter()
        .fold(text.to_owned(), |text, (shipped, longer)| text.replace(shipped, longer))
}

impl Haproxy {
    /// Starts HAProxy with a file of `haproxy/`, or another one, and the times for a busy machine.
    /// Its addresses are set through the environment as the file allows.
    pub fn start(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_on(config, Ipv4Addr::LOCALHOST.into(), environment)
    }

    pub fn start_on(config: &str, ip: IpAddr, environment: &[(&str, &str)]) -> Self {
        Self::start_patient(&haproxy_binary(), config, ip, environment)
    }

    /// The same with another HAProxy than the one to test with.
    pub fn start_program(program: &Path, config: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_patient(program, config, Ipv4Addr::LOCALHOST.into(), environment)
    }

    fn start_patient(
        program: &Path,
        config: &str,
        ip: IpAddr,
        environment: &[(&str, &str)],
    ) -> Self {
        let directory = directory();
        let copies = directory.path().join("haproxy");
        fs::create_dir(&copies).unwrap();
        let config = haproxy_folder().join(config);
        for entry in fs::read_dir(config.parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            let wanted = ["cfg", "conf", "map"];
            if path.extension().is_some_and(|extension| wanted.iter().any(|it| extension == *it)) {
                let text = patient(&fs::read_to_string(&path).unwrap());
                fs::write(copies.join(path.file_name().unwrap()), text).unwrap();
            }
        }
        let config = copies.join(config.file_name().unwrap());
        Self::start_in(program, directory, &config, ip, environment)
    }

    /// The same with the times that users get.
    pub fn start_as_shipped(config: &str, environment: &[(&str, &str)]) -> Self {
        let config = haproxy_folder().join(config);
        let ip = Ipv4Addr::LOCALHOST.into();
        Self::start_in(&haproxy_binary(), directory(), &config, ip, environment)
    }

    fn start_in(
        program: &Path,
        directory: TempDir,
        config: &Path,
        ip: IpAddr,
        environment: &[(&str, &str)],
    ) -> Self {
        // A second file adds the socket with the statistics.
        let statistics = directory.path().join("stats.cfg");
        let socket = directory.path().join("stats.sock");
        fs::write(
            &statistics,
            format!("global\n    stats socket {} level admin\n", socket.display()),
        )
        .unwrap();
        // Another program can take the port before HAProxy does, but not five times in a row.
        for attempt in 1.. {
            let frontend = free_port(ip);
            let mut command = Command::new(program);
            command.arg("-db").arg("-f").arg(config).arg("-f").arg(&statistics);
            for name in ["GCRA_HTTP", "GCRA_TCP", "HTTP_ADDR"] {
                command.env(name, frontend.to_string());
            }
            command.envs(environment.iter().copied());
            let mut process = Process::start("haproxy", &mut command);
            let mut ended = false;
            wait_until("HAProxy listens", || {
                ended = process.child.try_wait().unwrap().is_some();
                // Asking its socket is no connection to the frontend, which might be counted.
                ended || UnixStream::connect(&socket).is_ok()
            });
            if !ended {
                return Self { process, frontend, directory, command, configuration: None };
            }
            assert!(attempt < 5, "HAProxy ended: {:#?}", process.lines());
        }
        unreachable!("the fifth attempt returns or panics")
    }

    /// Starts a second process, as a reload does: it takes over the listeners, and the old one
    /// ends when its last client has disconnected. Returns the old one.
    pub fn reload(&mut self) -> Process {
        let arguments: Vec<_> = self.command.get_args().map(ToOwned::to_owned).collect();
        let mut command = Command::new(self.command.get_program());
        command.args(arguments).args(["-sf", &self.process.id().to_string()]);
        for (name, value) in self.command.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let new = Process::start("haproxy", &mut command);
        std::mem::replace(&mut self.process, new)
    }

    /// Waits until the socket with the statistics answers again, after a reload.
    pub fn wait_for_statistics(&self) {
        let socket = self.directory.path().join("stats.sock");
        wait_until("HAProxy listens", || UnixStream::connect(&socket).is_ok());
    }

    /// The answer of HAProxy to a command on the socket with the statistics.
    pub fn say(&self, command: &str) -> String {
        let mut socket =
            UnixStream::connect(self.directory.path().join("stats.sock")).expect("statistics");
        socket.write_all(command.as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until this many lines are logged. A thread of HAProxy drops a line if another one
    /// writes at that moment, and counts it. Returns whether none was dropped.
    pub fn has_logged(&self, expected: usize, logged: impl Fn(&Self) -> usize) -> bool {
        wait_until("all requests are logged", || logged(self) + self.dropped_lines() >= expected);
        let has_all = logged(self) == expected;
        if !has_all {
            println!("HAProxy has dropped lines of its log: {}", self.dropped_lines());
        }
        has_all
    }

    /// How many lines of the log were dropped.
    pub fn dropped_lines(&self) -> usize {
        let info = self.say("show info\n");
        let count = info.lines().find_map(|line| line.strip_prefix("DroppedLogs: "));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// The state of a server in `show stat`: UP, DOWN, ...
    pub fn state(&self, backend: &str, server: &str) -> String {
        let text = self.say("show stat\n");
        let line = text.lines().find(|line| line.starts_with(&format!("{backend},{server},")));
        let line = line.unwrap_or_else(|| panic!("no {backend}/{server} in {text}"));
        line.split(',').nth(17).unwrap().to_owned()
    }

    pub fn wait_for(&self, backend: &str, server: &str, state: &str) {
        wait_until(&format!("{server} is {state}"), || {
            self.state(backend, server).starts_with(state)
        });
    }
}

/// An HTTP client with one connection, which may come from an address of its own.
#[derive(Debug)]
pub struct Client {
    server: SocketAddr,
    source: Option<IpAddr>,
    connection: Option<BufReader<TcpStream>>,
}

/// An answer: its status, and its head in lower case.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Client {
    pub fn new(server: SocketAddr) -> Self {
        Self { server, source: None, connection: None }
    }

    /// All of 127.0.0.0/8 is this machine, so a client can have any address there.
    pub fn from(server: SocketAddr, source: IpAddr) -> Self {
        Self { server, source: Some(source), connection: None }
    }

    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.get_with(path, &[])
    }

    pub fn get_with(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
        let response = self.try_get(path, headers);
        if response.is_err() {
            self.connection = None;
        }
        response
    }

    fn try_get(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(self.connect()?),
        };
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        connection.get_mut().write_all(request.as_bytes())?;

        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if connection.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)];
        connection.read_exact(&mut body)?;
        if !head.contains("connection: close") {
            self.connection = Some(connection);
        }
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Response { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    pub fn connect(&self) -> io::Result<TcpStream> {
        let domain = socket2::Domain::for_address(self.server);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        if let Some(source) = self.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect_timeout(&self.server.into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// The answers that one client got, and the clock readings that matter.
pub struct Tally {
    pub allowed: u64,
    pub denied: u64,
    pub other: u64,
    pub first_sent: Instant,
    first_answered: Option<Instant>,
    last_denied_sent: Option<Instant>,
    pub last_answered: Instant,
    allowed_at_last_denial: u64,
    /// From each request to the answer of the next: the longest time that may lie between the two
    /// decisions.
    gaps: Vec<Duration>,
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { allowed, denied, other, gaps, .. } = self;
        let longest = gaps.iter().max();
        f.debug_struct("Tally")
            .field("allowed", allowed)
            .field("denied", denied)
            .field("other", other)
            .field("longest_gap", &longest)
            .finish_non_exhaustive()
    }
}

impl Tally {
    /// Sends `per_second` requests a second, evenly, for `duration`.
    pub fn of(client: &mut Client, per_second: u32, duration: Duration) -> Self {
        Self::watched(client, per_second, duration, |_| {})
    }

    /// As [`of`](Self::of), showing each state to `watch`.
    pub fn watched(
        client: &mut Client,
        per_second: u32,
        duration: Duration,
        mut watch: impl FnMut(&Self),
    ) -> Self {
        let start = Instant::now();
        let mut tally = Self {
            allowed: 0,
            denied: 0,
            other: 0,
            first_sent: start,
            first_answered: None,
            last_denied_sent: None,
            last_answered: start,
            allowed_at_last_denial: 0,
            gaps: Vec::new(),
        };
        let mut last_sent = start;
        for number in 0.. {
            let due = Duration::from_secs(1) * number / per_second;
            if due >= duration {
                break;
            }
            thread::sleep(due.saturating_sub(start.elapsed()));
            let sent = Instant::now();
            let status = client.get("/").map(|response| response.status);
            tally.last_answered = Instant::now();
            tally.first_answered.get_or_insert(tally.last_answered);
            tally.gaps.push(tally.last_answered - last_sent);
            last_sent = sent;
            match status {
                Ok(200) => tally.allowed += 1,
                Ok(429) => {
                    tally.denied += 1;
                    tally.last_denied_sent = Some(sent);
                    tally.allowed_at_last_denial = tally.allowed;
                }
                _ => tally.other += 1,
            }
            watch(&tally);
        }
        tally
    }

    /// At most `burst + floor(elapsed / T)` were allowed, from before the first request to after
    /// the last answer.
    pub fn assert_not_too_many(&self, interval: Duration, burst: u64) {
        let elapsed = self.last_answered - self.first_sent;
        let bound = burst + cells(elapsed, interval);
        assert!(
            self.allowed <= bound,
            "{} allowed, {bound} would be right: {self:?}",
            self.allowed
        );
    }

    /// No cell too few was allowed up to the last denial, when everything that had come due was
    /// used, by the clock readings that leave the least time between. But on a busy machine the
    /// client may have paused, and a full bucket gains nothing: what came due in pauses longer
    /// than the interval may be missing.
    pub fn assert_not_too_few(&self, interval: Duration, burst: u64) {
        let (Some(first), Some(last)) = (self.first_answered, self.last_denied_sent) else {
            panic!("nothing was denied: {self:?}");
        };
        let pauses: Duration = self.gaps.iter().filter(|gap| **gap > interval).sum();
        let bound =
            (burst + cells(last - first, interval)).saturating_sub(cells(pauses, interval));
        let allowed = self.allowed_at_last_denial;
        assert!(allowed >= bound, "{allowed} allowed, {bound} would be right: {self:?}");
    }
}

fn cells(elapsed: Duration, interval: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos() / interval.as_nanos()).unwrap()
}
