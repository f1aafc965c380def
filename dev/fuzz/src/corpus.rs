//! Inputs stored as files: the committed corpus in `fuzz/corpus/TARGET`, and the inputs that a driver finds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::FuzzTarget;
use crate::coverage::CoverageMap;

/// Returns the directory of the committed corpus.
pub fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// Reads all inputs in a directory, in the order of their names. A missing directory counts as empty.
pub fn read(dir: &Path) -> Result<Vec<Vec<u8>>> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let paths: BTreeSet<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()
        .context("reading the corpus")?;
    let files = paths.iter().filter(|path| path.is_file());
    files.map(|path| fs::read(path).with_context(|| format!("reading {}", path.display()))).collect()
}

/// Writes an input to `dir`, under a name computed from its bytes; returns its path.
pub fn keep(dir: &Path, input: &[u8]) -> Result<PathBuf> {
    let path = dir.join(name_of(input));
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&path, input))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Returns the FNV-1a hash of the input, in hexadecimal.
fn name_of(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Sorts `found` by length, and returns the inputs that reach code that neither `base` nor an earlier input of `found`
/// reaches. The calling program must be built with coverage counters.
pub fn additions(target: &FuzzTarget, base: &[Vec<u8>], found: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut reached = CoverageMap::default();
    for input in base {
        reached.extend_by(|| (target.run)(input));
    }
    let mut found = found;
    found.sort_by_key(Vec::len);
    found.into_iter().filter(|input| reached.extend_by(|| (target.run)(input)).is_new_code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_inputs_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("missing")).unwrap(), [] as [Vec<u8>; 0]);
        for input in [&b"one"[..], b"two", b"one"] {
            keep(dir.path(), input).unwrap();
        }
        let mut inputs = read(dir.path()).unwrap();
        inputs.sort();
        assert_eq!(inputs, [b"one".to_vec(), b"two".to_vec()]);
    }
}
