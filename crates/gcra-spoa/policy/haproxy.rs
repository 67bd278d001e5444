//! A HAProxy configuration that fits the policies, for `gcra-spoa check --print-haproxy`.

use std::fmt::Write as _;

use crate::policy::describe::text;
use crate::policy::variables::Var;
use crate::policy::{Policies, Policy};

const BACKEND: &str = "
# ---- haproxy.cfg: the agents
backend gcra-agents
.if version_atleast(3.1-dev0)
    mode spop
    timeout server 2m
.else
    mode tcp
    timeout server 300ms
    option independent-streams
.endif
    timeout connect 30ms
    retries 1
    option redispatch 1
    option spop-check
    timeout check 300ms
    default-server check inter 200ms fastinter 100ms fall 2 rise 1
    server agent1 127.0.0.1:9000
    server agent2 127.0.0.1:9001
";

impl Policies {
    /// An spoe-agent configuration, and the lines of a haproxy.cfg that go with it.
    pub(crate) fn for_haproxy(&self) -> String {
        format!("{}{}{BACKEND}", self.spoe_agent(), self.frontend())
    }

    /// The first policy for each message.
    fn messages(&self) -> Vec<&Policy> {
        let mut messages: Vec<&Policy> = Vec::new();
        for policy in &self.list {
            if !messages.iter().any(|known| known.message == policy.message) {
                messages.push(policy);
            }
        }
        messages
    }

    fn spoe_agent(&self) -> String {
        let name = |policy: &Policy| policy.message.as_deref().map_or("check".to_owned(), text);
        let messages = self.messages();
        let names: Vec<_> = messages.iter().map(|policy| name(policy)).collect();
        let mut lines = format!(
            "# ---- spoe-gcra.conf: what HAProxy asks
# The samples are guesses from the names of the args: replace those that are wrong.
# Add an 'if' to an event whose message is not for every request.
[gcra]
spoe-agent gcra
    messages {}
    use-backend gcra-agents
    option var-prefix gcra
    option set-on-error err
    timeout processing 100ms
    timeout hello 100ms
    timeout idle 150ms
",
            names.join(" ")
        );
        for first in messages {
            let _ = write!(
                lines,
                "spoe-message {}\n    args {}\n    event on-frontend-http-request\n",
                name(first),
                self.args(first).join(" ")
            );
        }
        lines
    }

    /// The args of the message that this policy and others are for, each with a sample.
    fn args(&self, first: &Policy) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        for policy in self.list.iter().filter(|policy| policy.message == first.message) {
            let key = policy.key.names().map(text);
            for arg in key.chain(policy.when.iter().map(|when| text(&when.arg))) {
                if !args.contains(&arg) {
                    args.push(arg);
                }
            }
        }
        if first.key.args.is_empty() && !args.iter().any(|arg| arg == "ip") {
            args.insert(0, "ip".to_owned());
        }
        let mut costs: Vec<String> = Vec::new();
        for policy in self.list.iter().filter(|policy| policy.message == first.message) {
            for cost in policy.cost.iter().map(|cost| text(cost)) {
                if !costs.contains(&cost) {
                    costs.push(cost);
                }
            }
        }
        let costs = costs.iter().map(|cost| format!("{cost}=int(1)"));
        args.iter().map(|arg| format!("{arg}={}", sample(arg))).chain(costs).collect()
    }

    fn frontend(&self) -> String {
        let scope = self.answers.scope.as_str();
        let var = |var: &str| format!("{scope}.gcra.{var}");
        let has = |wanted: Var| self.answers.others.contains(&wanted);
        let mut lines = "
# ---- haproxy.cfg: in the frontend
    filter spoe engine gcra config spoe-gcra.conf
"
        .to_owned();
        for (wanted, header) in
            [(Var::RateLimitPolicy, "RateLimit-Policy"), (Var::RateLimit, "RateLimit")]
        {
            if has(wanted) {
                let var = var(wanted.name().as_str());
                let _ = writeln!(
                    lines,
                    "    http-after-response set-header {header} %[var({var})] if {{ var({var}) \
                     -m found }}"
                );
            }
        }
        let retry_after = match has(Var::RetryAfter) {
            true => format!("%[var({})]", var("retry_after")),
            false => "1".to_owned(),
        };
        let _ = writeln!(
            lines,
            "    http-request deny status 429 content-type text/plain string \"Too many \
             requests.\\n\" hdr Retry-After \"{retry_after}\" if {{ var({}) -m bool }}",
            var(self.answers.blocked.as_str())
        );
        lines
    }
}

/// The sample that the name of an arg usually stands for.
fn sample(arg: &str) -> String {
    match arg {
        "ip" | "src" | "client" => "src".to_owned(),
        "path" | "url" | "method" => arg.to_owned(),
        "host" => "req.hdr(host),field(1,:),lower".to_owned(),
        "key" | "api_key" | "apikey" => "req.hdr(x-api-key)".to_owned(),
        _ => format!("var(txn.{arg})"),
    }
}
