//! The profile of each process, which the others read: which limits it has, and where its status
//! can be read.
//!
//! As with the [processes](crate::processes), no decision depends on it.

use core::sync::atomic::AtomicU64;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::file::checked::{Checked, Checksum};
use crate::hash::SipHasher;
use crate::time::Time;

/// The profile that a process gives of itself: see [`Table::introduce`](crate::Table::introduce).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Profile {
    /// A digest of the limits that it has in force. Processes with different limits have
    /// different digests.
    pub limits: u64,
    /// Whether the limits come from a file that can be read again.
    pub has_file: bool,
    /// Where it serves its status over HTTP, if it does. The address is the one in the network
    /// namespace of that process.
    pub admin: Option<SocketAddr>,
    /// Until when it may count debts from before a change of its limits that nothing in the table
    /// tells of. [`Time::ZERO`] if there are none.
    pub remembers_until: Time,
}

/// The profile of one process. It is at the same place in its list as the entry of the process.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ProfileEntry {
    /// The number of the attachment; the digest; the flags and the port; the address; the time.
    words: Checked<6>,
    _reserved: [AtomicU64; 1],
}

const _: () = assert!(size_of::<ProfileEntry>() == 64);

/// The flags, above the 16 bits of the port.
const HAS_FILE: u64 = 1 << 16;
const HAS_ADMIN: u64 = 1 << 17;

impl ProfileEntry {
    /// Writes the profile, unless it is there already. `attachment` is the number of the process.
    pub(crate) fn put(&self, hasher: SipHasher, attachment: u32, profile: &Profile) {
        let (checksum, words) = (checksum(hasher), profile.to_words(attachment));
        if self.words.read(checksum) != Some(words) {
            // If another process writes here too, this is done again with the next beat.
            let _ = self.words.write(checksum, words);
        }
    }

    /// The profile of the process with this attachment.
    pub(crate) fn of(&self, hasher: SipHasher, attachment: u32) -> Option<Profile> {
        Profile::from_words(attachment, self.words.read(checksum(hasher))?)
    }
}

fn checksum(hasher: SipHasher) -> Checksum {
    Checksum::new(hasher, b"gcra-table profile")
}

impl Profile {
    fn to_words(self, attachment: u32) -> [u64; 6] {
        let mut flags = if self.has_file { HAS_FILE } else { 0 };
        let mut ip = 0;
        if let Some(admin) = self.admin {
            flags |= HAS_ADMIN | u64::from(admin.port());
            ip = match admin.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            };
        }
        let [low, high] = halves(ip);
        [u64::from(attachment), self.limits, flags, low, high, self.remembers_until.0]
    }

    fn from_words(attachment: u32, words: [u64; 6]) -> Option<Self> {
        let [number, limits, flags, low, high, remembers_until] = words;
        // The profile of the process that had the place before.
        if number != u64::from(attachment) {
            return None;
        }
        let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical();
        let [low, high, ..] = flags.to_le_bytes();
        let port = u16::from_le_bytes([low, high]);
        let admin = (flags & HAS_ADMIN != 0).then(|| SocketAddr::new(ip, port));
        let has_file = flags & HAS_FILE != 0;
        Some(Self { limits, has_file, admin, remembers_until: Time(remembers_until) })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half, and the high half")]
const fn halves(bits: u128) -> [u64; 2] {
    [bits as u64, (bits >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_comes_back_as_it_was_written() {
        let hasher = SipHasher::new(b"0123456789abcdef");
        let entry = ProfileEntry {
            words: Checked::free(),
            _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        assert_eq!(entry.of(hasher, 7), None);
        for admin in [None, Some("127.0.0.1:9101"), Some("[2001:db8::1]:65535"), Some("[::]:0")] {
            let admin = admin.map(|text| text.parse().unwrap());
            for has_file in [false, true] {
                let remembers_until = Time(u64::from(has_file));
                let profile = Profile { limits: u64::MAX - 1, has_file, admin, remembers_until };
                entry.put(hasher, 7, &profile);
                assert_eq!(entry.of(hasher, 7), Some(profile));
                assert_eq!(entry.of(hasher, 8), None, "of another process");
            }
        }
    }
}
