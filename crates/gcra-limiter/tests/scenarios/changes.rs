//! Limits that change while clients owe something: reloads, restarts, agents that are killed and
//! agents that differ for a while, beside a naive ledger.

use super::*;

pub(super) fn policy(name: &str, limits: &str, more: &str) -> String {
    format!("[policy.{name}]\nmessage = \"{name}\"\nkey = [\"ip\"]\nlimits = {limits}\n{more}")
}

/// The overrides of the policy `api`.
fn overrides(entries: &[(&str, &str)]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let entries = entries.iter().map(|(ip, limit)| format!("\"{ip}\" = \"{limit}\"\n"));
    format!("[policy.api.overrides]\n{}", entries.collect::<String>())
}

/// A file with one limit for each address.
fn by_address(limit: &str, entries: &[(&str, &str)]) -> String {
    ANSWER.to_owned() + &policy("api", &format!("\"{limit}\""), &overrides(entries))
}

/// A file with one limit for each /24.
fn by_network(limit: &str, entries: &[(&str, &str)]) -> String {
    let more = format!("ipv4_prefix = 24\n{}", overrides(entries));
    policy("api", &format!("\"{limit}\""), &more)
}

const ANSWER: &str = "answer = [\"remaining\", \"retry_after\"]\n";

impl Scenario {
    /// How many cells are left of a limit after a request, or `None` if it was blocked.
    async fn left(&mut self, message: &str, ip: &str) -> Option<i64> {
        let args = [("ip", address(ip))];
        let answer = self.client.ask(&[(message, &args)]).await.unwrap();
        let left = Self::integer(&answer, "remaining");
        if Self::is_blocked(&answer) { None } else { left }
    }

    async fn spend(&mut self, message: &str, ip: &str, requests: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..requests {
            passed += u32::from(self.left(message, ip).await.is_some());
        }
        passed
    }
}

/// A client that owes nothing now has its whole burst, whatever was changed before, and whenever
/// something else was changed.
#[tokio::test]
async fn a_client_that_owes_nothing_is_never_blocked_by_a_change() {
    let ip = "192.0.2.1";
    for (fast, slow, others) in [
        ("\"100/s burst 200\"", "\"1000/h burst 100\"", ["\"50/h\"", "\"60/h\""]),
        ("\"1000/s burst 200\"", "\"10/h burst 100\"", ["\"1/h\"", "\"2/h\""]),
    ] {
        for restarts in [false, true] {
            let file = |login: &str, api: &str| {
                format!("{ANSWER}{}{}", policy("login", login, ""), policy("api", api, ""))
            };
            let mut agent = Scenario::new(&file(others[0], fast)).await;
            assert_eq!(agent.left("api", ip).await, Some(199));
            for next in [file(others[1], fast), file(others[1], slow)] {
                agent.advance_ms(4_000);
                if restarts {
                    agent = agent.another(&next).await;
                } else {
                    agent.reload(&next);
                }
                if next.contains(fast) {
                    assert_eq!(agent.spend("api", ip, 1).await, 1);
                    agent.advance_ms(1_200);
                }
            }
            assert_eq!(agent.left("api", ip).await, Some(99), "{fast}, {restarts}");
        }
    }
    // The override of the client is taken away, long after the default was changed.
    let file = by_address;
    let mine = (ip, "500/s burst 1000");
    let mut agent = Scenario::new(&file("1000/h", &[mine])).await;
    agent.reload(&file("1200/h", &[mine]));
    agent.advance_ms(3_000);
    assert_eq!(agent.spend("api", ip, 1000).await, 1000);
    agent.advance_ms(2_000);
    agent.reload(&file("1200/h", &[]));
    assert_eq!(agent.left("api", ip).await, Some(1199));
    // Another client gets an override; later the override of this client changes.
    let (mine, other) = ((ip, "10/s burst 100"), ("192.0.2.9", "1/h"));
    let mut agent = Scenario::new(&file("1000/h", &[mine])).await;
    agent.reload(&file("1000/h", &[mine, other]));
    agent.advance_ms(12_000);
    assert_eq!(agent.spend("api", ip, 3).await, 3);
    agent.advance_ms(1_500);
    agent.reload(&file("1000/h", &[(ip, "2000/d burst 100"), other]));
    assert_eq!(agent.left("api", ip).await, Some(99));
    // A rolling restart, from fast to slow.
    for (fast, slow) in
        [("50/s burst 40", "600/h burst 40"), ("1000/s burst 200", "10/h burst 100")]
    {
        let mut old = Scenario::new(&file(fast, &[])).await;
        let mut new = old.another(&file(slow, &[])).await;
        new.advance_ms(2_000);
        assert_eq!(old.spend("api", ip, 1).await, 1);
        new.advance_ms(1_200);
        let burst = if slow.contains("600") { 40 } else { 100 };
        assert_eq!(new.left("api", ip).await, Some(burst - 1), "{fast}");
        let mut restarted = new.another(&file(slow, &[])).await;
        assert_eq!(restarted.left("api", ip).await, Some(burst - 2), "{fast}");
    }
}

/// A change may be about any number of limits: a restart and a crash forget no limit.
#[tokio::test]
async fn a_restart_forgets_no_debt_of_any_policy() {
    for policies in [1, 3, 9, 40] {
        let file = |burst: u32| -> String {
            let limits = format!("\"500/d burst {burst}\"");
            let each = |number| policy(&format!("p{number}"), &limits, "");
            ANSWER.to_owned() + &(0..policies).map(each).collect::<String>()
        };
        for kind in ["reload", "restart", "reload, and a crash", "restarts in turn"] {
            let mut agent = Scenario::new(&file(50)).await;
            for number in 0..policies {
                assert_eq!(agent.spend(&format!("p{number}"), "192.0.2.1", 60).await, 50);
            }
            agent.advance_ms(1);
            agent = match kind {
                "reload" => {
                    agent.reload(&file(60));
                    agent
                }
                "restart" => agent.another(&file(60)).await,
                "restarts in turn" => {
                    for burst in [51, 52, 53, 54, 55, 56] {
                        agent = agent.another(&file(burst)).await;
                        agent.advance_ms(1);
                    }
                    agent.another(&file(60)).await
                }
                _ => {
                    agent.reload(&file(60));
                    agent.advance_ms(1);
                    agent.another(&file(60)).await
                }
            };
            for number in 0..policies {
                let passed = agent.spend(&format!("p{number}"), "192.0.2.1", 80).await;
                assert_eq!(passed, 10, "p{number} of {policies}, {kind}");
            }
        }
    }
}

/// Each former configuration says which numbers a client had.
#[tokio::test]
async fn a_restart_keeps_debts_under_overrides() {
    let with = |entries: &[(&str, &str)]| by_address("100/d burst 50", entries);
    let (ip, other) = ("192.0.2.1", "192.0.2.2");
    let files = [
        with(&[]),
        with(&[(ip, "100/d burst 60")]),
        with(&[(ip, "100/d burst 70")]),
        with(&[(ip, "100/d burst 60"), (other, "100/d burst 10")]),
        with(&[]),
    ];
    for by_reload in [false, true] {
        let mut agent = Scenario::new(&files[0]).await;
        assert_eq!(agent.spend("api", ip, 30).await, 30);
        let mut used = 30;
        for (file, burst) in files[1..].iter().zip([60, 70, 60, 50]) {
            agent.advance_ms(1);
            if by_reload {
                agent.reload(file);
                agent.advance_ms(1);
            }
            // After a reload, a crash.
            agent = agent.another(file).await;
            used = (used + 1).min(burst);
            let (left, is_blocked) = (burst - used, used == burst);
            let answer = agent.left("api", ip).await;
            assert_eq!(answer, (!is_blocked).then_some(left), "{file}, {by_reload}");
            // The others are not concerned.
            assert!(agent.left("api", "192.0.2.3").await.is_some());
        }
        let mut agent = agent.another(&files[1]).await;
        assert_eq!(agent.spend("api", ip, 60).await, u32::try_from(60 - used).unwrap());
        for (file, left) in files[1..].iter().zip([0, 10, 0, 0]) {
            agent.advance_ms(1);
            agent = agent.another(file).await;
            assert_eq!(agent.spend("api", ip, 80).await, left, "{file}, {by_reload}");
        }
        assert_eq!(agent.left("api", other).await, Some(49));
    }
}

/// A policy or one of its limits goes, the agent starts again, and it comes back together with an
/// override for the client.
#[tokio::test]
async fn what_comes_back_with_an_override_has_its_debts() {
    let ip = "192.0.2.1";
    let limits = |burst: u32| {
        format!("[\"1000/s\", {{ name = \"daily\", rate = \"100/d\", burst = {burst} }}]")
    };
    let file = |text: String| ANSWER.to_owned() + &text;
    let all = file(policy("api", &limits(50), ""));
    let entry = format!("[policy.api.overrides]\n\"{ip}\" = {}\n", limits(60));
    let back = file(policy("api", &limits(50), &entry));
    for without in [policy("other", "\"1/s\"", ""), policy("api", "\"1000/s\"", "")].map(file) {
        for restarts in [[true, true], [true, false], [false, true], [false, false]] {
            let mut agent = Scenario::new(&all).await;
            assert_eq!(agent.spend("api", ip, 60).await, 50);
            for (file, restart) in [&without, &back].into_iter().zip(restarts) {
                agent.advance_ms(1);
                match restart {
                    true => agent = agent.another(file).await,
                    false => agent.reload(file),
                }
            }
            assert_eq!(agent.spend("api", ip, 80).await, 10, "{without}, {restarts:?}");
        }
    }
}

/// A client pays off its debt at the faster of both rates through every change. A part that it has
/// paid off under a fast limit never counts again.
#[tokio::test]
async fn a_debt_that_was_paid_off_between_two_changes_is_gone() {
    let ip = "192.0.2.1";
    let file = by_address;
    let slow = file("10/h burst 20", &[]);
    let fast = file("5/s burst 20", &[]);
    for then in [
        file("5/s burst 21", &[]),
        file("10/h burst 21", &[]),
        file("5/s burst 20", &[(ip, "20/h burst 21")]),
        file("5/s burst 20", &[("192.0.2.9", "20/h")]),
    ] {
        for restarts in [[false, false], [false, true], [true, false], [true, true]] {
            let mut agent = Scenario::new(&slow).await;
            assert_eq!(agent.spend("api", ip, 30).await, 20);
            for (next, restarts) in [&fast, &then].into_iter().zip(restarts) {
                match restarts {
                    true => agent = agent.another(next).await,
                    false => agent.reload(next),
                }
                agent.advance_ms(5_500);
            }
            let most = if then.contains("21") { 21 } else { 20 };
            assert_eq!(agent.spend("api", ip, 30).await, most, "{then}, {restarts:?}");
        }
    }
}

/// A limit that was away comes back, also by an override: its debt was paid off at its own rate.
#[tokio::test]
async fn a_limit_that_comes_back_was_paid_off_at_its_own_rate() {
    let ip = "192.0.2.1";
    let file = |limits: &str, more: &str| ANSWER.to_owned() + &policy("api", limits, more);
    let named = |rate: &str| format!("{{ name = \"a\", rate = \"{rate}\", burst = 20 }}");
    let with = file(&format!("[\"1000/s\", {}]", named("10/h")), "");
    let without = file("[\"1000/s\"]", "");
    let entry = format!("[policy.api.overrides]\n\"{ip}\" = [{}]\n", named("1/s"));
    let back = file("[\"1000/s\"]", &entry);
    for restarts in [false, true] {
        let mut agent = Scenario::new(&with).await;
        assert_eq!(agent.spend("api", ip, 30).await, 20);
        agent.reload(&without);
        agent.advance_ms(12_000);
        match restarts {
            true => agent = agent.another(&back).await,
            false => agent.reload(&back),
        }
        assert_eq!(agent.spend("api", ip, 30).await, 0, "{restarts}");
        agent.advance_ms(5_000);
        assert_eq!(agent.spend("api", ip, 30).await, 5, "{restarts}");
    }
}

/// A debt that a client has paid off does not come back because another client gets or loses an
/// override, also one with the numbers that the limit had before.
#[tokio::test]
async fn an_override_of_another_client_changes_nothing() {
    let ip = "192.0.2.1";
    let file = by_address;
    let other = ("192.0.2.9", "6/h burst 100");
    for (entries, restarts) in [
        (&[][..], true),
        (&[][..], false),
        (&[("192.0.2.9", "7/h burst 100")][..], true),
        (&[("192.0.2.9", "7/h burst 100")][..], false),
    ] {
        let mut agent = Scenario::new(&file("6/h burst 100", &[])).await;
        assert_eq!(agent.spend("api", ip, 101).await, 100);
        agent.reload(&file("100/s burst 100", &[other]));
        agent.advance_ms(3_000);
        let next = file("100/s burst 100", entries);
        match restarts {
            true => agent = agent.another(&next).await,
            false => agent.reload(&next),
        }
        assert_eq!(agent.spend("api", ip, 101).await, 100, "{entries:?}, {restarts}");
    }
}

/// A client gets an override, and with it a key of its own: it begins anew, and so does its former
/// group when it is back there.
#[tokio::test]
async fn an_override_with_a_key_of_its_own_has_no_debts_of_its_group() {
    let file = by_network;
    let (ip, other) = ("192.0.2.1", "192.0.2.7");
    let with_override = file("2/d", &[(ip, "4/d")]);
    let mut agent = Scenario::new(&file("1/d", &[])).await;
    assert_eq!(agent.passed(ip, 3).await, 1);
    agent.reload(&with_override);
    assert_eq!(agent.passed(other, 3).await, 1, "its group owes what it owed");
    let said = agent.explain(&[("ip", address(ip))]).in_words();
    assert!(said.contains("all 4 are left"), "{said}");
    assert_eq!(agent.passed(ip, 9).await, 4);
    agent.reload(&file("3/d", &[]));
    assert_eq!(agent.passed(ip, 9).await, 1, "its group owes two");
}

/// An address had an override of its own within the override of its group. A request from this
/// address still owes the debts of the group, and a reset clears them.
#[tokio::test]
async fn a_group_owes_what_it_owed_whichever_address_asks() {
    let file = by_network;
    let (one, other) = ("192.0.2.1", "192.0.2.2");
    for before in [
        file("5/h", &[("192.0.2.0/24", "100/h"), (one, "unlimited")]),
        file("100/h", &[("192.0.2.0/30", "20/h"), (one, "deny")]),
    ] {
        for first in [one, other] {
            let mut agent = Scenario::new(&before).await;
            // Of the group, and of none of its parts.
            assert_eq!(agent.passed("192.0.2.9", 120).await, 100);
            agent.reload(&file("101/h burst 100", &[]));
            assert_eq!(agent.passed(first, 9).await, 0, "{before}");
            assert_eq!(agent.passed("192.0.2.9", 9).await, 0, "{before}");
        }
    }
}

/// A smaller burst that was in force in between forgives nothing.
#[tokio::test]
async fn a_small_burst_in_between_forgives_nothing() {
    let ip = "192.0.2.1";
    let file = |limit: &str| ANSWER.to_owned() + &policy("api", &format!("\"{limit}\""), "");
    for last in ["101/h burst 100", "100/h"] {
        let mut agent = Scenario::new(&file("100/h")).await;
        assert_eq!(agent.spend("api", ip, 120).await, 100);
        for next in ["50/h", last].map(file) {
            agent.reload(&next);
            agent.advance_ms(1_000);
        }
        assert_eq!(agent.spend("api", ip, 120).await, 0, "{last}");
    }
}
