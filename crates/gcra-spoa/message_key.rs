//! The hash of a message's key, as its policy makes it.

use gcra_table::{KeyHash, KeyHasher};
use spop_agent::{Args, Message, Value};

use crate::key::{write_fallback, write_lowercase, write_narrowed, write_part};
use crate::policy::key_args::KeyArg;
use crate::policy::{Part, Policy};

/// Hashes a key whose parts are the values as they are. `None` when an arg of the key is missing
/// or null.
///
/// This does what [`hash_key`] does, for the policies of which that is true
/// (`in_force::Hashing::Exact`).
#[inline(always)]
pub(crate) fn hash_exact(
    mut hasher: KeyHasher,
    policy: &Policy,
    args: Args<'_>,
) -> Option<KeyHash> {
    for KeyArg { name, .. } in &policy.key.args {
        match args.clone().find(|arg| arg.name == &**name)?.value {
            Value::Null => return None,
            value => write_part(&mut hasher, value),
        }
    }
    if policy.key.args.is_empty() {
        // A loop of its own: `for_each` would not be inlined.
        for arg in args {
            write_part(&mut hasher, arg.value);
        }
    }
    Some(hasher.finish())
}

/// Hashes the key of a message, and finds the index of the rule that overrides the policy's for
/// this key. `None` when an arg of the key has no value.
#[inline(never)]
pub(crate) fn hash_key(
    mut hasher: KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Option<(KeyHash, Option<u32>)> {
    let part = |hasher: &mut KeyHasher, part: Part<'_>| write(hasher, policy, part);
    let overridden = policy.for_each_part(message, &mut hasher, part, write_fallback)?;
    Some((hasher.finish(), overridden))
}

#[inline(always)]
fn write(hasher: &mut KeyHasher, policy: &Policy, Part { value, narrowed }: Part<'_>) {
    match value {
        Value::String(bytes) if policy.key.lowercase => write_lowercase(hasher, bytes),
        value => write_part(hasher, value),
    }
    if let Some(prefix) = narrowed {
        write_narrowed(hasher, prefix);
    }
}

/// Hashes all keys that a message can have had while its policy had other overrides: the one
/// without an override, and one for each network around each of its addresses that is narrower
/// than the policy's groups. None when an arg of the key is missing.
pub(crate) fn hash_all_keys(
    hasher: &KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Vec<KeyHash> {
    let mut values = Vec::new();
    let whole = policy.for_each_value(message, |value, fallback| values.push((value, fallback)));
    if whole.is_none() {
        return Vec::new();
    }
    let hash = |narrowed: usize, least_prefix: u8| {
        let mut hasher = hasher.clone();
        for (place, (value, fallback)) in values.iter().enumerate() {
            let least_prefix = if place == narrowed { least_prefix } else { 0 };
            if *fallback > 0 {
                write_fallback(&mut hasher, *fallback);
            }
            write(&mut hasher, policy, policy.key.group(*value, least_prefix));
        }
        hasher.finish()
    };
    let mut hashes = vec![hash(0, 0)];
    for (place, (value, _)) in values.iter().enumerate() {
        // The longest prefix of an address comes first, so that the first that is no longer than
        // the policy's ends this.
        for prefix in (1..=address_bits(*value)).rev() {
            if policy.key.group(*value, prefix).narrowed.is_none() {
                break;
            }
            hashes.push(hash(place, prefix));
        }
    }
    hashes
}

/// How many bits an address has, or 0 if the value is none.
fn address_bits(value: Value<'_>) -> u8 {
    match value {
        Value::Ipv4(_) => 32,
        Value::Ipv6(ip) if ip.to_ipv4_mapped().is_some() => 32,
        Value::Ipv6(_) => 128,
        _ => 0,
    }
}
