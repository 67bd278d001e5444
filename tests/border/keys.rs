//! Set-ups that count by the value of a header: an API key, a token.

use crate::common::any_request;
use crate::row::{Row, attempt, honest};
use crate::set_up::SetUp;

/// Rows for each set-up that counts by `X-Api-Key`. After these statuses the limit of a key is
/// used up, where each request has these fields, too.
fn by_key(spent: &str, fields: &str) -> Vec<Row> {
    let with = |key: &str| format!("GET /\nX-Api-Key: {key}{fields}");
    let key = || with("k{id}");
    vec![
        honest("a key has its limit, from any address")
            .ask(key(), "200")
            .sees("x-api-key: k{id}")
            .from("127.19.0.1")
            .ask(key(), spent.strip_prefix("200 ").unwrap())
            .ask(with("other{id}"), "200"),
        honest("a long key").ask(with(&long_key()), spent),
        honest("a key with signs").ask(with(SIGNS), spent),
        honest("spaces around it")
            .ask(format!("GET /\nX-Api-Key:  k{{id}}\t {fields}"), spent)
            .ask(key(), "429"),
        honest("the name in lower case").ask(key().replace("X-A", "x-a"), spent),
        honest("HTTP/1.0").ask(key().replace("GET /", "GET / HTTP/1.0"), spent),
        honest("HTTP/2").ask(key().replace("GET /", "GET / HTTP/2"), spent),
        honest("other fields several times")
            .ask(key() + "\nAccept: a\nAccept: b\nCookie: a=1\nCookie: b=2", "200")
            .sees("accept: a\n"),
        honest("a body with a length").ask(key().replace("GET", "POST") + "\n\nbody", "200"),
        honest("methods of other kinds")
            .ask(key().replace("GET", "HEAD"), "200")
            .ask(with("a{id}").replace("GET", "DELETE"), "200")
            .ask(with("b{id}").replace("GET", "OPTIONS"), "200"),
        attempt("a second copy of the key")
            .ask(key(), spent)
            .ask(key() + "\nX-Api-Key: r{n}", "400|401|429 400|401|429")
            .ask(format!("GET /\nX-Api-Key: r{{n}}\nX-Api-Key: k{{id}}{fields}"), "400|401|429")
            .ask(key() + "\nX-Api-Key: other{id}", "400|429")
            .ask(key() + "\nX-Api-Key:", "400|429")
            .ask(key() + "\nx-api-key:\nX-API-KEY: r{n}", "400|429"),
        attempt("a second copy of the key, in HTTP/2")
            .ask(key().replace("GET /", "GET / HTTP/2"), spent)
            .ask(key().replace("GET /", "GET / HTTP/2") + "\nx-api-key: other{id}", "400|429"),
        attempt("names that are the same to a CGI program")
            .none_sees(
                ["X_Api_Key", "X.Api.Key", "X-Api_Key", "x_api-key", "X~Api~Key"]
                    .map(|name| format!("GET /\n{name}: k0{fields}"))
                    .into(),
                "x-api-key",
            )
            .none_sees(
                ["X_Api_Key", "X_api-Key"]
                    .map(|name| format!("GET /\n{name}: k0\nX-Api-Key: other{{id}}{fields}"))
                    .into(),
                "x-api-key: k0",
            ),
        attempt("what one side strips, or where it splits").ask(key(), spent).ask_each(
            [
                "k{id}\u{b}",
                "\u{c}k{id}",
                "k{id}\u{1f}",
                "k{id}\u{a0}",
                "k{id},r{n}",
                ",k{id}",
                "k{id},",
                "k{id}\n r{n}",
                "k{id} r{n}",
                "k{id}\n ",
                "\n k{id}",
            ]
            .map(with),
            "400|401|429",
        ),
    ]
}

fn long_key() -> String {
    "k".repeat(3000)
}

const SIGNS: &str = "1|aZ09+/=._~-!$&'()*;:@";

/// Rows for those that count requests without a key by the address.
fn else_by_address() -> Vec<Row> {
    let mut rows = any_request("/");
    rows.push(
        honest("a field without a value is no key")
            .ask("GET /\nX-Api-Key:", "200 200 200 429")
            .ask("GET /", "429"),
    );
    rows
}

#[test]
fn api_key() {
    let rows = [by_key("200 200 200 429", ""), else_by_address()].concat();
    SetUp::shipped("api-key.cfg").agent("--rate 3/d").check(&rows);
}

#[test]
fn contract() {
    let rows = [by_key("200 200 200 429", ""), else_by_address()].concat();
    let policies = "[policy.by-key]\nlimits = [\"20/s burst 40\", { name = \"contract\", rate = \
                    \"3/d\" }]\nkey = [\"key\"]\n[policy.by-ip]\nlimits = \"3/d\"\nkey = \
                    [\"ip\"]\n";
    SetUp::shipped("contract.cfg").policies(policies).check(&rows);
}

#[test]
fn api_plans() {
    let mut map = format!("k0 free\n{} gold\n{SIGNS} gold\n", long_key());
    for id in 1..100 {
        for name in ["k", "other", "a", "b"] {
            map.push_str(&format!("{name}{id} {}\n", ["gold", "free"][id % 2]));
        }
    }
    let mut rows = by_key("200 200 200 429", "");
    rows.push(
        honest("without a key, or with an unknown one")
            .ask("GET /", "401")
            .ask("GET /\nX-Api-Key: r{n}", "401 401")
            .ask("GET /\nX-Api-Key:", "401"),
    );
    SetUp::shipped("api-plans.cfg")
        .file("api-plans.map", &map)
        .shipped_policies(
            "api-plans.toml",
            &[("\"1000000/d\"", "\"3/d\""), ("\"10000/d\"", "\"3/d\"")],
        )
        .check(&rows);
}

#[test]
fn tokens() {
    let mut rows = by_key("200 429", "\nCosts: 60000");
    let ask = "POST /v1/chat\nX-Api-Key: k{id}\nCosts: 60000";
    rows.extend([
        honest("without a key").ask("GET /", "401").ask("GET /\nX-Api-Key:", "401"),
        honest("what is left is given back")
            .ask("GET /\nX-Api-Key: k{id}\nCosts: 1", "200 200 200 200 200 200 200 200"),
        honest("a large body").ask(format!("{ask}\n\n{}", "x".repeat(300_000)), "200"),
        honest("a body in HTTP/2")
            .ask("POST / HTTP/2\nx-api-key: k{id}\ncontent-length: 4\n\nbody", "200"),
        honest("a method with a body, but without one")
            .ask("POST / HTTP/1.1\nHost: a\nX-Api-Key: k{id}", "200")
            .ask("POST / HTTP/2\nx-api-key: k{id}", "200"),
        honest("a body that is sent when it is asked for")
            .ask("POST /\nX-Api-Key: k{id}\nExpect: 100-continue\n\nbody", "200"),
        attempt("a body that is too large").ask_each(
            ["500000", "2147483648", "4294967296", "9999999999999"].map(|length| {
                format!("POST /\nX-Api-Key: k{{id}}\nContent-Length: {length}\n\nbody")
            }),
            "413",
        ),
        attempt("a body without a length")
            .ask_each(
                ["POST", "GET", "PUT", "BREW"].map(|method| {
                    let fields = "X-Api-Key: k{id}\nTransfer-Encoding: chunked";
                    format!("{method} /\n{fields}\n\n4\nbody\n0\n\n")
                }),
                "411",
            )
            .ask_each(
                ["POST", "GET", "PUT", "BREW"]
                    .map(|method| format!("{method} / HTTP/2\nx-api-key: k{{id}}\n\nbody")),
                "411",
            ),
        attempt("two lengths").ask(
            "POST /\nX-Api-Key: k{id}\nContent-Length: 4\nContent-Length: 500000\n\nbody",
            "400|-",
        ),
        attempt("it leaves at once").leave(ask, 1).ask(ask, "429"),
        attempt("it leaves before the answer")
            .leave_later(&format!("{ask}\nSlowly: 1"), 1)
            .ask(ask, "429"),
    ]);
    SetUp::shipped("tokens.cfg")
        .shipped_policies("tokens.toml", &[("100000/m", "100000/d")])
        .check(&rows);
}

/// Claims, and their signatures by the secret of plans.cfg.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";
/// `{"sub":"c1","rate_limit":"3/d","exp":4102444800}`
const C1: &str = "eyJzdWIiOiJjMSIsInJhdGVfbGltaXQiOiIzL2QiLCJleHAiOjQxMDI0NDQ4MDB9.\
                  aGjRKPabwTgwg5axsGv1s1fJ3wEXzSiY7cISlzCxu1I";
/// `{"sub":"c2","rate_limit":"3/d","exp":4102444800}`
const C2: &str = "eyJzdWIiOiJjMiIsInJhdGVfbGltaXQiOiIzL2QiLCJleHAiOjQxMDI0NDQ4MDB9.\
                  3-ZaLHoAt5mrixf-JOK01vs_GSRTmHWXyXQeHLvFqaI";
/// `{"sub":"c2","rate_limit":"3/d","exp":4102444800,"jti":"other"}`
const C2_OTHER: &str = "eyJzdWIiOiJjMiIsInJhdGVfbGltaXQiOiIzL2QiLCJleHAiOjQxMDI0NDQ4MDAsImp0aSI\
                        6Im90aGVyIn0.Sdjw-Te19GAd5YPzfjY29xbbUuY1PHEJznCmuowbvcw";
/// `{"sub":"c3","rate_limit":"3/d","exp":4102444800}`
const C3: &str = "eyJzdWIiOiJjMyIsInJhdGVfbGltaXQiOiIzL2QiLCJleHAiOjQxMDI0NDQ4MDB9.\
                  td5m6GL0UOk5E0iu4FF_8e6Ew6E00jQFpzx1YpCPWik";
/// `{"sub":"c9","exp":4102444800}`, by another secret.
const FOREIGN: &str = "eyJzdWIiOiJjOSIsImV4cCI6NDEwMjQ0NDgwMH0.\
                       Er0P1assB2Mg72faBSUu8SUp5lJTbh1Xza-mEI1UP6s";
/// The same without a signature: `{"alg":"none"}`.
const UNSIGNED: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJjOSIsImV4cCI6NDEwMjQ0NDgwMH0.";

#[test]
fn plans() {
    let with =
        |scheme: &str, token: &str| format!("GET /\nAuthorization: {scheme} {HEADER}.{token}");
    SetUp::shipped("plans.cfg").shipped_policies("plans.toml", &[]).check(&[
        honest("a customer has its limit")
            .ask(with("Bearer", C1), "200 200 200 429")
            .from("127.19.0.1")
            .ask(with("Bearer", C1), "429")
            .ask(with("Bearer", C3), "200"),
        honest("the scheme in lower case").ask(with("bearer", C3), "200"),
        honest("no token, or no token of ours")
            .ask("GET /", "401")
            .ask("GET /\nAuthorization: Bearer garbage", "401")
            .ask("GET /\nAuthorization: Basic dTpw", "401")
            .ask(with("Bearer", FOREIGN), "401")
            .ask(format!("GET /\nAuthorization: Bearer {UNSIGNED}"), "401"),
        attempt("many tokens of one customer")
            .ask(with("Bearer", C2), "200 200")
            .ask(with("Bearer", C2_OTHER), "200 429")
            .ask(with("Bearer", C2), "429"),
        attempt("two tokens")
            .ask(with("Bearer", C2) + "\nAuthorization: Bearer r{n}", "400")
            .ask(with("Bearer", C3) + ", Bearer " + HEADER + "." + FOREIGN, "400")
            .ask(with("Bearer", FOREIGN) + ",Bearer " + HEADER + "." + C3, "400")
            .ask(with("Bearer", FOREIGN) + "\nAuthorization: Bearer " + HEADER + "." + C3, "400")
            .ask(with("Bearer", C3) + "\nAuthorization: Bearer " + HEADER + "." + C2, "400")
            .ask(
                format!("GET /\nAuthorization: Basic dTpw\nAuthorization: Bearer {HEADER}.{C3}"),
                "400",
            )
            .ask(format!("GET /\nAuthorization:\nAuthorization: Bearer {HEADER}.{C3}"), "400"),
    ]);
}
