//! The library's examples, each with its own configuration behind a real HAProxy, and the man
//! pages that an example of the agent writes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support;
use crate::support::{Client, Haproxy, Process, cargo, directory, free_port, needs, wait_until};

/// An example, and HAProxy in front of it.
struct Example {
    agent: Process,
    haproxy: Haproxy,
}

/// Builds all examples, the first time.
fn build() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let status =
            cargo().args(["build", "--locked", "--workspace", "--examples"]).status().unwrap();
        assert!(status.success(), "the examples can't be built");
    });
}

impl Example {
    fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        build();
        let address = free_port(Ipv4Addr::LOCALHOST.into()).to_string();
        let mut command = Command::new(binary(name));
        command.env("SPOE_ADDR", &address).envs(environment.iter().copied());
        let agent = Process::start(name, &mut command);
        let config =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/spop-agent/examples").join(name);
        let config = config.join("haproxy.cfg");
        let haproxy = Haproxy::start(config.to_str().unwrap(), &[("SPOE_ADDR", &address)]);
        // Before its first check a server counts as UP.
        wait_until("the agent listens", || std::net::TcpStream::connect(&address).is_ok());
        haproxy.wait_for("agents", "agent", "UP");
        Self { agent, haproxy }
    }

    fn client(&self) -> Client {
        Client::new(self.haproxy.frontend)
    }
}

/// Beside this program, which is in `deps`.
fn binary(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join(name)
}

/// The status and the text of an answer.
fn get(client: &mut Client, headers: &[(&str, &str)]) -> (u16, String) {
    let response = client.get_with("/", headers).unwrap();
    (response.status, response.body.trim_end().to_owned())
}

/// Bare groff and other readers of man pages print rubbish for anything but ASCII.
#[test]
fn man_pages_are_in_ascii() {
    build();
    let folder = directory();
    let status = Command::new(binary("manual")).arg(folder.path()).status().unwrap();
    assert!(status.success());
    let mut pages = 0;
    for page in fs::read_dir(folder.path().join("man")).unwrap() {
        let path = page.unwrap().path();
        let text = fs::read(&path).unwrap();
        let other = text.split(|byte| *byte == b'\n').find(|line| !line.is_ascii());
        let other = other.map(String::from_utf8_lossy);
        assert!(other.is_none(), "{}: {other:?}", path.display());
        pages += 1;
    }
    assert!(pages > 10, "{pages}");
}

#[test]
fn hello_says_hello() {
    needs!(support::haproxy());
    let example = Example::start("hello", &[]);
    for _ in 0..20 {
        assert_eq!(get(&mut example.client(), &[]), (200, "hello".to_owned()));
    }
}

#[test]
fn ip_reputation_follows_its_list_while_it_serves() {
    needs!(support::haproxy());
    let folder = directory();
    let list = folder.path().join("blocklist.txt");
    let (good, bad) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    // In one step: the example may read it at any time.
    let write = |text: String| {
        let new = folder.path().join("new.txt");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &list).unwrap();
    };
    write(format!("# known\n{bad}\n{good} 20\n"));
    let example = Example::start("ip_reputation", &[("BLOCKLIST", list.to_str().unwrap())]);
    let answer_to = |ip: Ipv4Addr| {
        let response = Client::from(example.haproxy.frontend, ip.into()).get("/").unwrap();
        (response.status, response.body.trim_end().to_owned())
    };
    assert_eq!(answer_to(good), (200, "score 20".to_owned()));
    assert_eq!(answer_to(bad).0, 403);
    assert_eq!(answer_to(Ipv4Addr::new(127, 0, 0, 4)), (200, "score 0".to_owned()));

    // A list with a mistake is not taken, and it says so.
    write(format!("{good}\n127.0.0.300\n"));
    let complaint =
        "blocklist.txt:2: '127.0.0.300' is not an IP address; the old list stays in force";
    wait_until("it complains", || {
        example.agent.lines().iter().any(|line| line.contains(complaint))
    });
    assert_eq!(answer_to(good), (200, "score 20".to_owned()));

    write(format!("{good} 90\n{bad} 10\n"));
    wait_until("the good one is bad", || answer_to(good).0 == 403);
    assert_eq!(answer_to(bad), (200, "score 10".to_owned()));
}

/// A service that answers every line with XY.
struct Service {
    address: String,
    /// How often it was asked.
    asked: AtomicU64,
    /// Whether it answers, after a short while. Until then, questions wait.
    answers: AtomicBool,
}

impl Service {
    fn start(answers: bool) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = AtomicBool::new(answers);
        let service = Arc::new(Self { address, asked: AtomicU64::new(0), answers });
        let started = service.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // Here, so that it has counted all that came before what it has answered.
                service.asked.fetch_add(1, Ordering::SeqCst);
                let service = service.clone();
                thread::spawn(move || service.answer(stream));
            }
        });
        started
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert!(line.trim_end().parse::<IpAddr>().is_ok(), "{line}");
        loop {
            thread::sleep(Duration::from_millis(20));
            if self.answers.load(Ordering::SeqCst) {
                break;
            }
        }
        let _ = stream.write_all(b"XY\n");
    }
}

#[test]
fn async_lookup_waits_for_the_service_and_remembers() {
    needs!(support::haproxy());
    let service = Service::start(true);
    // Longer than the pauses of a busy machine, and shorter than HAProxy waits.
    let example = Example::start(
        "async_lookup",
        &[("LOOKUP_ADDR", &service.address), ("DEADLINE_MS", "400")],
    );
    let mut client = example.client();
    let mut found = (0, String::new());
    wait_until("it is found in time", || {
        found = get(&mut client, &[]);
        found.1.starts_with("XY")
    });
    let before = service.asked.load(Ordering::SeqCst);
    assert_eq!(get(&mut client, &[]), (200, "XY cache=1".to_owned()));
    assert_eq!(service.asked.load(Ordering::SeqCst), before, "from the cache");
}

#[test]
fn async_lookup_does_not_wait_for_a_service_that_is_too_slow() {
    needs!(support::haproxy());
    let service = Service::start(false);
    let example = Example::start(
        "async_lookup",
        &[("LOOKUP_ADDR", &service.address), ("DEADLINE_MS", "30")],
    );
    let frontend = example.haproxy.frontend;
    let ask = move |number: u8| {
        let mut client = Client::from(frontend, Ipv4Addr::new(127, 0, 1, number).into());
        move || get(&mut client, &[])
    };
    let clients: Vec<_> = (1..=50).map(|number| thread::spawn(ask(number))).collect();
    for client in clients {
        assert_eq!(client.join().unwrap(), (200, "unknown cache=".to_owned()));
    }
    service.answers.store(true, Ordering::SeqCst);
    // The answers that come late are in the cache.
    wait_until("it is known", || ask(1)() == (200, "XY cache=1".to_owned()));
}

#[test]
fn headers_are_looked_at() {
    needs!(support::haproxy());
    let example = Example::start("headers", &[]);
    let mut client = example.client();
    let browser = ("User-Agent", "Mozilla/5.0");
    assert_eq!(get(&mut client, &[browser, ("Accept", "*/*")]), (200, "3 headers".to_owned()));
    assert_eq!(get(&mut client, &[]), (400, "no user-agent".to_owned()));
    assert_eq!(get(&mut client, &[browser, browser]), (400, "several user-agents".to_owned()));
    assert_eq!(get(&mut client, &[("User-Agent", "")]), (400, "an empty user-agent".to_owned()));
}
