//! The memory and the open files that connections take. Both belong to the whole process, so these
//! tests have a program of their own, and run one after the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::fs;
use std::time::Duration;

use peer::{PATIENCE, Peer, hello, measure, notify, patient, serve};
use spop_agent::{Agent, Snapshot};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// Held by each test.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Memory of this process, and its open files.
fn resources() -> (u64, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib = rss.trim().trim_end_matches(" kB").parse().unwrap();
    (kib, fs::read_dir("/proc/self/fd").unwrap().count())
}

#[tokio::test]
async fn ten_thousand_connections_reset_in_flight_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let served = serve(Agent::new(measure)).await;
    let burst: Vec<u8> = [hello(16380, None)]
        .into_iter()
        .chain((0..20).map(|stream| notify(stream, b"a")))
        .flatten()
        .collect();
    let mut before = resources();
    for round in 0..10_000 {
        let mut peer = Peer::connect(&served).await;
        peer.send(&burst[..burst.len() - usize::from(round % 3 == 0)]).await;
        if round % 2 == 0 {
            peer.reset();
        }
        if round == 1_000 {
            before = resources();
        }
    }
    let began = Instant::now();
    let all_have_ended = |counted: Snapshot| counted.open == 0 && counted.connections == 10_000;
    while !all_have_ended(served.counters.snapshot()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", served.counters.snapshot());
        sleep(Duration::from_millis(10)).await;
    }
    let after = resources();
    println!("after 1000: {before:?}, after 10 000: {after:?} (KiB, files)");
    assert!(after.0 < before.0 + 4096, "memory: {before:?} {after:?}");
    assert!(after.1 <= before.1 + 2, "files: {before:?} {after:?}");
    assert_eq!(served.counters.snapshot().connections, 10_000);
    served.stop().await;
}

#[tokio::test]
async fn a_flood_and_half_frames_cost_bounded_memory() {
    let _alone = ALONE.lock().await;
    let served = serve(Agent::new(measure).limits(patient())).await;
    let before = resources().0;
    // 200 connections that begin the largest frame of HAProxy's default and stop: 16 KiB each.
    let mut halves = Vec::new();
    for _ in 0..200 {
        let mut peer = Peer::greeted(&served).await;
        let large = notify(1, &[b'x'; 16_000]);
        peer.send(&large[..large.len() - 1]).await;
        halves.push(peer);
    }
    sleep(Duration::from_millis(200)).await;
    let held = resources().0 - before;
    println!("200 half frames of 16 000 bytes: {held} KiB");
    assert!(held < 200 * 64, "{held} KiB");
    // And one that sends 200 000 NOTIFYs without a pause while it reads.
    let mut flood = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..20_000).flat_map(|stream| notify(stream, b"a")).collect();
    let (mut read, mut write) = flood.stream.split();
    let send = async {
        for _ in 0..10 {
            write.write_all(&burst).await.unwrap();
        }
    };
    let receive = async {
        let mut buffer = vec![0; 1 << 16];
        while served.counters.snapshot().notifies < 200_000 {
            let _ = timeout(Duration::from_millis(100), read.read(&mut buffer)).await;
        }
    };
    timeout(2 * PATIENCE, async { tokio::join!(send, receive) }).await.unwrap();
    let most = resources().0 - before;
    println!("and a flood of 200 000 NOTIFYs: {most} KiB");
    assert!(most < 200 * 64 + 8192, "{most} KiB");
    drop((flood, halves));
    served.stop().await;
}
