//! The shapes of requests that were decided in the usual way.

use std::sync::OnceLock;

use spop_agent::Shape;

/// The most shapes that are known. HAProxy has one for each message, and one more if the value is
/// an IPv4 address at one time and an IPv6 address at another.
pub(crate) const MOST_SHAPES: usize = 8;

/// The shapes that were learned since the policies came into force. The first ones stay.
#[derive(Debug, Default)]
pub(crate) struct KnownShapes(pub(crate) [OnceLock<KnownShape>; MOST_SHAPES]);

/// A shape whose requests are all decided by one policy in the usual way.
#[derive(Debug)]
pub(crate) struct KnownShape {
    pub(crate) shape: Shape<Box<[u8]>>,
    /// The index of the policy.
    pub(crate) policy: usize,
    pub(crate) cells: u32,
    /// Whether the key is the value as it is, whatever the policy's settings for keys are.
    pub(crate) is_as_sent: bool,
}
