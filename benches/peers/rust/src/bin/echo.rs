//! The limit of the machine: one thread, epoll, nothing parsed. For as many bytes as a NOTIFY has
//! it sends the bytes of one ACK, always the same. The size of a NOTIFY is the second argument.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use rustix::event::epoll;

const HELLO: &[u8] =
    b"\0\0\0\x40\x65\0\0\0\x01\0\0\x07version\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\
    \x0ccapabilities\x08\x0apipelining";
/// The stream id is any of four bytes.
const ACK: &[u8; 26] = b"\0\0\0\x16\x67\0\0\0\x01\xf0\x80\x80\x00\x01\x01\x03\x02\x07blocked\x01";

const LISTENER: u64 = 0;

trait Socket: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Socket for S {}

struct Connection {
    socket: Box<dyn Socket>,
    greeted: bool,
    /// Bytes of the NOTIFY that has not come whole.
    begun: usize,
    /// Bytes of answers that are to be sent, and how many bytes of an ACK were sent last.
    owed: usize,
    phase: usize,
}

fn main() -> io::Result<()> {
    let args: Vec<_> = std::env::args().collect();
    let (address, notify_bytes) = (&args[1], args[2].parse().expect("the bytes of a NOTIFY"));
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut accept: Box<dyn FnMut() -> io::Result<Box<dyn Socket>>> =
        match address.strip_prefix("unix:") {
            Some(path) => {
                let listener = UnixListener::bind(path)?;
                println!("listening on {address}");
                epoll::add(
                    &epoll,
                    &listener,
                    epoll::EventData::new_u64(LISTENER),
                    epoll::EventFlags::IN,
                )?;
                Box::new(move || {
                    let socket = listener.accept()?.0;
                    socket.set_nonblocking(true)?;
                    Ok(Box::new(socket))
                })
            }
            None => {
                let listener = TcpListener::bind(address)?;
                println!("listening on {}", listener.local_addr()?);
                epoll::add(
                    &epoll,
                    &listener,
                    epoll::EventData::new_u64(LISTENER),
                    epoll::EventFlags::IN,
                )?;
                Box::new(move || {
                    let socket = listener.accept()?.0;
                    socket.set_nonblocking(true)?;
                    socket.set_nodelay(true)?;
                    Ok(Box::new(socket))
                })
            }
        };

    let mut connections = HashMap::new();
    let mut next = LISTENER + 1;
    let acks = ACK.repeat(8192);
    let mut input = vec![0; 64 * 1024];
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let key = event.data.u64();
            if key == LISTENER {
                let socket = accept()?;
                epoll::add(
                    &epoll,
                    &socket,
                    epoll::EventData::new_u64(next),
                    epoll::EventFlags::IN,
                )?;
                connections.insert(
                    next,
                    Connection { socket, greeted: false, begun: 0, owed: 0, phase: 0 },
                );
                next += 1;
                continue;
            }
            let connection = connections.get_mut(&key).expect("it is open");
            let waited = connection.owed > 0;
            if connection.turn(&mut input, &acks, notify_bytes).is_err() {
                connections.remove(&key);
            } else if waited != (connection.owed > 0) {
                // Nothing is read while answers wait.
                let flags = if waited { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
                epoll::modify(&epoll, &connection.socket, epoll::EventData::new_u64(key), flags)?;
            }
        }
    }
}

impl Connection {
    fn turn(&mut self, input: &mut [u8], acks: &[u8], notify_bytes: usize) -> io::Result<()> {
        if self.owed == 0 {
            let read = self.socket.read(input)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if !self.greeted {
                // The HELLO comes alone, because its sender waits for the answer.
                self.greeted = true;
                return self.socket.write_all(HELLO);
            }
            self.begun += read;
            self.owed = self.begun / notify_bytes * ACK.len();
            self.begun %= notify_bytes;
        }
        if self.owed == 0 {
            return Ok(());
        }
        let end = acks.len().min(self.phase + self.owed);
        match self.socket.write(&acks[self.phase..end]) {
            Ok(sent) => {
                self.owed -= sent;
                self.phase = (self.phase + sent) % ACK.len();
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
