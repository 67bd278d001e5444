//! What the whole machine did meanwhile, by the kernel's accounting.

use std::fs;

/// Seconds that the machine's cores were busy, and that this process and its children were which have ended.
pub(crate) fn busy_seconds() -> (f64, f64) {
    // The kernel counts hundredths of a second in both.
    let ticks = |path: &str| {
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().next().unwrap();
        // The second field of a process is a name in parentheses, the first of the machine is "cpu".
        let fields = line.rsplit(')').next().unwrap().split_whitespace();
        fields.filter_map(|field| field.parse::<f64>().ok()).collect::<Vec<_>>()
    };
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks("/proc/stat")[..] else {
        panic!("/proc/stat");
    };
    let own: f64 = ticks("/proc/self/stat")[10..14].iter().sum();
    ((user + nice + system + irq + softirq) / 100.0, own / 100.0)
}
