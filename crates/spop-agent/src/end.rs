//! How a connection ended.

use std::time::Duration;
use std::{fmt, io};

use spop_codec::{ProtocolError, Status};

#[derive(Debug)]
pub(crate) enum End {
    /// The peer closed between two frames, or reset the connection, as HAProxy from 3.1 on
    /// normally does.
    Closed,
    /// The peer closed inside a frame.
    Truncated,
    /// HAProxy sent HAPROXY-DISCONNECT, and the agent has answered it.
    Disconnected(Status),
    /// It was a health check, and the agent has answered it.
    HealthCheck,
    /// Bytes came that are not SPOP, or a frame came at the wrong time.
    Protocol(ProtocolError),
    /// The HELLO, or the rest of a frame, did not come in time.
    TimedOut,
    /// The peer did not read answers for this time.
    Unread(Duration),
    /// The connection needed more memory than was left of the bytes that all connections may keep.
    NoMemory,
    /// The agent stops.
    Stopped,
    Failed(io::Error),
}

/// The end of a connection, for the log.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    /// Whether the peer had sent a HELLO, and so is HAProxy.
    pub(crate) greeted: bool,
}

impl End {
    /// Whether the end is part of normal operation, so that no operator needs to look at it.
    /// HAProxy up to 3.0 also ends normal connections with the statuses "I/O error" and "timeout".
    pub(crate) fn is_ordinary(&self) -> bool {
        match self {
            Self::Closed | Self::HealthCheck | Self::Stopped => true,
            Self::Disconnected(status) => status.code() <= Status::TIMEOUT.code(),
            Self::Truncated
            | Self::Protocol(_)
            | Self::TimedOut
            | Self::Unread(_)
            | Self::NoMemory
            | Self::Failed(_) => false,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by HAProxy"),
            Self::Truncated => f.write_str("closed inside a frame"),
            Self::Disconnected(status) if !self.is_ordinary() => write!(
                f,
                "HAProxy rejected what this agent sent ({status}); this is a bug in the agent, \
                 please report it"
            ),
            Self::Disconnected(status) => write!(f, "HAPROXY-DISCONNECT, {status}"),
            Self::HealthCheck => f.write_str("health check answered"),
            Self::Protocol(error) => write!(f, "{error} ({})", error.status()),
            Self::TimedOut => {
                f.write_str("the HELLO, or the rest of a frame, did not come in time")
            }
            Self::Unread(time) => write!(f, "answers were not read for {} s", time.as_secs()),
            Self::NoMemory => f.write_str(
                "incomplete frames and unread answers of all connections take as much memory as \
                 they may, and this connection needs more",
            ),
            Self::Stopped => f.write_str("the agent is stopping"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // HAProxy from 3.1 on ends connections with a reset. A write sees it as a broken pipe.
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Closed,
            _ => Self::Failed(error),
        }
    }
}

impl From<io::Error> for Box<End> {
    fn from(error: io::Error) -> Self {
        Self::new(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_an_ordinary_end_and_other_failures_are_not() {
        for kind in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionAborted,
        ] {
            assert!(End::from(io::Error::from(kind)).is_ordinary());
        }
        let end = End::from(io::Error::other("no route to host"));
        assert!(!end.is_ordinary());
        assert_eq!(end.to_string(), "no route to host");
    }
}
