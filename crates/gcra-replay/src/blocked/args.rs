//! The flags and arguments of `blocked`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::period::PeriodEnd;
use crate::args::{parse_utc_offset, parse_window};

/// Which logs to read, and which of their requests.
#[derive(Debug, clap::Args)]
pub struct BlockedArgs {
    /// HAProxy's logs, '-' for standard input; behind them the KEY of one client
    ///
    /// Behind the first LOG, an argument that is no file is KEY. It is the name of a client, as
    /// the log of HAProxy or of an agent has it, or its words in --names. It may also be an
    /// address, or a network such as 192.0.2.0/24.
    /// Logs may be compressed with gzip or zstd, and come in any order.
    #[arg(value_name = "LOG", required = true)]
    pub(crate) words: Vec<String>,
    /// Only requests that came then or later: 14:00, or 2026-11-28T14:00
    ///
    /// If the log has 14:00 on several days, the date is needed.
    #[arg(long, value_name = "TIME", value_parser = PeriodEnd::parse)]
    pub(crate) from: Option<PeriodEnd>,
    /// Only requests that came before this time
    #[arg(long, value_name = "TIME", value_parser = PeriodEnd::parse)]
    pub(crate) to: Option<PeriodEnd>,
    /// The file that says what clients are known as: names_file of the agents
    #[arg(long, value_name = "FILE")]
    pub(crate) names: Option<PathBuf>,
    /// The field of the log that names the client, such as hr.0 [default: the variable 'client',
    /// else the address]
    #[arg(long, value_name = "FIELD")]
    pub(crate) client: Option<String>,
    /// The log-format of haproxy.cfg as it stands there, or http, https, tcp, clf or json
    /// [default: found by the first lines]
    #[arg(long, value_name = "STRING")]
    pub(crate) log_format: Option<String>,
    /// The time zone of --from and --to, and of dates in the log that name none, such as +01:00
    /// [default: UTC]
    #[arg(long, value_name = "OFFSET", default_value = "+00:00", hide_default_value = true)]
    #[arg(value_parser = parse_utc_offset, allow_hyphen_values = true)]
    pub(crate) utc_offset: i32,
    /// How long before a request that ended earlier another one may have begun, from 1s to 7d
    /// [default: 1h]
    ///
    /// HAProxy writes a line when a request ends, and lines are sorted by when requests began.
    #[arg(long, value_name = "TIME", value_parser = parse_window, allow_hyphen_values = true)]
    pub(crate) window: Option<Duration>,
    /// Write a page with a plot, which needs nothing else, to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl BlockedArgs {
    /// The logs, and the client that is asked about.
    pub(crate) fn logs_and_key(&self) -> (Vec<PathBuf>, Option<&str>) {
        let (logs, key) = match &self.words[..] {
            [logs @ .., key] if !logs.is_empty() && key != "-" && !Path::new(key).exists() => {
                (logs, Some(&**key))
            }
            logs => (logs, None),
        };
        (logs.iter().map(PathBuf::from).collect(), key)
    }
}

/// The text of `blocked --help` behind the flags.
pub const BLOCKED_HELP: &str = "\
The log-format must have the variable 'blocked', as those in haproxy/ have. The
variables policy, limit_name, reason, retry_after, client and err say more.

Examples:
  gcra-spoa blocked /var/log/haproxy.log
  gcra-spoa blocked haproxy.log --from 14:00 --to 14:10
  gcra-spoa blocked haproxy.log.1 haproxy.log 192.0.2.7
  gcra-spoa blocked --html blocked.html haproxy.log*.gz
  journalctl -u haproxy -o cat | gcra-spoa blocked -

docs/BLOCKED.md says what the report means. Exit status: 0 if the log has
requests of that time, 1 if not or if something failed, 2 for wrong usage and
for logs of another format.";
