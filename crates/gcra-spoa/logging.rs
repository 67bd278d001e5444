//! The log on standard error: with the time on a terminal or in a file, and as the journal of
//! systemd expects it.

use std::io::Write as _;
use std::os::linux::fs::MetadataExt as _;
use std::{env, fs};

use env_logger::{Builder, Env};
use gcra_admin::log_lines::{self, KeptLines};
use log::Level;

/// Starts logging. `RUST_LOG` chooses the levels that are written; those for `/events` are kept in
/// any case.
pub(crate) fn start() {
    let mut builder = Builder::from_env(Env::default().default_filter_or("info"));
    builder.format_target(false);
    if is_journal() {
        // The journal notes the time, and takes the priority from the line (sd-daemon(3)).
        builder.format(|line, record| {
            writeln!(line, "<{}>{}", priority(record.level()), record.args())
        });
    }
    let logger = builder.build();
    let most = logger.filter().max(log_lines::LEVEL);
    // It fails only if there is a log already.
    if log::set_boxed_logger(Box::new(KeptLines(logger))).is_ok() {
        log::set_max_level(most);
    }
}

/// Whether standard error leads to the journal (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(journal) = env::var("JOURNAL_STREAM") else { return false };
    let stderr = fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|file| journal == format!("{}:{}", file.st_dev(), file.st_ino()))
}

/// As in syslog(3).
const fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}
