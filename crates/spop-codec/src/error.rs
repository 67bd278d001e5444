//! What can be wrong with bytes.

use core::fmt;

use crate::status::Status;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum DecodeError {
    /// LENGTH is below 7, the size of a frame without payload.
    TooShort(u32),
    /// LENGTH is above what was agreed. A stranger's first bytes (HTTP, TLS) read as a LENGTH like
    /// this.
    TooBig {
        /// What the frame claims.
        length: u32,
        /// What it may have.
        max_frame_size: u32,
    },
    /// The frame ends inside a field.
    Truncated,
    /// A varint is above 2^64 - 1.
    VarintOverflow,
    /// Typed data of a type that SPOP does not define (10 to 15).
    ReservedType(u8),
    /// An int32 or uint32 that does not fit its type.
    IntegerOutOfRange,
    /// An action other than set-var and unset-var, or with the wrong number of args.
    BadAction,
    /// A scope other than 0 to 4.
    BadScope(u8),
    /// A HELLO or DISCONNECT without the FIN flag.
    Fragmented,
    /// A HELLO or DISCONNECT whose ids are not 0.
    IdsNotZero,
    /// A key of a HELLO or DISCONNECT is empty.
    EmptyKey,
    /// A key of a HELLO or DISCONNECT has a value of the wrong type.
    WrongType(&'static str),
    /// A HELLO without the version key.
    NoVersion,
    /// A HELLO without `max-frame-size`.
    NoMaxFrameSize,
    /// A HELLO without `capabilities`.
    NoCapabilities,
    /// No version of major 2 is offered.
    BadVersion,
    /// `max-frame-size` below 256.
    BadMaxFrameSize(u32),
}

impl DecodeError {
    /// The code to put into the DISCONNECT that must follow.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::TooBig { .. } => Status::TOO_BIG,
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
                write!(f, "a frame claims {length} bytes, and the smallest has 7")
            }
            Self::TooBig { length, max_frame_size } => {
                write!(f, "a frame claims {length} bytes, and {max_frame_size} are allowed")
            }
            Self::Truncated => f.write_str("a frame ends inside a field"),
            Self::VarintOverflow => f.write_str("a number is above 2^64 - 1"),
            Self::ReservedType(kind) => {
                write!(f, "a value is of type {kind}, which is not defined")
            }
            Self::IntegerOutOfRange => f.write_str("a 32-bit integer needs more than 32 bits"),
            Self::BadAction => f.write_str("an action is neither set-var nor unset-var"),
            Self::BadScope(scope) => write!(f, "an action has scope {scope}, and the last is 4"),
            Self::Fragmented => f.write_str("a frame comes in pieces that may not"),
            Self::IdsNotZero => f.write_str("a HELLO or DISCONNECT has ids other than 0"),
            Self::EmptyKey => f.write_str("a HELLO or DISCONNECT has an empty key"),
            Self::WrongType(key) => write!(f, "the value of {key} is of the wrong type"),
            Self::NoVersion => f.write_str("a HELLO without a version"),
            Self::NoMaxFrameSize => f.write_str("a HELLO without max-frame-size"),
            Self::NoCapabilities => f.write_str("a HELLO without capabilities"),
            Self::BadVersion => f.write_str("a HELLO that does not offer version 2.0"),
            Self::BadMaxFrameSize(size) => {
                write!(f, "max-frame-size is {size}, and the smallest is 256")
            }
        }
    }
}

impl core::error::Error for DecodeError {}
