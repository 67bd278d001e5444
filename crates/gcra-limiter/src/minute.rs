//! The sentences of the log, once a minute, about the clients that were blocked.

use gcra_policy::KnownClients;
use gcra_text::count::Count;

use crate::heaviest::{Clients, HeavyClient, HeavyClients};
use crate::verdict::Outcome;

/// The requests of a minute with one outcome, under all policies.
pub(crate) struct Minute {
    pub(crate) outcome: Outcome,
    words: &'static str,
    pub(crate) requests: u64,
    /// A client that several policies have counted is one client.
    pub(crate) clients: Clients,
    /// The policies with such requests, each with its clients.
    pub(crate) policies: Vec<(String, HeavyClients)>,
}

impl Minute {
    pub(crate) fn new(outcome: Outcome, words: &'static str) -> Self {
        Self { outcome, words, requests: 0, clients: Clients::default(), policies: Vec::new() }
    }

    pub(crate) fn in_words(&self, known: &KnownClients) -> Option<String> {
        let counted = |requests| Count(requests, "request", "requests");
        let found = self.clients.found();
        if self.requests == 0 || found.clients == 0 {
            return None;
        }
        let (at_least, about) = if found.complete { ("", "") } else { ("at least ", "about ") };
        let clients = Count(found.clients, "client", "clients");
        let were = match (self.outcome, self.requests) {
            (Outcome::Blocked, 1) => "was ",
            (Outcome::Blocked, _) => "were ",
            _ => "",
        };
        let most = match found.heaviest.first() {
            Some(HeavyClient { client, requests, .. }) => {
                let policies = self.policies_that_know(client);
                let client = known.with_words(client);
                format!("most came from {client}: {about}{} ({policies})", counted(*requests))
            }
            None => "no client had many of them".to_owned(),
        };
        let requests = counted(self.requests);
        Some(format!(
            "{requests} from {at_least}{clients} {were}{} in the last minute; {most}",
            self.words
        ))
    }

    /// The policies under which this client was counted, in words.
    fn policies_that_know(&self, client: &str) -> String {
        let knows =
            |found: &HeavyClients| found.heaviest.iter().any(|heavy| heavy.client == client);
        let names = self.policies.iter().filter(|(_, found)| knows(found)).map(|(name, _)| name);
        match &names.collect::<Vec<_>>()[..] {
            [one] => format!("policy {one}"),
            [one, other] => format!("policies {one} and {other}"),
            many => Count(many.len(), "policy", "policies").to_string(),
        }
    }
}
