//! x
use crate::config::Top;
pub(crate) fn run(_: &Top) -> anyhow::Result<()> { Ok(()) }
