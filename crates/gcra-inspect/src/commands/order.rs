//! `gcra-spoa exempt` and `gcra-spoa block`: orders about clients, in all agents of a table.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use gcra_policy::key::Key;
use gcra_policy::policy_id;
use gcra_policy::table_error::TableError;
use gcra_table::Table;
use gcra_table::board::{LONGEST_NOTE, Order, OrderKind};
use gcra_text::count::Count;
use gcra_text::duration;
use gcra_text::duration::{Exact, Left, parse_moment};
use gcra_text::output::{Output, print, print_note, write_stdout};
use gcra_text::visible::{Visible, quoted};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::client_buckets::notes;
use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::former_orders::{self, ListedOrder, fits};
use crate::inspected_table;
use crate::inspected_table::{Inspected, PolicySource};
use crate::machines::{MachineFlags, Machines};
use crate::order_state::{OrderState, OrderWords, end_in_words};
use crate::orders::{
    SHORTEST_ORDER, Subject, Terms, check, is_full, longest_order, notes_to_end, on_this_machine,
    subjects, this_user,
};
use crate::process_state::is_used;
use crate::store_orders::{
    GivesToStore, NO_SPACE, StateInStore, end_everywhere, missing_orders, note_on_end, was_ended,
    where_it_has_ended, where_it_holds_if,
};

/// Which clients an order is about, and for how long.
#[derive(Debug, clap::Args)]
pub struct OrderArgs {
    #[command(flatten)]
    pub of: PolicyFlags,
    #[command(flatten)]
    pub at: At,
    #[command(flatten)]
    pub on: MachineFlags,
    /// How long, from now on: a whole number and a unit (s, m, h or d), from 10s to 7d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    #[arg(required_unless_present_any = ["until", "end", "list", "plain"])]
    #[arg(allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// Until when: 2026-11-29T09:00 by the local clock, or with a zone, as 2026-11-29T09:00Z
    #[arg(long, value_name = "MOMENT", value_parser = parse_until, conflicts_with = "time")]
    #[arg(allow_hyphen_values = true)]
    pub until: Option<Duration>,
    /// Why, for those who list it: at most 64 bytes
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    pub note: Option<String>,
    /// End these orders now
    #[arg(long, conflicts_with_all = ["time", "until", "note"])]
    pub end: bool,
    /// List the orders in force
    #[arg(long, conflicts_with_all = ["time", "until", "note", "end", "keys"])]
    pub list: bool,
    /// List only addresses and networks, one a line, for nftables or HAProxy
    #[arg(long, conflicts_with_all = ["time", "until", "note", "end", "keys", "json", "admin"])]
    #[arg(conflicts_with = "agents")]
    pub plain: bool,
    /// The keys of the clients, or a network; see below
    #[arg(value_name = "KEY", required_unless_present_any = ["list", "plain"])]
    #[arg(value_parser = key_parser())]
    pub keys: Vec<Key>,
}

macro_rules! order_help {
    () => {
        "
A KEY may also be a network, such as 10.1.2.0/24, where the key of the policy is
one address. The most specific order about a client counts, and of equally
specific ones the newest. "
    };
}

pub const EXEMPT_HELP: &str = concat!(
    key_help!(),
    order_help!(),
    "'gcra-spoa block' does the opposite.

Examples:
  gcra-spoa exempt --for 1h 192.0.2.7
  gcra-spoa exempt --policy login --for 1h 192.0.2.7,alice
  gcra-spoa exempt --until 2026-11-29T09:00 --note 'load test' 10.1.2.0/24
  gcra-spoa exempt --end 192.0.2.7
  gcra-spoa exempt --for 1h 192.0.2.7 --admin a:9101 --token actions.token
  gcra-spoa exempt --list

All agents of the table follow within about two seconds. Requests of an exempt
client are allowed and charged nothing. An exemption survives restarts of agents
and resizes of the table, and ends by itself. If the agents have a store, it
holds on all machines that use the store."
);

pub const BLOCK_HELP: &str = concat!(
    key_help!(),
    order_help!(),
    "'gcra-spoa exempt' does the opposite.

Examples:
  gcra-spoa block --for 1h 192.0.2.7
  gcra-spoa block --policy login --for 1h 192.0.2.7,alice
  gcra-spoa block --until 2026-11-29T09:00 --note 'INC-4711 anna' 10.1.2.0/24
  gcra-spoa block --end 192.0.2.7
  gcra-spoa block --for 1h 192.0.2.7 --agents agents.txt --token actions.token
  gcra-spoa block --list --plain

All agents of the table follow within about two seconds. Requests of a blocked
client are blocked and charged nothing, and get no Retry-After. A block survives
restarts of agents and resizes of the table, and ends by itself. If the agents
have a store, it holds on all machines that use the store."
);

pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let range = SHORTEST_ORDER..=longest_order();
    let time = duration::parse(text).filter(|time| range.contains(time));
    time.ok_or_else(|| {
        let right = match duration::sum(text).filter(|sum| range.contains(sum)) {
            Some(sum) => format!("one unit: {}", Exact(sum)),
            None => "a whole number and a unit, such as 30m or 1h".to_owned(),
        };
        let (least, most) = (Exact(SHORTEST_ORDER), Exact(longest_order()));
        format!("'{text}' is not a time from {least} to {most}; write {right}")
    })
}

/// How long it is until a moment.
fn parse_until(text: &str) -> Result<Duration, String> {
    let Some(moment) = parse_moment(text) else {
        return Err(format!(
            "'{text}' is not a moment; write a date and a time, such as 2026-11-29T09:00, or \
             with a zone, 2026-11-29T09:00+01:00"
        ));
    };
    let left = moment.duration_since(SystemTime::now()).unwrap_or_default();
    let range = SHORTEST_ORDER..=longest_order();
    if range.contains(&left) {
        return Ok(left);
    }
    let (least, most) = (Exact(SHORTEST_ORDER), Exact(longest_order()));
    let when = match left.is_zero() {
        true => "has passed".to_owned(),
        false => format!("is {} from now", Left(left)),
    };
    Err(format!("'{text}' {when}; write a moment from {least} to {most} from now"))
}

fn parse_note(text: &str) -> Result<String, String> {
    let bytes = text.len();
    if bytes > LONGEST_NOTE {
        return Err(format!("the note has {bytes} bytes, and {LONGEST_NOTE} are the most"));
    }
    Ok(text.to_owned())
}

/// Gives, ends or lists orders, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn run(kind: OrderKind, args: &OrderArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked { kind, args };
    if let Some(machines) = args.on.machines(!args.list)? {
        return asked.elsewhere(&machines);
    }
    if args.list || args.plain {
        return asked.list();
    }
    let OrderArgs { of, at, time, until, note, keys, .. } = args;
    let what = format!("gcra-spoa {}", OrderWords::of(kind).command);
    let inspected = Inspected::open(at.path(), of.config.as_deref(), &what)?;
    let terms = time.or(*until).map(|time| Terms {
        kind,
        time,
        note: note.clone().unwrap_or_default(),
        giver: on_this_machine(&this_user()),
    });
    let mut store = GivesToStore::of(&inspected)?;
    let mut done = false;
    for (at, key) in keys.iter().enumerate() {
        let later = keys.len() - at - 1;
        done |= match &terms {
            Some(terms) => asked.begin(terms, &inspected, store.as_mut(), key, later)?,
            None => asked.end(&inspected, store.as_mut(), key)?,
        };
    }
    let is_whole = store.is_none_or(|store| store.is_well());
    Ok(if done && is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The command that was given.
#[derive(Clone, Copy)]
struct Asked<'a> {
    kind: OrderKind,
    args: &'a OrderArgs,
}

impl Asked<'_> {
    /// Gives an order about the clients that a key means. Returns whether an agent follows now.
    /// `later` is the number of KEYs that come after it.
    fn begin(
        self,
        terms: &Terms,
        inspected: &Inspected,
        mut store: Option<&mut GivesToStore>,
        key: &Key,
        later: usize,
    ) -> anyhow::Result<bool> {
        let OrderArgs { of, at, .. } = self.args;
        let subjects = subjects(inspected, of.policy.as_deref(), key)?;
        let about_all = check(inspected, key, &subjects, self.kind)?;
        about_all.iter().for_each(|note| print_note(note));
        if of.policy.is_none()
            && let Some(note) = self.about_policies(inspected, key, &subjects)
        {
            print_note(&note);
        }
        let is_used = is_used(&inspected.table);
        for (place, subject) in subjects.iter().enumerate() {
            let about = subject.client.iter().flat_map(|client| notes(inspected, client));
            about.for_each(|note| print_note(&note));
            let policy = subject.policy(inspected);
            let before = subject.order(inspected);
            subject.give(inspected, terms).map_err(|error| {
                let policies = subjects[place..].iter().map(|it| &*it.policy(inspected).name);
                anyhow!("{error}; {}", without_order(key, place, policies, later))
            })?;
            let in_store = store.as_mut().map(|it| it.give(inspected, subject, terms));
            let (followed, note) = where_it_holds_if(is_used, in_store.as_ref());
            let no_longer = match &before {
                Some(before) if before.kind != self.kind => {
                    format!(", and no longer {}", OrderWords::of(before.kind).state)
                }
                _ => String::new(),
            };
            let said = format!(
                "{} for {}, until {}{no_longer}, {followed}; to end it: {}",
                self.words().state,
                terms.time_in_words(),
                end_in_words(terms.time),
                self.command_to_end(inspected, subject)
            );
            let words = subject.about(inspected, &said);
            let name = Some(&*policy.name);
            let json = self.in_json(key, name, &subject.name, &before, terms.time, note);
            print(at.json, [Output { words, json }])?;
        }
        Ok(is_used)
    }

    /// Gives, ends or lists orders on other machines.
    fn elsewhere(self, machines: &Machines) -> anyhow::Result<ExitCode> {
        let OrderArgs { of, at, time, until, note, keys, list, .. } = self.args;
        if *list {
            return self.list_elsewhere(machines);
        }
        // An order for no time ends one.
        let seconds = time.or(*until).map_or(0, |time| {
            let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            whole.min(longest_order().as_secs())
        });
        let body = |key: &Key| {
            let mut body = json!({ "key": key.text, "for_seconds": seconds });
            let giver = (seconds > 0).then(|| on_this_machine(&this_user()));
            let texts = [("policy", of.policy.clone()), ("note", note.clone()), ("giver", giver)];
            for (name, text) in texts.into_iter().filter_map(|(name, text)| Some((name, text?))) {
                body[name] = text.into();
            }
            body
        };
        let path = format!("/actions/{}", self.words().command);
        // An order for a time would end later there than elsewhere.
        let again = match time {
            Some(time) => format!(
                "give this order again with --until '{}' in place of --for: that changes nothing \
                 on machines that did it",
                end_in_words(*time)
            ),
            None if until.is_some() => {
                "give this order again: that changes nothing on machines that did it".to_owned()
            }
            None => "end it there again".to_owned(),
        };
        machines.act(&path, &keys.iter().map(body).collect::<Vec<_>>(), &again, at.json)
    }

    /// Prints the orders of this kind that other machines have.
    fn list_elsewhere(self, machines: &Machines) -> anyhow::Result<ExitCode> {
        let OrderArgs { of, at, .. } = self.args;
        let mut status = 0;
        for (address, live) in machines.ask("/live")? {
            let is_asked = |order: &Value| {
                OrderState::read(order).is_some_and(|state| state.kind == self.kind)
                    && of.policy.as_deref().is_none_or(|it| order["policy"].as_str() == Some(it))
            };
            let all = live.and_then(|mut live| match live["configuration"]["orders"].take() {
                Value::Array(mut all) => {
                    all.retain(is_asked);
                    Ok((all, live))
                }
                _ => Err("it is no agent, or one of another version".to_owned()),
            });
            let no_policy = |live| of.policy.as_ref().and_then(|it| no_policy(live, it));
            let (failure, lines, orders, note) = match all {
                Err(why) => (1, vec![format!("not known: {why}")], None, Some(why)),
                Ok((orders, live)) => match no_policy(&live).filter(|_| orders.is_empty()) {
                    // As for wrong usage.
                    Some(why) => (2, vec![format!("refused: {why}")], None, Some(why)),
                    None => {
                        let note = what_is_missing(&live);
                        let none = format!("no client is {}", self.words().state);
                        let none = orders.is_empty().then_some(none).into_iter();
                        let lines = none.chain(orders.iter().filter_map(order_elsewhere));
                        (0, lines.chain(note.clone()).collect(), Some(orders), note)
                    }
                },
            };
            status = status.max(failure);
            let words = lines.iter().map(|line| format!("{address}: {line}")).collect::<Vec<_>>();
            let reached = failure != 1;
            let json =
                json!({ "agent": address, "reached": reached, "orders": orders, "note": note });
            print(at.json, [Output { words: words.join("\n"), json }])?;
        }
        Ok(ExitCode::from(status))
    }

    /// Whether an order is of this kind, and about the policy that is named, if one is.
    fn is_asked(self, order: &Order) -> bool {
        let policy = self.args.of.policy.as_ref();
        order.kind == self.kind && policy.is_none_or(|it| order.policy == policy_id(it))
    }

    fn words(self) -> OrderWords {
        OrderWords::of(self.kind)
    }

    /// Says which policies an order is for, if these are several.
    fn about_policies(
        self,
        inspected: &Inspected,
        key: &Key,
        subjects: &[Subject],
    ) -> Option<String> {
        let names = |subjects: &mut dyn Iterator<Item = &Subject>| {
            let mut names: Vec<_> =
                subjects.map(|subject| &*subject.policy(inspected).name).collect();
            names.dedup();
            names
        };
        let all = names(&mut subjects.iter());
        let known = names(&mut subjects.iter().filter(|it| it.is_in_table(inspected)));
        if all.len() < 2 {
            return None;
        }
        let one = match &known[..] {
            [only] => format!(
                "the table knows this key under '{only}' only, for which --policy {only} is enough"
            ),
            _ => "for only one of these, add --policy NAME".to_owned(),
        };
        Some(format!(
            "without --policy, {} is {} each policy whose key it can be: {}, which takes {}; \
             {one}",
            Visible(&key.text),
            self.words().state_by,
            all.join(", "),
            Count(subjects.len(), "entry", "entries")
        ))
    }

    /// Ends the orders of this kind about the clients that a key means. Where there is none, it
    /// ends those that were made with this key while the policies made other keys, and those that
    /// are listed under this name. Returns whether there was one.
    fn end(
        self,
        inspected: &Inspected,
        mut store: Option<&mut GivesToStore>,
        key: &Key,
    ) -> anyhow::Result<bool> {
        let OrderArgs { of, at, .. } = self.args;
        let noun = self.words().noun;
        let found = subjects(inspected, of.policy.as_deref(), key);
        let subjects = found.as_deref().unwrap_or_default();
        let former =
            former_orders::of_key(inspected, self.kind, of.policy.as_deref(), key, subjects);
        let mut has_ended = false;
        for subject in subjects {
            let policy = subject.policy(inspected);
            let before = subject.order(inspected);
            let here = before.as_ref().filter(|order| order.kind == self.kind);
            let mut note = None;
            let state = store.as_ref().and_then(|it| it.state(inspected, subject, self.kind));
            let said = match state {
                _ if here.is_some() || state == Some(StateInStore::Stands) => {
                    let store = store.as_deref_mut();
                    let ended = end_everywhere(inspected, store, subject, self.kind, here)?;
                    has_ended = true;
                    note = note_on_end(ended.as_ref());
                    format!("the {noun} has ended, {}", where_it_has_ended(ended.as_ref()))
                }
                _ if former.iter().any(|order| policy.is_meant_by(order)) => continue,
                Some(StateInStore::Ended(ago)) => {
                    has_ended = true;
                    let said = format!("the {noun} {}", was_ended(ago));
                    note = Some(said.clone());
                    said
                }
                Some(StateInStore::Stands) | None => match subject.deciding(inspected) {
                    Some(order) => format!(
                        "there was no {noun} of this KEY; it is {}",
                        OrderState::of(&order, &inspected.table).in_words_for(&subject.name)
                    ),
                    None => format!("there was no {noun}"),
                },
            };
            let words = subject.about(inspected, &said);
            let (name, none) = (Some(&*policy.name), Duration::ZERO);
            let json = self.in_json(key, name, &subject.name, &before, none, note);
            print(at.json, [Output { words, json }])?;
        }
        for order in &former {
            let ended = former_orders::end(inspected, store.as_deref_mut(), order, key)?;
            has_ended = true;
            let words = format!(
                "{}:{} {}",
                Visible(&key.text),
                ended.policy.map(|name| format!(" policy '{name}':")).unwrap_or_default(),
                ended.in_words(order)
            );
            let (before, none) = (Some(order.clone()), Duration::ZERO);
            let note = note_on_end(ended.in_store.as_ref());
            let json = self.in_json(key, ended.policy, &order.key, &before, none, note);
            print(at.json, [Output { words, json }])?;
        }
        if has_ended {
            return Ok(true);
        }
        let found = found?;
        let notes = found.iter().flat_map(|it| notes_to_end(inspected, it, self.kind));
        let missing = store.as_ref().and_then(|it| it.what_is_missing());
        notes.chain(missing).for_each(|note| print_note(&note));
        Ok(false)
    }

    fn in_json(
        self,
        key: &Key,
        policy: Option<&str>,
        client: &str,
        before: &Option<Order>,
        time: Duration,
        note: Option<String>,
    ) -> Value {
        json!({
            "order": self.words().command,
            "key": key.text,
            "policy": policy,
            "client": client,
            "before": before.as_ref().map(|before| OrderWords::of(before.kind).command),
            "left_ms": time.as_millis(),
            "note": note,
        })
    }

    fn command_to_end(self, inspected: &Inspected, subject: &Subject) -> String {
        let OrderArgs { of, at, .. } = self.args;
        let mut words = vec![format!("gcra-spoa {} --end", self.words().command)];
        let path = |path: &Path| quoted(&path.display().to_string());
        words.extend(of.config.iter().map(|file| format!("--config {}", path(file))));
        if inspected.source.has_names() {
            words.push(format!("--policy {}", subject.policy(inspected).name));
        }
        if at.table.is_some() {
            words.push(format!("--table {}", path(&inspected.path)));
        }
        if subject.written.starts_with('-') {
            words.push("--".to_owned());
        }
        words.push(quoted(&subject.written));
        words.join(" ")
    }

    /// Prints the orders of this kind, those that end first in front.
    fn list(self) -> anyhow::Result<ExitCode> {
        let OrderArgs { of, at, plain, .. } = self.args;
        let path = at.path();
        let table = Table::inspect(&path).map_err(TableError)?;
        let all = table.board().orders();
        let mut orders: Vec<_> =
            all.iter().filter(|order| self.is_asked(order)).cloned().collect();
        orders.sort_by_key(|order| order.until);
        let known = || match &of.config {
            Some(file) => {
                Ok(Some((inspected_table::read(file)?, PolicySource::File(file.clone()))))
            }
            None => inspected_table::policies_of_agents(&table, &path),
        };
        // Without a name, the plain list says nothing that depends on the policies.
        let known = if *plain && of.policy.is_none() { known().unwrap_or(None) } else { known()? };
        if let Some((policies, _)) = &known
            && let Some(store) = GivesToStore::of_policies(policies)?
        {
            let no_space = is_full(&table).then(|| NO_SPACE.to_owned());
            store.what_is_missing().into_iter().chain(no_space).for_each(|note| print_note(&note));
        }
        // Orders of a policy that is gone are still there.
        if let (Some(name), Some((policies, source))) = (&of.policy, &known)
            && !policies.list.iter().any(|policy| *policy.name == **name)
            && !all.iter().any(|order| order.policy == policy_id(name))
        {
            bail!(inspected_table::no_policy(name, policies, source));
        }
        if *plain {
            let before = orders.len();
            if let Some((policies, _)) = &known {
                orders.retain(|order| {
                    let policy = policies.list.iter().find(|it| it.is_meant_by(order));
                    policy.is_some_and(|it| fits(&table, it, order) != Some(false))
                });
            }
            if orders.len() < before {
                print_note(&format!(
                    "{} left out: the policy is gone, or no client has the KEY any more",
                    Count((before - orders.len()) as u64, "order is", "orders are")
                ));
            }
            return list_plain(&orders);
        }
        let source = known.as_ref().map(|(_, source)| source.to_string()).unwrap_or_default();
        let mut is_any_unknown = false;
        let outputs = orders.into_iter().map(|order| {
            let mut policies = known.iter().flat_map(|(policies, _)| &policies.list);
            let policy = policies.find(|policy| policy.is_meant_by(&order));
            let listed = ListedOrder::of(&order, policy.map(|policy| &**policy), &table);
            let place = match (&listed.policy, &known) {
                (Some(name), _) => format!("policy '{name}'"),
                (None, Some(_)) => format!("a policy that {source} does not have"),
                (None, None) => {
                    "a policy of a configuration file, which --config FILE names".to_owned()
                }
            };
            is_any_unknown |= policy.is_some() && listed.fits.is_none();
            let words = line_of_list(&listed.state, &place, listed.fits, &source);
            Output { words, json: json!(listed) }
        });
        let outputs: Vec<_> = outputs.collect();
        if is_any_unknown {
            print_note(&format!(
                "names with a '…' are not whole keys, so it is not known whether a client has \
                 such a key by {source} as it is now"
            ));
        }
        if outputs.is_empty() && !at.json {
            let words = format!("table {}: no client is {}", path.display(), self.words().state);
            print(false, [Output { words, json: json!({}) }])?;
        }
        print(at.json, outputs)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The mistake of a name that no policy of an agent has.
fn no_policy(live: &Value, name: &str) -> Option<String> {
    let policies = live["status"]["together"]["policies"].as_array()?;
    let names: Vec<_> = policies.iter().filter_map(|policy| policy["name"].as_str()).collect();
    let mistake = || inspected_table::no_policy_among(name, &names, &PolicySource::Agent);
    (!names.contains(&name)).then(|| mistake().to_string())
}

/// What the list of an agent may lack, by the status of its store and the space of its table.
fn what_is_missing(live: &Value) -> Option<String> {
    let store = &live["status"]["together"]["store"];
    let why = store["faults"][0].as_str().unwrap_or("the agent has no connection to it");
    if store["up"] == false {
        return Some(missing_orders(why));
    }
    let is_full = live["configuration"]["is_full"] == true;
    (store.is_object() && is_full).then(|| NO_SPACE.to_owned())
}

/// An order in the list of an agent, in words.
fn order_elsewhere(order: &Value) -> Option<String> {
    let state = OrderState::read(order)?;
    let policy = match order["policy"].as_str() {
        Some(policy) => format!("policy '{policy}'"),
        None => "a policy that the agent does not have".to_owned(),
    };
    let source = PolicySource::Agent.to_string();
    Some(line_of_list(&state, &policy, order["fits"].as_bool(), &source))
}

/// An order in a list: `policy` is the words for its policy, and `fits` says whether clients of
/// that have its key by the configuration that `source` names.
fn line_of_list(state: &OrderState, policy: &str, fits: Option<bool>, source: &str) -> String {
    let misfit = match fits {
        Some(false) => format!("; no client has this key by {source} as it is now"),
        Some(true) | None => String::new(),
    };
    format!("{}: {policy}, {}{misfit}", state.key, state.in_words())
}

/// Says for which KEYs no order was given: this one, of whose policies `given` have one, and those
/// that come after it.
fn without_order<'p>(
    key: &Key,
    given: usize,
    policies: impl Iterator<Item = &'p str>,
    later: usize,
) -> String {
    let of = match given {
        0 => String::new(),
        _ => format!(" in policy {}", policies.collect::<Vec<_>>().join(", ")),
    };
    let after = match later {
        0 => String::new(),
        later => format!(" and the {} after it", Count(later, "KEY", "KEYs")),
    };
    format!("no order was given for {}{of}{after}", Visible(&key.text))
}

/// Prints the KEYs of orders that are an address or a network, one a line and each once, because
/// other programs read nothing else. A note counts the rest.
fn list_plain(orders: &[Order]) -> anyhow::Result<ExitCode> {
    let is_address = |key: &&str| key.parse::<IpAddr>().is_ok() || key.parse::<IpNet>().is_ok();
    let mut keys: Vec<_> = orders.iter().map(|order| &*order.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let (addresses, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_address);
    if !others.is_empty() {
        print_note(&format!(
            "{} left out: the list has only addresses and networks",
            Count(others.len() as u64, "KEY is", "KEYs are")
        ));
    }
    for key in addresses {
        write_stdout(&format!("{key}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_with_a_store_tells_what_its_list_lacks() {
        let said = |store: Value, is_full: bool| {
            let configuration = json!({ "is_full": is_full });
            let together = json!({ "store": store });
            let live =
                json!({ "status": { "together": together }, "configuration": configuration });
            what_is_missing(&live).unwrap_or_default()
        };
        assert_eq!([said(json!({ "up": true }), false), said(Value::Null, true)], ["", ""]);
        assert!(said(json!({ "up": false }), false).contains("the store cannot be asked"));
        assert!(said(json!({ "up": true }), true).contains("the table has no space for more"));
    }
}
