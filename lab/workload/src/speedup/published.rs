//! Checks whether the speed-ups and efficiencies that a published table contains follow from the times in the table.

use std::fmt;

use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

/// Table 1 of H. Richter, "About the suitability of clouds in high-performance computing" (2015): `OpenFOAM`'s
/// damBreak with 7,700 points. Set-up 3 did not run.
pub const RICHTER: &str = "\
set-up,ranks,wall_s,speedup,efficiency_percent
\"1a: 1 core, bare metal\",1,144,1,100
\"1b: 4 cores, 2 CPUs, 1 server, bare metal\",4,46,3.1,78
\"2a: 1 core, 1 KVM\",1,180,0.8,80
\"2b: 4 cores, 2 CPUs, 1 server, 1 KVM\",4,62,2.3,58
\"4a: 1 core, 1 KVM, OpenStack\",1,154,0.94,94
\"4b: 4 cores, 2 CPUs, 1 server, 4 KVMs, OpenStack\",4,60,2.4,60
\"5: 4 cores, 4 servers, Ethernet, 4 KVMs, OpenStack\",4,320,0.45,11
\"6: 16 cores, 4 servers, Ethernet, 16 KVMs, OpenStack\",16,670,0.21,5
\"7a: 4 cores, 4 servers, Infiniband, 4 KVMs, OpenStack\",4,237,0.61,15
\"7b: 16 cores, 4 servers, Infiniband, 16 KVMs, OpenStack\",16,998,0.14,4
";

const COLUMNS: [&str; 5] = ["set-up", "ranks", "wall_s", "speedup", "efficiency_percent"];

/// A printed number. Its error is at most half a unit in the last digit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PrintedNumber {
    value: f64,
    half_digit: f64,
}

impl PrintedNumber {
    fn parse(text: &str) -> Option<Self> {
        let value = text.parse().ok().filter(|value: &f64| value.is_finite())?;
        let decimals = text.split_once('.').map_or(0, |(_, behind)| behind.len());
        Some(PrintedNumber { value, half_digit: 0.5 / 10f64.powi(i32::try_from(decimals).ok()?) })
    }

    fn range(self) -> RoundingRange {
        RoundingRange { low: self.value - self.half_digit, high: self.value + self.half_digit }
    }
}

/// The range of values that round to a printed number.
#[derive(Clone, Copy)]
struct RoundingRange {
    low: f64,
    high: f64,
}

impl RoundingRange {
    fn divided_by(self, other: RoundingRange) -> RoundingRange {
        // If the divisor is a time that was rounded to 0, the ratio has no upper bound.
        RoundingRange { low: self.low / other.high, high: self.high / other.low.max(f64::MIN_POSITIVE) }
    }

    fn times(self, factor: f64) -> RoundingRange {
        RoundingRange { low: self.low * factor, high: self.high * factor }
    }

    fn meets(self, other: RoundingRange) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// One row of a table, with the values computed from its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedupRow {
    /// The name of the set-up in the table.
    pub set_up: String,
    /// The number of ranks (cores).
    pub ranks: u32,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// Speed-up as printed; `None` if no speed-up was printed.
    pub printed_speedup: Option<f64>,
    /// The speed-up: the first row's time divided by this row's time.
    pub speedup: f64,
    /// Efficiency as printed, in percent; `None` if no efficiency was printed.
    pub printed_efficiency_percent: Option<f64>,
    /// The efficiency: `speedup / ranks`, in percent.
    pub efficiency_percent: f64,
    /// Whether the printed speed-up follows from the times, allowing for the rounding of all printed numbers; `None` if
    /// no speed-up was printed.
    pub speedup_is_right: Option<bool>,
    /// Whether the printed efficiency follows from the times, allowing for the rounding of all printed numbers; `None`
    /// if no efficiency was printed.
    pub efficiency_is_right: Option<bool>,
}

/// Recomputes a table in CSV with the columns `set-up,ranks,wall_s`, and optionally `speedup` and `efficiency_percent`
/// (a cell is empty if the value was not printed). The first row is the reference. Errors: `InvalidArgument`, which
/// names the line, if `csv` is not a table of this kind.
pub fn check(csv: &str) -> Result<Vec<SpeedupRow>> {
    // Spreadsheets write a byte order mark at the start of a CSV file.
    let csv = csv.strip_prefix('\u{feff}').unwrap_or(csv);
    let mut lines = csv.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let headings = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
    let at = |name: &str| headings.iter().position(|heading| heading == name);
    let mut places = [None; COLUMNS.len()];
    for (place, (number, name)) in places.iter_mut().zip(COLUMNS.iter().enumerate()) {
        *place = at(name);
        if place.is_none() && number < 3 {
            let why =
                format!("column {name:?} is missing; the first line must contain set-up, ranks and wall_s");
            return Err(wrong(1, &why));
        }
    }
    let lines = lines.map(|(number, line)| PrintedSpeedupRow::parse(number + 1, &cells(line), &places));
    let lines = lines.collect::<Result<Vec<PrintedSpeedupRow>>>()?;
    match lines.first() {
        Some(reference) if reference.ranks == 1 => {
            Ok(lines.iter().map(|line| line.against(reference)).collect())
        }
        Some(_) => Err(wrong(2, "the first row is the reference, so it must have 1 rank")),
        None => Err(wrong(2, "there is no row")),
    }
}

fn wrong(line: usize, why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("line {line} of the table: {why}"))
}

/// Splits a line into cells; a cell in quotation marks may contain commas.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match (letter, cells.last_mut()) {
            ('"', _) => is_quoted = !is_quoted,
            (',', _) if !is_quoted => cells.push(String::new()),
            (_, Some(cell)) => cell.push(letter),
            (_, None) => {}
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

struct PrintedSpeedupRow {
    set_up: String,
    ranks: u32,
    wall_s: PrintedNumber,
    speedup: Option<PrintedNumber>,
    efficiency_percent: Option<PrintedNumber>,
}

impl PrintedSpeedupRow {
    fn parse(number: usize, cells: &[String], places: &[Option<usize>; 5]) -> Result<Self> {
        let cell = |column: usize| {
            places[column].and_then(|at| cells.get(at)).map(String::as_str).filter(|text| !text.is_empty())
        };
        let needed =
            |column: usize| cell(column).ok_or_else(|| wrong(number, &format!("no {}", COLUMNS[column])));
        let figure = |column: usize, text: &str| {
            let parsed = PrintedNumber::parse(text).filter(|printed| printed.value > 0.0);
            parsed.ok_or_else(|| wrong(number, &format!("{} is {text:?}, not above 0", COLUMNS[column])))
        };
        let optional = |column: usize| cell(column).map(|text| figure(column, text)).transpose();
        let ranks = needed(1)?;
        let parsed = ranks.parse().ok().filter(|ranks| *ranks > 0);
        Ok(PrintedSpeedupRow {
            set_up: needed(0)?.to_owned(),
            ranks: parsed
                .ok_or_else(|| wrong(number, &format!("ranks is {ranks:?}, not a number above 0")))?,
            wall_s: figure(2, needed(2)?)?,
            speedup: optional(3)?,
            efficiency_percent: optional(4)?,
        })
    }

    fn against(&self, reference: &PrintedSpeedupRow) -> SpeedupRow {
        let speedup = reference.wall_s.value / self.wall_s.value;
        let possible = reference.wall_s.range().divided_by(self.wall_s.range());
        let percent = 100.0 / f64::from(self.ranks);
        let speedup_is_right = self.speedup.map(|printed| printed.range().meets(possible));
        // Also accept an efficiency that the authors computed from the rounded speed-up.
        let right_speedup = self.speedup.filter(|_| speedup_is_right == Some(true)).map(PrintedNumber::range);
        let follows = |printed: PrintedNumber| {
            let mut sources = [Some(possible), right_speedup].into_iter().flatten();
            sources.any(|source| printed.range().meets(source.times(percent)))
        };
        SpeedupRow {
            set_up: self.set_up.clone(),
            ranks: self.ranks,
            wall_s: self.wall_s.value,
            printed_speedup: self.speedup.map(|printed| printed.value),
            speedup,
            printed_efficiency_percent: self.efficiency_percent.map(|printed| printed.value),
            efficiency_percent: speedup * percent,
            speedup_is_right,
            efficiency_is_right: self.efficiency_percent.map(follows),
        }
    }
}

impl SpeedupRow {
    /// Returns a sentence that lists the printed values that do not follow from the times; `None` if all values follow
    /// from the times.
    pub fn problem(&self) -> Option<String> {
        let wrong = |name: &str, printed: String, right: String| {
            format!("{name} is printed as {printed}, but is {right}")
        };
        let speedup = self
            .printed_speedup
            .filter(|_| self.speedup_is_right == Some(false))
            .map(|printed| wrong("S", printed.to_string(), format!("{:.2}", self.speedup)));
        let efficiency = self
            .printed_efficiency_percent
            .filter(|_| self.efficiency_is_right == Some(false))
            .map(|printed| {
                wrong("E", format!("{printed} %"), format!("{:.1} % (S/n)", self.efficiency_percent))
            });
        let all: Vec<String> = [speedup, efficiency].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl fmt::Display for SpeedupRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printed = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        write!(
            f,
            "{:<56} {:>2} {:>6} {:>5} {:>5.2} {:>4} {:>6.1}{}",
            self.set_up,
            self.ranks,
            self.wall_s,
            printed(self.printed_speedup),
            self.speedup,
            printed(self.printed_efficiency_percent),
            self.efficiency_percent,
            self.problem().map(|problem| format!("  {problem}")).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn richter_has_two_rows_that_do_not_follow() {
        let rows = check(RICHTER).unwrap();
        assert_eq!(rows.len(), 10);
        let bad: Vec<_> = rows.iter().filter_map(|row| Some((row.ranks, row.problem()?))).collect();
        assert_eq!(bad.len(), 2, "{bad:?}");
        assert!(bad.iter().all(|(ranks, _)| *ranks == 16));
        assert_eq!(bad[0].1, "E is printed as 5 %, but is 1.3 % (S/n)");
        assert_eq!(bad[1].1, "E is printed as 4 %, but is 0.9 % (S/n)");
        assert!(rows.iter().all(|row| row.speedup_is_right == Some(true)), "{rows:#?}");
    }

    #[test]
    fn what_is_not_printed_is_not_judged() {
        let rows = check("set-up,wall_s,ranks\nalone,10,1\nfour,5,4\n").unwrap();
        assert_eq!((rows[1].speedup, rows[1].efficiency_percent), (2.0, 50.0));
        assert_eq!((rows[1].speedup_is_right, rows[1].efficiency_is_right), (None, None));
        assert_eq!(rows[1].problem(), None);
        let wrong = check("set-up,ranks,wall_s,speedup\na,1,10.00,1\nb,2,8.00,1.4\n").unwrap();
        assert_eq!(wrong[1].problem().unwrap(), "S is printed as 1.4, but is 1.25");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_heading() {
        assert_eq!(check("\u{feff}set-up,ranks,wall_s\na,1,10\n").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_line() {
        for (text, why) in [
            ("", "column \"set-up\" is missing"),
            ("set-up,ranks\na,1\n", "column \"wall_s\" is missing"),
            ("set-up,ranks,wall_s\n", "there is no row"),
            ("set-up,ranks,wall_s\na,4,10\n", "must have 1 rank"),
            ("set-up,ranks,wall_s\na,1,10\nb,0,5\n", "line 3 of the table: ranks is \"0\""),
            ("set-up,ranks,wall_s\na,1,-3\n", "line 2 of the table: wall_s is \"-3\""),
            ("set-up,ranks,wall_s\na,1\n", "no wall_s"),
        ] {
            let error = check(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(why), "{text:?}: {error}");
        }
    }
}
