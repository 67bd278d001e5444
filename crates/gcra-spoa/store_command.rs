//! `gcra-spoa store check`: whether several machines can share limits through a store.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use gcra_store::{Finding, Kind};
use serde_json::json;

use crate::cli::StoreSource;
use crate::output::{Output, print, print_mistakes, print_warnings};
use crate::policy;
use crate::policy::secrets::Readers;

/// Looks at a store, prints what was found, and returns the exit status: 1 if something is wrong.
///
/// # Errors
///
/// A file that is named cannot be read, or has no store.
pub(crate) fn run(source: StoreSource, json: bool) -> anyhow::Result<ExitCode> {
    let settings = match source {
        StoreSource::Flags(settings) => {
            print_warnings(&settings.remarks());
            *settings
        }
        StoreSource::File(file) => match policy::file::read(&file, Readers::OfFile) {
            Err(mistakes) => return Ok(print_mistakes(&mistakes)),
            Ok(policies) => {
                print_warnings(&policies.warnings);
                let Some(settings) = policies.store else {
                    bail!(
                        "{} has no store; write [store], and below it url = \
                         \"redis://HOST:PORT\"",
                        file.display()
                    );
                };
                settings
            }
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime
        .block_on(gcra_store::check(settings.config()))
        .context("cannot read the certificates")?;
    let wrong = findings.iter().any(|finding| finding.kind == Kind::Wrong);
    print(json, [said(&findings, !wrong)])?;
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
