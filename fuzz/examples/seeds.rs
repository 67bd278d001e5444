//! Writes the byte vectors of the codec's tests to `seeds/`, one file each, as inputs of `decode`,
//! `reference` and `connection`; and the shipped configuration as one of `config`.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;
use std::fs;
use std::path::Path;

use fuzz::step;

/// The first byte of an input of `connection`: limits by default.
const DEFAULT_LIMITS: u8 = 0;

/// The first byte of an input of `reference`: frames follow.
const FRAMES: u8 = 7;

/// And of one of `config`: text follows.
const TEXT: u8 = 0;

/// Version 2.0, 16380 bytes, pipelining, no engine id, no health check.
const HELLO: [u8; 8] = [step::HELLO, 0, 0, 0, 0, 0, 0, 0];

fn main() -> Result<(), Box<dyn Error>> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = fs::read(fuzz.join("../crates/spop-codec/tests/vectors/vectors.json"))?;
    let vectors: Vec<serde_json::Value> = serde_json::from_slice(&json)?;
    for target in ["decode", "connection", "reference", "config"] {
        fs::create_dir_all(fuzz.join("seeds").join(target))?;
    }
    for vector in vectors {
        let text = |key| vector[key].as_str().ok_or("a vector lacks a name, a kind or its bytes");
        let bytes = hex(text("hex")?)?;
        let frames = match text("kind")? {
            "varint" => notify_with(&[&[5], &bytes[..]].concat())?,
            "typed-data" => notify_with(&bytes)?,
            _ => bytes,
        };
        fs::write(fuzz.join("seeds/decode").join(text("name")?), &frames)?;
        fs::write(
            fuzz.join("seeds/reference").join(text("name")?),
            [&[FRAMES], &frames[..]].concat(),
        )?;
        fs::write(fuzz.join("seeds/connection").join(text("name")?), session(&frames)?)?;
    }
    let config = fs::read(fuzz.join("../haproxy/gcra-spoa.toml"))?;
    fs::write(fuzz.join("seeds/config/shipped"), [&[TEXT], &config[..]].concat())?;
    Ok(())
}

fn hex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2).unwrap_or_default(), 16);
    Ok((0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?)
}

/// A NOTIFY with one message and one arg, whose value is the last thing in the frame.
fn notify_with(value: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let frame = [&[3, 0, 0, 0, 1, 1, 1, 1, b'm', 1, 0][..], value].concat();
    Ok([&u32::try_from(frame.len())?.to_be_bytes(), &frame[..]].concat())
}

/// The frames after a HELLO, if they have none; and a piece that ends seven bytes before their
/// end.
fn session(frames: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut script = vec![DEFAULT_LIMITS];
    if frames.get(4) != Some(&1) {
        script.extend_from_slice(&HELLO);
    }
    script.push(step::RAW);
    script.extend_from_slice(&u16::try_from(frames.len())?.to_le_bytes());
    script.extend_from_slice(frames);
    script.extend_from_slice(&[step::CUT, 7, 1]);
    Ok(script)
}
