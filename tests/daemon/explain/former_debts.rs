//! The debts of clients by former keys, numbers and overrides.

use super::*;

#[test]
fn a_debt_from_before_a_reload_is_shown_and_reset() {
    let config = |limit: &str| format!("[policy.check]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n");
    let mut scene = Scene::new(&config("5/d"));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    fs::write(scene.path("gcra.toml"), config("4/d")).unwrap();
    // The file is not in force yet.
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

/// What was in force before is in one file, which agents that start read, too.
#[test]
fn a_debt_is_known_to_agents_that_start_and_to_commands() {
    let config =
        |burst: u8| format!("[policy.check]\nlimits = \"5/d burst {burst}\"\nkey = [\"ip\"]\n");
    let mut scene = Scene::new(&config(5));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    for (burst, restarts) in [(4, false), (3, true), (2, false)] {
        reload(&scene, &config(burst));
        if restarts {
            scene.restart();
        }
        assert!(scene.is_blocked("check", &args), "{burst}");
    }
    let is_shown = |scene: &Scene| {
        let output = scene.run(&["table", "get"], &["192.0.2.1"]);
        output.stderr.is_empty() && said(&output).0.contains("(a debt from before the limits were")
    };
    assert!(is_shown(&scene));
    let words = scene.said(&["explain"], &["ip=192.0.2.1"]).0;
    assert!(words.contains("a request now is blocked; the next one is allowed in"), "{words}");

    // It is in the memory of the agent, too, which writes the file once more.
    fs::remove_file(scene.path("table.policies")).unwrap();
    wait_until("the file is whole again", || is_shown(&scene));
    let (words, status) = scene.reset(&["192.0.2.1"]);
    let cleared = "all that it owed was cleared, also what it owed before the limits were changed";
    assert!(words.contains(cleared) && status == 0, "{words}");
    assert_eq!(scene.exhaust("check", &args), 2);
    for burst in [3, 4, 5] {
        reload(&scene, &config(burst));
    }
    assert_eq!(scene.exhaust("check", &args), 3, "two of five are owed");
}

/// Also with more numbers than any list of them would have.
#[test]
fn the_debts_of_many_overrides_and_policies_are_kept_and_cleared() {
    let overrides = |first: usize| {
        let rule =
            |n: usize| format!("\"192.0.{}.{}\" = \"{}/d\"\n", n / 250, n % 250, 20 * first + n);
        let overrides: String = (0..700).map(rule).collect();
        format!(
            "[policy.check]\nkey = [\"ip\"]\nlimits = \"9/d\"\n\
             [policy.check.overrides]\n{overrides}"
        )
    };
    let policies = |count: usize| {
        let policy = |n: usize| format!("[policy.p{n}]\nkey = [\"ip\"]\nlimits = \"{count}/d\"\n");
        (0..400).map(policy).collect::<String>()
    };
    let args = [("ip", ip("192.0.0.9"))];
    let files = |number: usize| [overrides(3 - number), policies(5 - number)];
    for (place, message) in ["check", "p0"].into_iter().enumerate() {
        let file = |number: usize| files(number)[place].clone();
        let mut scene = Scene::new(&file(0));
        assert_eq!(scene.exhaust(message, &args), [69, 5][place]);
        for number in [1, 2] {
            reload(&scene, &file(number));
            assert!(scene.is_blocked(message, &args), "{message}, {number}");
        }
        scene.restart();
        assert!(scene.is_blocked(message, &args), "{message}");
        let key = ["--policy", message, "192.0.0.9"];
        let (words, status) = all_said(&scene.run(&["table", "get"], &key));
        assert!(words.contains("blocked; ") && status == 0, "{words}");
        let (words, status) = all_said(&scene.run(&["table", "reset"], &key));
        assert!(words.contains("all that it owed was cleared") && status == 0, "{words}");
        assert_eq!(scene.exhaust(message, &args), [29, 3][place]);
    }
}

/// `table reset` clears what is owed under a limit that is not in force at the moment.
#[test]
fn a_reset_clears_a_limit_that_is_away() {
    let config = |limits: &str| format!("[policy.check]\nkey = [\"ip\"]\nlimits = [{limits}]\n");
    let both = config("{ name = \"a\", rate = \"5/d\" }, { name = \"b\", rate = \"9/d\" }");
    let one = config("{ name = \"b\", rate = \"9/d\" }");
    let args = [("ip", ip("192.0.2.1"))];
    for resets in [true, false] {
        let mut scene = Scene::new(&both);
        assert_eq!(scene.exhaust("check", &args), 5);
        reload(&scene, &one);
        if resets {
            assert_eq!(scene.reset(&["192.0.2.1"]).1, 0);
        }
        reload(&scene, &both);
        assert_eq!(scene.exhaust("check", &args), if resets { 5 } else { 0 });
    }
}

/// With another key clients begin with no debts, and everybody says so before and after.
#[test]
fn clients_that_begin_anew_are_named() {
    let config = |prefix: u8| {
        format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n")
    };
    let mut scene = Scene::new(&config(16));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    fs::write(scene.path("new.toml"), config(24)).unwrap();
    let (new, old) = (scene.path("new.toml"), scene.path("gcra.toml"));
    let check = Command::new(agent_binary())
        .args(["check", new.to_str().unwrap(), "--against", old.to_str().unwrap()])
        .output()
        .unwrap();
    fs::write(&old, config(24)).unwrap();
    let reload = scene.run(&["reload"], &[]);
    let anew = "clients of policy 'check' begin with no debts, because its key changes: it was \
                for each ip (IPv4 by /16, IPv6 by /64), and becomes for each ip (IPv4 by /24, ";
    for output in [check, reload] {
        let note = String::from_utf8(output.stderr).unwrap();
        assert!(note.contains(anew) && output.status.success(), "{note}");
    }
    assert!(scene.agent.process.lines().iter().any(|line| line.contains(anew)));
    // The first network of the former group, and another one.
    for client in ["192.0.0.5", "192.0.2.1"] {
        let args = [("ip", ip(client))];
        assert!(scene.get(&[client]).0.contains("its debt is paid off"), "{client}");
        assert_eq!(scene.exhaust("check", &args), 5, "{client}");
    }
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
