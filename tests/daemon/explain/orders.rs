//! Orders about clients: whom they are about, how they are listed, and how they end.

use super::*;

#[test]
fn an_exemption_is_followed_listed_and_ended() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", ip("2001:db8::1"))];
    assert_eq!(scene.exhaust("check", &args), 2);
    let (words, status) = scene.said(&["exempt"], &["--for", "40h", "2001:db8::2"]);
    assert_eq!(status, 0);
    let begin = "2001:db8::2 (counted as 2001:db8::/64): policy 'check': exempt for 40h, until ";
    let end =
        ", in all agents within about two seconds; to end it: gcra-spoa exempt --end --config ";
    assert!(
        words.starts_with(begin) && words.contains(end) && words.ends_with(" 2001:db8::2\n"),
        "{words}"
    );
    wait_until("the agent follows", || !scene.is_blocked("check", &args));
    assert!(!scene.is_blocked("check", &args));
    let listed = scene.said(&["exempt"], &["--list"]).0;
    assert!(listed.starts_with("2001:db8::/64: policy 'check', exempt for another 40 h, "));
    let explanation = scene.said(&["explain"], &["ip=2001:db8::7"]).0;
    assert!(explanation.contains("is allowed, because the client is exempt for another "));
    assert!(scene.get(&["2001:db8::7"]).0.contains("; exempt for another "));

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
        said(&output_beside_agents(command.args(args).arg("--table").arg(&table)))
    };
    let explain = |arg: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        output_beside_agents(command.args(["explain", arg, "--table"]).arg(&table))
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
    let (words, status) = run(&["exempt", "--for", "30h", "2001:db8:1:2::"]);
    let begin = "2001:db8:1:2::: exempt for 30h, until ";
    assert!(words.starts_with(begin) && words.lines().count() == 1 && status == 0, "{words}");
    wait_until("the agent follows", || spop.allowed(&args, 1) == 1);
    let listed = run(&["exempt", "--list"]).0;
    assert!(
        listed.starts_with("2001:db8:1:2::: policy 'default', exempt for another 30 h"),
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
    let shorter = "key = [\"ip\"]\nipv4_prefix = 24\n";
    let (longer, other) = ("key = [\"ip\"]\nipv6_prefix = 128\n", "key = [\"ip\", \"path\"]\n");
    for (settings, key, listed, misfit) in [
        (shorter, "10.1.2.3", "10.1.2.3", none),
        (longer, "2001:db8::1", "2001:db8::/64", none),
        (other, "2001:db8::1", "2001:db8::/64", none),
        (other, "10.1.2.3", "10.1.2.3", none),
        (&narrower, "2001:db8::1", "2001:db8::/64", same),
    ] {
        let config = |settings: &str| format!("[policy.check]\nlimits = \"2/d\"\n{settings}");
        let scene = Scene::new(&config(KEY));
        assert_eq!(scene.said(&["exempt"], &["--for", "40h", key]).1, 0);
        assert_eq!(scene.said(&["exempt"], &["--for", "40h", "192.0.2.1"]).1, 0);
        let list = || scene.said(&["exempt"], &["--list"]).0;
        assert!(!list().contains("no client has this key"), "{}", list());
        wait_until("the agent follows", || {
            let lines = scene.agent.process.lines();
            lines.iter().filter(|line| line.contains(" is exempt for another ")).count() == 2
        });
        fs::write(scene.path("gcra.toml"), config(settings)).unwrap();
        assert_eq!(scene.said(&["reload"], &[]).1, 0);
        let warning = "policy 'check' makes other keys than before, and 2 orders of it are for";
        wait_until("the log says it", || {
            scene.agent.process.lines().iter().any(|line| line.contains(warning))
        });
        let begin = format!("{listed}: policy 'check', exempt for another 40 h, ");
        let is_it = |line: &str| line.starts_with(&begin) && format!("{line}\n").contains(misfit);
        assert!(list().lines().any(is_it), "{begin}: {}", list());
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
    assert_eq!(scene.said(&exempt, &["192.0.2.0/24"]).1, 0, "a group is a network, too");
    assert_eq!(scene.said(&exempt, &["192.0.0.0/16"]).1, 0);
    let sentence = scene.complaint(&exempt, &["--policy", "check", "192.0.2.0/25"]);
    assert!(sentence.contains("'192.0.2.0/25' is less than 192.0.2.0/24, which"), "{sentence}");
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

/// A block is the opposite of an exemption, in everything that operators see.
#[test]
fn a_block_is_followed_listed_and_ended() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", ip("10.1.2.3"))];
    let order = ["--for", "40h", "--note", "INC-4711 anna", "10.1.2.0/24"];
    let (words, status) = scene.said(&["block"], &order);
    assert!(words.starts_with("10.1.2.0/24: policy 'check': blocked for 40h, until "), "{words}");
    assert!(words.contains("; to end it: gcra-spoa block --end ") && status == 0, "{words}");
    wait_until("the agent follows", || scene.is_blocked("check", &args));
    let (listed, _) = scene.said(&["block"], &["--list"]);
    let begin = "10.1.2.0/24: policy 'check', blocked for another 40 h, until 20";
    assert!(listed.starts_with(begin) && listed.contains(" (INC-4711 anna)\n"), "{listed}");
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
    let json = scene.json(&["block", "--list"], &[]).remove(0);
    assert_eq!((&json["order"], &json["key"]), (&"block".into(), &"10.1.2.0/24".into()));
    assert_eq!((&json["note"], &json["network"]), (&"INC-4711 anna".into(), &true.into()));
    assert!(json["until"].as_str().is_some_and(|until| until.ends_with(" UTC")), "{json}");
    assert!(json["giver"].as_str().is_some_and(|giver| !giver.is_empty()), "{json}");

    let (words, _) = scene.said(&["explain"], &["ip=10.1.2.3"]);
    let begin = "policy 'check' decides: a request now is blocked, because the client is blocked \
                 with all of 10.1.2.0/24 for another 40 h, until ";
    assert!(words.contains(begin), "{words}");
    assert!(words.contains(" (INC-4711 anna)\n"), "{words}");
    let explained = scene.json(&["explain"], &["ip=10.1.2.3"]).remove(0);
    assert_eq!((&explained["blocked"], &explained["reason"]), (&true.into(), &"blocked".into()));
    assert_eq!(explained["order"]["order"], "block");
    for wait in ["retry_after_ms", "retry_after_ms_if_asked"] {
        assert_eq!(explained[wait], explained["order"]["left_ms"], "{explained}");
    }
    assert!(scene.get(&["10.1.2.3"]).0.contains("; blocked with all of 10.1.2.0/24 for another "));

    // The most specific order counts, and a newer one takes the place of an older one.
    assert_eq!(scene.said(&["exempt"], &["--for", "40h", "10.1.2.3"]).1, 0);
    wait_until("the exemption counts", || !scene.is_blocked("check", &args));
    let (words, _) = scene.said(&["block"], &["--for", "40h", "10.1.2.3"]);
    assert!(words.contains(", and no longer exempt, in all agents"), "{words}");
    wait_until("the block counts", || scene.is_blocked("check", &args));
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
    let (words, status) = scene.said(&["exempt"], &["--end", "10.1.2.3"]);
    let begin = "there was no exemption of this KEY; it is blocked for another";
    assert!(words.contains(begin) && status == 1, "{words}");
    assert_eq!(scene.said(&["block"], &["--list", "--plain"]).0, "10.1.2.0/24\n10.1.2.3\n");
    assert_eq!(scene.said(&["block"], &["--end", "10.1.2.3"]).1, 0);
    assert!(scene.is_blocked("check", &args), "the network is blocked");
    let (words, status) = scene.said(&["block"], &["--end", "10.1.2.3"]);
    let network = "there was no block of this KEY; it is blocked with all of 10.1.2.0/24 for";
    assert!(words.contains(network) && status == 1, "{words}");
    let (words, status) = scene.said(&["block"], &["--end", "10.1.2.0/24"]);
    assert!(words.contains("10.1.2.0/24: policy 'check': the block has ended"), "{words}");
    assert_eq!(status, 0);
    wait_until("the agent follows", || !scene.is_blocked("check", &args));
    for said in [
        "policy 'check': 10.1.2.0/24 is blocked for another 40 h, until ",
        "policy 'check': 10.1.2.3 is no longer exempt",
        "policy 'check': 10.1.2.0/24 is no longer blocked",
    ] {
        let lines = scene.agent.process.lines();
        assert!(lines.iter().any(|line| line.contains(said)), "{said}: {lines:#?}");
    }
}

/// A block without a policy holds for all policies whose key the KEY can be.
#[test]
fn a_block_without_a_policy_is_for_all_policies() {
    let mut scene = Scene::new(
        "[policy.login]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n[policy.pages]\nlimits = \
         \"100000/d\"\nkey = [\"ip\"]\n[policy.user]\nlimits = \"100000/d\"\n\
         key = [\"user\", \"ip\"]\n",
    );
    for key in ["192.0.2.4", "192.0.2.0/24"] {
        let args = [("user", "a".into()), ("ip", ip("192.0.2.4"))];
        assert_eq!(scene.run(&["block"], &["--for", "1h", key]).status.code(), Some(0));
        // The order for one of them can be in force a moment before that for the other one.
        wait_until("it is blocked", || {
            ["login", "pages"].iter().all(|message| scene.is_blocked(message, &args[1..]))
        });
        assert!(!scene.is_blocked("user", &args));
        assert_eq!(scene.said(&["block"], &["--list", "--plain"]).0, format!("{key}\n"));
        assert_eq!(scene.said(&["block"], &["--end", "--policy", "login", key]).1, 0);
        wait_until("it ends", || !scene.is_blocked("login", &args[1..]));
        assert!(scene.is_blocked("pages", &args[1..]), "by the other policy");
        assert_eq!(scene.said(&["block"], &["--end", key]).1, 0);
    }
}

#[test]
fn an_order_ends_at_a_moment() {
    let scene = Scene::new("[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n");
    let moment = |seconds: i64| {
        let mut date = Command::new("date");
        date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("{seconds} seconds"));
        let output = date.output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let until = moment(7200);
    assert_eq!(scene.said(&["block"], &["--until", &until, "192.0.2.7"]).1, 0);
    let json = scene.json(&["block", "--list"], &[]).remove(0);
    let left = json["left_ms"].as_u64().unwrap();
    assert!((7_100_000..=7_200_000).contains(&left), "{json}");
    for (moment, said) in [
        (moment(-60), "has passed"),
        (moment(700_000), "is 8.2 d from now"),
        ("soon".to_owned(), "is not a moment; write a date and a time, such as"),
    ] {
        let sentence = scene.complaint(&["block"], &["--until", &moment, "192.0.2.7"]);
        assert!(sentence.contains(said), "{sentence}");
    }
    let note = "x".repeat(65);
    let sentence = scene.complaint(&["block"], &["--for", "1h", "--note", &note, "192.0.2.7"]);
    assert!(sentence.contains("the note has 65 bytes, and 64 are the most"), "{sentence}");
}

/// Agents that are killed and started, and a table that is resized, lose no order.
#[test]
fn an_order_survives_kills_restarts_and_a_resize() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n");
    let file = scene.path("gcra.toml");
    let start =
        |scene: &Scene| Agent::start(&scene.path("table"), &["--config", file.to_str().unwrap()]);
    let mut other = start(&scene);
    let args = [("ip", ip("10.1.2.3"))];
    let exempt = [("ip", ip("10.1.2.4"))];
    assert_eq!(scene.said(&["block"], &["--for", "1h", "10.1.2.0/24"]).1, 0);
    assert_eq!(scene.said(&["exempt"], &["--for", "1h", "10.1.2.4"]).1, 0);
    let follows = |agent: &Agent| {
        let mut spop = Spop::connect(&agent.address);
        let blocks = |spop: &mut Spop, args: &[(&str, Value<'_>)]| {
            let [(_, _, blocked)] = &spop.ask(&[("check", args)])[..] else { return false };
            *blocked
        };
        wait_until("it follows the block", || blocks(&mut spop, &args));
        wait_until("it follows the exemption", || !blocks(&mut spop, &exempt));
        for _ in 0..10 {
            assert!(blocks(&mut spop, &args) && !blocks(&mut spop, &exempt));
        }
    };
    follows(&scene.agent);
    follows(&other);
    other.process.kill();
    other = start(&scene);
    follows(&other);
    for slots in ["8192", "4096"] {
        let mut resize = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        resize.args(["table", "resize", "--slots", slots, "--table"]).arg(scene.path("table"));
        assert!(resize.output().unwrap().status.success());
        follows(&scene.agent);
        follows(&other);
    }
    scene.agent.process.kill();
    other.process.kill();
    scene.restart();
    follows(&scene.agent);
    assert_eq!(scene.said(&["block"], &["--end", "10.1.2.0/24"]).1, 0);
    wait_until("it has ended", || !scene.is_blocked("check", &args));
}

/// The list of a full table is one sentence.
#[test]
fn a_full_list_is_one_sentence() {
    let scene = Scene::new("[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n");
    let keys: Vec<_> = (0..513).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
    let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
    let output = scene.run(&["block", "--for", "1h"], &keys);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(
        sentence
            .contains(" has 512 orders and 0 resets of policies, and 512 together are the most"),
        "{sentence}"
    );
    assert!(sentence.ends_with("; no order was given for 10.0.2.0\n"), "{sentence}");
    assert_eq!(output.status.code(), Some(1));
    let given = ["10.0.0.7", "10.9.0.1", "10.9.0.2", "10.9.0.3"];
    let output = scene.run(&["block", "--for", "1h"], &given);
    let sentence = String::from_utf8(output.stderr).unwrap();
    let without = "; no order was given for 10.9.0.1 and the 2 KEYs after it\n";
    assert!(sentence.ends_with(without), "{sentence}");
    let output = scene.run(&["block"], &["--list", "--plain"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 512);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "there is no store");
    // With a store, orders of other machines have no space. Nothing listens there.
    let text = fs::read_to_string(scene.path("gcra.toml")).unwrap();
    let text = format!("[store]\nurl = \"redis://127.0.0.1:1\"\n{text}");
    fs::write(scene.path("gcra.toml"), text).unwrap();
    let output = scene.run(&["block"], &["--list"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("because the table has no space for more"), "{note}");
}

/// Other programs read the plain list, and take nothing else than addresses and networks.
#[test]
fn a_plain_list_has_addresses_and_networks_only() {
    let scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n[policy.two]\nlimits = \"2/d\"\n\
         key = [\"ip\", \"to\"]\n[policy.number]\nlimits = \"2/d\"\nkey = [\"n\"]\n",
    );
    for (policy, key) in [
        ("check", "2001:db8::1"),
        ("check", "10.0.0.0/8"),
        ("check", "10.0.0.1"),
        ("two", "192.0.2.7,192.0.2.8"),
        ("number", "int64:7"),
    ] {
        assert_eq!(scene.said(&["block", "--for", "1h"], &["--policy", policy, key]).1, 0);
    }
    let output = scene.run(&["block", "--list", "--plain"], &[]);
    let listed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(listed, "10.0.0.0/8\n10.0.0.1\n2001:db8::/64\n");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("2 KEYs are left out: the list has only addresses"), "{note}");
}

/// An empty list for a policy that nobody has would say that all is well.
#[test]
fn a_list_for_an_unknown_policy_is_refused() {
    let scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    assert_eq!(scene.said(&["block", "--for", "1h"], &["10.0.0.1"]).1, 0);
    for list in [&["block", "--list"][..], &["block", "--list", "--plain"]] {
        let sentence = scene.complaint(list, &["--policy", "chuck"]);
        assert!(sentence.contains("there is no policy 'chuck' in "), "{sentence}");
        assert!(sentence.contains("; it has check"), "{sentence}");
        assert_eq!(scene.said(list, &["--policy", "check"]).1, 0);
    }
    // Orders of a policy that is gone can be listed.
    let other = "[policy.other]\nlimits = \"2/d\"\nkey = [\"ip\"]\n";
    fs::write(scene.path("gcra.toml"), other).unwrap();
    let (listed, status) = scene.said(&["block", "--list"], &["--policy", "check"]);
    assert!(listed.starts_with("10.0.0.1: a policy that ") && status == 0, "{listed}");
}

/// A firewall that blocks by the plain list does not block for longer than the agents do.
#[test]
fn a_plain_list_leaves_out_orders_that_block_nobody() {
    let config = |prefix: u8| {
        format!(
            "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n\
             [policy.gone{prefix}]\nlimits = \"2/d\"\nkey = [\"ip\"]\n"
        )
    };
    let scene = Scene::new(&config(24));
    for (policy, key) in [("check", "10.1.2.3"), ("check", "10.1.0.0/16"), ("gone24", "192.0.2.7")]
    {
        assert_eq!(scene.said(&["block", "--for", "1h"], &["--policy", policy, key]).1, 0);
    }
    let plain = ["block", "--list", "--plain"];
    assert_eq!(scene.said(&plain, &[]).0, "10.1.0.0/16\n10.1.2.0/24\n192.0.2.7\n");
    fs::write(scene.path("gcra.toml"), config(16)).unwrap();
    let output = scene.run(&plain, &[]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("are left out: the policy is gone, or no client"), "{note}");
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(!listed.contains("192.0.2.7") && !listed.contains("/24"), "{listed}");
}

/// A client waits until its block ends, and an exempt client does not wait, whatever it owes.
#[test]
fn the_wait_is_that_of_the_order() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/m\"\nkey = [\"ip\"]\n");
    let args = [("ip", ip("10.0.0.1"))];
    scene.exhaust("check", &args);
    for (order, is_blocked) in [("block", true), ("exempt", false)] {
        assert_eq!(scene.said(&[order, "--for", "1h"], &["10.0.0.1"]).1, 0);
        let (words, _) = scene.get(&["10.0.0.1"]);
        assert!(words.contains("0 of 2 left; all 2 again in ") && !words.contains("allowed in"));
        let explained = scene.json(&["explain"], &["ip=10.0.0.1"]).remove(0);
        let got = scene.json(&["table", "get"], &["10.0.0.1"]).remove(0);
        for json in [explained, got] {
            let wait = json["retry_after_ms"].as_u64().unwrap();
            let left = json["order"]["left_ms"].as_u64().unwrap();
            assert_eq!(wait, if is_blocked { left } else { 0 }, "{json}");
            assert_eq!(json["blocked"], is_blocked, "{json}");
        }
    }
}

/// The first address of a group has the hash of the group, and of wider groups.
#[test]
fn an_order_about_a_client_does_not_grow_with_its_group() {
    let config = |prefixes: &str| {
        format!("[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n{prefixes}")
    };
    let mut scene = Scene::new(&config(""));
    let orders = ["2001:db8::1", "10.1.0.0", "192.0.2.0/24"];
    assert_eq!(scene.said(&["block", "--for", "1h"], &orders).1, 0);
    let blocked = |scene: &mut Scene| {
        let clients = ["2001:db8::1", "2001:db8:0:5::1", "10.1.0.0", "10.1.77.8", "192.0.2.7"];
        clients.map(|client| scene.is_blocked("check", &[("ip", ip(client))]))
    };
    wait_until("the agent follows", || blocked(&mut scene) == [true, false, true, false, true]);
    reload(&scene, &config("ipv4_prefix = 16\nipv6_prefix = 48\n"));
    wait_until("only the network is left", || {
        blocked(&mut scene) == [false, false, false, false, true]
    });
    let fits = |line: &Json| (line["key"].as_str().unwrap().to_owned(), line["fits"].clone());
    let mut listed: Vec<_> = scene.json(&["block", "--list"], &[]).iter().map(fits).collect();
    listed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let right = [("10.1.0.0", false), ("192.0.2.0/24", true), ("2001:db8::/64", false)];
    assert_eq!(listed, right.map(|(key, fits)| (key.to_owned(), fits.into())));
    reload(&scene, &config(""));
    wait_until("they fit again", || blocked(&mut scene) == [true, false, true, false, true]);
}

/// A network that is one group of the policy, and an address in it, are the same client.
#[test]
fn a_group_and_an_address_in_it_have_one_order() {
    let config = |more: &str| {
        format!(
            "[policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
             ipv6_prefix = 128\n{more}"
        )
    };
    let mut scene = Scene::new(&config(""));
    let group = ["192.0.2.7", "192.0.2.0/24"];
    let single = ["2001:db8::1", "2001:db8::1/128"];
    for ([one, other], listed) in [
        (group, "192.0.2.0/24"),
        ([group[1], group[0]], "192.0.2.0/24"),
        (single, "2001:db8::1"),
        ([single[1], single[0]], "2001:db8::1"),
    ] {
        let plain = |order| scene.said(&[order], &["--list", "--plain"]).0;
        assert_eq!(scene.said(&["block", "--for", "1h"], &[one]).1, 0);
        assert_eq!(scene.said(&["block", "--for", "10m"], &[other]).1, 0);
        let [order] = &scene.json(&["block", "--list"], &[])[..] else { panic!("not one") };
        assert!(order["left_ms"].as_u64().unwrap() <= 600_000, "{order}");
        assert_eq!(order["fits"], true, "{order}");
        assert_eq!(scene.said(&["exempt", "--for", "1h"], &[other]).1, 0);
        assert_eq!((plain("exempt"), plain("block")), (format!("{listed}\n"), String::new()));
        let (words, status) = scene.said(&["exempt"], &["--end", one]);
        assert!(words.contains("policy 'check': the exemption has ended"), "{words}");
        assert_eq!(status, 0);
    }
    // An address with an override is another client in the same network.
    reload(&scene, &config("[policy.check.overrides]\n\"192.0.2.9\" = \"200000/d\"\n"));
    assert_eq!(scene.said(&["block", "--for", "1h"], &["192.0.2.0/24"]).1, 0);
    for client in ["192.0.2.7", "192.0.2.9"] {
        let args = [("ip", ip(client))];
        wait_until("it is blocked", || scene.is_blocked("check", &args));
    }
}

/// A network is about nobody where HAProxy sends a string or a number.
#[test]
fn a_network_for_a_policy_of_strings_gets_a_note() {
    let scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"src\"]\n[policy.string]\nlimits = \"2/d\"\n\
         key = [\"key\"]\n[policy.group]\nlimits = \"2/d\"\nkey = [\"n\"]\nipv4_prefix = 24\n",
    );
    let note = |policy: &str| {
        let output = scene.run(&["block", "--for", "1h", "10.0.0.0/8"], &["--policy", policy]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = "'10.0.0.0/8' is a network, and nothing shows that policy 'string' counts by";
    assert!(note("string").contains(said), "{}", note("string"));
    assert_eq!((note("check"), note("group")), (String::new(), String::new()));
    let all = scene.run(&["block", "--for", "1h", "10.0.0.0/8"], &[]);
    let note = String::from_utf8(all.stderr).unwrap();
    assert!(!note.contains("is a network"), "{note}");
}
