//! Looks at all headers of a request, and says what is unusual for a browser.
//!
//!     cargo run -p spop-agent --example headers
//!     haproxy -f crates/spop-agent/examples/headers/haproxy.cfg

use spop_agent::{Agent, HeaderList, Reply, Request, Scope, Value, VarName};

const COUNT: VarName<'_> = VarName::from_static("count");
const ODD: VarName<'_> = VarName::from_static("odd");

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let address = std::env::var("SPOE_ADDR").unwrap_or("127.0.0.1:9000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    Agent::new(look_at).serve(listener).await;
    Ok(())
}

fn look_at(request: &Request<'_>, reply: &mut Reply<'_>) {
    let headers = request.message(b"look").and_then(|message| message.arg(b"headers")?.headers());
    let Some(headers) = headers else { return };
    let count = u32::try_from(headers.clone().count()).unwrap_or(u32::MAX);
    reply.set_var(Scope::Transaction, COUNT, count);
    // Null unsets the variable.
    let odd = what_is_odd(headers).map_or(Value::Null, Value::from);
    reply.set_var(Scope::Transaction, ODD, odd);
}

/// HAProxy has changed the names to lower case.
fn what_is_odd(mut headers: HeaderList<'_>) -> Option<&'static str> {
    let (mut agents, mut hosts) = (0, 0);
    for (name, value) in &mut headers {
        match name {
            b"user-agent" if value.is_empty() => return Some("an empty user-agent"),
            b"user-agent" => agents += 1,
            b"host" => hosts += 1,
            _ => {}
        }
    }
    if headers.is_complete() != Some(true) {
        return Some("more headers than fit");
    }
    match (agents, hosts) {
        (0, _) => Some("no user-agent"),
        (2.., _) => Some("several user-agents"),
        (_, 2..) => Some("several hosts"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_cut_is_odd() {
        let list = b"\x04host\x01a\x0auser-agent\x04curl\x00\x00";
        assert_eq!(what_is_odd(HeaderList::new(list)), None);
        assert_eq!(what_is_odd(HeaderList::new(&list[..20])), Some("more headers than fit"));
        assert_eq!(what_is_odd(HeaderList::new(b"\x04host\x01a\x00\x00")), Some("no user-agent"));
    }
}
