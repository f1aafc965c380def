//! Finds one of the objects below a directory, without reading the whole directory.
//!
//! A listing with a delimiter shows a directory as one common prefix if the directory contains any object. The names in
//! a directory are unsorted, so finding the first object in key order requires reading all of them; finding any object
//! does not.

use std::fs::File;

use fordway_store::{Bucket, MAX_KEY_BYTES};
use fordway_sys::{EntryKind, FileSystemSharing, name_to_text, read_dir_start};

use crate::layout::{is_never_an_object, join};
use crate::volume::StoreDirectoryTree;

/// The maximum number of directories in which an object is looked for. Most directories contain a file, or lead to one
/// after a few levels.
const DIRECTORIES_MAX: usize = 32;

/// The first entries of a directory.
#[derive(Default)]
struct FirstEntries {
    /// A file that is an object.
    file: Option<String>,
    subdirectories: Vec<String>,
}

/// Returns the key of an object below `dir`, whose key is `at` (empty, or ending in `/`). If the result is `None`,
/// there may still be objects. Does not follow symbolic links, and ignores directories that cannot be read. `dir` must
/// be at its start. Cost: one `getdents64`; if the first entries are not files, a few calls for each of up to
/// [`DIRECTORIES_MAX`] subdirectories.
pub(crate) fn any_object(
    volume: &StoreDirectoryTree,
    bucket: (&Bucket, FileSystemSharing),
    at: &str,
    dir: &File,
) -> Option<String> {
    let mut directories = DIRECTORIES_MAX;
    any_object_below(volume, bucket, (at, dir), &mut directories)
}

fn any_object_below(
    volume: &StoreDirectoryTree,
    (bucket, sharing): (&Bucket, FileSystemSharing),
    (at, dir): (&str, &File),
    directories: &mut usize,
) -> Option<String> {
    *directories = directories.checked_sub(1)?;
    let first = FirstEntries::read(dir, MAX_KEY_BYTES.checked_sub(at.len())?, *directories)?;
    if let Some(name) = first.file {
        return Some(format!("{at}{name}"));
    }
    for name in first.subdirectories {
        let below = format!("{at}{name}/");
        let path = join(bucket.as_str(), &below);
        volume.freshen_dir(&path, true, sharing);
        let found = volume.open_to_list(&path).ok().flatten();
        let found = found.and_then(|dir| {
            volume.freshen_names(&dir, sharing);
            any_object_below(volume, (bucket, sharing), (&below, &dir), directories)
        });
        if found.is_some() || *directories == 0 {
            return found;
        }
    }
    None
}

impl FirstEntries {
    /// Reads the first entries of `dir` whose names have at most `longest` bytes, and at most `most` subdirectories.
    fn read(dir: &File, longest: usize, most: usize) -> Option<Self> {
        let mut first = FirstEntries::default();
        read_dir_start(dir, |name, kind| {
            let (is_file, is_dir) = (kind == EntryKind::File, kind == EntryKind::Dir);
            let is_needed = first.file.is_none() && (is_file || is_dir && first.subdirectories.len() < most);
            if !is_needed || is_never_an_object(name) {
                return;
            }
            let name = name_to_text(name).into_owned();
            match is_file {
                true if name.len() <= longest => first.file = Some(name),
                true => {}
                false => first.subdirectories.push(name),
            }
        })
        .ok()?;
        Some(first)
    }
}
