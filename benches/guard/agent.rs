//! The agent whose instructions are counted: the program's, without its commands, which would take
//! a third of the time that linking with all optimization takes.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcra_spoa::testing::run_agent(std::env::args_os())
}
