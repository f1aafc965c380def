//! Catalogues of machines in TOML files, and the features that describe a machine.

use std::collections::BTreeMap;

use fordway_store::{Error, ErrorKind, Result};
use serde::{Serialize, Serializer};
use toml::{Table as Toml, Value};

/// The TOML key of a machine's notes, which describe how the value of each feature was obtained. No computation uses
/// these notes.
const HOW: &str = "how";
/// The key of the note that describes why the values of a machine are in doubt.
const CONDITIONS: &str = "conditions";

/// A machine and its known features.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineEntry {
    /// The machine's name, unique in its catalogue.
    pub name: String,
    features: BTreeMap<MachineFeature, f64>,
    how: Toml,
}

/// Machines of one kind or site, sorted by decreasing number of threads. Tables list machines in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineCatalogue {
    entries: Vec<MachineEntry>,
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

impl MachineEntry {
    /// Creates an entry for a machine without known features.
    pub fn new(name: impl Into<String>) -> Self {
        MachineEntry { name: name.into(), features: BTreeMap::new(), how: Toml::new() }
    }

    /// Returns the value of `feature`; `None` if it was not measured.
    pub fn get(&self, feature: MachineFeature) -> Option<f64> {
        self.features.get(&feature).copied()
    }

    /// Sets the value of a feature. Errors: `InvalidArgument` unless the value is a finite, positive number.
    pub fn set(&mut self, feature: MachineFeature, value: f64) -> Result<()> {
        if !(value.is_finite() && value > 0.0) {
            return Err(invalid(format!(
                "machine {}: {} is {value}, but a feature must be a number above 0; leave out features that were not measured",
                self.name,
                feature.name()
            )));
        }
        self.features.insert(feature, value);
        Ok(())
    }

    /// Records how the value of a feature was obtained, or why it could not be obtained.
    pub fn explain(&mut self, feature: MachineFeature, how: &str) {
        self.how.insert(feature.name().to_owned(), Value::String(how.to_owned()));
    }

    /// Records why the values of all features are in doubt.
    pub fn doubt(&mut self, why: &str) {
        self.how.insert(CONDITIONS.to_owned(), Value::String(why.to_owned()));
    }

    /// Returns why the values of all features are in doubt; `None` if no doubt was recorded.
    pub fn doubts(&self) -> Option<&str> {
        self.how.get(CONDITIONS)?.as_str()
    }

    /// Formats the machine as the TOML table `machine.NAME`, which is an entry of a catalogue.
    pub fn to_toml(&self) -> String {
        let features =
            self.features.iter().map(|(feature, value)| (feature.name().to_owned(), number(*value)));
        let mut machine: Toml = features.collect();
        if !self.how.is_empty() {
            machine.insert(HOW.to_owned(), Value::Table(self.how.clone()));
        }
        let named = Toml::from_iter([(self.name.clone(), Value::Table(machine))]);
        Toml::from_iter([("machine".to_owned(), Value::Table(named))]).to_string()
    }

    fn parse(name: &str, machine: &Value) -> Result<Self> {
        let Value::Table(keys) = machine else {
            return Err(invalid(format!(
                "machine {name} is not a table; write [machine.\"{name}\"] and its features below"
            )));
        };
        let mut entry = MachineEntry::new(name);
        for (key, value) in keys {
            match (key.as_str(), value) {
                (HOW, Value::Table(how)) => entry.how = how.clone(),
                (key, value) => entry.set(known(name, key)?, number_of(name, key, value)?)?,
            }
        }
        if entry.features.is_empty() {
            return Err(invalid(format!(
                "machine {name} has no features; add some of {}",
                MachineFeature::names()
            )));
        }
        Ok(entry)
    }
}

/// Returns the feature called `key`. An unknown name is an error, so that misspelt features are not silently ignored.
fn known(machine: &str, key: &str) -> Result<MachineFeature> {
    MachineFeature::from_name(key)
        .ok_or_else(|| invalid(format!("machine {machine}: {}", MachineFeature::unknown(key))))
}

fn number_of(machine: &str, key: &str, value: &Value) -> Result<f64> {
    match value {
        Value::Integer(value) => Ok(*value as f64),
        Value::Float(value) => Ok(*value),
        other => Err(invalid(format!("machine {machine}: {key} is {other}, which is not a number"))),
    }
}

/// Formats integral numbers without a decimal point (`threads = 2`). Formats other numbers with four significant
/// digits, because measurements are not repeatable to more digits.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value < 1e15 {
        return Value::Integer(value as i64);
    }
    let digits = (3 - value.log10().floor() as i32).clamp(0, 12) as usize;
    match format!("{value:.digits$}").parse::<f64>() {
        Ok(rounded) if rounded > 0.0 => Value::Float(rounded),
        _ => Value::Float(value),
    }
}

impl MachineCatalogue {
    /// Parses a catalogue. Errors: `InvalidArgument` if the text is not TOML, contains no machine, or contains a
    /// feature that is unknown or not a positive number. The message about a feature names the machine and the feature.
    pub fn parse(text: &str) -> Result<Self> {
        let toml: Toml = text
            .parse()
            .map_err(|error| invalid("not a catalogue: it is not valid TOML".to_owned()).caused_by(error))?;
        if let Some(key) = toml.keys().find(|key| *key != "machine") {
            return Err(invalid(format!(
                "a catalogue may contain only machines, but this one has {key}; write [machine.NAME]"
            )));
        }
        let Some(Value::Table(machines)) = toml.get("machine") else {
            return Err(invalid("it has no machine; write [machine.NAME] and its features below".to_owned()));
        };
        let entries = machines.iter().map(|(name, machine)| MachineEntry::parse(name, machine));
        let mut entries = entries.collect::<Result<Vec<_>>>()?;
        let threads = |entry: &MachineEntry| entry.get(MachineFeature::Threads).unwrap_or(0.0);
        entries.sort_by(|one, other| threads(other).total_cmp(&threads(one)).then(one.name.cmp(&other.name)));
        Ok(MachineCatalogue { entries })
    }

    /// Returns all machines.
    pub fn entries(&self) -> &[MachineEntry] {
        &self.entries
    }

    /// Returns the machine called `name`. Errors: `InvalidArgument` if there is no such machine; the message lists
    /// the names that exist.
    pub fn get(&self, name: &str) -> Result<&MachineEntry> {
        let names = || self.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| invalid(format!("there is no machine {name}; choose from {}", names())))
    }
}

macro_rules! features {
    ($($feature:ident = $name:literal, $unit:literal, $meaning:literal;)*) => {
        /// A measured property of a machine: a positive number, such as a count, a rate or a duration. The name of a
        /// feature that has a unit ends in that unit; 1 MB is 10^6 bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum MachineFeature { $(#[doc = $meaning] $feature,)* }

        impl MachineFeature {
            /// All features, in the order in which tables show them.
            pub const ALL: &'static [MachineFeature] = &[$(MachineFeature::$feature),*];

            /// Returns the feature's name in catalogues.
            pub const fn name(self) -> &'static str {
                match self { $(MachineFeature::$feature => $name),* }
            }

            /// Returns the feature's unit for display; empty for a count.
            pub const fn unit(self) -> &'static str {
                match self { $(MachineFeature::$feature => $unit),* }
            }

            /// Returns a description of what the feature measures.
            pub const fn meaning(self) -> &'static str {
                match self { $(MachineFeature::$feature => $meaning),* }
            }
        }
    };
}

features! {
    Threads = "threads", "", "threads that run at once";
    CpuTime = "cpu_time_s", "s", "CPU time of tachyon for one picture on one thread";
    Memory = "memory_mb", "MB", "memory";
    MemoryTriad = "memory_triad_mb_per_s", "MB/s", "memory bandwidth, STREAM's triad on all threads";
    DiskRead = "disk_read_mb_per_s", "MB/s", "reading a file from the disk, fio";
    DiskWrite = "disk_write_mb_per_s", "MB/s", "writing a file to the disk, fio";
    Network = "network_mb_per_s", "MB/s", "one connection to another machine, iperf3";
    Loopback = "loopback_mb_per_s", "MB/s", "one connection to the machine itself, iperf3";
    NodeGet = "node_get_ops_per_s", "ops/s", "GETs of 4 KiB by one thread over the node lane";
    HttpGet = "http_get_ops_per_s", "ops/s", "GETs of 4 KiB by one thread over loopback HTTP";
}

impl MachineFeature {
    /// Returns the feature called `name` in catalogues; `None` if there is no such feature.
    pub fn from_name(name: &str) -> Option<MachineFeature> {
        Self::ALL.iter().copied().find(|feature| feature.name() == name)
    }

    /// Returns the error message for the unknown feature `name`, with a list of all features.
    pub fn unknown(name: &str) -> String {
        let known: Vec<_> = Self::ALL.iter().map(|feature| feature.name()).collect();
        fordway_measure::unknown_name("feature", name, &known)
    }

    /// Returns the names of all features, for messages.
    pub fn names() -> String {
        Self::ALL.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(", ")
    }
}

impl Serialize for MachineFeature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = MachineCatalogue::parse(text).expect_err("it was taken");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.to_string()
    }

    #[test]
    fn an_entry_survives_its_text() {
        let mut entry = MachineEntry::new("m3.large \"old\"");
        entry.set(MachineFeature::Threads, 2.0).unwrap();
        entry.set(MachineFeature::DiskRead, 12_345.678).unwrap();
        entry.set(MachineFeature::CpuTime, 0.001_234_56).unwrap();
        entry.explain(MachineFeature::Network, "not measured: no --peer");
        assert_eq!(entry.doubts(), None);
        entry.doubt("refused, and measured because of --force");
        let text = entry.to_toml();
        assert!(text.contains("threads = 2\n"), "{text}");
        let read = MachineCatalogue::parse(&text).unwrap();
        let read = read.get("m3.large \"old\"").unwrap();
        assert_eq!(read.get(MachineFeature::DiskRead), Some(12_346.0));
        assert_eq!(read.get(MachineFeature::CpuTime), Some(0.001_235));
        assert_eq!(read.get(MachineFeature::Network), None);
        assert_eq!(read.how, entry.how);
        assert_eq!(read.doubts(), Some("refused, and measured because of --force"));
    }

    #[test]
    fn those_with_the_most_threads_come_first() {
        let catalogue =
            "machine.b.threads = 2\nmachine.c.threads = 8\nmachine.a.threads = 2\nmachine.d.memory_mb = 1.5";
        let catalogue = MachineCatalogue::parse(catalogue).unwrap();
        let names: Vec<&str> = catalogue.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "b", "d"]);
    }

    #[test]
    fn what_is_no_feature_is_named() {
        for (value, told) in
            [("0", "memory_mb is 0"), ("-1.5", "memory_mb is -1.5"), ("inf", "inf"), ("nan", "NaN")]
        {
            let message = refused(&format!("[machine.a]\nthreads = 2\n[machine.b]\nmemory_mb = {value}"));
            assert!(message.contains("machine b") && message.contains(told), "{message}");
            assert!(message.contains("above 0"), "{message}");
        }
        let message = refused("[machine.a]\nmemory_mb = \"much\"");
        assert!(message.contains("machine a") && message.contains("not a number"), "{message}");
        let message = refused("[machine.a]\nmemory_gb = 4");
        assert!(message.contains("memory_gb") && message.contains("memory_mb"), "{message}");
    }

    #[test]
    fn what_is_no_catalogue_is_told() {
        for (text, told) in [
            ("machine = [", "TOML"),
            ("", "[machine.NAME]"),
            ("machine = 1", "[machine.NAME]"),
            ("[machines.a]\nthreads = 1", "has machines"),
            ("[machine]\na = 1", "[machine.\"a\"]"),
            ("[machine.a]", "no features"),
            ("[machine.a]\nhow = 1", "no feature \"how\""),
        ] {
            let message = refused(text);
            assert!(message.contains(told), "{text}: {message}");
        }
        let catalogue = MachineCatalogue::parse("machine.a.threads = 1\nmachine.b.threads = 1").unwrap();
        let error = catalogue.get("c").expect_err("there is no c");
        assert!(error.to_string().contains("no machine c; choose from a, b"), "{error}");
    }
}
