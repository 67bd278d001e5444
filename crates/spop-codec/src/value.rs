//! Typed data: the values of args and of variables.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::varint;

/// A value with its type (TYPED-DATA in SPOE.txt section 3.1).
///
/// HAProxy sends null (the sample was not available), booleans, signed 64-bit integers, addresses,
/// strings and binaries. It reads all ten types. Strings are the bytes that a client sent, so they
/// need not be UTF-8.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Value<'a> {
    /// No value: the sample was not available. Setting a variable to null unsets it.
    Null,
    /// True or false.
    Bool(bool),
    /// A signed integer of 32 bits.
    Int32(i32),
    /// An unsigned integer of 32 bits.
    Uint32(u32),
    /// A signed integer of 64 bits. HAProxy turns every integer into one.
    Int64(i64),
    /// An unsigned integer of 64 bits. HAProxy reads 2^63 and above as negative.
    Uint64(u64),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address.
    Ipv6(Ipv6Addr),
    /// A string. It may be empty, and need not be UTF-8.
    String(&'a [u8]),
    /// Bytes that are not text.
    Binary(&'a [u8]),
}

/// The low four bits of a value's first byte are its type. The only flag is bit 4, the value of a
/// boolean. (The picture in SPOE.txt has the two halves the other way round; this is how HAProxy
/// reads them.)
pub(crate) mod kind {
    pub(crate) const NULL: u8 = 0;
    pub(crate) const BOOL: u8 = 1;
    pub(crate) const INT32: u8 = 2;
    pub(crate) const UINT32: u8 = 3;
    pub(crate) const INT64: u8 = 4;
    pub(crate) const UINT64: u8 = 5;
    pub(crate) const IPV4: u8 = 6;
    pub(crate) const IPV6: u8 = 7;
    pub(crate) const STRING: u8 = 8;
    pub(crate) const BINARY: u8 = 9;
    pub(crate) const MASK: u8 = 0x0f;
    pub(crate) const TRUE: u8 = 0x10;
}

impl<'a> Value<'a> {
    /// The text, if it is a string and UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::String(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The bytes, if it is a string or a binary.
    #[must_use]
    pub const fn as_bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::String(bytes) | Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// True or false, if it is a boolean.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The number, if it is an integer of any type.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::Int32(integer) => Some(integer.into()),
            Self::Uint32(integer) => Some(integer.into()),
            Self::Int64(integer) => Some(integer.into()),
            Self::Uint64(integer) => Some(integer.into()),
            _ => None,
        }
    }

    /// The address, if it is one of either family.
    #[must_use]
    pub const fn as_ip(&self) -> Option<IpAddr> {
        match *self {
            Self::Ipv4(ip) => Some(IpAddr::V4(ip)),
            Self::Ipv6(ip) => Some(IpAddr::V6(ip)),
            _ => None,
        }
    }
}

impl<'a> Reader<'a> {
    /// Reads a value with its type.
    // Always inlined, as are the iterators over values. A `Value` that is returned through memory
    // is written in small pieces and read back in larger ones. So store-to-load forwarding fails,
    // and the read waits for the writes.
    #[inline(always)]
    pub(crate) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let byte = self.u8()?;
        let out_of_range = |_| DecodeError::IntegerOutOfRange;
        Ok(match byte & kind::MASK {
            kind::NULL => Value::Null,
            kind::BOOL => Value::Bool(byte & kind::TRUE != 0),
            kind::INT32 => {
                Value::Int32(self.varint()?.cast_signed().try_into().map_err(out_of_range)?)
            }
            kind::UINT32 => Value::Uint32(self.varint()?.try_into().map_err(out_of_range)?),
            kind::INT64 => Value::Int64(self.varint()?.cast_signed()),
            kind::UINT64 => Value::Uint64(self.varint()?),
            kind::IPV4 => Value::Ipv4(self.array::<4>()?.into()),
            kind::IPV6 => Value::Ipv6(self.array::<16>()?.into()),
            kind::STRING => Value::String(self.string()?),
            kind::BINARY => Value::Binary(self.string()?),
            reserved => return Err(DecodeError::ReservedType(reserved)),
        })
    }
}

impl Value<'_> {
    /// How many bytes the value takes in a frame, with its type.
    pub(crate) const fn encoded_length(&self) -> usize {
        1 + match *self {
            Self::Null | Self::Bool(_) => 0,
            Self::Int32(integer) => varint::length((integer as i64).cast_unsigned()),
            Self::Uint32(integer) => varint::length(integer as u64),
            Self::Int64(integer) => varint::length(integer.cast_unsigned()),
            Self::Uint64(integer) => varint::length(integer),
            Self::Ipv4(_) => 4,
            Self::Ipv6(_) => 16,
            Self::String(bytes) | Self::Binary(bytes) => {
                varint::length(bytes.len() as u64) + bytes.len()
            }
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(impl From<$type> for Value<'_> {
            #[inline]
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

from! {
    bool => Bool,
    i32 => Int32,
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    Ipv4Addr => Ipv4,
    Ipv6Addr => Ipv6,
}

impl From<IpAddr> for Value<'_> {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::Ipv4(ip),
            IpAddr::V6(ip) => Self::Ipv6(ip),
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    /// A string. (For a `String`, pass `string.as_str()`: this crate does not know the type,
    /// because it works without an allocator.)
    #[inline]
    fn from(string: &'a str) -> Self {
        Self::String(string.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Binary(bytes)
    }
}
