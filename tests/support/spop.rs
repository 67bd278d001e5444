//! HAProxy's end of a connection, frame by frame.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{Action, Frame, FrameId, Scope, Status, Value, decode};

use super::{PATIENCE, uninterrupted};

/// The messages of one NOTIFY: their names and args.
pub type Messages<'a> = &'a [(&'a str, &'a [(&'a str, Value<'a>)])];

#[derive(Debug)]
pub struct Spop {
    stream: TcpStream,
    received: Vec<u8>,
    next_stream: u64,
}

impl Spop {
    /// Connects again if the agent ends the connection: on a busy machine the HELLO may come later
    /// than it waits for one.
    pub fn connect(address: &str) -> Self {
        let start = Instant::now();
        loop {
            if let Some(spop) = Self::try_connect(address) {
                return spop;
            }
            assert!(start.elapsed() < PATIENCE, "the agent ends each connection");
        }
    }

    fn try_connect(address: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut out = [0; 256];
        let length = encode_hello(&mut out, &HelloFields::default()).unwrap();
        stream.write_all(&out[..length]).ok()?;
        let mut spop = Self { stream, received: Vec::new(), next_stream: 1 };
        spop.receive().ok()?;
        let is_in_time = spop.frame(|frame| match frame {
            Frame::AgentHello(_) => true,
            Frame::AgentDisconnect(why) if why.status == Status::TIMEOUT => false,
            other => panic!("{other:?}"),
        });
        is_in_time.then_some(spop)
    }

    /// The socket, past the HELLO.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The variables that one NOTIFY sets.
    pub fn ask(&mut self, messages: Messages<'_>) -> Vec<(Scope, String, bool)> {
        self.ask_all(&[messages]).remove(0)
    }

    /// The same, for several that are sent together.
    pub fn ask_all(&mut self, notifies: &[Messages<'_>]) -> Vec<Vec<(Scope, String, bool)>> {
        let all = self.ask_all_by(notifies, |scope, name, value| match value {
            Value::Bool(bool) => Some((scope, name, bool)),
            // An order says it, also where `answer` does not name it.
            Value::String(b"blocked") if name == "reason" => None,
            other => panic!("{name}: {other:?}"),
        });
        all.into_iter().map(|set| set.into_iter().flatten().collect()).collect()
    }

    /// The variables that one NOTIFY sets, each as `read` understands it. A variable that is unset
    /// has the value null.
    pub fn ask_by<T>(
        &mut self,
        messages: Messages<'_>,
        read: impl FnMut(Scope, String, Value<'_>) -> T,
    ) -> Vec<T> {
        self.ask_all_by(&[messages], read).remove(0)
    }

    fn ask_all_by<T>(
        &mut self,
        notifies: &[Messages<'_>],
        mut read: impl FnMut(Scope, String, Value<'_>) -> T,
    ) -> Vec<Vec<T>> {
        let first = self.next_stream;
        let mut bytes = Vec::new();
        for messages in notifies {
            let mut out = [0; 4096];
            let id = FrameId { stream: self.next_stream, frame: 1 };
            let mut writer = NotifyWriter::new(&mut out, id).unwrap();
            for (name, args) in *messages {
                writer.message(name.as_bytes()).unwrap();
                args.iter().for_each(|(name, value)| writer.arg(name.as_bytes(), *value).unwrap());
            }
            let length = writer.finish();
            bytes.extend_from_slice(&out[..length]);
            self.next_stream += 2;
        }
        self.stream.write_all(&bytes).unwrap();
        (first..self.next_stream)
            .step_by(2)
            .map(|stream| {
                self.frame(|frame| {
                    let Frame::Ack(ack) = frame else { panic!("{frame:?}") };
                    assert_eq!(ack.id, FrameId { stream, frame: 1 });
                    ack.actions()
                        .map(|action| {
                            let (scope, name, value) = match action {
                                Action::SetVar { scope, name, value } => (scope, name, value),
                                Action::UnsetVar { scope, name } => (scope, name, Value::Null),
                            };
                            read(scope, String::from_utf8(name.to_vec()).unwrap(), value)
                        })
                        .collect()
                })
            })
            .collect()
    }

    /// Whether one message with these args is blocked.
    pub fn is_blocked(&mut self, args: &[(&str, Value<'_>)]) -> bool {
        match &self.ask(&[("check", args)])[..] {
            [(Scope::Transaction, name, blocked)] if name == "blocked" => *blocked,
            other => panic!("{other:?}"),
        }
    }

    /// How many of `requests` with these args, sent together, are let through.
    pub fn allowed(&mut self, args: &[(&str, Value<'_>)], requests: usize) -> usize {
        let message = [("check", args)];
        let answers = self.ask_all(&vec![&message[..]; requests]);
        answers.iter().filter(|variables| matches!(&variables[..], [(_, _, false)])).count()
    }

    /// The next frame, looked at by `read`.
    fn frame<T>(&mut self, read: impl FnOnce(&Frame<'_>) -> T) -> T {
        loop {
            if let Some((frame, used)) = decode(&self.received, 16380).unwrap() {
                let result = read(&frame);
                self.received.drain(..used);
                return result;
            }
            self.receive().expect("an answer");
        }
    }

    /// Waits for further bytes. It is an error if the agent ends the connection.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 65_536];
        let filled = uninterrupted(|| self.stream.read(&mut buffer))?;
        self.received.extend_from_slice(&buffer[..filled]);
        if filled > 0 { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}
