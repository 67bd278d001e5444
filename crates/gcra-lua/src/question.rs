//! From the words of a converter to the args of a message.

use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use spop_agent::Value;

/// The most args of a question.
const MOST_ARGS: usize = 16;

/// The args of a question, with their values.
pub(crate) type NamedArgs<'a> = ArrayVec<(&'a [u8], Value<'a>), MOST_ARGS>;

/// The byte between two values.
const BETWEEN: u8 = b'|';

/// The longest text of an address.
const LONGEST_ADDRESS: usize = 45;

/// The args with these names of the converter's question. Its input, `text`, has a value for each
/// of them, and a '|' between two. The last one has all that is left, so that nothing in it begins
/// another.
///
/// `bytes` is space for values that are written in hexadecimal. `None` if a value has not the type
/// that is named with it, or one is missing.
pub(crate) fn args_of<'a>(
    text: &'a [u8],
    names: &[&'a [u8]],
    bytes: &'a mut [u8],
) -> Option<NamedArgs<'a>> {
    let mut args = NamedArgs::new();
    let (mut rest, mut bytes) = (Some(text), bytes);
    for (place, name) in names.iter().enumerate() {
        let text = rest?;
        let end = text.iter().position(|byte| *byte == BETWEEN);
        let value = match end.filter(|_| place + 1 < names.len()) {
            Some(end) => {
                rest = text.get(end + 1..);
                text.get(..end)?
            }
            None => rest.take()?,
        };
        args.try_push(typed(name, value, &mut bytes)?).ok()?;
    }
    Some(args)
}

/// An arg with its value. `name` may have a type behind it: `path:str`.
fn typed<'a>(
    name: &'a [u8],
    text: &'a [u8],
    bytes: &mut &'a mut [u8],
) -> Option<(&'a [u8], Value<'a>)> {
    let colon = name.iter().rposition(|byte| *byte == b':');
    let (name, kind) = match colon {
        Some(colon) => (name.get(..colon)?, name.get(colon + 1..)?),
        None => (name, &b""[..]),
    };
    let number = || str::from_utf8(text).ok()?.parse::<i64>().ok();
    let value = match kind {
        b"" if text.is_empty() => Value::Null,
        b"" => untyped(text),
        b"str" => Value::String(text),
        b"int" => Value::Int64(number()?),
        b"bool" => Value::Bool(number()? != 0),
        b"hex" => Value::Binary(in_hex(text, bytes)?),
        b"strhex" => Value::String(in_hex(text, bytes)?),
        _ => return None,
    };
    Some((name, value))
}

/// An address, if the text is one; else a string.
#[inline]
pub(crate) fn untyped(text: &[u8]) -> Value<'_> {
    match ipv4(text) {
        Some(ip) => Value::Ipv4(ip),
        None => ipv6_or_string(text),
    }
}

/// The IPv4 address that a text is. The parser of `std` takes three times the instructions.
#[inline]
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    /// The longest text of one.
    const LONGEST: usize = 15;
    /// The least part that has so many digits. As in `std`, no zero stands before other digits.
    const LEAST: [u64; 4] = [256, 0, 10, 100];
    if text.len() > LONGEST {
        return None;
    }
    let (mut address, mut part, mut digits, mut dots) = (0_u64, 0_u64, 0, 0);
    let is_part = |part: u64, digits: usize| {
        part <= 255 && LEAST.get(digits).is_some_and(|least| part >= *least)
    };
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            part = part * 10 + u64::from(digit);
            digits += 1;
        } else if byte == b'.' && is_part(part, digits) {
            address = address << 8 | part;
            (part, digits) = (0, 0);
            dots += 1;
        } else {
            return None;
        }
    }
    if dots != 3 || !is_part(part, digits) {
        return None;
    }
    u32::try_from(address << 8 | part).ok().map(Ipv4Addr::from_bits)
}

#[inline(never)]
fn ipv6_or_string(text: &[u8]) -> Value<'_> {
    let may_be = text.len() <= LONGEST_ADDRESS
        && text.first().is_some_and(|first| first.is_ascii_hexdigit() || *first == b':');
    if may_be && let Ok(Ok(ip)) = str::from_utf8(text).map(str::parse::<Ipv6Addr>) {
        return Value::Ipv6(ip);
    }
    Value::String(text)
}

/// The address that a text is: in hexadecimal, as HAProxy's `hex` writes it, or in its usual form.
/// No text is an address in both.
#[inline]
pub(crate) fn address(text: &[u8]) -> Option<Value<'_>> {
    let mut octets = [0; 4];
    match decode(text, &mut octets) {
        Some(()) => Some(Value::Ipv4(octets.into())),
        None => other_address(text),
    }
}

#[inline(never)]
fn other_address(text: &[u8]) -> Option<Value<'_>> {
    let mut octets = [0; 16];
    match decode(text, &mut octets) {
        Some(()) => Some(Value::Ipv6(octets.into())),
        None => Some(untyped(text)).filter(|value| !matches!(value, Value::String(_))),
    }
}

/// The bytes that a text says in hexadecimal, at the beginning of `bytes`, which loses them.
fn in_hex<'a>(text: &[u8], bytes: &mut &'a mut [u8]) -> Option<&'a [u8]> {
    let (found, rest) = std::mem::take(bytes).split_at_mut_checked(text.len() / 2)?;
    *bytes = rest;
    decode(text, found)?;
    Some(found)
}

/// Writes the bytes that a text says in hexadecimal. `None` if it does not say so many.
#[inline]
fn decode(text: &[u8], bytes: &mut [u8]) -> Option<()> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    if text.len() != bytes.len() * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn args(text: &str, names: &[&str]) -> Option<Vec<(String, String)>> {
        let names: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
        let mut bytes = [0; 64];
        let args = args_of(text.as_bytes(), &names, &mut bytes)?;
        let shown = |(name, value): (&[u8], Value<'_>)| {
            (String::from_utf8(name.to_vec()).unwrap(), format!("{value:?}"))
        };
        Some(args.into_iter().map(shown).collect())
    }

    fn one(text: &str, name: &str) -> Option<String> {
        Some(args(text, &[name])?.pop()?.1)
    }

    #[test]
    fn a_value_without_a_type_is_an_address_or_a_string() {
        let shown = |value: Value<'_>| Some(format!("{value:?}"));
        let v6: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(one("192.0.2.1", "ip"), shown(Value::Ipv4(Ipv4Addr::new(192, 0, 2, 1))));
        assert_eq!(one("2001:db8::1", "ip"), shown(Value::Ipv6(v6)));
        assert_eq!(one("", "ip"), shown(Value::Null));
        for text in ["192.0.2.256", "192.0.2.1 ", "a", ":", "2001:db8::1%eth0", "1"] {
            assert_eq!(one(text, "ip"), shown(Value::String(text.as_bytes())), "{text}");
        }
        assert_eq!(one("192.0.2.1", "ip:str"), shown(Value::String(b"192.0.2.1")));
        assert_eq!(untyped(b""), Value::String(b""));
    }

    #[test]
    fn an_address_is_read_in_hexadecimal_and_in_its_usual_form() {
        let v4 = |text: &str| Some(Value::Ipv4(text.parse().unwrap()));
        let v6 = |text: &str| Some(Value::Ipv6(text.parse().unwrap()));
        for (text, expected) in [
            ("C0000201", v4("192.0.2.1")),
            ("ffffffff", v4("255.255.255.255")),
            ("00000000", v4("0.0.0.0")),
            ("192.0.2.1", v4("192.0.2.1")),
            ("20010DB8000000000000000000000001", v6("2001:db8::1")),
            ("00000000000000000000FFFFC0000201", v6("::ffff:192.0.2.1")),
            ("2001:db8::1", v6("2001:db8::1")),
            // As long as one in hexadecimal.
            ("1.2.3.45", v4("1.2.3.45")),
            ("2001:d::", v6("2001:d::")),
            ("2001:db8:0:0:0:0:0:1%", None),
            ("", None),
            ("C000020", None),
            ("C00002010", None),
            ("C000020g", None),
            ("+0000201", None),
            ("20010DB800000000000000000000000x", None),
            ("20010DB8-0000-0000-0000000000001", None),
            ("a string", None),
        ] {
            assert_eq!(address(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_is_what_std_takes_for_one() {
        let check = |text: &str| assert_eq!(ipv4(text.as_bytes()), text.parse().ok(), "{text}");
        for part in 0..=1_100 {
            check(&format!("192.{part}.0.1"));
            check(&format!("{part}.0.0.0"));
            check(&format!("1.2.3.{part}"));
            check(&format!("1.2.3.0{part}"));
        }
        // Every text of a few signs, and such a text at each end of an address.
        let signs = ["", "0", "1", "9", "25", ".", "..", "1.", "-", "+", " ", ":", "/", "a", "\0"];
        for one in signs {
            for two in signs {
                for three in signs {
                    let text = [one, two, three].concat();
                    let around = ["", "1.2.3", "1.2.3.", "1.2.3.4", "255.255.255.255."];
                    around.iter().for_each(|other| check(&format!("{other}{text}")));
                    around.iter().for_each(|other| check(&format!("{text}{other}")));
                }
            }
        }
    }

    #[test]
    fn a_value_of_another_type_than_its_arg_is_none() {
        let shown = |value: Value<'_>| Some(format!("{value:?}"));
        assert_eq!(one("-3", "n:int"), shown(Value::Int64(-3)));
        assert_eq!(one("1", "tls:bool"), shown(Value::Bool(true)));
        assert_eq!(one("00fF", "id:hex"), shown(Value::Binary(&[0, 255])));
        assert_eq!(one("00fF", "id:strhex"), shown(Value::String(&[0, 255])));
        assert_eq!(one("", "id:hex"), shown(Value::Binary(&[])));
        for (text, name) in
            [("", "n:int"), ("3 ", "n:int"), ("0", "a:hex"), ("+0", "a:hex"), ("x", "a:what")]
        {
            assert_eq!(one(text, name), None, "{text} {name}");
        }
        assert_eq!(one(&"0".repeat(130), "a:hex"), None, "more than there is space for");
    }

    #[test]
    fn the_last_value_has_all_that_is_left() {
        let values = |text: &str, names: &[&str]| {
            let args = args(text, names)?;
            Some(
                args.into_iter()
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect::<Vec<_>>(),
            )
        };
        let text =
            |name: &str, value: &str| format!("{name} {:?}", Value::String(value.as_bytes()));
        assert_eq!(values("x|y|z", &["a", "b"]).unwrap(), [text("a", "x"), text("b", "y|z")]);
        assert_eq!(values("x|", &["a", "b:str"]).unwrap(), [text("a", "x"), text("b", "")]);
        assert_eq!(values("x", &["a", "b"]), None, "there is one value");
        assert_eq!(values("x|y", &["a"]).unwrap(), [text("a", "x|y")]);
    }
}
