//! The notice board in a table's header: what the processes of gcra-spoa write there for each
//! other. No charge looks at it.

// ADR 23: Processes write signs of life into the header.

use std::sync::atomic::Ordering;

use crate::clock;
use crate::file::header::PROCESSES;
use crate::file::heard::Sealed;
use crate::file::orders::{Order, OrderError, Orders, PolicyReset};
use crate::file::profile::Profile;
use crate::file::said::SaidQuotas;
use crate::key::KeyHash;
use crate::processes::{Process, ReloadAnswer, listed};
use crate::quota::Quota;
use crate::table::Table;
use crate::table::succession::MAX_MOVES;
use crate::time::{Nanos, Time};

/// The notice board of a table: see [`Table::board`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Board<'t>(&'t Table);

impl Table {
    /// The notice board of the processes that use the table. Only gcra-spoa uses it, and it may
    /// change in any release.
    #[doc(hidden)]
    #[inline]
    pub fn board(&self) -> Board<'_> {
        Board(self)
    }
}

#[doc(hidden)]
impl<'t> Board<'t> {
    /// How many processes can be listed.
    pub const MOST_PROCESSES: usize = PROCESSES;

    /// The processes that use the table, if they [`beat`](Table::beat) and there is an entry for
    /// them.
    pub fn processes(self) -> Vec<Process> {
        self.listed_processes().into_iter().filter(Process::is_alive).collect()
    }

    /// As [`processes`](Self::processes), including those that have left or fallen silent, until
    /// others take their places.
    pub fn listed_processes(self) -> Vec<Process> {
        let Table { region, hash_key, .. } = self.0;
        let mut listed = listed(region.processes(), self.0.now());
        for process in &mut listed {
            let entry = region.profiles().get(process.place);
            process.profile =
                entry.and_then(|entry| entry.of(hash_key.hasher(), process.attachment));
        }
        listed
    }

    /// How often, in all, processes called [`beat`](Table::beat) that have no entry in the list.
    /// Each does so about once a second, so the difference of two readings says about how many
    /// there are.
    pub fn unlisted_beats(self) -> u64 {
        self.0.shared().unlisted_beats.load(Ordering::Relaxed)
    }

    /// How often processes have attached to the file, modulo 2^32.
    pub fn attachments(self) -> u32 {
        self.0.shared().attachments.load(Ordering::Relaxed)
    }

    /// Ends this process's part in the list of processes, as the drop of the last handle does.
    /// The next [`beat`](Table::beat) would begin it again.
    pub fn leave(self) {
        if let Some(attachment) = &self.0.attachment {
            attachment.leave(self.0.region.processes());
        }
    }

    /// Tells the other processes about this one: see [`Process::profile`].
    ///
    /// To be called after each [`beat`](Table::beat), because a beat can give the process another
    /// entry in the list. It writes only what has changed.
    pub fn introduce(self, profile: &Profile) {
        let Table { region, hash_key, attachment, .. } = self.0;
        if let Some(attachment) = attachment {
            let (entries, profiles) = (region.processes(), region.profiles());
            attachment.introduce(entries, profiles, hash_key.hasher(), profile);
        }
    }

    /// Whether, within the last seconds, a process wrote down that it uses a file that had the
    /// [name](Table::name) of this one before. It shares no limits with the processes that use
    /// this one.
    pub fn has_strangers(self) -> bool {
        const RECENT: Nanos = Nanos::from_secs(5);
        let said_ns = self.0.shared().strangers_ns.load(Ordering::Relaxed);
        said_ns != 0 && clock::boottime_ns().abs_diff(said_ns) < RECENT.0
    }

    /// Asks all processes that use the table to read their configuration again. Returns the number
    /// of the request, for [`Process::answer_to`].
    pub fn ask_to_reload(self) -> u64 {
        self.0.shared().reload_asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The number of the last request to reload, if this process has not answered it. A process
    /// that attaches later has to answer too: it may have read its configuration before the
    /// request. This is cheap.
    pub fn reload_asked(self) -> Option<u64> {
        let asked = self.0.shared().reload_asked.load(Ordering::Relaxed);
        let mine = self.0.attachment.as_ref()?;
        mine.has_to_answer(asked).then_some(asked)
    }

    /// Answers a request to reload. Other processes can read the answer.
    pub fn answer_reload(self, asked: u64, answer: &ReloadAnswer) {
        if let Some(attachment) = &self.0.attachment {
            attachment.answer(self.0.region.processes(), asked, answer);
        }
    }

    /// Writes down an order about clients. Of several about the same clients of the same policy,
    /// the one that was given last stays. It is in force for
    /// [`LONGEST_ORDER`](crate::board::LONGEST_ORDER) at most. Each process has to read the
    /// [`orders`](Self::orders), and to decide by them without a charge.
    ///
    /// # Errors
    ///
    /// There is no space for it, or the table is being resized.
    pub fn give_order(self, order: &Order) -> Result<(), OrderError> {
        self.write_order(|entries| entries.put(order))
    }

    fn write_order(self, put: impl FnOnce(Orders<'_>) -> bool) -> Result<(), OrderError> {
        if self.0.is_superseded() || !self.0.is_complete() {
            return Err(OrderError::BeingResized);
        }
        if !put(self.order_entries()) {
            return Err(OrderError::Full);
        }
        // A resize that began meanwhile may have copied the entries before this one was written.
        if self.0.is_superseded() { Err(OrderError::BeingResized) } else { Ok(()) }
    }

    /// Ends an order. It fails while the table is being resized.
    pub fn end_order(self, order: &Order) -> Result<(), OrderError> {
        self.give_order(&Order { until: Time::ZERO, ..order.clone() })
    }

    /// The orders that have not ended, in no particular order.
    pub fn orders(self) -> Vec<Order> {
        self.order_entries().all()
    }

    /// Writes down that all clients of the policy with this [id](crate::limit_id) are reset now,
    /// in the place of an earlier reset. Each process has to read the [`resets`](Self::resets),
    /// and to give the policy's limits other ids. It fails as [`give_order`](Self::give_order).
    pub fn reset_policy(self, policy: u64, giver: &str) -> Result<PolicyReset, OrderError> {
        let resets = self.resets();
        let last = resets.iter().find(|reset| reset.policy == policy).map_or(0, |reset| reset.at);
        let at = self.0.clock.wall_ns().max(last.saturating_add(1));
        let reset = PolicyReset { policy, at, giver: giver.to_owned() };
        self.take_reset(&reset)?;
        Ok(reset)
    }

    /// Writes down a reset that was given on another machine, unless the table has a later one of
    /// the policy. It fails as [`give_order`](Self::give_order).
    pub fn take_reset(self, reset: &PolicyReset) -> Result<(), OrderError> {
        self.write_order(|entries| entries.put_reset(reset))
    }

    /// The last reset of each policy that was reset, in no particular order.
    pub fn resets(self) -> Vec<PolicyReset> {
        self.order_entries().resets()
    }

    /// Writes down that messages say this quota for the limit with this [id](crate::limit_id), so
    /// that a key can be [reset](Table::reset) under it. Returns whether it is written down: there
    /// is space for about a thousand of them, and none of them ever leaves.
    pub fn add_said(self, limit: u64, quota: Quota) -> bool {
        let done = self.said().add(limit, quota);
        // An entry that is written here during a resize may be too late for the next table.
        match self.0.is_superseded().then(|| self.0.opened_successor()).flatten() {
            Some(next) => next.board().said().add(limit, quota) && done,
            None => done,
        }
    }

    /// Whether each quota is written down that [`add_said`](Self::add_said) was called with, by
    /// any process.
    pub fn has_all_said(self) -> bool {
        self.said().is_whole()
    }

    /// The quotas that messages have said for the limit with this [id](crate::limit_id), as
    /// [`add_said`](Self::add_said) has written them down, without their [longest
    /// delays](Quota::with_max_delay).
    pub fn said_of(self, limit: u64) -> Vec<Quota> {
        self.said().of(limit)
    }

    /// Takes note of how many events of a kind, below [`HEARD_KINDS`](crate::board::HEARD_KINDS),
    /// a source has counted since it began. Returns how many of them are new: the numbers that all
    /// processes get add up to the count of the source, in any order, over restarts and resizes.
    ///
    /// A source that begins to count anew is another source, and has another key. The table
    /// remembers 64 sources. Of more, those whose counts have not grown for the longest time are
    /// forgotten, and would be new again.
    pub fn hear(self, source: KeyHash, kind: usize, count: u32) -> u32 {
        let (mut table, source) = (self.0, source.0.max(1));
        for _ in 0..=MAX_MOVES {
            match table.region.heard().hear(source, kind, count, table.now()) {
                Ok(new) => return new,
                Err(Sealed(known)) => {
                    // It is said again, so nothing is lost if the other table is not there yet.
                    let Some(next) = table.opened_successor() else { return 0 };
                    let _ = next.region.heard().hear(source, kind, known, next.now());
                    table = next;
                }
            }
        }
        0
    }

    /// Writes down what another table's board says, except for the list of processes, and seals
    /// its counts.
    pub(crate) fn take_over(self, other: Board<'_>) {
        self.said().take_over(other.said());
        self.order_entries().take_over(other.order_entries());
        self.0.region.heard().take_over(other.0.region.heard());
    }

    fn said(self) -> SaidQuotas<'t> {
        SaidQuotas::new(self.0.region.said(), self.0.hash_key.hasher())
    }

    fn order_entries(self) -> Orders<'t> {
        Orders::new(self.0.region.orders(), self.0.hash_key.hasher(), self.0.now())
    }
}
