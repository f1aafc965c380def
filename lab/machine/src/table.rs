//! The similarities of all machines of two catalogues.

use std::fmt;

use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{Catalogue, Choice};

/// Similarities from 0 to 1, a row of `values` for each of `rows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Names of the machines that the rows are of.
    pub rows: Vec<String>,
    /// Names of the machines that the columns are of; the same as `rows` for a catalogue with itself.
    pub columns: Vec<String>,
    /// The similarities, by row and column.
    pub values: Vec<Vec<f64>>,
}

/// Two machines, and how similar they are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The machine of the row.
    pub row: String,
    /// The machine of the column.
    pub column: String,
    /// Their similarity.
    pub similarity: f64,
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

impl Table {
    /// Compares every machine of one catalogue with every machine of the other.
    /// Errors: `InvalidArgument` if a chosen feature is missing.
    pub fn of(rows: &Catalogue, columns: &Catalogue, choice: &Choice) -> Result<Self> {
        let names = |of: &Catalogue| of.entries().iter().map(|entry| entry.name.clone()).collect();
        let missing = || invalid("a feature that is compared is missing".to_owned());
        let row = |row| {
            let cell = |column| choice.similarity(row, column).ok_or_else(missing);
            columns.entries().iter().map(cell).collect()
        };
        let values = rows.entries().iter().map(row).collect::<Result<_>>()?;
        Ok(Table { rows: names(rows), columns: names(columns), values })
    }

    /// Reads a table that was written down: `rows`, `columns` and `values` in TOML.
    /// Errors: `InvalidArgument` if it has not a value from 0 to 1 for each row and column.
    pub fn parse(text: &str) -> Result<Self> {
        let read = toml::from_str(text);
        let table: Table = read.map_err(|error| {
            invalid("no table of similarities: rows, columns, values".to_owned()).caused_by(error)
        })?;
        if table.values.len() != table.rows.len() {
            return Err(invalid(format!(
                "{} rows of values for {} rows",
                table.values.len(),
                table.rows.len()
            )));
        }
        for (name, values) in table.rows.iter().zip(&table.values) {
            if values.len() != table.columns.len() {
                return Err(invalid(format!(
                    "{name}: {} values for {} columns",
                    values.len(),
                    table.columns.len()
                )));
            }
            if let Some(bad) = values.iter().find(|value| !(0.0..=1.0).contains(*value)) {
                return Err(invalid(format!("{name}: {bad} is no similarity; these are from 0 to 1")));
            }
        }
        Ok(table)
    }

    /// All pairs, the most similar first; of a catalogue with itself each once, and none of a machine with itself.
    pub fn pairs(&self) -> Vec<Pair> {
        let is_equal = |at: usize| self.values[at].get(at) == Some(&1.0);
        // Names alone do not say so: two catalogues may have the same machines at different times.
        let is_of_itself = self.rows == self.columns && (0..self.rows.len()).all(is_equal);
        let mut pairs = Vec::new();
        for (at, (row, values)) in self.rows.iter().zip(&self.values).enumerate() {
            let first = if is_of_itself { at + 1 } else { 0 };
            let cells = self.columns.iter().zip(values).skip(first);
            pairs.extend(cells.map(|(column, similarity)| Pair {
                row: row.clone(),
                column: column.clone(),
                similarity: *similarity,
            }));
        }
        pairs.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
        pairs
    }
}

/// The more similar, the darker.
fn shade(similarity: f64) -> char {
    match similarity {
        s if s >= 0.9 => '█',
        s if s >= 0.8 => '▓',
        s if s >= 0.65 => '▒',
        s if s >= 0.5 => '░',
        _ => ' ',
    }
}

/// Numbers with shades, the columns numbered, and below them what the numbers stand for.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        write!(f, "{:width$}", "")?;
        (1..=self.columns.len()).try_for_each(|number| write!(f, "  {number:>4} "))?;
        for (name, values) in self.rows.iter().zip(&self.values) {
            write!(f, "\n{name:<width$}")?;
            values.iter().try_for_each(|value| write!(f, "  {value:.2}{}", shade(*value)))?;
        }
        let legend = self.columns.iter().enumerate().map(|(at, name)| format!("{} {name}", at + 1));
        write!(f, "\n\n{}", legend.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(text: &str) -> Catalogue {
        Catalogue::parse(text).unwrap()
    }

    #[test]
    fn every_machine_with_every_other() {
        let (one, other) = (
            catalogue("machine.a.threads = 8\nmachine.b.threads = 4"),
            catalogue("machine.c.threads = 4\nmachine.d.threads = 2\nmachine.e.threads = 1"),
        );
        let choice = Choice::of(one.entries().iter().chain(other.entries()), &[]).unwrap();
        let table = Table::of(&one, &other, &choice).unwrap();
        let (half, quarter, eighth) = (0.75, 0.4375, 1.0 - 0.875 * 0.875);
        assert_eq!(table.values, [[half, quarter, eighth], [1.0, half, quarter]]);
        let pairs = table.pairs();
        assert_eq!((pairs.len(), pairs[0].row.as_str(), pairs[0].column.as_str()), (6, "b", "c"));
        assert_eq!(pairs.iter().map(|pair| pair.similarity).collect::<Vec<_>>()[4..], [quarter, eighth]);
        let text = table.to_string();
        assert!(text.contains("b  1.00█  0.75▒  0.44 ") && text.ends_with("1 c, 2 d, 3 e"), "{text}");
    }

    #[test]
    fn a_catalogue_with_itself_has_each_pair_once() {
        let one = catalogue("machine.a.threads = 8\nmachine.b.threads = 4\nmachine.c.threads = 3");
        let table = Table::of(&one, &one, &Choice::of(one.entries(), &[]).unwrap()).unwrap();
        let pairs: Vec<_> = table.pairs().into_iter().map(|pair| pair.row + &pair.column).collect();
        assert_eq!(pairs, ["bc", "ab", "ac"]);
        let later = catalogue("machine.a.threads = 8\nmachine.b.threads = 4\nmachine.c.threads = 2");
        let table = Table::of(&one, &later, &Choice::of(one.entries(), &[]).unwrap()).unwrap();
        assert_eq!(table.pairs().len(), 9);
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        for (text, told) in [
            ("rows = 1", "no table"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = []", "0 rows of values for 1"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[0.5, 0.5]]", "a: 2 values for 1 columns"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[1.5]]", "a: 1.5 is no similarity"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[nan]]", "no similarity"),
        ] {
            let error = Table::parse(text).expect_err("it was taken");
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
    }
}
