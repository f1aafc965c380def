//! The file system of a root or bucket: whether other nodes may change the file system, and whether the store's
//! guarantees hold on it.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    Errno, FileSystemSharing, MountGuaranteeVerdict, MountProblem, MountProperties, PathResolutionMethod,
    RootDirectory, link, remove_file, stat_in,
};

use crate::PosixConfig;
use crate::format::read_trusted;
use crate::stage::{HiddenName, hidden_name};
use crate::volume::StoreDirectoryTree;

/// The properties of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSystemTraits {
    /// Whether other nodes may change the file system.
    pub(crate) sharing: FileSystemSharing,
    /// The reason why nothing may be written to the file system, with advice.
    pub(crate) unfit: Option<MountProblem>,
}

impl FileSystemTraits {
    /// Examines the file system of `file`. Cost: one `fstatfs`; if other nodes may change the file system, a second
    /// `fstatfs` and a read of the list of mounts.
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let sharing = FileSystemSharing::of(&file)?;
        let unfit = if sharing.is_shared() { MountProblem::of(&file)? } else { None };
        Ok(FileSystemTraits { sharing, unfit })
    }
}

/// The file in the root's private directory that contains the verdict of `fordway doctor --shared`.
const VERDICT: &str = "verdict";
/// The write permission bits for the group and for others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Examines the file system of a root as [`FileSystemTraits::of`] does, and also takes the verdict stored in the root
/// into account. The verdict can only forbid writing, so a wrong, missing or untrusted verdict weakens no guarantee.
pub(crate) fn site_of_root(root: &RootDirectory) -> Result<FileSystemTraits, Errno> {
    let site = FileSystemTraits::of(root.dir())?;
    if !site.sharing.is_shared() || site.unfit.is_some() {
        return Ok(site);
    }
    let unfit = believed_verdict(root)?.and_then(|verdict| verdict.problem());
    Ok(FileSystemTraits { unfit, ..site })
}

/// Returns the verdict stored in a root. Returns `None` if a user other than the root user and the root directory's
/// owner may have written the verdict. Also returns `None` if this node's mount does not match the mount that was
/// measured.
fn believed_verdict(root: &RootDirectory) -> Result<Option<MountGuaranteeVerdict>, Errno> {
    let read = read_trusted(root, VERDICT, MountGuaranteeVerdict::BYTES_MAX)?;
    let text = read.filter(|(_, mode)| mode & WRITABLE_BY_OTHERS == 0).map(|(text, _)| text);
    let verdict = text.and_then(|text| MountGuaranteeVerdict::parse(std::str::from_utf8(&text).ok()?));
    Ok(verdict.filter(|verdict| verdict.is_about(root.dir())))
}

/// Returns a note for operators if other nodes may change the file system of `root` and no valid verdict is stored in
/// the root.
pub fn note_on_mount(root: &Path) -> Option<String> {
    let opened = RootDirectory::open(root, PathResolutionMethod::Kernel).ok()?;
    let site = FileSystemTraits::of(opened.dir()).ok()?;
    if !site.sharing.is_shared() || site.unfit.is_some() || believed_verdict(&opened).ok()?.is_some() {
        return None;
    }
    let kind = MountProperties::of(opened.dir()).map_or("an unlisted mount".to_owned(), |mount| mount.kind);
    Some(format!(
        "{} is on {kind}, which other nodes may change, and this mount was not measured: the store asks the file \
         server before it checks a condition. Run `fordway doctor --shared` to find out whether this is enough",
        root.display()
    ))
}

/// Returns a note for operators if `root` is on a read-only mount, where all writes fail. systemd creates such mounts
/// for a unit, so the note names the settings of the unit to check.
pub fn note_on_read_only_mount(root: &Path) -> Option<String> {
    let opened = RootDirectory::open(root, PathResolutionMethod::Kernel).ok()?;
    fordway_sys::is_read_only(opened.dir()).ok()?.then(|| {
        format!(
            "{} is on a read-only mount, so all writes will fail. If systemd started this gateway, check the settings \
             ProtectHome= and ProtectSystem= of the unit",
            root.display()
        )
    })
}

/// Checks that the file system of `what` is suitable for a store with `config`. Errors: `NotImplemented` if the store's
/// guarantees would not hold on this file system.
pub(crate) fn require_fit(
    unfit: Option<MountProblem>,
    config: &PosixConfig,
    what: impl Display,
) -> Result<()> {
    let way_out = match unfit {
        None => return Ok(()),
        // If the store does not support `If-Match`, no locks are taken, so broken locks do not matter.
        Some(MountProblem::Locks(_)) if !config.if_match => return Ok(()),
        Some(MountProblem::Locks(_)) => "; or disable If-Match with conditions=none-match-only",
        Some(MountProblem::Objects(_)) => "",
    };
    let why = unfit.map(MountProblem::why).unwrap_or_default();
    Err(Error::new(ErrorKind::NotImplemented, format!("{what} is refused: {why}{way_out}")))
}

impl StoreDirectoryTree {
    /// Checks that the staged file `hidden` has the same inode number under a second name. Sidecar files and ETags
    /// depend on inode numbers, but some FUSE daemons give each name a number of its own. Cost: a link, two
    /// `newfstatat` and an `unlinkat`, once for each device. Errors: `NotImplemented`.
    pub(crate) fn require_one_number(&self, device: u64, hidden: Option<&HiddenName>) -> Result<()> {
        let numbered = &self.private.numbered;
        let Some(HiddenName { dir, name, .. }) = hidden else { return Ok(()) };
        if numbered.read().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(&device) {
            return Ok(());
        }
        let other = hidden_name()?;
        // Publishing reports a file system without hard links.
        if !matches!(link(dir, name, dir, &other), Ok(()) | Err(Errno::EXIST)) {
            return Ok(());
        }
        let numbers = [name, &other].map(|name| stat_in(dir, name).map(|state| state.inode));
        let _ = remove_file(dir, &other);
        let [Ok(one), Ok(two)] = numbers else { return Ok(()) };
        if one != two {
            let why = "the bucket's mount is refused: it gives each name of a file an inode number of its own, so \
                       objects would lose their metadata and change their ETags: use another file system, or an \
                       option of the mount's program that shows the server's inode numbers (use_ino)";
            return Err(Error::new(ErrorKind::NotImplemented, why));
        }
        numbered.write().unwrap_or_else(|poisoned| poisoned.into_inner()).push(device);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_depends_on_what_is_asked_for() {
        let with_locks = PosixConfig::default();
        let without = PosixConfig { if_match: false, ..PosixConfig::default() };
        let (locks, objects) =
            (Some(MountProblem::Locks("no locks")), Some(MountProblem::Objects("no objects")));
        for config in [&with_locks, &without] {
            assert!(require_fit(None, config, "/root").is_ok());
            let refused = require_fit(objects, config, "/root").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotImplemented);
            assert!(
                !refused.to_string().contains("none-match-only"),
                "conditions=none-match-only must not help: {refused}"
            );
        }
        let refused = require_fit(locks, &with_locks, "/root").unwrap_err().to_string();
        assert!(
            refused.contains("/root") && refused.contains("no locks") && refused.contains("none-match-only")
        );
        assert!(require_fit(locks, &without, "/root").is_ok());
    }
}
