//! `machines`: properties of the machines on which results were measured. `compare` shows how similar the machines of
//! two catalogues are; `pick` finds the machine that is most similar to a given machine.

mod measure;
mod probe;
mod tools;

use std::path::Path;
use std::{fmt, fs};

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::{
    CommonFeatures, MachineCatalogue, MachineEntry, MachineFeature, MachinePairSimilarity, MachineWatch,
    OmittedFeature, SimilarityTable, heat_map, ratio,
};
use fordway_measure::{Machine, RunReliabilityReport};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::options::ForceArgs;
use serde::Serialize;

use crate::args::{MachinesArgs, MachinesSubcommand, PickArgs, ProbeArgs, SimilarityArgs};

/// The schema name in the JSON; `fordway model` requires it.
const PROBE_SCHEMA: &str = "fordway.probe";

pub(super) fn run(args: &MachinesArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        MachinesSubcommand::Probe(args) => probe(args, context),
        MachinesSubcommand::Measure(args) => measure::run(args, context),
        MachinesSubcommand::Compare(args) => compare(args, context),
        MachinesSubcommand::Pick(args) => pick(args, context),
    }
}

fn probe(args: &ProbeArgs, context: &CommandContext) -> Result<CommandExit> {
    let machine = Machine::observe(&[]);
    let watch = watch(args.trust, args.peer.as_deref())?;
    let threads = machine.cpus_at_once();
    let (peer, disk) = (args.peer.as_deref(), args.disk.as_deref());
    let mut quantities = vec![probe::reference_clock()];
    let steps: [&dyn Fn() -> Result<Vec<ProbedQuantity>>; 3] = [
        &|| probe::memory_bandwidth(threads, probe::usable_memory_bytes(&machine), &context.interrupt),
        &|| probe::network(peer),
        &|| probe::disk(disk),
    ];
    // After a signal, the quantities that are already known are reported.
    for step in steps {
        match context.interrupt.check().and_then(|()| step()) {
            Ok(found) => quantities.extend(found),
            Err(error) if error.kind() == ErrorKind::Interrupted => break,
            Err(error) => return Err(error),
        }
    }
    let is_early = context.interrupt.is_raised();
    let probe =
        MachineProbeReport { schema: PROBE_SCHEMA, machine, quantities, conditions: watch.conditions() };
    context.output.record(&probe)?;
    Ok(if is_early { interrupted(context) } else { CommandExit::Ok })
}

/// Reports that the results are incomplete because of a signal.
fn interrupted(context: &CommandContext) -> CommandExit {
    context.output.note("interrupted: the results cover only what was measured before");
    CommandExit::Interrupted
}

/// Starts observing the machine for the duration of a measurement. With a `peer`, the CPU time of other processes
/// raises no doubts, because the peer may be one of these processes.
fn watch(trust: ForceArgs, peer: Option<&str>) -> Result<MachineWatch> {
    let watch = MachineWatch::start(&[], trust.force)?;
    Ok(if peer.is_some() { watch.beside_unknown_servers() } else { watch })
}

/// Reads a catalogue. Errors: I/O errors, and `InvalidArgument` with the file's name.
fn catalogue(file: &Path) -> Result<MachineCatalogue> {
    parsed(file, MachineCatalogue::parse)
}

/// Reads a file and parses it with `parse`.
fn parsed<T>(file: &Path, parse: fn(&str) -> Result<T>) -> Result<T> {
    let text = std::fs::read_to_string(file).map_err(|error| file_error("reading", file.display(), error))?;
    parse(&text).map_err(|error| {
        let detail = format!("{}: {}", file.display(), error.detail());
        error.with_detail(detail)
    })
}

/// Warns about omitted features, because a reader would otherwise assume that a similarity covers all features.
fn warn_of_left_out(left_out: &[OmittedFeature], context: &CommandContext) {
    for OmittedFeature { feature, missing_in } in left_out {
        let (feature, machines) = (feature.name(), missing_in.join(", "));
        context.output.note(&format!("not comparing {feature}, which is unknown for {machines}"));
    }
}

/// Warns about machines whose values are in doubt.
fn warn_of_doubts<'a>(entries: impl IntoIterator<Item = &'a MachineEntry>, context: &CommandContext) {
    for entry in entries {
        if let Some(doubts) = entry.doubts() {
            context.output.note(&format!("warning: the values of {} are in doubt: {doubts}", entry.name));
        }
    }
}

/// Formats a value with its unit. Whole values and values of at least 1000 have no decimals. Other values have two
/// decimals, because further digits would differ between repeated measurements.
fn figure(value: f64, unit: &str) -> String {
    let digits = if value.fract() == 0.0 || value >= 1000.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

/// The results of `machines probe`.
#[derive(Serialize)]
struct MachineProbeReport {
    schema: &'static str,
    machine: Machine,
    quantities: Vec<ProbedQuantity>,
    conditions: RunReliabilityReport,
}

/// One quantity, and how it was obtained.
#[derive(Serialize)]
struct ProbedQuantity {
    name: &'static str,
    /// The value; `None` if it was not measured.
    value: Option<f64>,
    unit: &'static str,
    /// How the value was obtained, or why it was not measured.
    how: String,
}

impl ProbedQuantity {
    fn new(name: &'static str, value: f64, unit: &'static str, how: impl Into<String>) -> Self {
        ProbedQuantity { name, value: Some(value), unit, how: how.into() }
    }

    fn unknown(name: &'static str, unit: &'static str, why: impl Into<String>) -> Self {
        ProbedQuantity { name, value: None, unit, how: why.into() }
    }
}

impl fmt::Display for MachineProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ProbedQuantity { name, value, unit, how } in &self.quantities {
            let text = value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.1} {unit}"));
            writeln!(f, "{name:<15} {text:>16}  {how}")?;
        }
        write!(f, "{}", self.conditions)
    }
}

/// The schema name in the JSON.
const SIMILARITIES_SCHEMA: &str = "fordway.similarities";

/// The similarities between two catalogues, with the most similar pairs.
#[derive(Serialize)]
struct SimilarityReport {
    schema: &'static str,
    /// The features compared; `None` if only the similarities are known.
    features: Option<Vec<MachineFeature>>,
    left_out: Vec<OmittedFeature>,
    #[serde(flatten)]
    table: SimilarityTable,
    at_least: f64,
    pairs: Vec<MachinePairSimilarity>,
    #[serde(skip)]
    best: Option<MachinePairSimilarity>,
}

fn compare(args: &SimilarityArgs, context: &CommandContext) -> Result<CommandExit> {
    let (choice, table) = match (&args.table, &args.rows) {
        (Some(file), _) => (None, parsed(file, SimilarityTable::parse)?),
        (None, Some(rows)) => {
            let rows = catalogue(rows)?;
            let columns = args.columns.as_deref().map(catalogue).transpose()?;
            warn_of_doubts(rows.entries(), context);
            warn_of_doubts(columns.iter().flat_map(MachineCatalogue::entries), context);
            let columns = columns.unwrap_or_else(|| rows.clone());
            let (choice, table) = similarities(&rows, &columns, &args.features)?;
            (Some(choice), table)
        }
        (None, None) => return Err(Error::new(ErrorKind::InvalidArgument, "give a catalogue, or a --table")),
    };
    if let Some(file) = &args.heat_map {
        let svg = heat_map(&table, "Similarity of machines: 1 is equal");
        fs::write(file, svg).map_err(|error| file_error("writing", file.display(), error))?;
    }
    let comparison = SimilarityReport::new(choice, table, args.at_least);
    warn_of_left_out(&comparison.left_out, context);
    context.output.record(&comparison)?;
    Ok(CommandExit::Ok)
}

fn similarities(
    rows: &MachineCatalogue,
    columns: &MachineCatalogue,
    asked: &[MachineFeature],
) -> Result<(CommonFeatures, SimilarityTable)> {
    let choice = CommonFeatures::of(rows.entries().iter().chain(columns.entries()), asked)?;
    let table = SimilarityTable::of(rows, columns, &choice)?;
    Ok((choice, table))
}

impl SimilarityReport {
    fn new(choice: Option<CommonFeatures>, table: SimilarityTable, at_least: f64) -> Self {
        let (features, left_out) =
            choice.map_or((None, Vec::new()), |choice| (Some(choice.features), choice.left_out));
        let mut pairs = table.pairs();
        let best = pairs.first().cloned();
        pairs.retain(|pair| pair.similarity >= at_least);
        SimilarityReport { schema: SIMILARITIES_SCHEMA, features, left_out, table, at_least, pairs, best }
    }
}

impl fmt::Display for SimilarityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(features) = &self.features {
            let names: Vec<&str> = features.iter().map(|feature| feature.name()).collect();
            write!(f, "Similarity by {}\n\n", names.join(", "))?;
        }
        write!(f, "{}\n\n", self.table)?;
        let line = |MachinePairSimilarity { row, column, similarity }: &MachinePairSimilarity| {
            format!("{similarity:.2}  {row}  {column}")
        };
        match (self.pairs.len(), &self.best) {
            (0, Some(best)) => {
                write!(
                    f,
                    "No pair has a similarity of at least {}; the most similar:\n{}",
                    self.at_least,
                    line(best)
                )
            }
            (0, None) => write!(f, "There are no pairs"),
            (count, _) => {
                let lines: Vec<String> = self.pairs.iter().map(line).collect();
                write!(
                    f,
                    "Pairs with a similarity of at least {}: {count}\n{}",
                    self.at_least,
                    lines.join("\n")
                )
            }
        }
    }
}

/// The schema name in the JSON.
const PICK_SCHEMA: &str = "fordway.pick";

/// All machines that meet the conditions, most similar first.
#[derive(Serialize)]
struct MachineSimilarityRanking {
    schema: &'static str,
    like: String,
    left_out: Vec<OmittedFeature>,
    candidates: Vec<RankedMachine>,
}

#[derive(Serialize)]
struct RankedMachine {
    name: String,
    similarity: f64,
    features: Vec<FeatureComparison>,
}

/// One feature, compared between two machines.
#[derive(Serialize)]
struct FeatureComparison {
    feature: MachineFeature,
    like: f64,
    value: f64,
    /// The smaller value divided by the larger value.
    ratio: f64,
}

fn pick(args: &PickArgs, context: &CommandContext) -> Result<CommandExit> {
    let within = catalogue(&args.within)?;
    let like = match &args.of {
        Some(file) => catalogue(file)?.get(&args.like)?.clone(),
        None => within.get(&args.like)?.clone(),
    };
    let allowed = allowed(&within, args, &like);
    if allowed.is_empty() {
        let none = format!("no machine of {} meets the conditions", args.within.display());
        context.output.note(&none);
        return Ok(CommandExit::Failure);
    }
    warn_of_doubts(allowed.iter().copied().chain([&like]), context);
    let ranking = rank(like, &allowed, &args.features)?;
    warn_of_left_out(&ranking.left_out, context);
    context.output.record(&ranking)?;
    Ok(CommandExit::Ok)
}

/// Returns the machines that meet the conditions. A machine without a value for a feature does not meet any condition
/// on that feature.
fn allowed<'a>(within: &'a MachineCatalogue, args: &PickArgs, like: &MachineEntry) -> Vec<&'a MachineEntry> {
    let fulfils = |entry: &MachineEntry| {
        let is_large = |(feature, least): &(MachineFeature, f64)| {
            entry.get(*feature).is_some_and(|value| value >= *least)
        };
        let is_small =
            |(feature, most): &(MachineFeature, f64)| entry.get(*feature).is_some_and(|value| value <= *most);
        args.at_least.iter().all(is_large) && args.at_most.iter().all(is_small)
    };
    // If both machines are from one catalogue, leave out the given machine, which is most similar to itself.
    let is_itself = |entry: &MachineEntry| args.of.is_none() && entry.name == like.name;
    within.entries().iter().filter(|entry| fulfils(entry) && !is_itself(entry)).collect()
}

fn rank(
    like: MachineEntry,
    allowed: &[&MachineEntry],
    asked: &[MachineFeature],
) -> Result<MachineSimilarityRanking> {
    let choice = CommonFeatures::of(allowed.iter().copied().chain([&like]), asked)?;
    let candidates = allowed.iter().map(|entry| candidate(entry, &like, &choice));
    let mut candidates = candidates.collect::<Result<Vec<_>>>()?;
    candidates.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
    Ok(MachineSimilarityRanking {
        schema: PICK_SCHEMA,
        like: like.name,
        left_out: choice.left_out,
        candidates,
    })
}

fn candidate(entry: &MachineEntry, like: &MachineEntry, choice: &CommonFeatures) -> Result<RankedMachine> {
    let similarity = choice.similarity(entry, like);
    let missing = || Error::new(ErrorKind::InvalidArgument, "a compared feature is missing");
    let compared = |feature: &MachineFeature| {
        let (like, value) = (like.get(*feature)?, entry.get(*feature)?);
        Some(FeatureComparison { feature: *feature, like, value, ratio: ratio(like, value) })
    };
    Ok(RankedMachine {
        name: entry.name.clone(),
        similarity: similarity.ok_or_else(missing)?,
        features: choice.features.iter().filter_map(compared).collect(),
    })
}

impl fmt::Display for MachineSimilarityRanking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Most similar to {}:", self.like)?;
        for RankedMachine { name, similarity, .. } in &self.candidates {
            write!(f, "\n{similarity:.2}  {name}")?;
        }
        let Some(best) = self.candidates.first() else { return Ok(()) };
        let width = |name: &str| name.chars().count().max(14);
        let (left, right) = (width(&self.like), width(&best.name));
        write!(f, "\n\n{:<22}  {:>left$}  {:>right$}  ratio", "feature", self.like, best.name)?;
        for FeatureComparison { feature, like, value, ratio } in &best.features {
            let [like, value] = [like, value].map(|value| figure(*value, feature.unit()));
            write!(f, "\n{:<22}  {like:>left$}  {value:>right$}   {ratio:.2}", feature.name())?;
        }
        Ok(())
    }
}
