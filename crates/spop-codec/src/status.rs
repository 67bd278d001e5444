//! Why a connection ends, in the number that a DISCONNECT carries.

use core::fmt;

/// The status code of a DISCONNECT frame (SPOE.txt section 3.5). Codes without a name pass through
/// as they are.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Status(u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// HAProxy's words for it. A DISCONNECT carries them as its message.
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
    /// The connection failed. Seen in ordinary operation, too.
    IO = 1, "I/O error";
    /// Something took too long. HAProxy up to 3.0 ends idle connections with it.
    TIMEOUT = 2, "a timeout occurred";
    /// A frame is larger than was agreed.
    TOO_BIG = 3, "frame is too big";
    /// A frame is malformed, or not in its place.
    INVALID = 4, "invalid frame received";
    /// The HELLO has no version.
    NO_VERSION = 5, "version value not found";
    /// The HELLO has no max-frame-size.
    NO_MAX_FRAME_SIZE = 6, "max-frame-size value not found";
    /// The HELLO has no capabilities.
    NO_CAPABILITIES = 7, "capabilities value not found";
    /// There is no version that both sides speak.
    BAD_VERSION = 8, "unsupported version";
    /// The max-frame-size is below 256, or above the other side's.
    BAD_MAX_FRAME_SIZE = 9, "max-frame-size too big or too small";
    /// A payload came in several frames, and this side does not take that.
    FRAGMENTATION = 10, "fragmentation not supported";
    /// Fragments of two payloads came mixed.
    INTERLACED = 11, "invalid interlaced frames";
    /// An ACK names a frame that nobody waits for.
    NO_FRAME_ID = 12, "frame-id not found";
    /// Memory or the like ran out.
    RESOURCE = 13, "resource allocation error";
    /// Something else.
    UNKNOWN = 99, "an unknown error occurred";
}

impl Status {
    /// The status of this code.
    #[must_use]
    pub const fn new(code: u32) -> Self {
        Self(code)
    }

    /// Its code.
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
