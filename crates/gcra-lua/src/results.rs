//! [`Results`]: what a function returns to Lua.

use std::cell::Cell;
use std::io::Write as _;
use std::ops::Range;

use arrayvec::ArrayVec;
use gcra_limiter::answer::{AnswerVar, SetVars};
use gcra_policy::answers::Var;
use spop_agent::Value;

/// The values that Lua gets, in their order.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The bytes of all texts.
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Nil,
    Boolean(bool),
    /// Bytes of [`Results::bytes`].
    Text {
        begin: usize,
        length: usize,
    },
}

thread_local! {
    /// Those of an earlier call of this thread, so that most calls allocate nothing.
    static KEPT: Cell<Option<Box<Results>>> = const { Cell::new(None) };
}

/// Larger ones are not kept.
const MOST_KEPT: usize = 16 << 10;

impl Results {
    /// No results yet.
    pub(crate) fn taken() -> Box<Self> {
        let mut results = KEPT.take().unwrap_or_default();
        results.bytes.clear();
        results.items.clear();
        results
    }

    /// Keeps the memory for the next call.
    pub(crate) fn given_back(results: Box<Self>) {
        if results.bytes.capacity() <= MOST_KEPT {
            KEPT.set(Some(results));
        }
    }

    pub(crate) fn add(&mut self, item: Item) {
        self.items.push(item);
    }

    pub(crate) fn add_text(&mut self, text: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.items.push(Item::Text { begin, length: text.len() });
    }

    /// Returns nil and a sentence, as Lua's own functions do.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.items.clear();
        self.add(Item::Nil);
        self.add_text(why.as_bytes());
    }
}

/// The most variables of an answer beside `blocked`.
const MOST_VARS: usize = 16;

/// The values of an answer as one text: a number, and those of the variables with a '|' before
/// each.
pub(crate) struct Fields<'r> {
    results: &'r mut Results,
    /// The variables that are set, with the places of their values among the bytes.
    set: ArrayVec<(Var, Range<usize>), MOST_VARS>,
    /// All variables, in the order of the file.
    wanted: &'r [Var],
}

impl<'r> Fields<'r> {
    pub(crate) fn new(results: &'r mut Results, wanted: &'r [Var]) -> Self {
        Self { results, set: ArrayVec::new(), wanted }
    }

    /// The result, with this number at its beginning.
    pub(crate) fn finish(self, number: i64) {
        let Self { results: Results { bytes, items }, set, wanted } = self;
        let begin = bytes.len();
        // Writing to a vector does not fail.
        let _ = write!(bytes, "{number}");
        for var in wanted {
            bytes.push(b'|');
            if let Some((_, place)) = set.iter().find(|(other, _)| other == var) {
                bytes.extend_from_within(place.clone());
            }
        }
        items.push(Item::Text { begin, length: bytes.len() - begin });
    }
}

impl SetVars for Fields<'_> {
    fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>) {
        // Not by `Var::name`, which checks the name each time.
        let is_it = |known: &&Var| known.as_str() == var.name.as_str();
        let Some(var) = self.wanted.iter().find(is_it) else { return };
        let bytes = &mut self.results.bytes;
        let begin = bytes.len();
        let _ = match value {
            // A list in binary is no text.
            Some(Value::Null | Value::Binary(_)) | None => Ok(()),
            Some(Value::Bool(value)) => write!(bytes, "{}", u8::from(value)),
            Some(value) => match (value.as_integer(), value.as_bytes()) {
                (Some(integer), _) => write!(bytes, "{integer}"),
                (None, text) => {
                    // The name of a client may have bytes that it has chosen.
                    let text = text.unwrap_or_default().iter();
                    bytes.extend(text.map(|byte| if *byte == b'|' { b'_' } else { *byte }));
                    Ok(())
                }
            },
        };
        let _ = self.set.try_push((*var, begin..bytes.len()));
    }
}
