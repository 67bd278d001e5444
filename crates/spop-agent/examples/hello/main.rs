//! The smallest agent: it sets the same variable for every request.
//!
//!     cargo run -p spop-agent --example hello
//!     haproxy -f crates/spop-agent/examples/hello/haproxy.cfg
//!     curl http://127.0.0.1:8080/

use spop_agent::{Agent, Reply, Request, Scope, VarName};

const GREETING: VarName<'_> = VarName::from_static("greeting");

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let address = std::env::var("SPOE_ADDR").unwrap_or("127.0.0.1:9000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let hello = |_: &Request<'_>, reply: &mut Reply<'_>| {
        reply.set_var(Scope::Transaction, GREETING, "hello");
    };
    Agent::new(hello).serve(listener).await;
    Ok(())
}
