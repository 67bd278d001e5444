//! Limits that machines share through a store, as operators see them: in the metrics, the status,
//! the log, and the output of commands.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use spop_codec::Value;

use crate::support::server_groups::{cluster, cluster_url};
use crate::support::spop::Spop;
use crate::support::valkey::{Server, valkey};
use crate::support::{Agent, admin, directory, needs, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<IpAddr>().unwrap())
}

fn store() -> Server {
    Server::start(&["--maxmemory-policy", "noeviction"])
}

/// Starts an agent that shares its limit of 10/h, and waits until it has reached the store.
fn agent(table: &Path, server: &Server, more: &[&str]) -> (Agent, String) {
    // A machine for tests may stand still for longer than a request should wait.
    let limit = ["--rate", "10/h", "--store", &server.url(), "--store-wait", "10s"];
    let (agent, address) = admin::start(table, &[&limit, more].concat());
    wait_until("the store is used", || status(&address)["store"]["up"] == true);
    (agent, address)
}

/// The agent's own status now: the status of all agents can be half a second old.
fn status(address: &str) -> Json {
    serde_json::from_str(&admin::get(address, "/status?own").body).unwrap()
}

/// The value of a series in the metrics.
fn metric(address: &str, series: &str) -> f64 {
    let text = admin::get(address, "/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

#[test]
fn the_status_the_metrics_and_the_log_say_when_the_store_is_away() {
    needs!(valkey());
    let (directory, mut server) = (directory(), store());
    let (agent, address) = agent(&directory.path().join("table"), &server, &[]);
    let mut spop = Spop::connect(&agent.address);
    // One after the other: late replies come in any order.
    let allowed = (0..12).filter(|_| !spop.is_blocked(&[("ip", ip("192.0.2.1"))])).count();
    assert!(allowed <= 10, "{allowed}");

    wait_until("the agent knows how many machines there are", || {
        status(&address)["store"]["leases"]["machines"] == 1
    });
    let (mut status, mut asks) = (Json::Null, 0);
    // It asks now and then by itself.
    wait_until("all replies have come, or all but one", || {
        status = self::status(&address);
        asks = status["store"]["asks"].as_u64().unwrap();
        let replies = status["store"]["replies"].as_u64().unwrap();
        replies > 0 && asks.abs_diff(replies) <= 1
    });
    let store = &status["store"];
    assert_eq!((&store["up"], &store["away_seconds"]), (&true.into(), &Json::Null), "{store}");
    let granted = store["granted_cells"].as_u64().unwrap();
    assert!(granted > 0 && granted >= u64::try_from(allowed).unwrap(), "{store}");
    assert_eq!(status["policies"][0]["shared"], "share");
    wait_until("the sum over the agents has it", || {
        admin::status(&address)["together"]["store"]["asks"].as_u64() >= Some(asks)
    });
    assert!(metric(&address, "gcra_store_up") > 0.0);
    assert!(metric(&address, "gcra_store_waited_total") > 0.0);
    assert!(metric(&address, "gcra_store_answer_seconds_total") > 0.0);
    let fallback = "gcra_store_fallback_total{policy=\"default\",verdict=\"blocked\"}";
    assert!(metric(&address, fallback) < 1.0);

    server.kill();
    wait_until("the store is away", || {
        // Only what is asked finds out.
        spop.is_blocked(&[("ip", ip("192.0.2.2"))]);
        self::status(&address)["store"]["up"] == false
    });
    // At this moment a full burst may be owed, so the share is nothing.
    assert!(spop.is_blocked(&[("ip", ip("192.0.2.3"))]));
    let explained = explained(&address);
    assert_eq!(
        (&explained["asks_store"], &explained["held"][0]["now"]),
        (&false.into(), &"away".into())
    );
    assert_eq!(explained["away"]["agent_says_so"], true, "{explained}");
    let because = explained["away"]["because"].as_str().unwrap();
    let share = "this machine's share (the limit divided by 1 machine) allows no request yet";
    // For a moment, it may be that another agent of the machine still uses the store.
    assert!(because == share || because.starts_with("there is no share"), "{because}");
    let blocked = (explained["blocked"].as_bool(), explained["reason"].is_string());
    assert_eq!(blocked, (Some(true), true), "{explained}");
    assert!(metric(&address, "gcra_store_up") < 1.0);
    assert!(metric(&address, "gcra_store_away_seconds_total") > 0.0);
    assert!(metric(&address, fallback) > 0.0);
    let store = &self::status(&address)["store"];
    assert!(store["away_seconds"].as_f64() > Some(0.0), "{store}");
    assert!(store["faults"][0].as_str().unwrap().contains("there is no connection"), "{store}");
    let has_line = |said: &str| {
        wait_until(said, || agent.process.lines().iter().any(|line| line.contains(said)));
    };
    has_line(
        "requests are decided without the store: policy 'default': each machine allows its share \
         of the limit; 1 machine was seen",
    );

    server.restart();
    has_line(" decided without the store in ");
    assert!(self::status(&address)["store"]["up"] == true);
}

/// An agent whose policy uses shares, and 40 clients.
struct Sharing {
    agent: Agent,
    address: String,
    spop: Spop,
}

impl Sharing {
    fn start(directory: &Path, url: &str) -> Self {
        let file = directory.join("gcra-spoa.toml");
        let config = format!(
            "[store]\nurl = \"{url}\"\nwait = \"5s\"\nleast_replicas = 0\n\
             [policy.check]\nlimits = [\"100/s burst 100\"]\nkey = [\"ip\"]\nshared = true\n"
        );
        fs::write(&file, config).unwrap();
        let args = ["--config", file.to_str().unwrap()];
        let (agent, address) = admin::start(&directory.join("table"), &args);
        let spop = Spop::connect(&agent.address);
        Self { agent, address, spop }
    }

    fn wait_for_the_store(&self) {
        wait_until("the store is used", || status(&self.address)["store"]["up"] == true);
    }

    fn ask_all(&mut self) {
        for client in 0..40 {
            self.spop.is_blocked(&[("ip", ip(&format!("192.0.2.{client}")))]);
        }
    }

    /// How many requests were decided without the store.
    fn fallback(&self, verdict: &str) -> f64 {
        let series = "gcra_store_fallback_total{policy=\"check\",verdict=";
        metric(&self.address, &format!("{series}\"{verdict}\"}}"))
    }

    fn has_a_share_within(&mut self, time: Duration) -> bool {
        let (before, start) = (self.fallback("allowed"), Instant::now());
        while self.fallback("allowed") <= before && start.elapsed() < time {
            self.ask_all();
            thread::sleep(Duration::from_millis(10));
        }
        self.fallback("allowed") > before
    }

    /// Kills a server when it is known how many machines there are, and waits until a share is
    /// used. That is so after a while, and if the agent was not stopped just before.
    fn lose(&mut self, server: &mut Server) {
        for _ in 0..4 {
            self.wait_for_the_store();
            thread::sleep(Duration::from_secs(9));
            server.kill();
            if self.has_a_share_within(Duration::from_secs(20)) {
                return;
            }
            server.restart();
        }
        panic!("no share is used");
    }
}

/// No share begins in a hang of less than half a second, so shares cost nothing then.
#[test]
fn a_store_that_hangs_now_and_then_blocks_no_more_with_shares_than_without() {
    needs!(valkey());
    let (directory, mut server) = (directory(), store());
    let policies = ["share", "closed"];
    // A busy machine takes longer for a reply than a store should, without being hung.
    let mut config = format!("[store]\nurl = \"{}\"\nwait = \"500ms\"\n", server.url());
    for name in policies {
        config += &format!(
            "[policy.{name}]\nlimits = [\"100/s burst 20\"]\nkey = [\"ip\"]\nshared = true\n\
             without_store = \"{name}\"\n"
        );
    }
    let file = directory.path().join("gcra-spoa.toml");
    fs::write(&file, config).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let (agent, address) = admin::start(&directory.path().join("table"), &args);
    wait_until("the store is used", || status(&address)["store"]["up"] == true);
    let mut spop = Spop::connect(&agent.address);
    let mut allowed = [0_u32; 2];
    // Of either policy, for so long and so many requests, however busy the machine is.
    let mut ask = |milliseconds, requests| {
        let (start, time) = (Instant::now(), Duration::from_millis(milliseconds));
        let mut asked = 0;
        while asked < requests || start.elapsed() < time {
            for (name, allowed) in policies.iter().zip(&mut allowed) {
                let message = [("ip", ip("192.0.2.1"))];
                let said = spop.ask(&[(name, &message)]);
                *allowed += u32::from(said.iter().any(|(_, _, is_blocked)| !is_blocked));
            }
            asked += 1;
            thread::sleep(Duration::from_millis(2));
        }
    };
    for _ in 0..7 {
        server.freeze();
        ask(800, 2);
        server.thaw();
        wait_until("the store is used again", || status(&address)["store"]["up"] == true);
        ask(1_100, 60);
    }
    let [share, closed] = allowed;
    assert!(closed > 100, "{allowed:?}");
    // With shares that were in the way, it was a hundredth.
    assert!(2 * share > closed, "{allowed:?}");
}

#[test]
fn shares_are_used_for_the_keys_of_one_server_of_a_cluster() {
    needs!(valkey());
    let (directory, mut nodes) = (directory(), cluster(3));
    let mut sharing = Sharing::start(directory.path(), &cluster_url(&nodes));
    sharing.lose(&mut nodes[2]);
    assert!(sharing.fallback("blocked") > 0.0, "a share does not begin at once");
    let granted = |sharing: &Sharing| status(&sharing.address)["store"]["granted_cells"].as_u64();
    let before = granted(&sharing);
    wait_until("the other servers are used", || {
        sharing.ask_all();
        granted(&sharing) > before
    });
}

#[test]
fn an_agent_that_is_started_again_in_an_outage_goes_on_with_its_share() {
    needs!(valkey());
    let goes_on = |_| {
        let (directory, mut server) = (directory(), store());
        let mut sharing = Sharing::start(directory.path(), &server.url());
        sharing.lose(&mut server);
        drop(sharing.agent);
        let mut again = Sharing::start(directory.path(), &server.url());
        let has_a_share = again.has_a_share_within(Duration::from_secs(30));
        server.restart();
        again.wait_for_the_store();
        has_a_share
    };
    // On a busy machine it may be too late for that when it is started again.
    assert!((0..3).any(goes_on));
}

/// Shares may have been used in the outage, but none is used when the store is asked again.
#[test]
fn after_an_outage_a_reset_forgives_what_shares_may_have_allowed() {
    needs!(valkey());
    let (directory, mut server) = (directory(), store());
    let table = directory.path().join("table");
    let (agent, address) = agent(&table, &server, &[]);
    server.kill();
    // So long that shares can begin.
    thread::sleep(Duration::from_secs(4));
    server.restart();
    wait_until("the store is asked", || explained(&address)["asks_store"] == true);
    let mut spop = Spop::connect(&agent.address);
    let name = |client: u32| format!("192.0.2.{client}");
    let mut allowed = |client: u32, requests| spop.allowed(&[("ip", ip(&name(client)))], requests);
    let owed: Vec<_> = (1..=10).map(|client| allowed(client, 12)).collect();
    assert_eq!(owed, [0; 10], "a full burst may be owed");
    // A cell that is lent for a request counts as spent if the reply comes after its lease has
    // ended, as on a busy machine. But that does not happen to each client.
    let mut has_its_burst = |client| {
        let (burst, more) = (allowed(client, 12), allowed(client, 12));
        assert!(burst + more <= 10, "{burst} and {more}");
        burst == 10
    };
    let of_one = (101..=110).any(|client| {
        let (words, _) = said(&table, &["table", "reset", &name(client)]);
        assert!(words.contains("the store had nothing"), "{words}");
        has_its_burst(client)
    });
    assert!(of_one, "one client is reset");
    let (words, status) = said(&table, &["table", "reset", "--policy", "default"]);
    assert_eq!(status, Some(0), "{words}");
    let mut spop = Spop::connect(&agent.address);
    wait_until("all are reset", || spop.allowed(&[("ip", ip("192.0.2.200"))], 1) == 1);
    assert!((1..=10).any(has_its_burst), "all clients are reset");
}

/// The explanation of the agent for a client that it does not know.
fn explained(address: &str) -> Json {
    let explained = admin::get(address, "/explain?arg=ip=192.0.2.99").body;
    serde_json::from_str::<Json>(&explained).unwrap()[0].clone()
}

#[test]
fn explain_says_what_is_decided_while_the_store_is_away() {
    needs!(valkey());
    let (directory, mut server) = (directory(), store());
    let table = directory.path().join("table");
    let (agent, address) = agent(&table, &server, &["--without-store", "closed"]);
    let command = ["explain", "ip=192.0.2.99"];
    let is_asked = "the store is asked about a request now, and decides\n";
    wait_until("the agent uses the store", || said(&table, &command).0.contains(is_asked));
    assert_eq!(explained(&address)["asks_store"], true);
    // The agent uses it, and this command could not reach it.
    let elsewhere = [&command[..], &["--store", "redis://127.0.0.1:1"]].concat();
    let (text, _) = said(&table, &elsewhere);
    let perhaps = "the store decides about a request now, if agents can reach it\n";
    assert!(text.contains(perhaps), "{text}");

    server.kill();
    wait_until("the agent says so", || explained(&address)["away"].is_object());
    let explained = explained(&address);
    let reason = (&explained["reason"], &explained["blocked"], &explained["asks_store"]);
    assert_eq!(reason, (&"store".into(), &true.into(), &false.into()), "{explained}");
    let because = "the policy is \"closed\" without the store";
    assert_eq!(explained["away"]["because"], because);
    // The lists say it, too: the client is blocked, and nobody knows until when.
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("ip", "192.0.2.98".parse::<IpAddr>().unwrap().into())], 3), 0);
    let status = status(&address);
    let client = &status["policies"][0]["top_blocked"][0];
    let listed = (&client["client"], &client["reason"], &client["wait_ms"]);
    assert_eq!(listed, (&"192.0.2.98".into(), &"store".into(), &Json::Null), "{client}");
    wait_until("the command says so", || {
        let (text, _) = said(&table, &command);
        let begins = "the agents of this machine have not used the store for ";
        let ends = format!("; a request now is blocked, because {because}\n");
        text.contains(begins) && text.contains(&ends)
    });
}

fn run(table: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.args(args).arg("--table").arg(table).output().unwrap()
}

/// The output of a command, and its exit status.
fn said(table: &Path, args: &[&str]) -> (String, Option<i32>) {
    let output = run(table, args);
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

fn json(table: &Path, args: &[&str]) -> Json {
    let output = run(table, &[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn commands_say_what_this_machine_holds() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let table = directory.path().join("table");
    let (agent, address) = agent(&table, &server, &["--without-store", "closed"]);
    let explain = ["explain", "ip=192.0.2.1"];
    wait_until("the agent says which limits it has", || {
        said(&table, &explain).0.contains("the store is asked about a request now, and decides\n")
    });
    let (unknown, _) = said(&table, &explain);
    for words in [
        "10 per hour, up to 10 at once: this machine holds no cells\n",
        "\n  shared: all machines that use the store count together, and what the client owes is \
         there; without the store, requests are blocked\n",
    ] {
        assert!(unknown.contains(words), "{words}: {unknown}");
    }
    let get = ["table", "get", "192.0.2.1"];
    let (text, status) = said(&table, &get);
    assert!(text.starts_with("192.0.2.1: this machine holds no cells\n"), "{text}");
    assert_eq!(status, Some(1), "nothing is known");

    let mut spop = Spop::connect(&agent.address);
    wait_until("the client is blocked", || spop.is_blocked(&[("ip", ip("192.0.2.1"))]));
    let (blocked, _) = said(&table, &explain);
    assert!(
        blocked.contains("a request now is blocked; the store is asked again in "),
        "{blocked}"
    );
    assert!(!blocked.contains("the next one is allowed"), "nobody knows that: {blocked}");
    let (text, status) = said(&table, &get);
    assert!(text.starts_with("192.0.2.1: blocked on this machine for another "), "{text}");
    assert_eq!(status, Some(0));
    let of_agent = admin::get(&address, "/explain?arg=ip=192.0.2.1").body;
    let of_agent: Json = serde_json::from_str(&of_agent).unwrap();
    assert_eq!(of_agent[0]["held"][0]["now"], "blocked", "{of_agent}");
    assert_eq!(of_agent[0]["blocked"], true);

    // Cells that are counted under a shared limit are not in the table, so no note is about them.
    let (exempt, status) = said(&table, &["exempt", "192.0.2.77", "--for", "1m"]);
    let holds = "on all machines of the store within about 5 seconds (one that is away follows \
                 when it is back); to end it: ";
    assert!(exempt.contains(holds) && !exempt.contains("does not know"), "{exempt}");
    assert_eq!(status, Some(0));

    let info = json(&table, &["table", "info"]);
    let leases = &info["leases"];
    let count = |what: &str| leases[what].as_u64().unwrap();
    // It is blocked, and the store is not asked before that is over, so it may have spent cells to
    // report.
    assert_eq!((count("entries"), count("blocked") + count("over")), (2048, 1), "{leases}");
    assert!(leases["asks"].as_u64() > Some(0) && leases["machines"] == 1, "{leases}");
    let (words, _) = said(&table, &["table", "info"]);
    let file = format!("{}.leases", table.display());
    let begins = format!("\nleases {file}: 2048 entries, 72 KiB; 1 machine was seen\n");
    assert!(words.contains(&begins), "{words}");
    let (checked, status) = said(&table, &["table", "check"]);
    assert!(checked.contains(&format!("leases {file}: no fault in 2048 entries\n")), "{checked}");
    assert_eq!(status, Some(0));

    // The file of leases is enlarged by removing it.
    let (resized, _) = said(&table, &["table", "resize", "--slots", "8192"]);
    assert!(resized.contains(&format!("leases in {file} stay, with 2048 entries")), "{resized}");
    wait_until("the agent uses the new table", || {
        json(&table, &["table", "info"])["processes"].as_array().is_some_and(|it| it.len() == 1)
    });
    std::fs::remove_file(&file).unwrap();
    wait_until("there is a larger file of leases", || {
        json(&table, &["table", "info"])["leases"]["entries"] == 4096
    });

    // The entries begin behind the header.
    agent.stop();
    let damaged = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    damaged.write_all_at(&[0xff; 16], 8192).unwrap();
    let (checked, status) = said(&table, &["table", "check"]);
    assert!(checked.contains("entry 0: it is damaged\n"), "{checked}");
    assert!(checked.contains(&format!("leases {file}: 1 fault; too much may")), "{checked}");
    assert_eq!(status, Some(1));
}

/// The store is asked about the record that the agents use, and it forgets what was owed.
fn asks_and_clears(table: &Path, agent: &Agent, address: &str, explain: &[&str], reset: &[&str]) {
    let mut spop = Spop::connect(&agent.address);
    let args: [(&str, Value<'_>); 1] = [("ip", ip("192.0.2.1"))];
    wait_until("the client is blocked", || spop.ask(&[("api", &args)])[0].2);
    let explained = || json(table, explain)["held"][0]["store"].clone();
    // Spent cells are charged when the lease expires, if they were not reported before that.
    wait_until("the store knows what was spent", || explained()["owed"].as_u64() > Some(0));
    let store = explained();
    assert!(store["machines"].is_u64() && store["full_after_ms"].as_u64() > Some(0), "{store}");
    let (words, _) = said(table, explain);
    assert!(words.contains("; in the store: ") && words.contains(" of 10 free; "), "{words}");
    assert!(!words.contains("and not what the store has"), "{words}");

    let (text, status) = said(table, reset);
    assert!(text.contains(" the store has forgotten ") && text.contains(" owed, and "), "{text}");
    assert!(text.contains("'gcra-spoa exempt'"), "{text}");
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(explained()["free"], 10);
    let (words, _) = said(table, explain);
    let nothing = "in the store: nothing is owed or lent, so all 10 are free\n";
    assert!(words.contains(nothing), "{words}");
    // It is still what this machine was told.
    assert!(words.contains("blocked on this machine for another "), "{words}");
    assert!(status_is_up(address));
}

fn status_is_up(address: &str) -> bool {
    status(address)["store"]["up"] == true
}

#[test]
fn the_store_of_a_file_is_asked_and_cleared() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let (table, file) = (directory.path().join("table"), directory.path().join("gcra.toml"));
    let text = format!(
        "[store]\nurl = \"{}\"\nwait = \"10s\"\n[policy.api]\nlimits = [\"10/h\"]\nkey = \
         [\"ip\"]\nshared = true\n",
        server.url()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (agent, address) = admin::start(&table, &["--config", file]);
    wait_until("the store is used", || status_is_up(&address));
    let explain = ["explain", "--config", file, "--ask-store", "ip=192.0.2.1"];
    let reset = ["table", "reset", "--config", file, "192.0.2.1"];
    asks_and_clears(&table, &agent, &address, &explain, &reset);

    drop(server);
    let (text, code) = said(&table, &reset);
    assert!(text.contains("cannot be used: there is no connection"), "{text}");
    assert_eq!(code, Some(1));
    let (text, code) = said(&table, &explain);
    assert!(text.contains("cannot be used: there is no connection"), "{text}");
    assert_eq!(code, Some(0), "what this machine knows is said");
}

#[test]
fn a_reset_finds_what_agents_with_a_key_have_in_the_store() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let table = directory.path().join("table");
    let (agent, address) = agent(&table, &server, &["--key", "user", "--key", "else ip"]);
    wait_until("the store is used", || status_is_up(&address));
    let mut spop = Spop::connect(&agent.address);
    let args = [("user", Value::from("alice")), ("ip", ip("192.0.2.1"))];
    wait_until("the client is blocked", || spop.is_blocked(&args));
    let explain = ["explain", "--ask-store", "user=alice"];
    let in_store = || json(&table, &explain)["held"][0]["store"].clone();
    wait_until("the store knows what was spent", || in_store()["owed"].as_u64() > Some(0));

    let (text, code) = said(&table, &["table", "reset", "bob"]);
    assert!(text.contains("the store had nothing"), "{text}");
    assert_eq!(code, Some(1));
    let (text, code) = said(&table, &["table", "reset", "alice"]);
    assert!(text.contains("alice (as user=alice): the store has forgotten "), "{text}");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(in_store()["free"], 10);
}

#[test]
fn the_store_of_flags_is_asked_and_cleared() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let table = directory.path().join("table");
    let (agent, address) = agent(&table, &server, &[]);
    let info = json(&table, &["table", "info"]);
    assert_eq!(info["flags"], "--rate 10/h --burst 10 --store URL");
    let url = server.url();
    for asked in [
        &["explain", "--ask-store", "ip=192.0.2.1"][..],
        &["explain", "--ask-store", "--store", &url, "ip=192.0.2.1"],
    ] {
        // Without the flags of the agents, a store that takes 50 ms is told to be too late.
        wait_until("the store answers in time", || {
            let (text, code) = said(&table, asked);
            assert_eq!(code, Some(0), "{text}");
            text.contains("in the store: nothing is owed or lent")
        });
    }
    let explain = ["explain", "--ask-store", "ip=192.0.2.1"];
    let reset = ["table", "reset", "192.0.2.1"];
    asks_and_clears(&table, &agent, &address, &explain, &reset);
}
