//! A disk, through its file system.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use fordway_measure::FileSystem;
use fordway_store::Result;
use fordway_sys::drop_cached;

use super::Quantity;
use fordway_command::file_error;

const FILE_BYTES: u64 = 256 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// Errors: from writing to `dir`.
pub(super) fn probe(dir: Option<&Path>) -> Result<Vec<Quantity>> {
    let names = ["disk_write", "disk_read"];
    let Some(dir) = dir else {
        return Ok(names.map(|name| Quantity::unknown(name, "MB/s", "name a directory with --disk")).into());
    };
    let (written, read) = measure(dir).map_err(|error| file_error("measuring", dir.display(), error))?;
    let kind = FileSystem::of("disk", dir).map_or("a file system".to_owned(), |found| found.kind);
    let place = format!("256 MiB in pieces of 1 MiB in {} ({kind})", dir.display());
    let rate = |elapsed: Duration| FILE_BYTES as f64 / elapsed.as_micros().max(1) as f64;
    let mut found =
        vec![Quantity::new(names[0], rate(written), "MB/s", format!("{place}, fdatasync included"))];
    found.push(match kind.as_str() {
        "tmpfs" | "ramfs" => Quantity::unknown(names[1], "MB/s", "tmpfs has no disk to read from"),
        _ => {
            Quantity::new(names[1], rate(read), "MB/s", format!("{place}, after the page cache was dropped"))
        }
    });
    Ok(found)
}

/// How long writing a file and reading it again take. It is gone afterwards.
fn measure(dir: &Path) -> std::io::Result<(Duration, Duration)> {
    let file = tempfile::Builder::new().prefix("fordway-probe-").tempfile_in(dir)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut random = fordway_measure::Shuffle::new(1);
    // Disks and file systems that leave out or compress zeros exist.
    piece.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next_u64().to_le_bytes()));
    let since = Instant::now();
    for _ in 0..FILE_BYTES / PIECE_BYTES as u64 {
        file.as_file().write_all(&piece)?;
    }
    file.as_file().sync_data()?;
    let written = since.elapsed();
    drop_cached(file.as_file())?;
    let (since, mut again) = (Instant::now(), std::fs::File::open(file.path())?);
    while again.read(&mut piece)? > 0 {}
    Ok((written, since.elapsed()))
}
