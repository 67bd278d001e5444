//! What an override is for, as an operator writes it: an address, a network, or a value of the
//! key.

use std::fmt;
use std::str::FromStr;

use gcra_text::network::{VALUE, written_net};
use spop_agent::Value;

use crate::key::Shown;
use crate::policy::OverrideKey;

impl FromStr for OverrideKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(value) = text.strip_prefix(VALUE) {
            return Ok(Self::Value(value.as_bytes().into()));
        }
        let net = written_net(text)?;
        Ok(net.map_or_else(|| Self::Value(text.as_bytes().into()), Self::Net))
    }
}

/// As an operator may write it.
impl fmt::Display for OverrideKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
            Self::Value(bytes) => Shown(Value::String(bytes)).fmt(f),
        }
    }
}
