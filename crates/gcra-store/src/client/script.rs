//! The two scripts: what the store runs for each ask and for each charge, and how these and their
//! replies are written.

use std::sync::LazyLock;

use gcra_lease::{
    Ask, AskNumber, AskReply, Change, Charge, Charged, HostId, Lease, Micros, Record, Records,
    SharedLimit, StoreTime, Units,
};

use crate::client::bucket::Bucket;
use crate::config::Config;

/// The source of the script for an ask, in Lua 5.1.
pub const ASK_SOURCE: &str = concat!(include_str!("open.lua"), include_str!("ask.lua"));

/// The source of the script for a charge.
pub const CHARGE_SOURCE: &str = concat!(include_str!("open.lua"), include_str!("charge.lua"));

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Script {
    Ask,
    Charge,
}

/// The SHA-1 of a source in hexadecimal digits, by which the server knows it once it has it.
static ASK_HASH: LazyLock<String> = LazyLock::new(|| hash_of(ASK_SOURCE));
static CHARGE_HASH: LazyLock<String> = LazyLock::new(|| hash_of(CHARGE_SOURCE));

pub(crate) fn hash_of(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// Numbers are written as doubles or 32 bits, so a larger number of an ask cannot be written. A
/// host that sends a million asks a second reaches it in 285 years.
const LARGEST_NUMBER: u64 = 1 << 53;

/// The command that sends `ask` for `bucket`: by the script's hash, or with its text. `None`: the
/// number of the ask cannot be written, or the limit is a [count](SharedLimit::count), of which nothing
/// is lent.
pub fn command(bucket: &Bucket, ask: &Ask, kind: StoreKind, by: By) -> Option<redis::Cmd> {
    if ask.number.0 >= LARGEST_NUMBER || bucket.limit().window().is_some() {
        return None;
    }
    let mut numbers = numbers(bucket.limit());
    numbers.extend(ask.host.0.to_le_bytes());
    numbers.extend(double(ask.number.0));
    numbers.push(ask.fresh.into());
    let validity = ask.validity.min(bucket.limit().longest_validity());
    let validity = u32::try_from(validity.0).unwrap_or(u32::MAX);
    for number in [ask.spent, ask.debt, ask.holds, ask.want, ask.least, validity] {
        numbers.extend(number.to_le_bytes());
    }
    numbers.extend(double(ask.owed_ago.0));
    let reset = (ask.owed_ago < Ask::NOTHING_OWED).then(|| bucket.reset());
    Some(call(Script::Ask, by, bucket, (kind, reset), &numbers))
}

/// The command that sends `charge` for `bucket`: by the script's hash, or with its text. The reply
/// has `number` in it. `None`: the number cannot be written.
pub fn charge_command(
    bucket: &Bucket,
    number: u64,
    charge: &Charge,
    kind: StoreKind,
    by: By,
) -> Option<redis::Cmd> {
    if number >= LARGEST_NUMBER {
        return None;
    }
    let limit = bucket.limit();
    let (code, cells, needs, taken_at) = match *charge {
        Charge::Take { cells, needs, .. } => (0, cells, needs, None),
        Charge::More { cells } => (1, cells, 0, None),
        Charge::Less { cells, taken_at } => (2, cells, 0, taken_at),
    };
    let mut numbers = numbers(limit);
    numbers.extend(double(number));
    numbers.push(code);
    numbers.extend(cells.to_le_bytes());
    numbers.extend(needs.to_le_bytes());
    numbers.extend(double(charge.drains_meanwhile(limit).0));
    let (begin, end) = limit.window().map_or((0, 0), |window| (window.begin, window.end));
    numbers.extend(double(begin));
    numbers.extend(double(end));
    numbers.extend(double(taken_at.unwrap_or_default().0));
    Some(call(Script::Charge, by, bucket, (kind, None), &numbers))
}

/// The properties of a store that matter for a call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreKind {
    /// Keys that it does not know may have been lost.
    pub is_strict: bool,
    /// All that a call needs has to lie in one slot.
    pub is_cluster: bool,
}

impl Config {
    /// The part of it that matters for a call.
    pub(crate) const fn kind(&self) -> StoreKind {
        StoreKind { is_strict: self.strict, is_cluster: self.url.is_cluster() }
    }
}

/// The call of a script, which may look at the name of the last reset of the bucket.
fn call(
    script: Script,
    by: By,
    bucket: &Bucket,
    (kind, reset): (StoreKind, Option<String>),
    numbers: &[u8],
) -> redis::Cmd {
    let (hash, source) = match script {
        Script::Ask => (&ASK_HASH, ASK_SOURCE),
        Script::Charge => (&CHARGE_HASH, CHARGE_SOURCE),
    };
    let mut command = redis::Cmd::with_capacity(10, 512);
    match by {
        By::Hash => command.arg("EVALSHA").arg(hash.as_str()),
        By::Text => command.arg("EVAL").arg(source),
    };
    let epoch = kind.is_strict.then(|| bucket.epoch());
    let names = 1 + usize::from(epoch.is_some()) + usize::from(reset.is_some());
    command.arg(names).arg(bucket.name()).arg(epoch).arg(reset);
    command.arg(numbers);
    command.arg(bucket.limit().keeps_record().0.div_ceil(1_000));
    let Change { ago, most } = bucket.change();
    command.arg([double(ago.0), double(most.0)].concat());
    command.arg(u8::from(kind.is_strict));
    command
}

/// The command that finds out whether a server does what an ask needs.
pub(crate) fn probe(tag: u16, by: By) -> Option<redis::Cmd> {
    let (bucket, ask) = Bucket::probe(tag)?;
    command(&bucket, &ask, StoreKind::default(), by)
}

/// How a command names the script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum By {
    /// By its hash: the server must have seen it.
    Hash,
    /// With its text.
    Text,
}

/// Reads what the script for an ask answers. `Ok(None)`: the ask is ignored.
///
/// # Errors
///
/// The bytes are no reply of the script.
pub fn reply(bytes: &[u8]) -> Result<Option<AskReply>, NotAReply> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut rest = bytes;
    let reply = AskReply {
        number: AskNumber(whole(&mut rest)?),
        kept: u32::from_le_bytes(take(&mut rest)?),
        granted: u32::from_le_bytes(take(&mut rest)?),
        free: u32::from_le_bytes(take(&mut rest)?),
        come_back_after: Micros(u32::from_le_bytes(take(&mut rest)?).into()),
        hosts: u32::from_le_bytes(take(&mut rest)?),
        scarce: take(&mut rest)? != [0],
        lent: take(&mut rest)? != [0],
        now: StoreTime(whole(&mut rest)?),
    };
    if rest.is_empty() { Ok(Some(reply)) } else { Err(NotAReply) }
}

/// Reads what the script for a charge answers: the number of the charge, and its outcome.
///
/// # Errors
///
/// The bytes are no reply of the script.
pub fn charged(bytes: &[u8]) -> Result<(u64, Charged), NotAReply> {
    let mut rest = bytes;
    let number = whole(&mut rest)?;
    let charged = Charged {
        allowed: take(&mut rest)? != [0],
        cells: u32::from_le_bytes(take(&mut rest)?),
        beyond_burst: u32::from_le_bytes(take(&mut rest)?),
        taken: Units(whole(&mut rest)?),
        now: StoreTime(whole(&mut rest)?),
    };
    if rest.is_empty() { Ok((number, charged)) } else { Err(NotAReply) }
}

/// The most leases of a record that is read; there is one for each host that asked in the last
/// seconds.
const MOST_LEASES: usize = 10_000;

/// The most numbers of a key whose records are read.
const MOST_NUMBERS: usize = 100;

/// Reads the records that the script has written; nothing, if a command has cleared them. `limit`
/// says which window they are for, if they are those of a count.
pub(crate) fn records(bytes: &[u8], limit: &SharedLimit) -> Result<Records, NotAReply> {
    let mut rest = bytes;
    let mut each = Vec::new();
    while !rest.is_empty() {
        let [burst, ceiling] = [take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
        let [cell, scale] = [whole(&mut rest)?, whole(&mut rest)?];
        let longest = u32::from_le_bytes(take(&mut rest)?);
        let of = match limit.window() {
            Some(window) => SharedLimit::count(burst, window).ok(),
            None => {
                let bits = scale.is_power_of_two().then(|| u64::from(scale.trailing_zeros()));
                let [burst, longest, ceiling] = [burst, longest, ceiling].map(u64::from);
                bits.and_then(|bits| {
                    SharedLimit::of_numbers([burst, cell, bits, longest, ceiling])
                })
            }
        };
        each.push((of.ok_or(NotAReply)?, record(&mut rest)?));
        if each.len() > MOST_NUMBERS {
            return Err(NotAReply);
        }
    }
    Ok(Records::kept(each))
}

/// Reads the record at the beginning, without its numbers.
fn record(rest: &mut &[u8]) -> Result<Record, NotAReply> {
    let count = usize::try_from(u32::from_le_bytes(take(rest)?)).map_err(|_| NotAReply)?;
    if count > MOST_LEASES {
        return Err(NotAReply);
    }
    let (at, owed) = (StoreTime(whole(rest)?), Units(whole(rest)?));
    // The soonest expiry and the sum of the cells follow from the leases; and an ask that was
    // denied.
    let _: [u8; 8 + 4 + 8 + 8] = take(rest)?;
    let (mut leases, mut lent) = (Vec::new(), 0_u32);
    for _ in 0..count {
        let lease = Lease {
            host: HostId(u64::from_le_bytes(take(rest)?)),
            cells: u32::from_le_bytes(take(rest)?),
            expiry: StoreTime(whole(rest)?),
            number: AskNumber(whole(rest)?),
        };
        lent = lent.checked_add(lease.cells).ok_or(NotAReply)?;
        leases.push(lease);
    }
    Ok(Record::kept(at, owed, leases))
}

pub(crate) fn epoch(mut bytes: &[u8]) -> Result<StoreTime, NotAReply> {
    let epoch = whole(&mut bytes)?;
    if bytes.is_empty() { Ok(StoreTime(epoch)) } else { Err(NotAReply) }
}

/// The server sent something that is no reply of the script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotAReply;

/// `<I4I4ddI4`: the numbers of a limit.
fn numbers(limit: &SharedLimit) -> Vec<u8> {
    let longest = u32::try_from(limit.longest_validity().0).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(96);
    bytes.extend(limit.burst().to_le_bytes());
    bytes.extend(limit.ceiling().to_le_bytes());
    bytes.extend(double(limit.cells(1).0));
    // Nothing of a count drains.
    let scale = if limit.window().is_some() { 0 } else { 1 << limit.fraction_bits() };
    bytes.extend(double(scale));
    bytes.extend(longest.to_le_bytes());
    bytes
}

/// A whole number below 2^53 as the script reads it.
#[expect(clippy::cast_precision_loss, reason = "below 2^53 nothing is lost")]
pub(crate) fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range was looked at, and `as` saturates"
)]
pub(crate) fn whole(bytes: &mut &[u8]) -> Result<u64, NotAReply> {
    let number = f64::from_le_bytes(take(bytes)?);
    if (0.0..9_007_199_254_740_992.0).contains(&number) {
        Ok(number as u64)
    } else {
        Err(NotAReply)
    }
}

pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], NotAReply> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(NotAReply)?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_are_no_records_is_an_error() {
        let limit = SharedLimit::new(core::time::Duration::from_millis(10), 20).unwrap();
        let new = |leases| Record::kept(StoreTime(0), Units::ZERO, leases);
        let header = [0.0, 0.0, f64::INFINITY].map(f64::to_le_bytes).concat();
        let empty = [&numbers(&limit)[..], &[0; 4], &header, &[0; 20]].concat();
        let read = |bytes: &[u8]| records(bytes, &limit);
        assert_eq!(read(&empty), Ok(Records::kept(vec![(limit, new(vec![]))])));
        let lease = |cells: u32| {
            let host = 7_u64.to_le_bytes();
            [&host[..], &cells.to_le_bytes(), &double(9), &double(3)].concat()
        };
        let with = |leases: u32, bytes: &[u8]| {
            let mut all = empty.clone();
            all[28..32].copy_from_slice(&leases.to_le_bytes());
            all.extend(bytes);
            all
        };
        let one = with(1, &lease(5));
        let leases =
            vec![Lease { host: HostId(7), cells: 5, expiry: StoreTime(9), number: AskNumber(3) }];
        let both = [&one[..], &empty].concat();
        let expected = Records::kept(vec![(limit, new(leases)), (limit, new(vec![]))]);
        assert_eq!(read(&both), Ok(expected));
        for length in (1..both.len()).filter(|&length| length != one.len()) {
            assert_eq!(read(&both[..length]), Err(NotAReply), "{length}");
        }
        let two = [lease(5), lease(u32::MAX)].concat();
        assert_eq!(read(&with(2, &two)), Err(NotAReply), "too many cells");
        let many = u32::try_from(MOST_LEASES).unwrap() + 1;
        let bytes = lease(0).repeat(MOST_LEASES + 1);
        assert_eq!(read(&with(many, &bytes)), Err(NotAReply), "too many leases");
        assert_eq!(read(&empty.repeat(MOST_NUMBERS + 1)), Err(NotAReply), "too many numbers");
        assert_eq!(read(&[0xff; 76]), Err(NotAReply), "not numbers");
        assert_eq!(read(&[0; 76]), Err(NotAReply), "no limit has these numbers");
        let window = gcra_lease::Window { begin: 1, end: 2 };
        let count = SharedLimit::count(5, window).unwrap();
        let kept = [numbers(&count), empty[28..].to_vec()].concat();
        assert_eq!(records(&kept, &count), Ok(Records::kept(vec![(count, new(vec![]))])));
        assert_eq!(epoch(&double(5)), Ok(StoreTime(5)));
        assert_eq!((epoch(b"short"), epoch(&[0; 9])), (Err(NotAReply), Err(NotAReply)));
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        assert_eq!(reply(b""), Ok(None));
        let mut bytes = Vec::new();
        bytes.extend(double(7));
        for number in [3_u32, 2, 5, 60_000_000, 4] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([1, 1]);
        bytes.extend(double(1_800_000_000_000_000));
        let expected = AskReply {
            number: AskNumber(7),
            kept: 3,
            granted: 2,
            free: 5,
            come_back_after: Micros(60_000_000),
            scarce: true,
            lent: true,
            hosts: 4,
            now: StoreTime(1_800_000_000_000_000),
        };
        assert_eq!(reply(&bytes), Ok(Some(expected)));
        for length in 1..bytes.len() {
            assert_eq!(reply(&bytes[..length]), Err(NotAReply));
        }
        bytes.push(0);
        assert_eq!(reply(&bytes), Err(NotAReply));
        assert_eq!(reply(&[0xff; 38]), Err(NotAReply), "not a number");
    }

    #[test]
    fn what_is_no_reply_to_a_charge_is_an_error() {
        let mut bytes = Vec::new();
        bytes.extend(double(9));
        bytes.push(1);
        for number in [7_u32, 2] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(double(1 << 52));
        bytes.extend(double(1_800_000_000_000_000));
        let expected = Charged {
            allowed: true,
            cells: 7,
            beyond_burst: 2,
            taken: Units(1 << 52),
            now: StoreTime(1_800_000_000_000_000),
        };
        assert_eq!(charged(&bytes), Ok((9, expected)));
        for length in 0..bytes.len() {
            assert_eq!(charged(&bytes[..length]), Err(NotAReply), "{length}");
        }
        let mut denied = bytes.clone();
        denied[8] = 0;
        assert!(charged(&denied).is_ok_and(|(_, charged)| !charged.allowed));
        bytes.push(0);
        assert_eq!(charged(&bytes), Err(NotAReply));
        for bytes in [[0xff; 33], [0x80; 33]] {
            assert_eq!(charged(&bytes), Err(NotAReply), "not numbers");
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_sent() {
        let (bucket, ask) = Bucket::probe(7).unwrap();
        let take = Charge::Less { cells: 1, taken_at: None };
        assert!(command(&bucket, &ask, StoreKind::default(), By::Hash).is_some());
        assert!(charge_command(&bucket, 7, &take, StoreKind::default(), By::Hash).is_some());
        let ask = Ask { number: AskNumber(1 << 53), ..ask };
        assert!(command(&bucket, &ask, StoreKind::default(), By::Hash).is_none());
        assert!(charge_command(&bucket, 1 << 53, &take, StoreKind::default(), By::Hash).is_none());
        let window = gcra_lease::Window { begin: 1, end: 2 };
        let count = SharedLimit::count(5, window).unwrap();
        let count = crate::client::bucket::Names::new(b"").bucket("p.l", b"key", count);
        let ask = Ask { number: AskNumber(1), ..ask };
        assert!(
            command(&count, &ask, StoreKind::default(), By::Hash).is_none(),
            "nothing of a count is lent"
        );
        assert!(charge_command(&count, 7, &take, StoreKind::default(), By::Hash).is_some());
    }
}
