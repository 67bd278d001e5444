//! The answers of an agent on its admin address: one GET, bounded in time and size, and its status
//! in whatever came back.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use gcra_text::version;
use gcra_text::visible::{is_hidden, printable_json};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How many bytes may be read in all. Several questions can share it.
pub struct Budget(AtomicUsize);

impl Budget {
    pub const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Whether there was enough for these bytes.
    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Asks the agent at an address for a path, and reads the JSON in its answer.
///
/// # Errors
///
/// Why there is no answer, or none of this kind, in words.
pub async fn ask<T: DeserializeOwned + Send + 'static>(
    address: SocketAddr,
    path: &str,
    patience: Duration,
    budget: &Budget,
) -> Result<T, String> {
    let is_connected = AtomicBool::new(false);
    // With HTTP/1.0 the connection ends after the answer.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let answer = match timeout(patience, send(address, &request, budget, &is_connected)).await {
        Ok(answer) => answer?,
        Err(_) => {
            let also = match is_connected.into_inner() {
                true => ": the program there accepts connections, but sends no whole answer",
                false => "",
            };
            let patience = patience.as_millis();
            return Err(format!("no answer from {address} within {patience} ms{also}"));
        }
    };
    let path = path.split('?').next().unwrap_or(path).to_owned();
    let parse = move || parse(&answer, address, &path);
    // On another thread: the answer may be long, and this thread has other things to do.
    spawn_blocking(parse).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The addresses of an agent at `HOST:PORT`, at least one.
///
/// # Errors
///
/// There is none, in words.
pub async fn resolved(host_and_port: &str) -> Result<Vec<SocketAddr>, String> {
    let name = host_and_port.to_owned();
    // A name server can be slow, and other agents are asked in the meantime.
    let resolve = move || name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let resolved = spawn_blocking(resolve).await.map_err(io::Error::from).flatten();
    let resolved =
        resolved.map_err(|error| format!("'{host_and_port}' has no address: {error}"))?;
    if resolved.is_empty() {
        Err(format!("'{host_and_port}' has no address"))
    } else {
        Ok(resolved)
    }
}

/// The longest answer to a demand, in bytes.
const MOST_OF_ORDER: usize = 64 << 10;

/// Why an agent has not said that it follows a demand.
#[derive(Debug)]
pub struct Unheard {
    pub why: String,
    /// Whether it may have got the demand, and may still follow it.
    pub is_sent: bool,
    /// Whether it has said that it does not follow.
    pub is_refused: bool,
}

impl Unheard {
    pub fn refused(why: &str) -> Self {
        Self { why: why.to_owned(), is_sent: false, is_refused: true }
    }
}

impl From<String> for Unheard {
    /// Why the demand was not sent.
    fn from(why: String) -> Self {
        Self { why, is_sent: false, is_refused: false }
    }
}

/// Sends an action to an agent, with the token for it, and reads the JSON in its answer.
///
/// # Errors
///
/// Why it has not done it, in words.
pub async fn act<T: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
    body: &str,
    token: &str,
    patience: Duration,
) -> Result<T, Unheard> {
    let header = format!("Authorization: Bearer {token}\r\n");
    let answer = post(address, path, &header, body, patience).await?;
    from_json(&answer).map_err(|error| match error.is_some_and(|error| error.is_eof()) {
        true if !answer.is_empty() => cut_off(address),
        _ => not_an_agent(address),
    })
}

/// Sends the demand of an agent to another one. Returns the body of its answer.
///
/// # Errors
///
/// Why it has not followed, in words.
pub async fn demand(
    address: SocketAddr,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Vec<u8>, Unheard> {
    post(address, path, "", body, patience).await
}

fn not_an_agent(address: SocketAddr) -> Unheard {
    Unheard::refused(&format!("{address} is not the --admin address of an agent"))
}

/// An agent may have ended after it has done something, and before all of its answer was sent.
fn cut_off(address: SocketAddr) -> Unheard {
    let why = format!("the connection to {address} has ended without a whole answer");
    Unheard { why, is_sent: true, is_refused: false }
}

/// Whether an answer ends before its head does, or before the length that its head says.
fn is_cut_off(head: &[u8], body: &[u8]) -> bool {
    const START: &[u8] = b"HTTP/1.";
    if !head.ends_with(b"\r\n\r\n") {
        return head.starts_with(START) || START.starts_with(head);
    }
    let head = String::from_utf8_lossy(head);
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, length)| length.trim().parse().ok());
    length.is_some_and(|length: usize| body.len() < length)
}

async fn post(
    address: SocketAddr,
    path: &str,
    header: &str,
    body: &str,
    patience: Duration,
) -> Result<Vec<u8>, Unheard> {
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         {header}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (budget, is_connected) = (Budget::new(MOST_OF_ORDER), AtomicBool::new(false));
    let answer = timeout(patience, send(address, &request, &budget, &is_connected)).await;
    let is_sent = is_connected.into_inner();
    let answer = answer
        .unwrap_or_else(|_| {
            Err(format!("it has not answered at {address} within {} ms", patience.as_millis()))
        })
        .map_err(|why| Unheard { why, is_sent, is_refused: false })?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(head.map_or(answer.len(), |head| head + 4));
    if is_cut_off(head, body) {
        return Err(cut_off(address));
    }
    if head.get(9..12) == Some(b"200") {
        return Ok(body.to_vec());
    }
    let body = String::from_utf8_lossy(body);
    let line = body.lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|c| !is_hidden(*c)).take(400).collect();
    Err(if line.is_empty() { not_an_agent(address) } else { Unheard::refused(&line) })
}

fn parse<T: DeserializeOwned>(
    answer: &[u8],
    address: SocketAddr,
    path: &str,
) -> Result<T, String> {
    let not_an_agent =
        |why: &str| Err(format!("{address} is not the --admin address of an agent: {why}"));
    if answer.is_empty() {
        return not_an_agent("the program there closed the connection without an answer");
    }
    let status = answer.starts_with(b"HTTP/1.").then(|| answer.get(9..12));
    let status = status.flatten().and_then(|status| str::from_utf8(status).ok()?.parse().ok());
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = head.and_then(|head| answer.get(head + 4..));
    match (status, body) {
        (Some(200), Some(body)) => from_json(body).or_else(|error| {
            if error.is_some_and(|error| error.is_data()) {
                return Err(format!(
                    "the {path} of {address} is not that of gcra-spoa {}; if an agent of another \
                     version answers there, use the 'gcra-spoa' of that version",
                    version::NUMBER
                ));
            }
            not_an_agent(&format!("its {path} is not JSON"))
        }),
        (Some::<u16>(status), _) => {
            not_an_agent(&format!("the HTTP server there answers {path} with {status}"))
        }
        (None, _) => not_an_agent(
            "the program there does not speak HTTP (HAProxy asks the --listen address, and \
             metrics are at that of --admin)",
        ),
    }
}

/// Reads JSON. Its strings have no characters that a terminal would obey or hide, because another
/// program may have written them. The error is `None` if it is not even text.
fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Option<serde_json::Error>> {
    let json = str::from_utf8(json).map_err(|_| None)?;
    serde_json::from_str(&printable_json(json)).map_err(Some)
}

async fn send(
    address: SocketAddr,
    request: &str,
    budget: &Budget,
    is_connected: &AtomicBool,
) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => {
            format!("no answer from {address}: no process listens there")
        }
        _ => format!("no answer from {address}: {error}"),
    };
    let mut stream = TcpStream::connect(reachable(address)).await.map_err(failed)?;
    is_connected.store(true, Ordering::Relaxed);
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    // Ends at the latest when the budget is used up.
    loop {
        let read = stream.read_buf(&mut answer).await.map_err(failed)?;
        if read == 0 {
            return Ok(answer);
        }
        if !budget.take(read) {
            return Err(format!("the answer from {address} is too long"));
        }
    }
}

/// Where to connect to: an agent that listens on all addresses is at the loopback address, too.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::task::JoinHandle;

    use super::*;

    /// Starts a program that gets this request, and sends these bytes, or none and keeps the
    /// connection. Returns its address.
    async fn program(
        request: &'static str,
        answer: Option<&'static str>,
    ) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let program = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 1024];
            let read = stream.read(&mut question).await.unwrap();
            assert!(question[..read].starts_with(request.as_bytes()));
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                None => std::future::pending().await,
            }
        });
        (address, program)
    }

    async fn said(answer: Option<&'static str>) -> String {
        for _ in 0..100 {
            let said = said_once(answer).await;
            // On a slow machine the patience may end before the connection is there.
            if answer.is_some() || said != "no answer from HERE within 100 ms" {
                return said;
            }
        }
        panic!("there is never a connection");
    }

    async fn said_once(answer: Option<&'static str>) -> String {
        let (address, program) = program("GET /status HTTP/1.0\r\n", answer).await;
        // Only for the program that sends nothing is the patience used up.
        let patience = Duration::from_millis(if answer.is_some() { 60_000 } else { 100 });
        let budget = Budget::new(1 << 20);
        let answer = ask::<Vec<u8>>(address, "/status", patience, &budget).await;
        program.abort();
        answer.unwrap_err().replace(&address.to_string(), "HERE")
    }

    #[tokio::test]
    async fn what_is_not_an_agent_is_named_by_what_it_does() {
        for (answer, expected) in [
            (
                Some("HTTP/1.1 404 Not Found\r\n\r\n"),
                "HERE is not the --admin address of an agent: the HTTP server there answers \
                 /status with 404",
            ),
            (
                Some("HTTP/1.1 200 OK\r\n\r\n<html></html>"),
                "HERE is not the --admin address of an agent: its /status is not JSON",
            ),
            (
                Some("HTTP/1.1 200 OK\r\n\r\n{\"up\": true}"),
                "the /status of HERE is not that of gcra-spoa VERSION; if an agent of another \
                 version answers there, use the 'gcra-spoa' of that version",
            ),
            (
                Some("SSH-2.0-OpenSSH_9.6\r\n"),
                "HERE is not the --admin address of an agent: the program there does not speak \
                 HTTP (HAProxy asks the --listen address, and metrics are at that of --admin)",
            ),
            (
                Some(""),
                "HERE is not the --admin address of an agent: the program there closed the \
                 connection without an answer",
            ),
            (
                None,
                "no answer from HERE within 100 ms: the program there accepts connections, but \
                 sends no whole answer",
            ),
        ] {
            let expected = expected.replace("VERSION", version::NUMBER);
            assert_eq!(said(answer).await, expected);
        }
    }

    #[tokio::test]
    async fn an_answer_to_an_action_that_is_cut_off_is_no_refusal() {
        let refused = "HERE is not the --admin address of an agent";
        let unknown = "the connection to HERE has ended without a whole answer";
        for (answer, expected) in [
            ("", unknown),
            ("HTT", unknown),
            ("HTTP/1.1 200 OK\r\nContent-Le", unknown),
            ("HTTP/1.1 200 OK\r\n\r\n[\"do", unknown),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", unknown),
            ("HTTP/1.1 422 No\r\ncontent-length: 9\r\n\r\nthere", unknown),
            ("HTTP/1.1 422 No\r\ncontent-length: 5\r\n\r\nthere", "there"),
            ("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", refused),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", refused),
            ("HTTP/1.1 200 OK\r\n\r\nok", refused),
            ("SSH-2.0-OpenSSH_9.6\r\n", refused),
        ] {
            let start = "POST /actions/block HTTP/1.0\r\n";
            let (address, program) = program(start, Some(answer)).await;
            let minute = Duration::from_secs(60);
            let acted = act::<Vec<String>>(address, "/actions/block", "{}", "token", minute);
            let unheard = acted.await.unwrap_err();
            program.await.unwrap();
            assert_eq!(unheard.why.replace(&address.to_string(), "HERE"), expected, "{answer}");
            assert_eq!(unheard.is_sent, expected == unknown, "{answer}");
            assert_eq!(unheard.is_refused, expected != unknown, "{answer}");
        }
    }

    #[test]
    fn no_string_of_an_answer_is_obeyed_by_a_terminal() {
        let address = "127.0.0.1:9101".parse().unwrap();
        let answer = "HTTP/1.1 200 OK\r\n\r\n{\n\"a\u{9b}\": \"\u{202e}\\u001b[2J\\u2028 é\"\n}";
        let read: std::collections::BTreeMap<String, String> =
            parse(answer.as_bytes(), address, "/status").unwrap();
        assert_eq!(read.into_iter().collect::<Vec<_>>(), [("a?".into(), "??[2J? é".into())]);
        let binary = parse::<String>(b"HTTP/1.1 200 OK\r\n\r\n\"\xff\"", address, "/status");
        assert!(binary.unwrap_err().ends_with(": its /status is not JSON"));
    }

    #[tokio::test]
    async fn a_port_that_is_closed_is_said_to_be() {
        // The socket has the port, and does not listen.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let budget = Budget::new(1 << 20);
        let patience = Duration::from_secs(60);
        let why = ask::<Vec<u8>>(address, "/status", patience, &budget).await.unwrap_err();
        assert_eq!(why, format!("no answer from {address}: no process listens there"));
    }
}
