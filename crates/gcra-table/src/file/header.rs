//! The header of a table file: what the file is, its size and hash key, its age, and which
//! processes use it.
//!
//! The fields that never change while the file is in use are read and written as bytes, here. The
//! few that change are atomics in the mapped memory ([`Shared`], [`ProcessEntry`]). The page
//! TABLE.md of the repository lists every byte.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::counters::Counters;
use crate::file::heard::Heard;
use crate::file::open_error::OpenErrorKind;
use crate::file::orders::{MOST_ORDERS, OrderEntry};
use crate::file::profile::ProfileEntry;
use crate::file::said::{ENTRIES, Entry};
use crate::hash::SipHasher;

/// The header's size; the lines begin after it.
pub(crate) const HEADER_BYTES: usize = 0x60000;

/// Where in the first page the fields that change lie.
pub(crate) const SHARED_AT: usize = 1024;

/// The meaning of every byte of the file. Changed together with TABLE.md.
pub(crate) const LAYOUT: u32 = 7;

const MAGIC: [u8; 8] = *b"GCRAtabl";
pub(crate) const FIXED_BYTES: usize = 128;

/// The fields that are written once, or by the first process that attaches after a boot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) slots: u64,
    pub(crate) hash_key: [u8; 16],
    /// How often the table was resized.
    pub(crate) generation: u64,
    pub(crate) created_wall_ns: u64,
    pub(crate) creator: [u8; 32],
    pub(crate) boot_id: [u8; 16],
    /// Added to the boot's clock, gives the table's.
    pub(crate) base_ns: i64,
    /// By how much CLOCK_BOOTTIME is ahead of the machine's in the time namespace of all
    /// processes that use the table.
    pub(crate) clock_offset_ns: i64,
}

impl Header {
    pub(crate) fn to_bytes(&self) -> [u8; FIXED_BYTES] {
        let fields: [&[u8]; 12] = [
            &MAGIC,
            &LAYOUT.to_ne_bytes(),
            &[0; 4],
            &self.slots.to_ne_bytes(),
            &self.hash_key,
            &hash_check(&self.hash_key).to_ne_bytes(),
            &self.generation.to_ne_bytes(),
            &self.created_wall_ns.to_ne_bytes(),
            &self.creator,
            &self.boot_id,
            &self.base_ns.to_ne_bytes(),
            &self.clock_offset_ns.to_ne_bytes(),
        ];
        let mut bytes = [0; FIXED_BYTES];
        bytes.copy_from_slice(&fields.concat());
        bytes
    }

    /// Continues the time of the table before this one.
    pub(crate) fn take_clock_of(&mut self, old: &Self) {
        (self.boot_id, self.base_ns, self.clock_offset_ns) =
            (old.boot_id, old.base_ns, old.clock_offset_ns);
    }

    /// Whether this is the header of the file that was made to take over from the one with the
    /// header `old`.
    pub(crate) fn follows(&self, old: &Self) -> bool {
        self.hash_key == old.hash_key && old.generation.checked_add(1) == Some(self.generation)
    }

    pub(crate) fn from_bytes(bytes: &[u8; FIXED_BYTES]) -> Result<Self, OpenErrorKind> {
        let mut rest = &bytes[..];
        if take(&mut rest) != MAGIC {
            return Err(OpenErrorKind::Foreign);
        }
        let found = u32::from_ne_bytes(take(&mut rest));
        if found != LAYOUT {
            return Err(OpenErrorKind::Layout { found, expected: LAYOUT });
        }
        let _: [u8; 4] = take(&mut rest);
        let slots = u64::from_ne_bytes(take(&mut rest));
        let hash_key = take(&mut rest);
        if u64::from_ne_bytes(take(&mut rest)) != hash_check(&hash_key) {
            return Err(OpenErrorKind::Hash);
        }
        let generation = u64::from_ne_bytes(take(&mut rest));
        Ok(Self {
            slots,
            hash_key,
            generation,
            created_wall_ns: u64::from_ne_bytes(take(&mut rest)),
            creator: take(&mut rest),
            boot_id: take(&mut rest),
            base_ns: i64::from_ne_bytes(take(&mut rest)),
            clock_offset_ns: i64::from_ne_bytes(take(&mut rest)),
        })
    }
}

/// The next `N` bytes. The fields of a header take no more than [`FIXED_BYTES`], so they are
/// always there.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk() {
        Some((field, after)) => {
            *rest = after;
            *field
        }
        None => [0; N],
    }
}

fn hash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher::new(key);
    hasher.write(bytes);
    hasher.finish()
}

/// The hash of a constant. A build that hashes differently would look for every key in the wrong
/// place, so it must not use the file at all.
fn hash_check(key: &[u8; 16]) -> u64 {
    hash(key, b"gcra-table hash check")
}

/// Where in the header the [profiles](crate::file::profile) of the processes lie.
pub(crate) const PROFILES_AT: usize = 0x1000;

/// Where in the header the counts lie that processes have [heard](crate::file::heard) of.
pub(crate) const HEARD_AT: usize = 0xd000;

/// Where in the header the quotas lie that messages have [said](crate::file::said).
pub(crate) const SAID_AT: usize = 0x10000;

/// Where in the header the entries of the processes lie.
pub(crate) const PROCESSES_AT: usize = 0x20000;

/// Where in the header the [orders](crate::file::orders) lie.
pub(crate) const ORDERS_AT: usize = 0x40000;

/// How many processes can be listed. Others work as well, without being listed.
pub(crate) const PROCESSES: usize = 512;

/// The fields that processes change while the table is in use, at [`SHARED_AT`] in the first page.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// The table's time when a process last wrote down that it was alive, and the wall clock's
    /// at that moment.
    pub(crate) last_ns: AtomicU64,
    pub(crate) last_wall_ns: AtomicU64,
    /// How often the file was attached to.
    pub(crate) attachments: AtomicU32,
    /// 1 from when another file takes over the buckets of this one. Set before the first slot is
    /// sealed.
    pub(crate) successor: AtomicU32,
    /// 1 from when all buckets of the file before this one were carried over.
    pub(crate) complete: AtomicU32,
    /// The counters of the tables before this one.
    pub(crate) inherited: Counters,
    /// CLOCK_BOOTTIME when a process last wrote down that it uses another file, which had the
    /// name of this one before.
    pub(crate) strangers_ns: AtomicU64,
    /// Written by evictions, so on a cache line of their own, like each of the two after them.
    pub(crate) counters: Counters,
    _reserved: [AtomicU64; 5],
    /// How often processes that have no [`ProcessEntry`] wrote down that they were alive.
    pub(crate) unlisted_beats: AtomicU64,
    _reserved_too: [AtomicU64; 7],
    /// How often the processes were asked to read their configuration again.
    pub(crate) reload_asked: AtomicU64,
}

/// The space for the text of a process, in words of 8 bytes.
pub(crate) const TEXT_WORDS: usize = 24;

/// One process that uses the table. The entries lie at [`PROCESSES_AT`].
#[derive(Debug, Default)]
#[repr(C, align(256))]
pub(crate) struct ProcessEntry {
    /// The table's time when it was last alive; 0 if it has left.
    pub(crate) beat_ns: AtomicU64,
    /// Its process id in its own namespace.
    pub(crate) pid: AtomicU32,
    /// The number of its attachment.
    pub(crate) number: AtomicU32,
    /// The inode number of its pid namespace; 0 if that is unknown.
    pub(crate) pid_namespace: AtomicU64,
    /// The value of `reload_asked` that it has answered; 0 if it has answered none, or is about
    /// to write an answer.
    pub(crate) answered: AtomicU64,
    /// Its answer: see [`ReloadAnswer`](crate::board::ReloadAnswer).
    pub(crate) outcome: AtomicU32,
    /// The bytes of `text`.
    pub(crate) length: AtomicU32,
    /// Why it refused its configuration, in UTF-8.
    pub(crate) text: [AtomicU64; TEXT_WORDS],
}

// The proofs in `region.rs` rely on these.
const _: () = assert!(SHARED_AT + size_of::<Shared>() <= PROFILES_AT);
const _: () = assert!(SHARED_AT.is_multiple_of(align_of::<Shared>()) && FIXED_BYTES <= SHARED_AT);
const _: () =
    assert!(cfg!(gcra_model) || PROFILES_AT + size_of::<[ProfileEntry; PROCESSES]>() <= HEARD_AT);
const _: () = assert!(PROFILES_AT.is_multiple_of(align_of::<ProfileEntry>()));
const _: () = assert!(HEARD_AT + size_of::<Heard>() <= SAID_AT);
const _: () = assert!(HEARD_AT.is_multiple_of(align_of::<Heard>()));
const _: () = assert!(cfg!(gcra_model) || SAID_AT + size_of::<[Entry; ENTRIES]>() <= PROCESSES_AT);
const _: () = assert!(SAID_AT.is_multiple_of(align_of::<Entry>()));
const _: () = assert!(PROCESSES_AT + size_of::<[ProcessEntry; PROCESSES]>() <= ORDERS_AT);
const _: () = assert!(PROCESSES_AT.is_multiple_of(align_of::<ProcessEntry>()));
const _: () = assert!(
    cfg!(gcra_model) || ORDERS_AT + size_of::<[OrderEntry; MOST_ORDERS]>() <= HEADER_BYTES
);
const _: () = assert!(ORDERS_AT.is_multiple_of(align_of::<OrderEntry>()));
// Every field is where TABLE.md says.
const _: () = assert!(SHARED_AT + offset_of!(Shared, complete) == 1048);
const _: () = assert!(SHARED_AT + offset_of!(Shared, inherited) == 1056);
const _: () = assert!(SHARED_AT + offset_of!(Shared, strangers_ns) == 1080);
const _: () = assert!(SHARED_AT + offset_of!(Shared, counters) == 1088);
const _: () = assert!(SHARED_AT + offset_of!(Shared, unlisted_beats) == 1152);
const _: () = assert!(SHARED_AT + offset_of!(Shared, reload_asked) == 1216);
const _: () = assert!(size_of::<ProcessEntry>() == 256);

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            slots: 1 << 20,
            hash_key: *b"0123456789abcdef",
            generation: 3,
            created_wall_ns: 1,
            creator: [b'x'; 32],
            boot_id: [7; 16],
            base_ns: -5,
            clock_offset_ns: 3,
        }
    }

    #[test]
    fn a_header_comes_back_as_it_was_written() {
        assert_eq!(Header::from_bytes(&header().to_bytes()).unwrap(), header());
    }

    #[test]
    fn other_bytes_are_told_apart() {
        let with = |at: usize| {
            let mut bytes = header().to_bytes();
            bytes[at] ^= 1;
            Header::from_bytes(&bytes).unwrap_err()
        };
        let layout = LAYOUT ^ 1;
        assert!(matches!(with(0), OpenErrorKind::Foreign));
        assert!(matches!(
            with(8),
            OpenErrorKind::Layout { found, expected: LAYOUT } if found == layout
        ));
        assert!(matches!(with(24), OpenErrorKind::Hash), "the key");
        assert!(matches!(with(40), OpenErrorKind::Hash), "the check");
        let zeros = Header::from_bytes(&[0; FIXED_BYTES]);
        assert!(matches!(zeros, Err(OpenErrorKind::Foreign)));
    }

    /// Tables in use depend on this value. (That it is SipHash-1-3 is tested in `hash.rs`.)
    #[test]
    fn the_hash_stays_what_it_is() {
        let key: [u8; 16] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        assert_eq!(hash(&key, b"192.0.2.1"), 12_263_835_180_306_840_492);
        assert_ne!(hash(&key, b"192.0.2.1"), hash(&key, b"192.0.2.2"));
    }
}
