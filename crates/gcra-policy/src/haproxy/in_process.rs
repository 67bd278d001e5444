//! Lines for a HAProxy that decides itself, for `gcra-spoa check --print-haproxy --in-process`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use gcra_table::Nanos;
use spop_codec::Scope;

use crate::haproxy::args::EDIT;
use crate::haproxy::config::{ArgList, CFG_NOTE, HaproxyFile, SpoeMessage, variable};
use crate::haproxy::shipped::{IN_PROCESS_CFG, line, part};
use crate::policies::Policies;
use crate::policy::Policy;

/// How many args a question can have: HAProxy gives a converter five words, and the first is the
/// name of the message.
const MOST_ARGS: usize = 4;

impl Policy {
    /// The feature of the policy that needs an agent, in words, if it has one.
    fn needs_an_agent(&self) -> Option<&'static str> {
        // Every field is named, so that a new one can't be forgotten here.
        let Self {
            shared,
            bandwidth,
            name: _,
            message: _,
            when: _,
            key: _,
            price: _,
            rule: _,
            overrides: _,
            observes: _,
            penalty: _,
            trial: _,
            is_trial: _,
            name_salt: _,
            reset_at: _,
        } = self;
        if shared.is_some() {
            Some("is shared with other machines")
        } else if self.settle().is_some() {
            Some("is settled by responses")
        } else if self.max_delay() > Nanos::ZERO {
            Some("delays requests")
        } else if bandwidth.is_some() {
            Some("limits the bandwidth")
        } else {
            None
        }
    }
}

impl Policies {
    /// A sentence about the first policy that HAProxy cannot decide about itself.
    pub fn need_an_agent(&self) -> Option<String> {
        let needs = |policy: &Arc<Policy>| Some((policy.name.clone(), policy.needs_an_agent()?));
        let (name, what) = self.list.iter().find_map(needs)?;
        Some(format!(
            "policy '{name}' {what}, which only an agent can do: write the policy into a file of \
             its own, start an agent with that, and ask it over SPOE"
        ))
    }

    /// A haproxy.cfg with which HAProxy decides by the policies of `file`.
    ///
    /// # Errors
    ///
    /// A sentence that says why HAProxy cannot.
    pub fn for_haproxy_in_process(&self, file: &Path) -> Result<Vec<HaproxyFile>, String> {
        if let Some(why) = self.need_an_agent() {
            return Err(why);
        }
        if matches!(self.answers.scope, Scope::Session | Scope::Response) {
            return Err(format!(
                "HAProxy decides about requests itself, and the scope is \"{}\" instead of \
                 \"txn\"",
                self.answers.scope.as_str()
            ));
        }
        let messages = self.messages();
        let questions = messages.iter().map(|message| self.question(message, messages.len() == 1));
        let questions = questions.collect::<Result<String, _>>()?;
        // A space would begin another word.
        let file = file.to_str().filter(|file| !file.contains([' ', '\t', '"', '\'', '\\']));
        let words = format!("--config {}", file.unwrap_or(EDIT));
        // Of several messages, some may not be asked about a request.
        let undecided = match messages.len() {
            1 => "unless { var(txn.wait) -m int ge 0 }",
            _ => "if { var(txn.wait) -m int lt 0 }",
        };
        let others = match self.answers.others.is_empty() {
            true => "",
            false => {
                "    # For the other variables of 'answer', see docs/guides/inside-haproxy.md.\n"
            }
        };
        let global = part(IN_PROCESS_CFG, "global\n", "    # Each evaluation of")
            .replace(
                "    # In the place of --rate and --burst, --config names a file with policies.\n",
                "",
            )
            .replace("--rate \"${GCRA_RATE-100/s}\" --burst 20", &words)
            .replace("--rate ${GCRA_RATE-100/s} --burst 20", &words);
        let denial =
            part(IN_PROCESS_CFG, "    # To deny what was not decided", "    # Metrics and status")
                .replace("unless { var(txn.wait) -m int ge 0 }", undecided);
        let text = [
            CFG_NOTE,
            &global,
            &self.rules_about_args(messages.len() > 1),
            "    # Each evaluation of lua.gcra or lua.gcra_ip charges a request. Its value is
    # the time that the client has to wait, in milliseconds: 0 if the request is allowed, and -1
    # without a decision.
",
            others,
            &questions,
            &denial,
            part(IN_PROCESS_CFG, "    # Metrics and status", ""),
        ]
        .concat();
        Ok(vec![HaproxyFile { name: "haproxy.cfg".to_owned(), text }])
    }

    /// The rules that ask about a message.
    fn question(&self, message: &SpoeMessage<'_>, is_only: bool) -> Result<String, String> {
        let ArgList { args, comments, .. } = message.args(self);
        let mut args: Vec<_> = args.iter().filter_map(|arg| arg.split_once('=')).collect();
        if args.len() > MOST_ARGS {
            return Err(format!(
                "message '{}' has {} args, and lua.gcra can have {MOST_ARGS}; ask an agent about \
                 it over SPOE",
                message.name(),
                args.len()
            ));
        }
        // Only the last one may have a '|' in it.
        args.sort_by_key(|(_, sample)| !is_plain(sample));
        let mut lines: String =
            comments.iter().map(|comment| format!("    # {comment}\n")).collect();
        let (mut value, mut names) = (String::new(), String::new());
        for (place, (name, sample)) in args.iter().enumerate() {
            let is_last = place + 1 == args.len();
            let (hex, kind) = match *sample {
                "int(1)" => ("", ":int"),
                sample if is_plain(sample) || is_last => ("", ""),
                _ => (",hex", ":strhex"),
            };
            let _ = write!(names, ",{name}{kind}");
            if place == 0 && matches!(*sample, "src" | "int(1)") {
                value.push_str(sample);
                continue;
            }
            // Without a value HAProxy would not call the converter at all, so one that is always
            // there stands first.
            let begin = if place == 0 { "str(),concat(" } else { ",concat(|" };
            let variable = variable("ask", name);
            let _ = writeln!(lines, "    http-request set-var({variable}) {sample}{hex}");
            let _ = write!(value, "{begin},{variable})");
        }
        // The only value of the only policy needs no name, and costs less without one.
        let is_bare = is_only && self.without_trials().count() == 1 && args.len() == 1;
        let named = format!("({}{names})", message.name());
        let question = if is_bare { "" } else { &named };
        // An address alone costs less in hexadecimal.
        let (value, converter) = match args[..] {
            [(_, "src")] => ("src,hex", "gcra_ip"),
            _ => (&value[..], "gcra"),
        };
        let condition = if is_only {
            String::new()
        } else {
            lines.push_str(
                "    # Which requests does it count? For every request, leave out the condition, \
                 from 'if' on.\n",
            );
            format!(" if {EDIT}")
        };
        let _ = writeln!(
            lines,
            "    http-request set-var(txn.wait) {value},lua.{converter}{question}{condition}"
        );
        lines.push_str(line(IN_PROCESS_CFG, "    http-request deny status 429"));
        Ok(lines)
    }
}

/// Whether no client can write a '|' into it.
fn is_plain(sample: &str) -> bool {
    matches!(sample, "src" | "int(1)") || sample.ends_with(",hex")
}
