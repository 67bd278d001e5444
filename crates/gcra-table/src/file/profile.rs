//! The profile of each process, which the others read: which limits it has, and where its status
//! can be read.
//!
//! As with the [processes](crate::processes), no decision depends on it.

use core::sync::atomic::AtomicU64;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::file::checked::{Checked, Checksum};
use crate::hash::SipHasher;

/// The profile that a process gives of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Profile {
    /// A digest of the limits that it has in force. Processes with different limits have
    /// different digests.
    pub limits: u64,
    /// Whether the limits come from a file that can be read again.
    pub has_file: bool,
    /// A number that stands for the salt by which it names clients; 0 without one.
    pub salt: u32,
    /// Where it serves its status over HTTP, if it does. The address is the one in the network
    /// namespace of that process.
    pub admin: Option<SocketAddr>,
}

/// The profile of one process. It is at the same place in its list as the entry of the process.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ProfileEntry {
    /// The number of the attachment; the digest; the flags and the port; the address.
    words: Checked<5>,
    _reserved: [AtomicU64; 2],
}

const _: () = assert!(cfg!(gcra_model) || size_of::<ProfileEntry>() == 64);

/// The flags, above the 16 bits of the port. Above them, in the upper half, is the salt.
const HAS_FILE: u64 = 1 << 16;
const HAS_ADMIN: u64 = 1 << 17;

impl ProfileEntry {
    /// Writes the profile, unless it is there already. `attachment` is the number of the process.
    pub(crate) fn put(&self, hasher: SipHasher, attachment: u32, profile: &Profile) {
        let (checksum, words) = (checksum(hasher), profile.to_words(attachment));
        if self.words.read(checksum) != Some(words) {
            // If another process writes here too, this is done again with the next beat.
            let _ = self.words.write(checksum, self.words.seen(), words);
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
    fn to_words(self, attachment: u32) -> [u64; 5] {
        let mut flags = if self.has_file { HAS_FILE } else { 0 };
        flags |= u64::from(self.salt) << 32;
        let mut ip = 0;
        if let Some(admin) = self.admin {
            flags |= HAS_ADMIN | u64::from(admin.port());
            ip = match admin.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            };
        }
        let [low, high] = halves(ip);
        [u64::from(attachment), self.limits, flags, low, high]
    }

    fn from_words(attachment: u32, words: [u64; 5]) -> Option<Self> {
        let [number, limits, flags, low, high] = words;
        // The profile of the process that had the place before.
        if number != u64::from(attachment) {
            return None;
        }
        let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical();
        let [low, high, _, _, salt @ ..] = flags.to_le_bytes();
        let (port, salt) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(salt));
        let admin = (flags & HAS_ADMIN != 0).then(|| SocketAddr::new(ip, port));
        let has_file = flags & HAS_FILE != 0;
        Some(Self { limits, has_file, salt, admin })
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
            for (has_file, salt) in [(false, u32::MAX), (true, 0), (true, 1 << 31)] {
                let profile = Profile { limits: u64::MAX - 1, has_file, salt, admin };
                entry.put(hasher, 7, &profile);
                assert_eq!(entry.of(hasher, 7), Some(profile));
                assert_eq!(entry.of(hasher, 8), None, "of another process");
            }
        }
    }
}
