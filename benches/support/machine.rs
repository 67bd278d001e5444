//! How busy the machine was, by the kernel's accounting.

use std::fs;
use std::time::Instant;

/// A moment from which the machine is watched.
pub(crate) struct Since {
    at: Instant,
    busy: f64,
    ours: f64,
}

impl Since {
    pub(crate) fn now() -> Self {
        let (busy, ours) = busy_seconds();
        Self { at: Instant::now(), busy, ours }
    }

    /// The share of the machine's cores that other programs have taken. Children that are still
    /// running took `running` seconds.
    pub(crate) fn others(&self, running: f64) -> f64 {
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let (busy, ours) = busy_seconds();
        let others = (busy - self.busy) - (ours - self.ours) - running;
        (others / (self.at.elapsed().as_secs_f64() * cores)).max(0.0)
    }
}

/// Seconds that the machine's cores were busy, and that this process and its children were which
/// have ended.
fn busy_seconds() -> (f64, f64) {
    // The kernel counts hundredths of a second in both.
    let ticks = |path: &str| {
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().next().unwrap();
        // The second field of a process is a name in parentheses, the first of the machine is
        // "cpu".
        let fields = line.rsplit(')').next().unwrap().split_whitespace();
        fields.filter_map(|field| field.parse::<f64>().ok()).collect::<Vec<_>>()
    };
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks("/proc/stat")[..] else {
        panic!("/proc/stat");
    };
    let own: f64 = ticks("/proc/self/stat")[10..14].iter().sum();
    ((user + nice + system + irq + softirq) / 100.0, own / 100.0)
}
