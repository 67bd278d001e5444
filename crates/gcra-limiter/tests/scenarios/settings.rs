//! The effect of settings of a file on the requests of a client, one setting after the other.

use std::fs;
use std::net::Ipv4Addr;

use super::*;

impl Scenario {
    /// How many of `count` messages are allowed.
    async fn passing(&mut self, args: &[(&str, Value<'_>)], count: usize) -> usize {
        let mut passing = 0;
        for _ in 0..count {
            passing += usize::from(!is(&self.ask(args).await, "blocked"));
        }
        passing
    }
}

fn is(answer: &Answer, name: &str) -> bool {
    answer.var(Scope::Transaction, name) == Some(Value::Bool(true))
}

#[tokio::test]
async fn all_limits_are_charged_or_none() {
    let mut scenario = Scenario::new("[policy.api]\nlimits = [\"10/h\", \"3/d\"]\n").await;
    let client = [("ip", address("192.0.2.1"))];
    assert_eq!(scenario.passing(&client, 8).await, 3);
    // The five that the second limit denied were not charged to the first.
    scenario.reload("[policy.api]\nlimits = \"10/h\"\n");
    assert_eq!(scenario.passing(&client, 12).await, 7);
    // A message without a policy gets no answer.
    assert!(scenario.client.ask(&[("other", &client)]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_debt_stays_when_the_numbers_change_and_a_name_is_what_counts() {
    let text = "[policy.api]\nlimits = [{ name = \"x\", rate = \"5/h\" }, \"100/h\"]\n";
    let mut scenario = Scenario::new(text).await;
    let client = [("ip", address("192.0.2.1"))];
    assert_eq!(scenario.passing(&client, 9).await, 5);
    scenario.reload("[policy.api]\nlimits = [\"100/h\", { name = \"x\", rate = \"4/h\" }]\n");
    let passing = scenario.passing(&client, 3).await;
    assert_eq!(passing, 0, "it owes too much under the new numbers as well");
    // A new name is a new limit.
    scenario.reload("[policy.api]\nlimits = [{ name = \"y\", rate = \"4/h\" }]\n");
    assert_eq!(scenario.passing(&client, 9).await, 4);
}

/// The debt of a key before a change is compared with its debt now, and never added to it.
#[tokio::test]
async fn a_charge_costs_one_cell_where_numbers_come_back() {
    const INTERVAL: u64 = 8640;
    let config = |x: &str, y: &str| {
        format!(
            "answer = [\"reset\"]\n[policy.api]\n\
             limits = [{{ name = \"x\", rate = \"{x}\", burst = 10 }}, {{ name = \"y\", rate = \
             \"{y}\", burst = 50 }}]\n"
        )
    };
    let mut scenario = Scenario::new(&config("10/d", "100/h")).await;
    let client = [("ip", address("192.0.2.1"))];
    assert_eq!(scenario.passing(&client, 3).await, 3);
    scenario.reload(&config("1/d", "100/h"));
    // Long enough to show in whole seconds.
    scenario.advance_ms(3_000);
    scenario.reload(&config("10/d", "99/h"));
    let mut resets = Vec::new();
    for _ in 0..5 {
        resets.push(number(&scenario.ask(&client).await, "reset"));
    }
    assert_eq!(resets[0], 4 * INTERVAL - 3);
    for pair in resets.windows(2) {
        assert_eq!(pair[1] - pair[0], INTERVAL, "{resets:?}");
    }
}

#[tokio::test]
async fn networks_share_a_bucket_and_overrides_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let many: String =
        (0..100_000_u32).map(|n| format!("{}\n", Ipv4Addr::from(0x0a00_0000 + n * 7))).collect();
    let partners = format!("# partners\n{many}192.0.2.7 # one more\n");
    fs::write(directory.path().join("partners.txt"), partners).unwrap();
    fs::write(directory.path().join("offices.txt"), "2001:db8:ff::/48\n").unwrap();
    let text = format!(
        r#"[policy.api]
limits = "2/h"
key = ["ip"]
ipv4_prefix = 24
[policy.api.overrides]
"198.51.100.0/24" = "deny"
"198.51.100.9" = "unlimited"
[[policy.api.lists]]
file = "{0}/partners.txt"
limits = "5/h"
[[policy.api.lists]]
file = "{0}/offices.txt"
limits = "unlimited"
"#,
        directory.path().display()
    );
    let mut scenario = Scenario::new(&text).await;
    for (ip, passing, what) in [
        ("203.0.113.1", 2, "the limit of the policy"),
        ("203.0.113.200", 0, "the same /24"),
        ("::ffff:203.0.113.3", 0, "in its other form, too"),
        ("198.51.100.8", 0, "an override"),
        ("198.51.100.9", 8, "an override within it"),
        ("10.0.0.7", 5, "from the list"),
        ("192.0.2.7", 5, "from the list"),
        ("2001:db8:1::1", 2, "the limit of the policy"),
        ("2001:db8:1:0:ffff::1", 0, "the same /64"),
        ("2001:db8:1:1::1", 2, "another /64"),
        ("2001:db8:ff:7::1", 8, "from the other list"),
    ] {
        assert_eq!(scenario.passing(&[("ip", address(ip))], 8).await, passing, "{ip}: {what}");
    }
}

#[tokio::test]
async fn a_policy_is_chosen_by_an_arg_and_letters_can_be_alike() {
    let mut scenario = Scenario::new(
        r#"[policy.gold]
message = "api"
when = { plan = ["gold", "silver"] }
limits = "6/h"
key = ["key"]
lowercase = true
[policy.api]
limits = "2/h"
key = ["key"]
"#,
    )
    .await;
    for (key, plan, passing, what) in [
        ("Alice", "gold", 6, "a limit of its own"),
        ("ALICE", "silver", 0, "the same policy, and the same key"),
        ("Alice", "free", 2, "another policy"),
        ("ALICE", "free", 2, "in which case matters"),
    ] {
        let args = [("key", key.into()), ("plan", plan.into())];
        assert_eq!(scenario.passing(&args, 8).await, passing, "{key} {plan}: {what}");
    }
}

#[tokio::test]
async fn a_client_that_is_only_watched_is_not_blocked() {
    let mut scenario = Scenario::new(
        "answer = [\"would_block\", \"reason\", \"policy\"]\n[policy.api]\nlimits = \"2/h\"\n\
         mode = \"observe\"\n[policy.bad]\nlimits = \"deny\"\n",
    )
    .await;
    let client = [("ip", address("192.0.2.1"))];
    for round in 0..4 {
        let answer = scenario.ask(&client).await;
        assert_eq!((is(&answer, "blocked"), is(&answer, "would_block")), (false, round >= 2));
        let reason = text_of(&answer, "reason");
        assert_eq!(reason.as_deref(), (round >= 2).then_some("limit"));
    }
    // Two messages at once: the request is blocked if a message is.
    let answer = scenario.client.ask(&[("api", &client), ("bad", &client)]).await.unwrap();
    assert!(is(&answer, "blocked") && is(&answer, "would_block"));
    let said = ["policy", "reason"].map(|name| text_of(&answer, name).unwrap());
    assert_eq!(said, ["bad", "denied"]);
    let counted = ["api", "bad"].map(|policy| scenario.counts(policy));
    assert_eq!(counted, [[2, 3, 0, 0], [0, 0, 1, 0]], "each message by its policy");
}

#[tokio::test]
async fn a_client_that_goes_on_asking_waits_longer() {
    let limits = "answer = [\"retry_after\"]\n[policy.api]\nlimits = \"6/m burst 1\"\n";
    let penalty = "penalty = { cells = 2, ceiling = \"1m\" }\n";
    let mut scenario = Scenario::new(&format!("{limits}{penalty}")).await;
    let client = [("ip", address("192.0.2.1"))];
    // 10 s for the cell that it has had, and two cells more each time, up to the ceiling.
    for seconds in [0, 30, 50, 70, 70, 70] {
        assert_eq!(number(&scenario.ask(&client).await, "retry_after"), seconds);
    }
    // Without the penalty it owes no more than is possible without one.
    scenario.reload(limits);
    assert_eq!(number(&scenario.ask(&client).await, "retry_after"), 10);
}
