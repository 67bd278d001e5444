//! The codec beside a second decoder, which the codec's own tests have: whole frames are read
//! alike, value by value, or refused with the same status.
//!
//! An input is a byte that chooses how, and then a frame: with its length, or of any type and with
//! its length put in front.

use crate::compare;

const TYPES: [u8; 7] = [0, 1, 2, 3, 101, 102, 103];

/// One input.
pub fn run(input: &[u8]) {
    let Some((how, rest)) = input.split_first() else { return };
    if how % 8 == 7 {
        // One frame after another, as they come.
        let mut at = 0;
        while let Some(used) = compare::agree(&rest[at..], 16_380) {
            at += used;
        }
        return;
    }
    let mut frame = vec![0; 4];
    frame.push(TYPES[usize::from(how % 8)]);
    if how & 8 == 0 {
        // FIN, and ids as that type has them; so that the rest is payload.
        frame.extend([0, 0, 0, 1]);
        let id = if matches!(how % 8, 1 | 2 | 4 | 5) { 0 } else { 7 };
        frame.extend([id, id]);
    }
    frame.extend(rest);
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    compare::agree(&frame, 16_380);
}
