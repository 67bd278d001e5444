//! A TCP proxy on the loopback interface that delays, holds back or cuts what it passes on.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A proxy for one server. Its connections end when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: SocketAddr,
    /// How long each piece is held back on its way, in each direction.
    delay_us: AtomicU64,
    /// Pieces stay here, and pass when this ends.
    holds: AtomicBool,
    /// Which requests stay here alone.
    holds_these: Mutex<fn(&str) -> bool>,
    /// How many of these there were.
    held: AtomicU64,
    /// Connections end, and new ones end at once.
    cuts: AtomicBool,
    ended: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            target,
            delay_us: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            holds_these: Mutex::new(|_| false),
            held: AtomicU64::new(0),
            cuts: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let of_listener = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if of_listener.ended.load(Ordering::Relaxed) {
                    break;
                }
                // A server that is not there: the client sees its connection end.
                let _ = State::connect(&of_listener, client);
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds each piece back for this long, in each direction.
    pub fn delay(&self, by: Duration) {
        self.state.delay_us.store(by.as_micros().try_into().unwrap(), Ordering::Relaxed);
    }

    /// Passes nothing on until this is called with `false`; then what has come meanwhile, too.
    pub fn hold(&self, holds: bool) {
        self.state.holds.store(holds, Ordering::Relaxed);
    }

    /// Passes all on but these commands, each as one text, and what comes with them.
    pub fn hold_these(&self, are_held: fn(&str) -> bool) {
        *self.state.holds_these.lock().unwrap() = are_held;
    }

    /// How many requests [`hold_these`](Self::hold_these) has held so far.
    pub fn held(&self) -> u64 {
        self.state.held.load(Ordering::Relaxed)
    }

    /// Ends all connections, and new ones at once until this is called with `false`.
    pub fn cut(&self, cuts: bool) {
        self.state.cuts.store(cuts, Ordering::Relaxed);
        if cuts {
            self.state.end_all();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        self.state.end_all();
        // The listener's thread notices it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn connect(state: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        if state.cuts.load(Ordering::Relaxed) {
            return Ok(());
        }
        let server = TcpStream::connect(state.target)?;
        let both = [(client.try_clone()?, server.try_clone()?), (server, client)];
        for (from, to) in both {
            to.set_nodelay(true)?;
            state.connections.lock().unwrap().push(from.try_clone()?);
            let state = state.clone();
            let is_request = to.peer_addr()? == state.target;
            thread::spawn(move || state.pass_on(from, to, is_request));
        }
        Ok(())
    }

    fn is_held(&self, piece: &[u8]) -> bool {
        let are_held = *self.holds_these.lock().unwrap();
        // Commands that are sent one after the other may come as one piece.
        let text = String::from_utf8_lossy(piece);
        !self.ended.load(Ordering::Relaxed) && text.split_inclusive("\r\n*").any(are_held)
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, is_request: bool) {
        let mut bytes = [0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            thread::sleep(Duration::from_micros(self.delay_us.load(Ordering::Relaxed)));
            while self.holds.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            if is_request && self.is_held(&bytes[..count]) {
                self.held.fetch_add(1, Ordering::Relaxed);
                while self.is_held(&bytes[..count]) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn end_all(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
