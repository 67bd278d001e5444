//! [`InStore`]: what the store has about single clients, for commands.

use anyhow::{Context as _, anyhow};
use gcra_limiter::decide::claim::SharedClient;
use gcra_limiter::reservations::wall_clock;
use gcra_policy::Limit;
use gcra_policy::store::StoreSettings;
use gcra_store::{Bucket, Names, Standing};
use gcra_table::Quota;
use tokio::runtime::{Builder, Runtime};

/// A store, to be asked about single clients. Each question connects once.
#[derive(Debug)]
pub struct InStore {
    settings: StoreSettings,
    names: Names,
    runtime: Runtime,
}

impl InStore {
    /// Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// The system has no resources left.
    pub fn new(settings: StoreSettings) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("could not ask the store")?;
        let names = Names::new(&settings.salt);
        Ok(Self { settings, names, runtime })
    }

    /// The standing of a bucket in the store. `None` if the store has nothing about it.
    ///
    /// # Errors
    ///
    /// The store cannot be used.
    pub fn read(&self, bucket: &Bucket) -> anyhow::Result<Option<Standing>> {
        Ok(self.runtime.block_on(Standing::read(self.settings.config(), bucket))?)
    }

    /// Makes the store forget it. Returns what there was.
    ///
    /// # Errors
    ///
    /// The store cannot be used.
    pub fn clear(&self, bucket: &Bucket) -> anyhow::Result<Option<Standing>> {
        Ok(self.runtime.block_on(Standing::clear(self.settings.config(), bucket))?)
    }

    /// The bucket of a client under a shared limit of its policy that has these numbers.
    ///
    /// # Errors
    ///
    /// The limit cannot be shared.
    pub fn bucket(
        &self,
        client: SharedClient<'_, '_>,
        limit: &Limit,
        quota: Quota,
    ) -> anyhow::Result<Bucket> {
        let second = i64::try_from(wall_clock().as_secs()).unwrap_or(i64::MAX);
        client
            .bucket(&self.names, limit, quota, second)
            .ok_or_else(|| anyhow!("the limit '{}' cannot be shared", limit.words.text))
    }
}
