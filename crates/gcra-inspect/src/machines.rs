//! [`Machines`]: agents that do what a command says, each on the machine that it runs on.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use futures_util::future::join_all;
use gcra_policy::file::read_text_within;
use gcra_text::output::{Output, WrongUsage, print, print_note};
use gcra_text::visible::Visible;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::agent_client::{Budget, Unheard, act, ask, resolved};
use crate::flags::parse_host_and_port;

/// How long a machine may take for one KEY. Its agent may wait for a store itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most machines of a command.
const MOST: usize = 1_000;

/// The most bytes of a file of addresses, and of one with a token.
const MOST_OF_FILE: u64 = 1 << 20;

/// The most bytes that are read of all lists together.
const MOST_BYTES: usize = 64 << 20;

/// Which machines are to do what the command says.
#[derive(Debug, clap::Args)]
pub struct MachineFlags {
    /// Do it on the machine of the agent with this --admin address, and not here
    ///
    /// May be given several times. All machines are asked at once. The exit status is 0 if all
    /// have done it. The agents need --admin-actions.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_host_and_port)]
    #[arg(conflicts_with_all = ["table", "config"])]
    pub admin: Vec<String>,
    /// The same for all addresses in a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["table", "config"])]
    pub agents: Option<PathBuf>,
    /// With --admin or --agents: the file of --admin-actions of these agents
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
}

/// Agents, one on each machine.
#[derive(Debug)]
pub struct Machines {
    addresses: Vec<String>,
    token: Option<String>,
}

impl MachineFlags {
    /// The machines that are named; `None` if the command is about this one. `needs_token` is
    /// whether the agents ask for a token.
    ///
    /// # Errors
    ///
    /// A file cannot be read or has a mistake, or a flag is missing.
    pub fn machines(&self, needs_token: bool) -> anyhow::Result<Option<Machines>> {
        let mut addresses = self.admin.clone();
        if let Some(file) = &self.agents {
            addresses.extend(listed(file)?);
        }
        addresses.sort();
        addresses.dedup();
        let token = self.token.as_deref().map(read_token).transpose()?;
        match (addresses.len(), &token) {
            (0, None) => return Ok(None),
            (0, Some(_)) => bail!(WrongUsage(
                "--token is for agents on other machines; name them with --admin HOST:PORT or \
                 --agents FILE"
                    .to_owned()
            )),
            (_, None) if needs_token => bail!(WrongUsage(
                "add --token FILE, a file with the token of --admin-actions of these agents"
                    .to_owned()
            )),
            (count, _) => {
                ensure!(count <= MOST, "{count} machines are named, and {MOST} are the most");
            }
        }
        Ok(Some(Machines { addresses, token }))
    }
}

/// The addresses in a file: one a line, without what is behind a '#'.
fn listed(file: &Path) -> anyhow::Result<Vec<String>> {
    let shown = file.display();
    let text = read_text_within(file, MOST_OF_FILE);
    let text = text.map_err(|why| anyhow!("could not read the agents of {shown}: {why}"))?;
    let mut addresses = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    for (number, line) in (1..).zip(text.lines()) {
        let address = line.split('#').next().unwrap_or_default().trim();
        if !address.is_empty() {
            let address = parse_host_and_port(address);
            addresses.push(address.map_err(|why| WrongUsage(format!("{shown}:{number}: {why}")))?);
        }
    }
    ensure!(!addresses.is_empty(), "{shown} names no agent; write HOST:PORT on a line for each");
    Ok(addresses)
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let text = read_text_within(file, MOST_OF_FILE);
    let text = text.map_err(|why| anyhow!("could not read the token of {shown}: {why}"))?;
    let token = text.lines().next().unwrap_or_default().trim();
    // Another byte would be a part of another header.
    ensure!(
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "the first line of {shown} is not the token of --admin-actions, which has only visible \
         ASCII characters"
    );
    Ok(token.to_owned())
}

/// The answer of an agent that has done something.
#[derive(Debug, Deserialize)]
struct Answered {
    /// At least one sentence. Without one it is the answer of another program.
    #[serde(deserialize_with = "sentences")]
    said: Vec<String>,
    whole: bool,
    /// Only an answer that has found nothing says so.
    #[serde(default = "yes")]
    found: bool,
}

/// The outcome of an action on a machine.
#[derive(Default)]
struct MachineOutcome {
    outputs: Vec<Output>,
    all_done: bool,
    /// Whether a body was about something that the machine has.
    found: bool,
    /// Whether there was no answer about a body.
    unheard: bool,
}

const fn yes() -> bool {
    true
}

fn sentences<'de, D: Deserializer<'de>>(said: D) -> Result<Vec<String>, D::Error> {
    let said = Vec::deserialize(said)?;
    if said.is_empty() { Err(D::Error::custom("it says nothing")) } else { Ok(said) }
}

impl Machines {
    /// Sends an action to all machines at once, with these bodies one after the other, each about
    /// a KEY or a policy. Prints a sentence for each machine and body. If some do not answer,
    /// prints `again`, what to do then. Returns the exit status: 0 if all have done all, and one
    /// has found something.
    ///
    /// # Errors
    ///
    /// There is no body, the output cannot be written, or the system has no resources left.
    pub fn act(
        &self,
        path: &str,
        bodies: &[Value],
        again: &str,
        json: bool,
    ) -> anyhow::Result<ExitCode> {
        if bodies.is_empty() {
            bail!(WrongUsage("there is nothing for the machines to do; name a KEY".to_owned()));
        }
        let each = self.addresses.iter().map(|address| self.act_on(address, path, bodies));
        let (mut all_done, mut found, mut unheard) = (true, false, false);
        for machine in run(join_all(each))? {
            print(json, machine.outputs)?;
            all_done &= machine.all_done;
            found |= machine.found;
            unheard |= machine.unheard;
        }
        if unheard {
            print_note(&format!("some machines have not answered; {again}"));
        }
        Ok(if all_done && found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn act_on(&self, at: &str, path: &str, bodies: &[Value]) -> MachineOutcome {
        let mut all = MachineOutcome { all_done: true, ..MachineOutcome::default() };
        let mut unreached = None;
        for body in bodies {
            let text = body.to_string();
            let answered = match unreached.take() {
                // It would not be reached for the next KEY either, and not answer.
                Some(unheard) => Err(unheard),
                None => self.act_once(at, path, &text).await,
            };
            all.found |= answered.as_ref().is_ok_and(|answered| answered.found);
            let (outcome, said) = match answered {
                Ok(Answered { said, found: false, whole: true }) => ("not found", said.join("; ")),
                Ok(Answered { said, whole: true, .. }) => ("done", said.join("; ")),
                Ok(Answered { said, whole: false, .. }) => ("done in part", said.join("; ")),
                Err(Unheard { why, is_refused: true, .. }) => ("refused", why),
                Err(Unheard { why, is_sent: true, .. }) => {
                    let next = "it has not answered about the KEY before".to_owned();
                    unreached = Some(next.into());
                    ("not answered", format!("{why}; it may still do it"))
                }
                Err(unheard) => ("not reached", unreached.insert(unheard).why.clone()),
            };
            // A client may have a bucket on one of the machines only.
            all.all_done &= ["done", "not found"].contains(&outcome);
            all.unheard |= ["not answered", "not reached"].contains(&outcome);
            let key = body["key"].as_str().unwrap_or_default();
            let of = if bodies.len() > 1 { format!("{}: ", Visible(key)) } else { String::new() };
            all.outputs.push(Output {
                words: format!("{at}: {of}{outcome}: {said}"),
                json: json!({
                    "agent": at,
                    "key": body["key"],
                    "outcome": outcome.replace(' ', "_"),
                    "said": said,
                }),
            });
        }
        all
    }

    async fn act_once(&self, address: &str, path: &str, body: &str) -> Result<Answered, Unheard> {
        let token = self.token.as_deref().unwrap_or_default();
        // Another address may be of the same agent, which has it then.
        let is_last = |unheard: &Unheard| unheard.is_sent || unheard.is_refused;
        at_an_address(address, is_last, |socket| act(socket, path, body, token, PATIENCE)).await
    }

    /// Asks all machines at once for a path. Returns each address with its answer, or with why
    /// there is none.
    ///
    /// # Errors
    ///
    /// The system has no resources left.
    pub fn ask(&self, path: &str) -> anyhow::Result<Vec<(&str, Result<Value, String>)>> {
        let budget = &Budget::new(MOST_BYTES);
        let each = self.addresses.iter().map(|address| {
            at_an_address(address, |_| false, move |socket| ask(socket, path, PATIENCE, budget))
        });
        let answers = run(join_all(each))?;
        Ok(self.addresses.iter().map(String::as_str).zip(answers).collect())
    }
}

/// Asks an agent at one of its addresses after the other, up to an answer or a fault that
/// `is_last`.
async fn at_an_address<T, E: From<String>, F: Future<Output = Result<T, E>>>(
    host_and_port: &str,
    is_last: impl Fn(&E) -> bool,
    ask: impl Fn(SocketAddr) -> F,
) -> Result<T, E> {
    let late = |_| format!("'{host_and_port}' has got no address in time");
    let found = timeout(PATIENCE, resolved(host_and_port)).await.map_err(late).flatten()?;
    let mut outcome = Err(String::new().into());
    for socket in found {
        outcome = ask(socket).await;
        if outcome.as_ref().err().is_none_or(&is_last) {
            break;
        }
    }
    outcome
}

fn run<T>(asking: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("could not start to ask the agents")?.block_on(asking))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_of_agents_has_an_address_on_each_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            fs::write(file.path(), text).unwrap();
            listed(file.path()).map_err(|error| error.to_string())
        };
        let text = "# of Berlin\n\n a.example:9101 # the first\n127.0.0.1:1\n";
        assert_eq!(read(text).unwrap(), ["a.example:9101", "127.0.0.1:1"]);
        assert!(read("# none\n").unwrap_err().ends_with("write HOST:PORT on a line for each"));
        assert!(read("a:1\nb\n").unwrap_err().contains(":2: 'b' has no port"));
        assert_eq!(read("\u{feff}a:1\r\nb:2\r\n").unwrap(), ["a:1", "b:2"]);
        for several in ["a:1,b:2", "a:1 b:2", "a:1; b:2"] {
            let said = read(several).unwrap_err();
            assert!(said.contains(&format!(":1: '{several}' is not one address")), "{said}");
        }
        let endless = listed(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.ends_with("it is a device; name a regular file"), "{endless}");
    }

    #[test]
    fn an_answer_without_a_sentence_is_not_of_an_agent() {
        let read = |json: &str| serde_json::from_str::<Answered>(json);
        assert_eq!(read("{\"said\": [\"x\"], \"whole\": true}").unwrap().said, ["x"]);
        for wrong in ["{}", "{\"whole\": true}", "{\"said\": [], \"whole\": true}"] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_token_is_no_other_header() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            fs::write(file.path(), text).unwrap();
            read_token(file.path())
        };
        assert_eq!(read(" correct-horse \nmore").unwrap(), "correct-horse");
        for wrong in ["", "\nx", "a b", "a\rHost: b"] {
            read(wrong).unwrap_err();
        }
    }
}
