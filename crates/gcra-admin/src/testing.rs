//! The part of the inside that tests and fuzz targets use. It may change or go at any time.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::stats::Stats;
use gcra_policy::flags;
use gcra_table::{Slots, Table};
use spop_agent::{Agent, Reply, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::actions::ActionHandler;
use crate::agent_view::AgentView;
use crate::server::{self, Answering};
use crate::token::Token;

/// An `--admin` to ask: an agent without requests, with a table in memory.
#[derive(Clone)]
pub struct Admin(Arc<Answering>);

impl Admin {
    /// Makes one, with the smallest table.
    ///
    /// `None` when there is no memory for it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let view = Arc::new(idle_agent()?);
        let path = Path::new("fuzz");
        let token = Some(Token::of(b"fuzz-fuzz-fuzz-fuzz"));
        // Errands of actions lead nowhere, because there is no housekeeping.
        let (errands, _) = mpsc::channel(1);
        let actions = ActionHandler::new(view.clone(), path.into(), token, errands);
        Some(Self(Arc::new(Answering::new(Vec::new(), view, path.into(), actions))))
    }

    /// Answers the one request of a connection, as the daemon does but without its time limit.
    /// Returns whether the request could be read and answered.
    pub async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
        server::converse(stream, None, self.0.clone()).await.is_ok()
    }
}

/// An agent with one policy and the smallest table, in memory. `None` when there is no memory.
pub(crate) fn idle_agent() -> Option<AgentView> {
    let table = Table::in_memory(Slots::new(8).ok()?).ok()?;
    let agent = Agent::new(|_: &Request<'_>, _: &mut Reply<'_>| {});
    let stats = Arc::new(Stats::new(NonZeroUsize::MIN));
    // An agent has at least one policy.
    let _ = stats.policy("fuzz");
    let policies = flags::policies_of_rate("100/s".parse().ok()?, None).ok()?;
    let policies = ArcSwap::from_pointee(ActivePolicies::at_start(policies, &stats, &table));
    let table = Arc::new(ArcSwap::from_pointee(table));
    let (counters, undecided) = (agent.counters(), Arc::default());
    Some(AgentView::new(table, counters, undecided, stats, Arc::new(policies), None))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

    use super::*;

    #[tokio::test]
    async fn a_client_that_has_closed_its_side_gets_the_whole_answer() {
        let admin = Admin::new().expect("memory");
        // Each direction holds one byte, so that the answer is not written at once.
        let (client, stream) = duplex(1);
        let (mut from_agent, mut to_agent) = split(client);
        let mut answer = String::new();
        let ask = async {
            to_agent.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
            to_agent.shutdown().await
        };
        let (asked, answered, read) =
            tokio::join!(ask, admin.converse(stream), from_agent.read_to_string(&mut answer));
        assert!(asked.is_ok() && answered && read.is_ok(), "{asked:?}, {read:?}");
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("</html>\n"),
            "{answer:?}"
        );
    }
}
