//! Actions over HTTP: what they do, and for which requests.

use super::*;

fn post(admin: &str, path: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {length}\r\n\
         Content-Type: application/json\r\n{headers}\r\n{body}"
    );
    ask(admin, &request)
}

/// A file with the token of these tests.
pub(super) fn token_file(directory: &Path) -> String {
    let token = directory.join("token");
    fs::write(&token, "correct-horse-battery\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    token.into_os_string().into_string().unwrap()
}

pub(super) const RIGHT: &str = "Authorization: Bearer correct-horse-battery\r\n";

#[test]
fn without_a_token_nothing_is_done() {
    let directory = directory();
    let table = directory.path().join("table");
    let (_agent, admin) = start(&table, &["--rate", "10/h"]);
    for path in ["forgive", "exempt", "block", "observe", "observe?own"] {
        let path = &format!("/actions/{path}");
        let answer = post(&admin, path, "Authorization: Bearer correct-horse-battery\r\n", "{}");
        assert!(answer.status == 403 && answer.body.starts_with("actions are off"), "{answer:?}");
        assert_eq!(get(&admin, path).status, 405);
    }
    assert_eq!(get(&admin, "/actions").body, "{\"on\":false}\n");

    let token = directory.path().join("token");
    fs::write(&token, "correct-horse-battery\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let mut agent = Process::start(
        "gcra-spoa",
        Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(["--rate", "1/s", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .arg("--admin-actions")
            .arg(&token)
            .arg("--table")
            .arg(directory.path().join("other")),
    );
    assert!(!agent.wait().success());
    wait_until("it says why", || agent.lines().iter().any(|line| line.contains("chmod o-r")));
}

/// Only root can give a file to another user. Kubernetes makes symbolic links for its secrets.
#[test]
fn a_token_of_another_user_is_refused_and_a_link_is_followed() {
    let directory = directory();
    let token = token_file(directory.path());
    let link = directory.path().join("link");
    symlink(&token, &link).unwrap();
    let link = link.to_str().unwrap();
    let flags = ["--rate", "10/h", "--key", "ip", "--admin-actions", link];
    {
        let (_agent, admin) = start(&directory.path().join("table"), &flags);
        assert_eq!(get(&admin, "/actions").body, "{\"on\":true}\n");
    }
    if chown(&token, Some(NOBODY), None).is_err() {
        return;
    }
    for path in [&*token, link] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(["--rate", "1/s", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--admin-actions", path, "--table"]).arg(directory.path().join("other"));
        let mut agent = Process::start("gcra-spoa", &mut command);
        assert_eq!(agent.wait().code(), Some(1));
        let said = format!("{path} belongs to the user 65534, who can ");
        wait_until("it says why", || agent.lines().iter().any(|line| line.contains(&said)));
    }
}

const NOBODY: u32 = 65534;

/// RFC 9110, sections 11.1 and 11.6.1.
#[test]
fn the_scheme_of_a_token_has_no_case() {
    let directory = directory();
    let token = token_file(directory.path());
    let flags = ["--rate", "10/h", "--key", "ip", "--admin-actions", &token];
    let (_agent, admin) = start(&directory.path().join("table"), &flags);
    let act =
        |headers: &str| post(&admin, "/actions/observe", headers, "{\"policy\": \"default\"}");
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let answer = act(&format!("Authorization: {scheme} correct-horse-battery\r\n"));
        assert_eq!(answer.status, 200, "{scheme}: {answer:?}");
    }
    for header in
        ["", "Authorization: Bearer\r\n", "Authorization: Basic correct-horse-battery\r\n"]
    {
        let answer = act(header);
        assert_eq!(answer.status, 401, "{header}: {answer:?}");
        assert!(answer.head.contains("www-authenticate: bearer\r\n"), "{answer:?}");
    }
}

/// A link that somebody else has made can be opened with curl.
#[test]
fn what_is_repeated_of_a_request_moves_no_cursor() {
    let directory = directory();
    let token = token_file(directory.path());
    let flags = ["--rate", "10/h", "--key", "ip", "--admin-actions", &token];
    let (_agent, admin) = start(&directory.path().join("table"), &flags);
    let observe = |policy: &str| {
        let body = format!("{{\"policy\": \"{policy}\"}}");
        post(&admin, "/actions/observe", RIGHT, &body)
    };
    let host = "GET /status HTTP/1.1\r\nHost: a\u{202e}b.example\r\n\r\n";
    for (status, answer) in [
        (200, get(&admin, "/explain?message=%1b%5b2J")),
        (200, get(&admin, "/explain?message=%e2%80%ae")),
        (200, get(&admin, "/explain?message=%e3%85%a4%e2%a0%80")),
        (400, get(&admin, "/explain?key=ip=%1b%5b2J,%e2%80%ae")),
        (200, get(&admin, "/explain?arg=ip=str:%1b%5b2J%e2%80%ae")),
        (422, observe("\\u001b[2J")),
        (422, observe("\\u202e")),
        (422, observe("\\u3164\\u2800")),
        (421, send(&admin, host.as_bytes())),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        let hidden = ['\u{1b}', '\u{202e}', '\u{3164}', '\u{2800}'];
        assert!(!answer.body.contains(hidden), "{answer:?}");
    }
}

#[test]
fn an_action_is_done_for_who_has_the_token_and_logged_without_it() {
    let directory = directory();
    let (table, token) = (directory.path().join("table"), token_file(directory.path()));
    let flags = ["--rate", "10/h", "--key", "key", "--admin-actions", &token];
    let (agent, admin) = start(&table, &flags);
    let (other, _) = start(&table, &flags);
    let (mut spop, key) =
        (Spop::connect(&agent.address), [("key", Value::from("sk_live_1234567"))]);
    assert_eq!(spop.allowed(&key, 11), 10);
    let right = RIGHT;
    let act = |action: &str, headers: &str, body: &str| {
        post(&admin, &format!("/actions/{action}"), headers, body)
    };
    let body = "{\"key\": \"sk_live_1234567\"}";
    for (status, headers) in [
        (401, String::new()),
        (401, "Authorization: Bearer correct-horse-batterz\r\n".to_owned()),
        (403, format!("{right}Origin: http://evil.example\r\n")),
        (403, format!("{right}Origin: null\r\n")),
        (403, format!("{right}Sec-Fetch-Site: same-site\r\n")),
    ] {
        assert_eq!(act("forgive", &headers, body).status, status, "{headers}");
    }
    assert!(spop.is_blocked(&key), "nothing was done");
    assert_eq!(act("forgive", right, "{}").status, 400);
    assert_eq!(act("forgive", right, &"x".repeat(10_000)).status, 400);
    assert_eq!(act("forgive", right, "{\"key\": \"10.0.0.777\"}").status, 422);
    let own = format!("{right}Origin: http://{admin}\r\nSec-Fetch-Site: same-origin\r\n");
    let done = act("forgive", &own, body);
    assert!(done.status == 200 && done.body.contains("was forgiven"), "{done:?}");
    assert_eq!(spop.allowed(&key, 11), 10);

    // Without a key, it is for all clients of a policy.
    let done = act("forgive", right, "{\"policy\": \"default\"}");
    assert!(done.status == 200 && done.body.contains("all clients begin with"), "{done:?}");
    wait_until("the agent follows", || spop.allowed(&key, 1) == 1);
    assert_eq!(spop.allowed(&key, 11), 9);
    let null = "{\"key\": null, \"policy\": \"default\"}";
    for (body, status) in [("{\"policy\": \"x\"}", 422), ("{\"key\": \"\"}", 400), (null, 400)] {
        assert_eq!(act("forgive", right, body).status, status, "{body}");
    }
    let mut spop_of_other = Spop::connect(&other.address);
    wait_until("the other agent follows", || spop_of_other.is_blocked(&key));

    let done = act("exempt", right, body);
    assert!(done.body.contains("exempt for 1h"), "{done:?}");
    // The page then shows what was done: a client that is allowed does not wait.
    let waiting = || {
        let live: Json = serde_json::from_str(&get(&admin, "/live").body).unwrap();
        let client = &live["status"]["together"]["policies"][0]["top_blocked"][0];
        assert_eq!(client["wait_ms"].is_null(), client["reason"].is_null(), "{client}");
        (!client["wait_ms"].is_null(), live["configuration"]["orders"].to_string())
    };
    wait_until("it is exempt", || !spop.is_blocked(&key));
    wait_until("all agents follow", || !waiting().0);
    assert_ne!(waiting().1, "[]");
    let began = Instant::now();
    let done = act("exempt", right, "{\"key\": \"sk_live_1234567\", \"for_seconds\": 0}");
    assert!(done.body.contains("no longer exempt"), "{done:?}");
    // An agent that is busy answers after two seconds, and follows a little later.
    let is_late = began.elapsed() >= Duration::from_secs(2);
    assert!(is_late || waiting().1 == "[]", "it is seen at once");
    wait_until("it is limited", || spop.is_blocked(&key));
    wait_until("all agents follow", || waiting().0);

    assert_eq!(act("forgive", right, body).status, 200);
    let noted = "{\"key\": \"sk_live_1234567\", \"note\": \"INC-4711\"}";
    let done = act("block", right, noted);
    assert!(done.body.contains("is blocked for 1h, until "), "{done:?}");
    wait_until("it is blocked", || spop.is_blocked(&key));
    let (_, orders) = waiting();
    assert!(orders.contains("\"order\":\"block\"") && orders.contains("INC-4711"), "{orders}");
    let done = act("exempt", right, "{\"key\": \"sk_live_1234567\", \"for_seconds\": 0}");
    assert!(done.status == 422 && done.body.contains("there is no exemption"), "{done:?}");
    let done = act("block", right, "{\"key\": \"sk_live_1234567\", \"for_seconds\": 0}");
    assert!(done.body.contains("no longer blocked"), "{done:?}");
    wait_until("it is not blocked", || !spop.is_blocked(&key));
    let metrics = get(&admin, "/metrics").body;
    let counted = |order| format!("gcra_ordered_total{{policy=\"default\",order=\"{order}\"}} ");
    for order in ["exempt", "block"] {
        let line = metrics.lines().find(|line| line.starts_with(&counted(order)));
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{order}: {metrics}");
    }
    spop.allowed(&key, 11);
    wait_until("all agents follow", || waiting().0);

    let observe = |body: &str, by: &[&str]| done_by(by, || act("observe", right, body));
    let off = "{\"policy\": \"default\", \"observe\": false}";
    // An agent that is busy can switch it after its answer, and logs nothing then.
    wait_until("it is switched in time", || {
        observe("{\"policy\": \"default\"}", &["in 2 of 2 agents"]);
        let lines = agent.process.lines();
        let is_said = lines.iter().any(|line| line.contains("only observes from now"));
        if !is_said {
            observe(off, &["in 2 of 2 agents"]);
        }
        is_said
    });
    assert!(!spop.is_blocked(&key) && !Spop::connect(&other.address).is_blocked(&key));
    // The other agent may not answer this one in time.
    wait_until("the page shows it", || {
        let live: Json = serde_json::from_str(&get(&admin, "/live").body).unwrap();
        let agents = live["status"]["agents"].as_array().unwrap().clone();
        let known: Vec<_> = agents.iter().filter(|agent| agent["status"].is_object()).collect();
        let switched = |agent: &&Json| agent["status"]["policies"][0]["switched"] == true;
        assert!(known.iter().all(switched), "{live}");
        known.len() == 2
    });
    assert!(!waiting().0, "the policy blocks nobody now");
    // Another agent can be without actions, and is named.
    let (_without, _) = start(&table, &["--rate", "10/h", "--key", "key"]);
    let done = observe(off, &[", in 2 of 3 agents", "did not follow: actions are off"]);
    let Answer { body, .. } = &done;
    assert!(body.contains("blocks requests again"), "{done:?}");
    assert!(body.contains("\"whole\":false"), "{done:?}");
    assert!(spop.is_blocked(&key) && Spop::connect(&other.address).is_blocked(&key));
    let forged = "{\"policy\": \"default\", \"at_ns\": 1, \"by\": \"x\", \"proof\": \"00\"}";
    assert_eq!(act("observe?own", "", forged).status, 403);
    // A body that an action would not obey is refused, and nothing is done.
    for (action, body, said) in [
        ("observe", "{\"policy\": \"default\", \"key\": \"192.0.2.7\"}", "'key' is not for"),
        ("observe", "[null, \"default\"]", "it is not a JSON object"),
        ("forgive", "{\"key\": \"x\", \"observe\": true}", "'observe' is not for"),
        ("observe", forged, "is not for this action"),
    ] {
        let done = act(action, right, body);
        assert!(done.status == 400 && done.body.contains(said), "{body}: {done:?}");
    }
    for twice in ["Origin: http://x", "Sec-Fetch-Site: same-origin", "Content-Type: text/plain"] {
        let headers = format!("{right}{twice}\r\n{twice}\r\n");
        let done = act("observe", &headers, "{\"policy\": \"default\"}");
        assert!(done.status == 400 && done.body.contains("two headers"), "{twice}: {done:?}");
    }
    assert_eq!(act("observe", &right.repeat(2), "{\"policy\": \"default\"}").status, 400);
    assert!(spop.is_blocked(&key));
    let done = act("observe", right, off);
    assert!(done.body.contains("(as it did before)"), "{done:?}");

    let log = agent.process.lines().join("\n");
    for said in [
        "was cleared: an action",
        "is exempt for 1h, until ",
        "is blocked for 1h, until ",
        "only observes from now",
        "blocks requests, as before: an action",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    // The other agent knows who was at the first.
    let by = log.lines().filter_map(|line| {
        let (_, by) = line.split_once("only observes")?.1.split_once("by ")?;
        Some(format!("by {}, through another agent", by.split(" has ").next()?))
    });
    let by: Vec<_> = by.collect();
    let log = other.process.lines().join("\n");
    assert!(by.iter().any(|by| log.contains(by)), "{by:?}: {log}");
    let log = agent.process.lines().join("\n");
    assert!(log.contains("by 127.0.0.1:"), "{log}");
    assert!(!log.contains("horse") && !log.contains("sk_live"), "{log}");
}

/// The answer to an action that says all of this about the agents that have followed. They have
/// two seconds for it, and a busy machine may need longer, so it is asked for again.
fn done_by(agents: &[&str], act: impl Fn() -> Answer) -> Answer {
    done_as(|body| agents.iter().all(|part| body.contains(part)), act)
}

/// The same with an answer for which this holds.
fn done_as(is_done: impl Fn(&str) -> bool, act: impl Fn() -> Answer) -> Answer {
    let mut done = act();
    wait_until("the agents follow in time", || {
        let is_done = is_done(&done.body);
        if !is_done {
            done = act();
        }
        is_done
    });
    done
}

/// A program that has taken the address of an agent sees its demands, and can neither follow them
/// in its place nor use them elsewhere.
#[test]
fn a_demand_is_followed_once_by_the_agent_that_it_is_for() {
    let directory = directory();
    let (table, token) = (directory.path().join("table"), token_file(directory.path()));
    let flags = ["--rate", "1000/h", "--key", "key", "--admin-actions", &token];
    let (first, admin) = start(&table, &flags);
    let (second, second_admin) = start(&table, &flags);
    let (third, third_admin) = start(&table, &flags);
    let observe = |observe: bool| {
        let body = format!("{{\"policy\": \"default\", \"observe\": {observe}}}");
        post(&admin, "/actions/observe", RIGHT, &body)
    };
    // The third agent is killed, and another program takes its address at once.
    third.process.signal(Signal::KILL);
    let listener = {
        let mut listener = None;
        wait_until("its address is free", || {
            listener = TcpListener::bind(&third_admin).ok();
            listener.is_some()
        });
        listener.unwrap()
    };
    let thief = thread::spawn(move || {
        let mut demands = Vec::new();
        for stream in listener.incoming().map(Result::unwrap) {
            stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
            let mut read = [0; 4096];
            let read_bytes = (&stream).read(&mut read).unwrap_or(0);
            let request = String::from_utf8_lossy(&read[..read_bytes]).into_owned();
            let answer = "HTTP/1.1 200 OK\r\n\r\n{\"said\":[],\"whole\":true}";
            let _ = (&stream).write_all(answer.as_bytes());
            if request.starts_with("POST /end") {
                return demands;
            }
            if let Some((head, body)) = request.split_once("\r\n\r\n")
                && head.starts_with("POST /actions/observe?own")
            {
                demands.push(body.to_owned());
            }
        }
        demands
    });
    // For some seconds the table has the third one among its agents. A slow machine may take
    // longer, and the program in its place may answer too late.
    let is_listed = |body: &str| body.contains("of 3 agents");
    let why = "did not follow: the program that answers at";
    let is_done =
        |body: &str| body.contains("in 2 of ") && (body.contains(why) || !is_listed(body));
    let observe = |is_on| done_as(is_done, || observe(is_on));
    let done = observe(true);
    let is_listed = is_listed(&done.body);
    assert_eq!(done.body.contains(why), is_listed, "{done:?}");
    let modes = |admin: &str| {
        let live: Json = serde_json::from_str(&get(admin, "/live").body).unwrap();
        live["configuration"]["policies"][0]["observes"].as_bool().unwrap()
    };
    assert!(modes(&admin) && modes(&second_admin), "what was done is seen at once");
    assert_eq!(observe(false).status, 200);
    assert!(!modes(&admin) && !modes(&second_admin));
    post(&third_admin, "/end", "", "");
    let demands = thief.join().unwrap();
    assert!(!is_listed || !demands.is_empty());
    for demand in &demands {
        for other in [&admin, &second_admin] {
            let done = post(other, "/actions/observe?own", "", demand);
            assert_eq!(done.status, 403, "{done:?}");
        }
    }
    assert!(!modes(&admin) && !modes(&second_admin));
    drop((first, second));
}

/// The answer does not say more than is known: an agent that is stopped has the demand, and may go
/// on.
#[test]
fn an_agent_that_does_not_answer_may_still_follow() {
    let directory = directory();
    let (table, token) = (directory.path().join("table"), token_file(directory.path()));
    let flags = ["--rate", "1000/h", "--key", "key", "--admin-actions", &token];
    let (_agent, admin) = start(&table, &flags);
    let (other, _) = start(&table, &flags);
    // It is listed without its address at first.
    let is_listed = || {
        let agents = status(&admin)["agents"].clone();
        agents.as_array().unwrap().iter().filter(|it| it["admin"].is_string()).count() == 2
    };
    wait_until("the table has both addresses", is_listed);
    other.process.signal(Signal::STOP);
    let done = post(&admin, "/actions/observe", RIGHT, "{\"policy\": \"default\"}");
    other.process.signal(Signal::CONT);
    let Answer { body, .. } = &done;
    assert!(body.contains("in 1 of 2 agents"), "{done:?}");
    // On a slow machine it has been stopped for so long that it was not asked.
    assert!(
        body.contains("it may still follow until 5 s after the demand")
            || body.contains("it is stopped (SIGSTOP), so it was not asked"),
        "{done:?}"
    );
}

#[test]
fn wrong_tokens_are_counted_and_keep_nobody_out() {
    let directory = directory();
    let (table, token) = (directory.path().join("table"), token_file(directory.path()));
    let flags = ["--rate", "10/h", "--key", "ip", "--admin-actions", &token];
    let (agent, admin) = start(&table, &flags);
    let guess = |token: &str| {
        let headers = format!("Authorization: Bearer {token}\r\n");
        post(&admin, "/actions/forgive", &headers, "{\"key\": \"192.0.2.7\"}")
    };
    let answers: Vec<_> = (0..30).map(|at| guess(&format!("wrong-wrong-wrong-{at}"))).collect();
    assert!(answers[..10].iter().all(|answer| answer.status == 401), "{answers:?}");
    let last = answers.last().unwrap();
    assert!(last.status == 429 && last.head.contains("retry-after: "), "{last:?}");
    assert_ne!(guess("correct-horse-battery").status, 429, "the right one is not refused");
    assert_eq!(status(&admin)["wrong_tokens"], 30);
    let metrics = get(&admin, "/metrics").body;
    assert!(metrics.contains("gcra_admin_wrong_tokens_total 30\n"), "{metrics}");
    let lines = agent.process.lines();
    let about = lines.iter().filter(|line| line.contains("token is wrong")).count();
    assert_eq!(about, 1, "{lines:?}");
}
