//! Checks that dependencies between crates are allowed. Crates are grouped into layers, each of which is a folder of
//! the tree or a part of a folder.
//!
//! ```text
//! programs    bin/fordway  bind/{capi,libs3,python}     bin/fordway-lab  bind/mpi  bench
//! command     bin/command: code that both programs share
//! lab         lab: the instrument                       only for the programs on the right; within: measure
//! lanes       s3/lanes: an endpoint becomes a store
//! s3          s3: the stores, the gateways, the clients
//! http        http: HTTP from the client's side
//! base        base: store <- wire <- policy, sys
//! testkit     anything below the programs; others use it in tests only
//! fuzz        the layers whose parsers it fuzzes
//! needs       nothing; tests, testkit and xtask use it
//! ```

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// The layer of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrateLayer {
    Needs,
    Base,
    Http,
    S3,
    Lanes,
    Lab,
    Command,
    Testkit,
    Fuzz,
    /// Programs that are used in production, which must not use the lab.
    Program,
    /// Programs that measure, which may use the lab.
    Instrument,
    Xtask,
}

const LAYERS: &[(CrateLayer, &[&str])] = &[
    (CrateLayer::Needs, &["needs"]),
    (CrateLayer::Base, &["store", "wire", "sys", "policy"]),
    (CrateLayer::Http, &["http"]),
    (CrateLayer::S3, &["posix", "client", "serve"]),
    (CrateLayer::Lanes, &["lanes"]),
    (CrateLayer::Lab, &["measure", "workload", "load", "netlab", "machine"]),
    (CrateLayer::Command, &["command"]),
    (CrateLayer::Testkit, &["testkit"]),
    (CrateLayer::Fuzz, &["fuzz"]),
    (CrateLayer::Program, &["cli", "capi", "libs3", "python"]),
    (CrateLayer::Instrument, &["lab", "mpi", "bench-node", "bench-store"]),
    (CrateLayer::Xtask, &["xtask"]),
];

/// The only allowed dependencies within a layer. In addition, every crate of the lab may use `measure`.
const WITHIN_LAYERS: &[(&str, &str)] = &[("wire", "store"), ("policy", "wire")];

/// Returns the layers whose crates may be used in `layer`.
fn uses(layer: CrateLayer) -> &'static [CrateLayer] {
    use CrateLayer::{Base, Command, Http, Lab, Lanes, S3};
    match layer {
        CrateLayer::Needs | Base | CrateLayer::Xtask => &[],
        Http => &[Base],
        S3 => &[Base, Http],
        Lanes | Lab => &[Base, Http, S3],
        Command => &[Base, Http, S3, Lanes],
        CrateLayer::Program => &[Base, Http, S3, Lanes, Command],
        // The test kit starts its clusters in networks of the lab.
        CrateLayer::Testkit => &[Base, Http, S3, Lanes, Lab],
        // `fuzz` tests the parsers of all layers.
        CrateLayer::Fuzz => &[Base, Http, S3, Lab],
        CrateLayer::Instrument => &[Base, Http, S3, Lanes, Command, Lab],
    }
}

/// Checks every dependency between crates of the workspace, including dev and build dependencies.
pub(crate) fn check_workspace() -> Result<()> {
    let packages = packages()?;
    let arrows: Vec<_> = packages.iter().flat_map(arrows_of).collect();
    let faults: Vec<_> = arrows.iter().filter_map(|(from, to, kind)| fault(from, to, *kind)).collect();
    if faults.is_empty() {
        println!("{} arrows between {} crates, all allowed", arrows.len(), packages.len());
        return Ok(());
    }
    bail!("{}\n(the rules are in xtask/src/arrows.rs)", faults.join("\n"))
}

fn packages() -> Result<Vec<Package>> {
    Ok(MetadataCommand::new().no_deps().exec()?.packages)
}

/// Returns the dependencies of `package` on crates of this workspace, that is, path dependencies.
fn arrows_of(package: &Package) -> Vec<(String, String, DependencyKind)> {
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.map(|dependency| (short(&package.name), short(&dependency.name), dependency.kind)).collect()
}

fn short(package: &str) -> String {
    package.strip_prefix("fordway-").unwrap_or(package).to_owned()
}

fn layer_of(name: &str) -> Option<CrateLayer> {
    LAYERS.iter().find(|(_, names)| names.contains(&name)).map(|(layer, _)| *layer)
}

/// Returns the error if `from` must not use `to`; `None` if it may.
fn fault(from: &str, to: &str, kind: DependencyKind) -> Option<String> {
    let (Some(from_layer), Some(to_layer)) = (layer_of(from), layer_of(to)) else {
        return Some(format!("{from} -> {to}: one of them is not assigned to a layer yet; assign it"));
    };
    let allowed = match to_layer {
        CrateLayer::Needs => {
            kind == DependencyKind::Development
                || matches!(from_layer, CrateLayer::Testkit | CrateLayer::Xtask)
        }
        CrateLayer::Testkit => kind == DependencyKind::Development && from_layer != CrateLayer::Xtask,
        CrateLayer::Lab if from_layer == CrateLayer::Lab => to == "measure",
        _ if from_layer == to_layer => WITHIN_LAYERS.contains(&(from, to)),
        _ => uses(from_layer).contains(&to_layer),
    };
    let how = if kind == DependencyKind::Development { " in its tests" } else { "" };
    (!allowed)
        .then(|| format!("{from} -> {to}: {from} ({from_layer:?}) may not use {to} ({to_layer:?}){how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use DependencyKind::{Build, Development, Normal};

    #[test]
    fn arrows_that_point_down_are_allowed() {
        for (from, to, kind) in [
            ("wire", "store", Normal),
            ("workload", "measure", Normal),
            ("posix", "sys", Normal),
            ("client", "http", Normal),
            ("load", "client", Normal),
            ("lanes", "posix", Normal),
            ("cli", "lanes", Normal),
            ("lab", "workload", Normal),
            ("python", "store", Build),
            ("testkit", "lanes", Development),
            ("posix", "testkit", Development),
            ("cli", "testkit", Development),
            ("sys", "needs", Development),
            ("testkit", "needs", Normal),
            ("xtask", "needs", Normal),
        ] {
            assert_eq!(fault(from, to, kind), None);
        }
    }

    #[test]
    fn other_arrows_are_named() {
        for (from, to, kind) in [
            ("store", "sys", Normal),
            ("store", "wire", Normal),
            ("sys", "measure", Normal),
            ("http", "client", Normal),
            ("http", "measure", Normal),
            ("serve", "workload", Normal),
            ("cli", "measure", Normal),
            ("cli", "netlab", Development),
            ("command", "measure", Normal),
            ("load", "workload", Normal),
            ("posix", "client", Normal),
            ("serve", "posix", Development),
            ("posix", "lanes", Normal),
            ("python", "cli", Normal),
            ("lab", "cli", Normal),
            ("testkit", "cli", Development),
            ("posix", "testkit", Normal),
            ("posix", "testkit", Build),
            ("cli", "xtask", Normal),
            ("xtask", "store", Normal),
            ("posix", "needs", Normal),
            ("needs", "sys", Normal),
        ] {
            let fault = fault(from, to, kind).unwrap_or_else(|| panic!("{from} -> {to} passed"));
            assert!(fault.contains(&format!("{from} -> {to}")), "{fault}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_a_fault() {
        assert!(fault("posix", "utils", Normal).is_some_and(|fault| fault.contains("utils")));
        assert!(fault("utils", "store", Normal).is_some());
    }

    #[test]
    fn the_workspace_has_crates_and_each_has_a_layer() {
        let names: Vec<_> = packages().unwrap().iter().map(|package| short(&package.name)).collect();
        assert!(names.len() > 5 && names.contains(&"mpi".to_owned()));
        for name in names {
            assert!(layer_of(&name).is_some(), "{name} has no layer");
        }
    }
}
