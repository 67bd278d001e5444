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
    let overridden = policy.for_each_part(message, |Part { value, narrowed }, fallback| {
        if fallback > 0 {
            write_fallback(&mut hasher, fallback);
        }
        match value {
            Value::String(bytes) if policy.key.lowercase => write_lowercase(&mut hasher, bytes),
            value => write_part(&mut hasher, value),
        }
        if let Some(prefix) = narrowed {
            write_narrowed(&mut hasher, prefix);
        }
    })?;
    Some((hasher.finish(), overridden))
}
