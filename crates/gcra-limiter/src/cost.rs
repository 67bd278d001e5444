//! The cost of a request, before its response or after it, as a message says it.

use spop_agent::Value;

/// The number of cells that a value stands for: an integer, or a string of digits such as the
/// value of a header field. `None` if it is neither, or negative.
pub fn cells(cost: Value<'_>) -> Option<u32> {
    let cells = match cost {
        Value::Int32(integer) => integer.try_into().ok()?,
        Value::Int64(integer) => integer.try_into().ok()?,
        Value::Uint32(integer) => integer.into(),
        Value::Uint64(integer) => integer,
        Value::String(text) | Value::Binary(text) => {
            let text = text.trim_ascii();
            // A number can have a sign for `parse`.
            let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
            // A longer one is more than any limit has.
            text.parse().unwrap_or(u64::MAX)
        }
        Value::Null | Value::Bool(_) | Value::Ipv4(_) | Value::Ipv6(_) => return None,
    };
    Some(u32::try_from(cells).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_an_integer_or_a_string_of_digits() {
        for value in [3_i32.into(), 3_u64.into(), "3".into(), " 03 ".into(), b"3"[..].into()] {
            assert_eq!(cells(value), Some(3), "{value:?}");
        }
        assert_eq!(cells("99999999999999999999".into()), Some(u32::MAX));
        let wrong: [Value<'_>; 8] = [
            Value::Null,
            (-1_i32).into(),
            true.into(),
            "".into(),
            "+3".into(),
            "-3".into(),
            "3.5".into(),
            "3 tokens".into(),
        ];
        for value in wrong {
            assert_eq!(cells(value), None, "{value:?}");
        }
    }
}
