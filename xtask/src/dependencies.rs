//! Checks the crates that `Cargo.lock` names: licences, crates in two versions, and yanked versions. Advisories are
//! checked if `cargo audit` is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand, Package, PackageId};

/// Licences that are compatible with ours (Apache-2.0), in a program and in a library.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates with another licence, and the reason why we may use them.
const EXCEPTIONS: &[(&str, &str)] =
    &[("cbindgen", "a tool that generates a header; not part of what we ship")];

/// Crates that we use in two versions, each with the crate that needs the less widely used version.
const DUPLICATES: &[(&str, &str)] = &[
    ("base64", "pem"),
    ("bit-vec", "yasna"),
    ("crypto-common", "digest"),
    ("digest", "crc-fast"),
    ("getrandom", "ring"),
    ("getrandom", "ahash"),
    ("itertools", "bindgen"),
    ("nom", "x509-parser"),
    ("num-bigint", "der-parser"),
    ("quick-xml", "s3s"),
    ("shlex", "bindgen"),
    ("syn", "tracing-attributes"),
    ("synstructure", "asn1-rs-derive"),
    ("toml", "cbindgen"),
    ("toml_datetime", "toml"),
    ("winnow", "toml"),
];

/// Checks licences, duplicate versions, yanked versions and advisories, and prints a summary. Errors: all faults.
pub(crate) fn check() -> Result<()> {
    let linux = "--filter-platform=x86_64-unknown-linux-gnu".to_owned();
    let metadata = MetadataCommand::new().other_options(["--locked".to_owned(), linux]).exec()?;
    let foreign: Vec<_> = metadata.packages.iter().filter(|package| package.source.is_some()).collect();
    let mut faults: Vec<String> = foreign.iter().filter_map(|package| licence_fault(package)).collect();
    faults.extend(duplicate_faults(&versions(&metadata), DUPLICATES));
    let yanked: Vec<_> = foreign.iter().map(|package| (*package, is_yanked(package))).collect();
    let unknown = yanked.iter().filter(|(_, is_yanked)| is_yanked.is_none()).count();
    let yanked = yanked.iter().filter(|(_, is_yanked)| *is_yanked == Some(true));
    faults.extend(yanked.map(|(package, _)| format!("{} {} was yanked", package.name, package.version)));
    let advisories = advisories()?;
    if !faults.is_empty() {
        bail!("{}\n(the rules are in xtask/src/dependencies.rs)", faults.join("\n"));
    }
    let crates = foreign.len();
    println!(
        "{crates} crates: all licences are allowed, none was yanked ({unknown} not checked), advisories {advisories}"
    );
    Ok(())
}

/// Returns the fault if no alternative of a crate's licence is allowed.
fn licence_fault(package: &Package) -> Option<String> {
    let is_exception = EXCEPTIONS.iter().any(|(name, _)| *name == package.name.as_str());
    let licence = package.license.as_deref().unwrap_or("no licence");
    (!is_exception && !is_allowed(licence)).then(|| format!("{} has the licence {licence}", package.name))
}

/// Evaluates an SPDX expression. `AND` binds more tightly than `OR`; old manifests write a slash for `OR`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some(inner) = expression.find('(').zip(expression.find(')')) {
        let (start, end) = inner;
        let value = if is_allowed(&expression[start + 1..end]) { "MIT" } else { "none" };
        return is_allowed(&format!("{}{value}{}", &expression[..start], &expression[end + 1..]));
    }
    let is_known = |term: &str| LICENCES.contains(&term.trim());
    expression.split(" OR ").any(|alternative| alternative.split(" AND ").all(is_known))
}

/// The versions of each crate, each with the names of the crates that use that version.
type CrateVersions = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn versions(metadata: &Metadata) -> CrateVersions {
    let packages: BTreeMap<&PackageId, &Package> =
        metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let mut versions = CrateVersions::new();
    for node in metadata.resolve.iter().flat_map(|resolve| &resolve.nodes) {
        for used in &node.dependencies {
            let (user, used) = (packages[&node.id], packages[used]);
            let users = versions.entry(used.name.to_string()).or_default().entry(used.version.to_string());
            users.or_default().insert(user.name.to_string());
        }
    }
    versions
}

/// Returns a fault for each additional version that the list does not explain, and for each unneeded entry of the list.
/// One version of each crate needs no entry; by convention, this is the most widely used version.
fn duplicate_faults(versions: &CrateVersions, allowed: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut used: BTreeSet<&(&str, &str)> = BTreeSet::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let entries: Vec<_> = allowed.iter().filter(|(listed, _)| listed == name).collect();
        let entry_of = |users: &BTreeSet<String>| entries.iter().find(|(_, user)| users.contains(*user));
        let without = versions.iter().filter(|(_, users)| entry_of(users).is_none());
        for (version, users) in without.skip(1) {
            faults.push(format!(
                "{name} {version} is a second version, used by {users:?}; add it to the list, or use only one version"
            ));
        }
        used.extend(versions.values().filter_map(|users| entry_of(users).copied()));
    }
    let stale = allowed.iter().filter(|entry| !used.contains(entry));
    faults.extend(
        stale.map(|(name, user)| {
            format!("{user} no longer needs a second version of {name}; remove the entry")
        }),
    );
    faults
}

/// Returns whether the registry has yanked a version, according to Cargo's copy of the registry's index; `None` if
/// there is no copy.
fn is_yanked(package: &Package) -> Option<bool> {
    let cached = index_files(&package.name).into_iter().find_map(|path| fs::read(path).ok())?;
    yanked_in(&cached, &package.version.to_string())
}

/// Returns whether a version is yanked, according to `cached`, the content of a file in Cargo's cache. In such a file,
/// NUL bytes separate versions and their entries in JSON. Returns `None` if the version has no entry.
fn yanked_in(cached: &[u8], version: &str) -> Option<bool> {
    let entries = cached
        .split(|byte| *byte == 0)
        .filter_map(|text| serde_json::from_slice::<serde_json::Value>(text).ok());
    let entry = entries.filter(serde_json::Value::is_object).find(|entry| entry["vers"] == version)?;
    entry["yanked"].as_bool()
}

/// Returns the files in which Cargo may have cached the index of a crate, one for each registry.
fn index_files(name: &str) -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo"))) else {
        return vec![];
    };
    let registries = fs::read_dir(home.join("registry/index")).into_iter().flatten().flatten();
    registries.map(|registry| registry.path().join(".cache").join(index_path(name))).collect()
}

/// Returns the path of a crate in a registry's index.
fn index_path(name: &str) -> String {
    let name = name.to_lowercase();
    match name.len() {
        1 | 2 => format!("{}/{name}", name.len()),
        3 => format!("3/{}/{name}", &name[..1]),
        _ => format!("{}/{}/{name}", &name[..2], &name[2..4]),
    }
}

/// Checks advisories if `cargo audit` is installed. Errors: `cargo audit` reports an advisory.
fn advisories() -> Result<&'static str> {
    let is_there = Command::new("cargo").args(["audit", "--version"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        return Ok("not checked (cargo audit is not installed)");
    }
    let output = Command::new("cargo").args(["audit", "--quiet"]).output().context("running cargo audit")?;
    match output.status.success() {
        true => Ok("checked"),
        false => bail!(
            "cargo audit:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alternative_must_be_allowed_as_a_whole() {
        for good in
            ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "Apache-2.0 AND ISC", "(MIT OR GPL-2.0) AND Zlib"]
        {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR MPL-2.0)", "no licence", "mit"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    fn two_versions() -> CrateVersions {
        let users = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let versions =
            BTreeMap::from([("1.0.0".to_owned(), users(&["old"])), ("2.0.0".to_owned(), users(&["a", "b"]))]);
        CrateVersions::from([("twice".to_owned(), versions)])
    }

    #[test]
    fn a_second_version_must_be_listed_and_a_list_be_current() {
        assert_eq!(duplicate_faults(&two_versions(), &[("twice", "old")]), [] as [&str; 0]);
        assert_eq!(duplicate_faults(&two_versions(), &[]).len(), 1);
        assert_eq!(duplicate_faults(&two_versions(), &[("twice", "old"), ("once", "a")]).len(), 1);
        assert_eq!(duplicate_faults(&two_versions(), &[("twice", "gone")]).len(), 2);
    }

    #[test]
    fn a_yanked_version_is_found_in_the_index() {
        let cached = b"\x03\x02\0\0\0etag\x001.0.0\0{\"vers\":\"1.0.0\",\"yanked\":true}\x001.0.1\0{\"vers\":\"1.0.1\",\"yanked\":false}\0";
        assert_eq!(yanked_in(cached, "1.0.0"), Some(true));
        assert_eq!(yanked_in(cached, "1.0.1"), Some(false));
        assert_eq!(yanked_in(cached, "2.0.0"), None);
        assert_eq!(["a", "ab", "abc", "Serde"].map(index_path), ["1/a", "2/ab", "3/a/abc", "se/rd/serde"]);
    }
}
