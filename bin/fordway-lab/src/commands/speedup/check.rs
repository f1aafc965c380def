//! A published table, recomputed.

use fordway_command::{Context, Exit, file_error};
use fordway_store::Result;
use fordway_workload::speedup::{RICHTER, check};

/// The name of the table that is built in.
const BUILT_IN: &str = "richter";

/// Answers `Corrupt` if something printed does not follow from the times.
pub(super) fn run(table: &str, context: &Context) -> Result<Exit> {
    let text = match table {
        BUILT_IN => RICHTER.to_owned(),
        file => std::fs::read_to_string(file).map_err(|error| file_error("reading", file, error))?,
    };
    let rows = check(&text)?;
    let headings = ["n", "wall s", "S", "= S", "E %", "= E %"];
    let [ranks, wall, speedup, own_speedup, efficiency, own_efficiency] = headings;
    context.output.text(&format!(
        "{:<56} {ranks:>2} {wall:>6} {speedup:>5} {own_speedup:>5} {efficiency:>4} {own_efficiency:>6}",
        "set-up"
    ))?;
    for row in &rows {
        context.output.record(row)?;
    }
    let wrong = rows.iter().filter(|row| row.problem().is_some()).count();
    context.output.text(&format!(
        "\n= S: time of the first row / time; = E: = S / n. {wrong} of {} rows are not what their times say.",
        rows.len()
    ))?;
    // A published table is not ours to fail by.
    Ok(if wrong == 0 || table == BUILT_IN { Exit::Ok } else { Exit::Corrupt })
}
