//! The screen of `top`: a page of text, as wide and as high as it may be.

use std::collections::{BTreeMap, BTreeSet};

use gcra_limiter::haproxy_undecided;
use gcra_text::columns::{self, Column, Style, Styled, cut};
use gcra_text::count::Count;

use crate::agents::ListedAgent;
use crate::family::float;
use crate::status::{Connections, LatencyBound, PolicyStatus, Status};
use crate::status_sum::Together;
use crate::store_status::StoreStatus;
use crate::top::clients::{Which, client_rows, list};
use crate::top::describe::{
    bar, labelled, number, oddities, plain, quantile, rate, short, styled, sum, text, wrapped,
};

/// Below this height, only the title and a list of clients are shown.
const LOW: usize = 20;

/// The least lines of a part.
const LEAST: usize = 3;

/// An agent, and its status at two moments.
#[derive(Clone, Debug)]
pub struct Seen {
    pub agent: ListedAgent,
    /// Its status when it was last asked.
    pub before: Option<Status>,
}

impl Seen {
    /// How many a second were added to a count. `None` if there is nothing to compare with.
    fn rate(&self, count: impl Fn(&Status) -> u64) -> Option<f64> {
        let (now, before) = self.both()?;
        let elapsed = now.uptime_seconds.0 - before.uptime_seconds.0;
        (elapsed > 0.0).then(|| float(count(now).saturating_sub(count(before))) / elapsed)
    }

    fn both(&self) -> Option<(&Status, &Status)> {
        self.agent.status.as_ref().zip(self.before.as_ref())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub agents: Vec<Seen>,
    /// Which addresses did not answer, and why.
    pub(crate) troubles: Vec<String>,
    /// It is drawn again and again on a terminal, so the keys are named.
    pub(crate) is_live: bool,
    /// The list of clients, where there is only one.
    pub(crate) list: Which,
}

impl Screen {
    /// The page in lines. Without a height it has all lists of clients, and is as high as it needs
    /// to be.
    pub(crate) fn lines(&self, width: usize, height: Option<usize>) -> Vec<Styled> {
        let most = height.unwrap_or(usize::MAX);
        let together = Together::of(self.statuses());
        let mut lines = self.head(&together, width);
        let mut foot = Vec::new();
        if most >= LOW {
            let share = height.map_or(usize::MAX, |height| (height / 6).max(LEAST));
            lines.push(Styled::default());
            lines.extend(self.policies(&together, width, share));
            if self.agents.len() > 1 {
                lines.push(Styled::default());
                lines.extend(self.agents(width, share));
            }
            lines.push(Styled::default());
            foot.push(Styled::default());
            foot.extend(self.foot(&together, width));
        }
        let space = most.saturating_sub(lines.len() + foot.len()).max(LEAST);
        lines.extend(self.lists(&together, width, height.map(|_| space)));
        lines.extend(foot);
        lines.truncate(most);
        lines.into_iter().map(|line| line.fitted(width)).collect()
    }

    fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.agents.iter().filter_map(|seen| seen.agent.status.as_ref())
    }

    fn head(&self, together: &Together, width: usize) -> Vec<Styled> {
        let versions: BTreeSet<_> = self.statuses().map(|status| &*status.version).collect();
        let version = versions.into_iter().collect::<Vec<_>>().join(" and ");
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for status in self.statuses() {
            *states.entry(&status.state).or_default() += 1;
        }
        let states = match &states.into_iter().collect::<Vec<_>>()[..] {
            [(state, _)] => (*state).to_owned(),
            several => {
                let each = several.iter().map(|(state, count)| format!("{count} {state}"));
                each.collect::<Vec<_>>().join(", ")
            }
        };
        let up = || self.statuses().map(|status| status.uptime_seconds.0);
        let (least, most) = (up().fold(f64::MAX, f64::min), up().fold(0.0, f64::max));
        let (least, most) = (short(least).to_string(), short(most).to_string());
        let up = if least == most { least } else { format!("{least} to {most}") };
        let who = match (&self.agents[..], together.agents) {
            ([Seen { agent: ListedAgent { admin: Some(admin), .. }, .. }], 1) => {
                format!(" at {admin}")
            }
            (all, answered) if all.len() as u64 == answered => {
                format!(": {}", Count(answered, "agent", "agents"))
            }
            (all, answered) => format!(": {answered} of {} agents answered", all.len()),
        };
        let separator = if who.starts_with(':') { ", " } else { ": " };
        let title = format!("gcra-spoa {version}{who}{separator}{states}, up {up}");
        let mut lines = vec![Styled::new(title, Style::Bold)];
        let troubles = self.troubles.iter();
        lines.extend(troubles.map(|trouble| Styled::new(trouble, Style::Red)));
        let undecided = together.counts.haproxy_undecided_last_minute.iter();
        let undecided = undecided.map(|(err, count)| (&**err, *count));
        if let Some(about) = haproxy_undecided::about(undecided) {
            let words: Vec<_> = about.split(' ').map(str::to_owned).collect();
            lines.extend(wrapped("Last minute", &words, "", width, Style::Red));
        }
        if self.is_live {
            lines.push(Styled::new("Tab: next list; q: quit", Style::Dim));
        }
        lines
    }

    /// The sum over the agents; `None` if no agent has anything to compare with.
    fn rate(&self, count: impl Fn(&Status) -> u64) -> Option<f64> {
        let rates: Vec<_> = self.agents.iter().filter_map(|seen| seen.rate(&count)).collect();
        (!rates.is_empty()).then(|| rates.iter().sum())
    }

    /// How many decisions a second there are under each policy: allowed, blocked, would block, and
    /// undecided; and how many of these were allowed with a delay.
    fn decisions(&self) -> BTreeMap<&str, [f64; 5]> {
        let mut rates: BTreeMap<&str, [f64; 5]> = BTreeMap::new();
        for (now, before) in self.agents.iter().filter_map(Seen::both) {
            let elapsed = now.uptime_seconds.0 - before.uptime_seconds.0;
            let before: BTreeMap<_, _> =
                before.policies.iter().map(|policy| (&*policy.name, policy)).collect();
            for policy in now.policies.iter().filter(|_| elapsed > 0.0) {
                let sums = rates.entry(&policy.name).or_default();
                let counts = |policy: &PolicyStatus| {
                    let [allowed, blocked, undecided] =
                        ["allowed", "blocked", "undecided"].map(|it| policy.decided(it));
                    [allowed, blocked, policy.would_block(), undecided, policy.delayed]
                };
                let before = before.get(&*policy.name).map_or([0; 5], |policy| counts(policy));
                for ((sum, now), before) in sums.iter_mut().zip(counts(policy)).zip(before) {
                    *sum += float(now.saturating_sub(before)) / elapsed;
                }
            }
        }
        rates
    }

    fn policies(&self, together: &Together, width: usize, height: usize) -> Vec<Styled> {
        let rates = self.decisions();
        let mut rows: Vec<(String, [Option<f64>; 5])> = together
            .policies
            .iter()
            .map(|policy| {
                let known = rates.get(&*policy.name);
                let shared = if policy.shared.is_some() { " (shared)" } else { "" };
                let name = format!("{}{shared}", cut(&policy.name, 24));
                (name, std::array::from_fn(|outcome| known.map(|rates| rates[outcome])))
            })
            .collect();
        if rows.len() >= height {
            // Not all can be shown, so those where something happens come first.
            let busy = |[allowed, blocked, would_block, undecided, _]: [Option<f64>; 5]| {
                let denied = blocked.unwrap_or(0.0) + would_block.unwrap_or(0.0);
                (denied + undecided.unwrap_or(0.0), allowed.unwrap_or(0.0))
            };
            rows.sort_by(|(_, a), (_, b)| {
                busy(*b).partial_cmp(&busy(*a)).unwrap_or(std::cmp::Ordering::Equal)
            });
        }
        if together.counts.unmatched > 0 {
            let unmatched = self.rate(|status| status.counts.unmatched);
            let none = Some(0.0);
            rows.push(("(no policy)".to_owned(), [none, none, none, unmatched, none]));
        }
        let name = rows.iter().map(|(name, _)| plain(name.clone())).collect();
        let red = Style::Red;
        let rates = |place: usize, busy: Style| -> Vec<_> {
            rows.iter().map(|(_, rates)| styled(rate(rates[place]), rates[place], busy)).collect()
        };
        // A column of zeros says least.
        let rank = |place: usize, rank: u8| {
            let is_busy = rows.iter().any(|(_, rates)| rates[place] > Some(0.0));
            if is_busy { rank } else { rank + 10 }
        };
        let share = |[allowed, blocked, ..]: [Option<f64>; 5]| {
            let (allowed, blocked) = (allowed.unwrap_or(0.0), blocked.unwrap_or(0.0));
            let all = allowed + blocked;
            if all > 0.0 { format!("{:.1} %", blocked / all * 100.0) } else { "-".to_owned() }
        };
        let shares = rows.iter().map(|(_, rates)| plain(share(*rates))).collect();
        let mut columns = vec![
            Column { is_flexible: true, ..text("POLICY", name, 0) },
            number("ALLOWED/S", rates(0, Style::Plain), 0),
            number("BLOCKED/S", rates(1, red), 0),
            number("WOULD BLOCK/S", rates(2, red), rank(2, 2)),
            number("UNDECIDED/S", rates(3, Style::Yellow), rank(3, 3)),
            number("BLOCKED", shares, 4),
        ];
        // Most policies have no `max_delay`.
        if together.policies.iter().any(|policy| policy.delayed > 0) {
            let delayed = number("DELAYED/S", rates(4, Style::Yellow), rank(4, 2));
            columns.insert(2, delayed);
        }
        columns::lines(columns, width, height)
    }

    fn agents(&self, width: usize, height: usize) -> Vec<Styled> {
        let mut agents: Vec<_> = self.agents.iter().collect();
        if agents.len() >= height {
            // Not all can be shown, so those that have something to say come first.
            agents.sort_by_key(|seen| note(&seen.agent).is_empty());
        }
        let cells = |cell: &dyn Fn(&Seen) -> String| -> Vec<_> {
            agents.iter().map(|seen| plain(cell(seen))).collect()
        };
        let status = |seen: &Seen, what: &dyn Fn(&Status) -> String| {
            seen.agent.status.as_ref().map_or_else(|| "-".to_owned(), what)
        };
        let blocked =
            |status: &Status| sum(status.policies.iter().map(|policy| policy.decided("blocked")));
        let notes = agents.iter().map(|seen| (note(&seen.agent), Style::Yellow)).collect();
        let columns = vec![
            text("AGENT", cells(&|seen| seen.agent.pid.to_string()), 0),
            text(
                "ADMIN",
                cells(&|seen| seen.agent.admin.map_or("-".to_owned(), |admin| admin.to_string())),
                3,
            ),
            text("STATE", cells(&|seen| status(seen, &|status| cut(&status.state, 12))), 4),
            number(
                "UP",
                cells(&|seen| status(seen, &|status| short(status.uptime_seconds.0).to_string())),
                5,
            ),
            number(
                "NOTIFYS/S",
                cells(&|seen| rate(seen.rate(|status| status.counts.notifies.answered))),
                1,
            ),
            number("BLOCKED/S", cells(&|seen| rate(seen.rate(blocked))), 2),
            Column { is_flexible: true, ..text("", notes, 0) },
        ];
        columns::lines(columns, width, height)
    }

    /// The list of clients that is shown, in at most so many lines. Without a height these are all
    /// lists, one below the other.
    fn lists(&self, together: &Together, width: usize, height: Option<usize>) -> Vec<Styled> {
        let rows = client_rows(together);
        let window = self.statuses().map(|status| status.window_seconds.0).fold(0.0, f64::max);
        let list = |which| list(which, window, together, &rows);
        if let Some(height) = height {
            return columns::lines(list(self.list), width, height);
        }
        // This list is there only if it has a client.
        let has_would_block = rows.iter().any(|row| {
            row.counts[Which::WouldBlock as usize].is_some_and(|(requests, _)| requests > 0)
        });
        let lists = Which::ALL.into_iter();
        let lists = lists.filter(|which| *which != Which::WouldBlock || has_would_block);
        let lists: Vec<_> =
            lists.map(|which| columns::lines(list(which), width, usize::MAX)).collect();
        lists.join(&Styled::default())
    }

    pub(crate) fn next_list(&mut self) {
        self.list = match self.list {
            Which::Blocked => Which::WouldBlock,
            Which::WouldBlock => Which::Allowed,
            Which::Allowed => Which::Blocked,
        };
    }

    fn foot(&self, together: &Together, width: usize) -> Vec<Styled> {
        let mut lines = Vec::new();
        let mut tables: BTreeMap<&str, &Status> = BTreeMap::new();
        for status in self.statuses() {
            let known = tables.entry(&status.table.id).or_insert(status);
            if known.table.states.is_empty() {
                *known = status;
            }
        }
        for table in tables.values().map(|status| &status.table) {
            let live = table.states.get("live").copied().unwrap_or(0);
            let share = float(live) / float(table.slots.max(1));
            let agents = Count(table.processes, "agent uses it", "agents use it");
            let (bar, percent, slots) = (bar(share), share * 100.0, table.slots);
            let said = format!("{bar} {percent:.1} % of {slots} slots live; {agents}");
            lines.push(labelled("Table", &said, Style::Plain));
            let orders = table.orders.iter().filter(|(_, count)| **count > 0);
            let orders: Vec<_> = orders.map(|(order, count)| format!("{count} {order}")).collect();
            if !orders.is_empty() {
                let said =
                    format!("{} (gcra-spoa block --list, exempt --list)", orders.join(", "));
                lines.push(labelled("Orders", &said, Style::Yellow));
            }
        }
        let others = self.agents.iter().filter(|seen| seen.agent.same_limits == Some(false));
        let others = others.count();
        if others > 0 {
            let has = Count(others, "agent has", "agents have");
            let said =
                format!("{has} other limits than the first one; compare their flags and files");
            lines.push(labelled("Limits", &said, Style::Yellow));
        }
        if let Some(store) = &together.counts.store {
            let said = self.store(store);
            let words: Vec<_> = said.split(' ').map(str::to_owned).collect();
            let style = if store.up { Style::Plain } else { Style::Red };
            lines.extend(wrapped("Store", &words, "", width, style));
        }
        let Connections { open, accepted, .. } = &together.counts.connections;
        let said = format!("{open} open, {accepted} accepted since start");
        lines.push(labelled("Connections", &said, Style::Plain));
        lines.push(labelled("NOTIFYs", &self.notifies(), Style::Plain));
        let odd = oddities(together, tables.values().map(|status| &status.table));
        lines.extend(wrapped("Since start", &odd, ",", width, Style::Yellow));
        lines
    }

    /// "used; 2.5 asks/s, 12 requests wait, 350 cells held; 4 machines seen", or for how long it
    /// has been away.
    fn store(&self, store: &StoreStatus) -> String {
        if store.up {
            let asks = |store: &StoreStatus| store.asks.saturating_add(store.charges);
            let asks = self.rate(|status| status.counts.store.as_ref().map_or(0, asks));
            let waiting = Count(store.waiting, "request waits", "requests wait");
            let held = Count(store.leases.held_cells, "cell held", "cells held");
            let others = match store.leases.machines {
                0 => String::new(),
                all => format!("; {} seen", Count(all, "machine", "machines")),
            };
            return format!("used; {} asks/s, {waiting}, {held}{others}", rate(asks));
        }
        let away = match store.away_seconds {
            Some(away) => format!("AWAY for {}", short(away.0)),
            None => "AWAY for some keys".to_owned(),
        };
        let why = store.faults.first().map(|fault| format!("; {fault}"));
        format!("{away}{}", why.unwrap_or_default())
    }

    fn notifies(&self) -> String {
        let Some(new) = self.rate(|status| status.counts.notifies.answered) else {
            return "-".to_owned();
        };
        let per_second = format!("{}/s", rate(Some(new)));
        let mut buckets: Vec<LatencyBound> = Vec::new();
        for (now, before) in self.agents.iter().filter_map(Seen::both) {
            let pairs = now.counts.latency.buckets.iter().zip(&before.counts.latency.buckets);
            for (at, (now, before)) in pairs.enumerate() {
                let new = now.count.saturating_sub(before.count);
                match buckets.get_mut(at) {
                    Some(bucket) => bucket.count = bucket.count.saturating_add(new),
                    None => buckets.push(LatencyBound { count: new, ..*now }),
                }
            }
        }
        match (quantile(&buckets, 50), quantile(&buckets, 99)) {
            (Some(half), Some(most)) => {
                format!("{per_second}; p50 {half}, p99 {most} from read to written")
            }
            _ => per_second,
        }
    }
}

/// Trouble with an agent that an operator should know about. Empty if all is well.
fn note(agent: &ListedAgent) -> String {
    let limits = (agent.same_limits == Some(false)).then(|| "other limits".to_owned());
    [agent.why.clone(), limits].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcra_text::columns::length;

    use crate::family::Amount;
    use crate::sample::{agent, status};
    use crate::store_status::LeasesStatus;

    fn seen(pid: u32, allowed: u64, blocked: u64) -> Seen {
        let now = status(pid, 102, allowed, blocked);
        Seen { agent: agent(now), before: Some(status(pid, 100, 0, 0)) }
    }

    fn screen() -> Screen {
        Screen { agents: vec![seen(7, 2000, 500), seen(8, 100, 20)], ..Screen::default() }
    }

    fn text(screen: &Screen, width: usize, height: Option<usize>) -> String {
        let mut text = String::new();
        for line in screen.lines(width, height) {
            let line = line.to_string();
            assert!(length(&line) <= width, "{line}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    #[test]
    fn delayed_requests_have_a_column_where_there_are_some() {
        let mut screen = screen();
        let policy = |status: &mut Option<Status>, delayed| {
            status.as_mut().unwrap().policies[1].delayed = delayed;
        };
        assert!(!text(&screen, 100, None).contains("DELAYED/S"));
        policy(&mut screen.agents[0].before, 50);
        policy(&mut screen.agents[0].agent.status, 250);
        let page = text(&screen, 100, None);
        let wanted = "\
POLICY         ALLOWED/S  DELAYED/S  BLOCKED/S  WOULD BLOCK/S  UNDECIDED/S  BLOCKED
default             1050          0        260              0            0   19.8 %
login               2100        100        520              0            0   19.8 %
";
        assert!(page.contains(wanted), "{page}");
    }

    #[test]
    fn what_an_operator_reads() {
        let wanted = "\
gcra-spoa 0.1.0: 2 agents, serving, up 102 s

POLICY         ALLOWED/S  BLOCKED/S  WOULD BLOCK/S  UNDECIDED/S  BLOCKED
default             1050        260              0            0   19.8 %
login               2100        520              0            0   19.8 %
login.observe          0          0            260            0        -

AGENT  ADMIN           STATE       UP  NOTIFYS/S  BLOCKED/S
7      127.0.0.1:9007  serving  102 s       1250        750
8      127.0.0.1:9008  serving  102 s         60         30

BLOCKED, last 75 s  POLICY   BLOCKED/S  BLOCKED  ALLOWED/S  ALLOWED
192.0.2.1           login           10     1040       0.08        8
192.0.2.1           default        5.1      520       0.04        4
2001:db8:1:2::      default       0.06        6          0        0
2001:db8:1:2::      login         0.06        6          0        0

WOULD BLOCK, last 75 s  POLICY         WOULD BLOCK/S  WOULD BLOCK  ALLOWED/S  ALLOWED
192.0.2.1               login.observe            5.1          520          0        0

ALLOWED, last 75 s  POLICY   ALLOWED/S  ALLOWED  BLOCKED/S  BLOCKED
sk_l…(24)#a1b2c3    default         21     2100          0        0
sk_l…(24)#a1b2c3    login           21     2100          0        0
192.0.2.1           login         0.08        8         10     1040
192.0.2.1           default       0.04        4        5.1      520

Table        █████░░░░░░░░░░░░░░░ 25.0 % of 1048576 slots live; 2 agents use it
Connections  24 open, 690 accepted since start
NOTIFYs      1310/s; p50 ≤ 16 µs, p99 ≤ 4 ms from read to written
";
        let text = text(&screen(), 100, None);
        assert_eq!(text, wanted, "\n{text}");
    }

    #[test]
    fn one_agent_that_blocks_nothing_is_a_short_page() {
        let mut screen = Screen { agents: vec![seen(7, 2000, 0)], ..Screen::default() };
        if let Some(status) = &mut screen.agents[0].agent.status {
            status.policies.truncate(1);
            status.policies[0].top_blocked.clear();
        }
        let wanted = "\
gcra-spoa 0.1.0 at 127.0.0.1:9007: serving, up 102 s

POLICY   ALLOWED/S  BLOCKED/S  WOULD BLOCK/S  UNDECIDED/S  BLOCKED
default       1000          0              0            0    0.0 %

BLOCKED, last 75 s
none

ALLOWED, last 75 s  ALLOWED/S  ALLOWED  BLOCKED/S  BLOCKED
sk_l…(24)#a1b2c3           20     2000          0        0
192.0.2.1                0.02        2          0        0

Table        █████░░░░░░░░░░░░░░░ 25.0 % of 1048576 slots live; 2 agents use it
Connections  12 open, 345 accepted since start
NOTIFYs      1000/s; p50 ≤ 16 µs, p99 ≤ 4 ms from read to written
";
        let text = text(&screen, 100, None);
        assert_eq!(text, wanted, "\n{text}");
    }

    /// Whole columns and rows are missing, and the page says so.
    #[test]
    fn a_small_terminal_shows_what_matters_most() {
        let mut screen = screen();
        screen.is_live = true;
        screen.agents[1].agent.status = None;
        screen.agents[1].agent.why = Some("it has no --admin".to_owned());
        let wanted = "\
gcra-spoa 0.1.0: 1 of 2 agents answered, serving, up 102 s
Tab: next list; q: quit

POLICY         ALLOWED/S  BLOCKED/S  WOULD BLOCK/S  BLOCKED
login               2000        500              0   20.0 %
+2 more; 1 more column needs a wider terminal

AGENT  NOTIFYS/S  BLOCKED/S
7           1250        750
8              -          -  it has no --admin

BLOCKED, last 75 s  POLICY   BLOCKED/S  BLOCKED  ALLOWED/S
192.0.2.1           login          9.8     1000       0.04
192.0.2.1           default        4.9      500       0.02
2001:db8:1:2::      default       0.03        3          0
2001:db8:1:2::      login         0.03        3          0

Table        █████░░░░░░░░░░░░░░░ 25.0 % of 1048576 slots l…
Connections  12 open, 345 accepted since start
NOTIFYs      1250/s; p50 ≤ 16 µs, p99 ≤ 4 ms from read to w…
";
        let page = text(&screen, 60, Some(20));
        assert_eq!(page, wanted, "\n{page}");
        let wanted = "\
gcra-spoa 0.1.0: 1 of 2 agents answered, serving, up 102 s
Tab: next list; q: quit
BLOCKED, last 75 s  POLICY   BLOCKED/S  BLOCKED  ALLOWED/S
192.0.2.1           login          9.8     1000       0.04
192.0.2.1           default        4.9      500       0.02
+2 more; 1 more column needs a wider terminal
";
        let page = text(&screen, 60, Some(6));
        assert_eq!(page, wanted, "\n{page}");
    }

    #[test]
    fn trouble_is_shown() {
        let mut screen = screen();
        screen.troubles = vec!["no answer from 127.0.0.1:9101".to_owned()];
        screen.agents[1].agent.same_limits = Some(false);
        let status = screen.agents[0].agent.status.as_mut().unwrap();
        status.counts.notifies.handler_panics = 2;
        status.table.evictions = 7;
        status.counts.unmatched = 10;
        status.counts.config_reloads.insert("refused".to_owned(), 1);
        status.policies[0].decisions.insert("undecided".to_owned(), 4);
        status.policies[0].top_is_exact.blocked = false;
        let text = text(&screen, 100, None);
        for said in [
            "\nno answer from 127.0.0.1:9101\n",
            "\nLimits       1 agent has other limits than the first one; compare their flags and \
             files\n",
            "\n8      127.0.0.1:9008  serving  102 s         60         30  other limits\n",
            "\n(no policy)            0          0              0          5.0        -\n",
            "\nSince start  7 buckets evicted (table too small), 2 panics, 10 messages without a \
             policy,\n             4 messages undecided, 1 configuration refused\n",
            "\nBLOCKED, last 75 s, about ",
        ] {
            assert!(text.contains(said), "{said:?}: {text}");
        }
    }

    fn with_store(up: bool) -> Screen {
        let mut screen = screen();
        for (seen, asks) in screen.agents.iter_mut().zip([100, 20]) {
            let store = |asks| StoreStatus {
                up,
                away_seconds: (!up).then_some(Amount(12.5)),
                faults: if up { vec![] } else { vec!["a:6379: it is out of memory".to_owned()] },
                asks,
                waiting: 3,
                timed_out: 2,
                leases: LeasesStatus { held_cells: 350, machines: 4, ..LeasesStatus::default() },
                ..StoreStatus::default()
            };
            if let Some(status) = &mut seen.agent.status {
                status.counts.store = Some(store(asks));
                status.policies[0].shared = Some("share".to_owned());
                status.policies[0].without_store = [("allowed".to_owned(), 5)].into();
            }
            if let Some(status) = &mut seen.before {
                status.counts.store = Some(store(0));
            }
        }
        screen
    }

    #[test]
    fn a_store_has_one_line() {
        let usual = text(&with_store(true), 80, Some(24));
        for said in [
            "\nStore        used; 60 asks/s, 6 requests wait, 350 cells held; 4 machines seen\n",
            "\ndefault (shared)       1050        260",
            "\nSince start  10 messages decided without the store,\n",
        ] {
            assert!(usual.contains(said), "{said:?}: {usual}");
        }
        let away = text(&with_store(false), 80, Some(24));
        let said = "\nStore        AWAY for 12 s; a:6379: it is out of memory\n";
        assert!(away.contains(said), "{away}");
        let mut refused = with_store(false);
        let why = "192.0.2.7:6379: there is no connection: Connection refused (os error 111)";
        for store in refused.agents.iter_mut().filter_map(|seen| seen.agent.status.as_mut()) {
            store.counts.store.as_mut().unwrap().faults = vec![why.to_owned()];
        }
        let away = text(&refused, 80, Some(24));
        let said = "\nStore        AWAY for 12 s; 192.0.2.7:6379: there is no connection: \
                    Connection\n             refused (os error 111)\n";
        assert!(away.contains(said), "nothing of it is cut off: {away}");
        let high = text(&with_store(false), 100, Some(40));
        assert!(high.contains("4 requests stopped waiting for the store\n"), "{high}");
        assert!(!text(&screen(), 100, None).contains("Store "));
    }

    #[test]
    fn a_terminal_shows_one_list_at_a_time() {
        let mut screen = screen();
        for shown in ["BLOCKED, last", "WOULD BLOCK, last", "ALLOWED, last", "BLOCKED, last"] {
            let page = text(&screen, 80, Some(24));
            let lists: Vec<_> = page.lines().filter(|line| line.contains(", last 75 s")).collect();
            assert!(lists.len() == 1 && lists[0].starts_with(shown), "{page}");
            screen.next_list();
        }
    }

    #[test]
    fn clients_with_few_requests_each_are_not_named() {
        let mut screen = screen();
        for seen in &mut screen.agents {
            for policy in &mut seen.agent.status.as_mut().unwrap().policies {
                policy.top_blocked.clear();
            }
        }
        assert!(text(&screen, 100, None).contains("\nnone\n"));
        screen.agents[0].agent.status.as_mut().unwrap().policies[1].top_is_exact.blocked = false;
        assert!(text(&screen, 100, None).contains("\nno client with many requests\n"));
    }

    #[test]
    fn without_an_earlier_status_no_rate_is_shown() {
        let mut screen = screen();
        screen.agents.iter_mut().for_each(|seen| seen.before = None);
        let text = text(&screen, 100, None);
        assert!(text.contains("\ndefault                -          - "), "{text}");
        assert!(text.contains("\nNOTIFYs      -\n"), "{text}");
    }

    #[test]
    fn a_page_of_any_size_is_not_larger() {
        let mut screen = screen();
        screen.is_live = true;
        for width in (0..200).step_by(7) {
            for height in (0..60).step_by(3) {
                let lines = screen.lines(width, Some(height));
                assert!(lines.len() <= height, "{width}x{height}");
                assert!(lines.iter().all(|line| line.length() <= width), "{width}x{height}");
            }
        }
        assert!(!Screen::default().lines(80, Some(24)).is_empty());

        // Another process can write anything.
        let status = screen.agents[0].agent.status.as_mut().unwrap();
        status.state = "x".repeat(70_000);
        status.version = status.state.clone();
        status.uptime_seconds = Amount(-1.0);
        status.policies[0].name = status.state.clone();
        status.policies[0].top_blocked[0].client = status.state.clone();
        status.policies[0].top_blocked[0].per_second = Amount(1e15);
        assert!(screen.lines(80, None).iter().all(|line| line.length() <= 80));
    }
}
