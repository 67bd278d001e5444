//! Requests to the port of `--admin`, in any pieces: one whole answer or none, of bounded size,
//! and then it ends.
//!
//! An input is the cuts, and then bytes, or the parts of a request.

use std::cell::OnceCell;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use gcra_admin::testing::Admin;
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::{CutStream, bytes};

/// The most bytes that an answer has, that of an agent that nobody asks.
const LARGEST: usize = 64 * 1024;

const STARTS: [&str; 23] = [
    "GET / HTTP/1.1\r\n",
    "GET /metrics HTTP/1.1\r\n",
    "GET /status HTTP/1.0\r\n",
    "HEAD /healthz HTTP/1.1\r\n",
    "GET /readyz?x=1 HTTP/1.1\r\n",
    "POST /metrics HTTP/1.1\r\n",
    "GET http://h/metrics HTTP/1.1\r\n",
    "CONNECT h:80 HTTP/1.1\r\n",
    "OPTIONS * HTTP/1.1\r\n",
    "GET /nowhere HTTP/1.1\r\n",
    "GET /page.js HTTP/1.1\r\n",
    "GET /live?all HTTP/1.1\r\n",
    "GET /history HTTP/1.1\r\n",
    "GET /explain?key=a%2C1 HTTP/1.1\r\n",
    "POST /actions/forgive HTTP/1.1\r\n",
    "POST /actions/exempt HTTP/1.1\r\n",
    "POST /actions/observe?own HTTP/1.1\r\n",
    "GET / HTTP/2.0\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET /\r\n",
    "BREW /%00 HTTP/1.1\r\n",
    "\r\n",
    "GET ",
];

const HEADERS: [&str; 16] = [
    "Host: h\r\n",
    "Host: localhost\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: keep-alive\r\n",
    "Connection: close\r\n",
    "Upgrade: websocket\r\nConnection: upgrade\r\n",
    "Authorization: Bearer fuzz-fuzz-fuzz-fuzz\r\n",
    "Content-Type: application/json\r\n",
    "Content-Length: 22\r\n\r\n{\"key\": \"192.0.2.1\"}  ",
    "x: \r\n y\r\n",
    "A:",
    ": a\r\n",
    "\r\n",
];

thread_local! {
    static ADMIN: OnceCell<Admin> = const { OnceCell::new() };
}

/// One input.
pub fn run(input: &[u8]) {
    // An input that ends early gives zeros, and no error that matters.
    let _ = chosen(&mut Unstructured::new(input));
}

fn request(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    if u.arbitrary()? {
        request.extend_from_slice(u.choose(&STARTS)?.as_bytes());
    }
    while !u.is_empty() {
        match u.arbitrary::<u8>()? % 8 {
            0..5 => request.extend_from_slice(u.choose(&HEADERS)?.as_bytes()),
            5 => request.extend_from_slice(b"\r\n"),
            6 => (0..u.arbitrary::<u8>()?)
                .for_each(|_| request.extend_from_slice(b"name: value\r\n")),
            _ => request.extend_from_slice(bytes(u)?),
        }
    }
    Ok(request)
}

fn chosen(u: &mut Unstructured<'_>) -> Result<()> {
    let cuts = u.arbitrary::<u8>()? % 12;
    let cuts = u.bytes(usize::from(cuts).min(u.len()))?.to_vec();
    let (closes, is_raw) = (u.arbitrary()?, u.ratio(1, 4)?);
    let input = if is_raw { u.bytes(u.len())?.to_vec() } else { request(u)? };
    let admin = ADMIN.with(|admin| admin.get_or_init(|| Admin::new().expect("memory")).clone());
    let is_head = input.starts_with(b"HEAD ");
    let sent = input.len();
    let takes_all = cuts.is_empty();
    let mut stream = CutStream::new(input, cuts, closes);
    // The clock does not stand still: the table is looked through by another thread.
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let ended = runtime.block_on(async {
        // The daemon waits for ten seconds, and a peer that says no more has to be waited for.
        timeout(
            Duration::from_millis(if closes { 10_000 } else { 2 }),
            admin.converse(&mut stream),
        )
        .await
    });
    assert!(ended.is_ok() || !closes, "it waits for a peer that has closed");
    if ended.is_err() {
        return Ok(());
    }
    assert!(stream.output.len() < LARGEST);
    assert!(stream.polls < 1000 + 20 * (sent + stream.output.len()), "{} polls", stream.polls);
    // Hyper may close before a client has taken all of an answer that did not go out at once.
    if takes_all {
        check(&stream.output, is_head);
    }
    Ok(())
}

/// Nothing, or one answer with as many bytes as it says. An interim answer may come first.
fn check(mut output: &[u8], is_head: bool) {
    if let Some(rest) = output.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        output = rest;
    }
    if output.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(output);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { panic!("no whole head: {text}") };
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    let status = status.unwrap_or_else(|| panic!("no answer: {head}"));
    assert!(status.starts_with('4') || ["200", "503"].contains(&status), "{head}");
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    match (length, is_head) {
        (Some(length), false) => assert_eq!(body.len(), length, "{head}"),
        (_, true) | (None, _) => assert_eq!(body, "", "{head}"),
    }
}
