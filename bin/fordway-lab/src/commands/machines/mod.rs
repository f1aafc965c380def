//! `machines`: what is known of the machines that results come from.

mod compare;
mod disk;
mod lanes;
mod measure;
mod memory;
mod network;
mod pick;
mod tool;
mod tools;
mod triad;

use std::fmt;
use std::path::Path;

use fordway_command::{Context, Exit, file_error};
use fordway_machine::{Catalogue, LeftOut};
use fordway_measure::Machine;
use fordway_store::Result;
use serde::Serialize;

use crate::args::{MachinesAction, MachinesArgs, ProbeArgs};

/// What the JSON says it is; `fordway model` asks for it.
const SCHEMA: &str = "fordway.probe";

pub(super) fn run(args: &MachinesArgs, context: &Context) -> Result<Exit> {
    match &args.action {
        MachinesAction::Probe(args) => probe(args, context),
        MachinesAction::Measure(args) => measure::run(args, context),
        MachinesAction::Compare(args) => compare::run(args, context),
        MachinesAction::Pick(args) => pick::run(args, context),
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

/// Reads a catalogue. Errors: from reading, `InvalidArgument` naming the file.
fn catalogue(file: &Path) -> Result<Catalogue> {
    parsed(file, Catalogue::parse)
}

/// Reads a file as `parse` does.
fn parsed<T>(file: &Path, parse: fn(&str) -> Result<T>) -> Result<T> {
    let text = std::fs::read_to_string(file).map_err(|error| file_error("reading", file.display(), error))?;
    parse(&text).map_err(|error| {
        let detail = format!("{}: {}", file.display(), error.detail());
        error.with_detail(detail)
    })
}

/// A reader would otherwise think that a similarity covers all features.
fn warn_of_left_out(left_out: &[LeftOut], context: &Context) {
    for LeftOut { feature, missing_in } in left_out {
        let (feature, machines) = (feature.name(), missing_in.join(", "));
        context.output.note(&format!("not compared by {feature}, which is not known of {machines}"));
    }
}

/// A value in as many digits as repeat, with its unit.
fn figure(value: f64, unit: &str) -> String {
    let digits = if value.fract() == 0.0 || value >= 1000.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
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
