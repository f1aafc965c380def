//! Amdahl's law with a cost of communication: `T(n) = serial + parallel / n + further (n - 1)`.
//!
//! The three costs are fitted by least squares of relative errors, so that every number of ranks counts
//! alike, and none of them is below 0: of all subsets of the three, the best one without a negative cost.

use serde::{Deserialize, Serialize};

/// The costs of the model.
const COSTS: usize = 3;

/// What a job costs by its number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// What more ranks do not shorten, ns.
    pub serial_ns: f64,
    /// What ranks share, on one rank, ns.
    pub parallel_ns: f64,
    /// What each further rank adds, ns.
    pub further_rank_ns: f64,
    /// Amdahl's share: serial, of what one rank takes.
    pub serial_share: f64,
    /// Numbers of ranks that it was fitted to.
    pub points: usize,
    /// The largest relative error at these.
    pub error_max: f64,
    /// Whether there were more points than costs; otherwise the line passes through them whatever they are.
    pub is_tested: bool,
}

impl Fit {
    /// Fits (ranks, ns), each number of ranks once. `None` of fewer than two points, or of times that are not
    /// above 0.
    pub fn of(points: &[(u32, f64)]) -> Option<Self> {
        if points.len() < 2 || points.iter().any(|(ranks, ns)| *ranks == 0 || *ns <= 0.0) {
            return None;
        }
        let subsets = 1u8..1 << COSTS;
        let candidates = subsets.filter_map(|subset| solve(points, subset));
        let [serial_ns, parallel_ns, further_rank_ns] =
            candidates.min_by(|a, b| badness(points, a).total_cmp(&badness(points, b)))?;
        let costs = [serial_ns, parallel_ns, further_rank_ns];
        let error = |(ranks, ns): &(u32, f64)| (predict(&costs, *ranks) / ns - 1.0).abs();
        Some(Fit {
            serial_ns,
            parallel_ns,
            further_rank_ns,
            serial_share: serial_ns / (serial_ns + parallel_ns),
            points: points.len(),
            error_max: points.iter().map(error).fold(0.0, f64::max),
            is_tested: points.len() > COSTS,
        })
    }

    /// Nanoseconds on `ranks` ranks.
    pub fn predict_ns(&self, ranks: u32) -> f64 {
        predict(&[self.serial_ns, self.parallel_ns, self.further_rank_ns], ranks)
    }
}

fn terms(ranks: u32) -> [f64; COSTS] {
    let ranks = f64::from(ranks);
    [1.0, 1.0 / ranks, ranks - 1.0]
}

fn predict(costs: &[f64; COSTS], ranks: u32) -> f64 {
    terms(ranks).iter().zip(costs).map(|(term, cost)| term * cost).sum()
}

/// The sum of squared relative errors. What is exact but for rounding is 0, so of several exact
/// subsets the first, which has the fewest costs that communicate, is taken.
fn badness(points: &[(u32, f64)], costs: &[f64; COSTS]) -> f64 {
    let sum: f64 = points.iter().map(|(ranks, ns)| (predict(costs, *ranks) / ns - 1.0).powi(2)).sum();
    if sum < 1e-18 { 0.0 } else { sum }
}

/// Least squares with the costs whose bits are in `subset`; `None` if they are not determined, or one is
/// negative.
fn solve(points: &[(u32, f64)], subset: u8) -> Option<[f64; COSTS]> {
    let used: Vec<usize> = (0..COSTS).filter(|cost| subset & (1 << cost) != 0).collect();
    let mut matrix = vec![vec![0.0; used.len() + 1]; used.len()];
    for (ranks, ns) in points {
        let row = terms(*ranks).map(|term| term / ns);
        for (line, &a) in matrix.iter_mut().zip(&used) {
            for (cell, &b) in line.iter_mut().zip(&used) {
                *cell += row[a] * row[b];
            }
            line[used.len()] += row[a];
        }
    }
    let solved = eliminate(matrix)?;
    let mut costs = [0.0; COSTS];
    used.iter().zip(solved).for_each(|(at, cost)| costs[*at] = cost);
    costs.iter().all(|cost| *cost >= 0.0).then_some(costs)
}

/// Gauss's elimination with the largest pivots; `None` of a singular system.
fn eliminate(mut lines: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = lines.len();
    let scale = lines.iter().flatten().fold(0.0, |most: f64, value| most.max(value.abs()));
    for at in 0..size {
        let best = (at..size).max_by(|a, b| lines[*a][at].abs().total_cmp(&lines[*b][at].abs()))?;
        lines.swap(at, best);
        if lines[at][at].abs() <= scale * 1e-12 {
            return None;
        }
        let pivot = lines[at].clone();
        for (number, line) in lines.iter_mut().enumerate() {
            let factor = line[at] / pivot[at];
            if number != at {
                line.iter_mut().zip(&pivot).for_each(|(value, above)| *value -= factor * above);
            }
        }
    }
    Some((0..size).map(|at| lines[at][size] / lines[at][at]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(costs: [f64; 3], ranks: &[u32]) -> Fit {
        let points: Vec<_> = ranks.iter().map(|ranks| (*ranks, predict(&costs, *ranks))).collect();
        Fit::of(&points).unwrap()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn the_truth_is_recovered() {
        let fit = of([2e9, 8e9, 1e8], &[1, 2, 4, 8, 16]);
        assert!(close(fit.serial_ns, 2e9) && close(fit.parallel_ns, 8e9) && close(fit.further_rank_ns, 1e8));
        assert!(close(fit.serial_share, 0.2) && fit.is_tested && fit.error_max < 1e-9, "{fit:?}");
        assert!(close(fit.predict_ns(32), 2e9 + 8e9 / 32.0 + 31e8));
        let alone = of([0.0, 5e9, 0.0], &[1, 2, 4, 8]);
        assert!(close(alone.parallel_ns, 5e9) && alone.serial_share < 1e-9, "{alone:?}");
    }

    /// Noise of some percent must not make a cost negative, nor move the shares far.
    #[test]
    fn noise_leaves_costs_plausible() {
        let noise = [1.02, 0.97, 1.01, 0.99, 1.03];
        let ranks = [1, 2, 4, 8, 16];
        let points: Vec<_> =
            ranks.iter().zip(noise).map(|(n, noise)| (*n, predict(&[1e9, 9e9, 0.0], *n) * noise)).collect();
        let fit = Fit::of(&points).unwrap();
        assert!((0.05..0.15).contains(&fit.serial_share), "{fit:?}");
        assert!(fit.further_rank_ns >= 0.0 && fit.error_max < 0.06, "{fit:?}");
    }

    #[test]
    fn few_points_are_said_to_test_nothing() {
        assert!(!of([1e9, 4e9, 1e8], &[1, 2, 4]).is_tested);
        assert!(!of([1e9, 4e9, 0.0], &[1, 2]).is_tested);
        assert_eq!(Fit::of(&[(1, 1e9)]), None);
        assert_eq!(Fit::of(&[(1, 1e9), (2, 0.0)]), None);
    }

    /// A job that only gets slower shares nothing, and that is not an error.
    #[test]
    fn a_job_that_gets_slower_is_communication() {
        let fit = Fit::of(&[(1, 1e9), (2, 3e9), (4, 7e9), (8, 15e9)]).unwrap();
        assert!(close(fit.further_rank_ns, 2e9), "{fit:?}");
    }
}
