//! Policies from a file: with requests frame by frame, and through a real HAProxy while the file
//! changes.

use std::cell::Cell;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gcra_table::board::{Order, OrderKind, OrderTarget};
use gcra_table::{Nanos, Table, limit_id};
use rustix::process::Signal;
use spop_agent::testing::{self, Answer};
use spop_agent::{HeaderList, Scope, Value};
use spop_codec::Action;
use tempfile::TempDir;

use crate::support;
use crate::support::{Agent, Client, Haproxy, directory, in_time, needs, wait_until};

/// A folder with a configuration, and an agent that uses it.
pub(crate) struct Followed {
    pub(crate) directory: TempDir,
    agent: Agent,
    runtime: tokio::runtime::Runtime,
}

impl Followed {
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    pub(crate) fn start_with(config: &str, more: &[&str]) -> Self {
        let directory = directory();
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, config).unwrap();
        let mut args = vec![
            "--config",
            file.to_str().unwrap(),
            "--slots",
            "4096",
            "--drain",
            "0",
            "--listen",
            "127.0.0.1:0",
        ];
        args.extend(more);
        let agent = Agent::start_with(&directory.path().join("table"), &args);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { directory, agent, runtime }
    }

    /// The answer to one NOTIFY.
    pub(crate) fn ask(&self, messages: &[testing::Question<'_>]) -> Answer {
        self.runtime.block_on(async {
            let mut client = testing::Client::connect(&self.agent.address).await.unwrap();
            client.ask(messages).await.unwrap()
        })
    }

    /// How many of `count` messages are allowed.
    pub(crate) fn passing(
        &self,
        message: &str,
        args: &[(&str, Value<'_>)],
        count: usize,
    ) -> usize {
        (0..count).filter(|_| !is(&self.ask(&[(message, args)]), "blocked")).count()
    }

    fn write(&self, config: &str) {
        put(&self.directory.path().join("gcra-spoa.toml"), config);
    }

    /// Puts another configuration in force.
    pub(crate) fn reload(&self, config: &str) {
        let before = self.said("was read again");
        self.write(config);
        let table = self.directory.path().join("table");
        let output = in_time(|| self.command("reload", &["--table", table.to_str().unwrap()]));
        assert!(output.status.success(), "{output:?}");
        wait_until("it is read again", || self.said("was read again") > before);
    }

    pub(crate) fn command(&self, name: &str, args: &[&str]) -> Output {
        let mut command = Command::new(support::agent_binary());
        command
            .arg(name)
            .arg("--config")
            .arg(self.directory.path().join("gcra-spoa.toml"))
            .args(args);
        command.output().unwrap()
    }

    /// How many lines of the agent's log contain this text.
    pub(crate) fn said(&self, text: &str) -> usize {
        self.agent.process.lines().iter().filter(|line| line.contains(text)).count()
    }
}

/// Writes a file as one step, so that nobody who watches it sees it empty.
fn put(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, file).unwrap();
}

fn is(answer: &Answer, name: &str) -> bool {
    answer.var(Scope::Transaction, name) == Some(Value::Bool(true))
}

fn number(answer: &Answer, name: &str) -> i128 {
    answer
        .var(Scope::Transaction, name)
        .and_then(|value| value.as_integer())
        .unwrap_or_else(|| panic!("{name}: {answer:?}"))
}

fn text<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer
        .var(Scope::Transaction, name)
        .and_then(|value| value.as_str())
        .unwrap_or_else(|| panic!("{name}: {answer:?}"))
}

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<IpAddr>().unwrap())
}

#[test]
fn of_several_messages_the_strongest_reason_is_answered_in_any_order() {
    let followed = Followed::start(
        "answer = [\"reason\", \"policy\", \"retry_after\", \"retry_after_ms\", \"headers\"]\n\
         [policy.used]\nkey = [\"ip\"]\nlimits = \"1/h burst 2\"\ncost = \"cost\"\n\
         [policy.large]\nkey = [\"ip\"]\nlimits = \"1/s burst 1\"\ncost = \"cost\"\n\
         [policy.never]\nkey = [\"ip\"]\nlimits = \"deny\"\n\
         [policy.free]\nkey = [\"ip\"]\nlimits = \"9000/s\"\n",
    );
    let client = ip("192.0.2.7");
    let args = [("ip", client), ("cost", Value::Int32(2))];
    assert!(!is(&followed.ask(&[("used", &args)]), "blocked"));
    // The strongest comes first, and then what is told to the client.
    let order = ["never", "large", "used", "free"];
    let reasons = ["denied", "oversize", "limit"];
    let check = |names: &[&str]| {
        let messages: Vec<_> = names.iter().map(|name| (*name, &args[..])).collect();
        let answer = followed.ask(&messages);
        let place = order.iter().position(|name| names.contains(name)).unwrap();
        let Some(reason) = reasons.get(place) else {
            assert!(!is(&answer, "blocked"), "{names:?}: {answer:?}");
            return;
        };
        assert_eq!(text(&answer, "reason"), *reason, "{names:?}");
        assert_eq!(text(&answer, "policy"), order[place], "{names:?}");
        let wait = |name| answer.var(Scope::Transaction, name).and_then(|it| it.as_integer());
        let fields = listed(&answer).unwrap_or_default();
        let told = fields.iter().any(|(name, _)| name == "retry-after");
        assert_eq!(told, *reason == "limit", "{names:?}: {fields:?}");
        for name in ["retry_after", "retry_after_ms"] {
            assert_eq!(wait(name).is_none(), *reason == "denied", "{names:?}: {answer:?}");
        }
    };
    for first in order {
        for second in order {
            check(&[first, second]);
            for third in order {
                check(&[first, second, third]);
            }
        }
    }
}

/// The time for a cell is rounded up to whole nanoseconds.
#[test]
fn a_burst_that_is_used_up_is_back_within_its_window() {
    let followed = Followed::start(
        "answer = [\"reset\", \"ratelimit\", \"ratelimit_policy\"]\n\
         [policy.check]\nkey = [\"ip\"]\nlimits = \"7/h burst 7\"\ncost = \"cost\"\n",
    );
    let answer = followed.ask(&[("check", &[("ip", ip("192.0.2.7")), ("cost", Value::Int32(7))])]);
    assert_eq!(text(&answer, "ratelimit_policy"), "\"check\";q=7;w=3600");
    assert_eq!(text(&answer, "ratelimit"), "\"check\";r=0;t=3600");
    assert_eq!(number(&answer, "reset"), 3600);
}

/// An independent parser of RFC 9651 reads the fields, and the members are as the draft says.
#[test]
fn header_fields_are_what_the_draft_says() {
    let followed = Followed::start(
        "answer = [\"ratelimit\", \"ratelimit_policy\", \"remaining\", \"limit\", \
         \"retry_after\", \"retry_after_ms\", \"reset\"]\n\
         [policy.api]\nlimits = [\"10/s burst 20\", { name = \"daily\", rate = \"1000/d\", burst \
         = 5 }]\n",
    );
    let client = [("ip", ip("192.0.2.1"))];
    let members = |field: &str| -> Vec<(String, Vec<(String, i64)>)> {
        let list: sfv::List =
            sfv::Parser::new(field).parse().unwrap_or_else(|error| panic!("{field}: {error}"));
        let member = |entry: &sfv::ListEntry| {
            let sfv::ListEntry::Item(item) = entry else { panic!("{field}") };
            let name = item.bare_item.as_string().unwrap().as_str().to_owned();
            let params = item.params.iter().map(|(key, value)| {
                (key.as_str().to_owned(), i64::from(value.as_integer().unwrap()))
            });
            (name, params.collect())
        };
        list.iter().map(member).collect()
    };
    let param = |name: &str, value: i64| (name.to_owned(), value);
    let began = Instant::now();
    for left in (0..5).rev() {
        let answer = followed.ask(&[("api", &client)]);
        assert_eq!(
            members(text(&answer, "ratelimit_policy")),
            [
                ("api.1".to_owned(), vec![param("q", 20), param("w", 2)]),
                ("api.daily".to_owned(), vec![param("q", 5), param("w", 432)]),
            ]
        );
        let ratelimit = members(text(&answer, "ratelimit"));
        assert_eq!(
            ratelimit.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
            ["api.1", "api.daily"]
        );
        let (r, t) = (&ratelimit[1].1[0], &ratelimit[1].1[1]);
        assert_eq!(*r, param("r", left));
        assert!(t.0 == "t" && t.1 > 0 && t.1 <= 432, "{t:?}");
        // The numbers are those of the limit that is most restrictive now.
        assert_eq!(
            (number(&answer, "remaining"), number(&answer, "limit")),
            (i128::from(left), 5)
        );
        assert_eq!((number(&answer, "retry_after"), number(&answer, "retry_after_ms")), (0, 0));
    }
    let answer = followed.ask(&[("api", &client)]);
    assert!(is(&answer, "blocked"));
    assert_eq!(number(&answer, "remaining"), 0);
    let retry_after = number(&answer, "retry_after");
    let passed = i128::from(began.elapsed().as_secs());
    assert!((86 - passed..=87).contains(&retry_after), "{retry_after} after {passed} s");
    assert!((retry_after - number(&answer, "retry_after_ms") / 1000) <= 1);
    assert!((431 - passed..=432).contains(&number(&answer, "reset")), "{answer:?} {passed}");
}

/// The fields in the variable `headers`: each name with its value. `None` if it is not set.
fn listed(answer: &Answer) -> Option<Vec<(String, String)>> {
    let Some(Value::Binary(list)) = answer.var(Scope::Transaction, "headers") else {
        return None;
    };
    let mut headers = HeaderList::new(list);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let listed = headers.by_ref().map(|(name, value)| (text(name), text(value))).collect();
    assert_eq!(headers.is_complete(), Some(true), "{list:?}");
    Some(listed)
}

#[test]
fn all_header_fields_are_in_one_list() {
    let followed = Followed::start(
        "answer = [\"headers\", \"retry_after\"]\n\
         [policy.api]\nlimits = \"2/h\"\nkey = [\"ip\"]\n\
         [policy.api.overrides]\n\"192.0.2.8\" = \"unlimited\"\n\"192.0.2.9\" = \"deny\"\n\
         [policy.more]\nlimits = \"9/h\"\nkey = [\"ip\"]\n\
         [policy.tried]\nlimits = \"1/h\"\nmode = \"observe\"\n",
    );
    let client = [("ip", ip("192.0.2.1"))];
    let names = |answer: &Answer| -> Option<Vec<String>> {
        Some(listed(answer)?.into_iter().map(|(name, _)| name).collect())
    };
    let [policy, ratelimit, retry_after] =
        ["ratelimit-policy", "ratelimit", "retry-after"].map(str::to_owned);
    for left in [1, 0] {
        let list = listed(&followed.ask(&[("api", &client)])).unwrap();
        assert_eq!(list[0], (policy.clone(), "\"api\";q=2;w=3600".to_owned()));
        assert_eq!(list[1].0, ratelimit);
        assert!(list[1].1.starts_with(&format!("\"api\";r={left};t=")), "{list:?}");
        assert_eq!(list.len(), 2, "it is allowed, so there is nothing to wait for: {list:?}");
    }
    let blocked = followed.ask(&[("api", &client)]);
    assert!(is(&blocked, "blocked"));
    let list = listed(&blocked).unwrap();
    assert_eq!(list[2], (retry_after.clone(), number(&blocked, "retry_after").to_string()));

    // Two messages: the limits of both policies, in the order of the messages, and one wait.
    let other = [("ip", ip("192.0.2.2"))];
    let answer = followed.ask(&[("more", &other), ("api", &client)]);
    assert!(is(&answer, "blocked"));
    let list = listed(&answer).unwrap();
    assert_eq!(list[0].1, "\"more\";q=9;w=3600, \"api\";q=2;w=3600");
    assert_eq!(names(&answer), Some(vec![policy.clone(), ratelimit.clone(), retry_after]));
    // A policy that only observes adds nothing to those in force, and blocks nobody.
    for _ in 0..2 {
        let answer = followed.ask(&[("tried", &other), ("more", &other)]);
        assert_eq!(listed(&answer).unwrap()[0].1, "\"more\";q=9;w=3600");
    }
    let answer = followed.ask(&[("tried", &other)]);
    assert_eq!(names(&answer), Some(vec![policy, ratelimit]));

    // Where nothing is known, an earlier list is unset, as HAProxy may ask twice about a request.
    for address in ["192.0.2.8", "192.0.2.9"] {
        let answer = followed.ask(&[("api", &[("ip", ip(address))])]);
        assert_eq!(is(&answer, "blocked"), address == "192.0.2.9");
        assert_eq!(listed(&answer), None);
        let unsets =
            |action| matches!(action, Action::UnsetVar { name, .. } if name == b"headers");
        assert!(answer.actions().any(unsets), "{answer:?}");
    }
    // Without a decision nothing is changed: neither `blocked` nor what belongs to it.
    assert!(followed.ask(&[("api", &[("user", "x".into())])]).is_empty());
    assert!(followed.ask(&[("other", &client)]).is_empty());
}

/// An answer that is longer than a frame has not all variables, so the agent says so beforehand.
#[test]
fn frames_that_are_too_small_for_the_answers_are_told() {
    let small = "[policy.api]\nlimits = \"1/s\"\nmax_delay = \"1s\"\n";
    let large = format!("answer = [\"headers\", \"ratelimit\", \"policy\"]\n{small}");
    let warning = "with --max-frame-size 256 some answers may be too long";
    let start = |config| Followed::start_with(config, &["--max-frame-size", "256"]);
    let told = start(&large);
    wait_until("it is told at the start", || told.said(warning) == 1);
    let followed = start(small);
    assert_eq!(followed.said(warning), 0);
    followed.reload(&large);
    wait_until("it is told at a reload", || followed.said(warning) == 1);
}

#[test]
fn who_owes_more_gets_fewer_bytes() {
    let followed = Followed::start(
        "answer = [\"bandwidth\", \"remaining\"]\n\
         [policy.api]\nlimits = [\"4/d\", { name = \"slow\", rate = \"10/d\" }]\nkey = [\"ip\"]\n\
         bandwidth = { full = \"1m\", least = \"1k\" }\n\
         [policy.api.overrides]\n\"192.0.2.8\" = \"unlimited\"\n\"192.0.2.9\" = \"deny\"\n\
         [policy.more]\nlimits = \"2/d\"\nkey = [\"ip\"]\n\
         bandwidth = { full = \"500k\", least = \"7\" }\n\
         [policy.free]\nlimits = \"1/d\"\nkey = [\"ip\"]\n\
         [policy.tried]\nlimits = \"1/d\"\nkey = [\"ip\"]\nmode = \"observe\"\n\
         bandwidth = { full = \"2\", least = \"1\" }\n",
    );
    let client = [("ip", ip("192.0.2.1"))];
    let is_unset = |answer: &Answer| {
        let unsets = |action| matches!(action, Action::UnsetVar { name: b"bandwidth", .. });
        answer.var(Scope::Transaction, "bandwidth").is_none() && answer.actions().any(unsets)
    };
    // A quarter of the tightest limit is used up with each request. Some of that is paid off in
    // the meantime, but not a hundredth of a day.
    let (full, least) = (1_i128 << 20, 1_i128 << 10);
    for used in 1..=4 {
        let bytes = number(&followed.ask(&[("api", &client)]), "bandwidth");
        let least = full - (full - least) * used / 4;
        assert!((least..least + full / 100).contains(&bytes), "{bytes} of {least}, {used} used");
    }
    let blocked = followed.ask(&[("api", &client)]);
    assert!(is(&blocked, "blocked") && is_unset(&blocked), "{blocked:?}");

    // Of two policies, the one with the fewest bytes counts; one that has no bandwidth, or only
    // observes, slows nobody.
    let other = [("ip", ip("192.0.2.2"))];
    let answer = followed.ask(&[("free", &other), ("more", &other), ("api", &other)]);
    let bytes = number(&answer, "bandwidth");
    assert!((256_003..=258_000).contains(&bytes), "{bytes}");
    for message in ["free", "tried", "tried"] {
        let answer = followed.ask(&[(message, &[("ip", ip("192.0.2.3"))])]);
        assert!(!is(&answer, "blocked") && is_unset(&answer), "{message}: {answer:?}");
    }
    // Nothing is known about these.
    for address in ["192.0.2.8", "192.0.2.9"] {
        assert!(is_unset(&followed.ask(&[("api", &[("ip", ip(address))])])), "{address}");
    }
    assert!(followed.ask(&[("other", &client)]).is_empty());
}

#[test]
fn a_bad_file_leaves_the_old_one_in_force_and_says_why() {
    let followed = Followed::start("[policy.api]\nlimits = \"3/h\"\n");
    let table = followed.directory.path().join("table");
    followed.write("[policy.api]\nlimits = \"3/fortnight\"\nmod = \"observe\"\n");
    // The command does not ask the agents to read it,
    let output = followed.command("reload", &["--table", table.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("gcra-spoa.toml:2: '3/fortnight' is not a rate"), "{error}");
    assert!(
        error.contains(
            "gcra-spoa.toml:3: 'mod' is not a setting of policy 'api'; did you mean 'mode'?"
        ),
        "{error}"
    );
    assert!(error.ends_with("no agent was asked to reload\n"), "{error}");
    assert_eq!(followed.said("fortnight"), 0);
    // and an agent that gets a SIGHUP keeps its policies.
    followed.agent.process.signal(Signal::HUP);
    wait_until("it complains", || {
        followed.said("was refused; the policies in force have not changed") == 1
    });
    assert_eq!((followed.said("gcra-spoa.toml:2"), followed.said("gcra-spoa.toml:3")), (1, 1));
    assert_eq!(followed.passing("api", &[("ip", ip("192.0.2.1"))], 9), 3);
    // An agent with a bad file does not start.
    let output = Command::new(support::agent_binary())
        .args([
            "--config",
            followed.directory.path().join("gcra-spoa.toml").to_str().unwrap(),
            "--table",
        ])
        .arg(&table)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("gcra-spoa.toml:2"));
}

/// The file itself, a list, and a folder that is replaced as a whole by changing a link.
#[test]
fn a_watched_file_is_read_again_when_it_changes() {
    const LISTED: &str = "[policy.api]\nlimits = \"2/h\"\n[[policy.api.lists]]\n\
                          file = \"now/partners.txt\"\nlimits = \"unlimited\"\n";
    let followed = Followed::start_with("[policy.api]\nlimits = \"3/h\"\n", &["--watch"]);
    let partner = [("ip", ip("192.0.2.7"))];
    assert_eq!(followed.passing("api", &partner, 9), 3);
    let folder = followed.directory.path();
    for (name, partners) in [("old", "# none yet\n"), ("new", "192.0.2.7\n")] {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("partners.txt"), partners).unwrap();
    }
    symlink("old", folder.join("now")).unwrap();
    followed.write(LISTED);
    wait_until("the file is read again", || followed.said("was read again") >= 1);
    assert_eq!(followed.passing("api", &partner, 9), 0, "it owes more than the new limit allows");
    symlink("new", folder.join("next")).unwrap();
    fs::rename(folder.join("next"), folder.join("now")).unwrap();
    wait_until("the list is read again", || followed.said("was read again") == 2);
    assert_eq!(followed.passing("api", &partner, 9), 9);
    followed.write("[policy.api]\nlimits = \"3/fortnight\"\n");
    wait_until("it complains", || {
        followed.said("was refused; the policies in force have not changed") == 1
    });
    assert_eq!(followed.passing("api", &partner, 9), 9);
}

/// A file is refused because of another one that it names, or of who may read it. It is in force
/// once that is mended, and nobody has to touch the file itself.
#[test]
fn a_watched_file_that_was_refused_is_read_again_when_what_it_needs_is_mended() {
    let with_list = |list: &str, limits: &str| {
        format!(
            "[policy.api]\nlimits = \"{limits}\"\n[[policy.api.lists]]\nfile = \"{list}\"\n\
             limits = \"unlimited\"\n"
        )
    };
    let followed = Followed::start_with("[policy.api]\nlimits = \"3/h\"\n", &["--watch"]);
    let folder = followed.directory.path().to_owned();
    let config = folder.join("gcra-spoa.toml");
    let read = || followed.said("was read again, and is in force");
    let refused = || {
        followed.said("was refused; the policies in force have not changed")
            + followed.said("still has the same mistakes")
    };
    let (in_force, fault) = (Cell::new(0), Cell::new(0));
    let is_refused = |what: &str| {
        wait_until(what, || refused() > fault.get());
        fault.set(refused());
        assert_eq!(read(), in_force.get(), "{what}");
    };
    let comes_into_force = |what: &str| {
        wait_until(what, || read() > in_force.get());
        in_force.set(read());
    };

    // A list that comes later, of which there is a mistake at first.
    followed.write(&with_list("late.txt", "4/h"));
    is_refused("the list is missing");
    put(&folder.join("late.txt"), "192.0.2.0/99\n");
    is_refused("the list has a mistake");
    put(&folder.join("late.txt"), "192.0.2.7\n");
    comes_into_force("the list is there");
    assert_eq!(followed.passing("api", &[("ip", ip("192.0.2.7"))], 9), 9);

    // A salt that comes later.
    let store = "[store]\nurl = \"redis://127.0.0.1:1\"\nsalt_file = \"salt\"\n";
    let salted = format!("{store}{}", with_list("late.txt", "5/h"));
    followed.write(&salted);
    is_refused("the salt is missing");
    put(&folder.join("salt"), "0123456789abcdef");
    comes_into_force("the salt is there");

    // The same text is read once, and not at each look from then on.
    let same = || followed.said("was read again: nothing has changed");
    followed.write(&salted);
    wait_until("the same text is read again", || same() >= 1);
    let once = same();

    // A file that may not be read. The user root may read everything, and sees only another file.
    let next = folder.join("next");
    fs::write(&next, with_list("late.txt", "6/h")).unwrap();
    fs::set_permissions(&next, Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read(&next).is_ok();
    fs::rename(&next, &config).unwrap();
    if !is_root {
        is_refused("the file cannot be read");
        fs::set_permissions(&config, Permissions::from_mode(0o644)).unwrap();
    }
    comes_into_force("the file can be read");
    assert_eq!(same(), once, "a file is read once for each change");
}

#[test]
fn a_file_is_checked_in_words() {
    let followed = Followed::start("[policy.api]\nlimits = \"3/h\"\n");
    let output = followed.command("check", &[]);
    assert!(output.status.success());
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(
        words.starts_with(
            "policy 'api', for the message 'api'\n    3 per hour, up to 3 at once: at most 6 in \
             any \
             hour"
        ) && words.ends_with("gcra-spoa.toml is valid: 1 policy, 0 warnings\n"),
        "{words}"
    );
    followed.write("[policy.api]\nlimits = [\"3/h\", \"4/h\"]\n");
    let output = followed.command("check", &[]);
    assert!(output.status.success());
    let (words, warnings) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(words.ends_with("gcra-spoa.toml is valid: 1 policy, 1 warning\n"), "{words}");
    let warnings = String::from_utf8(warnings).unwrap();
    assert!(warnings.contains("gcra-spoa.toml:2: warning: the limit '4 per hour"), "{warnings}");
    // An agent logs it, when it starts and when it reads the file again.
    followed.reload("[policy.api]\nlimits = [\"3/h\", \"5/h\"]\n");
    wait_until("it is logged", || followed.said(":2: warning: the limit '5 per hour") == 1);
    let other = Followed::start("[policy.api]\nlimits = [\"3/h\", \"6/h\"]\n");
    assert_eq!(other.said(":2: warning: the limit '6 per hour"), 1);
    followed.write("[policy.api]\n");
    assert_eq!(followed.command("check", &[]).status.code(), Some(1));
}

/// A HAProxy with the configuration that is printed for it.
fn haproxy_for(followed: &Followed) -> Haproxy {
    haproxy_with(followed, str::to_owned)
}

/// The same, after what is sent to the agent was changed once more.
pub(crate) fn haproxy_with(followed: &Followed, edit: impl Fn(&str) -> String) -> Haproxy {
    let output = followed.command("check", &["--print-haproxy"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let folder = followed.directory.path();
    let Printed { spoe, cfg } = Printed::of(&printed);
    let spoe = edit(&edited(&spoe, folder));
    fs::write(folder.join("spoe-gcra.conf"), support::patient(&spoe)).unwrap();
    let file = folder.join("haproxy.cfg");
    // Where responses settle, the application has to be a server.
    let server = "    server app1 \"${GCRA_APP-127.0.0.1:8000}\"";
    let cfg = edited_rules(&cfg).replace(server, "    http-request return status 200");
    fs::write(&file, cfg).unwrap();
    let agent = &*followed.agent.address;
    let agents = [("GCRA_AGENT1", agent), ("GCRA_AGENT2", agent)];
    let haproxy = Haproxy::start(file.to_str().unwrap(), &agents);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    haproxy
}

/// The files that are printed.
struct Printed {
    spoe: String,
    cfg: String,
}

impl Printed {
    fn of(printed: &str) -> Self {
        let files = printed.strip_prefix("# ---- spoe-gcra.conf\n");
        let (spoe, cfg) = files.unwrap().split_once("# ---- haproxy.cfg\n").unwrap();
        Self { spoe: spoe.to_owned(), cfg: cfg.to_owned() }
    }
}

/// The printed rules as an operator edits them: a constant is no value that a client writes.
fn edited_rules(frontend: &str) -> String {
    frontend
        .replace(" unless EDIT-THIS", " unless TRUE")
        .replace(") EDIT-THIS\n", ") str(known)\n")
}

/// The printed messages as an operator edits them: each is sent for every request, an arg that
/// only the operator knows is a constant, and the maps exist.
fn edited(spoe: &str, folder: &Path) -> String {
    let text = spoe.replace(" if EDIT-THIS", "").replace("} EDIT-THIS", "}");
    let text = text.replace("=EDIT-THIS", "=str(known)");
    for map in text.match_indices("/etc/haproxy/").map(|(at, path)| &text[at + path.len()..]) {
        let name = &map[..map.find([',', ')']).unwrap()];
        let is_for_addresses = text.contains(&format!("map_ip(/etc/haproxy/{name}"));
        let key = if is_for_addresses { "192.0.2.1" } else { "secret" };
        fs::write(folder.join(name), format!("{key} gold\n")).unwrap();
    }
    text.replace("/etc/haproxy/", &format!("{}/", folder.display()))
}

/// The judgement of `haproxy -c` about the files that are printed for a configuration, before and
/// after they were edited. `Ok` if it is accepted.
fn judged_by_haproxy(config: &str) -> [Result<(), String>; 2] {
    let folder = directory();
    let path = folder.path();
    fs::write(path.join("gcra-spoa.toml"), config).unwrap();
    let mut check = Command::new(support::agent_binary());
    check.arg("check").arg("--print-haproxy").arg("--config").arg(path.join("gcra-spoa.toml"));
    let printed = String::from_utf8(check.output().unwrap().stdout).unwrap();
    let Printed { spoe, cfg } = Printed::of(&printed);
    let after = (edited(&spoe, path), edited_rules(&cfg));
    [(spoe, cfg), after].map(|(spoe, haproxy)| {
        fs::write(path.join("haproxy.cfg"), haproxy).unwrap();
        fs::write(path.join("spoe-gcra.conf"), spoe + "\n").unwrap();
        let mut command = Command::new(support::haproxy_binary());
        let output = command.arg("-c").arg("-f").arg(path.join("haproxy.cfg")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // A warning is something that an operator has to understand, too.
        let is_quiet = output.status.success() && !said.contains("WARNING");
        if is_quiet { Ok(()) } else { Err(said) }
    })
}

/// Places that only the operator can fill in are refused by HAProxy, by a name that can be
/// searched for.
#[test]
fn haproxy_refuses_what_has_to_be_edited_first() {
    needs!(support::haproxy());
    let shipped = fs::read_to_string(support::haproxy_folder().join("gcra-spoa.toml")).unwrap();
    let one = "[policy.api]\nlimits = \"1/s\"\n";
    for usable in [
        &shipped,
        one,
        "scope = \"res\"\nanswer = [\"ratelimit\"]\n[policy.a]\nlimits = \"1/s\"\n\
         key = [\"ip\"]\n",
        "scope = \"req\"\n[policy.a]\nlimits = \"1/s\"\nkey = [\"ip\", \"path\"]\ncost = \"n\"\n",
        "scope = \"sess\"\nanswer = [\"retry_after\"]\n[policy.a]\nlimits = \"1/s\"\n",
        "answer = [\"headers\"]\n[policy.a]\nlimits = \"1/s\"\n",
        "answer = [\"headers\", \"ratelimit\"]\n[policy.a]\nlimits = \"1/s\"\n",
        "answer = [\"bandwidth\"]\n[policy.a]\nlimits = \"1/s\"\n\
         bandwidth = { full = \"2m\", least = \"1\" }\n",
        "scope = \"res\"\nanswer = [\"bandwidth\", \"headers\"]\n[policy.a]\nlimits = \"1/s\"\n\
         key = [\"ip\"]\nbandwidth = { full = \"2m\", least = \"1\" }\n",
        "scope = \"req\"\nanswer = [\"headers\"]\n[policy.a]\nlimits = \"1/s\"\n",
    ] {
        assert_eq!(judged_by_haproxy(usable), [Ok(()), Ok(())], "{usable}");
    }
    // An older one does not know the rule with `pause`.
    for scope in ["txn", "req", "res"] {
        let delaying = format!(
            "scope = \"{scope}\"\nanswer = [\"bandwidth\"]\n[policy.a]\nlimits = \"2/s\"\n\
             key = [\"ip\"]\nmax_delay = \"2s\"\nbandwidth = {{ full = \"2m\", least = \"1\" }}\n"
        );
        let is_usable = judged_by_haproxy(&delaying) == [Ok(()), Ok(())];
        assert_eq!(is_usable, support::haproxy_since((3, 2)).is_ok(), "{delaying}");
    }
    let plan = "[policy.gold]\nmessage = \"api\"\nwhen = { plan = [\"gold\", \"silver\"] }\n\
                limits = \"9/s\"\nkey = [\"key\"]\n[policy.free]\nmessage = \"api\"\n\
                limits = \"1/s\"\nkey = [\"ip\"]\ncost = \"n\"\n";
    for (config, name) in [
        // A limit for logins must not count every request.
        (format!("{one}[policy.login]\nlimits = \"5/m\"\n"), "'EDIT-THIS'"),
        // No arg is null without a word.
        ("[policy.a]\nlimits = \"1/s\"\nkey = [\"user\"]\n".to_owned(), "'EDIT-THIS'"),
        (
            "[policy.a]\nlimits = \"1/s\"\nkey = [\"user\"]\nwhen = { x = \"y\" }\n".to_owned(),
            "'EDIT-THIS'",
        ),
        (plan.to_owned(), "/etc/haproxy/plans.map"),
        (plan.replace("key = [\"key\"]", "key = [\"ip\"]"), "/etc/haproxy/plans.map"),
        (format!("{plan}[policy.other]\nlimits = \"1/s\"\n"), "'EDIT-THIS'"),
        // Which responses cost a cell, or how many, only the operator knows.
        (
            "[policy.a]\nlimits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"b\"\n".to_owned(),
            "'EDIT-THIS'",
        ),
        (
            "[policy.a]\nlimits = \"9/m\"\nkey = [\"key\", \"else user\"]\nreserve = \
             \"n\"\ncost = \"m\"\nsettle = \"b\"\n"
                .to_owned(),
            "'EDIT-THIS'",
        ),
    ] {
        let [printed, edited] = judged_by_haproxy(&config);
        let said = printed.expect_err(&config);
        assert!(said.contains(name), "{config}{said}");
        assert_eq!(edited, Ok(()), "{config}");
    }
}

#[test]
fn haproxy_runs_with_what_is_printed_for_it() {
    needs!(support::haproxy());
    let followed = Followed::start(
        "answer = [\"retry_after\", \"ratelimit\", \"ratelimit_policy\"]\n\
         [policy.check]\nlimits = \"3/h\"\nkey = [\"ip\", \"path\", \"host\"]\n",
    );
    let haproxy = haproxy_for(&followed);
    let mut client = Client::new(haproxy.frontend);
    let began = Instant::now();
    for left in [2, 1, 0] {
        let response = client.get("/").unwrap();
        assert_eq!(response.status, 200);
        assert!(
            response.head.contains(&format!("\nratelimit: \"check\";r={left};t=")),
            "{}",
            response.head
        );
        assert!(
            response.head.contains("\nratelimit-policy: \"check\";q=3;w=3600"),
            "{}",
            response.head
        );
    }
    let response = client.get("/").unwrap();
    assert_eq!(response.status, 429);
    let retry_after =
        response.head.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    let least = 1199 - began.elapsed().as_secs();
    assert!((least..=1200).contains(&retry_after.trim().parse().unwrap()), "{retry_after}");
    assert_eq!(client.get("/other").unwrap().status, 200, "another key");
}

/// Fifty reloads while HAProxy asks: every request gets an answer, and each limit holds for as
/// long as it is in force, whatever else in the file has changed.
#[test]
fn fifty_reloads_cost_no_request_and_no_cell() {
    needs!(support::haproxy());
    let config = |rate: u32, round: u32| {
        let others = format!("[policy.other{}]\nlimits = \"{}/s\"\n", round % 3, round + 1);
        let answer =
            if round.is_multiple_of(2) { "" } else { "answer = [\"remaining\", \"policy\"]\n" };
        format!("{answer}{others}[policy.check]\nlimits = \"{rate}/s burst 20\"\nkey = [\"ip\"]\n")
    };
    let followed = Followed::start(&config(20, 0));
    let haproxy = haproxy_for(&followed);
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (tallies, changed) = thread::scope(|scope| {
        let hammer = |number: u8| {
            let source = Ipv4Addr::new(127, 0, 0, number).into();
            let (frontend, stop) = (haproxy.frontend, &stop);
            move || {
                let mut client = Client::from(frontend, source);
                let (mut allowed, mut denied, mut other) = (0_u64, 0, 0);
                while !stop.load(Ordering::Relaxed) {
                    match client.get("/").map(|response| response.status) {
                        Ok(200) => allowed += 1,
                        Ok(429) => denied += 1,
                        _ => other += 1,
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                (allowed, denied, other, start.elapsed())
            }
        };
        let clients: Vec<_> = (2..5).map(|number| scope.spawn(hammer(number))).collect();
        let mut changed = start.elapsed();
        for round in 1..=50 {
            followed.reload(&config(if round < 25 { 20 } else { 10 }, round));
            if round == 25 {
                changed = start.elapsed();
            }
            thread::sleep(Duration::from_millis(60));
        }
        stop.store(true, Ordering::Relaxed);
        (clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>(), changed)
    });
    assert!(followed.said("was read again") >= 50);
    assert_eq!(followed.said("ERROR"), 0);
    for (allowed, denied, other, elapsed) in tallies {
        assert_eq!(other, 0, "every request has an answer");
        assert!(denied > 0, "there were more requests than allowed");
        let cells = |time: Duration, interval_ms: u128| {
            u64::try_from(time.as_millis() / interval_ms).unwrap() + 1
        };
        // Halving the rate gives no client a second burst: what a client owes stays.
        let most = 20 + cells(changed, 50) + 20 / 2 + cells(elapsed - changed, 100);
        assert!(allowed <= most, "{allowed} allowed, {most} would be right");
    }
}

/// HAProxy sends null for a header that a request does not have.
#[test]
fn a_request_without_the_header_of_the_key_is_not_counted_with_others() {
    needs!(support::haproxy());
    let with = |key: &str| format!("[policy.check]\nlimits = \"2/d\"\nkey = {key}\n");
    let followed = Followed::start(&with("[\"key\", \"else ip\"]"));
    let haproxy = haproxy_for(&followed);
    let mut client = Client::new(haproxy.frontend);
    let mut statuses =
        |header: &[(&str, &str)]| [(); 3].map(|()| client.get_with("/", header).unwrap().status);
    assert_eq!(statuses(&[("X-Api-Key", "a")]), [200, 200, 429]);
    assert_eq!(statuses(&[]), [200, 200, 429]);
    assert_eq!(statuses(&[("X-Api-Key", "127.0.0.1")]), [200, 200, 429]);
    followed.reload(&with("[\"key\"]"));
    assert_eq!(statuses(&[]), [200; 3], "no decision, and the printed rules fail open");
    // All requests without the header are one client.
    followed.reload(&with("[\"key\", \"else null\"]"));
    assert_eq!(statuses(&[]), [200, 200, 429]);
}

/// An order is in the table: all agents follow it.
#[test]
fn an_order_is_followed_also_after_a_resize() {
    let followed = Followed::start("[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\"]\n");
    let path = followed.directory.path().join("table");
    let passing = |count| followed.passing("api", &[("ip", ip("192.0.2.1"))], count);
    let exempt = |seconds| {
        let table = Table::inspect(&path).unwrap();
        // A type and an address (docs/internals/TABLE.md).
        let mut hasher = table.hasher();
        hasher.write(&[6, 192, 0, 2, 1]);
        let order = Order {
            policy: limit_id(&[b"api"]),
            kind: OrderKind::Exempt,
            target: OrderTarget::Client { key: hasher.finish(), groups: [Some(32), None] },
            until: table.now().saturating_add(Nanos::from_secs(seconds)),
            given: table.now(),
            since: table.now(),
            key: "192.0.2.1".to_owned(),
            note: String::new(),
            giver: "anna".to_owned(),
        };
        table.board().give_order(&order).unwrap();
    };
    assert_eq!(passing(3), 1);
    exempt(3600);
    wait_until("the client is exempt", || passing(1) == 1);
    assert_eq!(passing(20), 20);
    wait_until("the log says so", || {
        followed.said("policy 'api': 192.0.2.1 is exempt for another ") == 1
    });
    let mut resize = Command::new(support::agent_binary());
    resize.args(["table", "resize", "--slots", "8192", "--table"]).arg(&path);
    assert!(resize.output().unwrap().status.success());
    wait_until("the agent has moved", || followed.said("the table was resized") == 1);
    assert_eq!(passing(20), 20);
    exempt(0);
    wait_until("the exemption has ended", || passing(1) == 0);
    wait_until("the log says so", || {
        followed.said("policy 'api': 192.0.2.1 is no longer exempt") == 1
    });
    assert_eq!(passing(3), 0, "it owes what it owed before");
    assert_eq!(followed.said("is exempt"), 1);
}

/// HAProxy runs with every example of the manual, its guides and its recipes.
#[test]
fn the_examples_of_the_manual_are_run() {
    needs!(support::haproxy());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let guides = fs::read_dir(docs.join("guides")).unwrap().map(|guide| guide.unwrap().path());
    let manual: String = guides
        .chain([docs.join("CONFIG.md"), docs.join("RECIPES.md")])
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let examples: Vec<_> =
        manual.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 15, "{}", examples.len());
    let can_pause = support::haproxy_since((3, 2)).is_ok();
    // The store of an example does not exist.
    for example in examples.into_iter().filter(|example| !example.contains("[store]")) {
        let delays = example.contains("max_delay");
        if delays && !can_pause {
            continue;
        }
        // A busy machine may not send as many requests in a second.
        let slow = match delays {
            true => example.to_owned(),
            false => example.replace("/s burst", "/h burst"),
        };
        let followed = Followed::start(&slow);
        let haproxy = haproxy_for(&followed);
        let mut client = Client::new(haproxy.frontend);
        let response = client.get_with("/", &[("X-Api-Key", "secret")]).unwrap();
        assert_eq!(response.status, 200, "{example}");
        // HAProxy sends the messages that the policies are for: some request is blocked, unless
        // the example blocks none, or has each wait for its turn.
        if !delays
            && !example.contains("observe")
            // Only responses charge, and HAProxy answers here itself.
            && !example.contains("settle")
            && !example.contains("500/s")
            && !example.contains("plan")
        {
            wait_until("somebody is denied", || {
                (0..20).any(|_| client.get("/").unwrap().status == 429)
            });
        }
        assert_eq!(followed.said("matched no policy"), 0);
        assert_eq!(followed.said("got no decision"), 0, "{example}");
    }
}

/// An operator who tries a configuration does not wait for a minute, and perhaps stops the agent
/// before that.
#[test]
fn the_first_message_without_a_decision_is_logged_at_once() {
    let followed = Followed::start("[policy.api]\nkey = [\"ip\"]\nlimits = \"1/h\"\n");
    followed.ask(&[("apii", &[])]);
    wait_until("it is logged", || {
        followed.said("1 message matched no policy and got no decision; the last one was") == 1
    });
    followed.ask(&[("api", &[])]);
    wait_until("it is logged", || {
        followed.said("1 message got no decision; of the last one") == 1
    });
}

/// The file that operators copy for HAProxy 3.4: each field is there once, on what the application
/// answers and on what HAProxy does. Older versions say what they need.
#[test]
fn the_shipped_line_sets_all_header_fields() {
    needs!(support::haproxy());
    if support::haproxy_version() < (3, 4) {
        let mut check = Command::new(support::haproxy_binary());
        let file = support::haproxy_folder().join("headers.cfg");
        let output = check.arg("-c").arg("-f").arg(file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("use policies.cfg instead"), "{said}");
        return;
    }
    let shipped = fs::read_to_string(support::haproxy_folder().join("headers.toml")).unwrap();
    let [free, unwanted] = [8, 9].map(|last| IpAddr::from([127, 0, 0, last]));
    let followed = Followed::start(
        &shipped
            .replace("192.0.2.0/24", &free.to_string())
            .replace("198.51.100.0/24", &unwanted.to_string())
            .replace("100/s burst 20", "2/h"),
    );
    let address = followed.agent.address.as_str();
    let haproxy =
        Haproxy::start("headers.cfg", &[("GCRA_AGENT1", address), ("GCRA_AGENT2", address)]);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    let mut client = Client::new(haproxy.frontend);
    let values = |head: &str, name: &str| -> Vec<String> {
        let begin = format!("{name}: ");
        let lines = head.lines().filter_map(|line| line.strip_prefix(&begin));
        lines.map(str::to_owned).collect()
    };
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        let response = client.get("/").unwrap();
        assert_eq!(response.status, status);
        let head = &response.head;
        assert_eq!(
            values(head, "ratelimit-policy"),
            ["\"check.1\";q=2;w=3600, \"check.hourly\";q=2000;w=720"],
            "{head}"
        );
        let ratelimit = values(head, "ratelimit");
        assert_eq!(ratelimit.len(), 1, "{head}");
        assert!(ratelimit[0].starts_with(&format!("\"check.1\";r={left};t=")), "{head}");
        match &values(head, "retry-after")[..] {
            [] => assert_eq!(status, 200, "{head}"),
            [wait] => {
                assert!(status == 429 && (1000..=1800).contains(&wait.parse().unwrap()), "{head}");
            }
            several => panic!("{several:?}"),
        }
    }
    for (address, status) in [(free, 200), (unwanted, 429)] {
        let response = Client::from(haproxy.frontend, address).get("/").unwrap();
        assert_eq!(response.status, status);
        let head = &response.head;
        assert!(!head.contains("ratelimit") && !head.contains("retry-after"), "{head}");
    }
}

/// HAProxy does with the list as its documentation says: a field is replaced, a prefix chooses by
/// letters, and without the variable nothing changes.
#[test]
fn haproxy_takes_the_list_as_the_documents_say() {
    needs!(support::haproxy());
    if support::haproxy_version() < (3, 4) {
        // They refuse the file, as the test above has seen.
        return;
    }
    let followed = Followed::start(
        "answer = [\"headers\"]\n[policy.check]\nlimits = \"1/h\"\nkey = [\"ip\"]\n",
    );
    let shipped = fs::read_to_string(support::haproxy_folder().join("headers.cfg")).unwrap();
    let answer = "return status 200 content-type text/plain";
    let line = "set-headers-bin var(txn.gcra.headers)\n";
    assert!(shipped.contains(answer) && shipped.contains(line), "{shipped}");
    let folder = followed.directory.path();
    let conf = support::haproxy_folder().join("spoe-policies.conf");
    fs::copy(conf, folder.join("spoe-policies.conf")).unwrap();
    // The application has fields of its own.
    let own = format!("{answer} hdr RateLimit-Policy a hdr RateLimit b hdr RateLimit c");
    let head = |prefix: &str, client: u8| {
        let file = folder.join("headers.cfg");
        let line = line.replace('\n', &format!(" {prefix}\n"));
        let text = shipped
            .replace(answer, &own)
            .replace("set-headers-bin var(txn.gcra.headers)\n", &line);
        fs::write(&file, support::patient(&text)).unwrap();
        let address = followed.agent.address.as_str();
        let environment = [("GCRA_AGENT1", address), ("GCRA_AGENT2", address)];
        let haproxy = Haproxy::start(file.to_str().unwrap(), &environment);
        haproxy.wait_for("gcra-agents", "agent1", "UP");
        let mut client = Client::from(haproxy.frontend, [127, 0, 0, client].into());
        let head = client.get("/").unwrap().head;
        let blocked = client.get("/").unwrap();
        assert_eq!(blocked.status, 429);
        [head, blocked.head].map(|head| {
            let lines = head.lines().filter(|line| line.starts_with('r'));
            let mut names: Vec<_> = lines.map(|line| line.split(':').next().unwrap()).collect();
            names.sort_unstable();
            names.join(" ")
        })
    };
    let both = "ratelimit ratelimit-policy".to_owned();
    assert_eq!(head("", 11), [both.clone(), format!("{both} retry-after")]);
    assert_eq!(head("prefix ratelimit", 12), [both.clone(), both]);
    assert_eq!(head("prefix RateLimit", 13)[1], "");
}

/// The file that operators copy to slow clients down, as HAProxy's log shows it.
#[test]
fn the_shipped_bandwidth_is_what_haproxy_gets() {
    needs!(support::haproxy());
    if support::haproxy_version() < (2, 7) {
        let mut check = Command::new(support::haproxy_binary());
        let file = support::haproxy_folder().join("bandwidth.cfg");
        let output = check.arg("-c").arg("-f").arg(file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("needs HAProxy 2.7"), "{said}");
        return;
    }
    let shipped = fs::read_to_string(support::haproxy_folder().join("bandwidth.toml")).unwrap();
    let free = IpAddr::from([127, 0, 0, 8]);
    let slow = shipped.replace("10/s burst 100", "10/d burst 10");
    let followed = Followed::start(&slow.replace("192.0.2.0/24", &free.to_string()));
    let address = followed.agent.address.as_str();
    let haproxy =
        Haproxy::start("bandwidth.cfg", &[("GCRA_AGENT1", address), ("GCRA_AGENT2", address)]);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    // The application's response is short, so none has to wait.
    let mut client = Client::new(haproxy.frontend);
    for status in [200; 10].into_iter().chain([429]) {
        assert_eq!(client.get("/").unwrap().status, status);
    }
    assert_eq!(Client::from(haproxy.frontend, free).get("/free").unwrap().status, 200);
    let logged = |haproxy: &Haproxy| -> Vec<String> {
        let lines = haproxy.process.lines();
        let values = lines.iter().filter_map(|line| line.split_once(" bandwidth="));
        values.map(|(_, rest)| rest.split(' ').next().unwrap().to_owned()).collect()
    };
    if !haproxy.has_logged(12, |haproxy| logged(haproxy).len()) {
        return;
    }
    let logged = logged(&haproxy);
    let (full, least) = (10_u64 << 20, 50_u64 << 10);
    for (used, bytes) in (1..=10).zip(&logged) {
        let line = full - (full - least) * used / 10;
        // A little of the debt is paid off meanwhile.
        assert!((line..line + full / 20).contains(&bytes.parse().unwrap()), "{logged:?}");
    }
    assert_eq!(logged[10..], ["-", "-"], "one is blocked, and one is unlimited");
}

/// The file that operators copy: header fields on every answer, a body for programs, and a penalty
/// for clients that do not stop.
#[test]
fn the_shipped_policies_answer_as_they_say() {
    needs!(support::haproxy());
    let shipped = fs::read_to_string(support::haproxy_folder().join("gcra-spoa.toml")).unwrap();
    let unwanted = IpAddr::from([127, 0, 0, 9]);
    // So slow that a busy machine asks for more, too.
    let slow = shipped.replace("100/s burst 20", "20/s burst 20");
    assert_ne!(slow, shipped);
    let followed = Followed::start(&slow.replace("198.51.100.0/24", &unwanted.to_string()));
    let address = followed.agent.address.as_str();
    let haproxy =
        Haproxy::start("policies.cfg", &[("GCRA_AGENT1", address), ("GCRA_AGENT2", address)]);
    let mut client = Client::new(haproxy.frontend);

    let policy = "\nratelimit-policy: \"check.1\";q=20;w=1, \"check.hourly\";q=2000;w=720\r";
    let response = client.get("/").unwrap();
    assert_eq!(response.status, 200);
    assert!(response.head.contains(policy), "{}", response.head);
    assert!(
        response.head.contains("\nratelimit: \"check.1\";r=19;t=1, \"check.hourly\";r=1999;t=1\r"),
        "{}",
        response.head
    );

    let mut denied = None;
    wait_until("one is denied", || {
        let mut responses = (0..31).map(|_| client.get("/").unwrap());
        denied = responses.find(|response| response.status == 429);
        denied.is_some()
    });
    let response = denied.unwrap();
    assert!(
        response.head.contains(policy) && response.head.contains("\nratelimit: \"check.1\";r=0;"),
        "{}",
        response.head
    );
    assert!(
        response.head.contains("\ncontent-type: application/problem+json\r"),
        "{}",
        response.head
    );
    assert!(response.head.contains("\nretry-after: "), "{}", response.head);
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["check"]));

    // Each request costs ten cells, half a second. Who has to wait for more than 30 s gets the
    // answer late.
    let start = Instant::now();
    let late = (0..2000).find_map(|number| {
        let start = Instant::now();
        let response = client.get("/").unwrap();
        let wait = response.head.lines().find_map(|line| line.strip_prefix("retry-after: "))?;
        let is_long = wait.trim().parse::<u32>().unwrap() > 30;
        is_long.then(|| (number, start.elapsed(), response))
    });
    let (number, took, response) = late.unwrap();
    assert!(number > 50, "{number} in {:?}", start.elapsed());
    assert!(took > Duration::from_secs(4), "{took:?}");
    assert_eq!(response.status, 429);
    assert!(response.body.contains("violated-policies"), "{}", response.body);

    // A denied client gets no answer at all: it waits, and HAProxy's log says why.
    let mut client = Client::from(haproxy.frontend, unwanted);
    let asking = thread::spawn(move || client.get("/").is_ok());
    wait_until("the client is dropped", || {
        let lines = haproxy.process.lines();
        lines.iter().any(|line| line.contains(" -1 0 ") && line.contains(" reason=denied "))
    });
    assert!(!asking.is_finished() || !asking.join().unwrap(), "it got an answer");
}
