//! What an author writes: from a request to a reply.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use spop_codec::{
    AckWriter, Actions, BufferFull, FrameId, Message, Messages, Notify, Scope, Value, VarName,
};

/// Answers requests. Any `Fn(&Request, &mut Reply)` is one.
///
/// It runs in the connection's task, and must not wait: all connections of the worker wait with
/// it. What has to be waited for is answered [`later`](Reply::later).
///
/// Implement the trait itself when requests that arrive together have something in common (a
/// reading of the clock), or when there is something to start early (fetching memory, see
/// [`prepare`](Self::prepare)).
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
    engine_id: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) const fn new(notify: Notify<'a>, engine_id: &'a [u8]) -> Self {
        Self { notify, engine_id }
    }

    /// What HAProxy calls this NOTIFY, for a log. It repeats: up to 3.0 the stream's number counts
    /// the streams of a process, later those of a connection.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> FrameId {
        self.notify.id
    }

    /// The name that HAProxy's SPOE engine gave itself in the HELLO: a UUID of the engine, or up
    /// to 3.0 of the engine in one thread. New at each reload. Empty where there was none, or
    /// one of more than 255 bytes.
    #[inline]
    #[must_use]
    pub const fn engine_id(&self) -> &'a [u8] {
        self.engine_id
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
/// A variable's full name in HAProxy is `scope.prefix.name`; the prefix is set by `option
/// var-prefix` and the agent can't see it. Together they may have 63 characters at most, or
/// HAProxy drops the variable without a word.
pub struct Reply<'a> {
    ack: AckWriter<'a>,
    id: FrameId,
    limit: u32,
    /// The caller's, and outlives a panic of the handler.
    later: &'a mut Option<LateAnswer>,
}

/// What becomes of a reply that is given later.
pub(crate) type LateAnswer = Pin<Box<dyn Future<Output = LateReply> + Send>>;

impl<'a> Reply<'a> {
    /// A reply to the NOTIFY of this id, of at most `limit` bytes; `None` when `out` has no room
    /// for an empty one. The future that will write another in its place goes into `later`.
    #[inline]
    pub(crate) fn new(
        out: &'a mut [u8],
        id: FrameId,
        limit: u32,
        later: &'a mut Option<LateAnswer>,
    ) -> Option<Self> {
        let ack = AckWriter::new(out, id, limit).ok()?;
        Some(Self { ack, id, limit, later })
    }

    /// The bytes of the ACK.
    #[inline]
    pub(crate) fn finish(self) -> usize {
        self.ack.finish()
    }

    /// Sets a variable. The last value of a name wins.
    ///
    /// # Errors
    ///
    /// The ACK would become larger than [`max_ack_size`](spop_codec::Limits::max_ack_size) or
    /// HAProxy takes; it stays as it was.
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

    /// Sets and unsets what was encoded before: for the answer that is given again and again.
    ///
    /// # Errors
    ///
    /// As [`set_var`](Self::set_var).
    #[inline]
    pub fn append(&mut self, actions: &Actions) -> Result<(), BufferFull> {
        self.ack.append(actions)
    }

    /// Forgets everything that was set so far, and what was to be answered later.
    pub fn clear(&mut self) {
        self.ack.clear();
        *self.later = None;
    }

    /// Answers later, for handlers that must wait: what the future returns is sent in the place of
    /// this reply, as soon as it is ready, whatever else is answered before.
    ///
    /// What was set here is the answer to fall back to: it is sent when the future takes longer
    /// than [`Agent::deadline`](crate::Agent::deadline), when it panics, when the connection
    /// ends in an orderly way meanwhile, and at once when there is no memory to wait in
    /// ([`Agent::max_buffered_bytes`](crate::Agent::max_buffered_bytes)). When HAProxy goes away
    /// the future is dropped; a panic in that is caught and counted, too.
    ///
    /// At most [`Agent::max_in_flight`](crate::Agent::max_in_flight) requests of a connection wait
    /// like this; until one of them is answered no other is, and at most 16 KiB are read from
    /// it. (Where HAProxy has sent more than that and goes away, that is noticed as
    /// the deadlines pass.)
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use spop_agent::{Reply, Request, Scope, VarName};
    ///
    /// # async fn look_up(_: IpAddr) -> u32 { 7 }
    /// const SCORE: VarName<'_> = VarName::from_static("score");
    ///
    /// fn score(request: &Request<'_>, reply: &mut Reply<'_>) {
    ///     let ip = request.message(b"check").and_then(|message| message.arg(b"ip")?.as_ip());
    ///     let Some(ip) = ip else { return };
    ///     reply.later(async move |mut reply| {
    ///         let _ = reply.set_var(Scope::Transaction, SCORE, look_up(ip).await);
    ///         reply
    ///     });
    /// }
    /// ```
    pub fn later<F>(&mut self, answer: impl FnOnce(LateReply) -> F)
    where
        F: Future<Output = LateReply> + Send + 'static,
    {
        let reply = LateReply { id: self.id, limit: self.limit, ack: Vec::new() };
        *self.later = Some(Box::pin(answer(reply)));
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ack, later, .. } = self;
        f.debug_struct("Reply")
            .field("ack", ack)
            .field("later", &later.is_some())
            .finish_non_exhaustive()
    }
}

/// A reply that is given later, see [`Reply::later`]. Empty at first, whatever was set in that.
#[derive(Debug)]
pub struct LateReply {
    id: FrameId,
    limit: u32,
    /// The ACK so far; nothing before the first variable.
    ack: Vec<u8>,
}

impl LateReply {
    /// Sets a variable. The last value of a name wins.
    ///
    /// # Errors
    ///
    /// As [`Reply::set_var`].
    pub fn set_var<'v>(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: impl Into<Value<'v>>,
    ) -> Result<(), BufferFull> {
        let value = value.into();
        self.write(AckWriter::set_var_size(name, &value), |ack| ack.set_var(scope, name, value))
    }

    /// Unsets a variable.
    ///
    /// # Errors
    ///
    /// As [`Reply::set_var`].
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        self.write(AckWriter::unset_var_size(name), |ack| ack.unset_var(scope, name))
    }

    /// Forgets everything that was set so far.
    pub fn clear(&mut self) {
        self.ack.clear();
    }

    /// The ACK.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.ack.is_empty() {
            // Fails in no other way than by answering less, and it can't: an empty ACK fits every
            // limit.
            let _ = self.write(0, |_| Ok(()));
        }
        self.ack
    }

    /// Writes an action of this many bytes.
    fn write(
        &mut self,
        bytes: usize,
        action: impl FnOnce(&mut AckWriter<'_>) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        let written = self.ack.len();
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX).saturating_add(4);
        let space = AckWriter::HEADER_MAX.max(written).saturating_add(bytes);
        self.ack.resize(space.min(limit), 0);
        let mut ack = AckWriter::resume(&mut self.ack, self.id, self.limit, written)?;
        let outcome = action(&mut ack);
        let written = ack.finish();
        self.ack.truncate(written);
        outcome
    }
}
