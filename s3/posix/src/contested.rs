//! Keys that have files of two users, in buckets with the sticky bit.
//!
//! Any writer of such a bucket can create a file at the plain path of another user's odd key, or at the odd path of
//! another user's plain key, if the path is free. The kernel does not let the user replace the other user's file. A
//! change of the key must then neither remove the other user's file nor fail because of it.

use fordway_store::{Bucket, Error, ErrorKind, Key, Result};
use fordway_sys::{file_user, stat_in};

use crate::area::TrustedOwner;
use crate::layout::{ObjectPath, odd, plain, split};
use crate::private::PrivateDirectoryContents;
use crate::volume::StoreDirectoryTree;

/// Returns the path of the caller's file if the key's two files belong to different users. Returns `None` for the
/// bucket's owner and root, who may change both files. Cost: none, unless the bucket has odd keys and the sticky bit.
#[inline]
pub(crate) fn callers_place(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    key: &Key,
    contents: PrivateDirectoryContents,
) -> Option<ObjectPath<'static>> {
    let guard = contents.guard.filter(|_| contents.has_odd)?;
    let caller = file_user();
    if guard.trusts(caller) {
        return None;
    }
    contested_place(volume, bucket, key, caller)
}

/// Returns the path of the file of `user` if the key's two files belong to different users. Cost: two `newfstatat`.
#[cold]
fn contested_place(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    key: &Key,
    user: u32,
) -> Option<ObjectPath<'static>> {
    let places = [plain(bucket, key)?.into_owned(), odd(bucket, key)];
    let owner_at = |place: &ObjectPath| {
        let state = volume.open_dir(&place.dir).and_then(|dir| stat_in(dir, &place.name));
        state.ok().filter(|state| !state.is_dir).map(|state| state.user)
    };
    let owners = [owner_at(&places[0])?, owner_at(&places[1])?];
    let is_contested = owners[0] != owners[1];
    places.into_iter().zip(owners).find(|(_, owner)| is_contested && *owner == user).map(|(place, _)| place)
}

/// Checks that no other user can later hide an object at the odd path of `key`. Must be called before an object is
/// created there. Cost: usually none; more for a key that has a plain path, in a bucket with the sticky bit. Errors:
/// `AccessDenied` if another user could hide the object.
pub(crate) fn check_odd_path(volume: &StoreDirectoryTree, bucket: &Bucket, key: &Key) -> Result<()> {
    if plain(bucket, key).is_none() {
        return Ok(());
    }
    match volume.guard(bucket)? {
        Some(guard) => check_blocked_path(volume, bucket, key, guard),
        None => Ok(()),
    }
}

/// Checks that no other user can later create a file at the plain path of `key`, which is not free at present. Such a
/// file would hide the object at the key's odd path. Errors: `AccessDenied` if another user could remove the
/// file or a directory at the plain path, or above it.
#[cold]
fn check_blocked_path(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    key: &Key,
    guard: TrustedOwner,
) -> Result<()> {
    let Some(place) = plain(bucket, key) else { return Ok(()) };
    let (path, caller) = (place.path(), file_user());
    let first = bucket.as_str().len() + 1;
    let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > first);
    for end in ends.chain([path.len()]) {
        let (parent, name) = split(&path[..end]);
        let Ok(state) = volume.open_dir(parent).and_then(|dir| stat_in(dir, name)) else { return Ok(()) };
        let is_above = state.is_dir && end < path.len();
        let is_others = state.user != caller && !guard.trusts(state.user);
        if is_others || (is_above && guard.danger(&state, caller).is_some()) {
            return Err(blocked(&path[first..end], state.user));
        }
        if !is_above {
            return Ok(());
        }
    }
    Ok(())
}

fn blocked(name: &str, user: u32) -> Error {
    let why = format!(
        "the path of the key contains {name:?}, which the user with the id {user} could replace; use another key"
    );
    Error::new(ErrorKind::AccessDenied, why)
}
