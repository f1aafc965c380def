//! Removes symbolic links that lead out of a bucket, instead of the objects reached through them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, Key, Result, Store, VersionId, VersionsQuery,
};

/// The links that a command has removed.
#[derive(Default)]
pub(crate) struct RemovedLinks(Mutex<HashSet<(Bucket, String)>>);

/// The outcome of removing the link through which a key leads out of its bucket.
pub(crate) enum LinkRemoval {
    /// The link with this key was removed.
    Done(Key),
    /// The link was already removed, because another key leads through it.
    DoneBefore,
    /// No link was removed: the link could not be identified with certainty, a key on the path has a version, or the
    /// link's key does not begin with the required prefix.
    NotFound,
}

impl RemovedLinks {
    /// Removes the link through which `key` leaves the bucket, if the link's own key begins with `prefix`. The store
    /// has refused to remove `key` with an error for which [`fordway_store::Error::leaves_bucket`] holds. The store
    /// refuses the keys of all directories reached through the link in the same way. On the path from `key` upwards,
    /// the first key that the store accepts is therefore the link, unless `key` itself is the link. A key that has a
    /// version is not removed, because the version would be lost. Cost: one listing and one delete for each directory
    /// on the path from `key` to the link, and up to eight HEADs. Errors: the errors of the operations.
    pub(crate) fn remove(
        &self,
        store: &dyn Store,
        (bucket, key): (&Bucket, &Key),
        prefix: &str,
    ) -> Result<LinkRemoval> {
        // Other workers wait while a worker removes a link, because they cannot determine the key of a link that is
        // gone.
        let mut removed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_below = |path: &&str| path.len() > prefix.len() && path.starts_with(prefix);
        let paths: Vec<&str> = directories_above(key.as_str()).take_while(is_below).collect();
        if paths.iter().any(|path| removed.contains(&(bucket.clone(), (*path).to_owned()))) {
            return Ok(LinkRemoval::DoneBefore);
        }
        for path in paths {
            let link = Key::new(path)?;
            if has_version(store, bucket, path)? {
                return Ok(LinkRemoval::NotFound);
            }
            // In a bucket that keeps versions, this version ID prevents a delete marker.
            let options = DeleteOptions { version: Some(VersionId::null()), ..Default::default() };
            match store.delete(bucket, &link, &options) {
                Err(error) if error.leaves_bucket() => {}
                Err(error) => return Err(error),
                Ok(_) if is_missing(store, bucket, key)? => {
                    removed.insert((bucket.clone(), path.to_owned()));
                    return Ok(LinkRemoval::Done(link));
                }
                // Nothing was removed: the directory has no link on its path, so `key` itself is the link.
                Ok(_) => return Ok(LinkRemoval::NotFound),
            }
        }
        Ok(LinkRemoval::NotFound)
    }
}

/// Returns the directories on the path of `key`, the longest path first.
fn directories_above(key: &str) -> impl Iterator<Item = &str> {
    let above = |path: &str| path.rfind('/');
    std::iter::successors(above(key).map(|end| &key[..end]), move |path| above(path).map(|end| &path[..end]))
}

/// Returns whether the bucket has a version or a delete marker of the key `name`.
fn has_version(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<bool> {
    // No key with this prefix sorts before the prefix itself.
    let query = VersionsQuery { prefix: name.to_owned(), max_keys: 1, ..Default::default() };
    Ok(store.list_versions(bucket, &query)?.versions.iter().any(|found| found.key == name))
}

/// The pause before a key is looked up again, and the number of lookups. A store may use a directory for another 10 ms
/// after the link to the directory was removed.
const PAUSE: Duration = Duration::from_millis(5);
const LOOKUPS: usize = 8;

/// Returns whether the key does not exist, or ceases to exist within about 40 ms.
fn is_missing(store: &dyn Store, bucket: &Bucket, key: &Key) -> Result<bool> {
    for _ in 0..LOOKUPS {
        match store.head(bucket, key, &GetOptions::default()) {
            Ok(_) => std::thread::sleep(PAUSE),
            Err(error) if error.kind() == ErrorKind::NoSuchKey => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
