//! The output of `gcra-spoa check --print-haproxy --in-process` is a HAProxy that limits.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::set_up::{Program, programs};
use crate::support::{self, Client, Haproxy, agent_binary, directory, lua_module, needs, root};

/// The tenant is in a header.
const POLICIES: &str = "[policy.api]\nlimits = \"3/d\"\nkey = [\"tenant\", \"user\"]\n";

/// A HAProxy that has the lines which are printed for these policies, changed by `edit` as an
/// operator changes them.
fn start(
    program: &Program,
    policies: &str,
    edit: impl Fn(String) -> String,
) -> (Haproxy, TempDir) {
    let folder = directory();
    let file = folder.path().join("policies.toml");
    fs::write(&file, policies).unwrap();
    let mut check = Command::new(agent_binary());
    let check = check.arg("check").arg(&file).args(["--print-haproxy", "--in-process"]);
    let output = check.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let table = folder.path().join("table");
    let text = text
        .replace("/usr/lib/gcra-spoa", lua_module().to_str().unwrap())
        .replace("/usr/share/gcra-spoa", &format!("{}/crates/gcra-lua", root().display()))
        .replace("/dev/shm/gcra-spoa.table", table.to_str().unwrap());
    let text = edit(text);
    assert!(!text.contains("EDIT-THIS"), "{text}");
    let cfg = folder.path().join("printed.cfg");
    fs::write(&cfg, text).unwrap();
    let haproxy = Haproxy::start_program(&program.path, cfg.to_str().unwrap(), &[]);
    haproxy.process.wait_for_table();
    (haproxy, folder)
}

/// How many of five requests pass.
fn passed(haproxy: &Haproxy, headers: &[(&str, &str)]) -> usize {
    let mut client = Client::new(haproxy.frontend);
    let statuses = (0..5).map(|_| client.get_with("/", headers).unwrap().status);
    statuses.filter(|status| *status == 200).count()
}

#[test]
fn the_printed_lines_limit_by_each_value() {
    needs!(support::haproxy());
    for program in programs() {
        let (haproxy, _folder) = start(&program, POLICIES, |text| {
            text.replace("unless EDIT-THIS", "unless TRUE")
                .replacen("EDIT-THIS,hex", "req.hdr(tenant),hex", 1)
                .replacen("EDIT-THIS", "req.hdr(user)", 1)
        });
        for (tenant, user, passes) in [
            ("a", "b", 3),
            ("a", "c", 3),
            // Not the same values, though the same text.
            ("x|y", "z", 3),
            ("x", "y|z", 3),
            ("a", "b", 0),
        ] {
            let found = passed(&haproxy, &[("tenant", tenant), ("user", user)]);
            assert_eq!(found, passes, "{:?}: {tenant} {user}", program.version);
        }
    }
}

/// HAProxy calls no converter for a value that is missing. The printed lines always have one.
#[test]
fn a_request_without_the_value_counts_by_its_fallback() {
    needs!(support::haproxy());
    for program in programs() {
        for key in ["\"key\", \"else ip\"", "\"key\", \"else null\""] {
            let policies = format!("[policy.api]\nlimits = \"3/d\"\nkey = [{key}]\n");
            for rule in ["# http-request deny status 503", "http-request deny status 503"] {
                let (haproxy, _folder) = start(&program, &policies, |text| {
                    text.replace("# http-request deny status 503", rule)
                });
                assert_eq!(passed(&haproxy, &[]), 3, "{:?}: {key}", program.version);
                assert_eq!(passed(&haproxy, &[("x-api-key", "a")]), 3, "{:?}", program.version);
            }
        }
    }
}
