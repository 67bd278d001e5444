//! `gcra-spoa top`: what it asks, and what it draws.

mod clients;
pub mod command;
pub mod screen;
mod terminal;
mod words;
