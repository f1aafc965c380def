//! Memory of the caller's, which is filled while it goes on with other things.

use fordway_http::vector::Memory;

use crate::abi::Fragment;
use crate::failure::Failure;

/// What is wanted, and where it goes.
pub(crate) struct Buffers {
    fragments: Vec<Fragment>,
}

// SAFETY: the caller keeps the memory and lets it be until it is told that the fragments have ended (wait,
// cancel or close has returned), so that whichever thread drives the connections may write to it.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Takes fragments over. Errors: `EINVAL` for memory that cannot be.
    ///
    /// # Safety
    ///
    /// `fragments` has `count` fragments, unless it is NULL; the buffers of these are the library's until
    /// the value is dropped.
    pub(crate) unsafe fn new(fragments: *const Fragment, count: usize) -> Result<Self, Failure> {
        let fragments = match count {
            0 => Vec::new(),
            _ if fragments.is_null() || count > isize::MAX as usize / size_of::<Fragment>() => {
                let sentence = format!("the list of {count} fragments is NULL or cannot be so long");
                return Err(Failure::new(libc::EINVAL, sentence));
            }
            // SAFETY: as the caller promises, and it was looked at.
            _ => unsafe { std::slice::from_raw_parts(fragments, count) }.to_vec(),
        };
        Ok(Buffers { fragments })
    }

    /// Errors: `EINVAL` for one that has no buffer.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let is_wrong = |part: &Fragment| {
            (part.length > 0 && part.buffer.is_null()) || isize::try_from(part.length).is_err()
        };
        match self.fragments.iter().position(is_wrong) {
            Some(index) => {
                let sentence = format!(
                    "fragment {index} wants {} bytes and has no room for them; set its buffer",
                    self.fragments[index].length
                );
                Err(Failure::new(libc::EINVAL, sentence))
            }
            None => Ok(()),
        }
    }

    /// Position and length of each.
    pub(crate) fn ranges(&self) -> Vec<(u64, usize)> {
        self.fragments.iter().map(|part| (part.offset, part.length)).collect()
    }

    /// Bytes of all. Errors: `EINVAL` where that is more than can be.
    pub(crate) fn total_bytes(&self) -> Result<usize, Failure> {
        let total = self.fragments.iter().try_fold(0_usize, |total, part| total.checked_add(part.length));
        total.filter(|total| isize::try_from(*total).is_ok()).ok_or_else(|| {
            Failure::new(libc::EINVAL, "the fragments have more bytes than there is memory; ask for fewer")
        })
    }
}

impl Buffers {
    /// Where `len` bytes of a fragment are. Panics if it has not this many.
    fn place(&self, fragment: usize, within: usize, len: usize) -> *mut u8 {
        let Fragment { length, buffer, .. } = self.fragments[fragment];
        assert!(within.checked_add(len).is_some_and(|end| end <= length), "a fragment ends before that");
        buffer.cast::<u8>().wrapping_add(within)
    }
}

impl Memory for Buffers {
    fn slice(&mut self, fragment: usize, within: usize, len: usize) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let place = self.place(fragment, within, len);
        // SAFETY: the caller gave this many bytes there, which `check` found not to be NULL, and uses them
        // for nothing else; the borrow of `self` keeps a second slice from being made of memory that
        // overlaps.
        unsafe { std::slice::from_raw_parts_mut(place, len) }
    }

    fn slices(&mut self, places: &[(usize, usize, usize)]) -> Vec<&mut [u8]> {
        let mut end = 0;
        // A caller's buffers may overlap by mistake: only those that lie one behind the other are lent together.
        let is_behind = |(fragment, within, len): &&(usize, usize, usize)| {
            let start = self.place(*fragment, *within, *len).addr();
            start >= std::mem::replace(&mut end, start + len) && *len > 0
        };
        let count = places.iter().take_while(is_behind).count();
        let lend = |(fragment, within, len): &(usize, usize, usize)| {
            let place = self.place(*fragment, *within, *len);
            // SAFETY: as in `slice`; and each begins behind the end of the one before it, so that none overlap.
            unsafe { std::slice::from_raw_parts_mut(place, *len) }
        };
        places[..count].iter().map(lend).collect()
    }

    fn copy(&mut self, from: (usize, usize), to: (usize, usize), len: usize) {
        let (source, target) = (self.place(from.0, from.1, len), self.place(to.0, to.1, len));
        // SAFETY: both have `len` bytes, as the caller gave them; they may overlap.
        unsafe { std::ptr::copy(source, target, len) };
    }
}
