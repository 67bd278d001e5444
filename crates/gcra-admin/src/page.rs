//! The live page: files that are a part of the program, and the headers that protect it.
//!
//! The page, its style, its script and its icon are files of their own. So the policy for the
//! files that a browser may load needs no exceptions: everything comes from the agent itself, and
//! nothing is inline. The script sets what it shows as text, never as HTML.

use hyper::Response;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS,
};

pub struct File {
    pub kind: &'static str,
    pub content: &'static str,
}

const fn file(kind: &'static str, content: &'static str) -> File {
    File { kind, content }
}

pub(crate) const HTML: File = file("text/html; charset=utf-8", include_str!("page/index.html"));
pub(crate) const STYLE: File = file("text/css; charset=utf-8", include_str!("page/page.css"));
pub(crate) const SCRIPT: File = file(
    "text/javascript; charset=utf-8",
    concat!(include_str!("../../gcra-text/src/page_parts.js"), include_str!("page/page.js")),
);
pub(crate) const ICON: File = file("image/svg+xml", include_str!("page/icon.svg"));

/// With these headers a browser loads only the files beside the page, and asks only the agent.
/// The page cannot be framed, and sends no referrer.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
         'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

pub(crate) fn protect<B>(mut response: Response<B>) -> Response<B> {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
