//! The memory of a table: a mapped file, seen as its shared header fields and its lines.
//!
//! The only file of the project with unsafe code. It hands out references to atomics, never bytes
//! and never anything exclusive.
//!
//! What no code can prove: that nobody truncates the file while it is mapped (a touch behind its
//! end is a SIGBUS). The file is created with mode 0600 for its owner, and no command of ours ever
//! truncates one.
#![allow(unsafe_code)]

use std::fs::File;
use std::{io, slice};

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use crate::header::{
    HEADER_BYTES, PROCESSES, PROCESSES_AT, ProcessEntry, REGISTER_AT, SHARED_AT, Shared,
};
use crate::register::{ENTRIES, Entry};
use crate::slot::{LINE_SLOTS, Line, Slots};
#[cfg(not(gcra_model))]
use crate::sync::{AtomicU128, Ordering};

/// A mapping of the header and the lines after it.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
    slots: Slots,
}

impl Region {
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
        if !crate::slot::Slot::is_lock_free() {
            let message = "this CPU has no 128-bit compare-exchange (cmpxchg16b on x86-64)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        // The mapping is as long as was asked for; the proofs below rest on it.
        if map.len() != Self::bytes(slots)? {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map, slots })
    }

    fn bytes(slots: Slots) -> io::Result<usize> {
        usize::try_from(HEADER_BYTES as u64 + slots.bytes())
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// The header fields that change.
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: `new` checked that the mapping holds the whole header, and a constant assertion
        // says that `Shared` at `SHARED_AT` ends inside it.
        let shared = unsafe { self.map.as_mut_ptr().add(SHARED_AT) }.cast::<Shared>();
        // SAFETY: the mapping is page aligned and `SHARED_AT` a multiple of `Shared`'s alignment;
        // it lives as long as `self`; `Shared` is made of atomics alone, for which every
        // bit pattern is valid, and everyone else who changes them does so through the
        // same atomics.
        unsafe { &*shared }
    }

    /// The numbers that limits have and have had.
    pub(crate) fn register(&self) -> &[Entry; ENTRIES] {
        // SAFETY: `new` checked that the mapping holds the whole header, and a constant assertion
        // says that the entries at `REGISTER_AT` end inside it.
        let entries = unsafe { self.map.as_mut_ptr().add(REGISTER_AT) }.cast::<[Entry; ENTRIES]>();
        // SAFETY: the mapping is page aligned and `REGISTER_AT` a multiple of an entry's
        // alignment; it lives as long as `self`; an entry is made of atomics alone, for
        // which every bit pattern is valid, and everyone else who changes them does so
        // through the same atomics.
        unsafe { &*entries }
    }

    /// The entries of the processes that use the table.
    pub(crate) fn processes(&self) -> &[ProcessEntry; PROCESSES] {
        // SAFETY: `new` checked that the mapping holds the whole header, and a constant assertion
        // says that the entries at `PROCESSES_AT` end inside it.
        let processes =
            unsafe { self.map.as_mut_ptr().add(PROCESSES_AT) }.cast::<[ProcessEntry; PROCESSES]>();
        // SAFETY: the mapping is page aligned and `PROCESSES_AT` a multiple of an entry's
        // alignment; it lives as long as `self`; an entry is made of atomics alone, for which
        // every bit pattern is valid (its last bytes are padding, which is never read), and
        // everyone else who changes them does so through the same atomics.
        unsafe { &*processes }
    }

    pub(crate) fn slots(&self) -> Slots {
        self.slots
    }

    /// The length of the mapping, which is the file's.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// All lines of the table.
    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: `new` checked that the mapping holds the header and, after it, `slots` slots.
        let first = unsafe { self.map.as_mut_ptr().add(HEADER_BYTES) }.cast::<Line>();
        // SAFETY: the mapping is page aligned, as is the header's size, so lines of 64 bytes are
        // aligned; it lives as long as `self`; a line is made of atomics alone, for which
        // every bit pattern is valid, and everyone else who changes them does so through
        // the same atomics.
        unsafe { slice::from_raw_parts(first, self.slots.get() as usize / LINE_SLOTS) }
    }
}

/// Loads a slot's word whole. (The library's own load goes through a pointer to one of two
/// functions, which takes longer than the load, and a key that is new needs 24 of them.)
#[cfg(not(gcra_model))]
#[inline(always)]
pub(crate) fn load(word: &AtomicU128) -> u128 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        let loaded: core::arch::x86_64::__m128i;
        // SAFETY: the pointer is a live reference's, to 16 bytes that are aligned to 16. Aligned
        // 16-byte loads are atomic on the CPUs with AVX of Intel (SDM volume 3A, 9.1.1)
        // and AMD (APM volume 2, 7.3.2), and portable-atomic, whose load this stands for,
        // takes it so for all. The compiler knows nothing of what an asm block reads, so this is
        // the relaxed load that it looks like.
        unsafe {
            core::arch::asm!(
                "movdqa {loaded}, xmmword ptr [{word}]",
                loaded = out(xmm_reg) loaded,
                word = in(reg) word.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        // SAFETY: both are 16 bytes of any value.
        return unsafe { core::mem::transmute::<core::arch::x86_64::__m128i, u128>(loaded) };
    }
    word.load(Ordering::Relaxed)
}

/// Asks the CPU to fetch a line that will be needed soon. A hint: on other CPUs than x86-64 it
/// does nothing.
#[inline]
pub(crate) fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing as far as the program can tell, and the pointer is a
        // live reference's.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_fill_the_mapping_to_its_end() {
        let region = Region::in_memory(Slots::new(64).unwrap()).unwrap();
        assert_eq!(region.lines().len(), 16);
        let end = region.lines().as_ptr_range().end.addr();
        assert_eq!(end - region.map.as_ptr().addr(), region.map.len());
        for line in region.lines() {
            prefetch(line);
            assert!(line.slots.iter().all(|slot| slot.load() == crate::slot::Word::EMPTY));
        }
        assert_eq!(region.shared().counters.0.counted().evictions, crate::Evictions::default());
    }
}
