//! The configuration for HAProxy.

use crate::file::tests::{SETTLED, api, good, parse};

const HOST: &str = "req.hdr(host),host_only,regsub('[.]+$',),lower,sha2(256),hex";
const PATH: &str = concat!(
    "path,url_dec,lower,regsub([[:space:][:cntrl:]],,g),regsub('[?#].*',),regsub(';[^/]*',,g),",
    r#"regsub('/[./]*/',/,g),'regsub("(^/|[^./])[./]+$","\1")',sha2(256),hex"#
);

#[test]
fn the_args_for_haproxy_are_those_of_all_policies_of_a_message() {
    let policies = parse(
        "[policy.a]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\nlimits = \"1/s\"\n\
         [policy.b]\nmessage = \"m\"\nkey = [\"ip\"]\ncost = \"c\"\nlimits = \"1/s\"\n",
    )
    .unwrap();
    let printed = policies.haproxy_text();
    let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
    assert_eq!(args, "ip=src plan=src,map_ip(/etc/haproxy/plans.map,b) c=int(1)");
}

/// Without the arg the trial would say nothing about any request.
#[test]
fn the_args_for_haproxy_are_also_those_of_trials() {
    let policies = good(
        "[policy.api]\nkey = [\"ip\"]\nlimits = \"1/s\"\nobserve = [{ rate = \"2/s\", key = \
         [\"host\", \"else path\"] }, { arg = \"plan\", default = \"1/s\", most = \"2/s\" }]\n",
    );
    let printed = policies.haproxy_text();
    let args = printed.lines().find_map(|line| line.trim().strip_prefix("args ")).unwrap();
    let plan = "plan=src,map_ip(/etc/haproxy/plans.map)";
    assert_eq!(args, format!("ip=src host={HOST} path={PATH} {plan}"));
    assert!(printed.contains("# plan: create /etc/haproxy/plans.map, "), "{printed}");
}

#[test]
fn what_haproxy_has_to_be_told_names_everything() {
    let text = good(
        r#"answer = ["retry_after", "ratelimit", "ratelimit_policy"]
[policy.gold]
message = "api"
when = { plan = "gold" }
limits = "10/s"
key = ["ip"]
[policy.api]
limits = "1/s"
key = ["ip", "path"]
cost = "n"
[policy.login]
limits = "5/m"
"#,
    )
    .haproxy_text();
    let args = format!(
        "    args ip=src path={PATH} plan=src,map_ip(/etc/haproxy/plans.map,api) n=int(1)"
    );
    for line in [
        "    messages api login",
        "    # plan: create /etc/haproxy/plans.map, with a line for each address ('ADDRESS \
         gold'); the others are 'api'",
        "    # n: int(1) charges each request one cell",
        &args,
        "    http-request deny status 400 unless { path,url_dec -m beg / }\n",
        "    event on-frontend-http-request if EDIT-THIS",
        "For every request, leave out the condition, from 'if' on.",
        "    args ip=src\n",
        "http-after-response set-header RateLimit %[var(txn.gcra.ratelimit)]",
        "hdr Retry-After \"%[var(txn.gcra.retry_after)]\" if { var(txn.gcra.blocked) -m bool }",
        "    # To see them in the log, add these to 'answer' in the agents' file: \"policy\", \
         \"reason\"",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    // The log line is that of the shipped files.
    let names = good(
        "answer = [\"limit_name\", \"client\"]\n[policy.a]\nlimits = \"1/s\"\nkey = [\"ip\"]\n",
    );
    for (text, shipped) in [
        (&text, include_str!("../../../../../haproxy/haproxy.cfg")),
        (&names.haproxy_text(), include_str!("../../../../../haproxy/policies.cfg")),
    ] {
        let printed = text.lines().find(|line| line.starts_with("    log-format")).unwrap();
        assert!(shipped.lines().any(|line| line == printed), "{printed}");
    }
    // In other scopes there is only what HAProxy can have.
    let in_scope = |scope: &str| {
        good(&format!(
            "scope = \"{scope}\"\nanswer = [\"ratelimit\"]\n[policy.a]\nlimits = \"1/s\"\n"
        ))
        .haproxy_text()
    };
    let text = in_scope("res");
    for line in ["event on-http-response\n", "http-response deny", "var(res.gcra.ratelimit)"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let text = in_scope("sess");
    for line in [
        "    # rule of haproxy/tcp.cfg.\n    event on-frontend-http-request\n",
        "sess.gcra.blocked",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let text = in_scope("req");
    assert!(!text.contains("http-after-response") && !text.contains("log-format"), "{text}");
}

/// A map tells API keys apart if there are any.
#[test]
fn a_plan_belongs_to_an_api_key() {
    let text = good(
        "[policy.gold]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\nlimits = \"9/s\"\n\
         key = [\"ip\", \"key\"]\n[policy.free]\nmessage = \"m\"\nlimits = \"1/s\"\n",
    )
    .haproxy_text();
    for line in [
        "    # plan: create /etc/haproxy/plans.map, with a line for each key ('KEY gold'); the \
         others are 'free'\n",
        "    # key: a request without this header gets no decision, unless the policy has an \
         'else' in its key\n",
        "    # policy 'free' has no 'key', so all args are its key but those of its 'when' \
         and 'cost'\n",
        "    args ip=src key=req.fhdr(x-api-key),sha2(256),hex \
         plan=req.fhdr(x-api-key),map(/etc/haproxy/plans.\
         map,free)\n    event on-frontend-http-request\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_retry_after_is_printed_only_if_the_agent_says_it() {
    let printed =
        |answer: &str| good(&format!("{answer}\n{}", api("limits = \"1/h\""))).haproxy_text();
    let without = printed("");
    assert!(!without.contains("hdr Retry-After"), "{without}");
    let comment = "    # For a Retry-After header, add \"retry_after\" to 'answer' in the agents' \
                   file, and\n    # print this again.\n    http-request deny status 429 ";
    assert!(without.contains(comment), "{without}");
    let with = printed("answer = [\"retry_after\"]");
    assert!(with.contains("hdr Retry-After \"%[var(txn.gcra.retry_after)]\" if {"), "{with}");
    assert!(!with.contains("For a Retry-After header"), "{with}");
}

#[test]
fn both_messages_of_a_settled_policy_are_printed_for_haproxy() {
    let tokens = "[policy.llm]\nlimits = \"100000/m\"\nkey = [\"key\", \"else ip\"]\n\
                  reserve = 500\ncost = \"tokens\"\nsettle = \"llm-usage\"\n";
    let printed = good(tokens).haproxy_text();
    for lines in [
        "    messages llm llm-usage gcra-undecided\n",
        "spoe-message llm\n    # key: a key that a client sends elsewhere, in the query or \
         a cookie, is not counted. Each key that a client invents has a limit of its own: deny \
         keys that are not valid, or add a policy by address\n    # ip: a client can own an IPv6 \
         /48, with 65536 limits of its own: a second limit with ipv6_prefix = 48 holds it\n    \
         args key=req.fhdr(x-api-key),sha2(256),hex ip=src\n    event \
         on-frontend-http-request\n",
        "spoe-message llm-usage\n    # tokens: write its sample, for example res.fhdr(x-tokens) \
         for a header of the response\n    args key=var(txn.request_key) ip=src tokens=EDIT-THIS \
         reserved=var(txn.gcra.reserved)\n    # Each response to a request that was decided.\n    \
         event on-http-response if { var(txn.gcra.blocked) -m found }\n",
        "    http-request set-var(txn.request_key) req.fhdr(x-api-key),sha2(256),hex\n",
        "\n    no option abortonclose\n",
    ] {
        assert!(printed.contains(lines), "{lines}\n{printed}");
    }
    let printed = good(&api(SETTLED)).haproxy_text();
    let lines = "spoe-message failed\n    args ip=src\n    # Which responses cost a cell? For \
                 example those with { status 401 }.\n    event on-http-response if { \
                 var(txn.gcra.blocked) -m found } EDIT-THIS\n";
    assert!(printed.contains(lines), "{printed}");
    assert!(!printed.contains("set-var(txn."), "{printed}");
}

/// A text that a client writes is hashed, has one spelling, and is there once. Where the file
/// compares a text, the text is sent, and its length has a bound.
#[test]
fn what_a_client_writes_is_printed_with_rules() {
    let printed = |settings: &str| good(&api(settings)).haproxy_text();
    let one_copy = "    http-request deny status 400 if { req.fhdr_cnt(x-api-key) gt 1 } or {";
    let names = "    http-request del-header [^A-Za-z0-9-] -m reg\n";
    let needed = "    http-request deny status 401 unless { req.fhdr(x-api-key) -m len gt 0 }\n";
    let long = "-m len gt 4000 }\n";
    let key = "key=req.fhdr(x-api-key)";
    for (settings, arg, rules, absent) in [
        ("key = [\"key\"]", "key,sha2(256),hex", &[one_copy, names, needed][..], long),
        ("key = [\"key\", \"else ip\"]", "key,sha2(256),hex", &[one_copy, names], needed),
        ("key = [\"key\"]\nlowercase = true", "key", &[one_copy, names, long], "sha2"),
        ("key = [\"key\"]\noverrides = { a = \"9/s\" }", "key", &[one_copy, names, long], "sha2"),
        ("key = [\"ip\"]\nwhen = { key = \"a\" }", "key", &[one_copy, names, long], "sha2"),
        (
            "key = [\"ip\"]\noverrides = { \"192.0.2.1\" = \"9/s\" }",
            "ip=src",
            &[],
            "deny status 400",
        ),
        ("key = [\"host\"]\nlowercase = true", HOST, &["unless { req.fhdr(host) -m reg ^("], long),
        ("key = [\"path\"]", PATH, &["{ path -m beg // } or { path -m sub %00 }\n"], names),
        ("key = [\"url\"]", "url=pathq,sha2(256),hex", &["unless { path -m beg / }\n"], long),
        ("key = [\"method\"]", "method=method\n", &["status 405 unless { method GET "], long),
        (
            "key = [\"user\"]",
            "user=EDIT-THIS",
            &[
                "    # Of a header: { req.fhdr_cnt(x-user) eq 1 } !{ req.fhdr(x-user) -m reg \
                 [^!-~]|, }\n    # Of a cookie: { req.cook_cnt(user) eq 1 } { \
                 req.cook(user),url_dec \
                 -m found } !{ req.cook(user) -m sub ",
                "http-request deny status 400 unless EDIT-THIS\n",
                names,
            ],
            "-m len le",
        ),
        (
            "key = [\"user\", \"else ip\"]\nlowercase = true",
            "    # Of a header: req.fhdr(x-user)\n",
            &["[^!-~]|, } { req.fhdr(x-user) -m len le 4000 } or { req.fhdr_cnt(x-user) eq 0 }\n"],
            "sha2",
        ),
    ] {
        let text = printed(&format!("limits = \"1/s\"\n{settings}"));
        let arg = match arg {
            "key" => format!("{key}\n"),
            _ => arg.replace("key,", &format!("{key},")),
        };
        assert!(text.contains(&arg), "{arg}\n{text}");
        for rule in rules {
            assert!(text.contains(rule), "{settings}: {rule}\n{text}");
        }
        assert!(!text.contains(absent), "{settings}: {absent}\n{text}");
    }
    // With several messages not each request has a key, and the path may choose among them.
    let both = "[policy.a]\nlimits = \"1/s\"\nkey = [\"key\"]\n[policy.b]\nlimits = \"1/s\"\n";
    let text = good(both).haproxy_text();
    assert!(text.contains("{ path,url_dec -m beg / }") && !text.contains(needed), "{text}");
}
