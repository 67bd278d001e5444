//! The handler, which the author of an agent writes: a function from a request to a reply.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use spop_codec::{
    AckWriter, Actions, BufferFull, FrameId, Message, Messages, Notify, Scope, Shape, Value,
    VarName,
};

use crate::shaped::ShapedNotifies;

/// Answers requests. Any `Fn(&Request, &mut Reply)` is a handler.
///
/// A handler runs in the connection's task and must not wait, because all connections of the
/// worker would wait with it. A handler that must wait replies [`later`](Reply::later).
///
/// Implement the trait itself if requests that arrive together share something (a reading of the
/// clock), or if there is something to start early (fetching memory).
pub trait Handler: Send + Sync + 'static {
    /// The value that the requests of one round share. A round is one read from a connection, the
    /// answers to what it brought, and one write.
    type Round;

    /// The value that [`prepare`](Self::prepare) returns for one request.
    type Prepared;

    /// Called before the first request of a round.
    fn round(&self) -> Self::Round;

    /// Called for up to 32 requests before the first of them is answered.
    fn prepare(&self, round: &mut Self::Round, request: &Request<'_>) -> Self::Prepared;

    /// Answers one request. Variables that are not set in `reply` stay as they are in HAProxy.
    fn answer(
        &self,
        round: &mut Self::Round,
        prepared: Self::Prepared,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    );

    /// Answers requests that have a [`Shape`] which the handler knows, from the
    /// bytes that were read, in fewer steps than as [`Request`]s. By default it answers none.
    ///
    /// It may answer as many as it likes, from the first one on; the others are
    /// [prepared](Self::prepare) and [answered](Self::answer). The answer must be the same. It is
    /// called before a batch of those, on a connection that has had one. A handler learns shapes
    /// from [`Request::shape`].
    #[inline]
    fn answer_shaped(&self, round: &mut Self::Round, notifies: &mut ShapedNotifies<'_, '_>) {
        let _ = (round, notifies);
    }
}

impl<F> Handler for F
where
    F: Fn(&Request<'_>, &mut Reply<'_>) + Send + Sync + 'static,
{
    type Round = ();
    type Prepared = ();

    fn round(&self) {}

    fn prepare(&self, (): &mut (), _: &Request<'_>) {}

    #[inline]
    fn answer(&self, (): &mut (), (): (), request: &Request<'_>, reply: &mut Reply<'_>) {
        self(request, reply);
    }
}

/// One NOTIFY: the messages of an event or a group whose conditions were true.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    notify: Notify<'a>,
    engine_id: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) const fn new(notify: Notify<'a>, engine_id: &'a [u8]) -> Self {
        Self { notify, engine_id }
    }

    /// The ids of the NOTIFY, for a log. They are not unique: HAProxy up to 3.0 counts the streams
    /// of a process, and later versions count those of a connection.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> FrameId {
        self.notify.id
    }

    /// The name of HAProxy's SPOE engine from the HELLO: a UUID of the engine (up to 3.0: of the
    /// engine in one thread), which changes at each reload. Empty if the HELLO had none, or one of
    /// more than 255 bytes.
    #[inline]
    #[must_use]
    pub const fn engine_id(&self) -> &'a [u8] {
        self.engine_id
    }

    /// The messages, in the order of HAProxy's configuration. There can be none.
    #[inline]
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        self.notify.messages()
    }

    /// The shape of the request, if it has one message with one arg, whose value is an address or
    /// a string: for [`Handler::answer_shaped`].
    #[must_use]
    pub fn shape(&self) -> Option<Shape<&'a [u8]>> {
        self.notify.shape()
    }

    /// How many bytes a copy of the request takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.notify.bytes().len() + self.engine_id.len()
    }

    /// How many messages it has besides the first.
    #[inline]
    pub(crate) fn more_messages(&self) -> usize {
        self.messages().len().saturating_sub(1)
    }

    /// The same request with a copy of its messages.
    #[must_use]
    pub fn to_owned(&self) -> OwnedRequest {
        OwnedRequest {
            id: self.notify.id,
            messages: self.notify.messages().len(),
            bytes: self.notify.bytes().into(),
            engine_id: self.engine_id.into(),
        }
    }

    /// The first message with this name.
    #[must_use]
    pub fn message(&self, name: &[u8]) -> Option<Message<'a>> {
        self.messages().find(|message| message.name == name)
    }
}

/// A request with a copy of its messages, for a handler that replies [`later`](Reply::later).
#[derive(Clone, Debug)]
pub struct OwnedRequest {
    id: FrameId,
    messages: usize,
    bytes: Box<[u8]>,
    engine_id: Box<[u8]>,
}

impl OwnedRequest {
    /// The request.
    #[must_use]
    pub fn as_request(&self) -> Request<'_> {
        let notify = Notify::from_kept(self.id, self.messages, &self.bytes);
        Request { notify, engine_id: &self.engine_id }
    }
}

/// The ACK that is being written.
///
/// The full name of a variable in HAProxy is `scope.prefix.name`. The prefix comes from HAProxy's
/// `option var-prefix`, and the agent does not know it. If the full name has more than 63
/// characters, HAProxy silently drops the variable.
pub struct Reply<'a> {
    ack: AckWriter<'a>,
    id: FrameId,
    limit: u32,
    /// It belongs to the caller, so that a panic of the handler does not drop it.
    later: &'a mut Option<LateFuture>,
}

pub(crate) type LateFuture = Pin<Box<dyn Future<Output = LateReply> + Send>>;

impl<'a> Reply<'a> {
    /// A reply to the NOTIFY with these ids, whose LENGTH is at most `limit`; `None` if `out` is
    /// too short for an empty one. The future of a late reply is put into `later`.
    #[inline]
    pub(crate) fn new(
        out: &'a mut [u8],
        id: FrameId,
        limit: u32,
        later: &'a mut Option<LateFuture>,
    ) -> Option<Self> {
        let ack = AckWriter::new(out, id, limit).ok()?;
        Some(Self { ack, id, limit, later })
    }

    /// Ends the ACK. Returns its length.
    #[inline]
    pub(crate) fn finish(self) -> usize {
        self.ack.finish()
    }

    /// Sets a variable. If a name is set twice, its last value counts.
    ///
    /// # Errors
    ///
    /// The ACK would become larger than [`max_ack_size`](spop_codec::Limits::max_ack_size), or
    /// larger than HAProxy accepts. It stays as it was.
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

    /// Appends actions that were encoded earlier: for an answer that is given many times.
    ///
    /// # Errors
    ///
    /// As [`set_var`](Self::set_var).
    #[inline]
    pub fn append(&mut self, actions: &Actions) -> Result<(), BufferFull> {
        self.ack.append(actions)
    }

    /// Removes everything that was set, and the late reply.
    pub fn clear(&mut self) {
        self.ack.clear();
        *self.later = None;
    }

    /// Replies later, for handlers that must wait: what the future returns is sent in place of
    /// this reply as soon as it is ready. Other requests are answered meanwhile.
    ///
    /// This reply, as far as it was set, is the fallback. It is sent if the future takes longer
    /// than [`Agent::deadline`](crate::Agent::deadline), if it panics, or if the connection ends
    /// cleanly in the meantime. It is sent at once if there is no memory to wait in
    /// ([`Agent::max_buffered_bytes`](crate::Agent::max_buffered_bytes)). If HAProxy closes the
    /// connection, the future is dropped. A panic while it is dropped is caught and counted.
    ///
    /// At most [`Agent::max_in_flight`](crate::Agent::max_in_flight) requests of a connection wait
    /// for late replies. When this many wait, no other request of the connection is answered, and
    /// at most 16 KiB more are read from it. (If HAProxy has sent more than that and then closes,
    /// the agent notices when the deadlines have passed.)
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

/// A late reply: see [`Reply::later`]. It is empty at first, whatever was set in the [`Reply`].
#[derive(Debug)]
pub struct LateReply {
    id: FrameId,
    limit: u32,
    /// The ACK so far; no bytes before the first action.
    ack: Vec<u8>,
}

impl LateReply {
    /// Sets a variable. If a name is set twice, its last value counts.
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

    /// Removes everything that was set.
    pub fn clear(&mut self) {
        self.ack.clear();
    }

    /// The ACK.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.ack.is_empty() {
            // This cannot fail, because an empty ACK fits every limit.
            let _ = self.write(0, |_| Ok(()));
        }
        self.ack
    }

    /// Writes an action that has this many bytes.
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
