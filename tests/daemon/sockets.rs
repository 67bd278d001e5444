//! The daemon's sockets: several agents at one path, inherited sockets, and which users may
//! connect.

use std::fs;
use std::io::Read as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use spop_codec::Value;

use crate::support;
use crate::support::spop::Spop;
use crate::support::{
    Agent, CopiedAgent, NOBODY, PATIENCE, Process, directory, needs, wait_until,
};

const HOURLY: [&str; 2] = ["--rate", "10/h"];

fn agent_at(table: &Path, listen: &str) -> Command {
    let mut command = Command::new(support::agent_binary());
    command.args(HOURLY).args(["--slots", "4096", "--drain", "0", "--listen", listen]);
    command.arg("--table").arg(table).env_remove("RUST_LOG");
    command
}

/// The error message of an agent that does not start.
fn refusal(command: &mut Command) -> String {
    let mut process = Process::start("gcra-spoa", command);
    let status = process.wait();
    assert!(!status.success(), "{:#?}", process.lines());
    let mut sentences = Vec::new();
    // Another thread collects the lines.
    wait_until("it says why", || {
        let lines = process.lines();
        sentences = lines.into_iter().filter(|line| line.starts_with("gcra-spoa: ")).collect();
        !sentences.is_empty()
    });
    assert_eq!(sentences.len(), 1, "{sentences:#?}");
    sentences.remove(0)
}

/// Returns when the agent has served a connection: from then on it handles signals, too.
fn wait_for_service(mut stream: UnixStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).expect("the agent ends the connection");
}

/// Each of them finds the socket of a dead agent and tries to replace it by its own.
#[test]
fn of_agents_started_at_once_on_a_stale_socket_one_listens_and_the_others_say_why() {
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let listen = format!("unix:{}", socket.display());
    for _ in 0..6 {
        drop(UnixListener::bind(&socket).unwrap());
        let start = |_| Process::start("gcra-spoa", &mut agent_at(&table, &listen));
        let mut agents: Vec<_> = (0..6).map(start).collect();
        let said =
            |process: &Process, what: &str| process.lines().iter().any(|line| line.contains(what));
        wait_until("each listens or gives up", || {
            agents.iter().all(|agent| said(agent, "listening on ") || said(agent, "gcra-spoa: "))
        });
        let (mut live, refused): (Vec<_>, Vec<_>) =
            agents.drain(..).partition(|agent| said(agent, "listening on "));
        assert_eq!((live.len(), refused.len()), (1, 5));
        for mut agent in refused {
            assert_eq!(agent.wait().code(), Some(1));
            // On a busy machine the one with the lock may take longer than the others wait.
            let why =
                ["is another agent running there?", "another process is about to listen there"];
            assert!(why.iter().any(|why| said(&agent, why)), "{:#?}", agent.lines());
        }
        // The path leads to the agent that is left.
        let stream = UnixStream::connect(&socket).unwrap();
        let listener = rustix::net::sockopt::socket_peercred(&stream).unwrap();
        assert_eq!(u32::try_from(listener.pid.as_raw_nonzero().get()).unwrap(), live[0].id());
        wait_for_service(stream);
        assert!(live[0].stop().success());
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["table", "table.policies"], "the table and what is in force");
    }
}

/// The agent exists, although it does not answer: its backlog is full, so connecting would wait.
#[test]
fn an_agent_that_is_stopped_with_a_full_backlog_is_there() {
    let directory = directory();
    let socket = directory.path().join("agent.sock");
    let stopped = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let address = socket2::SockAddr::unix(&socket).unwrap();
    stopped.bind(&address).unwrap();
    stopped.listen(1).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        match client.connect(&address) {
            Ok(()) => waiting.push(client),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    let listen = format!("unix:{}", socket.display());
    let said = refusal(&mut agent_at(&directory.path().join("table"), &listen));
    assert!(said.contains("is another agent running there?"), "{said}");
    assert!(socket.exists());
}

/// Starts an agent as systemd does, with one socket.
fn inheriting(table: &Path, socket: OwnedFd, environment: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{environment} exec \"$@\" 3<&0 </dev/null");
    command.stdin(socket).args(["-c", &script, "sh"]).arg(support::agent_binary());
    command.args(HOURLY).args(["--listen", "inherited", "--drain", "0", "--table"]).arg(table);
    command
}

#[test]
fn an_inherited_socket_that_can_not_serve_is_refused_with_the_reason() {
    const OURS: &str = "LISTEN_PID=$$ LISTEN_FDS=1";
    let directory = directory();
    let table = directory.path().join("table");
    let deaf = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    deaf.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let packets = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    packets.bind(&socket2::SockAddr::unix(directory.path().join("packets")).unwrap()).unwrap();
    packets.listen(1).unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp6 = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
    let (connected, _other) = UnixStream::pair().unwrap();
    let file = fs::File::create(directory.path().join("file")).unwrap();
    let listening = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    for (socket, environment, reason) in [
        (OwnedFd::from(deaf), OURS, "inherited socket 1 of 1 does not listen"),
        (connected.into(), OURS, "inherited socket 1 of 1 does not listen"),
        (udp.into(), OURS, "inherited socket 1 of 1 is a UDP socket"),
        (udp6.into(), OURS, "inherited socket 1 of 1 is a UDP socket"),
        (packets.into(), OURS, "inherited socket 1 of 1 is a Unix seqpacket socket"),
        (file.into(), OURS, "inherited socket 1 of 1 is not a TCP or Unix socket"),
        (listening(), "LISTEN_PID=1 LISTEN_FDS=1", "LISTEN_PID is 1, but this process is "),
        (listening(), "LISTEN_PID=$$ LISTEN_FDS=0", "LISTEN_FDS is '0'"),
        (listening(), "LISTEN_PID=$$ LISTEN_FDS=9999999999", "LISTEN_FDS is '9999999999'"),
        (
            listening(),
            "LISTEN_PID=$$ LISTEN_FDS=2",
            "inherited socket 2 of 2 is not a TCP or Unix socket",
        ),
    ] {
        let said = refusal(&mut inheriting(&table, socket, environment));
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

/// A group to which this user may give files: its number, and its name if it has one.
fn own_group() -> (u32, Option<String>) {
    let own = rustix::process::getegid().as_raw();
    // Root may use any other group, which shows that it was set.
    let wanted = |number: &u32| (*number != own) == rustix::process::geteuid().is_root();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?.parse().ok().filter(wanted)?);
        Some((number, Some(name.to_owned())))
    });
    named.unwrap_or((own, None))
}

#[test]
fn the_agents_socket_has_the_mode_and_the_group_that_were_asked_for() {
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let listen = format!("unix:{}", socket.display());
    let (number, name) = own_group();
    for group in name.into_iter().chain([number.to_string()]) {
        let args = ["--socket-mode", "0660", "--socket-group", &group];
        let agent = Agent::start_command(agent_at(&table, &listen).args(args));
        let metadata = fs::metadata(&socket).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o660, number));
        wait_for_service(UnixStream::connect(&socket).unwrap());
        agent.stop();
    }
    let agent = Agent::start_command(agent_at(&table, &listen).args(["--socket-mode", "777"]));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o7777, 0o777);
    wait_for_service(UnixStream::connect(&socket).unwrap());
    agent.stop();
    assert!(!socket.exists());
}

#[test]
fn a_mode_or_a_group_that_can_not_be_is_one_sentence() {
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let unix = format!("unix:{}", socket.display());
    for (listen, args, reason) in [
        (
            &*unix,
            ["--socket-group", "nobody-has-this-group"],
            "there is no group 'nobody-has-this-group'",
        ),
        (&unix, ["--socket-mode", "0990"], "'0990' is not a mode"),
        (&unix, ["--socket-mode", "0060"], "'0060' is not a mode"),
        (&unix, ["--socket-mode", "4660"], "'4660' is not a mode"),
        ("127.0.0.1:0", ["--socket-mode", "0660"], "need --listen unix:/PATH"),
    ] {
        let said = refusal(agent_at(&table, listen).args(args));
        assert!(said.contains(reason), "{said}");
        assert!(!socket.exists(), "{said}");
    }
}

/// By a user that is not a member of it: root becomes nobody for this.
#[test]
fn a_group_that_the_user_may_not_give_is_one_sentence() {
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let unix = format!("unix:{}", socket.display());
    let program = CopiedAgent::new();
    let mut command = Command::new(program.path());
    if rustix::process::geteuid().is_root() {
        needs!(program.as_nobody());
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    } else {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let is_member = groups.iter().any(|group| group.is_root());
        needs!(if is_member {
            Err("this user is a member of the group 0".to_owned())
        } else {
            Ok(())
        });
    }
    command.env_remove("RUST_LOG").args(HOURLY).args(["--slots", "64", "--listen", &unix]);
    let said = refusal(command.args(["--socket-group", "0", "--table"]).arg(&table));
    assert!(
        said.contains("could not give it to the group 0") && said.contains("a member"),
        "{said}"
    );
    assert!(!socket.exists(), "no socket with the wrong group is left behind");
}

/// HAProxy stops softly on SIGUSR1, and operators expect the same here. SIGUSR2 has no meaning.
#[test]
fn sigusr1_ends_it_in_order_and_sigusr2_does_not() {
    use rustix::process::Signal;
    let directory = directory();
    let mut agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let mut spop = Spop::connect(&agent.address);
    spop.is_blocked(&[]);
    let said = |agent: &Agent, what: &str| {
        agent.process.lines().iter().filter(|line| line.contains(what)).count()
    };
    agent.process.signal(Signal::USR2);
    wait_until("it says that it goes on", || said(&agent, "SIGUSR2 is ignored") == 1);
    agent.process.signal(Signal::USR2);
    let client = [("ip", Value::from("a"))];
    assert_eq!(spop.allowed(&client, 3), 3, "it goes on");
    agent.process.signal(Signal::USR1);
    assert_eq!(agent.process.wait().code(), Some(0));
    wait_until("it says why", || said(&agent, "SIGUSR1 received") == 1);
    wait_until("it ends in order", || said(&agent, "stopped after 4 NOTIFYs") == 1);
    assert_eq!(said(&agent, "SIGUSR2 is ignored"), 1, "said once");
}

/// A socket must never have more rights than it was given, not even for a moment.
#[test]
fn nobody_else_ever_sees_a_socket_that_is_too_open() {
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let listen = format!("unix:{}", socket.display());
    // An agent that has made the file but does not listen yet refuses connections.
    let watching = thread::spawn({
        let socket = socket.clone();
        move || {
            let start = Instant::now();
            let mut seen = Vec::new();
            while start.elapsed() < PATIENCE {
                // Connects first and then looks at the mode, which does not become stricter later.
                if UnixStream::connect(&socket).is_ok()
                    && let Ok(metadata) = fs::metadata(&socket)
                {
                    seen.push(metadata.mode() & 0o777);
                    break;
                }
            }
            seen
        }
    });
    let agent = Agent::start_command(agent_at(&table, &listen).args(["--socket-mode", "0600"]));
    assert_eq!(watching.join().unwrap(), [0o600]);
    wait_for_service(UnixStream::connect(&socket).unwrap());
    agent.stop();
}
