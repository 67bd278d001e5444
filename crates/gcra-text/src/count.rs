//! Counts with their nouns: "1 request", "2 requests".

use std::fmt;

/// A count, the noun for one, and the noun for several.
pub struct Count<N>(pub N, pub &'static str, pub &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, one, several) = self;
        write!(f, "{count} {}", if *count == N::from(1) { one } else { several })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let words = [0_u64, 1, 2].map(|count| Count(count, "entry", "entries").to_string());
        assert_eq!(words, ["0 entries", "1 entry", "2 entries"]);
    }
}
