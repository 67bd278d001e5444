//! A load generator: one thread, any number of connections, every ACK checked.
//!
//! All NOTIFYs have one length, and so have all ACKs: a stream id takes four bytes, the frame id
//! one. They are made before the clock runs. An ACK must name a NOTIFY that is in flight on its
//! connection, in any order, and set txn.blocked; by that each NOTIFY is answered exactly once.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::epoll::{self, EventData, EventFlags};
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{Action, Frame, FrameId, Scope, Value, decode};

/// The bytes of one NOTIFY here.
pub(crate) const NOTIFY_BYTES: usize = 29;

/// Stream ids have four bytes from 264 432 on, as in a HAProxy that has run for a while.
const FIRST_STREAM: u64 = 300_000;

/// The bytes before the stream id in a NOTIFY, and in an ACK: LENGTH, type, flags.
const HEAD: usize = 9;
const ACK_HEAD: &[u8; HEAD] = b"\0\0\0\x16\x67\0\0\0\x01";
const ID: usize = 4;
const ACK_TAIL: &[u8] = b"\x01\x01\x03\x02\x07blocked";
const ACK_BYTES: usize = HEAD + ID + ACK_TAIL.len() + 1;

const KEYS: u64 = 1_000_000;
const MAX_FRAME_SIZE: u32 = 16_380;
const MAX_WRITE: usize = 128 * 1024;
const READ_BYTES: usize = 256 * 1024;

/// How long an agent may leave NOTIFYs unanswered before a run has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How NOTIFYs are offered on each connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Offer {
    /// A burst of this many, as fast as they are taken.
    Burst(usize),
    /// Always this many in flight: for each ACK the next NOTIFY.
    Window(usize),
}

/// Which parts of an ACK are checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Check {
    All,
    /// All but the stream id. The oldest NOTIFY in flight counts as answered.
    ExceptId,
}

/// The figures of one run.
pub(crate) struct Outcome {
    pub notifies: u64,
    pub elapsed: Duration,
    /// From the write of a NOTIFY to the read of its ACK, in ns. In a burst it says only how long
    /// the burst was.
    pub latency: Histogram<u64>,
}

trait Socket: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Socket for S {}

pub(crate) struct Generator {
    connections: Vec<Connection>,
    epoll: OwnedFd,
    offer: Offer,
    clock: Instant,
}

struct Connection {
    socket: Box<dyn Socket>,
    check: Check,
    /// NOTIFYs, one after another, that are sent again from the first when all have been.
    notifies: Vec<u8>,
    /// For each of them, when it was sent, by the generator's clock; [`IDLE`] when it is not in
    /// flight.
    sent_at: Vec<u64>,
    /// How many may be sent, how many bytes have been, and how many are answered.
    offered: usize,
    sent: usize,
    answered: usize,
    /// Whether it waits until more can be written.
    full: bool,
    input: Vec<u8>,
    filled: usize,
}

const IDLE: u64 = u64::MAX;

/// The fault of an agent, as a sentence.
pub(crate) type Fault = String;

impl Generator {
    /// Opens the connections (`IP:PORT` or `unix:/PATH`) and says HELLO on each.
    pub(crate) fn connect(
        address: &str,
        connections: usize,
        offer: Offer,
        check: Check,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let notifies = match offer {
            Offer::Burst(notifies) => notifies,
            Offer::Window(_) if crate::asked::quick() => 1 << 10,
            Offer::Window(_) => 1 << 16,
        };
        let open = |index: usize| {
            let socket = connect(address)?;
            epoll::add(&epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN)?;
            Ok(Connection {
                socket,
                check,
                notifies: make_notifies(notifies, index as u64 + 1),
                sent_at: vec![IDLE; notifies],
                offered: 0,
                sent: 0,
                answered: 0,
                full: false,
                input: vec![0; READ_BYTES],
                filled: 0,
            })
        };
        let connections = (0..connections).map(open).collect::<io::Result<_>>()?;
        Ok(Self { connections, epoll, offer, clock: Instant::now() })
    }

    /// Offers the load for the duration: whole bursts, or a window that runs empty at the end.
    pub(crate) fn run(&mut self, duration: Duration) -> Result<Outcome, Fault> {
        let start = Instant::now();
        let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        let mut notifies = 0;
        loop {
            notifies += self.offer(start, duration, &mut latency)?;
            let elapsed = start.elapsed();
            if elapsed >= duration {
                return Ok(Outcome { notifies, elapsed, latency });
            }
        }
    }

    /// One burst on each connection, or windows until the time is over. Returns the NOTIFYs that
    /// were answered.
    fn offer(
        &mut self,
        start: Instant,
        duration: Duration,
        latency: &mut Histogram<u64>,
    ) -> Result<u64, Fault> {
        let (Offer::Burst(begin) | Offer::Window(begin)) = self.offer;
        let mut in_flight = 0;
        for index in 0..self.connections.len() {
            self.connections[index].offered += begin;
            in_flight += begin;
            self.send(index)?;
        }
        let mut answered = 0;
        let mut events = Vec::with_capacity(64);
        while in_flight > 0 {
            events.clear();
            let patience = PATIENCE.try_into().unwrap();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience))
                .map_err(|error| error.to_string())?;
            if events.is_empty() {
                return Err(format!(
                    "{in_flight} NOTIFYs were not answered in {} s",
                    PATIENCE.as_secs()
                ));
            }
            for event in &events {
                let index = event.data.u64() as usize;
                let connection = &mut self.connections[index];
                // The event is packed, so a field cannot be borrowed.
                let flags = event.flags;
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    let count = connection.receive(self.clock, latency)?;
                    answered += count as u64;
                    in_flight -= count;
                    if matches!(self.offer, Offer::Window(_)) && start.elapsed() < duration {
                        connection.offered += count;
                        in_flight += count;
                    }
                }
                self.send(index)?;
            }
        }
        Ok(answered)
    }

    fn send(&mut self, index: usize) -> Result<(), Fault> {
        let connection = &mut self.connections[index];
        connection.send(self.clock)?;
        let full = connection.sent < connection.offered * NOTIFY_BYTES;
        if full != connection.full {
            connection.full = full;
            let flags = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(
                &self.epoll,
                &connection.socket,
                EventData::new_u64(index as u64),
                flags,
            )
            .map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Connection {
    /// One write of the bytes that may be sent.
    fn send(&mut self, clock: Instant) -> Result<(), Fault> {
        let from = self.sent % self.notifies.len();
        let left = self.offered * NOTIFY_BYTES - self.sent;
        let to = self.notifies.len().min(from + left.min(MAX_WRITE));
        if from == to {
            return Ok(());
        }
        let now = nanoseconds(clock);
        let sent = match self.socket.write(&self.notifies[from..to]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            sent => sent.map_err(|error| format!("a NOTIFY could not be sent: {error}"))?,
        };
        self.sent += sent;
        // Those whose first byte is sent.
        for sent_at in
            &mut self.sent_at[from.div_ceil(NOTIFY_BYTES)..(from + sent).div_ceil(NOTIFY_BYTES)]
        {
            if *sent_at != IDLE {
                return Err("a NOTIFY was not answered when many after it were".to_owned());
            }
            *sent_at = now;
        }
        Ok(())
    }

    /// One read. Returns how many NOTIFYs were answered.
    fn receive(&mut self, clock: Instant, latency: &mut Histogram<u64>) -> Result<usize, Fault> {
        let read = self.socket.read(&mut self.input[self.filled..]);
        let read = read.map_err(|error| format!("reading ACKs: {error}"))?;
        if read == 0 {
            return Err("the agent closed the connection".to_owned());
        }
        let now = nanoseconds(clock);
        self.filled += read;
        let (mut used, mut count) = (0, 0);
        while let Some((stream, length)) = next_ack(&self.input[used..self.filled])? {
            used += length;
            let slot = match self.check {
                Check::All => (stream.wrapping_sub(FIRST_STREAM)) as usize,
                Check::ExceptId => self.answered % self.sent_at.len(),
            };
            let sent_at = self
                .sent_at
                .get_mut(slot)
                .map_or(IDLE, |sent_at| std::mem::replace(sent_at, IDLE));
            if sent_at == IDLE {
                return Err(format!(
                    "an ACK for stream {stream}, of which no NOTIFY is in flight"
                ));
            }
            latency.saturating_record(now - sent_at);
            self.answered += 1;
            count += 1;
        }
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(count)
    }
}

/// The stream id of the first whole ACK, and its length.
#[inline]
fn next_ack(input: &[u8]) -> Result<Option<(u64, usize)>, Fault> {
    // The form in which nearly all agents write it.
    if let Some(ack) = input.first_chunk::<ACK_BYTES>()
        && ack[..HEAD] == *ACK_HEAD
        && ack[HEAD] >= 0xf0
        && ack[HEAD + 1] >= 0x80
        && ack[HEAD + 2] >= 0x80
        && ack[HEAD + 3] < 0x80
        && ack[HEAD + ID..ACK_BYTES - 1] == *ACK_TAIL
        && matches!(ack[ACK_BYTES - 1], 0x01 | 0x11)
    {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| u64::from(ack[HEAD + at]));
        return Ok(Some((a + (b << 4) + (c << 11) + (d << 18), ACK_BYTES)));
    }
    match decode(input, MAX_FRAME_SIZE).map_err(|error| format!("not a frame: {error}"))? {
        None => Ok(None),
        Some((Frame::Ack(ack), length)) => {
            let is_right = ack.id.frame == 1
                && ack.actions().eq([Action::SetVar {
                    scope: Scope::Transaction,
                    name: b"blocked",
                    value: Value::Bool(false),
                }]);
            if is_right {
                Ok(Some((ack.id.stream, length)))
            } else {
                Err(format!("a wrong ACK: {ack:?}"))
            }
        }
        Some((other, _)) => Err(format!("not an ACK: {other:?}")),
    }
}

/// Frames with one message and one IPv4 arg, as HAProxy's usual configuration, of random keys.
fn make_notifies(count: usize, mut random: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * NOTIFY_BYTES);
    for stream in (FIRST_STREAM..).take(count) {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = u32::try_from(((random >> 32) * KEYS) >> 32).unwrap();
        let mut out = [0; 64];
        let mut notify = NotifyWriter::new(&mut out, FrameId { stream, frame: 1 }).unwrap();
        notify.message(b"check").unwrap();
        notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + key))).unwrap();
        let length = notify.finish();
        assert_eq!(length, NOTIFY_BYTES, "stream {stream}");
        bytes.extend_from_slice(&out[..length]);
    }
    bytes
}

/// A connection past its HELLO.
fn connect(address: &str) -> io::Result<Box<dyn Socket>> {
    if let Some(path) = address.strip_prefix("unix:") {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        greet(&mut socket)?;
        socket.set_nonblocking(true)?;
        return Ok(Box::new(socket));
    }
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    greet(&mut socket)?;
    socket.set_nonblocking(true)?;
    Ok(Box::new(socket))
}

fn greet(socket: &mut (impl Read + Write)) -> io::Result<()> {
    let mut buffer = [0; 512];
    let fields = HelloFields {
        max_frame_size: MAX_FRAME_SIZE,
        engine_id: Some("0a1b2c3d-4e5f-4a5b-8c7d-9e8f7a6b5c4d"),
        ..HelloFields::default()
    };
    let length = encode_hello(&mut buffer, &fields).unwrap();
    socket.write_all(&buffer[..length])?;
    let mut filled = 0;
    loop {
        let read = socket.read(&mut buffer[filled..])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        filled += read;
        match decode(&buffer[..filled], MAX_FRAME_SIZE) {
            Ok(None) => {}
            Ok(Some((Frame::AgentHello(_), _))) => return Ok(()),
            other => return Err(io::Error::other(format!("not an AGENT-HELLO: {other:?}"))),
        }
    }
}

fn nanoseconds(clock: Instant) -> u64 {
    clock.elapsed().as_nanos() as u64
}
