//! An address or network as an operator writes it, in a configuration file or on a command line.
//!
//! A string that is nearly an address is a mistake, and not a value. No client would ever send
//! such a value. So a typing error in a list of denied addresses, or in the key of a client to
//! reset, would have no effect.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::embedded::canonical_net;
use crate::sentence;
use crate::sentence::Sentence;

/// The prefix of a string that is a value whatever it looks like.
pub const VALUE: &str = "str:";

/// The address or network that a string without [`VALUE`] in front stands for, or `None` if it
/// stands for itself. An IPv4 address is one in each of its forms. The error is a sentence that
/// says what would be right: the string is empty, has white space around it, or is nearly an
/// address.
pub fn written_net(text: &str) -> Result<Option<IpNet>, Sentence> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Some(canonical_net(ip.into())));
    }
    match text.parse::<IpNet>() {
        Ok(net) if net == net.trunc() => Ok(Some(canonical_net(net))),
        Ok(net) => Err(sentence!(
            "'{text}' is not the first address of its network; write {} for the network, or \
             {}/{} for the one address",
            net.trunc(),
            net.addr(),
            net.max_prefix_len()
        )),
        Err(_) if text.is_empty() => Err(sentence!(
            "'' is empty; write an address, a network or a value, or {VALUE} for the empty string"
        )),
        Err(_) if text != text.trim() => {
            let trimmed = text.trim();
            Err(sentence!(
                "'{text}' has white space around it; write \"{trimmed}\", or \"{VALUE}{text}\" if \
                 it is part of the value"
            ))
        }
        Err(_) => {
            let general = || "one, such as 192.0.2.1 or 192.0.2.0/24,".to_owned();
            match meant(text).or_else(|| is_nearly_an_address(text).then(general)) {
                Some(right) => Err(sentence!(
                    "'{text}' is not an address or network; write {right} or {VALUE}{text} for \
                     the text itself"
                )),
                None => Ok(None),
            }
        }
    }
}

/// The address or network that was probably meant, with the comma that follows it in the sentence.
/// It is the string with dots for other marks, and without quotes and white space; or a
/// hexadecimal number.
fn meant(text: &str) -> Option<String> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let is_hex = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u32::from_str_radix(digits, 16).ok())??;
        return Some(format!("{},", Ipv4Addr::from(number)));
    }
    let plain: String = text
        .chars()
        .filter(|c| !c.is_whitespace() && !"\"'`\u{2018}\u{2019}\u{201c}\u{201d}".contains(*c))
        .map(|c| if ",-_\u{ff0e}\u{3002}".contains(c) { '.' } else { c })
        .collect();
    if let Ok(ip) = plain.parse::<IpAddr>() {
        return Some(format!("{ip},"));
    }
    let net = plain.parse::<IpNet>().ok()?;
    Some(if net == net.trunc() {
        format!("{net},")
    } else {
        // Only the operator knows whether the address or its network is meant.
        format!("{} or {}/{},", net.trunc(), net.addr(), net.max_prefix_len())
    })
}

/// Whether a string that is not an address or network was probably meant to be one.
fn is_nearly_an_address(text: &str) -> bool {
    // Several addresses in a line, or one among other words.
    let mut words =
        text.split(|c: char| c.is_whitespace() || ",;".contains(c)).filter(|word| *word != text);
    if text == "*"
        || words.any(|word| word.parse::<IpAddr>().is_ok() || word.parse::<IpNet>().is_ok())
    {
        return true;
    }
    // A path, even if it has only digits.
    if text.starts_with('/') {
        return false;
    }
    // Numbers with dots or slashes: with a part missing or too many, or a range, a mask, a port.
    let numeric = |c: char| c.is_ascii_digit() || c.is_whitespace() || "./*-:".contains(c);
    if text.contains(|c: char| c.is_ascii_digit())
        && text.contains(['.', '/'])
        && text.chars().all(numeric)
    {
        return true;
    }
    let address = text.split(['/', '%']).next().unwrap_or(text).trim_start_matches('[');
    let address = address.split(']').next().unwrap_or(address);
    looks_like_ipv4(address) || looks_like_ipv6(address) || has_only_ipv6_characters(text)
}

/// Hexadecimal digits, dots and at least one colon, perhaps with a prefix length.
fn has_only_ipv6_characters(text: &str) -> bool {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    address.contains(':')
        && address.chars().all(|c| c.is_ascii_hexdigit() || ".:".contains(c))
        && bits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Four parts, of which at least three are numbers.
fn looks_like_ipv4(text: &str) -> bool {
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split('.').count() == 4 && text.split('.').filter(is_number).count() >= 3
}

/// At least three parts between colons that are all hexadecimal; or all but one, if there are as
/// many parts as in an address or a `::`.
fn looks_like_ipv6(text: &str) -> bool {
    let is_part = |part: &str| {
        part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
            || looks_like_ipv4(part)
    };
    let (good, wrong): (Vec<_>, Vec<_>) = text.split(':').partition(|part| is_part(part));
    let has_shape = text.contains("::") || good.len() + wrong.len() == 8;
    good.len() + wrong.len() >= 3
        && text.contains(|c: char| c.is_ascii_digit())
        && match wrong[..] {
            [] => true,
            [wrong] => has_shape && wrong.len() <= 5,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings for which `written_net` does not say what is beside them.
    fn wrong<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> Vec<String> {
        let said = |text| written_net(text).err().map_or("a value".to_owned(), String::from);
        let rows = rows.into_iter().filter(|(text, sentence)| said(text) != *sentence);
        rows.map(|(text, _)| format!("{text:?}: {}", said(text))).collect()
    }

    fn not_an_address(text: &str, right: &str) -> String {
        format!(
            "'{text}' is not an address or network; write {right}, or str:{text} for the text \
             itself"
        )
    }

    #[test]
    fn what_is_nearly_an_address_is_a_mistake() {
        let texts = [
            "300.1.1.1",
            "192.0.2.256",
            "010.0.0.1",
            "192.0.2",
            "192.0.2.",
            "192.0.2.1.",
            "192.0.2.l",
            "192.O.2.1",
            "1.2.3.4/-1",
            "1.2.3.4/33",
            "1.2.3.4/",
            "1.2.3.4/024",
            "1.2.3.4/24/24",
            "1.2.3.4/255.255.255.0",
            "10/8",
            "10.0.*.*",
            "*",
            "192.0.2.1-192.0.2.9",
            "192.0.2.1-9",
            "192.0.2.1:80",
            "192.0.2.1 192.0.2.2",
            "192.0.2.1, 192.0.2.2",
            "192.0.2.0/24;",
            "deny 192.0.2.1",
            "192.0.2.1\u{feff}",
            "192.0.2.1\u{200b}",
            "2001:db8::/129",
            "2001:db8:/32",
            "2001:db8::l",
            "2001:db8:::1",
            "[2001:db8::1]",
            "[2001:db8::1]:80",
            "fe80::1%eth0",
            "fe80::1%eth0/64",
            "::ffff:300.0.0.1",
            "2001.db8::1",
            "2001:db8",
            "2001:db8/32",
            "fe80:1",
            "12:34",
        ];
        let general = "one, such as 192.0.2.1 or 192.0.2.0/24";
        let found = wrong(texts.map(|text| (text, not_an_address(text, general))));
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn an_address_that_was_probably_meant_is_named() {
        let texts = [
            ("10.0.0,1", "10.0.0.1"),
            ("10,0,0,1", "10.0.0.1"),
            ("10-0-0-1", "10.0.0.1"),
            ("10_0_0_1", "10.0.0.1"),
            ("10\u{ff0e}0\u{ff0e}0\u{ff0e}1", "10.0.0.1"),
            ("10\u{3002}0\u{3002}0\u{3002}1", "10.0.0.1"),
            ("10,0,0,0/8", "10.0.0.0/8"),
            ("10.0.0.0 / 8", "10.0.0.0/8"),
            ("1.2.3.4/ 24", "1.2.3.0/24 or 1.2.3.4/32"),
            ("1.2.3.4 /24", "1.2.3.0/24 or 1.2.3.4/32"),
            ("10,0,0,1/8", "10.0.0.0/8 or 10.0.0.1/32"),
            ("\"10.0.0.1\"", "10.0.0.1"),
            ("\"10.0.0.0/8\"", "10.0.0.0/8"),
            ("\"2001:db8::1\"", "2001:db8::1"),
            ("\u{201c}10.0.0.1\u{201d}", "10.0.0.1"),
            ("0x0a000001", "10.0.0.1"),
            ("0X0A000001", "10.0.0.1"),
        ];
        let found = wrong(texts.map(|(text, meant)| (text, not_an_address(text, meant))));
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn an_address_that_is_not_that_of_its_network_is_a_mistake() {
        let texts = [
            ("1.2.3.4/24", "1.2.3.0/24", "1.2.3.4/32"),
            ("2001:db8::1/32", "2001:db8::/32", "2001:db8::1/128"),
            ("::ffff:10.0.0.1/104", "::ffff:10.0.0.0/104", "::ffff:10.0.0.1/128"),
        ];
        let found = wrong(texts.map(|(text, net, ip)| {
            let right = format!("write {net} for the network, or {ip} for the one address");
            (text, format!("'{text}' is not the first address of its network; {right}"))
        }));
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn white_space_around_a_value_is_a_mistake() {
        for (text, said) in [
            ("", "'' is empty; write an address, a network or a value"),
            (" 1.2.3.4", "' 1.2.3.4' has white space around it; write \"1.2.3.4\", or \"str: 1.2"),
            ("partner\t", "has white space around it"),
        ] {
            let sentence = written_net(text).unwrap_err();
            assert!(sentence.contains(said), "{sentence}");
        }
    }
}
