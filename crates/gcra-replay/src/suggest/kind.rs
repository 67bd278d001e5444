//! Whether a client is one steady machine, a burst, or a crowd behind one address, as far as a log
//! tells, and why.

use std::fmt::Write as _;

use super::Client;
use super::FEW_REQUESTS;
use super::grid::f64_from;
use super::habits::{Habits, MOST_NAMES};
use super::suggestions::Scope;

/// The kind of a client that is probably many people.
pub(crate) const CROWD: &str = "crowd";

/// Gaps of one length: from this share on they are steady, and below the other one irregular.
/// (Two bins that adjoin hold at most 29 % of the gaps of a Poisson process.)
const STEADY: f64 = 0.6;
const IRREGULAR: f64 = 0.45;

/// A client that comes at any hour alike has 25 % in its quietest six hours.
const ROUND_THE_CLOCK: f64 = 0.18;
const DIURNAL: f64 = 0.08;

/// The hours that a log must cover before anything is said about days.
const DAY_HOURS: u32 = 24;

/// What tells for a machine (positive) or a crowd (negative), and the words for it.
struct Signs {
    score: i32,
    words: Vec<String>,
}

impl Signs {
    fn note(&mut self, score: i32, words: impl Into<String>) {
        self.score += score;
        self.words.push(words.into());
    }
}

/// The kind of a client, and the reason in words.
pub(crate) fn of(client: &Client, habits: &Habits, scope: &Scope) -> (&'static str, String) {
    let mut signs = Signs { score: 0, words: Vec::new() };
    note_gaps(habits, &mut signs);
    note_names(habits, scope, &mut signs);
    note_hours(habits, scope, &mut signs);

    let busiest = u64::from(client.minute.most);
    let is_burst = busiest * 2 >= client.requests && scope.seconds > 600.0;
    if is_burst {
        let first = format!("{} of its {} requests came in one minute", busiest, client.requests);
        signs.words.insert(0, first);
    }
    let kind = match signs.score {
        _ if is_burst => "burst",
        2.. => "steady machine",
        ..=-2 => CROWD,
        _ => {
            signs.words.push("that is not enough to tell".into());
            "cannot tell"
        }
    };
    let mut why = signs.words.join("; ");
    if let Some(first) = why.get(..1).map(str::to_uppercase) {
        why.replace_range(..1, &first);
    }
    why.push('.');
    if client.requests < 10 * u64::from(FEW_REQUESTS) {
        let _ = write!(why, " (Counted from its {FEW_REQUESTS}th request on.)");
    }
    (kind, why)
}

fn note_gaps(habits: &Habits, signs: &mut Signs) {
    match habits.steadiness() {
        None => signs.note(0, "its requests are too close together for the log's times"),
        Some((share, gap)) if share >= STEADY => signs.note(
            2,
            format!("steady: {:.0} % of its gaps are about {}", share * 100.0, seconds(gap)),
        ),
        Some((share, _)) if share < IRREGULAR => signs.note(-1, "irregular gaps"),
        Some(_) => signs.note(0, "its gaps are neither steady nor irregular"),
    }
}

fn note_names(habits: &Habits, scope: &Scope, signs: &mut Signs) {
    let Habits { agents, paths, .. } = habits;
    if agents.are_known {
        match agents.len {
            1 => signs.note(1, "one user agent"),
            len @ 2..4 => signs.note(0, format!("{len} user agents")),
            // Machines can invent user agents, so this outweighs irregular gaps, not steady ones.
            len if usize::from(len) < MOST_NAMES => {
                signs.note(-1, format!("{len} user agents"));
            }
            _ => signs.note(-2, format!("{MOST_NAMES} user agents or more")),
        }
    } else if scope.knows_agents {
        signs.note(1, "no user agent");
    }
    if paths.are_known {
        match paths.len {
            1 => signs.note(1, "one path"),
            len if usize::from(len) < MOST_NAMES => signs.note(0, format!("{len} paths")),
            _ => signs.note(0, "many paths"),
        }
    }
}

fn note_hours(habits: &Habits, scope: &Scope, signs: &mut Signs) {
    if scope.hours < DAY_HOURS {
        return;
    }
    let night = habits.night();
    if f64_from(habits.active_hours.into()) >= 0.95 * f64_from(scope.hours.into())
        && night >= ROUND_THE_CLOCK
    {
        signs.note(1, "round the clock");
    } else if night < DIURNAL && habits.active_hours >= 6 {
        signs.note(-1, "rests at some hours of the day");
    }
}

/// A length of time, for reading.
fn seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1000.0)
    } else if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}
