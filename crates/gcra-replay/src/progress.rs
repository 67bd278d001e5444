//! How far a replay has come, on a terminal.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gcra_text::duration::Left;
use haproxy_log::Progress;

use crate::suggest::grid::f64_from;

const PERIOD: Duration = Duration::from_millis(200);

/// Shows one line on standard error until the work is done, and clears it then.
pub(crate) fn show(progress: &Progress, is_done: &AtomicBool) {
    let started = Instant::now();
    // The work that is done at once needs no line.
    thread::park_timeout(PERIOD);
    while !is_done.load(Ordering::Relaxed) {
        let (bytes, total) = (progress.bytes(), progress.total_bytes());
        let line = in_words(bytes, total, progress.lines(), started.elapsed());
        write(&format!("\r{line}\x1b[K"));
        thread::park_timeout(PERIOD);
    }
    write("\r\x1b[K");
}

/// That a terminal does not take the line is no reason to stop.
fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// " 43 %, 1.2 M lines/s, 12 s left".
fn in_words(bytes: u64, total: u64, lines: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = short(f64_from(lines) / seconds);
    if total == 0 {
        return format!("{} lines, {rate} lines/s", short(f64_from(lines)));
    }
    let share = f64_from(bytes.min(total)) / f64_from(total);
    if share == 0.0 {
        return format!("  0 %, {rate} lines/s");
    }
    let left = Duration::try_from_secs_f64(seconds * (1.0 - share) / share).unwrap_or_default();
    // Whole seconds, because digits behind them would change each time.
    let left = Left(Duration::from_secs(left.as_secs().max(1)));
    format!("{:3.0} %, {rate} lines/s, {left} left", share * 100.0)
}

/// "1.2 M" of 1234567.
fn short(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.1} G", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e4 => format!("{:.0} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let second = Duration::from_secs(1);
        assert_eq!(in_words(250, 1_000, 2_500_000, second), " 25 %, 2.5 M lines/s, 3.0 s left");
        assert_eq!(in_words(0, 1_000, 0, second), "  0 %, 0 lines/s");
        assert_eq!(in_words(5, 0, 20_000, 2 * second), "20 k lines, 10 k lines/s");
        assert_eq!(in_words(2_000, 1_000, 100, second), "100 %, 100 lines/s, 1000 ms left");
    }
}
