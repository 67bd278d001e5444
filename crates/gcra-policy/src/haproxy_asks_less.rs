//! Files for HAProxy that asks less, for `gcra-spoa check --print-haproxy --ask-less`. They are
//! the shipped ones with the numbers of a policy.

use std::time::Duration;

use spop_codec::Scope;

use crate::haproxy_args::{EDIT, KnownArg};
use crate::haproxy_config::{name, spoe_agent};
use crate::haproxy_report::{REPORT, section};
use crate::limit::{Limit, Rule};
use crate::policies::Policies;
use crate::policy::{Policy, Price};
use crate::reserve::{Written, rate_in_words};
use crate::unasked::Unasked;
use crate::words::text;

const BOTH: &str = include_str!("../../../haproxy/ask-less.cfg");
const COUNTING: &str = include_str!("../../../haproxy/every-kth.cfg");
const REMEMBERING: &str = include_str!("../../../haproxy/remember.cfg");

/// How many requests at most are paid for by one question, where the policy does not say it. More
/// saves little: of each 32 requests one asks.
const MOST_TOGETHER: u32 = 32;

/// `expire` and `size` of the shipped files, which are enough for most limits.
const USUAL_EXPIRE: Duration = Duration::from_secs(600);
const USUAL_SIZE: u64 = 1 << 20;

/// How many new clients a second a table has space for, up to the largest size.
const NEW_CLIENTS: u64 = 100;
const MOST_SIZE: u64 = 16 << 20;

/// The longest time that HAProxy knows is 2^31 ms.
const LONGEST_EXPIRE: Duration = Duration::from_secs(24 * 86_400);

/// The figures that follow from the numbers of a policy.
struct Numbers {
    /// How many requests one question pays for, if not each is asked about.
    together: Option<u32>,
    /// For how many milliseconds a refusal is remembered at least, if it is.
    remember_ms: Option<u64>,
    /// The burst to which a client may keep that is never blocked early.
    never_early: u64,
    expire: Duration,
    size: u64,
    /// For how long HAProxy must remember a silent client.
    full: Duration,
    /// How long a blocked client has to wait, in whole seconds.
    retry_after: u64,
}

impl Policies {
    /// The files for HAProxy to ask less about the one policy that there is. The error is a
    /// sentence that says why they would not keep its limits.
    pub fn for_haproxy_that_asks_less(&self) -> Result<String, String> {
        let policies: Vec<_> = self.without_trials().collect();
        let [policy] = policies[..] else {
            return Err(format!(
                "HAProxy can ask less about one policy, and there are {}; check a file with that \
                 policy alone",
                policies.len()
            ));
        };
        if self.answers.scope != Scope::Transaction {
            return Err(format!(
                "HAProxy can ask less about requests, and the scope is \"{}\" instead of \"txn\"",
                self.answers.scope.as_str()
            ));
        }
        let trial = policy.trial.and_then(|place| self.list.get(place));
        let numbers = policy.fits_asking_less(trial).and_then(|()| {
            let numbers = Numbers::of(policy)?;
            if let Some(k) = numbers.together {
                policy.could_have_unasked(k - 1, trial)?;
            }
            Ok(numbers)
        });
        let numbers = numbers.map_err(|why| {
            format!("HAProxy cannot ask less about policy '{}': {why}", policy.name)
        })?;
        let client = self.client(policy);
        Ok(format!(
            "# ---- spoe-ask-less.conf: what HAProxy asks\n{}\n# ---- ask-less.cfg: the rest, a \
             whole file\n{}",
            self.asks(policy, &client, &numbers),
            policy.file(&client, &numbers)
        ))
    }

    fn asks(&self, policy: &Policy, client: &Client, numbers: &Numbers) -> String {
        let processing = self.processing_ms();
        let message = name(policy);
        let Client { arg, asked, .. } = client;
        let cost = match (&policy.price, numbers.together) {
            (Price::Cost(cost), Some(_)) => format!(" {}=var(txn.cost)", text(cost)),
            (_, Some(_)) => " cost=var(txn.cost)".to_owned(),
            (Price::Cost(cost), None) => format!(" {}=int(1)", text(cost)),
            (_, None) => String::new(),
        };
        format!(
            "{}spoe-group {message}
    messages {message} {REPORT}
spoe-message {message}
    args {arg}={asked}{cost}
{}",
            spoe_agent(&format!("groups {message}"), processing),
            section(false),
        )
    }

    fn client(&self, policy: &Policy) -> Client {
        let Policy { key, .. } = policy;
        let arg = key.names().next().map_or("ip".to_owned(), text);
        let asked = self.sample(&arg).unwrap_or_else(|| EDIT.to_owned());
        if asked == "src" {
            let both = format!("src,ipmask({},{})", key.ipv4_prefix, key.ipv6_prefix);
            return Client {
                arg,
                asked: both.clone(),
                tracked: both,
                is_address: true,
                rules: String::new(),
            };
        }
        // A hash has one length and one type, whatever the sample has: a stick table of addresses
        // would not track strings, or count those together that look like the same address.
        let lower = if key.lowercase { ",lower" } else { "" };
        let found = KnownArg::named(&arg).map_or_else(|| EDIT.to_owned(), KnownArg::text);
        let tracked = format!("{found}{lower},sha2(256)");
        Client { arg, asked, tracked, is_address: false, rules: self.rules_about_args(false) }
    }
}

/// How HAProxy finds the client of a request.
struct Client {
    /// The arg that agents get, and its sample.
    arg: String,
    asked: String,
    /// The tracked key: an address, or a hash.
    tracked: String,
    /// Whether a connection has one client.
    is_address: bool,
    /// The rules about the arg, above the one that tracks.
    rules: String,
}

impl Policy {
    /// Whether HAProxy can count for this policy.
    fn fits_asking_less(&self, trial: Option<&Self>) -> Result<(), String> {
        let one = match &self.key.args[..] {
            [] => true,
            [arg] => !arg.has_fallback(),
            _ => false,
        };
        let has_its_own = |limit: &Limit| limit.key.is_some() || limit.by_arg().is_some();
        let why = if !one {
            "its key must be one arg, and without 'else', because HAProxy counts by one value"
        } else if self.when.is_some() {
            "it has a 'when', and HAProxy does not know which requests that fits"
        } else if self.limits().chain(trial.into_iter().flat_map(Self::limits)).any(has_its_own) {
            "it has a limit with a key or numbers of its own, which HAProxy does not know"
        } else if self.settle().is_some() {
            "its requests are settled, so each must be asked about"
        } else if self.max_delay().0 > 0 || self.bandwidth.is_some() {
            "it delays or slows requests, so each must be asked about"
        } else if let Some(net) = self.overrides.narrower_than(&self.key).next() {
            return Err(format!(
                "its override '{net}' is narrower than its groups, and HAProxy counts a group \
                 together"
            ));
        } else {
            return Ok(());
        };
        Err(why.to_owned())
    }

    /// Whether `check` allows it to have so many requests unasked, which its own limits can pay
    /// for.
    fn could_have_unasked(&self, requests: u32, trial: Option<&Self>) -> Result<(), String> {
        if self.rule == Rule::Deny || self.overrides.rules.contains(&Rule::Deny) {
            return Err("it has \"deny\", and a client that is denied would have requests that \
                        pass without asking; deny it by a rule of HAProxy"
                .to_owned());
        }
        if self.unasked().is_some() {
            return Ok(());
        }
        let unasked = Unasked { requests, processes: 1, reload_every: None };
        for limit in trial.into_iter().flat_map(Self::limits) {
            let left = limit.left_beside(unasked, Written::InFile);
            left.map_err(|what| format!("for its observe, {what}"))?;
        }
        Ok(())
    }

    /// The comment above the rule that tracks a client which only its requests name.
    fn notes_on(&self, client: &Client, together: Option<u32>) -> String {
        let mut notes = client.rules.clone();
        if client.asked == EDIT {
            notes.push_str(&commented(
                "    #",
                &format!(
                    "The sample of {}, the same as behind 'args'. If it gives addresses, write \
                     ',ipmask({},{})' behind it in both places.",
                    client.arg, self.key.ipv4_prefix, self.key.ipv6_prefix
                ),
            ));
        }
        if let Some(k) = together {
            notes.push_str(&commented(
                "    #",
                &format!(
                    "After a reload the old process forgets such a client between its requests. \
                     So one more may pass for each of its connections with HTTP/1, and with \
                     HTTP/2 up to {} more each second until that process ends: write a short \
                     'hard-stop-after' in 'global', which bounds that, or do not reload.",
                    k - 1
                ),
            ));
        }
        notes
    }

    /// The shipped file that fits, with this policy's numbers.
    fn file(&self, client: &Client, numbers: &Numbers) -> String {
        let shipped = match (numbers.together, numbers.remember_ms) {
            (Some(_), Some(_)) => BOTH,
            (Some(_), None) => COUNTING,
            (None, _) => REMEMBERING,
        };
        let (_, rules) = shipped.split_once("\n\nglobal\n").unwrap_or(("", shipped));
        let mut rules = rules.to_owned();
        let mut put = |shipped: &str, ours: &str| {
            debug_assert!(rules.contains(shipped), "'{shipped}' is not in the shipped file");
            rules = rules.replace(shipped, ours);
        };
        if let Some(k) = numbers.together {
            put("lt 8 }", &format!("lt {k} }}"));
            put("ge 8 }", &format!("ge {k} }}"));
            put("int(8)", &format!("int({k})"));
            put("-m int 8 }", &format!("-m int {k} }}"));
            put("gcra check-cost", &format!("gcra {}", name(self)));
        } else {
            put("gcra check\n", &format!("gcra {}\n", name(self)));
        }
        if let Some(ms) = numbers.remember_ms {
            put("gpc_rate(1,5ms)", &format!("gpc_rate(1,{ms}ms)"));
        }
        let track = "tcp-request connection track-sc0 src,ipmask(32,64) table";
        if client.is_address {
            put("src,ipmask(32,64)", &client.tracked);
        } else {
            let (notes, tracked) = (self.notes_on(client, numbers.together), &client.tracked);
            put(
                &format!("    {track}"),
                &format!("{notes}    http-request track-sc0 {tracked} table"),
            );
            put("type ipv6", "type binary len 32");
        }
        let expire = in_haproxy(numbers.expire);
        if numbers.together.is_some() {
            put("size 1m expire 10m", &format!("size {}m expire {expire}", numbers.size >> 20));
        }
        if numbers.retry_after > 1 {
            let (shipped, seconds) = ("in a second.\\n\" hdr Retry-After 1 ", numbers.retry_after);
            put(shipped, &format!("in {seconds} seconds.\\n\" hdr Retry-After {seconds} "));
        }
        let head: String =
            self.head(client, numbers).iter().map(|it| commented("#", it)).collect();
        format!("{head}\nglobal\n{rules}")
    }

    /// ", and to 59.333 per hour", if agents decide with other rates than are written.
    fn lower_rates(&self) -> String {
        let lower = self.limits().filter(|limit| {
            limit.quota(None).emission_interval() != limit.written().emission_interval()
        });
        let rates = lower.map(|limit| rate_in_words(limit.quota(None).emission_interval()));
        let mut rates: Vec<_> = rates.collect();
        rates.dedup();
        match &rates[..] {
            [] => String::new(),
            [rate] => format!(", and to {rate}"),
            _ => ", and to the rates with which agents decide, which 'check' says".to_owned(),
        }
    }

    /// The paragraphs at the top of the file.
    fn head(&self, client: &Client, numbers: &Numbers) -> Vec<String> {
        let remembered =
            numbers.remember_ms.map(|ms| format!("in the last {ms} to {} ms", 2 * ms));
        let asks = match (numbers.together, remembered) {
            (Some(_), Some(when)) => format!(
                "Asks about every k-th request of a client for all k at once (every-kth.cfg), and \
                 not again about a client that was blocked {when} (remember.cfg). Those two files \
                 explain the rules."
            ),
            (Some(_), None) => "Asks about every k-th request of a client for all k at once. \
                                every-kth.cfg explains the rules."
                .to_owned(),
            (None, when) => format!(
                "Asks about every request, except those of a client that was blocked {}. \
                 remember.cfg explains the rules.",
                when.unwrap_or_default()
            ),
        };
        let made_by =
            "'gcra-spoa check --print-haproxy --ask-less FILE' writes it for a policy.".to_owned();
        let words = format!("{}, {}", self.rule.in_words(), self.clients());
        let Some(k) = numbers.together else {
            let limit = format!("It is for the limit {words}.");
            let errs = "Not one request too many passes, and a client may be blocked for an \
                        emission interval longer.";
            return vec![asks, made_by, String::new(), limit, String::new(), errs.to_owned()];
        };
        let limit = format!(
            "Here k is {k}, for the limit {words}. Its policy must have 'unasked = {}' and \
             'cost = \"{}\"'.",
            k - 1,
            self.price.arg().map_or("cost".to_owned(), text)
        );
        let reloads = match self.unasked().and_then(|unasked| unasked.reload_every) {
            Some(_) => {
                ", if HAProxy is not reloaded more often than by its 'reload_every'".to_owned()
            }
            None => format!(
                ", but for up to {} at each reload of HAProxy, unless the policy has a \
                 'reload_every'",
                k - 1
            ),
        };
        let early = match numbers.never_early {
            0 => "Some are blocked early.".to_owned(),
            burst => format!(
                "Some are blocked early: none of a client that keeps to a burst of {burst}{}.",
                self.lower_rates()
            ),
        };
        let old = if client.is_address {
            ""
        } else {
            " At a reload more than that may pass; the comment on 'track-sc0' says how many."
        };
        let errs = format!("Not one request too many passes{reloads}.{old} {early}");
        let mut head = vec![asks, made_by, String::new(), limit, String::new(), errs];
        let forgets = |unasked: Unasked| unasked.processes > 1 && unasked.reload_every.is_none();
        if self.unasked().is_some_and(forgets) {
            head.push(format!(
                "A client that is silent at one HAProxy process for {} and busy at another may \
                 have up to {} more.",
                in_haproxy(numbers.expire),
                k - 1
            ));
        }
        if numbers.full > USUAL_EXPIRE {
            let per_second = numbers.size / numbers.full.as_secs().max(1);
            head.push(format!(
                "A silent client must be remembered for {}: 'expire' is as long, and 'size' is \
                 enough for {per_second} new clients a second.",
                in_haproxy(numbers.expire)
            ));
        }
        head
    }
}

impl Numbers {
    fn of(policy: &Policy) -> Result<Self, String> {
        let bursts = policy.limits().map(|limit| limit.written().burst());
        let Some(smallest) = bursts.min() else {
            return Err("it has no limit".to_owned());
        };
        let interval = policy.limits().map(interval_ns).min().unwrap_or_default().max(1);
        let full = policy.remembers();
        if full > LONGEST_EXPIRE {
            return Err(format!(
                "HAProxy forgets a client after 24 days at the latest, and it must remember it \
                 for {} days",
                full.as_secs() / 86_400
            ));
        }
        let unasked = policy.unasked();
        let together = match unasked {
            Some(unasked) => Some(unasked.requests + 1),
            // A reserve of k - 1 leaves space for a question that costs k, and for some more.
            None => Some((smallest / 5 * 2 + smallest % 5 * 2 / 5).min(MOST_TOGETHER)),
        };
        let together = together.filter(|k| *k >= 2);
        let left = match unasked {
            Some(_) => policy.limits().map(Limit::burst).min().unwrap_or(smallest),
            None => smallest - together.map_or(0, |k| k - 1),
        };
        let unpaid = unasked.map_or(together.map_or(0, |k| k - 1).into(), Unasked::reserve);
        // Cells that become due while a refusal is remembered must not be lost.
        let remember_ms = (interval / 2_000_000).clamp(1, 1_000);
        let due = 2_000_000 * remember_ms / interval;
        let space = u64::from(left.saturating_sub(together.unwrap_or(1)));
        let remember_ms = Some(remember_ms).filter(|_| due <= space.max(1) && left >= 3);
        if together.is_none() && remember_ms.is_none() {
            return Err("its burst is too small for a reserve, and for remembering refusals; 3 \
                        is enough"
                .to_owned());
        }
        let size = full.as_secs() * NEW_CLIENTS;
        Ok(Self {
            together,
            remember_ms,
            never_early: u64::from(left).saturating_sub(unpaid),
            expire: if full > USUAL_EXPIRE { rounded_up(full) } else { USUAL_EXPIRE },
            size: size.next_multiple_of(1 << 20).clamp(USUAL_SIZE, MOST_SIZE),
            full,
            retry_after: interval.div_ceil(1_000_000_000),
        })
    }
}

/// The time in which a cell becomes due, on average if it counts in windows.
fn interval_ns(limit: &Limit) -> u64 {
    let written = limit.written();
    match limit.calendar() {
        None => written.emission_interval().0,
        Some(calendar) => {
            let each = calendar.unit().longest() / written.burst().max(1);
            u64::try_from(each.as_nanos()).unwrap_or(u64::MAX)
        }
    }
}

/// To whole minutes, or hours if there are many.
fn rounded_up(time: Duration) -> Duration {
    let seconds = time.as_millis().div_ceil(1_000);
    let seconds = u64::try_from(seconds).unwrap_or(u64::MAX / 2);
    let unit = if seconds < 7_200 { 60 } else { 3_600 };
    Duration::from_secs(seconds.next_multiple_of(unit))
}

/// As HAProxy writes times.
fn in_haproxy(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        seconds => format!("{}m", seconds / 60),
    }
}

/// A comment of lines that are short enough, each of which starts like this.
fn commented(start: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), start.to_owned());
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > 99 {
            lines.push_str(&line);
            lines.push('\n');
            start.clone_into(&mut line);
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + line.trim_end() + "\n"
}
