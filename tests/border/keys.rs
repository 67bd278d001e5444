//! Set-ups that count by what a header says: an API key, a token.

use crate::row::{attempt, honest};
use crate::set_up::SetUp;

#[test]
fn api_key() {
    SetUp::shipped("api-key.cfg").agent("--rate 3/d").check(&[
        honest("a key has its limit, whoever sends it")
            .ask("GET /\nX-Api-Key: k{id}", "200 200")
            .sees("x-api-key: k")
            .from("127.21.0.1")
            .ask("GET /\nX-Api-Key: k{id}", "200 429")
            .ask("GET /\nX-Api-Key: other{id}", "200"),
        honest("without a key the address has a limit").ask("GET /", "200 200 200 429"),
        honest("a long key")
            .ask(format!("GET /\nX-Api-Key: {}", "k".repeat(3000)), "200 200 200 429"),
        honest("a key with signs")
            .ask("GET /\nX-Api-Key: 1|aZ09+/=._~-!$&'()*;:@{id}", "200 200 200 429"),
        honest("spaces around it")
            .ask("GET /\nX-Api-Key:k{id}", "200")
            .ask("GET /\nX-Api-Key:  k{id}\t ", "200 200 429"),
        honest("the name in lower case").ask("GET /\nx-api-key: k{id}", "200 200 200 429"),
        honest("HTTP/1.0").ask("GET / HTTP/1.0\nX-Api-Key: k{id}", "200 200 200 429"),
        honest("HTTP/2").ask("GET / HTTP/2\nx-api-key: k{id}", "200 200 200 429"),
        honest("other fields several times")
            .ask("GET /\nX-Api-Key: k{id}\nAccept: a\nAccept: b\nCookie: a=1\nCookie: b=2", "200")
            .sees("accept: a"),
        honest("a field without a value is no key")
            .ask("GET /\nX-Api-Key:", "200 200 200 429")
            .ask("GET /", "429"),
        attempt("a second copy of the key")
            .ask("GET /\nX-Api-Key: k{id}", "200 200 200 429")
            .ask("GET /\nX-Api-Key: k{id}\nX-Api-Key: r{n}", "400|429 400|429")
            .ask("GET /\nX-Api-Key: r{n}\nX-Api-Key: k{id}", "400|429 400|429")
            .ask("GET /\nX-Api-Key: k{id}\nX-Api-Key:", "400|429 400|429"),
        attempt("a second copy, in HTTP/2")
            .ask("GET / HTTP/2\nx-api-key: k{id}", "200 200 200 429")
            .ask("GET / HTTP/2\nx-api-key: k{id}\nx-api-key: r{n}", "400|429 400|429"),
        attempt("a name that is the same to a CGI program")
            .ask("GET /\nX_Api_Key: k{id}", "200")
            .sees_no("x-api-key")
            .ask("GET /\nX_Api_Key: k{id}\nX-Api-Key: r{n}", "200")
            .sees_no(": k{id}")
            .ask("GET /\nX.Api.Key: k{id}", "200")
            .sees_no("x-api-key"),
        attempt("what one side strips or splits")
            .ask("GET /\nX-Api-Key: k{id}", "200 200 200 429")
            .ask_each(
                [
                    "GET /\nX-Api-Key: k{id}\u{b}",
                    "GET /\nX-Api-Key: \u{c}k{id}",
                    "GET /\nX-Api-Key: k{id}\u{a0}",
                    "GET /\nX-Api-Key: k{id},r{n}",
                    "GET /\nX-Api-Key: k{id}\n r{n}",
                    "GET /\nX-Api-Key: k{id} r{n}",
                ],
                "400",
            ),
    ]);
}
