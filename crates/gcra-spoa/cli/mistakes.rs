//! The mistake in a command line, in one sentence without clap's own words.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use gcra_inspect::flags::parse_host_and_port;
use gcra_policy::flags::parse_slots;

/// The mistake in a command line of `program`, in one sentence.
pub(super) fn in_one_sentence(
    error: &clap::Error,
    program: &clap::Command,
    args: &[OsString],
) -> String {
    let mut command = program;
    let mut words = command.get_name().to_owned();
    for arg in args.iter().skip(1) {
        let Some(inner) = command.find_subcommand(arg) else { break };
        command = inner;
        words = format!("{words} {}", command.get_name());
    }
    let help = format!("(see '{words} --help')");
    Mistake { error, args, command, words, help }.sentence()
}

/// A word that a command does not take, and what to write instead.
struct Instead {
    /// The kind of mistake: an argument that there is not, a wrong value, or no command.
    kind: ErrorKind,
    /// The commands that do not take it; none means that it is the same for all.
    commands: &'static [&'static str],
    is_it: fn(&str) -> bool,
    /// With `{command}`, `{word}` and `{setting}` (the word as a setting of the file) in it.
    sentence: &'static str,
}

const INSTEAD: [Instead; 14] = [
    Instead {
        kind: ErrorKind::InvalidSubcommand,
        commands: &[],
        is_it: |word| ["ban", "deny", "blacklist", "blocklist", "denylist"].contains(&word),
        sentence: "'{word}' is not a command; write 'gcra-spoa block --for 1h KEY' to block all \
                   requests of a client for a time",
    },
    Instead {
        kind: ErrorKind::InvalidSubcommand,
        commands: &[],
        is_it: |word| ["allow", "whitelist", "allowlist", "unlimit"].contains(&word),
        sentence: "'{word}' is not a command; write 'gcra-spoa exempt --for 1h KEY' to allow a \
                   client all its requests for a time",
    },
    Instead {
        kind: ErrorKind::InvalidSubcommand,
        commands: &[],
        is_it: |word| ["throttle", "limit", "slow", "ratelimit"].contains(&word),
        sentence: "'{word}' is not a command; write an override for the client into the file of \
                   the agents and reload it, or 'gcra-spoa block --for 1h KEY' to block all its \
                   requests for a time",
    },
    Instead {
        kind: ErrorKind::InvalidSubcommand,
        commands: &[],
        is_it: |word| ["unblock", "unban", "clear", "forgive"].contains(&word),
        sentence: "'{word}' is not a command; write 'gcra-spoa block --end KEY' to end a block, \
                   'gcra-spoa table reset KEY' to clear once what a client owes, or 'gcra-spoa \
                   exempt --for 1h KEY' to allow it all its requests for a time",
    },
    Instead {
        kind: ErrorKind::ValueValidation,
        commands: &["gcra-spoa table reset"],
        is_it: |word| word == "*",
        sentence: RESET_ALL,
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa table reset"],
        is_it: |word| word == "--all",
        sentence: RESET_ALL,
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &[
            "gcra-spoa table reset",
            "gcra-spoa exempt",
            "gcra-spoa block",
            "gcra-spoa name",
        ],
        is_it: |word| ["--rate", "--burst"].contains(&word),
        sentence: "'{command}' needs no {word}; leave it out",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &[],
        is_it: |word| word == "-v",
        sentence: "'-v' is not a flag of '{command}'; write -V for the version",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa top"],
        is_it: |word| parse_host_and_port(word).is_ok(),
        sentence: "'{word}' is one argument too many for '{command}'; write --admin {word}",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa table resize"],
        is_it: |word| parse_slots(word).is_ok(),
        sentence: "'{word}' is one argument too many for '{command}'; write --slots {word}",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa store check"],
        is_it: |word| word.contains("://"),
        // It may have a password in it.
        sentence: "an address is one argument too many for '{command}'; write --store URL",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa store check"],
        is_it: |word| !word.starts_with('-'),
        sentence: "'{word}' is one argument too many for '{command}'; write --config {word}",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa", "gcra-spoa store check"],
        is_it: |word| word == "--open-for",
        sentence: "'{word}' is not a flag of '{command}'; write {setting} below the policy of a \
                   file, and name the file with --config",
    },
    Instead {
        kind: ErrorKind::UnknownArgument,
        commands: &["gcra-spoa", "gcra-spoa store check"],
        is_it: |word| STORE_SETTINGS.contains(&word),
        sentence: "'{word}' is not a flag of '{command}'; write {setting} below [store] of a \
                   file, and name the file with --config",
    },
];

const RESET_ALL: &str = "'gcra-spoa table reset' takes KEYs; for all clients of a policy, write \
                         --policy NAME without a KEY";

/// Settings of `[store]` for which there is no flag, written as one.
const STORE_SETTINGS: [&str; 7] = [
    "--strict",
    "--salt-file",
    "--least-replicas",
    "--certificate",
    "--certificate-key",
    "--sentinel-password-file",
    "--sentinel-password-env",
];

struct Mistake<'a> {
    error: &'a clap::Error,
    args: &'a [OsString],
    /// The command that it names, and the words that do so: "gcra-spoa table reset".
    command: &'a clap::Command,
    words: String,
    help: String,
}

impl Mistake<'_> {
    fn sentence(&self) -> String {
        let Self { error, args, command, words, help } = self;
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let names = self.names().join(", ");
            return format!("'{words}' needs a command behind it: {names} {help}");
        }
        if let Some((flag, next)) = flag_without_value(command, args) {
            return format!("{flag} needs a value, and '{next}' behind it is a flag {help}");
        }
        match error.kind() {
            ErrorKind::ValueValidation => self.wrong_value(),
            ErrorKind::InvalidValue => self.no_value(),
            ErrorKind::InvalidSubcommand => self.unknown_command(),
            ErrorKind::ArgumentConflict => self.conflict(),
            ErrorKind::MissingRequiredArgument => self.missing(),
            ErrorKind::UnknownArgument => self.unknown_argument(),
            _ => self.of_clap(),
        }
    }

    /// Clap's words about the mistake.
    fn context(&self, kind: ContextKind) -> Vec<&str> {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => vec![text.as_str()],
            Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The argument that is wrong, as clap writes it.
    fn arg(&self) -> &str {
        self.context(ContextKind::InvalidArg).first().copied().unwrap_or_default()
    }

    /// The commands that may stand behind this one.
    fn names(&self) -> Vec<&str> {
        self.command.get_subcommands().map(clap::Command::get_name).collect()
    }

    fn instead_of(&self, word: &str) -> Option<String> {
        let is_it = |it: &&Instead| {
            let is_of_command = it.commands.is_empty() || it.commands.contains(&&*self.words);
            it.kind == self.error.kind() && is_of_command && (it.is_it)(word)
        };
        let sentence = INSTEAD.iter().find(is_it)?.sentence.replace("{command}", &self.words);
        let setting = word.trim_start_matches('-').replace('-', "_");
        // The word comes last: it may be anything.
        Some(sentence.replace("{setting}", &setting).replace("{word}", word))
    }

    fn no_value(&self) -> String {
        let arg = self.arg();
        format!("{} needs a value; write {} {}", name_of(arg), plain(arg), self.help)
    }

    fn wrong_value(&self) -> String {
        let (arg, value) = (self.arg(), self.context(ContextKind::InvalidValue));
        if value == [""] && arg.starts_with("--") {
            return self.no_value();
        }
        match (self.instead_of(&value.concat()), self.error.source()) {
            (Some(sentence), _) => sentence,
            // That of the value's parser, which says what would be right.
            (None, Some(sentence)) => format!("{}: {sentence}", name_of(arg)),
            (None, None) => self.of_clap(),
        }
    }

    fn unknown_command(&self) -> String {
        let Self { command, words, .. } = self;
        let word = self.context(ContextKind::InvalidSubcommand).concat();
        if let Some(sentence) = self.instead_of(&word) {
            return sentence;
        }
        let mut names = self.names();
        let nearest =
            names.iter().find(|name| is_near(name, &word)).map(|name| (*name).to_owned());
        if let Some(nearest) = nearest.or_else(|| flag_like(command, &word)) {
            return format!("'{word}' is not a command; did you mean '{nearest}'?");
        }
        if words == "gcra-spoa" {
            names.push("or --rate or --config to start an agent");
        }
        format!("'{word}' is not a command of '{words}'; write one of {}", names.join(", "))
    }

    fn conflict(&self) -> String {
        let wrong = self.context(ContextKind::InvalidArg);
        let prior = self.context(ContextKind::PriorArg);
        if wrong == prior {
            return format!("{} is given twice; write it once", name_of(self.arg()));
        }
        if !wrong.is_empty() {
            return format!(
                "{} and {} cannot be given together; leave one out {}",
                name_of(self.arg()),
                prior.iter().map(|arg| name_of(arg)).collect::<Vec<_>>().join(" and "),
                self.help
            );
        }
        let word = self.context(ContextKind::InvalidSubcommand).concat();
        if self.command.find_subcommand(&word).is_some() {
            format!("'{word}' is a command, which cannot follow flags of an agent; begin with it")
        } else {
            format!("'{word}' is neither a flag nor the value of one; leave it out")
        }
    }

    fn missing(&self) -> String {
        let Self { args, words, help, .. } = self;
        let missing = self.context(ContextKind::InvalidArg);
        let in_words = |arg: &&str| match plain(arg).replace('|', " or ") {
            arg if arg == "--for TIME" => "--for TIME or --until MOMENT".to_owned(),
            arg if arg == "KEY" && words == "gcra-spoa table reset" => {
                "KEY, or --policy NAME for all clients of a policy".to_owned()
            }
            arg => arg,
        };
        let missing: Vec<_> = missing.iter().map(in_words).collect();
        let is_of_store =
            |arg: &&str| arg.starts_with("--store-") || arg.starts_with("--without-store");
        if missing == ["--store URL"]
            && let Some(flag) = args.iter().filter_map(|arg| arg.to_str()).find(is_of_store)
        {
            let flag = flag.split('=').next().unwrap_or(flag);
            return format!("{flag} needs --store URL beside it {help}");
        }
        // A flag may be needed only because of another flag.
        let here = if missing.iter().all(|arg| arg.starts_with("--")) { " here" } else { "" };
        format!("'{words}' needs {}{here} {help}", missing.join(" and "))
    }

    fn unknown_argument(&self) -> String {
        let Self { args, command, words, help, .. } = self;
        let arg = self.arg();
        // Of '-rate' clap names '-r'.
        let mut written = args.iter().filter_map(|written| written.to_str());
        let is_it = |written: &&str| arg.starts_with('-') && written.starts_with(arg);
        let arg = written.find(is_it).unwrap_or(arg);
        if let Some(sentence) = self.instead_of(arg.split('=').next().unwrap_or(arg)) {
            return sentence;
        }
        match flag_like(command, arg) {
            _ if !arg.starts_with('-') => {
                format!("'{arg}' is one argument too many for '{words}' {help}")
            }
            None if command.get_positionals().any(|arg| arg.get_id() == "keys") => format!(
                "'{arg}' is not a flag of '{words}'; if it is a KEY, write '--' and all KEYs \
                 behind the flags, as in '{words} … -- {arg}'"
            ),
            _ if arg.len() == 2 => format!(
                "'{arg}' is not a flag of '{words}'; write flags as whole words, such as --help"
            ),
            Some(nearest) => {
                format!("'{arg}' is not a flag of '{words}'; did you mean '{nearest}'?")
            }
            None => format!("'{arg}' is not a flag of '{words}' {help}"),
        }
    }

    /// Clap's words, without its layout.
    fn of_clap(&self) -> String {
        let text = self.error.to_string();
        let said = text.split("\n\nUsage:").next().unwrap_or(&text);
        let said = said.strip_prefix("error: ").unwrap_or(said);
        let sentence = format!("{said} {}", self.help);
        sentence.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// `--rate` of `--rate <COUNT/PERIOD>`, and `KEY` of `<KEY>...`.
fn name_of(arg: &str) -> &str {
    let name = arg.split_whitespace().next().unwrap_or(arg);
    name.trim_matches(['<', '>', '[', ']', '.'])
}

/// `--rate COUNT/PERIOD` of `--rate <COUNT/PERIOD>`, and `KEY` of `<KEY>...`.
fn plain(arg: &str) -> String {
    arg.replace(['<', '>', '[', ']'], "").trim_end_matches('.').to_owned()
}

fn is_near(known: &str, word: &str) -> bool {
    strsim::damerau_levenshtein(known, &word.to_ascii_lowercase()) <= 1 + known.len() / 6
}

/// The flag that a word was probably meant to be: `--rate` for `rate`, `-rate` and `--Rate`.
fn flag_like(command: &clap::Command, word: &str) -> Option<String> {
    let word = word.split('=').next().unwrap_or(word).trim_start_matches('-');
    let flags = || command.get_arguments().filter_map(clap::Arg::get_long);
    let exact = flags().find(|flag| *flag == word);
    let nearest = exact.or_else(|| flags().find(|flag| is_near(flag, word)));
    nearest.map(|flag| format!("--{flag}"))
}

/// A flag that needs a value, and the flag that stands in the place of the value.
fn flag_without_value<'a>(
    command: &clap::Command,
    args: &'a [OsString],
) -> Option<(&'a str, &'a str)> {
    let flag = |arg: &'a OsString| Some((arg.to_str()?, arg.to_str()?.strip_prefix("--")?));
    args.windows(2).find_map(|pair| {
        let ((written, name), (next, next_name)) = (flag(&pair[0])?, flag(&pair[1])?);
        let known = command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        let takes_value = known.get_action().takes_values() && !next_name.is_empty();
        takes_value.then_some((written, next))
    })
}
