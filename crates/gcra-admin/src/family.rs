//! [`Family`]: a counter or gauge of an agent, and `part!`, which declares each in one place: its
//! name in `/status`, how it is read, how it adds up over agents, and its metric.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

pub type NamedCounts = BTreeMap<String, u64>;

pub(crate) fn named<'a>(numbers: impl IntoIterator<Item = (&'a str, u64)>) -> NamedCounts {
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

const LARGEST: f64 = 1e15;

/// A number that need not be whole. One of another process is brought into bounds when it is read,
/// so that all amounts can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
pub struct Amount(pub f64);

impl From<Duration> for Amount {
    fn from(time: Duration) -> Self {
        Self(time.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(f64::deserialize(deserializer)?.clamp(0.0, LARGEST)))
    }
}

/// A family of metrics of Prometheus: those with one name. docs/METRICS.md says what each means.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its place in `/metrics`. A new family gets the next number.
    pub number: u8,
    pub name: &'static str,
    pub kind: &'static str,
    pub help: &'static str,
    /// The label with the names of [`NamedCounts`].
    pub label: &'static str,
}

pub(crate) const fn counter(number: u8, name: &'static str, help: &'static str) -> Family {
    Family { number, name, kind: "counter", help, label: "" }
}

pub(crate) const fn gauge(number: u8, name: &'static str, help: &'static str) -> Family {
    Family { kind: "gauge", ..counter(number, name, help) }
}

pub(crate) const fn histogram(number: u8, name: &'static str, help: &'static str) -> Family {
    Family { kind: "histogram", label: "le", ..counter(number, name, help) }
}

impl Family {
    pub(crate) const fn by(self, label: &'static str) -> Self {
        Self { label, ..self }
    }
}

/// Declares a part of the status: `name: type = how it is read, how it adds up => family;` for
/// each of its fields. The last two are left out where there is no sum and no metric.
macro_rules! part {
    (
        $(#[$about:meta])*
        $part:ident of $from:ident: $source:ty;
        $($(#[$doc:meta])* $field:ident: $type:ty = $read:expr
            $(, $add:ident)? $(=> $family:expr)?;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize, Serialize)]
        // During an upgrade, an agent of another version may not have all of it.
        #[serde(default)]
        pub struct $part {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $part {
            pub(crate) const FAMILIES: &[Family] = &[$($($family,)?)*];

            pub(crate) fn of($from: $source) -> Self {
                Self { $($field: $read,)* }
            }

            pub(crate) fn write(&self, labels: &Labels<'_>, metrics: &mut Metrics) {
                $($(metrics.add(&$family, labels, &self.$field);)?)*
            }
        }

        impl Sum for $part {
            fn add(&mut self, other: &Self) {
                let Self { .. } = other;
                $($($add(&mut self.$field, &other.$field);)?)*
            }
        }
    };
}
pub(crate) use part;

/// Numbers that add up over agents. Other processes may say anything, so no sum overflows.
pub(crate) trait Sum {
    fn add(&mut self, other: &Self);
}

impl Sum for u64 {
    fn add(&mut self, other: &Self) {
        *self = self.saturating_add(*other);
    }
}

impl Sum for Amount {
    fn add(&mut self, other: &Self) {
        self.0 += other.0;
    }
}

impl Sum for NamedCounts {
    fn add(&mut self, other: &Self) {
        for (name, count) in other {
            match self.get_mut(name) {
                Some(known) => known.add(count),
                None => drop(self.insert(name.clone(), *count)),
            }
        }
    }
}

impl<T: Sum + Clone> Sum for Option<T> {
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Some(sum), Some(more)) => sum.add(more),
            (sum, more) => *sum = sum.take().or_else(|| more.clone()),
        }
    }
}

/// Agents have done it together.
pub(crate) fn sum<T: Sum>(sum: &mut T, more: &T) {
    sum.add(more);
}

/// They all say the same, at slightly different times.
pub(crate) fn most<T: PartialOrd + Copy>(most: &mut T, other: &T) {
    if *other > *most {
        *most = *other;
    }
}

/// It is so for some agent.
pub(crate) fn some(some: &mut bool, other: &bool) {
    *some |= other;
}

/// It is the same for all that say it.
pub(crate) fn first<T: Clone + Default + PartialEq>(first: &mut T, other: &T) {
    if *first == T::default() {
        first.clone_from(other);
    }
}

/// It is so for every agent.
pub(crate) fn every(every: &mut bool, other: &bool) {
    *every &= other;
}

/// The numbers of a family.
pub(crate) trait Samples {
    /// Calls `sample` with the ending of the name, the value of the label if there is one, and
    /// the number of each.
    fn each(&self, sample: impl FnMut(&str, Option<&str>, f64));
}

impl Samples for Amount {
    fn each(&self, mut sample: impl FnMut(&str, Option<&str>, f64)) {
        sample("", None, self.0);
    }
}

impl Samples for u64 {
    fn each(&self, sample: impl FnMut(&str, Option<&str>, f64)) {
        Amount(float(*self)).each(sample);
    }
}

impl Samples for bool {
    fn each(&self, sample: impl FnMut(&str, Option<&str>, f64)) {
        u64::from(*self).each(sample);
    }
}

impl<T: Samples> Samples for Option<T> {
    fn each(&self, sample: impl FnMut(&str, Option<&str>, f64)) {
        if let Some(known) = self {
            known.each(sample);
        }
    }
}

impl Samples for NamedCounts {
    fn each(&self, mut sample: impl FnMut(&str, Option<&str>, f64)) {
        for (name, count) in self {
            sample("", Some(name), float(*count));
        }
    }
}

/// Names of labels and their values.
pub(crate) type Labels<'a> = [(&'a str, &'a str)];

/// Metrics as Prometheus scrapes them (text format 0.0.4), by the number of their family.
#[derive(Default)]
pub(crate) struct Metrics(BTreeMap<u8, String>);

impl Metrics {
    /// Adds what there is of a family. A family without samples is left out.
    pub(crate) fn add(&mut self, family: &Family, labels: &Labels<'_>, samples: &impl Samples) {
        let Family { number, name, kind, help, label } = family;
        samples.each(|ending, value, sample| {
            let text = self.0.entry(*number).or_insert_with(|| {
                format!("# HELP {name} {}\n# TYPE {name} {kind}\n", escaped(help, false))
            });
            let labels = labels.iter().copied().chain(value.map(|value| (*label, value)));
            let labels =
                labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value, true)));
            let labels = labels.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            *text += &format!("{name}{ending}{labels} {sample}\n");
        });
    }

    pub(crate) fn into_text(self) -> String {
        self.0.into_values().collect()
    }
}

/// Only values of labels stand in quotes.
fn escaped(text: &str, is_quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_quoted { text.replace('"', "\\\"") } else { text }
}

#[expect(clippy::cast_precision_loss, reason = "all numbers of Prometheus are floats")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
