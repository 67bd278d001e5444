//! The memory of a table or of leases: a mapped file, seen as its shared header fields and its
//! lines or sets.
//!
//! One of the two files of the project with unsafe code; the other is `cpu.rs`. It hands out
//! references to atomics, never bytes and never an exclusive reference.
//!
//! One thing cannot be proved here: that no process truncates the file while it is mapped (an
//! access behind its end is a SIGBUS). The file is created with mode 0600 for its owner, and no
//! code of this crate ever truncates one.

// ADR 30: SIGBUS is not caught.

#![allow(unsafe_code)]

use std::fs::File;
use std::{io, slice};

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use crate::file::header::{
    HEADER_BYTES, HEARD_AT, ORDERS_AT, PROCESSES, PROCESSES_AT, PROFILES_AT, ProcessEntry,
    SAID_AT, SHARED_AT, Shared,
};
use crate::file::heard::Heard;
use crate::file::orders::{MOST_ORDERS, OrderEntry};
use crate::file::profile::ProfileEntry;
use crate::file::said::{ENTRIES, Entry};
use crate::leases::set::{self, LeasesShared, SET_ENTRIES, Set};
use crate::slot::{LINE_SLOTS, Line, Slot};
use crate::slots::Slots;

/// A part of the header that processes change while they use the table.
///
/// # Safety
///
/// It is made of atomics alone. (Padding after them is never read.)
unsafe trait HeaderPart {
    /// Where in the header it lies.
    const AT: usize;
}

// SAFETY: its fields are atomics, or structures of atomics.
unsafe impl HeaderPart for Shared {
    const AT: usize = SHARED_AT;
}

// SAFETY: a checked entry is made of atomics.
unsafe impl HeaderPart for [Entry; ENTRIES] {
    const AT: usize = SAID_AT;
}

// SAFETY: the fields of an entry are atomics.
unsafe impl HeaderPart for [ProcessEntry; PROCESSES] {
    const AT: usize = PROCESSES_AT;
}

// SAFETY: a checked entry is made of atomics.
unsafe impl HeaderPart for [ProfileEntry; PROCESSES] {
    const AT: usize = PROFILES_AT;
}

// SAFETY: a checked entry is made of atomics.
unsafe impl HeaderPart for [OrderEntry; MOST_ORDERS] {
    const AT: usize = ORDERS_AT;
}

// SAFETY: its fields are arrays of atomics.
unsafe impl HeaderPart for Heard {
    const AT: usize = HEARD_AT;
}

// SAFETY: its fields are atomics, or structures of atomics.
unsafe impl HeaderPart for LeasesShared {
    const AT: usize = set::SHARED_AT;
}

/// The part of a region after its header.
///
/// # Safety
///
/// It is made of `SLOTS` slots alone.
unsafe trait Slotted {
    /// How many.
    const SLOTS: usize;
}

// SAFETY: an array of slots.
unsafe impl Slotted for Line {
    const SLOTS: usize = LINE_SLOTS;
}

// SAFETY: two arrays of slots.
unsafe impl Slotted for Set {
    const SLOTS: usize = 2 * SET_ENTRIES;
}

/// A mapping of a header of `HEADER` bytes and the slots after it.
#[derive(Debug)]
pub(crate) struct Region<const HEADER: usize = HEADER_BYTES> {
    map: MmapRaw,
    slots: Slots,
}

impl<const HEADER: usize> Region<HEADER> {
    /// Maps a file that holds the header and `slots` slots.
    pub(crate) fn map(file: &File, slots: Slots) -> io::Result<Self> {
        Self::new(MmapOptions::new().len(Self::bytes(slots)?).map_raw(file)?, slots)
    }

    /// Memory of this process alone, all zero.
    pub(crate) fn in_memory(slots: Slots) -> io::Result<Self> {
        Self::new(MmapMut::map_anon(Self::bytes(slots)?)?.into(), slots)
    }

    fn new(map: MmapRaw, slots: Slots) -> io::Result<Self> {
        #[cfg(not(gcra_model))]
        if !Slot::is_lock_free() {
            let message = "this CPU has no 128-bit compare-exchange (cmpxchg16b on x86-64)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        // The mapping has the length that was asked for. The proofs below rely on that.
        if map.len() != Self::bytes(slots)? {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map, slots })
    }

    fn bytes(slots: Slots) -> io::Result<usize> {
        usize::try_from(HEADER as u64 + slots.bytes())
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// The header fields of a table that change.
    pub(crate) fn shared(&self) -> &Shared {
        self.part()
    }

    /// The header fields of leases that change.
    pub(crate) fn leases_shared(&self) -> &LeasesShared {
        self.part()
    }

    /// The quotas that messages have said for limits.
    pub(crate) fn said(&self) -> &[Entry; ENTRIES] {
        self.part()
    }

    /// The entries of the processes that use the table.
    pub(crate) fn processes(&self) -> &[ProcessEntry; PROCESSES] {
        self.part()
    }

    /// The profiles of those processes.
    pub(crate) fn profiles(&self) -> &[ProfileEntry; PROCESSES] {
        self.part()
    }

    /// The orders about clients.
    pub(crate) fn orders(&self) -> &[OrderEntry; MOST_ORDERS] {
        self.part()
    }

    /// The counts that processes have heard of.
    pub(crate) fn heard(&self) -> &Heard {
        self.part()
    }

    fn part<T: HeaderPart>(&self) -> &T {
        const {
            assert!(cfg!(gcra_model) || T::AT + size_of::<T>() <= HEADER);
            assert!(T::AT.is_multiple_of(align_of::<T>()));
        }
        // SAFETY: `new` checked that the mapping holds the whole header, and the assertion above
        // says that the part ends inside it.
        let part = unsafe { self.map.as_mut_ptr().add(T::AT) }.cast::<T>();
        // SAFETY: the mapping is page aligned and `AT` a multiple of the part's alignment; it
        // lives as long as `self`; the part is made of atomics alone (`HeaderPart`), for which
        // every bit pattern is valid, and all others that change them do so through the same
        // atomics.
        unsafe { &*part }
    }

    pub(crate) fn slots(&self) -> Slots {
        self.slots
    }

    /// The length of the mapping, which is the file's.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        self.after_header()
    }

    #[inline]
    pub(crate) fn sets(&self) -> &[Set] {
        self.after_header()
    }

    #[inline]
    fn after_header<T: Slotted>(&self) -> &[T] {
        const {
            assert!(HEADER.is_multiple_of(align_of::<T>()));
            // The slots of the models have another size, and none lies in a region.
            assert!(cfg!(gcra_model) || size_of::<T>() == T::SLOTS * size_of::<Slot>());
        }
        // SAFETY: `new` checked that the mapping holds the header and, after it, `slots` slots.
        let first = unsafe { self.map.as_mut_ptr().add(HEADER) }.cast::<T>();
        // SAFETY: the mapping is page aligned, and the header's size is a multiple of the
        // alignment; it lives as long as `self`; a line or set is made of atomics alone, for which
        // every bit pattern is valid, and all others that change them do so through the same
        // atomics.
        unsafe { slice::from_raw_parts(first, self.slots.get() as usize / T::SLOTS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_fill_the_mapping_to_its_end() {
        let region = Region::<HEADER_BYTES>::in_memory(Slots::new(64).unwrap()).unwrap();
        assert_eq!(region.sets().len(), 8);
        assert_eq!(region.lines().len(), 16);
        let end = region.lines().as_ptr_range().end.addr();
        assert_eq!(end - region.map.as_ptr().addr(), region.map.len());
        for line in region.lines() {
            assert!(line.slots.iter().all(|slot| slot.load() == crate::slot::Word::EMPTY));
        }
        assert_eq!(region.shared().counters.counted(), crate::counters::Counted::default());
    }
}
