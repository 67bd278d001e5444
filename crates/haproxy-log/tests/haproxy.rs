//! Lines that a real HAProxy wrote: in each format of its own, and with each name of its
//! log-formats. `HAPROXY=/path` names the program to test with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../../tests/support/skip.rs"]
#[allow(unused_imports, unused_macros, unreachable_pub, missing_docs, reason = "shared")]
mod skip;

use std::env;
use std::io::{BufRead as _, BufReader, Cursor, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haproxy_log::{BadKind, Format, Input, Options, Progress, ReadCounts, read};

const PATIENCE: Duration = Duration::from_secs(60);

/// The HAProxy to test with. Without one the test is skipped.
fn haproxy() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::var_os("HAPROXY").map(PathBuf::from).or_else(|| {
        env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
            .map(|directory| directory.join("haproxy"))
            .find(|path| path.is_file())
    });
    if found.is_none() {
        skip::skip("HAProxy is not installed");
    }
    found
}

/// Every name of a value that all versions from 2.6 on have. Those that can be empty are not at
/// the end, and the strings are in quotes.
const ALL: &str = "%ci:%cp [%tr] B=%B CC=%CC CS=%CS H=%H HM=%HM HP=%HP HPO=%HPO HQ=%HQ HU=%HU \
                   HV=%HV ID=%ID ST=%ST T=%T TR=%TR Ta=%Ta Tc=%Tc Td=%Td Th=%Th Ti=%Ti Tl=%Tl \
                   Tq=%Tq Tr=%Tr Ts=%Ts Tt=%Tt Tu=%Tu Tw=%Tw U=%U ac=%ac b=%b bc=%bc bi=%bi \
                   bp=%bp bq=%bq f=%f fc=%fc fi=%fi fp=%fp ft=%ft hr=%hr hs=%hs lc=%lc ms=%ms \
                   pid=%pid r=%{+Q}r rc=%rc rt=%rt s=%s sc=%sc si=%si sp=%sp sq=%sq sslc=%sslc \
                   sslv=%sslv t=%t trg=%trg trl=%trl ts=%ts tsc=%tsc xci=%{+X}ci xcp=%{+X}cp \
                   hrl=%{+Q}hrl hsl=%{+Q}hsl";

/// Strings that clients choose, where nothing but the format says where they end.
const TEXTS: &str = "%[var(txn.agent)] = %{+Q}[var(txn.agent)] = %{+Q,+E}[var(txn.agent)] \
                     %[src]:%[src_port] %HM %HP%HQ [%tr] %{+Q}r %[var(txn.nothing)] \
                     path=%[var(txn.path)]";

/// A port on which no process listens now, below those that the kernel gives to clients.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let free = (0..20_000).find_map(|_| {
        let next =
            std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(10_000 + next % 20_000).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|_| port)
    });
    free.expect("a free port")
}

struct HaProxy {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    ports: Vec<u16>,
    _directory: tempfile::TempDir,
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl HaProxy {
    /// Starts it with these frontends: the lines of each.
    fn start(program: &PathBuf, syslog: &str, frontends: &[&str]) -> Self {
        loop {
            if let Some(started) = Self::start_on_free_ports(program, syslog, frontends) {
                return started;
            }
        }
    }

    /// `None` if another process has taken a port that was free.
    fn start_on_free_ports(program: &PathBuf, syslog: &str, frontends: &[&str]) -> Option<Self> {
        // The last one is the server.
        let ports: Vec<u16> = (0..=frontends.len()).map(|_| free_port()).collect();
        let server = ports[frontends.len()];
        // With one thread: of two that write to stdout at once, HAProxy drops the line of the one
        // that has waited too long for the other.
        let mut config = format!(
            "global\n nbthread 1\n log stdout format {syslog} local0\n\
             defaults\n mode http\n log global\n timeout client 60s\n timeout server 60s\n \
             timeout connect 60s\n\
             backend be\n server s1 127.0.0.1:{server}\n\
             backend tcp\n mode tcp\n server s1 127.0.0.1:{server}\n"
        );
        for (at, frontend) in frontends.iter().enumerate() {
            config += &format!(
                "frontend f{at}\n bind 127.0.0.1:{}\n default_backend be\n {}\n",
                ports[at],
                frontend.replace('\n', "\n ")
            );
        }
        // The last, so that all others listen once it does.
        config += &format!(
            "frontend server\n no log\n bind 127.0.0.1:{server}\n \
             http-request return status 200 content-type text/plain string hi hdr X-Answer \
             \"an |answer\"\n"
        );
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("haproxy.cfg");
        std::fs::write(&file, &config).unwrap();
        let mut command = Command::new(program);
        command.arg("-f").arg(&file).env("TZ", "UTC");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let kept = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        let mut started = Self { child, lines, ports, _directory: directory };
        let begin = Instant::now();
        let open = |port: &u16| {
            TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).is_ok()
        };
        while !open(&started.ports[frontends.len()]) {
            if started.child.try_wait().unwrap().is_some() {
                let mut text = String::new();
                BufReader::new(err).read_to_string(&mut text).unwrap();
                if text.contains("Address already in use") {
                    return None;
                }
                panic!("HAProxy has ended: {text}\n{config}");
            }
            assert!(begin.elapsed() < PATIENCE, "HAProxy does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Some(started)
    }

    /// Sends bytes to a frontend, and reads what comes until the connection ends.
    fn send(&self, frontend: usize, bytes: &[u8]) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[frontend]));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }

    /// The lines that name a frontend, once there are as many.
    fn lines(&self, wanted: impl Fn(&str) -> bool, count: usize) -> Vec<String> {
        let begin = Instant::now();
        loop {
            let lines = self.lines.lock().unwrap().clone();
            let found: Vec<String> = lines.iter().filter(|line| wanted(line)).cloned().collect();
            if found.len() >= count {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{count} lines, not {}: {lines:#?}", found.len());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

type Values = Vec<Option<String>>;

/// The requests of a log and the values of some fields.
fn fields(log: &[String], format: &Format, names: &[&str]) -> (Vec<(i64, Values)>, ReadCounts) {
    let text = log.join("\n");
    let mut requests = Vec::new();
    let selection = format.select(names).unwrap();
    let input = Input::stream("log", Cursor::new(text.into_bytes()));
    let counts = read(&[input], &selection, &Options::default(), &Progress::new(), &mut |entry| {
        let text =
            |value: &Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        requests.push((entry.at, entry.fields.iter().map(text).collect()));
    })
    .unwrap();
    (requests, counts)
}

fn some(values: &[&str]) -> Values {
    let value = |&value: &&str| (value != "-").then(|| value.to_owned());
    values.iter().map(value).collect()
}

/// A request line that HAProxy must encode, and what its path and query are.
const REQUEST: &[u8] = b"GET /a%20b\"c?q=1&r={|} HTTP/1.1\r\nHost: example.com\r\n\
    User-Agent: a \"b\" 404 {x|y} #1 \\ ]\r\nConnection: close\r\n\r\n";

fn is_now(at: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let ago = i64::try_from(now).unwrap() - at;
    // As seconds: a busy machine, and no mistake by a day or an hour.
    (0..1800 * 1_000_000).contains(&ago)
}

#[test]
fn the_formats_that_haproxy_has_names_for() {
    let Some(program) = haproxy() else { return };
    let captures = "capture request header Host len 64\n\
                    capture request header User-Agent len 64\n\
                    capture response header X-Answer len 64\n";
    let frontends = [
        "option httplog".to_owned(),
        format!("option httplog\n{captures}"),
        "option httplog clf".to_owned(),
        format!("option httplog clf\n{captures}"),
        "option httpslog".to_owned(),
        "option tcplog\nmode tcp\ndefault_backend tcp".to_owned(),
    ];
    let frontends: Vec<&str> = frontends.iter().map(String::as_str).collect();
    // The bytes before the message in each notation of HAProxy's own.
    for syslog in ["raw", "short", "iso", "timed", "rfc3164", "rfc5424", "priority"] {
        let haproxy = HaProxy::start(&program, syslog, &frontends);
        for (at, name) in [
            "the HTTP format",
            "the HTTP format",
            "the CLF format",
            "the CLF format",
            "the HTTPS format",
            "the TCP format",
        ]
        .into_iter()
        .enumerate()
        {
            haproxy.send(at, REQUEST);
            haproxy.send(at, b"BAD\r\n\r\n");
            // The message of the start names the frontend, too.
            let is_its = |line: &str| {
                line.contains(&format!(" f{at} ")) || line.contains(&format!(" \"f{at}\" "))
            };
            let log = haproxy.lines(is_its, 2);
            let format = Format::guess((log.join("\n") + "\n").as_bytes()).expect(name);
            assert_eq!(format.name(), name, "{log:#?}");
            let (requests, counts) = fields(&log, &format, &["ci", "ft", "s"]);
            assert_eq!(requests[0].1, some(&["127.0.0.1", &format!("f{at}"), "s1"]));
            assert!(is_now(requests[0].0), "{log:#?}");
            if name == "the TCP format" {
                assert_eq!((requests.len(), counts.bad.len()), (2, 0), "{log:#?}");
                continue;
            }
            assert_eq!(requests.len(), 1, "{log:#?}");
            assert_eq!(counts.bad.len(), 1, "{log:#?}");
            assert_eq!((counts.bad[0].kind, counts.bad[0].count), (BadKind::NoRequest, 1));
            let names = ["method", "path", "query", "HV", "ST"];
            let (requests, _) = fields(&log, &format, &names);
            let expected = ["GET", "/a%20b\"c", "q=1&r={|}", "HTTP/1.1", "200"];
            assert_eq!(requests[0].1, some(&expected), "{log:#?}");
            let captured: &[&str] = match at {
                1 => &["hr.0", "hr.1", "hs.0", "hr.2"],
                3 => &["hrl.0", "hrl.1", "hrl.2", "hrl.3"],
                _ => continue,
            };
            let (requests, _) = fields(&log, &format, captured);
            let agent = "a \"b\" 404 {x|y} #1 \\ ]";
            assert_eq!(
                requests[0].1,
                some(&["example.com", agent, "an |answer", "-"]),
                "{log:#?}"
            );
        }
    }
}

#[test]
fn every_name_of_a_log_format() {
    let Some(program) = haproxy() else { return };
    let captures = "capture request header Host len 64\n\
                    capture response header X-Answer len 64\n";
    let quoted = format!("%{{+Q}}o {}", ALL.replace("%{+Q}", "%"));
    let frontends = [
        format!("log-format \"{ALL}\"\n{captures}"),
        format!("log-format \"{quoted}\"\n{captures}"),
        format!("log-format \"{ALL}\""),
    ];
    let frontends: Vec<&str> = frontends.iter().map(String::as_str).collect();
    let haproxy = HaProxy::start(&program, "raw", &frontends);
    for (at, string) in [ALL, &quoted, ALL].into_iter().enumerate() {
        haproxy.send(at, REQUEST);
        let log = haproxy.lines(|line| line.contains("HM="), at + 1);
        let log = &log[at..];
        let format = Format::compile(string).unwrap();
        let names = ["ci", "HM", "HP", "HPO", "HQ", "HU", "HV", "ST", "b", "s", "si", "f", "ft"];
        let (requests, counts) = fields(log, &format, &names);
        assert_eq!(requests.len(), 1, "{log:#?} {counts:#?}");
        let (moment, values) = &requests[0];
        assert!(is_now(*moment));
        let (path, front) = ("/a%20b\"c", format!("f{at}"));
        let query = "?q=1&r={|}";
        let uri = format!("{path}{query}");
        assert_eq!(
            *values,
            some(&[
                "127.0.0.1",
                "GET",
                path,
                path,
                query,
                &uri,
                "HTTP/1.1",
                "200",
                "be",
                "s1",
                "127.0.0.1",
                &front,
                &front
            ]),
            "{log:#?}"
        );
        let all: Vec<&str> = format.fields().iter().map(|field| field.name()).collect();
        let (requests, _) = fields(log, &format, &all);
        assert_eq!(requests[0].1.len(), all.len());
        if at < 2 {
            let (requests, _) = fields(log, &format, &["hr.0", "hs.0", "hrl.0"]);
            assert_eq!(requests[0].1, some(&["example.com", "an |answer", "example.com"]));
        }
        let request = format!("GET {uri} HTTP/1.1");
        assert_eq!(fields(log, &format, &["r"]).0[0].1, some(&[&request]));
    }
}

/// With the quotes, backslashes and variables that stand in the configuration.
#[test]
fn a_log_format_as_it_stands_in_the_configuration() {
    let Some(program) = haproxy() else { return };
    let version = Command::new(&program).arg("-v").output().unwrap().stdout;
    let mut words = vec![
        r#"%ci\ [%tr]\ 1\ %ST\ "%CC"\ "%{+Q}r"\ end"#,
        r#""%ci:%cp [%tr] 2 "'%b/%s %ST %{+Q}r'"#,
        r#""%ci\t%tr\t3\t%ST\x7c%HM %HU""#,
        r#"'%ci [%tr] 4 "%r" \t $HOME \x41'"#,
        r#""%ci [%tr] 5 \"%r\" 100%% \\ \$HOME \q ${NO_SUCH_VARIABLE-x}""#,
        r#"%ci\ [%tr]\ 6\ \#\"\'\x41$HOME\ %{+Q}r"#,
    ];
    // They came with 2.8.
    if !String::from_utf8(version).unwrap().contains("version 2.6") {
        words.extend([
            "\"$HAPROXY_HTTP_LOG_FMT 7\"",
            "\"${HAPROXY_HTTPS_LOG_FMT} 8\"",
            "\"${HAPROXY_HTTP_CLF_LOG_FMT} 9\"",
        ]);
    }
    let frontends: Vec<_> = words.iter().map(|word| format!("log-format {word}")).collect();
    let frontends: Vec<_> = frontends.iter().map(String::as_str).collect();
    let haproxy = HaProxy::start(&program, "rfc3164", &frontends);
    for (at, word) in words.iter().enumerate() {
        haproxy.send(at, REQUEST);
        let log = haproxy.lines(|line| line.contains("/a%20b"), at + 1);
        let log = &log[at..];
        let format = Format::compile_for(word, (log.join("\n") + "\n").as_bytes()).unwrap();
        let (requests, counts) = fields(log, &format, &["ci", "method", "path"]);
        assert_eq!(requests.len(), 1, "{word} {log:#?} {counts:#?}");
        assert_eq!(requests[0].1, some(&["127.0.0.1", "GET", "/a%20b\"c"]), "{word} {log:#?}");
    }
}

#[test]
fn texts_that_clients_choose() {
    let Some(program) = haproxy() else { return };
    let frontend = format!(
        "http-request set-var(txn.agent) req.hdr(user-agent)\n\
         http-request set-var(txn.path) path\n\
         log-format \"{TEXTS}\""
    );
    let haproxy = HaProxy::start(&program, "rfc3164", &[&frontend]);
    haproxy.send(0, REQUEST);
    let log = haproxy.lines(|line| line.contains("path=/"), 1);
    let format = Format::compile(TEXTS).unwrap();
    let names = ["var(txn.agent)", "%[src]", "HPO", "query", "var(txn.nothing)", "var(txn.path)"];
    let (requests, counts) = fields(&log, &format, &names);
    assert_eq!(requests.len(), 1, "{log:#?} {counts:#?}");
    let agent = "a \"b\" 404 {x|y} #1 \\ ]";
    let expected = [agent, "127.0.0.1", "/a%20b\"c", "q=1&r={|}", "-", "/a%20b\"c"];
    assert_eq!(requests[0].1, some(&expected), "{log:#?}");
}

#[test]
fn json_that_haproxy_writes() {
    let Some(program) = haproxy() else { return };
    let by_hand = r#"{"time":"%tr","ip":"%ci","path":"%HPO","request":"%r","status":%ST}"#;
    let haproxy =
        HaProxy::start(&program, "raw", &[&format!("log-format '{by_hand}'"), "option httplog"]);
    haproxy.send(0, REQUEST);
    let log = haproxy.lines(|line| line.contains("\"ip\""), 1);
    let text = log.join("\n") + "\n";
    for format in [
        Format::guess(text.as_bytes()).unwrap(),
        Format::json(),
        Format::compile(by_hand).unwrap(),
    ] {
        let names = if format.name() == "JSON" { ["ip", "status"] } else { ["ci", "ST"] };
        let (requests, counts) = fields(&log, &format, &names);
        assert_eq!(requests.len(), 1, "{log:#?} {counts:#?}");
        assert_eq!(requests[0].1, some(&["127.0.0.1", "200"]), "{log:#?}");
        assert!(is_now(requests[0].0));
    }
    drop(haproxy);

    // From 3.0 on, HAProxy does it itself.
    let version = Command::new(&program).arg("-v").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    if version.contains("version 2.") {
        return;
    }
    let encoded = "%{+json}o %(time)tr %(ip)ci %(status:sint)ST %(agent)[capture.req.hdr(0)] \
                   %(nothing)[var(txn.nothing)] %(uri)HU";
    let frontend = format!("capture request header User-Agent len 64\nlog-format '{encoded}'");
    let haproxy = HaProxy::start(&program, "rfc5424", &[&frontend]);
    haproxy.send(0, REQUEST);
    let log = haproxy.lines(|line| line.contains("\"ip\""), 1);
    let text = log.join("\n") + "\n";
    for format in [Format::guess(text.as_bytes()).unwrap(), Format::compile(encoded).unwrap()] {
        let names = ["ip", "status", "agent", "nothing"];
        let (requests, counts) = fields(&log, &format, &names);
        assert_eq!(requests.len(), 1, "{log:#?} {counts:#?}");
        let agent = "a \"b\" 404 {x|y} #1 \\ ]";
        assert_eq!(requests[0].1, some(&["127.0.0.1", "200", agent, "-"]), "{log:#?}");
        assert!(is_now(requests[0].0));
    }
}
