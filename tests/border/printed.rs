//! The output of `gcra-spoa check --print-haproxy`, for a policy with a key of each kind.

use std::fs;
use std::process::Command;

use crate::common::{other_names_of_a_path, spellings, upgrade};
use crate::row::{Row, attempt, honest};
use crate::set_up::SetUp;
use crate::support::{agent_binary, directory};

fn print(policies: &str) -> String {
    let folder = directory();
    let file = folder.path().join("policies.toml");
    fs::write(&file, policies).unwrap();
    let mut check = Command::new(agent_binary());
    let output = check.arg("check").arg(file).arg("--print-haproxy").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The text behind these words of a comment, in all lines that have them.
fn said(policies: &str, comment: &str) -> Vec<String> {
    let text = print(policies);
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(comment));
    lines.map(str::to_owned).collect()
}

/// The printed files, with these words in place of others: what the operator has to write.
fn printed(policies: &str, edits: &[(&str, &str)]) -> SetUp {
    let mut text = print(policies);
    for (from, to) in edits {
        assert!(text.contains(from), "'{from}' is not in\n{text}");
        text = text.replace(from, to);
    }
    let files = text.strip_prefix("# ---- spoe-gcra.conf\n");
    let (conf, cfg) = files.unwrap().split_once("# ---- haproxy.cfg\n").unwrap();
    SetUp::of("printed.cfg", cfg.to_owned()).file("spoe-gcra.conf", conf).policies(policies)
}

fn policy(settings: &str) -> String {
    format!("[policy.check]\nlimits = \"3/d\"\n{settings}\n")
}

fn honest_keys() -> Vec<Row> {
    vec![
        honest("a key has its limit, whoever sends it")
            .ask("GET /\nX-Api-Key: k{id}", "200 200")
            .from("127.22.0.1")
            .ask("GET /\nX-Api-Key: k{id}", "200 429")
            .ask("GET /\nX-Api-Key: other{id}", "200"),
        honest("a long key")
            .ask(format!("GET /\nX-Api-Key: {}", "k".repeat(3000)), "200 200 200 429"),
        honest("HTTP/2, spaces, a name in lower case")
            .ask("GET / HTTP/2\nx-api-key: k{id}", "200")
            .ask("GET /\nx-api-key:  k{id} ", "200 200 429"),
    ]
}

fn attempts_on_keys() -> Vec<Row> {
    vec![
        attempt("a second copy of the key")
            .ask("GET /\nX-Api-Key: k{id}", "200 200 200 429")
            .ask("GET /\nX-Api-Key: k{id}\nX-Api-Key: r{n}", "400|429 400|429")
            .ask("GET / HTTP/2\nx-api-key: k{id}\nx-api-key: r{n}", "400|429 400|429"),
        attempt("a name that is the same to a CGI program")
            .ask("GET /\nX_Api_Key: k{id}\nX-Api-Key: r{n}", "200")
            .sees_no(": k{id}")
            .ask("GET /\nX.Api.Key: k{id}\nX-Api-Key: r{n}", "200")
            .sees_no(": k{id}"),
        attempt("what one side strips or splits")
            .ask_each(["GET /\nX-Api-Key: k{id}\u{b}", "GET /\nX-Api-Key: k{id},r{n}"], "400"),
    ]
}

#[test]
fn by_key() {
    let rows = [
        honest_keys(),
        attempts_on_keys(),
        vec![attempt("no key").ask("GET /", "401 401").ask("GET /\nX-Api-Key:", "401")],
    ];
    printed(&policy("key = [\"key\"]"), &[]).check(&rows.concat());
}

#[test]
fn by_key_or_address() {
    let rows = [
        honest_keys(),
        attempts_on_keys(),
        vec![honest("without a key the address has a limit").ask("GET /", "200 200 200 429")],
    ];
    printed(&policy("key = [\"key\", \"else ip\"]"), &[]).check(&rows.concat());
}

/// The text of a key that the file compares is sent as it is.
#[test]
fn by_key_with_an_override() {
    let long = format!("GET /\nX-Api-Key: {}{{n}}", "k".repeat(5000));
    let rows = [
        honest_keys(),
        attempts_on_keys(),
        vec![
            honest("it has the limit of the override")
                .ask("GET /\nX-Api-Key: gold", "200 200 200 200 200 429"),
            attempt("a text that is too long for a frame").ask(long, "400 400"),
        ],
    ];
    let text = policy("key = [\"key\"]\noverrides = { gold = \"5/d\" }");
    printed(&text, &[]).check(&rows.concat());
}

/// All plans are told apart, for any text of the key.
#[test]
fn by_plan() {
    let text = "[policy.gold]\nmessage = \"m\"\nwhen = { plan = \"gold\" }\nlimits = \"5/d\"\n\
                key = [\"key\"]\n[policy.free]\nmessage = \"m\"\nlimits = \"3/d\"\n\
                key = [\"key\"]\n";
    let folder = directory();
    let map = folder.path().join("plans.map");
    fs::write(&map, "rich gold\n").unwrap();
    let set_up = printed(text, &[("/etc/haproxy/plans.map", map.to_str().unwrap())]);
    let rows = [
        honest_keys(),
        attempts_on_keys(),
        vec![
            honest("a key of the map").ask("GET /\nX-Api-Key: rich", "200 200 200 200 200 429"),
            attempt("a key of the map beside another one")
                .ask("GET /\nX-Api-Key: rich\nX-Api-Key: k{id}", "400 400"),
        ],
    ];
    set_up.check(&rows.concat());
}

const PATHS: [&str; 17] = [
    "/api%3f/x{n}",
    "/api%23/x{n}",
    "/api/",
    "/API",
    "/%61pi",
    "/./api",
    "/api/.",
    "/;x/api",
    "/%20;x/api",
    "/api;v={n}",
    "/api;v={n}/",
    "/%2fapi",
    "/api%20",
    "/%20api",
    "/api%09",
    "http://shop.example/api",
    "/api?n={n}",
];

const REFUSED_PATHS: [&str; 9] = [
    "/x/../api",
    "/x{n}/..;/api",
    "/x{n}%2f..%5capi",
    "/x{n}\\..\\api",
    "/%2e%2e/api",
    "/api%00x{n}",
    "/api%zz",
    "*",
    "\\api",
];

#[test]
fn by_path() {
    let spellings = PATHS.map(|path| format!("GET {path}"));
    let refused = REFUSED_PATHS.map(|path| format!("GET {path}"));
    let rows = [
        honest("each path has a limit")
            .ask("GET /", "200 200 200 429")
            .ask("GET /api", "200 200 200 429")
            .ask("GET /api/7", "200")
            .sees("path: /api/7")
            .ask("GET /caf%C3%A9", "200")
            .ask("GET /.well-known/x", "200")
            .ask("GET /a...b?next=/../c", "200")
            .ask("GET /q?next=//e/%zz", "200"),
        attempt("another spelling of a path")
            .ask("GET /api", "200 200 200 429")
            .ask_each(spellings, "429"),
        attempt("a path that servers take for another one").ask_each(refused, "400"),
        attempt("many spellings")
            .ask("GET /api", "200 200 200 429")
            .none_sees(spelled("/api", ""), "path: /api\n"),
        attempt("no path").ask("OPTIONS *", "400").ask("CONNECT shop.example:443", "405"),
    ];
    printed(&policy("key = [\"ip\", \"path\"]"), &[])
        .check(&[&rows[..], &other_names_of_a_path()].concat());
}

fn spelled(path: &str, fields: &str) -> Vec<String> {
    spellings(path).iter().map(|path| format!("GET {path}{fields}")).collect()
}

/// The path is compared in the form that the comment names.
#[test]
fn by_a_path_that_a_policy_names() {
    let text =
        "[policy.check]\nlimits = \"3/d\"\nkey = [\"ip\"]\nwhen = { path = [\"/\", \"/api\"] }\n";
    printed(text, &[]).check(&[
        honest("other paths have no limit").ask("GET /other", "200 200 200 200 200"),
        attempt("another spelling")
            .ask("GET /api", "200 200 200 429")
            .ask_each(PATHS.map(|path| format!("GET {path}")), "429")
            .ask("GET /", "429"),
        attempt("many spellings")
            .ask("GET /api", "200 200 200 429")
            .none_sees(spelled("/api", ""), "path: /api\n"),
        attempt("a text that is too long for a frame")
            .ask(format!("GET /{}", "a".repeat(5000)), "400"),
    ]);
}

#[test]
fn by_host() {
    printed(&policy("key = [\"host\"]"), &[]).check(&[
        honest("each host has a limit")
            .ask("GET /\nHost: a{id}.example", "200 200 200 429")
            .ask("GET /\nHost: b{id}.example", "200")
            .ask("GET /\nHost: xn--caf-dma{id}.example", "200")
            .ask("GET /\nHost: 192.0.2.{id}", "200"),
        honest("each address is a host")
            .ask("GET /\nHost: [2001:db8:{id}:1::1]:443", "200 200 200 429")
            .ask("GET /\nHost: [2001:db8:{id}:2::1]:443", "200"),
        attempt("another spelling of the host")
            .ask("GET /\nHost: t{id}.example", "200 200 200 429")
            .ask_each(
                [
                    "GET /\nHost: t{id}.example:81",
                    "GET /\nHost: t{id}.example.",
                    "GET /\nHost: t{id}.example..:8{n}",
                    "GET /\nHost: T{id}.Example",
                    "GET http://t{id}.example/\nHost: t{id}.example",
                ],
                "429",
            ),
        attempt("no host").ask("GET / HTTP/1.0", "400").ask_each(
            ["u@t", "t,r{n}", "t/", "t:80:80", "t .", ""].map(|it| format!("GET /\nHost: {it}")),
            "400",
        ),
        attempt("a host in another header")
            .ask("GET /\nHost: r{n}.example\nX-Forwarded-Host: t\nX-Host: t", "200")
            .sees_no("host: t")
            .ask("GET /\nHost: r{n}.example\nForwarded: host=t", "200")
            .sees_no("host=t")
            .ask("GET /\nHost: r{n}.example\nX_Forwarded_Host: t\nX.Original-Host: t", "200")
            .sees_no("host: t")
            .ask(
                "GET /\nHost: r{n}.example\nX_Forwarded_Server: t\nX-HTTP-Host-Override: t",
                "200",
            )
            .sees_no(": t\n"),
    ]);
}

#[test]
fn by_url() {
    printed(&policy("key = [\"url\"]"), &[]).check(&[
        honest("each URL has a limit")
            .ask("GET /u{id}?a=1", "200 200 200 429")
            .ask("GET /u{id}?a=2", "200"),
        attempt("another form")
            .ask("GET /v{id}", "200 200 200 429")
            .ask("GET http://shop.example/v{id}", "429"),
        attempt("a long one").ask(format!("GET /?{}", "a".repeat(9000)), "200 200 200 429"),
        attempt("no path").ask("OPTIONS *", "400"),
    ]);
}

#[test]
fn by_method() {
    let text = policy("key = [\"ip\"]\nwhen = { method = [\"POST\", \"DELETE\"] }");
    printed(&text, &[]).check(&[
        honest("other methods have no limit")
            .ask("GET /", "200 200 200 200")
            .ask("HEAD /", "200")
            .ask("OPTIONS /\nAccess-Control-Request-Method: POST", "200")
            .sees("access-control-request-method: POST"),
        honest("these have").ask("POST /\n\na=1", "200 200 200 429"),
        attempt("a method in another header")
            .ask_each(
                [
                    "GET /\nX-HTTP-Method-Override: POST",
                    "GET /\nX-HTTP-Method: POST",
                    "GET /\nX-Method-Override: POST",
                    "GET /\nX_HTTP_Method_Override: POST",
                    "GET /\nX.HTTP-Verb: POST",
                ],
                "200",
            )
            .sees("method: GET"),
        attempt("a method that nobody knows")
            .ask("post /\n\na=1", "405")
            .ask(format!("{} /", "A".repeat(5000)), "405"),
    ]);
}

/// A set-up with the sample and the conditions that the comments name for it.
fn by_user(place: &str, key: &str) -> SetUp {
    let text = policy(key);
    let said = said(&text, &format!("# Of {place}: "));
    let [sample, conditions] = &said[..] else { panic!("{said:?}") };
    let edits = [
        ("user=EDIT-THIS", format!("user={sample}")),
        ("unless EDIT-THIS", format!("unless {conditions}")),
    ];
    printed(&text, &edits.each_ref().map(|(from, to)| (*from, to.as_str())))
}

#[test]
fn by_a_header() {
    let rows = [
        honest("a user has a limit")
            .ask("GET /\nX-User: u{id}", "200 200 200 429")
            .ask("GET /\nX-User: v{id}", "200"),
        attempt("another copy").ask("GET /\nX-User: u{id}\nX-User: r{n}", "400 400"),
        attempt("another name").ask("GET /\nX_User: u{id}\nX-User: r{n}", "200").sees_no("u{id}"),
        attempt("two users in one field").ask("GET /\nX-User: u{id},r{n}", "400 400"),
        attempt("a long name")
            .ask(format!("GET /\nX-User: {}", "u".repeat(9000)), "200 200 200 429"),
    ];
    let none = attempt("no user").ask("GET /", "400");
    by_user("a header", "key = [\"user\"]").check(&[&rows[..], &[none]].concat());
    let none = honest("no user").ask("GET /", "200 200 200 429");
    by_user("a header", "key = [\"user\", \"else ip\"]").check(&[&rows[..], &[none]].concat());
}

#[test]
fn by_a_cookie() {
    let rows = [
        honest("a session has a limit")
            .ask("GET /\nCookie: a=1; user=u{id}==; b=2", "200 200 200 429")
            .ask("GET /\nCookie: user=v{id}%3A7", "200")
            .ask("GET /\nCookie: user=\"w{id}\"", "200")
            .ask("GET /\nCookie: theme=\"dark, blue\"; user=x{id}; p={\"a\":1,\"b\":[2]}", "200")
            .ask_each(
                [
                    "%D0%B0%D0%BD%D0%BD%D0%B0{id}",
                    "%D0%BE%D0%BB%D1%8F{id}",
                    "\u{e9}{id}",
                    "\u{e8}{id}",
                ]
                .map(|it| format!("GET /\nCookie: user={it}")),
                "200",
            )
            .ask("GET /\nCookie: superuser=1; user=y{id}; next=\\d; sale=100%", "200")
            .ask("GET / HTTP/2\ncookie: a=1\ncookie: user=z{id}\ncookie: b=2", "200 200 200 429"),
        attempt("another copy").ask_each(
            [
                "GET /\nCookie: user=u{id}; user=r{n}",
                "GET /\nCookie: user=r{n}; user=u{id}",
                "GET /\nCookie: user=u{id}\nCookie: user=r{n}",
                "GET /\nCookie: user=%zz{n}",
                "GET /\nCookie: user=r{n}; USER=u{id}",
                "GET /\nCookie: us%65r=u{id}; user=r{n}",
                "GET /\nCookie: us%65r=u{id}",
                "GET /\nCookie: user=r{n}; user[a]=u{id}",
            ],
            "400",
        ),
        attempt("in quotes, which some servers read and others do not").ask_each(
            [
                "GET /\nCookie: x=\"; user=u{id}",
                "GET /\nCookie: x=\"; user=u{id}; y=\"",
                "GET /\nCookie: x=a\\\"; user=u{id}",
                "GET /\nCookie: user=\"r{n}; user=u{id}; z=\"",
                "GET /\nCookie: user=r{n}\"; user=u{id}",
                "GET /\nCookie: user=\"r{n}\\\"; user=u{id}\"",
                "GET /\nCookie: x=\"; user=u{id}\"; y=1,user=r{n}",
                "GET /\nCookie: x={\"a\":\"b; user=u{id}",
                "GET /\nCookie: x=\"; user=u{id}\nCookie: user=r{n}",
                "GET /\nCookie: x=\"\nCookie: user=u{id}",
                "GET /\nCookie: user=\"\\165{id}\"",
                "GET / HTTP/2\ncookie: x=\"\ncookie: user=u{id}",
            ],
            "400",
        ),
        attempt("another spelling")
            .ask("GET /\nCookie: user=kk{id}", "200 200 200 429")
            .ask("GET /\nCookie: user=\"kk{id}\"", "429")
            .ask("GET /\nCookie: user=%6bk{id}", "429")
            .ask("GET /\nCookie: user= kk{id} ; x=1", "429"),
    ];
    let none = attempt("no session").ask("GET /\nCookie: xuser=1", "400");
    by_user("a cookie", "key = [\"user\"]").check(&[&rows[..], &[none]].concat());
    let none = honest("no session").ask("GET /\nCookie: xuser=1", "200 200 200 429");
    by_user("a cookie", "key = [\"user\", \"else ip\"]").check(&[&rows[..], &[none]].concat());
}

#[test]
fn by_the_query() {
    let rows = [
        honest("a value has a limit")
            .ask("GET /?a=1&user=u{id}&b=2", "200 200 200 429")
            .ask("GET /?user=v{id}&superuser=1&next=%2F%3Fx", "200")
            .ask("GET /?user=w{id}&next=%2Fp%3Fa%3D1%26user%3D5%3buser%3D6", "200"),
        attempt("another copy").ask_each(
            [
                "GET /?user=u{id}&user=r{n}",
                "GET /?user=r{n}&user=u{id}",
                "GET /?user=r{n}&%75ser=u{id}",
                "GET /?%75ser=u{id}&user=r{n}",
                "GET /?user=r{n};user=u{id}",
                "GET /?user=r{n}&USER=u{id}",
                "GET /?user=r{n}&user[]=u{id}",
                "GET /?user=r{n}&[user]=u{id}",
                "GET /?user=r{n}&+user=u{id}",
                "GET /?user=r{n}&x=%zz&%75ser=u{id}",
                "GET /?user=r{n}&x=%0a&user=u{id}",
                "GET /?user=r{n}%0a&user=u{id}",
                "GET /?user=r{n}&user[%0a]=u{id}",
                "GET /?user=r{n}&%0auser=u{id}",
                "GET /?user=r{n}&user%00x=u{id}",
                "GET /??user=r{n}&user=u{id}",
                "GET /?a=?user=r{n}&user=u{id}",
            ],
            "400",
        ),
        attempt("another spelling")
            .ask("GET /?user=kk{id}", "200 200 200 429")
            .ask("GET /?user=%6bk{id}", "429")
            .ask_each(
                ["kk{id}+", "+++kk{id}", "k+k{id}", "kk{id}%20", "%09kk{id}%0d%0a", "k%2Bk{id}"]
                    .map(|it| format!("GET /?user={it}")),
                "429",
            ),
        attempt("a name that is spelled in another way")
            .ask("GET /?%75ser=u{id}", "400")
            .ask("GET /?User=u{id}", "400")
            .ask("GET /?user[]=u{id}", "400")
            .ask("GET /?[user]=u{id}", "400")
            .ask("GET /?user[%0a]=u{id}", "400")
            .ask("GET /?%0auser=u{id}", "400")
            .ask("GET /?user%00x=u{id}", "400"),
    ];
    let none = attempt("no value").ask("GET /", "400").ask("GET /?a=1", "400");
    by_user("the query", "key = [\"user\"]").check(&[&rows[..], &[none]].concat());
    let none = honest("no value").ask("GET /", "200 200").ask("GET /?a=%26user%3D1", "200 429");
    by_user("the query", "key = [\"user\", \"else ip\"]").check(&[&rows[..], &[none]].concat());
}

#[test]
fn by_ip() {
    printed(&policy("key = [\"ip\"]"), &[]).check(&[
        honest("each address has a limit").ask("GET /", "200 200 200 429"),
        attempt("it goes on in HTTP/2, where nobody counts")
            .none_sees(vec![upgrade("GET /", "h2c"), upgrade("GET /", "h2c\nUpgrade: x")], "h2c"),
        attempt("another address in a header")
            .ask("GET /\nX-Forwarded-For: 192.0.2.{n}\nX-Real-IP: 192.0.2.{n}", "200 200 200 429"),
    ]);
}

/// A client that does not wait for the answer is charged all the same.
#[test]
fn settled() {
    let text = "[policy.login]\nlimits = \"3/d\"\nkey = [\"ip\"]\nsettle = \"failed\"\n";
    let edits = [("-m found } EDIT-THIS", "-m found } { status 401 }")];
    printed(text, &edits).check(&[
        honest("what succeeds is free")
            .ask("GET /login\nPassword: right", "200 200 200 200 200")
            .ask("GET /login\nPassword: wrong", "401 401 401 429"),
        attempt("another spelling of the path")
            .ask("GET //login", "401")
            .ask("GET /%6cogin", "401")
            .ask("GET /LOGIN/", "401")
            .ask("GET /login;x=1", "429"),
        attempt("a client that leaves")
            .leave_later("GET /login\nSlowly: 1", 8)
            .ask("GET /login", "429 429"),
    ]);
    let text = "[policy.llm]\nlimits = \"100000/d\"\nkey = [\"key\"]\nreserve = 100\n\
                cost = \"tokens\"\nsettle = \"usage\"\n";
    let edits = [("tokens=EDIT-THIS", "tokens=res.fhdr(x-tokens)")];
    let costs = "GET /\nX-Api-Key: k{id}\nCosts: 50000";
    printed(text, &edits).check(&[
        honest("a key has its tokens").ask(costs, "200 200 429"),
        attempt("a second copy of the key").ask(format!("{costs}\nX-Api-Key: r{{n}}"), "400 400"),
        attempt("a client that leaves")
            .leave_later(&format!("{costs}\nSlowly: 1"), 4)
            .ask(costs, "429 429"),
    ]);
}

/// The condition that the comment proposes.
#[test]
fn several_messages() {
    let text = "[policy.login]\nlimits = \"3/d\"\nkey = [\"ip\"]\n[policy.api]\n\
                limits = \"9000/d\"\nkey = [\"ip\"]\n";
    let condition = &said(text, "# { path,")[0];
    let of_login = format!("http-request if {{ path,{condition}\n\nspoe-message api");
    let edits = [
        ("http-request if EDIT-THIS\n\nspoe-message api", of_login.as_str()),
        ("http-request if EDIT-THIS", "http-request"),
    ];
    let set_up = printed(text, &edits);
    let of_login = |path: &str| {
        path.replace("%61pi", "%6cogin").replace("api", "login").replace("API", "LOGIN")
    };
    let spellings = PATHS.map(|path| format!("GET {}", of_login(path)));
    let refused = REFUSED_PATHS.map(|path| format!("GET {path}"));
    set_up.check(&[
        honest("another path").ask("GET /blog/login", "200 200 200 200 200"),
        attempt("another spelling")
            .ask("GET /login\nPassword: right", "200 200 200 429")
            .ask_each(spellings, "429"),
        attempt("a path that servers take for another one").ask_each(refused, "400"),
        attempt("many spellings")
            .ask("GET /login\nPassword: right", "200 200 200 429")
            .none_sees(spelled("/login", "\nPassword: right"), "path: /login\n"),
    ]);
}
