//! Servers to keep a store on: Valkey and Redis, on ports of their own on the loopback interface.
//! Each of them ends when its value is dropped, even if a test fails.

use std::env;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take before a test gives up. Only a test that fails waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The servers that `tests/get-valkey.sh` fetched, those on the path, and the one that `VALKEY`
/// names, which is then the only one.
pub fn programs() -> Vec<PathBuf> {
    if let Some(program) = env::var_os("VALKEY") {
        return vec![program.into()];
    }
    // An example is TARGET/PROFILE/examples/NAME, and has no such variable.
    let folder = match option_env!("CARGO_TARGET_TMPDIR") {
        Some(temporary) => PathBuf::from(temporary).with_file_name("valkey"),
        None => env::current_exe().unwrap().ancestors().nth(3).unwrap().join("valkey"),
    };
    let fetched = ["valkey-9", "valkey-8", "redis-7"].map(|name| folder.join(name)).into_iter();
    let path = env::var_os("PATH").unwrap_or_default();
    let path: Vec<_> = env::split_paths(&path).collect();
    let installed = ["valkey-server", "redis-server"]
        .into_iter()
        .flat_map(|name| path.iter().map(move |directory| directory.join(name)));
    fetched.chain(installed).filter(|path| path.is_file()).collect()
}

/// Asks again and again, for at most [`PATIENCE`]. The more an answer takes, the less often.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        if holds() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        // Starting a command takes the processor that the one waited for may need.
        let pause = asked.elapsed() * 2;
        thread::sleep(pause.clamp(Duration::from_millis(10), Duration::from_millis(200)));
    }
}

/// Reads again where a read ended because this process was stopped for a moment: one with a time
/// limit does.
pub fn uninterrupted<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match read() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Whether there is a server to test with.
pub fn valkey() -> Result<(), String> {
    if programs().is_empty() { Err("there is no Valkey and no Redis".into()) } else { Ok(()) }
}

/// Whether there is a server with TLS.
pub fn valkey_tls() -> Result<(), String> {
    tls_program().map(drop).ok_or_else(|| "there is no Valkey or Redis with TLS".into())
}

/// A server that was built with TLS.
pub fn tls_program() -> Option<PathBuf> {
    programs().into_iter().find(|program| {
        // It ends at once, because it has no certificate; or because it knows nothing of TLS.
        let run = Command::new(program).args(["--port", "0", "--tls-port", "1"]).output();
        run.is_ok_and(|output| {
            let said = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&said).contains("tls-cert-file")
        })
    })
}

/// A running server.
pub struct Server {
    child: Child,
    program: PathBuf,
    arguments: Vec<String>,
    pub port: u16,
    pub directory: TempDir,
}

impl Server {
    /// Starts the first of [`programs`], without persistence, on a free port.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_program(&programs()[0], arguments)
    }

    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        Self::start_by(program, arguments, |_| ())
    }

    /// Starts one after `change` was made to the command, such as variables of the environment. A
    /// restart does not make the change again.
    pub fn start_by(program: &Path, arguments: &[&str], change: impl Fn(&mut Command)) -> Self {
        let directory = directory();
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        // Another process may take the port between the two steps.
        for _ in 0..3 {
            let port = free_port();
            let child = spawn(program, port, directory.path(), &arguments, &change);
            let mut server = Self {
                child,
                program: program.to_owned(),
                arguments: arguments.clone(),
                port,
                directory: TempDir::new().unwrap(),
            };
            if server.wait() {
                server.directory = directory;
                return server;
            }
        }
        panic!("{} does not start: {}", program.display(), log_of(directory.path()));
    }

    /// Starts a sentinel with a configuration file, which it will change.
    pub fn start_sentinel(file: &Path) -> Self {
        // The file comes first, or it is not taken for one.
        Self::start_program(&programs()[0], &["SENTINEL", file.to_str().unwrap()])
    }

    /// Waits until the server answers. `false`: it has ended.
    fn wait(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            // A server that listens with TLS only answers with nothing; a test waits by itself.
            if self.is_ready() && self.is_own() {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Whether it answers, and not only that it is loading its data.
    pub fn is_ready(&self) -> bool {
        self.try_say(&["PING"]).is_some_and(|answer| !answer.starts_with("-LOADING"))
    }

    /// Whether no other server answers: one that another process of the tests has started at this
    /// port a moment before, so that this one ends.
    fn is_own(&self) -> bool {
        let said = self.try_say(&["INFO", "server"]).unwrap_or_default();
        let own = format!("process_id:{}\r\n", self.child.id());
        said.contains(&own) || !said.contains("process_id:")
    }

    /// Its name and version: "Valkey server v=9.1.2 ...".
    pub fn version(&self) -> String {
        let output = Command::new(&self.program).arg("--version").output().unwrap();
        let line = String::from_utf8_lossy(&output.stdout);
        line.split(" sha=").next().unwrap_or_default().to_owned()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Sends one command, and returns what the server answers, as it stands on the wire.
    pub fn say(&self, command: &[&str]) -> String {
        self.try_say(command).unwrap_or_else(|| panic!("no answer to {command:?}"))
    }

    fn try_say(&self, command: &[&str]) -> Option<String> {
        let mut stream = TcpStream::connect(self.address()).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = format!("*{}\r\n", command.len());
        for word in command {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(text.as_bytes()).ok()?;
        let mut answer = Vec::new();
        let mut bytes = [0; 4096];
        while complete(&answer).is_none() {
            match uninterrupted(|| stream.read(&mut bytes)).ok()? {
                0 => return None,
                count => answer.extend(&bytes[..count]),
            }
        }
        Some(String::from_utf8_lossy(&answer).into_owned())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process (SIGSTOP): its port still accepts connections, and nothing answers.
    pub fn freeze(&mut self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process at once (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, after [`kill`](Self::kill), on the same port with the same directory.
    pub fn restart(&mut self) {
        let arguments = self.arguments.clone();
        self.child = spawn(&self.program, self.port, self.directory.path(), &arguments, |_| ());
        assert!(self.wait(), "{}", log_of(self.directory.path()));
    }

    /// The same with other options, and without waiting until it answers.
    pub fn begin_restart(&mut self, more: &[&str]) {
        let mut arguments = self.arguments.clone();
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        self.child = spawn(&self.program, self.port, self.directory.path(), &arguments, |_| ());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The length of the answer that begins here, if all of it is here.
fn complete(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' => {
            let length = usize::try_from(number()?).map_or(0, |length| length + 2);
            (bytes.len() >= end + length).then_some(end + length)
        }
        b'*' => (0..number()?).try_fold(end, |at, _| Some(at + complete(bytes.get(at..)?)?)),
        _ => Some(end),
    }
}

fn log_of(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// In memory where that is possible, because a disk may be slow, and a store that writes each
/// change to it is then too late.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// Ports below the range from which the kernel takes those of outgoing connections; a cluster also
/// needs the port that is 10,000 above.
pub fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..1_000 {
        let seed = u16::try_from(std::process::id() % 10_000).unwrap();
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (seed + step * 7) % 10_000;
        let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
    panic!("there is no free port");
}

fn spawn(
    program: &Path,
    port: u16,
    directory: &Path,
    arguments: &[String],
    change: impl Fn(&mut Command),
) -> Child {
    let mut command = Command::new(program);
    change(&mut command);
    if let [sentinel, file] = arguments
        && sentinel == "SENTINEL"
    {
        command.args([file, "--sentinel"]);
    } else {
        command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        command.args(arguments);
    }
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--dir", directory.to_str().unwrap(), "--logfile", "log"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}
