//! Computes the similarity of two machines in chosen features, and compares all machines of two catalogues in a table
//! or a picture.

use std::fmt::{self, Write};

use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{MachineCatalogue, MachineEntry, MachineFeature};

/// Returns the ratio of the smaller to the larger of two positive numbers.
pub fn ratio(one: f64, other: f64) -> f64 {
    one.min(other) / one.max(other)
}

/// Returns the similarity of two machines, given their features in the same order: 1 for equal machines, and closer to
/// 0 the more they differ. The formula is eq. 2 of Kratzke and Quint 2016: 1 minus the mean of the squared differences
/// between 1 and each [`ratio`]. The similarity does not depend on units, or on whether high or low values of a feature
/// are better. For a similarity `s`, `sqrt(1 - s)` is a metric.
///
/// Returns `None` if there is nothing to compare: the lengths differ or are 0, or a feature is not positive.
pub fn similarity(one: &[f64], other: &[f64]) -> Option<f64> {
    let is_feature = |value: &f64| value.is_finite() && *value > 0.0;
    let is_comparable = one.len() == other.len() && !one.is_empty();
    if !is_comparable || !one.iter().chain(other).all(is_feature) {
        return None;
    }
    let lacks = one.iter().zip(other).map(|(one, other)| (1.0 - ratio(*one, *other)).powi(2));
    Some(1.0 - lacks.sum::<f64>() / one.len() as f64)
}

/// The features that all machines of a comparison have. A similarity is a mean over features, so similarities are
/// comparable only if they cover the same features.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommonFeatures {
    /// The features that are compared.
    pub features: Vec<MachineFeature>,
    /// The features that are not compared, because some machines lack them.
    pub left_out: Vec<OmittedFeature>,
}

/// A feature that only some of the machines have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OmittedFeature {
    /// The feature that is not compared.
    pub feature: MachineFeature,
    /// The names of the machines without the feature.
    pub missing_in: Vec<String>,
}

impl CommonFeatures {
    /// Returns the features that all `entries` have, or exactly the features in `asked` if `asked` is not empty.
    /// Errors: `InvalidArgument` if a machine lacks a requested feature, or if the machines have no feature in common.
    pub fn of<'a>(
        entries: impl IntoIterator<Item = &'a MachineEntry>,
        asked: &[MachineFeature],
    ) -> Result<Self> {
        let entries: Vec<&MachineEntry> = entries.into_iter().collect();
        let lacking = |feature: MachineFeature| -> Vec<String> {
            let without = entries.iter().filter(|entry| entry.get(feature).is_none());
            without.map(|entry| entry.name.clone()).collect()
        };
        let mut choice = CommonFeatures { features: Vec::new(), left_out: Vec::new() };
        for &feature in MachineFeature::ALL {
            let missing_in = lacking(feature);
            match asked.contains(&feature) {
                true if !missing_in.is_empty() => return Err(missing(feature, &missing_in)),
                false if !asked.is_empty() => {}
                _ if missing_in.is_empty() => choice.features.push(feature),
                _ if missing_in.len() < entries.len() => {
                    choice.left_out.push(OmittedFeature { feature, missing_in })
                }
                _ => {}
            }
        }
        if entries.is_empty() || choice.features.is_empty() {
            let why = "the machines have no feature in common; measure one of them again with `fordway machines measure`";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(choice)
    }

    /// Returns the similarity of two of the machines.
    pub fn similarity(&self, one: &MachineEntry, other: &MachineEntry) -> Option<f64> {
        similarity(&self.vector(one)?, &self.vector(other)?)
    }

    fn vector(&self, entry: &MachineEntry) -> Option<Vec<f64>> {
        self.features.iter().map(|feature| entry.get(*feature)).collect()
    }
}

fn missing(feature: MachineFeature, machines: &[String]) -> Error {
    let (feature, machines) = (feature.name(), machines.join(", "));
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{feature} is not known for {machines}; compare other features"),
    )
}

/// Similarities from 0 to 1; `values` has one row for each name in `rows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimilarityTable {
    /// The names of the machines in the rows.
    pub rows: Vec<String>,
    /// The names of the machines in the columns; equal to `rows` if a catalogue is compared with itself.
    pub columns: Vec<String>,
    /// The similarities, by row and column.
    pub values: Vec<Vec<f64>>,
}

/// Two machines and their similarity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachinePairSimilarity {
    /// The machine of the row.
    pub row: String,
    /// The machine of the column.
    pub column: String,
    /// The similarity of the two machines.
    pub similarity: f64,
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

impl SimilarityTable {
    /// Compares every machine of one catalogue with every machine of the other.
    /// Errors: `InvalidArgument` if a chosen feature is missing.
    pub fn of(rows: &MachineCatalogue, columns: &MachineCatalogue, choice: &CommonFeatures) -> Result<Self> {
        let names = |of: &MachineCatalogue| of.entries().iter().map(|entry| entry.name.clone()).collect();
        let missing = || invalid("a compared feature is missing".to_owned());
        let row = |row| {
            let cell = |column| choice.similarity(row, column).ok_or_else(missing);
            columns.entries().iter().map(cell).collect()
        };
        let values = rows.entries().iter().map(row).collect::<Result<_>>()?;
        Ok(SimilarityTable { rows: names(rows), columns: names(columns), values })
    }

    /// Parses a table in TOML, with the keys `rows`, `columns` and `values`.
    /// Errors: `InvalidArgument` unless there is a value from 0 to 1 for each row and column.
    pub fn parse(text: &str) -> Result<Self> {
        let read = toml::from_str(text);
        let table: SimilarityTable = read.map_err(|error| {
            invalid("not a table of similarities; write rows, columns and values".to_owned()).caused_by(error)
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
                return Err(invalid(format!("{name}: {bad} is not a similarity; these are from 0 to 1")));
            }
        }
        Ok(table)
    }

    /// Returns all pairs, most similar first. If a catalogue is compared with itself, each pair occurs once, and no
    /// machine is paired with itself.
    pub fn pairs(&self) -> Vec<MachinePairSimilarity> {
        let is_equal = |at: usize| self.values[at].get(at) == Some(&1.0);
        // Equal names do not prove that the catalogues are identical. The catalogues may describe the same machines at
        // different times.
        let is_of_itself = self.rows == self.columns && (0..self.rows.len()).all(is_equal);
        let mut pairs = Vec::new();
        for (at, (row, values)) in self.rows.iter().zip(&self.values).enumerate() {
            let first = if is_of_itself { at + 1 } else { 0 };
            let cells = self.columns.iter().zip(values).skip(first);
            pairs.extend(cells.map(|(column, similarity)| MachinePairSimilarity {
                row: row.clone(),
                column: column.clone(),
                similarity: *similarity,
            }));
        }
        pairs.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
        pairs
    }
}

/// Returns the character for a cell; darker means more similar.
fn shade(similarity: f64) -> char {
    match similarity {
        s if s >= 0.9 => '█',
        s if s >= 0.8 => '▓',
        s if s >= 0.65 => '▒',
        s if s >= 0.5 => '░',
        _ => ' ',
    }
}

/// Formats a table of numbers as shaded cells. Columns are numbered, and a legend below the table lists their names.
impl fmt::Display for SimilarityTable {
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

const CELL_WIDTH: usize = 44;
const CELL_HEIGHT: usize = 24;
/// A generous estimate of a character's width at a font size of 12 px.
const LETTER_WIDTH: usize = 8;
const TITLE_HEIGHT: usize = 32;
/// Cells with at least this similarity are dark, with white text.
const DARK: f64 = 0.6;

/// Draws a table as an SVG picture: white is 0, dark blue is 1. Names may contain arbitrary characters.
pub fn heat_map(table: &SimilarityTable, title: &str) -> String {
    let widest =
        |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0) * LETTER_WIDTH;
    let (left, top) = (widest(&table.rows) + 16, TITLE_HEIGHT + widest(&table.columns) + 8);
    let width = (left + CELL_WIDTH * table.columns.len() + 16).max(title.chars().count() * LETTER_WIDTH + 32);
    let height = top + CELL_HEIGHT * table.rows.len() + 16;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"22\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (at, name) in table.columns.iter().enumerate() {
        let (x, y) = (left + CELL_WIDTH * at + CELL_WIDTH / 2 + 4, top - 6);
        let _ = writeln!(svg, "<text transform=\"translate({x} {y}) rotate(-90)\">{}</text>", escaped(name));
    }
    for (at, name) in table.rows.iter().enumerate() {
        let y = top + CELL_HEIGHT * at;
        let (x, baseline) = (left - 8, y + 16);
        let _ =
            writeln!(svg, "<text x=\"{x}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>", escaped(name));
        row(&mut svg, table, at, (left, y));
    }
    svg + "</svg>\n"
}

fn row(svg: &mut String, table: &SimilarityTable, at: usize, (left, y): (usize, usize)) {
    for (number, (column, value)) in table.columns.iter().zip(&table.values[at]).enumerate() {
        let x = left + CELL_WIDTH * number;
        let (centre, baseline) = (x + CELL_WIDTH / 2, y + 16);
        let (fill, ink) = (colour(*value), if *value >= DARK { "white" } else { "black" });
        let tip = escaped(&format!("{} and {column}: {value:.3}", table.rows[at]));
        let _ = writeln!(
            svg,
            "<g><title>{tip}</title><rect x=\"{x}\" y=\"{y}\" width=\"{CELL_WIDTH}\" height=\"{CELL_HEIGHT}\" fill=\"{fill}\"/>\
             <text x=\"{centre}\" y=\"{baseline}\" text-anchor=\"middle\" fill=\"{ink}\">{value:.2}</text></g>"
        );
    }
}

/// Returns a colour from white to dark blue. Uses the square of the similarity, because differences near 1 matter most.
fn colour(similarity: f64) -> String {
    let share = similarity * similarity;
    let channel = |dark: f64| (255.0 + (dark - 255.0) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", channel(8.0), channel(48.0), channel(107.0))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::MachineCatalogue;

    const ROUNDING: f64 = 1e-12;

    /// The similarities must equal values computed by hand, for ratios of one half and one quarter.
    #[test]
    fn as_computed_by_hand() {
        assert_eq!(similarity(&[1.0], &[2.0]), Some(0.75));
        assert_eq!(similarity(&[4.0], &[1.0]), Some(1.0 - 0.5625));
        // 1 - (0 + 1/4 + 9/16) / 3
        let three = similarity(&[3.0, 1.0, 8.0], &[3.0, 2.0, 2.0]).unwrap();
        assert!((three - (1.0 - 0.8125 / 3.0)).abs() < ROUNDING, "{three}");
        // Six of the seven features are equal, and the ratio of the seventh is nearly 0, so the similarity is 6/7.
        let seventh = similarity(&[1.0; 7], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e-15]).unwrap();
        assert!((seventh - 6.0 / 7.0).abs() < ROUNDING, "{seventh}");
    }

    #[test]
    fn what_cannot_be_compared_has_no_similarity() {
        for (one, other) in [
            (&[][..], &[][..]),
            (&[1.0], &[1.0, 2.0]),
            (&[0.0], &[0.0]),
            (&[1.0], &[0.0]),
            (&[-1.0], &[1.0]),
            (&[f64::NAN], &[1.0]),
            (&[f64::INFINITY], &[f64::INFINITY]),
        ] {
            assert_eq!(similarity(one, other), None, "{one:?} {other:?}");
        }
    }

    fn feature() -> impl Strategy<Value = f64> {
        (-6.0..9.0f64).prop_map(|power| 10f64.powf(power))
    }

    /// Generates three machines with the same features.
    fn machines() -> impl Strategy<Value = [Vec<f64>; 3]> {
        (1..12usize)
            .prop_flat_map(|count| [vec(feature(), count), vec(feature(), count), vec(feature(), count)])
    }

    proptest! {
        #[test]
        fn symmetric_within_bounds_and_1_with_itself([a, b, _] in machines()) {
            let s = similarity(&a, &b).unwrap();
            prop_assert_eq!(similarity(&b, &a).unwrap(), s);
            prop_assert!((0.0..=1.0).contains(&s));
            prop_assert_eq!(similarity(&a, &a).unwrap(), 1.0);
        }

        /// The result must not depend on the unit, or on whether a feature is a time or a rate.
        #[test]
        fn units_and_reciprocals_do_not_matter([a, b, units] in machines(), inverted: u16) {
            let s = similarity(&a, &b).unwrap();
            let scaled = |v: &[f64]| v.iter().zip(&units).map(|(v, unit)| v * unit).collect::<Vec<_>>();
            prop_assert!((similarity(&scaled(&a), &scaled(&b)).unwrap() - s).abs() < ROUNDING);
            let is_inverted = |at: usize| inverted >> at & 1 == 1;
            let turned = |v: &[f64]| {
                let turn = |(at, v): (usize, &f64)| if is_inverted(at) { v.recip() } else { *v };
                v.iter().enumerate().map(turn).collect::<Vec<_>>()
            };
            prop_assert!((similarity(&turned(&a), &turned(&b)).unwrap() - s).abs() < ROUNDING);
        }

        #[test]
        fn the_root_of_what_lacks_is_a_metric([a, b, c] in machines()) {
            let distance = |a: &[f64], b: &[f64]| (1.0 - similarity(a, b).unwrap()).sqrt();
            prop_assert!(distance(&a, &c) <= distance(&a, &b) + distance(&b, &c) + ROUNDING);
            prop_assert!(a == b || distance(&a, &b) > 0.0);
        }

        /// The more a feature of a machine is changed, the less similar the machine is to the original.
        #[test]
        fn further_is_less_similar([a, _, _] in machines(), more in 1.01..10.0f64, at: prop::sample::Index) {
            let at = at.index(a.len());
            let times = |factor: f64| {
                let mut changed = a.clone();
                changed[at] *= factor;
                changed
            };
            let s = |factor| similarity(&a, &times(factor)).unwrap();
            prop_assert!(s(more * more) < s(more) && s(more) < 1.0);
        }
    }

    const TWO: &str =
        "[machine.a]\nthreads = 2\nmemory_mb = 100\n[machine.b]\nthreads = 4\ndisk_read_mb_per_s = 5";

    #[test]
    fn what_all_have_is_compared_and_the_rest_is_told() {
        let catalogue = MachineCatalogue::parse(TWO).unwrap();
        let choice = CommonFeatures::of(catalogue.entries(), &[]).unwrap();
        assert_eq!(choice.features, [MachineFeature::Threads]);
        let left_out = |feature, name: &str| OmittedFeature { feature, missing_in: vec![name.to_owned()] };
        assert_eq!(
            choice.left_out,
            [left_out(MachineFeature::Memory, "b"), left_out(MachineFeature::DiskRead, "a")]
        );
        let (a, b) = (catalogue.get("a").unwrap(), catalogue.get("b").unwrap());
        assert_eq!(choice.similarity(a, b), Some(0.75));
    }

    #[test]
    fn nothing_in_common_is_an_error() {
        let catalogue = MachineCatalogue::parse("machine.a.threads = 2\nmachine.b.memory_mb = 4").unwrap();
        let error = CommonFeatures::of(catalogue.entries(), &[]).expect_err("nothing was compared");
        assert!(error.to_string().contains("no feature in common"), "{error}");
        assert!(CommonFeatures::of([], &[]).is_err());
    }

    #[test]
    fn an_asked_feature_must_be_there() {
        let catalogue = MachineCatalogue::parse(TWO).unwrap();
        let choice = CommonFeatures::of(catalogue.entries(), &[MachineFeature::Threads]).unwrap();
        assert_eq!((choice.features, choice.left_out), (vec![MachineFeature::Threads], vec![]));
        let error = CommonFeatures::of(catalogue.entries(), &[MachineFeature::Memory])
            .expect_err("b has no memory_mb");
        assert!(error.to_string().contains("memory_mb is not known for b"), "{error}");
    }

    fn catalogue(text: &str) -> MachineCatalogue {
        MachineCatalogue::parse(text).unwrap()
    }

    #[test]
    fn every_machine_with_every_other() {
        let (one, other) = (
            catalogue("machine.a.threads = 8\nmachine.b.threads = 4"),
            catalogue("machine.c.threads = 4\nmachine.d.threads = 2\nmachine.e.threads = 1"),
        );
        let choice = CommonFeatures::of(one.entries().iter().chain(other.entries()), &[]).unwrap();
        let table = SimilarityTable::of(&one, &other, &choice).unwrap();
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
        let table =
            SimilarityTable::of(&one, &one, &CommonFeatures::of(one.entries(), &[]).unwrap()).unwrap();
        let pairs: Vec<_> = table.pairs().into_iter().map(|pair| pair.row + &pair.column).collect();
        assert_eq!(pairs, ["bc", "ab", "ac"]);
        let later = catalogue("machine.a.threads = 8\nmachine.b.threads = 4\nmachine.c.threads = 2");
        let table =
            SimilarityTable::of(&one, &later, &CommonFeatures::of(one.entries(), &[]).unwrap()).unwrap();
        assert_eq!(table.pairs().len(), 9);
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        for (text, told) in [
            ("rows = 1", "not a table"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = []", "0 rows of values for 1"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[0.5, 0.5]]", "a: 2 values for 1 columns"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[1.5]]", "a: 1.5 is not a similarity"),
            ("rows = ['a']\ncolumns = ['b']\nvalues = [[nan]]", "not a similarity"),
        ] {
            let error = SimilarityTable::parse(text).expect_err("it was taken");
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn every_cell_is_drawn_and_names_are_escaped() {
        let table = SimilarityTable {
            rows: vec!["a<b".to_owned(), "c".to_owned()],
            columns: vec!["d&\"e".to_owned()],
            values: vec![vec![0.0], vec![1.0]],
        };
        let svg = heat_map(&table, "Rows > columns");
        assert_eq!((svg.matches("<rect x=").count(), svg.matches("<g>").count()), (2, 2));
        assert!(svg.contains("<title>a&lt;b and d&amp;&quot;e: 0.000</title>"), "{svg}");
        assert!(svg.contains("Rows &gt; columns") && !svg.contains("a<b"), "{svg}");
        assert!(svg.contains("fill=\"#ffffff\"") && svg.contains("fill=\"#08306b\""), "{svg}");
    }

    /// Returns Table IV of Kratzke and Quint, as reference data.
    fn table_iv() -> SimilarityTable {
        SimilarityTable::parse(include_str!("../../../contrib/catalogues/kratzke-quint-table-iv.toml"))
            .unwrap()
    }

    #[test]
    fn table_iv_has_the_printed_size_and_corners() {
        let table = table_iv();
        assert_eq!((table.rows.len(), table.columns.len()), (28, 18));
        assert_eq!((table.rows[0].as_str(), table.rows[27].as_str()), ("m4.10xlarge", "t2.micro"));
        assert_eq!((table.columns[0].as_str(), table.columns[17].as_str()), ("n1-highmem-32", "f1-micro"));
        let corners = [table.values[0][0], table.values[0][17], table.values[27][0], table.values[27][17]];
        assert_eq!(corners, [0.67, 0.13, 0.31, 0.46]);
        assert_eq!(heat_map(&table, "Table IV").matches("<g>").count(), 504);
    }

    /// Kratzke and Quint also conclude that exactly three pairs are similar.
    #[test]
    fn exactly_three_pairs_of_table_iv_are_similar() {
        let similar: Vec<_> = table_iv().pairs().into_iter().filter(|pair| pair.similarity >= 0.90).collect();
        let similar: Vec<_> =
            similar.iter().map(|p| (p.row.as_str(), p.column.as_str(), p.similarity)).collect();
        let expected = [
            ("m3.large", "n1-standard-2", 0.98),
            ("m3.2xlarge", "n1-standard-8", 0.96),
            ("m3.xlarge", "n1-standard-4", 0.96),
        ];
        assert_eq!(similar, expected);
    }

    /// The distances satisfy the triangle inequality, apart from rounding to two digits. A transcription error in a
    /// value near 1 would violate the inequality; an error in a low value might not.
    #[test]
    fn the_distances_of_table_iv_are_those_of_a_metric() {
        let table = table_iv();
        let root = |value: f64| value.max(0.0).sqrt();
        let least = |row: usize, column: usize| root(1.0 - table.values[row][column] - 0.005);
        let most = |row: usize, column: usize| root(1.0 - table.values[row][column] + 0.005);
        for (a, b) in (0..28).flat_map(|a| (0..28).map(move |b| (a, b))) {
            for (g, h) in (0..18).flat_map(|g| (0..18).map(move |h| (g, h))) {
                let way_round = most(a, h) + most(b, h) + most(b, g);
                assert!(least(a, g) <= way_round, "{} {}", table.rows[a], table.columns[g]);
            }
        }
    }
}
