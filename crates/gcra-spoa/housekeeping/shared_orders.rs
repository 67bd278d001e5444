//! Orders that come through the store: those of other machines are put into the table, and a store
//! that has lost its memory gets them back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gcra_inspect::inspected_table::{Inspected, PolicySource};
use gcra_inspect::store_orders::StoreOrders;
use gcra_limiter::lease_client::LeaseClient;
use gcra_policy::store::StoreSettings;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::once_per_minute::News;
use super::running::Running;

/// How long after one exchange the next one begins. With a second until the table is read, and
/// time for both, an order holds within
/// [`HOLDS_WITHIN`](gcra_inspect::store_orders::HOLDS_WITHIN).
const EVERY: Duration = Duration::from_millis(1_500);

/// Exchanges orders with the store for ever. All agents of a table may do so.
pub(crate) async fn exchange_orders(
    running: Running,
    path: PathBuf,
    settings: StoreSettings,
    lease_client: Arc<LeaseClient>,
) {
    let mut orders = match StoreOrders::new(&settings) {
        Ok(orders) => orders,
        Err(error) => {
            log::error!("orders of other machines are not followed: {error:#}");
            return std::future::pending().await;
        }
    };
    let mut told = Told::default();
    loop {
        // The log says already that it is away.
        if !lease_client.store().is_away() {
            let (running, path) = (running.clone(), path.clone());
            let exchanged = orders.exchange().await;
            let is_new = *exchanged.as_ref().unwrap_or(&false);
            let follow = move || {
                let followed = orders.follow(&inspected(&running, &path), is_new);
                (orders, followed)
            };
            // On a thread that may wait, because keys are made for hundreds of orders.
            let Ok((back, followed)) = spawn_blocking(follow).await else { return };
            orders = back;
            told.tell(exchanged.map(drop).and(followed));
        }
        sleep(EVERY).await;
    }
}

fn inspected(running: &Running, path: &Path) -> Inspected {
    let (table, in_force) = (running.table.load_full(), running.policies.load_full());
    Inspected::of_parts(table, path.to_owned(), in_force, None, PolicySource::Agent)
}

/// The lines of the log: when an exchange fails, at most once a minute, and when one is well.
#[derive(Default)]
struct Told {
    news: News,
    is_wrong: bool,
}

impl Told {
    fn tell(&mut self, outcome: anyhow::Result<()>) {
        let is_due = self.news.due(outcome.is_err());
        match outcome {
            Err(why) if is_due && !self.is_wrong => {
                log::warn!("orders of other machines are not followed now: {why:#}");
                self.is_wrong = true;
            }
            Ok(()) if self.is_wrong => {
                log::info!("orders of other machines are followed again");
                self.is_wrong = false;
            }
            _ => {}
        }
    }
}
