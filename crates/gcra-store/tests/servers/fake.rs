//! A server of our own, for answers that a real one does not give.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use redis::{Parser, Value};

/// Answers each command with the bytes that `answer` returns for it and for the server's port. The
/// words of the command have spaces between them. Returns the port, and the bytes that could be
/// sent so far.
///
/// Like a real server it tells commands apart, of which one read may bring several or a part, and
/// serves a connection while others are open.
pub fn serve(
    answer: impl FnMut(&str, u16) -> Vec<u8> + Send + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (answer, sent) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer, count) = (stream.unwrap(), answer.clone(), count.clone());
            thread::spawn(move || {
                let mut parser = Parser::new();
                while let Ok(Value::Array(words)) = parser.parse_value(&stream) {
                    let words: Vec<_> = words.iter().map(text).collect();
                    let bytes = (answer.lock().unwrap())(&words.join(" "), port);
                    if !send(&stream, &bytes, &count) {
                        break;
                    }
                }
            });
        }
    });
    (port, sent)
}

/// Whether all could be sent.
fn send(mut stream: &TcpStream, mut rest: &[u8], count: &AtomicUsize) -> bool {
    while let Ok(written @ 1..) = stream.write(rest) {
        count.fetch_add(written, Ordering::Relaxed);
        rest = &rest[written..];
    }
    rest.is_empty()
}

fn text(word: &Value) -> String {
    match word {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}
