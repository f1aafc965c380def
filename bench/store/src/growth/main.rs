//! Measures how the cost of each store operation grows with the size of its input, and with the number of unrelated
//! objects.
//!
//! Each case is timed at several sizes, in interleaved rounds. A round's exponent is the slope of log(time) against
//! log(size). An exponent of 1 means a cost proportional to the size, and 0 means a cost independent of the size.

mod cases;
mod curve;
mod relations;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use cases::{CaseSizeMeaning, GrowthCase};
use curve::GrowthCurve;

/// Measure how the cost of the store's operations grows
#[derive(Parser)]
struct GrowthBenchArgs {
    /// Directory for the working files; on tmpfs, the times do not include a disk
    #[arg(long, default_value = "/dev/shm")]
    root: PathBuf,
    /// Largest size of any case, in objects or keys; each size is ten times the previous size
    #[arg(long, default_value_t = 100_000)]
    most: usize,
    /// Number of measured rounds, at least 5
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measure only cases whose names contain this text
    #[arg(long, default_value = "")]
    only: String,
    /// Draw the curves to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct GrowthReport {
    curves: Vec<GrowthCurve>,
    relations: Vec<relations::OperationTimeRatio>,
}

fn main() -> Result<()> {
    let options = GrowthBenchArgs::parse();
    anyhow::ensure!(options.rounds >= 5, "an interval needs at least 5 --rounds");
    let place = tempfile::Builder::new().prefix("fordway-bench-").tempdir_in(&options.root)?;
    let mut found = GrowthReport { curves: Vec::new(), relations: Vec::new() };
    for (number, case) in cases::all().into_iter().enumerate() {
        if case.name.contains(&options.only) {
            let place = place.path().join(format!("case{number}"));
            let curve = measure(&case, &place, &options).with_context(|| case.name.to_owned())?;
            if !options.json {
                println!("{curve}");
            }
            found.curves.push(curve);
            std::fs::remove_dir_all(&place)?;
        }
    }
    for relation in relations::all(place.path(), options.rounds, &options.only)? {
        if !options.json {
            println!("{relation}");
        }
        found.relations.push(relation);
    }
    if let Some(file) = &options.plot {
        std::fs::write(file, curve::picture(&found.curves))?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    }
    let all_hold =
        found.curves.iter().all(GrowthCurve::holds) && found.relations.iter().all(|relation| relation.holds);
    anyhow::ensure!(all_hold, "a cost grows faster than its limit");
    Ok(())
}

fn measure(case: &GrowthCase, place: &std::path::Path, options: &GrowthBenchArgs) -> Result<GrowthCurve> {
    let sizes: Vec<usize> = case.sizes.iter().copied().filter(|size| *size <= options.most).collect();
    let mut acts = Vec::new();
    for size in &sizes {
        let root = place.join(size.to_string());
        std::fs::create_dir_all(&root)?;
        acts.push((case.prepare)(&root, *size)?);
    }
    // Wait, because the store caches nothing about a directory that changed within the current clock tick.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut rounds = Vec::new();
    // The first round is a warm-up.
    for round in 0..=options.rounds {
        let times = acts.iter_mut().map(|act| cases::timed(case.calls, act)).collect::<Result<Vec<_>>>()?;
        if round > 0 {
            rounds.push(times);
        }
    }
    let bar = match case.kind {
        CaseSizeMeaning::Whole => 1.05,
        CaseSizeMeaning::One => 0.08,
    };
    GrowthCurve::new(case.name, bar, sizes, &rounds)
}
