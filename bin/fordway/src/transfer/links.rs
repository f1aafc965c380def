//! Removes symbolic links that lead out of a bucket, in place of the objects behind them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use fordway_store::{Bucket, DeleteOptions, Key, Result, Store, VersionId};

/// The links that a command has removed.
#[derive(Default)]
pub(crate) struct RemovedLinks(Mutex<HashSet<(Bucket, String)>>);

/// What was done about a key that leads through a link out of its bucket.
pub(crate) enum LinkRemoval {
    /// The link with this key was removed.
    Done(Key),
    /// The link was removed before, because another key leads through it.
    DoneBefore,
    /// The link's key does not begin with the required prefix.
    Outside,
}

impl RemovedLinks {
    /// Removes the link through which `key` leaves the bucket, if the link's own key begins with `prefix`. The store has
    /// refused to remove `key` with an error for which [`fordway_store::Error::leaves_bucket`] holds. It refuses the
    /// keys of all directories behind the link in the same way, so the first key that it does not refuse is the link.
    /// Errors: from the removal of the link.
    pub(crate) fn remove(
        &self,
        store: &dyn Store,
        (bucket, key): (&Bucket, &Key),
        prefix: &str,
    ) -> Result<LinkRemoval> {
        // While a worker removes a link, other workers wait: without the link, they could not find out its key.
        let mut removed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let above = |path: &str| path.rsplit_once('/').map(|(above, _)| above.to_owned());
        let mut path = above(key.as_str());
        while let Some(link) = path.filter(|link| link.len() > prefix.len() && link.starts_with(prefix)) {
            if removed.contains(&(bucket.clone(), link.clone())) {
                return Ok(LinkRemoval::DoneBefore);
            }
            path = above(&link);
            // In a bucket that keeps versions, this version ID prevents a delete marker.
            let options = DeleteOptions { version: Some(VersionId::null()), ..Default::default() };
            let link_key = Key::new(link.as_str())?;
            match store.delete(bucket, &link_key, &options) {
                Ok(_) => {
                    removed.insert((bucket.clone(), link));
                    return Ok(LinkRemoval::Done(link_key));
                }
                Err(error) if error.leaves_bucket() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(LinkRemoval::Outside)
    }
}
