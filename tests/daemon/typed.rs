//! Values that HAProxy sends with a type, against the texts of a file: integers, booleans, and
//! addresses that have an IPv4 address in them. And limits that messages say, and that are none.

use std::net::IpAddr;
use std::process::Command;

use spop_agent::testing;
use spop_agent::{Scope, Value};

use crate::policies::{Followed, haproxy_with};
use crate::support;
use crate::support::{Agent, Client, directory, needs, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<IpAddr>().unwrap())
}

/// The output of a command about the table of the agent.
fn command(followed: &Followed, name: &[&str], args: &[&str]) -> String {
    let mut command = Command::new(support::agent_binary());
    command.args(name).arg("--table").arg(followed.directory.path().join("table")).args(args);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).unwrap()
}

#[test]
fn overrides_and_when_are_for_integers_and_booleans() {
    let followed = Followed::start(
        "[policy.tls]\nmessage = \"api\"\nkey = [\"ip\"]\nwhen = { tls = [\"0\", \"false\"] }\n\
         limits = \"deny\"\n\
         [policy.api]\nkey = [\"port\"]\nlimits = \"100/h\"\n\
         [policy.api.overrides]\n\"443\" = \"deny\"\n\"true\" = \"deny\"\n",
    );
    let passing = |port: Value<'_>, tls: Value<'_>| {
        followed.passing("api", &[("ip", ip("192.0.2.1")), ("port", port), ("tls", tls)], 1)
    };
    for port in [443_i32.into(), 443_i64.into(), 443_u64.into(), "443".into(), true.into()] {
        assert_eq!(passing(port, true.into()), 0, "{port:?}");
    }
    for port in [444_i64.into(), "0443".into(), 1_i64.into(), false.into()] {
        assert_eq!(passing(port, true.into()), 1, "{port:?}");
    }
    for tls in [false.into(), 0_i64.into(), "0".into(), "false".into()] {
        assert_eq!(passing(444_i64.into(), tls), 0, "{tls:?}");
    }
    // A command says the same of each form.
    for port in ["port=443", "port=int64:443", "port=uint32:443", "port=bool:true"] {
        let said = command(&followed, &["explain"], &[port, "tls=bool:true"]);
        assert!(said.contains("\"deny\"") && said.contains("blocked"), "{port}: {said}");
    }
    let said = command(&followed, &["explain"], &["port=0443", "tls=bool:true"]);
    assert!(!said.contains("\"deny\""), "{said}");
    // The other form has a bucket, and is named.
    let said = command(&followed, &["table", "get"], &["--policy", "api", "444"]);
    assert!(said.contains("the KEY to write is int64:444"), "{said}");
    let said = command(&followed, &["table", "reset"], &["--policy", "api", "int64:444"]);
    assert!(said.contains("int64:444"), "{said}");
    let exempt = ["--policy", "api", "--for", "1h", "443"];
    let said = command(&followed, &["exempt"], &exempt);
    assert!(said.contains("if HAProxy sends 443 as an integer, the KEY to write is int64:443"));
    let said = command(&followed, &["exempt"], &["--policy", "api", "--for", "1h", "int64:443"]);
    assert!(said.contains("exempt for"), "{said}");
    wait_until("it is exempt", || passing(443_i64.into(), true.into()) == 1);
    assert_eq!(passing("443".into(), true.into()), 1, "exempt by the first command");
    assert_eq!(passing(443_u64.into(), true.into()), 0, "another key");
}

#[test]
fn the_log_says_once_what_can_never_match() {
    let config = |value: &str| {
        format!(
            "[policy.when]\nmessage = \"api\"\nkey = [\"ip\"]\nwhen = {{ port = \"{value}\" }}\n\
             limits = \"9/h\"\n\
             [policy.list]\nmessage = \"list\"\nkey = [\"ip\"]\nlimits = \"9/h\"\n\
             [policy.list.overrides]\n\"office.example.com\" = \"deny\"\n"
        )
    };
    let followed = Followed::start(&config("https"));
    let args = [("ip", ip("192.0.2.1")), ("port", 443_i64.into())];
    // No other policy is for it.
    for _ in 0..3 {
        followed.ask(&[("api", &args)]);
        followed.ask(&[("list", &args)]);
    }
    let in_when = "the arg 'port' is an integer, and a value in 'when' of policy 'when' can never \
                   be one; write an integer as its digits, \"443\", or let HAProxy send a string";
    let of_list = "the arg 'ip' is an address, and an override of policy 'list' can never be for \
                   one; write an address or a network, or let HAProxy send a string";
    wait_until("it is logged", || followed.said(in_when) == 1 && followed.said(of_list) == 1);
    followed.reload(&config("443"));
    assert_eq!(followed.passing("api", &args, 1), 1);
    assert_eq!(followed.said(in_when), 1);
}

#[test]
fn a_client_behind_a_translator_is_that_ipv4_client() {
    let followed = Followed::start(
        "nat64 = [\"2001:db8:64::/96\"]\n\
         [policy.api]\nkey = [\"ip\"]\nlimits = \"3/h\"\n\
         [policy.api.overrides]\n\"192.0.2.66\" = \"deny\"\n",
    );
    let passing = |text: &str| followed.passing("api", &[("ip", ip(text))], 1);
    // Each client has a limit of its own.
    for last in 1..=8 {
        assert_eq!(passing(&format!("64:ff9b::203.0.113.{last}")), 1, "{last}");
        assert_eq!(passing(&format!("2001:db8:64::198.51.100.{last}")), 1, "{last}");
    }
    // One client has one limit, however it comes.
    for (text, right) in [
        ("192.0.2.7", 1),
        ("64:ff9b::192.0.2.7", 1),
        ("2002:c000:207:1::1", 1),
        ("2002:c000:207:2::1", 0),
        ("2001:db8:64::192.0.2.7", 0),
        ("::ffff:192.0.2.7", 0),
        ("64:ff9b::192.0.2.66", 0),
        ("2001:db8:64::192.0.2.66", 0),
        ("2002:c000:242:1::1", 0),
    ] {
        assert_eq!(passing(text), right, "{text}");
    }
    let said = command(&followed, &["explain"], &["ip=2001:db8:64::192.0.2.7"]);
    assert!(said.contains("192.0.2.7") && said.contains("blocked"), "{said}");
    for text in ["64:ff9b::192.0.2.7", "2001:db8:64::192.0.2.7", "2002:c000:207:3::1"] {
        let said = command(&followed, &["table", "get"], &[text]);
        assert!(said.contains("blocked"), "{text}: {said}");
    }
    let said = command(&followed, &["table", "reset"], &["64:ff9b::192.0.2.7"]);
    assert!(said.contains("192.0.2.7"), "{said}");
    assert_eq!(passing("192.0.2.7"), 1);
}

#[test]
fn flags_know_these_clients_too() {
    let directory = directory();
    let flags = ["--rate", "3/h", "--slots", "4096", "--drain", "0", "--listen", "127.0.0.1:0"];
    let agent = Agent::start_with(&directory.path().join("table"), &flags);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let blocked = |text: &str| {
        let answer = runtime.block_on(async {
            let mut client = testing::Client::connect(&agent.address).await.unwrap();
            client.ask(&[("check", &[("ip", ip(text))])]).await.unwrap()
        });
        answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true))
    };
    for text in ["192.0.2.7", "64:ff9b::192.0.2.7", "2002:c000:207:1::1", "64:ff9b::192.0.2.8"] {
        assert!(!blocked(text), "{text}");
    }
    for text in ["192.0.2.7", "64:ff9b::192.0.2.7", "2002:c000:207:2::", "::ffff:192.0.2.7"] {
        assert!(blocked(text), "{text}");
    }
}

#[test]
fn a_limit_that_is_none_is_told_with_its_arg() {
    let followed = Followed::start(
        "[policy.plans]\nkey = [\"ip\"]\n\
         limits = { arg = \"rate\", default = \"2/h\", most = \"100/s\" }\n",
    );
    let ask = |rate: Value<'_>| {
        followed.ask(&[("plans", &[("ip", ip("192.0.2.1")), ("rate", rate)])]);
    };
    ask(Value::Null);
    ask("20/10s".into());
    ask("20".into());
    wait_until("it is logged", || {
        followed.said(
            "1 message for policy 'plans' had no limit in the arg 'rate', so its default counted; \
             the last had '20', which has no period; write 20/10s, or the period that is meant",
        ) == 1
    });
    // The next ones are told after a minute.
    (0..3).for_each(|_| ask("\u{1b}[2J".into()));
    wait_until("the agent goes on", || followed.passing("other", &[], 1) == 1);
    assert_eq!(followed.said("had no limit in the arg"), 1);
}

/// `dst_port` is an integer, and `ssl_fc` a boolean.
#[test]
fn haproxy_sends_integers_and_booleans() {
    needs!(support::haproxy());
    let with = |policies: &str| {
        format!(
            "{policies}[policy.check]\nmessage = \"check\"\nkey = [\"port\", \"tls\"]\n\
             limits = \"1000/h\"\n"
        )
    };
    let followed = Followed::start(&with(""));
    let haproxy = haproxy_with(&followed, |spoe| {
        let spoe = spoe.replace("port=str(known)", "port=dst_port");
        let spoe = spoe.replace("tls=str(known)", "tls=ssl_fc");
        assert!(spoe.contains("port=dst_port") && spoe.contains("tls=ssl_fc"), "{spoe}");
        spoe
    });
    let port = haproxy.frontend.port();
    let mut client = Client::new(haproxy.frontend);
    let mut status = || client.get("/").unwrap().status;
    assert_eq!(status(), 200);
    let deny = |of: &str| format!("{}[policy.check.overrides]\n\"{of}\" = \"deny\"\n", with(""));
    let when = |arg: &str, value: &str| {
        with(&format!(
            "[policy.first]\nmessage = \"check\"\nkey = [\"port\"]\nlimits = \"deny\"\n\
             when = {{ {arg} = \"{value}\" }}\n"
        ))
    };
    for (config, right) in [
        (deny(&port.to_string()), 429),
        (deny("1"), 200),
        (deny("0"), 429),
        (deny("false"), 429),
        (when("port", &port.to_string()), 429),
        (when("port", "1"), 200),
        (when("tls", "0"), 429),
        (when("tls", "false"), 429),
        (when("tls", "true"), 200),
    ] {
        followed.reload(&config);
        assert_eq!(status(), right, "{config}");
    }
}
