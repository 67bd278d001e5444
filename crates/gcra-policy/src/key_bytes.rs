//! The bytes of a key: equal values give equal bytes, whether HAProxy sends them or an operator
//! writes them.

use gcra_table::KeyHasher;
use spop_agent::Value;

/// What the bytes of a key are written to.
pub trait KeyWriter {
    fn write(&mut self, bytes: &[u8]);
}

impl KeyWriter for KeyHasher {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }
}

impl KeyWriter for Vec<u8> {
    fn write(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes one part of a key: its type, its length where that varies, and its value. So different
/// lists of parts never write the same bytes.
///
/// An IPv4 address counts as the same in either of its forms.
#[inline(always)]
pub fn write_part(hasher: &mut impl KeyWriter, value: Value<'_>) {
    match value {
        Value::Null => hasher.write(&[0]),
        Value::Bool(bool) => hasher.write(&[1, u8::from(bool)]),
        Value::Int32(integer) => hasher.write(&fixed::<4, 5>(2, integer.to_le_bytes())),
        Value::Uint32(integer) => hasher.write(&fixed::<4, 5>(3, integer.to_le_bytes())),
        Value::Int64(integer) => hasher.write(&fixed::<8, 9>(4, integer.to_le_bytes())),
        Value::Uint64(integer) => hasher.write(&fixed::<8, 9>(5, integer.to_le_bytes())),
        Value::Ipv4(ip) => hasher.write(&fixed::<4, 5>(6, ip.octets())),
        Value::Ipv6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => hasher.write(&fixed::<4, 5>(6, ip.octets())),
            None => hasher.write(&fixed::<16, 17>(7, ip.octets())),
        },
        Value::String(bytes) => {
            hasher.write(&fixed::<8, 9>(8, (bytes.len() as u64).to_le_bytes()));
            hasher.write(bytes);
        }
        Value::Binary(bytes) => {
            hasher.write(&fixed::<8, 9>(9, (bytes.len() as u64).to_le_bytes()));
            hasher.write(bytes);
        }
    }
}

/// Writes a string as if it were in lower case.
pub fn write_lowercase(hasher: &mut impl KeyWriter, string: &[u8]) {
    hasher.write(&fixed::<8, 9>(8, (string.len() as u64).to_le_bytes()));
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

/// A type and its value in one write, because each write to the hasher costs more than its bytes.
#[inline]
fn fixed<const VALUE: usize, const PART: usize>(tag: u8, value: [u8; VALUE]) -> [u8; PART] {
    const { assert!(PART == VALUE + 1) };
    let mut part = [tag; PART];
    part[1..].copy_from_slice(&value);
    part
}
