//! Places that something was copied to already.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;

use fordway_store::{Error, ErrorKind, Result};

/// The places that sources go to. One source never goes to a place twice, but two may: the files `a/x`
/// and `b/x` to one directory. Which of them stayed would be chance, and a move would lose the other.
pub(crate) struct Taken<P>(Option<HashSet<P>>);

impl<P: Clone + Display + Eq + Hash> Taken<P> {
    /// Remembers places only where there are several sources, for that takes memory.
    pub(crate) fn by(sources: usize) -> Self {
        Taken((sources > 1).then(HashSet::new))
    }

    /// Takes `to` for `from`. Errors: `InvalidArgument` where it is taken.
    pub(crate) fn take(&mut self, from: &P, to: &P) -> Result<()> {
        if self.0.as_mut().is_none_or(|places| places.insert(to.clone())) {
            return Ok(());
        }
        let why = format!("{from} would replace {to}, where another source goes too; copy them apart");
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}
