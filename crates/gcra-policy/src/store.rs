//! The store through which policies are shared: where it is, and how it is used.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_store::{Config, Url};
use gcra_text::count::Count;
use gcra_text::duration::Exact;
use gcra_text::sentence::Sentence;

/// How long a request waits for the store at most, unless it is set.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_millis(20);

/// How long a request may wait for the store.
pub const WAITS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);

/// The name of a variable for a password.
pub(crate) const VARIABLE_RULE: &str = "it must be the name of a variable of the environment, of \
                                        letters, digits and '_', such as GCRA_STORE_PASSWORD";

#[derive(Clone, Eq, PartialEq)]
pub struct StoreSettings {
    /// How it is used, except the times that follow from the wait.
    pub base: Config,
    /// The address as it was written. It has no password in it.
    pub url_text: String,
    /// How long a request waits for the store at most.
    pub wait: Duration,
    /// The secret bytes that are hashed into the names of records, so that they cannot be guessed;
    /// may be empty.
    pub salt: Vec<u8>,
}

// By hand, because the salt is a secret.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettings").field("url", &self.url_text).finish_non_exhaustive()
    }
}

impl StoreSettings {
    /// The usual settings, for a store at this address.
    pub fn new(StoreUrl { url, text }: StoreUrl) -> Self {
        // Only a server that others can replace must have replicas.
        let least_replicas = u32::from(!url.is_one_server());
        let mut base = Config::new(url);
        base.least_replicas = least_replicas;
        Self { base, url_text: text, wait: DEFAULT_WAIT, salt: Vec::new() }
    }

    /// The same, with this wait if there is one.
    pub fn with_wait(self, wait: Option<Duration>) -> Self {
        Self { wait: wait.unwrap_or(self.wait), ..self }
    }

    /// How `gcra-store` uses the store.
    pub fn config(&self) -> Config {
        let mut config = self.base.clone();
        // Each attempt must end soon, but not before the requests that would wait for it.
        config.connect_timeout = self.wait.max(Duration::from_millis(500));
        // A reply for which a request still waits must count.
        config.timeout = config.timeout.max(self.wait);
        // Else nearly all requests that have to wait would do so for nothing.
        config.slow = self.wait;
        // The others must soon know what one host finds out about the store.
        config.look_every = Duration::from_millis(500);
        config
    }

    /// "redis://store.example, for which a request waits at most 20ms".
    pub fn in_words(&self) -> String {
        let wait = Exact(self.wait);
        let mut words = format!("{}, for which a request waits at most {wait}", self.url_text);
        if self.base.least_replicas > 0 {
            let replicas = Count(self.base.least_replicas, "replica", "replicas");
            words.push_str(&format!(", with at least {replicas}"));
        }
        if self.base.strict {
            words.push_str(", strict");
        }
        words
    }
}

#[derive(Clone, Debug)]
pub struct StoreUrl {
    pub(crate) url: Url,
    text: String,
}

impl StoreUrl {
    /// Reads it. The error is a sentence, and has nothing of the text in it: that may have a
    /// password.
    pub(crate) fn parse(text: &str) -> Result<Self, Sentence> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        Ok(Self { url, text: text.to_owned() })
    }
}

/// Whether a string is the name of a variable of the environment. One that is not may be a
/// password, so it must not be repeated.
pub(crate) fn is_variable(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.starts_with(|c: char| !c.is_ascii_digit()) && name.bytes().all(good)
}
