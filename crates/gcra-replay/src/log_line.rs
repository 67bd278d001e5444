//! One line of HAProxy's log: what it says about its request, and the args that HAProxy sent.

use std::io::Cursor;
use std::time::Duration;

use gcra_policy::Policies;
use gcra_policy::key::{NamedValue, Shown};
use gcra_text::duration::{Utc, Wait};
use gcra_text::sentence::Sentence;
use haproxy_log::{Format, Input, Options, Progress};
use serde_json::json;

use crate::log_answers::why;
use crate::mapping::{Described, Fields, Mapping, known_messages};
use crate::said::{SaidFields, WhatIsSaid};
use crate::wanted::{WantedMessage, WantedOnly};

/// A line that is a request, in a format that is known.
pub struct LogLine {
    text: Vec<u8>,
    format: Format,
    /// The policy that decided, if the line says it.
    policy: Option<String>,
    /// The decision as the line says it, in words.
    pub words: String,
    /// The same as JSON.
    pub json: serde_json::Value,
}

/// A message that HAProxy has sent about the request.
pub struct SentMessage {
    /// Its name, if policies have names of messages.
    pub name: Option<String>,
    /// Its args.
    pub args: Vec<NamedValue>,
}

impl LogLine {
    /// Reads the only line of a text.
    ///
    /// # Errors
    ///
    /// A sentence, if there is not one line, or if it is no request in a format that is known.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let mut lines = text.split(|byte| *byte == b'\n').filter(|it| !it.trim_ascii().is_empty());
        let line = match (lines.next(), lines.next()) {
            (None, _) => {
                return Err("standard input has no line; give it one of HAProxy's log".into());
            }
            (Some(line), None) => line,
            _ => {
                return Err(
                    "standard input has several lines; give it one, such as by 'tail -1', or \
                            read them all with 'gcra-spoa blocked'"
                        .into(),
                );
            }
        };
        let text = [line, b"\n"].concat();
        let format = Format::guess(&text).ok_or(
            "the line has none of the formats that are known here; write what HAProxy sent about \
             the request: gcra-spoa explain ARG=VALUE",
        )?;
        let mut fields = Fields::new(&format, &[]);
        let said = SaidFields::new(&mut fields);
        let names = ["policy", "limit_name", "reason", "retry_after", "client"];
        let places = names.map(|name| fields.select_variable(name));
        let mut found = None;
        read_one(&fields, &text, |at, values| {
            let value = |place: Option<usize>| {
                let value = place.and_then(|place| *values.get(place)?)?;
                Some(String::from_utf8_lossy(value).into_owned())
            };
            found = Some((at, said.decision(values), places.map(value)));
        })?;
        let Some((at, decision, said)) = found else {
            return Err("the line is not a request".to_owned());
        };
        let [policy, limit, reason, retry_after, client] = said;
        let seconds = retry_after.as_ref().and_then(|it| it.parse().ok());
        let at = at.div_euclid(1_000_000);
        let mut words = format!("the line: {}, ", Utc(u64::try_from(at).unwrap_or(0)));
        let (outcome, err) = match decision {
            WhatIsSaid::Blocked => ("blocked", None),
            WhatIsSaid::Allowed => ("allowed", None),
            WhatIsSaid::None { err } => ("undecided", Some(err)),
            WhatIsSaid::NotReadable => ("not readable", None),
            WhatIsSaid::Silent => ("not asked", None),
        };
        match (decision, err) {
            (WhatIsSaid::Silent, _) => words += "HAProxy did not ask, or the line does not say it",
            (WhatIsSaid::NotReadable, _) => words += "its 'blocked' is neither 0 nor 1",
            (_, Some(err)) => words += &format!("no decision: {} (err={err})", why(err)),
            _ => words += outcome,
        }
        for (what, value) in
            [("policy", &policy), ("limit", &limit), ("reason", &reason), ("client", &client)]
        {
            words += &value.as_ref().map(|value| format!("; {what} {value}")).unwrap_or_default();
        }
        if let (WhatIsSaid::Blocked, Some(wait)) = (decision, seconds) {
            words += &format!("; told to wait {}", Wait(Duration::from_secs(wait)));
        }
        let json = json!({ "line": {
            "at": at, "outcome": outcome, "err": err, "policy": policy, "limit": limit,
            "reason": reason, "client": client, "retry_after": seconds,
        } });
        Ok(Self { text, format, policy, words, json })
    }

    /// The messages that HAProxy has sent, if the line has their args. They are the message with
    /// this name, or that of the policy in the line, or all.
    ///
    /// # Errors
    ///
    /// A sentence, if the line has no message's args.
    pub fn messages(
        &self,
        policies: &Policies,
        wanted: Option<&str>,
    ) -> Result<Vec<SentMessage>, String> {
        let decided = self.policy.as_deref().map(|name| name.trim_end_matches(".observe"));
        let of_line = policies.list.iter().find(|policy| Some(&*policy.name) == decided);
        let of_line = of_line.and_then(|policy| policy.message.as_deref());
        let of_line = of_line.map(|name| String::from_utf8_lossy(name).into_owned());
        let known = match wanted.map(str::to_owned).or(of_line) {
            Some(name) => vec![name],
            None => known_messages(policies),
        };
        let has_names = policies.list.iter().any(|policy| policy.message.is_some());
        let mut first_error = None;
        let mut messages = Vec::new();
        for name in known {
            let wanted = WantedMessage { name: name.clone(), only: WantedOnly::default() };
            let mut fields = Fields::new(&self.format, &[]);
            let mut described = Described::default();
            match Mapping::new(policies, &[wanted], &[], &mut fields, &mut described) {
                Ok(mut mapping) => {
                    read_one(&fields, &self.text, |_, values| {
                        mapping.write(values);
                    })?;
                    let name = has_names.then_some(name);
                    for message in mapping.written().messages {
                        let arg = |arg: spop_agent::Arg<'_>| {
                            let name = String::from_utf8_lossy(arg.name);
                            format!("{name}={}", Shown(arg.value))
                                .parse()
                                .map_err(|mistake: Sentence| mistake.to_string())
                        };
                        let args = message.args().map(arg).collect::<Result<_, String>>()?;
                        messages.push(SentMessage { name: name.clone(), args });
                    }
                }
                // The advice is for a replay, and this command does not have its flags.
                Err(why) => {
                    let why = why.split("; write").next().unwrap_or(&why).to_owned();
                    first_error = first_error.or(Some(why));
                }
            }
        }
        match first_error {
            Some(why) if messages.is_empty() => Err(format!(
                "the line does not say all that HAProxy sent: {why}; write it: gcra-spoa explain \
                 ARG=VALUE"
            )),
            _ => Ok(messages),
        }
    }
}

/// Reads the values of the selected fields of one line.
fn read_one(
    fields: &Fields<'_>,
    text: &[u8],
    mut each: impl FnMut(i64, &[Option<&[u8]>]),
) -> Result<(), String> {
    let selection = fields.selection()?;
    let input = Input::stream("standard input", Cursor::new(text.to_vec()));
    let mut options = Options::default();
    options.threads = 1;
    let mut each = |entry: &haproxy_log::Entry<'_>| each(entry.at, entry.fields);
    let read = haproxy_log::read(&[input], &selection, &options, &Progress::new(), &mut each);
    read.map(|_| ()).map_err(|error| error.to_string())
}
