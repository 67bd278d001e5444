//! What an author writes: from a request to a reply.

use spop_codec::{AckWriter, BufferFull, FrameId, Message, Messages, Notify, Scope, Value, VarName};

/// Answers requests. Any `Fn(&Request, &mut Reply)` is one.
///
/// Implement the trait itself when requests that arrive together have something in common (a reading of the
/// clock), or when there is something to start early (fetching memory, see [`prepare`](Self::prepare)).
pub trait Handler: Send + Sync + 'static {
    /// What the requests of one read have in common.
    type Turn;

    /// What is known of one request before it is answered.
    type Prepared;

    /// Called before the first request of a read.
    fn turn(&self) -> Self::Turn;

    /// Called for a few dozen requests before the first of them is answered.
    fn prepare(&self, turn: &mut Self::Turn, request: &Request<'_>) -> Self::Prepared;

    /// Answers one request. What is not set in `reply` stays as it is in HAProxy.
    fn answer(
        &self,
        turn: &mut Self::Turn,
        prepared: Self::Prepared,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    );
}

impl<F> Handler for F
where
    F: Fn(&Request<'_>, &mut Reply<'_>) + Send + Sync + 'static,
{
    type Turn = ();
    type Prepared = ();

    fn turn(&self) {}

    fn prepare(&self, (): &mut (), _: &Request<'_>) {}

    #[inline]
    fn answer(&self, (): &mut (), (): (), request: &Request<'_>, reply: &mut Reply<'_>) {
        self(request, reply);
    }
}

/// One NOTIFY: all messages of an event, or of a group, whose conditions held.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    notify: Notify<'a>,
}

impl<'a> Request<'a> {
    pub(crate) const fn new(notify: Notify<'a>) -> Self {
        Self { notify }
    }

    pub(crate) const fn id(&self) -> FrameId {
        self.notify.id
    }

    /// The messages, in the order of HAProxy's configuration. There may be none.
    #[inline]
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        self.notify.messages()
    }

    /// The first message of this name.
    #[must_use]
    pub fn message(&self, name: &[u8]) -> Option<Message<'a>> {
        self.messages().find(|message| message.name == name)
    }
}

/// The ACK that is being written.
///
/// A variable's full name in HAProxy is `scope.prefix.name`; the prefix is set by `option var-prefix` and the agent can't
/// see it. Together they may have 63 characters at most, or HAProxy drops the variable without a word.
#[derive(Debug)]
pub struct Reply<'a> {
    ack: AckWriter<'a>,
}

impl<'a> Reply<'a> {
    pub(crate) const fn new(ack: AckWriter<'a>) -> Self {
        Self { ack }
    }

    pub(crate) fn finish(self) -> usize {
        self.ack.finish()
    }

    /// Sets a variable. The last value of a name wins.
    ///
    /// # Errors
    ///
    /// The ACK would become larger than [`max_ack_size`](spop_codec::Limits::max_ack_size) or HAProxy takes; it stays as
    /// it was.
    #[inline]
    pub fn set_var<'v>(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: impl Into<Value<'v>>,
    ) -> Result<(), BufferFull> {
        self.ack.set_var(scope, name, value.into())
    }

    /// Unsets a variable.
    ///
    /// # Errors
    ///
    /// As [`set_var`](Self::set_var).
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        self.ack.unset_var(scope, name)
    }

    /// Forgets everything that was set so far.
    pub fn clear(&mut self) {
        self.ack.clear();
    }
}
