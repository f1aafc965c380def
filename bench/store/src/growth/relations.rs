//! Compares the costs of pairs of operations within one run.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fordway_measure::{ConfidenceInterval, median_interval};
use serde::Serialize;

use crate::cases::{BenchBucket, GrowthOperation, all_versions, odd, plain, timed, with_two_versions};

/// The number of keys in the listed buckets.
const KEYS: usize = 100_000;

/// The ratio of the times of two operations.
#[derive(Serialize)]
pub(crate) struct OperationTimeRatio {
    name: &'static str,
    ratio: ConfidenceInterval,
    most: f64,
    pub(crate) holds: bool,
}

impl fmt::Display for OperationTimeRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfidenceInterval { value, low, high, .. } = &self.ratio;
        let said = if self.holds { "holds" } else { "DOES NOT HOLD" };
        write!(f, "{}: {value:.2} [{low:.2}, {high:.2}] times, at most {}: {said}", self.name, self.most)
    }
}

/// A comparison: its name, the number of calls that are timed together, the two operations, and the maximum ratio.
type OperationComparison =
    (&'static str, usize, fn(&Path) -> Result<(GrowthOperation, GrowthOperation)>, f64);

const PAIRS: &[OperationComparison] = &[
    ("prefix / all of a listing", 1, by_prefix, 1.1),
    ("list of odd / plain keys", 1, odd_and_plain, 2.0),
    ("put at 3,000 versions / at 1", 50, among_versions, 1.2),
    ("versions of 8,000 x 2 / list of 16,000", 1, versions_and_keys, 2.2),
];

pub(crate) fn all(place: &Path, rounds: usize, only: &str) -> Result<Vec<OperationTimeRatio>> {
    let pairs = PAIRS.iter().filter(|(name, ..)| name.contains(only));
    pairs.map(|pair| relation(&place.join("relation"), rounds, pair)).collect()
}

fn relation(
    place: &Path,
    rounds: usize,
    (name, calls, prepare, most): &OperationComparison,
) -> Result<OperationTimeRatio> {
    std::fs::create_dir(place)?;
    let (mut one, mut other) = prepare(place)?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut ratios = Vec::new();
    for _ in 0..=rounds {
        let time = timed(*calls, &mut one)?;
        ratios.push(time / timed(*calls, &mut other)?);
    }
    std::fs::remove_dir_all(place)?;
    // The first round is a warm-up.
    let ratio = median_interval(&ratios[1..]).context("too few rounds")?;
    let holds = ratio.value <= *most;
    Ok(OperationTimeRatio { name, ratio, most: *most, holds })
}

/// Creates a separate directory for each of the two operations.
fn two(place: &Path) -> Result<[std::path::PathBuf; 2]> {
    let both = ["one", "other"].map(|name| place.join(name));
    both.iter().try_for_each(std::fs::create_dir)?;
    Ok(both)
}

fn by_prefix(place: &Path) -> Result<(GrowthOperation, GrowthOperation)> {
    let bench = BenchBucket::with_keys(place, KEYS, plain)?;
    let again = BenchBucket { store: bench.store.clone(), bucket: bench.bucket.clone() };
    Ok((
        Box::new(move || {
            ensure!(bench.list("k")? == KEYS);
            Ok(())
        }),
        Box::new(move || {
            ensure!(again.list("")? == KEYS);
            Ok(())
        }),
    ))
}

fn odd_and_plain(place: &Path) -> Result<(GrowthOperation, GrowthOperation)> {
    let [one, other] = two(place)?;
    let (with_odd, with_plain) =
        (BenchBucket::with_keys(&one, KEYS / 10, odd)?, BenchBucket::with_keys(&other, KEYS / 10, plain)?);
    Ok((
        Box::new(move || {
            ensure!(with_odd.list("")? == KEYS / 10);
            Ok(())
        }),
        Box::new(move || {
            ensure!(with_plain.list("")? == KEYS / 10);
            Ok(())
        }),
    ))
}

fn among_versions(place: &Path) -> Result<(GrowthOperation, GrowthOperation)> {
    let bench = with_two_versions(place, 1)?;
    (0..3_000).try_for_each(|_| bench.put("many").map(drop))?;
    (0..3_000).try_for_each(|number| bench.put(&format!("few{number}")).map(drop))?;
    let again = BenchBucket { store: bench.store.clone(), bucket: bench.bucket.clone() };
    let mut number = 0;
    Ok((
        Box::new(move || bench.put("many").map(drop)),
        Box::new(move || {
            number += 1;
            again.put(&format!("few{number}")).map(drop)
        }),
    ))
}

fn versions_and_keys(place: &Path) -> Result<(GrowthOperation, GrowthOperation)> {
    let [one, other] = two(place)?;
    let (versions, keys) = (with_two_versions(&one, 8_000)?, BenchBucket::with_keys(&other, 16_000, plain)?);
    Ok((
        Box::new(move || {
            ensure!(all_versions(&versions)? == 16_000);
            Ok(())
        }),
        Box::new(move || {
            ensure!(keys.list("")? == 16_000);
            Ok(())
        }),
    ))
}
