//! The input of comparisons: a directory tree that is read into memory once, so that every lane gets the same bytes,
//! and no lane waits for the source.
//!
//! Directories affect the cost of objects: putting the first object in a directory also creates that directory, and
//! deleting the last object may remove it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{ObjectDirectoryCounts, SeededRandom, bytes_text};
use fordway_store::{Error, ErrorKind, Key, Result};
use walkdir::WalkDir;

/// One file of the tree.
#[derive(Clone, Debug)]
pub struct TreeFile {
    /// The path relative to the tree's root.
    pub key: Key,
    /// The content of the file.
    pub body: Vec<u8>,
}

/// Limits on reading a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeLimits {
    /// The maximum number of files.
    pub max_files: usize,
    /// The maximum total size of the files in bytes. The files are kept in memory.
    pub max_bytes: u64,
    /// The seed of the random sample that is read if the tree exceeds the limits.
    pub seed: u64,
}

/// The progress of reading a tree.
#[derive(Clone, Copy, Debug)]
pub enum TreeProgress {
    /// The number of files found so far.
    Found(u64),
    /// The number of files read so far.
    Read(u64),
}

/// A tree in memory.
#[derive(Clone, Debug, Default)]
pub struct FileTree {
    /// The files, in byte order of their keys.
    pub items: Vec<TreeFile>,
    /// The total number of bytes.
    pub bytes: u64,
    /// Sentences that state which files were left out, and why.
    pub warnings: Vec<String>,
}

impl FileTree {
    /// Reads the regular files below `dir`; does not follow links. Calls `progress` with the number of files found or
    /// read so far. Errors: `InvalidArgument` if `dir` does not exist, is not a directory, or contains no usable file;
    /// `AccessDenied` if `dir` cannot be read; `Interrupted` when `stop` is set, which is checked before each file.
    pub fn read(
        dir: &Path,
        limits: &TreeLimits,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(TreeProgress),
    ) -> Result<Self> {
        let found = find_files(dir, stop, &mut |files| progress(TreeProgress::Found(files)))?;
        let tree = FileTree::sample(found, limits, stop, &mut |files| progress(TreeProgress::Read(files)))?;
        match tree.items.is_empty() {
            true => Err(nothing_to_use(dir, &tree.warnings)),
            false => Ok(tree),
        }
    }

    /// Reads the files that the scan has found, up to the limits.
    fn sample(
        mut found: DirectoryScanResult,
        limits: &TreeLimits,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        // If the limits exclude files, the included files must be a sample of the whole tree, not just of its first
        // directories. Equal seeds select equal samples.
        SeededRandom::new(limits.seed).shuffle(&mut found.files);
        let mut tree = FileTree::default();
        let (mut unreadable_files, mut too_large, mut examined) = (0, 0, 0);
        for (path, key) in &found.files {
            check_stop(stop)?;
            if tree.items.len() >= limits.max_files {
                break;
            }
            let size = path.metadata().map_or(0, |meta| meta.len());
            if size > limits.max_bytes {
                (too_large, examined) = (too_large + 1, examined + 1);
                continue;
            }
            // The sample ends at the first file that does not fit. If smaller files were added instead, the sample
            // would contain almost all small files, and almost no large ones.
            if tree.bytes + size > limits.max_bytes {
                break;
            }
            examined += 1;
            match std::fs::read(path) {
                Ok(body) => {
                    tree.bytes += body.len() as u64;
                    tree.items.push(TreeFile { key: key.clone(), body });
                    progress(tree.items.len() as u64);
                }
                Err(_) => unreadable_files += 1,
            }
        }
        tree.items.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        tree.warn(
            found.no_keys,
            "files were left out because their paths are not valid as keys (not UTF-8, or too long)",
        );
        tree.warn(
            found.unreadable + unreadable_files,
            "files or directories could not be read and were left out; check their permissions",
        );
        let larger = format!(
            "files were left out because each is larger than {} (see --max-bytes)",
            bytes_text(limits.max_bytes)
        );
        tree.warn(too_large, &larger);
        let total = found.files.len();
        let limit = format!(
            "of {total} files were left out to keep within {} files and {} (a sample by the seed; see --max-files, --max-bytes)",
            limits.max_files,
            bytes_text(limits.max_bytes)
        );
        tree.warn(total - examined, &limit);
        Ok(tree)
    }

    fn warn(&mut self, count: usize, what: &str) {
        if count > 0 {
            self.warnings.push(format!("{count} {what}"));
        }
    }
}

struct DirectoryScanResult {
    files: Vec<(std::path::PathBuf, Key)>,
    no_keys: usize,
    unreadable: usize,
}

fn check_stop(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::new(ErrorKind::Interrupted, "stopped by a signal while reading the directory")),
        false => Ok(()),
    }
}

fn find_files(dir: &Path, stop: &AtomicBool, progress: &mut dyn FnMut(u64)) -> Result<DirectoryScanResult> {
    let meta = std::fs::metadata(dir).map_err(|error| cannot_open(dir, error))?;
    if !meta.is_dir() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a directory", dir.display())));
    }
    std::fs::read_dir(dir).map_err(|error| cannot_open(dir, error))?;
    let mut found = DirectoryScanResult { files: Vec::new(), no_keys: 0, unreadable: 0 };
    for entry in WalkDir::new(dir).sort_by_file_name() {
        check_stop(stop)?;
        match entry {
            Ok(entry) if entry.file_type().is_file() => {
                let below = entry.path().strip_prefix(dir).ok().and_then(Path::to_str);
                match below.and_then(|below| Key::new(below).ok()) {
                    Some(key) => {
                        found.files.push((entry.into_path(), key));
                        progress(found.files.len() as u64);
                    }
                    None => found.no_keys += 1,
                }
            }
            Ok(_) => {}
            Err(_) => found.unreadable += 1,
        }
    }
    Ok(found)
}

fn cannot_open(dir: &Path, error: std::io::Error) -> Error {
    let kind = match ErrorKind::from(&error) {
        ErrorKind::Io => ErrorKind::InvalidArgument,
        kind => kind,
    };
    Error::new(kind, format!("the directory {} cannot be read", dir.display())).caused_by(error)
}

fn nothing_to_use(dir: &Path, warnings: &[String]) -> Error {
    let why = if warnings.is_empty() { "it holds no regular file".to_owned() } else { warnings.join("; ") };
    Error::new(
        ErrorKind::InvalidArgument,
        format!("the directory {} gives nothing to compare: {why}", dir.display()),
    )
}

/// Returns the records of objects with these keys and sizes in bytes. In `round`, the objects are both put and removed
/// in this order.
pub(crate) fn directory_records<'k>(
    round: u16,
    objects: impl Iterator<Item = (&'k str, u64)>,
) -> Vec<ObjectDirectoryCounts> {
    let objects: Vec<_> = objects.collect();
    let mut known = HashSet::new();
    let made: Vec<u16> = objects.iter().map(|(key, _)| new_in(&mut known, key)).collect();
    known.clear();
    // In reverse order, the first key below a directory belongs to the last object in that directory.
    let emptied: Vec<u16> = objects.iter().rev().map(|(key, _)| new_in(&mut known, key)).collect();
    let with_directories = objects.iter().zip(made).zip(emptied.into_iter().rev());
    with_directories
        .map(|((&(key, bytes), made_directories), emptied_directories)| ObjectDirectoryCounts {
            round,
            bytes,
            directories: above(key).count() as u16,
            made_directories,
            emptied_directories,
        })
        .collect()
}

/// Returns the directories above `key`, outermost first.
fn above(key: &str) -> impl Iterator<Item = &str> {
    key.match_indices('/').map(|(at, _)| &key[..at])
}

fn new_in<'k>(known: &mut HashSet<&'k str>, key: &'k str) -> u16 {
    above(key).map(|directory| u16::from(known.insert(directory))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: TreeLimits = TreeLimits { max_files: 1000, max_bytes: 1 << 30, seed: 1 };

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn read(dir: &Path, limits: &TreeLimits) -> Result<FileTree> {
        FileTree::read(dir, limits, &NEVER, &mut |_| {})
    }

    #[test]
    fn a_request_to_stop_ends_the_scan_and_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        (0..50).for_each(|i| std::fs::write(dir.path().join(format!("f{i}")), "x").unwrap());
        for is_reading in [false, true] {
            let (stop, mut last) = (AtomicBool::new(false), 0);
            let mut progress = |at| {
                let (files, is_read) = match at {
                    TreeProgress::Found(files) => (files, false),
                    TreeProgress::Read(files) => (files, true),
                };
                stop.store(files == 10 && is_read == is_reading, Ordering::Relaxed);
                last = files;
            };
            let error = FileTree::read(dir.path(), &ALL, &stop, &mut progress).expect_err("it was stopped");
            assert_eq!((error.kind(), last), (ErrorKind::Interrupted, 10));
        }
    }

    #[test]
    fn real_files_only_in_key_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("b/c")).unwrap();
        std::fs::write(dir.path().join("b/c/2"), "two").unwrap();
        std::fs::write(dir.path().join("b-1"), "one").unwrap();
        std::os::unix::fs::symlink("b-1", dir.path().join("link")).unwrap();
        let tree = read(dir.path(), &ALL).unwrap();
        let keys: Vec<_> = tree.items.iter().map(|item| item.key.as_str()).collect();
        assert_eq!((keys, tree.bytes, tree.warnings.len()), (vec!["b-1", "b/c/2"], 6, 0));
    }

    #[test]
    fn a_sample_is_announced_and_repeats() {
        let dir = tempfile::tempdir().unwrap();
        (0..50).for_each(|i| std::fs::write(dir.path().join(format!("f{i}")), [0; 100]).unwrap());
        let keys = |limits| -> (Vec<Key>, Vec<String>) {
            let tree = read(dir.path(), &limits).unwrap();
            (tree.items.into_iter().map(|item| item.key).collect(), tree.warnings)
        };
        let (few, warnings) = keys(TreeLimits { max_files: 10, ..ALL });
        assert_eq!(few.len(), 10);
        assert!(warnings[0].starts_with("40 of 50 files"), "{warnings:?}");
        assert_eq!(few, keys(TreeLimits { max_files: 10, ..ALL }).0);
        assert_eq!(keys(TreeLimits { max_bytes: 1500, ..ALL }).0.len(), 15);
    }

    /// The sample must contain equal shares of a tree's small files and of its large files.
    #[test]
    fn a_sample_by_bytes_has_the_sizes_of_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        (0..600).for_each(|i| std::fs::write(dir.path().join(format!("small{i}")), [0; 100]).unwrap());
        (0..60).for_each(|i| std::fs::write(dir.path().join(format!("large{i}")), [0; 10_000]).unwrap());
        let mean_bytes = (600 * 100 + 60 * 10_000) as f64 / 660.0;
        let of_seed = |seed| {
            let tree = read(dir.path(), &TreeLimits { max_bytes: 330_000, seed, ..ALL }).unwrap();
            assert_eq!(tree.warnings.len(), 1, "{:?}", tree.warnings);
            tree.bytes as f64 / tree.items.len() as f64
        };
        let sampled = (0..8).map(of_seed).sum::<f64>() / 8.0;
        assert!((0.8..1.25).contains(&(sampled / mean_bytes)), "{sampled} B, not {mean_bytes} B");
    }

    /// A file that alone exceeds the limit must not end the sample. Such files have a separate warning.
    #[test]
    fn files_over_the_limit_are_counted_separately() {
        let dir = tempfile::tempdir().unwrap();
        (0..20).for_each(|i| std::fs::write(dir.path().join(format!("f{i}")), [0; 100]).unwrap());
        std::fs::write(dir.path().join("huge"), [0; 5000]).unwrap();
        let tree = read(dir.path(), &TreeLimits { max_bytes: 4000, ..ALL }).unwrap();
        assert_eq!((tree.items.len(), tree.warnings.len()), (20, 1));
        assert!(
            tree.warnings[0].starts_with("1 files were left out because each is larger"),
            "{:?}",
            tree.warnings
        );
    }

    /// Unreadable directories must not reduce the number of files that the limits left out.
    #[test]
    fn unreadable_directories_do_not_hide_the_sample() {
        let dir = tempfile::tempdir().unwrap();
        (0..5).for_each(|i| std::fs::write(dir.path().join(format!("f{i}")), [0; 100]).unwrap());
        let found =
            DirectoryScanResult { unreadable: 5, ..find_files(dir.path(), &NEVER, &mut |_| {}).unwrap() };
        let warnings = FileTree::sample(found, &TreeLimits { max_files: 2, ..ALL }, &NEVER, &mut |_| {});
        let warnings = warnings.unwrap().warnings;
        assert!(warnings[0].starts_with("5 files or directories could not be read"), "{warnings:?}");
        assert!(warnings[1].starts_with("3 of 5 files"), "{warnings:?}");
    }

    #[test]
    fn what_is_no_tree_is_refused_in_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |path: &Path| read(path, &ALL).map(|_| ()).unwrap_err();
        assert!(kind(dir.path()).to_string().contains("no regular file"));
        assert!(kind(&dir.path().join("none")).to_string().contains("cannot be read"));
        std::fs::write(dir.path().join("f"), "x").unwrap();
        assert!(kind(&dir.path().join("f")).to_string().contains("not a directory"));
    }

    #[test]
    fn the_first_makes_and_the_last_empties() {
        let keys = ["a/b/1", "top", "a/2", "a/b/3", "c/4"];
        let found = directory_records(7, keys.iter().map(|key| (*key, 5)));
        let column = |value: fn(&ObjectDirectoryCounts) -> u16| found.iter().map(value).collect::<Vec<_>>();
        assert_eq!(column(|object| object.directories), [2, 0, 1, 2, 1]);
        assert_eq!(column(|object| object.made_directories), [2, 0, 0, 0, 1]);
        assert_eq!(column(|object| object.emptied_directories), [0, 0, 0, 2, 1]);
        assert!(found.iter().all(|object| (object.round, object.bytes) == (7, 5)));
    }
}
