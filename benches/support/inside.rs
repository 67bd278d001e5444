//! HAProxy that limits by itself, by a stick table or by the module for its Lua, or asks.
#![allow(dead_code, reason = "not every bench asks")]

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::program::target;
use crate::support::root;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Limit {
    StickTable,
    /// `src,hex,lua.gcra_ip`.
    Converter,
    /// The same, with one state of Lua for all threads: `lua-load`.
    OneState,
    /// `lua.gcra_answer`, which has the other variables, too.
    Answer,
    /// An agent, over SPOE.
    Asked,
}

impl Limit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StickTable => "stick table",
            Self::Converter => "converter",
            Self::OneState => "converter, one state",
            Self::Answer => "with variables",
            Self::Asked => "SPOE",
        }
    }

    /// Whether the module is loaded.
    pub(crate) fn is_inside(self) -> bool {
        matches!(self, Self::Converter | Self::OneState | Self::Answer)
    }
}

/// The settings of a limit.
pub(crate) struct Setting<'a> {
    /// The folder of the module.
    pub module: PathBuf,
    pub table: PathBuf,
    /// The limit, for the module.
    pub words: &'a str,
    /// The most requests in an hour, for a stick table.
    pub per_hour: u64,
    pub threads: u32,
    /// The address of the agent that is asked.
    pub agent: &'a str,
}

/// A configuration that writes no log, so that the limit is a large part of a request's cost.
pub(crate) fn configuration(
    limit: Limit,
    version: &str,
    frontend: SocketAddr,
    setting: &Setting<'_>,
) -> String {
    let Setting { module, table, words, per_hour, threads, agent } = setting;
    let mut global = format!("global\n    nbthread {threads}\n");
    if limit.is_inside() {
        let file = root().join("crates/gcra-lua/gcra.lua");
        let (file, module) = (file.display(), module.display());
        let words = format!("--table {} --slots 65536 {words}", table.display());
        writeln!(global, "    lua-prepend-path {module}/?.so cpath").unwrap();
        let load = if limit == Limit::OneState { "lua-load" } else { "lua-load-per-thread" };
        // Without a word about it, HAProxy from 3.1 on warns, and 2.6 passes no words on.
        if !version.starts_with("2.") && !version.starts_with("3.0") {
            global += "    tune.lua.bool-sample-conversion normal\n";
        }
        if version.starts_with("2.6") {
            writeln!(global, "    setenv GCRA_LUA \"{words}\"").unwrap();
            writeln!(global, "    {load} {file}").unwrap();
        } else {
            writeln!(global, "    {load} {file} {words}").unwrap();
        }
    }
    let deny = "http-request deny status 429 if";
    let rules = match limit {
        Limit::StickTable => format!(
            "http-request track-sc0 src,ipmask(32,64) table clients\n    {deny} {{ \
             sc_http_req_rate(0) gt {per_hour} }}"
        ),
        Limit::Converter | Limit::OneState => {
            format!("{deny} {{ src,ipmask(32,64),hex,lua.gcra_ip -m int gt 0 }}")
        }
        Limit::Answer => format!(
            "http-request set-var(txn.answer) src,ipmask(32,64),lua.gcra_answer\n    {deny} {{ \
             var(txn.answer),field(1,|) -m int gt 0 }}"
        ),
        Limit::Asked => {
            global += "    default-path config\n    set-var proc.gcra_since date(0,us)\n";
            format!(
                "filter spoe engine gcra config spoe-gcra.conf\n    http-request track-sc2 \
                 var(txn.gcra.err) table undecided\n    http-request \
                 set-var(proc.gcra_undecided) date(0,us) if {{ var(txn.gcra.err) -m found \
                 }}\n    {deny} {{ var(txn.gcra.blocked) -m bool }}"
            )
        }
    };
    let clients = match limit {
        Limit::StickTable => {
            "backend clients\n    stick-table type ipv6 size 1m expire 10m store \
             http_req_rate(1h)\n"
                .to_owned()
        }
        Limit::Asked => format!(
            "backend undecided\n    stick-table type integer size 64 store \
             http_req_cnt\nbackend gcra-agents\n.if version_atleast(3.1-dev0)\n    mode \
             spop\n.else\n    mode tcp\n.endif\n    timeout server 2m\n    server agent {agent}\n"
        ),
        _ => String::new(),
    };
    format!(
        "{global}defaults\n    mode http\n    timeout connect 60s\n    timeout client 60s\n    \
         timeout server 60s\nfrontend web\n    bind {frontend}\n    {rules}\n    default_backend \
         app\nbackend app\n    http-request return status 200 content-type text/plain string \
         ok\n{clients}"
    )
}

/// A folder with the module under its name, built as for a release.
pub(crate) fn optimized_module() -> PathBuf {
    let built = target().join("release/libgcra_lua.so");
    assert!(built.is_file(), "build it first: cargo build --locked --release -p gcra-lua");
    let folder = target().join("tmp/optimized-lua");
    fs::create_dir_all(&folder).expect("a folder of Cargo's");
    let link = folder.join("gcra_lua.so");
    if fs::read_link(&link).ok().as_ref() != Some(&built) {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&built, &link).expect("a link");
    }
    folder
}
