//! Limits that change while clients owe something: reloads, restarts, agents that are killed and
//! agents that differ for a while, beside a naive ledger.

use super::*;

pub(super) fn policy(name: &str, limits: &str, more: &str) -> String {
    format!("[policy.{name}]\nmessage = \"{name}\"\nkey = [\"ip\"]\nlimits = {limits}\n{more}")
}

fn overrides(policy: &str, entries: &[(&str, &str)]) -> String {
    let entries = entries.iter().map(|(ip, limit)| format!("\"{ip}\" = \"{limit}\"\n"));
    format!("[policy.{policy}.overrides]\n{}", entries.collect::<String>())
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
    let file = |default: &str, entries: &[(&str, &str)]| {
        let entries = if entries.is_empty() { String::new() } else { overrides("api", entries) };
        format!("{ANSWER}{}", policy("api", &format!("\"{default}\""), &entries))
    };
    let mine = (ip, "500/s burst 1000");
    let mut agent = Scenario::new(&file("1000/h", &[mine])).await;
    agent.reload(&file("1200/h", &[mine]));
    agent.advance_ms(3_000);
    assert_eq!(agent.spend("api", ip, 1000).await, 1000);
    agent.advance_ms(2_000);
    agent.reload(&file("1200/h", &[]));
    assert_eq!(agent.left("api", ip).await, Some(1199));
    // Another client gets one; later that of this client is changed.
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

/// However many limits a change is about: a restart and a crash forget none of them.
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

/// The table's register has the numbers of overrides, and when overrides were changed.
#[tokio::test]
async fn a_restart_keeps_debts_under_overrides() {
    let with = |entries: &[(&str, &str)]| {
        let entries = if entries.is_empty() { String::new() } else { overrides("api", entries) };
        format!("{ANSWER}{}", policy("api", "\"100/d burst 50\"", &entries))
    };
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

/// The earlier numbers that a process has learned when it was started are still known after a
/// reload under which the client is found by another key or in another rule.
#[tokio::test]
async fn a_reload_keeps_what_a_start_has_found() {
    let ip = "192.0.2.1";
    let file = |limits: &str, more: &str| ANSWER.to_owned() + &policy("api", limits, more);
    let both =
        "[policy.api.overrides]\n\"192.0.2.0/25\" = [\"11/h burst 9\", \"1000/d burst 500\"]\n";
    for more in [both, "ipv4_prefix = 24\n", ""] {
        for restarts in [[true, false], [false, false], [true, true]] {
            // After a restart nobody knows by which keys clients were found before.
            if restarts[1] && more.starts_with("ipv4") {
                continue;
            }
            let mut agent = Scenario::new(&file("\"10/h burst 8\"", "")).await;
            assert_eq!(agent.spend("api", ip, 9).await, 8);
            for (more, restart) in ["", more].into_iter().zip(restarts) {
                agent.advance_ms(1);
                let next = file("\"11/h burst 9\"", more);
                match restart {
                    true => agent = agent.another(&next).await,
                    false => agent.reload(&next),
                }
            }
            assert_eq!(agent.spend("api", ip, 9).await, 1, "{more}, {restarts:?}");
        }
    }
}

/// A debt that a client has paid off does not come back because another client gets or loses an
/// override, also one with the numbers that the limit had before.
#[tokio::test]
async fn an_override_of_another_client_changes_nothing() {
    let ip = "192.0.2.1";
    let file = |limit: &str, entries: &[(&str, &str)]| {
        let entries = if entries.is_empty() { String::new() } else { overrides("api", entries) };
        ANSWER.to_owned() + &policy("api", &format!("\"{limit}\""), &entries)
    };
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

/// A client gets an override and with it a key of its own. The debt of others together from then
/// on, by the key that the client had and by numbers that come at the same time, is not its debt:
/// neither for an agent that reloads a little later nor for `explain`.
#[tokio::test]
async fn what_a_former_group_owes_later_is_not_owed_by_a_client_that_left_it() {
    let file = |limit: &str, entries: &[(&str, &str)]| {
        let entries = if entries.is_empty() { String::new() } else { overrides("api", entries) };
        policy("api", &format!("\"{limit}\""), &format!("ipv4_prefix = 24\n{entries}"))
    };
    let (ip, other) = ("192.0.2.1", "192.0.2.7");
    let with_override = file("2/d", &[(ip, "4/d")]);
    let before = file("1/d", &[]);
    let mut agent = Scenario::new(&before).await;
    let mut later = agent.another(&before).await;
    agent.advance_ms(10);
    agent.reload(&with_override);
    assert_eq!(agent.passed(other, 3).await, 2);
    agent.advance_ms(10);
    later.reload(&with_override);
    let said = agent.explain(&[("ip", address(ip))]).in_words();
    assert!(said.contains("all 4 are left"), "{said}");
    for agent in [&mut agent, &mut later] {
        assert_eq!(agent.passed(ip, 2).await, 2);
    }
    assert!(!agent.passes(ip).await);
}
