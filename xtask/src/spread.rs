//! Checks that the methods of each type are defined in a few files. A type with methods in many files does the work of
//! several parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The maximum number of files with inherent methods of one type.
const FILES_MAX: usize = 8;

/// The files with inherent methods of each type. A type is identified by the directory of its crate, and by its name.
type FilesOfTypes = BTreeMap<(String, String), BTreeSet<String>>;

/// Checks all types of the tree at `root`. Errors: the types with methods in too many files.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut found = FilesOfTypes::new();
    for file in sources(root)? {
        let text = fs::read_to_string(root.join(&file)).with_context(|| format!("reading {file}"))?;
        let of_crate = file.split("/src/").next().unwrap_or_default();
        for name in text.lines().filter_map(implemented) {
            found.entry((of_crate.to_owned(), name.to_owned())).or_default().insert(file.clone());
        }
    }
    let faults = faults(&found);
    ensure!(!found.is_empty(), "no types were found in {}", root.display());
    if faults.is_empty() {
        println!("{} types, each with methods in at most {FILES_MAX} files", found.len());
        return Ok(());
    }
    bail!("{}", faults.join("\n"))
}

/// Returns the source files of the tree, without tests.
fn sources(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "*.rs"]).output();
    let listed = listed.context("running git ls-files")?;
    ensure!(listed.status.success(), "git ls-files:\n{}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout)?;
    Ok(text.lines().filter(|file| file.contains("/src/")).map(str::to_owned).collect())
}

/// Returns the name of the type if the line begins a block of inherent methods.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(rest) => after_brackets(rest)?,
        None => rest,
    };
    let rest = rest.strip_prefix(' ')?;
    let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_')?;
    (end > 0 && !rest.contains(" for ")).then(|| &rest[..end])
}

/// Returns what follows the bracket that closes the text.
fn after_brackets(text: &str) -> Option<&str> {
    let mut open = 1;
    let close = text.char_indices().find(|(_, character)| {
        match character {
            '<' => open += 1,
            '>' => open -= 1,
            _ => {}
        }
        open == 0
    });
    close.map(|(at, _)| &text[at + 1..])
}

fn faults(found: &FilesOfTypes) -> Vec<String> {
    let many = found.iter().filter(|(_, files)| files.len() > FILES_MAX);
    let text = |((of_crate, name), files): (&(String, String), &BTreeSet<String>)| {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let count = files.len();
        format!(
            "{name} in {of_crate} has methods in {count} files (maximum {FILES_MAX}): {}",
            files.join(", ")
        )
    };
    many.map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherent_methods_are_told_from_traits() {
        for (line, name) in [
            ("impl Store {", Some("Store")),
            ("impl<'s> Reader<'s> {", Some("Reader")),
            ("impl<T: Into<Vec<u8>>> Queue<T> {", Some("Queue")),
            ("impl Display for Store {", None),
            ("impl<T> From<T> for Store {", None),
            ("    impl Store {", None),
            ("implemented {", None),
        ] {
            assert_eq!(implemented(line), name, "{line}");
        }
    }

    #[test]
    fn only_types_in_many_files_are_faults() {
        let files = |count: usize| (0..count).map(|number| format!("{number}.rs")).collect();
        let key = |name: &str| ("s3".to_owned(), name.to_owned());
        let found = FilesOfTypes::from([(key("Few"), files(FILES_MAX)), (key("Many"), files(FILES_MAX + 1))]);
        let faults = faults(&found);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("Many in s3 has methods in 9 files"), "{}", faults[0]);
    }
}
