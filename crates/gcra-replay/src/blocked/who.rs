//! The client that a line of the log names, and the client of the question.

use std::net::IpAddr;

use gcra_policy::KnownClients;
use gcra_text::network::written_net;
use ipnet::IpNet;

use crate::mapping::Fields;

/// Where a line says who the client is, the best place first.
#[derive(Debug)]
pub(crate) struct ClientFields(Vec<usize>);

impl ClientFields {
    /// The field that is named, or those that a log has. The error is a sentence.
    pub(crate) fn new(written: Option<&str>, fields: &mut Fields<'_>) -> Result<Self, String> {
        if let Some(written) = written {
            let field =
                fields.find_written(crate::mapping::bare_name(written)).ok_or_else(|| {
                    format!(
                        "the log has no field '{written}' for --client; it has {}",
                        fields.in_words()
                    )
                })?;
            return Ok(Self(vec![fields.select(&field)]));
        }
        let variable = fields.select_variable("client");
        let others = ["var(txn.client)", "ci"].map(|name| fields.select_if_known(name));
        let mut places: Vec<_> = [variable].into_iter().chain(others).flatten().collect();
        places.dedup();
        match places.is_empty() {
            true => Err(format!(
                "no field of the log is the client's address; write --client FIELD with one of {}",
                fields.in_words()
            )),
            false => Ok(Self(places)),
        }
    }

    /// Their names, for the report.
    pub(crate) fn in_words(&self, fields: &Fields<'_>) -> String {
        let names: Vec<_> = self.0.iter().map(|&place| &*fields.selected[place]).collect();
        names.join(", else ")
    }

    /// The values in a line that name the client, the best first.
    pub(crate) fn of<'a>(
        &self,
        values: &[Option<&'a [u8]>],
    ) -> impl Iterator<Item = &'a [u8]> + use<'a, '_> {
        let values: Vec<_> = self.0.iter().filter_map(|&place| *values.get(place)?).collect();
        values.into_iter()
    }
}

/// The client that is asked about.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) written: &'a str,
    net: Option<IpNet>,
    /// What clients are known as.
    known: &'a KnownClients,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(written: &'a str, known: &'a KnownClients) -> Self {
        Self { written, net: net_of(written), known }
    }

    /// Whether a line can say this of the client: its name, the name of a client that is known by
    /// these words, or an address of the same network.
    pub(crate) fn is(&self, client: &[u8]) -> bool {
        if client == self.written.as_bytes() {
            return true;
        }
        let Ok(client) = str::from_utf8(client) else { return false };
        let Some(net) = self.net else {
            return self.known.is_known_as(&listed_as(client.as_bytes()), self.written);
        };
        net_of(client).is_some_and(|client| net.contains(&client) || client.contains(&net))
    }
}

/// How a client is listed: each form of an address is one client.
pub(crate) fn listed_as(client: &[u8]) -> String {
    let text = String::from_utf8_lossy(client);
    text.parse::<IpAddr>().map_or_else(|_| text.into(), |ip| ip.to_canonical().to_string())
}

/// What would be right if no line has this KEY, as the end of a sentence.
pub(crate) fn what_is_right(text: &str) -> String {
    match text.parse::<IpNet>().map(|_| written_net(text)) {
        Ok(Err(why)) => format!("; {why}"),
        Err(_) if net_of(text).is_none() && !text.contains('…') => {
            "; logs shorten strings, and \
            'gcra-spoa name KEY' prints the name that they have"
                .to_owned()
        }
        _ => String::new(),
    }
}

/// An address or a network. An IPv4 address that is written in IPv6 is the IPv4 address.
fn net_of(text: &str) -> Option<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical().into()),
        Err(_) => written_net(text).ok().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_each_form() {
        for (asked, client, is) in [
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "::ffff:192.0.2.7", true),
            ("192.0.2.7", "192.0.2.70", false),
            ("192.0.2.0/24", "192.0.2.7", true),
            ("192.0.2.0/24", "192.0.3.7", false),
            ("2001:db8::5", "2001:db8::/64", true),
            ("2001:db8:0:0::5", "2001:db8::5", true),
            ("2001:db8:1::5", "2001:db8::/64", false),
            ("sk_l…(20)#90c157", "sk_l…(20)#90c157", true),
            ("sk_l…(20)#90c157", "sk_l…(20)#90c158", false),
            ("alice", "192.0.2.7", false),
        ] {
            let known = KnownClients::default();
            assert_eq!(Asked::new(asked, &known).is(client.as_bytes()), is, "{asked} {client}");
        }
        assert!(!Asked::new("192.0.2.7", &KnownClients::default()).is(b"\xff"));
    }
}
