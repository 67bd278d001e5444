//! The files that ask less often: their rules as they are shipped, in every interleaving of some
//! requests; the limit that follows from them (docs/adr/0048); and real HAProxys that run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod bucket;
mod explore;
mod faults;
mod rules;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use bucket::{Limit, most_at_once};
use explore::{Found, World, explore};
use faults::{Report, Run};
use rules::Rules;
use support::{haproxy_folder, needs};

/// The files that ask about every 8th request.
const COUNTING: [&str; 3] = ["every-kth.cfg", "ask-less.cfg", "ask-less-loop.cfg"];

const USUAL: World = World { tracked: true, forgets: 0, losses: false };

fn shipped(name: &str) -> String {
    std::fs::read_to_string(haproxy_folder().join(name)).unwrap()
}

/// The file with another number than 8, as its comments say how to change it. With 8, more
/// requests would be needed than all interleavings can be tried of.
fn with_k(text: &str, k: u8) -> String {
    let (mut changed, mut rules) = (String::new(), 0);
    for line in text.lines() {
        let is_rule = !line.trim_start().starts_with('#');
        let other =
            line.replace(" 8 }", &format!(" {k} }}")).replace("int(8)", &format!("int({k})"));
        rules += usize::from(is_rule && other != line);
        changed.push_str(if is_rule { &other } else { line });
        changed.push('\n');
    }
    assert_eq!(rules, 3, "every-kth.cfg says in how many rules the 8 stands");
    changed
}

fn found(text: &str, world: World, requests: usize) -> Found {
    explore(&Rules::parse(text), world, requests)
}

#[test]
fn at_any_time_at_most_k_minus_1_requests_are_unpaid() {
    for name in COUNTING {
        let text = shipped(name);
        for (k, requests, losses) in [(2, 6, true), (3, 6, true), (3, 7, false), (4, 6, true)] {
            let found = found(&with_k(&text, k), World { losses, ..USUAL }, requests);
            assert_eq!(found.unpaid, i8::try_from(k).unwrap() - 1, "{name}, k = {k}: {found:?}");
        }
    }
}

#[test]
fn nobody_pays_for_more_than_k_minus_1_requests_in_advance_or_twice() {
    for name in COUNTING {
        let text = shipped(name);
        for (k, requests) in [(2, 6), (3, 7), (4, 6)] {
            let found = found(&with_k(&text, k), USUAL, requests);
            assert_eq!(found.overpaid, i8::try_from(k).unwrap() - 1, "{name}, k = {k}: {found:?}");
        }
    }
}

#[test]
fn a_client_that_is_forgotten_has_k_minus_1_requests_more() {
    for name in COUNTING {
        let world = World { forgets: 1, losses: true, ..USUAL };
        let found = found(&with_k(&shipped(name), 3), world, 6);
        assert_eq!(found.unpaid, 2 * 2, "{name}: {found:?}");
    }
}

#[test]
fn a_client_that_cannot_be_tracked_is_asked_about() {
    for name in COUNTING.into_iter().chain(["remember.cfg"]) {
        let found = found(&shipped(name), World { tracked: false, losses: true, ..USUAL }, 5);
        assert_eq!(found.unpaid, 0, "{name}: {found:?}");
    }
}

#[test]
fn who_is_remembered_gets_nothing_unpaid() {
    let found = found(&shipped("remember.cfg"), World { losses: true, ..USUAL }, 6);
    assert_eq!(found.unpaid, 0, "{found:?}");
}

/// A change of one rule that breaks the bound must be found, or the exploration proves nothing.
#[test]
fn rules_that_are_broken_let_too_many_pass() {
    let text = with_k(&shipped("ask-less.cfg"), 3);
    let count = "    http-request set-var(txn.paid) sc_clr_gpc(1,0) if { var(txn.cost) -m int 3 } \
                 { var(txn.gcra.blocked) -m found } !{ var(txn.gcra.blocked) -m bool }\n";
    let lock = "    http-request set-var(txn.done) sc_clr_gpc(2,0) if { var(txn.has_lock) -m \
                found }\n";
    let both = |first: &str, second: &str| format!("{first}{second}");
    let broken = [
        (
            "the count is not looked at again with the lock",
            "{ var(txn.has_lock) -m found } { sc_get_gpc(1,0) ge 3 }".to_owned(),
            "{ var(txn.has_lock) -m found }".to_owned(),
        ),
        (
            "there is no lock",
            "bool(true) if { sc_inc_gpc(2,0) eq 1 }".to_owned(),
            "bool(true)".to_owned(),
        ),
        ("the lock is given back first", both(count, lock), both(lock, count)),
        (
            "what was blocked is forgotten, too",
            " { var(txn.gcra.blocked) -m found } !{ var(txn.gcra.blocked) -m bool }\n".to_owned(),
            "\n".to_owned(),
        ),
        (
            "what has no answer is forgotten, too",
            " { var(txn.gcra.blocked) -m found } !{".to_owned(),
            " !{".to_owned(),
        ),
        (
            "who asks for itself alone makes the others forgotten",
            "sc_clr_gpc(1,0) if { var(txn.cost) -m int 3 } {".to_owned(),
            "sc_clr_gpc(1,0) if {".to_owned(),
        ),
        ("one more is not asked about", "lt 3 }".to_owned(), "lt 4 }".to_owned()),
    ];
    for (what, rule, other) in broken {
        assert_eq!(text.matches(&rule).count(), 1, "{what}");
        let world = World { losses: what.contains("no answer"), ..USUAL };
        let found = found(&text.replace(&rule, &other), world, 7);
        assert!(found.unpaid > 2, "{what}: {found:?}");
    }
    let passes = text.replace(
        "use_backend asked unless { sc_inc_gpc(1,0) lt 3 }",
        "use_backend asked if { sc_inc_gpc(1,0) ge 3 }",
    );
    let found = found(&passes, World { tracked: false, ..USUAL }, 5);
    assert_eq!(found.unpaid, 5, "a client that cannot be tracked passes: {found:?}");
}

/// The .conf and the .cfg that are printed for a policy.
fn printed(policy: &str) -> [String; 2] {
    let folder = support::directory();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    let mut check = std::process::Command::new(support::agent_binary());
    let output =
        check.args(["check", "--print-haproxy", "--ask-less"]).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let parts = text.split_once("\n# ---- ask-less.cfg: the rest, a whole file\n");
    let (conf, cfg) = parts.unwrap_or_else(|| panic!("{text}"));
    [conf.to_owned() + "\n", cfg.to_owned()]
}

/// Files are printed for other policies, too. Of a burst of 8, three requests are paid together.
#[test]
fn printed_files_are_accepted_and_keep_the_bound() {
    for (numbers, key, unpaid) in [
        ("100/s burst 8", "ip", 2),
        ("5/h burst 8", "key", 2),
        ("100000/s burst 8", "host", 2),
        ("10/s burst 3", "key", 0),
    ] {
        let policy = format!("[policy.api]\nlimits = \"{numbers}\"\nkey = [\"{key}\"]\n");
        let [conf, cfg] = printed(&policy);
        let found = found(&cfg, World { losses: true, ..USUAL }, 6);
        assert_eq!(found.unpaid, unpaid, "{policy}{found:?}");
        needs!(support::haproxy());
        let folder = support::directory();
        std::fs::write(folder.path().join("spoe-ask-less.conf"), conf).unwrap();
        let file = folder.path().join("ask-less.cfg");
        std::fs::write(&file, cfg).unwrap();
        let mut haproxy = std::process::Command::new(support::haproxy_binary());
        let output = haproxy.arg("-c").arg("-f").arg(file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("WARNING"), "{policy}{said}");
    }
}

/// A limit of which the agents keep `k - 1` cells in reserve for each process.
fn kept(k: u8, processes: usize) -> Limit {
    let (burst, interval) = (8, 1);
    let reserve = (k - 1) * u8::try_from(processes).unwrap();
    Limit { burst, interval, agents: (burst - reserve, interval), k, processes, expire: None }
}

#[test]
fn with_a_reserve_the_limit_is_exact() {
    for (k, processes) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)] {
        let limit = Limit { expire: (processes == 1).then_some(8), ..kept(k, processes) };
        assert_eq!(most_at_once(limit), limit.burst, "{limit:?}");
        // It is tight: with one less in reserve, one more passes.
        let (burst, interval) = limit.agents;
        let more = Limit { agents: (burst + 1, interval), expire: None, ..limit };
        assert_eq!(most_at_once(more), limit.burst + 1, "{more:?}");
    }
}

#[test]
fn a_client_may_be_forgotten_when_its_bucket_is_full_again_and_not_a_cell_before() {
    for (k, interval) in [(2, 1), (3, 1), (4, 1), (3, 2)] {
        let (agents, _) = kept(k, 1).agents;
        let limit = Limit { interval, agents: (agents, interval), ..kept(k, 1) };
        let full = limit.burst * interval;
        let right = Limit { expire: Some(full), ..limit };
        assert_eq!(most_at_once(right), limit.burst, "{right:?}");
        let short = Limit { expire: Some(full - interval), ..limit };
        assert!(most_at_once(short) > 2 * limit.burst, "it adds up: {short:?}");
    }
}

/// A client that is silent at one process may be busy at another. Then what each process forgets
/// once in `expire` must come from the rate.
#[test]
fn each_of_several_processes_forgets_at_the_expense_of_the_rate() {
    let limit = Limit { burst: 6, interval: 2, agents: (4, 2), expire: Some(12), ..kept(2, 2) };
    assert!(most_at_once(limit) > 2 * limit.burst, "it adds up: {limit:?}");
    // 1/2 less 2 in 12 ticks is 1/3.
    let slower = Limit { agents: (4, 3), ..limit };
    assert_eq!(most_at_once(slower), limit.burst, "{slower:?}");
}

/// `make asks-less` does it for longer, with each version of HAProxy.
#[test]
fn no_request_too_many_passes_a_real_haproxy_whatever_fails() {
    needs!(support::haproxy());
    let from_environment = |name| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let seconds = from_environment("GCRA_ASKS_LESS_SECONDS").unwrap_or(1);
    let seed = from_environment("GCRA_ASKS_LESS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("GCRA_ASKS_LESS_SEED={seed}");
    let duration = Duration::from_secs(seconds);
    for file in COUNTING {
        for threads in [1, 4] {
            let run = Run { file, threads, duration, has_reserve: true, seed };
            let report = faults::run(run);
            let Report { passed, exact, blocked, beyond, other } = report;
            println!(
                "{file:<17} {threads} threads: {passed} passed (an exact bucket: {exact}), \
                 {blocked} blocked, {other} had no answer; {beyond:+.1} beyond the limit"
            );
            assert!(beyond <= 0.0, "{run:?}: {report:?}");
            assert!(passed > 0 && blocked > 0, "{run:?}: {report:?}");
        }
    }
    // Would it be seen? On a busy machine not always in the first second, because clients may ask
    // for less than the limit allows.
    let beyond_in = |seconds| {
        let duration = Duration::from_secs(seconds);
        faults::run(Run { file: "every-kth.cfg", threads: 1, duration, has_reserve: false, seed })
            .beyond
    };
    assert!((1..6).any(|seconds| beyond_in(seconds) > 1.0), "nothing is seen without a reserve");
}
