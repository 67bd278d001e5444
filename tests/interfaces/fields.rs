//! The fields of JSON: which there are, and of which types.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::support::PATIENCE;
use crate::support::recorded::{TITLE, is_writing, recorded};

/// The fields of JSON values, by path, with their types. `[]` stands for each entry of an array.
/// Null counts only for a field that is nothing else.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Fields(BTreeMap<String, BTreeSet<&'static str>>);

impl Fields {
    pub(crate) fn of(values: &[Json]) -> Self {
        let mut fields = Self::default();
        fields.add_all(values);
        fields
    }

    fn add_all(&mut self, values: &[Json]) {
        values.iter().for_each(|value| self.add("", value));
    }

    fn add(&mut self, path: &str, value: &Json) {
        let kind = match value {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        };
        self.0.entry(path.to_owned()).or_default().insert(kind);
        if let Json::Array(values) = value {
            values.iter().for_each(|value| self.add(&format!("{path}[]"), value));
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            let dot = if path.is_empty() { "" } else { "." };
            self.add(&format!("{path}{dot}{name}"), value);
        }
    }

    /// The fields of the object at this path, as if it stood alone.
    fn below(&self, path: &str) -> Self {
        let path = if path.is_empty() { String::new() } else { format!("{path}.") };
        let below = self.0.iter().filter(|(name, _)| !name.is_empty());
        let below = below.filter_map(|(name, kinds)| {
            Some((name.strip_prefix(&path)?.to_owned(), without_null(kinds)))
        });
        Self(below.collect())
    }

    /// A line for each field. An object with the same fields as one that was written before is one
    /// line. `known` has these objects, and gets those of these lines.
    fn lines(&self, title: &str, known: &mut Vec<(String, Self)>) -> String {
        let (mut lines, mut left_out) = (String::new(), Vec::<String>::new());
        for (path, kinds) in &self.0 {
            if left_out.iter().any(|it| path.starts_with(it)) {
                continue;
            }
            let kinds = without_null(kinds).into_iter().collect::<Vec<_>>().join(" | ");
            let fields = self.below(path);
            let is_worth_it = kinds == "object" && fields.0.len() > 3;
            let same = known.iter().find(|(_, other)| is_worth_it && *other == fields);
            match same {
                // Nothing else is in it.
                Some((name, _)) if path.is_empty() => return format!("    all: as {name}\n"),
                Some((name, _)) => {
                    left_out.push(format!("{path}."));
                    writeln!(lines, "    {path}: as {name}").unwrap();
                }
                None if path.is_empty() => {}
                None => writeln!(lines, "    {path}: {kinds}").unwrap(),
            }
            if same.is_none() && is_worth_it {
                known.push((format!("{title} {path}").trim_end().to_owned(), fields));
            }
        }
        lines
    }
}

fn without_null(kinds: &BTreeSet<&'static str>) -> BTreeSet<&'static str> {
    let only_null = kinds.len() == 1;
    kinds.iter().filter(|kind| only_null || **kind != "null").copied().collect()
}

/// The JSON that programs get, in groups with titles.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) text: String,
    /// The objects in it, by where they are.
    known: Vec<(String, Fields)>,
    /// Whether a field that is recorded never came.
    lacks_fields: bool,
}

impl Groups {
    pub(crate) fn add(&mut self, title: &str, fields: &Fields) {
        let lines = fields.lines(title, &mut self.known);
        writeln!(self.text, "{TITLE}{title}\n{lines}").unwrap();
    }

    /// Asks until all fields that are recorded have been there, because some fill with time. When
    /// the file is written anew: until there was nothing new for some time.
    pub(crate) fn add_until_complete(
        &mut self,
        title: &str,
        mut values: impl FnMut() -> Vec<Json>,
    ) {
        let json = recorded("json.txt");
        let recorded = json.split(TITLE).find_map(|group| {
            group.strip_prefix(title)?.strip_prefix('\n').map(|lines| lines.trim_end().lines())
        });
        let recorded: Vec<_> = recorded.into_iter().flatten().collect();
        let (begin, mut changed, mut fields) = (Instant::now(), Instant::now(), Fields::default());
        loop {
            let before = fields.clone();
            fields.add_all(&values());
            if before != fields {
                changed = Instant::now();
            }
            let lines = fields.lines(title, &mut self.known.clone());
            let lines: BTreeSet<_> = lines.lines().collect();
            let is_complete = match is_writing() {
                true => changed.elapsed() > Duration::from_secs(2),
                false => recorded.iter().all(|line| lines.contains(line)),
            };
            self.lacks_fields |= begin.elapsed() > PATIENCE;
            if is_complete || self.lacks_fields {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        self.add(title, &fields);
    }
}
