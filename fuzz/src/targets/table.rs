//! Table files with anything in their header, register, processes and slots. Such a file is
//! refused with an error of one line, or it works: each decision ends, and after one drain time
//! the answers are right again.
//!
//! An input is a list of changes to a good file, and of decisions before the last look.

use std::cell::OnceCell;
use std::fs;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use arbitrary::{Result, Unstructured};
use gcra_table::{KeyHash, MAX_DRAIN, Nanos, Quota, Slots, Table};
use tempfile::{Builder, TempDir};

/// With this number each key may be in each slot.
const SLOTS: usize = 8;
const SLOT_BYTES: usize = 16;

/// Where the header has the number of slots, the length of the fields that are written once, and
/// where the fields begin that processes change.
const SLOTS_AT: usize = 16;
const FIXED: usize = 128;
const SHARED: usize = 1024;

/// A TAT that is later than a quota can have led to, by no more than this, is taken for one by a
/// clock that is ahead, and is left as it is.
const CLOCK_SLACK: Nanos = Nanos::from_millis(1);

const KEYS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// 20 us a cell, 3 at once.
fn quota() -> Quota {
    quota_of(20_000, 3)
}

fn quota_of(interval_ns: u64, burst: u32) -> Quota {
    Quota::new(Nanos(interval_ns), burst).expect("short")
}

/// A directory that is removed with the value. (At the end of a fuzzer nothing is dropped.)
fn directory() -> TempDir {
    let memory = Builder::new().prefix("gcra-fuzz-").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// A good file, and what a slot holds of each key.
struct Template {
    bytes: Vec<u8>,
    fingerprints: Vec<u64>,
    /// Another table with the same clock.
    clock: Table,
}

impl Template {
    fn new() -> Self {
        let directory = directory();
        let path = directory.path().join("table");
        let slots = Slots::new(SLOTS as u64).expect("the fewest");
        let (table, _) = Table::open_or_create(&path, Some(slots)).expect("a new table");
        let bytes = fs::read(&path).expect("the table");
        let fingerprints = KEYS.iter().map(|key| {
            let key = table.hash(key);
            assert!(table.charge(key, quota(), 1, &mut table.reading()).is_allowed());
            let bytes = fs::read(&path).expect("the table");
            assert!(table.reset(key, quota(), table.now()).is_some());
            // The one slot that is in use: the keys before this one were reset.
            let words = bytes[bytes.len() - SLOTS * SLOT_BYTES..].chunks_exact(SLOT_BYTES);
            let mut live =
                words.map(|word| u128::from_ne_bytes(word.try_into().expect("16 bytes")));
            let word = live.find(|word| *word != 0).expect("the key's slot");
            u64::try_from(word >> 64).expect("64 bits")
        });
        let fingerprints = fingerprints.collect();
        drop(table);
        Self { bytes, fingerprints, clock: Table::in_memory(slots).expect("memory") }
    }
}

thread_local! {
    static TEMPLATE: OnceCell<Template> = const { OnceCell::new() };
}

/// One input.
pub fn run(input: &[u8]) {
    TEMPLATE.with(|template| {
        // An input that ends early gives zeros. The error does not matter.
        let _ = chosen(template.get_or_init(Template::new), &mut Unstructured::new(input));
    });
}

/// A number that a field may have: small, near a power of two, or any.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.arbitrary::<u8>()? {
        small @ ..100 => small.into(),
        power @ 100..220 => (1_u64 << (power % 64))
            .wrapping_add(u64::from(u.arbitrary::<u8>()? % 3))
            .wrapping_sub(1),
        220..230 => u64::MAX,
        _ => u.arbitrary()?,
    })
}

/// A word as a slot may hold it: of one of the keys or of none, in any state, with a TAT near
/// `now` or far from it.
fn word(u: &mut Unstructured<'_>, template: &Template, now: u64) -> Result<u128> {
    let fingerprint = match u.arbitrary::<u8>()? % 8 {
        0 => 0,
        1 => u.arbitrary()?,
        key => template.fingerprints[usize::from(key) % KEYS.len()],
    };
    let time = match u.arbitrary::<u8>()? % 8 {
        0..3 => now.wrapping_add(u.arbitrary::<u32>()?.into()),
        3 => now.wrapping_sub(u.arbitrary::<u32>()?.into()),
        4 => now.wrapping_add(u64::from(u.arbitrary::<u8>()? % 4) * MAX_DRAIN.0),
        _ => number(u)?,
    };
    let (state, class) = (u64::from(u.arbitrary::<u8>()? % 4), u64::from(u.arbitrary::<u8>()?));
    let (high, low) =
        (fingerprint & (u64::MAX >> 2) | state << 62, class << 60 | time & (u64::MAX >> 4));
    Ok(u128::from(high) << 64 | u128::from(low))
}

fn chosen(template: &Template, u: &mut Unstructured<'_>) -> Result<()> {
    let Template { bytes: good, clock, .. } = template;
    let directory = directory();
    let path = directory.path().join("table");
    let header = good.len() - SLOTS * SLOT_BYTES;
    let now = clock.now().0;
    let mut bytes = good.clone();
    for _ in 0..u.arbitrary::<u8>()? % 24 {
        let (at, value) = match u.arbitrary::<u8>()? % 10 {
            // A fixed field, something that processes change, any other place of the header.
            0 => (usize::from(u.arbitrary::<u8>()?) % FIXED, number(u)?.to_ne_bytes().to_vec()),
            1 => (SHARED + usize::from(u.arbitrary::<u8>()?), number(u)?.to_ne_bytes().to_vec()),
            2 | 3 => {
                let at = usize::try_from(u.arbitrary::<u32>()?).unwrap_or(0) % (header - 8);
                // Aligned, as the fields are.
                (at & !7, number(u)?.to_ne_bytes().to_vec())
            }
            _ => {
                let slot = usize::from(u.arbitrary::<u8>()?) % SLOTS;
                (header + slot * SLOT_BYTES, word(u, template, now)?.to_ne_bytes().to_vec())
            }
        };
        let end = bytes.len().min(at + value.len());
        bytes[at..end].copy_from_slice(&value[..end - at]);
    }
    match u.arbitrary::<u8>()? {
        0 => {
            bytes
                .truncate(usize::try_from(u.arbitrary::<u32>()?).unwrap_or(0) % (bytes.len() + 1));
        }
        1 => bytes.extend(vec![0; u.arbitrary::<u16>()?.into()]),
        _ => {}
    }
    // The header of a larger or smaller table, in a file that is not one.
    let says_other_slots =
        bytes.get(SLOTS_AT..SLOTS_AT + 8) != Some(&good[SLOTS_AT..SLOTS_AT + 8]);

    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .expect("a file");
    file.write_all_at(&bytes, 0).expect("space");
    drop(file);
    let table = match Table::open_or_create(&path, None) {
        Ok((table, _)) => table,
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.contains("table") && !sentence.contains('\n'), "{sentence}");
            assert!(bytes != *good, "a good file is refused: {sentence}");
            return Ok(());
        }
    };
    assert!(!says_other_slots && bytes.len() == good.len(), "a file of another size is taken");
    let keys: Vec<KeyHash> = KEYS.iter().map(|key| table.hash(key)).collect();
    let long = quota_of(3_600_000_000_000, 5);
    for _ in 0..u.arbitrary::<u8>()? % 32 {
        let key = *u.choose(&keys)?;
        let quota = if u.arbitrary()? { quota() } else { long };
        let cells = u.arbitrary::<u8>()? % 6;
        let mut now = table.reading();
        match u.arbitrary::<u8>()? % 10 {
            0 => drop(table.reset(key, quota, now.time())),
            1 | 2 => {
                table.board().add_said(u64::from(cells), quota);
            }
            3 => table.beat(),
            4 => {
                let least_tat = now.time().saturating_add(Nanos(number(u)?));
                let _ = table.charge_owing(key, quota, cells.into(), &mut now, least_tat);
            }
            6 => {
                let least_tat = now.time().saturating_add(Nanos(number(u)?));
                let settled =
                    table.charge_up_to_cap(key, quota, cells.into(), &mut now, least_tat);
                assert!(settled.cells <= cells.into() && settled.beyond_burst <= settled.cells);
            }
            7 => {
                let settled = table.give_back(key, quota, cells.into(), &mut now);
                assert!(settled.cells <= cells.into(), "{settled:?}");
            }
            5 => {
                let decision = table.charge(key, quota, cells.into(), &mut now);
                let _ = table.refund(key, quota, cells.into(), &decision);
            }
            _ => {
                let decision = table.charge(key, quota, cells.into(), &mut now);
                let most = quota.most_owed() + CLOCK_SLACK;
                assert!(decision.owed() <= most, "{decision:?}, {most:?} at most");
                assert!(decision.retry_after().is_none_or(|wait| wait <= most), "{decision:?}");
            }
        }
    }
    look(&table, &path);
    let _ = table.successor();
    if table.is_being_resized() {
        // Keys that have moved to a table that does not exist are denied.
        return Ok(());
    }
    settle(&table, &keys);
    Ok(())
}

/// Looks at all that can be seen of a table.
fn look(table: &Table, path: &std::path::Path) {
    let occupancy = table.occupancy();
    let all = occupancy.live + occupancy.idle + occupancy.pending + occupancy.sealed;
    assert_eq!(all, SLOTS as u64);
    table.check().iter().for_each(|fault| assert!(!fault.to_string().is_empty()));
    let _ = (table.board().processes(), table.board().said_of(0));
    let _ = (table.age(), table.creator(), table.evictions());
    if let Err(error) = Table::inspect(path) {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// After one drain time each key has its burst, and from then on no more than its rate.
fn settle(table: &Table, keys: &[KeyHash]) {
    let quota = quota();
    for key in keys {
        // Repairs a TAT that is too far in the future.
        let mut now = table.reading();
        let _ = table.charge(*key, quota, 1, &mut now);
        let drained = table.now().saturating_add(quota.drain_time() + CLOCK_SLACK);
        while table.now() < drained {
            std::hint::spin_loop();
        }
        let before = table.evictions();
        let (began, mut allowed) = (table.now(), 0);
        for asked in 0..12 {
            let mut now = table.reading();
            let decision = table.charge(*key, quota, 1, &mut now);
            assert!(
                decision.is_allowed() || asked >= quota.burst(),
                "{decision:?} to cell {asked}"
            );
            allowed += u64::from(decision.is_allowed());
        }
        let elapsed = table.now().saturating_since(began);
        let most = u64::from(quota.burst()) + elapsed.0 / quota.emission_interval().0;
        assert_eq!(table.evictions(), before, "a key with a bucket evicts no other");
        assert!(allowed <= most, "{allowed} allowed, and {most} would be right");
    }
}
