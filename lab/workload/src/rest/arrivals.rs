//! When requests are intended to start.

use fordway_measure::Shuffle;

/// What decides when a request starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// The answer to the one before.
    Closed,
    /// A clock, at equal intervals; requests per second on all threads together.
    Fixed(f64),
    /// Chance: intervals are exponential, as of many independent users; mean requests per second.
    Poisson(f64),
}

impl Arrivals {
    /// The name in run files.
    pub const fn name(self) -> &'static str {
        match self {
            Arrivals::Closed => "closed",
            Arrivals::Fixed(_) => "fixed",
            Arrivals::Poisson(_) => "poisson",
        }
    }

    /// Requests per second; `None` in the closed loop.
    pub const fn rate(self) -> Option<f64> {
        match self {
            Arrivals::Closed => None,
            Arrivals::Fixed(rate) | Arrivals::Poisson(rate) => Some(rate),
        }
    }
}

/// The intended starts of one thread of several, ns from the start of the run, without end.
pub(super) struct Schedule {
    arrivals: Arrivals,
    interval_ns: f64,
    next_ns: f64,
    random: Shuffle,
}

impl Schedule {
    /// `None` in the closed loop. Threads take turns at a fixed rate; by chance, each is a process of its own.
    pub(super) fn new(arrivals: Arrivals, thread: usize, threads: usize, seed: u64) -> Option<Self> {
        let interval_ns = 1e9 / arrivals.rate()? * threads as f64;
        let random = Shuffle::new(seed.wrapping_mul(1 << 16).wrapping_add(thread as u64));
        let mut schedule = Schedule { arrivals, interval_ns, next_ns: 0.0, random };
        schedule.next_ns = match arrivals {
            Arrivals::Poisson(_) => schedule.gap_ns(),
            _ => interval_ns * thread as f64 / threads as f64,
        };
        Some(schedule)
    }

    /// The next intended start.
    pub(super) fn peek_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Goes on to the one after.
    pub(super) fn advance(&mut self) {
        self.next_ns += self.gap_ns();
    }

    fn gap_ns(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Poisson(_) => {
                // In (0, 1]: the logarithm of 0 has no value.
                let uniform = ((self.random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                -uniform.ln() * self.interval_ns
            }
            _ => self.interval_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(arrivals: Arrivals, thread: usize, threads: usize, seed: u64, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(arrivals, thread, threads, seed).unwrap();
        let mut next = || {
            let next = schedule.peek_ns();
            schedule.advance();
            next
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn threads_share_a_fixed_rate_evenly() {
        assert_eq!(starts(Arrivals::Fixed(1e6), 0, 2, 1, 3), [0, 2_000, 4_000]);
        assert_eq!(starts(Arrivals::Fixed(1e6), 1, 2, 1, 3), [1_000, 3_000, 5_000]);
        assert!(Schedule::new(Arrivals::Closed, 0, 1, 1).is_none());
    }

    /// Intervals of a Poisson process have a standard deviation equal to their mean.
    #[test]
    fn chance_has_the_rate_and_spread_it_should_and_repeats() {
        let poisson = Arrivals::Poisson(1e6);
        let all = starts(poisson, 0, 1, 7, 100_000);
        assert_eq!(all[..100], starts(poisson, 0, 1, 7, 100));
        assert_ne!(all[..100], starts(poisson, 0, 1, 8, 100));
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (mean - 1_000.0).abs() < 20.0 && (variance.sqrt() - 1_000.0).abs() < 30.0,
            "{mean} {variance}"
        );
    }
}
