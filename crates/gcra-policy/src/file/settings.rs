//! The settings of the configuration file, each declared once: its name and table, its type and
//! range, its default, an example, and one sentence of help.
//!
//! The reader takes values by these declarations. The names that mistakes suggest, the table in
//! docs/CONFIG.md, the JSON Schema in deploy/ and tests/interfaces/settings.txt are made of them.

use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_table::{MAX_BURST, MOST_UNSETTLED};

use crate::file::names::{
    are_key_args, are_translators, are_variables, not_a_message, not_an_arg,
};
use crate::sharing;
use crate::store::WAITS;

/// A table of the file.
#[derive(Debug)]
pub struct SettingTable {
    /// Its header, or the words for its place.
    pub place: &'static str,
    pub settings: &'static [Declared],
}

impl SettingTable {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.settings.iter().any(|setting| setting.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.settings.iter().map(|setting| setting.name)
    }
}

/// The declaration of a setting. Its default and its example are written as in the file.
#[derive(Debug)]
pub struct Declared {
    pub name: &'static str,
    pub values: Values,
    /// `REQUIRED`, or empty if it is none that a file could say.
    pub default: &'static str,
    pub example: &'static str,
    /// The setting of the same table without which it has no effect, or empty.
    pub needs: &'static str,
    pub help: &'static str,
}

pub const REQUIRED: &str = "required";

/// A setting: its description, and how it is read.
pub(crate) struct Setting<K> {
    pub about: Declared,
    pub kind: K,
}

/// The values that a setting can have.
#[derive(Debug)]
pub enum Values {
    Boolean,
    Number(u64, u64),
    Time(Duration, Duration),
    /// A string that is not empty.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    Texts,
    /// One limit in a string.
    Limit,
    /// A limit or a list of limits.
    Limits,
    /// `"deny"` or `"unlimited"`, too.
    Rule,
    /// A number from 0, or the name of an arg.
    Cells,
    /// One arg with its values.
    When,
    Table(&'static SettingTable),
    /// A list of tables.
    Tables(&'static SettingTable),
    /// Tables with names that the file chooses.
    Named(&'static SettingTable),
    /// Values of the key, each with a rule.
    Overrides,
}

/// A boolean.
pub(crate) struct Flag();
/// A whole number in this range.
pub(crate) struct Number(pub RangeInclusive<u32>);
/// A time in this range.
pub(crate) struct Times(pub RangeInclusive<Duration>);
/// A string, which may be empty.
pub(crate) struct Text();
/// A string that is not empty: what it is, and what is wrong with it in this setting.
pub(crate) struct NonEmpty(pub &'static str, pub fn(&str, &str) -> Option<String>);
type ArgName = NonEmpty;
type MessageName = NonEmpty;
type FileName = NonEmpty;
/// One of some words: what it is, and the words.
pub(crate) struct Word(pub &'static str, pub &'static [&'static str]);
/// A list of strings: whether these are right in this setting.
pub(crate) struct Texts(pub fn(&[String]) -> bool);
/// A value that is read by code of its own.
pub(crate) struct Own();

/// A kind, and the values that it reads.
#[rustfmt::skip]
macro_rules! kind {
    (Flag()) => { (Flag(), Values::Boolean) };
    (Number($least:literal ..= $most:expr)) => {
        (Number($least..=$most), Values::Number($least, $most as u64))
    };
    (Times($range:expr)) => { (Times($range), Values::Time(*$range.start(), *$range.end())) };
    (Text()) => { (Text(), Values::Text) };
    (ArgName()) => { (NonEmpty("the name of an arg", not_an_arg), Values::Text) };
    (MessageName()) => { (NonEmpty("the name of a spoe-message", not_a_message), Values::Text) };
    (FileName($what:expr)) => { (NonEmpty($what, |_, _| None), Values::Text) };
    (Word($what:expr, $words:expr)) => { (Word($what, $words), Values::Word($words)) };
    (Texts($are_right:expr)) => { (Texts($are_right), Values::Texts) };
    (Own($values:expr)) => { (Own(), $values) };
}

/// Declares the settings of tables: `NAME name: Kind() = default, example, help`, and in front of
/// the help the setting that it needs.
macro_rules! settings {
    ($($(#[$doc:meta])* $table:ident, $module:ident, $place:literal: {
        $($id:ident $name:ident: $kind:ident $arg:tt = $default:expr, $example:literal,
            $([$needs:literal])? $help:literal;)*
    })*) => {
        $(
            $(#[$doc])*
            pub static $table: SettingTable = SettingTable {
                place: $place,
                settings: &[$(
                    row!($name, $kind $arg, $default, $example, concat!($($needs)?), $help)
                ),*],
            };

            pub(crate) mod $module {
                use super::*;

                $(pub(crate) const $id: Setting<$kind> = Setting {
                    about: row!($name, $kind $arg, $default, $example, concat!($($needs)?), $help),
                    kind: kind!($kind $arg).0,
                };)*
            }
        )*

        /// All tables.
        pub static TABLES: &[&SettingTable] = &[$(&$table),*];
    };
}

macro_rules! row {
    ($name:ident, $kind:ident $arg:tt, $default:expr, $example:expr, $needs:expr, $help:expr) => {
        Declared {
            name: stringify!($name),
            values: kind!($kind $arg).1,
            default: $default,
            example: $example,
            needs: $needs,
            help: $help,
        }
    };
}

const fn seconds(least: u64, most: u64) -> RangeInclusive<Duration> {
    Duration::from_secs(least)..=Duration::from_secs(most)
}

const DAY: u64 = 86_400;

/// The longest ceiling of penalties.
pub(crate) const MAX_CEILING_NS: u64 = 30 * DAY * 1_000_000_000;

/// The longest delay. HAProxy keeps a time in milliseconds in 31 bits, which is 24.8 days.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(24 * DAY);

const SCOPES: &[&str] = &["proc", "sess", "txn", "req", "res"];

settings! {
    /// The settings above all tables, and the tables themselves.
    FILE_TABLE, of_file, "the file": {
        SCOPE scope: Word("a scope", SCOPES) = "\"txn\"", "\"sess\"",
            "The scope of the variables that are set.";
        ANSWER answer: Texts(are_variables) = "[]", "[\"remaining\", \"retry_after\"]",
            "The variables to set in addition to `blocked`.";
        NAT64 nat64: Texts(are_translators) = "[]", "[\"2001:db8:64::/96\"]",
            "The prefixes of your own NAT64 translators, of 96 bits each.";
        SALT_FILE salt_file: FileName("the name of a file of random bytes") = "", "\"names.salt\"",
            "A file of 16 to 4096 random bytes, for the digits in names of clients.";
        NAMES_FILE names_file: FileName("the name of a file") = "", "\"customers.txt\"",
            "A file that says what clients are known as, a line for each.";
        STORE store: Own(Values::Table(&STORE_TABLE)) = "", "{ url = \"redis://store.example\" }",
            "The store of the policies that are shared.";
        POLICY policy: Own(Values::Named(&POLICY_TABLE)) = REQUIRED,
            "{ api = { limits = \"10/s burst 20\" } }",
            "The policies, each below a header of its own.";
    }

    POLICY_TABLE, of_policy, "[policy.NAME]": {
        MESSAGE message: MessageName() = "\"NAME\"", "\"api\"",
            "The spoe-message that the policy is for.";
        WHEN when: Own(Values::When) = "", "{ plan = \"gold\" }",
            "One arg, and its values for which the policy is.";
        LIMITS limits: Own(Values::Rule) = REQUIRED, "[\"10/s burst 20\", \"1000/h\"]",
            "The limits; a request must satisfy all of them.";
        OBSERVE observe: Own(Values::Limits) = "", "[\"50/s burst 100\"]",
            "Limits on trial, which block nothing.";
        KEY key: Texts(are_key_args) = "", "[\"ip\"]",
            "The args whose values make the key; all but those of cost and when if left out.";
        IPV4_PREFIX ipv4_prefix: Number(0..=32) = "32", "24",
            "Addresses that agree in this many bits are one client.";
        IPV6_PREFIX ipv6_prefix: Number(0..=128) = "64", "56", "The same for IPv6.";
        LOWERCASE lowercase: Flag() = "false", "true",
            "Whether strings that differ only in case are one key.";
        COST cost: ArgName() = "", "\"cost\"",
            "The arg that says how many cells a request costs; one cell if left out.";
        SETTLE settle: MessageName() = "", "\"api-done\"",
            "The spoe-message of the response, which says what the request has cost.";
        RESERVE reserve: Own(Values::Cells) = "0", "5", ["settle"]
            "How many cells a request reserves, or the arg that says it.";
        MAX_DEBT max_debt: Times(seconds(1, 30 * DAY)) = "\"1h\"", "\"1h\"", ["settle"]
            "How long a debt that responses charge may take to be paid off.";
        SETTLE_WITHIN settle_within: Times(seconds(1, DAY)) = "\"10m\"", "\"10m\"", ["settle"]
            "How old a reservation may be when its response comes.";
        UNSETTLED unsettled: Number(1..=MOST_UNSETTLED) = "", "50", ["settle"]
            "How many cells a request costs that no response settles in time.";
        MODE mode: Word("a mode", &["enforce", "observe"]) = "\"enforce\"", "\"observe\"",
            "With \"observe\" the policy counts and answers, and blocks nothing.";
        PENALTY penalty: Own(Values::Table(&PENALTY_TABLE)) = "",
            "{ cells = 1, ceiling = \"10m\" }", "What a blocked request is charged.";
        BANDWIDTH bandwidth: Own(Values::Table(&BANDWIDTH_TABLE)) = "",
            "{ full = \"10m\", least = \"50k\" }",
            "The bytes per second of responses, by what the client owes.";
        MAX_DELAY max_delay: Own(Values::Time(Duration::from_millis(1), LONGEST_DELAY)) = "",
            "\"2s\"",
            "How long a request may be delayed instead of blocked, in whole milliseconds.";
        SHARED shared: Flag() = "false", "true",
            "Whether the policy counts over all machines that use the store.";
        WITHOUT_STORE without_store: Word("a way to do without the store", &sharing::WORDS) =
            "\"share\"", "\"closed\"", ["shared"] "What happens while the store cannot be used.";
        OPEN_FOR open_for: Times(seconds(1, 3_600)) = "\"10s\"", "\"10s\"", ["without_store"]
            "How long \"open\" allows requests after the store was lost.";
        OVERRIDES overrides: Own(Values::Overrides) = "", "{ \"192.0.2.0/24\" = \"unlimited\" }",
            "Other limits for some addresses, networks or values of the key.";
        LISTS lists: Own(Values::Tables(&LIST_TABLE)) = "",
            "[{ file = \"partners.txt\", limits = \"unlimited\" }]", "Overrides from files.";
    }

    LIMIT_TABLE, of_limit, "a limit": {
        NAME name: Own(Values::Text) = "", "\"hourly\"",
            "Its name; its position in the list if left out.";
        RATE rate: Text() = "", "\"10/s\"", "How many cells come back in which time.";
        BURST burst: Number(1..=MAX_BURST) = "", "20", ["rate"]
            "How many cells can be spent at once; the count of the rate if left out.";
        COUNT count: Number(1..=4_000_000_000_u32) = "", "10000", ["window"]
            "How many cells can be spent in a window.";
        WINDOW window: Own(Values::Text) = "", "\"day Europe/Berlin\"", ["count"]
            "The window, an hour, day, week or month, and its time zone.";
        KEY key: Texts(are_key_args) = "", "[\"ip\"]",
            "A key of its own; that of the policy if left out.";
        IPV4_PREFIX ipv4_prefix: Number(0..=32) = "", "24",
            "As in the policy, which is its default.";
        IPV6_PREFIX ipv6_prefix: Number(0..=128) = "", "48",
            "As in the policy, which is its default.";
        LOWERCASE lowercase: Flag() = "", "true", "As in the policy, which is its default.";
        ARG arg: ArgName() = "", "\"plan\"", ["most"]
            "The arg of each message that says the numbers.";
        DEFAULT default: Own(Values::Limit) = "", "\"10/s burst 20\"", ["arg"]
            "The limit of messages that say none.";
        MOST most: Own(Values::Limit) = "", "\"1000/s burst 2000\"", ["default"]
            "The highest limit that a message can say.";
    }

    PENALTY_TABLE, of_penalty, "penalty": {
        CELLS cells: Number(1..=u32::MAX) = "1", "1",
            "How many cells a blocked request is charged.";
        CEILING ceiling:
            Own(Values::Time(Duration::from_micros(1), Duration::from_nanos(MAX_CEILING_NS))) =
            REQUIRED, "\"10m\"", "How much longer a client has to wait at most.";
    }

    BANDWIDTH_TABLE, of_bandwidth, "bandwidth": {
        FULL full: Text() = REQUIRED, "\"10m\"",
            "The bytes per second of a client that owes nothing, up to `1g`.";
        LEAST least: Text() = REQUIRED, "\"50k\"",
            "The bytes per second of a client that has used its burst.";
    }

    LIST_TABLE, of_list, "[[policy.NAME.lists]]": {
        FILE file: Text() = REQUIRED, "\"partners.txt\"",
            "A file with one value of the key a line.";
        LIMITS limits: Own(Values::Rule) = REQUIRED, "\"unlimited\"",
            "The limits of these values.";
    }

    STORE_TABLE, of_store, "[store]": {
        URL url: Text() = REQUIRED, "\"redis://store.example\"",
            "The address, without a password.";
        PASSWORD_FILE password_file: FileName("the name of a file") = "", "\"store.password\"",
            "A file with the password in its first line.";
        PASSWORD_ENV password_env: Own(Values::Text) = "", "\"GCRA_STORE_PASSWORD\"",
            "A variable of the agents' environment with the password.";
        SENTINEL_PASSWORD_FILE sentinel_password_file: FileName("the name of a file") = "",
            "\"sentinel.password\"", "A file with the password of the sentinels.";
        SENTINEL_PASSWORD_ENV sentinel_password_env: Own(Values::Text) = "",
            "\"GCRA_SENTINEL_PASSWORD\"", "A variable with the password of the sentinels.";
        CA ca: FileName("the name of a file (PEM)") = "", "\"ca.pem\"",
            "With TLS: certificates to trust instead of the system's.";
        CERTIFICATE certificate: FileName("the name of a file (PEM)") = "", "\"agent.pem\"",
            ["certificate_key"]
            "With TLS: what an agent shows a server that wants to know who connects.";
        CERTIFICATE_KEY certificate_key: FileName("the name of a file (PEM)") = "",
            "\"agent.key\"", ["certificate"] "The private key of that certificate.";
        WAIT wait: Times(WAITS) = "\"20ms\"", "\"20ms\"",
            "The longest that a request waits for the store.";
        STRICT strict: Flag() = "false", "true",
            "Whether clients begin without a burst after the store has lost its memory.";
        LEAST_REPLICAS least_replicas: Number(0..=100) = "0", "1",
            "How many replicas a primary must have; 1 for sentinels or a cluster if left out.";
        SALT_FILE salt_file: FileName("the name of a file of random bytes") = "", "\"store.salt\"",
            "A file of 16 to 4096 random bytes, the same on all machines.";
    }
}

/// Settings of a policy that cannot stand beside each other, and why: the first has the mistake.
pub static APART: &[(&str, &str, &str)] = &[
    ("settle", "penalty", "both let a client owe more than its burst, by rules of their own"),
    ("settle", "max_delay", "a response could move the place of requests that wait already"),
    ("settle", "observe", "what a trial has reserved is not sent back by the response"),
];

/// The settings that are not in the file.
const FLAGS: &str = "listen table slots threads drain busy_poll max_frame_size buffers admin \
                     admin_host socket_mode socket_group";

/// Whether a name is nearly that of a setting of a policy: a few letters differ.
pub(crate) fn is_nearly_a_setting(name: &str) -> bool {
    POLICY_TABLE.names().any(|setting| {
        let begins_alike = name.len() > 4 && setting.get(..4) == name.get(..4);
        begins_alike || strsim::damerau_levenshtein(setting, name) <= 2
    })
}

/// The advice for a setting that is a flag of the agent.
pub(crate) fn flag(name: &str) -> Option<String> {
    FLAGS.split(' ').any(|flag| flag == name).then(|| {
        let flag = name.replace('_', "-");
        format!("'{name}' is a setting of the agent's command line; write --{flag}")
    })
}

pub(crate) fn is_setting(name: &str) -> bool {
    POLICY_TABLE.has(name) || FILE_TABLE.has(name)
}
