//! The rules of a shipped file as HAProxy runs them, read from its text: one access to the stick
//! table after another.

use std::collections::BTreeMap;

/// The rules of a file for a request, from the frontend to the application.
pub(crate) struct Rules {
    /// The rules of each section in the order in which HAProxy runs them. The first is the
    /// frontend's.
    sections: Vec<Vec<Rule>>,
    /// The names of the variables, by their numbers.
    vars: Vec<String>,
}

/// The action of a rule, and the conditions that must all be true for it.
#[derive(Debug)]
struct Rule {
    conditions: Vec<Condition>,
    action: Action,
}

/// A fetch, and how its value is judged. A value that cannot be fetched is false.
#[derive(Debug)]
struct Condition {
    fetch: Fetch,
    is: Test,
    /// With `!`, or behind `unless`.
    negated: bool,
}

#[derive(Debug)]
enum Test {
    Found,
    True,
    AtLeast(u8),
    Below(u8),
    Exactly(u8),
}

#[derive(Debug)]
enum Action {
    Set(u8, Fetch),
    /// `sc-inc-gpc`, a rule of its own.
    Count(usize),
    Ask,
    Deny,
    /// To the rules of another section.
    Go(usize),
    /// Nobody limits the request any more.
    Pass,
}

#[derive(Clone, Copy, Debug)]
enum Fetch {
    Constant(u8),
    Var(u8),
    Shared(Access),
}

/// A request's access to something that other requests see. HAProxy locks a client's entry for
/// each of them, and not for two together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// Adds one to a counter of the client, and reads it.
    Increment(usize),
    Read(usize),
    /// Reads a counter and clears it.
    Clear(usize),
    /// Reads how often a counter was incremented in the last milliseconds.
    Rate(usize),
    /// Asks the agent, with the cost in this variable.
    Ask {
        cost: u8,
    },
}

/// How far one request is: the rule, the condition in it, and the request's variables.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Progress {
    section: usize,
    rule: usize,
    condition: usize,
    vars: Vec<Option<u8>>,
}

/// The next step for a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    Access(Access),
    Denied,
    /// It passes; `decided` says whether the agent has answered.
    Passed {
        asked: bool,
        decided: bool,
    },
}

const COST: &str = "txn.cost";
const BLOCKED: &str = "txn.gcra.blocked";
/// A variable of ours: that the request was asked about.
const ASKED: &str = "asked";

impl Rules {
    /// Reads a file. It takes no line that it does not know for harmless.
    pub(crate) fn parse(text: &str) -> Self {
        let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut name = "";
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let is_inside = line.starts_with([' ', '#', '.']);
            if !is_inside {
                name = line;
            }
            let line = line.trim_start();
            if is_inside && !line.starts_with('#') {
                sections.entry(name).or_default().push(line);
            }
        }
        let mut names = vec!["frontend web"];
        let mut rules = Self { sections: Vec::new(), vars: Vec::new() };
        for var in [COST, BLOCKED, ASKED] {
            rules.var(var);
        }
        let mut done = 0;
        while let Some(&section) = names.get(done) {
            let lines = sections.get(section).unwrap_or_else(|| panic!("no '{section}'"));
            let mut parsed = Vec::new();
            let order = ["http-request", "use_backend", "default_backend"];
            for kind in order {
                for line in lines.iter().filter(|line| line.split(' ').next() == Some(kind)) {
                    // The operator's own choice among applications; and about what a client has
                    // written: a request that is refused for it counts for nothing.
                    let others = [
                        "use_backend static if { path_beg ",
                        "http-request deny status 40",
                        "http-request del-header ",
                    ];
                    if others.iter().any(|begin| line.starts_with(begin)) {
                        continue;
                    }
                    let to = line.split(' ').nth(1).filter(|_| kind != "http-request");
                    let to = to.map(|backend| {
                        let wanted = format!("backend {backend}");
                        let known = sections.keys().find(|name| **name == wanted);
                        let known = known.unwrap_or_else(|| panic!("no '{wanted}'"));
                        let at = names.iter().position(|name| name == known);
                        at.unwrap_or_else(|| {
                            names.push(known);
                            names.len() - 1
                        })
                    });
                    parsed.extend(rules.rule(line, to));
                }
            }
            let harmless =
                ["bind", "filter", "log-format", "tcp-request", "server", "stick-table", "no"];
            let unknown = lines.iter().find(|line| {
                let word = line.split(' ').next().unwrap();
                !order.contains(&word) && !harmless.contains(&word)
            });
            assert!(unknown.is_none(), "what does '{}' do?", unknown.unwrap());
            parsed.push(Rule { conditions: Vec::new(), action: Action::Pass });
            rules.sections.push(parsed);
            done += 1;
        }
        rules
    }

    fn rule(&mut self, line: &str, to: Option<usize>) -> Option<Rule> {
        let at = [" if {", " unless {", " if !{"].iter().filter_map(|word| line.find(word)).min();
        let (what, conditions) = line.split_at(at.unwrap_or(line.len()));
        let unless = conditions.starts_with(" unless");
        let conditions: Vec<_> = conditions
            .split('{')
            .collect::<Vec<_>>()
            .windows(2)
            .map(|pair| self.condition(pair[1], pair[0].ends_with('!') != unless))
            .collect();
        assert!(!unless || conditions.len() == 1, "'{line}' negates several conditions");
        let words: Vec<_> = what.split(' ').collect();
        let action = match (to, words.get(1).copied().unwrap_or_default()) {
            (Some(section), _) => Action::Go(section),
            (_, "deny") => Action::Deny,
            (_, "return") => Action::Pass,
            (_, "send-spoe-group") => Action::Ask,
            // For the log; and what finds the entry, as `tcp-request` does.
            (_, word) if word.starts_with("set-var-fmt(") => return None,
            (_, "track-sc0") => return None,
            // These count requests without a decision, and decide nothing.
            (_, "track-sc2" | "set-var(proc.gcra_undecided)") => return None,
            (_, word) => match (argument(word, "set-var"), argument(word, "sc-inc-gpc")) {
                (Some(var), _) => Action::Set(self.var(var), self.fetch(words[2])),
                (_, Some(counter)) => Action::Count(client(counter)),
                _ => panic!("what does '{line}' do?"),
            },
        };
        Some(Rule { conditions, action })
    }

    /// A condition without its first brace: `sc_inc_gpc(1,0) lt 8 }`.
    fn condition(&mut self, text: &str, negated: bool) -> Condition {
        let text = text.split('}').next().unwrap().trim();
        let (fetch, test) = text.split_once(' ').unwrap();
        let is = match test.split(' ').collect::<Vec<_>>()[..] {
            ["-m", "found"] => Test::Found,
            ["-m", "bool"] => Test::True,
            ["-m", "int", value] => Test::Exactly(value.parse().unwrap()),
            ["eq", value] => Test::Exactly(value.parse().unwrap()),
            ["lt", value] => Test::Below(value.parse().unwrap()),
            ["ge", value] => Test::AtLeast(value.parse().unwrap()),
            ["gt", value] => Test::AtLeast(value.parse::<u8>().unwrap() + 1),
            _ => panic!("what does '{text}' test?"),
        };
        Condition { fetch: self.fetch(fetch), is, negated }
    }

    fn fetch(&mut self, text: &str) -> Fetch {
        let has = |name| argument(text, name);
        if let Some(value) = has("int") {
            Fetch::Constant(value.parse().unwrap())
        } else if has("bool").is_some_and(|value| value == "true") {
            Fetch::Constant(1)
        } else if let Some(name) = has("var") {
            Fetch::Var(self.var(name))
        } else if let Some(counter) = has("sc_inc_gpc") {
            Fetch::Shared(Access::Increment(client(counter)))
        } else if let Some(counter) = has("sc_get_gpc") {
            Fetch::Shared(Access::Read(client(counter)))
        } else if let Some(counter) = has("sc_clr_gpc") {
            Fetch::Shared(Access::Clear(client(counter)))
        } else if let Some(counter) = has("sc_gpc_rate") {
            Fetch::Shared(Access::Rate(client(counter)))
        } else {
            panic!("what does '{text}' fetch?")
        }
    }

    fn var(&mut self, name: &str) -> u8 {
        let at = self.vars.iter().position(|known| known == name).unwrap_or_else(|| {
            self.vars.push(name.to_owned());
            self.vars.len() - 1
        });
        u8::try_from(at).unwrap()
    }

    fn number(&self, name: &str) -> usize {
        self.vars.iter().position(|known| known == name).unwrap()
    }

    /// The largest number that a value is compared with.
    pub(crate) fn largest(&self) -> u8 {
        let conditions = self.sections.iter().flatten().flat_map(|rule| &rule.conditions);
        let numbers = conditions.map(|condition| match condition.is {
            Test::AtLeast(number) | Test::Below(number) | Test::Exactly(number) => number,
            Test::Found | Test::True => 0,
        });
        numbers.max().unwrap_or(0)
    }

    /// Where a request begins.
    pub(crate) fn begin(&self) -> Progress {
        let vars = vec![None; self.vars.len()];
        self.go_on(Progress { section: 0, rule: 0, condition: 0, vars })
    }

    /// The next access of a request that others see, or how the request has ended.
    pub(crate) fn next(&self, progress: &Progress) -> Next {
        let rule = &self.sections[progress.section][progress.rule];
        if let Some(condition) = rule.conditions.get(progress.condition) {
            let Fetch::Shared(access) = condition.fetch else { unreachable!("it went on") };
            return Next::Access(access);
        }
        let has = |name| progress.vars[self.number(name)].is_some();
        match rule.action {
            Action::Set(_, Fetch::Shared(access)) => Next::Access(access),
            Action::Count(counter) => Next::Access(Access::Increment(counter)),
            Action::Ask => {
                Next::Access(Access::Ask { cost: progress.vars[self.number(COST)].unwrap_or(1) })
            }
            Action::Deny => Next::Denied,
            Action::Pass => Next::Passed { asked: has(ASKED), decided: has(BLOCKED) },
            Action::Set(..) | Action::Go(_) => unreachable!("it went on"),
        }
    }

    /// The request after its access has given a value, or none. The agent's value is whether the
    /// request is blocked.
    pub(crate) fn after(&self, progress: &Progress, value: Option<u8>) -> Progress {
        let mut after = progress.clone();
        let rule = &self.sections[after.section][after.rule];
        if rule.conditions.get(after.condition).is_some() {
            self.judged(&mut after, value);
        } else {
            match rule.action {
                Action::Set(var, _) if value.is_some() => after.vars[usize::from(var)] = value,
                Action::Ask => {
                    after.vars[self.number(ASKED)] = Some(1);
                    after.vars[self.number(BLOCKED)] = value;
                }
                _ => {}
            }
            (after.rule, after.condition) = (after.rule + 1, 0);
        }
        self.go_on(after)
    }

    /// Does everything up to the next access, or to the end.
    fn go_on(&self, mut progress: Progress) -> Progress {
        loop {
            let rule = &self.sections[progress.section][progress.rule];
            let value = |fetch| match fetch {
                Fetch::Constant(value) => Ok(Some(value)),
                Fetch::Var(var) => Ok(progress.vars[usize::from(var)]),
                Fetch::Shared(access) => Err(access),
            };
            match (rule.conditions.get(progress.condition), &rule.action) {
                (Some(condition), _) => match value(condition.fetch) {
                    Ok(value) => self.judged(&mut progress, value),
                    Err(_) => break,
                },
                (None, Action::Set(var, fetch)) => match value(*fetch) {
                    Ok(value) => {
                        progress.vars[usize::from(*var)] = value;
                        (progress.rule, progress.condition) = (progress.rule + 1, 0);
                    }
                    Err(_) => break,
                },
                (None, Action::Go(section)) => {
                    (progress.section, progress.rule, progress.condition) = (*section, 0, 0);
                }
                (None, _) => break,
            }
        }
        // Requests that differ only in what nobody reads again are alike.
        let asked = progress.vars[self.number(ASKED)].is_some();
        for var in 0..progress.vars.len() {
            let is_ours = match &*self.vars[var] {
                BLOCKED | ASKED => true,
                COST => !asked,
                _ => false,
            };
            if !is_ours && !self.is_read(&progress, var) {
                progress.vars[var] = None;
            }
        }
        progress
    }

    fn is_read(&self, progress: &Progress, var: usize) -> bool {
        let rest = &self.sections[progress.section][progress.rule..];
        rest.iter().any(|rule| {
            let reads = |fetch: &Fetch| matches!(fetch, Fetch::Var(it) if usize::from(*it) == var);
            rule.conditions.iter().any(|condition| reads(&condition.fetch))
                || matches!(&rule.action, Action::Set(_, fetch) if reads(fetch))
                || matches!(rule.action, Action::Go(_))
        })
    }

    /// To the next condition, or to the next rule if this one is false.
    fn judged(&self, progress: &mut Progress, value: Option<u8>) {
        let rule = &self.sections[progress.section][progress.rule];
        let condition = &rule.conditions[progress.condition];
        let is_true = value.is_some_and(|value| match condition.is {
            Test::Found => true,
            Test::True => value != 0,
            Test::AtLeast(least) => value >= least,
            Test::Below(bound) => value < bound,
            Test::Exactly(exact) => value == exact,
        });
        if is_true == condition.negated {
            (progress.rule, progress.condition) = (progress.rule + 1, 0);
        } else {
            progress.condition += 1;
        }
    }
}

/// The text in the brackets of `name(...)`.
fn argument<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')
}

/// The number of a counter of the client, which is tracked as 0.
fn client(arguments: &str) -> usize {
    let counter = arguments.strip_suffix(",0").expect("a counter of sc0");
    counter.parse().expect("a number")
}
