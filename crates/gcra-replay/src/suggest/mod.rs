//! Suggests limits from real traffic: what each limit of a grid would have done to each client of
//! a log, in one pass.

pub(crate) mod collector;
mod debts;
mod describe;
pub(crate) mod grid;
pub(crate) mod peaks;
pub(crate) mod suggestions;
pub(crate) mod target;
#[cfg(test)]
mod tests;
