//! The KEY that commands take, and values that are no text or of another type.

use super::*;

/// The rest of the network has another bucket, which stays as it is.
#[test]
fn a_reset_of_an_address_with_an_override_clears_no_other_client() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n",
    );
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::1"))]), 2);
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
    let (words, status) = scene.reset(&["2001:db8::1"]);
    assert!(words.contains("a debt of 23 h was forgiven") && status == 0, "{words}");
    assert!(scene.is_blocked("check", &[("ip", ip("2001:db8::3"))]));
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::1"))]), 2);
}

/// HAProxy may cut addresses to their /64, but other clients share that.
#[test]
fn a_reset_of_one_address_does_not_clear_its_network() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n",
    );
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
    let output = scene.run(&["table", "reset"], &["2001:db8::1"]);
    let note = String::from_utf8(output.stderr).unwrap();
    let has = "the table has a bucket for 2001:db8:: in policy 'check', and none for 2001:db8::1";
    assert!(note.contains(has) && note.ends_with("the KEY to write is 2001:db8::\n"), "{note}");
    assert_eq!(output.status.code(), Some(1));
    assert!(scene.is_blocked("check", &[("ip", ip("2001:db8::2"))]));
    assert_eq!(scene.reset(&["2001:db8::"]).1, 0);
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
}

/// Strings that are nearly an address, and the names of strings in logs, are refused as in the
/// file. They would be strings, of which the table knows none.
#[test]
fn a_key_that_is_nearly_an_address_is_refused() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
         [policy.check.overrides]\n\"198.51.100.0/28\" = \"3/d\"\n",
    );
    let commands: [&[&str]; 5] = [
        &["table", "get"],
        &["table", "reset"],
        &["exempt", "--for", "1h"],
        &["name"],
        &["explain"],
    ];
    for (text, said) in [
        ("10.0.0.777", "'10.0.0.777' is not an address or network; write one, such as 192.0.2.1"),
        ("2001:db8::/65x", "is not an address or network; write "),
        ("192.0.2.1:80", "or str:192.0.2.1:80 for the text itself"),
        ("192.0.2.7/24", "write 192.0.2.0/24 for the network, or 192.0.2.7/32 for the one"),
        ("", "is empty; write "),
        ("sk_l…(24)#2dd53f", "which show only a part of a string; write the whole string"),
        (
            "10.0.0.0/8",
            "'10.0.0.0/8' is not a group of the policy, such as \
                        10.0.0.0/24; write one address, or str:10.0.0.0/8",
        ),
        ("192.0.2.0/28", "such as 192.0.2.0/24"),
        ("2001:db8::/56", "such as 2001:db8::/64"),
    ] {
        for command in commands {
            // An order may be about a network.
            let networks = ["10.0.0.0/8", "192.0.2.0/28", "2001:db8::/56"];
            if command[0] == "exempt" && networks.contains(&text) {
                continue;
            }
            let arg = if command == ["explain"] { format!("ip={text}") } else { text.to_owned() };
            let sentence = scene.complaint(command, &[&arg]);
            assert!(sentence.contains(said), "{command:?} {text}: {sentence}");
        }
    }
    // The groups as the agent counts them.
    for (address, group, burst) in [
        ("192.0.2.1", "192.0.2.0/24", 2),
        ("2001:db8::1", "2001:db8::/64", 2),
        ("198.51.100.1", "198.51.100.0/28", 3),
        // Its first address is in the network of the override.
        ("198.51.100.200", "198.51.100.0/24", 2),
    ] {
        let args = [("ip", ip(address))];
        assert_eq!(scene.exhaust("check", &args), burst, "{group}");
        let (words, status) = scene.get(&[group]);
        assert!(words.starts_with(&format!("{group}: policy 'check', {burst} per")), "{words}");
        assert!(words.contains(": blocked; ") && status == 0, "{words}");
        let explanation = scene.said(&["explain"], &[&format!("ip={group}")]).0;
        assert!(explanation.contains("a request now is blocked"), "{explanation}");
        assert!(explanation.contains(&format!("counted as {group}\n")), "{explanation}");
        assert_eq!(scene.reset(&[group]).1, 0, "{group}");
        assert!(!scene.is_blocked("check", &args), "{group}");
    }
}

/// HAProxy may send a hash of what an operator writes. It would be "allowed" without this note.
#[test]
fn of_a_string_that_is_not_known_a_hash_may_be() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n[policy.check.overrides]\n\
         partner = \"unlimited\"\n[policy.web]\nlimits = \"2/d\"\nkey = [\"ip\"]\n",
    );
    let note = |arg: &str| {
        let output = scene.run(&["explain"], &[arg]);
        String::from_utf8(output.stderr).unwrap()
    };
    let said = "nothing is known about key=cust-1; if HAProxy sends a hash of this value";
    assert!(note("key=cust-1").contains(said), "{}", note("key=cust-1"));
    // Not about an address, nor where nothing has to be known.
    for arg in ["ip=192.0.2.1", "key=partner"] {
        assert!(!note(arg).contains("hash"), "{}", note(arg));
    }
    let hash = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08";
    assert_eq!(scene.exhaust("check", &[("key", hash.into())]), 2);
    let output = scene.run(&["explain"], &[&format!("key={hash}")]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(!notes.contains("hash"), "{notes}");
}

#[test]
fn a_key_without_names_is_not_that_of_a_fallback() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"key\", \"else ip\"]\n");
    let as_key = [("key", "192.0.2.1".into()), ("ip", ip("192.0.2.9"))];
    let as_ip = [("key", Value::Null), ("ip", ip("192.0.2.1"))];
    let notes = |scene: &Scene, command: &[&str]| {
        let output = scene.run(command, &["192.0.2.1"]);
        let words = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(words.starts_with("192.0.2.1 (as key=192.0.2.1): policy 'check': "), "{words}");
        (String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let may_be = "note: this is about 192.0.2.1 (as key=192.0.2.1) in policy 'check'; if HAProxy \
                  sends 192.0.2.1 in the arg 'ip', the KEY to write is ip=192.0.2.1\n";
    let (said, status) = notes(&scene, &["table", "get"]);
    assert!(said.ends_with(may_be) && status == Some(1), "{said}");
    assert_eq!(scene.exhaust("check", &as_ip), 2);
    for command in [&["table", "get"], &["table", "reset"]] {
        let (said, status) = notes(&scene, command);
        let has = "the table has a bucket for ip=192.0.2.1 in policy 'check', and none for ";
        assert!(said.contains(has) && status == Some(1), "{said}");
    }
    assert!(scene.is_blocked("check", &as_ip));
    assert_eq!(scene.exhaust("check", &as_key), 2);
    let (said, _) = notes(&scene, &["table", "get"]);
    assert!(said.contains("has a bucket for key=str:192.0.2.1 in policy"), "{said}");
    assert!(said.contains("has a bucket for ip=192.0.2.1 in policy"), "{said}");

    // `explain` writes the key as the other commands take it.
    let key = |args: &[&str]| {
        let explanation = scene.json(&["explain"], args).remove(0);
        explanation["written_key"].as_str().unwrap().to_owned()
    };
    let key_of_ip = key(&["ip=192.0.2.1"]);
    assert_eq!(key_of_ip, "ip=192.0.2.1");
    assert_eq!(key(&["key=str:192.0.2.1"]), "key=str:192.0.2.1");
    assert_eq!(scene.reset(&[&key_of_ip]).1, 0);
    assert!(!scene.is_blocked("check", &as_ip));
    assert!(scene.is_blocked("check", &as_key), "it is another client");
    assert_eq!(scene.exhaust("check", &as_ip), 1);
    assert_eq!(scene.reset(&["key=str:192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &as_key), 2);

    let (words, _) = scene.said(&["exempt"], &["--for", "1h", "ip=192.0.2.1"]);
    assert_eq!(words.lines().count(), 1, "{words}");
    wait_until("the agent follows", || !scene.is_blocked("check", &as_ip));
    assert!(scene.is_blocked("check", &as_key));
    let (said, status) = notes(&scene, &["exempt", "--end"]);
    assert!(said.contains("the table has an exemption for ip=192.0.2.1 in policy"), "{said}");
    assert_eq!(status, Some(1));
    // The name that a list has is a KEY.
    assert_eq!(scene.said(&["exempt"], &["--end", "else:192.0.2.1"]).1, 0);
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
}

#[test]
fn explain_writes_the_key_for_the_other_commands() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"user\", \"path\"]\nlowercase = true\n",
    );
    for (user, path) in [
        ("a b", "/x,y"),
        ("ü=1", r"\d"),
        ("100%", "-x"),
        ("else:a", "192.0.2.1"),
        ("'quoted'", "…"),
        ("user=a", "#home"),
    ] {
        let args = [("user", user.into()), ("path", path.into())];
        assert_eq!(scene.exhaust("check", &args), 2);
        let words = [format!("user=str:{user}"), format!("path=str:{path}")];
        let explanation = scene.json(&["explain"], &[&words[0], &words[1]]).remove(0);
        assert_eq!(explanation["blocked"], true, "{explanation}");
        let key = explanation["written_key"].as_str().unwrap();
        assert_eq!(scene.reset(&[key]).1, 0, "{key}");
        assert!(!scene.is_blocked("check", &args), "{key}");
    }
    let words = scene.said(&["explain"], &["user=a b", "path=/it's"]).0;
    let line = "\n  KEY for table get, table reset, exempt and block: 'a b,/it'\\''s'\n";
    assert!(words.contains(line), "{words}");
}

/// HAProxy sends some addresses as strings, such as those in headers, and ports as integers.
#[test]
fn a_value_that_is_sent_in_another_type_is_named() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", "192.0.2.1".into())];
    assert_eq!(scene.exhaust("check", &args), 2);
    let notes = |scene: &Scene, command: &[&str], arg: &str| {
        String::from_utf8(scene.run(command, &[arg]).stderr).unwrap()
    };
    let explain = &["explain"][..];
    let (get, reset) = (&["table", "get"][..], &["table", "reset"][..]);
    for (command, arg, right) in [
        (explain, "ip=192.0.2.1", "write ip=str:192.0.2.1\n"),
        (get, "192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
        (reset, "192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
        (reset, "ip=192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
    ] {
        let note = notes(&scene, command, arg);
        let when = "; if HAProxy sends 192.0.2.1 as a string, ";
        assert!(note.contains(when) && note.ends_with(right), "{command:?}: {note}");
    }
    assert_eq!(scene.reset(&["str:192.0.2.1"]).1, 0);
    assert!(!scene.is_blocked("check", &args));
    let args = [("ip", 80_i64.into())];
    assert_eq!(scene.exhaust("check", &args), 2);
    for (command, arg, right) in [
        (explain, "ip=80", "; if HAProxy sends 80 as an integer, write ip=int64:80\n"),
        (get, "80", "; if HAProxy sends 80 as an integer, the KEY to write is int64:80\n"),
    ] {
        let note = notes(&scene, command, arg);
        assert!(note.contains(right), "{command:?}: {note}");
    }
    assert_eq!(scene.reset(&["ip=int64:80"]).1, 0);
    assert!(!scene.is_blocked("check", &args));
    // HAProxy has cut it to its /64, as in some files of haproxy/.
    let config = "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\nipv6_prefix = 128\n";
    let mut scene = Scene::new(config);
    let args = [("ip", ip("2001:db8:1:2::"))];
    assert_eq!(scene.exhaust("check", &args), 2);
    let note = notes(&scene, explain, "ip=2001:db8:1:2::7");
    assert!(note.contains("the table has a bucket for ip=2001:db8:1:2:: in policy"), "{note}");
    let note = notes(&scene, get, "2001:db8:1:2::7");
    assert!(note.contains("the table has a bucket for 2001:db8:1:2:: in policy"), "{note}");
}

/// HAProxy sends the bytes of a header as a string, whatever they are.
#[test]
fn a_string_that_is_not_text_is_found() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n");
    let args = [("key", Value::String(b"caf\xe9"))];
    let raw = OsStr::from_bytes(b"caf\xe9");
    assert_eq!(scene.exhaust("check", &args), 2);
    let run = |command: &[&str], arg: &OsStr| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        process.args(command).arg("--config").arg(scene.path("gcra.toml"));
        output_beside_agents(process.arg("--table").arg(scene.path("table")).arg(arg))
    };
    for key in [OsStr::new("strhex:636166e9"), raw] {
        let (words, status) = said(&run(&["table", "get"], key));
        assert!(words.starts_with("strhex:636166e9: policy 'check', 2 per day, up"), "{words}");
        assert!(words.contains(": blocked; ") && status == 0, "{words}");
    }
    assert_eq!(said(&run(&["table", "get"], OsStr::new("hex:636166e9"))).1, 1, "that is binary");
    for arg in [&b"key=strhex:636166e9"[..], b"key=caf\xe9"] {
        let words = said(&run(&["explain"], OsStr::from_bytes(arg))).0;
        assert!(words.contains("a request now is blocked; "), "{words}");
        assert!(words.contains("\n  key: key strhex:636166e9\n"), "{words}");
        let key = "\n  KEY for table get, table reset, exempt and block: strhex:636166e9\n";
        assert!(words.contains(key), "{words}");
        let name = said(&run(&["name"], raw)).0;
        let name = name.trim_end().strip_prefix("policy 'check': c…(4)#").unwrap();
        assert!(words.contains(&format!("\n  client in logs: c…(4)#{name}\n")), "{words}");
    }
    let (words, status) = said(&run(&["exempt", "--for", "1h"], raw));
    assert_eq!(status, 0, "{words}");
    assert!(words.ends_with(" strhex:636166e9\n"), "{words}");
    assert_eq!(said(&run(&["exempt", "--end"], raw)).1, 0);
    assert_eq!(said(&run(&["table", "reset"], raw)).1, 0);
    let output = run(&["explain"], OsStr::from_bytes(b"\xe9=a"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!scene.is_blocked("check", &args));
}

/// The configurations in haproxy/ cut addresses to their /64, and an override for one address
/// never applies then.
#[test]
fn a_client_whose_address_haproxy_cuts_is_named_by_its_network() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::7\" = \"unlimited\"\n",
    );
    let notes = |command: &[&str], arg: &str| {
        String::from_utf8(scene.run(command, &[arg]).stderr).unwrap()
    };
    let unknown = "this is about ";
    for (command, network) in [
        (&["explain"][..], "write ip=2001:db8::\n"),
        (&["table", "get"], "the KEY to write is 2001:db8::\n"),
        (&["exempt", "--for", "1h"], "the KEY to write is 2001:db8::\n"),
    ] {
        let arg = if command == ["explain"] { "ip=2001:db8::7" } else { "2001:db8::7" };
        let note = notes(command, arg);
        assert!(note.contains(unknown) && note.ends_with(network), "{command:?}: {note}");
        assert_eq!(notes(command, &arg.replace("::7", "::8")), "", "{command:?}");
    }
    for address in ["2001:db8::7", "2001:db8::8"] {
        assert_eq!(scene.run(&["exempt"], &["--end", address]).status.code(), Some(0));
    }
    let cut = [("ip", ip("2001:db8::"))];
    wait_until("the exemption has ended", || scene.is_blocked("check", &cut));
    for (command, arg, has) in [
        (&["explain"][..], "ip=2001:db8::7", "the table has a bucket for ip=2001:db8:: in"),
        (&["table", "get"], "2001:db8::7", "the table has a bucket for 2001:db8:: in"),
        (&["exempt", "--for", "1h"], "2001:db8::7", "the table has a bucket for 2001:db8:: in"),
    ] {
        let output = scene.run(command, &[arg]);
        let note = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(note.contains(has) && note.contains("ipmask(32,64)"), "{command:?}: {note}");
        if command == ["explain"] {
            let words = said(&output).0;
            assert!(words.contains("is allowed, by \"unlimited\""), "{words}");
        }
    }
}

#[test]
fn a_bucket_that_others_share_is_not_taken_for_that_of_another_type() {
    let mut scene = Scene::new(
        "[policy.check]\nkey = [\"ip\"]\nmode = \"observe\"\n\
         limits = [{ name = \"a\", rate = \"4/d\" }, \
         { name = \"n\", rate = \"9/d\", key = [\"t\"] }]\n\
         [policy.check.overrides]\n\"192.0.2.1\" = \"unlimited\"\n",
    );
    let note = |scene: &Scene| {
        let output = scene.run(&["explain"], &["ip=192.0.2.1", "t=str:A"]);
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!scene.is_blocked("check", &[("ip", ip("192.0.2.2")), ("t", "A".into())]));
    assert_eq!(note(&scene), "");
    // But one that it has is found.
    assert!(!scene.is_blocked("check", &[("ip", "192.0.2.1".into()), ("t", "B".into())]));
    let said = note(&scene);
    assert!(said.contains("the table has a bucket for ip=str:192.0.2.1 in policy"), "{said}");
}
