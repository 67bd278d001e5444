//! What is told over HTTP to those who look after the agent.
//!
//! On a thread of its own, so that no scrape delays a decision. Everything is bounded: so many connections, one request each, so many
//! bytes, so many seconds. Requests have no bodies that anyone would read.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, anyhow};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::metrics;
use crate::status::Watched;

/// Connections at once. Further ones wait.
const CONNECTIONS: usize = 16;

/// For a whole connection, from its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request's first line and headers. Hyper has no smaller bound.
const MAX_REQUEST: usize = 8192;
const MAX_HEADERS: usize = 64;

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const PATHS: &str = "\
/metrics   counters and gauges, for Prometheus
/status    the same and the heaviest clients, in JSON
/healthz   200 while the agent works
/readyz    200 while it should be asked, 503 while it starts or takes its leave
";

/// Begins to answer at an address.
pub(crate) fn start(address: SocketAddr, watched: Watched) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => anyhow!(
            "could not listen on {address} for --admin: {error}; each agent needs a port of its own for that"
        ),
        io::ErrorKind::AddrNotAvailable => anyhow!(
            "could not listen on {address} for --admin: {error}; the IP must be one of this machine's"
        ),
        _ => anyhow!("could not listen on {address} for --admin: {error}"),
    })?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime =
        Builder::new_current_thread().enable_all().build().context("could not start the admin thread")?;
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(serve(listener, watched)))
        .context("could not start the admin thread")?;
    log::info!("admin on http://{address}/");
    Ok(())
}

async fn serve(listener: TcpListener, watched: Watched) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("--admin does not work: {error}"),
    };
    let watched = Arc::new(watched);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // Closed never, so this goes on until the process ends.
    while let Ok(place) = room.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let watched = watched.clone();
                tokio::spawn(async move {
                    // Who takes longer has no answer, and needs none.
                    let _ = timeout(PATIENCE, converse(stream, watched)).await;
                    drop(place);
                });
            }
            Err(error) => {
                log::debug!("could not accept a connection to --admin: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, watched: Arc<Watched>) {
    let service = service_fn(|request| {
        let watched = watched.clone();
        async move { Ok::<_, Infallible>(answer(&request, &watched).await) }
    });
    let outcome = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST)
        .max_headers(MAX_HEADERS)
        // There is one for all of it.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = outcome {
        log::debug!("a request to --admin failed: {error}");
    }
}

async fn answer(request: &Request<Incoming>, watched: &Watched) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let health = |complaint: Option<String>| match complaint {
        None => respond(StatusCode::OK, TEXT, "ok\n"),
        Some(complaint) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{complaint}\n")),
    };
    let failed = |error: &dyn std::fmt::Display| {
        respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n"))
    };
    match request.uri().path() {
        "/" => respond(StatusCode::OK, TEXT, PATHS),
        "/healthz" => health(watched.complaint()),
        "/readyz" => health(watched.excuse()),
        "/metrics" => match metrics::render(&watched.status().await) {
            Ok(text) => respond(StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(error) => failed(&error),
        },
        "/status" => match serde_json::to_vec(&watched.status().await) {
            Ok(json) => respond(StatusCode::OK, "application/json", json),
            Err(error) => failed(&error),
        },
        _ => respond(StatusCode::NOT_FOUND, TEXT, format!("not found; there are\n\n{PATHS}")),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
