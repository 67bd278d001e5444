//! Set-ups that count by path, by group of paths, or by failed logins on a path.

use crate::common::{any_request, fields_with, spellings};
use crate::row::{Row, attempt, honest};
use crate::set_up::SetUp;

/// Honest paths, and what the application sees of each.
const HONEST: [(&str, &str); 10] = [
    ("/a%20b", "/a b"),
    ("/caf%C3%A9", "/cafã©"),
    ("/x;v=1", "/x"),
    ("/a/../b", "/b"),
    ("/A/B/", "/a/b"),
    ("/100%25", "/100%"),
    ("/100%", "/100%"),
    ("/?next=//e/..", "/"),
    ("/.well-known/x", "/.well-known/x"),
    ("/group%2Fproject", "/group/project"),
];

fn honest_paths() -> Vec<Row> {
    let paths = HONEST.iter().map(|(path, seen)| {
        honest(path).ask(format!("GET {path}"), "200").sees(&format!("path: {seen}\n"))
    });
    paths.collect()
}

fn spelled(path: &str, method: &str) -> Vec<String> {
    spellings(path).iter().map(|path| format!("{method} {path}")).collect()
}

#[test]
fn group() {
    let mut rows = [any_request("/api"), honest_paths()].concat();
    rows.extend([
        honest("other paths have no limit")
            .ask("GET /", "200 200 200 200 200")
            .ask("GET /docs/api", "200 200 200 200 200")
            .ask("GET /caf%C3%A9", "200 200 200 200")
            .ask("OPTIONS *", "200 200 200 200"),
        attempt("other spellings")
            .ask("GET /api", "200 200 200 429")
            .none_sees(spelled("/api", "GET"), "path: /api\n"),
        attempt("paths below it, that cannot be decoded")
            .ask("GET /api/%zz", "200 200 200 429")
            .ask_each(["/%61pi/%", "/x/..//api/%zz"].map(|it| format!("GET {it}")), "400|429")
            .ask("GET /%61pi/%", "429"),
        attempt("the path is in a header")
            .ask("GET /\nX-Original-URL: /api", "200")
            .sees("path: /\n")
            .ask("GET /\nX-Rewrite-URL: /api", "200")
            .sees("path: /\n")
            .ask("GET /\nX_Original_URL: /api", "200")
            .sees("path: /\n"),
    ]);
    rows.extend(odd_paths());
    SetUp::shipped("group.cfg").agent("--rate 3/d").check(&rows);
}

#[test]
fn per_path() {
    let mut rows = [any_request("/login2"), honest_paths()].concat();
    rows.extend([
        honest("each path has its limit")
            .ask("GET /a", "200 200 200 429")
            .ask("GET /b", "200 200 200 429")
            .ask("GET /", "200 200 200 429"),
        attempt("other spellings")
            .ask("GET /api", "200 200 200 429")
            .none_sees(spelled("/api", "GET"), "path: /api\n"),
        attempt("no path").ask("OPTIONS *", "200 200 200 429"),
        attempt("the path is in a header")
            .ask("GET /\nX-Original-URL: /api", "200")
            .sees("path: /\n"),
        attempt("a code for what needs none").ask("GET /a@(b)", "200 200 200 429").ask_each(
            ["/a%40(b)", "/a@%28b%29", "/A%40%28b)"].map(|it| format!("GET {it}")),
            "429",
        ),
    ]);
    rows.extend(odd_paths());
    SetUp::shipped("per-path.cfg").agent("--rate 3/d").check(&rows);
}

/// For a file that counts by path: paths without a spelling of their own.
fn odd_paths() -> Vec<Row> {
    let hosts = ["//h/api", "/\\h/api", "/.//h/api", "/x/..//h/api", "/%2e//h/api"];
    let long = [
        format!("/{}api", "%2f".repeat(4500)),
        format!("/{}api", ";/".repeat(6000)),
        format!("/api{}", "/".repeat(14_000)),
        format!("/api{}", "%2f".repeat(4500)),
        format!("/api{}", "/;".repeat(6000)),
        format!("/api{}", "/%2e".repeat(3000)),
        format!("/api{}", "%20".repeat(4500)),
    ];
    let fields = fields_with("/api").into_iter();
    let fields = fields.map(|field| format!("GET /x{{id}}{{n}}\n{field}")).collect();
    vec![
        attempt("a path that some take for a host")
            .ask_each(hosts.map(|it| format!("GET {it}")), "400"),
        attempt("a path that some end at a zero")
            .ask_each(["/api%00/{n}", "/api/%00"].map(|it| format!("GET {it}")), "400"),
        attempt("a path that some end at a code for ? or #")
            .ask("GET /api", "200 200 200 429")
            .ask_each(
                ["/api%3f/x{n}", "/api%23/x{n}", "/api%3F/%zz{n}"].map(|it| format!("GET {it}")),
                "429",
            )
            .ask_each(
                ["/x{n}%3f%2f..%2fapi", "/api/x{n}%2f..%3fy"].map(|it| format!("GET {it}")),
                "400",
            ),
        attempt("long runs")
            .ask("GET /api", "200 200 200 429")
            .ask_each(long.map(|it| format!("GET {it}")), "429")
            .ask_each(
                [
                    format!("GET /{}api", "/".repeat(14_000)),
                    format!("GET /api{}", "%2f.".repeat(3000)),
                    format!("GET /{}api", "%2f.%2f".repeat(1500)),
                ],
                "400",
            ),
        attempt("the path is in a field of any name").none_sees(fields, "path: /api\n"),
    ]
}

/// Requests that fail to log in, or would.
const WRONG: &str = "POST /login\nPassword: wrong";

#[test]
fn failed_logins() {
    SetUp::shipped("failed-logins.cfg")
        .shipped_policies("failed-logins.toml", &[("3/m", "3/d")])
        .check(&failed_login_rows());
}

/// As spoe-failed-logins.conf says for an application that answers 401 to wrong passwords alone.
#[test]
fn failed_logins_on_any_path() {
    let conf = "spoe-failed-logins.conf";
    let mut rows = failed_login_rows();
    rows.push(
        attempt("a path that nobody has thought of")
            .ask("POST /members", "401 401 401 429")
            .ask(WRONG, "429"),
    );
    SetUp::shipped("failed-logins.cfg")
        .shipped_policies("failed-logins.toml", &[("3/m", "3/d")])
        .change_in(
            conf,
            " if { path,url_dec,url_dec,lower,regsub([[:space:][:cntrl:]],,g) -m sub login } or \
             !{ path,url_dec,url_dec -m found }",
            "",
        )
        .check(&rows.into_iter().filter(|row| !row.name.ends_with(ELSEWHERE)).collect::<Vec<_>>());
}

const ELSEWHERE: &str = "elsewhere nothing is counted";

fn failed_login_rows() -> Vec<Row> {
    vec![
        honest("right passwords are free")
            .ask("POST /login\nPassword: right", "200 200 200 200 200")
            .ask("POST /login\n\npassword=right", "200"),
        attempt("a coded NUL").ask_each(["POST /x%00/../login", "POST /lo%00gin"], "400"),
        honest("some wrong ones are, too")
            .ask(WRONG, "401 401")
            .ask("POST /login\nPassword: right", "200")
            .ask("GET /", "200 200 200"),
        honest("other pages").ask("GET /login\nPassword: right", "200").ask_each(
            ["/", "/logins/7", "/login-help", "/x?next=/login", "/blog/login", "/100%", "/100%25"]
                .map(|path| format!("GET {path}")),
            "200",
        ),
        honest(ELSEWHERE)
            .ask("GET /members", "401 401 401 401 401")
            .ask(WRONG, "401 401 401 429")
            .ask("GET /members", "401")
            .ask("GET /x?next=/login", "200"),
        honest("another client")
            .ask(WRONG, "401 401 401 429")
            .from("127.19.{id}.1")
            .ask(WRONG, "401"),
        attempt("too many")
            .ask(WRONG, "401 401 401 429")
            .ask("POST /login\nPassword: right", "429")
            .ask("GET /login?x=1", "429")
            .ask("GET http://shop.example/login HTTP/1.1\nHost: shop.example", "429")
            .ask("POST /login HTTP/1.0", "429")
            .ask("POST /login HTTP/2", "429")
            .ask("POST /login\nExpect: 100-continue\n\nuser=al", "429"),
        attempt("other spellings are denied")
            .ask(WRONG, "401 401 401 429")
            .none_sees(spelled("/login", "POST"), "path: /login\n")
            .ask("POST /%256cogin", "429")
            .ask_each(["POST /log%09in", "POST /log%0ain", "POST /%20lo%0d%0agin"], "429")
            .ask("POST /login%zz", "429"),
        attempt("other spellings are charged")
            .ask("POST //login", "401")
            .ask("POST /%6cogin", "401")
            .ask("POST /x/..;/LOGIN/", "401")
            .ask(WRONG, "429"),
        attempt("the path is in a header")
            .ask("POST /\nX-Original-URL: /login", "200")
            .ask("POST /\nX-Rewrite-URL: /login", "200")
            .ask("POST /\nX_Original_URL: /login", "200"),
        attempt("it leaves at once").leave(WRONG, 3).ask(WRONG, "429"),
        attempt("it leaves before the answer")
            .leave_later(&format!("{WRONG}\nSlowly: 1"), 3)
            .ask(WRONG, "429"),
        attempt("it ends the connection in HTTP/2 before the answer")
            .leave_later("POST /login HTTP/2\npassword: wrong\nslowly: 1", 3)
            .ask(WRONG, "429"),
    ]
}
