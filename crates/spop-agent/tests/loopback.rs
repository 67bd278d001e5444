//! The agent over real sockets, with a client that writes and reads frames as HAProxy does, and as
//! HAProxy never does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use peer::{
    LENGTH, Peer, Sent, ack, disconnect, hello, measure, notify, patient, serve, welcome, within,
};
use spop_agent::{
    Agent, Handler, LateReply, Limits, ListenAddress, OwnedRequest, Reply, Request, Scope, Value,
    async_handler,
};
use spop_codec::haproxy::{HelloFields, encode_hello};
use spop_codec::{Frame, Status, decode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test]
async fn a_burst_is_answered_in_order_and_byte_by_byte_is_no_different() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..1000)
        .flat_map(|stream| notify(stream, &vec![b'x'; usize::try_from(stream % 50).unwrap()]))
        .collect();
    peer.send(&burst).await;
    for stream in 0..1000 {
        assert_eq!(peer.next().await, ack(stream, u32::try_from(stream % 50).unwrap()));
    }
    for byte in notify(7, b"abc") {
        peer.send(&[byte]).await;
    }
    assert_eq!(peer.next().await, ack(7, 3));
    assert_eq!(served.counters.snapshot().notifies, 1001);
    drop(peer);
    served.stop().await;
}

#[tokio::test]
async fn a_panic_costs_its_own_request_the_actions_and_nobody_else_anything() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    let requests = [
        notify(1, b"a"),
        notify(2, b"panic"),
        notify(3, b"abc"),
        notify(4, b"panic"),
        notify(5, b""),
    ];
    peer.send(&requests.concat()).await;
    let empty = |stream| Sent::Ack(stream, 1, vec![]);
    for expected in [ack(1, 1), empty(2), ack(3, 3), empty(4), ack(5, 0)] {
        assert_eq!(peer.next().await, expected);
    }
    assert_eq!(served.counters.snapshot().handler_panics, 2);
    served.stop().await;
}

/// Panics in every function.
struct Fragile;

impl Handler for Fragile {
    type Round = ();
    type Prepared = ();

    fn round(&self) {}

    fn prepare(&self, (): &mut (), request: &Request<'_>) {
        assert!(
            request.message(b"m").and_then(|message| message.arg(b"arg"))
                != Some(Value::String(b"prepare"))
        );
    }

    fn answer(&self, (): &mut (), (): (), request: &Request<'_>, reply: &mut Reply<'_>) {
        measure(request, reply);
    }
}

#[tokio::test]
async fn a_panic_while_preparing_is_no_different() {
    let served = serve(Agent::new(Fragile)).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(
        &[notify(1, b"a"), notify(2, b"prepare"), notify(3, b"panic"), notify(4, b"ab")].concat(),
    )
    .await;
    let empty = |stream| Sent::Ack(stream, 1, vec![]);
    for expected in [ack(1, 1), empty(2), empty(3), ack(4, 2)] {
        assert_eq!(peer.next().await, expected);
    }
    assert_eq!(served.counters.snapshot().handler_panics, 2);
    served.stop().await;
}

/// Panics at the beginning of a round.
struct Hopeless;

impl Handler for Hopeless {
    type Round = ();
    type Prepared = ();

    fn round(&self) {
        panic!("the test asks for it");
    }

    fn prepare(&self, _: &mut Self::Round, _: &Request<'_>) {}

    fn answer(&self, (): &mut (), (): (), _: &Request<'_>, _: &mut Reply<'_>) {}
}

// On threads of their own, so that an agent that hangs fails the test and does not hang it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_always_panics_still_leaves_every_request_answered() {
    let served = serve(Agent::new(Hopeless)).await;
    let mut peer = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..50).flat_map(|stream| notify(stream, b"a")).collect();
    peer.send(&burst).await;
    for stream in 0..50 {
        assert_eq!(peer.next().await, Sent::Ack(stream, 1, vec![]));
    }
    served.stop().await;
}

#[tokio::test]
async fn an_idle_listener_takes_no_room_from_another() {
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let addresses = [0, 1].map(|number: usize| listeners[number].local_addr().unwrap());
    let agent = Agent::new(measure).max_connections(NonZeroUsize::MIN);
    let serving =
        tokio::spawn(agent.serve_until(listeners.map(Into::into), std::future::pending()));
    for address in [addresses[1], addresses[0], addresses[1]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&hello(16380, None)).await.unwrap();
        let mut answer = [0; 82];
        within(stream.read_exact(&mut answer)).await.unwrap();
    }
    serving.abort();
}

/// Answers the sum of the lengths of both ids.
fn tell_ids(request: &Request<'_>, reply: &mut Reply<'_>) {
    let length = request.engine_id().len() + usize::try_from(request.id().stream).unwrap();
    reply.set_var(Scope::Transaction, LENGTH, u32::try_from(length).unwrap());
}

/// Also if the client does not wait for the AGENT-HELLO, and its frames end anywhere.
#[tokio::test]
async fn a_handler_is_told_the_ids_of_engine_and_request() {
    let hello_of = |engine_id: Option<&str>| {
        let mut out = vec![0; 512];
        let fields = HelloFields { engine_id, ..HelloFields::default() };
        let length = encode_hello(&mut out, &fields).unwrap();
        out.truncate(length);
        out
    };
    let served = serve(Agent::new(tell_ids)).await;
    let long = "x".repeat(256);
    for (engine_id, expected) in [(None, 1000), (Some("engine"), 1006), (Some(&*long), 1000)] {
        let request = notify(1000, b"");
        for cut in [0, 1, request.len()] {
            let mut peer = Peer::connect(&served).await;
            peer.send(&[&hello_of(engine_id), &request[..cut]].concat()).await;
            assert_eq!(peer.next().await, welcome(16380));
            peer.send(&request[cut..]).await;
            assert_eq!(peer.next().await, ack(1000, expected), "{engine_id:?} {cut}");
        }
    }
    served.stop().await;
}

#[tokio::test]
async fn a_notify_without_messages_gets_its_ack() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    peer.send(b"\0\0\0\x07\x03\0\0\0\x01\x09\x01").await;
    assert_eq!(peer.next().await, Sent::Ack(9, 1, vec![]));
    served.stop().await;
}

#[tokio::test]
async fn a_health_check_gets_a_hello_and_nothing_else() {
    let served = serve(Agent::new(measure)).await;
    let asked = Instant::now();
    let mut peer = Peer::connect(&served).await;
    peer.send(&hello(16380, Some(true))).await;
    assert_eq!(
        peer.next().await,
        Sent::Hello { max_frame_size: 256, pipelining: false, fragmentation: false }
    );
    assert_eq!(peer.next().await, Sent::End, "no DISCONNECT");
    assert!(asked.elapsed() > Duration::from_millis(500), "HAProxy is given time to close");
    within(async {
        while served.counters.snapshot().health_checks != 1 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    served.stop().await;
}

#[tokio::test]
async fn what_came_before_a_disconnect_is_answered_first() {
    let served = serve(Agent::new(measure)).await;
    for status in [Status::NORMAL, Status::IO, Status::TIMEOUT] {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&[notify(1, b"a"), disconnect(status), notify(3, b"ignored")].concat()).await;
        assert_eq!(peer.next().await, ack(1, 1));
        assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
        assert_eq!(peer.next().await, Sent::End);
    }
    served.stop().await;
}

#[tokio::test]
async fn rubbish_gets_the_right_status_and_then_the_end() {
    let served = serve(Agent::new(measure)).await;
    let cases: [(&[u8], Status); 4] = [
        (b"GET / HTTP/1.1\r\n\r\n", Status::TOO_BIG),
        (b"\x16\x03\x01\x00\xc8\x01\x00", Status::TOO_BIG),
        (b"\0\0\0\x06\x03\0\0\0\x01\x01", Status::INVALID),
        (b"\0\0\0\x0a\x03\0\0\0\x01\x01\x01\x01m\0", Status::INVALID),
    ];
    for (bytes, status) in cases {
        let mut peer = Peer::connect(&served).await;
        peer.send(bytes).await;
        assert_eq!(peer.next().await, Sent::Disconnect(status));
        assert_eq!(peer.next().await, Sent::End);
    }
    // In the middle of a burst: the frames before it are answered.
    let mut peer = Peer::greeted(&served).await;
    peer.send(&[&notify(1, b"a")[..], b"\xff\xff\xff\xff", &notify(3, b"a")].concat()).await;
    assert_eq!(peer.next().await, ack(1, 1));
    assert_eq!(peer.next().await, Sent::Disconnect(Status::TOO_BIG));
    assert_eq!(peer.next().await, Sent::End);
    let counters = served.counters.clone();
    served.stop().await;
    assert_eq!(counters.snapshot().protocol_errors, 5);
}

#[tokio::test]
async fn a_stopping_agent_answers_what_has_come_and_says_goodbye() {
    let served = serve(Agent::new(measure).limits(patient())).await;
    let mut idle = Peer::greeted(&served).await;
    let mut busy = Peer::greeted(&served).await;
    busy.send(&[notify(1, b"a"), notify(3, b"ab")].concat()).await;
    let half = notify(5, b"abc");
    busy.send(&half[..half.len() - 1]).await;
    sleep(Duration::from_millis(50)).await;
    let (address, stopping) = (served.address, tokio::spawn(served.stop()));
    assert_eq!(idle.next().await, Sent::Disconnect(Status::NORMAL));
    assert_eq!(idle.next().await, Sent::End);
    for expected in [ack(1, 1), ack(3, 2), Sent::Disconnect(Status::NORMAL), Sent::End] {
        assert_eq!(busy.next().await, expected);
    }
    within(stopping).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the agent does not listen");
}

#[tokio::test]
async fn an_agent_that_leaves_fails_its_health_check_and_serves_on_for_a_while() {
    // The agent's time stands still for the test: it goes on by each half of the drain at once.
    const HALF: Duration = Duration::from_secs(20);
    let served = serve(Agent::new(measure).drain(2 * HALF)).await;
    let mut old = Peer::greeted(&served).await;
    let (address, counters) = (served.address, served.counters.clone());
    let stopping = tokio::spawn(served.stop());
    sleep(Duration::from_millis(100)).await;
    // A new connection is served; the health check fails.
    let connect = |hello: Vec<u8>| async move {
        let mut peer =
            Peer { stream: TcpStream::connect(address).await.unwrap(), received: Vec::new() };
        peer.send(&hello).await;
        peer
    };
    let mut new = connect(hello(16380, None)).await;
    assert_eq!(new.next().await, welcome(16380));
    assert_eq!(connect(hello(16380, Some(true))).await.next().await, Sent::End);
    within(async {
        while counters.snapshot().health_checks != 1 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // Then the agent does not listen, and serves the open connections.
    advance(HALF).await;
    within(async {
        while TcpStream::connect(address).await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for peer in [&mut old, &mut new] {
        peer.send(&notify(1, b"abc")).await;
        assert_eq!(peer.next().await, ack(1, 3));
    }
    // And then it ends each of them.
    advance(HALF).await;
    for peer in [&mut old, &mut new] {
        assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
        assert_eq!(peer.next().await, Sent::End);
    }
    within(stopping).await.unwrap();
}

/// Sets the clock of this test's timers forward.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// HAProxy up to 3.0 uses a connection until its end. A DISCONNECT between two answers would cost
/// the answer to the request that is on its way.
#[tokio::test]
async fn after_a_drain_goodbye_comes_with_the_last_ack() {
    for _ in 0..100 {
        if hear_goodbye().await.is_some() {
            return;
        }
    }
    panic!("the agent never waits for the last request");
}

/// `None` if the agent's patience with this connection, which is 100 ms, may have ended.
async fn hear_goodbye() -> Option<()> {
    let served = serve(Agent::new(measure).drain(Duration::from_millis(20))).await;
    let mut peer = Peer::greeted(&served).await;
    let mut asked = Instant::now();
    let stopping = tokio::spawn(served.stop());
    for stream in 0.. {
        let asked_before = std::mem::replace(&mut asked, Instant::now());
        peer.send(&notify(stream, b"abc")).await;
        let sent = peer.next().await;
        if asked_before.elapsed() >= Duration::from_millis(90)
            && sent == Sent::Disconnect(Status::NORMAL)
        {
            return None;
        }
        assert_eq!(sent, ack(stream, 3));
        if !peer.received.is_empty() {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
    assert_eq!(peer.next().await, Sent::End);
    within(stopping).await.unwrap();
    Some(())
}

#[tokio::test]
async fn a_frame_larger_than_the_buffers_comes_in_pieces() {
    let mut limits = patient();
    limits.max_frame_size = 1 << 20;
    let served = serve(Agent::new(measure).limits(limits)).await;
    let mut peer = Peer::connect(&served).await;
    peer.send(&hello(400_000, None)).await;
    assert_eq!(peer.next().await, welcome(400_000));
    let frame = notify(1, &vec![b'x'; 300_000]);
    for piece in frame.chunks(70_001) {
        peer.send(piece).await;
        sleep(Duration::from_millis(5)).await;
    }
    peer.send(&notify(3, b"")).await;
    assert_eq!(peer.next().await, ack(1, 300_000));
    assert_eq!(peer.next().await, ack(3, 0));
    peer.send(&notify(5, &vec![b'x'; 500_000])[..8]).await;
    assert_eq!(peer.next().await, Sent::Disconnect(Status::TOO_BIG));
    served.stop().await;
}

/// Fills the ACK: a second variable of this length has no space.
fn verbose(_: &Request<'_>, reply: &mut Reply<'_>) {
    reply.set_var(Scope::Session, LENGTH, &[b'x'; 700][..]);
    reply.set_var(Scope::Session, LENGTH, &[b'y'; 700][..]);
}

#[tokio::test]
async fn answers_larger_than_their_questions_all_come() {
    let served = serve(Agent::new(verbose)).await;
    let mut peer = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..3000).flat_map(|stream| notify(stream, b"")).collect();
    // HAProxy reads while it writes, and so does this client.
    let (mut read, mut write) = peer.stream.split();
    let send = async { within(write.write_all(&burst)).await.unwrap() };
    let receive = async {
        let (mut received, mut acks) = (Vec::new(), 0);
        while acks < 3000 {
            within(read.read_buf(&mut received)).await.unwrap();
            while let Some((frame, used)) = decode(&received, 16380).unwrap() {
                let Frame::Ack(ack) = frame else { panic!("{frame:?}") };
                assert_eq!((ack.id.stream, ack.actions().count()), (acks, 1));
                acks += 1;
                received.drain(..used);
            }
        }
    };
    tokio::join!(send, receive);
    assert_eq!(served.counters.snapshot().left_out, 3000, "the second variable of each");
    served.stop().await;
}

#[tokio::test]
async fn an_async_function_is_a_handler_and_its_variables_may_be_left_out() {
    async fn length(request: OwnedRequest, mut reply: LateReply) -> LateReply {
        tokio::task::yield_now().await;
        let value = request.as_request().message(b"m").and_then(|message| message.arg_at(0));
        let length = value.and_then(|value| value.as_bytes()).map_or(0, <[u8]>::len);
        reply.set_var(Scope::Session, LENGTH, &[b'x'; 1000][..]);
        reply.set_var(Scope::Transaction, LENGTH, u32::try_from(length).unwrap());
        reply
    }
    let served = serve(Agent::new(async_handler(length))).await;
    let mut peer = Peer::greeted(&served).await;
    for id in 0..3 {
        peer.send(&notify(id, b"twelve bytes")).await;
        assert_eq!(peer.next().await, ack(id, 12));
    }
    assert_eq!(served.counters.snapshot().left_out, 3);
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_never_reads_is_not_read_for_ever() {
    let served = serve(Agent::new(verbose)).await;
    let mut peer = Peer::greeted(&served).await;
    let mut other = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..1000).flat_map(|stream| notify(stream, b"")).collect();
    // Until the agent reads no more: when its answers fill the sockets' buffers it stops reading.
    let mut sent = 0;
    loop {
        let rest = &burst[sent % burst.len()..];
        match timeout(Duration::from_millis(500), peer.stream.write(rest)).await {
            Ok(written) => sent += written.unwrap(),
            Err(_) if served.counters.snapshot().buffered_bytes > 0 => break,
            Err(_) => {}
        }
        assert!(sent < 200 << 20, "the agent takes everything");
    }
    // A slow machine may still be at what was sent.
    let mut answered = 0;
    while answered != served.counters.snapshot().notifies {
        answered = served.counters.snapshot().notifies;
        sleep(Duration::from_millis(500)).await;
    }
    other.send(&notify(1, b"")).await;
    assert!(matches!(other.next().await, Sent::Ack(1, 1, _)), "others are served");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(served.counters.snapshot().notifies, answered + 1, "nothing more is answered");
    drop((peer, other));
    served.stop().await;
}

#[tokio::test]
async fn who_says_nothing_or_half_a_frame_is_sent_away() {
    let short = Duration::from_secs(1);
    let mut limits = Limits::default();
    (limits.hello_timeout, limits.frame_timeout) = (short, short);
    let served = serve(Agent::new(measure).limits(limits)).await;
    let mut silent = Peer::connect(&served).await;
    let mut slow = Peer::connect(&served).await;
    slow.send(&hello(16380, None)[..20]).await;
    let mut stuck = Peer::greeted(&served).await;
    stuck.send(&notify(1, b"a")[..9]).await;
    let mut idle = Peer::greeted(&served).await;
    for peer in [&mut silent, &mut slow, &mut stuck] {
        assert_eq!(peer.next().await, Sent::Disconnect(Status::TIMEOUT));
        assert_eq!(peer.next().await, Sent::End);
    }
    idle.send(&notify(1, b"a")).await;
    assert_eq!(idle.next().await, ack(1, 1), "there is no idle timeout");
    assert_eq!(served.counters.snapshot().timeouts, 3);
    served.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_bound_are_answered_without_actions_until_there_is_room() {
    let served = serve(Agent::new(measure).max_connections(NonZeroUsize::new(2).unwrap())).await;
    let mut peers =
        [Peer::greeted(&served).await, Peer::greeted(&served).await, Peer::greeted(&served).await];
    for peer in &mut peers {
        peer.send(&notify(1, b"a")).await;
    }
    let [first, second, third] = &mut peers;
    assert_eq!([first.next().await, second.next().await], [ack(1, 1), ack(1, 1)]);
    assert_eq!(third.next().await, Sent::Ack(1, 1, vec![]));
    assert_eq!(served.counters.snapshot().shed, 1);
    // Twice as many are accepted; a fifth connection waits.
    let _fourth = Peer::greeted(&served).await;
    let mut fifth = Peer::connect(&served).await;
    fifth.send(&hello(16380, None)).await;
    assert!(fifth.is_silent(Duration::from_millis(200)).await, "it waits");

    let [first, mut second, mut third] = peers;
    drop(first);
    assert_eq!(fifth.next().await, welcome(16380));
    for stream in [3, 5] {
        third.send(&notify(stream, b"ab")).await;
        assert_eq!(third.next().await, ack(stream, 2), "there is a permit now");
    }
    second.send(&notify(3, b"ab")).await;
    assert_eq!(second.next().await, ack(3, 2));
    assert_eq!(served.counters.snapshot().shed, 1);
    served.stop().await;
}

/// A connection to an agent that starts. The path is there a moment before the socket listens.
async fn connected(path: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

#[test]
fn an_agent_brings_its_own_workers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let agent = Agent::new(measure);
    let counters = agent.counters();
    let (stop, stopped) = oneshot::channel::<()>();
    let address = ListenAddress::Unix(path.clone());
    let serving = std::thread::spawn(move || {
        let stopped = async {
            let _ = stopped.await;
        };
        agent.run(NonZeroUsize::new(3).unwrap(), &[address], stopped)
    });
    let client = async {
        for stream in 0..9 {
            let mut socket = connected(&path).await;
            socket
                .write_all(&[hello(16380, None), notify(stream, b"abc")].concat())
                .await
                .unwrap();
            let mut received = Vec::new();
            while received.len() < 82 + 23 {
                within(socket.read_buf(&mut received)).await.unwrap();
            }
            let (frame, _) = decode(&received[82..], 16380).unwrap().unwrap();
            assert!(matches!(frame, Frame::Ack(ack) if ack.id.stream == stream), "{frame:?}");
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { within(client).await });
    stop.send(()).unwrap();
    serving.join().unwrap().unwrap();
    assert_eq!(counters.snapshot().notifies, 9);
    assert!(!path.exists());
}

/// A handler that waits holds up its worker, and no other worker.
#[test]
fn a_worker_that_is_stuck_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let agent = Agent::new(move |_: &Request<'_>, _: &mut Reply<'_>| {
        let _ = released.lock().unwrap().recv();
    });
    let counters = agent.counters();
    assert_eq!(counters.silent(), Duration::ZERO, "it does not serve yet");
    let (stop, stopped) = oneshot::channel::<()>();
    let address = ListenAddress::Unix(path.clone());
    let serving = std::thread::spawn(move || {
        let stopped = async {
            let _ = stopped.await;
        };
        agent.run(NonZeroUsize::new(2).unwrap(), &[address], stopped)
    });
    let client = async {
        let _first = connected(&path).await;
        // Connections go to the workers in turn, and the second worker is not the main thread.
        let mut second = UnixStream::connect(&path).await.unwrap();
        second.write_all(&[hello(16380, None), notify(1, b"")].concat()).await.unwrap();
        while counters.silent() < Duration::from_millis(1500) {
            sleep(Duration::from_millis(5)).await;
        }
        drop(release);
        while counters.silent() >= Duration::from_millis(1500) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { within(client).await });
    stop.send(()).unwrap();
    serving.join().unwrap().unwrap();
}

#[tokio::test]
async fn an_agent_that_stays_awake_answers_and_falls_asleep_again() {
    let served = serve(Agent::new(measure).busy_poll(Duration::from_millis(1))).await;
    let mut peer = Peer::greeted(&served).await;
    for _ in 0..3 {
        peer.send(&notify(1, b"abc")).await;
        assert_eq!(peer.next().await, ack(1, 3));
        sleep(Duration::from_millis(20)).await;
    }
    // If it stayed awake for ever it would use all of these 500 ms.
    let before = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    sleep(Duration::from_millis(500)).await;
    let after = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let ms = |time: rustix::time::Timespec| time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
    assert!(ms(after) - ms(before) < 100, "{} ms of CPU", ms(after) - ms(before));
    served.stop().await;
}
