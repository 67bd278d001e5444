//! `gcra-spoa top`: what it asks, and what it draws.

pub mod command;
pub mod screen;
mod terminal;
