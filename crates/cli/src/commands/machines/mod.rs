//! `machines`: what is known of the machines that results come from.

mod disk;
mod memory;
mod network;

use std::fmt;

use fordway_measure::Machine;
use fordway_store::Result;
use serde::Serialize;

use crate::args::{MachinesAction, MachinesArgs, ProbeArgs};
use crate::context::Context;
use crate::exit::Exit;

/// What the JSON says it is; `fordway model` asks for it.
const SCHEMA: &str = "fordway.probe";

pub(super) fn run(args: &MachinesArgs, context: &Context) -> Result<Exit> {
    match &args.action {
        MachinesAction::Probe(args) => probe(args, context),
    }
}

fn probe(args: &ProbeArgs, context: &Context) -> Result<Exit> {
    let machine = Machine::observe(&[]);
    let mut quantities = vec![memory::reference_clock()];
    context.interrupt.check()?;
    quantities.extend(memory::bandwidth(&machine));
    context.interrupt.check()?;
    quantities.extend(network::probe(args.peer.as_deref())?);
    context.interrupt.check()?;
    quantities.extend(disk::probe(args.disk.as_deref())?);
    let probe = Probe { schema: SCHEMA, machine, quantities };
    context.output.record(&probe)?;
    Ok(Exit::Ok)
}

/// All that was found.
#[derive(Serialize)]
struct Probe {
    schema: &'static str,
    machine: Machine,
    quantities: Vec<Quantity>,
}

/// One quantity, and where it comes from.
#[derive(Serialize)]
struct Quantity {
    name: &'static str,
    /// `None`: not measured.
    value: Option<f64>,
    unit: &'static str,
    /// How it was obtained, or why it was not.
    how: String,
}

impl Quantity {
    fn new(name: &'static str, value: f64, unit: &'static str, how: impl Into<String>) -> Self {
        Quantity { name, value: Some(value), unit, how: how.into() }
    }

    fn unknown(name: &'static str, unit: &'static str, why: impl Into<String>) -> Self {
        Quantity { name, value: None, unit, how: why.into() }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Quantity { name, value, unit, how }) in self.quantities.iter().enumerate() {
            let text = value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.1} {unit}"));
            let end = if number + 1 < self.quantities.len() { "\n" } else { "" };
            write!(f, "{name:<15} {text:>16}  {how}{end}")?;
        }
        Ok(())
    }
}
