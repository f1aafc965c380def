//! The directories that an operation may have emptied while it held the lock of a key.
//!
//! In a bucket with markers, an empty directory is removed under the lock of the key that the directory would have as
//! an object. A thread that holds a key's lock cannot take that lock in every case, because several keys share an
//! in-process lock. The directory is therefore removed when the thread has released the key's lock.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use fordway_store::Bucket;

use crate::private::PrivateDirectoryContents;

/// A directory that may be empty.
pub(crate) struct EmptiedDirectory {
    pub(crate) bucket: Bucket,
    pub(crate) path: String,
    pub(crate) contents: PrivateDirectoryContents,
}

thread_local! {
    /// The directories that this thread's operation may have emptied; `None` unless the thread holds a key's lock. The
    /// variable has no destructor, because a thread may still delete objects after its destructors have run, for
    /// example in an exit handler. [`CollectionGuard`] frees the list.
    static EMPTIED: RefCell<ManuallyDrop<Option<Vec<EmptiedDirectory>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Stops collecting when dropped, even if the operation panics.
struct CollectionGuard;

impl Drop for CollectionGuard {
    fn drop(&mut self) {
        drop(take());
    }
}

fn take() -> Option<Vec<EmptiedDirectory>> {
    ManuallyDrop::into_inner(EMPTIED.take())
}

/// Runs `act`, which holds a key's lock. Returns its result, and the directories for which it called [`remove_later`].
/// Cost: no system call.
#[inline]
pub(crate) fn collect<T>(act: impl FnOnce() -> T) -> (T, Vec<EmptiedDirectory>) {
    EMPTIED.set(ManuallyDrop::new(Some(Vec::new())));
    let collecting = CollectionGuard;
    let done = act();
    let emptied = take().unwrap_or_default();
    drop(collecting);
    (done, emptied)
}

/// Leaves the removal of the directory to the caller of [`collect`]. Returns `false` if the thread holds no key's lock,
/// so the caller can remove the directory itself.
pub(crate) fn remove_later(bucket: &Bucket, path: &str, contents: PrivateDirectoryContents) -> bool {
    EMPTIED.with_borrow_mut(|emptied| match &mut **emptied {
        Some(emptied) => {
            emptied.push(EmptiedDirectory { bucket: bucket.clone(), path: path.to_owned(), contents });
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_left_to_the_holder_of_the_lock() {
        let bucket = Bucket::new("bucket").unwrap();
        let later = || remove_later(&bucket, "bucket/dir", PrivateDirectoryContents::default());
        assert!(!later());
        let (is_left, emptied) = collect(later);
        assert!(is_left && emptied.iter().map(|dir| dir.path.as_str()).eq(["bucket/dir"]));
        assert!(std::panic::catch_unwind(|| collect(|| panic!("in the middle"))).is_err());
        assert!(!later());
    }
}
