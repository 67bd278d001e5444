//! Why bytes are not a frame.

use core::fmt;

use crate::status::Status;

/// The most messages that one NOTIFY may have. HAProxy sends those of one event or one group, a
/// few, but sets no bound itself. An agent answers a NOTIFY in one go, so the bound is also one on
/// the time that its other connections wait meanwhile.
pub const MAX_MESSAGES: usize = 64;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum DecodeError {
    /// LENGTH is below 7, the size of a frame without payload.
    TooShort(u32),
    /// LENGTH is above the limit. The first bytes of another protocol (HTTP, TLS) read as such a
    /// LENGTH.
    TooBig {
        /// The frame's LENGTH.
        length: u32,
        /// The limit for LENGTH.
        max_frame_size: u32,
    },
    /// The frame ends inside a field.
    Truncated,
    /// A varint is above 2^64 - 1.
    VarintOverflow,
    /// A value has a type that SPOP does not define (10 to 15).
    ReservedType(u8),
    /// An int32 or uint32 has a value that does not fit its type.
    IntegerOutOfRange,
    /// An action is neither set-var nor unset-var, or has the wrong number of args.
    BadAction,
    /// A scope is not 0 to 4.
    BadScope(u8),
    /// A NOTIFY has more than [`MAX_MESSAGES`].
    TooManyMessages,
    /// A HELLO, DISCONNECT or ACK does not have the FIN flag.
    Fragmented,
    /// A HELLO or DISCONNECT has ids other than 0.
    IdsNotZero,
    /// A key of a HELLO or DISCONNECT is empty.
    EmptyKey,
    /// A key of a HELLO or DISCONNECT has a value of the wrong type.
    WrongType(&'static str),
    /// A HELLO has no `supported-versions` or `version`.
    NoVersion,
    /// A HELLO has no `max-frame-size`.
    NoMaxFrameSize,
    /// A HELLO has no `capabilities`.
    NoCapabilities,
    /// A HELLO offers no version with the major number 2.
    BadVersion,
    /// `max-frame-size` is below 256.
    BadMaxFrameSize(u32),
}

impl DecodeError {
    /// The status of the DISCONNECT that must follow.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::TooBig { .. } | Self::TooManyMessages => Status::TOO_BIG,
            Self::TooShort(_)
            | Self::Truncated
            | Self::VarintOverflow
            | Self::ReservedType(_)
            | Self::IntegerOutOfRange
            | Self::BadAction
            | Self::BadScope(_)
            | Self::IdsNotZero
            | Self::EmptyKey
            | Self::WrongType(_) => Status::INVALID,
            Self::Fragmented => Status::FRAGMENTATION,
            Self::NoVersion => Status::NO_VERSION,
            Self::NoMaxFrameSize => Status::NO_MAX_FRAME_SIZE,
            Self::NoCapabilities => Status::NO_CAPABILITIES,
            Self::BadVersion => Status::BAD_VERSION,
            Self::BadMaxFrameSize(_) => Status::BAD_MAX_FRAME_SIZE,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(length) => {
                write!(f, "a frame claims {length} bytes, but the smallest has 7")
            }
            Self::TooBig { length, max_frame_size } => {
                write!(
                    f,
                    "a frame claims {length} bytes, but at most {max_frame_size} are allowed"
                )
            }
            Self::Truncated => f.write_str("a frame ends inside a field"),
            Self::VarintOverflow => f.write_str("a number is above 2^64 - 1"),
            Self::ReservedType(kind) => {
                write!(f, "a value has type {kind}, which SPOP does not define")
            }
            Self::IntegerOutOfRange => f.write_str("a 32-bit integer needs more than 32 bits"),
            Self::BadAction => f.write_str("an action is not a valid set-var or unset-var"),
            Self::BadScope(scope) => {
                write!(f, "an action has scope {scope}, but scopes are 0 to 4")
            }
            Self::TooManyMessages => write!(
                f,
                "a NOTIFY has more than {MAX_MESSAGES} messages; send fewer for one event or one \
                 group"
            ),
            Self::Fragmented => f.write_str("a HELLO, DISCONNECT or ACK comes in pieces"),
            Self::IdsNotZero => f.write_str("a HELLO or DISCONNECT has ids other than 0"),
            Self::EmptyKey => f.write_str("a HELLO or DISCONNECT has an empty key"),
            Self::WrongType(key) => write!(f, "the value of {key} has the wrong type"),
            Self::NoVersion => f.write_str("a HELLO has no version"),
            Self::NoMaxFrameSize => f.write_str("a HELLO has no max-frame-size"),
            Self::NoCapabilities => f.write_str("a HELLO has no capabilities"),
            Self::BadVersion => f.write_str("a HELLO does not offer version 2.0"),
            Self::BadMaxFrameSize(size) => {
                write!(f, "max-frame-size is {size}, but it must be 256 or more")
            }
        }
    }
}

impl core::error::Error for DecodeError {}
