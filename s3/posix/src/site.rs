//! The file system of a root or bucket: whether other nodes may change it, and whether the store's guarantees hold
//! there.

use std::fmt::Display;
use std::os::fd::AsFd;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Errno, FileSystemSharing, Unfit};

use crate::PosixConfig;

/// The properties of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    /// Whether other nodes may change it.
    pub(crate) sharing: FileSystemSharing,
    /// The reason why nothing must be written to it, with advice.
    pub(crate) unfit: Option<Unfit>,
}

impl Site {
    /// Examines the file system of `file`. Cost: one `fstatfs`; if other nodes may change it, another one, and a read
    /// of the list of mounts.
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let sharing = FileSystemSharing::of(&file)?;
        let unfit = if sharing.is_shared() { Unfit::of(&file)? } else { None };
        Ok(Site { sharing, unfit })
    }
}

/// Checks that the file system of `what` is fit for a store with `config`. Errors: `NotImplemented` if the store's
/// guarantees would not hold there.
pub(crate) fn require_fit(unfit: Option<Unfit>, config: &PosixConfig, what: impl Display) -> Result<()> {
    let way_out = match unfit {
        None => return Ok(()),
        // Without `If-Match`, no locks are taken.
        Some(Unfit::Locks(_)) if !config.if_match => return Ok(()),
        Some(Unfit::Locks(_)) => "; or give up If-Match with conditions=none-match-only",
        Some(Unfit::Objects(_)) => "",
    };
    let why = unfit.map(Unfit::why).unwrap_or_default();
    Err(Error::new(ErrorKind::NotImplemented, format!("{what} is refused: {why}{way_out}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_depends_on_what_is_asked_for() {
        let with_locks = PosixConfig::default();
        let without = PosixConfig { if_match: false, ..PosixConfig::default() };
        let (locks, objects) = (Some(Unfit::Locks("no locks")), Some(Unfit::Objects("no objects")));
        for config in [&with_locks, &without] {
            assert!(require_fit(None, config, "/root").is_ok());
            let refused = require_fit(objects, config, "/root").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotImplemented);
            assert!(!refused.to_string().contains("none-match-only"), "that is no way out: {refused}");
        }
        let refused = require_fit(locks, &with_locks, "/root").unwrap_err().to_string();
        assert!(
            refused.contains("/root") && refused.contains("no locks") && refused.contains("none-match-only")
        );
        assert!(require_fit(locks, &without, "/root").is_ok());
    }
}
