//! The meaning of configuration files, and the sentences about them. More sentences are in
//! `tests/sentences/` of the crate.

mod digest;
mod document;
mod haproxy_asks_less;
mod haproxy_config;
mod overrides;
mod sharing;
mod store;
mod typed;
mod words;

use std::path::Path;

use crate::policies::Policies;

fn parse(text: &str) -> Result<Policies, Vec<String>> {
    crate::file::document::parse(Path::new("gcra-spoa.toml"), text)
}

fn good(text: &str) -> Policies {
    parse(text).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// The warnings about a file, without its name.
fn warnings(text: &str) -> Vec<String> {
    let warnings = good(text).warnings;
    let start = "gcra-spoa.toml:";
    warnings.iter().map(|warning| warning.strip_prefix(start).unwrap().to_owned()).collect()
}

/// A file whose policy has these settings, from line 2 on.
fn api(settings: &str) -> String {
    format!("[policy.api]\n{settings}\n")
}

/// The start of a policy that is settled.
const SETTLED: &str = "limits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"failed\"";
