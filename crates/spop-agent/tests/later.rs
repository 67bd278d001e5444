//! Late replies: ACKs in the order in which they are ready, a deadline, a limit, and an orderly
//! end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod peer;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use peer::{LENGTH, PATIENCE, Peer, Sent, ack, disconnect, notify, patient, serve, within};
use spop_agent::{Agent, Handler, Reply, Request, Scope, Value, VarName};
use spop_codec::Status;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const OTHER: VarName<'_> = VarName::from_static("other");

/// Answers the length of the arg after as many milliseconds, with 7 as the fallback. An arg longer
/// than 5000 is answered at once.
fn slowly(request: &Request<'_>, reply: &mut Reply<'_>) {
    let Some(Value::String(value)) = request.message(b"m").and_then(|message| message.arg_at(0))
    else {
        return;
    };
    let length = u32::try_from(value.len()).unwrap();
    if length > 5000 {
        return reply.set_var(Scope::Transaction, LENGTH, length);
    }
    reply.set_var(Scope::Transaction, LENGTH, 7_u32);
    let must_panic = value == b"panic";
    // From now on, not from when the future is polled first.
    let at = Instant::now() + Duration::from_millis(length.into());
    reply.later(async move |mut reply| {
        sleep_until(at).await;
        reply.set_var(Scope::Transaction, LENGTH, 8_u32);
        reply.clear();
        reply.set_var(Scope::Transaction, LENGTH, length);
        assert!(!must_panic, "the test asks for it");
        reply
    });
}

fn question(id: u64, length: usize) -> Vec<u8> {
    notify(id, &b"x".repeat(length))
}

#[tokio::test]
async fn answers_leave_in_the_order_in_which_they_are_ready() {
    let served = serve(Agent::new(slowly).deadline(PATIENCE)).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[question(1, 300), question(2, 100), question(3, 6000), question(4, 200)].concat())
        .await;
    for (id, length) in [(3, 6000), (2, 100), (4, 200), (1, 300)] {
        assert_eq!(peer.next().await, ack(id, length));
    }
    let counted = served.counters.snapshot();
    assert_eq!((counted.notifies, counted.overdue), (4, 0));
    served.stop().await;
}

/// Two variables, under ids of several bytes.
#[tokio::test]
async fn a_late_reply_may_have_several_variables() {
    let twice = |_: &Request<'_>, reply: &mut Reply<'_>| {
        reply.later(async |mut reply| {
            reply.set_var(Scope::Session, OTHER, 5_u32);
            reply.set_var(Scope::Transaction, LENGTH, 6_u32);
            reply
        });
    };
    let served = serve(Agent::new(twice)).await;
    let mut peer = Peer::greeted(&served).await;
    for id in [1, 240, 1000, 1 << 20, u64::MAX] {
        peer.send(&notify(id, b"")).await;
        let Sent::Ack(stream, 1, actions) = peer.next().await else { panic!() };
        assert_eq!((stream, actions.len()), (id, 2));
    }
    served.stop().await;
}

#[tokio::test]
async fn who_takes_too_long_gets_what_was_set_at_first() {
    // The first waits for the gate, however slow the machine is.
    let gate = Gate::new();
    let handler = {
        let gate = gate.clone();
        move |request: &Request<'_>, reply: &mut Reply<'_>| {
            if request.id().stream == 1 {
                reply.set_var(Scope::Transaction, LENGTH, 7_u32);
                gate.hold(reply);
            } else {
                slowly(request, reply);
            }
        }
    };
    let served = serve(Agent::new(handler).deadline(Duration::from_secs(2))).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[question(1, 10), question(2, 50), notify(3, b"panic")].concat()).await;
    // The one that panics does so after 5 ms.
    for (id, length) in [(3, 7), (2, 50), (1, 7)] {
        assert_eq!(peer.next().await, ack(id, length));
    }
    // A late result is dropped, and the connection continues.
    gate.until_waiting(0).await;
    gate.permits.add_permits(1);
    peer.send(&question(4, 20)).await;
    assert_eq!(peer.next().await, ack(4, 20));
    let counted = served.counters.snapshot();
    assert_eq!((counted.notifies, counted.overdue, counted.handler_panics), (4, 1, 1));
    // Each took 5 ms or more, and is counted so.
    assert_eq!(counted.latency.buckets[..12].iter().sum::<u64>(), 0, "{:?}", counted.latency);
    assert_eq!(counted.latency.buckets[12..].iter().sum::<u64>(), 4, "{:?}", counted.latency);
    served.stop().await;
}

/// Waits for a permit, and counts how many requests wait.
#[derive(Clone)]
struct Gate {
    permits: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(0)), waiting: Arc::default() }
    }

    fn handler(&self) -> impl Handler {
        let gate = self.clone();
        move |_: &Request<'_>, reply: &mut Reply<'_>| gate.hold(reply)
    }

    fn hold(&self, reply: &mut Reply<'_>) {
        let gate = self.clone();
        reply.later(async move |reply| {
            let _counted = Counted::new(&gate.waiting);
            gate.permits.acquire().await.unwrap().forget();
            reply
        });
    }

    async fn until_waiting(&self, count: usize) {
        within(async {
            while self.waiting.load(Ordering::SeqCst) != count {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn empty(id: u64) -> Sent {
    Sent::Ack(id, 1, Vec::new())
}

#[tokio::test]
async fn so_many_wait_and_no_more() {
    let gate = Gate::new();
    let agent = Agent::new(gate.handler()).max_in_flight(NonZeroUsize::new(5).unwrap());
    let served = serve(agent.deadline(Duration::from_secs(60))).await;
    let (mut peer, mut other) = (Peer::greeted(&served).await, Peer::greeted(&served).await);
    let questions: Vec<u8> = (0..1000).flat_map(|id| question(id, 10)).collect();
    peer.send(&questions).await;
    gate.until_waiting(5).await;
    sleep(Duration::from_millis(100)).await;
    gate.until_waiting(5).await;
    assert_eq!(served.counters.snapshot().waiting, 5);
    // The other connection has a limit of its own.
    other.send(&question(1, 10)).await;
    gate.until_waiting(6).await;
    gate.permits.add_permits(1001);
    let mut ids = Vec::new();
    for _ in 0..1000 {
        let Sent::Ack(id, 1, _) = peer.next().await else { panic!("not an ACK") };
        ids.push(id);
    }
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..1000), "each once");
    assert_eq!(other.next().await, empty(1));
    assert_eq!(served.counters.snapshot().notifies, 1001);
    served.stop().await;
}

#[tokio::test]
async fn a_full_connection_stays_open_however_long_it_waits() {
    let gate = Gate::new();
    let mut limits = spop_agent::Limits::default();
    limits.frame_timeout = Duration::from_millis(50);
    let agent = Agent::new(gate.handler()).max_in_flight(NonZeroUsize::MIN).limits(limits);
    let served = serve(agent.deadline(Duration::from_secs(60))).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[question(1, 10), question(2, 10)].concat()).await;
    assert!(peer.is_silent(Duration::from_millis(300)).await);
    gate.permits.add_permits(2);
    assert_eq!((peer.next().await, peer.next().await), (empty(1), empty(2)));
    served.stop().await;
}

#[tokio::test]
async fn what_waits_is_answered_before_goodbye_and_dropped_without_one() {
    let gate = Gate::new();
    let served = serve(Agent::new(gate.handler()).deadline(Duration::from_secs(60))).await;
    // HAProxy sends DISCONNECT. A reply that is ready in time is the answer; for the others it is
    // the fallback.
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[question(1, 10), question(2, 10), disconnect(Status::NORMAL)].concat()).await;
    gate.until_waiting(2).await;
    gate.permits.add_permits(1);
    for expected in [empty(1), empty(2), Sent::Disconnect(Status::NORMAL), Sent::End] {
        assert_eq!(peer.next().await, expected);
    }
    gate.until_waiting(0).await;
    assert_eq!(served.counters.snapshot().overdue, 1);

    // HAProxy closes without DISCONNECT, and the requests that wait are dropped.
    let mut peer = Peer::greeted(&served).await;
    peer.send(&question(1, 10)).await;
    gate.until_waiting(1).await;
    peer.reset();
    gate.until_waiting(0).await;
    sleep(Duration::from_millis(20)).await;
    let counted = served.counters.snapshot();
    assert_eq!((counted.waiting, counted.closed, counted.disconnected), (0, 1, 1));

    // The agent stops: the same as with DISCONNECT.
    let mut peer = Peer::greeted(&served).await;
    peer.send(&question(1, 10)).await;
    gate.until_waiting(1).await;
    let stopping = tokio::spawn(served.stop());
    assert_eq!(peer.next().await, empty(1));
    assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
    drop(peer);
    within(stopping).await.unwrap();
    gate.until_waiting(0).await;
}

/// Malformed bytes come behind a request that waits: it is answered before the DISCONNECT.
#[tokio::test]
async fn what_waits_is_answered_before_a_refusal() {
    let gate = Gate::new();
    let served = serve(Agent::new(gate.handler())).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[question(1, 10), b"\0\0\0\x02xx".to_vec()].concat()).await;
    assert_eq!(peer.next().await, empty(1));
    assert_eq!(peer.next().await, Sent::Disconnect(Status::INVALID));
    drop(peer);
    served.stop().await;
}

/// Requests come in pieces, end in the middle of frames, and overtake each other.
#[tokio::test]
async fn a_thousand_that_wait_a_little_are_all_answered() {
    let served = serve(Agent::new(slowly).limits(patient())).await;
    let mut peer = Peer::greeted(&served).await;
    let questions: Vec<u8> =
        (0_u16..1000).flat_map(|id| question(id.into(), 1 + usize::from(id % 3))).collect();
    peer.send_in_pieces(&questions, 1000, Duration::from_micros(100)).await;
    let mut left: std::collections::BTreeSet<u64> = (0..1000).collect();
    timeout(PATIENCE, async {
        while !left.is_empty() {
            let Sent::Ack(id, 1, _) = peer.next().await else { panic!("not an ACK") };
            assert!(left.remove(&id));
        }
    })
    .await
    .unwrap();
    served.stop().await;
}

/// The agent notices a close also when as many requests wait as may, and when more has come.
#[tokio::test]
async fn what_waits_is_dropped_when_haproxy_goes_however_much_waits() {
    let gate = Gate::new();
    let agent = Agent::new(gate.handler()).max_in_flight(NonZeroUsize::new(3).unwrap());
    let served = serve(agent.deadline(Duration::from_secs(60))).await;
    for (questions, half, reset) in [(3, 0, false), (3, 0, true), (10, 0, false), (10, 5, true)] {
        let mut peer = Peer::greeted(&served).await;
        let mut bytes: Vec<u8> = (0..questions).flat_map(|id| question(id, 10)).collect();
        bytes.extend(&question(99, 10)[..half]);
        peer.send(&bytes).await;
        gate.until_waiting(3).await;
        if reset {
            peer.reset();
        } else {
            drop(peer);
        }
        gate.until_waiting(0).await;
    }
    within(async {
        while served.counters.snapshot().open > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let counted = served.counters.snapshot();
    assert_eq!((counted.waiting, counted.notifies), (0, 0));
    assert_eq!(counted.closed, 4);
    served.stop().await;
}

/// Panics when it is dropped.
struct Untidy;

impl Drop for Untidy {
    fn drop(&mut self) {
        panic!("the test asks for it");
    }
}

/// "later": a reply that is ready at once; "never": one that never is; "panic": a panic after
/// `later`; "again": `later`, twice. Each future panics when it is dropped.
fn untidily(request: &Request<'_>, reply: &mut Reply<'_>) {
    let message = request.message(b"m").unwrap();
    let Some(Value::String(how)) = message.arg_at(0) else { panic!() };
    reply.set_var(Scope::Transaction, LENGTH, 7_u32);
    let (never, untidy) = (how == b"never", Untidy);
    reply.later(move |mut reply| {
        reply.set_var(Scope::Transaction, LENGTH, 8_u32);
        let mut reply = Some(reply);
        // Unlike an async block it keeps its values until it is dropped itself.
        std::future::poll_fn(move |_| {
            let _kept = &untidy;
            if never { Poll::Pending } else { Poll::Ready(reply.take().unwrap()) }
        })
    });
    match how {
        b"again" => reply.later(async |reply| reply),
        b"clear" => reply.clear(),
        b"panic" => panic!("the test asks for it"),
        _ => {}
    }
}

#[tokio::test]
async fn a_panic_in_a_drop_costs_its_own_request_and_nobody_else_anything() {
    let served = serve(Agent::new(untidily).deadline(Duration::from_millis(100))).await;
    let mut peer = Peer::greeted(&served).await;
    let kinds: [&[u8]; 5] = [b"later", b"never", b"panic", b"again", b"clear"];
    let questions: Vec<u8> =
        (0..20).flat_map(|id| notify(id, kinds[usize::try_from(id % 5).unwrap()])).collect();
    peer.send(&questions).await;
    let mut answers = std::collections::BTreeMap::new();
    for _ in 0..20 {
        let Sent::Ack(id, 1, variables) = peer.next().await else { panic!("not an ACK") };
        assert!(answers.insert(id, variables).is_none(), "each once");
    }
    for (id, variables) in answers {
        let expected: &[String] = match id % 5 {
            0 => &["txn.length=Uint32(8)".to_owned()],
            1 => &["txn.length=Uint32(7)".to_owned()],
            _ => &[],
        };
        assert_eq!(
            variables,
            expected,
            "{:?}",
            String::from_utf8_lossy(kinds[usize::try_from(id % 5).unwrap()])
        );
    }
    let counted = served.counters.snapshot();
    assert_eq!(
        (counted.handler_panics, counted.overdue, counted.waiting, counted.notifies),
        (20, 4, 0, 20)
    );

    // The connection continues, and ends while some requests wait.
    peer.send(&[notify(1, b"never"), notify(2, b"never"), notify(3, b"later")].concat()).await;
    let mut answer = peer.next().await;
    // On a slow machine these have had their deadlines before.
    while answer == ack(1, 7) || answer == ack(2, 7) {
        answer = peer.next().await;
    }
    assert_eq!(answer, ack(3, 8));
    peer.reset();
    within(async {
        while served.counters.snapshot().open > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let counted = served.counters.snapshot();
    assert_eq!((counted.handler_panics, counted.waiting), (23, 0));
    served.stop().await;
}

/// The value of a round panics when it is dropped, and so does each value that was prepared.
struct Careless;

impl Handler for Careless {
    type Round = Untidy;
    type Prepared = Untidy;

    fn round(&self) -> Untidy {
        Untidy
    }

    fn prepare(&self, _: &mut Untidy, _: &Request<'_>) -> Untidy {
        Untidy
    }

    fn answer(&self, _: &mut Untidy, _: Untidy, _: &Request<'_>, reply: &mut Reply<'_>) {
        reply.set_var(Scope::Transaction, LENGTH, 7_u32);
    }
}

#[tokio::test]
async fn nor_does_one_in_the_drop_of_what_requests_have_in_common() {
    let served = serve(Agent::new(Careless)).await;
    let mut peer = Peer::greeted(&served).await;
    for round in 0..3 {
        peer.send(&[notify(1, b"a"), notify(2, b"a")].concat()).await;
        assert_eq!((peer.next().await, peer.next().await), (empty(1), empty(2)), "{round}");
    }
    served.stop().await;
}

/// A future that always wakes itself is polled again and again, and does not delay the others of
/// its connection.
#[tokio::test]
async fn one_that_always_wakes_itself_does_not_hold_up_the_others() {
    let handler = |request: &Request<'_>, reply: &mut Reply<'_>| {
        let id = request.id().stream;
        reply.set_var(Scope::Transaction, LENGTH, 7_u32);
        reply.later(async move |mut reply| {
            if id == 0 {
                std::future::poll_fn::<(), _>(|cx| {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
            for _ in 0..id % 4 {
                sleep(Duration::from_millis(1)).await;
                tokio::task::yield_now().await;
            }
            reply.set_var(Scope::Transaction, LENGTH, 8_u32);
            reply
        });
    };
    let served = serve(Agent::new(handler).deadline(10 * PATIENCE)).await;
    let mut peer = Peer::greeted(&served).await;
    let questions: Vec<u8> = (0..500).flat_map(|id| question(id, 10)).collect();
    peer.send(&questions).await;
    // In any order, and without the one that never ends.
    for _ in 1..500 {
        let Sent::Ack(id, 1, variables) = peer.next().await else { panic!("not an ACK") };
        assert_eq!(variables, ["txn.length=Uint32(8)"], "{id}");
    }
    peer.send(&disconnect(Status::NORMAL)).await;
    assert_eq!(peer.next().await, ack(0, 7));
    assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
    assert_eq!(served.counters.snapshot().overdue, 1);
    served.stop().await;

    // Nor does it keep its own deadline from coming.
    let served = serve(Agent::new(handler).deadline(Duration::from_millis(50))).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(&question(0, 10)).await;
    assert_eq!(peer.next().await, ack(0, 7));
    served.stop().await;
}
