//! HELLO: how each side introduces itself (SPOE.txt sections 3.2.4 and 3.2.5).

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::value::Value;
use crate::wire::{self, FrameId, kind, pairs};
use crate::writer::BufferFull;

/// The `max-frame-size` that HAProxy offers unless it is configured.
pub(crate) const HAPROXY_FRAME_SIZE: u32 = 16_380;

/// The smallest `max-frame-size` that SPOP allows.
pub(crate) const MIN_MAX_FRAME_SIZE: u32 = 256;

const SUPPORTED_VERSIONS: &str = "supported-versions";
const VERSION: &str = "version";
const MAX_FRAME_SIZE: &str = "max-frame-size";
const CAPABILITIES: &str = "capabilities";
const ENGINE_ID: &str = "engine-id";
const HEALTHCHECK: &str = "healthcheck";

fn string<'a>(key: &'static str, value: Value<'a>) -> Result<&'a [u8], DecodeError> {
    match value {
        Value::String(bytes) => Ok(bytes),
        _ => Err(DecodeError::WrongType(key)),
    }
}

/// A size of any integer type. A size beyond 32 bits means the same as the largest of 32 bits.
fn size(value: Value<'_>) -> Result<u32, DecodeError> {
    let size = value.as_integer().ok_or(DecodeError::WrongType(MAX_FRAME_SIZE))?;
    let size = u32::try_from(size.max(0)).unwrap_or(u32::MAX);
    if size < MIN_MAX_FRAME_SIZE { Err(DecodeError::BadMaxFrameSize(size)) } else { Ok(size) }
}

/// The capabilities that a side declares: words between commas.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Capabilities<'a> {
    text: &'a [u8],
}

impl<'a> Capabilities<'a> {
    /// The words, as they were received.
    #[must_use]
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Whether several NOTIFYs may be in flight on a connection.
    #[must_use]
    pub fn pipelining(&self) -> bool {
        self.has(b"pipelining")
    }

    /// Whether ACKs may come on another connection of the same engine. Only HAProxy up to 3.0
    /// offers this.
    #[must_use]
    pub fn asynchronous(&self) -> bool {
        self.has(b"async")
    }

    /// Whether payloads may come in pieces.
    #[must_use]
    pub fn fragmentation(&self) -> bool {
        self.has(b"fragmentation")
    }

    fn has(&self, word: &[u8]) -> bool {
        self.text.split(|byte| *byte == b',').any(|item| item.trim_ascii() == word)
    }
}

/// HAPROXY-HELLO: the first frame of a connection. It offers version 2.0; a HELLO that does not is
/// a [`DecodeError::BadVersion`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Hello<'a> {
    /// The largest LENGTH that HAProxy accepts, 256 or more.
    pub max_frame_size: u32,
    /// HAProxy's capabilities.
    pub capabilities: Capabilities<'a>,
    /// A random name of HAProxy's engine (up to 3.0: of the engine in one thread), which changes
    /// at each reload. Health checks have none.
    pub engine_id: Option<&'a [u8]>,
    /// Whether the connection is a health check (`option spop-check`). Then the agent answers the
    /// HELLO and nothing else.
    pub healthcheck: bool,
}

impl<'a> Hello<'a> {
    /// If a key is repeated, its last value counts.
    pub(crate) fn parse(payload: Reader<'a>) -> Result<Self, DecodeError> {
        let (mut versions, mut max_frame_size, mut capabilities) = (None, None, None);
        let (mut engine_id, mut healthcheck) = (None, false);
        pairs(payload, |key, value| {
            if key == SUPPORTED_VERSIONS.as_bytes() {
                versions = Some(string(SUPPORTED_VERSIONS, value)?);
            } else if key == MAX_FRAME_SIZE.as_bytes() {
                max_frame_size = Some(value);
            } else if key == CAPABILITIES.as_bytes() {
                capabilities = Some(Capabilities { text: string(CAPABILITIES, value)? });
            } else if key == ENGINE_ID.as_bytes() {
                engine_id = Some(string(ENGINE_ID, value)?);
            } else if key == HEALTHCHECK.as_bytes() {
                healthcheck = match value {
                    Value::Bool(bool) => bool,
                    _ => return Err(DecodeError::WrongType(HEALTHCHECK)),
                };
            }
            Ok(())
        })?;
        let versions = versions.ok_or(DecodeError::NoVersion)?;
        let max_frame_size = max_frame_size.ok_or(DecodeError::NoMaxFrameSize)?;
        let capabilities = capabilities.ok_or(DecodeError::NoCapabilities)?;
        if !versions.split(|byte| *byte == b',').any(offers_2_0) {
            return Err(DecodeError::BadVersion);
        }
        Ok(Self { max_frame_size: size(max_frame_size)?, capabilities, engine_id, healthcheck })
    }
}

/// Whether an item of the list includes 2.0: a version 2.x includes all versions below it. An item
/// that is not a version includes nothing.
fn offers_2_0(item: &[u8]) -> bool {
    let mut numbers = item.trim_ascii().splitn(2, |byte| *byte == b'.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return false;
    };
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let significant = major.iter().position(|digit| *digit != b'0').and_then(|at| major.get(at..));
    is_number(major) && is_number(minor) && significant == Some(b"2")
}

/// AGENT-HELLO: the agent's answer, whose values are in force on the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct AgentHello<'a> {
    /// The version that the agent chose.
    pub version: &'a [u8],
    /// The largest LENGTH for both sides.
    pub max_frame_size: u32,
    /// The agent's capabilities.
    pub capabilities: Capabilities<'a>,
}

impl<'a> AgentHello<'a> {
    pub(crate) fn parse(payload: Reader<'a>) -> Result<Self, DecodeError> {
        let (mut version, mut max_frame_size, mut capabilities) = (None, None, None);
        pairs(payload, |key, value| {
            if key == VERSION.as_bytes() {
                version = Some(string(VERSION, value)?);
            } else if key == MAX_FRAME_SIZE.as_bytes() {
                max_frame_size = Some(value);
            } else if key == CAPABILITIES.as_bytes() {
                capabilities = Some(Capabilities { text: string(CAPABILITIES, value)? });
            }
            Ok(())
        })?;
        Ok(Self {
            version: version.ok_or(DecodeError::NoVersion)?,
            max_frame_size: size(max_frame_size.ok_or(DecodeError::NoMaxFrameSize)?)?,
            capabilities: capabilities.ok_or(DecodeError::NoCapabilities)?,
        })
    }
}

/// Writes an AGENT-HELLO for version 2.0, always with all three keys, because HAProxy's health
/// check requires them. `capabilities` are words between commas. Returns the length of the frame.
///
/// # Errors
///
/// `out` is shorter than the frame, which takes fewer than 80 bytes besides the capabilities.
pub fn encode_agent_hello(
    out: &mut [u8],
    max_frame_size: u32,
    capabilities: &str,
) -> Result<usize, BufferFull> {
    let mut writer = wire::begin(out, kind::AGENT_HELLO, FrameId::default())?;
    writer.string(VERSION.as_bytes())?;
    writer.value("2.0".into())?;
    writer.string(MAX_FRAME_SIZE.as_bytes())?;
    writer.value(max_frame_size.into())?;
    writer.string(CAPABILITIES.as_bytes())?;
    writer.value(capabilities.into())?;
    Ok(writer.finish())
}

/// The fields of a HAPROXY-HELLO that [`encode_hello`] writes. The
/// default is what HAProxy sends, without the engine id.
#[derive(Clone, Copy, Debug)]
pub struct HelloFields<'a> {
    /// Versions between commas. HAProxy sends `2.0`.
    pub versions: &'a str,
    /// The largest LENGTH that HAProxy accepts. Its default is 16380.
    pub max_frame_size: u32,
    /// Words between commas. HAProxy sends `pipelining`, and up to 3.0 `pipelining,async`.
    pub capabilities: &'a str,
    /// HAProxy sends a UUID, and in health checks nothing.
    pub engine_id: Option<&'a str>,
    /// HAProxy sends true in health checks, and otherwise nothing.
    pub healthcheck: Option<bool>,
}

impl Default for HelloFields<'_> {
    fn default() -> Self {
        Self {
            versions: "2.0",
            max_frame_size: HAPROXY_FRAME_SIZE,
            capabilities: "pipelining",
            engine_id: None,
            healthcheck: None,
        }
    }
}

/// Writes a HAPROXY-HELLO. Returns the length of the frame.
///
/// # Errors
///
/// `out` is too short.
pub fn encode_hello(out: &mut [u8], hello: &HelloFields<'_>) -> Result<usize, BufferFull> {
    let mut writer = wire::begin(out, kind::HAPROXY_HELLO, FrameId::default())?;
    writer.string(SUPPORTED_VERSIONS.as_bytes())?;
    writer.value(hello.versions.into())?;
    writer.string(MAX_FRAME_SIZE.as_bytes())?;
    writer.value(hello.max_frame_size.into())?;
    writer.string(CAPABILITIES.as_bytes())?;
    writer.value(hello.capabilities.into())?;
    if let Some(engine_id) = hello.engine_id {
        writer.string(ENGINE_ID.as_bytes())?;
        writer.value(engine_id.into())?;
    }
    if let Some(healthcheck) = hello.healthcheck {
        writer.string(HEALTHCHECK.as_bytes())?;
        writer.value(healthcheck.into())?;
    }
    Ok(writer.finish())
}
