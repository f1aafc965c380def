//! Verdicts on shared mounts: the guarantees between nodes that a measurement found broken, and the mount that was
//! measured.

use std::fmt;
use std::os::fd::AsFd;

use crate::mounts::{MountProblem, MountProperties};

/// The first line of a verdict in this version of its format.
const HEAD: &str = "fordway verdict 1";

/// A guarantee on which stores rely, between two mounts of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMountGuarantee {
    /// A lock held through one mount cannot be taken through the other.
    Locks,
    /// A lookup that asks the server finds a file that was replaced through another mount.
    Refresh,
    /// If files are linked to the same name through two mounts, exactly one link succeeds.
    Exclusive,
    /// Synced content is visible as soon as its name is visible.
    Content,
    /// A guarantee that only a later version of this program tests.
    Unknown,
}

impl SharedMountGuarantee {
    /// All guarantees that this version tests.
    pub const ALL: [Self; 4] = [Self::Locks, Self::Refresh, Self::Exclusive, Self::Content];

    /// Returns the guarantee's name, as used in a verdict.
    pub const fn name(self) -> &'static str {
        match self {
            SharedMountGuarantee::Locks => "locks",
            SharedMountGuarantee::Refresh => "refresh",
            SharedMountGuarantee::Exclusive => "exclusive",
            SharedMountGuarantee::Content => "content",
            SharedMountGuarantee::Unknown => "unknown",
        }
    }

    /// Returns why a file system must not be written to if the guarantee is broken.
    const fn problem(self) -> MountProblem {
        match self {
            SharedMountGuarantee::Locks => MountProblem::Locks(
                "`fordway doctor --shared` found that its locks do not reach the other mount: mount it with locks that all \
                 nodes see, and measure again",
            ),
            SharedMountGuarantee::Refresh => MountProblem::Locks(
                "`fordway doctor --shared` found that the state of a name cannot be requested from the server: \
                 shorten the mount's cache times, and measure again",
            ),
            SharedMountGuarantee::Exclusive => MountProblem::Objects(
                "`fordway doctor --shared` found that two processes may both create the same name: use another file system",
            ),
            SharedMountGuarantee::Content => MountProblem::Objects(
                "`fordway doctor --shared` found names without their content: use another file system, or other mount \
                 options, and measure again",
            ),
            SharedMountGuarantee::Unknown => MountProblem::Objects(
                "a later version of `fordway doctor --shared` found a problem that this version does not know: use that \
                 version to measure again",
            ),
        }
    }
}

/// The result of a measurement between two mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountGuaranteeVerdict {
    /// The mount that was measured.
    pub mount: MountProperties,
    /// The guarantees that do not hold on the mount.
    pub broken: Vec<SharedMountGuarantee>,
}

impl MountGuaranteeVerdict {
    /// The maximum size of a verdict in bytes. Mount options take up at most a page.
    pub const BYTES_MAX: usize = 8192;

    /// Parses a verdict. Returns `None` if the text is not valid, or was written in another version of the format.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let mount =
            MountProperties { kind: field("type")?, options: field("options")?, kernel: field("kernel")? };
        let named = |name| {
            let known = SharedMountGuarantee::ALL.into_iter().find(|guarantee| guarantee.name() == name);
            known.unwrap_or(SharedMountGuarantee::Unknown)
        };
        let broken = field("broken")?.split(' ').filter(|name| *name != "-").map(named).collect();
        Some(MountGuaranteeVerdict { mount, broken })
    }

    /// Returns whether this verdict is about the mount of `file`: the same file system, options and kernel. A verdict
    /// that names a broken guarantee also remains valid with another kernel.
    pub fn is_about(&self, file: impl AsFd) -> bool {
        MountProperties::of(file).is_some_and(|mount| {
            let MountProperties { kind, options, kernel } = &self.mount;
            let is_same_kernel = mount.kernel == *kernel;
            mount.kind == *kind && mount.options == *options && (is_same_kernel || !self.broken.is_empty())
        })
    }

    /// Returns why nothing may be written to the mount; `None` if no guarantee is broken.
    pub fn problem(&self) -> Option<MountProblem> {
        let worst = self
            .broken
            .iter()
            .max_by_key(|guarantee| matches!(guarantee.problem(), MountProblem::Objects(_)));
        worst.map(|guarantee| guarantee.problem())
    }
}

impl fmt::Display for MountGuaranteeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountProperties { kind, options, kernel } = &self.mount;
        let names: Vec<&str> = self.broken.iter().map(|guarantee| guarantee.name()).collect();
        let broken = if names.is_empty() { "-".to_owned() } else { names.join(" ") };
        writeln!(f, "{HEAD}\ntype {kind}\noptions {options}\nkernel {kernel}\nbroken {broken}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(broken: &[SharedMountGuarantee]) -> MountGuaranteeVerdict {
        let mount = MountProperties::of(std::fs::File::open("/proc/self/stat").unwrap()).unwrap();
        MountGuaranteeVerdict { mount, broken: broken.to_vec() }
    }

    #[test]
    fn what_is_written_is_read() {
        for broken in [&[][..], &[SharedMountGuarantee::Locks], &SharedMountGuarantee::ALL] {
            let verdict = verdict(broken);
            assert_eq!(MountGuaranteeVerdict::parse(&verdict.to_string()), Some(verdict));
        }
        let text = verdict(&[SharedMountGuarantee::Locks]).to_string();
        let later = MountGuaranteeVerdict::parse(&text.replace("broken locks", "broken locks luck")).unwrap();
        assert_eq!(later.broken, [SharedMountGuarantee::Locks, SharedMountGuarantee::Unknown]);
        assert!(matches!(later.problem(), Some(MountProblem::Objects(_))));
        for (from, to) in [("verdict 1", "verdict 2"), ("kernel", "kernels")] {
            assert!(text.contains(from));
            assert_eq!(MountGuaranteeVerdict::parse(&text.replace(from, to)), None, "{to}");
        }
        assert_eq!(MountGuaranteeVerdict::parse(""), None);
        assert_eq!(MountGuaranteeVerdict::parse("fordway verdict 1\ntype nfs\n"), None);
    }

    #[test]
    fn a_verdict_is_about_one_mount() {
        let file = || std::fs::File::open("/proc/self/stat").unwrap();
        assert_eq!(verdict(&[]).problem(), None);
        assert!(matches!(verdict(&[SharedMountGuarantee::Locks]).problem(), Some(MountProblem::Locks(_))));
        assert!(matches!(verdict(&SharedMountGuarantee::ALL).problem(), Some(MountProblem::Objects(_))));
        let broken = verdict(&[SharedMountGuarantee::Locks]);
        assert!(broken.is_about(file()));
        let MountProperties { kind, options, kernel } = broken.mount.clone();
        for other in [
            MountProperties { kind: "nfs4".to_owned(), options: options.clone(), kernel: kernel.clone() },
            MountProperties { kind: kind.clone(), options: format!("{options},x"), kernel: kernel.clone() },
        ] {
            assert!(!MountGuaranteeVerdict { mount: other, ..broken.clone() }.is_about(file()));
        }
        let updated = MountProperties { kind, options, kernel: "5.10".to_owned() };
        assert!(!MountGuaranteeVerdict { mount: updated.clone(), broken: vec![] }.is_about(file()));
        assert!(MountGuaranteeVerdict { mount: updated, ..broken }.is_about(file()));
    }
}
