//! A host that asks a store, one ask after the other or many at once.

use std::path::PathBuf;
use std::sync::{Mutex, Once};
use std::time::Duration;

use gcra_lease::{Ask, AskNumber, AskReply, HostId, HostTime, Micros, Sent, SharedLimit};
use gcra_store::{
    AskAnswer, AskOutcome, Away, Config, Finding, Health, Line, Names, PERMISSIONS, Password,
    Store, Url, check,
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{PATIENCE, Server};

/// Longer than any test takes.
const SELDOM: Duration = Duration::from_secs(10_000);

/// A store that looks often, and waits for as long as a busy machine needs.
pub fn config(url: &str) -> Config {
    let mut config = Config::new(Url::parse(url).unwrap());
    config.timeout = Duration::from_secs(20);
    config.slow = Duration::from_secs(20);
    config.connect_timeout = Duration::from_secs(20);
    config.look_every = Duration::from_millis(100);
    config
}

/// The same, but after the first look another one comes only when an answer is a reason for it.
pub fn config_without_looks(url: &str) -> Config {
    let mut config = config(url);
    config.look_every = SELDOM;
    config
}

/// The findings of `check` over one connection to each server. With the time of [`config`] it
/// would try another one each 12.5 ms, and do nothing else on a busy machine.
pub async fn checked(mut config: Config) -> Vec<Finding> {
    config.look_every = SELDOM;
    check(config).await.unwrap()
}

/// Makes a user `gcra`, who may do what an agent may do by README.md, and no more. Returns the
/// file of its password.
pub fn permitted_user(server: &Server) -> PathBuf {
    let user = format!("ACL SETUSER gcra on >secret {PERMISSIONS}");
    server.say(&user.split(' ').collect::<Vec<_>>());
    let file = server.directory.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    file
}

/// As [`config`], with that user.
pub fn permitted_config(server: &Server) -> Config {
    let mut config = config(&server.url().replace("//", "//gcra@"));
    config.password = Password::File(permitted_user(server));
    config
}

/// The lines that the tests of this process wrote into the log.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("gcra_store")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LOG.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// How many lines there are.
pub fn log_length() -> usize {
    LOG.lock().unwrap().len()
}

/// How the lines go on that begin so, after so many others.
pub fn log_lines(after: usize, begins: &str) -> Vec<String> {
    let log = LOG.lock().unwrap();
    log[after..].iter().filter_map(|line| line.strip_prefix(begins)).map(str::to_owned).collect()
}

/// For how long cells are lent: longer than any test takes.
const VALIDITY: Micros = Micros::from_millis(1_000_000);

pub struct Host {
    pub store: Store,
    pub line: Line,
    pub limit: SharedLimit,
    began: Instant,
    /// That of the latest ask.
    pub number: u64,
}

impl Host {
    pub fn open(config: Config) -> Self {
        static SET: Once = Once::new();
        SET.call_once(|| {
            log::set_logger(&Log).unwrap();
            log::set_max_level(log::LevelFilter::Info);
        });
        let (store, task) = Store::open(config).unwrap();
        tokio::spawn(task);
        // So slow that nothing drains during a test.
        let limit = SharedLimit::new(Duration::from_secs(1_000), 1_000_000).unwrap();
        let limit = limit.with_longest_validity(VALIDITY);
        let line = store.line();
        Self { store, line, limit, began: Instant::now(), number: 0 }
    }

    /// A host whose store can be used.
    pub async fn ready(config: Config) -> Self {
        let mut host = Self::open(config);
        host.wait_until("the store can be used", Health::is_well).await;
        host
    }

    pub async fn wait_until(&mut self, what: &str, holds: impl FnMut(&Health) -> bool) {
        let waited = timeout(PATIENCE, self.store.wait_for(holds)).await;
        assert!(waited.is_ok(), "waited in vain until {what}: {:?}", self.store.health());
    }

    pub fn now(&self) -> HostTime {
        HostTime(self.began.elapsed().as_micros().try_into().unwrap())
    }

    /// An ask for cells of which none are held.
    pub fn sent(&mut self, want: u32) -> Sent {
        self.number += 1;
        let ask = Ask {
            host: HostId(77),
            number: AskNumber(self.number),
            fresh: true,
            spent: 0,
            debt: 0,
            owed_ago: Ask::NOTHING_OWED,
            holds: 0,
            want,
            least: want,
            validity: VALIDITY,
        };
        Sent { ask, at: self.now() }
    }

    pub fn submit(&mut self, keys: &[&str]) -> Result<(), Away> {
        let asks = keys.iter().map(|key| {
            let sent = self.sent(1);
            (Names::new(b"").bucket("p.l", key.as_bytes(), self.limit), sent)
        });
        let asks = asks.collect();
        self.line.submit(asks)
    }

    /// So many answers, in any order.
    pub async fn answers(&mut self, count: usize) -> Vec<AskAnswer> {
        let mut answers = Vec::new();
        while answers.len() < count {
            let waited = timeout(PATIENCE, self.line.answers(&mut answers)).await;
            assert!(waited.is_ok(), "{} of {count} answers", answers.len());
        }
        answers.sort_by_key(|answer| answer.sent.ask.number);
        answers
    }

    /// Asks for one cell, and waits for the outcome.
    pub async fn ask(&mut self, key: &str) -> AskOutcome {
        match self.submit(&[key]) {
            Ok(()) => self.answers(1).await[0].outcome,
            Err(_) => AskOutcome::Away,
        }
    }

    pub async fn reply(&mut self, key: &str) -> AskReply {
        match self.ask(key).await {
            AskOutcome::Reply(reply) => reply,
            other => panic!("{other:?}, {:?}", self.store.health()),
        }
    }

    /// Asks again and again until there is a reply.
    pub async fn reply_again(&mut self, key: &str) -> AskReply {
        let start = Instant::now();
        loop {
            if let AskOutcome::Reply(reply) = self.ask(key).await {
                return reply;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", self.store.health());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until there is a server with a fault that satisfies `is`.
    pub async fn wait_for_fault(&mut self, is: impl Fn(&gcra_store::Fault) -> bool) {
        self.wait_until("there is a fault", |health| {
            health.servers.iter().any(|server| server.fault.as_ref().is_some_and(&is))
        })
        .await;
    }
}
