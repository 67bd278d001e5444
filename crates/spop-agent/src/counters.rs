//! Counts what an agent has done.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::beats::Beats;
use crate::end::End;

#[derive(Debug, Default)]
struct LatencyCounters {
    buckets: [AtomicU64; Latency::BUCKETS],
    sum_ns: AtomicU64,
    ack_bytes: AtomicU64,
}

/// How long the agent took, from the read of a NOTIFY to the write of its ACK.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Latency {
    /// How many ACKs took at most 1 µs; then, of the others, at most 2 µs, 4 µs, and so on up to
    /// 1.05 s; and last, how many took longer. See [`upper_bound`](Self::upper_bound).
    pub buckets: [u64; Self::BUCKETS],
    /// The sum of these times, in nanoseconds.
    pub sum_ns: u64,
}

impl Latency {
    /// The number of buckets.
    pub const BUCKETS: usize = 22;

    /// The longest time of an ACK in this bucket; `None` for the last bucket, which has no bound.
    #[must_use]
    pub const fn upper_bound(bucket: usize) -> Option<Duration> {
        if bucket + 1 < Self::BUCKETS { Some(Duration::from_micros(1 << bucket)) } else { None }
    }

    fn bucket(ns: u64) -> usize {
        // Bucket b is up to 2^b µs, and one nanosecond less than that is b bits of whole µs.
        let bits = (ns.saturating_sub(1) / 1000 * 2 + 1).ilog2();
        (bits as usize).min(Self::BUCKETS - 1)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $atomic:ty,)*) => {
        /// The counters of one agent, which all its connections write. Read them with
        /// [`snapshot`](Self::snapshot).
        #[derive(Debug, Default)]
        pub struct Counters {
            // These are written once in each round, so they do not share cache lines with the
            // others.
            notifies: CachePadded<AtomicU64>,
            latency: CachePadded<LatencyCounters>,
            $($name: $atomic,)*
            statuses: [AtomicU64; Snapshot::STATUSES],
            beats: OnceLock<Beats>,
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct Snapshot {
            /// NOTIFYs answered, each with one ACK.
            pub notifies: u64,
            /// How long the answers took.
            pub latency: Latency,
            /// The bytes of all ACKs.
            pub ack_bytes: u64,
            $($(#[$doc])* pub $name: u64,)*
            /// The `protocol_errors` by the status (SPOE.txt section 3.5) of the AGENT-DISCONNECT
            /// that answered them: those with status 4, "invalid frame received", are at index 4.
            pub protocol_error_statuses: [u64; Self::STATUSES],
        }

        impl Counters {
            /// The numbers now. Each is exact, but they are not all read at the same moment.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                Snapshot {
                    notifies: read(&self.notifies),
                    latency: Latency {
                        buckets: self.latency.buckets.each_ref().map(read),
                        sum_ns: read(&self.latency.sum_ns),
                    },
                    ack_bytes: read(&self.latency.ack_bytes),
                    $($name: self.$name.load(Ordering::Relaxed) as u64,)*
                    protocol_error_statuses: self.statuses.each_ref().map(read),
                }
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections: AtomicU64,
    /// Connections open now.
    open: AtomicU64,
    /// Connections that were health checks (`option spop-check`) and have ended as such.
    health_checks: AtomicU64,
    /// Panics of the handler, at most one for each request. Such a request was answered with an
    /// ACK without actions. If the future of [`Reply::later`](crate::Reply::later) panicked, it
    /// was answered with what was set at first; or, if the future panicked when it was dropped,
    /// with what it had returned.
    handler_panics: AtomicU64,
    /// Variables that were left out, because the ACK would have become too large.
    left_out: AtomicU64,
    /// Connections ended because of bytes that are not SPOP, or a frame at the wrong time.
    protocol_errors: AtomicU64,
    /// Connections ended because a HELLO or the rest of a frame did not come in time, or answers
    /// were not read in time.
    timeouts: AtomicU64,
    /// Failures to accept a connection, such as too many open files.
    accept_errors: AtomicU64,
    /// NOTIFYs answered without actions because of
    /// [`Agent::max_connections`](crate::Agent::max_connections).
    shed: AtomicU64,
    /// NOTIFYs that came in pieces.
    reassembled: AtomicU64,
    /// Connections that the peer closed inside a frame.
    truncated: AtomicU64,
    /// Requests with a late reply that was not ready in time, or that found no memory to wait in.
    /// They were answered with what was set at first.
    overdue: AtomicU64,
    /// Requests that wait for late replies now.
    waiting: AtomicU64,
    /// Bytes that all connections together keep now between their rounds: incomplete frames,
    /// payloads in pieces, answers that were not read yet, and requests that wait for late
    /// replies. See [`Agent::max_buffered_bytes`](crate::Agent::max_buffered_bytes).
    buffered_bytes: AtomicUsize,
    /// Connections ended because they needed more than was left of these bytes.
    no_memory: AtomicU64,
    /// Connections that the peer closed or reset between two frames, as HAProxy from 3.1 on
    /// normally does.
    closed: AtomicU64,
    /// Connections that HAProxy ended with a DISCONNECT, as HAProxy up to 3.0 normally does.
    disconnected: AtomicU64,
    /// Connections ended because the agent stops.
    stopped: AtomicU64,
    /// Connections whose socket failed.
    failed: AtomicU64,
}

impl Snapshot {
    /// All statuses that an agent sends are below this.
    pub const STATUSES: usize = 16;
}

impl Counters {
    /// For how long a worker of the agent has not run; the longest time, if there are several
    /// workers. It is at most a little more than a second, unless a worker is stuck (for instance
    /// because a handler waits) or gets no CPU time. Zero before the agent serves; without meaning
    /// when it has stopped.
    #[must_use]
    pub fn silent(&self) -> Duration {
        self.beats.get().map_or(Duration::ZERO, Beats::silent)
    }

    /// The signs of life of this number of workers.
    pub(crate) fn beats(&self, workers: usize) -> &Beats {
        self.beats.get_or_init(|| Beats::new(workers))
    }

    pub(crate) fn opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, notifies: usize) {
        self.notifies.fetch_add(notifies as u64, Ordering::Relaxed);
    }

    /// Counts ACKs that have this many bytes together and took this time each.
    pub(crate) fn took(&self, acks: usize, bytes: usize, time: Duration) {
        self.latency.ack_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let (acks, ns) = (acks as u64, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        // In range: `bucket` returns less than `BUCKETS`.
        self.latency.buckets[Latency::bucket(ns)].fetch_add(acks, Ordering::Relaxed);
        self.latency.sum_ns.fetch_add(ns.saturating_mul(acks), Ordering::Relaxed);
    }

    pub(crate) fn overdue(&self) {
        self.overdue.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn left_out(&self, actions: u64) {
        self.left_out.fetch_add(actions, Ordering::Relaxed);
    }

    /// A handler has panicked. An agent counts that itself; this is for a handler that is called
    /// by another one.
    pub fn handler_panic(&self) {
        self.handler_panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, end: &End) {
        let counter = match end {
            End::HealthCheck => &self.health_checks,
            End::Closed => &self.closed,
            End::Truncated => &self.truncated,
            End::Disconnected(_) => &self.disconnected,
            End::Protocol(error) => {
                let code = usize::try_from(error.status().code()).unwrap_or(usize::MAX);
                if let Some(status) = self.statuses.get(code) {
                    status.fetch_add(1, Ordering::Relaxed);
                }
                &self.protocol_errors
            }
            End::TimedOut | End::Unread(_) => &self.timeouts,
            End::NoMemory => &self.no_memory,
            End::Stopped => &self.stopped,
            End::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that begins to wait for its late reply.
    pub(crate) fn waits(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has stopped waiting.
    pub(crate) fn waits_no_more(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts that `now` bytes are kept instead of `before`, and returns true. If all bytes
    /// together would be more than `limit`, returns false and changes nothing.
    pub(crate) fn keep(&self, before: usize, now: usize, limit: usize) -> bool {
        if now <= before {
            self.buffered_bytes.fetch_sub(before - now, Ordering::Relaxed);
            return true;
        }
        let more = now - before;
        let fits = |kept: usize| kept.checked_add(more).filter(|kept| *kept <= limit);
        self.buffered_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    pub(crate) fn accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shed(&self, notifies: usize) {
        self.shed.fetch_add(notifies as u64, Ordering::Relaxed);
    }

    pub(crate) fn reassembled(&self) {
        self.reassembled.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_below_its_bound() {
        let counters = Counters::default();
        for (ns, bucket) in [
            (0, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (1_048_576_000, 20),
            (u64::MAX, 21),
        ] {
            let time = Duration::from_nanos(ns);
            assert_eq!(Latency::bucket(ns), bucket, "{ns} ns");
            assert!(Latency::upper_bound(bucket).is_none_or(|bound| time <= bound));
            counters.took(2, 7, time);
        }
        assert_eq!(counters.snapshot().ack_bytes, 7 * 7);
        let latency = counters.snapshot().latency;
        assert_eq!(
            (latency.buckets[0], latency.buckets[21], latency.buckets.iter().sum()),
            (4, 2, 14)
        );
    }
}
