//! The hash of a message's key, as its policy makes it.

// ADR 36: Null is no key.

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
/// ([`Hashing::Exact`](crate::active_policies::Hashing)).
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
