//! Keys and their values as operators write them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use gcra_text::network::{VALUE, written_net};
use gcra_text::sentence;
use gcra_text::sentence::Sentence;
use gcra_text::visible::{Visible, is_hidden};
use ipnet::{IpNet, Ipv6Net};
use spop_codec::Value;

use crate::texts::{ValueKind, ValueKinds};

/// A key as an operator writes it: its parts, separated by commas.
///
/// An address is an address, a network stands for the group of clients that a policy counts
/// together, and anything else is a string, unless a type is in front: `str:`, `strhex:` (the
/// bytes of a string), `int32:`, `uint32:`, `int64:`, `uint64:`, `bool:`, `hex:` (binary), or
/// `null:`. A string that is nearly an address, and a name that a log has shortened, are mistakes.
/// Before the type, `else:` says that the value came from the fallback of an arg of the key, and
/// `else2:` and so on that it came from its second one. A comma or backslash within a part has a
/// backslash before it. A part may have the name of its arg in front: `ip=192.0.2.7`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Key {
    pub text: String,
    pub parts: Vec<WrittenPart>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WrittenPart {
    /// The number of the fallback that the value came from, or 0.
    pub fallback: u8,
    /// The rest of the text, without the backslashes before commas.
    pub text: String,
}

/// One value of a key or message, as an operator writes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WrittenValue {
    Null,
    Bool(bool),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    Ip(IpAddr),
    /// A network of several addresses: the clients in it that a policy counts together.
    Net(IpNet),
    /// HAProxy sends any bytes as a string.
    String(Vec<u8>),
    Binary(Vec<u8>),
}

/// The mark before the bytes of a string in hexadecimal.
const STRING_HEX: &str = "strhex:";

/// A value of a key as it is written in a [`Key`], so that a shell and the parser take it for
/// nothing else.
pub struct InKey<'a>(pub Value<'a>);

impl fmt::Display for InKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Value::String(bytes) = self.0 else { return Shown(self.0).fmt(f) };
        let Some(text) = visible_text(bytes) else { return write_hex(f, STRING_HEX, bytes) };
        let is_plain = is_plain(text)
            && of_fallback(text).0 == 0
            && !text.contains('=')
            && !text.starts_with('-');
        if !is_plain {
            f.write_str(VALUE)?;
        }
        f.write_str(&text.replace('\\', r"\\").replace(',', r"\,"))
    }
}

impl fmt::Display for WrittenPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_mark(f, self.fallback)?;
        f.write_str(&self.text.replace('\\', r"\\").replace(',', r"\,"))
    }
}

/// Writes what stands before a value that came from the fallback with this number.
pub fn write_mark(to: &mut impl fmt::Write, fallback: u8) -> fmt::Result {
    match fallback {
        0 => Ok(()),
        1 => to.write_str("else:"),
        number => write!(to, "else{number}:"),
    }
}

/// An arg and its value as an operator writes them: `ip=192.0.2.7`. The value is typed as in a
/// [`Key`]; a comma or backslash in it means itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedValue {
    pub name: String,
    pub value: WrittenValue,
}

impl FromStr for NamedValue {
    type Err = Sentence;

    fn from_str(text: &str) -> Result<Self, Sentence> {
        Self::from_bytes(text.as_bytes())
    }
}

impl NamedValue {
    /// Reads an arg of a command line, which can have bytes that are not UTF-8.
    pub fn from_bytes(text: &[u8]) -> Result<Self, Sentence> {
        let equals = text.iter().position(|byte| *byte == b'=').unwrap_or_default();
        let (name, value) = text.split_at(equals);
        match (str::from_utf8(name), value.split_first()) {
            (Ok(name), Some((_, value))) if !name.is_empty() => {
                let value = match str::from_utf8(value) {
                    Ok(value) => value.parse()?,
                    Err(_) => WrittenValue::raw_string(value),
                };
                Ok(Self { name: name.to_owned(), value })
            }
            _ => Err(sentence!(
                "'{}' is not ARG=VALUE, such as ip=192.0.2.7; write the name of the arg before \
                 its value",
                String::from_utf8_lossy(text)
            )),
        }
    }
}

impl WrittenValue {
    /// The string of a text that is not UTF-8, and so is of no other type.
    fn raw_string(text: &[u8]) -> Self {
        Self::String(text.strip_prefix(VALUE.as_bytes()).unwrap_or(text).into())
    }

    /// The first address of the /64 network of an IPv6 address, as `ipmask(32,64)` gives it to
    /// agents; `None` if that is the same.
    pub fn masked(&self) -> Option<Self> {
        let Self::Ip(IpAddr::V6(ip)) = self else { return None };
        let net = Ipv6Net::new(*ip, 64).ok()?;
        (net.network() != *ip).then(|| Self::Ip(net.network().into()))
    }

    /// The same value in the other types in which HAProxy may send it. The address in a header is
    /// a string, a port is an integer, and the use of TLS is a boolean.
    pub fn in_other_types(&self) -> Vec<Self> {
        let text = match self {
            Self::Ip(ip) => return vec![Self::String(ip.to_string().into())],
            Self::String(text) => text,
            _ => return Vec::new(),
        };
        let integer = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let boolean = [&b"1"[..], b"true"].contains(&&**text);
        let kinds = ValueKinds::of_text(text);
        let integer = integer.filter(|_| kinds.has(ValueKind::Integer)).map(Self::Int64);
        let boolean = kinds.has(ValueKind::Boolean).then_some(Self::Bool(boolean));
        integer.into_iter().chain(boolean).collect()
    }

    /// The value as HAProxy sends it; of a network, its first address.
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Int32(integer) => Value::Int32(*integer),
            Self::Uint32(integer) => Value::Uint32(*integer),
            Self::Int64(integer) => Value::Int64(*integer),
            Self::Uint64(integer) => Value::Uint64(*integer),
            Self::Ip(ip) => (*ip).into(),
            Self::Net(net) => net.network().into(),
            Self::String(bytes) => Value::String(bytes),
            Self::Binary(bytes) => Value::Binary(bytes),
        }
    }

    pub fn in_key(&self) -> String {
        if let Self::Net(net) = self { net.to_string() } else { InKey(self.value()).to_string() }
    }
}

impl fmt::Display for WrittenValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Net(net) = self { net.fmt(f) } else { Shown(self.value()).fmt(f) }
    }
}

/// A value as an operator may write it.
pub struct Shown<'a>(pub Value<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("null:"),
            Value::Bool(bool) => write!(f, "bool:{bool}"),
            Value::Int32(integer) => write!(f, "int32:{integer}"),
            Value::Uint32(integer) => write!(f, "uint32:{integer}"),
            Value::Int64(integer) => write!(f, "int64:{integer}"),
            Value::Uint64(integer) => write!(f, "uint64:{integer}"),
            Value::Ipv4(ip) => ip.fmt(f),
            Value::Ipv6(ip) => IpAddr::from(ip).to_canonical().fmt(f),
            Value::String(bytes) => {
                let Ok(text) = str::from_utf8(bytes) else {
                    return write_hex(f, STRING_HEX, bytes);
                };
                if !is_plain(text) {
                    f.write_str(VALUE)?;
                }
                Visible(text).fmt(f)
            }
            Value::Binary(bytes) => write_hex(f, "hex:", bytes),
        }
    }
}

/// A string that can be written as it is: text of which a terminal shows each character.
fn visible_text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| !text.contains(is_hidden))
}

/// Whether this string, written without a type in front, is read as the same string.
fn is_plain(text: &str) -> bool {
    matches!(text.parse(), Ok(WrittenValue::String(plain)) if plain == text.as_bytes())
}

fn write_hex(f: &mut fmt::Formatter<'_>, kind: &str, bytes: &[u8]) -> fmt::Result {
    f.write_str(kind)?;
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl FromStr for Key {
    type Err = Sentence;

    fn from_str(text: &str) -> Result<Self, Sentence> {
        Self::from_bytes(text.as_bytes())
    }
}

impl Key {
    /// Reads a key of a command line, which can have bytes that are not UTF-8.
    pub fn from_bytes(text: &[u8]) -> Result<Self, Sentence> {
        let written = |part: Vec<u8>| {
            let part = String::from_utf8(part).or_else(|part| in_hex(part.as_bytes()))?;
            let (fallback, text) = of_fallback(&part);
            // The part before a '=' may be a name, which only a policy knows.
            if !text.contains('=') {
                text.parse::<WrittenValue>()?;
            }
            Ok(WrittenPart { fallback, text: text.to_owned() })
        };
        let parts = split(text)?.into_iter().map(written).collect::<Result<Vec<_>, Sentence>>()?;
        let text = str::from_utf8(text).map(str::to_owned).unwrap_or_else(|_| {
            let parts: Vec<_> = parts.iter().map(WrittenPart::to_string).collect();
            parts.join(",")
        });
        Ok(Self { text, parts })
    }
}

/// A part of a key that is not UTF-8, with its bytes in hexadecimal.
fn in_hex(part: &[u8]) -> Result<String, Sentence> {
    let (hex, shown) = (Shown(Value::String(part)).to_string(), String::from_utf8_lossy(part));
    if part.contains(&b'=') {
        return Err(sentence!(
            "'{shown}' is not UTF-8; write ARG={STRING_HEX} and the bytes of the value in \
             hexadecimal, or {hex} for all of it"
        ));
    }
    let colon = part.iter().position(|byte| *byte == b':').map_or(0, |colon| colon + 1);
    let (mark, value) = part.split_at(colon);
    let mark = str::from_utf8(mark).ok().filter(|mark| of_fallback(mark).0 > 0);
    let value = if mark.is_some() { value } else { part };
    Ok(format!("{}{}", mark.unwrap_or_default(), WrittenValue::raw_string(value)))
}

/// The number of the fallback that a part came from, and the rest of its text.
fn of_fallback(text: &str) -> (u8, &str) {
    let number = |word: &str| match word.strip_prefix("else")? {
        "" => Some(1),
        number => number.parse().ok().filter(|number| *number > 1),
    };
    let split = text.split_once(':').and_then(|(word, rest)| Some((number(word)?, rest)));
    split.unwrap_or((0, text))
}

/// Splits at commas that have no backslash before them, and drops the backslashes.
fn split(text: &[u8]) -> Result<Vec<Vec<u8>>, Sentence> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        let escaped = match byte {
            b',' => {
                parts.push(Vec::new());
                continue;
            }
            b'\\' => bytes.next().ok_or_else(|| {
                let text = String::from_utf8_lossy(text);
                format!("'{text}' ends with a lone backslash; write it twice")
            })?,
            other => other,
        };
        if let Some(part) = parts.last_mut() {
            part.push(*escaped);
        }
    }
    Ok(parts)
}

impl FromStr for WrittenValue {
    type Err = Sentence;

    fn from_str(text: &str) -> Result<Self, Sentence> {
        fn parse<T: FromStr>(kind: &str, text: &str) -> Result<T, Sentence> {
            text.parse().map_err(|_| {
                sentence!(
                    "'{text}' is not a value of the type {kind}; write {kind}:VALUE, or \
                     str:{kind}:{text} for the text itself"
                )
            })
        }
        let (kind, value) = text.split_once(':').unwrap_or(("", text));
        if !matches!(kind, "str" | "strhex") && is_shortened(text) {
            return Err(sentence!(
                "'{text}' is a name from a log, 'top' or /status, which show only a part of a \
                 string; write the whole string, or {VALUE}{text} for this text itself"
            ));
        }
        Ok(match kind {
            "str" => Self::String(value.into()),
            "strhex" => Self::String(bytes(kind, value)?),
            "int32" => Self::Int32(parse(kind, value)?),
            "uint32" => Self::Uint32(parse(kind, value)?),
            "int64" => Self::Int64(parse(kind, value)?),
            "uint64" => Self::Uint64(parse(kind, value)?),
            "bool" => Self::Bool(parse(kind, value)?),
            "hex" => Self::Binary(bytes(kind, value)?),
            "null" if value.is_empty() => Self::Null,
            _ => match written_net(text)? {
                Some(net) if net.prefix_len() == net.max_prefix_len() => Self::Ip(net.addr()),
                Some(net) => Self::Net(net),
                None => Self::String(text.into()),
            },
        })
    }
}

/// Whether a string was copied from the name of a client (`client_name` of the limiter). Such a
/// string has the mark behind the part of a string that is shown, or it is only the digits behind
/// the whole name.
fn is_shortened(text: &str) -> bool {
    let is_hash =
        |digits: &str| digits.len() == 6 && digits.bytes().all(|c| c.is_ascii_hexdigit());
    text.contains("…(") || text.starts_with('…') || text.strip_prefix('#').is_some_and(is_hash)
}

fn bytes(kind: &str, hex: &str) -> Result<Vec<u8>, Sentence> {
    let error = || {
        sentence!("'{hex}' is not hexadecimal; write two digits for each byte, like {kind}:00ff")
    };
    if !hex.len().is_multiple_of(2) || !hex.is_ascii() {
        return Err(error());
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| error()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<WrittenValue> {
        let parts = text.parse::<Key>().unwrap().parts.into_iter();
        let part = |written: WrittenPart| match written.fallback {
            0 => written.text.parse().unwrap(),
            _ => panic!("{text}"),
        };
        parts.map(part).collect()
    }

    #[test]
    fn a_part_may_come_from_a_fallback() {
        let key: Key = "else:192.0.2.1,else2:str:a,x,str:else:x".parse().unwrap();
        let fallbacks: Vec<_> = key.parts.iter().map(|written| written.fallback).collect();
        assert_eq!(fallbacks, [1, 2, 0, 0]);
        assert_eq!(key.parts[3].text.parse(), Ok(WrittenValue::String("else:x".into())));
        assert_eq!(key.parts[1].to_string(), "else2:str:a");
    }

    #[test]
    fn parts_have_the_types_that_haproxy_gives_them() {
        let string = |text: &str| WrittenValue::String(text.into());
        let ip = |text: &str| WrittenValue::Ip(text.parse().unwrap());
        assert_eq!(parts("192.0.2.1,/login"), [ip("192.0.2.1"), string("/login")]);
        assert_eq!(parts("2001:db8::"), [ip("2001:db8::")]);
        assert_eq!(parts("str:192.0.2.1"), [string("192.0.2.1")]);
        assert_eq!(
            parts("int64:-5,uint32:7,bool:true"),
            [WrittenValue::Int64(-5), WrittenValue::Uint32(7), WrittenValue::Bool(true)]
        );
        assert_eq!(
            parts("hex:00ff,null:,str:"),
            [WrittenValue::Binary(vec![0, 255]), WrittenValue::Null, string("")]
        );
        assert_eq!(parts(r"a\,b,c\\"), [string("a,b"), string(r"c\")]);
        assert_eq!(parts("http://x"), [string("http://x")], "http is not a type");
    }

    #[test]
    fn a_wrong_key_is_a_sentence() {
        let error = |text: &str| text.parse::<WrittenValue>().unwrap_err();
        assert!(error("int32:many").contains("'many' is not a value of the type int32"));
        assert!(error("hex:0").contains("two digits for each byte"));
        assert!("a\\".parse::<Key>().unwrap_err().contains("lone backslash"));
        for text in ["10.0.0.777", "192.0.2.1:80", "10.0.0", "2001:db8::g", "10.0.0.0/33"] {
            let sentence = error(text);
            assert!(sentence.contains("is not an address or network; write "), "{sentence}");
            assert_eq!(parts(&format!("str:{text}")), [WrittenValue::String(text.into())]);
        }
        assert!(error("10.0.0.1/8").contains("write 10.0.0.0/8 for the network, or 10.0.0.1/32"));
        assert!(error("").contains("or str: for the empty string"));
        assert!(error("a ").contains("white space around it"));
    }

    #[test]
    fn a_name_from_a_log_is_not_a_string() {
        for text in ["sk_l…(24)#2dd53f", "sk_l…(24)", "/…(6)#2dd53f", "…(3)", "…", "#2dd53f"]
        {
            let sentence = text.parse::<WrittenValue>().unwrap_err();
            assert!(sentence.contains("write the whole string, or str:"), "{sentence}");
        }
        assert!(
            "hex:00ff3031…(18)".parse::<WrittenValue>().unwrap_err().contains("the whole string")
        );
        for text in ["str:…(3)", "more…", "#2dd53g", "#home", "(6)"] {
            assert!(matches!(text.parse(), Ok(WrittenValue::String(_))), "{text}");
        }
    }

    #[test]
    fn a_network_is_a_group_of_clients() {
        let net = |text: &str| WrittenValue::Net(text.parse().unwrap());
        assert_eq!(
            parts("2001:db8::/64,192.0.2.0/24"),
            [net("2001:db8::/64"), net("192.0.2.0/24")]
        );
        assert_eq!(parts("192.0.2.1/32"), parts("192.0.2.1"));
        assert_eq!("::ffff:192.0.2.0/120".parse(), Ok(net("192.0.2.0/24")));
        assert_eq!(net("192.0.2.0/24").to_string(), "192.0.2.0/24");
    }

    #[test]
    fn a_value_in_a_key_is_read_as_it_was() {
        let values = ["a,b", r"\", "else:x", "a=b", "-x", "192.0.2.1", "", "é ü", "100%", "a b"];
        for value in values {
            let written = InKey(Value::String(value.as_bytes())).to_string();
            let key: Key = written.parse().unwrap();
            let [WrittenPart { fallback: 0, text }] = &key.parts[..] else { panic!("{key:?}") };
            assert_eq!(text.parse(), Ok(WrittenValue::String(value.into())), "{written}");
            assert!(!written.starts_with('-'), "{written}");
        }
        assert_eq!(InKey(Value::Int64(7)).to_string(), "int64:7");
    }

    /// HAProxy sends the bytes of a header as a string, whatever they are.
    #[test]
    fn a_string_that_is_not_text_can_be_written() {
        for bytes in [&b"caf\xe9"[..], b"\xff", b"a\0b", "\u{202e}a".as_bytes(), b"\x1b[2J"] {
            let written = InKey(Value::String(bytes)).to_string();
            assert!(written.starts_with("strhex:"), "{written}");
            assert_eq!(parts(&written), [WrittenValue::String(bytes.into())]);
        }
        assert_eq!(Shown(Value::String(b"caf\xe9")).to_string(), "strhex:636166e9");
        let raw = |text: &[u8]| Key::from_bytes(text).unwrap();
        assert_eq!(raw(b"caf\xe9"), "strhex:636166e9".parse().unwrap());
        assert_eq!(raw(b"else2:str:\xe9\\,,a"), "else2:strhex:e92c,a".parse().unwrap());
        let sentence = Key::from_bytes(b"key=\xe9").unwrap_err();
        assert!(sentence.ends_with("or strhex:6b65793de9 for all of it"), "{sentence}");
        assert!("strhex:x".parse::<WrittenValue>().unwrap_err().contains("like strhex:00ff"));
        let arg = NamedValue::from_bytes(b"key=caf\xe9").unwrap();
        assert_eq!(arg, "key=strhex:636166e9".parse().unwrap());
        assert!(NamedValue::from_bytes(b"\xe9=a").unwrap_err().contains("is not ARG=VALUE"));
    }

    #[test]
    fn what_is_shown_can_be_written() {
        for text in ["192.0.2.1", "2001:db8::1", "/login", "str:192.0.2.1", "null:", "bool:true"] {
            assert_eq!(text.parse::<WrittenValue>().unwrap().to_string(), text);
        }
        for text in ["int32:-5", "uint32:7", "int64:-5", "uint64:7", "hex:00ff", "str:int32:5"] {
            assert_eq!(text.parse::<WrittenValue>().unwrap().to_string(), text);
        }
        assert_eq!("::ffff:192.0.2.1".parse::<WrittenValue>().unwrap().to_string(), "192.0.2.1");
        assert_eq!(Shown(Value::String(b"\x1b[2J\n")).to_string(), "str:\\u{1b}[2J\\n");
    }

    #[test]
    fn a_mask_leaves_the_first_64_bits_of_ipv6_addresses() {
        let masked =
            |text: &str| Some(text.parse::<WrittenValue>().unwrap().masked()?.to_string());
        assert_eq!(masked("2001:db8:1:2:3::4").unwrap(), "2001:db8:1:2::");
        assert_eq!(masked("2001:db8:1:2::"), None);
        assert_eq!(masked("192.0.2.1"), None);
        assert_eq!(masked("::ffff:192.0.2.1"), None);
    }

    #[test]
    fn an_arg_has_a_name_and_a_value() {
        let named: NamedValue = "user=str:a,b=c".parse().unwrap();
        assert_eq!((&*named.name, named.value), ("user", WrittenValue::String("a,b=c".into())));
        assert!("192.0.2.1".parse::<NamedValue>().unwrap_err().contains("such as ip=192.0.2.7"));
        assert!("=1".parse::<NamedValue>().is_err());
    }
}
