//! Exemptions: the clients that they are for, how they are listed, and how they end.

use super::*;

#[test]
fn an_exemption_is_followed_listed_and_ended() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", ip("2001:db8::1"))];
    assert_eq!(scene.exhaust("check", &args), 2);
    let (words, status) = scene.said(&["exempt"], &["--for", "1h", "2001:db8::2"]);
    assert_eq!(status, 0);
    let begin = "2001:db8::2 (counted as 2001:db8::/64): policy 'check': exempt for 1h, in all \
                 agents within about two seconds; to end it: gcra-spoa exempt --end --config ";
    assert!(words.starts_with(begin) && words.ends_with(" 2001:db8::2\n"), "{words}");
    wait_until("the agent follows", || !scene.is_blocked("check", &args));
    assert!(!scene.is_blocked("check", &args));
    let listed = scene.said(&["exempt"], &["--list"]).0;
    assert!(listed.starts_with("2001:db8::/64: policy 'check', for another 60 min"), "{listed}");
    let explanation = scene.said(&["explain"], &["ip=2001:db8::7"]).0;
    assert!(explanation.contains("is allowed, because the client is exempt for another 60 min"));
    assert!(scene.get(&["2001:db8::7"]).0.contains("; exempt for another 60 min"));

    let (words, status) = scene.said(&["exempt"], &["--end", "2001:db8::3"]);
    assert!(words.contains("policy 'check': the exemption has ended") && status == 0, "{words}");
    wait_until("the agent follows", || scene.is_blocked("check", &args));
    let (words, status) = scene.said(&["exempt"], &["--end", "2001:db8::3"]);
    assert!(words.contains("there was no exemption") && status == 1, "{words}");
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
    for time in ["8d", "0s", "9s", "soon", "3600", "-5m"] {
        let sentence = scene.complaint(&["exempt"], &["--for", time, "2001:db8::3"]);
        assert!(sentence.contains("is not a time from 10s to 7d"), "{sentence}");
    }
}

/// The configurations in haproxy/ cut IPv6 addresses, and the commands name the network.
#[test]
fn a_client_of_an_agent_without_a_file_is_explained_and_exempt() {
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "2/d"]);
    let mut spop = Spop::connect(&agent.address);
    let args = [("ip", ip("2001:db8:1:2::"))];
    assert_eq!(spop.allowed(&args, 5), 2);
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        said(&command.args(args).arg("--table").arg(&table).output().unwrap())
    };
    let explain = |arg: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let explain = command.args(["explain", "--rate", "2/d", arg, "--table"]).arg(&table);
        explain.output().unwrap()
    };
    // This is about exactly the args of a message.
    let output = explain("ip=2001:db8:1:2::7");
    let (words, status) = said(&output);
    let begin = "policy 'default' decides: a request now is allowed\n  key: 2001:db8:1:2::7\n";
    assert!(words.starts_with(begin) && status == 0, "{words}");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("the table has a bucket for ip=2001:db8:1:2:: in policy"), "{note}");
    let output = explain("ip=2001:db8:1:2::");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let (words, status) = said(&output);
    let begin = "policy 'default' decides: a request now is blocked; the next one is allowed in \
                 12 h\n  key: 2001:db8:1:2::\n";
    assert!(words.starts_with(begin) && status == 0, "{words}");
    assert_eq!(run(&["explain", "--rate", "2/d", "--cost", "n", "ip=192.0.2.7", "n=x"]).1, 2);
    let (words, status) = run(&["exempt", "--for", "30m", "2001:db8:1:2::"]);
    let begin = "2001:db8:1:2::: exempt for 30m, in all agents";
    assert!(words.starts_with(begin) && words.lines().count() == 1 && status == 0, "{words}");
    wait_until("the agent follows", || spop.allowed(&args, 1) == 1);
    let listed = run(&["exempt", "--list"]).0;
    assert!(
        listed.starts_with("2001:db8:1:2::: policy 'default', for another 30 min"),
        "{listed}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    let output = command.args(["exempt", "--end", "2001:db8:1:2::8", "--table"]).arg(&table);
    let output = output.output().unwrap();
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(note.contains("the table has an exemption for 2001:db8:1:2::, and none"), "{note}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run(&["exempt", "--end", "2001:db8:1:2::"]).1, 0);
    wait_until("the agent follows", || spop.allowed(&args, 1) == 0);
    assert_eq!(
        run(&["name", "2001:db8:1:2::7,alice-from-sales"]).0.split('#').next().unwrap(),
        "2001:db8:1:2::7,alic…(16)"
    );
}

/// An entry is one of a few, and most policies may never see such a client.
#[test]
fn an_exemption_without_a_policy_names_those_that_it_is_for() {
    let mut scene = Scene::new(
        "[policy.login]\nlimits = \"2/d\"\nkey = [\"ip\"]\n[policy.pro]\nlimits = \
         \"9/d\"\nkey = [\"key\"]\n[policy.free]\nlimits = \"3/d\"\nkey = [\"key\"]\n",
    );
    scene.exhaust("login", &[("ip", ip("192.0.2.4"))]);
    let notes = |args: &[&str]| {
        let output = scene.run(&["exempt", "--for", "1h"], args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = "without --policy, 192.0.2.4 is exempt from each policy whose key it can be: \
                login, pro, free, which takes 3 entries; the table knows this key under 'login' \
                only, for which --policy login is enough";
    let found = notes(&["192.0.2.4"]);
    assert!(found.contains(said), "{found}");
    let found = notes(&["192.0.2.5"]);
    assert!(found.contains("; for only one of these, add --policy NAME"), "{found}");
    assert!(!notes(&["--policy", "login", "192.0.2.4"]).contains("entries"));
}

/// An exemption stays with the key that its client had.
#[test]
fn an_exemption_of_a_former_key_is_named_and_ended() {
    const KEY: &str = "key = [\"ip\"]\n";
    let narrower = format!("{KEY}[policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n");
    let (none, same) = ("; no client has this key by ", "\n");
    let first = "; only 2001:db8:: has this key by ";
    let shorter = "key = [\"ip\"]\nipv4_prefix = 24\n";
    let (longer, other) = ("key = [\"ip\"]\nipv6_prefix = 128\n", "key = [\"ip\", \"path\"]\n");
    for (settings, key, listed, misfit) in [
        (shorter, "10.1.2.3", "10.1.2.3", none),
        // This is now the key of one address, by which HAProxy may cut others.
        (longer, "2001:db8::1", "2001:db8::/64", first),
        (longer, "2001:db8::/64", "2001:db8::/64", first),
        (other, "2001:db8::1", "2001:db8::/64", none),
        (other, "10.1.2.3", "10.1.2.3", none),
        (&narrower, "2001:db8::1", "2001:db8::/64", same),
    ] {
        let config = |settings: &str| format!("[policy.check]\nlimits = \"2/d\"\n{settings}");
        let scene = Scene::new(&config(KEY));
        assert_eq!(scene.said(&["exempt"], &["--for", "1h", key]).1, 0);
        assert_eq!(scene.said(&["exempt"], &["--for", "1h", "192.0.2.1"]).1, 0);
        let list = || scene.said(&["exempt"], &["--list"]).0;
        assert!(!list().contains("no client has this key"), "{}", list());
        wait_until("the agent follows", || {
            let lines = scene.agent.process.lines();
            lines.iter().filter(|line| line.contains(" is exempt from the policy ")).count() == 2
        });
        fs::write(scene.path("gcra.toml"), config(settings)).unwrap();
        assert_eq!(scene.said(&["reload"], &[]).1, 0);
        let warning =
            "policy 'check' makes other keys than before, and 2 exemptions of it are for";
        wait_until("the log says it", || {
            scene.agent.process.lines().iter().any(|line| line.contains(warning))
        });
        let begin = format!("{listed}: policy 'check', for another 60 min{misfit}");
        assert!(list().contains(&begin), "{begin}: {}", list());
        let (words, status) = scene.said(&["exempt"], &["--end", key]);
        let ended = format!(
            "{key}: policy 'check': the exemption of {listed}, from before the key was changed, \
             has ended, in all agents within about two seconds\n"
        );
        assert_eq!(words, ended);
        assert_eq!(status, 0, "{words}");
        assert!(!list().contains(listed), "{}", list());
        assert!(list().contains("192.0.2.1"), "the other one stays");
        assert_ne!(scene.run(&["exempt"], &["--end", key]).status.code(), Some(0));
    }
}

/// Whether an exemption still fits is not known from a name that is not the whole key.
#[test]
fn an_exemption_with_a_shortened_name_may_fit() {
    let config =
        |more: &str| format!("[policy.check]\nlimits = \"2/d\"\nkey = [\"user\"]\n{more}");
    let scene = Scene::new(&config(""));
    assert_eq!(scene.said(&["exempt"], &["--for", "1h", "Alice"]).1, 0);
    fs::write(scene.path("gcra.toml"), config("lowercase = true\n")).unwrap();
    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let output = scene.run(&["exempt"], &["--list"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("note: names with a '…' are not whole keys, so it is not"), "{note}");
    let json = scene.json(&["exempt", "--list"], &[]).remove(0);
    assert_eq!(json["fits"], Json::Null);
    let (words, status) = scene.said(&["exempt"], &["--end", "Alice"]);
    assert!(words.contains("the exemption of A…(5)#") && status == 0, "{words}");
}

#[test]
fn an_exemption_that_helps_no_client_is_refused() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
         [policy.user]\nlimits = \"5/d\"\nkey = [\"user\", \"ip\"]\n",
    );
    let exempt = ["exempt", "--for", "1h"];
    let sentence = scene.complaint(&exempt, &["office"]);
    assert!(
        sentence.contains("'office' is a string, and policy 'check' has groups"),
        "{sentence}"
    );
    assert_eq!(scene.said(&exempt, &["str:office"]).1, 0);
    // That is what explain writes, and one that has a bucket is a client in any case.
    let explanation = scene.json(&["explain"], &["--message", "check", "ip=bob"]).remove(0);
    assert_eq!(explanation["written_key"], "str:bob");
    assert!(!scene.is_blocked("check", &[("ip", "bob".into())]));
    assert_eq!(scene.said(&exempt, &["bob"]).1, 0);
    assert_eq!(scene.said(&exempt, &["192.0.2.0/24"]).1, 0, "a group is a client");
    let sentence = scene.complaint(&exempt, &["192.0.0.0/16"]);
    assert!(sentence.contains("; an exemption is for one client: for the network"), "{sentence}");
    let other = scene.path("other.toml");
    fs::write(&other, "[policy.other]\nlimits = \"5/d\"\nkey = [\"ip\"]\n").unwrap();
    let args = ["--config", other.to_str().unwrap(), "192.0.2.7"];
    let output = scene.run_without_file(&exempt, &args);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(sentence.contains(" has used the policy 'other' of "), "{sentence}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_exempt_client_is_allowed_without_a_value_for_the_key_of_a_limit() {
    let mut scene = Scene::new(
        "[policy.check]\nkey = [\"ip\"]\n\
         limits = [{ name = \"a\", rate = \"1/d\" }, \
         { name = \"t\", rate = \"9/d\", key = [\"t\"] }]\n",
    );
    let args = |client| [("ip", ip(client)), ("t", Value::Null)];
    assert_eq!(scene.run(&["exempt"], &["--for", "1h", "192.0.2.7"]).status.code(), Some(0));
    let decided =
        |scene: &mut Scene, client| !scene.spop.ask(&[("check", &args(client))]).is_empty();
    wait_until("the exemption is in force", || decided(&mut scene, "192.0.2.7"));
    for _ in 0..3 {
        assert!(!scene.is_blocked("check", &args("192.0.2.7")));
    }
    assert!(!decided(&mut scene, "192.0.2.8"), "it is not exempt");
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.7"]);
    assert!(words.contains("because the client is exempt for another "), "{words}");
    assert_eq!(status, 0);
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.8"]);
    assert!(words.contains("does not decide: "), "{words}");
    assert_eq!(status, 1);
}
