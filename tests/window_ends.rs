//! Counts in calendar windows while a window ends: two processes that answer requests all the
//! time, on one table and as two machines with a store. Their wall clocks are ahead by as much as
//! lets a day of Berlin end soon, the one before the night in which summer time begins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spop_agent::testing::Client;
use spop_agent::{Scope, Value};
use support::valkey::{Server, programs, valkey};
use support::{Agent, agent_binary, directory, needs, wait_until};

/// 2026-03-29 00:00 in Berlin. The day that begins then has 23 hours.
const MIDNIGHT: Duration = Duration::from_secs(1_774_738_800);
const HOURS_AFTER: u64 = 23;
/// Cells of a client in each day.
const COUNT: usize = 500;

/// A library that gives a process another wall clock. A program that is linked statically does not
/// load it.
fn wall_clock(directory: &Path) -> Result<PathBuf, String> {
    if cfg!(not(target_env = "gnu")) {
        return Err("a static program has the system's wall clock".into());
    }
    let library = directory.join("wall_clock.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/wall_clock.c"));
    let output = compiler.output().map_err(|error| format!("there is no C compiler: {error}"))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(library)
}

/// An answer, and between which times of the other wall clock it was decided.
struct Asked {
    sent: Duration,
    received: Duration,
    allowed: bool,
    retry_after: u128,
}

/// A wall clock that is ahead of the system's by so many seconds, or behind.
#[derive(Clone, Copy)]
struct Ahead(i64);

impl Ahead {
    /// By this one it is midnight after `left`, or up to a second later.
    fn midnight_in(left: Duration) -> Self {
        let then = system_now() + left;
        Self(i64::try_from(MIDNIGHT.as_secs()).unwrap() - i64::try_from(then.as_secs()).unwrap())
    }

    fn now(self) -> Duration {
        let seconds = Duration::from_secs(self.0.unsigned_abs());
        if self.0 < 0 { system_now() - seconds } else { system_now() + seconds }
    }
}

fn system_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Asks an agent until it has blocked many requests of the new day.
fn ask_over_midnight(agent: &str, ahead: Ahead) -> Vec<Asked> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = Client::connect(agent).await.unwrap();
        let (mut all, mut blocked) = (Vec::new(), 0);
        while blocked < 20 {
            let sent = ahead.now();
            let args = [("ip", Value::from(IpAddr::from([192, 0, 2, 1])))];
            let answer = client.ask(&[("api", &args)]).await.unwrap();
            let received = ahead.now();
            let allowed = answer.var(Scope::Transaction, "blocked") == Some(false.into());
            let retry_after = answer.var(Scope::Transaction, "retry_after");
            let retry_after = retry_after.and_then(|value| value.as_integer()).unwrap();
            let retry_after = u128::try_from(retry_after).unwrap();
            blocked += usize::from(!allowed && sent >= MIDNIGHT);
            all.push(Asked { sent, received, allowed, retry_after });
            // So that few requests are made before midnight, and one is always under way.
            if !allowed && received + Duration::from_millis(100) < MIDNIGHT {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        all
    })
}

/// Holds the answers of both processes against the count.
fn judge(answers: &[Asked]) {
    let allowed = |of: &dyn Fn(&Asked) -> bool| {
        answers.iter().filter(|asked| asked.allowed && of(asked)).count()
    };
    assert!(allowed(&|asked| asked.received < MIDNIGHT) <= COUNT);
    assert!(allowed(&|asked| asked.sent >= MIDNIGHT) <= COUNT);
    // Each is of one day or of the other, and both have been used up.
    assert_eq!(allowed(&|_| true), 2 * COUNT);

    let end = MIDNIGHT + Duration::from_secs(HOURS_AFTER * 3600);
    for asked in answers.iter().filter(|asked| !asked.allowed) {
        // Rounded up to seconds.
        let seconds = |end: Duration, now: Duration| {
            end.saturating_sub(now).as_nanos().div_ceil(1_000_000_000)
        };
        let is_of = |end| {
            (seconds(end, asked.received)..=seconds(end, asked.sent)).contains(&asked.retry_after)
        };
        let fits =
            is_of(end) && asked.received >= MIDNIGHT || is_of(MIDNIGHT) && asked.sent < MIDNIGHT;
        let Asked { sent, received, retry_after, .. } = asked;
        assert!(fits, "{retry_after} s, sent at {sent:?}, received at {received:?}");
    }
}

fn config(store: Option<&Server>) -> String {
    let (shared, store) = match store {
        None => ("", String::new()),
        Some(store) => (
            "shared = true\nwithout_store = \"closed\"\n",
            format!("[store]\nurl = \"{}\"\nwait = \"10s\"\n", store.url()),
        ),
    };
    format!(
        "answer = [\"retry_after\"]\n{store}[policy.api]\nkey = [\"ip\"]\n{shared}\
         limits = {{ count = {COUNT}, window = \"day Europe/Berlin\" }}\n"
    )
}

/// With agents that were ready before midnight. A machine may be slow, so the night begins later
/// and later.
fn test(is_shared: bool) {
    let directory = directory();
    let library = match wall_clock(directory.path()) {
        Ok(library) => library,
        Err(reason) => return support::skip(&reason),
    };
    for left in [5, 15, 45, 120] {
        let ahead = Ahead::midnight_in(Duration::from_secs(left));
        let with_clock = |command: &mut Command| {
            command.env("LD_PRELOAD", &library).env("WALL_CLOCK_AHEAD", ahead.0.to_string());
        };
        let store = is_shared.then(|| Server::start_by(&programs()[0], &[], with_clock));
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, config(store.as_ref())).unwrap();
        let agents = ["one", "other"].map(|name| {
            let table = if is_shared { format!("{name}-{left}") } else { format!("both-{left}") };
            let mut command = Command::new(agent_binary());
            with_clock(&mut command);
            command.args(["--slots", "4096", "--drain", "0", "--listen", "127.0.0.1:0"]);
            command.arg("--config").arg(&file);
            Agent::start_command(command.arg("--table").arg(directory.path().join(table)))
        });
        for agent in agents.iter().filter(|_| is_shared) {
            let is_used = |line: &String| line.contains("is used");
            wait_until("the store is used", || agent.process.lines().iter().any(is_used));
        }
        if ahead.now() + Duration::from_secs(2) > MIDNIGHT {
            continue;
        }
        let answers: Vec<_> = thread::scope(|scope| {
            let asking = agents
                .each_ref()
                .map(|agent| scope.spawn(move || ask_over_midnight(&agent.address, ahead)));
            asking.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        // Both processes together may be too slow for the count.
        if answers.iter().any(|asked| asked.received < MIDNIGHT && !asked.allowed) {
            return judge(&answers);
        }
    }
    panic!("no count was used up in two minutes");
}

#[test]
fn a_day_ends_on_one_machine() {
    test(false);
}

#[test]
fn a_day_ends_on_machines_with_a_store() {
    needs!(valkey());
    test(true);
}
