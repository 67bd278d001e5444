//! The bytes of a key: equal values give equal bytes, whether HAProxy sends them or an operator
//! writes them.

use gcra_table::KeyHasher;
use gcra_text::embedded::embedded_v4;
use spop_codec::Value;

pub trait KeyWriter {
    fn write(&mut self, bytes: &[u8]);

    /// As [`write`](Self::write), for the lowest 1 to 8 bytes of a word whose others are 0.
    fn write_word(&mut self, word: u64, bytes: u32);
}

impl KeyWriter for KeyHasher {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }

    #[inline(always)]
    fn write_word(&mut self, word: u64, bytes: u32) {
        self.write_word(word, bytes);
    }
}

impl KeyWriter for Vec<u8> {
    fn write(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn write_word(&mut self, word: u64, bytes: u32) {
        self.extend(word.to_le_bytes().iter().take(bytes as usize));
    }
}

/// Writes one part of a key: its type, its length where that varies, and its value. So different
/// lists of parts never write the same bytes.
///
/// An IPv4 address counts as the same in each of its forms.
#[inline(always)]
pub fn write_part(hasher: &mut impl KeyWriter, value: Value<'_>) {
    match value {
        Value::Null => hasher.write_word(0, 1),
        Value::Bool(bool) => hasher.write_word(1 | u64::from(bool) << 8, 2),
        Value::Int32(integer) => write_short(hasher, 2, integer.cast_unsigned()),
        Value::Uint32(integer) => write_short(hasher, 3, integer),
        Value::Int64(integer) => write_long(hasher, 4, integer.cast_unsigned()),
        Value::Uint64(integer) => write_long(hasher, 5, integer),
        Value::Ipv4(ip) => write_short(hasher, 6, u32::from_le_bytes(ip.octets())),
        Value::Ipv6(ip) => match embedded_v4(ip) {
            Some(ip) => write_short(hasher, 6, u32::from_le_bytes(ip.octets())),
            None => {
                let [low, high] = halves(u128::from_le_bytes(ip.octets()));
                write_long(hasher, 7, low);
                hasher.write_word(high, 8);
            }
        },
        Value::String(bytes) => {
            write_long(hasher, 8, bytes.len() as u64);
            hasher.write(bytes);
        }
        Value::Binary(bytes) => {
            write_long(hasher, 9, bytes.len() as u64);
            hasher.write(bytes);
        }
    }
}

/// Writes a type and a value of four bytes.
#[inline(always)]
fn write_short(hasher: &mut impl KeyWriter, kind: u8, value: u32) {
    hasher.write_word(u64::from(kind) | u64::from(value) << 8, 5);
}

/// Writes a type and a value of eight bytes.
#[inline(always)]
fn write_long(hasher: &mut impl KeyWriter, kind: u8, value: u64) {
    hasher.write_word(kind.into(), 1);
    hasher.write_word(value, 8);
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
const fn halves(word: u128) -> [u64; 2] {
    [word as u64, (word >> 64) as u64]
}

/// Writes a string as if it were in lower case.
pub fn write_lowercase(hasher: &mut impl KeyWriter, string: &[u8]) {
    write_long(hasher, 8, string.len() as u64);
    let mut lower = [0; 64];
    for piece in string.chunks(lower.len()) {
        let lower = &mut lower[..piece.len()];
        lower.copy_from_slice(piece);
        lower.make_ascii_lowercase();
        hasher.write(lower);
    }
}

/// Writes, behind an address, that it stands for an override's network of this prefix length. So
/// it is not the key of the policy's own network with the same address.
pub fn write_narrowed(hasher: &mut impl KeyWriter, prefix: u8) {
    // The types of parts are 0 to 9, and 10 is the tag of a limit's name.
    const TAG: u8 = 11;
    hasher.write(&[TAG, prefix]);
}

/// Writes, before a value, that it stands for an arg without a value, as the fallback with this
/// number. So it is not the key of the same value in the arg itself.
pub fn write_fallback(hasher: &mut impl KeyWriter, number: u8) {
    const TAG: u8 = 12;
    hasher.write(&[TAG, number]);
}

/// Writes, behind a string in the own key of a limit, that it stands for all strings that differ
/// only in case. So it is not the key of another limit in which it stands for itself alone.
pub fn write_any_case(hasher: &mut impl KeyWriter) {
    const TAG: u8 = 13;
    hasher.write(&[TAG]);
}
