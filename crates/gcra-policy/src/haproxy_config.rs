//! A HAProxy configuration that fits the policies, for `gcra-spoa check --print-haproxy`.
//!
//! Where only the operator knows what belongs, it prints [`EDIT`], which `haproxy -c` refuses and
//! names in its message. So no guess is ever in use: neither a condition that is missing, so that
//! a limit for logins counts every request, nor a sample that is always null.

use std::fmt::Write as _;
use std::time::Duration;

use spop_codec::{Scope, VarName};

use crate::answers::Var;
use crate::haproxy_args::{API_KEY, EDIT, KnownArg};
use crate::haproxy_report::{self, REPORT};
use crate::limit::Limit;
use crate::policies::Policies;
use crate::policy::{Policy, When};
use crate::settle::{RESERVED, Settle};
use crate::words::text;

/// The fields of the usual HTTP log line, as in the shipped files.
const HTTP_LOG: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %tsc \
                        %ac/%fc/%bc/%sc/%rc %sq/%bq %{+Q}r";

const MAPS: &str = "/etc/haproxy/";

/// What each section `defaults` needs.
const NO_ABORT: &str = "
# ---- haproxy.cfg: in the section 'defaults'
    # With this option, which HAProxy 3.4 has by default, a client that leaves at once has no
    # limit: its request passes without a decision, and its response charges nothing.
    no option abortonclose
";

const BACKEND: &str = "
# ---- haproxy.cfg: the agents, at the addresses of their --listen
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

/// The section of the agent, which `asks` about messages or groups, and may take so many
/// milliseconds.
pub(crate) fn spoe_agent(asks: &str, processing: u64) -> String {
    let idle = processing + processing / 2;
    format!(
        "[gcra]
spoe-agent gcra
    {asks}
    use-backend gcra-agents
    option var-prefix gcra
    option set-on-error err
    timeout processing {processing}ms
    timeout hello 100ms
    timeout idle {idle}ms
    no option async
    no option send-frag-payload
    log global
    option dontlog-normal
"
    )
}

impl Policies {
    /// An spoe-agent configuration, and the lines of a haproxy.cfg that go with it.
    pub fn for_haproxy(&self) -> String {
        let processing = self.processing_ms();
        let server = format!("timeout server {}ms", 3 * processing);
        let backend = BACKEND.replacen("timeout server 300ms", &server, 1);
        let counts = self.counts_undecided();
        let tables = if counts { haproxy_report::tables(self.settles()) } else { String::new() };
        format!("{}{}{tables}{backend}", self.spoe_agent(processing), self.frontend())
    }

    /// Whether HAProxy asks when a request comes, so that it can count those without a decision.
    fn counts_undecided(&self) -> bool {
        self.answers.scope != Scope::Response
    }

    fn settles(&self) -> bool {
        self.without_trials().any(|policy| policy.settle().is_some())
    }

    /// The milliseconds after which HAProxy goes on without an ACK: clearly longer than a request
    /// may wait for the store.
    pub(crate) fn processing_ms(&self) -> u64 {
        const USUAL: u64 = 100;
        let wait = self.store.as_ref().filter(|_| self.first_shared().is_some());
        let wait = wait.map_or(Duration::ZERO, |store| store.wait).as_millis();
        let wait = u64::try_from(wait).unwrap_or(u64::MAX / 8);
        match wait {
            0..=50 => USUAL,
            wait => (wait + wait / 4 + 50).next_multiple_of(10).max(USUAL),
        }
    }

    fn spoe_agent(&self, processing: u64) -> String {
        let mut messages: Vec<Message<'_>> = Vec::new();
        for policy in &self.list {
            match messages.iter_mut().find(|message| message.name() == name(policy)) {
                Some(message) => message.policies.push(policy),
                None => messages.push(Message { policies: vec![policy] }),
            }
        }
        let mut names: Vec<_> = messages.iter().map(Message::name).collect();
        let mut sections: String =
            messages.iter().map(|message| message.section(self, messages.len() == 1)).collect();
        for policy in self.without_trials() {
            if let Some(settle) = policy.settle()
                && let name = text(&settle.message)
                && !names.contains(&name)
            {
                sections.push_str(&self.settling(&name));
                names.push(name);
            }
        }
        if self.counts_undecided() {
            sections.push_str(&haproxy_report::section(self.settles()));
            names.push(REPORT.to_owned());
        }
        let note = if sections.contains(EDIT) {
            // Without the word itself, so that an editor's search does not stop here.
            "# Replace the words in capital letters: only you know what belongs there. Until then
# 'haproxy -c' refuses the file and names them."
                .to_owned()
        } else if sections.contains(MAPS) {
            format!("# It can be used when the map in {MAPS} exists, which is named below.")
        } else {
            "# It can be used as it is, if each arg has the sample that you want.".to_owned()
        };
        format!(
            "# ---- spoe-gcra.conf: what HAProxy asks
{note}
{}{sections}",
            spoe_agent(&format!("messages {}", names.join(" ")), processing),
        )
    }

    /// The section of a message of responses.
    fn settling(&self, message: &str) -> String {
        let settled =
            self.without_trials().filter(|policy| policy.is_settled_by(message.as_bytes()));
        let (mut args, mut comments) = (Vec::<String>::new(), Vec::new());
        let mut has_cost = false;
        for policy in settled {
            for name in request_args(policy) {
                let arg = match self.sample(&name) {
                    Some(sample) if sample == "src" => format!("{name}=src"),
                    _ => format!("{name}=var({})", kept(&name)),
                };
                if !args.contains(&arg) {
                    args.push(arg);
                }
            }
            if let Some(Settle { cost: Some(cost), .. }) = policy.settle() {
                has_cost = true;
                let (cost, arg) = (text(cost), format!("{}={EDIT}", text(cost)));
                if !args.contains(&arg) {
                    comments.push(format!(
                        "{cost}: write its sample, for example res.fhdr(x-{cost}) for a header \
                         of the response"
                    ));
                    args.push(arg);
                }
            }
            let reserved = format!("{RESERVED}=var(txn.gcra.{RESERVED})");
            if policy.reserves() && !args.contains(&reserved) {
                args.push(reserved);
            }
        }
        let mut lines = spoe_message(message, &args, &comments);
        lines.push_str(match has_cost {
            true => "    # Each response to a request that was decided.\n",
            false => "    # Which responses cost a cell? For example those with { status 401 }.\n",
        });
        let asked = format!("{{ var({}.gcra.blocked) -m found }}", self.answers.scope.as_str());
        let condition = if has_cost { asked } else { format!("{asked} {EDIT}") };
        let _ = writeln!(lines, "    event on-http-response if {condition}");
        lines
    }

    /// The lines that keep what the message of a response needs of its request.
    fn kept_for_responses(&self) -> String {
        let mut lines = String::new();
        for policy in self.without_trials().filter(|policy| policy.settle().is_some()) {
            for name in request_args(policy) {
                let sample = self.sample(&name).unwrap_or_else(|| EDIT.to_owned());
                let line = format!("    http-request set-var({}) {sample}\n", kept(&name));
                if sample != "src" && !lines.contains(&line) {
                    lines.push_str(&line);
                }
            }
        }
        if !lines.is_empty() {
            lines.insert_str(0, "    # The message of the response needs these of its request.\n");
        }
        lines
    }

    fn has(&self, wanted: Var) -> bool {
        self.answers.others.contains(&wanted)
    }

    fn var(&self, var: Var) -> String {
        self.in_scope(var.name())
    }

    fn blocked(&self) -> String {
        self.in_scope(self.answers.blocked)
    }

    fn in_scope(&self, name: VarName<'_>) -> String {
        format!("{}.gcra.{}", self.answers.scope.as_str(), name.as_str())
    }

    /// Where HAProxy acts on the answer.
    fn direction(&self) -> &'static str {
        if self.answers.scope == Scope::Response { "response" } else { "request" }
    }

    fn frontend(&self) -> String {
        let mut lines = "
# ---- haproxy.cfg: in the frontend, which has 'mode http' and logs
    # HAProxy looks for the file in the directory that it is started in, unless you write its whole
    # path or 'default-path config' in the section 'global'. Below this line it has forgotten that:
    # write the whole path of each file.
    filter spoe engine gcra config spoe-gcra.conf
    # Behind \"Upgrade: h2c\", which HAProxy 2.6 lets through, requests would pass unseen.
    http-request del-header upgrade if { req.fhdr(upgrade) -m sub -i h2c }
"
        .to_owned();
        lines.insert_str(0, NO_ABORT);
        if self.counts_undecided() {
            lines.push_str(&haproxy_report::rules(self.settles()));
        }
        lines.push_str(
            "    # Behind CONNECT, as behind \"Upgrade: h2c\", requests would pass unseen.\n    \
             http-request deny status 405 if { method CONNECT }\n    \
             # Servers may read a value in more ways than these rules know: they strip\n    \
             # spaces of Unicode, or take other signs for _ in names. See 'What clients\n    \
             # try' in haproxy/README.md.\n",
        );
        let messages = self.list.iter().map(name);
        let several = messages.clone().any(|message| Some(message) != messages.clone().next());
        lines.push_str(&self.rules_about_args(several));
        lines.push_str(&self.kept_for_responses());
        // Variables of the scope `req` are gone when there is a response.
        let outlives_the_request = self.answers.scope != Scope::Request;
        if outlives_the_request {
            lines.push_str(&self.bandwidth());
            lines.push_str(&self.header_fields());
        } else {
            lines.push_str(
                "    # With scope = \"req\" neither responses nor the log can have the variables; \
                 \"txn\" lives longer.\n",
            );
        }
        lines.push_str(&self.denial(self.has(Var::Headers) && outlives_the_request));
        if outlives_the_request {
            lines.push_str(&self.log_format());
        }
        lines
    }

    fn bandwidth(&self) -> String {
        if !self.has(Var::Bandwidth) {
            return String::new();
        }
        let (direction, var) = (self.direction(), self.var(Var::Bandwidth));
        format!(
            "    # Responses to clients that owe more are slower; from HAProxy 2.7 on.\n\
             .if version_atleast(2.7)\n    \
             filter bwlim-out by-debt default-limit 1g default-period 1s\n    \
             http-{direction} set-bandwidth-limit by-debt limit var({var}) period 1s if {{ \
             var({var}) -m found }}\n.endif\n"
        )
    }

    fn header_fields(&self) -> String {
        let fields = [(Var::RateLimitPolicy, "RateLimit-Policy"), (Var::RateLimit, "RateLimit")];
        let fields = fields.into_iter().filter(|(wanted, _)| self.has(*wanted));
        let fields: String = fields
            .map(|(wanted, header)| {
                let var = self.var(wanted);
                format!(
                    "    http-after-response set-header {header} %[var({var})] if {{ var({var}) \
                     -m found }}\n"
                )
            })
            .collect();
        if !self.has(Var::Headers) {
            return fields;
        }
        let var = self.var(Var::Headers);
        let or_else = if fields.is_empty() { "" } else { ".else\n" };
        format!(
            "    # All header fields with one line, Retry-After too; from HAProxy 3.4 on.\n\
             .if version_atleast(3.4)\n    \
             http-after-response set-headers-bin var({var})\n{or_else}{fields}.endif\n"
        )
    }

    /// The rules for a request over the limit. `has_list` is whether a variable has all header
    /// fields, with Retry-After.
    fn denial(&self, has_list: bool) -> String {
        let mut lines = String::new();
        let mut retry_after = String::new();
        if self.has(Var::RetryAfter) {
            retry_after = format!(" hdr Retry-After \"%[var({})]\"", self.var(Var::RetryAfter));
        } else if !has_list {
            lines.push_str(
                "    # For a Retry-After header, add \"retry_after\" to 'answer' in the agents' \
                 file, and\n    # print this again.\n",
            );
        }
        let (direction, blocked) = (self.direction(), self.blocked());
        let _ = writeln!(
            lines,
            "    http-{direction} deny status 429 content-type text/plain string \"Too many \
             requests.\\n\"{retry_after} if {{ var({blocked}) -m bool }}"
        );
        if self.has(Var::DelayMs) {
            let var = self.var(Var::DelayMs);
            let _ = writeln!(
                lines,
                "    # Behind the rule that denies. Without this rule no request waits, and more \
                 pass than\n    # the limit allows. It needs HAProxy 3.2 or later.\n    \
                 http-{direction} pause var({var}) if {{ var({var}) -m int gt 0 }}"
            );
        }
        lines
    }

    fn log_format(&self) -> String {
        let mut lines = String::new();
        let logged = [Var::Policy, Var::Reason, Var::RetryAfter];
        let missing: Vec<_> = logged
            .iter()
            .filter(|var| !self.has(**var))
            .map(|var| format!("\"{}\"", var.name().as_str()))
            .collect();
        if !missing.is_empty() {
            let _ = writeln!(
                lines,
                "    # To see them in the log, add these to 'answer' in the agents' file: {}",
                missing.join(", ")
            );
        }
        let answered = [Var::DelayMs, Var::Bandwidth].into_iter().filter(|var| self.has(*var));
        let fields = logged.into_iter().chain(answered);
        let fields: String = fields
            .map(|var| format!(" {}=%[var({})]", var.name().as_str(), self.var(var)))
            .collect();
        let blocked = self.blocked();
        let _ = writeln!(
            lines,
            "    # A long URL cuts off the end of the line, unless 'log' has a 'len': log \
             /dev/log len 8192 local0\n    \
             log-format \"{HTTP_LOG} blocked=%[var({blocked})]{fields} \
             err=%[var(txn.gcra.err)]\""
        );
        lines
    }
}

/// The args of a policy's requests that the message of a response has, too.
fn request_args(policy: &Policy) -> Vec<String> {
    let when = policy.when.iter().map(|when| &*when.arg);
    let of_limits = policy.limits().filter_map(|limit| limit.key.as_ref());
    let of_limits = of_limits.flat_map(|key| key.names());
    let by_args = policy.limits().filter_map(|limit| limit.by_arg());
    let by_args = by_args.map(|by_arg| &*by_arg.arg);
    let mut names: Vec<String> = Vec::new();
    for name in policy.key.names().chain(of_limits).chain(when).chain(by_args).map(text) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The variable that keeps an arg of the request.
fn kept(name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name: String = name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    format!("txn.request_{name}")
}

pub(crate) fn name(policy: &Policy) -> String {
    policy.message.as_deref().map_or("check".to_owned(), text)
}

fn spoe_message(name: &str, args: &[String], comments: &[String]) -> String {
    let comments: String = comments.iter().map(|it| format!("    # {it}\n")).collect();
    format!("spoe-message {name}\n{comments}    args {}\n", args.join(" "))
}

/// A spoe-message, and the policies that are for it.
struct Message<'p> {
    /// At least one. Trials, which differ from their policies only in the limits, come last.
    policies: Vec<&'p Policy>,
}

impl Message<'_> {
    fn name(&self) -> String {
        name(self.policies[0])
    }

    /// The section of the message. `is_only` says that there is no other message, so that it is
    /// for every request.
    fn section(&self, all: &Policies, is_only: bool) -> String {
        let scope = all.answers.scope;
        let (args, comments) = self.args(all);
        let mut lines = spoe_message(&self.name(), &args, &comments);
        let is_response = scope == Scope::Response;
        let event = if is_response { "on-http-response" } else { "on-frontend-http-request" };
        if scope == Scope::Session {
            lines.push_str(
                "    # For connections, in a frontend of mode tcp: event on-client-session, and the
    # rule of haproxy/tcp.cfg.\n",
            );
        }
        if is_only {
            let _ = writeln!(lines, "    event {event}");
        } else {
            let path = KnownArg::named("path").map(KnownArg::text).unwrap_or_default();
            let _ = writeln!(
                lines,
                "    # Which requests does it count? For every request, leave out the condition, \
                 from 'if' on. For\n    # those of a login, however the path is spelled, \
                 write:\n    \
                 # {{ {path} -m beg /login }}\n    event {event} if {EDIT}"
            );
        }
        lines
    }

    /// The args, each with a sample, and comments about them.
    fn args(&self, all: &Policies) -> (Vec<String>, Vec<String>) {
        // Of the request, only its address is known when the response arrives.
        let is_response = all.answers.scope == Scope::Response;
        let known = |arg: &str| all.sample(arg).filter(|sample| !is_response || sample == "src");
        let (mut args, mut comments) = (Vec::new(), Vec::new());
        let mut names: Vec<String> = Vec::new();
        let mut is_new = |name: &str| {
            let is_new = names.iter().all(|known| known != name);
            if is_new {
                names.push(name.to_owned());
            }
            is_new
        };
        // A policy without `key` counts by all args.
        let by_all = self.policies.iter().any(|policy| policy.key.args.is_empty());
        let keys = self.policies.iter().flat_map(|policy| {
            let limits = policy.limits().filter_map(|limit| limit.key.as_ref());
            policy.key.names().chain(limits.flat_map(|key| key.names())).map(text)
        });
        let mut keys: Vec<_> = keys.filter(|name| is_new(name)).collect();
        if by_all && is_new("ip") {
            keys.insert(0, "ip".to_owned());
        }
        let without_trials = || self.policies.iter().filter(|policy| !policy.is_trial);
        for key in without_trials().flat_map(|policy| &policy.key.args) {
            let name = text(&key.name);
            if KnownArg::named(&name).is_some_and(KnownArg::is_api_key) && !key.has_fallback() {
                comments.push(format!(
                    "{name}: a request without this header gets no decision, unless the policy \
                     has an 'else' in its key"
                ));
            }
        }
        comments.dedup();
        for name in &keys {
            comments.extend(all.remarks(name));
            args.push(format!("{name}={}", known(name).unwrap_or_else(|| EDIT.to_owned())));
        }
        let whens: Vec<_> = without_trials().filter_map(|policy| policy.when.as_ref()).collect();
        // A map tells API keys apart if there are any, else values of the key's first arg.
        let whole = |key: &String| known(key).and(KnownArg::named(key)).map(KnownArg::text);
        let texts: Vec<_> = keys.iter().map(whole).collect();
        let api_key = texts.iter().flatten().find(|text| *text == API_KEY);
        let first = texts.first().and_then(Option::as_ref);
        let client = api_key.or(first).map_or(EDIT, String::as_str);
        for When { arg, .. } in &whens {
            let name = text(arg);
            if !is_new(&name) {
                continue;
            }
            if let Some(sample) = known(&name) {
                comments.extend(all.remarks(&name));
                args.push(format!("{name}={sample}"));
                continue;
            }
            let values =
                whens.iter().filter(|when| when.arg == *arg).flat_map(|when| &when.values);
            let (sample, comment) =
                self.map(&name, client, values.map(|value| text(value)).collect());
            args.push(format!("{name}={sample}"));
            comments.push(comment);
        }
        let limits = self.policies.iter().flat_map(|policy| policy.limits());
        for name in limits.filter_map(Limit::by_arg).map(|by_arg| text(&by_arg.arg)) {
            if is_new(&name) {
                let (sample, create, key) = in_map(&name, client, "");
                args.push(format!("{name}={sample}"));
                comments.push(format!(
                    "{create} that has a limit of its own ('{key} 100/s burst 200')"
                ));
            }
        }
        for cost in self.policies.iter().filter_map(|policy| policy.price.arg().map(text)) {
            if is_new(&cost) {
                let settles = self.policies.iter().any(|policy| policy.reserves());
                let does = match settles {
                    true => "reserves one cell for each request",
                    false => "charges each request one cell",
                };
                comments.push(format!("{cost}: int(1) {does}"));
                args.push(format!("{cost}=int(1)"));
            }
        }
        if let Some(policy) = self.policies.iter().find(|policy| policy.key.args.is_empty())
            && args.len() > 1
        {
            comments.push(format!(
                "policy '{}' has no 'key', so all args are its key but those of its 'when' \
                 and 'cost'",
                policy.name
            ));
        }
        (args, comments)
    }

    /// The sample that finds the value of an arg of `when` in a map, and a comment about the map.
    fn map(&self, arg: &str, client: &str, values: Vec<String>) -> (String, String) {
        // The policy for all other values: it is named, so that the log of HAProxy can show it.
        let other = self.policies.iter().find(|policy| policy.when.is_none());
        let default = other.map(|policy| &*policy.name);
        let default = default.filter(|name| values.iter().all(|value| value != name));
        let rest = match (other, default) {
            (None, _) => "no policy is for the others".to_owned(),
            (Some(_), Some(name)) => format!("the others are '{name}'"),
            (Some(policy), None) => format!("the others get policy '{}'", policy.name),
        };
        let default = default.map(|name| format!(",{name}")).unwrap_or_default();
        let (sample, create, key) = in_map(arg, client, &default);
        let lines = values.iter().map(|value| format!("'{key} {}'", printable(value)));
        let lines = lines.collect::<Vec<_>>().join(" or ");
        (sample, format!("{create} ({lines}); {rest}"))
    }
}

/// The sample that finds the value of an arg in a map, and `default` if it has none. Behind it the
/// beginning of a comment about the map, and what stands for a key in its lines.
fn in_map(arg: &str, client: &str, default: &str) -> (String, String, String) {
    let (map, key) = if client == "src" { ("map_ip", "address") } else { ("map", "key") };
    let file = format!("{MAPS}{arg}s.map");
    let create = format!("{arg}: create {file}, with a line for each {key}");
    (format!("{client},{map}({file}{default})"), create, key.to_uppercase())
}

/// A value of the file, without what would end a comment.
fn printable(value: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    value.chars().map(shown).collect()
}
