//! The args for which HAProxy has samples by their names, and the rules without which a client
//! gets around a limit by the text that it writes into an arg. Both are in a shipped file.

use std::fmt::Write as _;
use std::iter;
use std::sync::LazyLock;

use crate::describe::text;
use crate::haproxy::shipped::{ARGS_CFG, part};
use crate::key_parts::KeyParts;
use crate::policies::Policies;
use crate::policy::Policy;

/// Stands for a text that the operator has to write. To HAProxy it is an ACL or a sample that does
/// not exist.
pub const EDIT: &str = "EDIT-THIS";

/// The converters behind an arg whose text nothing compares: it has one length, so that nobody
/// makes a message too long for a frame.
pub(crate) const HASH: &str = ",sha2(256),hex";

/// The longest text of an arg that is compared, in bytes. Three of them fit into a frame.
const MOST_TEXT: u32 = 4000;

/// An arg, or a place of the request that may have it, as `haproxy/printed/args.cfg` says it.
pub(crate) struct KnownArg {
    /// With ", " between them. Those of places are words.
    names: String,
    /// A remark about evasions that no rule can stop.
    remark: String,
    /// The sample of the request that HAProxy has.
    found: &'static str,
    /// The converters that make one text of all spellings.
    folds: &'static str,
    /// Whether it is of any length, because a client writes it.
    is_any_text: bool,
    /// For haproxy.cfg: so that servers see what is counted. The last line has no end.
    rules: &'static str,
}

static ARGS: LazyLock<Vec<KnownArg>> = LazyLock::new(|| KnownArg::all("args", "# Any other"));

/// Where a request may have a value of any other name, with the name for N.
static PLACES: LazyLock<Vec<KnownArg>> = LazyLock::new(|| KnownArg::all("others", ""));

/// The header that usually has an API key.
pub(crate) const API_KEY: &str = "req.fhdr(x-api-key)";

impl KnownArg {
    /// Those of a frontend, before a text.
    fn all(frontend: &str, end: &str) -> Vec<Self> {
        let text = part(ARGS_CFG, &format!("frontend {frontend}"), end).trim_end();
        text.split("\n\n").filter_map(Self::read).collect()
    }

    /// A comment with the names and the remark, a rule with the sample, and the other rules.
    fn read(section: &'static str) -> Option<Self> {
        let (about, rest) = section.split_once("    http-request set-var(txn.")?;
        let about = about.trim().replace("\n    # ", " ");
        let about = about.trim_start_matches("# ");
        let (names, remark) = about.split_once(": ").unwrap_or((about, ""));
        let (rule, rules) = rest.split_once('\n').unwrap_or((rest, ""));
        let (_, sample) = rule.split_once(") ")?;
        let text = sample.strip_suffix(HASH);
        let (is_any_text, text) = (text.is_some(), text.unwrap_or(sample));
        let (found, folds) = text.split_at(text.find(',').unwrap_or(text.len()));
        let (names, remark) = (names.to_owned(), remark.to_owned());
        Some(Self { names, remark, found, folds, is_any_text, rules })
    }

    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ARGS.iter().find(|arg| arg.names.split(", ").any(|known| known == name))
    }

    /// The sample with its whole text.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.found, self.folds)
    }

    pub(crate) fn is_api_key(&self) -> bool {
        self.found == API_KEY
    }
}

impl Policies {
    /// The sample of an arg as agents get it, if its name says which.
    pub(crate) fn sample(&self, name: &str) -> Option<String> {
        let arg = KnownArg::named(name)?;
        let is_hashed = arg.is_any_text && !self.compares(name);
        Some(arg.text() + if is_hashed { HASH } else { "" })
    }

    /// Whether a text of the file is compared with this arg.
    pub(crate) fn compares(&self, name: &str) -> bool {
        let folds = KnownArg::named(name).map_or("", |arg| arg.folds);
        let reads = |key: &KeyParts| key.args.is_empty() || key.reads(name.as_bytes());
        let ignores_case =
            |key: &KeyParts| key.lowercase && reads(key) && !folds.contains("lower");
        self.list.iter().any(|policy| {
            policy.when.as_ref().is_some_and(|when| *when.arg == *name.as_bytes())
                || reads(&policy.key) && !policy.overrides.values.is_empty()
                || policy.keys().any(ignores_case)
        })
    }

    /// The comments about an arg of a message.
    pub(crate) fn remarks(&self, name: &str) -> Vec<String> {
        let compares = self.compares(name);
        let Some(arg) = KnownArg::named(name) else {
            let hash = if compares { "" } else { HASH };
            let samples = PLACES.iter().map(|place| {
                format!("Of {}: {}{hash}", place.names, place.text().replace('N', name))
            });
            return iter::once(format!("{name}: write its sample.")).chain(samples).collect();
        };
        let form = match !arg.folds.is_empty() && compares {
            true => ". Write its values in the file in that form, in lower case",
            false => "",
        };
        vec![format!("{name}: {}{form}", arg.remark)]
    }

    /// For haproxy.cfg: the rules about the args of the keys, and about those of `when` with a
    /// sample. With `several` messages the path may choose among them.
    pub(crate) fn rules_about_args(&self, several: bool) -> String {
        let mut names: Vec<String> = several.then(|| "path".to_owned()).into_iter().collect();
        for name in self.list.iter().flat_map(|policy| policy.args_of_clients()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut rules: String = names.iter().map(|name| self.rules_about(name, several)).collect();
        // The rules of an API key have it.
        if names.iter().any(|name| KnownArg::named(name).is_none()) {
            rules.push_str(part(ARGS_CFG, "    # To CGI, WSGI and PHP,", "\n    # a header"));
        }
        rules
    }

    fn rules_about(&self, name: &str, several: bool) -> String {
        let compares = self.compares(name);
        // With several messages not each request has it.
        let is_needed = !several && self.needs(name);
        let Some(arg) = KnownArg::named(name) else {
            let mut rule = format!(
                "    # {name}: one value, so that servers see the one that is counted. Write the \
                 conditions\n    # of its sample, or TRUE if no client writes it.\n"
            );
            for KnownArg { names, found, rules, .. } in &*PLACES {
                let (_, conditions) = rules.split_once(" unless ").unwrap_or_default();
                let (one, none) = conditions.split_once(" or ").unwrap_or_default();
                let short = match compares {
                    true => format!(" {{ {found} -m len le {MOST_TEXT} }}"),
                    false => String::new(),
                };
                let or_none = if is_needed { String::new() } else { format!(" or {none}") };
                let conditions = format!("{one}{short}{or_none}").replace('N', name);
                let _ = writeln!(rule, "    # Of {names}: {conditions}");
            }
            return rule + &format!("    http-request deny status 400 unless {EDIT}\n");
        };
        let mut rules: String = arg.rules.lines().map(|line| format!("{line}\n")).collect();
        if arg.is_any_text && compares {
            let _ = writeln!(
                rules,
                "    http-request deny status 400 if {{ {} -m len gt {MOST_TEXT} }}",
                arg.found
            );
        }
        if arg.is_api_key() && is_needed {
            let _ = writeln!(
                rules,
                "    # Without a key there is no decision.\n    \
                 http-request deny status 401 unless {{ {API_KEY} -m len gt 0 }}"
            );
        }
        rules
    }

    /// Whether some key has no decision without this arg.
    fn needs(&self, name: &str) -> bool {
        let keys = self.list.iter().flat_map(|policy| policy.keys());
        let mut args = keys.flat_map(|key| &key.args);
        args.any(|arg| *arg.name == *name.as_bytes() && !arg.has_fallback())
    }
}

impl Policy {
    fn keys(&self) -> impl Iterator<Item = &KeyParts> {
        self.limits().filter_map(|limit| limit.key.as_deref()).chain([&self.key])
    }

    /// The args that a client may write.
    fn args_of_clients(&self) -> Vec<String> {
        let keys = [&self.key].into_iter().chain(self.keys());
        let keys = keys.flat_map(KeyParts::names).map(text);
        let when = self.when.iter().map(|when| text(&when.arg));
        keys.chain(when.filter(|name| KnownArg::named(name).is_some())).collect()
    }
}
