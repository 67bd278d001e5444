//! The flags that make a policy, and the store that they name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::table_error;
use gcra_store::Password;
use gcra_table::{MAX_BURST, Rate, Slots};
use gcra_text::config_note::ConfigNote;
use gcra_text::duration;
use gcra_text::sentence;
use gcra_text::sentence::Sentence;

use crate::answers::Answers;
use crate::file::document;
use crate::file::names::key_args;
use crate::file::names::not_an_arg;
use crate::file::secrets::Readers;
use crate::file::sharing::not_shareable;
use crate::key_parts::KeyParts;
use crate::limit::{Limit, LimitIdentity, Rule};
use crate::policies::Policies;
use crate::policy::{Policy, Price};
use crate::policy_text::{FlagsOrigin, PolicyText, StoreOrigin, text_of};
use crate::rate_guess::Meant;
use crate::sharing::{Sharing, WORDS, WithoutStore};
use crate::store::{StoreSettings, StoreUrl, VARIABLE_RULE, WAITS, is_variable};

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
}

impl LimitFlags {
    /// Their names in clap.
    pub const NAMES: [&str; 4] = ["rate", "burst", "key", "cost"];
}

#[derive(Clone, Debug)]
pub enum RateArg {
    Deny,
    Unlimited,
    Rate(Rate, String),
}

impl FromStr for RateArg {
    type Err = Sentence;

    fn from_str(text: &str) -> Result<Self, Sentence> {
        match text {
            "deny" => Ok(Self::Deny),
            "unlimited" => Ok(Self::Unlimited),
            _ if !text.contains(|c: char| c.is_ascii_digit()) => Err(sentence!(
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
pub fn parse_rate(text: &str) -> Result<Rate, Sentence> {
    text.parse().map_err(|error| {
        let is_rate = |part: &str| part.trim().parse::<Rate>().is_ok();
        if text.contains(',') && text.split(',').all(is_rate) {
            return sentence!(
                "'{text}' has several rates, and --rate takes one; write them as the limits of a \
                 policy, in a file for --config"
            );
        }
        let plain = text.replace(',', "");
        if plain != text && is_rate(&plain) {
            return sentence!("'{text}' is not a rate; write --rate {plain}");
        }
        match Meant::by(text) {
            Some(Meant { rate, burst }) => {
                let burst = burst.map(|burst| format!(" --burst {burst}")).unwrap_or_default();
                sentence!("'{text}' is not a rate; write --rate {rate}{burst}")
            }
            None => table_error::rate(&error).into(),
        }
    })
}

/// A value of `--burst`, in cells.
pub fn parse_burst(text: &str) -> Result<u64, Sentence> {
    let count =
        text.parse::<u64>().ok().filter(|count| (1..=u64::from(MAX_BURST)).contains(count));
    count.ok_or_else(|| {
        sentence!("'{text}' is not a whole number of requests from 1 to {MAX_BURST}, such as 20")
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
    pub fn settings(&self) -> Result<Option<StoreSettings>, Sentence> {
        let Some(url) = &self.store else { return Ok(None) };
        if self.ca.is_some() && !url.url.has_tls() {
            return Err("--store-ca has no effect without TLS; write a --store that begins with \
                        rediss://, or leave it out"
                .into());
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
pub fn parse_slots(text: &str) -> Result<Slots, Sentence> {
    let slots = text.parse().ok().and_then(|slots| Slots::new(slots).ok());
    slots.ok_or_else(|| {
        sentence!(
            "'{text}' is not a number of slots from {} to {}, such as 1048576; twice the number \
             of keys that are active within burst / rate is plenty",
            Slots::MIN,
            Slots::MAX
        )
    })
}

pub(crate) fn parse_variable(text: &str) -> Result<String, Sentence> {
    if is_variable(text) { Ok(text.to_owned()) } else { Err(VARIABLE_RULE.into()) }
}

pub fn parse_store_wait(text: &str) -> Result<Duration, Sentence> {
    duration::parse_in(text, WAITS, "20ms")
}

pub fn parse_without_store(text: &str) -> Result<WithoutStore, Sentence> {
    let words = WORDS.join(", ");
    let wrong =
        || sentence!("'{text}' is not a way to do without the store; write one of {words}");
    WithoutStore::of_word(text).ok_or_else(wrong)
}

/// The policy of agents that were started with this rate and burst, and no other flag.
pub fn policies_of_rate(rate: RateArg, burst: Option<u64>) -> Result<Policies, Sentence> {
    let flags = LimitFlags { rate: Some(rate), burst, key: Vec::new(), cost: None };
    policies_of_flags(&flags, None, Answers::blocked_only())
}

/// The one policy of the flags, which is for every message.
pub fn policies_of_flags(
    args: &LimitFlags,
    shared: Option<Sharing>,
    answers: Answers,
) -> Result<Policies, Sentence> {
    let rate = args.rate.as_ref().ok_or(
        "there is no limit; write --rate COUNT/PERIOD, such as --rate 100/s, or --config FILE",
    )?;
    let rule = rule_of_flags(args, rate)?;
    let of_limits = [("--burst", args.burst.is_some()), ("--store", shared.is_some())];
    if rule.limits().is_empty()
        && let Some((flag, _)) = of_limits.into_iter().find(|(_, is_there)| *is_there)
    {
        return Err(sentence!(
            "{flag} has no effect with a rate of deny or unlimited; leave it out"
        ));
    }
    let mistake_of = |limit| not_shareable(limit, args.cost.is_some());
    if let Some(mistake) = rule.limits().iter().filter(|_| shared.is_some()).find_map(mistake_of) {
        return Err(mistake.into());
    }
    let key = key_of_flags(args)?;
    let price = args.cost.as_ref().map(|name| Price::Cost(name.as_bytes().into()));
    // Also if it is the count of the rate.
    let burst = rule.limits().first().map(|limit| limit.burst().into());
    let price = price.unwrap_or(Price::Cell);
    let policy = Policy { price, shared, ..Policy::new("default", key, rule) };
    let origin = PolicyText::Flags(FlagsOrigin {
        rate: rate.to_string(),
        burst,
        key: args.key.clone(),
        cost: args.cost.clone(),
        store: None,
    });
    let policies = Policies::new(vec![policy], answers, Vec::new(), 0);
    Ok(Policies { origin: Some(Arc::new(origin)), ..policies })
}

fn rule_of_flags(args: &LimitFlags, rate: &RateArg) -> Result<Rule, Sentence> {
    let RateArg::Rate(rate, _) = rate else {
        return Ok(if let RateArg::Deny = rate { Rule::Deny } else { Rule::Unlimited });
    };
    let quota = rate.quota(args.burst).map_err(|error| table_error::rate(&error))?;
    let limit = Limit::new("default".to_owned(), LimitIdentity::of_flags(), rate, quota);
    Ok(Rule::Limits(vec![limit]))
}

/// The key, of which the cost is no part.
fn key_of_flags(args: &LimitFlags) -> Result<KeyParts, Sentence> {
    let mut mistakes = Vec::new();
    let key = key_args(&args.key, "--key", "--key ip,path", |_, mistake| mistakes.push(mistake));
    let key = mistakes.pop().map_or(Ok(KeyParts::exact(key)), Err)?;
    let Some(cost) = &args.cost else { return Ok(key) };
    if cost.is_empty() {
        return Err(
            "--cost has an empty name; write the name of an arg, such as --cost cost".into()
        );
    }
    if let Some(mistake) = not_an_arg(cost, "--cost") {
        return Err(mistake.into());
    }
    if key.reads(cost.as_bytes()) {
        return Err(sentence!(
            "--key and --cost both name '{cost}', so each cost would have a bucket of its own; \
             leave it out of --key"
        ));
    }
    Ok(key)
}

/// The one policy of the flags, shared through the store if there is one.
pub fn policies_of_flags_and_store(
    args: &LimitFlags,
    store: Option<StoreSettings>,
    without_store: WithoutStore,
    answers: Answers,
) -> Result<Policies, Sentence> {
    let shared = store.as_ref().map(|_| Sharing { without_store, at_once: false });
    let mut policies = policies_of_flags(args, shared, answers)?;
    if let (Some(settings), Some(PolicyText::Flags(flags))) = (&store, policies.origin.as_deref())
    {
        let store = Some(of_store(settings, without_store));
        let origin = PolicyText::Flags(FlagsOrigin { store, ..flags.clone() });
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

impl PolicyText {
    /// The same policies once more. `None` if only the path of their file is known. The error is
    /// what is wrong, a sentence each: for example, the salt of the store cannot be read.
    pub fn policies(&self) -> Result<Option<Policies>, Vec<ConfigNote>> {
        match self {
            Self::Flags(flags) => {
                policies_again(flags).map(Some).map_err(|mistake| vec![mistake.into()])
            }
            Self::File(file) if !file.has_texts() => Ok(None),
            Self::File(file) => document::read_again(file, Readers::OfFile).map(Some),
        }
    }
}

/// The policies of flags that were kept. The error is a sentence.
fn policies_again(flags: &FlagsOrigin) -> Result<Policies, Sentence> {
    let FlagsOrigin { rate, burst, key, cost, store } = flags;
    let limit = LimitFlags {
        rate: Some(rate.parse()?),
        burst: *burst,
        key: key.clone(),
        cost: cost.clone(),
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
    pub fn read(self, readers: Readers) -> Result<(Policies, Option<PathBuf>), Vec<ConfigNote>> {
        match self {
            Self::Flags(policies) => Ok((*policies, None)),
            Self::File(file) => {
                document::read(&file, readers).map(|policies| (policies, Some(file)))
            }
        }
    }
}
