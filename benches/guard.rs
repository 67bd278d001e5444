//! The instructions of the data path, against bounds: `make guard`.
//!
//! `cargo bench -p guard [-- --write | --quick | PART]`. Valgrind counts instructions of user
//! space, so the figures do not depend on how busy the machine is. Each load runs twice, the
//! second time with twice as much, and the difference is shown: start and end cancel out.
//! `--write` writes the figures into docs/BENCHMARKS.md. `--quick` does each load once without
//! Valgrind, and judges nothing. With a part of their names, only those loads are counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench may end with a message"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/host.rs"]
mod host;
#[path = "support/notifies.rs"]
mod notifies;
#[path = "support/page.rs"]
mod page;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use gcra_lease::{
    AskReply, HostTime, Look, MOST_CELLS, Micros, Sent, SharedLimit, StoreTime, Wish,
};
use gcra_table::{LeaseKey, LeaseNumbers, Leases, Nanos, Quota, Slots, Table};
use notifies::{Kind, Notifies};
use support::Agent;
use support::spop::Spop;
use support::valkey::Server;

/// Something done many times.
struct Row {
    name: &'static str,
    count: usize,
    work: Work,
    /// The most instructions that each may take: a tenth to a seventh more than it does, for
    /// other compilers and libraries. (A reading of the clock in each decision is a fifth.)
    bound: usize,
}

#[derive(Clone, Copy)]
enum Work {
    /// A NOTIFY is decoded.
    Decode,
    /// The table decides about one cell each of `keys` keys in turn.
    Decide { keys: usize, burst: u32 },
    /// A cell that this host holds of a key is spent; when none is left, more are asked for.
    Spend,
    /// A key that the store has told to come back later.
    Blocked,
    /// An agent answers NOTIFYs of this kind, of which `together` arrive at once, with a limit of
    /// flags or of this configuration file.
    Answer { together: usize, kind: Kind, config: Option<&'static str> },
    /// The same with a limit that is shared through a store, of a burst of `burst`. If that is a
    /// large one, all are allowed.
    AnswerShared { burst: u32 },
}

/// The usual case, which has a shorter path through a decision (`Usual` in
/// crates/gcra-limiter/src/active_policies.rs).
const USUAL: &str = "[policy.check]\nlimits = \"100/s burst 20\"\nipv6_prefix = 128\n";

/// The same limit with an override that no key has: what the shorter path saves.
const UNUSUAL: &str = "[policy.check]\nlimits = \"100/s burst 20\"\nipv6_prefix = 128\n\
                       [policy.check.overrides]\n\"192.0.2.1\" = \"unlimited\"\n";

/// Two limits, and variables that a page for clients has.
const ANSWERED: &str = "answer = [\"remaining\", \"reset\", \"ratelimit\"]\n\
                        [policy.check]\nlimits = [\"100/s burst 20\", \"3000/m burst 500\"]\n\
                        ipv6_prefix = 128\n";

/// The same limits, with `blocked` alone.
const TWO_LIMITS: &str = "[policy.check]\nlimits = [\"100/s burst 20\", \"3000/m burst 500\"]\n\
                          ipv6_prefix = 128\n";

/// The same answer for clients within their limits.
const ANSWERED_ALLOWED: &str = "answer = [\"remaining\", \"reset\", \"ratelimit\"]\n\
                                [policy.check]\n\
                                limits = [\"1000000/s burst 1000000\", \"60000000/m\"]\n\
                                ipv6_prefix = 128\n";

/// One limit, and the variable that most configurations add first.
const REMAINING: &str = "answer = [\"remaining\"]\n\
                         [policy.check]\nlimits = \"100/s burst 20\"\nipv6_prefix = 128\n";

/// An override that no key has, and all that an error page or an API says about its limits.
const FOUR_VARIABLES: &str = "answer = [\"remaining\", \"reset\", \"retry_after\", \
                              \"ratelimit\"]\n\
                              [policy.check]\n\
                              limits = [\"100/s burst 20\", \"3000/m burst 500\"]\n\
                              [policy.check.overrides]\n\"192.0.2.1\" = \"unlimited\"\n";

/// A policy for each of two messages.
const TWO_POLICIES: &str = "[policy.check]\nlimits = \"100/s burst 20\"\n\
                            [policy.login]\nlimits = \"50/s burst 20\"\n";

const GENEROUS: u32 = 1_000_000_000;

/// How many NOTIFYs an agent answers before any is counted. In each minute it names the clients of
/// the first 4096 NOTIFYs, then of every second one, and so on. After this many it names the
/// client of one in sixteen, and a busy agent names fewer.
const WARM_UP: usize = 65_536;

/// NOTIFYs with one IPv4 address.
const ONE_KEY: Kind = Kind::Ipv4 { keys: 1 };

const ROWS: [Row; 22] = [
    Row { name: "decode a NOTIFY", count: 100_000, work: Work::Decode, bound: 325 },
    Row {
        name: "decide: known key, allowed",
        count: 100_000,
        work: Work::Decide { keys: 1, burst: GENEROUS },
        bound: 220,
    },
    Row {
        name: "decide: known key, denied",
        count: 100_000,
        work: Work::Decide { keys: 1, burst: 20 },
        bound: 202,
    },
    Row {
        name: "decide: new key",
        count: 50_000,
        work: Work::Decide { keys: usize::MAX, burst: GENEROUS },
        bound: 1420,
    },
    Row { name: "spend a leased cell", count: 100_000, work: Work::Spend, bound: 225 },
    Row { name: "no leased cell, blocked", count: 100_000, work: Work::Blocked, bound: 250 },
    Row {
        name: "the agent: 2000 NOTIFYs together",
        count: 100_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: None },
        bound: 416,
    },
    Row {
        name: "the agent: 32 NOTIFYs together",
        count: 32_000,
        work: Work::Answer { together: 32, kind: ONE_KEY, config: None },
        bound: 512,
    },
    Row {
        name: "the agent: one NOTIFY at a time",
        count: 4_000,
        work: Work::Answer { together: 1, kind: ONE_KEY, config: None },
        bound: 3330,
    },
    Row {
        name: "2000 together, 100 000 keys",
        count: 100_000,
        work: Work::Answer { together: 2000, kind: Kind::Ipv4 { keys: 100_000 }, config: None },
        bound: 830,
    },
    Row {
        name: "2000 together, a limit of a file",
        count: 100_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(USUAL) },
        bound: 416,
    },
    Row {
        name: "2000 together, not the usual case",
        count: 100_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(UNUSUAL) },
        bound: 1000,
    },
    Row {
        name: "2000 together, two limits, answered",
        count: 50_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(ANSWERED) },
        bound: 1_850,
    },
    Row {
        name: "2000 together, the same, allowed",
        count: 50_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(ANSWERED_ALLOWED) },
        bound: 2_530,
    },
    Row {
        name: "2000 together, two limits",
        count: 50_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(TWO_LIMITS) },
        bound: 935,
    },
    Row {
        name: "2000 together, with 'remaining'",
        count: 50_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(REMAINING) },
        bound: 1_095,
    },
    Row {
        name: "2000 together, override, 4 variables",
        count: 50_000,
        work: Work::Answer { together: 2000, kind: ONE_KEY, config: Some(FOUR_VARIABLES) },
        bound: 2_310,
    },
    Row {
        name: "32 together, two messages by turns",
        count: 32_000,
        work: Work::Answer { together: 32, kind: Kind::TwoMessages, config: Some(TWO_POLICIES) },
        bound: 536,
    },
    Row {
        name: "32 together, IPv6",
        count: 32_000,
        work: Work::Answer { together: 32, kind: Kind::Ipv6, config: None },
        bound: 620,
    },
    Row {
        name: "32 together, strings of 20 bytes",
        count: 32_000,
        work: Work::Answer { together: 32, kind: Kind::Text, config: None },
        bound: 765,
    },
    Row {
        name: "32 together, shared, allowed",
        count: 64_000,
        work: Work::AnswerShared { burst: 100_000 },
        bound: 600,
    },
    Row {
        name: "32 together, shared, denied",
        count: 64_000,
        work: Work::AnswerShared { burst: 20 },
        bound: 590,
    },
];

const TABLE_HEAD: &str = "\
| what                               | instructions | bound |
| ---------------------------------- | -----------: | ----: |
";

const LEGEND: &str = "
A NOTIFY has one arg, IPv4 unless the row says more, and ids as HAProxy sends them. A decision
includes hashing the key. A new key takes a slot, with a fresh reading of the clock, which is a
system call under Valgrind. Leased cells are those of a limit that several machines share; hashing
the key is included. The agent is a process that reads, decides and writes with the parts of the
program. It has one key, which is denied unless the row says more. With 100 000 keys, a quarter of
the NOTIFYs that are counted are the first of their key.

";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().collect();
    // How this program runs itself below.
    if let [_, run, row, count] = &args[..]
        && run == "--run"
    {
        ROWS[row.parse::<usize>().unwrap()].work.do_here(count.parse().unwrap());
        return ExitCode::SUCCESS;
    }

    if asked::quick() {
        for (number, row) in ROWS.iter().enumerate() {
            row.work.run(number, row.count / 100, &[]);
            println!("{}: done", row.name);
        }
        return ExitCode::SUCCESS;
    }

    let mut section = format!(
        "## Instructions\n\nInstructions of user space, counted by Valgrind: `make guard`, \
         which fails above the bounds\n({}):\n\n{TABLE_HEAD}",
        host::description()
    );
    let mut failed = false;
    let wanted = asked::wanted();
    for (number, row) in ROWS.iter().enumerate() {
        if !row.name.contains(&wanted) {
            continue;
        }
        let profile = profile(number);
        let (mut once, mut twice, mut each) = (usize::MAX, usize::MAX, usize::MAX);
        // Instructions that depend on time count, too, and on a busy machine there are more of
        // them: the least of several counts has the fewest of them.
        for _ in 0..3 {
            once = once.min(row.work.instructions(number, row.count, &profile));
            twice = twice.min(row.work.instructions(number, 2 * row.count, &profile));
            each = twice.checked_sub(once).map_or(usize::MAX, |more| more / row.count);
            if each <= row.bound {
                break;
            }
        }
        println!("{:<34} {each:>6} instructions, at most {}", row.name, row.bound);
        section += &format!("| {:<34} | {each:>12} | {:>5} |\n", row.name, row.bound);
        // Other CPUs have other instructions.
        if cfg!(target_arch = "x86_64") && each > row.bound {
            failed = true;
            println!(
                "    above the bound. 'callgrind_annotate {}' shows where they are. Make the \
                 path cheaper, or raise the bound in benches/guard.rs and say in the commit why.",
                profile.display()
            );
        }
    }
    section += LEGEND;
    if asked::flag("--write") {
        page::write("guard", &section);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Work {
    /// The instructions of a process that does it `count` times.
    fn instructions(self, row: usize, count: usize, profile: &Path) -> usize {
        let out = format!("--callgrind-out-file={}", profile.display());
        self.run(row, count, &["valgrind", "--tool=callgrind", &out]);
        let profile = fs::read_to_string(profile).expect("callgrind wrote a profile");
        let totals =
            profile.lines().find_map(|line| line.strip_prefix("totals: ")).expect("it has totals");
        totals.parse().expect("a number")
    }

    /// Does it `count` times, in a process that other words may stand in front of.
    fn run(self, row: usize, count: usize, words: &[&str]) {
        let start = |program: &Path| match words {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let store = match self {
            Self::AnswerShared { .. } => {
                support::valkey::valkey().expect("a server: 'make valkey'");
                Some(Server::start(&[]))
            }
            _ => None,
        };
        if let Self::Answer { .. } | Self::AnswerShared { .. } = self {
            let directory = support::directory();
            let path = |name: &str| directory.path().join(name);
            let mut command = start(Path::new(env!("CARGO_BIN_EXE_agent")));
            command.arg("--table").arg(path("table"));
            command.args(["--listen", "127.0.0.1:0"]);
            let mut all_together = 32;
            match self {
                Self::Answer { together, config: Some(config), .. } => {
                    all_together = together;
                    fs::write(path("gcra-spoa.toml"), config).unwrap();
                    command.arg("--config").arg(path("gcra-spoa.toml"));
                }
                Self::AnswerShared { burst } => {
                    let url = store.as_ref().map(Server::url).unwrap();
                    let rate = if burst > 1_000 { "1000000000/s" } else { "20/h" };
                    command.args(["--rate", rate, "--burst", &burst.to_string()]);
                    command.args(["--store", &url, "--store-wait", "10s"]);
                }
                Self::Answer { together, .. } => {
                    all_together = together;
                    command.args(["--rate", "100/s", "--burst", "20"]);
                }
                _ => {}
            }
            let agent = Agent::start_command(&mut command);
            let mut stream = Spop::connect(&agent.address).into_stream();
            let kind = if let Self::Answer { kind, .. } = self { kind } else { ONE_KEY };
            let notifies = Notifies::of(kind, count);
            let kind = if let Kind::Ipv4 { .. } = kind { ONE_KEY } else { kind };
            let is_longer = |config: &str| config.starts_with("answer");
            match store {
                None if matches!(self, Self::Answer { config: Some(it), .. } if is_longer(it)) => {
                    Notifies::of(kind, WARM_UP).exchange_of_any_length(&mut stream, 2000);
                    notifies.exchange_of_any_length(&mut stream, all_together);
                }
                None => {
                    Notifies::of(kind, WARM_UP).exchange(&mut stream, 2000);
                    notifies.exchange(&mut stream, all_together);
                }
                Some(_) => notifies.exchange_in_any_order(&mut stream, all_together),
            }
            drop(stream);
            agent.stop();
        } else {
            let mut command = start(&std::env::current_exe().unwrap());
            let output = command
                .args(["--run", &row.to_string(), &count.to_string()])
                .output()
                .expect("valgrind is installed: 'tests/install.sh valgrind valgrind'");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn do_here(self, count: usize) {
        match self {
            Self::Decode => {
                let frame = Notifies::new(1, 1).bytes;
                for _ in 0..count {
                    black_box(spop_codec::decode(black_box(&frame), 16_380)).unwrap();
                }
            }
            Self::Decide { keys, burst } => {
                let table = Table::in_memory(Slots::new(1 << 20).unwrap()).unwrap();
                let quota = Quota::new(Nanos::from_millis(10), burst).unwrap();
                let mut now = table.reading();
                for number in 0..count {
                    let key = table.hash(&(number % keys).to_le_bytes());
                    let _ = black_box(table.charge(key, quota, 1, &mut now));
                }
            }
            Self::Spend => spend(count, |sent| (sent.ask.want, Micros::ZERO)),
            Self::Blocked => spend(count, |_| (0, Micros::from_millis(60_000))),
            Self::Answer { .. } | Self::AnswerShared { .. } => {
                unreachable!("the agent is a program of its own")
            }
        }
    }
}

/// Decides about one leased cell, many times. `grants` says how many cells an ask gets, and how
/// long it is to wait for more.
fn spend(count: usize, grants: impl Fn(&Sent) -> (u32, Micros)) {
    let patience = Micros::from_millis(50);
    let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
    let slots = Slots::new(1 << 20).unwrap();
    let leases = Leases::in_memory(slots, HostTime::from(table.now())).unwrap();
    let limit = SharedLimit::new(Duration::from_millis(10), 100_000).unwrap();
    let numbers = LeaseNumbers::new(&[u64::from(limit.burst())]);
    let wish = Wish { want: MOST_CELLS, least: 1, validity: Micros::from_millis(2_000) };
    let now = table.reading();
    for _ in 0..count {
        // As for a local decision: the key is hashed, and the reading is there.
        let key = LeaseKey::new(table.hash(&0_usize.to_le_bytes()), numbers);
        let now = HostTime::from(now.time());
        if black_box(leases.take(key, now, 1, patience)) == Err(Look::Lacking) {
            let sent = leases.ask(key, &limit, now, patience, wish).unwrap();
            let (granted, come_back_after) = grants(&sent);
            let (number, kept) = (sent.ask.number, sent.ask.holds);
            let (scarce, hosts, store) = (false, 1, StoreTime(0));
            let reply = AskReply {
                number,
                kept,
                granted,
                free: 0,
                come_back_after,
                scarce,
                lent: false,
                hosts,
                now: store,
            };
            assert!(leases.reply(key, now, &sent, &reply));
        }
    }
}

/// Where callgrind writes the profile of a row.
fn profile(row: usize) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).unwrap();
    directory.join(format!("guard-{row}.callgrind"))
}
