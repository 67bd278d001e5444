//! One configuration replayed over a log, and its results.

use std::iter;
use std::path::Path;

use anyhow::{Context as _, bail};
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
        let policies = policies.map_err(WrongUsage::from)?;
        let rule = policies.list.first().map(|policy| &policy.rule);
        let flags = rule.and_then(|rule| flags_of(rule.limits().first()?.quota(None)));
        let name = flags.or_else(|| Some(rule?.in_words())).unwrap_or_default();
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
            bail!(WrongUsage(sentence));
        }
        Ok(Self { name: file.display().to_string(), policies })
    }
}

/// The flags that give this quota; `None` if no simple rate does.
pub(crate) fn flags_of(quota: Quota) -> Option<String> {
    let (rate, _) = rate_of(quota)?;
    Some(format!("--rate {rate} --burst {}", quota.burst()))
}

/// A configuration that decides, and its outcome.
pub(crate) struct ReplayedConfig {
    pub name: String,
    pub engine: Engine,
    pub tally: LogTally,
}

impl ReplayedConfig {
    pub(crate) fn new(
        Configured { name, policies }: Configured,
        slots: Option<Slots>,
    ) -> anyhow::Result<Self> {
        let slots = slots.or_else(|| Slots::new(SLOTS).ok()).unwrap_or(Slots::DEFAULT);
        let engine = Engine::new(policies, slots).with_context(|| {
            let bytes = slots.bytes() >> 20;
            format!("there is no memory for a table of {bytes} MiB; write a smaller --slots")
        })?;
        let tally = LogTally::new(engine.policies());
        Ok(Self { name, engine, tally })
    }

    /// The questions about these messages. The bytes that the decisions need are on their way from
    /// memory.
    fn questions(&self, written: &Written<'_>) -> Questions {
        let question = |message| {
            let question = self.engine.question(message);
            question.inspect(|question| self.tally.touch(*question))
        };
        written.messages.iter().map(question).collect()
    }

    /// Decides about the request whose messages are at this place, each with the question that it
    /// asks.
    fn decide(
        &mut self,
        at: i64,
        written: &Written<'_>,
        questions: &Questions,
        place: usize,
    ) -> ReplayedRequest {
        self.engine.advance_to(at);
        self.tally.begin(at);
        let of = written.places[place].clone();
        let (messages, questions) = (&written.messages[of.clone()], &questions[of]);
        let asked = messages.iter().zip(questions.iter().copied());
        decide_request(&self.engine, asked, &mut self.tally)
    }
}

/// The questions about messages, in their order.
type Questions = Vec<Result<Question, Unanswerable>>;

/// How many requests are prepared together, so that what each needs from memory comes while
/// others are prepared.
const BATCH: usize = 32;

/// One or two configurations that decide about a log.
pub(crate) struct Replaying {
    pub new: ReplayedConfig,
    pub old: Option<ReplayedConfig>,
    pub changes: Changes,
    mapping: Mapping,
    /// That of the old one; `None` if it has the same messages, which are written once then.
    old_mapping: Option<Mapping>,
    /// The times of the requests that wait to be decided.
    times: Vec<i64>,
}

impl Replaying {
    pub(crate) fn new(
        (new, mapping): (ReplayedConfig, Mapping),
        old: Option<(ReplayedConfig, Mapping)>,
    ) -> Self {
        let (old, old_mapping) = old.unzip();
        let old_mapping = old_mapping.filter(|old| !mapping.writes_as(old));
        Self { new, old, changes: Changes::default(), mapping, old_mapping, times: Vec::new() }
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &ReplayedConfig> {
        iter::once(&self.new).chain(&self.old)
    }

    /// The mappings that write messages.
    pub(crate) fn mappings(&mut self) -> impl Iterator<Item = &mut Mapping> {
        iter::once(&mut self.mapping).chain(&mut self.old_mapping)
    }

    /// Adds the request of a line, with its time in microseconds since 1970. It is decided with
    /// others.
    pub(crate) fn add(&mut self, at: i64, values: &[Option<&[u8]>]) {
        self.mappings().for_each(|mapping| mapping.write(values));
        self.times.push(at);
        if self.times.len() >= BATCH {
            self.decide_all();
        }
    }

    pub(crate) fn decide_all(&mut self) {
        let Self { new, old, changes, mapping, old_mapping, times } = self;
        let written = mapping.written();
        let asked = new.questions(&written);
        let own = old_mapping.as_ref().map(Mapping::written);
        let before = own.as_ref().unwrap_or(&written);
        let asked_before = old.as_ref().map(|old| old.questions(before));
        for (place, at) in times.drain(..).enumerate() {
            let now = new.decide(at, &written, &asked, place);
            if let Some((old, asked)) = old.as_mut().zip(asked_before.as_ref()) {
                let was = old.decide(at, before, asked, place);
                changes.count(&mut new.tally, now, was);
            }
        }
        self.mappings().for_each(Mapping::clear);
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
