//! The flags and arguments of `replay`.

use std::path::PathBuf;
use std::time::Duration;

use gcra_policy::flags::{LimitFlags, parse_slots};
use gcra_table::Slots;
use gcra_text::duration;
use gcra_text::sentence::Sentence;

use crate::suggest::target::Target;
use crate::wanted::{WantedArg, WantedMessage};

/// Which logs to replay, and by which limits.
#[derive(Debug, clap::Args)]
#[group(id = "what", required = true, multiple = true, args = ["config", "rate", "suggest"])]
pub struct Replay {
    /// HAProxy's logs; '-' is standard input
    ///
    /// They may be compressed with gzip or zstd, and come in any order: their lines are sorted by
    /// time.
    #[arg(value_name = "LOG", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The file with the policies that decide
    #[arg(long, value_name = "FILE", conflicts_with_all = LimitFlags::NAMES)]
    pub(crate) config: Option<PathBuf>,
    /// A second file, to say what changes against it
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limit: LimitFlags,
    /// Suggest limits for clients with this key: ip, or several args as in --key
    ///
    /// It works without --config, too.
    #[arg(long, value_name = "key=ARG,…")]
    pub(crate) suggest: Option<String>,
    /// What a suggested limit may touch: fewer than this share of clients, or '0.1% of requests'
    /// [default: 0.1%]
    #[arg(long, value_name = "SHARE", value_parser = Target::parse, requires = "suggest")]
    pub(crate) target: Option<Target>,
    /// Which field of the log gives an arg: ip=%ci, key=%hr.0; see below
    ///
    /// The flag may be given several times.
    #[arg(long, value_name = "ARG=FIELD", value_parser = WantedArg::parse)]
    pub(crate) map: Vec<WantedArg>,
    /// The names of the captured request headers, in the order of haproxy.cfg, so that they are
    /// found by name
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) captures: Vec<String>,
    /// The spoe-message that HAProxy sends about each request: NAME, 'NAME if ARG', 'NAME unless
    /// ARG' or 'NAME if ARG=VALUE' [default: all messages of the file]
    ///
    /// The flag may be given several times. 'login if path=/login method=POST' is sent if both
    /// hold, and path=/api/* is each path that begins so.
    #[arg(long, value_name = "NAME", value_parser = WantedMessage::parse)]
    pub(crate) message: Vec<WantedMessage>,
    /// The log-format of haproxy.cfg as it stands there, or http, https, tcp, clf or json
    /// [default: found by the first lines]
    #[arg(long, value_name = "STRING")]
    pub(crate) log_format: Option<String>,
    /// The time zone of dates that name none, such as +01:00 [default: UTC]
    #[arg(long, value_name = "OFFSET", default_value = "+00:00", hide_default_value = true)]
    #[arg(value_parser = parse_utc_offset, allow_hyphen_values = true)]
    pub(crate) utc_offset: i32,
    /// How long before a request that ended earlier another one may have begun, from 1s to 7d
    /// [default: 1h]
    ///
    /// HAProxy writes a line when a request ends, and lines are sorted by when requests began.
    #[arg(long, value_name = "TIME", value_parser = parse_window, allow_hyphen_values = true)]
    pub(crate) window: Option<Duration>,
    /// How many buckets are remembered, 16 bytes each [default: 4194304]
    #[arg(long, value_name = "N", value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) slots: Option<Slots>,
    /// Write a page with pictures, which needs nothing else, to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn parse_window(text: &str) -> Result<Duration, Sentence> {
    duration::parse_in(text, Duration::from_secs(1)..=Duration::from_secs(7 * 86_400), "1h")
}

/// `+01:00` in seconds east of UTC.
pub(crate) fn parse_utc_offset(text: &str) -> Result<i32, String> {
    let wrong = || {
        format!("'{text}' is not a time zone; write hours and minutes east of UTC, such as +01:00")
    };
    let sign = match text.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Err(wrong()),
    };
    let digits = text[1..].replace(':', "");
    let (true, Ok(number @ 0..=1459)) = (digits.len() == 4, digits.parse::<i32>()) else {
        return Err(wrong());
    };
    let (hours, minutes) = (number / 100, number % 100);
    if minutes < 60 { Ok(sign * (hours * 3600 + minutes * 60)) } else { Err(wrong()) }
}

/// The text of `replay --help` behind the flags.
pub const REPLAY_HELP: &str = "\
FIELD is a field of HAProxy's log-format, with or without '%': ci, HM, HU, hr.0
(the first captured request header), a name of --captures, or the expression in
%[...]; 'path' and 'method' are found in %r. In a JSON log it is a name. Behind
it may be the converter ipmask(32,64), or the type ip, int or str. ip reads a
header as req.hdr_ip does: the last address of a list, or with ip,1 the first.
Instead of a field it can be a constant: str:gold, int64:1 or null:. Args that
are not named are found by their names, and the report says how.

Examples:
  gcra-spoa replay --rate 100/s --burst 20 /var/log/haproxy.log
  gcra-spoa replay --config new.toml --against old.toml haproxy.log*.gz
  gcra-spoa replay --suggest key=ip --html report.html haproxy.log
  gcra-spoa replay --config new.toml --map key=hr.0 --json haproxy.log
  journalctl -u haproxy -o cat | gcra-spoa replay --config new.toml -

docs/REPLAY.md says what the report means, and what a log cannot know. Exit
status: 0 if requests were replayed, 1 if something failed, 2 for wrong usage
and for logs of another format.";
