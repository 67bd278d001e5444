//! The handler, which the author of an agent writes: a function from a request to a reply.

use std::future::Future;

use spop_codec::{FrameId, Message, Messages, Notify, Shape};

use crate::reply::{LateReply, Reply};
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
    ///
    /// It is for the program `gcra-spoa`, and may change with each version.
    #[doc(hidden)]
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

/// A handler whose answers take time: `answer` is an async function from a request to its reply.
///
/// Each request [waits](Reply::later) for its reply, and other requests are answered meanwhile. If
/// the reply is not ready in time, nothing is set. A handler that can answer some requests at
/// once, or that has a fallback, calls [`Reply::later`] itself.
///
/// ```
/// use spop_agent::{Agent, LateReply, OwnedRequest, Scope, VarName, async_handler};
///
/// # async fn look_up(_: std::net::IpAddr) -> u32 { 7 }
/// const SCORE: VarName<'_> = VarName::from_static("score");
///
/// async fn score(request: OwnedRequest, mut reply: LateReply) -> LateReply {
///     let check = request.as_request().message(b"check");
///     let ip = check.and_then(|check| check.arg(b"ip")?.as_ip());
///     if let Some(ip) = ip {
///         reply.set_var(Scope::Transaction, SCORE, look_up(ip).await);
///     }
///     reply
/// }
///
/// let agent = Agent::new(async_handler(score));
/// ```
pub fn async_handler<F, A>(answer: F) -> impl Handler
where
    F: Fn(OwnedRequest, LateReply) -> A + Send + Sync + 'static,
    A: Future<Output = LateReply> + Send + 'static,
{
    move |request: &Request<'_>, reply: &mut Reply<'_>| {
        let request = request.to_owned();
        reply.later(|reply| answer(request, reply));
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
    #[doc(hidden)]
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
