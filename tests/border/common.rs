//! Rows that several set-ups share.

use crate::row::{Row, attempt, honest};

/// Rows for a set-up that counts requests to this path by the client's address, 3 each.
pub(crate) fn any_request(path: &str) -> Vec<Row> {
    let get = format!("GET {path}");
    let all = "200 200 200 429";
    vec![
        honest("an address has its limit, and others have theirs")
            .ask(get.clone(), all)
            .from("127.19.{id}.1")
            .ask(get.clone(), "200"),
        honest("requests of many kinds count")
            .ask(format!("HEAD {path}"), "200")
            .ask(format!("POST {path}\n\nuser=al"), "200")
            .ask(format!("GET {path}?next=//e/&q=%2e%2e/ HTTP/2"), "200")
            .ask(format!("GET {path} HTTP/1.0"), "429"),
        honest("fields of many kinds")
            .ask(
                format!(
                    "GET {path}\nCookie: a=\"1\"\nCookie: b==\nAccept: a\nAccept: b\nUser-Agent: \
                     Mozilla/5.0 (X; \u{fc})\nAuthorization: Bearer a.b.c\nIf-None-Match: \"x\"\n\
                     Origin: https://shop.example"
                ),
                "200",
            )
            .sees("accept: a\n"),
        honest("hosts of many kinds")
            .ask_each(
                ["shop.example:80", "192.0.2.1", "[2001:db8::1]:8080"]
                    .map(|host| format!("{get}\nHost: {host}")),
                "200",
            )
            .ask(format!("{get}\nHost: XN--BCHER-KVA.example"), "429"),
        attempt("it goes on in HTTP/2, where nobody counts")
            .none_sees(vec![upgrade(&get, "h2c"), upgrade(&get, "h2c\nUpgrade: x")], "h2c")
            .none_sees(vec![upgrade(&get, "x, H2C")], "H2C"),
        attempt("a tunnel, where nobody counts")
            .ask("CONNECT shop.example:80\nHost: shop.example:80", "405"),
        attempt("it leaves at once")
            .ask(get.clone(), all)
            .leave(&get, 10)
            .leave(&format!("POST {path}\n\nuser=al"), 10)
            .leave(&format!("GET {path} HTTP/2"), 10)
            .reached(3),
        attempt("nothing in a request makes it another client's")
            .ask(get.clone(), all)
            .ask_each(
                [
                    "X-Forwarded-For: 9.9.9.{n}",
                    "X-Forwarded-For: 9.9.9.{n}\nX-Forwarded-For: 9.9.8.{n}",
                    "X_Forwarded_For: 9.9.9.{n}",
                    "Forwarded: for=9.9.9.{n}",
                    "X-Real-IP: 9.9.9.{n}",
                    "CF-Connecting-IP: 9.9.9.{n}",
                    "Host: other{n}.example",
                    "User-Agent: {n}",
                    "Connection: keep-alive, X-{n}",
                    "X-HTTP-Method-Override: POST",
                    "Expect: 100-continue\nContent-Length: 0",
                ]
                .map(|field| format!("{get}\n{field}")),
                "429",
            )
            .ask_each(
                ["POST", "HEAD", "PUT", "OPTIONS", "BREW", "get"]
                    .map(|method| format!("{method} {path}")),
                "400|429",
            )
            .ask(format!("{get}?q={{n}}"), "429 429")
            .ask(format!("GET http://other.example{path} HTTP/1.1\nHost: other.example"), "429")
            .ask(format!("GET {path} HTTP/1.0"), "429")
            .ask(format!("GET {path} HTTP/2\nx-forwarded-for: 9.9.9.{{n}}"), "429")
            .ask(format!("PROXY TCP4 9.9.9.9 9.9.9.9 1 1\nGET {path} HTTP/1.1"), "400|-"),
    ]
}

/// A request after which the connection speaks another protocol.
pub(crate) fn upgrade(request: &str, to: &str) -> String {
    format!(
        "{request}\nConnection: Upgrade, HTTP2-Settings\nHTTP2-Settings: AAMAAABk\nUpgrade: {to}"
    )
}

/// Rows for a set-up that counts by the path: neither other fields of a request nor a target that
/// some servers take for a host name one.
pub(crate) fn other_names_of_a_path() -> [Row; 2] {
    let fields = fields_with("/api");
    [
        attempt("a path in another header")
            .ask("GET /r{n}\nX-Original-URL: /api\nX-Rewrite-URL: /api", "200")
            .sees_no("path: /api")
            .none_sees(
                fields.iter().map(|it| format!("GET /r{{n}}\n{it}")).collect(),
                "path: /api\n",
            ),
        attempt("a path that some take for a host")
            .ask_each(with_a_host("/api").iter().map(|it| format!("GET {it}")), "400"),
    ]
}

/// Targets that some servers take for a URL with a host and a path.
pub(crate) fn with_a_host(path: &str) -> Vec<String> {
    vec![format!("//h{{n}}{path}"), format!("///h{{n}}{path}"), format!("//h{{n}}:80{path}/")]
}

/// Fields that name the path to some servers, whose names have other characters to others.
pub(crate) fn fields_with(path: &str) -> Vec<String> {
    ["X-Original-URL", "X_Original_URL", "X.Rewrite-Url", "X-Original-URI", "X_Forwarded_Uri"]
        .map(|name| format!("{name}: {path}"))
        .to_vec()
}

/// Spellings of a path such as `/api`, for an application that is lenient.
pub(crate) fn spellings(path: &str) -> Vec<String> {
    let once: Vec<String> = CHANGES.iter().map(|change| change(path)).collect();
    let twice = once.iter().flat_map(|path| CHANGES.iter().map(|change| change(path)));
    let mut all: Vec<_> = once.iter().cloned().chain(twice).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// How a path is changed into another spelling. Two of them follow each other, too.
const CHANGES: [fn(&str) -> String; 35] = [
    |path| format!("/{path}"),
    |path| format!("//{path}"),
    |path| format!("/.{path}"),
    |path| format!("/x/..{path}"),
    |path| format!("/x/y/../..{path}"),
    |path| format!("/..{path}"),
    |path| format!("/x/..;{path}"),
    |path| format!("/..;v=1{path}"),
    |path| format!("/;x{path}"),
    |path| format!("/x/%2e%2e{path}"),
    |path| format!("/%2E{path}"),
    |path| format!("/x/.%2e{path}"),
    |path| format!("/%2f{}", path.trim_start_matches('/')),
    |path| format!("/x%2F..%2f{}", path.trim_start_matches('/')),
    |path| format!("/x%5c..%5C{}", path.trim_start_matches('/')),
    |path| format!("/x\\..\\{}", path.trim_start_matches('/')),
    |path| format!("/\\{}", path.trim_start_matches('/')),
    |path| path.replacen('/', "\\", 1),
    |path| format!("/%20{}", path.trim_start_matches('/')),
    |path| path.to_uppercase(),
    |path| path.replace('a', "%61").replace('o', "%6F"),
    |path| path.replace('i', "%69"),
    |path| format!("{path}%3fx"),
    |path| path.replace('i', "I"),
    |path| format!("{path}/"),
    |path| format!("{path}//"),
    |path| format!("{path}/."),
    |path| format!("{path}/x/.."),
    |path| format!("{path}%2f"),
    |path| format!("{path};v=1"),
    |path| format!("{path}/;v"),
    |path| format!("{path}%3bv"),
    |path| format!("{path}%00"),
    |path| format!("{path}%00x"),
    |path| format!("{path}%20"),
];
