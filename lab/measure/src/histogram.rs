//! Latency distributions that lose no tail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

use crate::Quantiles;

/// The longest latency told apart from longer ones: one hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// A histogram of latencies in nanoseconds, true to three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(1, MAX_NS, 3);
        Latencies(bounds.unwrap_or_else(|error| unreachable!("the bounds are constants: {error}")))
    }
}

impl Latencies {
    /// Counts one latency; 0 counts as 1 ns, what is longer than an hour as an hour.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Counts what `other` counted.
    pub fn add(&mut self, other: &Latencies) {
        // Both have the bounds of this type, or a histogram's within them.
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// Latencies counted.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether none was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency that the share `q` (0 to 1) of all does not exceed.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        self.0.value_at_quantile(q)
    }

    /// The quantiles that tables show; `None` if nothing was counted.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let at = |q| self.quantile_ns(q);
        (!self.is_empty()).then(|| Quantiles {
            min_ns: self.0.min(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.0.max(),
            mean_ns: self.0.mean().round() as u64,
        })
    }

    /// HdrHistogram's V2 encoding, in base64.
    pub fn to_base64(&self) -> String {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&self.0, &mut bytes);
        written.unwrap_or_else(|error| unreachable!("a vector takes all that is written: {error}"));
        BASE64.encode(bytes)
    }

    /// Reads what [`Latencies::to_base64`] wrote; `None` if it is something else.
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text).ok()?;
        Deserializer::new().deserialize(&mut bytes.as_slice()).ok().map(Latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_true_to_a_thousandth() {
        let mut latencies = Latencies::default();
        (1..=100_000u64).for_each(|us| latencies.record(us * 1_000));
        let quantiles = latencies.quantiles().unwrap();
        for (found, wanted) in [(quantiles.p50_ns, 50_000_000), (quantiles.p99_ns, 99_000_000)] {
            assert!(found.abs_diff(wanted) <= wanted / 1_000, "{found} is not {wanted}");
        }
        let again = Latencies::from_base64(&latencies.to_base64()).unwrap();
        assert_eq!(again.quantiles(), latencies.quantiles());
        assert_eq!(Latencies::default().quantiles(), None);
        assert!(Latencies::from_base64("AAAA").is_none());
    }
}
