//! Checks that the programs and the Python module select the same features of the crates that they share. Otherwise,
//! `make build` compiles these crates, and all crates that depend on them, twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The packages that the first command of `make build` builds.
const PROGRAMS: &[&str] = &["fordway-cli", "fordway-lab"];
/// The package that the second command builds.
const MODULE: &[&str] = &["fordway-python"];

/// The selections of features of each crate. A crate that is compiled for the build itself and for the target may have
/// two selections.
type CrateFeatures = BTreeMap<String, BTreeSet<String>>;

/// Compares the features that the two commands of `make build` select. Errors: the crates whose features differ.
pub(crate) fn check() -> Result<()> {
    let faults = differences(&features(PROGRAMS)?, &features(MODULE)?);
    if !faults.is_empty() {
        let advice = "select the same features in bind/python/Cargo.toml";
        bail!("make build compiles these crates twice; {advice}:\n{}", faults.join("\n"));
    }
    Ok(())
}

fn features(packages: &[&str]) -> Result<CrateFeatures> {
    let mut command = Command::new("cargo");
    command.args(["tree", "--locked", "--edges=normal,build", "--prefix=none", "--format={p}|{f}"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    let output = command.output().context("running cargo tree")?;
    ensure!(output.status.success(), "cargo tree:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses lines such as `syn v3.0.9 (proc-macro)|default,full (*)`.
fn parse(tree: &str) -> CrateFeatures {
    let mut found = CrateFeatures::new();
    for (name, features) in tree.lines().filter_map(|line| line.split_once('|')) {
        let features = features.trim_end_matches(" (*)");
        found.entry(name.to_owned()).or_default().insert(features.to_owned());
    }
    found
}

/// Compares the crates that are in both sets. Returns a line for each crate for which `module` has a selection of
/// features that `programs` does not have.
fn differences(programs: &CrateFeatures, module: &CrateFeatures) -> Vec<String> {
    let shared = module.iter().filter_map(|(name, own)| Some((name, own, programs.get(name)?)));
    shared
        .filter(|(_, own, others)| !own.is_subset(others))
        .map(|(name, own, others)| format!("{name}: {own:?} in the module, {others:?} in the programs"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_crates_with_other_features_differ() {
        let programs = parse("a v1|x,y\nb v1|x (*)\nb v1|\nc v1|x");
        assert_eq!(differences(&programs, &parse("a v1|x,y (*)\nb v1|x\nd v1|z")), [] as [&str; 0]);
        assert_eq!(differences(&programs, &parse("a v1|x\nb v1|\nc v1|")).len(), 2);
    }
}
