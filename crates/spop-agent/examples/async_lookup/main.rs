//! Asks a slow service about each client, with a cache and a deadline.
//!
//!     LOOKUP_ADDR=127.0.0.1:9100 cargo run -p spop-agent --example async_lookup
//!     haproxy -f crates/spop-agent/examples/async_lookup/haproxy.cfg
//!
//! The service reads one address on a line and answers with a country on a line. If the cache has
//! the client's country, the request is answered at once. If not, it is answered when the service
//! has answered, or after 80 ms (`DEADLINE_MS`) with `unknown`. A later answer of the service is
//! still put into the cache, for the next request.

use std::collections::HashMap;
use std::env;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spop_agent::{Agent, Reply, Request, Scope, VarName};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const COUNTRY: VarName<'_> = VarName::from_static("country");
const FROM_CACHE: VarName<'_> = VarName::from_static("from_cache");

/// How long an answer stays in the cache, and how long the service may take.
const FRESH: Duration = Duration::from_secs(60);
const LOOKUP: Duration = Duration::from_secs(5);

/// How many clients the cache has at most, and how many bytes of an answer are read.
const CACHED: usize = 100_000;
const LINE_BYTES: u64 = 64;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let address = env::var("SPOE_ADDR").unwrap_or("127.0.0.1:9000".into());
    let service = env::var("LOOKUP_ADDR").unwrap_or("127.0.0.1:9100".into());
    let deadline =
        env::var("DEADLINE_MS").unwrap_or("80".into()).parse().map_err(io::Error::other)?;
    let cache = Arc::new(Cache { service, countries: Mutex::default() });

    let locate = move |request: &Request<'_>, reply: &mut Reply<'_>| {
        let ip = request.message(b"locate").and_then(|message| message.arg(b"ip")?.as_ip());
        let Some(ip) = ip else { return };
        if let Some(country) = cache.get(ip) {
            reply.set_var(Scope::Transaction, COUNTRY, &*country);
            reply.set_var(Scope::Transaction, FROM_CACHE, true);
            return;
        }
        // This is sent if the service is late.
        reply.set_var(Scope::Transaction, COUNTRY, "unknown");
        let cache = cache.clone();
        reply.later(async move |mut reply| {
            // A task of its own continues when the deadline has passed.
            let found = tokio::spawn(async move { cache.look_up(ip).await }).await;
            let country = match found {
                Ok(Ok(country)) => country,
                Ok(Err(error)) => {
                    log::warn!("the country of {ip} is not known: {error}");
                    "unknown".into()
                }
                Err(error) => {
                    log::error!("{error}");
                    "unknown".into()
                }
            };
            reply.set_var(Scope::Transaction, COUNTRY, &*country);
            reply
        });
    };
    let agent = Agent::new(locate).deadline(Duration::from_millis(deadline));
    agent.serve(TcpListener::bind(address).await?).await;
    Ok(())
}

struct Cache {
    service: String,
    countries: Mutex<HashMap<IpAddr, (Arc<str>, Instant)>>,
}

impl Cache {
    fn get(&self, ip: IpAddr) -> Option<Arc<str>> {
        let countries = self.countries.lock().unwrap_or_else(PoisonError::into_inner);
        let (country, since) = countries.get(&ip)?;
        (since.elapsed() < FRESH).then(|| country.clone())
    }

    async fn look_up(&self, ip: IpAddr) -> io::Result<Arc<str>> {
        let country: Arc<str> = timeout(LOOKUP, ask(&self.service, ip)).await??.trim_end().into();
        let mut countries = self.countries.lock().unwrap_or_else(PoisonError::into_inner);
        if countries.len() >= CACHED {
            countries.retain(|_, (_, since)| since.elapsed() < FRESH);
        }
        if countries.len() < CACHED {
            countries.insert(ip, (country.clone(), Instant::now()));
        }
        Ok(country)
    }
}

async fn ask(service: &str, ip: IpAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(service).await?;
    stream.write_all(format!("{ip}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line).await?;
    if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
