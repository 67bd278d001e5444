//! Policies that machines share decide as local ones do: several limits, costs, overrides,
//! penalties, policies that only observe, several messages, and other numbers after a reload. One
//! agent, with a real store.

use std::fs;
use std::net::Ipv4Addr;
use std::rc::Rc;

use rustix::process::Signal;
use spop_agent::testing::{self, Answer, Client};
use spop_agent::{Scope, Value};
use tempfile::TempDir;

use crate::support::valkey::{Server, valkey};
use crate::support::{Agent, admin, directory, needs, wait_until};

/// An agent with a store and these policies.
struct Shared {
    directory: TempDir,
    agent: Agent,
    /// The address of its status.
    admin: String,
    server: Rc<Server>,
    runtime: tokio::runtime::Runtime,
}

impl Shared {
    fn start(policies: &str) -> Self {
        Self::with(Rc::new(Server::start(&[])), policies)
    }

    /// An agent of a machine that uses this server.
    fn with(server: Rc<Server>, policies: &str) -> Self {
        let directory = directory();
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, config(&server, policies)).unwrap();
        let args = ["--config", file.to_str().unwrap()];
        let (agent, admin) = admin::start(&directory.path().join("table"), &args);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let shared = Self { directory, agent, admin, server, runtime };
        shared.wait_for("is used");
        shared
    }

    fn wait_for(&self, said: &str) {
        wait_until(said, || self.agent.process.lines().iter().any(|line| line.contains(said)));
    }

    fn reload(&self, policies: &str) {
        let file = self.directory.path().join("gcra-spoa.toml");
        fs::write(file, config(&self.server, policies)).unwrap();
        self.agent.process.signal(Signal::HUP);
        self.wait_for("was read again, and is in force");
    }

    fn ask(&self, messages: &[testing::Question<'_>]) -> Answer {
        self.runtime.block_on(async {
            let mut client = Client::connect(&self.agent.address).await.unwrap();
            client.ask(messages).await.unwrap()
        })
    }

    /// How many seconds a request of this cost has to wait.
    fn retry_after(&self, ip: Ipv4Addr, cost: i32) -> u64 {
        let args = [("ip", Value::from(ip)), ("n", Value::from(cost))];
        match self.ask(&[("api", &args)]).var(Scope::Transaction, "retry_after") {
            Some(Value::Uint64(seconds)) => seconds,
            Some(Value::Int64(seconds)) => u64::try_from(seconds).unwrap(),
            Some(Value::Uint32(seconds)) => seconds.into(),
            other => panic!("{other:?}"),
        }
    }

    /// Which requests with these costs are allowed, one after the other.
    fn allowed(&self, ip: Ipv4Addr, costs: &[i32]) -> Vec<bool> {
        let allowed = |cost: &i32| {
            let args = [("ip", Value::from(ip)), ("n", Value::from(*cost))];
            !is(&self.ask(&[("api", &args)]), "blocked")
        };
        costs.iter().map(allowed).collect()
    }

    /// Lets clients send requests of these costs, one client after the other, until these of them
    /// are allowed. Cells that were lent for a moment may expire unused where a machine stands
    /// still, so a client may get less.
    fn expect(&self, first: Ipv4Addr, costs: &[i32], expected: &[bool]) {
        let mut seen = Vec::new();
        for client in 0..20 {
            let got = self.allowed(Ipv4Addr::from(u32::from(first) + client), costs);
            if got == expected {
                return;
            }
            seen.push(got);
        }
        panic!("not {expected:?} but {seen:?}");
    }
}

fn config(server: &Server, policies: &str) -> String {
    // A machine for tests may stand still for longer than a request should wait.
    format!(
        "answer = [\"remaining\", \"reason\", \"policy\", \"retry_after\", \"would_block\"]\n\
         [store]\nurl = \"{}\"\nwait = \"10s\"\n{policies}",
        server.url()
    )
}

fn is(answer: &Answer, name: &str) -> bool {
    answer.var(Scope::Transaction, name) == Some(true.into())
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

#[test]
fn costs_are_charged_under_all_limits_or_under_none() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\ncost = \"n\"\n\
         limits = [\"6/d burst 6\", \"3/h burst 4\"]\n",
    );
    // 2 and 1 of 4 cells; 2 more are too many, and cost nothing. 5 never are allowed.
    let costs = [2, 0, 1, 2, 5, 1, 1, 0];
    shared.expect(CLIENT, &costs, &[true, true, true, false, false, true, false, true]);
    let args = [("ip", Value::from(Ipv4Addr::new(192, 0, 2, 99))), ("n", 5.into())];
    let reason = shared.ask(&[("api", &args)]);
    assert_eq!(reason.var(Scope::Transaction, "reason"), Some("oversize".into()));
}

#[test]
fn overrides_have_limits_of_their_own() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\ncost = \"n\"\nlimits = \"2/h\"\n\
         [policy.api.overrides]\n\"198.51.100.0/24\" = \"3/h\"\n\"203.0.113.1\" = \"deny\"\n\
         \"203.0.113.2\" = \"unlimited\"\n",
    );
    shared.expect(CLIENT, &[1; 4], &[true, true, false, false]);
    let network = Ipv4Addr::new(198, 51, 100, 1);
    // All of the network share one bucket, so there is one attempt.
    let allowed = shared.allowed(network, &[1; 5]).iter().filter(|allowed| **allowed).count();
    assert!((1..=3).contains(&allowed), "{allowed}");
    assert_eq!(shared.allowed(Ipv4Addr::new(203, 0, 113, 1), &[1; 2]), [false; 2]);
    assert_eq!(shared.allowed(Ipv4Addr::new(203, 0, 113, 2), &[1; 9]), [true; 9]);
}

/// A request that has waited for the store once for each limit knows what is free under each.
#[test]
fn what_is_left_under_several_limits_is_known_from_the_first_request_on() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\n\
         limits = [\"1000/d\", \"30/d burst 20\", \"5000/d\"]\n",
    );
    let left = |client| {
        let args = [("ip", Value::from(Ipv4Addr::new(192, 0, 2, client)))];
        let answer = shared.ask(&[("api", &args)]);
        answer.var(Scope::Transaction, "remaining").and_then(|left| left.as_integer())
    };
    let left: Vec<_> = (1..=20).map(left).collect();
    // A lease that arrives late, on a busy machine, may have expired: then another cell is spent.
    assert!(left.iter().all(|left| left.is_some_and(|left| left <= 19)), "{left:?}");
    assert!(left.contains(&Some(19)), "{left:?}");
}

/// A limit is the same whether it is alone in its list or the first of several, so it has one
/// record in the store.
#[test]
fn a_limit_without_a_name_is_one_limit_in_every_list() {
    needs!(valkey());
    for (own_key, ending) in
        [("key = []", ""), ("ipv4_prefix = 16", "without_store = \"closed\"\n")]
    {
        let for_all = format!("{{ rate = \"20/d\", burst = 20, {own_key} }}");
        let has_most = |_| {
            let shared = Shared::start(&format!(
                "[policy.api]\nshared = true\nkey = [\"ip\"]\n{ending}limits = {for_all}\n\
                 [policy.api.overrides]\n\"192.0.2.0/24\" = [{for_all}, \"900/s burst 900\"]\n"
            ));
            // Clients with the override and clients without it, by turns.
            let clients =
                (1..=60).flat_map(|last| [2, 3].map(|net| Ipv4Addr::new(192, 0, net, last)));
            let allowed = clients.filter(|ip| shared.allowed(*ip, &[1]) == [true]).count();
            println!("{allowed} of 20, with {own_key}");
            assert!(allowed <= 20, "{allowed} of 20, with {own_key}");
            allowed >= 10
        };
        // Where the machine stands still, lent cells expire unused.
        assert!((0..5).any(has_most), "with {own_key}");
    }
}

#[test]
fn what_only_observes_and_trials_block_nobody() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.dry]\nmessage = \"dry\"\nshared = true\nkey = [\"ip\"]\nmode = \"observe\"\n\
         limits = \"2/h\"\n\
         [policy.api]\nshared = true\nkey = [\"ip\"]\nlimits = \"9/h\"\nobserve = \"2/h\"\n",
    );
    for message in ["dry", "api"] {
        let some_conform = |client| {
            let args = [("ip", Value::from(Ipv4Addr::from(u32::from(CLIENT) + client)))];
            let answers: Vec<_> = (0..4).map(|_| shared.ask(&[(message, &args)])).collect();
            assert!(answers.iter().all(|answer| !is(answer, "blocked")), "{message}");
            // At most two conform.
            let conform = answers.iter().filter(|answer| !is(answer, "would_block")).count();
            assert!(conform <= 2, "{message}: {conform}");
            conform > 0
        };
        // As in `expect`, a client may get less where the machine stands still.
        assert!((0..5).any(some_conform), "{message}");
    }
    // Of several messages the strongest verdict counts, and each may have to wait.
    let other = [("ip", Value::from(Ipv4Addr::new(192, 0, 2, 99)))];
    let last = (0..12).map(|_| shared.ask(&[("dry", &other), ("api", &other)])).last().unwrap();
    assert!(is(&last, "blocked"));
    assert_eq!(last.var(Scope::Transaction, "policy"), Some("api".into()));
    assert_eq!(last.var(Scope::Transaction, "remaining"), Some(0_u32.into()));
}

#[test]
fn a_client_that_goes_on_asking_waits_longer() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\nlimits = \"6/m burst 1\"\n\
         penalty = { cells = 2, ceiling = \"1m\" }\n",
    );
    let wait = |ip: Ipv4Addr| shared.retry_after(ip, 1);
    // As in `expect`, a client may get less where the machine stands still: not even its burst.
    let client = (0..20)
        .map(|client| Ipv4Addr::from(u32::from(CLIENT) + client))
        .find(|client| wait(*client) == 0)
        .expect("a client that may use its burst");
    // Two cells are 20 s; the ceiling is a minute above the burst of 10 s.
    let waits: Vec<_> = (0..5).map(|_| wait(client)).collect();
    assert!((11..=70).contains(&waits[1]) && waits[1] > waits[0], "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 71), "{waits:?}");
    // The store soon knows the debt that the host has noted. It is there as long as it has not
    // drained.
    let asks = || admin::status(&shared.admin)["store"]["asks"].as_u64().unwrap();
    let before = asks();
    wait_until("the penalties are reported", || asks() > before + 1);
    let later = wait(client);
    assert!((40..=71).contains(&later), "{later}");
}

/// Cells that another machine holds are owed by nobody.
#[test]
fn a_client_within_its_limit_is_not_punished() {
    needs!(valkey());
    let policies = "[policy.api]\nshared = true\nkey = [\"ip\"]\ncost = \"n\"\n\
                    limits = \"20/h burst 20\"\npenalty = { cells = 1, ceiling = \"15m\" }\n";
    let one = Shared::start(policies);
    let other = Shared::with(one.server.clone(), policies);
    // Where the machine stands still, the first one has said by then that its cells are spent, or
    // they have expired before it could use them.
    let waits = (0..20).map(|client| {
        let client = Ipv4Addr::from(u32::from(CLIENT) + client);
        (one.retry_after(client, 10), other.retry_after(client, 11))
    });
    let is_wrong = |(first, second): &(u64, u64)| *first > 0 || *second >= 60;
    let waits: Vec<_> = waits.take_while(is_wrong).collect();
    assert!(waits.len() < 20, "a cell takes 180 s: {waits:?}");
}

#[test]
fn what_is_owed_is_carried_over_when_the_numbers_change() {
    needs!(valkey());
    let policy = |limits: &str| {
        format!(
            "[policy.api]\nshared = true\nkey = [\"ip\"]\ncost = \"n\"\nlimits = \"{limits}\"\n"
        )
    };
    let shared = Shared::start(&policy("4/h"));
    shared.expect(CLIENT, &[1; 6], &[true, true, true, true, false, false]);
    // Whichever client that was, each that has used its burst of 4 may send 2 more of 6.
    shared.reload(&policy("6/h"));
    let allowed = shared.allowed(CLIENT, &[1; 6]).iter().filter(|allowed| **allowed).count();
    assert!(allowed <= 2, "{allowed}");
}

/// Commands know the debt of a client under earlier numbers, and clear it: right after the change,
/// and if the numbers come back. The longest delay makes no whole number of cells.
#[test]
fn what_is_owed_by_earlier_numbers_is_explained_and_cleared() {
    needs!(valkey());
    let policy = |limits: &str| {
        format!(
            "[policy.api]\nshared = true\nwithout_store = \"closed\"\nkey = [\"ip\"]\n\
             max_delay = \"7s\"\nlimits = {limits}\n"
        )
    };
    let shared = Shared::start(&policy("\"5/h\""));
    let reload = |limits: &str| {
        let is_read = |line: &String| line.contains("was read again, and is in force");
        let count = || shared.agent.process.lines().iter().filter(|line| is_read(line)).count();
        let before = count();
        let file = shared.directory.path().join("gcra-spoa.toml");
        fs::write(file, config(&shared.server, &policy(limits))).unwrap();
        shared.agent.process.signal(Signal::HUP);
        wait_until("the file is read again", || count() > before);
    };
    let args = [("ip", Value::from(CLIENT)), ("rl", Value::String(b"7/h burst 3"))];
    let allowed = |most: usize| {
        let is_allowed = |_: &usize| !is(&shared.ask(&[("api", &args)]), "blocked");
        (0..most).filter(is_allowed).count()
    };
    let [table, file] = ["table", "gcra-spoa.toml"].map(|name| shared.directory.path().join(name));
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(args).arg("--table").arg(&table).arg("--config").arg(&file);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&said).into_owned(), output.status.code())
    };
    let explain = || run(&["explain", "--ask-store", "ip=192.0.2.1", "rl=str:7/h burst 3"]).0;
    let reset = || run(&["table", "reset", "192.0.2.1"]);

    assert_eq!(allowed(6), 5);
    reload("\"4/h burst 4\"");
    let said = explain();
    assert!(said.contains("a request now is blocked"), "{said}");
    assert!(!said.contains("are free"), "{said}");
    let (said, code) = reset();
    assert!(said.contains("the store has forgotten 5 cells owed"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    let said = explain();
    assert!(said.contains("nothing is owed or lent, so all 4 are free"), "{said}");
    // Back to the numbers under which it owed everything.
    reload("\"5/h\"");
    // The agent remembers for a second that the client was blocked.
    wait_until("the client is free", || allowed(1) == 1);
    assert_eq!(allowed(5), 4);

    // The same where messages say the numbers.
    reload("{ name = \"said\", arg = \"rl\", default = \"5/h\", most = \"900/h burst 40\" }");
    assert_eq!(allowed(4), 3);
    let (said, code) = reset();
    assert!(said.contains("limit 'api.said': the store has forgotten 3 cells owed"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    wait_until("the client is free", || allowed(1) == 1);
}

/// A request that waits for the store is asked about several times, and counts once.
#[test]
fn what_messages_say_about_numbers_is_counted_once() {
    needs!(valkey());
    let limits = "limits = { arg = \"rl\", default = \"500/d\", most = \"1000/d\" }\n";
    let shared = Shared::start(&format!(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\n{limits}\
         [policy.slow]\nshared = true\nwithout_store = \"closed\"\nkey = [\"ip\"]\n\
         max_delay = \"1s\"\n{limits}"
    ));
    for client in 0..6 {
        let ip = Ipv4Addr::from(u32::from(CLIENT) + client);
        let args = [("ip", Value::from(ip)), ("rl", Value::String(b"700/d"))];
        let none = [("ip", Value::from(ip))];
        assert!(!is(&shared.ask(&[("api", &args), ("slow", &none), ("slow", &args)]), "blocked"));
    }
    let status = admin::status(&shared.admin);
    let counted = |policy: &str, said: &str| {
        let policies = status["policies"].as_array().unwrap();
        let policy = policies.iter().find(|it| it["name"] == policy).unwrap();
        policy["limit_args"][said].as_u64().unwrap()
    };
    let all = ["api", "slow"].map(|policy| ["valid", "missing"].map(|said| counted(policy, said)));
    assert_eq!(all, [[6, 0], [6, 6]], "{status}");
}

/// The cells that a machine holds of the earlier numbers were not spent.
#[test]
fn cells_that_are_held_when_the_numbers_change_are_owed_by_nobody() {
    needs!(valkey());
    let policy = |limits: &str| {
        format!("[policy.api]\nshared = true\nkey = [\"ip\"]\nlimits = \"{limits}\"\n")
    };
    let shared = Shared::start(&policy("2/h burst 50"));
    let clients: Vec<_> = (0..20).map(|it| Ipv4Addr::from(u32::from(CLIENT) + it)).collect();
    for client in &clients {
        assert_eq!(shared.allowed(*client, &[1; 6]), [true; 6]);
    }
    shared.reload(&policy("2/h burst 40"));
    // A machine that stands still may hold them until they are over.
    let allowed = |client: &Ipv4Addr| {
        let allowed = shared.allowed(*client, &[1; 41]);
        allowed.iter().filter(|allowed| **allowed).count()
    };
    let allowed: Vec<_> = clients.iter().map(allowed).collect();
    assert!(allowed.contains(&34), "{allowed:?}");
    assert!(allowed.iter().all(|allowed| *allowed <= 34), "{allowed:?}");
}

/// With another key clients begin anew in the store, too, and no former client is one of now.
#[test]
fn a_client_does_not_block_its_new_group() {
    needs!(valkey());
    let policy = |prefix: u32| {
        format!(
            "[policy.api]\nshared = true\nwithout_store = \"closed\"\nkey = [\"ip\"]\n\
             limits = \"2/h burst 3\"\nmax_delay = \"1ms\"\nipv4_prefix = {prefix}\n"
        )
    };
    let shared = Shared::start(&policy(32));
    // The first address of its group.
    let [one, other] = [Ipv4Addr::new(192, 0, 2, 0), Ipv4Addr::new(192, 0, 2, 4)];
    assert_eq!(shared.allowed(one, &[1; 4]), [true, true, true, false]);
    shared.reload(&policy(24));
    assert_eq!(shared.allowed(other, &[1; 2]), [true, true]);
    assert_eq!(shared.allowed(one, &[1; 2]), [true, false], "the group has used up its limit");
    shared.reload(&policy(32));
    wait_until("the first key is back", || shared.allowed(other, &[1]) == [true]);
    assert_eq!(shared.allowed(one, &[1]), [false]);
}

/// The store forgets what a client owes under whatever numbers its messages have said.
#[test]
fn a_reset_clears_the_buckets_of_all_numbers_that_messages_said() {
    needs!(valkey());
    let shared = Shared::start(
        "[policy.api]\nshared = true\nkey = [\"ip\"]\nlimits = { arg = \"rl\", default = \
         \"5/d\", most = \"100/d\" }\n",
    );
    let args = [("ip", Value::from(CLIENT)), ("rl", Value::String(b"2/d"))];
    wait_until("the client is blocked", || is(&shared.ask(&[("api", &args)]), "blocked"));
    let [table, file] = ["table", "gcra-spoa.toml"].map(|name| shared.directory.path().join(name));
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(args).arg("--table").arg(&table).arg("--config").arg(&file);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    let is_free = || {
        let said = run(&["explain", "--ask-store", "ip=192.0.2.1", "rl=str:2/d"]);
        said.contains("in the store: nothing is owed or lent, so all 2 are free")
    };
    wait_until("the store knows what is owed", || !is_free());
    // The agent writes down within a second which numbers messages have said.
    wait_until("the reset has cleared them", || {
        let said = run(&["table", "reset", "192.0.2.1"]);
        assert!(said.contains("the store "), "{said}");
        is_free()
    });
}
