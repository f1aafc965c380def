//! The directory of a command's run.

use std::path::Path;

use fordway_command::file_error;
use fordway_measure::{RunDocument, RunRecords};
use fordway_store::{Error, ErrorKind, Result};
pub(super) use fordway_workload::run_output::check;

/// Writes `run` with its records to `dir`. Errors: an error of the kind that corresponds to the failure, such as
/// `NoSpace`.
pub(super) fn write(dir: &Path, run: &RunDocument, records: &RunRecords) -> Result<()> {
    write_with(dir, run, records, None)
}

/// Like [`write`], but also writes another file. `further` contains the name and the content of that file.
pub(super) fn write_with(
    dir: &Path,
    run: &RunDocument,
    records: &RunRecords,
    further: Option<(&'static str, &[u8])>,
) -> Result<()> {
    run.write_with(dir, records, further).map_err(|error| match error.into_io() {
        Ok(cause) => file_error("writing the run to", dir.display(), cause),
        Err(error) => Error::new(ErrorKind::Io, error.to_string()),
    })
}
