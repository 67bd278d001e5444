//! `gcra-spoa top`: what the agents of a table do now, on one screen.
//!
//! It reads `/status` of the given agents once a second, and shows what follows from the last two
//! answers of each agent. A terminal and plain text show the same.

use gcra_inspect::flags::{parse_host_and_port, table_of_commands};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal;
use futures_util::future::join_all;
use gcra_inspect::agent_client::{Budget, ask, resolved};
use gcra_policy::table_error::TableError;
use gcra_table::Table;
use gcra_text::columns::Styled;
use gcra_text::output::write_stdout;
use gcra_text::visible::{Visible, escaped_json, is_hidden};
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Builder;

use crate::agents::ListedAgent;
use crate::status::Status;
use crate::status_sum::Together;
use crate::top::screen::{Screen, Seen};
use crate::top::terminal::Terminal;

/// Which agents to watch, and how.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// The --admin address of an agent, which tells about all agents of its table
    ///
    /// May be given several times, for agents on several machines. Without it the addresses are
    /// looked up in the table; if it has none, 127.0.0.1:9101 is asked.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_host_and_port)]
    pub admin: Vec<String>,
    /// The table in which agents are looked up without --admin [default: as for 'table info']
    #[arg(long, value_name = "PATH", conflicts_with = "admin")]
    pub table: Option<PathBuf>,
    /// Watch for one second and print the result as plain text
    #[arg(long)]
    pub once: bool,
    /// With --once: print the result in JSON
    #[arg(long, requires = "once")]
    pub json: bool,
}

impl Top {
    /// The table in which agents are looked up.
    pub fn table(&self) -> PathBuf {
        self.table.clone().unwrap_or_else(table_of_commands)
    }
}

/// How often the agents are asked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often keys and answers are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// How long an agent may take to answer: it may wait a second for others itself.
const PATIENCE: Duration = Duration::from_secs(3);

/// The most bytes that are read of all answers at a time: more than any agent sends.
const MOST_BYTES: usize = 64 << 20;

/// The address that is asked if the table has none.
const DEFAULT_ADMIN: &str = "127.0.0.1:9101";

/// How many agents of a table are asked, one after another, until one answers.
const MOST_CANDIDATES: usize = 8;

/// The width of plain text that does not go to a terminal, in columns.
const WIDTH: u16 = 100;

/// The part of `/status` that `top` reads.
#[derive(Debug, Deserialize)]
struct Answer {
    agents: Vec<ListedAgent>,
}

/// One answer for each address, or why there is none.
type Answers = Vec<Result<Answer, String>>;

/// Watches agents until 'q' is pressed, or for one second.
///
/// # Errors
///
/// No agent answers at the start, or the terminal cannot be used.
pub fn run(what: &Top) -> anyhow::Result<()> {
    let (answers, first) = find_agents(what)?;
    let mut screen = Screen { is_live: !what.once, ..Screen::default() };
    update(&mut screen, first);
    if what.once {
        update(&mut screen, answers.recv().context("no agent could be asked again")?);
        if what.json {
            let agents: Vec<_> = screen.agents.iter().map(|seen| &seen.agent).collect();
            let statuses = agents.iter().filter_map(|agent| agent.status.as_ref());
            let together = Together::of(statuses);
            let all = json!({
                "together": together,
                "agents": agents,
                "no_answer": screen.troubles,
            });
            return write_stdout(&format!("{}\n", escaped_json(&all.to_string())));
        }
        let size = terminal::size().ok().filter(|_| io::stdout().is_terminal());
        let width = size.map_or(WIDTH, |(width, _)| width);
        return write_stdout(&text(&screen.lines(width.into(), None)));
    }
    let mut terminal = Terminal::open()
        .context("this is not a terminal to draw on; use 'gcra-spoa top --once' for plain text")?;
    let outcome = watch(&mut screen, &answers, &mut terminal);
    drop(terminal);
    outcome.context("could not draw on the terminal")
}

/// Starts to ask the agents that are meant, of which at least one has answered. Without `--admin`
/// this is the first agent of the table that answers, because it tells about the others.
fn find_agents(what: &Top) -> anyhow::Result<(Receiver<Answers>, Answers)> {
    let (candidates, otherwise) = match &what.admin[..] {
        [] => listed_agents(what),
        named => {
            let otherwise = "start an agent with --admin, and name its address here with --admin";
            (vec![named.to_vec()], otherwise.to_owned())
        }
    };
    let mut reasons = Vec::new();
    for addresses in candidates {
        let answers = start_asking(addresses)?;
        let first = answers.recv().context("no agent could be asked")?;
        if first.iter().any(Result::is_ok) {
            return Ok((answers, first));
        }
        reasons.extend(first.into_iter().find_map(Result::err));
    }
    reasons.push(otherwise);
    bail!("{}", reasons.join("; "));
}

/// The addresses of the agents that the table lists, to be asked one after another; and what to do
/// if none answers.
fn listed_agents(what: &Top) -> (Vec<Vec<String>>, String) {
    let path = what.table();
    let table = Table::inspect(&path).map_err(|error| TableError(error).to_string());
    let processes = table.iter().flat_map(|table| table.board().processes());
    let listed: BTreeSet<SocketAddr> =
        processes.filter_map(|process| process.profile?.admin).collect();
    let path = path.display();
    let otherwise = match (&table, listed.is_empty()) {
        (Err(why), _) => format!("{why}; name the --admin address of an agent with --admin"),
        (Ok(_), true) => format!(
            "no running agent of the table {path} has an --admin address; start one with --admin, \
             or name the address of another agent with --admin"
        ),
        (Ok(_), false) => format!("these are the --admin addresses in the table {path}"),
    };
    let listed = listed.iter().take(MOST_CANDIDATES);
    let mut candidates: Vec<_> = listed.map(|admin| vec![admin.to_string()]).collect();
    if candidates.is_empty() && what.table.is_none() {
        candidates.push(vec![DEFAULT_ADMIN.to_owned()]);
    }
    (candidates, otherwise)
}

fn watch(
    screen: &mut Screen,
    answers: &Receiver<Answers>,
    terminal: &mut Terminal,
) -> io::Result<()> {
    let mut is_new = true;
    loop {
        for answers in answers.try_iter() {
            update(screen, answers);
            is_new = true;
        }
        if is_new {
            terminal.draw(|width, height| screen.lines(width, Some(height)))?;
        }
        is_new = event::poll(LOOK)?;
        if is_new
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(());
                }
                KeyCode::Tab => screen.next_list(),
                _ => {}
            }
        }
    }
}

/// Asks all addresses once a second, on a thread of its own, so that keys work while agents are
/// slow to answer.
fn start_asking(addresses: Vec<String>) -> anyhow::Result<Receiver<Answers>> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start to ask the agents")?;
    // One answer waits at most: if nobody takes it, no further question is asked.
    let (sender, answers) = mpsc::sync_channel(0);
    let ask = move || {
        loop {
            let next = Instant::now() + PERIOD;
            // The receiver is gone when the program ends.
            if sender.send(runtime.block_on(ask_all(&addresses))).is_err() {
                return;
            }
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    };
    thread::Builder::new()
        .name("asking".to_owned())
        .spawn(ask)
        .context("could not start to ask the agents")?;
    Ok(answers)
}

async fn ask_all(addresses: &[String]) -> Answers {
    join_all(addresses.iter().map(|address| ask_one(address))).await
}

/// Asks an agent at `HOST:PORT`. A name can have several addresses, of which the first that
/// answers is the right one.
async fn ask_one(address: &str) -> Result<Answer, String> {
    let mut said = String::new();
    for address in resolved(address).await? {
        let budget = Budget::new(MOST_BYTES);
        match ask::<Answer>(address, "/status", PATIENCE, &budget).await {
            Ok(answer) => return Ok(answer),
            Err(why) => said = why,
        }
    }
    Err(said)
}

/// Puts the answers in the place of the ones before.
fn update(screen: &mut Screen, answers: Answers) {
    let (mut agents, mut troubles) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => agents.push(answer.agents),
            Err(why) => troubles.push(Visible(&why).to_string()),
        }
    }
    screen.troubles = troubles;
    if agents.is_empty() {
        // The last picture stays.
        return;
    }
    let mut known: HashMap<_, _> = screen
        .agents
        .drain(..)
        .filter_map(|seen| Some((seen.agent.status.as_ref()?.identity(), seen)))
        .collect();
    for agent in merged(agents) {
        let identity = agent.status.as_ref().map(Status::identity);
        let last = identity.and_then(|identity| known.remove(&identity));
        let before = match last {
            None => None,
            // The same answer as a moment ago: the agent has given it twice.
            Some(Seen { agent: last, before }) if uptime(&last) == uptime(&agent) => before,
            Some(Seen { agent: last, .. }) => last.status,
        };
        screen.agents.push(Seen { agent, before });
    }
}

fn uptime(agent: &ListedAgent) -> Option<u64> {
    agent.status.as_ref().map(|status| status.uptime_seconds.0.to_bits())
}

/// The agents of several answers, each once: agents of one table list each other.
fn merged(answers: Vec<Vec<ListedAgent>>) -> Vec<ListedAgent> {
    let mut merged: Vec<ListedAgent> = Vec::new();
    let (mut identities, mut entries) = (HashSet::new(), HashSet::new());
    let mut silent = Vec::new();
    for agents in answers {
        // All agents in an answer are of the table of the one that answers.
        let table = agents.iter().find_map(|agent| agent.status.as_ref());
        let table = table.map(|status| status.table.id.clone()).unwrap_or_default();
        for agent in agents {
            let entry = agent.entry.map(|entry| (table.clone(), entry));
            match &agent.status {
                Some(status) if identities.insert(status.identity()) => {
                    entries.extend(entry);
                    merged.push(agent);
                }
                Some(_) => {}
                None => silent.push((entry, agent)),
            }
        }
    }
    for (entry, agent) in silent {
        if entry.is_none_or(|entry| entries.insert(entry)) {
            merged.push(agent);
        }
    }
    merged
}

/// The lines without colours, and without what could move a cursor.
fn text(lines: &[Styled]) -> String {
    let mut text = String::new();
    for line in lines {
        let all: String = line.to_string().chars().filter(|c| !is_hidden(*c)).collect();
        text.push_str(all.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcra_text::columns::Style;

    use crate::family::Amount;
    use crate::sample::{agent, status};

    fn answer(agents: impl IntoIterator<Item = ListedAgent>) -> Result<Answer, String> {
        Ok(Answer { agents: agents.into_iter().collect() })
    }

    fn silent(pid: u32) -> ListedAgent {
        let why = Some("it has no --admin".to_owned());
        ListedAgent { status: None, why, ..agent(status(pid, 100, 0, 0)) }
    }

    fn pids(screen: &Screen) -> Vec<u32> {
        screen.agents.iter().map(|seen| seen.agent.pid).collect()
    }

    #[test]
    fn an_agent_that_several_answers_have_is_counted_once() {
        let mut screen = Screen::default();
        let of = |pid, uptime| agent(status(pid, uptime, 100, 10));
        // Another machine has an agent with the same process id, in another table.
        let mut elsewhere = of(7, 100);
        if let Some(status) = &mut elsewhere.status {
            status.table.id = "another".to_owned();
        }
        // 8 could not be asked by 7, but answers itself; 9 is silent to both.
        update(
            &mut screen,
            vec![
                answer([of(7, 100), silent(8), silent(9)]),
                answer([of(8, 100), of(7, 100), silent(9)]),
                answer([elsewhere, silent(9)]),
            ],
        );
        assert_eq!(pids(&screen), [7, 8, 7, 9, 9], "two tables");
    }

    #[test]
    fn rates_are_between_two_answers_of_one_agent() {
        let mut screen = Screen::default();
        let mut next = |uptime, started| {
            let mut status = status(7, uptime, 100, 10);
            status.start_time_seconds = Amount(started);
            update(&mut screen, vec![answer([agent(status)])]);
            let before = screen.agents[0].before.as_ref();
            before.map(|before| before.uptime_seconds.0)
        };
        assert_eq!(next(100, 5.0), None);
        assert_eq!(next(101, 5.0), Some(100.0));
        assert_eq!(next(101, 5.0), Some(100.0), "the same answer again");
        assert_eq!(next(102, 5.0), Some(101.0));
        assert_eq!(next(103, 6.0), None, "it was restarted");
    }

    #[test]
    fn the_last_picture_stays_while_no_agent_answers() {
        let mut screen = Screen::default();
        update(&mut screen, vec![answer([agent(status(7, 100, 1, 1))])]);
        update(&mut screen, vec![Err("no answer".to_owned())]);
        assert_eq!(
            (pids(&screen), &screen.troubles[..]),
            (vec![7], &["no answer".to_owned()][..])
        );
        update(&mut screen, vec![answer([agent(status(7, 101, 1, 1))])]);
        assert!(screen.troubles.is_empty());
    }

    #[test]
    fn what_a_name_says_never_moves_the_cursor() {
        let text = text(&[Styled::new("a\x1b[2Jb", Style::Plain)]);
        assert_eq!(text, "a[2Jb\n");
    }
}
