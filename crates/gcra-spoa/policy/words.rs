//! Policies as one would say them, and as HAProxy has to be told.

use std::fmt::Write as _;

use crate::policy::answer::Var;
use crate::policy::{Policies, Policy, Rule, When};

impl Policy {
    /// "100 per second, up to 20 at once, for each ip".
    pub(crate) fn in_words(&self) -> String {
        let mut words = rule_in_words(&self.rule);
        let parts: Vec<_> = self.key.args.iter().map(|arg| text(arg)).collect();
        words.push_str(match &parts[..] {
            [] => ", for each value of the message's args",
            _ => ", for each ",
        });
        words.push_str(&parts.join(" and "));
        let groups = [("IPv4", self.key.ipv4_prefix, 32), ("IPv6", self.key.ipv6_prefix, 128)];
        let groups: Vec<_> = groups
            .iter()
            .filter(|(_, prefix, whole)| prefix < whole)
            .map(|(family, prefix, _)| format!("{family} by /{prefix}"))
            .collect();
        if !groups.is_empty() {
            let _ = write!(words, " ({})", groups.join(", "));
        }
        if self.key.lowercase {
            words.push_str(", upper and lower case alike");
        }
        if let Some(cost) = &self.cost {
            let _ = write!(words, ", at the cost that {} says", text(cost));
        }
        words
    }

    /// The same for a list of several: with its name, what it is for, and its exceptions.
    fn in_a_list(&self) -> String {
        let mut words = format!("policy '{}'", self.name);
        if let Some(message) = &self.message {
            let _ = write!(words, ", for the message '{}'", text(message));
        }
        if let Some(When { arg, values }) = &self.when {
            let values: Vec<_> = values.iter().map(|value| format!("'{}'", text(value))).collect();
            let _ = write!(words, " when {} is {}", text(arg), values.join(" or "));
        }
        let _ = write!(words, ": {}", self.in_words());
        if self.observes {
            words.push_str("; only watched, nobody is blocked");
        }
        if let Some(penalty) = self.penalty {
            let _ = write!(
                words,
                "; whoever goes on while blocked is charged {} each time, and waits at most {} s longer for it",
                penalty.cells,
                penalty.ceiling_ns.div_ceil(1_000_000_000)
            );
        }
        for (index, rule) in self.overrides.rules.iter().enumerate() {
            let (v4, v6, values) = self.overrides.counts(index);
            let _ = write!(
                words,
                "\n    but {}: {v4} IPv4 and {v6} IPv6 networks, {values} values",
                rule_in_words(rule)
            );
        }
        words
    }
}

fn rule_in_words(rule: &Rule) -> String {
    match rule {
        Rule::Deny => "nothing is let through".to_owned(),
        Rule::Unlimited => "everything is let through".to_owned(),
        Rule::Limits(limits) => {
            limits.iter().map(|limit| &*limit.text).collect::<Vec<_>>().join("; and ")
        }
    }
}

/// What an arg or a message is called, for people.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Policies {
    /// All policies, a paragraph each.
    pub(crate) fn in_words(&self) -> String {
        let mut words: Vec<_> = self.list.iter().map(Policy::in_a_list).collect();
        let others: Vec<_> = self.answers.others.iter().map(|var| var.name().as_str()).collect();
        if !others.is_empty() {
            words.push(format!("answered beside 'blocked': {}", others.join(", ")));
        }
        words.join("\n")
    }

    /// An spoe-agent configuration and the lines of a haproxy.cfg that go with these policies.
    pub(crate) fn for_haproxy(&self) -> String {
        let mut messages: Vec<&Policy> = Vec::new();
        for policy in &self.list {
            if !messages.iter().any(|known| known.message == policy.message) {
                messages.push(policy);
            }
        }
        let name = |policy: &Policy| policy.message.as_deref().map_or("check".to_owned(), text);
        let names: Vec<_> = messages.iter().map(|policy| name(policy)).collect();
        let mut lines = format!(
            "# ---- spoe-gcra.conf: what HAProxy asks\n\
             # Each sample is a guess by the name of its arg; put in what you have.\n\
             [gcra]\n\
             spoe-agent gcra\n\
             \x20   messages {}\n\
             \x20   use-backend gcra-agents\n\
             \x20   option var-prefix gcra\n\
             \x20   option set-on-error err\n\
             \x20   timeout processing 100ms\n\
             \x20   timeout hello 100ms\n\
             \x20   timeout idle 150ms\n",
            names.join(" ")
        );
        for first in &messages {
            let mut args: Vec<String> = Vec::new();
            let same = self.list.iter().filter(|policy| policy.message == first.message);
            for policy in same {
                let when = policy.when.iter().map(|when| text(&when.arg));
                let key = policy.key.args.iter().map(|arg| text(arg));
                for arg in key.chain(when) {
                    if !args.contains(&arg) {
                        args.push(arg);
                    }
                }
            }
            if first.key.args.is_empty() {
                args.insert(0, "ip".to_owned());
            }
            let mut args: Vec<_> =
                args.into_iter().map(|arg| format!("{arg}={}", sample(&arg))).collect();
            if let Some(cost) = &first.cost {
                args.push(format!("{}=int(1)", text(cost)));
            }
            let _ = write!(
                lines,
                "spoe-message {}\n    args {}\n    event on-frontend-http-request\n",
                name(first),
                args.join(" ")
            );
        }
        let scope = self.answers.scope.as_str();
        let var = |var: &str| format!("{scope}.gcra.{var}");
        let has = |wanted: Var| self.answers.others.contains(&wanted);
        lines.push_str(
            "\n# ---- haproxy.cfg: in the frontend\n    filter spoe engine gcra config spoe-gcra.conf\n",
        );
        for (wanted, header) in
            [(Var::RateLimitPolicy, "RateLimit-Policy"), (Var::RateLimit, "RateLimit")]
        {
            if has(wanted) {
                let var = var(wanted.name().as_str());
                let _ = writeln!(
                    lines,
                    "    http-after-response set-header {header} %[var({var})] if {{ var({var}) -m found }}"
                );
            }
        }
        let retry = match has(Var::RetryAfter) {
            true => format!("%[var({})]", var("retry_after")),
            false => "1".to_owned(),
        };
        let _ = write!(
            lines,
            "    http-request deny status 429 content-type text/plain string \"Too many requests.\\n\" hdr Retry-After \"{retry}\" if {{ var({}) -m bool }}\n\
             \n# ---- haproxy.cfg: the agents\n\
             backend gcra-agents\n\
             .if version_atleast(3.1-dev0)\n\
             \x20   mode spop\n\
             \x20   timeout server 2m\n\
             .else\n\
             \x20   mode tcp\n\
             \x20   timeout server 300ms\n\
             \x20   option independent-streams\n\
             .endif\n\
             \x20   timeout connect 30ms\n\
             \x20   retries 1\n\
             \x20   option redispatch 1\n\
             \x20   option spop-check\n\
             \x20   timeout check 300ms\n\
             \x20   default-server check inter 200ms fastinter 100ms fall 2 rise 1\n\
             \x20   server agent1 127.0.0.1:9000\n\
             \x20   server agent2 127.0.0.1:9001\n",
            var(self.answers.blocked.as_str())
        );
        lines
    }
}

/// What the name of an arg stands for, as a rule.
fn sample(arg: &str) -> String {
    match arg {
        "ip" | "src" | "client" => "src".to_owned(),
        "path" | "url" | "method" => arg.to_owned(),
        "host" => "req.hdr(host),field(1,:),lower".to_owned(),
        "key" | "api_key" | "apikey" => "req.hdr(x-api-key)".to_owned(),
        _ => format!("var(txn.{arg})"),
    }
}
