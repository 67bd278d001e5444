//! Requests as bytes, over a connection of their own.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use crate::support::{Client, uninterrupted};

/// An answer: its status, `None` if the connection ended without one, and all that followed.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Option<u16>,
    pub(crate) body: String,
}

impl Answer {
    const NONE: Self = Self { status: None, body: String::new() };
}

/// Where a client connects to, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) server: SocketAddr,
    pub(crate) source: IpAddr,
    /// A balancer says the source in the PROXY protocol.
    pub(crate) balancer: bool,
}

impl Way {
    /// A connection on which the request was sent.
    fn send(self, bytes: &[u8]) -> io::Result<TcpStream> {
        let client = match self.balancer {
            true => Client::new(self.server),
            false => Client::from(self.server, self.source),
        };
        let mut connection = client.connect()?;
        if self.balancer {
            let (family, target) = match self.source {
                IpAddr::V4(_) => ("TCP4", "192.0.2.1"),
                IpAddr::V6(_) => ("TCP6", "2001:db8::1"),
            };
            let line = format!("PROXY {family} {} {target} 4711 80\r\n", self.source);
            connection.write_all(line.as_bytes())?;
        }
        // HAProxy may have answered, and ended the connection, before it has read all.
        let _ = connection.write_all(bytes);
        Ok(connection)
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(self, request: &str) -> Answer {
        match Form::of(request) {
            Form::Http1(bytes) => {
                let connection = self.send(&bytes).expect("HAProxy listens");
                http1(connection, request.starts_with("HEAD ")).unwrap_or(Answer::NONE)
            }
            Form::Http2(bytes) => {
                let connection = self.send(&bytes).expect("HAProxy listens");
                http2(connection).unwrap_or(Answer::NONE)
            }
        }
    }

    /// Sends a request, waits until `holds`, and closes the connection.
    pub(crate) fn leave(self, request: &str, holds: impl FnOnce()) {
        let (Form::Http1(bytes) | Form::Http2(bytes)) = Form::of(request);
        let connection = self.send(&bytes).expect("HAProxy listens");
        holds();
        drop(connection);
    }
}

enum Form {
    Http1(Vec<u8>),
    Http2(Vec<u8>),
}

impl Form {
    /// As [`Row::ask`](super::row::Row::ask) says.
    fn of(request: &str) -> Self {
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        if let Some(line) = line.strip_suffix(" HTTP/2") {
            return Self::Http2(http2_frames(line, fields, body));
        }
        let mut head = head.replace('\n', "\r\n");
        if !line.contains(" HTTP/") {
            let has = |name: &str| {
                fields.lines().any(|field| {
                    field.split(':').next().is_some_and(|it| it.eq_ignore_ascii_case(name))
                })
            };
            head.insert_str(line.len(), " HTTP/1.1");
            if !has("host") {
                head.push_str("\r\nHost: shop.example");
            }
            if !body.is_empty() && !has("content-length") && !has("transfer-encoding") {
                head.push_str(&format!("\r\nContent-Length: {}", body.len()));
            }
        }
        head.push_str("\r\n\r\n");
        Self::Http1([head.as_bytes(), body.replace('\n', "\r\n").as_bytes()].concat())
    }
}

fn http1(mut connection: TcpStream, is_head: bool) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").map(|at| at + 4);
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let status: u16 = head
                .split(' ')
                .nth(1)
                .and_then(|it| it.parse().ok())
                .ok_or(io::ErrorKind::InvalidData)?;
            if status == 100 {
                bytes.drain(..end);
                continue;
            }
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.and_then(|it| it.trim().parse::<usize>().ok()).unwrap_or(0);
            if is_head || bytes.len() >= end + length {
                let body = String::from_utf8_lossy(&bytes[end..]).into_owned();
                return Ok(Answer { status: Some(status), body });
            }
        }
        let mut piece = [0; 65_536];
        match uninterrupted(|| connection.read(&mut piece))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

/// A request in HTTP/2: the preface, and frames on stream 1. Fields are not compressed (RFC 7541,
/// section 6.2.2).
fn http2_frames(line: &str, fields: &str, body: &str) -> Vec<u8> {
    let (method, target) = line.split_once(' ').expect("a method and a target");
    let host = fields.lines().find_map(|field| field.strip_prefix("Host: "));
    let pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":path", target),
        (":authority", host.unwrap_or("shop.example")),
    ];
    let fields = fields.lines().filter(|field| !field.starts_with("Host: ")).map(|field| {
        let (name, value) = field.split_once(": ").expect("a name and a value");
        (name, value)
    });
    let mut block = Vec::new();
    for (name, value) in pseudo.into_iter().chain(fields) {
        block.push(0);
        for text in [name.to_ascii_lowercase().as_str(), value] {
            block
                .push(u8::try_from(text.len()).ok().filter(|it| *it < 127).expect("a short text"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
        bytes.extend_from_slice(payload);
    };
    frame(4, 0, 0, &[]);
    // END_HEADERS, and END_STREAM on the last.
    frame(1, 4 | u8::from(body.is_empty()), 1, &block);
    if !body.is_empty() {
        frame(0, 1, 1, body.as_bytes());
    }
    bytes
}

fn http2(mut connection: TcpStream) -> io::Result<Answer> {
    let mut answer = Answer::NONE;
    loop {
        let mut head = [0; 9];
        if connection.read_exact(&mut head).is_err() {
            return Ok(answer);
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
        connection.read_exact(&mut payload)?;
        match (head[3], head[8]) {
            (0, 1) => answer.body.push_str(&String::from_utf8_lossy(&payload)),
            (1, 1) => answer.status = status_in(&payload),
            // RST_STREAM and GOAWAY.
            (3 | 7, _) => return Ok(answer),
            _ => {}
        }
        if head[8] == 1 && head[3] < 2 && head[4] & 1 == 1 {
            return Ok(answer);
        }
    }
}

/// The field `:status`, which comes first: from the static table, or as a text behind its name.
fn status_in(block: &[u8]) -> Option<u16> {
    const KNOWN: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match *block {
        [index @ 0x88..=0x8e, ..] => Some(KNOWN[usize::from(index - 0x88)]),
        [_, 3, a, b, c, ..] => std::str::from_utf8(&[a, b, c]).ok()?.parse().ok(),
        _ => None,
    }
}
