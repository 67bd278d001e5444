//! [`AgentConfig`]: everything that an agent needs to know, from its flags.

use std::path::PathBuf;
use std::time::Duration;

use gcra_inspect::flags::default_table;
use gcra_policy::answers::Answers;
use gcra_policy::flags::{Source, policies_of_flags_and_store};
use spop_agent::{ListenAddress, SocketAccess};

use super::args::CommandLine;

/// How long an agent drains unless `--drain` says otherwise. HAProxy's check may take half of it
/// to fail.
const DRAIN: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct AgentConfig {
    pub(crate) policies: Source,
    pub(crate) socket_access: SocketAccess,
    pub(crate) table: PathBuf,
    pub(crate) drain: Duration,
    /// The flags, of which the others mean what they say.
    pub(crate) flags: CommandLine,
}

impl AgentConfig {
    /// From the flags of an agent. The error is a sentence.
    pub(super) fn from_args(args: CommandLine) -> Result<Self, String> {
        let policies = match &args.config {
            Some(file) => Source::File(file.clone()),
            None => {
                let answers = Answers { scope: args.scope, blocked: args.var, others: Vec::new() };
                let store = args.store.settings()?;
                let store = store.map(|settings| settings.with_wait(args.store_wait));
                let without_store = args.without_store.unwrap_or_default();
                let mut policies =
                    policies_of_flags_and_store(&args.limit, store, without_store, answers)?;
                if let Some(settings) = &policies.store {
                    policies.warnings = settings.remarks();
                    policies.warning_count = policies.warnings.len();
                }
                Source::Flags(Box::new(policies))
            }
        };
        if args.watch && args.config.is_none() {
            return Err("--watch needs --config, whose file it reads again; leave it out, or \
                        write the limit into a file and name that with --config"
                .to_owned());
        }
        let mut places = args.listen.iter().enumerate();
        if let Some((_, twice)) = places.find(|(at, address)| args.listen[..*at].contains(address))
        {
            return Err(format!("--listen names {twice} twice; once is enough"));
        }
        let mut socket_access = SocketAccess::default();
        if let Some(mode) = args.socket_mode {
            socket_access = socket_access.mode(mode);
        }
        if let Some(group) = args.socket_group {
            socket_access = socket_access.group(group);
        }
        let is_unix = |address: &ListenAddress| matches!(address, ListenAddress::Unix(_));
        if socket_access != SocketAccess::default() && !args.listen.iter().any(is_unix) {
            return Err("--socket-mode and --socket-group need --listen unix:/PATH; for \
                        inherited sockets, set SocketMode= and SocketGroup= in the .socket unit"
                .to_owned());
        }
        // Inherited sockets outlive the agent, and connections wait in them for the next one. A
        // health check that failed in the meantime would only make HAProxy stop asking.
        let inherits = args.listen.contains(&ListenAddress::Inherited);
        let drain = args.drain.unwrap_or(if inherits { Duration::ZERO } else { DRAIN });
        let table = args.table.clone().unwrap_or_else(default_table);
        Ok(Self { policies, socket_access, table, drain, flags: args })
    }
}
