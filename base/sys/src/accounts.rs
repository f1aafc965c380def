//! What the system's user database says of a user.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use crate::socket::Peer;

/// Room for the texts of an entry; longer ones do not matter here.
const TEXT_BYTES: usize = 16 * 1024;
/// The most groups that are asked for: the kernel takes no more.
const GROUPS_MAX: usize = 65_536;

/// The group of users without one: what Linux shows for an id that it cannot map.
const NO_GROUP: u32 = 65_534;

/// The user with the id `uid` and its groups; one of no group where the database does not know it.
pub fn peer_of_user(uid: u32) -> Peer {
    known(uid).unwrap_or(Peer { uid, gid: NO_GROUP, groups: Vec::new() })
}

fn known(uid: u32) -> Option<Peer> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut text = vec![0; TEXT_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to memory that is ours during the call, of the sizes stated.
    let result =
        unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut found) };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call succeeded and found an entry, so it has filled it in.
    let entry = unsafe { entry.assume_init() };
    // SAFETY: its name ends in NUL and lies in `text`, which is still there.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(Peer { uid, gid: entry.pw_gid, groups: groups_of(name, entry.pw_gid) })
}

fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the name ends in NUL; the array has room for `count` groups.
        let result = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if result >= 0 {
            groups.truncate(count.max(0) as usize);
            return groups;
        }
        if groups.len() >= GROUPS_MAX {
            return Vec::new();
        }
        groups.resize(groups.len() * 4, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_stranger_has_no_group() {
        let root = peer_of_user(0);
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(peer_of_user(4_000_000_001), Peer { uid: 4_000_000_001, gid: NO_GROUP, groups: vec![] });
    }
}
