//! What the reads so far say of the next ones.

/// What comes next, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// What lies behind the last read, all of it or with gaps that are small beside what is read ahead.
    Sequential,
    /// As many bytes again, every time so far behind the last.
    Strided { stride: u64, len: usize },
    /// Anything.
    Random,
}

/// Reads in the order in which they came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    last: Option<(u64, usize)>,
    /// The distance between the last two reads, and how often in a row it was the same.
    stride: u64,
    repeats: u32,
}

/// Three reads at equal distances make a pattern.
const REPEATS: u32 = 2;
/// Gaps up to this size are read with the rest: a request of its own for each record costs more.
const GAP_BYTES: u64 = 16 << 10;

impl History {
    /// Notes a read; a jump forward that does not go behind `reach` still goes on with the last read.
    pub(super) fn observe(&mut self, offset: u64, len: usize, reach: u64) -> Pattern {
        let Some((last, last_len)) = self.last.replace((offset, len)) else {
            return if offset == 0 { Pattern::Sequential } else { Pattern::Random };
        };
        let stride = offset.saturating_sub(last);
        self.repeats =
            if stride > 0 && stride == self.stride && len == last_len { self.repeats + 1 } else { 1 };
        self.stride = stride;
        match offset.checked_sub(last + last_len as u64) {
            Some(gap) if gap <= GAP_BYTES => Pattern::Sequential,
            Some(_) if self.repeats >= REPEATS => Pattern::Strided { stride, len },
            Some(_) if offset <= reach => Pattern::Sequential,
            _ => Pattern::Random,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_of(reads: &[(u64, usize)], reach: u64) -> Pattern {
        let mut history = History::default();
        reads.iter().map(|(offset, len)| history.observe(*offset, *len, reach)).last().unwrap()
    }

    #[test]
    fn the_begin_of_a_file_is_read_on_and_any_other_place_is_not() {
        assert_eq!(last_of(&[(0, 10)], 0), Pattern::Sequential);
        assert_eq!(last_of(&[(10, 10)], 0), Pattern::Random);
        assert_eq!(last_of(&[(10, 10), (20, 10)], 0), Pattern::Sequential);
    }

    #[test]
    fn jumps_within_reach_go_on() {
        assert_eq!(last_of(&[(0, 10), (100_000, 10)], 100_000), Pattern::Sequential);
        assert_eq!(last_of(&[(0, 10), (100_000, 10)], 99_999), Pattern::Random);
        assert_eq!(last_of(&[(100_000, 10), (0, 10)], 1 << 30), Pattern::Random);
    }

    #[test]
    fn equal_steps_are_a_stride_unless_little_lies_between() {
        let wide = [(7, 100), (1_000_007, 100), (2_000_007, 100)];
        assert_eq!(last_of(&wide, 0), Pattern::Strided { stride: 1_000_000, len: 100 });
        assert_eq!(last_of(&wide[..2], 0), Pattern::Random);
        assert_eq!(last_of(&[(7, 100), (1_000_007, 100), (2_000_007, 90)], 0), Pattern::Random);
        assert_eq!(last_of(&[(0, 100), (200, 100), (400, 100)], 0), Pattern::Sequential);
        assert_eq!(last_of(&[(9, 9), (9, 9), (9, 9)], 0), Pattern::Random);
    }
}
