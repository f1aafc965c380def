//! A published table, recomputed.

use fordway_store::Result;
use fordway_workload::speedup::{RICHTER, check};

use crate::context::Context;
use crate::exit::{Exit, file_error};

/// The name of the table that is built in.
const BUILT_IN: &str = "richter";

/// Answers `Corrupt` if something printed does not follow from the times.
pub(super) fn run(table: &str, context: &Context) -> Result<Exit> {
    let text = match table {
        BUILT_IN => RICHTER.to_owned(),
        file => std::fs::read_to_string(file).map_err(|error| file_error("reading", file, error))?,
    };
    let rows = check(&text)?;
    let [ranks, wall, s, e, computed] = ["n", "wall s", "S", "E %", "= "];
    context
        .output
        .text(&format!("{:<54} {ranks:>4} {wall:>7} {s:>7} {computed:>7} {e:>7} {computed:>7}", "set-up"))?;
    for row in &rows {
        context.output.record(row)?;
    }
    let wrong = rows.iter().filter(|row| row.problem().is_some()).count();
    context.output.text(&format!(
        "\n=: T(first row) / T, and that / n. {wrong} of {} rows are not what their times say.",
        rows.len()
    ))?;
    // A published table is not ours to fail by.
    Ok(if wrong == 0 || table == BUILT_IN { Exit::Ok } else { Exit::Corrupt })
}
