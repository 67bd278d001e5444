//! The state of an order about a client, in words: until when it is in force, who gave it and why.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gcra_table::Table;
use gcra_table::board::{Order, OrderKind, OrderTarget};
use gcra_text::duration::{Left, Utc};
use gcra_text::visible::Visible;
use serde::Serialize;
use serde_json::Value;

/// The words for a kind of orders.
#[derive(Clone, Copy, Debug)]
pub struct OrderWords {
    /// The command that gives them, and their name in JSON and in metrics: "block".
    pub command: &'static str,
    /// "a block".
    pub noun: &'static str,
    /// "blocks".
    pub nouns: &'static str,
    /// What clients are by them: "blocked".
    pub state: &'static str,
    /// "blocked by", before a policy.
    pub state_by: &'static str,
}

impl OrderWords {
    /// The kind that this command gives, or none.
    pub fn kind_of(command: &str) -> Option<OrderKind> {
        let kinds = [OrderKind::Exempt, OrderKind::Block];
        kinds.into_iter().find(|kind| Self::of(*kind).command == command)
    }

    pub const fn of(kind: OrderKind) -> Self {
        match kind {
            OrderKind::Exempt => Self {
                command: "exempt",
                noun: "exemption",
                nouns: "exemptions",
                state: "exempt",
                state_by: "exempt from",
            },
            OrderKind::Block => Self {
                command: "block",
                noun: "block",
                nouns: "blocks",
                state: "blocked",
                state_by: "blocked by",
            },
        }
    }
}

/// An order that is in force.
#[derive(Clone, Debug, Serialize)]
pub struct OrderState {
    /// "exempt" or "block".
    pub order: &'static str,
    /// The client or the network that it is about.
    pub key: String,
    /// Whether it is about a network.
    pub network: bool,
    pub left_ms: u64,
    /// When it ends: "2026-11-29 09:00:00 UTC".
    pub until: String,
    /// Since when it is in force on this machine, in the same form.
    pub since: String,
    pub note: String,
    /// Who gave it, and on which machine: "anna@limiter1".
    pub giver: String,
    #[serde(skip)]
    pub kind: OrderKind,
}

impl OrderState {
    pub fn of(order: &Order, table: &Table) -> Self {
        let Order { kind, target, until, since, key, note, giver, .. } = order;
        let now = table.now();
        let left = until.saturating_since(now);
        Self {
            order: OrderWords::of(*kind).command,
            key: key.clone(),
            network: matches!(target, OrderTarget::Network { .. }),
            left_ms: left.millis_ceil(),
            until: end_in_words(left.into()),
            since: in_words(SystemTime::now() - Duration::from(now.saturating_since(*since))),
            note: note.clone(),
            giver: giver.clone(),
            kind: *kind,
        }
    }

    /// The state in the JSON of an agent. `None` if it is of a version with other orders.
    pub(crate) fn read(json: &Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let kind = OrderWords::kind_of(json["order"].as_str()?)?;
        Some(Self {
            order: OrderWords::of(kind).command,
            key: text("key")?,
            network: json["network"].as_bool()?,
            left_ms: json["left_ms"].as_u64()?,
            until: text("until")?,
            since: text("since")?,
            note: text("note")?,
            giver: text("giver")?,
            kind,
        })
    }

    /// For how long no request of its clients is allowed.
    pub(crate) fn wait_ms(&self) -> u64 {
        if self.kind == OrderKind::Block { self.left_ms } else { 0 }
    }

    /// "blocked for another 60 min, until 2026-11-29 09:00:00 UTC, here since 2026-11-29
    /// 08:00:00 UTC, by anna@limiter1 (INC-4711)".
    pub fn in_words(&self) -> String {
        self.in_words_for(&self.key)
    }

    /// The same about a client: "blocked with all of 10.1.2.0/24 for another 60 min".
    pub(crate) fn in_words_for(&self, client: &str) -> String {
        let Self { key, left_ms, until, since, note, giver, kind, .. } = self;
        let with = match *key == *client {
            true => String::new(),
            false => format!(" with all of {}", Visible(key)),
        };
        let giver = if giver.is_empty() { "an unknown operator" } else { giver };
        let note = match &**note {
            "" => String::new(),
            note => format!(" ({})", Visible(note)),
        };
        format!(
            "{}{with} for another {}, until {until}, here since {since}, by {}{note}",
            OrderWords::of(*kind).state,
            Left(Duration::from_millis(*left_ms)),
            Visible(giver)
        )
    }
}

/// The moment that comes after this time, as the log writes it.
pub fn end_in_words(left: Duration) -> String {
    in_words(SystemTime::now() + left)
}

fn in_words(moment: SystemTime) -> String {
    Utc(moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).to_string()
}
