//! The lines of the log about messages that could not be decided or settled.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::atomic::Ordering;

use gcra_limiter::active_policies::{ActivePolicies, ActivePolicy};
use gcra_limiter::haproxy_undecided::{self, ByErr, HaproxyUndecided};
use gcra_limiter::stats::PolicyStats;
use gcra_limiter::undecided::Undecided;
use gcra_limiter::{undecided, verdict};
use gcra_policy::Policy;
use gcra_policy::haproxy::report::ERRS;
use gcra_policy::limit_from_arg::ArgValue;

use super::once_per_minute::News;
use super::running::Running;

/// The lines of the log so far.
#[derive(Default)]
pub(super) struct MessageReports {
    /// For how many messages it has said each of [`ABOUT`].
    said: [u64; 3],
    /// The sentences about texts of the file that can never match.
    misfits: BTreeSet<String>,
    /// For how many messages of each policy it has said that they had no limit in an arg for it.
    no_limits: BTreeMap<Box<str>, u64>,
    /// The reports about requests that HAProxy got no answer for.
    haproxy: HaproxyReports,
    /// The policies of which the log said that they get addresses as strings.
    text_addresses: BTreeSet<Box<str>>,
    /// The messages of which the log said that none has come.
    never_settled: BTreeSet<String>,
}

impl MessageReports {
    /// To be called at each beat. The first mistake is logged at once, for an operator who tries a
    /// configuration.
    pub(super) fn beat(&mut self, running: &Running) {
        let all = &running.undecided;
        if iter::zip(counts(all), self.said).any(|(count, said)| said == 0 && count > 0) {
            self.report_mistakes(all);
        }
        self.report_mistaken_args(&running.policies.load(), true);
        self.haproxy.beat(&all.haproxy);
    }

    /// To be called once a minute.
    pub(super) fn report(&mut self, running: &Running) {
        for policy in &running.policies.load().policies.list {
            let stats = running.stats.policy(&policy.name);
            if let Some(never) = self.never_settled(policy, &stats) {
                log::warn!("{never}");
            }
            if let Some(arg) = stats.text_address()
                && self.text_addresses.insert(policy.name.clone())
            {
                log::warn!("{}", about_string_address(policy, arg));
            }
        }
        self.report_mistaken_args(&running.policies.load(), false);
        self.report_mistakes(&running.undecided);
    }

    /// Logs once the texts that can never match. Logs how many messages had no limit in the arg
    /// for it since the last report; with `first`, only if there was no report for the policy.
    fn report_mistaken_args(&mut self, in_force: &ActivePolicies, first: bool) {
        for ActivePolicy { policy, stats, mistaken, .. } in in_force.rows() {
            if let Some(about) = mistaken.about_misfit(policy)
                && self.misfits.insert(about.clone())
            {
                log::warn!("{about}");
            }
            let count = stats.seldom.limit_args.each()[ArgValue::Invalid as usize].1;
            let said = self.no_limits.get(&policy.name).copied().unwrap_or_default();
            if count > said && !(first && said > 0) {
                log::warn!("{}", mistaken.about_no_limit(&policy.name, count - said));
                self.no_limits.insert(policy.name.clone(), count);
            }
        }
    }

    /// Logs what was wrong with messages since this was last done.
    fn report_mistakes(&mut self, all: &Undecided) {
        for ((count, said), about) in iter::zip(counts(all), &mut self.said).zip(ABOUT) {
            if count > *said {
                log::warn!("{}", about(all, count - *said));
            }
            *said = count;
        }
    }

    /// Says once that many requests of a policy were allowed, and that none was settled. It may be
    /// right, where only a failure is charged.
    fn never_settled(&mut self, policy: &Policy, stats: &PolicyStats) -> Option<String> {
        const MANY: u64 = 1000;
        let message = String::from_utf8_lossy(&policy.settle()?.message).into_owned();
        let allowed = stats.counts()[verdict::Outcome::Allowed.index()];
        let is_settled = stats.seldom.settled.sum() > 0;
        let is_new = allowed >= MANY && !is_settled && self.never_settled.insert(message.clone());
        is_new.then(|| {
            format!(
                "policy '{}' has allowed {allowed} requests, and no message '{message}' has \
                 settled one; if responses should have, compare the spoe-message '{message}', \
                 its event and the 'messages' line with 'gcra-spoa check --print-haproxy'",
                policy.name
            )
        })
    }
}

/// The lines of the log about requests that HAProxy got no answer for.
#[derive(Default)]
struct HaproxyReports {
    news: News,
    said: ByErr,
    unsettled: News,
    unsettled_said: u64,
    nameless: News,
    nameless_said: u64,
}

impl HaproxyReports {
    fn beat(&mut self, all: &HaproxyUndecided) {
        all.beat();
        let (counts, unsettled, nameless) = (all.counts(), all.unsettled(), all.nameless());
        if self.news.due(counts != self.said) {
            let new = haproxy_undecided::since(counts, self.said);
            if let Some(about) = haproxy_undecided::about(iter::zip(ERRS, new)) {
                log::warn!("{about}");
            }
            self.said = counts;
        }
        if self.unsettled.due(unsettled > self.unsettled_said) {
            let new = unsettled - self.unsettled_said;
            log::warn!("{}", haproxy_undecided::about_unsettled(new));
            self.unsettled_said = unsettled;
        }
        if self.nameless.due(nameless > self.nameless_said) {
            log::warn!("{}", haproxy_undecided::about_nameless(nameless - self.nameless_said));
            self.nameless_said = nameless;
        }
    }
}

/// Says how many messages had each kind of mistake.
const ABOUT: [fn(&Undecided, u64) -> String; 3] =
    [Undecided::about_undecided, Undecided::about_unsettled, Undecided::about_unmatched];

/// How many messages had each of these so far.
fn counts(all: &Undecided) -> [u64; 3] {
    [&all.undecided, &all.unsettled, &all.unmatched].map(|count| count.load(Ordering::Relaxed))
}

/// Says that an arg of the key should be an address, and is a string.
fn about_string_address(policy: &Policy, arg: undecided::PrintableName) -> String {
    format!(
        "policy '{}' got an address as a string in the arg '{arg}', so no prefix and no override \
         of an address applies to it; let HAProxy send an address, such as src or \
         req.hdr_ip(x-forwarded-for), and not req.hdr or req.fhdr",
        policy.name
    )
}
