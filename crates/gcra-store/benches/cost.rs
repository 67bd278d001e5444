//! The server's time for a call: an ask by the number of leases, and a charge, beside a script
//! that counts each request.
//!
//! `cargo bench -p gcra-store --bench cost [-- --quick]`. `--quick` only tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "a bench may end with a message, its numbers are small, and tests use the rest of \
              the module that it shares with them"
)]

#[path = "../tests/servers/support.rs"]
mod support;

use std::time::Duration;

use gcra_lease::{Ask, AskNumber, Charge, HostId, Micros, SharedLimit};
use gcra_store::{Names, script};
use redis::{Cmd, Connection, Pipeline};

use support::{Server, programs, valkey};

/// The usual way: GCRA in a script that is called for each request.
const PLAIN: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + cost * interval
local wait = tat - now - burst * interval
if wait > 0 then
    return { 0, 0, math.ceil(wait) }
end
local keep = math.ceil((tat - now) / 1000)
redis.call('SET', KEYS[1], string.format('%.17g', tat), 'PX', keep)
return { 1, math.floor(-wait / interval), 0 }
";

/// The calls that are measured together, and how often. Other work of the machine makes all times
/// longer, so the shortest ones count.
const CALLS: u64 = 10_000;
const ROUNDS: u32 = 7;

fn is_quick() -> bool {
    std::env::args().any(|arg| arg == "--quick")
}

/// Calls `command` again and again, `at_once` in a pipeline. Returns how many µs a call took the
/// server: the script alone, as `INFO commandstats` says, and all of its CPU time.
fn cost(
    server: &Server,
    connection: &mut Connection,
    at_once: u64,
    mut command: impl FnMut() -> Cmd,
) -> (f64, f64) {
    let (calls, rounds) = if is_quick() { (200, 1) } else { (CALLS, ROUNDS) };
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..rounds {
        server.say(&["CONFIG", "RESETSTAT"]);
        let before = cpu(server);
        for _ in 0..calls / at_once {
            let mut pipeline = Pipeline::new();
            for _ in 0..at_once {
                pipeline.add_command(command());
            }
            pipeline.exec(connection).unwrap();
        }
        let all = (cpu(server) - before) * 1e6 / calls as f64;
        let stats = server.say(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let script = line.split(',').find_map(|it| it.strip_prefix("usec_per_call=")).unwrap();
        least = (least.0.min(number(script)), least.1.min(all));
    }
    least
}

/// Seconds of CPU that the server has used.
fn cpu(server: &Server) -> f64 {
    let info = server.say(&["INFO", "cpu"]);
    ["used_cpu_sys:", "used_cpu_user:"]
        .map(|name| number(info.lines().find_map(|line| line.strip_prefix(name)).unwrap()))
        .iter()
        .sum()
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap()
}

fn main() {
    valkey().expect("'make valkey' fetches a server");
    // Nothing is ever denied.
    let (interval_us, burst) = (1_000, 1_000_000);
    let limit = SharedLimit::new(Duration::from_micros(interval_us), burst).unwrap();
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        println!("{}", program.display());
        let mut line = |what: &str, mut command: Box<dyn FnMut() -> Cmd>| {
            let [one, many] =
                [1, 100].map(|at_once| cost(&server, &mut connection, at_once, &mut command));
            println!(
                "  {what:<22} {:5.1} µs in the script; CPU {:5.1} µs by itself, {:5.1} of 100",
                many.0, one.1, many.1
            );
        };

        let plain = redis::Script::new(PLAIN);
        server.say(&["SCRIPT", "LOAD", PLAIN]);
        let hash = plain.get_hash().to_owned();
        line(
            "GCRA for each request",
            Box::new(move || {
                let mut command = redis::cmd("EVALSHA");
                command.arg(&hash).arg(1).arg("plain").arg(interval_us).arg(burst).arg(1);
                command
            }),
        );
        server.say(&["SCRIPT", "LOAD", script::ASK_SOURCE]);
        for hosts in [1_u64, 4, 16, 64] {
            let bucket = Names::new(b"").bucket("p.l", &hosts.to_le_bytes(), limit);
            let mut number = 0;
            let ask = move || {
                number += 1;
                let ask = Ask {
                    host: HostId(0x1234_5678_9abc_0000 + number % hosts),
                    number: AskNumber(number),
                    fresh: false,
                    spent: 3,
                    debt: 0,
                    owed_ago: Ask::NOTHING_OWED,
                    holds: 1,
                    want: 3,
                    least: 1,
                    validity: Micros(2_000_000),
                };
                script::command(&bucket, &ask, script::StoreKind::default(), script::By::Hash)
                    .unwrap()
            };
            line(&format!("an ask, with {hosts} leases"), Box::new(ask));
        }
        server.say(&["SCRIPT", "LOAD", script::CHARGE_SOURCE]);
        let bucket = Names::new(b"").bucket("p.l", b"charged", limit);
        let mut number = 0;
        let charge = move || {
            number += 1;
            let take = Charge::Take { cells: 1, needs: 0, max_delay: Micros::ZERO };
            script::charge_command(
                &bucket,
                number,
                &take,
                script::StoreKind::default(),
                script::By::Hash,
            )
            .unwrap()
        };
        line("a charge", Box::new(charge));
    }
}
