//! The status codes of DISCONNECT frames.

use core::fmt;

/// The status code of a DISCONNECT frame (SPOE.txt section 3.5). It can hold codes that have no
/// name here.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Status(u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// HAProxy's words for the status, for the message of a DISCONNECT.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "an unknown error occurred",
                }
            }
        }
    };
}

statuses! {
    /// The ordinary end.
    NORMAL = 0, "normal";
    /// The connection failed. HAProxy also sends it in normal operation.
    IO = 1, "I/O error";
    /// Something took too long. HAProxy up to 3.0 also ends idle connections with it.
    TIMEOUT = 2, "a timeout occurred";
    /// A frame is larger than was agreed.
    TOO_BIG = 3, "frame is too big";
    /// A frame is malformed, or came at the wrong time.
    INVALID = 4, "invalid frame received";
    /// The HELLO has no version.
    NO_VERSION = 5, "version value not found";
    /// The HELLO has no max-frame-size.
    NO_MAX_FRAME_SIZE = 6, "max-frame-size value not found";
    /// The HELLO has no capabilities.
    NO_CAPABILITIES = 7, "capabilities value not found";
    /// The sides have no version in common.
    BAD_VERSION = 8, "unsupported version";
    /// The max-frame-size is below 256, or above the other side's.
    BAD_MAX_FRAME_SIZE = 9, "max-frame-size too big or too small";
    /// A payload came in several frames, which this side does not support.
    FRAGMENTATION = 10, "fragmentation not supported";
    /// Another frame came between the pieces of a payload.
    INTERLACED = 11, "invalid interlaced frames";
    /// An ACK has ids that belong to no open NOTIFY.
    NO_FRAME_ID = 12, "frame-id not found";
    /// Memory or another resource ran out.
    RESOURCE = 13, "resource allocation error";
    /// Any other error.
    UNKNOWN = 99, "an unknown error occurred";
}

impl Status {
    /// The status with this code.
    #[must_use]
    pub const fn new(code: u32) -> Self {
        Self(code)
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}, {}", self.0, self.text())
    }
}
