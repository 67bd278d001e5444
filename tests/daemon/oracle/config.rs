//! Random configurations, and random requests that suit them.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use fastrand::Rng;
use spop_agent::Value;

/// The value of an arg.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Ip(IpAddr),
    Text(String),
    Binary(String),
    Number(i64),
    Unsigned(u64),
    Flag(bool),
    Null,
}

impl Part {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Ip(ip) => (*ip).into(),
            Self::Text(text) => Value::String(text.as_bytes()),
            Self::Binary(text) => Value::Binary(text.as_bytes()),
            Self::Number(number) => Value::Int64(*number),
            Self::Unsigned(number) => Value::Uint64(*number),
            Self::Flag(flag) => Value::Bool(*flag),
            Self::Null => Value::Null,
        }
    }

    /// The texts of a file that stand for it.
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::Text(text) | Self::Binary(text) => vec![text.clone()],
            Self::Number(number) => vec![number.to_string()],
            Self::Unsigned(number) => vec![number.to_string()],
            Self::Flag(flag) => vec![flag.to_string(), u8::from(*flag).to_string()],
            Self::Ip(_) | Self::Null => Vec::new(),
        }
    }
}

/// The address of the client that sends from this one.
pub(crate) fn client(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0x2002, a, b, ..] => {
            Ipv4Addr::from_bits(u32::from(a) << 16 | u32::from(b)).into()
        }
        _ => ip,
    }
}

/// A message: its name and args.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) args: Vec<(String, Part)>,
}

impl Message {
    pub(crate) fn args(&self) -> Vec<(&str, Value<'_>)> {
        self.args.iter().map(|(name, part)| (&**name, part.value())).collect()
    }

    pub(crate) fn arg(&self, name: &str) -> Option<&Part> {
        self.args.iter().find(|(arg, _)| arg == name).map(|(_, part)| part)
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    pub(crate) name: Option<String>,
    pub(crate) rate: &'static str,
    pub(crate) interval_ns: i128,
    pub(crate) burst: i128,
    /// The burst is written down, and not the rate's own count.
    says_burst: bool,
    /// That of its policy; 0 without one.
    pub(crate) max_delay_ns: i128,
}

/// Rates, with the emission interval in ns and the burst that they have by themselves. Not so high
/// that a busy machine could not follow.
const RATES: [(&str, i128, i128); 12] = [
    ("5/s", 200_000_000, 5),
    ("2/s", 500_000_000, 2),
    ("3/2s", 666_666_667, 3),
    ("1/s", 1_000_000_000, 1),
    ("0.5/s", 2_000_000_000, 1),
    ("1/700ms", 700_000_000, 1),
    ("7/3s", 428_571_429, 7),
    ("20/m", 3_000_000_000, 20),
    ("2/m", 30_000_000_000, 2),
    ("100/h", 36_000_000_000, 100),
    ("10/h", 360_000_000_000, 10),
    ("1000/d", 86_400_000_000, 1000),
];

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    Deny,
    Unlimited,
    Limits(Vec<Limit>),
}

/// The values that an override is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Whom {
    Net(IpAddr, u8),
    Value(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) when: Option<(String, Vec<String>)>,
    pub(crate) rule: Rule,
    pub(crate) key: Vec<String>,
    pub(crate) prefixes: (u8, u8),
    pub(crate) lowercase: bool,
    pub(crate) cost: Option<String>,
    pub(crate) observes: bool,
    /// Cells and ceiling.
    pub(crate) penalty: Option<(i128, i128)>,
    /// In milliseconds.
    pub(crate) max_delay: Option<i128>,
    /// A policy of its own, with the same keys.
    pub(crate) trial: Option<Box<Policy>>,
    /// In the file, and in a list of its own.
    overrides: Vec<(Whom, Rule)>,
    listed: Vec<(Whom, usize)>,
    list_rules: Vec<Rule>,
}

impl Policy {
    pub(crate) fn without_overrides(&self) -> Self {
        Self { overrides: Vec::new(), listed: Vec::new(), ..self.clone() }
    }

    /// All overrides, those of lists too. Of several for the same values the last one counts.
    pub(crate) fn all_overrides(&self) -> impl Iterator<Item = (&Whom, &Rule)> {
        let listed = self.listed.iter().map(|(whom, list)| (whom, &self.list_rules[*list]));
        self.overrides.iter().map(|(whom, rule)| (whom, rule)).chain(listed)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) policies: Vec<Policy>,
    /// Instead of the policies.
    text: Option<String>,
}

const ANSWER: &str = "answer = [\"would_block\", \"policy\", \"reason\", \"remaining\", \
                      \"limit\", \"retry_after\", \
     \"retry_after_ms\", \"reset\", \"ratelimit\", \"ratelimit_policy\"]\n";

impl Limit {
    fn random(random: &mut Rng, taken: &mut Vec<(i128, i128)>) -> Self {
        loop {
            let (rate, interval_ns, own) = *random.choice(&RATES).unwrap();
            let says_burst = own > 20 || random.usize(..3) > 0;
            let burst =
                if says_burst { 1 + i128::try_from(random.usize(..8)).unwrap() } else { own };
            // Each rule of a policy has numbers of its own, so that no two of its limits could
            // share a bucket.
            if !taken.contains(&(interval_ns, burst)) {
                taken.push((interval_ns, burst));
                return Self { name: None, rate, interval_ns, burst, says_burst, max_delay_ns: 0 };
            }
        }
    }

    fn text(&self) -> String {
        match (&self.name, self.says_burst) {
            (None, false) => format!("\"{}\"", self.rate),
            (None, true) => format!("\"{} burst {}\"", self.rate, self.burst),
            (Some(name), false) => format!("{{ name = \"{name}\", rate = \"{}\" }}", self.rate),
            (Some(name), true) => {
                format!(
                    "{{ name = \"{name}\", rate = \"{}\", burst = {} }}",
                    self.rate, self.burst
                )
            }
        }
    }
}

impl Rule {
    fn random(random: &mut Rng, most: usize, taken: &mut Vec<(i128, i128)>) -> Self {
        let count = 1 + random.usize(..most);
        let mut limits: Vec<_> = (0..count).map(|_| Limit::random(random, taken)).collect();
        if random.bool() {
            limits[0].name = Some("x".to_owned());
        }
        Self::Limits(limits)
    }

    fn of_an_override(random: &mut Rng, most: usize, taken: &mut Vec<(i128, i128)>) -> Self {
        match random.usize(..6) {
            0 => Self::Deny,
            1 => Self::Unlimited,
            _ => Self::random(random, most, taken),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Deny => "\"deny\"".to_owned(),
            Self::Unlimited => "\"unlimited\"".to_owned(),
            Self::Limits(limits) => match &limits[..] {
                [one] => one.text(),
                all => format!("[{}]", all.iter().map(Limit::text).collect::<Vec<_>>().join(", ")),
            },
        }
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &[],
        }
    }

    fn limits_mut(&mut self) -> &mut [Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &mut [],
        }
    }
}

impl Whom {
    fn text(&self) -> String {
        match self {
            Self::Net(ip, bits) if (ip.is_ipv4() && *bits == 32) || *bits == 128 => ip.to_string(),
            Self::Net(ip, bits) => format!("{ip}/{bits}"),
            Self::Value(value) => value.clone(),
        }
    }
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn v6(network: u16, last: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, last).into()
}

/// Overrides that are for some of the clients below, some of them within others.
fn whoms() -> Vec<Whom> {
    vec![
        Whom::Net(v4(64), 26),
        Whom::Net(v4(64), 30),
        Whom::Net(v4(65), 32),
        Whom::Net(v4(0), 24),
        Whom::Net(v6(1, 0), 64),
        Whom::Net(v6(1, 7), 128),
        Whom::Net(v6(0, 0), 48),
        Whom::Net(v6(2, 0), 126),
        Whom::Value("Alice".to_owned()),
        Whom::Value("bob".to_owned()),
        Whom::Value("7".to_owned()),
        Whom::Value("0".to_owned()),
    ]
}

const USERS: [&str; 7] = ["alice", "Alice", "bob", "BOB", "carol", "7", "07"];

impl Policy {
    fn random(random: &mut Rng, number: usize, message: &str, most_limits: usize) -> Self {
        let mut taken = Vec::new();
        let keys: [&[&str]; 9] = [
            &["ip"],
            &["user"],
            &["ip", "user"],
            &["user", "ip"],
            &[],
            &["user", "else ip"],
            &["ip", "else user", "else null"],
            &["user", "else nothing", "else ip"],
            &["ip", "user", "else null"],
        ];
        let mut whoms = whoms();
        let mut overrides = Vec::new();
        let mut listed = Vec::new();
        let mut list_rules = Vec::new();
        if random.bool() {
            for _ in 0..random.usize(..4) {
                let whom = whoms.swap_remove(random.usize(..whoms.len()));
                overrides.push((whom, Rule::of_an_override(random, most_limits, &mut taken)));
            }
        }
        if random.usize(..3) == 0 {
            list_rules.push(Rule::of_an_override(random, most_limits, &mut taken));
            for _ in 0..1 + random.usize(..3) {
                listed.push((whoms.swap_remove(random.usize(..whoms.len())), 0));
            }
        }
        Self {
            name: format!("p{number}"),
            message: message.to_owned(),
            when: None,
            rule: match random.usize(..12) {
                0 => Rule::Deny,
                1 => Rule::Unlimited,
                _ => Rule::random(random, most_limits, &mut taken),
            },
            key: random.choice(&keys).unwrap().iter().map(|arg| (*arg).to_owned()).collect(),
            prefixes: (
                random.choice([32, 32, 24, 27]).unwrap(),
                random.choice([64, 64, 128, 56]).unwrap(),
            ),
            lowercase: random.bool(),
            cost: (random.usize(..3) > 0).then(|| "cost".to_owned()),
            observes: random.usize(..6) == 0,
            penalty: (random.usize(..3) == 0).then(|| {
                let cells = 1 + i128::try_from(random.usize(..3)).unwrap();
                (cells, random.choice([2, 60, 3600]).unwrap() * 1_000_000_000)
            }),
            max_delay: random
                .bool()
                .then(|| random.choice([350, 1_300, 2_700, 9_000, 61_000]).unwrap()),
            trial: None,
            overrides,
            listed,
            list_rules,
        }
        .with_trial(random, most_limits)
    }

    /// With a trial, or without one. (The limits of a policy that observes are one already.)
    fn with_trial(mut self, random: &mut Rng, most_limits: usize) -> Self {
        self.trial = None;
        if !self.observes && random.usize(..3) == 0 {
            // Its labels are longer than those of the policy.
            let rule = Rule::random(random, most_limits.min(2), &mut Vec::new());
            let mut trial = Self { rule, ..self.clone() };
            trial.keep_as_trial_of(&self);
            self.trial = Some(Box::new(trial));
        }
        self
    }

    /// All but the limits is as its policy has it, and what a trial does not have.
    fn keep_as_trial_of(&mut self, policy: &Self) {
        *self = Self {
            name: format!("{}.observe", policy.name),
            rule: self.rule.clone(),
            observes: true,
            penalty: None,
            overrides: Vec::new(),
            listed: Vec::new(),
            list_rules: Vec::new(),
            trial: None,
            ..policy.clone()
        };
    }

    /// Makes the penalty one that a configuration may have: there is a limit, and the ceiling has
    /// space for the penalty under each limit.
    fn fit_penalty(&mut self) {
        let rules = self.all_overrides().map(|(_, rule)| rule).chain([&self.rule]);
        let longest = rules.flat_map(Rule::limits).map(|limit| limit.interval_ns).max();
        if longest.is_none() {
            self.penalty = None;
        }
        if let (Some((cells, ceiling_ns)), Some(longest)) = (&mut self.penalty, longest) {
            let least = -(-*cells * longest).div_euclid(1_000_000_000) * 1_000_000_000;
            *ceiling_ns = least.max(*ceiling_ns);
        }
    }

    /// Takes `max_delay` away where a configuration may not have it, because there is no limit,
    /// and tells it to all limits.
    fn fit_max_delay(&mut self) {
        if self.all_overrides().all(|(_, rule)| rule.limits().is_empty())
            && self.rule.limits().is_empty()
        {
            self.max_delay = None;
        }
        let max_delay = self.max_delay;
        let overrides = self.overrides.iter_mut().map(|(_, rule)| rule);
        let rules = overrides.chain(&mut self.list_rules).chain([&mut self.rule]);
        for limit in rules.flat_map(Rule::limits_mut) {
            limit.max_delay_ns = max_delay.unwrap_or(0) * 1_000_000;
        }
        if let Some(trial) = &mut self.trial {
            trial.max_delay = max_delay;
            for limit in trial.rule.limits_mut() {
                limit.max_delay_ns = max_delay.unwrap_or(0) * 1_000_000;
            }
        }
    }

    fn write(&self, text: &mut String, directory: &Path) {
        let list = |list: &[String]| {
            format!(
                "[{}]",
                list.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
            )
        };
        let _ = writeln!(text, "[policy.{}]\nmessage = \"{}\"", self.name, self.message);
        if let Some((arg, values)) = &self.when {
            let _ = writeln!(text, "when = {{ {arg} = {} }}", list(values));
        }
        let _ = writeln!(text, "limits = {}", self.rule.text());
        if let Some(trial) = &self.trial {
            let _ = writeln!(text, "observe = {}", trial.rule.text());
        }
        if !self.key.is_empty() {
            let _ = writeln!(text, "key = {}", list(&self.key));
        }
        let (v4, v6) = self.prefixes;
        let _ = writeln!(
            text,
            "ipv4_prefix = {v4}\nipv6_prefix = {v6}\nlowercase = {}",
            self.lowercase
        );
        if let Some(cost) = &self.cost {
            let _ = writeln!(text, "cost = \"{cost}\"");
        }
        if self.observes {
            text.push_str("mode = \"observe\"\n");
        }
        if let Some((cells, ceiling_ns)) = self.penalty {
            let ceiling = ceiling_ns / 1_000_000_000;
            let _ = writeln!(text, "penalty = {{ cells = {cells}, ceiling = \"{ceiling}s\" }}");
        }
        if let Some(max_delay) = self.max_delay {
            let _ = writeln!(text, "max_delay = \"{max_delay}ms\"");
        }
        if !self.overrides.is_empty() {
            let _ = writeln!(text, "[policy.{}.overrides]", self.name);
            for (whom, rule) in &self.overrides {
                let _ = writeln!(text, "\"{}\" = {}", whom.text(), rule.text());
            }
        }
        for (number, rule) in self.list_rules.iter().enumerate() {
            let file = format!("{}-{number}.txt", self.name);
            let _ = writeln!(
                text,
                "[[policy.{}.lists]]\nfile = \"{file}\"\nlimits = {}",
                self.name,
                rule.text()
            );
            let mut lines = "# a list\n".to_owned();
            for (whom, _) in self.listed.iter().filter(|(_, list)| *list == number) {
                let _ = writeln!(lines, "{} # one", whom.text());
            }
            fs::write(directory.join(file), lines).unwrap();
        }
    }
}

impl Config {
    pub(crate) fn random(random: &mut Rng) -> Self {
        // The header fields of all limits have to fit an answer.
        let (messages, most_limits): (&[&str], _) = match random.bool() {
            true => (&["m0"], 4),
            false => (&["m0", "m1"], 3),
        };
        let mut policies = Vec::new();
        for message in messages {
            if random.bool() {
                let mut policy = Policy::random(random, policies.len(), message, most_limits);
                let plans: &[&str] = if random.bool() { &["gold"] } else { &["gold", "1"] };
                let plans = plans.iter().map(|plan| (*plan).to_owned()).collect();
                policy.when = Some(("plan".to_owned(), plans));
                policies.push(policy.with_trial(random, most_limits));
            }
            policies.push(Policy::random(random, policies.len(), message, most_limits));
        }
        policies.iter_mut().for_each(Policy::fit_penalty);
        policies.iter_mut().for_each(Policy::fit_max_delay);
        Self { policies, text: None }
    }

    /// One of these words and this meaning.
    pub(crate) fn fixed(text: &str, policy: Policy) -> Self {
        Self { policies: vec![policy], text: Some(format!("{ANSWER}{text}")) }
    }

    /// The same policies, of which some are others in some way.
    pub(crate) fn changed(&self, random: &mut Rng) -> Self {
        let mut config = self.clone();
        for (number, policy) in config.policies.iter_mut().enumerate() {
            let other = Policy::random(random, number, &policy.message, 3);
            match random.usize(..10) {
                0 => {
                    policy.observes = !policy.observes;
                    policy.trial = None;
                }
                6 => *policy = policy.clone().with_trial(random, 3),
                1 => policy.penalty = other.penalty,
                7 => policy.max_delay = other.max_delay,
                2 => {
                    (policy.overrides, policy.listed, policy.list_rules) =
                        (other.overrides, other.listed, other.list_rules);
                    policy.rule = other.rule;
                }
                3..6 => {
                    // Other numbers under the same names.
                    let mut taken: Vec<_> = policy
                        .all_overrides()
                        .map(|(_, rule)| rule)
                        .chain([&policy.rule])
                        .flat_map(Rule::limits)
                        .map(|limit| (limit.interval_ns, limit.burst))
                        .collect();
                    if let Rule::Limits(limits) = &mut policy.rule {
                        for limit in limits {
                            let name = limit.name.clone();
                            *limit = Limit { name, ..Limit::random(random, &mut taken) };
                        }
                    }
                }
                _ => {}
            }
            policy.fit_penalty();
            if let Some(mut trial) = policy.trial.take() {
                trial.keep_as_trial_of(policy);
                policy.trial = Some(trial);
            }
            policy.fit_max_delay();
        }
        config
    }

    /// Whether requests can be delayed, so that answers say for how long.
    pub(crate) fn can_delay(&self) -> bool {
        self.policies.iter().any(|policy| policy.max_delay.is_some())
    }

    /// The policy or the trial with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Policy> {
        let all = self
            .policies
            .iter()
            .flat_map(|policy| std::iter::once(policy).chain(policy.trial.as_deref()));
        all.into_iter().find(|policy| policy.name == name)
    }

    pub(crate) fn write(&self, directory: &Path) {
        let mut text = ANSWER.to_owned();
        for policy in &self.policies {
            policy.write(&mut text, directory);
        }
        fs::write(directory.join("gcra-spoa.toml"), self.text.as_ref().unwrap_or(&text)).unwrap();
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let directory = super::directory();
        self.write(directory.path());
        fs::read_to_string(directory.path().join("gcra-spoa.toml")).unwrap()
    }

    /// One message or two.
    pub(crate) fn request(&self, random: &mut Rng) -> Vec<Message> {
        let count = if random.usize(..5) == 0 { 2 } else { 1 };
        (0..count).map(|_| self.message(random)).collect()
    }

    fn message(&self, random: &mut Rng) -> Message {
        let policy = random.choice(&self.policies).unwrap();
        let name =
            if random.usize(..30) == 0 { "other".to_owned() } else { policy.message.clone() };
        let mapped = |last| {
            let IpAddr::V4(ip) = v4(last) else { unreachable!() };
            ip.to_ipv6_mapped().into()
        };
        let ips = [
            v4(1),
            v4(2),
            v4(65),
            v4(66),
            v4(70),
            mapped(1),
            mapped(65),
            v6(1, 7),
            v6(1, 8),
            v6(2, 1),
            v6(3, 1),
            // 192.0.2.65 behind a translator, and in 6to4.
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0xc000, 0x0241).into(),
            Ipv6Addr::new(0x2002, 0xc000, 0x0241, 3, 0, 0, 0, 1).into(),
        ];
        let user = random.choice(USERS).unwrap().to_owned();
        let user = match random.usize(..20) {
            0..2 => Part::Binary(user),
            2 => Part::Number(7),
            3 => Part::Unsigned(7),
            4 => Part::Flag(random.bool()),
            _ => Part::Text(user),
        };
        let mut args = vec![
            ("ip".to_owned(), Part::Ip(*random.choice(&ips).unwrap())),
            ("user".to_owned(), user),
        ];
        let falls_back = policy.key.iter().any(|entry| entry.starts_with("else "));
        if random.usize(..if falls_back { 3 } else { 25 }) == 0 {
            // A key may lack a part, or have none to give.
            let at = random.usize(..2);
            match random.bool() {
                true => drop(args.remove(at)),
                false => args[at].1 = Part::Null,
            }
        }
        if policy.cost.is_some() && random.usize(..5) > 0 {
            let cost = match random.usize(..20) {
                0..3 => Part::Number(0),
                3..11 => Part::Number(1),
                11..15 => Part::Unsigned(2 + random.usize(..4) as u64),
                15 => Part::Number(9),
                16 => Part::Unsigned(u64::MAX - random.usize(..2) as u64),
                17 => Part::Number(-1),
                18 => Part::Text(["2", "2 s"][random.usize(..2)].to_owned()),
                _ => Part::Null,
            };
            args.push(("cost".to_owned(), cost));
        }
        if random.bool() {
            let plan = match random.usize(..6) {
                0 => Part::Number(1),
                1 => Part::Flag(random.bool()),
                _ => Part::Text(random.choice(["gold", "1", "free"]).unwrap().to_owned()),
            };
            args.push(("plan".to_owned(), plan));
        }
        Message { name, args }
    }
}

/// `"2/m burst 3"` and `10/h` with a burst of 5 for each user.
pub(crate) fn fixed_policy(max_delay: Option<i128>) -> Policy {
    let limit = |name: Option<&str>, rate, interval_ns, burst| Limit {
        name: name.map(str::to_owned),
        rate,
        interval_ns,
        burst,
        says_burst: true,
        max_delay_ns: max_delay.unwrap_or(0) * 1_000_000,
    };
    Policy {
        name: "p0".to_owned(),
        message: "m0".to_owned(),
        when: None,
        rule: Rule::Limits(vec![
            limit(None, "2/m", 30_000_000_000, 3),
            limit(Some("hour"), "10/h", 360_000_000_000, 5),
        ]),
        key: vec!["user".to_owned()],
        prefixes: (32, 64),
        lowercase: false,
        cost: None,
        observes: false,
        penalty: None,
        max_delay,
        trial: None,
        overrides: Vec::new(),
        listed: Vec::new(),
        list_rules: Vec::new(),
    }
}
