//! The limit that a string probably means although it is not written as one: in the notation of
//! another program, or in words.

use gcra_table::Rate;

/// A rate and a burst that are valid together.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Meant {
    pub rate: String,
    pub burst: Option<u64>,
}

impl Meant {
    /// Finds `3/m` and 20 in `3/m, burst=20`, and `100/minute` in `100 requests per minute`.
    pub(crate) fn by(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase().replace([',', ';', '=', ':', '"', '\''], " ");
        let (rate, burst) = match text.split_once("burst") {
            None => (&*text, None),
            Some((rate, burst)) => (rate, Some(burst.trim().parse().ok()?)),
        };
        let words = rate.split_whitespace().collect::<Vec<_>>().join(" ");
        let separated = ["/", " per ", " every ", " each ", " an ", " a "]
            .iter()
            .find_map(|mark| words.split_once(mark));
        let (count, period) = separated.or_else(|| {
            let short = [("rps", "s"), ("rpm", "m"), ("rph", "h")];
            short.iter().find_map(|(end, unit)| Some((words.strip_suffix(end)?, *unit)))
        })?;
        let count = count.trim();
        let noun = ["requests", "request", "reqs", "req", "r"]
            .iter()
            .find_map(|noun| count.strip_suffix(noun));
        let rate = format!("{}/{}", noun.unwrap_or(count).trim(), period.trim().replace(' ', ""));
        rate.parse::<Rate>().ok()?.quota(burst).ok()?;
        Some(Self { rate, burst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ways_to_write_a_limit_are_understood() {
        for (text, rate, burst) in [
            ("3/m, burst 20", "3/m", Some(20)),
            ("3/m burst=20", "3/m", Some(20)),
            ("100 per minute", "100/minute", None),
            ("100 requests per 10 seconds", "100/10seconds", None),
            ("10r/s", "10/s", None),
            ("10 r/s burst 5", "10/s", Some(5)),
            ("10 / s", "10/s", None),
            ("50rpm", "50/m", None),
            ("5 a day", "5/day", None),
            ("100/S", "100/s", None),
        ] {
            assert_eq!(Meant::by(text), Some(Meant { rate: rate.to_owned(), burst }), "{text}");
        }
        for text in ["", "100", "1/week", "10/s, 9/h", "1,000/s", "-1/s", "10/s burst", "a/s"] {
            assert_eq!(Meant::by(text), None, "{text}");
        }
    }
}
