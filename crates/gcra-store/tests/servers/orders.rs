//! Orders that machines share: each is a machine here, with a list of its own.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use gcra_store::{
    LONGEST_WORDS, MOST_SHARED_ENDS, MOST_SHARED_ORDERS, Names, NewOrder, ORDERS_SOURCE,
    OrderExchange,
};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use crate::host::{config, permitted_config};
use crate::support::{Server, cluster, cluster_url, needs, programs, valkey, wait_until};

const HOUR: Duration = Duration::from_secs(3_600);

fn machine(url: &str) -> OrderExchange {
    OrderExchange::new(config(url), &Names::new(b"salt")).unwrap()
}

fn order(id: u8, words: &str) -> NewOrder {
    NewOrder { id: [id; 16], is_end: false, given: None, lasts: HOUR, words: words.into() }
}

/// The words of all orders that a machine has, by the first byte of their ids.
fn words(machine: &OrderExchange) -> BTreeMap<u8, String> {
    let all = machine.list().iter();
    all.map(|it| (it.id[0], String::from_utf8(machine.words(it).unwrap()).unwrap())).collect()
}

fn map(all: &[(u8, &str)]) -> BTreeMap<u8, String> {
    all.iter().map(|(id, words)| (*id, (*words).to_owned())).collect()
}

#[tokio::test]
async fn a_machine_that_was_away_gets_what_others_have_given() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let config = permitted_config(&server);
        let machine = |salt| OrderExchange::new(config.clone(), &Names::new(salt)).unwrap();

        let (mut first, mut second) = (machine(b"salt"), machine(b"salt"));
        assert!(!first.exchange().await.unwrap(), "there is nothing");
        first.give(&[order(1, "block"), order(2, "exempt")]).await.unwrap();
        let both = map(&[(1, "block"), (2, "exempt")]);
        assert_eq!(words(&first), both);
        assert!(!first.exchange().await.unwrap(), "nothing is new");
        assert!(second.exchange().await.unwrap());
        assert_eq!(words(&second), both);
        second.give(&[order(1, "ended")]).await.unwrap();
        assert!(first.exchange().await.unwrap());
        assert_eq!(words(&first), map(&[(1, "ended"), (2, "exempt")]));
        // The server may forget the script.
        server.say(&["SCRIPT", "FLUSH"]);
        first.give(&[order(1, "again")]).await.unwrap();

        let mut other = machine(b"another salt");
        assert!(!other.exchange().await.unwrap(), "it is another list");
        let name = first.name();
        assert!(name.starts_with("{gcra:") && name != other.name(), "{name}");
        assert!(server.say(&["PTTL", name]).starts_with(":35"), "it is not kept for ever");
        assert!(!server.say(&["GET", name]).contains("again"), "the words are sealed");
        assert_eq!(server.say(&["ACL", "LOG"]), "*0\r\n", "nothing else was tried");
    }
}

#[tokio::test]
async fn a_store_that_loses_its_memory_is_filled_again() {
    needs!(valkey());
    let mut server = Server::start(&[]);
    let (mut first, mut second) = (machine(&server.url()), machine(&server.url()));
    first.give(&[order(1, "one"), order(2, "two")]).await.unwrap();
    second.exchange().await.unwrap();
    server.kill();
    let said = second.exchange().await.unwrap_err().to_string();
    let begin = format!("the store at {} cannot be used: ", server.address());
    assert!(said.starts_with(&begin), "{said}");
    assert_eq!(words(&second).len(), 2, "they go on to hold");
    server.restart();
    // A machine that knows nothing of the others gives a later one.
    let mut third = machine(&server.url());
    third.give(&[order(2, "ended")]).await.unwrap();
    assert_eq!(words(&third), map(&[(2, "ended")]));
    assert!(second.exchange().await.unwrap());
    let all = map(&[(1, "one"), (2, "ended")]);
    assert_eq!(words(&second), all);
    assert!(third.exchange().await.unwrap());
    assert_eq!(words(&third), all);
}

#[tokio::test]
async fn what_is_wrong_with_a_store_is_said_and_the_list_stays() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut machine = machine(&server.url());
    machine.give(&[order(1, "one")]).await.unwrap();
    let name = machine.name().to_owned();
    let list = format!("has under {name} is not a list of orders; remove this key");
    let expiring = [&1.0_f64.to_le_bytes()[..], &[7; 16], &[0], &[1; 16], &[200, 0]].concat();
    let expiring = String::from_utf8_lossy(&expiring).into_owned();
    for rubbish in ["x", "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}", &*expiring] {
        server.say(&["SET", &name, rubbish]);
        let said = machine.exchange().await.unwrap_err().to_string();
        assert!(said.contains(&list), "{rubbish:?}: {said}");
    }
    server.say(&["DEL", &name]);
    server.say(&["LPUSH", &name, "x"]);
    let said = machine.exchange().await.unwrap_err().to_string();
    assert!(said.contains(&list), "{said}");
    assert_eq!(words(&machine), map(&[(1, "one")]));
    server.say(&["SETRANGE", "huge", "20000000", "x"]);
    server.say(&["RENAME", "huge", &name]);
    let said = machine.exchange().await.unwrap_err().to_string();
    let huge = format!("has 20000001 bytes under {name}, and a list of orders has at most ");
    assert!(said.contains(&huge), "{said}");
    server.say(&["DEL", &name]);
    assert!(machine.exchange().await.unwrap());
    assert_eq!(words(&machine), map(&[(1, "one")]), "it was brought back");

    server.say(&["CONFIG", "SET", "maxmemory", "1"]);
    let said = machine.give(&[order(2, "two")]).await.unwrap_err().to_string();
    assert!(said.contains("it is out of memory; raise maxmemory"), "{said}");
    server.say(&["CONFIG", "SET", "maxmemory", "0"]);
    machine.exchange().await.unwrap();
    // It has become a replica, and the connection is still there.
    server.say(&["REPLICAOF", "127.0.0.1", "1"]);
    let said = machine.exchange().await.unwrap_err().to_string();
    assert!(said.contains("it is a replica, not a primary"), "{said}");
    server.say(&["REPLICAOF", "NO", "ONE"]);
    machine.exchange().await.unwrap();
    assert_eq!(words(&machine), map(&[(1, "one")]));
}

/// A machine sends what was newer when it looked, and another one may have been faster.
#[test]
fn of_two_that_come_at_once_the_later_given_is_kept() {
    needs!(valkey());
    let server = Server::start(&[]);
    // Doubles from 2^40 ms (in 2004), whose bytes are text.
    let double = |high: char| format!("\0\0\0\0\0\0{high}B");
    let send = |given: char, words: &str| {
        let numbers = double(given) + &double('\x7f');
        let order = format!("0123456789abcdef\0{numbers}{}\0{words}", '\x03');
        let known = "\0".repeat(8);
        server.say(&["EVAL", ORDERS_SOURCE, "1", "{gcra:1}", &known, &order, "512", "9", "999"])
    };
    for (given, words, kept) in [('q', "one", "one"), ('p', "two", "one"), ('q', "six", "one")] {
        assert!(send(given, words).contains(kept), "{words}");
    }
    assert!(send('r', "ten").contains("ten"));
    assert!(server.say(&["GET", "{gcra:1}"]).ends_with("ten\r\n"));
}

#[tokio::test]
async fn there_is_a_bound_in_number_and_length() {
    needs!(valkey());
    let server = Server::start(&[]);
    let (mut machine, mut other) = (machine(&server.url()), machine(&server.url()));
    let of = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        NewOrder {
            id,
            is_end: false,
            given: None,
            lasts: HOUR + Duration::from_secs(number as u64),
            words: vec![b'w'; LONGEST_WORDS],
        }
    };
    let all: Vec<_> = (0..MOST_SHARED_ORDERS).map(&of).collect();
    machine.give(&all).await.unwrap();
    other.exchange().await.unwrap();
    assert_eq!(other.list().len(), MOST_SHARED_ORDERS);
    let said = other.give(&[of(MOST_SHARED_ORDERS)]).await.unwrap_err().to_string();
    assert!(
        said.starts_with("the store has 512 orders or 2048 ends, which are the most"),
        "{said}"
    );
    other.give(&[of(7)]).await.unwrap();
    let long = NewOrder { words: vec![0; LONGEST_WORDS + 1], ..of(7) };
    let said = other.give(&[long]).await.unwrap_err().to_string();
    assert!(said.starts_with("the KEY is too long for the store: "), "{said}");

    // Ends take the places of no orders, and have a bound of their own.
    let end = |number| NewOrder { is_end: true, ..of(number) };
    machine.give(&(0..MOST_SHARED_ORDERS).map(end).collect::<Vec<_>>()).await.unwrap();
    let next = |more: usize| of(MOST_SHARED_ORDERS + more);
    let orders: Vec<_> = (0..MOST_SHARED_ORDERS).map(next).collect();
    machine.give(&orders).await.unwrap();
    let said = machine.give(&[of(7)]).await.unwrap_err().to_string();
    assert!(said.starts_with("the store has 512 orders"), "an end leaves no place: {said}");
    let ends = MOST_SHARED_ORDERS + MOST_SHARED_ENDS;
    let more: Vec<_> = (2 * MOST_SHARED_ORDERS..ends + 3).map(end).collect();
    machine.give(&more).await.unwrap();
    assert_eq!(machine.list().len(), ends);
    let has =
        |machine: &OrderExchange, number| machine.list().iter().any(|it| it.id == of(number).id);
    assert!(!has(&machine, 2) && has(&machine, 3) && has(&machine, ends));
    // A machine that had it does not bring it back.
    other.exchange().await.unwrap();
    assert!(!has(&other, 2));
    assert!(!machine.exchange().await.unwrap(), "nothing has changed");
}

#[tokio::test]
async fn in_a_cluster_the_list_is_in_one_slot() {
    needs!(valkey());
    let mut nodes = cluster(3);
    let url = cluster_url(&nodes);
    let (mut first, mut second) = (machine(&url), machine(&url));
    first.give(&[order(1, "one")]).await.unwrap();
    second.exchange().await.unwrap();
    assert_eq!(words(&second), map(&[(1, "one")]));
    let name = first.name().to_owned();
    let has = |node: &Server| node.say(&["GET", &name]).starts_with('$');
    let owner = nodes.iter().position(has).unwrap();
    // Another node does not matter.
    let other = (owner + 1) % nodes.len();
    nodes[other].kill();
    for node in nodes.iter().enumerate().filter(|(place, _)| *place != other) {
        node.1.say(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    first.give(&[order(1, "ended")]).await.unwrap();
    nodes[other].restart();
    nodes[owner].kill();
    assert!(second.exchange().await.is_err());
    assert_eq!(words(&second), map(&[(1, "one")]), "it goes on to hold");
    nodes[owner].restart();
    let runtime = tokio::runtime::Handle::current();
    let wait = move || {
        wait_until("the list is there", || runtime.block_on(first.exchange()).is_ok());
        first
    };
    let first = tokio::task::spawn_blocking(wait).await.unwrap();
    second.exchange().await.unwrap();
    assert_eq!((words(&first), words(&second)), (map(&[(1, "ended")]), map(&[(1, "ended")])));
}

#[derive(Clone, Debug)]
enum Step {
    Give(usize, u8),
    Exchange(usize),
    /// The store loses all.
    Flush,
}

/// The naive model is a map in which the order that was given last stands. Each machine comes to
/// it, in whichever order they exchange.
#[test]
fn machines_agree_on_what_was_given_last() {
    needs!(valkey());
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let step = prop_oneof![
        6 => (0_usize..3, 0_u8..4).prop_map(|(machine, id)| Step::Give(machine, id)),
        4 => (0_usize..3).prop_map(Step::Exchange),
        1 => Just(Step::Flush),
    ];
    let mut runner = TestRunner::new(Cases { failure_persistence: None, ..Cases::with_cases(24) });
    let outcome = runner.run(&prop::collection::vec(step, 1..24), |steps| {
        server.say(&["FLUSHALL"]);
        let (mut machines, mut model) =
            ([(); 3].map(|()| machine(&server.url())), BTreeMap::new());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Give(at, id) => {
                    let words = format!("{number}");
                    runtime.block_on(machines[at].give(&[order(id, &words)])).unwrap();
                    model.insert(id, words);
                }
                Step::Exchange(at) => drop(runtime.block_on(machines[at].exchange()).unwrap()),
                Step::Flush => {
                    server.say(&["FLUSHALL"]);
                    // What is given next is given later, by the clock too.
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        for _ in 0..2 {
            for machine in &mut machines {
                runtime.block_on(machine.exchange()).unwrap();
            }
        }
        for machine in &machines {
            prop_assert_eq!(words(machine), model.clone());
        }
        Ok(())
    });
    outcome.unwrap();
}
