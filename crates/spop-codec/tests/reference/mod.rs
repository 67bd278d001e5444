//! A second decoder for comparisons, written from SPOE.txt and from the behaviour of HAProxy. It
//! shares no code with the codec: numbers are sums without a limit, tables say how frames are
//! read, and everything is copied.
//!
//! The fuzz target `reference` uses this file too.
#![allow(dead_code, reason = "every user of this module uses a part of it")]

use std::cell::Cell;

/// A value: its type (the low four bits of the type byte), and what follows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Data {
    Nothing,
    Truth(bool),
    Number(u8, i128),
    Bytes(u8, Vec<u8>),
}

/// A name and a value.
pub type Pair = (Vec<u8>, Data);

/// The content of a frame behind its ids.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Payload {
    /// HELLO and DISCONNECT.
    Pairs(Vec<Pair>),
    /// NOTIFY: each message's name and args.
    Messages(Vec<(Vec<u8>, Vec<Pair>)>),
    /// ACK: each action's scope, name and value; `None` if it unsets.
    Actions(Vec<(u8, Vec<u8>, Option<Data>)>),
    /// A piece of a payload, or a frame of an unknown type.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u32,
    pub stream: u64,
    pub frame: u64,
    pub payload: Payload,
}

/// The status code of a malformed frame.
pub type Refusal = u32;

pub const TOO_BIG: Refusal = 3;
pub const INVALID: Refusal = 4;
pub const NO_VERSION: Refusal = 5;
pub const NO_MAX_FRAME_SIZE: Refusal = 6;
pub const NO_CAPABILITIES: Refusal = 7;
pub const BAD_VERSION: Refusal = 8;
pub const BAD_MAX_FRAME_SIZE: Refusal = 9;
pub const FRAGMENTED: Refusal = 10;

/// The form of a type's data.
enum Form {
    Empty,
    Flag,
    /// A varint within these bounds, with its 64 bits read as signed or as unsigned.
    Signed(i128, i128),
    Unsigned(i128),
    Fixed(usize),
    Counted,
    Reserved,
}

const FORMS: [Form; 16] = [
    Form::Empty,
    Form::Flag,
    Form::Signed(i32::MIN as i128, i32::MAX as i128),
    Form::Unsigned(u32::MAX as i128),
    Form::Signed(i64::MIN as i128, i64::MAX as i128),
    Form::Unsigned(u64::MAX as i128),
    Form::Fixed(4),
    Form::Fixed(16),
    Form::Counted,
    Form::Counted,
    Form::Reserved,
    Form::Reserved,
    Form::Reserved,
    Form::Reserved,
    Form::Reserved,
    Form::Reserved,
];

/// The kind of payload of a type of frame.
#[derive(Clone, Copy, Eq, PartialEq)]
enum List {
    Pairs,
    Messages,
    Actions,
    Raw,
    /// The payload is not read, and neither are the ids.
    Unread,
}

/// The type, its payload, whether its ids must be 0, and what it is without FIN; `None` if it must
/// have FIN.
const KINDS: [(u8, List, bool, Option<List>); 7] = [
    (0, List::Raw, false, Some(List::Raw)),
    (1, List::Pairs, true, None),
    (2, List::Pairs, true, None),
    (3, List::Messages, false, Some(List::Raw)),
    (101, List::Pairs, true, None),
    (102, List::Pairs, true, None),
    (103, List::Actions, false, None),
];

/// Bytes to be read from the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, count: u128) -> Result<Vec<u8>, Refusal> {
        if count > self.0.len() as u128 {
            return Err(INVALID);
        }
        let (taken, rest) = self.0.split_at(count as usize);
        self.0 = rest;
        Ok(taken.to_vec())
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        Ok(self.take(1)?[0])
    }

    /// The first byte, and if that is 240 or more each further byte times 2^4, 2^11, 2^18 ... up
    /// to one below 128.
    fn varint(&mut self) -> Result<u128, Refusal> {
        let mut sum = u128::from(self.byte()?);
        if sum < 240 {
            return Ok(sum);
        }
        let mut weight = 16;
        loop {
            let byte = u128::from(self.byte()?);
            sum += byte * weight;
            weight *= 128;
            if byte < 128 {
                break;
            }
            // It is above 2^64 whatever follows, and the sum must fit into 128 bits.
            if weight > 1 << 80 {
                return Err(INVALID);
            }
        }
        if sum > u128::from(u64::MAX) { Err(INVALID) } else { Ok(sum) }
    }

    fn counted(&mut self) -> Result<Vec<u8>, Refusal> {
        let count = self.varint()?;
        self.take(count)
    }

    fn data(&mut self) -> Result<Data, Refusal> {
        let kind = self.byte()?;
        let (flags, kind) = (kind / 16, kind % 16);
        Ok(match FORMS[usize::from(kind)] {
            Form::Empty => Data::Nothing,
            Form::Flag => Data::Truth(flags % 2 == 1),
            Form::Signed(least, most) => {
                let bits = i128::try_from(self.varint()?).map_err(|_| INVALID)?;
                let number = if bits >= 1 << 63 { bits - (1 << 64) } else { bits };
                if number < least || number > most {
                    return Err(INVALID);
                }
                Data::Number(kind, number)
            }
            Form::Unsigned(most) => {
                let number = i128::try_from(self.varint()?).map_err(|_| INVALID)?;
                if number > most {
                    return Err(INVALID);
                }
                Data::Number(kind, number)
            }
            Form::Fixed(count) => Data::Bytes(kind, self.take(count as u128)?),
            Form::Counted => Data::Bytes(kind, self.counted()?),
            Form::Reserved => return Err(INVALID),
        })
    }

    fn pair(&mut self) -> Result<Pair, Refusal> {
        Ok((self.counted()?, self.data()?))
    }

    /// Reads `one` until the bytes end.
    fn list<T>(
        &mut self,
        one: impl Fn(&mut Self) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        let mut list = Vec::new();
        while !self.0.is_empty() {
            list.push(one(self)?);
        }
        Ok(list)
    }
}

/// The first frame in `input`, and how many bytes it has with its length field; `None` until it is
/// whole.
pub fn decode(input: &[u8], max_frame_size: u32) -> Result<Option<(Frame, usize)>, Refusal> {
    if input.len() < 4 {
        return Ok(None);
    }
    let length = input[..4].iter().fold(0_u64, |length, byte| length * 256 + u64::from(*byte));
    if length < 7 {
        return Err(INVALID);
    }
    if length > u64::from(max_frame_size) {
        return Err(TOO_BIG);
    }
    let end = 4 + length as usize;
    if input.len() < end {
        return Ok(None);
    }
    let mut bytes = Bytes(&input[4..end]);
    let kind = bytes.byte()?;
    let flags = bytes.take(4)?.iter().fold(0, |flags, byte| flags * 256 + u32::from(*byte));
    let row = KINDS.iter().find(|row| row.0 == kind);
    let (list, ids_are_0) = match row {
        None => (List::Unread, false),
        Some((_, list, ids_are_0, _)) if flags % 2 == 1 => (*list, *ids_are_0),
        // A frame without FIN that is also malformed is reported as malformed, because HAProxy
        // reads ids before it looks for FIN. For a HELLO or a DISCONNECT the missing FIN comes
        // first.
        Some((_, _, true, None)) => return Err(FRAGMENTED),
        Some((_, _, false, None)) => {
            bytes.varint()?;
            bytes.varint()?;
            return Err(FRAGMENTED);
        }
        Some((_, _, ids_are_0, Some(list))) => (*list, *ids_are_0),
    };
    if list == List::Unread {
        let frame = Frame { kind, flags, stream: 0, frame: 0, payload: Payload::Raw(Vec::new()) };
        return Ok(Some((frame, end)));
    }
    let (stream, frame) = (bytes.varint()? as u64, bytes.varint()? as u64);
    if ids_are_0 && (stream, frame) != (0, 0) {
        return Err(INVALID);
    }
    let payload = match list {
        List::Pairs => Payload::Pairs(bytes.list(|bytes| {
            let (name, value) = bytes.pair()?;
            // HAProxy rejects a pair without a name.
            if name.is_empty() { Err(INVALID) } else { Ok((name, value)) }
        })?),
        List::Messages => {
            let messages_before = Cell::new(0);
            Payload::Messages(bytes.list(|bytes| {
                if messages_before.replace(messages_before.get() + 1) == 64 {
                    return Err(TOO_BIG);
                }
                let name = bytes.counted()?;
                let count = bytes.byte()?;
                Ok((name, (0..count).map(|_| bytes.pair()).collect::<Result<_, _>>()?))
            })?)
        }
        List::Actions => Payload::Actions(bytes.list(|bytes| {
            // The action, its number of args, and the scope.
            let head = [bytes.byte()?, bytes.byte()?];
            let sets = match head {
                [1, 3] => true,
                [2, 2] => false,
                _ => return Err(INVALID),
            };
            let scope = bytes.byte()?;
            if scope > 4 {
                return Err(INVALID);
            }
            Ok((scope, bytes.counted()?, if sets { Some(bytes.data()?) } else { None }))
        })?),
        List::Raw | List::Unread => Payload::Raw(bytes.0.to_vec()),
    };
    Ok(Some((Frame { kind, flags, stream, frame, payload }, end)))
}

/// The content of a HELLO.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    pub max_frame_size: u32,
    pub capabilities: Vec<u8>,
    pub engine_id: Option<Vec<u8>>,
    pub healthcheck: bool,
    /// An AGENT-HELLO has this in place of `supported-versions`.
    pub version: Vec<u8>,
}

/// The last value of a key, which must have this type.
fn last<'p, T>(
    pairs: &'p [Pair],
    key: &str,
    read: impl Fn(&'p Data) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let mut found = None;
    for (_, value) in pairs.iter().filter(|(name, _)| name == key.as_bytes()) {
        found = Some(read(value).ok_or(INVALID)?);
    }
    Ok(found)
}

fn text(value: &Data) -> Option<Vec<u8>> {
    match value {
        Data::Bytes(8, bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn truth(value: &Data) -> Option<bool> {
    match value {
        Data::Truth(truth) => Some(*truth),
        _ => None,
    }
}

fn number(value: &Data) -> Option<i128> {
    match value {
        Data::Number(_, number) => Some(*number),
        _ => None,
    }
}

/// The meaning of the pairs in a HELLO, which is an AGENT-HELLO if `by_agent`. A value of a wrong
/// type is reported before a missing key.
pub fn hello(pairs: &[Pair], by_agent: bool) -> Result<Hello, Refusal> {
    let version = last(pairs, if by_agent { "version" } else { "supported-versions" }, text)?;
    let capabilities = last(pairs, "capabilities", text)?;
    let (engine_id, healthcheck) = match by_agent {
        true => (None, None),
        false => (last(pairs, "engine-id", text)?, last(pairs, "healthcheck", truth)?),
    };
    // Its type is checked after all keys were found, and only that of the last value.
    let sizes: Vec<_> = pairs.iter().filter(|(name, _)| name == b"max-frame-size").collect();
    let version = version.ok_or(NO_VERSION)?;
    let size = |size: &Data| match number(size).ok_or(INVALID)? {
        ..256 => Err(BAD_MAX_FRAME_SIZE),
        size => Ok(u32::try_from(size).unwrap_or(u32::MAX)),
    };
    let (_, value) = sizes.last().ok_or(NO_MAX_FRAME_SIZE)?;
    let max_frame_size = if by_agent { size(value)? } else { 0 };
    let capabilities = capabilities.ok_or(NO_CAPABILITIES)?;
    if !by_agent && !version.split(|byte| *byte == b',').any(is_version_2) {
        return Err(BAD_VERSION);
    }
    let max_frame_size = if by_agent { max_frame_size } else { size(value)? };
    let healthcheck = healthcheck.unwrap_or(false);
    Ok(Hello { max_frame_size, capabilities, engine_id, healthcheck, version })
}

/// `2.` and digits, perhaps with zeros in front and blanks around it.
fn is_version_2(item: &[u8]) -> bool {
    let text = String::from_utf8_lossy(item);
    let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\x0c' | '\r');
    let Some((major, minor)) = text.trim_matches(blank).split_once('.') else { return false };
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    digits(major) && digits(minor) && major.trim_start_matches('0') == "2"
}

/// The meaning of the pairs in a DISCONNECT: its status and message.
pub fn disconnect(pairs: &[Pair]) -> Result<(u32, Vec<u8>), Refusal> {
    const UNKNOWN: u32 = 99;
    let status = last(pairs, "status-code", number)?;
    let message = last(pairs, "message", text)?;
    let status = status.map_or(UNKNOWN, |code| u32::try_from(code).unwrap_or(UNKNOWN));
    Ok((status, message.unwrap_or_default()))
}

/// Writes a frame, also one that may not be sent.
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.push(frame.kind);
    bytes.extend(frame.flags.to_be_bytes());
    put_varint(&mut bytes, frame.stream);
    put_varint(&mut bytes, frame.frame);
    match &frame.payload {
        Payload::Raw(raw) => bytes.extend(raw),
        Payload::Pairs(pairs) => pairs.iter().for_each(|pair| put_pair(&mut bytes, pair)),
        Payload::Messages(messages) => {
            for (name, args) in messages {
                put_counted(&mut bytes, name);
                bytes.push(args.len() as u8);
                args.iter().for_each(|pair| put_pair(&mut bytes, pair));
            }
        }
        Payload::Actions(actions) => {
            for (scope, name, value) in actions {
                let head = if value.is_some() { [1, 3, *scope] } else { [2, 2, *scope] };
                bytes.extend(head);
                put_counted(&mut bytes, name);
                value.iter().for_each(|value| put_data(&mut bytes, value));
            }
        }
    }
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Long division: the value above 240 in groups of 4, 7, 7 ... bits, the first group added to 240.
fn put_varint(bytes: &mut Vec<u8>, value: u64) {
    let Some(mut rest) = value.checked_sub(240) else {
        bytes.push(value as u8);
        return;
    };
    bytes.push(240 + (rest % 16) as u8);
    rest /= 16;
    while let Some(more) = rest.checked_sub(128) {
        bytes.push(128 + (more % 128) as u8);
        rest = more / 128;
    }
    bytes.push(rest as u8);
}

fn put_counted(bytes: &mut Vec<u8>, counted: &[u8]) {
    put_varint(bytes, counted.len() as u64);
    bytes.extend(counted);
}

fn put_pair(bytes: &mut Vec<u8>, (name, value): &Pair) {
    put_counted(bytes, name);
    put_data(bytes, value);
}

fn put_data(bytes: &mut Vec<u8>, value: &Data) {
    match value {
        Data::Nothing => bytes.push(0),
        Data::Truth(truth) => bytes.push(if *truth { 0x11 } else { 1 }),
        Data::Number(kind, number) => {
            bytes.push(*kind);
            put_varint(bytes, *number as u64);
        }
        Data::Bytes(kind, data) => {
            bytes.push(*kind);
            match kind {
                6 | 7 => bytes.extend(data),
                _ => put_counted(bytes, data),
            }
        }
    }
}
