//! What an agent answers on its admin address: one GET, bounded in time and size, and its status
//! in whatever came back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How many bytes may be read in all. Several questions can share it.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) const fn new(bytes: usize) -> Self {
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
pub(crate) async fn ask<T: DeserializeOwned + Send + 'static>(
    address: SocketAddr,
    path: &str,
    patience: Duration,
    budget: &Budget,
) -> Result<T, String> {
    let answer = match timeout(patience, get(address, path, budget)).await {
        Ok(answer) => answer?,
        Err(_) => {
            return Err(format!("no answer from {address} within {} ms", patience.as_millis()));
        }
    };
    let parse = move || {
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
        let is_ok = answer.starts_with(b"HTTP/1.") && answer.get(8..12) == Some(b" 200");
        let body = answer.get(head + 4..).filter(|_| is_ok)?;
        Some(serde_json::from_slice(body).map_err(|error| {
            let error: String =
                error.to_string().chars().filter(|c| !c.is_control()).take(100).collect();
            format!("the program at {address} is not a gcra-spoa of this version: {error}")
        }))
    };
    // On another thread: the answer may be long, and this thread has other things to do.
    match spawn_blocking(parse).await {
        Ok(Some(parsed)) => parsed,
        Ok(None) | Err(_) => {
            Err(format!("the program at {address} is not a gcra-spoa that serves its status"))
        }
    }
}

/// A whole answer, with its head.
async fn get(address: SocketAddr, path: &str, budget: &Budget) -> Result<Vec<u8>, String> {
    let failed = |error| format!("no answer from {address}: {error}");
    let mut stream = TcpStream::connect(reachable(address)).await.map_err(failed)?;
    // With HTTP/1.0 the connection ends after the answer.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
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
