//! Counts what an agent allocates while it answers. The client runs on another thread, whose
//! allocations are not counted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use allocation_counter::measure;
use spop_agent::{Agent, Handler};
use spop_codec::haproxy::{HelloFields, encode_hello};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(300);

/// How many NOTIFYs are sent together, and how often.
#[derive(Clone, Copy)]
struct Load {
    together: usize,
    times: usize,
}

/// An agent on this thread, and a client of it.
pub(crate) struct Counting {
    runtime: Runtime,
    loads: Sender<Load>,
    answered: Arc<Notify>,
}

impl Counting {
    /// Serves the agent, which must answer what `notify` writes with ACKs of one length.
    pub(crate) fn new<H: Handler>(
        agent: Agent<H>,
        notify: impl FnMut(&mut Vec<u8>) + Send + 'static,
    ) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(agent.serve_until([listener.into()], std::future::pending()));

        let (loads, offered) = channel();
        let answered = Arc::new(Notify::new());
        let done = Arc::clone(&answered);
        thread::spawn(move || {
            let mut client = Client::new(address, notify);
            for load in offered {
                client.ask(load);
                done.notify_one();
            }
        });
        Self { runtime, loads, answered }
    }

    /// The agent's allocations while it answers NOTIFYs of which `together` come together.
    pub(crate) fn allocations(&self, together: usize, times: usize) -> u64 {
        self.loads.send(Load { together, times }).unwrap();
        let answered = async { timeout(PATIENCE, self.answered.notified()).await };
        measure(|| self.runtime.block_on(answered).expect("the client has its answers"))
            .count_total
    }
}

struct Client<N> {
    stream: TcpStream,
    notify: N,
}

impl<N: FnMut(&mut Vec<u8>)> Client<N> {
    fn new(address: SocketAddr, notify: N) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hello = [0; 256];
        let length = encode_hello(&mut hello, &HelloFields::default()).unwrap();
        stream.write_all(&hello[..length]).unwrap();
        let mut client = Self { stream, notify };
        client.read_frame();
        client
    }

    fn ask(&mut self, load: Load) {
        for _ in 0..load.times {
            let mut bytes = Vec::new();
            (0..load.together).for_each(|_| (self.notify)(&mut bytes));
            self.stream.write_all(&bytes).unwrap();
            let first = self.read_frame();
            let mut others = vec![0; first.len() * (load.together - 1)];
            self.stream.read_exact(&mut others).unwrap();
            // They are equal, except the answer in the last byte.
            let end = first.len() - 1;
            assert!(others.chunks(first.len()).all(|ack| ack[..end] == first[..end]));
        }
    }

    fn read_frame(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut frame = length.to_vec();
        frame.resize(4 + usize::try_from(u32::from_be_bytes(length)).unwrap(), 0);
        self.stream.read_exact(&mut frame[4..]).unwrap();
        frame
    }
}
