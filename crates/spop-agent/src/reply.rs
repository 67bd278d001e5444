//! The reply that a handler writes, at once or later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use spop_codec::{
    AckWriter, Actions, BufferFull, FrameId, Scope, SetVar, TextWriter, Value, VarName,
};

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
    aside: &'a mut Aside,
}

/// The outcome of a reply besides its ACK.
#[derive(Default)]
pub(crate) struct Aside {
    pub(crate) later: Option<LateFuture>,
    /// How many actions the ACK had no space for.
    pub(crate) left_out: u64,
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

impl Aside {
    #[cold]
    fn leave_out(&mut self) {
        self.left_out += 1;
    }
}

pub(crate) type LateFuture = Pin<Box<dyn Future<Output = LateReply> + Send>>;

impl<'a> Reply<'a> {
    /// A reply to the NOTIFY with these ids, whose LENGTH is at most `limit`; `None` if `out` is
    /// too short for an empty one. The future of a late reply is put into `aside`.
    #[inline]
    pub(crate) fn new(
        out: &'a mut [u8],
        id: FrameId,
        limit: u32,
        aside: &'a mut Aside,
    ) -> Option<Self> {
        let ack = AckWriter::new(out, id, limit).ok()?;
        Some(Self::of(ack, id, limit, aside))
    }

    /// The reply that continues an ACK.
    #[inline]
    pub(crate) const fn of(
        ack: AckWriter<'a>,
        id: FrameId,
        limit: u32,
        aside: &'a mut Aside,
    ) -> Self {
        Self { ack, id, limit, aside }
    }

    /// Ends the ACK. Returns its length.
    #[inline]
    pub(crate) fn finish(self) -> usize {
        self.ack.finish()
    }

    /// Sets a variable. If a name is set twice, its last value counts.
    ///
    /// A variable is left out if the ACK would become larger than
    /// [`max_ack_size`](spop_codec::Limits::max_ack_size), or larger than HAProxy accepts. It is
    /// counted in [`Snapshot::left_out`](crate::Snapshot::left_out), and the log says so.
    #[inline]
    pub fn set_var<'v>(&mut self, scope: Scope, name: VarName<'_>, value: impl Into<Value<'v>>) {
        if self.ack.set_var(scope, name, value.into()).is_err() {
            self.aside.leave_out();
        }
    }

    /// As [`set_var`](Self::set_var), for a variable that many replies set.
    #[inline(always)]
    pub fn set(&mut self, var: &SetVar, value: Value<'_>) {
        if self.ack.set(var, value).is_err() {
            self.aside.leave_out();
        }
    }

    /// As [`set`](Self::set), to the string that `write` writes, piece by piece.
    #[inline]
    pub fn set_text(
        &mut self,
        var: &SetVar,
        write: impl FnOnce(&mut TextWriter<'_, 'a>) -> Result<(), BufferFull>,
    ) {
        if self.ack.set_text(var, write).is_err() {
            self.aside.leave_out();
        }
    }

    /// Unsets a variable. It is left out as by [`set_var`](Self::set_var).
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) {
        if self.ack.unset_var(scope, name).is_err() {
            self.aside.leave_out();
        }
    }

    /// Appends actions that were encoded earlier: for an answer that is given many times. All or
    /// none of them are left out, as by [`set_var`](Self::set_var).
    #[inline]
    pub fn append(&mut self, actions: &Actions) {
        if self.ack.append(actions).is_err() {
            self.aside.leave_out();
        }
    }

    /// Removes everything that was set, and the late reply.
    pub fn clear(&mut self) {
        self.ack.clear();
        self.aside.later = None;
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
    ///         reply.set_var(Scope::Transaction, SCORE, look_up(ip).await);
    ///         reply
    ///     });
    /// }
    /// ```
    pub fn later<F>(&mut self, answer: impl FnOnce(LateReply) -> F)
    where
        F: Future<Output = LateReply> + Send + 'static,
    {
        let reply = LateReply { id: self.id, limit: self.limit, ack: Vec::new(), left_out: 0 };
        self.aside.later = Some(Box::pin(answer(reply)));
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ack, aside, .. } = self;
        f.debug_struct("Reply")
            .field("ack", ack)
            .field("later", &aside.later.is_some())
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
    /// How many actions it had no space for.
    left_out: u64,
}

impl LateReply {
    /// Sets a variable. If a name is set twice, its last value counts. It is left out as by
    /// [`Reply::set_var`].
    pub fn set_var<'v>(&mut self, scope: Scope, name: VarName<'_>, value: impl Into<Value<'v>>) {
        let value = value.into();
        self.write(AckWriter::set_var_size(name, &value), |ack| ack.set_var(scope, name, value));
    }

    /// As [`set_var`](Self::set_var), for a variable that many replies set.
    pub fn set(&mut self, var: &SetVar, value: Value<'_>) {
        self.write(var.size(&value), |ack| ack.set(var, value));
    }

    /// Unsets a variable. It is left out as by [`Reply::set_var`].
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) {
        self.write(AckWriter::unset_var_size(name), |ack| ack.unset_var(scope, name));
    }

    /// Removes everything that was set.
    pub fn clear(&mut self) {
        self.ack.clear();
    }

    /// The ACK, and how many actions it had no space for.
    pub(crate) fn finish(mut self) -> (Vec<u8>, u64) {
        if self.ack.is_empty() {
            // An empty ACK fits every limit.
            self.write(0, |_| Ok(()));
        }
        (self.ack, self.left_out)
    }

    /// Writes an action that has this many bytes.
    fn write(
        &mut self,
        bytes: usize,
        action: impl FnOnce(&mut AckWriter<'_>) -> Result<(), BufferFull>,
    ) {
        let written = self.ack.len();
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX).saturating_add(4);
        let space = AckWriter::HEADER_MAX.max(written).saturating_add(bytes);
        self.ack.resize(space.min(limit), 0);
        let outcome = AckWriter::resume(&mut self.ack, self.id, self.limit, written)
            .and_then(|mut ack| action(&mut ack).map(|()| ack.finish()));
        self.ack.truncate(outcome.unwrap_or(written));
        self.left_out += u64::from(outcome.is_err());
    }
}
