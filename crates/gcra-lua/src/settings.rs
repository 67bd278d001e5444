//! The words behind `gcra.lua` in HAProxy's configuration: the flags of an agent that make sense
//! here.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser as _;
use clap::error::{ContextKind, ErrorKind};
use gcra_policy::Policies;
use gcra_policy::answers::Answers;
use gcra_policy::flags::{LimitFlags, Source, parse_slots, policies_of_flags_and_store};
use gcra_policy::secrets::Readers;
use gcra_policy::sharing::WithoutStore;
use gcra_table::Slots;
use gcra_text::output::lines;

/// The name of the file that operators load.
const NAME: &str = "gcra.lua";

#[derive(Debug, clap::Parser)]
#[command(name = NAME, no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    limit: LimitFlags,

    #[arg(long, value_name = "FILE", conflicts_with_all = LimitFlags::NAMES)]
    config: Option<PathBuf>,

    #[arg(long, value_name = "PATH")]
    table: Option<PathBuf>,

    #[arg(long, value_name = "N", value_parser = parse_slots, allow_negative_numbers = true)]
    slots: Option<Slots>,

    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
}

/// The settings that the words say.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policies: Policies,
    /// The file that they are from, if they are from one.
    pub(crate) file: Option<PathBuf>,
    pub(crate) table: PathBuf,
    pub(crate) slots: Option<Slots>,
    /// Where HAProxy serves our metrics, for the agents of the table.
    pub(crate) admin: Option<SocketAddr>,
}

impl Settings {
    /// Reads the words and the file that they name. The error is a sentence, or several lines.
    pub(crate) fn read(words: &[&str]) -> Result<Self, String> {
        let Words { limit, config, table, slots, admin } =
            Words::try_parse_from(words).map_err(|error| sentence(&error))?;
        let table = table.ok_or(
            "write --table and the path of the table, such as --table /dev/shm/gcra-spoa.table; \
             agents that share limits with HAProxy have the same path",
        )?;
        if !table.is_absolute() {
            return Err(format!(
                "--table {} is not a whole path; write one that begins with '/'",
                table.display()
            ));
        }
        let source = match config {
            Some(file) => Source::File(file),
            None if limit.rate.is_none() => {
                return Err("write --config and a file with policies, or --rate for one limit, \
                            such as --rate 100/s"
                    .to_owned());
            }
            None => {
                let (without_store, answers) = (WithoutStore::default(), Answers::blocked_only());
                let policies = policies_of_flags_and_store(&limit, None, without_store, answers)?;
                Source::Flags(Box::new(policies))
            }
        };
        let (policies, file) = source.read(Readers::OfLog).map_err(|mistakes| lines(&mistakes))?;
        match policies.need_an_agent() {
            Some(why) => Err(why),
            None => Ok(Self { policies, file, table, slots, admin }),
        }
    }
}

/// A mistake in the words, as a sentence.
fn sentence(error: &clap::Error) -> String {
    let of = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let word = of(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => format!(
            "'{word}' is not a setting of {NAME}; it has --table, --slots, --admin, and --config, \
             or --rate with --burst, --key and --cost"
        ),
        ErrorKind::ArgumentConflict if of(ContextKind::PriorArg) == word => {
            format!("{word} is written twice; write it once")
        }
        ErrorKind::ArgumentConflict => format!(
            "{word} cannot be used with {}; write the limit into the file, or leave the file out",
            of(ContextKind::PriorArg)
        ),
        ErrorKind::ValueValidation => {
            use std::error::Error as _;
            match error.source() {
                Some(source) => format!("{word}: {source}"),
                None => format!("'{}' is no value of {word}", of(ContextKind::InvalidValue)),
            }
        }
        ErrorKind::InvalidValue => format!("{word} needs a value"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    }
}
