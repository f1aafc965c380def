//! A cost per operation and a cost per byte, fitted to times at several sizes.
//!
//! Errors count relative to the time, so that every size counts alike, and neither cost is below 0.
//! Where one line is bad, as at the end of a cache or where content begins to go another way, two or
//! three are taken, if they predict sizes left out clearly better.

use fordway_measure::median;
use serde::{Deserialize, Serialize};

/// The fewest sizes that a piece is fitted to.
const POINTS_MIN: usize = 3;
/// The most pieces.
const PIECES_MAX: usize = 3;
/// A further piece must bring the error at sizes left out below this share of what it was.
const WORTH_A_PIECE: f64 = 0.8;
/// A relative error so small that a further piece would only follow the noise.
const GOOD: f64 = 1e-3;

/// Times by size: (bytes, nanoseconds), sizes rising.
pub(super) type Points = [(f64, f64)];

/// The cost of an operation by its size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The lines, by rising size: one, or up to three.
    pub pieces: Vec<Piece>,
    /// Median of the relative errors at sizes that the fit was not shown; `None` of fewer than four sizes.
    pub left_out_median: Option<f64>,
    /// The largest of them.
    pub left_out_max: Option<f64>,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The sizes that it was fitted to: the smallest in bytes.
    pub from_bytes: u64,
    /// The largest.
    pub to_bytes: u64,
    /// Nanoseconds for an operation without its bytes.
    pub per_operation_ns: f64,
    /// Nanoseconds for a byte.
    pub per_byte_ns: f64,
}

impl Fit {
    /// Fits `points`; `None` of fewer than two.
    pub(super) fn of(points: &Points) -> Option<Self> {
        let mut best: Option<(Vec<Piece>, Option<f64>, Option<f64>)> = None;
        for count in 1..=PIECES_MAX {
            let Some(pieces) = pieces(points, count) else { break };
            let errors = left_out(points, count);
            let (middle, most) = (median(&errors), errors.iter().copied().reduce(f64::max));
            let is_better = match &best {
                None => true,
                Some((_, Some(before), _)) => {
                    *before > GOOD && middle.is_some_and(|now| now < WORTH_A_PIECE * before)
                }
                Some(_) => false,
            };
            if is_better {
                best = Some((pieces, middle, most));
            }
        }
        best.map(|(pieces, left_out_median, left_out_max)| Fit { pieces, left_out_median, left_out_max })
    }

    /// Nanoseconds for an operation of `size_bytes`.
    pub fn predict_ns(&self, size_bytes: u64) -> f64 {
        predict(&self.pieces, size_bytes as f64)
    }

    /// The same pieces fitted to other times: what a resample gives.
    pub(super) fn again(&self, points: &Points) -> Vec<Piece> {
        let within = |piece: &Piece| {
            let of_piece: Vec<_> = points
                .iter()
                .copied()
                .filter(|(size, _)| (piece.from_bytes as f64..=piece.to_bytes as f64).contains(size))
                .collect();
            line(&of_piece)
        };
        self.pieces.iter().map(within).collect()
    }
}

/// Between two pieces the nearer one counts, on a logarithmic scale.
fn predict(pieces: &[Piece], size: f64) -> f64 {
    let ends = |pair: &[Piece]| (pair[0].to_bytes.max(1) as f64 * pair[1].from_bytes as f64).sqrt();
    let at = pieces.windows(2).take_while(|pair| size > ends(pair)).count();
    pieces.get(at).map_or(f64::NAN, |piece| piece.per_operation_ns + piece.per_byte_ns * size)
}

/// The best `count` pieces; `None` if there are too few points.
fn pieces(points: &Points, count: usize) -> Option<Vec<Piece>> {
    match count {
        1 => (points.len() >= 2).then(|| vec![line(points)]),
        _ => {
            let last_start = points.len().checked_sub(POINTS_MIN)?;
            let cuts = (POINTS_MIN * (count - 1)..=last_start).filter_map(|cut| {
                let mut all = pieces(&points[..cut], count - 1)?;
                all.push(line(&points[cut..]));
                Some((squares(&all, points), all))
            });
            cuts.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, all)| all)
        }
    }
}

/// Sum of the squares of the relative errors; each point belongs to the piece it was fitted in.
fn squares(pieces: &[Piece], points: &Points) -> f64 {
    points.iter().map(|(size, ns)| (predict(pieces, *size) / ns - 1.0).powi(2)).sum()
}

/// Relative errors at each size, of a fit that did not see it.
fn left_out(points: &Points, count: usize) -> Vec<f64> {
    let error = |at: usize| {
        let mut others = points.to_vec();
        let (size, ns) = others.remove(at);
        let fitted = pieces(&others, count).filter(|_| others.len() >= POINTS_MIN)?;
        Some((predict(&fitted, size) / ns - 1.0).abs())
    };
    (0..points.len()).filter_map(error).collect()
}

/// Least squares of relative errors, neither cost below 0.
fn line(points: &Points) -> Piece {
    let sum = |value: fn(f64, f64) -> f64| points.iter().map(|(size, ns)| value(*size, *ns)).sum::<f64>();
    // With weights 1/ns², divided by ns once already: ns/ns = 1.
    let (ww, ws) = (sum(|_, ns| 1.0 / (ns * ns)), sum(|size, ns| size / (ns * ns)));
    let ss = sum(|size, ns| size * size / (ns * ns));
    let (wt, st) = (sum(|_, ns| 1.0 / ns), sum(|size, ns| size / ns));
    let determinant = ww * ss - ws * ws;
    let (mut per_operation_ns, mut per_byte_ns) =
        ((wt * ss - st * ws) / determinant, (ww * st - ws * wt) / determinant);
    if per_byte_ns < 0.0 || !per_byte_ns.is_finite() {
        (per_operation_ns, per_byte_ns) = (wt / ww, 0.0);
    } else if per_operation_ns < 0.0 {
        (per_operation_ns, per_byte_ns) = (0.0, st / ss);
    }
    let at = |point: Option<&(f64, f64)>| point.map_or(0, |(size, _)| *size as u64);
    Piece { from_bytes: at(points.first()), to_bytes: at(points.last()), per_operation_ns, per_byte_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 12] = [1.0, 512.0, 4e3, 16e3, 64e3, 128e3, 256e3, 512e3, 1e6, 2e6, 4e6, 16e6];

    fn fit(time: impl Fn(f64) -> f64) -> Fit {
        Fit::of(&SIZES.map(|size| (size, time(size)))).unwrap()
    }

    fn is_near(one: f64, other: f64) -> bool {
        (one - other).abs() <= 1e-6 * other.abs().max(1e-3)
    }

    #[test]
    fn a_line_is_found_exactly() {
        let found = fit(|size| 5_000.0 + 0.25 * size);
        let [piece] = found.pieces[..] else { panic!("{found:?}") };
        assert!(is_near(piece.per_operation_ns, 5_000.0) && is_near(piece.per_byte_ns, 0.25), "{piece:?}");
        assert!(found.left_out_max.unwrap() < 1e-6, "{found:?}");
        assert!(is_near(found.predict_ns(100_000), 30_000.0));
    }

    #[test]
    fn a_break_is_found_and_a_constant_has_no_cost_per_byte() {
        let found = fit(|size| if size < 1e5 { 1_000.0 + size } else { 90_000.0 + 0.1 * size });
        let [small, large] = found.pieces[..] else { panic!("{found:?}") };
        assert_eq!((small.to_bytes, large.from_bytes), (64_000, 128_000));
        assert!(is_near(small.per_byte_ns, 1.0) && is_near(large.per_operation_ns, 90_000.0), "{found:?}");
        let constant = fit(|_| 700.0);
        assert_eq!(constant.pieces.len(), 1);
        assert!(is_near(constant.pieces[0].per_operation_ns, 700.0), "{constant:?}");
        assert!(constant.pieces[0].per_byte_ns.abs() < 1e-9);
    }

    #[test]
    fn costs_are_never_below_zero() {
        let falling = line(&[(1.0, 10.0), (10.0, 5.0)]);
        assert!(falling.per_byte_ns == 0.0 && falling.per_operation_ns > 0.0, "{falling:?}");
        let steep = line(&[(10.0, 1.0), (20.0, 50.0)]);
        assert!(steep.per_operation_ns == 0.0 && steep.per_byte_ns > 0.0, "{steep:?}");
    }

    #[test]
    fn too_few_points_have_no_fit_or_no_error() {
        assert_eq!(Fit::of(&[(1.0, 1.0)]), None);
        let two = Fit::of(&[(1.0, 2.0), (2.0, 3.0)]).unwrap();
        assert_eq!(two.left_out_median, None);
        assert!(is_near(two.predict_ns(3), 4.0));
    }
}
