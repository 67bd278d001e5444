//! The same connection for two agents: one answers requests by their shapes, and the other asks
//! about each. Their answers must be the same bytes. Made of any bytes: of random ones by the
//! test, of chosen ones by the fuzz target.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arbitrary::{Result, Unstructured};
use arc_swap::ArcSwap;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::limiter::Limiter;
use gcra_limiter::question::{Question, Unanswerable};
use gcra_limiter::round::Round;
use gcra_limiter::stats::Stats;
use gcra_policy::file::document;
use gcra_table::{ManualClock, Nanos, Slots, Table, Time};
use spop_agent::testing::Streams;
use spop_agent::{Agent, Handler, Reply, Request, ShapedNotifies};
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{FrameId, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Policies that are usual, and such that are not.
const CONFIGURATIONS: [&str; 19] = [
    "[policy.check]\nlimits = \"10/s burst 3\"\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\nkey = [\"ip\"]\nipv6_prefix = 128\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\nipv4_prefix = 24\nipv6_prefix = 48\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\nkey = [\"src\"]\nlowercase = true\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\nmode = \"observe\"\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\n\
     [policy.check-client-ip]\nlimits = \"1/s burst 2\"\n\
     [policy.a]\nmessage = \"m\"\nlimits = \"100/h\"\n",
    "[policy.a]\nmessage = \"check\"\nlimits = \"10/s\"\nwhen = { src = \"one\" }\n\
     [policy.check]\nlimits = \"10/s burst 3\"\n",
    "[policy.check]\nlimits = [\"10/s burst 3\", \"20/m\"]\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\n\
     [policy.check.overrides]\n\"192.0.2.1\" = \"deny\"\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\ncost = \"src\"\n",
    "answer = [\"remaining\", \"reason\"]\n[policy.check]\nlimits = \"10/s burst 3\"\n",
    "scope = \"req\"\n[policy.check]\nlimits = \"3/s\"\n",
    // Texts that stand for typed values, and prefixes of translators.
    "[policy.a]\nmessage = \"check\"\nlimits = \"10/s\"\nwhen = { src = [\"7\", \"true\", \
     \"192.0.2.1\"] }\n[policy.check]\nlimits = \"10/s burst 3\"\n",
    "[policy.check]\nlimits = \"10/s burst 3\"\nlowercase = true\n\
     [policy.check.overrides]\n\"7\" = \"deny\"\n\"0\" = \"9/s\"\n\"2002::/16\" = \"1/s\"\n",
    "nat64 = [\"2001:db8:64::/96\"]\n[policy.check]\nlimits = \"10/s burst 3\"\n",
    "nat64 = [\"2001:db8:64::/96\"]\n[policy.check]\nlimits = \"10/s burst 3\"\n\
     ipv6_prefix = 128\n",
    // Answers with variables, also long ones. (Names of clients differ from table to table.).
    "answer = [\"remaining\", \"reset\", \"ratelimit\", \"reason\", \"would_block\"]\n\
     [policy.check]\nlimits = [\"10/s burst 3\", \"20/m\", { count = 9, window = \"day\" }]\n\
     penalty = { cells = 1, ceiling = \"1m\" }\n\
     [policy.check.overrides]\n\"192.0.2.1\" = \"deny\"\n\"one\" = [\"1/s\", \"900/h\"]\n",
    "answer = [\"headers\", \"ratelimit\", \"ratelimit_policy\", \"limit_name\", \"delay_ms\", \
     \"retry_after\", \"retry_after_ms\", \"limit\", \"policy\"]\nscope = \"req\"\n\
     [policy.check]\nlimits = \"10/s burst 300\"\nmax_delay = \"1s\"\n\
     [policy.check-client-ip]\nmode = \"observe\"\nlimits = \"1/s burst 2\"\n",
    "answer = [\"ratelimit\", \"ratelimit_policy\", \"remaining\"]\n\
     [policy.check]\nlimits = [\
     { rate = \"10/s\", name = \"a-limit-whose-name-is-longer-than-that-of-any\" }, \
     { rate = \"99/m\", name = \"b-limit-whose-name-is-longer-than-that-of-any\" }, \
     { rate = \"99/h\", name = \"c-limit-whose-name-is-longer-than-that-of-any\" }, \
     { rate = \"99/d\", name = \"d-limit-whose-name-is-longer-than-that-of-any\" }]\n",
];

const MESSAGES: [&[u8]; 5] = [b"check", b"check-client-ip", b"m", b"other", b"check\0"];
const ARGS: [&[u8]; 4] = [b"src", b"ip", b"", b"an-arg-whose-name-is-longer-than-usual"];
const STREAMS: [u64; 10] = [0, 1, 127, 239, 240, 2287, 2288, 3_000_000, 1 << 45, u64::MAX];
const FRAMES: [u64; 5] = [1, 2, 127, 128, 240];

/// The event of a read of the peer's next bytes.
enum Step {
    Bytes(Vec<u8>),
    /// So many nanoseconds pass.
    Pass(u64),
    /// Another configuration comes into force.
    Reload(usize),
    /// The work of an agent on its shapes, once a second.
    Beat,
}

/// The configuration and the steps for both agents.
struct Script {
    configuration: usize,
    steps: Vec<Step>,
}

impl Script {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let configuration = u.choose_index(CONFIGURATIONS.len())?;
        let mut out = [0; 512];
        let fields = HelloFields { engine_id: Some("both"), ..HelloFields::default() };
        let length = encode_hello(&mut out, &fields).expect("room");
        let mut steps = vec![Step::Bytes(out[..length].to_vec())];
        let mut bytes = Vec::new();
        while !u.is_empty() {
            match u.arbitrary::<u8>()? {
                // The usual case: some of one shape, and more of them than are read together.
                0..100 => {
                    let (name, arg) = (often(u, &MESSAGES)?, often(u, &ARGS)?);
                    let kind = u.arbitrary::<u8>()? % 3;
                    for _ in 0..u.arbitrary::<u8>()? % 80 {
                        let value = usual_value(u, kind)?;
                        notify(&mut bytes, id(u)?, &[(name, vec![(arg, value)])]);
                    }
                }
                100..180 => {
                    let mut messages = Vec::new();
                    for _ in 0..u.arbitrary::<u8>()? % 4 {
                        let name = often(u, &MESSAGES)?;
                        let mut args = Vec::new();
                        for _ in 0..u.arbitrary::<u8>()? % 3 {
                            args.push((often(u, &ARGS)?, any_value(u)?));
                        }
                        messages.push((name, args));
                    }
                    notify(&mut bytes, id(u)?, &messages);
                }
                180..190 => {
                    // In two pieces, and perhaps with another one between them, which is an error.
                    let begin = bytes.len();
                    let id = FrameId { stream: 1, frame: 1 };
                    let messages = [(&b"check"[..], vec![(&b"ip"[..], usual_value(u, 0)?)])];
                    notify(&mut bytes, id, &messages);
                    bytes[begin + 8] = 0;
                    if u.ratio(1, 2)? {
                        steps.push(Step::Bytes(std::mem::take(&mut bytes)));
                    }
                    if u.ratio(1, 4)? {
                        notify(&mut bytes, id, &messages);
                    }
                    bytes.extend(b"\0\0\0\x07\0\0\0\0\x01\x01\x01");
                }
                190..230 => {
                    let cut = u.choose_index(bytes.len() + 1)?;
                    let rest = bytes.split_off(cut);
                    steps.push(Step::Bytes(bytes));
                    bytes = rest;
                }
                230..245 => steps.push(Step::Pass(1 << (u.arbitrary::<u8>()? % 36))),
                245..250 => steps.push(Step::Reload(u.choose_index(CONFIGURATIONS.len())?)),
                250..253 => steps.push(Step::Beat),
                _ => {
                    if let Some(last) = bytes.last_mut() {
                        *last ^= 1 << (u.arbitrary::<u8>()? % 8);
                    }
                }
            }
        }
        steps.push(Step::Bytes(bytes));
        Ok(Self { configuration, steps })
    }
}

/// The first of these, or any.
fn often(u: &mut Unstructured<'_>, names: &[&'static [u8]]) -> Result<&'static [u8]> {
    if u.ratio(1, 2)? { Ok(names[0]) } else { Ok(*u.choose(names)?) }
}

fn id(u: &mut Unstructured<'_>) -> Result<FrameId> {
    let stream = *u.choose(&STREAMS)?;
    let frame = if u.ratio(7, 8)? { 1 } else { *u.choose(&FRAMES)? };
    Ok(FrameId { stream, frame })
}

fn usual_value(u: &mut Unstructured<'_>, kind: u8) -> Result<Value<'static>> {
    static LONG: [u8; 300] = [b'x'; 300];
    let last = u.arbitrary::<u8>()? % 4;
    Ok(match kind {
        0 => Value::Ipv4([192, 0, 2, last].into()),
        1 => Value::Ipv6(match (last, u.arbitrary::<u8>()? % 4) {
            (0, _) => [0x2001, 0xdb8, 0, 1, 0, 0, 0, 1].into(),
            (1, _) => [0x2001, 0xdb8, 0, 1, 0, 0, 0, 2].into(),
            (2, _) => [0x2001, 0xdb8, 0, 2, 0, 0, 0, 1].into(),
            // 192.0.2.1 in its other forms.
            (_, 0) => [0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201].into(),
            (_, 1) => [0x64, 0xff9b, 0, 0, 0, 0, 0xc000, 0x0201].into(),
            (_, 2) => [0x2001, 0xdb8, 0x64, 0, 0, 0, 0xc000, 0x0201].into(),
            _ => [0x2002, 0xc000, 0x0201, 1, 0, 0, 0, 1].into(),
        }),
        _ => Value::String(match last {
            0 => b"one",
            1 => b"ONE",
            2 => b"",
            _ => &LONG[..*u.choose(&[1, 8, 9, 239, 240, 300])?],
        }),
    })
}

fn any_value(u: &mut Unstructured<'_>) -> Result<Value<'static>> {
    Ok(match u.arbitrary::<u8>()? % 8 {
        0 => Value::Null,
        1 => Value::Bool(u.arbitrary()?),
        2 => Value::Int64(u.arbitrary::<i8>()?.into()),
        3 => Value::Binary(b"one"),
        kind => usual_value(u, kind % 3)?,
    })
}

type Messages<'m> = [(&'m [u8], Vec<(&'m [u8], Value<'m>)>)];

fn notify(bytes: &mut Vec<u8>, id: FrameId, messages: &Messages<'_>) {
    let mut out = [0; 4096];
    let mut writer = NotifyWriter::new(&mut out, id).expect("room");
    for (name, args) in messages {
        writer.message(name).expect("room");
        for (name, value) in args {
            writer.arg(name, *value).expect("room");
        }
    }
    let length = writer.finish();
    bytes.extend_from_slice(&out[..length]);
}

/// A limiter that is asked about each request, or about those that have no known shape.
struct Either {
    limiter: Limiter,
    knows_shapes: bool,
    asked: Arc<AtomicUsize>,
}

impl Handler for Either {
    type Round = Round;
    type Prepared = std::result::Result<Question, Unanswerable>;

    fn round(&self) -> Round {
        self.limiter.round()
    }

    fn prepare(&self, round: &mut Round, request: &Request<'_>) -> Self::Prepared {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.limiter.prepare(round, request)
    }

    fn answer(
        &self,
        round: &mut Round,
        prepared: Self::Prepared,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        self.limiter.answer(round, prepared, request, reply);
    }

    fn answer_shaped(&self, round: &mut Round, notifies: &mut ShapedNotifies<'_, '_>) {
        if self.knows_shapes {
            self.limiter.answer_shaped(round, notifies);
        }
    }
}

/// The bytes that a peer sends, a step at a time, and those that it was sent.
struct Peer<'s> {
    steps: std::slice::Iter<'s, Step>,
    /// The bytes that did not fit into the last read.
    rest: &'s [u8],
    clock: ManualClock,
    table: Arc<ArcSwap<Table>>,
    in_force: Arc<ArcSwap<ActivePolicies>>,
    stats: Arc<Stats>,
    output: Vec<u8>,
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match self.steps.next() {
                // It closes.
                None => return Poll::Ready(Ok(())),
                Some(Step::Bytes(bytes)) => self.rest = bytes,
                Some(Step::Pass(ns)) => self.clock.advance(Nanos(*ns)),
                Some(Step::Reload(configuration)) => {
                    let policies = policies(*configuration);
                    let (before, table) = (self.in_force.load(), self.table.load());
                    let next = before.replaced_by(policies, &self.stats, &table);
                    self.in_force.store(Arc::new(next));
                }
                Some(Step::Beat) => {
                    let next = self.in_force.load().without_shapes(&self.stats, Time::ZERO);
                    if let Some(next) = next {
                        self.in_force.store(Arc::new(next));
                    }
                }
            }
        }
        let (now, later) = self.rest.split_at(self.rest.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.rest = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peer<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn policies(configuration: usize) -> gcra_policy::Policies {
    document::parse(Path::new("gcra-spoa.toml"), CONFIGURATIONS[configuration])
        .unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// The outcome of a script.
struct Served {
    output: Vec<u8>,
    /// How the connection ended.
    end: String,
    /// By policy, and how many NOTIFYs.
    counts: Vec<(String, Vec<u64>)>,
    /// How many requests the agent was asked about one by one.
    asked: usize,
}

fn serve(script: &Script, knows_shapes: bool) -> Served {
    let (table, clock) =
        Table::with_manual_clock(Slots::new(4096).expect("a size")).expect("room");
    let stats = Arc::new(Stats::new(NonZeroUsize::new(4096).expect("a number")));
    let in_force = ActivePolicies::at_start(policies(script.configuration), &stats, &table);
    let (table, in_force) =
        (Arc::new(ArcSwap::from_pointee(table)), Arc::new(ArcSwap::from_pointee(in_force)));
    let asked = Arc::new(AtomicUsize::new(0));
    let limiter = Limiter::new(table.clone(), in_force.clone());
    let agent = Agent::new(Either { limiter, knows_shapes, asked: asked.clone() });
    let notifies = agent.counters();
    let agent = Streams::new(agent);
    let steps = script.steps.iter();
    let mut peer = Peer {
        steps,
        rest: &[],
        clock,
        table,
        in_force,
        stats: stats.clone(),
        output: Vec::new(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let end = runtime
        .expect("a runtime")
        .block_on(async { agent.serve(&mut peer, std::future::pending()).await });
    let mut counts: Vec<_> = stats
        .policies()
        .into_iter()
        .map(|(name, policy)| (name, policy.counts().to_vec()))
        .collect();
    counts.push(("notifies".to_owned(), vec![notifies.snapshot().notifies]));
    Served { output: peer.output, end, counts, asked: asked.load(Ordering::Relaxed) }
}

/// Sends the same to both agents.
pub(crate) fn compare(u: &mut Unstructured<'_>) -> Result<()> {
    compare_scripts(&Script::new(u)?);
    Ok(())
}

/// The places of configurations whose usual requests are answered by their shapes: the first, and
/// those with variables.
#[allow(dead_code, reason = "as below")]
pub(crate) const ANSWERED_BY_SHAPE: [usize; 4] = [0, 16, 17, 18];

/// As [`compare`], for 2000 usual requests under one of the configurations. Returns how many
/// requests the first agent was asked about, and how many the second.
#[allow(dead_code, reason = "for the test, which has to know that there are two ways")]
pub(crate) fn compare_usual(configuration: usize) -> [usize; 2] {
    let mut script = Script::new(&mut Unstructured::new(&[0])).expect("the first configuration");
    script.configuration = configuration;
    script.steps.extend(usual(2000).chunks(10_000).map(|piece| Step::Bytes(piece.to_vec())));
    compare_scripts(&script)
}

/// The same behind as many odd requests as there are places for shapes, and `waiting` usual ones.
/// Each of these is in a round of its own, and a beat follows them.
#[allow(dead_code, reason = "as above")]
pub(crate) fn compare_usual_behind_odd(waiting: u64) -> [usize; 2] {
    let mut script = Script::new(&mut Unstructured::new(&[0])).expect("the first configuration");
    for arg in [&b"a"[..], b"b", b"c", b"d", b"e", b"f", b"g", b"h"] {
        let mut bytes = Vec::new();
        let id = FrameId { stream: 0, frame: 1 };
        notify(&mut bytes, id, &[(b"check", vec![(arg, Value::Ipv4([192, 0, 2, 1].into()))])]);
        script.steps.push(Step::Bytes(bytes));
    }
    script.steps.extend((0..waiting).map(|_| Step::Bytes(usual(1))));
    script.steps.push(Step::Beat);
    script.steps.extend(usual(2000).chunks(10_000).map(|piece| Step::Bytes(piece.to_vec())));
    compare_scripts(&script)
}

/// The bytes of so many usual requests.
fn usual(requests: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for stream in 0..requests {
        let id = FrameId { stream, frame: 1 };
        notify(&mut bytes, id, &[(b"check", vec![(b"ip", Value::Ipv4([192, 0, 2, 1].into()))])]);
    }
    bytes
}

fn compare_scripts(script: &Script) -> [usize; 2] {
    let [by_shape, by_request] = [true, false].map(|knows_shapes| serve(script, knows_shapes));
    assert_eq!(by_shape.output, by_request.output, "what was written");
    assert_eq!(by_shape.end, by_request.end, "how it ended");
    assert_eq!(by_shape.counts, by_request.counts, "what was counted");
    let asked = [by_shape.asked, by_request.asked];
    assert!(asked[0] <= asked[1], "{asked:?}");
    asked
}
