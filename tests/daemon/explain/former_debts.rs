//! The debts of clients by former keys, numbers and overrides.

use super::*;

#[test]
fn a_debt_from_before_a_reload_is_shown_and_reset() {
    let config = |limit: &str| format!("[policy.check]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n");
    let mut scene = Scene::new(&config("5/d"));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    fs::write(scene.path("gcra.toml"), config("4/d")).unwrap();
    // The file is not in force yet, and an agent without a file has buckets of its own.
    let other = Agent::start(&scene.path("table"), &["--rate", "2/d"]);
    let output = scene.run_without_file(&["table", "get"], &["--rate", "2/d", "192.0.2.1"]);
    assert_eq!(output.status.code(), Some(1));
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(
        note.contains("some agents of table") && note.contains("without --rate finds"),
        "{note}"
    );
    other.stop();
    let output = scene.run(&["explain"], &["ip=192.0.2.1"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("1 of 1 agent of table") && note.contains("not reloaded"), "{note}");

    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let (words, status) = scene.get(&["192.0.2.1"]);
    assert!(words.contains("4 per day, up to 4 at once: blocked; "), "{words}");
    assert!(words.contains("(a debt from before the limits were changed)"), "{words}");
    assert_eq!(status, 0);
    assert!(scene.is_blocked("check", &args));
    assert_eq!(scene.reset(&["192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &args), 4);
}

/// The table does not say which buckets a client had by other groups, and the file beside it does.
#[test]
fn a_debt_by_former_groups_is_shown_without_asking_the_agents() {
    let config = |prefix: u8| {
        format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n")
    };
    let mut scene = Scene::new(&config(24));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    // The groups in between are not those of any debt.
    for prefix in [16, 32] {
        reload(&scene, &config(prefix));
        assert!(scene.is_blocked("check", &args));
    }
    for (command, arg) in [(&["table", "get"][..], "192.0.2.1"), (&["explain"], "ip=192.0.2.1")] {
        let output = scene.run(command, &[arg]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let words = said(&output).0;
        assert!(words.contains("(a debt from before the limits were changed)"), "{words}");
    }
    let words = scene.said(&["explain"], &["ip=192.0.2.1"]).0;
    assert!(words.contains("a request now is blocked; the next one is allowed in"), "{words}");

    // It is in the memory of the agent, too, which writes the file once more.
    fs::remove_file(scene.path("table.policies")).unwrap();
    wait_until("the file is whole again", || {
        let output = scene.run(&["table", "get"], &["192.0.2.1"]);
        output.stderr.is_empty() && said(&output).0.contains("a debt from before")
    });

    let (words, status) = scene.reset(&["192.0.2.1"]);
    let cleared = "all that it owed was cleared, also what it owed before the reload";
    assert!(words.contains(cleared) && status == 0, "{words}");
    let (words, _) = scene.get(&["192.0.2.9"]);
    assert!(words.contains("its debt is paid off"), "{words}");
    assert_eq!(scene.exhaust("check", &args), 5);

    // An agent that was started since does not remember it.
    reload(&scene, &config(31));
    let is_blocked = |scene: &Scene| {
        scene.said(&["explain"], &["ip=192.0.2.1"]).0.contains("a request now is blocked")
    };
    assert!(is_blocked(&scene));
    scene.restart();
    assert!(!is_blocked(&scene) && !scene.is_blocked("check", &args));
    // Nor does it after a reload of its own, which has another debt.
    reload(&scene, &config(30));
    assert!(!is_blocked(&scene) && !scene.is_blocked("check", &args));
}

/// Agents of which one was started after a change: the others count what that does not.
#[test]
fn a_younger_agent_is_said_not_to_count_former_debts() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"{key}\"]\n");
    let mut scene = Scene::new(&config("user"));
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config("ip"));
    let explain = || all_said(&scene.run(&["explain"], &["ip=192.0.2.1", "user=alice"])).0;
    let blocked = "a request now is blocked";
    assert!(explain().contains(blocked) && !explain().contains("started later"));
    let file = scene.path("gcra.toml");
    let younger = Agent::start(&scene.path("table"), &["--config", file.to_str().unwrap()]);
    let about = format!("agent {} started later and may allow more", younger.process.id());
    wait_until("the younger one has written", || explain().contains(&about));
    assert!(explain().contains(blocked));
}

/// A KEY that is that of a fallback does not tell whether the other arg was there.
#[test]
fn a_debt_by_a_former_key_with_fallbacks_is_not_silent() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [{key}]\n");
    let (fallbacks, plain) = ("\"user\", \"else ip\"", "\"ip\"");
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    for (before, after, key, lacks) in [
        (fallbacks, plain, "ip=192.0.2.1", "user=..."),
        (plain, fallbacks, "user=alice", "ip=..."),
    ] {
        let mut scene = Scene::new(&config(before));
        assert_eq!(scene.exhaust("check", &args), 5);
        reload(&scene, &config(after));
        assert!(scene.is_blocked("check", &args));
        let may_owe = format!("which 'gcra-spoa explain' shows with {lacks}");
        for command in [&["explain"][..], &["table", "get"]] {
            let (words, _) = all_said(&scene.run(command, &[key]));
            assert!(words.contains(&may_owe), "{words}");
        }
        let (_, status) = scene.reset(&[key]);
        assert_eq!(status, 1, "{key} does not say which client that was");
        let both = scene.said(&["explain"], &["ip=192.0.2.1", "user=alice"]).0;
        assert!(both.contains("a request now is blocked"), "{both}");
    }
    // The key that a policy has now says all of itself.
    let mut scene = Scene::new(&config(fallbacks));
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config(&format!("{fallbacks}]\nlowercase = true\n#")));
    for key in ["ip=192.0.2.1", "user=alice"] {
        let (words, _) = all_said(&scene.run(&["table", "get"], &[key]));
        assert!(!words.contains("had another key"), "{words}");
    }
}

/// By a former key with other args a KEY says too little, and the args of a message may not.
#[test]
fn a_debt_by_a_former_key_is_shown_to_those_who_write_its_args() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"{key}\"]\n");
    let mut scene = Scene::new(&config("user"));
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config("ip"));
    assert!(scene.is_blocked("check", &args));
    let may_owe = "policy 'check' had another key before a reload; for up to 24 h its clients may \
                   owe more by that, which 'gcra-spoa explain' shows with user=...\n";
    for (command, arg) in [(&["table", "get"][..], "192.0.2.1"), (&["explain"], "ip=192.0.2.1")] {
        let (words, _) = all_said(&scene.run(command, &[arg]));
        assert!(words.contains(may_owe), "{words}");
        assert!(words.contains("no bucket that this command can see"), "{words}");
    }
    let output = scene.run(&["explain"], &["ip=192.0.2.1", "user=alice"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let words = said(&output).0;
    assert!(words.contains("a request now is blocked; the next one is allowed in"), "{words}");
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.1"]));
    let unknown =
        "it is not known here which key 192.0.2.1 had before; what it owed by that under";
    assert!(words.contains(unknown) && status == 1, "{words}");
    assert!(scene.is_blocked("check", &args));
}

/// A client with other numbers, which had more numbers before it than the table can list.
#[test]
fn a_reset_is_not_silent_about_numbers_that_the_table_had_no_space_for() {
    let config = |first: usize| {
        let rule =
            |n: usize| format!("\"192.0.{}.{}\" = \"{}/d\"\n", n / 250, n % 250, 1000 * first + n);
        let overrides: String = (0..700).map(rule).collect();
        format!(
            "[policy.check]\nkey = [\"ip\"]\nlimits = \"9/d\"\n\
             [policy.check.overrides]\n{overrides}"
        )
    };
    let mut scene = Scene::new(&config(1));
    let args = [("ip", ip("192.0.2.199"))];
    // The last one of 700.
    for _ in 0..100 {
        assert!(!scene.is_blocked("check", &args));
    }
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains("a debt of ") && status == 0, "nothing was changed yet: {words}");
    for _ in 0..100 {
        assert!(!scene.is_blocked("check", &args));
    }
    reload(&scene, &config(2));
    assert!(!scene.is_blocked("check", &args));
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains(TOO_MANY_NUMBERS), "{words}");
    assert!(words.contains(" agents may still count what 192.0.2.199 "), "{words}");
    assert!(!words.contains("all that it owed was cleared"), "{words}");
    assert_eq!(status, 1, "{words}");
    // Now the table is full. By the longest debts, of a day before and a day after a change.
    reload(&scene, &config(3));
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains("for up to 48 h agents") && status == 1, "{words}");
}

/// The numbers that a client was charged by have left the table, and its agent counts by them.
#[test]
fn a_client_without_a_listed_bucket_is_not_said_to_owe_nothing() {
    let config = |count: usize| {
        let policy = |n: usize| format!("[policy.p{n}]\nkey = [\"ip\"]\nlimits = \"{count}/d\"\n");
        (0..400).map(policy).collect::<String>()
    };
    let mut scene = Scene::new(&config(5));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("p0", &args), 5);
    let of_p0 = ["--policy", "p0", "192.0.2.1"];
    reload(&scene, &config(4));
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_p0));
    assert!(words.contains("blocked; ") && status == 0, "it is listed: {words}");
    reload(&scene, &config(3));
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_p0));
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains("blocked; "), "{words}");
    assert_eq!(status, 0, "the file says it: {words}");
    let of_another = ["--policy", "p0", "192.0.2.9"];
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_another));
    let no_bucket = "no bucket that this command can see";
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains(no_bucket), "{words}");
    assert!(!words.contains("its debt is paid off") && status == 1, "{words}");
    let question = |ip: &str| {
        let (words, _) = all_said(&scene.run(&["explain"], &["--message", "p0", ip]));
        words
    };
    let words = question("ip=192.0.2.1");
    assert!(words.contains("a request now is blocked; "), "{words}");
    let words = question("ip=192.0.2.9");
    assert!(
        words.contains("no bucket that this command can see, and without one all 3"),
        "{words}"
    );
    let (words, status) = all_said(&scene.run(&["table", "reset"], &of_p0));
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains(no_bucket), "{words}");
    assert_eq!(status, 1, "{words}");
    assert!(scene.is_blocked("p0", &args));
}

/// Only what was in force before says which clients had an override that a reload has taken away.
#[test]
fn a_debt_under_a_former_override_is_explained_and_reset() {
    let config = |overrides: &str| {
        format!(
            "[policy.check]\nlimits = \"100/d\"\nkey = [\"ip\"]\n\
             [policy.check.overrides]\n{overrides}\n"
        )
    };
    let mut scene = Scene::new(&config("\"192.0.2.0/24\" = \"3/d\""));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 3);
    fs::write(scene.path("gcra.toml"), config("\"192.0.2.1\" = \"2/d\"")).unwrap();
    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let explained = scene.json(&["explain"], &["ip=192.0.2.1"]).remove(0);
    assert_eq!(explained["blocked"], true, "{explained}");
    assert!(scene.is_blocked("check", &args));
    assert_eq!(scene.reset(&["192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &args), 2);
}
