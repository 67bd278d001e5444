//! Files and streams: compression, damage, ends of lines, order, windows, and threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{Cursor, Read, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use haproxy_log::{BadKind, Format, Input, Options, Progress, ReadCounts, Selection, read};

/// The usual options with a change.
fn with(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// A line of a request this many milliseconds after the start of a day.
fn line(milliseconds: u32, client: &str) -> String {
    let (hour, minute) = (milliseconds / 3_600_000, milliseconds / 60_000 % 60);
    let (second, rest) = (milliseconds / 1000 % 60, milliseconds % 1000);
    format!(
        "{client}:5321 [22/Nov/2026:{hour:02}:{minute:02}:{second:02}.{rest:03}] fe~ be/s1 \
         0/0/1/2/3 200 512 - - ---- 1/1/0/0/0 0/0 \"GET /{milliseconds} HTTP/1.1\"\n"
    )
}

/// Lines that are out of order by up to `disorder` milliseconds.
fn log(seed: u64, count: u32, disorder: u32) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut text = String::new();
    for at in 0..count {
        let moment = disorder + at * 5 - rng.u32(0..=disorder);
        text += &line(moment, &format!("10.0.0.{}", rng.u8(1..=250)));
        match rng.u8(0..100) {
            0 => text += "not a request\n",
            1 => text += "\n",
            2 => text += "10.0.0.1:1 [22/Nov/2026:00:00:00.000] fe/1: Connection error\n",
            _ => {}
        }
    }
    text.into_bytes()
}

type Requests = Vec<(i64, String, usize, u64)>;

fn run(inputs: &[Input], options: &Options) -> (Requests, ReadCounts) {
    let selection = Format::http().select(&["ci", "path"]).unwrap();
    collect(inputs, &selection, options)
}

fn collect(inputs: &[Input], selection: &Selection, options: &Options) -> (Requests, ReadCounts) {
    let mut requests = Vec::new();
    let progress = Progress::new();
    let counts = read(inputs, selection, options, &progress, &mut |entry| {
        let fields: Vec<String> = entry
            .fields
            .iter()
            .map(|field| String::from_utf8_lossy(field.unwrap_or_default()).into_owned())
            .collect();
        requests.push((entry.at, fields.join(" "), entry.input, entry.line));
    })
    .unwrap();
    assert_eq!(progress.lines(), counts.lines);
    if progress.total_bytes() > 0 {
        assert_eq!(progress.bytes(), progress.total_bytes());
    }
    (requests, counts)
}

/// 22 November 2026, 00:00 UTC, in seconds since 1970.
const MIDNIGHT: i64 = 1_795_305_600;

/// The requests that `read` must give: each line by itself, in one thread, sorted as a whole.
fn naive(logs: &[&[u8]]) -> Requests {
    let mut requests = Vec::new();
    for (input, log) in logs.iter().enumerate() {
        for (number, line) in log.split(|&byte| byte == b'\n').enumerate() {
            let line = std::str::from_utf8(line).unwrap();
            let Some((client, rest)) = line.split_once(":5321 [22/Nov/2026:") else { continue };
            let (_, request) = rest.split_once("GET ").unwrap();
            let path = request.trim_end_matches(" HTTP/1.1\"");
            let digits = |at: usize, count: usize| rest[at..at + count].parse::<i64>().unwrap();
            let seconds = digits(0, 2) * 3600 + digits(3, 2) * 60 + digits(6, 2);
            let at = (MIDNIGHT + seconds) * 1_000_000 + digits(9, 3) * 1000;
            requests.push((at, format!("{client} {path}"), input, number as u64 + 1));
        }
    }
    // Stable: equal times stay in the order of inputs and lines.
    requests.sort_by_key(|request| request.0);
    requests
}

fn stream(log: &[u8]) -> Input {
    Input::stream("stream", Cursor::new(log.to_vec()))
}

/// A reader that gives a few bytes at a time.
struct Drips(Cursor<Vec<u8>>, fastrand::Rng);

impl Read for Drips {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let some = buffer.len().min(self.1.usize(1..5000));
        self.0.read(&mut buffer[..some])
    }
}

#[test]
fn any_number_of_threads_gives_what_one_by_one_gives() {
    let text = log(1, 3000, 2000);
    let expected = naive(&[&text]);
    for threads in [1, 2, 7] {
        let options = with(|it| it.threads = threads);
        let (requests, counts) = run(&[stream(&text)], &options);
        assert!(requests == expected);
        assert_eq!((counts.entries, counts.late), (3000, 0));
        assert_eq!(counts.first, Some(expected[0].0));
        assert_eq!(counts.last, Some(expected[2999].0));
        let ends = text.iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(counts.lines, ends as u64);
    }
}

#[test]
fn what_comes_depends_on_the_text_alone() {
    // Several blocks, and a memory that holds only some of them.
    let text = log(2, 30_000, 60_000);
    let mut all = Vec::new();
    for (threads, drips) in [(1, false), (2, true), (5, false), (3, true)] {
        let options = with(|it| {
            it.threads = threads;
            it.memory = 1 << 20;
        });
        let input = match drips {
            true => {
                let rng = fastrand::Rng::with_seed(threads as u64);
                Input::stream("stream", Drips(Cursor::new(text.clone()), rng))
            }
            false => stream(&text),
        };
        all.push(run(&[input], &options));
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    let (requests, counts) = &all[0];
    assert!(requests.is_sorted_by_key(|request| request.0));
    assert_eq!(counts.entries + counts.late, 30_000);
    // With enough memory, none is late.
    let (requests, counts) = run(&[stream(&text)], &Options::default());
    assert_eq!((requests.len(), counts.late), (30_000, 0));
}

#[test]
fn lines_beyond_the_window_are_late() {
    let mut text = String::new();
    // More than a block, so that the first lines are passed on before the last is read.
    for at in 0..6000 {
        text += &line(100_000 + at * 10, "10.0.0.1");
    }
    text += &line(70_000, "10.0.0.2");
    text += &line(159_000, "10.0.0.3");
    let options = with(|it| it.window = Duration::from_secs(20));
    let (requests, counts) = run(&[stream(text.as_bytes())], &options);
    assert_eq!((counts.entries, counts.late, counts.lines), (6001, 1, 6002));
    assert!(requests.is_sorted_by_key(|request| request.0));
    // A window as long as the counts say is enough.
    let window = counts.behind.unwrap();
    assert!(window > Duration::from_secs(50), "{counts:?}");
    let options = with(|it| it.window = window);
    assert_eq!(run(&[stream(text.as_bytes())], &options).1.late, 0);
    let (_, counts) = run(&[stream(text.as_bytes())], &Options::default());
    assert_eq!((counts.late, counts.behind), (0, None));
}

#[test]
fn requests_that_lie_far_ahead_are_kept() {
    // Each block has a few, so that all blocks are held to the end.
    let mut rng = fastrand::Rng::with_seed(14);
    let mut text = String::new();
    for at in 0..30_000 {
        let ahead = if at % 50 == 0 { 3_600_000 } else { rng.u32(0..100) };
        text += &line(at * 10 + ahead, &format!("10.0.{}.1", at % 256));
    }
    let options = with(|it| it.window = Duration::from_secs(2));
    let (requests, counts) = run(&[stream(text.as_bytes())], &options);
    assert_eq!((counts.entries, counts.late), (30_000, 0));
    assert!(requests == naive(&[text.as_bytes()]));
}

#[test]
fn a_wrong_date_does_not_make_the_others_late() {
    let mut text = String::new();
    for at in 0..20_000 {
        text += &line(at * 10, "10.0.0.1");
        if at == 100 {
            text += &line(5_000, "10.0.0.9").replace("2026", "2036");
        }
    }
    let options = with(|it| it.window = Duration::from_secs(20));
    let (requests, counts) = run(&[stream(text.as_bytes())], &options);
    assert_eq!((counts.entries, counts.late), (20_001, 0));
    assert!(requests.last().unwrap().1.starts_with("10.0.0.9"));
}

#[test]
fn several_files_are_merged_by_time() {
    let directory = tempfile::tempdir().unwrap();
    let whole = log(3, 9000, 3000);
    // Three rotated files, given in the wrong order as a shell sorts them, one compressed.
    let ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|&(_, &byte)| byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    let (first, second) = (ends[ends.len() / 3], ends[ends.len() * 2 / 3]);
    let parts = [&whole[second..], &whole[first..second], &whole[..first]];
    let paths = ["haproxy.log", "haproxy.log.1", "haproxy.log.2.gz"]
        .map(|name| directory.path().join(name));
    std::fs::write(&paths[0], parts[0]).unwrap();
    std::fs::write(&paths[1], parts[1]).unwrap();
    std::fs::write(&paths[2], gzip(parts[2])).unwrap();
    let inputs = paths.map(Input::file);
    for memory in [1 << 16, 64 << 20] {
        let options = with(|it| {
            it.memory = memory;
            it.window = Duration::from_secs(5);
        });
        let (requests, counts) = run(&inputs, &options);
        let expected = naive(&parts);
        assert_eq!(counts.late, 0);
        assert!(requests == expected);
    }
    // Two machines at the same time.
    let (one, other) = (log(4, 3000, 1000), log(5, 3000, 1000));
    let (requests, counts) = run(&[stream(&one), stream(&other)], &Options::default());
    assert!(requests == naive(&[&one, &other]));
    assert_eq!(counts.entries, 6000);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn gzip_in_members_whole_and_cut_off() {
    let (one, other) = (log(6, 2000, 0), log(7, 2000, 0));
    let both = [gzip(&one), gzip(b""), gzip(&other)].concat();
    let text = [one.clone(), other].concat();
    let (requests, counts) = run(&[stream(&both)], &Options::default());
    assert!(requests == naive(&[&text]));
    assert!(counts.bad.iter().all(|bad| bad.kind != BadKind::Damaged));

    let cut = &both[..both.len() - 3000];
    let (requests, counts) = run(&[stream(cut)], &Options::default());
    assert!((2000..4000).contains(&requests.len()));
    let damaged: Vec<_> = counts.bad.iter().filter(|bad| bad.kind == BadKind::Damaged).collect();
    assert_eq!((damaged.len(), damaged[0].count), (1, 1));
    assert_eq!(damaged[0].line, counts.lines + 1);
    // Each line that came is one of the log, none is a part of one.
    let all = naive(&[&text]);
    assert!(requests.iter().all(|request| all.contains(request)));
    // Damage near the beginning. Few of the lines before it are lost.
    let mut damaged = gzip(&one);
    let place = damaged.len() / 20;
    damaged[place..place + 400].fill(0xff);
    let (requests, counts) = run(&[stream(&damaged)], &Options::default());
    let before = requests.len();
    assert!((20..400).contains(&before), "{before}");
    assert!(requests.iter().all(|request| all.contains(request)));
    assert_eq!(counts.bad.last().unwrap().kind, BadKind::Damaged);
    // Garbage after the end.
    let (requests, counts) =
        run(&[stream(&[&gzip(&one), &b"garbage"[..]].concat())], &Options::default());
    assert_eq!(requests.len(), 2000);
    assert_eq!(counts.bad.last().unwrap().kind, BadKind::Damaged);
}

#[test]
fn zstd_in_frames_whole_and_cut_off() {
    let (one, other) = (log(8, 2000, 0), log(9, 2000, 0));
    let zstd = |text: &[u8]| {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    };
    // With a frame that is to be skipped, as pzstd writes them.
    let skipped = b"\x50\x2A\x4D\x18\x04\0\0\0abcd".to_vec();
    let both = [skipped.clone(), zstd(&one), skipped, zstd(&other)].concat();
    let text = [one, other].concat();
    let (requests, counts) = run(&[stream(&both)], &Options::default());
    assert!(requests == naive(&[&text]));
    assert!(counts.bad.iter().all(|bad| bad.kind != BadKind::Damaged), "{:?}", counts.bad);
    let (requests, counts) = run(&[stream(&both[..both.len() - 3000])], &Options::default());
    assert!((2000..4000).contains(&requests.len()));
    assert_eq!(counts.bad.last().unwrap().kind, BadKind::Damaged);
    // A file as the usual program writes it.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.log");
    // Longer than its window, before whose end nothing comes out of the decoder.
    let text = log(13, 40_000, 0);
    std::fs::write(&path, &text).unwrap();
    let status = Command::new("zstd").arg("-q").arg("-3").arg(&path).status();
    if status.is_ok_and(|status| status.success()) {
        let input = Input::file(directory.path().join("a.log.zst"));
        assert_eq!(input.sample().unwrap(), text[..(256 << 10).min(text.len())]);
        let bytes = std::fs::read(directory.path().join("a.log.zst")).unwrap();
        let again = stream(&bytes);
        assert_eq!(again.sample().unwrap(), input.sample().unwrap());
        assert!(run(&[again], &Options::default()).0 == naive(&[&text]));
        assert!(run(&[input], &Options::default()).0 == naive(&[&text]));
    }
}

#[test]
fn a_stream_can_be_sampled_first() {
    let text = log(10, 5000, 100);
    for bytes in [text.clone(), gzip(&text)] {
        let input = stream(&bytes);
        let sample = input.sample().unwrap();
        assert!(text.starts_with(&sample) && sample.len() > 100_000);
        assert_eq!(input.sample().unwrap(), sample);
        assert!(run(&[input], &Options::default()).0 == naive(&[&text]));
    }
}

#[test]
fn ends_of_lines_and_long_lines() {
    let good = line(1000, "10.0.0.1");
    let short = with(|it| it.max_line = 300);
    for (text, lines, entries, too_long) in [
        (String::new(), 0, 0, 0),
        ("\n".to_owned(), 1, 0, 0),
        (good.trim_end().to_owned(), 1, 1, 0),
        (good.clone(), 1, 1, 0),
        (good.replace('\n', "\r\n").repeat(3), 3, 3, 0),
        (format!("{good}\n\n{good}"), 4, 2, 0),
        (format!("{}\n{good}", "x".repeat(301)), 2, 1, 1),
        (format!("{}\n{good}", "x".repeat(1_000_000)), 2, 1, 1),
        (format!("{good}{}", "x".repeat(1_000_000)), 2, 1, 1),
        (format!("{good}{}\n", "x".repeat(262_144)), 2, 1, 1),
        (format!("{}\n{}\n{good}", "x".repeat(600_000), "y".repeat(600_000)), 3, 1, 2),
    ] {
        for options in [
            &short,
            &with(|it| {
                it.max_line = 300;
                it.threads = 1;
            }),
        ] {
            let (_, counts) = run(&[stream(text.as_bytes())], options);
            let found = counts.bad.iter().find(|bad| bad.kind == BadKind::TooLong);
            let found = found.map_or(0, |bad| bad.count);
            let counts = (counts.lines, counts.entries, found);
            assert_eq!(counts, (lines, entries, too_long), "{} bytes", text.len());
        }
    }
}

#[test]
fn files_that_cannot_be_read() {
    let selection = Format::http().select(&[]).unwrap();
    let fails = |input: Input| {
        let options = Options::default();
        read(&[input], &selection, &options, &Progress::new(), &mut |_| {})
            .unwrap_err()
            .to_string()
    };
    let missing = fails(Input::file("/nonexistent/haproxy.log"));
    assert!(missing.starts_with("cannot read /nonexistent/haproxy.log: "), "{missing}");
    let directory = fails(Input::file(Path::new("/")));
    assert_eq!(directory, "cannot read /: it is a directory, not a log");
    let xz = fails(stream(b"\xFD7zXZ\0..."));
    assert!(xz.contains("it is compressed with xz"), "{xz}");
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is on fire"))
        }
    }
    let after = Cursor::new(log(11, 10, 0)).chain(Broken);
    assert!(fails(Input::stream("disk", after)).ends_with("the disk is on fire"));
    let gz = Cursor::new(gzip(&log(11, 10, 0))[..100].to_vec()).chain(Broken);
    assert!(fails(Input::stream("disk", gz)).ends_with("the disk is on fire"));
}

#[test]
#[should_panic(expected = "the caller's own")]
fn a_panic_of_the_caller_ends_the_threads() {
    let selection = Format::http().select(&[]).unwrap();
    let input = stream(&log(12, 20_000, 0));
    let options = with(|it| it.window = Duration::ZERO);
    let _ = read(&[input], &selection, &options, &Progress::new(), &mut |_| {
        panic!("the caller's own");
    });
}
