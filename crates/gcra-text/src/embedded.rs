//! IPv4 addresses that are written as IPv6 addresses, because a translator or a tunnel has written
//! them into one.
//!
//! `::ffff:0:0/96` is a socket's form of IPv4 (RFC 4291). `64:ff9b::/96` is the prefix that all
//! NAT64 translators know (RFC 6052), and `2002::/16` is 6to4 (RFC 3056): whoever has the IPv4
//! address has all addresses of its /48.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The prefix of NAT64, without its last 32 bits.
const NAT64: u128 = 0x0064_ff9b << 64;

/// How many bits are before the IPv4 address in an address with 96 bits of prefix, and in one of
/// 6to4.
const TRANSLATED: u8 = 96;
const SIX_TO_FOUR: u8 = 16;

/// The IPv4 address in an IPv6 address, if its prefix is one of those above.
// Inlined, it took 43 instructions of a shared request with an IPv4 address (`make guard`).
#[inline(never)]
pub fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = ip.to_bits();
    match bits >> 32 {
        0xffff => Some(last_bits(bits)),
        NAT64 => translated_v4(ip),
        _ if bits >> 112 == 0x2002 => Some(last_bits(bits >> 80)),
        _ => None,
    }
}

/// The IPv4 address in the last 32 bits of an address that a translator has made. It is `None` for
/// 0.0.0.0: `ipmask(32,64)` of HAProxy leaves nothing else of any of them.
#[inline]
pub fn translated_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    Some(last_bits(ip.to_bits())).filter(|ip| !ip.is_unspecified())
}

#[expect(clippy::cast_possible_truncation, reason = "the bits of an IPv4 address")]
const fn last_bits(bits: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits(bits as u32)
}

/// The form in which a network is looked up: an IPv4 network that is written as an IPv6 network
/// is an IPv4 network. All of NAT64 and all of 6to4 stay what they are: who writes them does not
/// mean all of IPv4.
pub fn canonical_net(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let is_mapped = v6.addr().to_ipv4_mapped().is_some();
    let before = if v6.addr().to_bits() >> 112 == 0x2002 { SIX_TO_FOUR } else { TRANSLATED };
    embedded_net(v6, before, is_mapped).map_or(net, IpNet::V4)
}

/// The IPv4 network in an IPv6 network behind so many bits. With `may_be_all`, it may be all of
/// IPv4.
fn embedded_net(net: Ipv6Net, before: u8, may_be_all: bool) -> Option<Ipv4Net> {
    let prefix = net.prefix_len().checked_sub(before).filter(|bits| may_be_all || *bits > 0)?;
    // A network may begin with 0.0.0.0, which is no client by itself.
    let known = match (net.addr().to_bits() >> 32, prefix) {
        (NAT64, ..32) => Some(last_bits(net.addr().to_bits())),
        _ => embedded_v4(net.addr()),
    };
    Ipv4Net::new(known?, prefix.min(32)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Option<String> {
        embedded_v4(text.parse().unwrap()).map(|ip| ip.to_string())
    }

    #[test]
    fn an_ipv4_address_is_the_same_in_each_of_its_forms() {
        for text in
            ["::ffff:192.0.2.7", "64:ff9b::192.0.2.7", "2002:c000:207::", "2002:c000:207:9::1"]
        {
            assert_eq!(v4(text).as_deref(), Some("192.0.2.7"), "{text}");
        }
        for text in [
            "2001:db8::1",
            "64:ff9b:1::192.0.2.7",
            "64:ff9b::1:c000:207",
            "64:ff9a::192.0.2.7",
            "2003:c000:207::",
            "::192.0.2.7",
            "::",
            // All that is left of a translated address behind ipmask(32,64).
            "64:ff9b::",
        ] {
            assert_eq!(v4(text), None, "{text}");
        }
        assert_eq!(v4("::ffff:0.0.0.0").as_deref(), Some("0.0.0.0"));
    }

    #[test]
    fn a_network_of_them_is_an_ipv4_network() {
        let net = |text: &str| canonical_net(text.parse().unwrap()).to_string();
        for (text, right) in [
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("64:ff9b::192.0.2.0/120", "192.0.2.0/24"),
            ("64:ff9b::192.0.2.7/128", "192.0.2.7/32"),
            ("64:ff9b::/97", "0.0.0.0/1"),
            ("2002:c000:200::/40", "192.0.2.0/24"),
            ("2002:c000:207::/48", "192.0.2.7/32"),
            ("2002:c000:207:9::/64", "192.0.2.7/32"),
            // Such a prefix by itself says nothing about IPv4.
            ("64:ff9b::/96", "64:ff9b::/96"),
            ("64:ff9b::/128", "64:ff9b::/128"),
            ("64:ff9b::/64", "64:ff9b::/64"),
            ("2002::/16", "2002::/16"),
            ("2000::/3", "2000::/3"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            assert_eq!(net(text), right, "{text}");
        }
    }
}
