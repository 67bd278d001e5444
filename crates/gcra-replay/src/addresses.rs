//! The addresses in the text of a field, as HAProxy's `req.hdr_ip` finds them in a header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address at this place in a list with commas: 1 is the first value, -1 the last one.
///
/// It may have a port. HAProxy reads `[2001:db8::1]` from 2.8 on, and `[2001:db8::1]:443` only by
/// rules such as those of haproxy/behind-proxy.cfg.
pub(crate) fn address_at(list: &[u8], place: i8) -> Option<IpAddr> {
    let mut in_quotes = false;
    let mut values = list.split(|&byte| {
        in_quotes ^= byte == b'"';
        byte == b',' && !in_quotes
    });
    let nth = usize::from(place.unsigned_abs()).checked_sub(1)?;
    if place > 0 {
        return address(values.nth(nth)?);
    }
    let values: Vec<_> = values.collect();
    address(values[values.len().checked_sub(nth + 1)?])
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(value.trim_ascii()).ok()?;
    if let Some((inside, after)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_port = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return inside.parse().ok().filter(|_: &Ipv6Addr| is_port).map(IpAddr::V6);
    }
    match text.split_once(':') {
        None => ipv4(text),
        Some((host, port)) if host.contains('.') => ipv4(host).filter(|_| is_port(port)),
        Some(_) => text.parse().ok().map(IpAddr::V6),
    }
}

/// Four numbers, which may have zeros in front.
fn ipv4(text: &str) -> Option<IpAddr> {
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| part.parse().ok().filter(|_: &u8| is_digits(part));
    let mut parts = text.split('.').map(number);
    let mut next = || parts.next().flatten();
    let bytes = [next()?, next()?, next()?, next()?];
    parts.next().is_none().then_some(IpAddr::V4(Ipv4Addr::from(bytes)))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `req.hdr_ip(NAME,-1)`, `(NAME,1)` and `(NAME,2)` in HAProxy 3.4.
    #[test]
    fn a_header_has_the_addresses_that_haproxy_finds_in_it() {
        for (list, expected) in [
            ("192.0.2.1", ["192.0.2.1", "192.0.2.1", "-"]),
            ("192.0.2.1, 203.0.113.7", ["203.0.113.7", "192.0.2.1", "203.0.113.7"]),
            ("192.0.2.1,203.0.113.7", ["203.0.113.7", "192.0.2.1", "203.0.113.7"]),
            (" 192.0.2.1 ,\t203.0.113.7 ", ["203.0.113.7", "192.0.2.1", "203.0.113.7"]),
            ("192.0.2.1:1, 203.0.113.7:2", ["203.0.113.7", "192.0.2.1", "203.0.113.7"]),
            ("192.0.2.1, 2001:db8::1", ["2001:db8::1", "192.0.2.1", "2001:db8::1"]),
            ("192.0.2.1, [2001:db8::1]", ["2001:db8::1", "192.0.2.1", "2001:db8::1"]),
            ("2001:db8::1:443", ["2001:db8::1:443", "2001:db8::1:443", "-"]),
            ("2001:DB8::A", ["2001:db8::a", "2001:db8::a", "-"]),
            ("::ffff:192.0.2.1", ["::ffff:192.0.2.1", "::ffff:192.0.2.1", "-"]),
            ("192.0.2.1,", ["-", "192.0.2.1", "-"]),
            (",192.0.2.1", ["192.0.2.1", "-", "192.0.2.1"]),
            ("192.0.2.1,,203.0.113.7", ["203.0.113.7", "192.0.2.1", "-"]),
            ("192.0.2.1, unknown", ["-", "192.0.2.1", "-"]),
            ("\"a,b\", 192.0.2.1", ["192.0.2.1", "-", "192.0.2.1"]),
            ("010.001.002.003", ["10.1.2.3", "10.1.2.3", "-"]),
            ("", ["-"; 3]),
            ("unknown", ["-"; 3]),
            ("\"192.0.2.1\"", ["-"; 3]),
            ("192.0.2.1x", ["-"; 3]),
            ("192.0.2.1 x", ["-"; 3]),
            ("192.0.2.1:x", ["-"; 3]),
            ("192.0.2.1/24", ["-"; 3]),
            ("192.0.2.1;203.0.113.7", ["-"; 3]),
            ("1.2.3", ["-"; 3]),
            ("1.2.3.4.5", ["-"; 3]),
            ("1.2.3.4.", ["-"; 3]),
            ("1..2.3.4", ["-"; 3]),
            ("256.1.1.1", ["-"; 3]),
            ("+1.2.3.4", ["-"; 3]),
            ("fe80::1%eth0", ["-"; 3]),
            ("[192.0.2.1]", ["-"; 3]),
            ("[2001:db8::1", ["-"; 3]),
        ] {
            let found = [-1, 1, 2].map(|place| {
                address_at(list.as_bytes(), place).map_or("-".to_owned(), |ip| ip.to_string())
            });
            assert_eq!(found, expected, "{list}");
        }
        let with_port = address_at(b"192.0.2.1, [2001:db8::1]:443", -1);
        assert_eq!(with_port, "2001:db8::1".parse().ok(), "by the rules of behind-proxy.cfg");
        assert_eq!(address_at(b"1.1.1.1, 2.2.2.2, 3.3.3.3", -3), "1.1.1.1".parse().ok());
        assert_eq!(address_at(b"1.1.1.1, 2.2.2.2, 3.3.3.3", -4), None);
    }
}
