//! The user that a thread accesses files as, and user entries in the system's database. Threads that can no longer
//! become another user delegate work for other users to a [`PrivilegedThread`].

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{Gid, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

use super::process::ProcessIdentity;
use crate::socket::PeerCredentials;

/// Returns the effective user of this process.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the effective group of this process.
pub fn group_id() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Makes the calling thread, and no other, access files as `peer` from now on. The kernel checks the thread's access
/// according to the user, group and supplementary groups of `peer`. New files belong to that user and group. Every
/// capability is dropped permanently. Threads that the calling thread starts later inherit these credentials.
///
/// The thread's real and effective user do not change. If they became the user of `peer`, that user could send signals
/// to the thread, and a signal that ends one thread ends the whole process.
///
/// Errors: `PERM` unless the process may change its user IDs (root). After an error, the thread must no longer be used.
pub fn act_as(peer: &PeerCredentials) -> Result<()> {
    let groups: Vec<Gid> = peer.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups)?;
    set_file_id(libc::SYS_setfsgid, peer.gid)?;
    set_file_id(libc::SYS_setfsuid, peer.uid)?;
    let nothing = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing })
}

/// Credentials that a thread running as root can adopt for the duration of a call. A program creates one value for each
/// user.
#[derive(Debug)]
pub struct ImpersonatedUser {
    role: Arc<ThreadCredentials>,
    own: Arc<ThreadCredentials>,
}

/// All credentials that the kernel uses to check access to files.
#[derive(Debug)]
struct ThreadCredentials {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    capabilities: CapabilitySets,
}

thread_local! {
    /// The credentials that the thread has adopted, and its own credentials, which it had before it adopted any others.
    static PLAYED: RefCell<Option<(Arc<ThreadCredentials>, Arc<ThreadCredentials>)>> = const { RefCell::new(None) };
}

impl ImpersonatedUser {
    /// Creates the credentials of `peer`. Errors: if the calling thread's credentials cannot be read.
    pub fn new(peer: &PeerCredentials) -> Result<Self> {
        let own = match PLAYED.with_borrow(|played| played.as_ref().map(|(_, own)| own.clone())) {
            Some(own) => own,
            None => Arc::new(ThreadCredentials::of_thread()?),
        };
        let groups = peer.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let capabilities = CapabilitySets { effective: CapabilitySet::empty(), ..own.capabilities };
        Ok(ImpersonatedUser {
            role: Arc::new(ThreadCredentials { uid: peer.uid, gid: peer.gid, groups, capabilities }),
            own,
        })
    }

    /// Runs `work` while the calling thread, and no other, accesses files as the user. The thread has the user's group
    /// and supplementary groups, and no effective capabilities. Threads that `work` starts keep the user's credentials.
    /// When `work` has returned or panicked, the thread gets its former credentials back: its own, or the credentials
    /// that an enclosing call adopted. If restoring them fails, which should never happen to root, the process aborts,
    /// so that no thread acts as the wrong user. Errors: `PERM` unless the process may change its user IDs (root);
    /// `work` is then not called. Cost: 12 system calls that access no files, 6 µs on a virtual machine.
    pub fn play<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let back = self.enter()?;
        let done = work();
        drop(back);
        Ok(done)
    }

    /// Adopts the user's credentials until the guard is dropped.
    fn enter(&self) -> Result<CredentialGuard<'_>> {
        let before = PLAYED.replace(Some((self.role.clone(), self.own.clone())));
        let is_nested = before.is_some();
        let back = CredentialGuard { own: &self.own, before };
        if is_nested {
            self.own.come_back()?;
        }
        self.role.enter()?;
        Ok(back)
    }
}

impl ThreadCredentials {
    fn of_thread() -> Result<Self> {
        Ok(ThreadCredentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups()?,
            capabilities: capabilities(None)?,
        })
    }

    /// Switches from the thread's own credentials to these credentials. Capabilities are dropped last, because changing
    /// the other credentials requires them.
    fn enter(&self) -> Result<()> {
        set_thread_groups(&self.groups)?;
        set_file_id(libc::SYS_setfsgid, self.gid)?;
        set_file_id(libc::SYS_setfsuid, self.uid)?;
        set_capabilities(None, self.capabilities)
    }

    /// Switches back to these credentials, which are the thread's own. Capabilities are restored before the groups,
    /// because setting groups needs a capability.
    fn come_back(&self) -> Result<()> {
        set_file_id(libc::SYS_setfsuid, self.uid)?;
        set_capabilities(None, self.capabilities)?;
        set_file_id(libc::SYS_setfsgid, self.gid)?;
        // If the thread lacks the capability to set groups, the groups were not changed on entry either.
        match set_thread_groups(&self.groups) {
            Err(Errno::PERM) if rustix::process::getgroups()? == self.groups => Ok(()),
            set => set,
        }
    }
}

/// Restores a thread's credentials when dropped.
struct CredentialGuard<'o> {
    own: &'o ThreadCredentials,
    before: Option<(Arc<ThreadCredentials>, Arc<ThreadCredentials>)>,
}

impl Drop for CredentialGuard<'_> {
    fn drop(&mut self) {
        let before = self.before.take();
        let role = before.as_ref().map(|(role, _)| role.clone());
        PLAYED.set(before);
        let done = self.own.come_back().and_then(|()| role.map_or(Ok(()), |role| role.enter()));
        if done.is_err() {
            std::process::abort();
        }
    }
}

/// Returns whether two owners of files are known to be the same user. In a user namespace, the kernel shows all
/// unmapped users as the overflow user (65534). Two files of the overflow user may therefore belong to different users.
/// Cost: none, except for the first comparison of two equal IDs other than 0: two reads in `/proc`.
pub fn is_same_user(one: u32, other: u32) -> bool {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    one == other && (one == 0 || *OVERFLOW.get_or_init(ambiguous_user) != Some(one))
}

/// Returns whether the calling thread's user owns an open file, which must not have been opened with `O_PATH`. The
/// kernel decides, so the answer is right even if the user's ID stands for more than one user (see [`is_same_user`]). A
/// thread with the capability `FOWNER` counts as the owner of the files of all users who have an ID in its user
/// namespace. No other thread may ask about the same open file at the same time. Cost: four system calls.
pub fn is_own_file(file: impl AsFd) -> bool {
    let Ok(flags) = fcntl_getfl(&file) else { return false };
    let others = flags.difference(OFlags::NOATIME);
    // Only a file's owner may set this flag. If the flag is set already, the kernel does not check the owner.
    let set = |flags| fcntl_setfl(&file, flags).is_ok();
    set(others) && set(others | OFlags::NOATIME) && set(others)
}

/// Returns the ID that stands for more than one user; `None` if this process sees every user's own ID. Without `/proc`,
/// it is unknown whether the process is in a user namespace, so the default overflow user counts as ambiguous.
fn ambiguous_user() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map");
    if map.is_ok_and(|map| maps_all_users(&map)) {
        return None;
    }
    let set = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    Some(set.ok().and_then(|user| user.trim().parse().ok()).unwrap_or(OVERFLOW_USER))
}

/// The kernel's default for `/proc/sys/kernel/overflowuid`.
const OVERFLOW_USER: u32 = 65_534;

/// Returns whether `map`, the content of a file `uid_map`, gives every user an ID. The ID -1 is not a user.
fn maps_all_users(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

/// Returns the user that the calling thread accesses files as. Cost: one system call.
pub fn file_user() -> u32 {
    // SAFETY: the call takes a number and accesses no memory; the number -1 changes nothing.
    unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 }
}

/// Returns the group of the files that the calling thread creates, unless their directory has the setgid bit. Cost: one
/// system call.
pub fn file_group() -> u32 {
    // SAFETY: the call takes a number and accesses no memory; the number -1 changes nothing.
    unsafe { libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32 }
}

/// Returns whether the calling thread accesses files as a member of `group`. Cost: one system call if `group` is the
/// thread's own group for files, otherwise three.
pub fn is_in_group(group: u32) -> bool {
    file_group() == group
        || rustix::process::getgroups().is_ok_and(|all| all.iter().any(|of| of.as_raw() == group))
}

/// Returns whether the calling thread may act as other users, now or after its own credentials are restored.
pub fn may_act_as_others() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(needed))
}

/// Returns whether the capabilities of the process permit it to set and clear the immutable flag of files
/// ([`crate::set_immutable`]).
pub fn may_set_immutable() -> bool {
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(CapabilitySet::LINUX_IMMUTABLE))
}

/// Runs `work` with the capabilities `wanted` in effect for the calling thread only. Only capabilities that the thread
/// is permitted to use take effect, even within [`ImpersonatedUser::play`]. Errors: from changing the capabilities.
/// If restoring the former capabilities fails, which should never happen, the process aborts.
pub(crate) fn with_capabilities<T>(wanted: CapabilitySet, work: impl FnOnce() -> T) -> Result<T> {
    let before = capabilities(None)?;
    let raised = CapabilitySets { effective: before.effective | (wanted & before.permitted), ..before };
    set_capabilities(None, raised)?;
    let done = work();
    if set_capabilities(None, before).is_err() {
        std::process::abort();
    }
    Ok(done)
}

/// Calls `setfsuid` or `setfsgid`, which return the old value whether or not they succeed.
fn set_file_id(call: libc::c_long, id: u32) -> Result<()> {
    // SAFETY: both calls take a number and access no memory.
    let (_, now) = unsafe { (libc::syscall(call, id), libc::syscall(call, u32::MAX)) };
    match now as u32 == id {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// The size of the buffer for the strings of a user entry; a user with a longer entry counts as unknown.
const TEXT_BYTES: usize = 16 * 1024;
/// The maximum number of groups to request, which is the kernel's own limit.
const GROUPS_MAX: usize = 65_536;

/// The group of a user that the database does not contain. Linux shows the same number for an ID that it cannot map.
const NO_GROUP: u32 = 65_534;

/// Returns the user with the ID `uid` and the user's groups. If the database does not have the user, the group is
/// 65,534 and there are no supplementary groups.
pub fn peer_of_user(uid: u32) -> PeerCredentials {
    known(uid).unwrap_or(PeerCredentials { uid, gid: NO_GROUP, groups: Vec::new() })
}

/// Returns the name of the user with the ID `uid`; `None` if the database does not have the user.
pub fn user_name(uid: u32) -> Option<String> {
    user_entry(uid, |name, _| name.to_string_lossy().into_owned())
}

/// Returns the IDs and groups of the user with this name; `None` if the database does not have the user.
pub fn user_named(name: &str) -> Option<PeerCredentials> {
    let name = CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut text = vec![0; TEXT_BYTES];
    let mut found = std::ptr::null_mut();
    let (room, length) = (text.as_mut_ptr(), text.len());
    // SAFETY: the name ends in NUL, and all pointers refer to memory of the stated sizes, which we own during the call.
    let result = unsafe { libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), room, length, &raw mut found) };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call succeeded and found an entry, so the entry is initialised.
    let (uid, gid) = unsafe { (entry.assume_init_ref().pw_uid, entry.assume_init_ref().pw_gid) };
    Some(PeerCredentials { uid, gid, groups: groups_of(&name, gid) })
}

fn known(uid: u32) -> Option<PeerCredentials> {
    user_entry(uid, |name, gid| PeerCredentials { uid, gid, groups: groups_of(name, gid) })
}

/// Calls `read` with the name and the group of a user, if the database has the user.
fn user_entry<T>(uid: u32, read: impl FnOnce(&CStr, u32) -> T) -> Option<T> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut text = vec![0; TEXT_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers refer to memory of the stated sizes, which we own during the call.
    let result =
        unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut found) };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call succeeded and found an entry, so the entry is initialised.
    let entry = unsafe { entry.assume_init() };
    // SAFETY: the entry's name ends in NUL and is in `text`, which still exists.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(read(name, entry.pw_gid))
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

type PrivilegedTask = Box<dyn FnOnce() + Send>;

/// A thread that can act as other users, on behalf of threads that have lost this permission.
#[derive(Debug)]
pub struct PrivilegedThread {
    work: Mutex<Sender<PrivilegedTask>>,
    started_by: ProcessIdentity,
}

static HELPER: OnceLock<Option<PrivilegedThread>> = OnceLock::new();

impl PrivilegedThread {
    /// Starts the process's helper thread unless it is already running. Only a thread that may act as other users
    /// should call this function, because the helper thread inherits its credentials.
    pub fn start() {
        HELPER.get_or_init(|| {
            let (sender, receiver) = channel::<PrivilegedTask>();
            let serve = move || receiver.into_iter().for_each(|work| work());
            let started = std::thread::Builder::new().name("fordway-helper".to_owned()).spawn(serve);
            started.is_ok().then(|| PrivilegedThread {
                work: Mutex::new(sender),
                started_by: ProcessIdentity::current(),
            })
        });
    }

    /// Returns the process's helper thread. Errors: `PERM` if the process has no helper thread, for example because it
    /// is a forked child, which has none of its parent's threads.
    fn current() -> Result<&'static PrivilegedThread> {
        let helper = HELPER.get().and_then(Option::as_ref).ok_or(Errno::PERM)?;
        if helper.started_by.is_current() { Ok(helper) } else { Err(Errno::PERM) }
    }
}

/// Runs `work` as `peer`, without capabilities: on the calling thread if it may act as other users, otherwise on the
/// process's [`PrivilegedThread`]. Errors: `PERM` if neither thread may act as other users; `IO` if `work` panics on
/// the [`PrivilegedThread`].
pub fn act_for<T: Send + 'static>(
    peer: &PeerCredentials,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if may_act_as_others() {
        return ImpersonatedUser::new(peer)?.play(work);
    }
    let (answer, answered): (SyncSender<Result<T>>, _) = sync_channel(1);
    let peer = peer.clone();
    let errand: PrivilegedTask = Box::new(move || {
        // If the result cannot be sent, the requesting thread has ended. A panic of `work` makes only this call fail.
        let play =
            std::panic::AssertUnwindSafe(|| ImpersonatedUser::new(&peer).and_then(|role| role.play(work)));
        let _ = answer.send(std::panic::catch_unwind(play).unwrap_or(Err(Errno::IO)));
    });
    let sent = PrivilegedThread::current()?.work.lock().unwrap_or_else(PoisonError::into_inner).send(errand);
    sent.map_err(|_| Errno::PERM)?;
    answered.recv().unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::{act_as, file_user, *};

    #[test]
    fn a_namespace_without_all_users_is_recognized() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(maps_all_users("0 0 1000\n1000 1000 4294966295\n"));
        for map in ["0 0 1\n", "0 1000 1\n1 100000 65536\n", "", "what\n"] {
            assert!(!maps_all_users(map), "{map}");
        }
        assert!(is_same_user(0, 0) && !is_same_user(0, 1));
    }

    #[test]
    fn the_kernel_says_who_owns_a_file() {
        if !fordway_needs::root("act as others") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for (path, user) in [(dir.path().to_owned(), 54_321), (dir.path().join("file"), 54_322)] {
            std::fs::write(dir.path().join("file"), "").unwrap();
            std::os::unix::fs::chown(&path, Some(user), None).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            let owns = |uid| {
                ImpersonatedUser::new(&PeerCredentials { uid, gid: uid, groups: vec![] })
                    .unwrap()
                    .play(|| is_own_file(&file))
            };
            assert_eq!([54_321, 54_322].map(owns), [Ok(user == 54_321), Ok(user == 54_322)]);
        }
    }

    #[test]
    fn a_thread_acts_as_another_user_and_the_others_do_not() {
        if !fordway_needs::root("act as others") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("secret"), "s").unwrap();
        std::fs::set_permissions(at("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(at("ours"), "o").unwrap();
        std::fs::set_permissions(at("ours"), PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(at("ours"), Some(0), Some(54_322)).unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                act_as(&PeerCredentials { uid: 54_321, gid: 54_320, groups: vec![54_322] }).unwrap();
                assert!(std::fs::read(at("secret")).is_err(), "only root may read it");
                assert_eq!(std::fs::read(at("ours")).unwrap(), b"o", "a further group may");
                std::fs::write(at("made"), "m").unwrap();
                std::thread::scope(|inner| {
                    inner.spawn(|| assert!(std::fs::read(at("secret")).is_err())).join().unwrap();
                });
                act_as(&PeerCredentials { uid: 0, gid: 0, groups: vec![] })
                    .expect_err("there is no way back");
            });
            other.join().unwrap();
        });
        let made = std::fs::metadata(at("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (54_321, 54_320));
        assert_eq!(std::fs::read(at("secret")).unwrap(), b"s", "this thread is still root");
    }

    #[test]
    fn a_role_ends_with_its_work_even_if_that_panics() {
        if !fordway_needs::root("act as others") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("secret"), "s").unwrap();
        std::fs::set_permissions(at("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let role = ImpersonatedUser::new(&PeerCredentials { uid: 54_321, gid: 54_320, groups: vec![54_322] })
            .unwrap();
        let groups = rustix::process::getgroups().unwrap();
        let read = role.play(|| std::fs::write(at("made"), "m").and_then(|()| std::fs::read(at("secret"))));
        assert!(read.unwrap().is_err(), "the user may not read it");
        let panicked = std::panic::catch_unwind(|| role.play(|| panic!("in the middle")));
        assert!(panicked.is_err());
        let made = std::fs::metadata(at("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (54_321, 54_320));
        std::fs::write(at("ours"), "o").unwrap();
        assert_eq!(std::fs::metadata(at("ours")).unwrap().uid(), 0);
        assert_eq!(std::fs::read(at("secret")).unwrap(), b"s", "root again");
        assert_eq!(rustix::process::getgroups().unwrap(), groups);
    }

    #[test]
    fn root_is_known_and_a_stranger_has_no_group() {
        let root = peer_of_user(0);
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(
            peer_of_user(4_000_000_001),
            PeerCredentials { uid: 4_000_000_001, gid: NO_GROUP, groups: vec![] }
        );
    }

    #[test]
    fn a_thread_that_gave_up_its_rights_is_helped() {
        let user = |uid| PeerCredentials { uid, gid: uid, groups: vec![] };
        if !fordway_needs::root("act as others") {
            assert_eq!(act_for(&user(54_321), file_user), Err(Errno::PERM));
            return;
        }
        PrivilegedThread::start();
        let asked = std::thread::spawn(move || {
            act_as(&user(54_321)).unwrap();
            (act_for(&user(54_322), file_user), file_user())
        });
        assert_eq!(asked.join().unwrap(), (Ok(54_322), 54_321));
        assert_eq!(act_for(&user(54_322), file_user), Ok(54_322));
        let nested = ImpersonatedUser::new(&user(54_321))
            .unwrap()
            .play(|| (act_for(&user(54_322), file_user), file_user()));
        assert_eq!(nested, Ok((Ok(54_322), 54_321)));
        assert_eq!(file_user(), 0);
    }
}
