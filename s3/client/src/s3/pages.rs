//! Listings that come in pages: a service that leads in a circle, or on and on without an entry, is not followed.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

use fordway_store::{Error, ErrorKind, Result};

/// This many pages behind each other may have no entry: services pass over what was deleted.
const EMPTY_PAGES_MAX: usize = 10_000;

/// Where the pages of one listing have led so far.
#[derive(Default)]
pub(super) struct Pages {
    hasher: RandomState,
    seen: HashSet<u64>,
    empty: usize,
}

impl Pages {
    /// A page had `new_entries`, and says that the listing goes on at `next`. Errors: `BadResponse`.
    pub(super) fn go_on(&mut self, next: &impl Hash, new_entries: usize) -> Result<()> {
        self.empty = if new_entries > 0 { 0 } else { self.empty + 1 };
        if !self.seen.insert(self.hasher.hash_one(next)) {
            return Err(bad("the service sends the listing back to a page that it has given already"));
        }
        if self.empty > EMPTY_PAGES_MAX {
            let detail =
                format!("{EMPTY_PAGES_MAX} pages of the listing had no entry, and there is yet another");
            return Err(bad(&detail));
        }
        Ok(())
    }
}

/// Where the next page of a listing begins, which is said to go on. Errors: `BadResponse` where that is not said.
pub(super) fn next_of<T>(is_truncated: bool, next: Option<T>) -> Result<Option<T>> {
    match (is_truncated, next) {
        (true, None) => Err(bad("the service says that the listing goes on, and not where")),
        (is_truncated, next) => Ok(next.filter(|_| is_truncated)),
    }
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadResponse, format!("{detail}; report it to who runs the service"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lead_on_or_end_in_an_error() {
        let mut pages = Pages::default();
        for page in 0..3 * EMPTY_PAGES_MAX {
            pages.go_on(&page, page % 2).unwrap();
        }
        assert_eq!(pages.go_on(&7_usize, 1).unwrap_err().kind(), ErrorKind::BadResponse);
        let mut pages = Pages::default();
        let ended = (0..=EMPTY_PAGES_MAX).find_map(|page| pages.go_on(&page, 0).err());
        assert!(ended.unwrap().to_string().contains("had no entry"));
        assert_eq!(next_of(true, Some(1)).unwrap(), Some(1));
        assert_eq!(next_of(false, Some(1)).unwrap(), None);
        assert!(next_of(true, None::<u8>).is_err() && next_of(false, None::<u8>).unwrap().is_none());
    }
}
