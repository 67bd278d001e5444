//! The application behind HAProxy. It is as lenient as many frameworks, all at once. Of several
//! fields with one name it reads the first, and `_` and `-` in names are the same. Other headers
//! can name the method and the path, and a path may be spelled in any way.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// A running application. It answers
///
/// * 401 to `/login`, unless the field `Password` or the body says `right`;
/// * 401 to `/members`, without a field `Authorization`;
/// * 200 to all else, with the tokens in the field `Costs` as `X-Tokens`.
///
/// The body of each answer says what it saw: `method: GET`, `path: /api`, `body: 300` (bytes), and
/// each field with the name that a CGI program would see: `x-api-key: k1`. Requests with the field
/// `Slowly` have no answer while the application is [held](Self::hold).
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    got: AtomicUsize,
    /// Locked while slow requests have no answer.
    slow: Mutex<()>,
}

impl Application {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let common = shared.clone();
        // It ends with the test program.
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let common = common.clone();
                thread::spawn(move || serve(&connection, &common));
            }
        });
        Self { address, shared }
    }

    /// How many requests it has got.
    pub(crate) fn got(&self) -> usize {
        self.shared.got.load(Ordering::Relaxed)
    }

    /// Slow requests get no answer until the value is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.shared.slow.lock().expect("no panic")
    }
}

fn serve(connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut connection = connection;
    while let Some(request) = Seen::read(&mut reader)? {
        shared.got.fetch_add(1, Ordering::Relaxed);
        if request.fields.contains_key("slowly") {
            drop(shared.slow.lock());
        }
        connection.write_all(request.answer().as_bytes())?;
    }
    Ok(())
}

struct Seen {
    method: String,
    path: String,
    /// By the name that a CGI program would see, in lower case.
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Seen {
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let line = line(reader)?;
        if !line.contains(' ') {
            return Ok(None);
        }
        let mut fields = BTreeMap::new();
        let mut has_chunks = false;
        loop {
            let line = self::line(reader)?;
            let Some((name, value)) = line.split_once(':') else { break };
            let name = name.to_ascii_lowercase();
            has_chunks |= name == "transfer-encoding";
            let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            fields.entry(name).or_insert_with(|| value.trim().to_owned());
        }
        let mut body = Vec::new();
        if has_chunks {
            loop {
                let size = usize::from_str_radix(self::line(reader)?.trim(), 16).unwrap_or(0);
                take(reader, size, &mut body)?;
                self::line(reader)?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = fields.get("content-length") {
            take(reader, length.parse().unwrap_or(0), &mut body)?;
        }
        let other = |name: &str| fields.get(name).cloned();
        let methods =
            ["x-http-method-override", "x-http-method", "x-method-override", "x-http-verb"];
        let method = methods.iter().find_map(|name| other(name));
        let method = method.unwrap_or_else(|| line.split(' ').next().unwrap_or("").to_owned());
        let target = ["x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri"]
            .iter()
            .find_map(|name| other(name));
        let target = target.unwrap_or_else(|| target_of(&line));
        Ok(Some(Self { method, path: meant(&target), fields, body }))
    }

    fn answer(&self) -> String {
        let says_right = |name: &str| self.fields.get(name).is_some_and(|it| it == "right");
        let has_right = says_right("password") || self.body.ends_with(b"right");
        let status = match self.path.as_str() {
            "/login" if !has_right => "401 Unauthorized",
            "/members" if !self.fields.contains_key("authorization") => "401 Unauthorized",
            _ => "200 OK",
        };
        let mut body = format!("method: {}\npath: {}\n", self.method, self.path);
        for (name, value) in &self.fields {
            body.push_str(&format!("{name}: {value}\n"));
        }
        body.push_str(&format!("body: {}\n", self.body.len()));
        let tokens = self.fields.get("costs").map(|costs| format!("X-Tokens: {costs}\r\n"));
        let tokens = tokens.unwrap_or_default();
        let length = if self.method == "HEAD" { 0 } else { body.len() };
        let head = format!("HTTP/1.1 {status}\r\n{tokens}Content-Length: {length}\r\n\r\n");
        if self.method == "HEAD" { head } else { head + &body }
    }
}

fn target_of(line: &str) -> String {
    line.split(' ').nth(1).unwrap_or("").to_owned()
}

fn line(reader: &mut impl io::BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    reader.read_until(b'\n', &mut bytes)?;
    // A byte is a character here, whatever its encoding is.
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn take(reader: &mut impl io::Read, size: usize, body: &mut Vec<u8>) -> io::Result<()> {
    let begun = body.len();
    reader.take(u64::try_from(size).unwrap_or(u64::MAX)).read_to_end(body)?;
    if body.len() - begun == size { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The path that a target means, to someone who is lenient.
fn meant(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or("");
    let path = match path.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => path,
    };
    let decoded = decoded(path).to_lowercase().replace('\\', "/");
    let mut parts = Vec::new();
    for part in decoded.split('/') {
        let part = part.split([';', '\0', '?', '#']).next().unwrap_or("");
        let part = part.trim_matches(|c: char| c.is_ascii_whitespace() || c.is_ascii_control());
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn decoded(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        result.push_str(before);
        let digits = after.get(..2).and_then(|it| u8::from_str_radix(it, 16).ok());
        match digits {
            Some(byte) => {
                result.push(char::from(byte));
                rest = &after[2..];
            }
            None => {
                result.push('%');
                rest = after;
            }
        }
    }
    result + rest
}

#[test]
fn the_application_is_lenient() {
    for target in [
        "/api",
        "//api",
        "/API/",
        "/%61pi",
        "/./api",
        "/x/../api",
        "/x/..;/api",
        "/;x/api",
        "\\api",
        "/%2fapi",
        "/api;v=1",
        "http://shop.example/api?q",
        "/x%2f..%5capi",
        "/api%20",
        "/api%00x",
    ] {
        assert_eq!(meant(target), "/api", "{target}");
    }
    assert_eq!(meant("/api%zz"), "/api%zz");
    assert_eq!(meant("http://shop.example"), "/");
}
