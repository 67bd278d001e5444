//! From a question to a verdict, under limits that this host shares with others: spends cells that
//! the store has lent, or says that the request has to wait for some.

// ADR 35: Every message takes one path to its verdict.
// ADR 44: What cannot be lent is charged in the store.

use std::mem;

use arrayvec::ArrayVec;
use gcra_lease::{HostTime, Look, Step};
use gcra_policy::{Limit, MAX_LIMITS};
use gcra_table::{LeaseKey, LeaseNeed, Nanos, Reading, Table, Time};
use spop_agent::Message;

use crate::active_policies::{ActivePolicies, SingleCharge};
use crate::answer::{BucketStanding, LimitUsage, LimitUsages};
use crate::decide::claim::{Claim, SharedQuestion};
use crate::decide::path::OneMessage;
use crate::decide::shared_progress::{MustWait, Patience, SharedProgress};
use crate::lease_client::agenda::LeaseTarget;
use crate::lease_client::waiting::Waits;
use crate::lease_client::{Asking, LeaseClient};
use crate::question::Question;
use crate::verdict::{Reason, Verdict};

impl OneMessage<'_> {
    /// The verdict on a message under the one limit of a shared policy, if the cells are here or
    /// the store has said when to come back.
    #[inline(always)]
    pub(crate) fn spend<'m>(
        &self,
        single: &SingleCharge,
        now: Time,
        question: Question,
        message: impl FnOnce() -> Option<Message<'m>>,
    ) -> Option<Verdict> {
        let Self { table, in_force, borrowing } = *self;
        let (lease_client, leases) = borrowing?;
        let Question { policy: place, key, cells, .. } = question;
        // A request that can never be allowed, or that costs nothing, is decided elsewhere.
        if cells == 0 || cells > single.quota.burst() {
            return None;
        }
        let lease_key = single.lease_key(key);
        let taken = leases.take(lease_key, HostTime::from(now), cells, lease_client.patience);
        let reason = match taken {
            Ok(spent) => {
                let left = spent.left();
                // Each time that half is spent, and at the end.
                if left & left.wrapping_sub(1) == 0
                    && let Some(message) = message()
                {
                    ask_ahead(lease_client, table, in_force, question, &message, lease_key);
                }
                None
            }
            Err(Look::Blocked { .. }) => Some(Reason::Limit),
            Err(_) => return None,
        };
        Some(Verdict::new(place, single.observes, reason))
    }
}

/// After cells of a key were spent: asks for more if what is left will not last, and reports what
/// was spent if that cannot wait.
#[cold]
pub(crate) fn ask_ahead(
    lease_client: &LeaseClient,
    table: &Table,
    in_force: &ActivePolicies,
    question: Question,
    message: &Message<'_>,
    key: LeaseKey,
) {
    let leases = lease_client.leases();
    let policy = &in_force.row(question.policy).policy;
    let (Some(sharing), [limit]) = (policy.shared, policy.rule(question.rule).limits()) else {
        return;
    };
    let leases = &leases;
    let shared =
        SharedQuestion { lease_client, leases, table, in_force, sharing, question, message };
    lease_client.spent(table, key, || shared.target(shared.claim(0, limit)));
}

impl<'p> SharedQuestion<'p, '_, '_> {
    /// Decides, or goes one step further. No limit counts in windows: a policy that has one, be it
    /// in an override or in its trial, is charged [at once](gcra_policy::Sharing::at_once).
    ///
    /// # Errors
    ///
    /// The request has to wait.
    pub(crate) fn decide(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        so_far: &mut SharedProgress,
        patience: Patience,
        usages: Option<&mut LimitUsages>,
    ) -> Result<Option<Reason>, MustWait> {
        let claims = self.claims(limits);
        debug_assert!(claims.iter().all(|claim| claim.limit.calendar().is_none()));
        let cells = self.question.cells;
        let needs: ArrayVec<_, MAX_LIMITS> = claims
            .iter()
            .map(|claim| LeaseNeed { key: claim.key, cells, burst: claim.quota.burst() })
            .collect();
        let at = HostTime::from(now.time());
        let step = self.leases.decide(at, &needs, self.lease_client.patience);
        let (reason, standings_of) = match step {
            Step::Allow => {
                self.spent(&claims);
                (None, self.usages(&claims, at, so_far, None))
            }
            Step::TooLarge { limit } => {
                let never = claims.get(limit).map(|claim| claim.quota.drain_time());
                let denied = never.map(|never| (limit, never));
                (Some(Reason::Oversize), self.usages(&claims, at, so_far, denied))
            }
            Step::Block { limit, until } => {
                let wait = Nanos::from(until.saturating_since(at));
                let wait = self.punish(&claims, limit, wait);
                (Some(Reason::Limit), self.usages(&claims, at, so_far, Some((limit, wait))))
            }
            Step::Wait { limit, .. } | Step::Ask { limit, .. } => {
                let claim = claims.get(limit);
                let target = claim.and_then(|claim| Some((*claim, self.target(*claim)?)));
                let Some((claim, target)) = target else { return Ok(Some(Reason::Store)) };
                if self.waits(step, claim, &target, so_far, patience) {
                    return Err(MustWait);
                }
                let decided = self.without_store(limits, now, &target);
                let (row, Question { policy, .. }) = (self.row(), self.question);
                let verdict = Verdict::new(policy, row.policy.observes, decided.0);
                row.stats.seldom.without_store.add(verdict.outcome.index(), 1);
                decided
            }
        };
        if reason.is_some() {
            self.give_back(&claims, so_far);
        }
        if let Some(usages) = usages {
            let policy = self.policy();
            standings_of.iter().for_each(|usage| usages.add(usage, policy));
        }
        Ok(reason)
    }

    /// Whether the request waits for cells of a claim. If the step is to ask, it asks for them
    /// itself; else other requests have asked for them.
    fn waits(
        &self,
        step: Step,
        claim: Claim<'p>,
        target: &LeaseTarget,
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> bool {
        if !self.may_wait(target, so_far, patience) {
            return false;
        }
        so_far.sharing = Some(self.sharing);
        if so_far.waits.as_ref().is_none_or(|waits| waits.key != claim.key) {
            let waits = self.lease_client.join(claim.key, self.question.cells);
            if let Some(before) = so_far.waits.replace(waits) {
                // When there is no space, the request has waited for a key twice.
                let _ = so_far.free.try_push((before.key, before.free()));
            }
        }
        let Step::Ask { limit, least } = step else { return true };
        if patience != Patience::Asks {
            return true;
        }
        if let Some(asked) = so_far.asked.get_mut(limit) {
            *asked = true;
        }
        if self.row().has_changed {
            self.give_former_back(claim);
        }
        self.lease_client.ask(self.table, target.clone(), least) == Asking::UnderWay
    }

    /// Whether the store can be waited for.
    fn may_wait(&self, target: &LeaseTarget, so_far: &SharedProgress, patience: Patience) -> bool {
        let is_away = self.lease_client.is_away(self.table, target);
        patience != Patience::MustAnswer
            && (!is_away || self.lease_client.is_starting(target))
            && !so_far.waits.as_ref().is_some_and(Waits::is_away)
    }

    /// Gives back the cells that this machine holds under numbers or keys from before a change.
    /// They would count as spent.
    #[cold]
    fn give_former_back(&self, claim: Claim<'_>) {
        let now = HostTime::from(self.table.now());
        for target in self.former_targets(claim, self.table.wall_reading().second()) {
            let holding = self.leases.holding(target.key, now);
            if holding.held(now) > 0 || holding.unreported() > 0 {
                self.lease_client.give_back(self.table, target, u32::MAX);
            }
        }
    }

    /// After cells were spent under all limits: whether to ask for more ahead of need.
    fn spent(&self, claims: &[Claim<'p>]) {
        for claim in claims {
            self.lease_client.spent(self.table, claim.key, || self.target(*claim));
        }
    }

    /// Gives back what was asked for and is of no use, because the request is denied.
    fn give_back(&self, claims: &[Claim<'p>], so_far: &mut SharedProgress) {
        for (claim, asked) in claims.iter().zip(&mut so_far.asked) {
            if mem::take(asked)
                && let Some(target) = self.target(*claim)
            {
                self.lease_client.give_back(self.table, target, self.question.cells);
            }
        }
    }

    /// Notes the penalty of a request that is denied by a limit. Returns how long to wait.
    fn punish(&self, claims: &[Claim<'p>], limit: usize, wait: Nanos) -> Nanos {
        let Some(claim) = claims.get(limit) else { return wait };
        let Some(penalty) = self.policy().penalty_under(claim.limit) else { return wait };
        // A client is within its limit if it waits only for cells that other machines hold.
        if self.lease_client.waits_for_others(self.table, claim.key) {
            return wait;
        }
        let noted = self.lease_client.noted(self.table, claim.key);
        let noted = claim.quota.emission_interval().saturating_mul(noted.into());
        let wait = wait.saturating_add(noted);
        let Some(longer) = penalty.after(wait, claim.quota) else { return wait };
        let Some(target) = self.target(*claim) else { return wait };
        if self.lease_client.punish(self.table, target, penalty.cells) { longer } else { wait }
    }

    /// The standing of each limit: an estimate, because only the store knows what all hosts owe.
    /// `denied` is the limit that denies the request, and how long to wait for it.
    fn usages(
        &self,
        claims: &[Claim<'p>],
        now: HostTime,
        so_far: &SharedProgress,
        denied: Option<(usize, Nanos)>,
    ) -> ArrayVec<LimitUsage, MAX_LIMITS> {
        let usage = |(place, claim): (usize, &Claim<'p>)| {
            let Claim { place: limit, quota, key, .. } = *claim;
            let wait = denied.filter(|(denied, _)| *denied == place).map(|(_, wait)| wait);
            let free = so_far.free_of(key);
            let held = self.leases.holding(key, now).held(now);
            let remaining = match wait {
                Some(_) => 0,
                None => held.saturating_add(free).min(quota.burst()),
            };
            let owed = u64::from(quota.burst() - remaining);
            let owed = Nanos(owed * quota.emission_interval().0);
            BucketStanding::of_rate(owed, wait.unwrap_or(Nanos::ZERO)).of(limit, quota)
        };
        claims.iter().enumerate().map(usage).collect()
    }
}
