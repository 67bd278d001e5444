//! The meaning of configuration files, and the sentences about them. More sentences are in
//! `tests/sentences/` of the crate.

mod describe;
mod digest;
mod document;
mod haproxy_config;
mod haproxy_in_process;
mod overrides;
mod sharing;
mod store;
mod typed;

use std::path::Path;

use gcra_text::config_note::ConfigNote;

use crate::policies::Policies;

fn parse(text: &str) -> Result<Policies, Vec<String>> {
    let parsed = crate::file::document::parse(Path::new("gcra-spoa.toml"), text);
    parsed.map_err(|mistakes| sentences(&mistakes))
}

fn sentences(notes: &[ConfigNote]) -> Vec<String> {
    notes.iter().map(ToString::to_string).collect()
}

impl Policies {
    /// The files that are printed for HAProxy, one behind another.
    fn haproxy_text(&self) -> String {
        self.for_haproxy().into_iter().map(|file| file.text).collect()
    }
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
