//! Set-ups that count by the client's address.

use crate::common::any_request;
use crate::row::{Row, attempt, honest};
use crate::set_up::SetUp;

/// Headers in which applications look for the client's address.
const ADDRESSES: [&str; 28] = [
    "X-Forwarded-For",
    "X-Forwarded",
    "Forwarded-For",
    "Forwarded",
    "X-Real-IP",
    "X-RealIP",
    "RemoteAddr",
    "X-Azure-SocketIP",
    "X-Forward-For",
    "X-ForwardedFor",
    "X-Original-Forwarded-For",
    "X-Forwarded-For-Original",
    "HTTP_X_FORWARDED_FOR",
    "HTTP_FORWARDED",
    "X-Client-IP",
    "Client-IP",
    "X-Cluster-Client-IP",
    "CF-Connecting-IP",
    "CF-Connecting-IPv6",
    "True-Client-IP",
    "Fastly-Client-IP",
    "X-Originating-IP",
    "X-Remote-IP",
    "X-Remote-Addr",
    "X-Azure-ClientIP",
    "X-Envoy-External-Address",
    "X_Real_IP",
    "X_Forwarded_For",
];

/// The application sees one address of a client from here that has these fields, too, and nothing
/// that was forged.
fn seen(from: &str, fields: &str) -> Row {
    let forged = ADDRESSES.map(|name| format!("{name}: 9.9.9.9"));
    let together = forged.join("\n");
    let row = attempt("the application sees one address");
    forged.iter().chain([&together]).fold(row, |row, forged| {
        row.from(from)
            .ask(format!("GET /\n{forged}{fields}"), "200")
            .sees("x-forwarded-for: ")
            .sees_no("9.9.9.9")
    })
}

#[test]
fn haproxy() {
    let mut rows = any_request("/");
    rows.push(seen("127.19.{n}.2", ""));
    rows.push(
        honest("fields that are not addresses")
            .ask("GET /\nX-Forwarded-Proto: https\nX-Zip: 1\nX-Request-Id: 7\nX-Tip: a", "200")
            .sees("x-forwarded-proto: https\n")
            .sees("x-zip: 1\n")
            .sees("x-request-id: 7\n")
            .sees("x-tip: a\n"),
    );
    SetUp::shipped("haproxy.cfg").agent("--rate 3/d").check(&rows);
}

#[test]
fn in_process() {
    let mut rows = any_request("/");
    rows.push(seen("127.19.{n}.2", ""));
    SetUp::in_process("in-process.cfg")
        .change("${GCRA_RATE-100/s}", "3/d")
        .change("--burst 20", "--slots 4096")
        .check(&rows);
}

/// Rows for a set-up that counts by the addresses of clients, which may have any.
fn by_networks() -> [Row; 3] {
    [
        honest("each /64 has its limit")
            .from("2001:db8:{id}:{n}::1")
            .ask("GET /", "200 200 200 429")
            .sees_no("200 200")
            .from("2001:db8:{id}:{n}::1")
            .ask("GET /", "200"),
        attempt("other addresses of a /64")
            .from("2001:db8:{id}::1")
            .ask("GET /", "200 200 200 429")
            .from("2001:db8:{id}::{n}")
            .ask("GET /", "429")
            .from("2001:db8:{id}:0:ffff::{n}")
            .ask("GET /", "429"),
        attempt("an IPv4 address as an IPv6 address")
            .from("198.51.100.7")
            .ask("GET /", "200 200 200 429")
            .from("::ffff:198.51.100.7")
            .ask("GET /", "429"),
    ]
}

#[test]
fn in_process_behind_a_balancer() {
    SetUp::in_process("in-process.cfg")
        .change("${GCRA_RATE-100/s}", "3/d")
        .change("--burst 20", "--slots 4096")
        .behind_a_balancer()
        .check(&by_networks());
}

#[test]
fn haproxy_with_an_exemption() {
    let event = "\n    event on-frontend-http-request\n";
    let exempt = event.trim_end().to_owned() + " unless { path /health }\n";
    let rule = "    option forwardfor\n";
    let remove = "    http-request del-header ^x.(original|rewrite).url$ -m reg\n";
    SetUp::shipped("haproxy.cfg")
        .agent("--rate 3/d")
        .change_in("spoe-gcra.conf", event, &exempt)
        .change(rule, &format!("{remove}{rule}"))
        // Without a decision, too, when the file fails closed.
        .change(
            "{ var(txn.gcra.blocked) -m found }",
            "{ var(txn.gcra.blocked) -m found } or { path /health }",
        )
        .check(&[
            honest("other paths have a limit").ask("GET /", "200 200 200 429"),
            honest("the health check").ask("GET /health", "200 200 200 200 200"),
            attempt("another path with the same beginning")
                .ask("GET /", "200 200 200 429")
                .ask_each(
                    [
                        "/health/../api",
                        "/health/%2e%2e/api",
                        "/health%2f..%2fapi",
                        "/health/..;/api",
                        "/health;/../api",
                        "//health/../api",
                        "/healthz",
                        "/health/",
                        "/Health",
                    ]
                    .map(|path| format!("GET {path}")),
                    "429",
                )
                .ask("GET /health\nX-Original-URL: /api", "200")
                .sees("path: /health\n")
                .ask("GET /health\nX-Rewrite-URL: /api", "200")
                .sees("path: /health\n"),
        ]);
}

#[test]
fn haproxy_behind_a_balancer() {
    let mut rows = any_request("/");
    rows.extend(by_networks());
    SetUp::shipped("haproxy.cfg").agent("--rate 3/d").behind_a_balancer().check(&rows);
}

#[test]
fn behind_proxy() {
    let by = |client: &str| format!("GET /\nX-Forwarded-For: {client}");
    let proxy = |name: &str| honest(name).from("127.0.0.1");
    let mut rows = any_request("/");
    // A row for each form in which a proxy writes its client.
    for (client, same) in [
        ("203.0.113.1", "203.0.113.1"),
        ("203.0.113.2:4711", "203.0.113.2"),
        ("2001:db8:1::1", "2001:db8:1::1"),
        ("[2001:db8:2::1]", "2001:db8:2::1"),
        ("[2001:db8:3::1]:443", "2001:db8:3::1"),
        ("[2001:DB8:4:0::1]:443", "2001:db8:4::1"),
        ("unknown, 203.0.113.5", "203.0.113.5"),
        ("9.9.9.9,203.0.113.6", "203.0.113.6"),
        ("9.9.9.9\nX-Forwarded-For: 203.0.113.7", "203.0.113.7"),
        ("[2001:db8::9]:1, [2001:db8:5::1]:2", "2001:db8:5::1"),
    ] {
        rows.push(
            proxy(&format!("'{client}' is a client"))
                .ask(by(client), "200 200")
                .sees(&format!("x-forwarded-for: {same}\n"))
                .sees_no("9.9.9.9")
                .ask(by(same), "200 429"),
        );
    }
    rows.push(seen("127.0.0.1", "\nX-Forwarded-For: 203.0.{n}.8"));
    rows.extend([
        honest("a proxy without the header").from("127.0.0.1").ask("GET /", "200 200 200 429"),
        attempt("a quote that hides the proxy's word").from("127.0.0.1").ask_each(
            ["[2001:db8:7{n}::1]\"", "\"[2001:db8:7{n}::1]", "a\"\nX-Forwarded-For: b"]
                .map(|own| by(&format!("{own}, 203.0.113.6"))),
            "400",
        ),
        attempt("own values in front of the proxy's word")
            .from("127.0.0.1")
            .ask(by("203.0.113.9"), "200 200 200 429")
            .ask(by("9.9.9.{n}, 203.0.113.9"), "429")
            .ask(by("[2001:db8::{n}]:443, 203.0.113.9"), "429")
            .ask(by("9.9.9.{n}\nX-Forwarded-For: 203.0.113.9"), "429")
            .ask(by("9.9.9.{n}\nX-Forwarded-For: ::ffff:203.0.113.9"), "429")
            .ask(by("9.9.9.{n}\nX-Forwarded-For: [::ffff:203.0.113.9]:443"), "429"),
        attempt("other addresses of a /64")
            .from("127.0.0.1")
            .ask(by("[2001:db8:7::{n}]:443"), "200 200 200 429"),
        attempt("a last value that is no address").from("127.0.0.1").ask_each(
            [
                "203.0.113.10,",
                "203.0.113.10, unknown",
                "_hidden",
                "[]",
                "203.0.113.10\nX-Forwarded-For: unknown",
                "203.0.113.10\nX-Forwarded-For:",
            ]
            .map(by),
            "400",
        ),
        attempt("a client that connects directly writes the header")
            .ask(by("203.0.113.{n}"), "200 200 200 429")
            .ask(by("203.0.113.11\nX-Forwarded-For: 203.0.113.{n}"), "429")
            .ask(by("[2001:db8:{n}::1]:1"), "429")
            .ask(by("unknown"), "429"),
    ]);
    SetUp::shipped("behind-proxy.cfg").agent("--rate 3/d").check(&rows);
}

#[test]
fn fail_closed() {
    SetUp::shipped("fail-closed.cfg").agent("--rate 3/d").check(&any_request("/"));
}

#[test]
fn unix_socket() {
    SetUp::shipped("unix-socket.cfg").agent("--rate 3/d").check(&any_request("/"));
}

#[test]
fn policies() {
    SetUp::shipped("policies.cfg")
        .shipped_policies(
            "gcra-spoa.toml",
            &[("\"100/s burst 20\"", "\"3/d\""), ("\"1m\"", "\"100h\"")],
        )
        // A limit so slow makes each client that is blocked wait.
        .change("timeout tarpit 5s", "timeout tarpit 10ms")
        .check(&any_request("/"));
}

#[test]
fn headers() {
    SetUp::shipped("headers.cfg")
        .shipped_policies("headers.toml", &[("\"100/s burst 20\"", "\"3/d\"")])
        .since((3, 4))
        .check(&any_request("/"));
}

#[test]
fn delay() {
    SetUp::shipped("delay.cfg")
        .shipped_policies("delay.toml", &[("10/s burst 5", "3/d")])
        .since((3, 2))
        .check(&any_request("/"));
}

#[test]
fn bandwidth() {
    SetUp::shipped("bandwidth.cfg")
        .shipped_policies("bandwidth.toml", &[("10/s burst 100", "3/d")])
        .since((2, 7))
        .check(&any_request("/"));
}

#[test]
fn networks() {
    let mut rows = any_request("/");
    rows.extend([
        attempt("other addresses of an IPv4 network")
            .from("198.51.100.{n}")
            .ask("GET /", "200")
            .from("198.51.100.{n}")
            .ask("GET /", "200 200")
            .from("198.51.100.{n}")
            .ask("GET /", "200 200 200 429")
            .from("198.51.100.{n}")
            .ask("GET /", "429"),
        attempt("other /64 of a /48")
            .from("2001:db7:{id}:1::{n}")
            .ask("GET /", "200 200 200 429")
            .from("2001:db7:{id}:2::{n}")
            .ask("GET /", "200 200 200 429")
            .from("2001:db7:{id}:3::{n}")
            .ask("GET /", "429"),
        attempt("other networks of a provider")
            .from("127.0.1.1")
            .ask("GET /", "200 200 200")
            .from("127.0.1.2")
            .ask("GET /", "200 200 200")
            .from("127.0.2.1")
            .ask("GET /", "200 200 429"),
    ]);
    SetUp::shipped("networks.cfg")
        .shipped_policies(
            "networks.toml",
            &[
                ("10/s burst 20", "3/d"),
                ("rate = \"50/s\", burst = 100", "rate = \"6/d\""),
                ("rate = \"200/s\", burst = 400", "rate = \"8/d\""),
            ],
        )
        .behind_a_balancer()
        .check(&rows);
}

#[test]
fn tcp() {
    SetUp::shipped("tcp.cfg").agent("--rate 3/d --scope sess").check(&[
        honest("an address has its limit, and others have theirs")
            .ask("GET /", "200 200 200 -")
            .from("127.19.{id}.1")
            .ask("GET /", "200"),
        attempt("what it says makes it no other client")
            .ask("GET /", "200 200 200 -")
            .ask("GET /\nX-Forwarded-For: 9.9.9.9", "- -")
            .ask("PROXY TCP4 9.9.9.9 9.9.9.9 1 1\nGET / HTTP/1.1", "- -"),
        attempt("it leaves at once").leave("GET /", 10).reached(3),
    ]);
}

#[test]
fn fingerprint() {
    let ciphers = ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"];
    let [one, other] = [ciphers.join(":"), [ciphers[1], ciphers[0]].join(":")]
        .map(|ciphers| format!("ssl-max-ver TLSv1.2 ciphers {ciphers}"));
    // The file binds for HTTP/1.1 alone, which is no concern of its limits.
    let is_http1 = |row: &Row| !format!("{row:?}").contains("HTTP/2");
    let mut rows: Vec<_> = any_request("/").into_iter().filter(is_http1).collect();
    rows.push(
        attempt("another fingerprint")
            .ask("GET /", "200 200 200 429")
            .over(1)
            .ask("GET /", "429 429"),
    );
    SetUp::shipped("fingerprint.cfg")
        .shipped_policies("fingerprint.toml", &[("10/s burst 20", "3/d")])
        .over_tls(&[&one, &other])
        .check(&rows);
}
