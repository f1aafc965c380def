//! What lies below a place, in byte order of the relative names, on either side of a transfer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_command::{Address, Context, file_error};
use fordway_store::{Bucket, Entry, Error, ErrorKind, ListQuery, ObjectSummary, Result, Store};
use walkdir::{DirEntry, WalkDir};

use crate::wildcard::{Pattern, directory, literal_prefix};

/// A file or object below a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its name below the root, with `/` between the parts.
    pub(crate) relative: String,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// When it was last written.
    pub(crate) modified: SystemTime,
}

/// A stream of findings; an error does not end it.
pub(crate) type Items = Box<dyn Iterator<Item = Result<Item>>>;

/// All files below a directory, or all objects below a prefix (which ends in `/`, or is empty).
pub(crate) fn items(context: &Context, root: &Address) -> Result<Items> {
    match root {
        Address::Local(path) => files(path),
        Address::S3(bucket, prefix) => Ok(below(context.store()?, bucket.clone(), prefix.clone())),
        other => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{other} is neither a directory nor a prefix"),
        )),
    }
}

/// The objects of a wildcard, named relative to the directory of its literal beginning.
pub(crate) fn matching(context: &Context, bucket: &Bucket, wildcard: &str) -> Result<Items> {
    let pattern = Pattern::of_address(wildcard);
    let literal = literal_prefix(wildcard).to_owned();
    let cut = directory(&literal).len();
    let found = objects(context.store()?, bucket.clone(), ListQuery::prefix(literal));
    let wanted =
        found.filter(move |found| found.as_ref().map_or(true, |entry| pattern.matches(entry.name())));
    Ok(Box::new(wanted.filter_map(move |found| found.map(|entry| item(&entry, cut)).transpose())))
}

fn below(store: Arc<dyn Store>, bucket: Bucket, prefix: String) -> Items {
    let cut = prefix.len();
    let found = objects(store, bucket, ListQuery::prefix(prefix));
    Box::new(found.filter_map(move |found| found.map(|entry| item(&entry, cut)).transpose()))
}

fn item(entry: &Entry, cut: usize) -> Option<Item> {
    let ObjectSummary { key, size, modified, .. } = entry.object()?;
    Some(Item { relative: key[cut..].to_owned(), size: *size, modified: *modified })
}

/// The entries of a bucket, page by page; an error ends the stream.
pub(crate) fn objects(
    store: Arc<dyn Store>,
    bucket: Bucket,
    mut query: ListQuery,
) -> impl Iterator<Item = Result<Entry>> {
    let mut page = Vec::new().into_iter();
    let mut more = true;
    std::iter::from_fn(move || {
        loop {
            if let Some(entry) = page.next() {
                return Some(Ok(entry));
            }
            if !more {
                return None;
            }
            match store.list(&bucket, &query) {
                Ok(listing) => {
                    more = listing.next.is_some();
                    query.start_after = listing.next;
                    page = listing.entries.into_iter();
                }
                Err(error) => {
                    more = false;
                    return Some(Err(error));
                }
            }
        }
    })
}

/// The regular files below `root`, links followed. What cannot be read is an error in its place.
fn files(root: &Path) -> Result<Items> {
    let about = root.metadata().map_err(|error| file_error("reading", root.display(), error))?;
    if !about.is_dir() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a directory", root.display())));
    }
    let root: PathBuf = root.to_owned();
    // As keys, what lies in a directory sorts by the directory's name and a slash.
    let walk =
        WalkDir::new(&root).follow_links(true).min_depth(1).sort_by(|a, b| sort_name(a).cmp(&sort_name(b)));
    let found =
        walk.into_iter().filter(|entry| entry.as_ref().map_or(true, |entry| !entry.file_type().is_dir()));
    Ok(Box::new(found.map(move |entry| match entry {
        Ok(entry) => file_item(&root, &entry),
        Err(error) => Err(walk_error(error)),
    })))
}

fn sort_name(entry: &DirEntry) -> Vec<u8> {
    let mut name = entry.file_name().as_encoded_bytes().to_vec();
    if entry.file_type().is_dir() {
        name.push(b'/');
    }
    name
}

fn file_item(root: &Path, entry: &DirEntry) -> Result<Item> {
    let path = entry.path();
    if !entry.file_type().is_file() {
        let why =
            format!("{} is neither a file nor a directory; leave it out with --exclude", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let relative = path.strip_prefix(root).unwrap_or(path).to_str().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidKey,
            format!("the name of {} is not UTF-8, as keys must be", path.display()),
        )
    })?;
    let about = entry.metadata().map_err(walk_error)?;
    let modified = about.modified().unwrap_or(UNIX_EPOCH);
    Ok(Item { relative: relative.to_owned(), size: about.len(), modified })
}

fn walk_error(error: walkdir::Error) -> Error {
    let path = error.path().map(|path| path.display().to_string()).unwrap_or_default();
    let message = error.to_string();
    let cause = error.into_io_error().unwrap_or_else(|| std::io::Error::other(message));
    file_error("reading", path, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_the_order_of_keys() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a.txt", "a/x", "a/y/z", "a0", "B"] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let found: Vec<String> = files(root.path()).unwrap().map(|item| item.unwrap().relative).collect();
        assert_eq!(found, ["B", "a.txt", "a/x", "a/y/z", "a0"]);
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(found, sorted);
    }

    #[test]
    fn a_dangling_link_is_an_error_and_the_rest_goes_on() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", root.path().join("dangling")).unwrap();
        std::fs::write(root.path().join("file"), "x").unwrap();
        let found: Vec<_> = files(root.path()).unwrap().collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(found[1].as_ref().unwrap().relative, "file");
        assert!(files(&root.path().join("none")).is_err());
    }
}
