//! `node --status`: what a node gateway has done so far.

use std::fmt;
use std::path::PathBuf;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_command::units::human_bytes;
use fordway_command::{Context, Exit};
use fordway_store::Result;
use serde::{Serialize, Serializer};

pub(super) fn run(socket: PathBuf, context: &Context) -> Result<Exit> {
    let address = NodeAddress::Unix(socket);
    let endpoint = address.to_string();
    let counters = NodeStore::new(address).stats()?;
    context.output.record(&Status { endpoint, counters })?;
    Ok(Exit::Ok)
}

/// Counters by name, in the gateway's order.
struct Status {
    endpoint: String,
    counters: Vec<(String, u64)>,
}

/// One object, `endpoint` first.
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(1 + self.counters.len()))?;
        map.serialize_entry("endpoint", &self.endpoint)?;
        for (name, count) in &self.counters {
            map.serialize_entry(name, count)?;
        }
        map.end()
    }
}

/// A table; sizes in the form for people.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.endpoint)?;
        let width = self.counters.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, count) in &self.counters {
            let is_bytes = name.split('_').any(|word| word == "bytes");
            let shown = if is_bytes { human_bytes(*count) } else { count.to_string() };
            write!(f, "\n  {name:<width$}  {shown:>12}")?;
        }
        Ok(())
    }
}
