//! The messages of HAProxy and their args, as the command line names them.

/// A message of `--message`: `NAME`, `NAME if CONDITION` or `NAME unless CONDITION`. Several
/// conditions with values may stand behind each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WantedMessage {
    pub name: String,
    /// When it is sent. Without conditions, for each request.
    pub(crate) only: WantedOnly,
}

/// For which requests a message is sent: those for which all conditions hold, or all others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WantedOnly {
    pub(crate) conditions: Vec<WantedCondition>,
    pub(crate) is_unless: bool,
}

/// `ARG`: it has a value; or `ARG=VALUE`: it has this one, or with a `*` at the end of VALUE, one
/// that begins so.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WantedCondition {
    pub(crate) arg: String,
    pub value: Option<String>,
}

impl WantedMessage {
    /// Reads it. The error is a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let condition = |word: &&str| {
            let (arg, value) = match word.split_once('=') {
                Some((arg, value)) => (arg, Some(value.to_owned())),
                None => (*word, None),
            };
            let is_one = !arg.is_empty() && value.as_deref() != Some("");
            is_one.then(|| WantedCondition { arg: arg.to_owned(), value })
        };
        let only = match words[..] {
            [_] => Some(WantedOnly::default()),
            [_, word @ ("if" | "unless"), ref rest @ ..] if !rest.is_empty() => {
                let conditions: Option<Vec<_>> = rest.iter().map(condition).collect();
                // Of `if path /login`, the second would be taken for an arg.
                let are_clear = |all: &Vec<WantedCondition>| {
                    all.len() == 1 || all.iter().all(|condition| condition.value.is_some())
                };
                let conditions = conditions.filter(are_clear);
                conditions.map(|conditions| WantedOnly { conditions, is_unless: word == "unless" })
            }
            _ => None,
        };
        match (words.first(), only) {
            (Some(name), Some(only)) => Ok(Self { name: (*name).to_owned(), only }),
            _ => Err(format!(
                "'{text}' is not NAME, 'NAME if ARG', 'NAME unless ARG' or 'NAME if ARG=VALUE', \
                 such as 'by-key if key' or 'login if path=/login method=POST'"
            )),
        }
    }
}

/// An arg of `--map`, and where its value comes from: `ARG=SOURCE`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WantedArg {
    pub name: String,
    pub source: String,
}

impl WantedArg {
    /// Reads it. The error is a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, source)) if !name.is_empty() && !source.is_empty() => {
                Ok(Self { name: name.to_owned(), source: source.to_owned() })
            }
            _ => Err(format!(
                "'{text}' is not ARG=FIELD, such as ip=%ci or key=%hr.0; write the arg of the \
                 message before the field of the log that gives its value"
            )),
        }
    }
}
