//! `gcra-spoa store check`: whether several machines can share limits through a store.

use std::process::ExitCode;

use anyhow::Context as _;
use gcra_store::{Config, Finding, Kind, Password};
use serde_json::json;

use crate::cli::{StoreCheck, StoreCommand};
use crate::output::{Output, print};

/// Looks at a store, prints what was found, and returns the exit status: 1 if something is wrong.
///
/// # Errors
///
/// A file that is named cannot be read.
pub(crate) fn run(command: &StoreCommand) -> anyhow::Result<ExitCode> {
    let StoreCommand::Check(StoreCheck { store, password_file, password_env, ca, json }) = command;
    let mut config = Config::new(store.clone());
    config.authorities.clone_from(ca);
    config.password = match (password_file, password_env) {
        (Some(file), _) => Password::File(file.clone()),
        (None, Some(name)) => Password::Variable(name.clone()),
        (None, None) => Password::None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings =
        runtime.block_on(gcra_store::check(config)).context("cannot read the certificates")?;
    let wrong = findings.iter().any(|finding| finding.kind == Kind::Wrong);
    print(*json, [said(&findings, !wrong)])?;
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn said(findings: &[Finding], can_be_used: bool) -> Output {
    let word = |kind| match kind {
        Kind::Good => "good",
        Kind::Remark => "remark",
        Kind::Wrong => "wrong",
    };
    let lines = findings.iter().map(|it| format!("{:<6}  {}", word(it.kind), it.text));
    let conclusion = if can_be_used {
        "limits can be shared through this store"
    } else {
        "limits cannot be shared through this store as it is"
    };
    let words = lines.chain([conclusion.to_owned()]).collect::<Vec<_>>().join("\n");
    let list = findings.iter().map(|it| json!({ "kind": word(it.kind), "text": it.text }));
    let json = json!({ "ok": can_be_used, "findings": list.collect::<Vec<_>>() });
    Output { words, json }
}
