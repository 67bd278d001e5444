//! `gcra-spoa`: an exact rate limiter for HAProxy, as an SPOE agent. All of it is in the library
//! beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    gcra_spoa::run()
}
