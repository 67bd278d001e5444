//! The fields that are wanted of a format, and how they are read.

use crate::part::{Decode, Part};
use crate::scan::Scanner;
use crate::time::Time;

/// A format, and which of its fields are wanted.
#[derive(Debug, Clone)]
pub struct Selection {
    pub(crate) names: Vec<String>,
    pub(crate) reader: Reader,
}

impl Selection {
    /// The names of the selected fields, in the order of [`Entry::fields`](crate::Entry::fields).
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Reader {
    Text(TextReader),
    /// The names whose values can be the date, the best first.
    Json(Vec<String>),
}

#[derive(Debug, Clone)]
pub(crate) struct TextReader {
    pub(crate) scanner: Scanner,
    pub(crate) spans: usize,
    pub(crate) time: Time,
    /// The span that is `<BADREQ>` where no request came.
    pub(crate) request: Option<usize>,
    pub(crate) slots: Vec<Slot>,
}

/// A selected field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) span: usize,
    pub(crate) part: Part,
    pub(crate) decode: Decode,
}
