//! A HAProxy configuration that fits the policies, for `gcra-spoa check --print-haproxy`.
//!
//! Where only the operator knows what belongs, it prints [`EDIT`], which `haproxy -c` refuses and
//! names in its message. So no guess is ever in use: neither a condition that is missing, so that
//! a limit for logins counts every request, nor a sample that is always null.

use std::fmt::Write as _;
use std::time::Duration;

use spop_codec::Scope;

use crate::answers::Var;
use crate::describe::text;
pub use crate::haproxy::args::EDIT;
use crate::haproxy::args::{API_KEY, KnownArg};
use crate::haproxy::report::{self, REPORT};
use crate::haproxy::shipped::{
    ARGS_CFG, BANDWIDTH_CFG, CFG, CONF, DELAY_CFG, HEADERS_CFG, POLICIES_CFG, SETTLING_CFG, line,
    part,
};
use crate::limit::Limit;
use crate::policies::Policies;
use crate::policy::{Policy, When};
use crate::settle::{RESERVED, Settle};

/// The folder of the maps that the printed files name.
pub const MAPS: &str = "/etc/haproxy/";

/// A file for HAProxy.
pub struct HaproxyFile {
    pub name: String,
    pub text: String,
}

impl HaproxyFile {
    /// Whether it is a map, in which an operator writes lines.
    pub fn is_map(&self) -> bool {
        self.name.ends_with(".map")
    }
}

/// What the printed haproxy.cfg begins with.
pub(crate) const CFG_NOTE: &str = "\
# HAProxy with the rules that fit the policies. 'haproxy -c' names what you have to replace. Put
# its sections into your own file, or write your servers below 'backend app'.

";

impl Policies {
    /// The files of a HAProxy that asks agents: the `.conf`, and the `.cfg` that names it. Behind
    /// them the maps that the `.conf` names, without entries.
    pub fn for_haproxy(&self) -> Vec<HaproxyFile> {
        let processing = self.processing_ms();
        let file = |name: &str, text| HaproxyFile { name: name.to_owned(), text };
        let (conf, maps) = self.spoe_conf(processing);
        let mut files =
            vec![file("spoe-gcra.conf", conf), file("haproxy.cfg", self.cfg(processing))];
        files.extend(maps);
        files
    }

    /// The shipped haproxy.cfg with the rules of these policies.
    fn cfg(&self, processing: u64) -> String {
        let cfg = |from, to| part(CFG, from, to);
        let settling = |from, to| if self.settles() { part(SETTLING_CFG, from, to) } else { "" };
        let counting = |text: &'static str| if self.counts_undecided() { text } else { "" };
        let app = match self.settles() {
            true => settling("# Your application.", "backend undecided"),
            false => cfg("# Your application.", "# How many requests had"),
        };
        let agents = cfg("backend gcra-agents", "    server agent1").replacen(
            "timeout server 300ms",
            &format!("timeout server {}ms", 3 * processing),
            1,
        );
        [
            CFG_NOTE,
            cfg("global\n", "    # These two rules count"),
            counting(cfg("    # These two rules count", "    # Behind CONNECT")),
            counting(settling("    # The same for messages", "    # HAProxy 2.6 takes")),
            cfg("    # Behind CONNECT", "    # The agent answers"),
            &self.rules(),
            cfg("    # This tells your servers", "# Your application."),
            app,
            counting(cfg("# How many requests had", "backend gcra-agents")),
            counting(settling("backend unsettled", "backend gcra-agents")),
            &agents,
            cfg("    server agent1", ""),
        ]
        .concat()
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
    fn processing_ms(&self) -> u64 {
        const USUAL: u64 = 100;
        let wait = self.store.as_ref().filter(|_| self.first_shared().is_some());
        let wait = wait.map_or(Duration::ZERO, |store| store.wait).as_millis();
        let wait = u64::try_from(wait).unwrap_or(u64::MAX / 8);
        match wait {
            0..=50 => USUAL,
            wait => (wait + wait / 4 + 50).next_multiple_of(10).max(USUAL),
        }
    }

    /// The messages, each with its policies.
    pub(crate) fn messages(&self) -> Vec<SpoeMessage<'_>> {
        let mut messages: Vec<SpoeMessage<'_>> = Vec::new();
        for policy in &self.list {
            match messages.iter_mut().find(|message| message.name() == name(policy)) {
                Some(message) => message.policies.push(policy),
                None => messages.push(SpoeMessage { policies: vec![policy] }),
            }
        }
        messages
    }

    /// The shipped spoe-gcra.conf with the messages of these policies, and the maps that it names.
    fn spoe_conf(&self, processing: u64) -> (String, Vec<HaproxyFile>) {
        let messages = self.messages();
        let mut names: Vec<_> = messages.iter().map(SpoeMessage::name).collect();
        let (mut sections, mut maps) = (String::new(), Vec::new());
        for message in &messages {
            let args = message.args(self);
            sections.push_str(&message.section(self.answers.scope, &args, messages.len() == 1));
            maps.extend(args.maps);
        }
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
            let report =
                part(CONF, "# How many requests had", "    event on-frontend-http-request if");
            let unsettled = if self.settles() { report::UNSETTLED_ARG } else { "" };
            let event = part(CONF, "    event on-frontend-http-request if", "");
            sections.extend([report, unsettled, event]);
            names.push(REPORT.to_owned());
        }
        let note = if sections.contains(EDIT) {
            // Without the word itself, so that an editor's search does not stop here.
            "# Replace the words in capital letters: only you know what belongs there. Until then
# 'haproxy -c' refuses the file and names them."
        } else if maps.is_empty() {
            "# It can be used as it is, if each arg has the sample that you want."
        } else {
            "# It can be used when the maps exist that are named below."
        };
        let agent = part(CONF, "[gcra]", "spoe-message check")
            .replacen("messages check gcra-undecided", &format!("messages {}", names.join(" ")), 1)
            .replacen("timeout processing 100ms", &format!("timeout processing {processing}ms"), 1)
            .replacen(
                "timeout idle 150ms",
                &format!("timeout idle {}ms", processing + processing / 2),
                1,
            );
        (format!("# What HAProxy asks, for haproxy.cfg.\n{note}\n\n{agent}{sections}"), maps)
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
                    _ => format!("{name}=var({})", variable("request", &name)),
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
        let _ = writeln!(lines, "    event on-http-response if {condition}\n");
        lines
    }

    /// The lines that keep what the message of a response needs of its request.
    fn kept_for_responses(&self) -> String {
        let mut lines = String::new();
        for policy in self.without_trials().filter(|policy| policy.settle().is_some()) {
            for name in request_args(policy) {
                let sample = self.sample(&name).unwrap_or_else(|| EDIT.to_owned());
                let line =
                    format!("    http-request set-var({}) {sample}\n", variable("request", &name));
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
        self.in_scope(var.as_str())
    }

    fn blocked(&self) -> String {
        self.in_scope(self.answers.blocked.as_str())
    }

    fn in_scope(&self, name: &str) -> String {
        format!("{}.gcra.{name}", self.answers.scope.as_str())
    }

    /// Where HAProxy acts on the answer.
    fn direction(&self) -> &'static str {
        if self.answers.scope == Scope::Response { "response" } else { "request" }
    }

    /// The rules of the frontend that depend on the policies.
    fn rules(&self) -> String {
        let mut lines = part(ARGS_CFG, "    # Servers may read", "\n    # ip,").to_owned();
        lines.push_str(&self.rules_about_args(self.messages().len() > 1));
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
        lines.push('\n');
        lines
    }

    /// A shipped rule, with the variables of the agents' scope, and where HAProxy acts on them.
    fn scoped(&self, shipped: &'static str, begin: &str) -> String {
        let rule = line(shipped, begin).replace("txn.gcra.", &self.in_scope(""));
        match self.direction() {
            "response" => rule.replacen("    http-request ", "    http-response ", 1),
            _ => rule,
        }
    }

    fn bandwidth(&self) -> String {
        if !self.has(Var::Bandwidth) {
            return String::new();
        }
        let filter = line(BANDWIDTH_CFG, "    filter bwlim-out");
        let rule = self.scoped(BANDWIDTH_CFG, "    http-request set-bandwidth-limit");
        format!(
            "    # Responses to clients that owe more are slower; from HAProxy 2.7 on.\n\
             .if version_atleast(2.7)\n{filter}{rule}.endif\n"
        )
    }

    fn header_fields(&self) -> String {
        let rules = [
            (Var::RateLimitPolicy, "    http-after-response set-header RateLimit-Policy "),
            (Var::RateLimit, "    http-after-response set-header RateLimit "),
        ];
        let rules = rules.into_iter().filter(|(wanted, _)| self.has(*wanted));
        let fields: String = rules.map(|(_, begin)| self.scoped(POLICIES_CFG, begin)).collect();
        if !self.has(Var::Headers) {
            return fields;
        }
        let all = self.scoped(HEADERS_CFG, "    http-after-response set-headers-bin");
        let or_else = if fields.is_empty() { "" } else { ".else\n" };
        format!(
            "    # All header fields with one line, Retry-After too; from HAProxy 3.4 on.\n\
             .if version_atleast(3.4)\n{all}{or_else}{fields}.endif\n"
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
            lines.push_str(
                "    # Behind the rule that denies. Without this rule no request waits, and more \
                 pass than\n    # the limit allows. It needs HAProxy 3.2 or later.\n",
            );
            lines.push_str(&self.scoped(DELAY_CFG, "    http-request pause"));
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
        let is_logged = |var: &Var| logged.contains(var) || self.has(*var);
        let fields = [
            Var::Policy,
            Var::LimitName,
            Var::Client,
            Var::Reason,
            Var::RetryAfter,
            Var::DelayMs,
            Var::Bandwidth,
        ];
        let fields: String = fields
            .into_iter()
            .filter(is_logged)
            .map(|var| format!(" {}=%[var({})]", var.name().as_str(), self.var(var)))
            .collect();
        let (blocked, http) = (self.blocked(), part(CFG, "    log-format", " blocked="));
        let _ =
            writeln!(lines, "{http} blocked=%[var({blocked})]{fields} err=%[var(txn.gcra.err)]\"");
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

/// The variable that keeps an arg of the request, with a name that begins so.
pub(crate) fn variable(prefix: &str, name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name: String = name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    format!("txn.{prefix}_{name}")
}

fn name(policy: &Policy) -> String {
    policy.message.as_deref().map_or("check".to_owned(), text)
}

fn spoe_message(name: &str, args: &[String], comments: &[String]) -> String {
    let comments: String = comments.iter().map(|it| format!("    # {it}\n")).collect();
    format!("spoe-message {name}\n{comments}    args {}\n", args.join(" "))
}

/// A spoe-message, and the policies that are for it.
pub(crate) struct SpoeMessage<'p> {
    /// At least one. Trials, which differ from their policies only in the limits, come last.
    policies: Vec<&'p Policy>,
}

impl SpoeMessage<'_> {
    pub(crate) fn name(&self) -> String {
        name(self.policies[0])
    }

    /// The section of the message. `is_only` says that there is no other message, so that it is
    /// for every request.
    fn section(&self, scope: Scope, args: &ArgList<'_>, is_only: bool) -> String {
        let mut lines = spoe_message(&self.name(), &args.args, &args.comments);
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
        lines.push('\n');
        lines
    }

    /// The args, each with a sample, and comments about them.
    pub(crate) fn args<'a>(&self, all: &'a Policies) -> ArgList<'a> {
        let (names, args, comments, maps) = Default::default();
        let mut list = ArgList { all, names, args, comments, maps };
        let keys = self.keys(&mut list);
        list.comments = self.about_api_keys();
        for name in &keys {
            list.comments.extend(all.remarks(name));
            let sample = list.known(name);
            list.add(name, sample.as_deref().unwrap_or(EDIT));
        }
        // A map tells API keys apart if there are any, else values of the key's first arg.
        let whole = |key: &String| list.known(key).and(KnownArg::named(key)).map(KnownArg::text);
        let texts: Vec<_> = keys.iter().map(whole).collect();
        let api_key = texts.iter().flatten().find(|text| *text == API_KEY);
        let first = texts.first().and_then(Option::as_ref);
        let client = api_key.or(first).map_or(EDIT, String::as_str);
        self.add_whens(&mut list, client);
        self.add_numbers(&mut list, client);
        self.add_costs(&mut list);
        if let Some(policy) = self.policies.iter().find(|policy| policy.key.args.is_empty())
            && list.args.len() > 1
        {
            list.comments.push(format!(
                "policy '{}' has no 'key', so all args are its key but those of its 'when' \
                 and 'cost'",
                policy.name
            ));
        }
        list
    }

    fn without_trials(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().copied().filter(|policy| !policy.is_trial)
    }

    /// The args that policies and their limits count by.
    fn keys(&self, list: &mut ArgList<'_>) -> Vec<String> {
        // A policy without `key` counts by all args.
        let by_all = self.policies.iter().any(|policy| policy.key.args.is_empty());
        let keys = self.policies.iter().flat_map(|policy| {
            let limits = policy.limits().filter_map(|limit| limit.key.as_ref());
            policy.key.names().chain(limits.flat_map(|key| key.names())).map(text)
        });
        let mut keys: Vec<_> = keys.filter(|name| list.is_new(name)).collect();
        if by_all && list.is_new("ip") {
            keys.insert(0, "ip".to_owned());
        }
        keys
    }

    /// Comments about requests without an API key.
    fn about_api_keys(&self) -> Vec<String> {
        let keys = self.without_trials().flat_map(|policy| &policy.key.args);
        let names = keys.filter(|key| !key.has_fallback()).map(|key| text(&key.name));
        let is_api_key = |name: &String| KnownArg::named(name).is_some_and(KnownArg::is_api_key);
        let comments = names.filter(is_api_key).map(|name| {
            format!(
                "{name}: a request without this header gets no decision, unless the policy has an \
                 'else' in its key"
            )
        });
        let mut comments: Vec<_> = comments.collect();
        comments.dedup();
        comments
    }

    /// Adds the args of `when`, which are looked up in maps if their names say no sample.
    fn add_whens(&self, list: &mut ArgList<'_>, client: &str) {
        let whens: Vec<_> =
            self.without_trials().filter_map(|policy| policy.when.as_ref()).collect();
        for When { arg, .. } in &whens {
            let name = text(arg);
            if !list.is_new(&name) {
                continue;
            }
            if let Some(sample) = list.known(&name) {
                list.comments.extend(list.all.remarks(&name));
                list.add(&name, &sample);
                continue;
            }
            let values =
                whens.iter().filter(|when| when.arg == *arg).flat_map(|when| &when.values);
            let (sample, comment) =
                self.map(&name, client, values.map(|value| text(value)).collect());
            list.add(&name, &sample);
            list.add_map(&name, comment);
        }
    }

    /// Adds the args that say the numbers of limits.
    fn add_numbers(&self, list: &mut ArgList<'_>, client: &str) {
        let limits = self.policies.iter().flat_map(|policy| policy.limits());
        for name in limits.filter_map(Limit::by_arg).map(|by_arg| text(&by_arg.arg)) {
            if list.is_new(&name) {
                let (sample, create, key) = in_map(&name, client, "");
                list.add(&name, &sample);
                let about =
                    format!("{create} that has a limit of its own ('{key} 100/s burst 200')");
                list.add_map(&name, about);
            }
        }
    }

    /// Adds the args with costs.
    fn add_costs(&self, list: &mut ArgList<'_>) {
        for cost in self.policies.iter().filter_map(|policy| policy.price.arg().map(text)) {
            if list.is_new(&cost) {
                let does = match self.policies.iter().any(|policy| policy.reserves()) {
                    true => "reserves one cell for each request",
                    false => "charges each request one cell",
                };
                list.comments.push(format!("{cost}: int(1) {does}"));
                list.add(&cost, "int(1)");
            }
        }
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

/// The args of a message as they are put together, and comments about them.
pub(crate) struct ArgList<'a> {
    all: &'a Policies,
    names: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) comments: Vec<String>,
    maps: Vec<HaproxyFile>,
}

impl ArgList<'_> {
    /// Whether there was no arg with this name before. From now on there is one.
    fn is_new(&mut self, name: &str) -> bool {
        let is_new = self.names.iter().all(|known| known != name);
        if is_new {
            self.names.push(name.to_owned());
        }
        is_new
    }

    /// The sample that follows from the name of an arg. Of the request, only its address is known
    /// when the response arrives.
    fn known(&self, name: &str) -> Option<String> {
        let is_response = self.all.answers.scope == Scope::Response;
        self.all.sample(name).filter(|sample| !is_response || sample == "src")
    }

    fn add(&mut self, name: &str, sample: &str) {
        self.args.push(format!("{name}={sample}"));
    }

    /// A map of an arg, and a comment about it.
    fn add_map(&mut self, arg: &str, comment: String) {
        self.maps
            .push(HaproxyFile { name: format!("{arg}s.map"), text: format!("# {comment}\n") });
        self.comments.push(comment);
    }
}

/// A value of the file, without what would end a comment.
fn printable(value: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    value.chars().map(shown).collect()
}
