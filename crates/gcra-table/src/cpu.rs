//! Instructions of the CPU that the language cannot express: load 16 bytes at once, and fetch a
//! cache line before it is needed.
//!
//! One of the two files of the crate with unsafe code; the other is `region.rs`.

// ADR 18: A slot is 128 bits and changes whole.

#![allow(unsafe_code)]

#[cfg(not(gcra_model))]
use portable_atomic::{AtomicU128, Ordering};

/// How this CPU loads 16 bytes at once. Where several words are loaded, the CPU is asked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads {
    #[cfg(all(target_arch = "x86_64", not(gcra_model)))]
    has_avx: bool,
}

impl Loads {
    #[inline(always)]
    pub(crate) fn of_this_cpu() -> Self {
        Self {
            #[cfg(all(target_arch = "x86_64", not(gcra_model)))]
            has_avx: std::arch::is_x86_feature_detected!("avx"),
        }
    }

    /// Loads 16 bytes at once, with a relaxed ordering.
    ///
    /// The load of `portable-atomic` calls one of two functions through a pointer, which takes
    /// longer than the load itself; a decision about a new key makes 24 loads.
    #[cfg(not(gcra_model))]
    #[inline(always)]
    pub(crate) fn load(self, word: &AtomicU128) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if self.has_avx {
            let loaded: core::arch::x86_64::__m128i;
            // SAFETY: the pointer comes from a live reference, to 16 bytes that are aligned to 16.
            // Aligned 16-byte loads are atomic on the CPUs with AVX of Intel (SDM volume 3A,
            // 9.1.1) and AMD (APM volume 2, 7.3.2). The crate portable-atomic, whose load this
            // replaces, relies on the same statement for all CPUs with AVX. The compiler assumes
            // nothing about the memory that an asm block reads, so this is the relaxed load that
            // it looks like.
            unsafe {
                core::arch::asm!(
                    "movdqa {loaded}, xmmword ptr [{word}]",
                    loaded = out(xmm_reg) loaded,
                    word = in(reg) word.as_ptr(),
                    options(nostack, preserves_flags, readonly),
                );
            }
            // SAFETY: both types are 16 bytes, and any value of those is valid for both.
            return unsafe { core::mem::transmute::<core::arch::x86_64::__m128i, u128>(loaded) };
        }
        word.load(Ordering::Relaxed)
    }
}

/// Asks the CPU to fetch the cache line of a value that is needed soon. This is a hint: on CPUs
/// other than x86-64 it does nothing.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can observe, and the pointer comes
        // from a live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(all(test, not(gcra_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_loaded_whole() {
        for word in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0011_2233_4455_6677] {
            let word = AtomicU128::new(word);
            prefetch(&word);
            assert_eq!(Loads::of_this_cpu().load(&word), word.load(Ordering::Relaxed));
        }
    }
}
