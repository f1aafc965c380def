//! Detects a quantity that has two modes: values around one level for a while, and around another level at other times.

use crate::median;

/// The minimum number of values.
const VALUES_MIN: usize = 20;
/// The minimum share of the values in each mode, and their minimum number.
const SHARE_MIN: f64 = 0.15;
const COUNT_MIN: usize = 3;
/// The minimum ratio of the two levels.
const RATIO_MIN: f64 = 1.2;
/// The minimum distance of the two levels, in standard deviations of a mode.
const SEPARATION_MIN: f64 = 4.0;
/// The maximum share of the values in the middle third between the two levels.
const BETWEEN_MAX: f64 = 0.05;
/// The maximum number of changes from one mode to the other, relative to the number in a random order. Above this
/// number, the modes do not last, and the values may simply be of two kinds.
const CHANGES_MAX: f64 = 0.5;
/// The factor by which the standard deviation of a normal distribution exceeds its median absolute deviation.
const DEVIATIONS: f64 = 1.4826;

/// The two levels of a quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoModes {
    /// The median of the lower mode.
    pub low: f64,
    /// The median of the higher mode.
    pub high: f64,
    /// The share of the values in the higher mode, from 0 to 1.
    pub high_share: f64,
}

/// Returns the two modes of `values`, which are positive and in the order of their measurement. Returns `None` if there
/// is only one mode, or if the values are too few to tell. In simulations, at most 3 % of autocorrelated values with
/// one mode are taken for two modes (the test `one_mode_is_not_taken_for_two`).
pub fn two_modes(values: &[f64]) -> Option<TwoModes> {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).filter(|log| log.is_finite()).collect();
    if logs.len() < VALUES_MIN || logs.len() < values.len() {
        return None;
    }
    let mut sorted = logs.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let cut = best_cut(&sorted);
    let (lower, upper) = sorted.split_at(cut);
    let count_min = COUNT_MIN.max((SHARE_MIN * logs.len() as f64).ceil() as usize);
    let (low, high) = (median(lower)?, median(upper)?);
    let spread = deviation(lower, low).max(deviation(upper, high));
    let is_apart = lower.len().min(upper.len()) >= count_min
        && high - low >= RATIO_MIN.ln().max(SEPARATION_MIN * spread)
        && is_empty_between(&sorted, low, high);
    let is_high: Vec<bool> = logs.iter().map(|log| *log >= upper[0]).collect();
    (is_apart && lasts(&is_high)).then(|| TwoModes {
        low: low.exp(),
        high: high.exp(),
        high_share: upper.len() as f64 / logs.len() as f64,
    })
}

/// Returns the length of the lower of two groups of `sorted` values that have the smallest sum of squared distances
/// from their means. Both groups have at least one value.
fn best_cut(sorted: &[f64]) -> usize {
    let (total, squares) = sums(sorted);
    let scatter = |count: usize, sum: f64, squares: f64| squares - sum * sum / count as f64;
    let (mut below, mut below_squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 1);
    for (at, value) in sorted[..sorted.len() - 1].iter().enumerate() {
        below += value;
        below_squares += value * value;
        let count = at + 1;
        let lower = scatter(count, below, below_squares);
        let upper = scatter(sorted.len() - count, total - below, squares - below_squares);
        if lower + upper < best.0 {
            best = (lower + upper, count);
        }
    }
    best.1
}

fn sums(values: &[f64]) -> (f64, f64) {
    values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value))
}

/// Returns the standard deviation around `middle`, estimated so that a few outliers do not change it.
fn deviation(values: &[f64], middle: f64) -> f64 {
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    DEVIATIONS * median(&distances).unwrap_or_default()
}

fn is_empty_between(sorted: &[f64], low: f64, high: f64) -> bool {
    let third = (high - low) / 3.0;
    let between = sorted.iter().filter(|value| (low + third..high - third).contains(value)).count();
    between as f64 <= BETWEEN_MAX * sorted.len() as f64
}

/// Returns whether neighbours are in one mode much more often than in a random order.
fn lasts(is_high: &[bool]) -> bool {
    let changes = is_high.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64;
    let share = is_high.iter().filter(|high| **high).count() as f64 / is_high.len() as f64;
    changes < CHANGES_MAX * 2.0 * share * (1.0 - share) * (is_high.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandom;

    /// Returns a standard normal value (Box and Muller).
    fn normal(random: &mut SeededRandom) -> f64 {
        let mut uniform = || (random.below(1 << 40) as f64 + 0.5) / (1_u64 << 40) as f64;
        (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    /// Returns the share of 400 series in which two modes are found. `log` returns the logarithm of a value from its
    /// index, the previous logarithm, and a random generator.
    fn found(count: usize, log: impl Fn(usize, f64, &mut SeededRandom) -> f64) -> f64 {
        let is_found = |seed: u64| {
            let mut random = SeededRandom::new(seed);
            let mut last = 0.0;
            let values: Vec<f64> = (0..count)
                .map(|at| {
                    last = log(at, last, &mut random);
                    last.exp()
                })
                .collect();
            two_modes(&values).is_some()
        };
        (0..400).filter(|seed| is_found(*seed)).count() as f64 / 400.0
    }

    #[test]
    fn one_mode_is_not_taken_for_two() {
        for count in [25, 100, 400] {
            let noise = found(count, |_, _, random| 0.3 * normal(random));
            let wandering = found(count, |_, last, random| 0.9 * last + 0.1 * normal(random));
            let drift = found(count, |at, _, random| at as f64 / count as f64 + 0.05 * normal(random));
            // Small and large files alternate at random.
            let mixture = found(count, |_, _, random| 0.7 * random.below(2) as f64 + 0.1 * normal(random));
            for share in [noise, wandering, drift, mixture] {
                assert!(share <= 0.04, "{count}: {noise} {wandering} {drift} {mixture}");
            }
        }
    }

    #[test]
    fn two_modes_that_last_are_found() {
        // Each of 6 rounds is in one mode, and both modes occur.
        let share = found(120, |at, _, random| f64::from(at / 20 % 3 == 1) * 0.7 + 0.1 * normal(random));
        assert!(share >= 0.95, "{share}");
        let mut random = SeededRandom::new(1);
        let values: Vec<f64> = (0..100)
            .map(|at| if at < 40 { 0.29 } else { 0.12 } * (0.05 * normal(&mut random)).exp())
            .collect();
        let modes = two_modes(&values).unwrap();
        assert!((modes.low / 0.12 - 1.0).abs() < 0.05 && (modes.high / 0.29 - 1.0).abs() < 0.05, "{modes:?}");
        assert!((modes.high_share - 0.4).abs() < 1e-9);
    }

    #[test]
    fn few_and_odd_values_have_no_modes() {
        assert_eq!(two_modes(&[]), None);
        assert_eq!(two_modes(&[1.0; 19]), None);
        assert_eq!(two_modes(&[1.0; 50]), None);
        let mut odd = vec![1.0; 25];
        odd.extend([0.0, f64::NAN, -1.0, f64::INFINITY]);
        odd.extend([5.0; 25]);
        assert_eq!(two_modes(&odd), None);
    }
}
