//! `gcra-spoa top`: what it asks, and what it draws.

mod clients;
pub mod command;
mod describe;
pub mod screen;
mod terminal;
