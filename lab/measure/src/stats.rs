//! Medians with confidence intervals, and latency histograms that preserve the tail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::LatencyQuantiles;

/// The confidence of all intervals.
const CONFIDENCE: f64 = 0.95;

/// An estimate, with an interval that contains the true value with the specified confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// The estimate.
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The confidence, 0 to 1.
    pub confidence: f64,
    /// The number of values on which the estimate is based.
    pub samples: usize,
}

/// Returns the median; `None` if `values` is empty. NaNs sort last.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the median of `values` with a 95 % interval between order statistics, interpolated as Hettmansperger and
/// Sheather (1986) do. The interval is valid for nearly any distribution. A bootstrap interval of few values is too
/// narrow: its confidence is 88 % for seven values. For five values, even the interval from the smallest to the largest
/// has a confidence of only 94 %. Returns `None` for fewer than five values, which are too few for an interval.
pub fn median_interval(values: &[f64]) -> Option<ConfidenceInterval> {
    if values.len() < 5 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (rank, confidence, share) = median_ranks(sorted.len());
    let between = |outer: f64, inner: f64| if share > 0.0 { outer + share * (inner - outer) } else { outer };
    let last = sorted.len() - 1;
    Some(ConfidenceInterval {
        value: median(values)?,
        low: between(sorted[rank], sorted[rank + 1]),
        high: between(sorted[last - rank], sorted[last - rank - 1]),
        confidence,
        samples: values.len(),
    })
}

/// Returns a rank (from 0), a confidence and a fraction (0 to 1), which describe the interval of the median of `count`
/// values. The interval's lower end lies between the values at the rank and at the next rank, at the fraction of their
/// distance.
fn median_ranks(count: usize) -> (usize, f64, f64) {
    let n = count as f64;
    // The interval starts at rank r, counted from the smallest value, and ends at rank r, counted from the largest
    // value. The interval misses the median if at most r values are on one side of the median.
    let mut log_chance = -n * std::f64::consts::LN_2;
    let mut missed = log_chance.exp();
    let mut rank = 0;
    loop {
        let held = 1.0 - 2.0 * missed;
        log_chance += ((n - rank as f64) / (rank as f64 + 1.0)).ln();
        let next = held - 2.0 * log_chance.exp();
        if held < CONFIDENCE {
            return (rank, held, 0.0);
        }
        if next < CONFIDENCE {
            let share = (held - CONFIDENCE) / (held - next);
            let (ranks, above) = (rank as f64 + 1.0, n - rank as f64 - 1.0);
            return (rank, CONFIDENCE, above * share / (ranks + (above - ranks) * share));
        }
        missed += log_chance.exp();
        rank += 1;
    }
}

impl ConfidenceInterval {
    /// Returns the 95 % percentile interval of an estimate made from `samples` values. `resampled` contains the
    /// estimates of the resamples. Returns `None` if `resampled` is empty.
    pub fn of_resamples(value: f64, resampled: &mut [f64], samples: usize) -> Option<Self> {
        resampled.sort_unstable_by(f64::total_cmp);
        let last = resampled.len().checked_sub(1)?;
        let at = |share: f64| resampled[(last as f64 * share).round() as usize];
        Some(ConfidenceInterval { value, low: at(0.025), high: at(0.975), confidence: CONFIDENCE, samples })
    }
}

/// A small random number generator (xorshift64*). A given seed produces the same numbers on every machine and in every
/// version, so that orders and resamples are reproducible.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Creates a generator with the given seed. Equal seeds produce equal sequences.
    pub fn new(seed: u64) -> Self {
        // A state of zero would never change, so bit 0 of the state is set.
        SeededRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d | 1)
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Shuffles `items` (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The maximum latency: one hour. Longer latencies are recorded as one hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// A histogram of latencies in nanoseconds, with a precision of three significant digits.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(1, MAX_NS, 3);
        LatencyHistogram(bounds.unwrap_or_else(|error| unreachable!("the bounds are constants: {error}")))
    }
}

impl LatencyHistogram {
    /// Records one latency. A latency of 0 is recorded as 1 ns, and a latency of more than one hour as one hour.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &LatencyHistogram) {
        // Adding cannot fail: every histogram has the bounds of this type, or was decoded with narrower bounds.
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// Returns the number of latencies recorded.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns whether no latency was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the quantile `q` (0 to 1): the latency that a share `q` of all latencies does not exceed.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        self.0.value_at_quantile(q)
    }

    /// Returns the quantiles that tables show; `None` if no latency was recorded.
    pub fn quantiles(&self) -> Option<LatencyQuantiles> {
        let at = |q| self.quantile_ns(q);
        (!self.is_empty()).then(|| LatencyQuantiles {
            min_ns: self.0.min(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.0.max(),
            mean_ns: self.0.mean().round() as u64,
        })
    }

    /// Encodes the histogram as HdrHistogram V2, in base64.
    pub fn to_base64(&self) -> String {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&self.0, &mut bytes);
        written.unwrap_or_else(|error| unreachable!("a vector takes all that is written: {error}"));
        BASE64.encode(bytes)
    }

    /// Decodes the output of [`LatencyHistogram::to_base64`]; `None` for any other string.
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text).ok()?;
        Deserializer::new().deserialize(&mut bytes.as_slice()).ok().map(LatencyHistogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    /// In 2,000 experiments with a known median, about 95 % of the intervals must contain the median, even for few
    /// values and a skewed distribution.
    #[test]
    fn intervals_hold_what_they_promise() {
        let mut random = SeededRandom::new(1);
        let mut skewed = || (random.next_u64() as f64 / u64::MAX as f64).powi(4);
        for count in [5, 6, 7, 8, 20, 60] {
            let held = (0..2_000).filter(|_| {
                let values: Vec<f64> = (0..count).map(|_| skewed()).collect();
                let interval = median_interval(&values).unwrap();
                assert!(interval.low <= interval.value && interval.value <= interval.high);
                (interval.low..=interval.high).contains(&0.5f64.powi(4))
            });
            let held = held.count();
            assert!((1_850..=1_950).contains(&held), "{held} of 2000 intervals of {count} hold the median");
        }
        assert_eq!(median_interval(&[1.0; 4]), None);
    }

    /// The expected ends were computed with exact binomial coefficients, and with the normal approximation for 100,000
    /// values.
    #[test]
    fn ends_lie_between_order_statistics() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        let five = median_interval(&values(5)).unwrap();
        assert_eq!((five.low, five.value, five.high, five.confidence), (1.0, 3.0, 5.0, 0.9375));
        let ten = median_interval(&values(10)).unwrap();
        assert!((ten.low - 2.65766).abs() < 1e-5 && (ten.high - 8.34234).abs() < 1e-5, "{ten:?}");
        let many = median_interval(&values(100_000)).unwrap();
        assert!((many.low - 49_690.0).abs() < 2.0 && (many.high - 50_311.0).abs() < 2.0, "{many:?}");
    }

    #[test]
    fn shuffles_repeat_and_cover() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            SeededRandom::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut sorted = order(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn quantiles_are_true_to_a_thousandth() {
        let mut latencies = LatencyHistogram::default();
        (1..=100_000u64).for_each(|us| latencies.record(us * 1_000));
        let quantiles = latencies.quantiles().unwrap();
        for (found, wanted) in [(quantiles.p50_ns, 50_000_000), (quantiles.p99_ns, 99_000_000)] {
            assert!(found.abs_diff(wanted) <= wanted / 1_000, "{found} is not {wanted}");
        }
        let again = LatencyHistogram::from_base64(&latencies.to_base64()).unwrap();
        assert_eq!(again.quantiles(), latencies.quantiles());
        assert_eq!(LatencyHistogram::default().quantiles(), None);
        assert!(LatencyHistogram::from_base64("AAAA").is_none());
    }
}
