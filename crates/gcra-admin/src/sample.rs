//! Statuses of agents, for tests.

use std::collections::BTreeMap;

use crate::agents::ListedAgent;
use crate::family::{Amount, float};
use crate::status::{ClientRow, ExactLists, LatencyBound, PolicyStatus, Status, TableStatus};

/// The status of an agent that has been up for so long.
pub(crate) fn status(pid: u32, uptime: u32, allowed: u64, blocked: u64) -> Status {
    let uptime = f64::from(uptime);
    let client = |client: &str, requests| {
        let per_second = Amount(float(requests) / uptime);
        ClientRow { client: client.to_owned(), requests, per_second, ..ClientRow::default() }
    };
    let exact = ExactLists { blocked: true, would_block: true, allowed: true };
    let policy = |name: &str, factor, would_block| PolicyStatus {
        name: name.to_owned(),
        decisions: [
            ("allowed", allowed * factor),
            ("blocked", blocked * factor),
            ("would_block", would_block),
            ("undecided", 0),
        ]
        .map(|(outcome, count)| (outcome.to_owned(), count))
        .into(),
        top_blocked: match blocked * factor {
            0 => Vec::new(),
            blocked => vec![client("192.0.2.1", blocked), client("2001:db8:1:2::", 3)],
        },
        top_would_block: match would_block {
            0 => Vec::new(),
            requests => vec![client("192.0.2.1", requests)],
        },
        top_allowed: vec![client("sk_l…(24)#a1b2c3", allowed), client("192.0.2.1", 2 * factor)],
        top_is_exact: exact,
        ..PolicyStatus::default()
    };
    let mut status = Status {
        version: "0.1.0".to_owned(),
        pid,
        state: "serving".to_owned(),
        uptime_seconds: Amount(uptime),
        window_seconds: Amount(75.0),
        policies: vec![policy("default", 1, 0), policy("login", 2, 0)],
        table: TableStatus {
            id: "5e".to_owned(),
            slots: 1 << 20,
            processes: 2,
            states: BTreeMap::from([("live".to_owned(), 1 << 18)]),
            ..TableStatus::default()
        },
        ..Status::default()
    };
    if allowed > 0 {
        status
            .policies
            .push(PolicyStatus { top_blocked: Vec::new(), ..policy("login.observe", 0, blocked) });
    }
    status.counts.notifies.answered = allowed + blocked;
    status.counts.connections.open = 12;
    status.counts.connections.accepted = 345;
    let bound = |micros: f64| Some(micros / 1e6);
    status.counts.latency.buckets = vec![
        LatencyBound { at_most_seconds: bound(8.0), count: allowed / 2 },
        LatencyBound { at_most_seconds: bound(16.0), count: allowed / 2 + blocked },
        LatencyBound { at_most_seconds: bound(4096.0), count: allowed / 20 },
        LatencyBound { at_most_seconds: None, count: 0 },
    ];
    status
}

pub(crate) fn agent(status: Status) -> ListedAgent {
    ListedAgent {
        pid: status.pid,
        pid_namespace: "ours".to_owned(),
        this_agent: status.pid == 7,
        entry: Some((status.pid as usize, 0)),
        admin: Some(([127, 0, 0, 1], 9000 + u16::try_from(status.pid).unwrap()).into()),
        same_limits: Some(true),
        silent_seconds: 0.5,
        status: Some(status),
        why: None,
    }
}
