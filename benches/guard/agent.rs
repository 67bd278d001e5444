//! The agent whose instructions are counted: what answers a NOTIFY, put together as the program
//! does it, without commands, live page, reloads and reports. To link these with all optimization
//! would take most of the time of the guard.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use clap::Parser;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::lease_client::{Background, LeaseClient};
use gcra_limiter::limiter::Limiter;
use gcra_limiter::stats::Stats;
use gcra_policy::Policies;
use gcra_policy::answers::Answers;
use gcra_policy::file::document;
use gcra_policy::flags::{self, LimitFlags, StoreFlags};
use gcra_policy::secrets::Readers;
use gcra_policy::sharing::WithoutStore;
use gcra_table::Table;
use spop_agent::{Limits, ListenAddress, SocketAccess, Sockets};
use tokio::signal::unix::{SignalKind, signal};

/// Those of the program's flags that the guard needs.
#[derive(Parser)]
struct Flags {
    #[arg(long)]
    table: PathBuf,
    #[arg(long)]
    listen: ListenAddress,
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitFlags,
    #[command(flatten)]
    store: StoreFlags,
    #[arg(long, value_parser = flags::parse_store_wait)]
    store_wait: Option<Duration>,
}

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::Builder::new().filter_level(log::LevelFilter::Info).init();
    let flags = Flags::parse();
    let policies = policies(&flags)?;
    let limits = match flags.config {
        None => Limiter::limits_for_blocked_only(&policies.answers),
        Some(_) => Limits::default(),
    };
    let sockets = Sockets::bind(&[flags.listen], SocketAccess::default())?;
    let (table, _) = Table::open_or_create(&flags.table, None)?;
    let stats = Arc::new(Stats::new(NonZeroUsize::MIN));
    let store = policies.store.clone();
    let policies =
        Arc::new(ArcSwap::from_pointee(ActivePolicies::at_start(policies, &stats, &table)));
    let table = Arc::new(ArcSwap::from_pointee(table));
    let borrowing = store.map(|settings| LeaseClient::open(&settings, &table)).transpose()?;
    let (lease_client, background) = borrowing.unzip();
    let limiter = Limiter::new(table.clone(), policies).with_lease_client(lease_client);
    let agent = limiter.into_agent().limits(limits).drain(Duration::ZERO);
    agent.run_on(NonZeroUsize::MIN, sockets, until_stopped(table, stats, background))?;
    Ok(())
}

fn policies(flags: &Flags) -> Result<Policies, String> {
    if let Some(file) = &flags.config {
        return document::read(file, Readers::OfFile).map_err(|mistakes| {
            mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        });
    }
    let store = flags.store.settings()?.map(|settings| settings.with_wait(flags.store_wait));
    let (without_store, answers) = (WithoutStore::default(), Answers::blocked_only());
    let policies = flags::policies_of_flags_and_store(&flags.limit, store, without_store, answers);
    policies.map_err(|sentence| sentence.to_string())
}

/// Until SIGTERM. Meanwhile the table and the counters have their beats.
async fn until_stopped(
    table: Arc<ArcSwap<Table>>,
    stats: Arc<Stats>,
    background: Option<Background>,
) {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    if let Some(background) = background {
        drop(tokio::spawn(background));
    }
    tokio::spawn(async move {
        let mut beats = tokio::time::interval(Duration::from_secs(1));
        loop {
            beats.tick().await;
            table.load().beat();
            stats.beat();
        }
    });
    terminate.recv().await;
}
