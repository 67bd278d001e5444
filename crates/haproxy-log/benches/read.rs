//! How fast logs are read: `cargo bench -p haproxy-log --bench read -- LOG...`
//!
//! With `--quick` it is only tried out, with a small log of its own. For each number of threads
//! and some selections of fields it prints lines and bytes per second. README.md of this crate
//! says what other tools need for the same file.

use std::time::Instant;

use haproxy_log::{Format, Input, Options, Progress, read};

const LINE: &str = "192.0.2.1:5321 [22/Nov/2026:21:39:33.123] fe be/s1 0/0/1/2/3 200 512 - - ---- \
                    1/1/0/0/0 0/0 \"GET /a/b?q=1 HTTP/1.1\"\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let folder = tempfile::tempdir()?;
    if std::env::args().any(|argument| argument == "--quick") {
        let log = folder.path().join("haproxy.log");
        std::fs::write(&log, LINE.repeat(10_000))?;
        paths = vec![log.display().to_string()];
    }
    let Some(first) = paths.first() else {
        println!("no log given; see examples/generate.rs");
        return Ok(());
    };
    let format = Format::guess(&Input::file(first).sample()?).ok_or("unknown format")?;
    println!("{}: {}", paths.join(" "), format.name());
    for fields in [&[][..], &["ci"], &["ci", "method", "path"]] {
        let Ok(selection) = format.select(fields) else { continue };
        for threads in [1, 0] {
            let inputs: Vec<Input> = paths.iter().map(Input::file).collect();
            let mut options = Options::default();
            options.threads = threads;
            let progress = Progress::new();
            let mut sum = 0_u64;
            let (begin, worked) = (Instant::now(), processor_seconds());
            let counts = read(&inputs, &selection, &options, &progress, &mut |entry| {
                sum = sum.wrapping_add(entry.at.unsigned_abs());
                for field in entry.fields.iter().flatten() {
                    sum = sum.wrapping_add(field.len() as u64);
                }
            })?;
            let worked = processor_seconds() - worked;
            if counts.entries == 0 {
                return Err("no line was a request".into());
            }
            let took = begin.elapsed().as_secs_f64();
            #[allow(clippy::cast_precision_loss, reason = "for people")]
            let (lines, bytes) = (counts.lines as f64, progress.bytes() as f64);
            println!(
                "fields {fields:?}, threads {}: {:.2} s, {:.2} million lines/s, {:.2} GB/s \
                 (processor {worked:.2} s = {:.0} ns for each line; {} requests, {} late, sum \
                 {sum:x})",
                if threads == 0 { "all".to_owned() } else { threads.to_string() },
                took,
                lines / took / 1e6,
                bytes / took / 1e9,
                worked / lines * 1e9,
                counts.entries,
                counts.late,
            );
        }
    }
    Ok(())
}

/// The processor time that the process has used, in seconds (Linux). On a busy machine this says
/// more than the clock.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        after_name.split(' ').skip(12).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    ticks / 100.0
}
