//! The most that a suggested limit may touch: fewer than a share of the clients, or of the
//! requests.

/// A share, above 0 and up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// Of the clients: those with a blocked request.
    Clients(f64),
    /// Of the requests: those that are blocked.
    Requests(f64),
}

impl Default for Target {
    fn default() -> Self {
        Self::Clients(0.001)
    }
}

impl Target {
    /// Reads `0.1%`, `0.1% of clients` or `0.1% of requests`. The error is a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (share, of): (_, fn(f64) -> Self) = match text.split_once('%') {
            Some((share, "" | " of clients")) => (share, Self::Clients),
            Some((share, " of requests")) => (share, Self::Requests),
            _ => ("", Self::Clients),
        };
        let percent = share.parse::<f64>().ok().filter(|percent| (1e-6..=100.0).contains(percent));
        match percent {
            Some(percent) => Ok(of(percent / 100.0)),
            None => Err(format!("'{text}' is not a share, such as 0.1% or '0.1% of requests'")),
        }
    }
}
