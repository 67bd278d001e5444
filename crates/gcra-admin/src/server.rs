//! The HTTP server of `--admin`: the live page, metrics, status, health and actions for operators.
//!
//! It runs on a thread of its own, so that no scrape delays a decision. Everything is bounded: the
//! number of connections, one request on each, its bytes, and its time. Bodies of requests are not
//! read, but those of actions.
//!
//! No connection waits for a place. When all places are taken, the address that has most of them
//! loses its oldest connection to the new one. So slow clients cannot keep others out: a client
//! that sends its request at once is answered before others can take its place. The answers that
//! cost more than a few words are made for one client at a time, and clients that want the status
//! or the history of all agents share one answer (`agents.rs`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, anyhow};
use gcra_inspect::explanation::{SharedSources, explain_all};
use gcra_policy::key::NamedValue;
use gcra_text::visible::{escaped_json, visible_lines};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};

use crate::actions::{Action, ActionHandler, Refused};
use crate::agent_view::AgentView;
use crate::agents::{Agents, Own, Wanted};
use crate::{actions, metrics, page};

const CONNECTIONS: usize = 32;

/// How long a client may take for the first line and the headers of its request.
const HEADER_PATIENCE: Duration = Duration::from_secs(1);

/// How long a whole connection may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many characters of a host name are repeated in an answer.
const MAX_HOST: usize = 100;

/// The most bytes of a request's first line and headers. Hyper has no smaller bound.
const MAX_REQUEST: usize = 8192;

const MAX_HEADERS: usize = 64;

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most bytes of an action's body.
const MAX_BODY: usize = 4096;

const BODY_PATIENCE: Duration = Duration::from_secs(2);

/// The kinds of answers at paths that are not those of actions.
#[derive(Clone, Copy)]
enum Route {
    File(&'static page::File),
    Metrics,
    Status,
    History,
    Events,
    Live,
    Explain,
    AreActionsOn,
    Health,
    Readiness,
}

/// The paths, with what is said about them where there is none.
const ROUTES: [(&str, Route, &str); 13] = [
    ("/", Route::File(&page::HTML), "a live page for browsers, about all agents of the table"),
    ("/page.css", Route::File(&page::STYLE), ""),
    ("/page.js", Route::File(&page::SCRIPT), ""),
    ("/icon.svg", Route::File(&page::ICON), ""),
    ("/metrics", Route::Metrics, "counters and gauges, for Prometheus"),
    (
        "/status",
        Route::Status,
        "the same for all agents of the table, and the heaviest clients, in JSON",
    ),
    (
        "/history",
        Route::History,
        "what was decided in the last ten minutes, by all agents of the table, in JSON",
    ),
    ("/events", Route::Events, "the last lines of the log of all agents of the table, in JSON"),
    ("/live", Route::Live, "what the page shows: status, history, events and policies, in JSON"),
    (
        "/explain",
        Route::Explain,
        "what is decided about ?message=NAME&arg=ARG=VALUE&arg=..., or about the client with
           ?key=KEY, and why, in JSON",
    ),
    (
        "/actions",
        Route::AreActionsOn,
        "whether there are actions, in JSON; POST to /actions/forgive, /actions/exempt,
           /actions/block and /actions/observe, with --admin-actions",
    ),
    ("/healthz", Route::Health, "200 while the agent works"),
    (
        "/readyz",
        Route::Readiness,
        "200 while the agent should get requests, 503 while it is starting or leaving",
    ),
];

/// Binds an address. Nothing is answered before [`start`].
///
/// # Errors
///
/// The address cannot be used.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => "; give each agent a port of its own",
            io::ErrorKind::AddrNotAvailable => "; use an IP address of this machine",
            _ => "",
        };
        anyhow!("could not listen on {address} for --admin: {error}{remedy}")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Starts to answer, and returns the address with its port.
///
/// # Errors
///
/// There can be no further thread.
pub fn start(listener: TcpListener, answering: Answering) -> anyhow::Result<SocketAddr> {
    let address = listener.local_addr()?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start the admin thread")?;
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(serve(listener, answering)))
        .context("could not start the admin thread")?;
    log::info!("admin on http://{address}/");
    if !address.ip().to_canonical().is_loopback() {
        log::warn!(
            "--admin {address} can be reached from other machines, and there is no \
             authentication: anyone who connects can read which clients are blocked; use a \
             loopback address, or a firewall that lets only operators in"
        );
    }
    Ok(address)
}

/// The parts of an agent that requests are answered from, and the names under which it answers.
pub struct Answering {
    view: Arc<AgentView>,
    agents: Agents,
    actions: ActionHandler,
    /// The host names for which requests are answered, in lower case.
    names: Vec<String>,
    /// The permit for one expensive answer at a time.
    costly: Semaphore,
}

impl Answering {
    /// Answers requests that are for this machine by its name, or for one of these further names.
    /// `table` is the path of the table.
    pub fn new(
        mut names: Vec<String>,
        view: Arc<AgentView>,
        table: PathBuf,
        actions: ActionHandler,
    ) -> Self {
        let own = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        names.extend(["localhost".to_owned(), own]);
        let agents = Agents::new(view.clone(), table);
        Self { view, agents, actions, names, costly: Semaphore::new(1) }
    }
}

/// The open connections, the oldest first.
#[derive(Default)]
struct Places(Vec<(IpAddr, AbortHandle)>);

impl Places {
    /// Frees a place if there is none, by closing a connection of the address that has most.
    fn free_one(&mut self) {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < CONNECTIONS {
            return;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (ip, _) in &self.0 {
            *counts.entry(*ip).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let oldest = self.0.iter().position(|(ip, _)| counts.get(ip).copied() == most);
        if let Some(place) = oldest {
            self.0.remove(place).1.abort();
        }
    }
}

async fn serve(listener: TcpListener, answering: Answering) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("--admin is not served: {error}"),
    };
    let answering = Arc::new(answering);
    let mut places = Places::default();
    // Until the process ends.
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                places.free_one();
                // A client that takes longer gets no answer.
                let conversation =
                    timeout(PATIENCE, converse(stream, Some(peer), answering.clone()));
                let task = tokio::spawn(async move {
                    if let Ok(Err(error)) = conversation.await {
                        log::debug!("a request to --admin failed: {error}");
                    }
                });
                places.0.push((peer.ip().to_canonical(), task.abort_handle()));
                // A client that has sent its request already is answered before the next one is
                // accepted, and so cannot lose its place.
                yield_now().await;
            }
            Err(error) => {
                log::debug!("could not accept a connection to --admin: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers the one request of a connection from `peer`, if that is known.
///
/// # Errors
///
/// The request cannot be read, or the connection has failed. The client has got as much of an
/// answer as it took at once.
pub async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: Option<SocketAddr>,
    answering: Arc<Answering>,
) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let answering = answering.clone();
        async move { Ok::<_, Infallible>(answer(request, peer, &answering).await) }
    });
    http1::Builder::new()
        .keep_alive(false)
        // A client may close its side as soon as it has sent its request, as `nc -N` does.
        .half_close(true)
        .max_buf_size(MAX_REQUEST)
        .max_headers(MAX_HEADERS)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

async fn answer(
    request: Request<Incoming>,
    peer: Option<SocketAddr>,
    answering: &Answering,
) -> Response<Full<Bytes>> {
    if let Some(said) = wrong_count_of_hosts(&request) {
        return refuse(StatusCode::BAD_REQUEST, said);
    }
    let path = request.uri().path();
    let action = Action::from_word(path);
    if let Some(response) = wrong_method(action, request.method()) {
        return response;
    }
    let route = ROUTES.iter().find(|(known, ..)| *known == path).map(|(_, route, _)| *route);
    // These say nothing secret, and a load balancer may ask under any name.
    let is_health = matches!(route, Some(Route::Health | Route::Readiness));
    if let Some(unknown) = unknown_host(&request, &answering.names).filter(|_| !is_health) {
        let said = format!(
            "'{unknown}' is not a known name of this agent: ask by IP address, as localhost or \
             by the name of the machine, or start the agent with --admin-host {unknown}"
        );
        return refuse(StatusCode::MISDIRECTED_REQUEST, &said);
    }
    if let Some(action) = action {
        return act(action, request, peer, answering).await;
    }
    match route {
        Some(route) => look(route, request.uri().query(), answering).await,
        None => {
            let mut said = "not found; these paths exist:\n\n".to_owned();
            for (path, _, about) in ROUTES.iter().filter(|(.., about)| !about.is_empty()) {
                said += &format!("{path:<11}{about}\n");
            }
            respond(StatusCode::NOT_FOUND, TEXT, said)
        }
    }
}

fn wrong_method(action: Option<Action>, method: &Method) -> Option<Response<Full<Bytes>>> {
    let (allowed, said) = match (action, method) {
        (Some(_), &Method::POST) => return None,
        (Some(_), _) => ("POST", "only POST\n"),
        (None, &Method::GET | &Method::HEAD) => return None,
        (None, _) => ("GET, HEAD", "only GET and HEAD\n"),
    };
    let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, said);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    Some(response)
}

fn health(complaint: Option<String>) -> Response<Full<Bytes>> {
    match complaint {
        None => respond(StatusCode::OK, TEXT, "ok\n"),
        Some(complaint) => {
            respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{complaint}\n"))
        }
    }
}

/// Answers what changes nothing.
async fn look(route: Route, query: Option<&str>, answering: &Answering) -> Response<Full<Bytes>> {
    let Answering { view, agents, actions, costly, .. } = answering;
    let together = async |wanted| agents.answer(wanted).await;
    let answer = match (route, query) {
        (Route::File(file), _) => {
            return page::protect(respond(StatusCode::OK, file.kind, file.content));
        }
        (Route::Health, _) => return health(view.complaint()),
        (Route::Readiness, _) => return health(view.excuse()),
        (Route::Metrics, _) => {
            view.scan().await;
            // The semaphore is never closed.
            let _permit = costly.acquire().await;
            let metrics = metrics::render(&view.status());
            return respond(StatusCode::OK, metrics::CONTENT_TYPE, metrics);
        }
        (Route::Explain, query) => {
            let _permit = costly.acquire().await;
            return match explain(answering, query.unwrap_or_default()) {
                Ok(explanations) => respond(StatusCode::OK, JSON, escaped_json(&explanations)),
                Err(mistake) => refuse(StatusCode::BAD_REQUEST, &mistake),
            };
        }
        // This is what other agents ask for. It does not wait for the slots to be counted, which
        // the agent that asks does itself, and it asks no other agent in turn.
        (Route::Status, Some("own")) => {
            let _permit = costly.acquire().await;
            return own(&view.status());
        }
        (Route::Live, Some("own")) => {
            let _permit = costly.acquire().await;
            return own(&Own::of(view, Wanted::Recent));
        }
        (Route::Live, Some("own&all")) => {
            let _permit = costly.acquire().await;
            return own(&Own::of(view, Wanted::All));
        }
        (Route::Status, _) => together(Wanted::Status).await.status,
        (Route::History, _) => together(Wanted::All).await.history,
        (Route::Events, _) => together(Wanted::All).await.events,
        (Route::Live, Some("all")) => together(Wanted::All).await.live,
        (Route::Live, _) => together(Wanted::Recent).await.live,
        (Route::AreActionsOn, _) => format!("{{\"on\":{}}}\n", actions.are_on()).into(),
    };
    respond(StatusCode::OK, JSON, answer)
}

/// A request to a process without a server of its own, which another server has read.
#[derive(Clone, Copy, Debug)]
pub struct AskedOfAnother<'a> {
    pub method: &'a [u8],
    /// The header `Host`; empty without one.
    pub host: &'a [u8],
    pub path: &'a [u8],
    pub query: &'a [u8],
}

/// The answer of a process without a server of its own to a GET about itself: the status, the type
/// and the body. It waits for nothing and counts no slots.
pub fn about_itself(
    view: Option<&AgentView>,
    asked: AskedOfAnother<'_>,
) -> (u16, &'static str, Vec<u8>) {
    let AskedOfAnother { method, host, path, query } = asked;
    let refused = |status: u16, why: &str| (status, TEXT, format!("{why}\n").into_bytes());
    if !matches!(method, b"GET" | b"HEAD") {
        return refused(405, "only GET and HEAD are answered here");
    }
    // For the reason see `unknown_host`.
    if !host.is_empty() && !is_known(host, &["localhost".to_owned()]) {
        let why = "ask for an IP address or for localhost; for another name, let HAProxy write \
                   'http-request set-header host localhost' in front of this service";
        return refused(421, why);
    }
    let json = |json: serde_json::Result<Vec<u8>>| (200, JSON, json.unwrap_or_default());
    let route = ROUTES.iter().find(|(known, ..)| known.as_bytes() == path).map(|(_, it, _)| it);
    match (route, query, view) {
        (Some(Route::Metrics), _, Some(view)) => {
            (200, metrics::CONTENT_TYPE, metrics::render(&view.status()).into_bytes())
        }
        (Some(Route::Status), _, Some(view)) => json(serde_json::to_vec(&view.status())),
        (Some(Route::Live), b"own&all", Some(view)) => {
            json(serde_json::to_vec(&Own::of(view, Wanted::All)))
        }
        (Some(Route::Live), b"own", Some(view)) => {
            json(serde_json::to_vec(&Own::of(view, Wanted::Recent)))
        }
        (Some(Route::Metrics | Route::Status | Route::Live), _, None) => {
            refused(503, "HAProxy has no table yet; its log says why")
        }
        _ => refused(404, "not found; there are /metrics and /status"),
    }
}

/// An answer in which an agent speaks about itself only.
fn own(it: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(it) {
        Ok(json) => respond(StatusCode::OK, JSON, json),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn act(
    action: Action,
    request: Request<Incoming>,
    peer: Option<SocketAddr>,
    answering: &Answering,
) -> Response<Full<Bytes>> {
    let is_demand = request.uri().query() == Some("own");
    let by = actions::who(peer);
    let done = async {
        answering.actions.check(request.headers(), is_demand, peer)?;
        let body = timeout(BODY_PATIENCE, Limited::new(request.into_body(), MAX_BODY).collect());
        let body = match body.await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => {
                return Err(Refused::request(format!("the body is unreadable: {error}")));
            }
            Err(_) => {
                return Err(Refused(
                    StatusCode::REQUEST_TIMEOUT,
                    "the body did not come in time".to_owned(),
                ));
            }
        };
        // An agent that waits for others must not keep their demands waiting.
        let _permit = match is_demand {
            true => None,
            false => Some(answering.costly.acquire().await),
        };
        let done = answering.actions.act(action, &body, is_demand, &by).await;
        // An action that was done in part must be seen, too. A forged demand has done nothing.
        if !is_demand || done.is_ok() {
            answering.agents.forget();
        }
        let done = done?;
        let done = serde_json::to_string(&done);
        done.map_err(|error| Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            .map(|done| escaped_json(&done))
    };
    match done.await {
        Ok(done) => respond(StatusCode::OK, JSON, done),
        Err(Refused(status, said)) => {
            log::debug!("an action of {by} was refused: {said}");
            let mut response = refuse(status, &said);
            if status == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            if status == StatusCode::TOO_MANY_REQUESTS {
                let seconds = HeaderValue::from(answering.actions.retry_after());
                response.headers_mut().insert(RETRY_AFTER, seconds);
            }
            response
        }
    }
}

/// Explains what this agent decides now about the message that a query describes: the same as
/// `gcra-spoa explain`, with what only this agent knows.
fn explain(answering: &Answering, query: &str) -> Result<String, String> {
    let mut message = None;
    let mut args = Vec::<NamedValue>::new();
    // The parser of forms would put another character in the place of what is not UTF-8.
    if percent_decode_str(query).decode_utf8().is_err() {
        return Err("the query has bytes that are not UTF-8; write such a string as strhex: and \
                    its bytes in hex digits, such as strhex:ff"
            .to_owned());
    }
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "key" if message.is_none() && args.is_empty() => {
                let explained = answering.actions.explain_key(&value)?;
                return serde_json::to_string(&explained).map_err(|error| error.to_string());
            }
            "message" if message.is_none() => message = Some(value),
            "arg" => args.push(value.parse()?),
            _ => {
                return Err(
                    "write /explain?message=NAME&arg=ARG=VALUE, with one message at most, \
                            and an arg for each of its args, or /explain?key=KEY"
                        .to_owned(),
                );
            }
        }
    }
    let (in_force, table) = (answering.view.in_force(), answering.view.table());
    let leases = answering.view.leases();
    let leases = leases.as_ref().map(|it| &***it);
    let shared =
        SharedSources { leases, store: None, lease_client: answering.view.lease_client() };
    let explanations = explain_all(&in_force, &table, shared, message.as_deref(), &args)?;
    serde_json::to_string(&explanations).map_err(|error| error.to_string())
}

/// Says if a request has not exactly one `Host`. Since HTTP/1.1 it has to have one (RFC 9112,
/// section 3.2). A proxy in between may go by another line than this agent.
fn wrong_count_of_hosts(request: &Request<Incoming>) -> Option<&'static str> {
    match request.headers().get_all(HOST).iter().count() {
        0 if request.version() >= Version::HTTP_11 => Some(
            "the request has no Host; write one, such as 'Host: localhost', or ask with HTTP/1.0",
        ),
        0 | 1 => None,
        _ => Some("the request has more than one Host; write one"),
    }
}

/// The host that a request is for, if it is neither one of these names nor an IP address.
///
/// A web site can give its own name the address of a machine that its visitor can reach (DNS
/// rebinding). Then the visitor's browser asks there on behalf of the site, but under the site's
/// name. Programs that are no browsers may leave the name out, with HTTP/1.0.
fn unknown_host(request: &Request<Incoming>, names: &[String]) -> Option<String> {
    let in_headers = request.headers().get_all(HOST).iter().map(HeaderValue::as_bytes);
    let in_uri = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let unknown = in_headers.chain(in_uri).find(|host| !is_known(host, names))?;
    let host = String::from_utf8_lossy(without_port(unknown));
    Some(host.chars().filter(|c| !c.is_control()).take(MAX_HOST).collect())
}

/// Whether `host` or `host:port` is an IP address or one of the names.
fn is_known(host: &[u8], names: &[String]) -> bool {
    let Ok(host) = str::from_utf8(without_port(host)) else { return false };
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    address || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|byte| *byte == b':').map(|colon| host.split_at(colon)) {
        Some((name, [_, port @ ..])) if port.iter().all(u8::is_ascii_digit) => name,
        _ => host,
    }
}

/// An answer that says why nothing else is answered. It repeats what was asked, which may come
/// from a link that somebody else has made, and can be shown on a terminal.
fn refuse(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    respond(status, TEXT, format!("{}\n", visible_lines(why)))
}

fn respond(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // An answer in JSON or text is never a script or a page, whatever is in it.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
