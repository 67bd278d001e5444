//! [`Standing`]: what a store knows about one bucket, for commands of operators.

use std::io;
use std::sync::Arc;

use gcra_lease::{Micros, Record, SharedLimit, StoreTime, Units};
use redis::{Pipeline, Value};

use crate::client::bucket::Bucket;
use crate::client::connection::Connector;
use crate::client::fault::Fault;
use crate::client::finder::{add_wait, confirmed, server_of, unusable};
use crate::client::script::{self, NotAReply, StoreKind};
use crate::config::Config;

/// The debt and the leases of one bucket in a store, at a moment of its own clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Standing {
    /// Cells that are owed and not drained, rounded up, without those that are lent. Those that
    /// are used of a [count](SharedLimit::count).
    pub owed: u32,
    /// How long it takes until nothing is owed any more. Zero for a count, which begins again with
    /// its next window.
    pub drains_in: Micros,
    /// Cells that hosts may spend without asking.
    pub lent: u32,
    /// Hosts that have a lease: those that asked in the last seconds. A lease may have no cells.
    pub hosts: u32,
    /// Whole cells that are neither owed nor lent.
    pub free: u32,
}

impl Standing {
    /// Connects once, and reads what the store knows about a bucket. `None`: it has no record, so
    /// nothing is owed and nothing is lent.
    ///
    /// # Errors
    ///
    /// The store cannot be used, or its value is not a record. The error says so in a sentence
    /// without a full stop at the end.
    pub async fn read(config: Config, bucket: &Bucket) -> io::Result<Option<Self>> {
        look(config, bucket, false).await
    }

    /// Connects once, and makes the store forget the debt and the leases of a bucket, under all
    /// numbers. Returns what the store knew.
    ///
    /// Hosts do not learn of that. They can still spend the cells that they hold until their
    /// leases would have expired, so the key may get as many cells more. A host that was told to
    /// come back later blocks the key until then.
    ///
    /// What hosts may have allowed without the store before that is forgotten, too: asks that say
    /// so count it no more.
    ///
    /// The bucket is emptied and not deleted, and it stays for as long as it is needed. Otherwise
    /// a strict store that lost its memory would suppose a full burst again.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), and nothing is changed then; or the replicas have not confirmed
    /// the change.
    pub async fn clear(config: Config, bucket: &Bucket) -> io::Result<Option<Self>> {
        look(config, bucket, true).await
    }

    fn of(record: &Record, limit: &SharedLimit) -> Self {
        let cells = record.owed().0.div_ceil(limit.cells(1).0);
        Self {
            owed: u32::try_from(cells).unwrap_or(u32::MAX),
            drains_in: limit.time_to_drain(record.owed()),
            lent: record.lent(),
            hosts: u32::try_from(record.leases().len()).unwrap_or(u32::MAX),
            free: record.free(limit),
        }
    }
}

async fn look(config: Config, bucket: &Bucket, clear: bool) -> io::Result<Option<Standing>> {
    let connector = Arc::new(Connector::new(config)?);
    let config = &connector.config;
    let (address, mut connection, replicas) =
        server_of(&connector, bucket.tag(), &bucket.name()).await?;
    let failed = |fault: Fault| unusable(config, &address, &fault);

    let mut commands = Pipeline::new();
    commands.cmd("TIME");
    commands.cmd("GET").arg(bucket.name());
    let kind = config.kind();
    if kind.is_strict {
        commands.cmd("GET").arg(bucket.epoch());
    }
    let answers =
        connection.send_for_long(&commands, config.connect_timeout).await.map_err(failed)?;
    let record = record_of(&answers, bucket, kind).map_err(|NotAReply| {
        let name = bucket.name();
        io::Error::other(format!("what the store at {address} has under {name} is not a record"))
    })?;
    if clear {
        let now = answers.first().ok_or(NotAReply).and_then(time).unwrap_or_default();
        let mut commands = Pipeline::new();
        let kept_for = Record::new(now).kept_for(bucket.limit()).0.div_ceil(1_000);
        let at = &script::double(now.0)[..];
        commands.cmd("SET").arg(bucket.reset()).arg(at).arg("PX").arg(kept_for);
        commands.cmd("SET").arg(bucket.name()).arg("").arg("PX").arg(kept_for);
        add_wait(&mut commands, replicas, config.timeout);
        let answers = connection.send(&commands, config.connect_timeout).await.map_err(failed)?;
        confirmed(answers.last(), replicas).map_err(failed)?;
    }
    Ok(record.map(|record| Standing::of(&record, bucket.limit())))
}

/// The record of a bucket, by the answers to `TIME` and `GET`. They are read as the script
/// reads them.
fn record_of(
    answers: &[Value],
    bucket: &Bucket,
    kind: StoreKind,
) -> Result<Option<Record>, NotAReply> {
    let mut answers = answers.iter();
    let now = time(answers.next().ok_or(NotAReply)?)?;
    let mut get = || match answers.next() {
        Some(Value::BulkString(bytes)) => Ok(Some(bytes.as_slice())),
        Some(Value::Nil) => Ok(None),
        _ => Err(NotAReply),
    };
    let limit = bucket.limit();
    let kept = get()?.map(|bytes| script::records(bytes, limit)).transpose()?;
    let epoch = if kind.is_strict { get()?.map(script::epoch).transpose()? } else { None };
    let is_known = kept.is_some() || epoch.is_some();
    let begin = || match epoch {
        Some(epoch) => Record::after_loss(limit, epoch.min(now), now),
        None => Record::new(now),
    };
    let of = (limit, &bucket.change());
    let record = kept.unwrap_or_default().look(of, now, begin);
    Ok((is_known || record.owed() > Units::ZERO).then_some(record))
}

/// Reads the answer to `TIME`: seconds and microseconds.
pub(crate) fn time(answer: &Value) -> Result<StoreTime, NotAReply> {
    let Value::Array(parts) = answer else { return Err(NotAReply) };
    let number = |place: usize| match parts.get(place) {
        Some(Value::BulkString(bytes)) => {
            let text = core::str::from_utf8(bytes).map_err(|_| NotAReply)?;
            text.parse::<u64>().map_err(|_| NotAReply)
        }
        _ => Err(NotAReply),
    };
    let micros =
        number(0)?.checked_mul(1_000_000).and_then(|all| all.checked_add(number(1).ok()?));
    micros.map(StoreTime).ok_or(NotAReply)
}
