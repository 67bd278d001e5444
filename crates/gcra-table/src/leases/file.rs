//! The file of leases: `<table>.leases`, beside the table.
//!
//! It belongs to one table, one clock and one store. Its header says the table's hash key, because
//! keys are hashed once for both files. It says the table's clock, because cells are valid by this
//! clock. It says the store, because a report is of use only to the store that has lent the cells.
//! It also says which file it is, because a copy would be the same host. A file that does not fit,
//! or is damaged, or whose time is nearly over, is replaced by another file, and that makes the
//! host another host. Nothing has to be carried over: what the host before it held expires at the
//! store. Processes that still use the file before it are that host, until they notice.

// ADR 29: The table file is linked into place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use gcra_lease::{Base, HostId, HostTime, Micros};

use crate::clock::{self, Clock};
use crate::file::header;
use crate::file::open::Opened;
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::file::{self, FileId, FilePath, Role, failed, lock, must_be_of_user, must_be_private};
use crate::hash::SipHasher;
use crate::leases::set::{LeasesShared, SHARED_AT};
use crate::slots::Slots;

/// The header's size; the sets begin after it.
pub(crate) const HEADER_BYTES: usize = 8192;

/// The meaning of every byte of the file. Changed together with LEASES.md.
const LAYOUT: u32 = 4;

const MAGIC: [u8; 8] = *b"GCRAleas";
const FIXED_BYTES: usize = 136;
/// A file is replaced this long before its time is over.
const REPLACED_BEFORE: Micros = Micros::from_millis(86_400_000);
/// How often a name is tried again that leads to another file by then.
const ATTEMPTS: u32 = 16;

const _: () = assert!(SHARED_AT + size_of::<LeasesShared>() <= HEADER_BYTES);

/// A store, as those who use it tell stores apart: cells that one store has lent are never
/// reported to another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StoreId(pub [u8; 16]);

/// The fault of a file of leases that could have been used otherwise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replaced {
    /// It was of another store.
    OtherStore,
    /// It was a copy of another file.
    Copied,
}

/// The table that a file belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    pub(super) path: &'a FilePath,
    pub(super) header: &'a header::Header,
    pub(super) clock: &'a Clock,
    /// The store that has lent the cells. `None`: it may be any.
    pub(super) store: Option<StoreId>,
}

impl Owner<'_> {
    pub(super) fn now(&self) -> HostTime {
        HostTime::from(self.clock.now())
    }
}

/// The fields of the header that are written once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LeasesHeader {
    slots: u64,
    hash_key: [u8; 16],
    boot_id: [u8; 16],
    base_ns: i64,
    clock_offset_ns: i64,
    pub(super) host: HostId,
    /// From when entries count time.
    pub(super) base: Base,
    created_wall_ns: u64,
    pub(super) store: StoreId,
    /// The file in which the header was written.
    id: FileId,
}

impl LeasesHeader {
    fn to_bytes(self) -> [u8; FIXED_BYTES] {
        let fields: [&[u8]; 14] = [
            &MAGIC,
            &LAYOUT.to_ne_bytes(),
            &[0; 4],
            &self.slots.to_ne_bytes(),
            &self.hash_key,
            &self.boot_id,
            &self.base_ns.to_ne_bytes(),
            &self.clock_offset_ns.to_ne_bytes(),
            &self.host.0.to_ne_bytes(),
            &self.base.0.0.to_ne_bytes(),
            &self.created_wall_ns.to_ne_bytes(),
            &self.store.0,
            &self.id.device.to_ne_bytes(),
            &self.id.inode.to_ne_bytes(),
        ];
        let fields = fields.concat();
        let mut bytes = [0; FIXED_BYTES];
        bytes[..fields.len()].copy_from_slice(&fields);
        bytes[fields.len()..].copy_from_slice(&self.check(&fields).to_ne_bytes());
        bytes
    }

    /// `None`: it is damaged, or has another layout.
    fn from_bytes(bytes: &[u8; FIXED_BYTES]) -> Option<Self> {
        let word =
            |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let words = |at: usize| bytes[at..].first_chunk().map_or([0; 16], |words| *words);
        let header = Self {
            slots: word(16),
            hash_key: words(24),
            boot_id: words(40),
            base_ns: word(56).cast_signed(),
            clock_offset_ns: word(64).cast_signed(),
            host: HostId(word(72)),
            base: Base(HostTime(word(80))),
            created_wall_ns: word(88),
            store: StoreId(words(96)),
            id: FileId { device: word(112), inode: word(120) },
        };
        (header.to_bytes() == *bytes).then_some(header)
    }

    /// So that a damaged header is noticed.
    fn check(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher::new(&self.hash_key);
        hasher.write(b"gcra-table leases");
        hasher.write(bytes);
        hasher.finish()
    }

    /// Whether keys are hashed, and time is measured, as by this table.
    pub(super) fn belongs_to(&self, table: &header::Header) -> bool {
        let theirs = (table.hash_key, table.boot_id, table.base_ns, table.clock_offset_ns);
        (self.hash_key, self.boot_id, self.base_ns, self.clock_offset_ns) == theirs
    }
}

/// Whether the time of entries that count from this base is nearly over.
pub(super) fn is_ending(base: Base, now: HostTime) -> bool {
    now.saturating_since(base.0) > Base::LASTS.saturating_sub(REPLACED_BEFORE)
}

/// An open file of leases that can be used.
#[derive(Debug)]
pub(super) struct LeasesFile {
    pub(super) file: File,
    pub(super) id: FileId,
    pub(super) header: LeasesHeader,
    pub(super) slots: Slots,
    /// The fault of the file in whose place it was made, if that is to be told.
    pub(super) replaced: Option<Replaced>,
}

/// Where the leases of the table at `path` are.
pub(super) fn path_beside(path: &FilePath) -> FilePath {
    path.with_added_extension("leases")
}

/// Opens the leases of a table, or makes them with `slots` slots for `store`. A file of leases
/// that cannot be used is replaced.
pub(super) fn open_or_create(
    owner: Owner<'_>,
    store: StoreId,
    slots: Slots,
) -> Result<(LeasesFile, Opened), OpenError> {
    let path = path_beside(owner.path);
    let owner = Owner { store: Some(store), ..owner };
    let error = |kind| OpenError::new(&path, kind);
    let (mut opened, mut replaced) = (Opened::Joined, None);
    for _ in 0..ATTEMPTS {
        match file::open(&path) {
            Ok(file) => match examine(file, owner, Role::Decider) {
                Ok(leases) => return Ok((LeasesFile { replaced, ..leases }, opened)),
                Err(Unusable::Replace(file, why)) => {
                    remove(&path, &file).map_err(error)?;
                    replaced = why;
                }
                Err(Unusable::Refuse(OpenErrorKind::Unlinked)) => {}
                Err(Unusable::Refuse(kind)) => return Err(error(kind)),
            },
            Err(OpenErrorKind::Missing) => match create(&path, owner, store, slots) {
                Ok(()) => opened = Opened::Created,
                Err(OpenErrorKind::Io { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists => {}
                Err(kind) => return Err(error(kind)),
            },
            Err(kind) => return Err(error(kind)),
        }
    }
    Err(error(OpenErrorKind::Contended))
}

/// The outcome of a look at the place of the leases of a table.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    /// Leases that can be used.
    Leases(LeasesFile),
    /// Leases that would be replaced, and why, if that is to be told.
    Others(Option<Replaced>),
}

/// Looks at the leases of a table.
pub(super) fn inspect(owner: Owner<'_>, role: Role) -> Result<Found, OpenError> {
    let path = path_beside(owner.path);
    match file::open(&path).map_err(Unusable::Refuse).and_then(|file| examine(file, owner, role)) {
        Ok(leases) => Ok(Found::Leases(leases)),
        Err(Unusable::Replace(_, why)) => Ok(Found::Others(why)),
        Err(Unusable::Refuse(OpenErrorKind::Missing | OpenErrorKind::Unlinked)) => {
            Ok(Found::Nothing)
        }
        Err(Unusable::Refuse(kind)) => Err(OpenError::new(&path, kind)),
    }
}

/// Takes the name from a file that cannot be used. Of several processes that want to replace it,
/// one does, and the others find the new file.
fn remove(path: &FilePath, file: &File) -> Result<(), OpenErrorKind> {
    lock(file)?;
    let metadata = file.metadata().map_err(failed("examine it"))?;
    if FileId::at(path).is_ok_and(|found| found == FileId::of(&metadata)) {
        path.remove().map_err(failed("replace it"))?;
    }
    // The lock ends with the file, which nothing maps.
    Ok(())
}

fn create(
    path: &FilePath,
    owner: Owner<'_>,
    store: StoreId,
    slots: Slots,
) -> Result<(), OpenErrorKind> {
    let mut id = [0; 8];
    getrandom::fill(&mut id)
        .map_err(|error| failed("draw the id of the host")(io::Error::other(error.to_string())))?;
    let table = owner.header;
    let header = |own| LeasesHeader {
        slots: slots.get().into(),
        hash_key: table.hash_key,
        boot_id: table.boot_id,
        base_ns: table.base_ns,
        clock_offset_ns: table.clock_offset_ns,
        host: HostId(u64::from_ne_bytes(id)),
        base: Base(owner.now()),
        created_wall_ns: clock::wall_ns(),
        store,
        id: own,
    };
    file::make(path, HEADER_BYTES as u64 + slots.bytes(), |file| {
        let own = FileId::of(&file.metadata().map_err(failed("examine it"))?);
        file.write_all_at(&header(own).to_bytes(), 0).map_err(failed("write its header"))
    })
}

/// Why a file cannot be used.
enum Unusable {
    /// It is a file of leases, and another one may take its place.
    Replace(File, Option<Replaced>),
    /// It is something else, or others could change it.
    Refuse(OpenErrorKind),
}

impl From<OpenErrorKind> for Unusable {
    fn from(kind: OpenErrorKind) -> Self {
        Self::Refuse(kind)
    }
}

fn examine(file: File, owner: Owner<'_>, role: Role) -> Result<LeasesFile, Unusable> {
    let metadata = file.metadata().map_err(failed("examine it"))?;
    must_be_of_user(&metadata, role)?;
    let mut bytes = [0; FIXED_BYTES];
    let read = file.read_exact_at(&mut bytes, 0);
    if read.is_err() || !bytes.starts_with(&MAGIC) {
        return Err(OpenErrorKind::NotLeases.into());
    }
    must_be_private(&metadata)?;
    let now = owner.now();
    let is_usable = |header: &LeasesHeader| {
        // The clocks of two CPUs may differ a little.
        let latest_base = now.saturating_add(Micros::from_millis(1_000));
        header.belongs_to(owner.header)
            && !is_ending(header.base, now)
            && header.base.0 <= latest_base
    };
    let header = LeasesHeader::from_bytes(&bytes).filter(is_usable);
    let fits = |slots: &Slots| HEADER_BYTES as u64 + slots.bytes() == metadata.len();
    let slots = header.and_then(|header| Slots::exactly(header.slots)).filter(fits);
    let (Some(header), Some(slots)) = (header, slots) else {
        return Err(Unusable::Replace(file, None));
    };
    let id = FileId::of(&metadata);
    if header.id != id {
        return Err(Unusable::Replace(file, Some(Replaced::Copied)));
    }
    if owner.store.is_some_and(|store| store != header.store) {
        return Err(Unusable::Replace(file, Some(Replaced::OtherStore)));
    }
    file::reserve(&file, metadata.len())?;
    Ok(LeasesFile { file, id, header, slots, replaced: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_as_it_was_written_and_damage_is_noticed() {
        let header = LeasesHeader {
            slots: 64,
            hash_key: *b"0123456789abcdef",
            boot_id: [7; 16],
            base_ns: -5,
            clock_offset_ns: 3,
            host: HostId(u64::MAX - 1),
            base: Base(HostTime(77)),
            created_wall_ns: 1,
            store: StoreId(*b"a store, a salt."),
            id: FileId { device: 26, inode: 1 << 40 },
        };
        let bytes = header.to_bytes();
        assert_eq!(LeasesHeader::from_bytes(&bytes), Some(header));
        for at in 0..FIXED_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(LeasesHeader::from_bytes(&damaged), None, "byte {at}");
        }
        assert_eq!(LeasesHeader::from_bytes(&[0; FIXED_BYTES]), None);
    }
}
