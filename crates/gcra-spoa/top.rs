//! `gcra-spoa top`: what an agent does now, on one screen.
//!
//! It reads `/status` once a second, and draws what follows from the last two answers. A terminal
//! and plain text show the same.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use ratatui::{Frame, Terminal};

use crate::cli::Top;
use crate::duration::Short;
use crate::output::write_stdout;
use crate::plural::Count;
use crate::status::{Bucket, Client, Policy, Status};

/// How often the agent is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read: more than any status has.
const MAX_ANSWER: u64 = 4 << 20;

/// The width of plain text, in columns.
const WIDTH: u16 = 100;

/// Watches an agent until 'q' is pressed, or for one second.
///
/// # Errors
///
/// The agent does not answer at the start, or the terminal cannot be used.
pub(crate) fn run(what: &Top) -> anyhow::Result<()> {
    let first = fetch(what.admin)?;
    let mut screen = Screen {
        address: what.admin,
        before: Status::default(),
        now: first,
        trouble: None,
        is_live: !what.once,
    };
    if what.once {
        thread::sleep(PERIOD);
        screen.update();
        if let Some(trouble) = screen.trouble {
            bail!(trouble);
        }
        return write_stdout(&screen.plain()?);
    }
    let mut terminal = ratatui::try_init()
        .context("this is not a terminal to draw on; use 'gcra-spoa top --once' for plain text")?;
    let outcome = watch(&mut screen, |screen| terminal.draw(|frame| screen.draw(frame)).map(drop));
    ratatui::restore();
    outcome.context("could not draw on the terminal")
}

fn watch(screen: &mut Screen, mut draw: impl FnMut(&Screen) -> io::Result<()>) -> io::Result<()> {
    let mut next = Instant::now() + PERIOD;
    loop {
        draw(screen)?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => true,
                    KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
                    _ => false,
                }
            {
                return Ok(());
            }
        } else {
            screen.update();
            next = Instant::now() + PERIOD;
        }
    }
}

/// Asks an agent for its status.
fn fetch(address: SocketAddr) -> anyhow::Result<Status> {
    let ask = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // With HTTP/1.0 the connection ends after the answer.
        write!(stream, "GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| {
        anyhow!(
            "no answer from {address}: {error}; start an agent with --admin {address}, or name \
             the address of another one"
        )
    })?;
    let body = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .and_then(|end| answer.get(end + 4..));
    match body {
        Some(body) if answer.starts_with(b"HTTP/1.") && answer.get(8..12) == Some(b" 200") => {
            serde_json::from_slice(body).with_context(|| {
                format!("the program at {address} is not a gcra-spoa of this version")
            })
        }
        _ => bail!("the program at {address} is not a gcra-spoa; use the --admin of an agent"),
    }
}

/// What is drawn.
struct Screen {
    address: SocketAddr,
    before: Status,
    now: Status,
    /// Why `now` could not be updated.
    trouble: Option<String>,
    /// It is drawn again and again on a terminal.
    is_live: bool,
}

impl Screen {
    fn update(&mut self) {
        match fetch(self.address) {
            Ok(status) => {
                self.before = std::mem::replace(&mut self.now, status);
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(format!("{error:#}")),
        }
    }

    /// The same as on a terminal that is high enough for all lines.
    fn plain(&self) -> anyhow::Result<String> {
        let clients = [Blocked, Allowed].map(|which| self.clients(which).len()).into_iter().max();
        let lines = self.head().len()
            + self.policies().len()
            + 1
            + clients.unwrap_or(0)
            + self.foot().len();
        let height = u16::try_from(lines).unwrap_or(u16::MAX);
        let mut terminal = Terminal::new(TestBackend::new(WIDTH, height))?;
        let drawn = terminal.draw(|frame| self.draw(frame))?;
        Ok(text(drawn.buffer))
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let (head, policies, foot) = (self.head(), self.policies(), self.foot());
        let fixed = |lines: &[Line<'_>]| {
            Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX))
        };
        let rows = Layout::vertical([
            fixed(&head),
            fixed(&policies),
            Constraint::Length(1),
            Constraint::Min(0),
            fixed(&foot),
        ]);
        let [top, middle, _, lists, bottom] = frame.area().layout(&rows);
        let [left, _, right] = lists.layout(&Layout::horizontal([
            Constraint::Fill(1),
            Constraint::Length(2),
            Constraint::Fill(1),
        ]));
        let buffer = frame.buffer_mut();
        put(head, top, buffer);
        put(policies, middle, buffer);
        put(self.clients(Blocked).iter().map(|row| row.line(left.width)).collect(), left, buffer);
        put(
            self.clients(Allowed).iter().map(|row| row.line(right.width)).collect(),
            right,
            buffer,
        );
        put(foot, bottom, buffer);
    }

    fn head(&self) -> Vec<Line<'static>> {
        let Status { version, state, uptime_seconds, .. } = &self.now;
        let title = format!(
            "gcra-spoa {version} at {}: {state}, up {}{}",
            self.address,
            short(*uptime_seconds),
            if self.is_live { "; q quits" } else { "" }
        );
        let mut lines = vec![Line::from(title).bold()];
        lines.extend(self.trouble.iter().map(|trouble| Line::from(trouble.clone()).red()));
        lines.push(Line::default());
        lines
    }

    /// Seconds between the two; `None` if the agent was restarted in between.
    fn elapsed(&self) -> Option<f64> {
        let elapsed = self.now.uptime_seconds - self.before.uptime_seconds;
        let same =
            self.now.start_time_seconds.to_bits() == self.before.start_time_seconds.to_bits();
        (same && elapsed > 0.0).then_some(elapsed)
    }

    fn policies(&self) -> Vec<Line<'static>> {
        let mut lines = vec![heading(format!(
            "{:<20} {:>12} {:>12} {:>14} {:>12} {:>10}",
            "POLICY", "ALLOWED/S", "BLOCKED/S", "WOULD BLOCK/S", "UNDECIDED/S", "BLOCKED"
        ))];
        for policy in &self.now.policies {
            let before = self.before.policies.iter().find(|before| before.name == policy.name);
            let [allowed, blocked, would_block, undecided] =
                ["allowed", "blocked", "would_block", "undecided"].map(|outcome| {
                    let elapsed = self.elapsed()?;
                    let count =
                        |policy: &Policy| policy.decisions.get(outcome).copied().unwrap_or(0);
                    let new = count(policy).saturating_sub(before.map_or(0, count));
                    Some(float(new) / elapsed)
                });
            let refused = blocked.unwrap_or(0.0) + would_block.unwrap_or(0.0);
            let all = refused + allowed.unwrap_or(0.0);
            let share =
                if all > 0.0 { format!("{:.1} %", refused / all * 100.0) } else { "-".to_owned() };
            let busy = if refused > 0.0 { Style::new().red() } else { Style::new() };
            let odd = if undecided > Some(0.0) { Style::new().yellow() } else { Style::new() };
            lines.push(Line::from(vec![
                Span::raw(format!("{:<20} {:>12} ", cut(&policy.name, 20), rate(allowed))),
                Span::styled(format!("{:>12} {:>14} ", rate(blocked), rate(would_block)), busy),
                Span::styled(format!("{:>12} ", rate(undecided)), odd),
                Span::raw(format!("{share:>10}")),
            ]));
        }
        lines
    }

    fn clients(&self, which: Which) -> Vec<ClientRow> {
        let (title, list): (_, fn(&Policy) -> &[Client]) = match which {
            Blocked => ("MOST BLOCKED", |policy| &policy.top_blocked),
            Allowed => ("MOST ALLOWED", |policy| &policy.top_allowed),
        };
        let several = self.now.policies.len() > 1;
        let mut clients: Vec<(u64, String)> = Vec::new();
        for policy in &self.now.policies {
            clients.extend(list(policy).iter().map(|client| {
                let of = if several { format!("{}: ", policy.name) } else { String::new() };
                (client.requests, of + &client.client)
            }));
        }
        clients.sort_by(|(a, a_name), (b, b_name)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
        let is_exact = self.now.policies.iter().all(|policy| policy.top_is_exact);
        let about = if is_exact { "" } else { "about " };
        let mut rows = vec![ClientRow {
            name: format!("{title}, last {}", short(self.now.window_seconds)),
            requests: format!("{about}requests").to_uppercase(),
            is_heading: true,
        }];
        if clients.is_empty() {
            // If not all requests were counted, there may be many clients with a few each.
            let name = if is_exact { "none" } else { "none with many" }.to_owned();
            rows.push(ClientRow { name, requests: String::new(), is_heading: false });
        }
        rows.extend(clients.into_iter().map(|(requests, name)| ClientRow {
            name,
            requests: requests.to_string(),
            is_heading: false,
        }));
        rows
    }

    fn foot(&self) -> Vec<Line<'static>> {
        let Status { table, connections, notifies, .. } = &self.now;
        let live = table.states.get("live").copied().unwrap_or(0);
        let share = float(live) / float(table.slots.max(1));
        let agents = Count(table.processes, "agent uses it", "agents use it");
        let mut lines = vec![
            Line::default(),
            Line::from(format!(
                "{:<12} {} {:.1} % of {} slots live; {agents}",
                "Table",
                bar(share),
                share * 100.0,
                table.slots
            )),
            Line::from(format!(
                "{:<12} {} open, {} accepted since start",
                "Connections", connections.open, connections.accepted
            )),
            Line::from(format!("{:<12} {}", "NOTIFYs", self.notifies())),
        ];
        let errors: u64 = connections.protocol_errors.values().sum();
        let timeouts = connections.ended.get("timeout").copied().unwrap_or(0);
        let refused = self.now.config_reloads.get("refused").copied().unwrap_or(0);
        let odd: Vec<_> = [
            Count(
                table.evictions,
                "bucket evicted (table too small)",
                "buckets evicted (table too small)",
            ),
            Count(notifies.handler_panics, "panic", "panics"),
            Count(notifies.shed, "NOTIFY without a decision", "NOTIFYs without a decision"),
            Count(notifies.overdue, "late reply overdue", "late replies overdue"),
            Count(self.now.unmatched, "message without a policy", "messages without a policy"),
            Count(errors, "protocol error", "protocol errors"),
            Count(timeouts, "connection timed out", "connections timed out"),
            Count(
                connections.accept_errors,
                "connection not accepted",
                "connections not accepted",
            ),
            Count(table.gave_up, "request given up", "requests given up"),
            Count(refused, "configuration refused", "configurations refused"),
        ]
        .iter()
        .filter(|count| count.0 > 0)
        .map(ToString::to_string)
        .collect();
        if !odd.is_empty() {
            lines.push(Line::from(format!("{:<12} {}", "Since start", odd.join(", "))).yellow());
        }
        lines
    }

    fn notifies(&self) -> String {
        let Some(elapsed) = self.elapsed() else {
            return "-".to_owned();
        };
        let new = self.now.notifies.answered.saturating_sub(self.before.notifies.answered);
        let per_second = format!("{}/s", rate(Some(float(new) / elapsed)));
        let buckets: Vec<_> = self
            .now
            .latency
            .buckets
            .iter()
            .zip(&self.before.latency.buckets)
            .map(|(now, before)| Bucket { count: now.count.saturating_sub(before.count), ..*now })
            .collect();
        match (quantile(&buckets, 50), quantile(&buckets, 99)) {
            (Some(half), Some(most)) => {
                format!("{per_second}; from read to written p50 {half}, p99 {most}")
            }
            _ => per_second,
        }
    }
}

#[derive(Clone, Copy)]
enum Which {
    Blocked,
    Allowed,
}
use Which::{Allowed, Blocked};

struct ClientRow {
    name: String,
    requests: String,
    is_heading: bool,
}

impl ClientRow {
    fn line(&self, width: u16) -> Line<'static> {
        let width = usize::from(width).saturating_sub(self.requests.len() + 1);
        let text = format!("{:<width$} {}", cut(&self.name, width), self.requests);
        if self.is_heading { heading(text) } else { Line::from(text) }
    }
}

fn heading(text: String) -> Line<'static> {
    Line::from(text).dim()
}

fn put(lines: Vec<Line<'_>>, area: Rect, buffer: &mut Buffer) {
    for (line, row) in lines.into_iter().zip(area.rows()) {
        line.render(row, buffer);
    }
}

/// The text of a buffer, without colours.
fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width.max(1))) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The bound below which this many percent lie.
fn quantile(buckets: &[Bucket], percent: u64) -> Option<String> {
    let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let mut below = 0;
    let bucket = buckets.iter().find(|bucket| {
        below += bucket.count;
        total > 0 && below * 100 >= total * percent
    })?;
    Some(match bucket.at_most_seconds {
        Some(bound) if bound < 0.001 => format!("≤ {:.0} µs", bound * 1e6),
        Some(bound) => format!("≤ {:.0} ms", bound * 1e3),
        None => "> 1 s".to_owned(),
    })
}

fn bar(share: f64) -> String {
    const WIDTH: u32 = 20;
    let filled =
        (1..=WIDTH).filter(|step| share * f64::from(WIDTH) + 0.5 >= f64::from(*step)).count();
    (0..WIDTH as usize).map(|place| if place < filled { '█' } else { '░' }).collect()
}

fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".to_owned(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn short(seconds: f64) -> Short {
    // The numbers are another process's, so they may be anything.
    Short(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn with a few digits")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime: f64, allowed: u64, blocked: u64) -> Status {
        let client = |client: &str, requests| Client { client: client.to_owned(), requests };
        let policy = |name: &str, factor| Policy {
            name: name.to_owned(),
            decisions: [
                ("allowed", allowed * factor),
                ("blocked", blocked * factor),
                ("would_block", 0),
            ]
            .map(|(outcome, count)| (outcome.to_owned(), count))
            .into(),
            top_blocked: vec![client("192.0.2.1", blocked * factor), client("2001:db8:1:2::", 3)],
            top_would_block: Vec::new(),
            top_allowed: vec![client("sk_l…(24)#a1b2c3", allowed)],
            top_is_exact: true,
        };
        let mut status = Status {
            version: "0.1.0".to_owned(),
            state: "serving".to_owned(),
            uptime_seconds: uptime,
            window_seconds: 75.0,
            policies: vec![policy("default", 1), policy("login", 2)],
            ..Status::default()
        };
        status.notifies.answered = allowed + blocked;
        status.connections.open = 12;
        status.connections.accepted = 345;
        status.table.slots = 1 << 20;
        status.table.processes = 2;
        status.table.states.insert("live".to_owned(), 1 << 18);
        let bound = |micros: f64| Some(micros / 1e6);
        status.latency.buckets = vec![
            Bucket { at_most_seconds: bound(8.0), count: allowed / 2 },
            Bucket { at_most_seconds: bound(16.0), count: allowed / 2 + blocked },
            Bucket { at_most_seconds: bound(4096.0), count: allowed / 20 },
            Bucket { at_most_seconds: None, count: 0 },
        ];
        status
    }

    fn screen() -> Screen {
        Screen {
            address: "127.0.0.1:9101".parse().unwrap(),
            before: status(100.0, 0, 0),
            now: status(102.0, 2000, 500),
            trouble: None,
            is_live: false,
        }
    }

    #[test]
    fn what_an_operator_reads() {
        let wanted = "\
gcra-spoa 0.1.0 at 127.0.0.1:9101: serving, up 102 s

POLICY                  ALLOWED/S    BLOCKED/S  WOULD BLOCK/S  UNDECIDED/S    BLOCKED
default                      1000          250              0            0     20.0 %
login                        2000          500              0            0     20.0 %

MOST BLOCKED, last 75 s                  REQUESTS  MOST ALLOWED, last 75 s                  \
                      REQUESTS
login: 192.0.2.1                             1000  default: sk_l…(24)#a1b2c3                    \
                      2000
default: 192.0.2.1                            500  login: sk_l…(24)#a1b2c3                      \
                      2000
default: 2001:db8:1:2::                         3
login: 2001:db8:1:2::                           3

Table        █████░░░░░░░░░░░░░░░ 25.0 % of 1048576 slots live; 2 agents use it
Connections  12 open, 345 accepted since start
NOTIFYs      1250/s; from read to written p50 ≤ 16 µs, p99 ≤ 4 ms
";
        assert_eq!(screen().plain().unwrap(), wanted);
    }

    #[test]
    fn trouble_is_shown() {
        let mut screen = screen();
        screen.now.notifies.handler_panics = 2;
        screen.now.table.evictions = 7;
        screen.now.policies[0].top_is_exact = false;
        screen.trouble = Some("no answer from 127.0.0.1:9101".to_owned());
        let text = screen.plain().unwrap();
        for said in [
            "\nno answer from 127.0.0.1:9101\n",
            "Since start  7 buckets evicted (table too small), 2 panics\n",
            "ABOUT REQUESTS",
        ] {
            assert!(text.contains(said), "{said:?}: {text}");
        }
    }

    #[test]
    fn clients_with_few_requests_each_are_not_named() {
        let mut screen = screen();
        for policy in &mut screen.now.policies {
            policy.top_blocked.clear();
        }
        assert!(screen.plain().unwrap().contains("\nnone  "));
        screen.now.policies[1].top_is_exact = false;
        assert!(screen.plain().unwrap().contains("\nnone with many  "));
    }

    #[test]
    fn after_a_restart_no_rate_is_shown() {
        let mut screen = screen();
        screen.before.start_time_seconds = 1.0;
        let text = screen.plain().unwrap();
        assert!(text.contains("default                         -            - "), "{text}");
        assert!(text.contains("NOTIFYs      -\n"), "{text}");
    }

    #[test]
    fn a_terminal_of_any_size_can_be_drawn_on() {
        let screen = screen();
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
        }
    }
}
