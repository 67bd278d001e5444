//! A configuration that decides about a log, and what came of it.

use std::path::Path;

use anyhow::Context as _;
use gcra_limiter::question::{Question, Unanswerable};
use gcra_limiter::verdict::Outcome;
use gcra_policy::Policies;
use gcra_policy::answers::Answers;
use gcra_policy::flags::{Source, policies_of_flags};
use gcra_policy::rate_words::rate_of;
use gcra_policy::secrets::Readers;
use gcra_table::{Quota, Slots};
use gcra_text::output::{Mistakes, WrongUsage};

use crate::args::Replay;
use crate::distinct::Distinct;
use crate::engine::Engine;
use crate::mapping::{Mapping, Written};
use crate::tally::{LogTally, ReplayedRequest, decide_request};

/// How many slots a table has unless the command line says it: 64 MiB. A larger one takes longer,
/// because fewer of its parts are near.
const SLOTS: u64 = 1 << 22;

/// Policies, and how the operator named them.
pub(crate) struct Configured {
    name: String,
    pub policies: Policies,
}

impl Configured {
    /// Those of the command line, if it has some.
    pub(crate) fn new(command: &Replay) -> anyhow::Result<Option<Self>> {
        if let Some(file) = &command.config {
            return Self::by_file(file).map(Some);
        }
        if command.limit.rate.is_none() {
            return Ok(None);
        }
        let policies = policies_of_flags(&command.limit, None, Answers::blocked_only());
        let policies = policies.map_err(WrongUsage)?;
        let policy = policies.list.first();
        let limit = policy.and_then(|policy| policy.rule.limits().first());
        let name = match (limit.and_then(|limit| flags_of(limit.written())), policy) {
            (Some(flags), _) => flags,
            (None, Some(policy)) => policy.rule.in_words(),
            (None, None) => String::new(),
        };
        Ok(Some(Self { name, policies }))
    }

    pub(crate) fn by_file(file: &Path) -> anyhow::Result<Self> {
        let (policies, _) =
            Source::File(file.to_owned()).read(Readers::OfFile).map_err(Mistakes)?;
        if let Some(policy) = policies.list.iter().find(|policy| policy.settle().is_some()) {
            let sentence = format!(
                "a log does not say what the responses under policy '{}' of {} cost, which has \
                 settle; write a copy of the file without that policy, and replay it",
                policy.name,
                file.display()
            );
            return Err(WrongUsage(sentence).into());
        }
        Ok(Self { name: file.display().to_string(), policies })
    }
}

/// The flags that give this quota; `None` if no simple rate does.
pub(crate) fn flags_of(quota: Quota) -> Option<String> {
    let (rate, _) = rate_of(quota)?;
    Some(format!("--rate {rate} --burst {}", quota.burst()))
}

/// A configuration that decides, and what came of it.
pub(crate) struct Side {
    pub name: String,
    pub engine: Engine,
    pub(crate) mapping: Mapping,
    pub tally: LogTally,
}

impl Side {
    pub(crate) fn new(
        Configured { name, policies }: Configured,
        mapping: Mapping,
        slots: Option<Slots>,
    ) -> anyhow::Result<Self> {
        let slots = slots.or_else(|| Slots::new(SLOTS).ok()).unwrap_or(Slots::DEFAULT);
        let engine = Engine::new(policies, slots).with_context(|| {
            let bytes = slots.bytes() >> 20;
            format!("there is no memory for a table of {bytes} MiB; write a smaller --slots")
        })?;
        let tally = LogTally::new(engine.policies());
        Ok(Self { name, engine, mapping, tally })
    }

    /// The questions about these messages. What the decisions need is on its way from memory.
    fn questions(&self, written: &Written<'_>) -> Questions {
        let question = |message| {
            let question = self.engine.question(message);
            question.inspect(|question| self.tally.touch(*question))
        };
        written.messages.iter().map(question).collect()
    }
}

/// The questions about messages, in their order.
type Questions = Vec<Result<Question, Unanswerable>>;

/// Decides about the request whose messages are at this place, each with the question that it
/// asks.
fn decide(
    engine: &mut Engine,
    tally: &mut LogTally,
    at: i64,
    written: &Written<'_>,
    questions: &Questions,
    place: usize,
) -> ReplayedRequest {
    engine.advance_to(at);
    tally.begin(at);
    let of = written.of(place);
    let (messages, questions) = (&written.messages[of.clone()], &questions[of]);
    decide_request(engine, messages.iter().zip(questions.iter().copied()), tally)
}

/// How many requests are prepared together, so that what each needs from memory comes while
/// others are prepared.
const BATCH: usize = 32;

/// One or two configurations that decide about a log.
pub(crate) struct Replaying {
    pub new: Side,
    pub old: Option<Side>,
    pub changes: Changes,
    /// Whether both have the same messages, which are written once then.
    shares_messages: bool,
    /// The times of the requests that wait to be decided.
    times: Vec<i64>,
}

impl Replaying {
    pub(crate) fn new(new: Side, old: Option<Side>) -> Self {
        let shares_messages = old.as_ref().is_some_and(|old| new.mapping.writes_as(&old.mapping));
        Self { new, old, changes: Changes::default(), shares_messages, times: Vec::new() }
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        [Some(&self.new), self.old.as_ref()].into_iter().flatten()
    }

    /// The mappings that write messages. If both configurations have the same messages, it is that
    /// of the new one only.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        let old = self.old.as_ref().filter(|_| !self.shares_messages);
        [Some(&self.new), old].into_iter().flatten().map(|side| &side.mapping)
    }

    /// Adds the request of a line, with its time in microseconds since 1970. It is decided with
    /// others.
    pub(crate) fn add(&mut self, at: i64, values: &[Option<&[u8]>]) {
        self.new.mapping.write(values);
        if let Some(old) = &mut self.old
            && !self.shares_messages
        {
            old.mapping.write(values);
        }
        self.times.push(at);
        if self.times.len() >= BATCH {
            self.decide_all();
        }
    }

    /// Decides about the requests that wait.
    pub(crate) fn decide_all(&mut self) {
        let Self { new, old, changes, shares_messages, times } = self;
        let written = new.mapping.written();
        let asked = new.questions(&written);
        match old {
            None => {
                for (place, at) in times.iter().enumerate() {
                    decide(&mut new.engine, &mut new.tally, *at, &written, &asked, place);
                }
            }
            Some(old) => {
                let own = (!*shares_messages).then(|| old.mapping.written());
                let before = own.as_ref().unwrap_or(&written);
                let former = old.questions(before);
                for (place, at) in times.iter().enumerate() {
                    let now =
                        decide(&mut new.engine, &mut new.tally, *at, &written, &asked, place);
                    let was = decide(&mut old.engine, &mut old.tally, *at, before, &former, place);
                    changes.count(&mut new.tally, now, was);
                }
                old.mapping.clear();
            }
        }
        new.mapping.clear();
        times.clear();
    }
}

/// Where two configurations differ.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub newly_blocked: u64,
    pub(crate) newly_allowed: u64,
    pub(crate) newly_would_block: u64,
    pub(crate) clients_newly_blocked: Distinct,
    pub(crate) clients_newly_allowed: Distinct,
}

impl Changes {
    fn count(&mut self, tally: &mut LogTally, now: ReplayedRequest, before: ReplayedRequest) {
        tally.end_of_other(before.is(Outcome::Blocked));
        match (now.is(Outcome::Blocked), before.is(Outcome::Blocked)) {
            (true, false) => {
                self.newly_blocked += 1;
                if let Some(decided) = now.decided {
                    self.clients_newly_blocked.add(decided.key.get());
                    tally.newly(decided);
                }
            }
            (false, true) => {
                self.newly_allowed += 1;
                if let Some(decided) = before.decided {
                    self.clients_newly_allowed.add(decided.key.get());
                }
            }
            (false, false) if now.is(Outcome::WouldBlock) && before.is(Outcome::Allowed) => {
                self.newly_would_block += 1;
            }
            _ => {}
        }
    }
}
