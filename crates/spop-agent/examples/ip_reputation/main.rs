//! Scores client addresses by a list, which is reloaded while the agent serves.
//!
//!     echo 192.0.2.1 100 > blocklist.txt
//!     cargo run -p spop-agent --example ip_reputation
//!     haproxy -f crates/spop-agent/examples/ip_reputation/haproxy.cfg
//!
//! The list (`BLOCKLIST`) has one line for each address, `ADDRESS [SCORE]`, and comments behind
//! `#`. A score is 0 to 100 (blocked), and 100 if the line has none. Addresses that are not in the
//! list have 0. The file is read again when it has changed. If it has a mistake, the old list
//! stays in force.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{env, fs, io};

use arc_swap::ArcSwap;
use spop_agent::{Agent, ListenAddress, Reply, Request, Scope, VarName};

const IP_SCORE: VarName<'_> = VarName::from_static("ip_score");

type Scores = HashMap<IpAddr, u32>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let address = env::var("SPOE_ADDR").unwrap_or("127.0.0.1:9000".into());
    let address: ListenAddress = address.parse()?;
    let path: PathBuf = env::var_os("BLOCKLIST").unwrap_or("blocklist.txt".into()).into();

    let read_at = changed_at(&path);
    let scores = Arc::new(ArcSwap::from_pointee(read(&path).map_err(io::Error::other)?));
    log::info!("{} addresses in {}", scores.load().len(), path.display());
    tokio::spawn(refresh(path, read_at, scores.clone()));

    let score = move |request: &Request<'_>, reply: &mut Reply<'_>| {
        let ip =
            request.message(b"check-client-ip").and_then(|message| message.arg(b"ip")?.as_ip());
        let Some(ip) = ip else { return };
        let score = scores.load().get(&ip).copied().unwrap_or(0);
        reply.set_var(Scope::Session, IP_SCORE, score);
    };
    let stop = async {
        // If the program cannot wait for the signal, it serves for ever.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    Agent::new(score).serve_until(address.bind()?, stop).await;
    Ok(())
}

/// Reads the list whenever it has changed.
async fn refresh(path: PathBuf, mut read_at: Option<SystemTime>, scores: Arc<ArcSwap<Scores>>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let changed = changed_at(&path);
        if changed == read_at {
            continue;
        }
        read_at = changed;
        // Reading takes a while, and this thread serves the connections.
        let list = path.clone();
        match tokio::task::spawn_blocking(move || read(&list)).await {
            Ok(Ok(new)) => {
                log::info!("{} addresses in {}", new.len(), path.display());
                scores.store(Arc::new(new));
            }
            Ok(Err(error)) => log::error!("{error}; the old list stays in force"),
            Err(error) => log::error!("the list could not be read: {error}"),
        }
    }
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read(path: &Path) -> Result<Scores, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut scores = Scores::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(word) = words.next() else { continue };
        let wrong = |what: &str| format!("{}:{number}: {what}", path.display());
        let ip = word.parse().map_err(|_| wrong(&format!("'{word}' is not an IP address")))?;
        let score = match words.next() {
            None => 100,
            Some(word) => word
                .parse()
                .ok()
                .filter(|score| *score <= 100)
                .ok_or_else(|| wrong(&format!("'{word}' is not a score from 0 to 100")))?,
        };
        scores.insert(ip, score);
    }
    Ok(scores)
}
