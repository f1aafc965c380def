//! Decides whose names among the old versions of a key count.
//!
//! In a bucket with the sticky bit, any writer may create names next to the versions of another user. Such names must
//! neither become the object, nor influence the order of new versions, nor prevent a change of the key.

use fordway_store::Result;
use fordway_sys::{Errno, file_user, is_same_user, stat_in};

use super::KeyVersions;
use super::names::NoncurrentVersionName;
use crate::area::TrustedOwner;
use crate::errors::from_errno;

/// The users whose names among the old versions of a key count. The bucket's owner and root are always among them. In a
/// bucket without the sticky bit, every name counts.
#[derive(Clone, Copy)]
pub(crate) enum VersionOwners<'o> {
    /// All users.
    Any,
    /// These users.
    Of(&'o [u32]),
}

impl VersionOwners<'_> {
    /// Returns the users whose old versions the caller may replace: all users for the bucket's owner and root,
    /// otherwise only `caller`.
    pub(crate) fn replaceable(guard: Option<TrustedOwner>, caller: &[u32; 1]) -> VersionOwners<'_> {
        match guard {
            Some(guard) if !guard.trusts(caller[0]) => VersionOwners::Of(caller),
            _ => VersionOwners::Any,
        }
    }
}

impl KeyVersions<'_> {
    /// Returns a function that decides whether a name in the key's versions directory counts. Cost of the function:
    /// none, or one `newfstatat` in a bucket with the sticky bit.
    pub(super) fn counted_names<'o>(
        &self,
        guard: Option<TrustedOwner>,
        owners: VersionOwners<'o>,
    ) -> Result<impl Fn(&str) -> bool + use<'o>> {
        let checked = match (guard, owners) {
            (Some(guard), VersionOwners::Of(owners)) => match self.volume.open_dir(&self.path()) {
                Ok(dir) => Some((dir, guard, owners)),
                // Without the directory, there are no names.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
                Err(errno) => return Err(from_errno(errno, "opening the versions")),
            },
            _ => None,
        };
        Ok(move |name: &str| {
            let Some((dir, guard, owners)) = &checked else { return true };
            stat_in(dir, name).is_ok_and(|state| {
                guard.trusts(state.user) || owners.iter().any(|owner| is_same_user(*owner, state.user))
            })
        })
    }

    /// Returns the owner of an old version or a delete marker; `None` if it no longer exists. Cost: one open of the
    /// directory, one `newfstatat`.
    pub(super) fn owner_of_version(&self, found: &NoncurrentVersionName) -> Option<u32> {
        let place = self.place_of(found);
        self.volume
            .open_dir(&place.dir)
            .and_then(|dir| stat_in(&dir, &place.name))
            .ok()
            .map(|state| state.user)
    }

    /// Returns the name to read among several names of one version: the first name that belongs to `owner`, the owner
    /// of the latest version, or to a trusted user. If there is no such name, returns the first name.
    pub(super) fn preferred_name<'n>(
        &self,
        names: &'n [NoncurrentVersionName],
        owner: Option<u32>,
    ) -> Result<Option<&'n NoncurrentVersionName>> {
        let (Some(owner), true) = (owner, names.len() > 1) else { return Ok(names.first()) };
        let owners = [owner];
        let counts =
            self.counted_names(self.volume.contents(self.bucket)?.guard, VersionOwners::Of(&owners))?;
        Ok(names.iter().find(|found| counts(&found.name())).or(names.first()))
    }

    /// Returns the only user, other than the bucket's owner and root, to whom old versions and delete markers of the
    /// key belong. Returns `None` if there is no such user, or more than one. Cost: one read of the key's versions
    /// directory, and an open and a `newfstatat` for each name.
    #[cold]
    pub(super) fn only_other_owner(&self, guard: TrustedOwner) -> Result<Option<u32>> {
        let mut only = None;
        for found in self.archived()? {
            let owner = self.owner_of_version(&found).filter(|owner| !guard.trusts(*owner));
            match (only, owner) {
                (Some(one), Some(other)) if one != other => return Ok(None),
                (_, Some(owner)) => only = Some(owner),
                (_, None) => {}
            }
        }
        Ok(only)
    }
}

/// Returns the users whose names count when a file of `owner` becomes an old version: the owner and the caller.
pub(super) fn owner_and_caller(owner: u32) -> [u32; 2] {
    [owner, file_user()]
}
