//! The hash of a message's key, as its policy makes it.

use gcra_policy::key_bytes::{
    KeyWriter, write_fallback, write_lowercase, write_narrowed, write_part,
};
use gcra_policy::key_parts::KeyArg;
use gcra_policy::{GroupedValue, KeyParts, Policy};
use gcra_table::{KeyHash, KeyHasher};
use spop_agent::{Args, Message, Value};

/// Hashes a key whose parts are the values as they are. `None` when an arg of the key is missing
/// or null.
///
/// This does what [`hash_key`] does, for the policies of which that is true
/// ([`Hashing::Exact`](crate::policies_in_force::Hashing)).
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
pub fn hash_key(
    mut hasher: KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Option<(KeyHash, Option<u32>)> {
    let part = |hasher: &mut KeyHasher, part: GroupedValue<'_>| write(hasher, &policy.key, part);
    let overridden = policy.for_each_part(message, &mut hasher, part, write_fallback)?;
    Some((hasher.finish(), overridden))
}

/// The bytes of a message's key: the same on all hosts, and different for different keys.
pub(crate) fn key_bytes(policy: &Policy, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let part = |bytes: &mut Vec<u8>, part: GroupedValue<'_>| write(bytes, &policy.key, part);
    let _ = policy.for_each_part(message, &mut bytes, part, write_fallback);
    bytes
}

/// Writes a part of a key as the key's settings say.
#[inline(always)]
pub fn write(
    hasher: &mut impl KeyWriter,
    key: &KeyParts,
    GroupedValue { value, narrowed }: GroupedValue<'_>,
) {
    match value {
        Value::String(bytes) if key.lowercase => write_lowercase(hasher, bytes),
        value => write_part(hasher, value),
    }
    if let Some(prefix) = narrowed {
        write_narrowed(hasher, prefix);
    }
}

/// Hashes all keys that a message can have had while its policy had other overrides: the one
/// without an override, and one for each network around each of its addresses that is narrower
/// than the policy's groups. None when an arg of the key is missing.
pub fn hash_all_keys(hasher: &KeyHasher, policy: &Policy, message: &Message<'_>) -> Vec<KeyHash> {
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
            write(&mut hasher, &policy.key, policy.key.group(*value, least_prefix));
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

/// The same for a policy whose prefix lengths and `lowercase` may have been others, too: also a
/// hash for each group that an address or string can have been in.
pub fn hash_all_groups(
    hasher: &KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Vec<KeyHash> {
    let (mut bits, mut has_string) = (Vec::new(), false);
    let _ = policy.for_each_value(message, |value, _| {
        bits.push(address_bits(value));
        has_string |= matches!(value, Value::String(_));
    });
    // Where the key has no such value, the policy's own prefix length does not matter.
    let prefixes = |all: u8| if bits.contains(&all) { 0..=all } else { all..=all };
    let mut former = policy.with_rule(policy.rule.clone());
    let mut hashes = Vec::new();
    for lowercase in [false, true].into_iter().filter(|lowercase| has_string || !lowercase) {
        for ipv4_prefix in prefixes(32) {
            for ipv6_prefix in prefixes(128) {
                let args = former.key.args;
                former.key = KeyParts { args, ipv4_prefix, ipv6_prefix, lowercase };
                hashes.extend(hash_all_keys(hasher, &former, message));
            }
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
