//! The entries of a table of the file, as the settings that are declared: each is read to a typed
//! value, or its mistake is noted.

use std::time::Duration;

use gcra_text::duration::{self, Exact};
use toml::de::DeTable;

use crate::file::reader::{
    EntryName, Node, Reader, list, meant_strings, meant_time, quoted, scalar,
};
use crate::file::settings::{
    Declared, Flag, NonEmpty, Number, Setting, SettingTable, Text, Texts, Times, Word,
};

/// The entries of a table of the file.
pub(crate) struct Entries<'d, 't> {
    what: String,
    table: &'static SettingTable,
    entries: &'d DeTable<'t>,
}

impl<'d, 't> Entries<'d, 't> {
    /// `entries`, which are `what` in messages and may have the settings of `table`.
    pub(crate) fn new(
        what: impl Into<String>,
        table: &'static SettingTable,
        entries: &'d DeTable<'t>,
    ) -> Self {
        Self { what: what.into(), table, entries }
    }

    pub(crate) fn get<K>(&self, setting: &Setting<K>) -> Option<&'d Node<'t>> {
        debug_assert!(self.table.has(setting.about.name));
        self.entries.get(setting.about.name)
    }

    /// Where a setting stands, if it is there.
    pub(crate) fn at<K>(&self, setting: &Setting<K>) -> Option<usize> {
        self.place(setting.about.name)
    }

    /// Where the setting with this name stands, if it is there.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|value| value.span().start)
    }

    /// The value of a setting. `None` if it is not there, or wrong, which is noted.
    pub(crate) fn read<K: SettingKind>(
        &self,
        reader: &mut Reader<'t>,
        setting: &Setting<K>,
    ) -> Option<K::Value> {
        self.get(setting).and_then(|value| setting.read(reader, value))
    }

    /// The same, or the default that is declared. `None` if it is wrong.
    pub(crate) fn read_or_default<K: SettingKind>(
        &self,
        reader: &mut Reader<'t>,
        setting: &Setting<K>,
    ) -> Option<K::Value> {
        match self.get(setting) {
            Some(value) => setting.read(reader, value),
            None => Some(setting.default()),
        }
    }

    /// The settings that are there and need this one, and where the first of them stands.
    pub(crate) fn that_need<K>(&self, setting: &Setting<K>) -> Option<(Vec<&'static str>, usize)> {
        let needs = self.table.settings.iter().filter(|it| it.needs == setting.about.name);
        let given = needs.filter_map(|it| Some((it.name, self.place(it.name)?)));
        let (names, places): (Vec<_>, Vec<_>) = given.unzip();
        Some((names, places.into_iter().min()?))
    }

    /// Each entry that is no setting of this table is a mistake. `advice` has a sentence of its
    /// own for some.
    pub(crate) fn no_others(
        &self,
        reader: &mut Reader<'t>,
        advice: impl Fn(&str, &Node<'t>) -> Option<String>,
    ) {
        let is_other = |(name, _): &(&EntryName<'t>, _)| !self.table.has(name.get_ref());
        for (key, value) in self.entries.iter().filter(is_other) {
            match advice(key.get_ref(), value) {
                Some(what) => reader.on(key).wrong(what),
                None => {
                    let known: Vec<_> = self.table.names().collect();
                    let kind = format!("a setting of {}", self.what);
                    reader.on(key).unknown(&kind, key.get_ref(), &known, str::to_owned);
                }
            }
        }
    }
}

/// How the values of a setting are read.
pub(crate) trait SettingKind {
    type Value: Default;

    /// The value; `None` if it is wrong, which is noted.
    fn read<'t>(
        &self,
        reader: &mut Reader<'t>,
        of: &Declared,
        node: &Node<'t>,
    ) -> Option<Self::Value>;

    /// The value of a default, as it is declared.
    fn of_default(_default: &str) -> Self::Value {
        Self::Value::default()
    }
}

impl<K: SettingKind> Setting<K> {
    pub(crate) fn read<'t>(&self, reader: &mut Reader<'t>, value: &Node<'t>) -> Option<K::Value> {
        self.kind.read(reader, &self.about, value)
    }

    /// The value that is declared as its default.
    pub(crate) fn default(&self) -> K::Value {
        K::of_default(self.about.default)
    }
}

impl SettingKind for Flag {
    type Value = bool;

    fn read<'t>(&self, reader: &mut Reader<'t>, of: &Declared, node: &Node<'t>) -> Option<bool> {
        let what = || format!("{} must be true or false, without quotes", of.name);
        let meant = || scalar(node.get_ref()).filter(|text| text.parse::<bool>().is_ok());
        node.get_ref().as_bool().or_else(|| reader.on(node).right(meant()).refuse(what()))
    }

    fn of_default(default: &str) -> bool {
        default == "true"
    }
}

impl SettingKind for Number {
    type Value = u32;

    fn read<'t>(&self, reader: &mut Reader<'t>, of: &Declared, node: &Node<'t>) -> Option<u32> {
        let integer = node.get_ref().as_integer();
        let number = integer.and_then(|it| u32::from_str_radix(it.as_str(), it.radix()).ok());
        number.filter(|number| self.0.contains(number)).or_else(|| {
            let (name, least, most) = (of.name, self.0.start(), self.0.end());
            let meant = node.get_ref().as_str().and_then(|text| text.trim().parse().ok());
            let meant = meant.filter(|number| self.0.contains(number));
            reader.on(node).right(meant.map(|number| number.to_string())).refuse(format!(
                "{name} must be a whole number from {least} to {most}, without quotes"
            ))
        })
    }

    fn of_default(default: &str) -> u32 {
        default.parse().unwrap_or_default()
    }
}

impl SettingKind for Times {
    type Value = Duration;

    fn read<'t>(
        &self,
        reader: &mut Reader<'t>,
        of: &Declared,
        node: &Node<'t>,
    ) -> Option<Duration> {
        let Declared { name, example, .. } = of;
        let text = Text().read(reader, of, node)?;
        duration::parse(&text).filter(|time| self.0.contains(time)).or_else(|| {
            let (least, most) = (Exact(*self.0.start()), Exact(*self.0.end()));
            reader.on(node).right(meant_time(&text, &self.0)).refuse(format!(
                "'{text}' in {name} is not a time from {least} to {most}; write a whole number \
                 and a unit ({}), such as {example}",
                duration::UNITS_IN_WORDS
            ))
        })
    }

    fn of_default(default: &str) -> Duration {
        duration::parse(default.trim_matches('"')).unwrap_or_default()
    }
}

impl SettingKind for Text {
    type Value = String;

    fn read<'t>(&self, reader: &mut Reader<'t>, of: &Declared, node: &Node<'t>) -> Option<String> {
        reader.string(node, of.name, &format!("such as {}", of.example))
    }
}

impl SettingKind for NonEmpty {
    type Value = String;

    fn read<'t>(&self, reader: &mut Reader<'t>, of: &Declared, node: &Node<'t>) -> Option<String> {
        let Self(what, mistake_of) = self;
        let name = reader.name(node, of.name, what)?;
        if let Some(mistake) = mistake_of(&name, of.name) {
            reader.on(node).wrong(mistake);
        }
        Some(name)
    }
}

impl SettingKind for Word {
    type Value = &'static str;

    fn read<'t>(
        &self,
        reader: &mut Reader<'t>,
        of: &Declared,
        node: &Node<'t>,
    ) -> Option<Self::Value> {
        let Self(what, words) = self;
        let known: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        let known: Vec<_> = known.iter().map(|word| &**word).collect();
        let text = reader.string(node, of.name, &list(&known, "or"))?;
        let found = words.iter().copied().find(|word| *word == text);
        if found.is_none() {
            reader.on(node).unknown(what, &text, words, quoted);
        }
        found
    }
}

impl SettingKind for Texts {
    /// Each with its place.
    type Value = Vec<(String, usize)>;

    fn read<'t>(
        &self,
        reader: &mut Reader<'t>,
        of: &Declared,
        node: &Node<'t>,
    ) -> Option<Self::Value> {
        let placed =
            |text: &Node<'t>| Some((text.get_ref().as_str()?.to_owned(), text.span().start));
        let array = node.get_ref().as_array();
        let texts = array.and_then(|array| array.iter().map(placed).collect());
        texts.or_else(|| {
            let Declared { name, example, .. } = of;
            let meant = meant_strings(node.get_ref()).filter(|texts| self.0(texts));
            let meant = meant.map(|texts| {
                let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
                format!("[{}]", texts.join(", "))
            });
            let right = match &meant {
                Some(right) => format!("; write {name} = {right}"),
                None => format!(", such as {example}"),
            };
            reader.on(node).right(meant).refuse(format!("{name} must be a list of strings{right}"))
        })
    }
}
