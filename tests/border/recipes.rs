//! The recipes of docs/RECIPES.md, and the messages of docs/guides/keys.md, with numbers that do
//! not come back while a test runs.

use std::fs;

use crate::common::{fields_with, other_names_of_a_path, spellings, with_a_host};
use crate::row::{attempt, honest};
use crate::set_up::SetUp;
use crate::support::directory;
use crate::support::documents::{Recipe, haproxy_cfg, recipes, spoe_conf};

fn recipe(section: &str) -> Recipe {
    recipes("docs/RECIPES.md").remove(section).unwrap_or_else(|| panic!("no {section}"))
}

/// A recipe with these numbers in its policies, and these words in its blocks for HAProxy.
fn set_up(recipe: &Recipe, numbers: &[(&str, &str)], words: &[(&str, &str)]) -> SetUp {
    let change = |text: &str, changes: &[(&str, &str)]| {
        changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    for (from, _) in numbers {
        assert!(recipe.policies[0].contains(from), "{from} is not in {}", recipe.policies[0]);
    }
    let frontend = &recipe.frontends[0];
    for (from, _) in words {
        assert!(frontend.contains(from) || recipe.messages.contains(from), "{from}: {frontend}");
    }
    let cfg = change(&haproxy_cfg(frontend), words);
    // The application of this test in place of the one in the file.
    let (begin, rest) = cfg.split_once("    server origin ").expect("a server");
    let (_, backends) = rest.split_once("backend undecided").expect("the shipped backends");
    let cfg = format!(
        "{begin}    server app1 \"${{GCRA_APP-127.0.0.1:8000}}\"\nbackend undecided{backends}"
    );
    SetUp::of("haproxy.cfg", cfg)
        .file("spoe-gcra.conf", &change(&spoe_conf(&recipe.messages), words))
        .policies(&change(&recipe.policies[0], numbers))
}

/// With this buffer a text can be longer than a frame of SPOP.
const LARGE: (&str, &str) =
    ("global\n    default-path", "global\n    tune.bufsize 32768\n    default-path");

const SPELLINGS: [&str; 15] = [
    "/PATH%3f/x{n}",
    "/PATH%23/x{n}",
    "/PATH/",
    "/./PATH",
    "/PATH/.",
    "/;x/PATH",
    "/%20;x/PATH",
    "/PATH;v={n}",
    "/%2fPATH",
    "/PATH%20",
    "/%20PATH",
    "/PATH%09",
    "http://shop.example/PATH",
    "/PATH?n={n}",
    "/PATH/;x",
];

const REFUSED: [&str; 7] = [
    "/x/../PATH",
    "/x{n}/..;/PATH",
    "/x{n}%2f..%5cPATH",
    "/x{n}\\..\\PATH",
    "/%2e%2e/PATH",
    "/PATH%00x{n}",
    "\\PATH",
];

fn of(paths: &[&str], path: &str, method: &str, more: &str) -> Vec<String> {
    let line = |spelling: &&str| format!("{method} {}{more}", spelling.replace("PATH", path));
    paths.iter().map(line).collect()
}

/// Very many spellings of a path, in requests that are the same otherwise.
fn spelled(path: &str, method: &str, more: &str) -> Vec<String> {
    spellings(path).iter().map(|path| format!("{method} {path}{more}")).collect()
}

#[test]
fn logins_by_a_form() {
    let recipe = recipe("Logins, by address and by account");
    let numbers =
        [("\"5/m burst 10\", \"50/h\"", "\"30/d\""), ("10/h", "3/d"), ("\"15m\"", "\"2d\"")];
    let form = "Content-Type: application/x-www-form-urlencoded";
    let post = format!("POST /login\n{form}\n\n");
    let login = format!("{post}user=a{{id}}&password=right");
    // The account is over its limit, which no spelling of it or of the request changes.
    let over = |row: &str| attempt(row).ask(&login, "200 200 200 429");
    let account = |user: &str| format!("{post}user={user}&password=right");
    set_up(&recipe, &numbers, &[]).check(&[
        honest("an account has a limit")
            .ask(&login, "200 200")
            .from("127.23.{id}.1")
            .ask(&login, "200 429")
            .ask(account("b{id}"), "200"),
        honest("an address has a limit")
            .ask(account("c{n}"), &["200"; 30].join(" "))
            .ask(account("c{n}"), "429"),
        honest("the page of the login is no login")
            .ask("GET /login?next=/x", "401 401 401 401 401")
            .ask("HEAD /login", "401"),
        honest("all forms")
            .ask(account("J%C3%B6rg%40example.com&superuser=1&xuser=2"), "200")
            .ask(account(&format!("d{{id}}&a=1+2&comment={}", "x".repeat(4000))), "200")
            .ask(account("h{id}").replace("urlencoded", "urlencoded; charset=\"UTF-8\""), "200")
            .ask(account("f{id}&comment=a%0d%0ab;c&next=%2F%3Fx"), "200")
            .ask(account("g{id}&next=%2Fp%3Fa%3D1%26user%3D5"), "200")
            .ask("GET /login?next=%2Fp%3Fa%3D1%26user%3D5", "401")
            .ask(
                "POST /login HTTP/2\ncontent-type: application/x-www-form-urlencoded; \
                 charset=UTF-8\ncontent-length: 22\n\nuser=e1&password=right",
                "200",
            ),
        honest("other paths")
            .ask("POST /logins/7\nContent-Type: application/json\n\n{}", "200 200 200 200")
            .ask("PUT /login-help\n\nuser=1", "200")
            .ask("GET /blog/login", "200"),
        over("another spelling of the path")
            .ask_each(
                of(&SPELLINGS, "LOGIN", "POST", &format!("\n{form}\n\nuser=a{{id}}&a=right")),
                "429",
            )
            .ask_each(
                of(&REFUSED, "login", "POST", &format!("\n{form}\n\nuser=a{{id}}&a=right")),
                "400|-",
            )
            .ask(format!("POST /login%zz\n{form}\n\nuser=a{{id}}"), "400")
            .ask(format!("POST /x{{n}}\nX-Original-URL: /login\n{form}\n\nuser=a{{id}}"), "200")
            .sees_no("path: /login"),
        over("a path that some take for a host").ask_each(
            with_a_host("/login")
                .iter()
                .map(|it| format!("POST {it}\n{form}\n\nuser=a{{id}}&password=right")),
            "400",
        ),
        over("the path is in a field of any name").none_sees(
            fields_with("/login")
                .iter()
                .map(|it| format!("POST /x\n{form}\n{it}\n\nuser=a{{id}}&password=right"))
                .collect(),
            "path: /login\n",
        ),
        over("another spelling of the account").ask_each(
            ["A{id}", "%61{id}", "a{id}+", "+a{id}", "a{id}%20", "a{id}%09"].map(account),
            "429",
        ),
        over("another spelling of the name").ask_each(
            ["%75ser=a{id}", "user=a{id}&x=1"].map(|it| format!("{post}{it}&password=right")),
            "400|429",
        ),
        over("two accounts").ask_each(
            [
                "user=a{id}&user=r{n}",
                "user=r{n}&user=a{id}",
                "user=r{n}&%75ser=a{id}",
                "user=r{n}&USER=a{id}",
                "user=r{n}&user[]=a{id}",
                "user=r{n}&[user]=a{id}",
                "user=r{n}&+user=a{id}",
                "user=r{n}&x=%zz&%75ser=a{id}",
                "user=r{n}&x=%0a&user=a{id}",
                "user=r{n}&x=\n&user=a{id}",
                "user=a{id}&x=%0d%0a&user=r{n}",
                "user=r{n}&user[%0a]=a{id}",
                "user=r{n};user=a{id}",
                "x=1;user=a{id}&user=r{n}",
                "user=a{id}%00",
                "user=r{n}&a=\0&user=a{id}",
                "user=r{n}&user\0=a{id}",
                &format!("user=r{{n}}&x={}\0&user=a{{id}}", "y".repeat(6_000)),
                "user=a{id}%zz",
            ]
            .map(|it| format!("{post}{it}")),
            "400",
        ),
        over("an account elsewhere").ask_each(
            [
                format!("POST /login?user=a{{id}}\n{form}\n\nuser=r{{n}}"),
                format!("POST /login?%75ser=a{{id}}\n{form}\n\nuser=r{{n}}"),
                format!("POST /login?x=%zz&%75ser=a{{id}}\n{form}\n\nuser=r{{n}}"),
                format!("POST /login?x=%0a&user=a{{id}}\n{form}\n\nuser=r{{n}}"),
                format!("POST /login?user[%0a]=a{{id}}\n{form}\n\nuser=r{{n}}"),
                format!("POST /login?user%00x=a{{id}}\n{form}\n\nuser=r{{n}}"),
                "GET /login?user=a{id}&password=right".to_owned(),
                format!("GET /login\n{form}\n\nuser=a{{id}}"),
                format!("{post}password=right"),
                format!("{post}user=&password=right"),
            ],
            "400",
        ),
        over("another type").ask_each(
            [
                "POST /login\nContent-Type: application/json\n\n{\"user\":\"a{id}\"}".to_owned(),
                "POST /login\nContent-Type: multipart/form-data; boundary=x\n\n--x".to_owned(),
                "POST /login\n\nuser=a{id}".to_owned(),
                format!(
                    "POST /login\nContent-Type: application/json\n{form}\n\n{{\"user\":\"&user=r"
                ),
                format!("POST /login\n{form}; charset=ibm037\n\nuser=a{{id}}"),
                format!("POST /login\n{form}\nContent-Encoding: gzip\n\nuser=a{{id}}"),
            ],
            "415",
        ),
        over("another method").ask_each(
            ["PUT", "post"].map(|it| format!("{it} /login\n{form}\n\nuser=a{{id}}")),
            "405",
        ),
        over("a body that HAProxy does not see whole")
            .ask(format!("{post}x={}&user=a{{id}}", "x".repeat(20_000)), "413")
            .ask(format!("{post}user=r{{n}}&x={}&user=a{{id}}", "x".repeat(20_000)), "413")
            .ask(
                format!(
                    "POST /login\n{form}\nX-Long: {}\n\nuser=r{{n}}&x={}&user=a{{id}}",
                    "x".repeat(10_000),
                    "x".repeat(7_000),
                ),
                "413",
            )
            .ask(
                format!("POST /login\n{form}\nTransfer-Encoding: chunked\n\n7\nuser=a1\n0\n\n"),
                "411",
            ),
    ]);
}

/// Many spellings of the path, of which none is another login.
#[test]
fn spellings_of_a_login() {
    let form = recipe("Logins, by address and by account");
    let of_keys = recipes("docs/guides/keys.md").remove("Combining messages").unwrap();
    let header = Recipe { policies: form.policies.clone(), ..of_keys };
    let numbers =
        [("\"5/m burst 10\", \"50/h\"", "\"9000/d\""), ("10/h", "3/d"), ("\"15m\"", "\"2d\"")];
    let body = "\nContent-Type: application/x-www-form-urlencoded\n\nuser=a{id}&password=right";
    for (recipe, more) in [(form, body), (header, "\nX-User: a{id}\nPassword: right")] {
        set_up(&recipe, &numbers, &[]).check(&[attempt("many spellings")
            .ask(format!("POST /login{more}"), "200 200 200 429")
            .none_sees(spelled("/login", "POST", more), "path: /login\n")]);
    }
}

#[test]
fn logins_by_a_header() {
    let recipe = recipes("docs/guides/keys.md").remove("Combining messages").unwrap();
    let policies = self::recipe("Logins, by address and by account").policies;
    let recipe = Recipe { policies, ..recipe };
    let numbers =
        [("\"5/m burst 10\", \"50/h\"", "\"30/d\""), ("10/h", "3/d"), ("\"15m\"", "\"2d\"")];
    let login = "POST /login\nX-User: a{id}\nPassword: right";
    let over = |row: &str| attempt(row).ask(login, "200 200 200 429");
    set_up(&recipe, &numbers, &[]).check(&[
        honest("an account has a limit")
            .ask(login, "200 200")
            .from("127.23.{id}.1")
            .ask(login, "200 429")
            .ask("POST /login\nX-User: J%C3%B6rg{id}\nPassword: right", "200"),
        honest("other paths").ask("GET /", "200 200 200 200").ask("GET /login-help", "200"),
        over("another spelling of the path")
            .ask_each(of(&SPELLINGS, "login", "POST", "\nX-User: a{id}\nPassword: right"), "429")
            .ask("POST /LOGIN\nX-User: a{id}", "429")
            .ask_each(of(&REFUSED, "login", "POST", "\nX-User: a{id}"), "400")
            .ask_each(
                with_a_host("/login").iter().map(|it| format!("POST {it}\nX-User: a{{id}}")),
                "400",
            )
            .ask("POST /login%zz\nX-User: a{id}", "400"),
        over("another spelling of the account").ask_each(
            ["A{id}", "%61{id}", "%20a{id}", "a{id}%09"]
                .map(|it| format!("POST /login\nX-User: {it}")),
            "429",
        ),
        over("another copy").ask_each(
            [
                "POST /login\nX-User: a{id}\nX-User: r{n}",
                "POST /login\nX-User: r{n}\nX-User: a{id}",
                "POST /login\nX-User: a{id},r{n}",
                "POST /login\nX_User: a{id}",
                "POST /login\nX-User: a{id}%zz",
                "POST /login\nX-User: a{id}%00",
                "POST /login\nX-User:",
                "POST /login",
            ],
            "400",
        ),
        over("another name")
            .ask("POST /login\nX_User: a{id}\nX-User: r{n}\nPassword: right", "200")
            .sees_no(": a{id}"),
    ]);
}

#[test]
fn api_keys() {
    let recipe = recipe("By API key, or by address where there is no key");
    let numbers = [("5/s burst 10", "3/d"), ("50/s burst 100", "30/d")];
    let rows = [
        honest("a key has its limit")
            .ask("GET /\nX-Api-Key: k{id}", "200 200")
            .from("127.24.{id}.1")
            .ask("GET /\nX-Api-Key: k{id}", "200 429"),
        honest("without a key the address has it").ask("GET /", "200 200 200 429"),
        honest("a long key")
            .ask(format!("GET /\nX-Api-Key: {}", "k".repeat(3000)), "200 200 200 429"),
        attempt("another copy")
            .ask("GET /\nX-Api-Key: k{id}", "200 200 200 429")
            .ask_each(
                [
                    "GET /\nX-Api-Key: k{id}\nX-Api-Key: r{n}",
                    "GET /\nX-Api-Key: k{id},r{n}",
                    "GET /\nX-Api-Key: k{id}\u{b}",
                ],
                "400",
            )
            .ask("GET /\nX_Api_Key: k{id}\nX-Api-Key: r{n}", "200")
            .sees_no(": k{id}"),
        attempt("invented keys")
            .ask("GET /\nX-Api-Key: r{n}", &["200"; 30].join(" "))
            .ask("GET /\nX-Api-Key: r{n}", "429"),
    ];
    set_up(&recipe, &numbers, &[]).check(&rows);
    // A message that is too long for a frame would get no decision.
    let long = format!("GET /\nX-Api-Key: {}{{n}}", "k".repeat(20_000));
    let with_large = set_up(&recipe, &numbers, &[]).change(LARGE.0, LARGE.1);
    with_large.check(&[attempt("a long key")
        .ask("GET /\nX-Api-Key: r{n}", &["200"; 30].join(" "))
        .ask(long, "429 429")]);
}

#[test]
fn offices() {
    let recipe = recipe("Exempt our offices");
    let folder = directory();
    let list = folder.path().join("offices.lst");
    fs::write(&list, "127.25.0.0/16\n").unwrap();
    let words = [("/etc/haproxy/offices.lst", list.to_str().unwrap())];
    let numbers = [("5/s burst 10", "3/d"), ("50/s burst 100", "30/d")];
    set_up(&recipe, &numbers, &words).check(&[
        honest("an office has no limit")
            .from("127.25.{id}.1")
            .ask("GET /\nX-Api-Key: k{id}", "200 200 200 200 200"),
        honest("others have").ask("GET /\nX-Api-Key: l{id}", "200 200 200 429"),
        attempt("an address in a header")
            .ask("GET /\nX-Forwarded-For: 127.25.0.1", "200 200 200 429"),
        attempt("another copy")
            .ask_each(
                ["k\nX-Api-Key: r{n}", "k,r{n}"].map(|it| format!("GET /\nX-Api-Key: {it}")),
                "400",
            )
            .ask("GET /\nX_Api_Key: k{id}\nX-Api-Key: r{n}", "200")
            .sees_no(": k{id}"),
    ]);
}

#[test]
fn exempt_paths() {
    let recipe = recipe("Exempt some paths");
    set_up(&recipe, &[("50/s burst 100", "3/d")], &[]).check(&[
        honest("what is exempt")
            .ask("GET /health", "200 200 200 200 200")
            .ask("GET /static/app-1.2.min.js?v=3", "200 200 200 200 200")
            .ask("GET /static/img/logo_2.png", "200"),
        attempt("a path that only begins like it").ask("GET /api", "200 200 200 429").ask_each(
            [
                "GET /static/../api",
                "GET /static/%2e%2e/api",
                "GET /static/..%2fapi",
                "GET /static/..;/api",
                "GET /static/.././api",
                "GET /static/x/../../api",
                "GET /static/..\\api",
                "GET /static//../api",
                "GET /health/../api",
                "GET /static",
                "GET /static/%zz",
            ],
            "429",
        ),
        attempt("many spellings")
            .ask("GET /api", "200 200 200 429")
            .none_sees(spelled("/static/../api", "GET", ""), "path: /api\n")
            .none_sees(spelled("/api", "GET", ""), "path: /api\n"),
        attempt("a path in another header")
            .ask("GET /health\nX-Original-URL: /api\nX-Rewrite-URL: /api", "200")
            .sees("path: /health"),
    ]);
}

#[test]
fn paths_and_tenants() {
    let recipe = recipe("By path, and by tenant");
    let numbers = [("20/s burst 40", "3/d"), ("500/s burst 1000", "9000/d")];
    let rows = [
        honest("each path has a limit")
            .ask("GET /api\nHost: a{id}", "200 200 200 429")
            .ask("GET /api/7\nHost: a{id}", "200")
            .ask("GET /caf%C3%A9\nHost: a{id}", "200")
            .ask("GET /100%\nHost: a{id}", "200"),
        attempt("another spelling of a path")
            .ask("GET /api\nHost: a{id}", "200 200 200 429")
            .ask_each(of(&SPELLINGS, "api", "GET", ""), "429")
            .ask_each(["GET /API", "GET /%61pi"], "429")
            .ask_each(of(&REFUSED[..6], "api", "GET", ""), "400"),
        attempt("many spellings")
            .ask("GET /api\nHost: b{id}", "200 200 200 429")
            .none_sees(spelled("/api", "GET", "\nHost: b{id}"), "path: /api\n"),
        attempt("no path")
            .ask("OPTIONS *", "200 200 200 429")
            .ask("CONNECT shop.example:443", "429|405|501|-")
            .ask("GET /api%zz", "429"),
        attempt("the root with a dot").ask("GET /", "200 200 200 429").ask("GET /.", "429"),
    ];
    set_up(&recipe, &numbers, &[]).check(&[&rows[..], &other_names_of_a_path()].concat());
    let numbers = [("20/s burst 40", "90/d"), ("500/s burst 1000", "3/d")];
    let with_large = set_up(&recipe, &numbers, &[]).change(LARGE.0, LARGE.1);
    let long = format!("GET /{}", "a".repeat(20_000));
    with_large.check(&[
        honest("each tenant has a limit")
            .ask("GET /\nHost: t{id}.example", "200 200 200 429")
            .ask("GET /\nHost: [2001:db8:{id}:{n}::1]:443", "200 200 200 200")
            .ask("GET /\nHost: xn--caf-dma{id}.example:8080", "200"),
        attempt("another spelling")
            .ask("GET /\nHost: t{id}.example", "200 200 200 429")
            .ask("GET /\nHost: t{id}.example:8{n}", "429 429")
            .ask("GET /\nHost: T{id}.example.", "429")
            .ask("GET http://t{id}.example/\nHost: t{id}.example", "429"),
        attempt("no host").ask("GET / HTTP/1.0", "400").ask_each(
            ["u@t", "t,r{n}", "t/", "t:80:80", "t .", ""].map(|it| format!("GET /\nHost: {it}")),
            "400",
        ),
        attempt("a long path")
            .ask("GET /\nHost: l{id}", "200 200 200 429")
            .ask(format!("{long}\nHost: l{{id}}"), "429"),
        attempt("a long host").ask(format!("GET /\nHost: {}{{n}}", "a".repeat(9000)), "400"),
        attempt("a host in another header")
            .ask("GET /\nHost: r{n}\nX-Forwarded-Host: t\nX-Host: t\nForwarded: host=t", "200")
            .sees_no("host: t")
            .ask("GET /\nHost: r{n}\nX_Forwarded_Host: t\nX.Original-Host: t", "200")
            .sees_no("host: t")
            .ask("GET /\nHost: r{n}\nX_Forwarded_Server: t\nX-HTTP-Host-Override: t", "200")
            .sees_no(": t\n"),
    ]);
}

#[test]
fn methods() {
    let recipe = recipe("By method");
    set_up(&recipe, &[("10/m", "3/d"), ("100/m", "90/d")], &[]).check(&[
        honest("the others have another limit").ask("GET /", "200 200 200 200 200"),
        honest("these have a limit").ask("POST /\n\na=1", "200 200 200 429").ask("GET /", "200"),
        honest("a preflight")
            .ask("OPTIONS /\nAccess-Control-Request-Method: POST", "200")
            .sees("access-control-request-method: POST"),
        attempt("a method in another header")
            .ask("GET /\nX-HTTP-Method-Override: POST", "200")
            .sees("method: GET")
            .ask("GET /\nX-HTTP-Method: POST", "200")
            .sees("method: GET")
            .ask("GET /\nX-Method-Override: POST", "200")
            .sees("method: GET")
            .ask("GET /\nX_HTTP_Method_Override: POST", "200")
            .sees("method: GET")
            .ask("GET /\nX.Method_Override: POST\nX-HTTP-Verb: POST", "200")
            .sees("method: GET"),
        attempt("a method that nobody knows").ask("post /\n\na=1", "405").ask("FOO /", "405"),
    ]);
}

#[test]
fn websockets() {
    let recipe = recipe("New WebSocket connections");
    let ask = |upgrade: &str| {
        format!(
            "GET /\nConnection: Upgrade\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\
             Upgrade: {upgrade}"
        )
    };
    set_up(&recipe, &[("10/m burst 5", "3/d")], &[]).check(&[
        honest("other requests have no limit").ask("GET /", "200 200 200 200 200"),
        honest("these have").ask(ask("websocket"), "200 200 200 429"),
        attempt("another spelling")
            .ask(ask("websocket"), "200 200 200 429")
            .ask_each(
                ["WebSocket", "websocket, h2c", "h2c, websocket", "websocket/13"].map(ask),
                "429",
            )
            .ask(format!("{}\nUpgrade: h2c", ask("websocket")), "429"),
    ]);
}

#[test]
fn scripts_of_other_origins() {
    let recipe = recipe("Scripts of other origins (CORS)");
    let preflight = "OPTIONS /\nOrigin: https://app.example\nAccess-Control-Request-Method: PUT";
    set_up(&recipe, &[("100/m", "3/d")], &[]).check(&[
        honest("preflights do not count")
            .ask(preflight, "204 204 204 204 204")
            .ask("GET /\nOrigin: https://app.example", "200 200 200 429"),
        attempt("a preflight that is none")
            .ask("OPTIONS /", "200 200 200 429")
            .ask(format!("{preflight}\nX-HTTP-Method-Override: PUT"), "204")
            .sees_no("method"),
    ]);
}

#[test]
fn grpc() {
    let recipe = recipe("gRPC");
    let call = "POST /a.B/C\nContent-Type: application/grpc+proto\nTE: trailers\n\nhi";
    set_up(&recipe, &[("50/s burst 100", "3/d")], &[]).check(&[
        honest("calls have a limit").ask(call, "200 200 200").sees("path: /a.b/c"),
        attempt("too many")
            .ask(call, "200 200 200")
            .sees("path")
            .ask(call, "200 200")
            .sees_no("path")
            .ask("GET /", "429"),
    ]);
}
