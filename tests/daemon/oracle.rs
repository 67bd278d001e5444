//! Every answer of two agents on one table against a model that knows nothing of tables, hashes or
//! threads.
//!
//! A run makes a configuration, and asks two real agents about random requests, in turn and at the
//! same time. In between it reloads them with other configurations. It writes down each question,
//! when it was asked, and the answer. Then the model goes through the record. It knows that each
//! request was decided at some moment between its being sent and its answer. So it keeps for each
//! bucket the lowest and the highest TAT that are possible, in whole nanoseconds. An answer is
//! wrong when no moment explains it.
//!
//! `GCRA_ORACLE_SEED` repeats a run (as far as the machine's timing lets it),
//! `GCRA_ORACLE_SECONDS` goes on for so long.

mod config;
mod model;

use std::process::Command;
use std::time::{Duration, Instant};

use config::{Config, Message, Part};
use fastrand::Rng;
use model::{Answered, Event, Model, Span, Summary};
use rustix::time::{ClockId, clock_gettime};
use spop_agent::testing::{Answer, Client};
use spop_agent::{Scope, Value};
use tempfile::TempDir;

use crate::support;
use crate::support::{Agent, directory, in_time, wait_until};

/// The percentage of quick answers that may be explained by being blocked as well as by being
/// allowed.
const UNDECIDED_PERCENT: u64 = 20;

/// Two agents on one table, with the same configuration.
struct Pair {
    directory: TempDir,
    agents: [Agent; 2],
    clients: [Client; 2],
    runtime: tokio::runtime::Runtime,
}

impl Pair {
    fn start(config: &Config) -> Self {
        let directory = directory();
        config.write(directory.path());
        let file = directory.path().join("gcra-spoa.toml");
        let start = || {
            let flags =
                ["--slots", "65536", "--drain", "0", "--listen", "127.0.0.1:0", "--config"];
            let args = [&flags[..], &[file.to_str().unwrap()]].concat();
            Agent::start_with(&directory.path().join("table"), &args)
        };
        let agents = [start(), start()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connect = |agent: &Agent| runtime.block_on(Client::connect(&agent.address)).unwrap();
        let clients = [connect(&agents[0]), connect(&agents[1])];
        Self { directory, agents, clients, runtime }
    }

    /// Puts another configuration in force. Returns the moments between which that happened.
    fn reload(&mut self, config: &Config) -> Span {
        let said = |agent: &Agent| {
            agent.process.lines().iter().filter(|line| line.contains("was read again")).count()
        };
        let before = self.agents.each_ref().map(said);
        config.write(self.directory.path());
        let sent = now();
        let mut command = Command::new(support::agent_binary());
        let path = |name: &str| self.directory.path().join(name);
        command
            .args(["reload", "--config"])
            .arg(path("gcra-spoa.toml"))
            .arg("--table")
            .arg(path("table"));
        let output = in_time(|| command.output().unwrap());
        assert!(output.status.success(), "{output:?}\n{}", config.text());
        wait_until("both agents have read it again", || {
            self.agents.iter().zip(before).all(|(agent, before)| said(agent) > before)
        });
        // A question makes sure that both agents have handled everything before it.
        for client in &mut self.clients {
            self.runtime.block_on(client.ask(&[])).unwrap();
        }
        (sent, now())
    }

    /// Asks one agent, or both at the same time.
    fn ask(&mut self, questions: [Option<&[Message]>; 2]) -> Vec<Answered> {
        let Self { clients: [first, second], runtime, .. } = self;
        let ask = async |client: &mut Client, messages: Option<&[Message]>| {
            let messages = messages?;
            let args: Vec<Vec<(&str, Value<'_>)>> = messages.iter().map(Message::args).collect();
            let question: Vec<_> = messages
                .iter()
                .zip(&args)
                .map(|(message, args)| (&*message.name, &args[..]))
                .collect();
            let sent = now();
            let answer = client.ask(&question).await.unwrap();
            let window = (sent, now());
            Some(Answered { messages: messages.to_vec(), window, answer: vars(&answer) })
        };
        let (first, second) = runtime.block_on(async {
            // Both are sent before either answer is awaited.
            tokio::join!(ask(first, questions[0]), ask(second, questions[1]))
        });
        first.into_iter().chain(second).collect()
    }
}

/// The variables that are set, by name. Numbers and booleans are text.
fn vars(answer: &Answer) -> model::Vars {
    model::VARS
        .iter()
        .filter_map(|name| {
            let value = answer.var(Scope::Transaction, name)?;
            let text = match value {
                Value::Bool(truth) => truth.to_string(),
                Value::String(text) => String::from_utf8(text.to_vec()).unwrap(),
                number => {
                    number.as_integer().unwrap_or_else(|| panic!("{name}: {number:?}")).to_string()
                }
            };
            Some((*name, text))
        })
        .collect()
}

/// The clock that the agents use.
fn now() -> i128 {
    let time = clock_gettime(ClockId::Boottime);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// A record of two agents: `phases` configurations, and `rounds` rounds of questions in each.
fn record(random: &mut Rng, phases: usize, rounds: usize) -> Vec<Event> {
    let mut config = Config::random(random);
    let mut pair = Pair::start(&config);
    let mut events = vec![Event::Config(config.clone(), (0, 0))];
    for phase in 0..phases {
        if phase > 0 {
            let before = events.iter().rev().filter_map(|event| match event {
                Event::Config(config, _) => Some(config),
                Event::Asked(_) => None,
            });
            // Another one, or that before the last.
            config = match before.skip(1).find(|_| random.usize(..3) == 0) {
                Some(earlier) => earlier.clone(),
                None => config.changed(random),
            };
            let window = pair.reload(&config);
            events.push(Event::Config(config.clone(), window));
        }
        for _ in 0..rounds {
            let (one, other) = (config.request(random), config.request(random));
            let questions = match random.usize(..8) {
                0..3 => [Some(&one[..]), None],
                3..6 => [None, Some(&one[..])],
                // About the same client.
                6 => [Some(&one[..]), Some(&one[..])],
                _ => [Some(&one[..]), Some(&other[..])],
            };
            events.push(Event::Asked(pair.ask(questions)));
            let pause = [0, 0, 0, 1, 3, 10, 30][random.usize(..7)];
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
    let [first, second] = pair.agents;
    first.stop();
    second.stop();
    events
}

/// The summary of a record by the model with these intervals. The error is the first answer that
/// it cannot explain.
fn judge(events: &[Event], per_mille: i128) -> Result<Summary, String> {
    let mut model = Model::new(per_mille);
    for event in events {
        model.follow(event)?;
    }
    Ok(model.summary)
}

fn seed() -> u64 {
    let seed = std::env::var("GCRA_ORACLE_SEED").ok().map(|seed| seed.parse().expect("a number"));
    seed.unwrap_or_else(|| {
        let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        u64::try_from(time.as_micros()).unwrap()
    })
}

#[test]
fn every_answer_is_explained_by_some_moment() {
    let seconds =
        std::env::var("GCRA_ORACLE_SECONDS").ok().map(|text| text.parse().expect("seconds"));
    let (until, mut runs) = (Instant::now() + Duration::from_secs(seconds.unwrap_or(0)), 0);
    let mut all = Summary::default();
    let (mut slower, mut faster) = (0, 0);
    let first = seed();
    println!("GCRA_ORACLE_SEED={first}");
    // More runs, if most requests were denied or unlimited, so that no interval mattered.
    while runs < 2 || (runs < 20 && (slower == 0 || faster == 0)) || Instant::now() < until {
        let seed = first + runs;
        let events = record(&mut Rng::with_seed(seed), 4, 60);
        match judge(&events, 1000) {
            Ok(summary) => all += summary,
            Err(what) => panic!("{what}\nGCRA_ORACLE_SEED={seed}"),
        }
        // With an interval that is off by half a percent, some answer must be wrong.
        slower += u64::from(judge(&events, 1005).is_err());
        faster += u64::from(judge(&events, 995).is_err());
        runs += 1;
    }
    println!(
        "{runs} runs: {all:?}; with intervals 0.5 % longer {slower} of them are found wrong, with \
         shorter ones {faster}"
    );
    // A busy machine may answer hardly any of them quickly.
    assert!(
        all.quick < 50 || all.undecided * 100 <= all.quick * UNDECIDED_PERCENT,
        "too many answers could not be decided: {all:?}"
    );
    assert!(slower > 0 && faster > 0, "a model with other intervals explains the answers as well");
}

/// The model notices when any variable of an answer is changed.
#[test]
fn every_variable_is_looked_at() {
    // With the delay, the fourth request waits, and the fifth is blocked.
    [None, Some(40_000)].into_iter().for_each(every_variable_is_looked_at_with);
}

fn every_variable_is_looked_at_with(max_delay_ms: Option<i128>) {
    let limits = "limits = [\"2/m burst 3\", { name = \"hour\", rate = \"10/h\", burst = 5 }]";
    let delay = match max_delay_ms {
        Some(ms) => format!("max_delay = \"{ms}ms\"\n"),
        None => String::new(),
    };
    let text = format!("[policy.p0]\nmessage = \"m0\"\nkey = [\"user\"]\n{delay}{limits}\n");
    let config = Config::fixed(&text, config::fixed_policy(max_delay_ms));
    let mut pair = Pair::start(&config);
    let message = Message {
        name: "m0".to_owned(),
        args: vec![("user".to_owned(), Part::Text("a".to_owned()))],
    };
    let mut events = vec![Event::Config(config, (0, 0))];
    for _ in 0..5 {
        events.push(Event::Asked(pair.ask([Some(std::slice::from_ref(&message)), None])));
    }
    judge(&events, 1000).unwrap();
    for (at, event) in events.iter().enumerate() {
        let Event::Asked(asked) = event else { continue };
        for var in 0..asked[0].answer.len() {
            let mut wrong = events.clone();
            let Event::Asked(asked) = &mut wrong[at] else { continue };
            let (from, to) = asked[0].window;
            let (name, value) = &mut asked[0].answer[var];
            // One millisecond more may be true as well, by a moment before; on a busy machine, as
            // many as the answer took.
            let in_ms = 1000 + i64::try_from((to - from) / 1_000_000).unwrap();
            let more = if name.ends_with("_ms") { in_ms } else { in_ms / 1000 };
            *value = match &**value {
                "true" => "false".to_owned(),
                "false" => "true".to_owned(),
                number if number.parse::<i64>().is_ok() => {
                    (number.parse::<i64>().unwrap() + more).to_string()
                }
                text => text.replacen(|c: char| c.is_ascii_digit(), "9", 1) + "x",
            };
            let name = *name;
            assert!(
                judge(&wrong, 1000).is_err(),
                "answer {at}: {name} was changed, and the model did not notice"
            );
        }
    }
}
