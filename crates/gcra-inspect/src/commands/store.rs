//! `gcra-spoa store check`: whether several machines can share limits through a store.

use clap::Subcommand;
use gcra_policy::file::document;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gcra_policy::flags::StoreFlags;
use gcra_policy::secrets::Readers;
use gcra_policy::{Limit, Policies, Policy, Rule};
use gcra_store::{Finding, Kind};
use gcra_text::duration::Short;
use gcra_text::output::{Mistakes, Output, WrongUsage, print, print_warnings};
use serde_json::json;

/// The commands on a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Say whether a store can be used, and what is wrong with it
    ///
    /// It writes what an agent writes when it connects. The exit status is 1 if something is
    /// wrong.
    #[command(after_help = STORE_HELP)]
    Check(StoreCheck),
}

/// Which store to check.
#[derive(Debug, clap::Args)]
#[group(id = "place", required = true, multiple = false, args = ["store", "config"])]
pub struct StoreCheck {
    #[command(flatten)]
    pub store: StoreFlags,
    /// The file of agents, for the store in it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) const STORE_HELP: &str = "\
A store is Valkey 8 or 9 or Redis 7. Its address is one of
  redis://[USER@]HOST[:PORT][/DATABASE]
  unix://[USER@]PATH
  redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT].../NAME[/DATABASE]
  redis+cluster://[USER@]HOST[:PORT],HOST[:PORT]...
and with TLS it begins with rediss.

Examples:
  gcra-spoa store check --store redis://store.example
  gcra-spoa store check --store rediss://gcra@store.example --store-ca ca.pem
  gcra-spoa store check --config /etc/gcra-spoa/gcra-spoa.toml";

/// Looks at a store, prints what was found, and returns the exit status: 1 if something is wrong.
///
/// # Errors
///
/// A file that is named cannot be read, or has no store.
pub fn run(check: StoreCheck) -> anyhow::Result<ExitCode> {
    let StoreCheck { store, config, json } = check;
    let (settings, policies) = match store.settings().map_err(WrongUsage::from)? {
        Some(settings) => {
            print_warnings(&settings.remarks());
            (settings, None)
        }
        None => {
            // clap takes care that there is one of the two.
            let file = config.unwrap_or_default();
            let policies = document::read(&file, Readers::OfFile).map_err(Mistakes)?;
            print_warnings(&policies.warnings);
            let Some(settings) = policies.store.clone() else {
                bail!(
                    "{} has no store; write [store], and below it url = \"redis://HOST:PORT\"",
                    file.display()
                );
            };
            (settings, Some(policies))
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime
        .block_on(gcra_store::check(settings.config()))
        .context("cannot read the certificates")?;
    let call = findings.iter().filter_map(|finding| finding.call).max();
    let slow = call.zip(policies.as_ref());
    let slow = slow.map(|(call, policies)| too_slow(policies, call, settings.wait));
    let wrong = findings.iter().any(|finding| finding.kind == Kind::Wrong);
    print(json, [said(&findings, &slow.unwrap_or_default(), !wrong)])?;
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A sentence about each policy whose requests may need more calls in turn than they have time
/// for: a call takes this long.
fn too_slow(policies: &Policies, call: Duration, wait: Duration) -> Vec<String> {
    let shared = policies.without_trials().filter(|policy| policy.shared.is_some());
    let slow = shared.filter_map(|policy| {
        let calls = calls_in_turn(policies, policy);
        let all = call.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
        // Of one call the check has said it already.
        (calls > 1 && all > wait).then(|| {
            let [call, all] = [call, all].map(|time| time.as_secs_f64() * 1e3);
            format!(
                "policy '{}': a request may need {calls} calls, one after the other, because of \
                 its limits; with {call:.1} ms for each these take {all:.1} ms, and a request \
                 waits for {} at most and is decided without the store then; raise wait, or take \
                 fewer limits",
                policy.name,
                Short(wait)
            )
        })
    });
    slow.collect()
}

/// How many calls a request of a policy may need, one after the other: one for each limit and each
/// limit on trial. Where requests wait for several limits, these are looked at before that, all
/// but the first.
fn calls_in_turn(policies: &Policies, policy: &Policy) -> usize {
    let calls = |limits: &[Limit]| {
        let delaying = limits.iter().filter(|limit| limit.quota(None).max_delay().0 > 0).count();
        limits.len() + delaying.saturating_sub(1)
    };
    let trial = policy.trial.and_then(|trial| policies.list.get(trial));
    let own = calls(policy.rule.limits()) + trial.map_or(0, |trial| calls(trial.rule.limits()));
    let overrides = policy.overrides.rules.iter().map(Rule::limits).map(calls);
    overrides.max().unwrap_or(0).max(own)
}

fn said(findings: &[Finding], slow: &[String], can_be_used: bool) -> Output {
    let word = |kind| match kind {
        Kind::Good => "good",
        Kind::Remark => "remark",
        Kind::Wrong => "wrong",
    };
    let all = findings.iter().map(|it| (word(it.kind), &it.text));
    let all = all.chain(slow.iter().map(|text| (word(Kind::Remark), text)));
    let lines = all.clone().map(|(word, text)| format!("{word:<6}  {text}"));
    let conclusion = if can_be_used {
        "limits can be shared through this store"
    } else {
        "limits cannot be shared through this store as it is"
    };
    let words = lines.chain([conclusion.to_owned()]).collect::<Vec<_>>().join("\n");
    let list = all.map(|(word, text)| json!({ "kind": word, "text": text }));
    let json = json!({ "ok": can_be_used, "findings": list.collect::<Vec<_>>() });
    Output { words, json }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use gcra_policy::file::document::parse;

    #[test]
    fn calls_that_take_longer_together_than_a_request_waits_are_told() {
        let text = "[store]\nurl = \"redis://store.example\"\n\
                    [policy.one]\nlimits = \"1/s\"\nshared = true\nkey = [\"ip\"]\n\
                    [policy.lent]\nlimits = [\"1/s\", \"20/m\", \"900/h\"]\nshared = true\n\
                    observe = [\"2/s\"]\nkey = [\"ip\"]\n\
                    overrides = { \"192.0.2.1\" = \"2/s\" }\n\
                    [policy.asked]\nlimits = [\"1/s\", \"20/m\", \"900/h\"]\nshared = true\n\
                    key = [\"ip\"]\nmax_delay = \"1s\"\nwithout_store = \"closed\"\n\
                    [policy.local]\nlimits = [\"1/s\", \"20/m\", \"900/h\"]\nkey = [\"ip\"]\n";
        let policies = parse(Path::new("gcra-spoa.toml"), text).unwrap();
        let told = |call: u64| {
            let (call, wait) = (Duration::from_millis(call), Duration::from_millis(20));
            too_slow(&policies, call, wait)
        };
        assert!(told(4).is_empty(), "5 times 4 ms are 20 ms: {:?}", told(4));
        let [asked] = &told(5)[..] else { panic!("{:?}", told(5)) };
        let words = "policy 'asked': a request may need 5 calls, one after the other, because of \
                     its limits; with 5.0 ms for each these take 25.0 ms, and a request waits for \
                     20 ms at most";
        assert!(asked.starts_with(words), "{asked}");
        let [lent, _] = &told(6)[..] else { panic!("{:?}", told(6)) };
        assert!(lent.starts_with("policy 'lent': a request may need 4 calls"), "{lent}");
    }
}
