//! The way of most limiters that share a limit: an agent that asks the store about each request,
//! with a plain GCRA script. It has the same server around it as ours, and the same Redis library.

use std::net::IpAddr;

use redis::aio::MultiplexedConnection;
use spop_agent::{Agent, Reply, Request, Scope, VarName};
use tokio::net::TcpListener;

const BLOCKED: VarName<'_> = VarName::from_static("blocked");

/// KEYS: the bucket. ARGV: the emission interval and the burst tolerance, in µs.
const SCRIPT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
tat = tat + interval
if tat - now > tolerance then return 1 end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
return 0
";

/// Serves on a free port, whose address it prints, until the process is killed.
pub(crate) fn serve(store: &str, per_second: u64, burst: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = redis::Client::open(store).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(SCRIPT)
            .query_async(&mut connection)
            .await
            .unwrap();
        let interval = 1_000_000 / per_second;
        let tolerance = interval * burst;
        let decide = move |request: &Request<'_>, reply: &mut Reply<'_>| {
            let ip = request.message(b"check").and_then(|message| message.arg(b"ip")?.as_ip());
            let Some(ip) = ip else { return };
            let (mut connection, hash) = (connection.clone(), hash.clone());
            reply.later(async move |mut reply| {
                let blocked = ask(&mut connection, &hash, ip, interval, tolerance).await;
                reply.set_var(Scope::Transaction, BLOCKED, blocked);
                reply
            });
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("listening on {}", listener.local_addr().unwrap());
        Agent::new(decide).serve(listener).await;
    });
}

async fn ask(
    connection: &mut MultiplexedConnection,
    hash: &str,
    ip: IpAddr,
    interval: u64,
    tolerance: u64,
) -> bool {
    let mut command = redis::cmd("EVALSHA");
    command.arg(hash).arg(1).arg(format!("gcra:{ip}")).arg(interval).arg(tolerance);
    let answer: u8 = command.query_async(connection).await.unwrap();
    answer == 1
}
