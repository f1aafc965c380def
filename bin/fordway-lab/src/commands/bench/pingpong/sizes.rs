//! The sizes of messages: drawn by chance, and yet all over the range.

use fordway_measure::Shuffle;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{PingpongBenchArgs, ScaleArg};

/// From where sizes are drawn, and how many of them in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    min_bytes: u64,
    max_bytes: u64,
    scale: ScaleArg,
    pub(super) points: u64,
    repetitions: u64,
}

impl Range {
    /// Errors: `InvalidArgument` for a range that is none.
    pub(super) fn new(args: &PingpongBenchArgs) -> Result<Self> {
        if args.min > args.max {
            let detail = format!("--min {} is more than --max {}; swap them", args.min, args.max);
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let all = (args.max - args.min).saturating_add(1);
        let points = match args.coverage {
            Some(share) => (share * all as f64 / f64::from(args.rounds)).ceil().max(1.0) as u64,
            None => u64::from(args.points),
        };
        Ok(Range {
            min_bytes: args.min,
            max_bytes: args.max,
            scale: args.scale,
            points,
            repetitions: u64::from(args.repetitions),
        })
    }

    /// The messages of a block in random order: the range is cut into as many equal parts as there are points, and
    /// from each one size is drawn. Equal seeds draw the same.
    pub(super) fn draw(&self, seed: u64) -> Vec<u64> {
        let mut random = Shuffle::new(seed);
        let mut all = Vec::with_capacity((self.points * self.repetitions) as usize);
        for part in 0..self.points {
            // 2^24 steps within a part are finer than any size.
            let within = random.below(1 << 24) as f64 / f64::from(1 << 24);
            let size_bytes = self.at((part as f64 + within) / self.points as f64);
            all.extend((0..self.repetitions).map(|_| size_bytes));
        }
        random.shuffle(&mut all);
        all
    }

    /// The size at a share of the way from the smallest to the largest.
    fn at(&self, share: f64) -> u64 {
        let (min, max) = (self.min_bytes as f64, self.max_bytes as f64);
        let size = match self.scale {
            ScaleArg::Linear => min + share * (max + 1.0 - min),
            // A message of 0 bytes has no logarithm: all are counted as one more.
            ScaleArg::Log => ((min + 1.0).ln() + share * ((max + 2.0).ln() - (min + 1.0).ln())).exp() - 1.0,
        };
        (size.floor() as u64).clamp(self.min_bytes, self.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min_bytes: u64, max_bytes: u64, scale: ScaleArg) -> Range {
        Range { min_bytes, max_bytes, scale, points: 1000, repetitions: 2 }
    }

    #[test]
    fn draws_repeat_and_reach_all_over_the_range() {
        for scale in [ScaleArg::Log, ScaleArg::Linear] {
            let range = range(0, 500_000, scale);
            let drawn = range.draw(7);
            assert_eq!(drawn, range.draw(7));
            assert_ne!(drawn, range.draw(8));
            assert_eq!(drawn.len(), 2000);
            let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
            assert!(*least < 600 && *most > 490_000 && *most <= 500_000, "{least} to {most}");
        }
        let small = range(0, 500_000, ScaleArg::Log).draw(1).iter().filter(|size| **size < 706).count();
        assert!((990..=1010).contains(&small), "half of the logarithms: {small}");
    }

    #[test]
    fn a_range_of_one_size_is_that_size() {
        for (size, scale) in [(0, ScaleArg::Log), (1, ScaleArg::Log), (1, ScaleArg::Linear)] {
            assert!(range(size, size, scale).draw(3).iter().all(|drawn| *drawn == size));
        }
        let both: std::collections::BTreeSet<u64> = range(0, 1, ScaleArg::Log).draw(3).into_iter().collect();
        assert_eq!(both.into_iter().collect::<Vec<_>>(), [0, 1]);
    }
}
