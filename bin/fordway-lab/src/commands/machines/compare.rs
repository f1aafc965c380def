//! `machines compare`: how similar the machines of two catalogues are.

use std::fmt;
use std::fs;

use fordway_command::{Context, Exit, file_error};
use fordway_machine::{Catalogue, Choice, Feature, LeftOut, Pair, Table, heat_map};
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use super::{catalogue, parsed, warn_of_left_out};
use crate::args::SimilarityArgs;

/// What the JSON says it is.
const SCHEMA: &str = "fordway.similarities";

/// A table, and the best of it.
#[derive(Serialize)]
struct Comparison {
    schema: &'static str,
    /// `None` where only the similarities are known.
    features: Option<Vec<Feature>>,
    left_out: Vec<LeftOut>,
    #[serde(flatten)]
    table: Table,
    at_least: f64,
    pairs: Vec<Pair>,
    #[serde(skip)]
    best: Option<Pair>,
}

pub(super) fn run(args: &SimilarityArgs, context: &Context) -> Result<Exit> {
    let (choice, table) = match (&args.table, &args.rows) {
        (Some(file), _) => (None, parsed(file, Table::parse)?),
        (None, Some(rows)) => {
            let rows = catalogue(rows)?;
            let columns = args.columns.as_deref().map_or_else(|| Ok(rows.clone()), catalogue)?;
            let (choice, table) = similarities(&rows, &columns, &args.features)?;
            (Some(choice), table)
        }
        (None, None) => return Err(Error::new(ErrorKind::InvalidArgument, "name a catalogue, or a --table")),
    };
    if let Some(file) = &args.heat_map {
        let svg = heat_map(&table, "Similarity of machines: 1 is equal");
        fs::write(file, svg).map_err(|error| file_error("writing", file.display(), error))?;
    }
    let comparison = Comparison::new(choice, table, args.at_least);
    warn_of_left_out(&comparison.left_out, context);
    context.output.record(&comparison)?;
    Ok(Exit::Ok)
}

fn similarities(rows: &Catalogue, columns: &Catalogue, asked: &[Feature]) -> Result<(Choice, Table)> {
    let choice = Choice::of(rows.entries().iter().chain(columns.entries()), asked)?;
    let table = Table::of(rows, columns, &choice)?;
    Ok((choice, table))
}

impl Comparison {
    fn new(choice: Option<Choice>, table: Table, at_least: f64) -> Self {
        let (features, left_out) =
            choice.map_or((None, Vec::new()), |choice| (Some(choice.features), choice.left_out));
        let mut pairs = table.pairs();
        let best = pairs.first().cloned();
        pairs.retain(|pair| pair.similarity >= at_least);
        Comparison { schema: SCHEMA, features, left_out, table, at_least, pairs, best }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(features) = &self.features {
            let names: Vec<&str> = features.iter().map(|feature| feature.name()).collect();
            write!(f, "Similarity by {}\n\n", names.join(", "))?;
        }
        write!(f, "{}\n\n", self.table)?;
        let line = |Pair { row, column, similarity }: &Pair| format!("{similarity:.2}  {row}  {column}");
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
