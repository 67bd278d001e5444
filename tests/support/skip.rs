//! A test that is skipped, because this machine lacks what it needs.
//!
//! A module of its own, so that tests of other crates use it by its path, in a module `support`.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};

/// Ends a test as skipped when this machine lacks what it needs: `needs!(support::haproxy());`
macro_rules! needs {
    ($what:expr) => {
        if let Err(reason) = $what {
            return $crate::support::skip(&reason);
        }
    };
}
pub(crate) use needs;

/// Records that the calling test cannot do its work on this machine: in the file that `GCRA_SKIPS`
/// names, from which `tests/run` counts. Panics where `GCRA_NO_SKIPS` is set, as in CI.
#[track_caller]
pub fn skip(reason: &str) {
    assert!(env::var_os("GCRA_NO_SKIPS").is_none(), "{reason}");
    let place = std::panic::Location::caller();
    // Not by `eprintln`, of which libtest shows only what failing tests say.
    let _ = writeln!(io::stderr(), "SKIPPED at {}:{}: {reason}", place.file(), place.line());
    if let Some(path) = env::var_os("GCRA_SKIPS") {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(format!("{reason}\n").as_bytes()).unwrap();
    }
}
