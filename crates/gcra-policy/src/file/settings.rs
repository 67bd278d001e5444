//! The names in a file: of its settings, and of policies and limits.

pub(crate) const SETTINGS: &[&str] = &[
    "message",
    "when",
    "limits",
    "observe",
    "key",
    "ipv4_prefix",
    "ipv6_prefix",
    "lowercase",
    "cost",
    "unasked",
    "asked_by",
    "reload_every",
    "settle",
    "reserve",
    "max_debt",
    "settle_within",
    "unsettled",
    "mode",
    "penalty",
    "bandwidth",
    "max_delay",
    "shared",
    "without_store",
    "open_for",
    "overrides",
    "lists",
];

pub(crate) const FILE_SETTINGS: &[&str] = &["scope", "answer", "nat64", "store", "policy"];

/// The settings that are not in the file.
const FLAGS: &[&str] = &[
    "listen",
    "table",
    "slots",
    "threads",
    "drain",
    "busy_poll",
    "max_frame_size",
    "buffers",
    "admin",
    "admin_host",
    "socket_mode",
    "socket_group",
];

/// Whether a name is that of a setting of a policy but for some letters.
pub(crate) fn is_nearly_a_setting(name: &str) -> bool {
    SETTINGS.iter().any(|setting| {
        let begins_alike = name.len() > 4 && setting.get(..4) == name.get(..4);
        begins_alike || strsim::damerau_levenshtein(setting, name) <= 2
    })
}

/// The advice for a setting that is a flag of the agent.
pub(crate) fn flag(name: &str) -> Option<String> {
    FLAGS.contains(&name).then(|| {
        let flag = name.replace('_', "-");
        format!("'{name}' is a setting of the agent's command line; write --{flag}")
    })
}

pub(crate) fn is_setting(name: &str) -> bool {
    SETTINGS.contains(&name) || FILE_SETTINGS.contains(&name)
}

/// The longest name of a policy or a limit, in bytes: it is part of header fields.
const MAX_NAME: usize = 64;

pub(crate) const NAME_RULE: &str = "use letters, digits, '-' and '_', at most 64 of them";

/// Whether a name is one for a policy or a limit. It will be part of header fields and metrics.
pub(crate) fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(good)
}
