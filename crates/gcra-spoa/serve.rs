//! How an agent starts, from its configuration to the loop that serves.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use gcra_admin::actions::ActionHandler;
use gcra_admin::agent_view::AgentView;
use gcra_admin::server::{self, Answering};
use gcra_admin::token::Token;
use gcra_inspect::policies_file::Keeper;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::audit_lines::AuditFile;
use gcra_limiter::lease_client::{Background, LeaseClient};
use gcra_limiter::limiter::Limiter;
use gcra_limiter::stats::Stats;
use gcra_policy::Policies;
use gcra_policy::secrets::Readers;
use gcra_policy::table_error::TableError;
use gcra_table::{Opened, Table};
use gcra_text::count::Count;
use gcra_text::output::Mistakes;
use gcra_text::version;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spop_agent::{Limits, Sockets};
use tokio::sync::mpsc;

use crate::cli::AgentConfig;
use crate::housekeeping::{Housekeeping, Running, Startup, exchange_orders};

/// How many errands of actions may wait for the housekeeping.
const MOST_ERRANDS: usize = 8;

/// Runs an agent until it is stopped, and returns the exit status.
pub(crate) fn serve(config: AgentConfig) -> anyhow::Result<ExitCode> {
    let AgentConfig { policies, socket_access, table: path, drain, flags } = config;
    let (policies, file) = policies.read(Readers::OfLog).map_err(Mistakes)?;
    raise_file_limit();
    // Before the table is created: an agent whose address is taken leaves nothing behind.
    let sockets = Sockets::bind(&flags.listen, socket_access)?;
    let admin = flags.admin.map(server::bind).transpose()?;
    let token = flags.admin_actions.as_deref().map(Token::read).transpose()?;
    let (table, opened) = Table::open_or_create(&path, flags.slots).map_err(TableError)?;
    announce(&policies, file.as_deref(), flags.max_frame_size);
    announce_table(&path, &table, opened)?;

    let mut limits = match &file {
        None => Limiter::limits_for_blocked_only(&policies.answers),
        // A reload can bring more variables.
        Some(_) => Limits::default(),
    };
    limits.max_frame_size = flags.max_frame_size;
    let stats = Arc::new(Stats::new(flags.threads));
    let store = policies.store.clone();
    let keeper = Keeper::new(path.as_path().into());
    let (history, why) = keeper.begin(&table, &policies);
    why.iter().for_each(|why| log::warn!("{why}"));
    let in_force = ActivePolicies::after(history, policies, &stats, &table);
    let policies = Arc::new(ArcSwap::from_pointee(in_force));
    let table = Arc::new(ArcSwap::from_pointee(table));
    let audit = flags.audit.map(AuditFile::open).transpose()?.map(Arc::new);
    let borrowing =
        store.as_ref().map(|settings| LeaseClient::open(settings, &table)).transpose()?;
    let (lease_client, background) = borrowing.unzip();
    let limiter = Limiter::new(table.clone(), policies.clone())
        .with_audit(audit.clone())
        .with_lease_client(lease_client.clone());
    let undecided = limiter.undecided();
    let agent = limiter
        .into_agent()
        .limits(limits)
        .max_buffered_bytes(flags.buffers)
        .drain(drain)
        .busy_poll(flags.busy_poll);
    let (errands, receiver) = mpsc::channel(MOST_ERRANDS);
    let start_admin = |listener| {
        let view = AgentView::new(
            table.clone(),
            agent.counters(),
            undecided.clone(),
            stats.clone(),
            policies.clone(),
            lease_client.clone(),
        );
        let view = Arc::new(view);
        let actions = ActionHandler::new(view.clone(), path.clone(), token, errands);
        let answering = Answering::new(flags.admin_host, view, path.clone(), actions);
        server::start(listener, answering)
    };
    let admin = admin.map(start_admin).transpose()?;
    let running = Running {
        table: table.clone(),
        policies,
        stats,
        counters: agent.counters(),
        undecided,
        keeper: Arc::new(keeper),
        has_file: file.is_some(),
        admin,
    };
    let (watches, max_frame_size) = (flags.watch, flags.max_frame_size);
    let exchange = store.clone().zip(lease_client.clone()).map(|(settings, lease_client)| {
        exchange_orders(running.clone(), path.clone(), settings, lease_client)
    });
    let background = background.zip(exchange).map(|(background, exchange)| -> Background {
        Box::pin(async {
            tokio::join!(background, exchange);
        })
    });
    let startup = Startup { file, watches, store, max_frame_size };
    let housekeeping =
        Housekeeping::new(running.clone(), startup, path, audit.clone(), lease_client, receiver);
    agent.run_on(flags.threads, sockets, housekeeping.until_stopped(background))?;
    if let Some(audit) = audit
        && let Err(error) = audit.finish()
    {
        log::error!(
            "the audit file {} does not say its end: {error}; up to {} are missing in it",
            audit.path().display(),
            Count(audit.lost(), "decision", "decisions")
        );
    }
    // If this fails, commands answer by what was last in force before.
    let _ = running.keeper.keep_last(&table.load(), &running.policies.load());
    // The thread of --admin never drops the table, and it ends with the process.
    table.load().board().leave();
    Ok(ExitCode::SUCCESS)
}

/// Logs what limits the agent begins with, and what is to be known about them.
fn announce(policies: &Policies, file: Option<&Path>, max_frame_size: u32) {
    let version = version::WORDS;
    match file {
        None => {
            let policy = &policies.list[0];
            log::info!("gcra-spoa {version}: {}", policy.in_words());
            if let (Some(shared), Some(store)) = (policy.shared, &policies.store) {
                log::info!("the limit is {}", shared.in_words());
                log::info!("store: {}", store.in_words());
            }
        }
        Some(file) => {
            log::info!("gcra-spoa {version}, configured by {}", file.display());
            policies.in_words(SystemTime::now()).lines().for_each(|line| log::info!("{line}"));
        }
    }
    let about_frames = policies.about_frames(max_frame_size);
    policies.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    about_frames.iter().for_each(|warning| log::warn!("{warning}"));
}

fn announce_table(path: &Path, table: &Table, opened: Opened) -> anyhow::Result<()> {
    log::info!(
        "table {}: {} slots, {}",
        path.display(),
        table.slots().get(),
        match opened {
            Opened::Created => "created",
            Opened::Joined => "opened with the buckets in it",
        }
    );
    if !is_on_tmpfs(path).context("could not examine the table's file system")? {
        log::warn!(
            "table {} is not on a tmpfs, so the kernel keeps writing it to disk; put it in \
             /dev/shm or /run",
            path.display()
        );
    }
    Ok(())
}

/// A connection is an open file, and the usual soft limit of 1024 is less than HAProxy may open.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A process may raise its limit up to the hard limit. If this fails all the same, `accept`
    // will say so when it matters.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn is_on_tmpfs(path: &Path) -> io::Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type == TMPFS_MAGIC)
}
