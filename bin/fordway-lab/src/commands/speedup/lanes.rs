//! Where ranks run, and what carries their messages.

use fordway_measure::Lane;
use fordway_netlab::setup::{Ends, Setup, Wire};
use fordway_store::{Error, ErrorKind, Result};

use fordway_command::Context;

/// What follows the name of a set-up in which ranks give way while they wait.
const YIELD: &str = "+yield";

/// What carries messages.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Whatever MPI chooses.
    Default,
    SharedMemory,
    Loopback,
    /// Two networks, with half of the ranks in each.
    Networks(Ends),
}

/// One set-up that is up.
#[derive(Debug)]
pub(super) struct Way {
    name: String,
    description: String,
    pub(super) carrier: Carrier,
    pub(super) is_yielding: bool,
}

impl Way {
    pub(super) fn lane(&self) -> Lane {
        let how = if self.is_yielding { "; ranks give way while they wait" } else { "" };
        Lane { name: self.name.clone(), description: format!("{}{how}", self.description) }
    }
}

/// Brings up what `names` ask for; what does not come up is told, and left out. The first is the reference,
/// so it must.
///
/// Errors: `InvalidArgument` for names that are none, or come twice; errors of the reference.
pub(super) fn bring_up(names: &[String], context: &Context, warnings: &mut Vec<String>) -> Result<Vec<Way>> {
    if names.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a run has at most 64 set-ups; leave some out"));
    }
    let mut ways: Vec<Way> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            let detail = format!("there are two set-ups called {name:?}; name each once");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        context.interrupt.check()?;
        match way(name) {
            Ok(way) => ways.push(way),
            Err(error) if at == 0 || error.kind() == ErrorKind::InvalidArgument => return Err(error),
            Err(error) => warnings.push(format!("{name} is left out: {error}")),
        }
    }
    Ok(ways)
}

fn way(name: &str) -> Result<Way> {
    let (base, is_yielding) = match name.strip_suffix(YIELD) {
        Some(base) => (base, true),
        None => (name, false),
    };
    let (carrier, description) = match base {
        "default" => (Carrier::Default, "As MPI chooses".to_owned()),
        "shm" => (Carrier::SharedMemory, "Shared memory of this machine".to_owned()),
        "loopback" => (Carrier::Loopback, "TCP on this machine's loopback device".to_owned()),
        other => networks(other)?,
    };
    Ok(Way { name: name.to_owned(), description, carrier, is_yielding })
}

fn networks(name: &str) -> Result<(Carrier, String)> {
    let setup = Setup::load(name)?;
    let fordway = std::env::current_exe()
        .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
    // A wire of a cluster takes large pieces, and its cards cut them.
    let wire = Wire { is_offloading: true, ..Wire::default() };
    let ends = Ends::lay(&setup, &wire, &fordway)?;
    Ok((Carrier::Networks(ends), format!("Half of the ranks on each side of: {}", setup.description)))
}
