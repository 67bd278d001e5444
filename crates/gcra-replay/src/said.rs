//! The decision that HAProxy got, as the line of a request says it.

use crate::mapping::Fields;

/// Where a line has the variables about the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaidFields {
    pub(crate) blocked: Option<usize>,
    pub(crate) err: Option<usize>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WhatIsSaid {
    Blocked,
    Allowed,
    /// HAProxy got none, with this number in `err`.
    None {
        err: u32,
    },
    /// The value of `blocked` is none that HAProxy writes.
    NotReadable,
    /// The line has neither `blocked` nor `err`: HAProxy did not ask, or the line is cut.
    Silent,
}

impl SaidFields {
    pub(crate) fn new(fields: &mut Fields<'_>) -> Self {
        let (blocked, err) = (fields.select_variable("blocked"), fields.select_variable("err"));
        Self { blocked, err }
    }

    pub(crate) fn decision(&self, values: &[Option<&[u8]>]) -> WhatIsSaid {
        let value = |place: Option<usize>| place.and_then(|place| *values.get(place)?);
        // The last field of a format may have more behind it.
        let first = |place| value(place)?.split(|&byte| byte == b' ').next();
        match first(self.blocked) {
            Some(b"1" | b"true") => return WhatIsSaid::Blocked,
            Some(b"0" | b"false") => return WhatIsSaid::Allowed,
            None | Some(b"" | b"-") => {}
            Some(_) => return WhatIsSaid::NotReadable,
        }
        let err = first(self.err).and_then(|err| str::from_utf8(err).ok()?.parse().ok());
        err.map_or(WhatIsSaid::Silent, |err| WhatIsSaid::None { err })
    }
}
