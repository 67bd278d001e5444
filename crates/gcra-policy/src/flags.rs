//! The flags that make a policy, and the store that they name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use gcra_store::Password;
use gcra_table::{MAX_BURST, Nanos, Rate, Slots};
use gcra_text::duration::{self, nanoseconds};
use gcra_text::table_error;

use crate::answers::Answers;
use crate::file::document;
use crate::file::key::{key_args, not_an_arg};
use crate::file::secrets::Readers;
use crate::file::sharing::not_shareable;
use crate::key_parts::KeyParts;
use crate::limit::{Limit, LimitIdentity, Rule};
use crate::origin::{FlagsOrigin, Origin, StoreOrigin, UnaskedOrigin, text_of};
use crate::overrides::Overrides;
use crate::policies::Policies;
use crate::policy::{Policy, Price};
use crate::rate_guess::Meant;
use crate::reserve::Written;
use crate::sharing::{Sharing, WORDS, WithoutStore};
use crate::store::{StoreSettings, StoreUrl, VARIABLE_RULE, WAITS, is_variable};
use crate::unasked::{PROCESSES, RELOADS, Unasked};

/// The flags that make the one policy of an agent without a file.
#[derive(Clone, Debug, clap::Args)]
pub struct LimitFlags {
    /// How many requests each key may make: 100/s, 5000/min, 0.5/s, 1/10s, 'deny' or 'unlimited'
    ///
    /// The period ends in ms, s, m, h or d (also sec, min, hour, day) and may have a number
    /// before that: 10/h, 1000/day, 100/250ms. 'deny' blocks every request, and 'unlimited'
    /// blocks none.
    #[arg(long, value_name = "COUNT/PERIOD", allow_hyphen_values = true)]
    pub rate: Option<RateArg>,

    /// How many requests an idle key may make at once [default: the count of the rate, 100 for
    /// 100/s]
    ///
    /// In any period, a key can make these and the count of the rate: with 1000/h at most 2000 in
    /// an hour, and with --burst 50 at most 1050.
    #[arg(long, value_name = "COUNT", value_parser = parse_burst)]
    #[arg(allow_negative_numbers = true)]
    pub burst: Option<u64>,

    /// The args of the message whose values make the key, such as ip,path [default: all args but
    /// that of --cost]
    ///
    /// If one of them is null or missing, the message gets no decision. 'else ARG' behind it
    /// names the arg that stands for it then, as in --key 'key,else ip', and 'else null' says
    /// that null is a value. Without --key, all args except that of --cost make the key, by
    /// type and value, and null is a value.
    #[arg(long, value_name = "ARG,…", value_delimiter = ',')]
    pub key: Vec<String>,

    /// The arg that says how many cells a request costs [default: each request costs 1]
    ///
    /// The cost is a whole number, charged in full or not at all. A cost of 0 is never blocked
    /// and charges nothing, a cost above the burst is always blocked, and a message without
    /// the arg (or with null) costs 1. The arg is not part of the key.
    #[arg(long, value_name = "ARG")]
    pub cost: Option<String>,

    #[command(flatten)]
    pub unasked: UnaskedFlags,
}

impl LimitFlags {
    /// Their names in clap.
    pub const NAMES: [&str; 7] =
        ["rate", "burst", "key", "cost", "unasked", "asked_by", "reload_every"];
}

/// How many requests HAProxy lets pass without asking.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct UnaskedFlags {
    /// How many requests of a key HAProxy may let pass between two questions [default: none]
    ///
    /// The agent keeps them in reserve: it decides with a burst that is smaller by them, so that
    /// no more pass than --rate and --burst say. A question pays for those before it by its
    /// --cost, as haproxy/ask-less.cfg asks it; COUNT is 7 there.
    #[arg(id = "unasked", long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = |text: &str| parse_count::<u32>(text, "requests", MAX_BURST.into(), 7))]
    pub requests: Option<u32>,

    /// How many HAProxy processes ask, each of which lets as many pass [default: 1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, requires = "unasked")]
    #[arg(value_parser = |text: &str| parse_count::<u32>(text, "processes", *PROCESSES.end(), 2))]
    pub asked_by: Option<u32>,

    /// The shortest time between two reloads of HAProxy, such as 10m [default: reloads let more
    /// pass]
    ///
    /// It begins when the process that was replaced has ended ('hard-stop-after' of HAProxy). At
    /// each reload HAProxy forgets what it has let pass. With this flag the agent keeps that in
    /// reserve, too; without it, as many more pass for each reload.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "unasked")]
    #[arg(value_parser = |text: &str| duration::parse_in(text, RELOADS, "10m"))]
    pub reload_every: Option<Duration>,
}

impl UnaskedFlags {
    /// Whether none of them is written.
    pub fn is_empty(&self) -> bool {
        let Self { requests, asked_by, reload_every } = self;
        requests.is_none() && asked_by.is_none() && reload_every.is_none()
    }

    fn unasked(&self) -> Option<Unasked> {
        Some(Unasked {
            requests: self.requests?,
            processes: self.asked_by.unwrap_or(1),
            reload_every: self.reload_every.map(|time| Nanos(nanoseconds(time))),
        })
    }
}

#[derive(Clone, Debug)]
pub enum RateArg {
    Deny,
    Unlimited,
    Rate(Rate, String),
}

impl FromStr for RateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "deny" => Ok(Self::Deny),
            "unlimited" => Ok(Self::Unlimited),
            _ if !text.contains(|c: char| c.is_ascii_digit()) => Err(format!(
                "'{text}' is not a rate; write COUNT/PERIOD, such as 100/s, or deny or unlimited"
            )),
            _ => parse_rate(text).map(|rate| Self::Rate(rate, text.to_owned())),
        }
    }
}

impl fmt::Display for RateArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deny => "deny",
            Self::Unlimited => "unlimited",
            Self::Rate(_, text) => text,
        })
    }
}

/// A value of `--rate`. The error is a sentence, as for the flags below.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    text.parse().map_err(|error| {
        let is_rate = |part: &str| part.trim().parse::<Rate>().is_ok();
        if text.contains(',') && text.split(',').all(is_rate) {
            return format!(
                "'{text}' has several rates, and --rate takes one; write them as the limits of a \
                 policy, in a file for --config"
            );
        }
        let plain = text.replace(',', "");
        if plain != text && is_rate(&plain) {
            return format!("'{text}' is not a rate; write --rate {plain}");
        }
        match Meant::by(text) {
            Some(Meant { rate, burst }) => {
                let burst = burst.map(|burst| format!(" --burst {burst}")).unwrap_or_default();
                format!("'{text}' is not a rate; write --rate {rate}{burst}")
            }
            None => table_error::rate(&error),
        }
    })
}

/// A value of `--burst`, in cells.
pub fn parse_burst(text: &str) -> Result<u64, String> {
    parse_count(text, "requests", MAX_BURST.into(), 20)
}

/// A number from 1 to `most`, such as `like`.
fn parse_count<T: TryFrom<u64>>(text: &str, of: &str, most: u64, like: u32) -> Result<T, String> {
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.and_then(|count| count.try_into().ok()).ok_or_else(|| {
        format!("'{text}' is not a whole number of {of} from 1 to {most}, such as {like}")
    })
}

/// Where a store is.
#[derive(Debug, clap::Args)]
pub struct StoreFlags {
    /// The store through which machines share a limit, such as redis://store.example
    ///
    /// It is Valkey or Redis. All machines that name the same store, rate and burst share one
    /// limit. 'gcra-spoa help store check' says how an address is written.
    #[arg(long, value_name = "URL", value_parser = StoreUrl::parse, conflicts_with = "config")]
    pub store: Option<StoreUrl>,

    /// A file with the password of the store's user in the first line
    #[arg(long = "store-password-file", value_name = "FILE", requires = "store")]
    #[arg(conflicts_with = "config")]
    pub(crate) password_file: Option<PathBuf>,

    /// A variable of the environment with the password of the store's user
    #[arg(long = "store-password-env", value_name = "VARIABLE", value_parser = parse_variable)]
    #[arg(requires = "store", conflicts_with_all = ["password_file", "config"])]
    pub(crate) password_env: Option<String>,

    /// With TLS: the certificates to trust (PEM) instead of the system's
    #[arg(long = "store-ca", value_name = "FILE", requires = "store", conflicts_with = "config")]
    pub ca: Option<PathBuf>,
}

impl StoreFlags {
    /// The settings, if there is a store. The error is a sentence.
    pub fn settings(&self) -> Result<Option<StoreSettings>, String> {
        let Some(url) = &self.store else { return Ok(None) };
        if self.ca.is_some() && !url.url.has_tls() {
            return Err("--store-ca has no effect without TLS; write a --store that begins with \
                        rediss://, or leave it out"
                .to_owned());
        }
        let mut settings = StoreSettings::new(url.clone());
        settings.base.password = match (&self.password_file, &self.password_env) {
            (Some(file), _) => Password::File(file.clone()),
            (None, Some(name)) => Password::Variable(name.clone()),
            (None, None) => Password::None,
        };
        settings.base.authorities.clone_from(&self.ca);
        Ok(Some(settings))
    }
}

/// The error must not have the text in it, which may be a password.
pub fn parse_slots(text: &str) -> Result<Slots, String> {
    let slots = text.parse().ok().and_then(|slots| Slots::new(slots).ok());
    slots.ok_or_else(|| {
        format!(
            "'{text}' is not a number of slots from {} to {}, such as 1048576; twice the number \
             of keys that are active within burst / rate is plenty",
            Slots::MIN,
            Slots::MAX
        )
    })
}

pub(crate) fn parse_variable(text: &str) -> Result<String, String> {
    if is_variable(text) { Ok(text.to_owned()) } else { Err(VARIABLE_RULE.to_owned()) }
}

pub fn parse_store_wait(text: &str) -> Result<Duration, String> {
    duration::parse_in(text, WAITS, "20ms")
}

pub fn parse_without_store(text: &str) -> Result<WithoutStore, String> {
    let words = WORDS.join(", ");
    let wrong = || format!("'{text}' is not a way to do without the store; write one of {words}");
    WithoutStore::of_word(text).ok_or_else(wrong)
}

/// The policy of agents that were started with this rate and burst, and no other flag.
pub fn policies_of_rate(rate: RateArg, burst: Option<u64>) -> Result<Policies, String> {
    let unasked = UnaskedFlags::default();
    let flags = LimitFlags { rate: Some(rate), burst, key: Vec::new(), cost: None, unasked };
    policies_of_flags(&flags, None, Answers::blocked_only())
}

/// The one policy of the flags, which is for every message.
pub fn policies_of_flags(
    args: &LimitFlags,
    shared: Option<Sharing>,
    answers: Answers,
) -> Result<Policies, String> {
    let rate = args.rate.as_ref().ok_or(
        "there is no limit; write --rate COUNT/PERIOD, such as --rate 100/s, or --config FILE",
    )?;
    let unasked = args.unasked.unasked();
    if unasked.is_some() && args.cost.is_none() {
        return Err("with --unasked nobody would pay for the requests that pass without asking; \
                    write --cost ARG, the arg in which HAProxy says for how many a question pays, \
                    as haproxy/ask-less.cfg does with --cost cost"
            .to_owned());
    }
    let rule = match rate {
        RateArg::Deny => Rule::Deny,
        RateArg::Unlimited => Rule::Unlimited,
        RateArg::Rate(rate, _) => {
            let quota = rate.quota(args.burst).map_err(|error| table_error::rate(&error))?;
            let mut limit =
                Limit::new("default".to_owned(), LimitIdentity::of_flags(), rate, quota);
            if let Some(unasked) = unasked {
                limit.keep_in_reserve(unasked, Written::AsFlags)?;
            }
            Rule::Limits(vec![limit])
        }
    };
    let of_limits = [
        ("--burst", args.burst.is_some()),
        ("--unasked", unasked.is_some()),
        ("--store", shared.is_some()),
    ];
    if rule.limits().is_empty()
        && let Some((flag, _)) = of_limits.into_iter().find(|(_, is_there)| *is_there)
    {
        return Err(format!(
            "{flag} has no effect with a rate of deny or unlimited; leave it out"
        ));
    }
    let mistake_of = |limit| not_shareable(limit, args.cost.is_some());
    if let Some(mistake) = rule.limits().iter().filter(|_| shared.is_some()).find_map(mistake_of) {
        return Err(mistake);
    }
    let mut mistakes = Vec::new();
    let key = key_args(&args.key, "--key", "--key ip,path", |_, mistake| mistakes.push(mistake));
    let key = mistakes.pop().map_or(Ok(KeyParts::exact(key)), Err)?;
    if let Some(cost) = &args.cost {
        if cost.is_empty() {
            return Err("--cost has an empty name; write the name of an arg, such as --cost cost"
                .to_owned());
        }
        if let Some(mistake) = not_an_arg(cost, "--cost") {
            return Err(mistake);
        }
        if key.reads(cost.as_bytes()) {
            return Err(format!(
                "--key and --cost both name '{cost}', so each cost would have a bucket of its \
                 own; leave it out of --key"
            ));
        }
    }
    let price = args.cost.as_ref().map(|name| Price::Cost(name.as_bytes().into()));
    // Also if it is the count of the rate.
    let burst = rule.limits().first().map(|limit| limit.written().burst().into());
    let policy = Policy {
        name: "default".into(),
        message: None,
        when: None,
        key,
        price: price.unwrap_or(Price::Cell),
        rule,
        overrides: Overrides::default(),
        observes: false,
        penalty: None,
        bandwidth: None,
        shared,
        trial: None,
        is_trial: false,
    };
    let origin = Origin::Flags(FlagsOrigin {
        rate: rate.to_string(),
        burst,
        key: args.key.clone(),
        cost: args.cost.clone(),
        unasked: unasked.map(UnaskedOrigin::from),
        store: None,
    });
    let policies = Policies::new(vec![policy], answers, Vec::new(), 0);
    Ok(Policies { origin: Some(Arc::new(origin)), ..policies })
}

/// The one policy of the flags, shared through the store if there is one.
pub fn policies_of_flags_and_store(
    args: &LimitFlags,
    store: Option<StoreSettings>,
    without_store: WithoutStore,
    answers: Answers,
) -> Result<Policies, String> {
    let shared = store.as_ref().map(|_| Sharing { without_store, at_once: false });
    let mut policies = policies_of_flags(args, shared, answers)?;
    if let (Some(settings), Some(Origin::Flags(flags))) = (&store, policies.origin.as_deref()) {
        let store = Some(of_store(settings, without_store));
        let origin = Origin::Flags(FlagsOrigin { store, ..flags.clone() });
        policies.origin = Some(Arc::new(origin));
    }
    policies.store = store;
    Ok(policies)
}

fn of_store(settings: &StoreSettings, without_store: WithoutStore) -> StoreOrigin {
    let (password_file, password_env) = match &settings.base.password {
        Password::File(file) => (Some(text_of(file)), None),
        Password::Variable(name) => (None, Some(name.clone())),
        _ => (None, None),
    };
    StoreOrigin {
        url: settings.url_text.clone(),
        password_file,
        password_env,
        ca: settings.base.authorities.as_deref().map(text_of),
        wait_ms: u64::try_from(settings.wait.as_millis()).unwrap_or(u64::MAX),
        without_store: without_store.word().to_owned(),
    }
}

impl Origin {
    /// The same policies once more. `None` if only the path of their file is known. The error is
    /// what is wrong, a sentence each: for example, the salt of the store cannot be read.
    pub fn policies(&self) -> Result<Option<Policies>, Vec<String>> {
        match self {
            Self::Flags(flags) => policies_again(flags).map(Some).map_err(|mistake| vec![mistake]),
            Self::File(file) if !file.has_texts() => Ok(None),
            Self::File(file) => document::read_again(file, Readers::OfFile).map(Some),
        }
    }
}

/// The policies of flags that were kept. The error is a sentence.
fn policies_again(flags: &FlagsOrigin) -> Result<Policies, String> {
    let FlagsOrigin { rate, burst, key, cost, unasked, store } = flags;
    let unasked = unasked.as_ref().map(|it| UnaskedFlags {
        requests: Some(it.requests),
        asked_by: Some(it.asked_by),
        reload_every: it.reload_every_ns.map(Duration::from_nanos),
    });
    let limit = LimitFlags {
        rate: Some(rate.parse()?),
        burst: *burst,
        key: key.clone(),
        cost: cost.clone(),
        unasked: unasked.unwrap_or_default(),
    };
    let Some(store) = store else {
        return policies_of_flags(&limit, None, Answers::blocked_only());
    };
    let StoreOrigin { url, password_file, password_env, ca, wait_ms, without_store } = store;
    let flags = StoreFlags {
        store: Some(StoreUrl::parse(url)?),
        password_file: password_file.as_ref().map(PathBuf::from),
        password_env: password_env.clone(),
        ca: ca.as_ref().map(PathBuf::from),
    };
    let wait = Some(Duration::from_millis(*wait_ms));
    let settings = flags.settings()?.map(|settings| settings.with_wait(wait));
    let without_store = WithoutStore::of_word(without_store).unwrap_or_default();
    policies_of_flags_and_store(&limit, settings, without_store, Answers::blocked_only())
}

/// Where the policies come from.
#[derive(Debug)]
pub enum Source {
    Flags(Box<Policies>),
    File(PathBuf),
}

impl Source {
    /// The policies, and the file that they come from; or one line for each mistake in it.
    pub fn read(self, readers: Readers) -> Result<(Policies, Option<PathBuf>), Vec<String>> {
        match self {
            Self::Flags(policies) => Ok((*policies, None)),
            Self::File(file) => {
                document::read(&file, readers).map(|policies| (policies, Some(file)))
            }
        }
    }
}
