//! HAProxy with the module and some rules, and what stands around it.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Client, Haproxy, Process, directory, lua_module, root};
pub(crate) use crate::support::{Program, programs};

/// The text of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct SetUp {
    /// The words behind the name of the file that is loaded.
    pub(crate) words: String,
    /// Lines of the frontend, before the one that answers 200.
    pub(crate) rules: String,
    /// Lines of `global`.
    pub(crate) global: String,
    /// More sections.
    pub(crate) sections: String,
}

/// The rule that denies a client by its address.
pub(crate) const BY_ADDRESS: &str = "http-request deny status 429 if { src,lua.gcra -m int gt 0 }";

impl SetUp {
    /// With a table in this folder.
    pub(crate) fn new(table: &Path, words: &str, rules: &str) -> Self {
        Self {
            words: format!("--table {} {words}", table.display()),
            rules: rules.to_owned(),
            global: "nbthread 2".to_owned(),
            sections: String::new(),
        }
    }

    /// The same with more lines of `global`.
    pub(crate) fn global(mut self, lines: &str) -> Self {
        self.global = lines.to_owned();
        self
    }

    /// The text for a HAProxy of this version. `frontend` is where it listens.
    pub(crate) fn text(&self, (major, minor): (u32, u32), frontend: &str) -> String {
        let Self { words, rules, global, sections } = self;
        let (module, file) = (lua_module(), root().join("crates/gcra-lua/gcra.lua"));
        let file = file.display();
        // HAProxy 2.6 passes no words on.
        let load = match (major, minor) < (2, 8) {
            true => format!("setenv GCRA_LUA \"{words}\"\n    lua-load-per-thread {file}"),
            false => format!("lua-load-per-thread {file} {words}"),
        };
        // Without a word about it, HAProxy warns.
        let booleans = match (major, minor) < (3, 1) {
            true => "",
            false => "tune.lua.bool-sample-conversion normal",
        };
        format!(
            "global\n    {global}\n    {booleans}\n    log stdout format raw local0 info\n    \
             lua-prepend-path {}/?.so cpath\n    {load}\ndefaults\n    mode http\n    timeout \
             client 60s\n    timeout server 60s\n    timeout connect 60s\nfrontend web\n    bind \
             {frontend}\n    {rules}\n    http-request return status 200 content-type \
             text/plain string ok\n{sections}",
            module.display()
        )
    }

    /// Starts it, and waits until it limits.
    pub(crate) fn start(&self, program: &Program) -> Running {
        let running = self.start_now(program);
        running.haproxy.process.wait_for_table();
        running
    }

    /// Starts it.
    pub(crate) fn start_now(&self, program: &Program) -> Running {
        let folder = directory();
        let cfg = folder.path().join("in-process.cfg");
        fs::write(&cfg, self.text(program.version, "\"${GCRA_HTTP}\"")).unwrap();
        let haproxy = Haproxy::start_program(&program.path, cfg.to_str().unwrap(), &[]);
        Running { haproxy, _folder: folder }
    }

    /// The end of HAProxy's check of this set-up: whether it is right, and the words.
    pub(crate) fn check(&self, program: &Program) -> (bool, String) {
        let folder = directory();
        let cfg = folder.path().join("in-process.cfg");
        fs::write(&cfg, self.text(program.version, "127.0.0.1:1")).unwrap();
        let output = Command::new(&program.path).arg("-c").arg("-f").arg(&cfg).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    }
}

/// A HAProxy that decides.
pub(crate) struct Running {
    pub(crate) haproxy: Haproxy,
    _folder: TempDir,
}

impl Running {
    /// Whether the log has a line with both texts.
    pub(crate) fn says(&self, one: &str, other: &str) -> bool {
        says(&self.haproxy.process, one, other)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.haproxy.frontend)
    }

    /// How many of so many requests pass, each with these header fields.
    pub(crate) fn passed(&self, count: usize, path: &str, headers: &[(&str, &str)]) -> usize {
        let mut client = self.client();
        let statuses = (0..count).map(|_| client.get_with(path, headers).unwrap().status);
        statuses
            .filter(|status| {
                assert!([200, 429].contains(status), "{status}");
                *status == 200
            })
            .count()
    }
}

pub(crate) fn says(process: &Process, one: &str, other: &str) -> bool {
    process.lines().iter().any(|line| line.contains(one) && line.contains(other))
}
