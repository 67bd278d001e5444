//! The answers that agents may give, by intervals of whole nanoseconds: no hashing, no slots, no
//! concurrency but "one before the other".

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::ptr;

use super::config::{Config, Limit, Message, Part, Policy, Rule, Whom, client};

/// The least and the most that something can be, both of them possible.
pub(crate) type Span = (i128, i128);

/// The variables that are asked for.
pub(crate) const VARS: [&str; 12] = [
    "blocked",
    "would_block",
    "policy",
    "reason",
    "delay_ms",
    "remaining",
    "limit",
    "retry_after",
    "retry_after_ms",
    "reset",
    "ratelimit",
    "ratelimit_policy",
];

/// The variables that were set.
pub(crate) type Vars = Vec<(&'static str, String)>;

/// A request, between which moments it was decided, and the answer.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) messages: Vec<Message>,
    pub(crate) window: Span,
    pub(crate) answer: Vars,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A configuration came into force between these moments, with each agent at one of its own.
    Config(Config, Span),
    /// One request, or two at the same time.
    Asked(Vec<Answered>),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    answers: u64,
    blocked: u64,
    /// Of the others: those that have to wait.
    delayed: u64,
    configurations: u64,
    /// Answers to requests that took less than 5 ms, about keys whose TATs were known to 20 ms:
    /// the machine did not stand still.
    pub(crate) quick: u64,
    /// Of these answers, those that were explained by passing as well as by being blocked, or that
    /// could not be looked at.
    pub(crate) undecided: u64,
    /// Of two requests at the same time: the second one was decided first for certain, or neither
    /// order explains both.
    reversed: u64,
    entangled: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.answers += other.answers;
        self.blocked += other.blocked;
        self.delayed += other.delayed;
        self.configurations += other.configurations;
        self.quick += other.quick;
        self.undecided += other.undecided;
        self.reversed += other.reversed;
        self.entangled += other.entangled;
    }
}

const MS: i128 = 1_000_000;
const S: i128 = 1_000_000_000;

/// A bucket: by policy, limit, key, and the numbers of the limit.
type Bucket = String;

/// The highest and lowest TAT of each bucket; without one it is 0.
type Tats = HashMap<Bucket, Span>;

pub(crate) struct Model {
    /// The configurations that were in force, and between which moments each began; the last one
    /// is in force.
    configs: Vec<(Config, Span)>,
    tats: Tats,
    /// The model's intervals as parts of a thousand of the true ones.
    per_mille: i128,
    pub(crate) summary: Summary,
}

/// The standing of a key under one limit when a message was decided.
#[derive(Clone, Debug)]
struct Standing {
    label: String,
    bucket: Bucket,
    /// The policy only observes.
    observes: bool,
    /// The bucket holds all that the key owes: nothing is carried over from other numbers.
    is_own: bool,
    limit: Limit,
    moment: Span,
    owed: Span,
    /// How long the request has to wait before it goes on, if the limit can delay it and has
    /// charged it.
    delay: Option<Span>,
    wait: Span,
    /// `wait` is `owed` minus this, where the request has to wait.
    room: Option<i128>,
}

/// Policy, blocked, would block, reason.
type Report = (String, bool, bool, Option<&'static str>);

/// One way in which a message may have been decided.
#[derive(Clone, Debug)]
struct Outcome {
    tats: Tats,
    standings: Vec<Standing>,
    /// `None` where there was no decision.
    report: Option<Report>,
    /// How long the request has to wait before it goes on, if a policy has decided that can delay
    /// it.
    delay: Option<Span>,
    moment: Span,
}

/// One limit of a rule, and its bucket.
struct Claim<'c> {
    limit: &'c Limit,
    label: String,
    bucket: Bucket,
    tat: Span,
    is_own: bool,
}

/// A policy or a trial, the cells of a message, the limits that are asked, and whether the rule is
/// to deny.
type Question<'c> = (&'c Policy, i128, Vec<Claim<'c>>, bool);

/// The choices that one limit may have made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Choice {
    Pass,
    Deny,
    Punish,
}

impl Model {
    pub(crate) fn new(per_mille: i128) -> Self {
        Self { configs: Vec::new(), tats: HashMap::new(), per_mille, summary: Summary::default() }
    }

    pub(crate) fn follow(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Config(config, since) => {
                self.configs.push((config.clone(), *since));
                self.summary.configurations += 1;
                Ok(())
            }
            Event::Asked(asked) => {
                for one in asked {
                    self.summary.answers += 1;
                    let has = |wanted: &str, is: fn(&str) -> bool| {
                        one.answer.iter().any(|(name, value)| *name == wanted && is(value))
                    };
                    self.summary.blocked += u64::from(has("blocked", |value| value == "true"));
                    self.summary.delayed += u64::from(has("delay_ms", |value| value != "0"));
                }
                match &asked[..] {
                    [one] => self.one(one),
                    [one, other] => self.two(one, other),
                    _ => unreachable!(),
                }
            }
        }
    }

    fn count(&mut self, is_quick: bool, is_undecided: bool) {
        if is_quick {
            self.summary.quick += 1;
            self.summary.undecided += u64::from(is_undecided);
        }
    }

    /// Whether the moment of a request and the TATs of its keys are known well.
    fn is_quick(&self, asked: &Answered) -> bool {
        let questions = asked
            .messages
            .iter()
            .flat_map(|message| self.questions(&self.tats, message, asked.window));
        let mut claims = questions.flat_map(|(_, _, claims, _)| claims);
        let known = |claim: Claim<'_>| {
            claim.tat.1 <= asked.window.0 || claim.tat.1 - claim.tat.0 < 20 * MS
        };
        asked.window.1 - asked.window.0 < 5 * MS && claims.all(known)
    }

    fn one(&mut self, asked: &Answered) -> Result<(), String> {
        let Some((tats, is_undecided)) = self.explain(&self.tats, asked) else {
            return Err(self.complaint(&[asked]));
        };
        let is_quick = self.is_quick(asked);
        self.tats = tats;
        self.count(is_quick, is_undecided);
        Ok(())
    }

    /// Two at the same time: whichever was first.
    fn two(&mut self, one: &Answered, other: &Answered) -> Result<(), String> {
        let order = |first, second| {
            let (tats, first_is) = self.explain(&self.tats, first)?;
            let (tats, second_is) = self.explain(&tats, second)?;
            Some((tats, first_is || second_is))
        };
        let found = match (order(one, other), order(other, one)) {
            (Some(one), Some(other)) => (either(&one.0, &other.0), one.1 || other.1),
            (Some(one), None) => one,
            (None, Some(other)) => {
                self.summary.reversed += 1;
                other
            }
            (None, None) => {
                // Several limits are not charged in one step, nor a limit and a penalty: each
                // request may have come between the steps of the other. All that is known then is
                // how much that can have charged.
                let Some(tats) = self.entangled([one, other]) else {
                    return Err(self.complaint(&[one, other]));
                };
                self.summary.entangled += 1;
                (tats, true)
            }
        };
        let are_quick = [one, other].map(|asked| self.is_quick(asked));
        self.tats = found.0;
        are_quick.into_iter().for_each(|is_quick| self.count(is_quick, found.1));
        Ok(())
    }

    /// The TATs after two requests that neither order explains; `None` when that can't be, since
    /// each was decided in one step or they have no bucket in common.
    fn entangled(&self, asked: [&Answered; 2]) -> Option<Tats> {
        let claims = asked.map(|asked| {
            let claims = asked
                .messages
                .iter()
                .flat_map(|message| self.questions(&self.tats, message, asked.window));
            claims.filter(|(_, cells, _, _)| *cells > 0).collect::<Vec<_>>()
        });
        let mut tats = self.tats.clone();
        let mut shared = false;
        let mut in_one_step = asked.iter().all(|asked| asked.messages.len() == 1);
        let buckets = |index: usize| {
            claims[index]
                .iter()
                .flat_map(|(_, _, claims, _)| claims)
                .map(|claim| claim.bucket.clone())
        };
        let others: [Vec<_>; 2] = [buckets(1).collect(), buckets(0).collect()];
        for (index, claims) in claims.iter().enumerate() {
            for (policy, cells, claims, _) in claims {
                in_one_step &=
                    claims.len() == 1 && policy.penalty.is_none() && policy.trial.is_none();
                for claim in claims {
                    shared |= others[index].contains(&claim.bucket);
                    let punished = policy.penalty.map_or(0, |(cells, _)| cells);
                    let charged =
                        (cells.min(&claim.limit.burst) + punished) * self.interval(claim.limit);
                    let latest = asked.iter().map(|asked| asked.window.1).max()?;
                    // The debt that was carried over to it is in the bucket only if it was
                    // charged, which is not known.
                    let tat = tats.get(&claim.bucket).copied().unwrap_or((0, 0));
                    tats.insert(
                        claim.bucket.clone(),
                        (tat.0, tat.1.max(claim.tat.1).max(latest) + charged),
                    );
                }
            }
        }
        (shared && !in_one_step).then_some(tats)
    }

    fn complaint(&self, asked: &[&Answered]) -> String {
        let mut text = "No moment explains the last answer.\n".to_owned();
        for (config, since) in &self.configs {
            text += &format!("in force since {since:?}:\n{}\n", config.text());
        }
        for asked in asked {
            let (from, to) = asked.window;
            text += &format!(
                "\nasked {:?}\nanswered {:?}\nbetween {from} and {} ns later\n",
                asked.messages,
                asked.answer,
                to - from
            );
            for message in &asked.messages {
                for (policy, cells, claims, _) in self.questions(&self.tats, message, asked.window)
                {
                    text += &format!("policy {}, {cells} cells\n", policy.name);
                    for Claim { bucket, tat, .. } in claims {
                        let owes = [tat.0 - to, tat.1 - from].map(|ns| ns as f64 / 1e6);
                        let [least, most] = owes;
                        text += &format!("    bucket {bucket} owes {least} to {most} ms\n");
                    }
                }
            }
        }
        text
    }

    /// The TATs after an answer, by all ways that lead to it, and whether there are ways to the
    /// opposite answer as well. `None` when nothing leads to it.
    fn explain(&self, tats: &Tats, asked: &Answered) -> Option<(Tats, bool)> {
        let mut ways = vec![Outcome {
            tats: tats.clone(),
            standings: Vec::new(),
            report: None,
            delay: None,
            moment: asked.window,
        }];
        for message in &asked.messages {
            ways = ways.iter().flat_map(|way| self.outcomes(way, asked.window, message)).collect();
        }
        let would = |way: &Outcome| way.report.as_ref().map(|(_, _, would, _)| *would);
        let is_undecided = ways.windows(2).any(|pair| would(&pair[0]) != would(&pair[1]));
        let good = ways.iter().filter_map(|way| self.matches(way, &asked.answer));
        let tats = good.reduce(|one, other| either(&one, &other))?;
        Some((tats, is_undecided))
    }

    /// T, as this model has it.
    fn interval(&self, limit: &Limit) -> i128 {
        limit.interval_ns * self.per_mille / 1000
    }

    fn drain(&self, limit: &Limit) -> i128 {
        self.interval(limit) * limit.burst
    }

    /// The most that a key owes by cells that are allowed.
    fn admits_up_to(&self, limit: &Limit) -> i128 {
        self.drain(limit) + limit.max_delay_ns
    }

    /// The questions about a message in this window: by its policy and by the policy's trial, if
    /// it has one and the key has no override.
    fn questions<'m>(&'m self, tats: &Tats, message: &Message, window: Span) -> Vec<Question<'m>> {
        let now = self.configs.len() - 1;
        let policies = &self.configs[now].0.policies;
        let policy = policies.iter().find(|policy| is_for(policy, message));
        let Some(question) =
            policy.and_then(|policy| self.question(tats, policy, message, window))
        else {
            return Vec::new();
        };
        let policy = question.0;
        let is_own = placed(policy, message).is_some_and(|(rule, _)| ptr::eq(rule, &policy.rule));
        let trial = policy.trial.as_ref().filter(|_| is_own);
        let trial = trial.and_then(|trial| self.question(tats, trial, message, window));
        [question].into_iter().chain(trial).collect()
    }

    /// A policy for a message, its cells, and the limits that are asked; `None` when nothing is
    /// decided. Whether the rule is to deny comes last.
    fn question<'m>(
        &'m self,
        tats: &Tats,
        policy: &'m Policy,
        message: &Message,
        now: Span,
    ) -> Option<Question<'m>> {
        let cells = match policy.cost.as_ref().and_then(|cost| message.arg(cost)) {
            None | Some(Part::Null) => 1,
            Some(Part::Number(number)) => i128::from(*number),
            Some(Part::Unsigned(number)) => i128::from(*number),
            Some(Part::Text(digits)) => digits.parse::<u64>().ok()?.into(),
            Some(_) => return None,
        };
        // No more than this is ever charged at once, and no less than nothing asked for.
        let cells = if cells < 0 { return None } else { cells.min(i128::from(u32::MAX)) };
        let (rule, key) = placed(policy, message)?;
        let claims = (0..).zip(rule.limits()).map(|(place, limit)| {
            let name = identity(rule, place);
            let tat = self.tat(tats, (policy, limit), &key, &name, message, now);
            let bucket = bucket(policy, limit, &key, &name);
            let is_own = tats.get(&bucket).copied().unwrap_or((0, 0)) == tat;
            let label = match (&limit.name, rule.limits().len()) {
                (Some(name), _) => format!("{}.{name}", policy.name),
                (None, 1) => policy.name.clone(),
                (None, _) => format!("{}.{}", policy.name, place + 1),
            };
            Claim { limit, label, bucket, tat, is_own }
        });
        Some((policy, cells, claims.collect(), *rule == Rule::Deny))
    }

    /// The TAT of a key under a limit of the configuration in force, between these moments: of its
    /// own bucket, or what it owes by earlier numbers, if that is more.
    ///
    /// The key has a bucket for each of the numbers that it had before. Take its debt in such a
    /// bucket when it got its numbers of now. That debt counts in cells, and is paid off at the
    /// faster of both rates.
    fn tat(
        &self,
        tats: &Tats,
        (policy, limit): (&Policy, &Limit),
        key: &str,
        name: &str,
        message: &Message,
        now: Span,
    ) -> Span {
        let own = |bucket: &str| tats.get(bucket).copied().unwrap_or((0, 0));
        let mine = bucket(policy, limit, key, name);
        // The numbers that the key had in each configuration, and when that ended.
        let numbers = |(config, _): &(Config, Span)| {
            let old = config.named(&policy.name)?;
            let rule = rule_of(old, message, key)?;
            let place = (0..rule.limits().len()).find(|place| identity(rule, *place) == name)?;
            let limit = &rule.limits()[place];
            Some((limit.clone(), bucket(old, limit, key, name)))
        };
        let ends = self.configs.iter().skip(1).map(|(_, begun)| *begun);
        let mut former: Vec<_> = self.configs.iter().map(numbers).zip(ends).collect();
        let is_mine = |found: &Option<(Limit, String)>| {
            found.as_ref().is_some_and(|(_, bucket)| *bucket == mine)
        };
        while former.last().is_some_and(|(found, _)| is_mine(found)) {
            former.pop();
        }
        let intervals = former.iter().filter_map(|(found, _)| found.as_ref());
        let intervals = intervals.map(|(limit, _)| self.interval(limit));
        let fastest = intervals.chain([self.interval(limit)]).min().unwrap_or(1);
        let mut tat = own(&mine);
        for (place, (found, ended)) in former.iter().enumerate() {
            let Some((old, bucket)) = found.as_ref().filter(|(_, bucket)| *bucket != mine) else {
                continue;
            };
            let (mut paid, mut since) = (own(bucket), *ended);
            for (next, ended) in &former[place + 1..] {
                // Where configurations come again, an agent knows the last time of each, and takes
                // the fastest of all in between.
                let next =
                    next.as_ref().map_or(self.interval(old), |(next, _)| self.interval(next));
                let more = |ns: i128, beside: i128| {
                    let gain = self.interval(old) - beside.min(self.interval(old));
                    ns.max(0) * gain / beside
                };
                paid.0 -= more(ended.1 - since.0, fastest.min(next)) + 1;
                paid.1 -= more(ended.0 - since.1, next);
                since = *ended;
            }
            tat = later(tat, self.carried(old, paid, since, now, limit));
        }
        tat
    }

    /// The TAT under new numbers of a key that has the TAT `tat` under the `old` ones. The new
    /// numbers came at the moment `since`. The key owes as many cells of the new numbers as it
    /// owed then, and no more than their burst. But it owes no more cells than it owes now by the
    /// old numbers.
    fn carried(&self, old: &Limit, tat: Span, since: Span, now: Span, new: &Limit) -> Span {
        let (new_t, old_t) = (self.interval(new), self.interval(old));
        let most_owed = self.admits_up_to(new);
        let at = |tat: i128, moment: i128| match tat - moment {
            // Rounded up.
            owed @ 1.. => moment + (-(-owed * new_t).div_euclid(old_t)).min(most_owed),
            _ => 0,
        };
        let within = |moment: Span| {
            // Just before the debt is paid off, it is as large as at its ends.
            let last = moment.1.min(tat.1 - 1).max(moment.0);
            let corners = [(tat.0, moment.0), (tat.0, moment.1), (tat.1, moment.0)];
            let corners = corners.into_iter().chain([(tat.1, moment.1), (tat.1, last)]);
            let corners: Vec<i128> = corners.map(|(tat, moment)| at(tat, moment)).collect();
            let most = corners.iter().max().copied().unwrap_or(0);
            // Where the new interval is longer it rises with the moment while the burst is all
            // that is carried over, and then falls.
            let more = if new_t > old_t && most > 0 { moment.1 - moment.0 } else { 0 };
            (corners.iter().min().copied().unwrap_or(0), most + more)
        };
        let (by_the_new, by_the_old) = (within(since), within(now));
        (by_the_new.0.min(by_the_old.0), by_the_new.1.min(by_the_old.1))
    }

    /// All ways in which a message may have been decided after `before`.
    fn outcomes(&self, before: &Outcome, window: Span, message: &Message) -> Vec<Outcome> {
        let mut ways = vec![before.clone()];
        let now = (before.moment.0.max(window.0), window.1);
        // No policy has a bucket in common with its trial.
        for (place, question) in self.questions(&before.tats, message, now).iter().enumerate() {
            let after = |way: &Outcome| {
                let shown = way.standings.len();
                let mut ways = self.answers(way, window, question);
                if place > 0 {
                    // The numbers of the trial are not answered.
                    ways.iter_mut().for_each(|way| way.standings.truncate(shown));
                }
                ways
            };
            ways = ways.iter().flat_map(after).collect();
        }
        ways
    }

    /// All ways in which a policy or a trial may have decided after `before`.
    fn answers(&self, before: &Outcome, window: Span, question: &Question<'_>) -> Vec<Outcome> {
        let (policy, _, claims, _) = question;
        // No earlier than the message before it.
        let window = (before.moment.0, window.1);
        let mut choices: Vec<Vec<Choice>> = vec![Vec::new()];
        let punishes = policy.penalty.is_some() && !policy.observes;
        for _ in claims {
            let each = if punishes {
                &[Choice::Pass, Choice::Deny, Choice::Punish][..]
            } else {
                &[Choice::Pass, Choice::Deny]
            };
            choices = choices
                .iter()
                .flat_map(|choice| each.iter().map(move |one| [&choice[..], &[*one]].concat()))
                .collect();
        }
        choices
            .iter()
            .filter_map(|choices| self.outcome(before, window, question, choices))
            .collect()
    }

    /// The outcome of one choice for each limit, where some moment allows that.
    fn outcome(
        &self,
        before: &Outcome,
        window: Span,
        question: &Question<'_>,
        choices: &[Choice],
    ) -> Option<Outcome> {
        let (policy, cells, claims, denies) = question;
        let passes = choices.iter().all(|choice| *choice == Choice::Pass);
        let asked = || {
            let each = claims.iter().zip(choices).map(|(claim, choice)| AskedLimit {
                model: self,
                policy,
                limit: claim.limit,
                cells: *cells,
                choice: *choice,
                passes,
            });
            claims.iter().zip(each)
        };
        let moment = asked().try_fold(window, |moment, (claim, asked)| {
            common(moment, asked.moments(claim.tat)?)
        })?;
        let mut next = before.clone();
        next.moment = moment;
        if policy.max_delay.is_some() && !policy.observes {
            next.delay = next.delay.or(Some((0, 0)));
        }
        let mut reason = denies.then_some("denied");
        for (Claim { limit, label, bucket, tat, is_own }, asked) in asked() {
            let tat = asked.tat(*tat, moment)?;
            let owed = ((tat.0 - moment.1).max(0), (tat.1 - moment.0).max(0));
            let (owed, charged) = asked.charge(owed)?;
            if charged > 0 {
                let after = (tat.0.max(moment.0) + charged, tat.1.max(moment.1) + charged);
                next.tats.insert(bucket.clone(), after);
            }
            reason = stronger(reason, asked.reason());
            let (wait, room) = asked.wait(owed);
            let delay = asked.delay(owed);
            if let Some(delay) = delay {
                // It waits for all limits.
                next.delay = Some(later(next.delay.unwrap_or((0, 0)), delay));
            }
            next.standings.push(Standing {
                label: label.clone(),
                bucket: bucket.clone(),
                observes: policy.observes,
                is_own: *is_own || charged > 0,
                limit: (*limit).clone(),
                moment,
                owed,
                delay,
                wait,
                room,
            });
        }
        next.report = Some(combined(next.report.take(), report_of(policy, reason)));
        Some(next)
    }

    /// The TATs after a way, as the answer tells them; `None` when the answer does not fit the
    /// way.
    fn matches(&self, way: &Outcome, answer: &Vars) -> Option<Tats> {
        let said = Said(answer);
        let Some((policy, blocked, would, reason)) = &way.report else {
            return answer.is_empty().then(|| way.tats.clone());
        };
        let matches = said.is("blocked", *blocked)
            && said.is("would_block", *would)
            && said.var("policy") == Some(policy)
            && said.var("reason") == *reason;
        if !matches {
            return None;
        }
        let delay = self.told_delay(way, *blocked, said)?;
        // Those of policies that only observe are answered where there are no others.
        let is_enforced = way.standings.iter().any(|standing| !standing.observes);
        let answered = way.standings.iter().enumerate();
        let (places, standings): (Vec<_>, Vec<_>) =
            answered.filter(|(_, standing)| !standing.observes || !is_enforced).take(8).unzip();
        if standings.is_empty() {
            return VARS[5..]
                .iter()
                .all(|name| said.var(name).is_none())
                .then(|| way.tats.clone());
        }
        let delay = delay.filter(|_| !*blocked);
        let told = self.told_by_members(way, &standings, delay, said)?;
        if said.var("ratelimit_policy")? != fields(&standings) {
            return None;
        }
        let wait = said.wait(*reason)?;
        let reset = whole_after(said.number("reset")?, said.number("limit")?)?;
        let mut found = None::<Tats>;
        for place in 0..standings.len() {
            let is_said = said.number("limit")? == standings[place].limit.burst
                && said.number("remaining")? == told[place].0;
            let owed = is_said.then(|| tightest(&standings, &told, place, wait, reset)).flatten();
            let Some(owed) = owed else { continue };
            let mut tats = way.tats.clone();
            for (other_place, other) in standings.iter().enumerate() {
                let owed = if other_place == place { owed } else { told[other_place].1 };
                let is_last = way.standings[places[other_place] + 1..]
                    .iter()
                    .all(|later| later.bucket != other.bucket);
                if other.is_own && is_last && owed.0 > 0 {
                    let tat = tats.entry(other.bucket.clone()).or_insert((0, 0));
                    *tat = common(*tat, (owed.0 + other.moment.0, owed.1 + other.moment.1))?;
                }
            }
            found = Some(found.map_or(tats.clone(), |found| either(&found, &tats)));
        }
        found
    }

    /// The delay of a way, as `delay_ms` says; the outer `None` when it says another.
    fn told_delay(&self, way: &Outcome, blocked: bool, said: Said<'_>) -> Option<Option<Span>> {
        // Also a policy without a delay says that what it blocks does not wait.
        let can_delay = self.configs.last().is_some_and(|(config, ..)| config.can_delay());
        let delay = if blocked && can_delay { Some((0, 0)) } else { way.delay };
        match (delay, said.var("delay_ms")) {
            (None, None) => Some(None),
            (Some(delay), Some(said)) => match said.parse().ok()? {
                0 => Some(Some(common(delay, (0, 0))?)),
                said => Some(Some(common(delay, up_to(said, MS)?)?)),
            },
            _ => None,
        }
    }

    /// For each limit, the cells left by its member of `ratelimit`, and the debt that follows from
    /// these and from the seconds until all are back.
    fn told_by_members(
        &self,
        way: &Outcome,
        standings: &[&Standing],
        delay: Option<Span>,
        said: Said<'_>,
    ) -> Option<Vec<(i128, Span)>> {
        let members: Vec<_> = said.var("ratelimit")?.split(", ").collect();
        if members.len() != standings.len() {
            return None;
        }
        let delaying = way.standings.iter().filter(|it| it.delay.is_some()).count();
        let told = |(standing, member): (&&Standing, &str)| {
            let rest = member.strip_prefix(&format!("\"{}\";r=", standing.label))?;
            let (left, seconds) = rest.split_once(";t=")?;
            let (left, seconds) = (left.parse::<i128>().ok()?, seconds.parse::<i128>().ok()?);
            let owed = common(self.owed_with(&standing.limit, left)?, standing.owed)?;
            let owed = common(whole_after(seconds, standing.limit.burst)?, owed)?;
            // The request waits for the limit that makes it wait longest.
            let owed = match delay.filter(|_| standing.delay.is_some()) {
                Some((least, most)) => {
                    let drain = self.drain(&standing.limit);
                    let least = if delaying == 1 && least > 0 { least + drain } else { 0 };
                    common((least, most + drain), owed)?
                }
                None => owed,
            };
            Some((left, owed))
        };
        standings.iter().zip(members).map(told).collect()
    }

    /// The debt of a key with so many cells left.
    fn owed_with(&self, limit: &Limit, left: i128) -> Option<Span> {
        let (interval, drain) = (self.interval(limit), self.drain(limit));
        match left {
            ..0 => None,
            0 => Some((drain - interval + 1, i128::MAX / 4)),
            left if left > limit.burst => None,
            left => Some(((drain - (left + 1) * interval + 1).max(0), drain - left * interval)),
        }
    }
}

/// One limit that is asked about the cells of a message, and what it chooses.
#[derive(Clone, Copy)]
struct AskedLimit<'c> {
    model: &'c Model,
    policy: &'c Policy,
    limit: &'c Limit,
    cells: i128,
    choice: Choice,
    /// Whether all limits let the message pass, so that each is charged.
    passes: bool,
}

impl AskedLimit<'_> {
    fn is_oversize(&self) -> bool {
        self.cells > self.limit.burst
    }

    /// Rate and burst: a key that owes no more than this has space for the cells.
    fn room(&self) -> i128 {
        self.model.admits_up_to(self.limit) - self.cells * self.model.interval(self.limit)
    }

    /// The moments at which a key with this TAT gets this choice. No cells always pass, and more
    /// than a burst never do.
    fn moments(&self, tat: Span) -> Option<Span> {
        let always = (i128::MIN, i128::MAX);
        match self.choice {
            Choice::Pass if self.cells == 0 => Some(always),
            Choice::Pass if self.is_oversize() => None,
            Choice::Pass => Some((tat.0 - self.room(), i128::MAX)),
            Choice::Deny | Choice::Punish if self.cells == 0 => None,
            Choice::Deny | Choice::Punish if self.is_oversize() => Some(always),
            Choice::Deny | Choice::Punish => Some((i128::MIN, tat.1 - self.room() - 1)),
        }
    }

    /// The bounds that the choice at this moment sets for the TAT before it.
    fn tat(&self, mut tat: Span, moment: Span) -> Option<Span> {
        match self.choice {
            Choice::Pass if self.cells > 0 => tat.1 = tat.1.min(moment.1 + self.room()),
            Choice::Deny | Choice::Punish if !self.is_oversize() => {
                tat.0 = tat.0.max(moment.0 + self.room() + 1);
            }
            _ => {}
        }
        (tat.0 <= tat.1).then_some(tat)
    }

    /// The charge to a key that owes this, in nanoseconds, and its debt with that.
    fn charge(&self, owed: Span) -> Option<(Span, i128)> {
        let (owed, cells) = match self.choice {
            Choice::Pass if self.passes => (owed, self.cells),
            Choice::Pass => (owed, 0),
            Choice::Deny | Choice::Punish => self.penalty(owed)?,
        };
        let charged = cells * self.model.interval(self.limit);
        Some(((owed.0 + charged, owed.1 + charged), charged))
    }

    /// Penalties: what a key owes that is denied, and the cells that it is charged for it. That is
    /// the penalty as long as it stays below the ceiling, as far as whole cells reach.
    fn penalty(&self, owed: Span) -> Option<(Span, i128)> {
        let interval = self.model.interval(self.limit);
        let (penalty, ceiling_ns) = self.policy.penalty.unwrap_or((0, 0));
        let delay_cells = -(-self.limit.max_delay_ns).div_euclid(interval);
        let most = (self.limit.burst + delay_cells + ceiling_ns / interval - penalty) * interval;
        let may_punish = self.policy.penalty.is_some() && !self.policy.observes;
        match self.choice {
            Choice::Punish => (owed.0 <= most).then_some(((owed.0, owed.1.min(most)), penalty)),
            _ if may_punish && owed.1 <= most => None,
            _ => Some((owed, 0)),
        }
    }

    fn reason(&self) -> Option<&'static str> {
        match self.choice {
            Choice::Pass => None,
            Choice::Deny | Choice::Punish if self.is_oversize() => Some("oversize"),
            Choice::Deny | Choice::Punish => Some("limit"),
        }
    }

    /// How long a key that owes this has to wait; and if that follows from its debt, by how much
    /// it is less than the debt.
    fn wait(&self, owed: Span) -> (Span, Option<i128>) {
        match self.choice {
            // Until one cell can be spent.
            Choice::Pass if self.cells == 0 => {
                let interval = self.model.interval(self.limit);
                let room = self.model.admits_up_to(self.limit) - interval;
                (((owed.0 - room).max(0), (owed.1 - room).max(0)), None)
            }
            Choice::Pass => ((0, 0), None),
            Choice::Deny | Choice::Punish if self.is_oversize() => {
                let drain = self.model.drain(self.limit);
                ((drain, drain), None)
            }
            Choice::Deny | Choice::Punish => {
                let room = self.room();
                (((owed.0 - room).max(1), owed.1 - room), Some(room))
            }
        }
    }

    /// Delays: how long the request waits for the debt beyond a burst, if the limit has charged it
    /// and can delay it.
    fn delay(&self, owed: Span) -> Option<Span> {
        let delays =
            self.passes && self.cells > 0 && self.limit.max_delay_ns > 0 && !self.policy.observes;
        let drain = self.model.drain(self.limit);
        delays.then(|| ((owed.0 - drain).max(0), (owed.1 - drain).max(0)))
    }
}

/// Why a request is blocked, or would be: each word is a stronger reason than the one before it.
const REASONS: [Option<&str>; 4] = [None, Some("limit"), Some("oversize"), Some("denied")];

fn strength(reason: Option<&str>) -> Option<usize> {
    REASONS.iter().position(|known| *known == reason)
}

fn stronger(one: Option<&'static str>, other: Option<&'static str>) -> Option<&'static str> {
    if strength(one) >= strength(other) { one } else { other }
}

fn report_of(policy: &Policy, reason: Option<&'static str>) -> Report {
    (policy.name.clone(), reason.is_some() && !policy.observes, reason.is_some(), reason)
}

/// Combining messages: one that blocks is enough, and the one that says more has the word.
fn combined(first: Option<Report>, report: Report) -> Report {
    let Some(first) = first else { return report };
    let says = |report: &Report| (report.1, report.2, strength(report.3));
    let (blocked, would) = (report.1 || first.1, report.2 || first.2);
    let (name, _, _, reason) = if says(&report) > says(&first) { report } else { first };
    (name, blocked, would, reason)
}

/// The variables of an answer.
#[derive(Clone, Copy)]
struct Said<'a>(&'a Vars);

impl<'a> Said<'a> {
    fn var(self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(var, _)| *var == name).map(|(_, value)| &**value)
    }

    fn is(self, name: &str, truth: bool) -> bool {
        self.var(name) == Some(if truth { "true" } else { "false" })
    }

    fn number(self, name: &str) -> Option<i128> {
        self.var(name)?.parse().ok()
    }

    /// The wait that `retry_after_ms` and `retry_after` name. A request that is denied is not told
    /// to come back.
    fn wait(self, reason: Option<&str>) -> Option<Span> {
        let waits = [("retry_after_ms", MS), ("retry_after", S)].map(|(name, unit)| {
            let number = self.number(name)?;
            if number == 0 { Some((0, 0)) } else { up_to(number, unit) }
        });
        match waits {
            [None, None] if reason == Some("denied") => Some((0, i128::MAX)),
            waits => common(waits[0]?, waits[1]?),
        }
    }
}

/// The value of `ratelimit_policy` for these limits.
fn fields(standings: &[&Standing]) -> String {
    let field = |standing: &&Standing| {
        // The interval was rounded up, by less than a nanosecond for each cell. And a model with
        // other intervals must not fail by a value of the configuration.
        let (interval_ns, burst) = (standing.limit.interval_ns, standing.limit.burst);
        let drain = interval_ns * burst - (burst - 1);
        let seconds = -(-drain).div_euclid(S);
        format!("\"{}\";q={burst};w={}", standing.label, seconds.max(1))
    };
    standings.iter().map(field).collect::<Vec<_>>().join(", ")
}

/// The debt under the limit at this place, if it can be the tightest one, whose numbers are
/// answered: this wait, and the debt by `reset`.
fn tightest(
    standings: &[&Standing],
    told: &[(i128, Span)],
    place: usize,
    wait: Span,
    reset: Span,
) -> Option<Span> {
    let (left, owed) = told[place];
    let mut wait = common(wait, standings[place].wait)?;
    let mut owed = common(reset, owed)?;
    if let Some(room) = standings[place].room {
        wait = common(wait, (owed.0 - room, owed.1 - room))?;
        owed = common(owed, (wait.0 + room, wait.1 + room))?;
    }
    // No other one says more for certain.
    let says_no_more = |(other_place, other): (usize, &&Standing)| {
        let (other_left, other_owed) = told[other_place];
        let has_more = other_left > left || (other_left == left && other_owed.0 <= owed.1);
        other_place == place || other.wait.0 < wait.1 || (other.wait.0 <= wait.1 && has_more)
    };
    standings.iter().enumerate().all(says_no_more).then_some(owed)
}

/// More than `number - 1` units, and no more than `number`.
fn up_to(number: i128, unit: i128) -> Option<Span> {
    (number > 0).then(|| ((number - 1) * unit + 1, number * unit))
}

/// The debt when this many seconds are answered until all of a burst is free. They are those of
/// the configuration's numbers, whose interval was rounded up by less than a nanosecond for each
/// cell.
fn whole_after(seconds: i128, burst: i128) -> Option<Span> {
    if seconds == 0 {
        return Some((0, 0));
    }
    up_to(seconds, S).map(|(least, most)| (least, most + burst))
}

fn common(one: Span, other: Span) -> Option<Span> {
    let span = (one.0.max(other.0), one.1.min(other.1));
    (span.0 <= span.1).then_some(span)
}

/// Of two TATs the later one.
fn later(one: Span, other: Span) -> Span {
    (one.0.max(other.0), one.1.max(other.1))
}

/// The TATs that are possible by one or by the other.
fn either(one: &Tats, other: &Tats) -> Tats {
    let mut both = one.clone();
    for bucket in one.keys().chain(other.keys()) {
        let of = |tats: &Tats| tats.get(bucket).copied().unwrap_or((0, 0));
        let (one, other) = (of(one), of(other));
        both.insert(bucket.clone(), (one.0.min(other.0), one.1.max(other.1)));
    }
    both
}

fn is_for(policy: &Policy, message: &Message) -> bool {
    policy.message == message.name
        && policy.when.as_ref().is_none_or(|(arg, values)| {
            message.arg(arg).is_some_and(|it| it.texts().iter().any(|text| values.contains(text)))
        })
}

/// Identifies a limit among others of its rule: its name, or its place.
fn identity(rule: &Rule, place: usize) -> String {
    rule.limits()[place].name.clone().unwrap_or_else(|| (place + 1).to_string())
}

fn bucket(policy: &Policy, limit: &Limit, key: &str, name: &str) -> Bucket {
    let Limit { interval_ns, burst, max_delay_ns, .. } = limit;
    // A penalty is charged in whole cells on top of the longest delay.
    let beyond = match policy.penalty {
        None => *max_delay_ns,
        Some((_, ceiling_ns)) => {
            -(-max_delay_ns).div_euclid(*interval_ns) * interval_ns + ceiling_ns
        }
    };
    format!("{} {name} {key} {interval_ns}x{burst}+{beyond}", policy.name)
}

/// The rule that holds for a message, and its key; `None` when a part of the key is not there.
fn placed<'p>(policy: &'p Policy, message: &Message) -> Option<(&'p Rule, String)> {
    // Each with the name of the arg where it stands for another one.
    let mut parts: Vec<(&str, Option<&Part>)> = Vec::new();
    if policy.key.is_empty() {
        let left_out = [policy.cost.as_ref(), policy.when.as_ref().map(|(arg, _)| arg)];
        let args = message.args.iter().filter(|(name, _)| !left_out.contains(&Some(name)));
        parts.extend(args.map(|(_, part)| ("", Some(part))));
    }
    for entry in &policy.key {
        let value = |name: &str| message.arg(name).filter(|part| **part != Part::Null);
        match (entry.strip_prefix("else "), parts.last_mut()) {
            (None, _) => parts.push(("", value(entry))),
            (Some("null"), Some(part)) => part.1 = part.1.or(Some(&Part::Null)),
            (Some(name), Some(part)) if part.1.is_none() => *part = (name, value(name)),
            (Some(_), _) => {}
        }
    }
    let mut found = None;
    // The settings that make the key are a part of the id.
    let left_out =
        policy.key.is_empty().then_some((&policy.cost, policy.when.as_ref().map(|it| &it.0)));
    let mut key =
        format!("{:?} {:?} {} {left_out:?}: ", policy.key, policy.prefixes, policy.lowercase);
    for (fallback, part) in parts {
        let part = part?;
        key += fallback;
        let narrower = if found.is_none() { override_for(policy, part) } else { None };
        key += &match (part, policy.lowercase) {
            (Part::Ip(ip), _) => {
                let ip = client(*ip);
                let groups = if ip.is_ipv4() { policy.prefixes.0 } else { policy.prefixes.1 };
                match narrower.map_or(0, |(_, bits)| bits) {
                    bits if bits > groups => format!("{}/{bits}!", network(ip, bits)),
                    _ => network(ip, groups).to_string(),
                }
            }
            (Part::Text(text), true) => format!("{:?}", Part::Text(text.to_ascii_lowercase())),
            (part, _) => format!("{part:?}"),
        };
        key.push(',');
        found = found.or(narrower);
    }
    Some((found.map_or(&policy.rule, |(rule, _)| rule), key))
}

/// The rule under which a message counted by this key; `None` if it counted by another one.
fn rule_of<'p>(policy: &'p Policy, message: &Message, key: &str) -> Option<&'p Rule> {
    let (rule, own) = placed(policy, message)?;
    if own == key {
        return Some(rule);
    }
    // An override gave it a key of its own, and this one was that of its group.
    let (_, group) = placed(&policy.without_overrides(), message)?;
    (group == key).then_some(&policy.rule)
}

/// The rule of the override for a value, and for an address the prefix length of its network.
fn override_for<'p>(policy: &'p Policy, part: &Part) -> Option<(&'p Rule, u8)> {
    let found = policy.all_overrides().filter_map(|(whom, rule)| {
        let bits = match (whom, part) {
            (Whom::Net(net, bits), Part::Ip(ip)) => {
                let ip = client(*ip);
                let within =
                    net.is_ipv4() == ip.is_ipv4() && network(ip, *bits) == network(*net, *bits);
                within.then_some(*bits)
            }
            (Whom::Value(value), Part::Text(text)) if policy.lowercase => {
                value.eq_ignore_ascii_case(text).then_some(0)
            }
            (Whom::Value(value), Part::Binary(text)) if policy.lowercase => {
                (value.to_ascii_lowercase() == *text).then_some(0)
            }
            (Whom::Value(value), part) => part.texts().contains(value).then_some(0),
            _ => None,
        }?;
        Some((rule, bits))
    });
    found.max_by_key(|(_, bits)| *bits)
}

/// The first bits of an address.
fn network(ip: IpAddr, bits: u8) -> IpAddr {
    let mask = |width: u32| match width - u32::from(bits) {
        128 => 0,
        rest => u128::MAX << rest,
    };
    match ip {
        #[allow(clippy::cast_possible_truncation, reason = "the upper bits are of no address")]
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & mask(32) as u32).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) & mask(128)).into()),
    }
}
