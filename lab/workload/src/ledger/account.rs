//! Evaluates a ledger: computes the costs of each component, and the costs and the residual of each path, and formats
//! these figures as tables.
//!
//! A [`PiecewiseLinearFit`] is a cost per operation and a cost per byte, fitted to times at several sizes. The fit
//! minimizes relative errors, so that all sizes have equal weights. Neither cost is negative. A single line may fit
//! badly, for example because larger content does not fit into a cache or takes another code path. Two or three lines
//! are used if they reduce the median error at left-out sizes by more than 20 %.

use std::fmt::Write as _;

use fordway_measure::{
    ConfidenceInterval, RunRecords, SeededRandom, bytes_text, median, median_interval, ns_text,
};
use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::PathDecomposition;

/// The number of resamples of a fit, large enough that the ends of the interval vary less than the measured values
/// themselves.
const RESAMPLES: usize = 400;

/// The result of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerCostReport {
    /// The cost of each component, in the order in which the caller listed the components.
    #[serde(alias = "rungs")]
    pub components: Vec<ComponentAccount>,
    /// The paths and their components.
    pub paths: Vec<PathDecomposition>,
    /// One entry for each path and size, sorted by path.
    pub entries: Vec<LedgerPathBreakdown>,
}

/// The cost of one component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComponentAccount {
    /// The component's name.
    #[serde(alias = "rung")]
    pub component: String,
    /// The time at each size, as measured.
    pub costs: Vec<SizeCost>,
    /// The lines fitted to the measured times; `None` for fewer than two sizes.
    pub fit: Option<PiecewiseLinearFit>,
    /// For each line, the interval of its cost per operation, in nanoseconds.
    pub per_operation_ns: Vec<ConfidenceInterval>,
    /// For each line, the interval of its cost per byte, in nanoseconds.
    pub per_byte_ns: Vec<ConfidenceInterval>,
}

/// The time at one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeCost {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The median over rounds of each round's median operation time, in nanoseconds.
    pub ns: ConfidenceInterval,
}

/// One path at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerPathBreakdown {
    /// The path's name.
    pub path: String,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The components, with their times at this size multiplied by the number of times that they occur.
    pub parts: Vec<ComponentCost>,
    /// The sum of the components, in nanoseconds.
    pub sum_ns: ConfidenceInterval,
    /// The sum of the times that the fitted lines predict for the components at this size; `None` if a component has no
    /// fit.
    pub fitted_sum_ns: Option<f64>,
    /// The time of the whole path, in nanoseconds.
    pub measured_ns: ConfidenceInterval,
    /// The residual, in nanoseconds: the time that the components do not explain. In each round, the residual is the
    /// time of the whole path minus the sum.
    pub residual_ns: ConfidenceInterval,
    /// The residual as a share of the time of the whole path.
    pub residual_share: ConfidenceInterval,
}

/// One component of a [`LedgerPathBreakdown`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComponentCost {
    /// The component's name.
    #[serde(alias = "rung")]
    pub component: String,
    /// The component whose time is subtracted, because the path counts that component separately; `None` if no time is
    /// subtracted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<String>,
    /// The number of times that the component occurs in the path.
    pub times: f64,
    /// The component's total time across all occurrences, in nanoseconds. With `beyond`, the time of that component is
    /// subtracted in each round.
    pub ns: ConfidenceInterval,
}

impl ComponentCost {
    /// Returns the name of the component's row in a table.
    fn label(&self) -> String {
        let ComponentCost { component, beyond, times, .. } = self;
        match beyond {
            Some(base) => format!("{component} beyond {base}"),
            None if *times == 1.0 => component.clone(),
            None => format!("{times} x {component}"),
        }
    }
}

impl LedgerCostReport {
    /// Evaluates the `records` that [`super::measure`] returned. `names` are the names of the components, and `sizes`
    /// are in bytes. Errors: `InvalidArgument` if a component of a path was not measured, or if there are fewer than
    /// five rounds.
    pub fn of(
        names: &[String],
        sizes: &[u64],
        paths: &[PathDecomposition],
        records: &RunRecords,
        seed: u64,
    ) -> Result<Self> {
        let book = BlockMedians::new(names, sizes, records, seed)?;
        let components =
            (0..names.len()).map(|component| book.component(component)).collect::<Result<Vec<_>>>()?;
        let entries = paths
            .iter()
            .flat_map(|path| (0..sizes.len()).map(|size| book.entry(path, size, &components)))
            .collect::<Result<Vec<_>>>()?;
        Ok(LedgerCostReport { components, paths: paths.to_vec(), entries })
    }

    /// Returns the entry of a path at one size.
    pub fn entry(&self, path: &str, size_bytes: u64) -> Option<&LedgerPathBreakdown> {
        self.entries.iter().find(|entry| entry.path == path && entry.size_bytes == size_bytes)
    }
}

/// The median time of each block, by component, size and round.
struct BlockMedians<'b> {
    names: &'b [String],
    sizes: &'b [u64],
    seed: u64,
    medians_ns: Vec<Vec<Vec<f64>>>,
}

impl<'b> BlockMedians<'b> {
    fn new(names: &'b [String], sizes: &'b [u64], records: &RunRecords, seed: u64) -> Result<Self> {
        let rounds =
            records.blocks.iter().map(|block| usize::from(block.round) + 1).max().unwrap_or_default();
        let mut times = vec![vec![vec![Vec::new(); rounds]; sizes.len()]; names.len()];
        for operation in &records.operations {
            times[usize::from(operation.lane)][usize::from(operation.phase)][usize::from(operation.round)]
                .push(operation.duration_ns as f64);
        }
        let rounds = |rounds: Vec<Vec<f64>>| -> Vec<f64> {
            rounds.iter().map(|times| median(times).unwrap_or(f64::NAN)).collect()
        };
        let medians_ns = times.into_iter().map(|sizes| sizes.into_iter().map(rounds).collect()).collect();
        Ok(BlockMedians { names, sizes, seed, medians_ns })
    }

    fn interval(&self, values: &[f64]) -> Result<ConfidenceInterval> {
        median_interval(values).ok_or_else(|| {
            let why = format!("a ledger needs five rounds for its intervals, but there are {}", values.len());
            Error::new(ErrorKind::InvalidArgument, why)
        })
    }

    fn component(&self, component: usize) -> Result<ComponentAccount> {
        let by_size = &self.medians_ns[component];
        let costs = self
            .sizes
            .iter()
            .zip(by_size)
            .map(|(&size_bytes, rounds)| Ok(SizeCost { size_bytes, ns: self.interval(rounds)? }));
        let costs = costs.collect::<Result<Vec<_>>>()?;
        let points: Vec<(f64, f64)> =
            costs.iter().map(|cost| (cost.size_bytes as f64, cost.ns.value)).collect();
        let fit = PiecewiseLinearFit::of(&points);
        let again = fit.as_ref().map(|fit| self.resampled(fit, by_size)).unwrap_or_default();
        let intervals = |value: fn(&FitSegment) -> f64| -> Vec<ConfidenceInterval> {
            let pieces = fit.iter().flat_map(|fit| &fit.pieces).enumerate();
            let of_piece = |(at, piece): (usize, &FitSegment)| {
                let mut values: Vec<f64> = again.iter().map(|pieces| value(&pieces[at])).collect();
                ConfidenceInterval::of_resamples(value(piece), &mut values, by_size[0].len())
            };
            pieces.filter_map(of_piece).collect()
        };
        Ok(ComponentAccount {
            component: self.names[component].clone(),
            costs,
            per_operation_ns: intervals(|piece| piece.per_operation_ns),
            per_byte_ns: intervals(|piece| piece.per_byte_ns),
            fit,
        })
    }

    /// Returns the fit's lines, refitted to the medians of rounds that are drawn with replacement. Each draw selects
    /// the same rounds for all sizes.
    fn resampled(&self, fit: &PiecewiseLinearFit, by_size: &[Vec<f64>]) -> Vec<Vec<FitSegment>> {
        let mut random = SeededRandom::new(self.seed);
        let rounds = by_size.first().map_or(0, Vec::len);
        let once = |_| {
            let drawn: Vec<usize> = (0..rounds).map(|_| random.below(rounds)).collect();
            let of_size = |(size, values): (&u64, &Vec<f64>)| {
                let values: Vec<f64> = drawn.iter().map(|round| values[*round]).collect();
                (*size as f64, median(&values).unwrap_or(f64::NAN))
            };
            fit.again(&self.sizes.iter().zip(by_size).map(of_size).collect::<Vec<_>>())
        };
        (0..RESAMPLES).map(once).collect()
    }

    fn index(&self, component: &str) -> Result<usize> {
        self.names.iter().position(|name| name == component).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("the component {component} is part of a path but was not measured"),
            )
        })
    }

    fn entry(
        &self,
        path: &PathDecomposition,
        size: usize,
        components: &[ComponentAccount],
    ) -> Result<LedgerPathBreakdown> {
        let size_bytes = self.sizes[size];
        let whole = &self.medians_ns[self.index(&path.name)?][size];
        let mut sums = vec![0.0; whole.len()];
        let (mut parts, mut fitted_sum_ns) = (Vec::new(), Some(0.0));
        for part in path.parts_at(size_bytes) {
            // The component's own time. If `beyond` is set, the time of that component is subtracted, because the path
            // counts it separately.
            let mut terms = vec![(self.index(&part.component)?, part.times)];
            if let Some(base) = &part.beyond {
                terms.push((self.index(base)?, -part.times));
            }
            let mut ns = vec![0.0; whole.len()];
            for (component, times) in terms {
                let of_component = &self.medians_ns[component][size];
                ns.iter_mut().zip(of_component).for_each(|(ns, of_component)| *ns += of_component * times);
                let line = components[component].fit.as_ref().map(|fit| fit.predict_ns(size_bytes) * times);
                fitted_sum_ns = fitted_sum_ns.zip(line).map(|(sum, line)| sum + line);
            }
            sums.iter_mut().zip(&ns).for_each(|(sum, ns)| *sum += ns);
            parts.push(ComponentCost {
                component: part.component.clone(),
                beyond: part.beyond.clone(),
                times: part.times,
                ns: self.interval(&ns)?,
            });
        }
        let residuals: Vec<f64> = whole.iter().zip(&sums).map(|(whole, sum)| whole - sum).collect();
        let shares: Vec<f64> =
            residuals.iter().zip(whole).map(|(residual, whole)| residual / whole).collect();
        Ok(LedgerPathBreakdown {
            path: path.name.clone(),
            size_bytes,
            parts,
            sum_ns: self.interval(&sums)?,
            fitted_sum_ns,
            measured_ns: self.interval(whole)?,
            residual_ns: self.interval(&residuals)?,
            residual_share: self.interval(&shares)?,
        })
    }
}

/// The minimum number of sizes that a line is fitted to.
const POINTS_MIN: usize = 3;
/// The maximum number of lines in a fit.
const PIECES_MAX: usize = 3;
/// A further line is used only if it reduces the median error at left-out sizes below this multiple of the previous
/// median error.
const WORTH_A_PIECE: f64 = 0.8;
/// The relative error below which a further line would only fit noise.
const GOOD: f64 = 1e-3;

/// Times by size: (bytes, nanoseconds), in ascending order of size.
pub(super) type SizeTimes = [(f64, f64)];

/// The cost of an operation as a function of its size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PiecewiseLinearFit {
    /// One to three lines, in ascending order of size.
    pub pieces: Vec<FitSegment>,
    /// The median relative error at sizes left out of the fit; `None` for fewer than four sizes.
    pub left_out_median: Option<f64>,
    /// The largest relative error at sizes left out of the fit.
    pub left_out_max: Option<f64>,
}

/// One line of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitSegment {
    /// The smallest size that the line was fitted to, in bytes.
    pub from_bytes: u64,
    /// The largest size that the line was fitted to, in bytes.
    pub to_bytes: u64,
    /// Nanoseconds per operation, excluding the cost per byte.
    pub per_operation_ns: f64,
    /// Nanoseconds per byte.
    pub per_byte_ns: f64,
}

impl PiecewiseLinearFit {
    /// Fits `points`. Returns `None` for fewer than two points.
    pub(super) fn of(points: &SizeTimes) -> Option<Self> {
        let mut best: Option<(Vec<FitSegment>, Option<f64>, Option<f64>)> = None;
        for count in 1..=PIECES_MAX {
            let Some(pieces) = pieces(points, count) else { break };
            let errors = left_out(points, count);
            let (middle, most) = (median(&errors), errors.iter().copied().reduce(f64::max));
            // More lines always fit the given points better, so the error at left-out sizes decides the number of
            // lines.
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
        best.map(|(pieces, left_out_median, left_out_max)| PiecewiseLinearFit {
            pieces,
            left_out_median,
            left_out_max,
        })
    }

    /// Returns the predicted time of an operation of `size_bytes`, in nanoseconds.
    pub fn predict_ns(&self, size_bytes: u64) -> f64 {
        predict(&self.pieces, size_bytes as f64)
    }

    /// Fits lines to other times, such as a bootstrap resample, over the size ranges of this fit.
    pub(super) fn again(&self, points: &SizeTimes) -> Vec<FitSegment> {
        let within = |piece: &FitSegment| {
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

/// Predicts the time at a size. At a size between the ranges of two lines, the line whose range is nearer on a
/// logarithmic scale applies.
fn predict(pieces: &[FitSegment], size: f64) -> f64 {
    let ends = |pair: &[FitSegment]| (pair[0].to_bytes.max(1) as f64 * pair[1].from_bytes as f64).sqrt();
    let at = pieces.windows(2).take_while(|pair| size > ends(pair)).count();
    pieces.get(at).map_or(f64::NAN, |piece| piece.per_operation_ns + piece.per_byte_ns * size)
}

/// Returns the best fit with `count` lines; `None` if there are too few points.
fn pieces(points: &SizeTimes, count: usize) -> Option<Vec<FitSegment>> {
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

/// Returns the sum of the squared relative errors. Each point is predicted by the line that was fitted to it.
fn squares(pieces: &[FitSegment], points: &SizeTimes) -> f64 {
    points.iter().map(|(size, ns)| (predict(pieces, *size) / ns - 1.0).powi(2)).sum()
}

/// For each size, fits lines to all other sizes, and returns the relative error of the prediction for this size.
fn left_out(points: &SizeTimes, count: usize) -> Vec<f64> {
    let error = |at: usize| {
        let mut others = points.to_vec();
        let (size, ns) = others.remove(at);
        let fitted = pieces(&others, count).filter(|_| others.len() >= POINTS_MIN)?;
        Some((predict(&fitted, size) / ns - 1.0).abs())
    };
    (0..points.len()).filter_map(error).collect()
}

/// Fits a line by least squares of the relative errors. Neither cost is negative.
fn line(points: &SizeTimes) -> FitSegment {
    let sum = |value: fn(f64, f64) -> f64| points.iter().map(|(size, ns)| value(*size, *ns)).sum::<f64>();
    // The weights are 1/ns². In `wt` and `st`, the weights are already multiplied by the time.
    let (ww, ws) = (sum(|_, ns| 1.0 / (ns * ns)), sum(|size, ns| size / (ns * ns)));
    let ss = sum(|size, ns| size * size / (ns * ns));
    let (wt, st) = (sum(|_, ns| 1.0 / ns), sum(|size, ns| size / ns));
    let determinant = ww * ss - ws * ws;
    let (mut per_operation_ns, mut per_byte_ns) =
        ((wt * ss - st * ws) / determinant, (ww * st - ws * wt) / determinant);
    // If a cost is negative, or undetermined because all sizes are equal, set it to 0 and fit the other cost alone.
    if per_byte_ns < 0.0 || !per_byte_ns.is_finite() {
        (per_operation_ns, per_byte_ns) = (wt / ww, 0.0);
    } else if per_operation_ns < 0.0 {
        (per_operation_ns, per_byte_ns) = (0.0, st / ss);
    }
    let at = |point: Option<&(f64, f64)>| point.map_or(0, |(size, _)| *size as u64);
    FitSegment { from_bytes: at(points.first()), to_bytes: at(points.last()), per_operation_ns, per_byte_ns }
}

/// The median error at left-out sizes, in percent, above which a fit is called poor.
pub const FIT_MEDIAN_PERCENT_MAX: f64 = 10.0;

/// The note that accompanies the path tables.
pub const MEDIANS_NOTE: &str = "Each figure is a median over rounds, and medians do not add up exactly: a residual is the \
                                median of the rounds' residuals.\n";

/// Returns the table of components, with a row for each line of each component's fit. If only one size was measured,
/// there are no fits, and the table contains the time of each component instead. `docs/explain/ledger.md` explains the
/// columns.
pub fn component_table(account: &LedgerCostReport) -> String {
    if account.components.iter().all(|component| component.fit.is_none()) {
        return measured_table(account);
    }
    let mut rows = vec![
        ["component", "sizes", "per operation", "per MiB", "left out, median", "largest"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for component in &account.components {
        rows.extend(piece_rows(component));
    }
    columns(&rows, 2)
}

/// Returns the table of the components' times at the only size.
fn measured_table(account: &LedgerCostReport) -> String {
    let mut rows = vec![["component", "size", "time"].map(str::to_owned).to_vec()];
    for component in &account.components {
        rows.extend(
            component.costs.iter().map(|cost| {
                vec![component.component.clone(), bytes_text(cost.size_bytes), time(&cost.ns, 1.0)]
            }),
        );
    }
    columns(&rows, 2)
}

fn piece_rows(component: &ComponentAccount) -> Vec<Vec<String>> {
    let Some(fit) = &component.fit else { return Vec::new() };
    let intervals = component.per_operation_ns.iter().zip(&component.per_byte_ns);
    let line = |(at, (piece, (operation, byte)))| {
        let piece: &super::FitSegment = piece;
        let is_first = at == 0;
        let error = |share: Option<f64>| match share {
            Some(share) if is_first => percent(share),
            None if is_first => "-".to_owned(),
            _ => String::new(),
        };
        let mut left_out = error(fit.left_out_median);
        if is_first && fit.left_out_median.is_some_and(|share| 100.0 * share > FIT_MEDIAN_PERCENT_MAX) {
            left_out.push_str(" poor");
        }
        vec![
            if is_first { component.component.clone() } else { String::new() },
            format!("{} - {}", bytes_text(piece.from_bytes), bytes_text(piece.to_bytes)),
            time(operation, 1.0),
            time(byte, f64::from(1 << 20)),
            left_out,
            error(fit.left_out_max),
        ]
    };
    fit.pieces.iter().zip(intervals).enumerate().map(line).collect()
}

/// Returns the table of one path at one size: its components, their sum, the measured time of the whole path, and the
/// residual.
pub fn entry_table(entry: &LedgerPathBreakdown) -> String {
    let mut rows = Vec::new();
    let mut row = |name: &str, ns: &ConfidenceInterval| {
        let share = percent(ns.value / entry.measured_ns.value);
        rows.push(vec![name.to_owned(), time(ns, 1.0), share]);
    };
    for part in &entry.parts {
        row(&part.label(), &part.ns);
    }
    row("sum of components", &entry.sum_ns);
    row("measured", &entry.measured_ns);
    let ConfidenceInterval { value, low, high, .. } = entry.residual_share;
    rows.push(vec![
        "residual".to_owned(),
        time(&entry.residual_ns, 1.0),
        format!("{} [{}, {}]", percent(value), percent(low), percent(high)),
    ]);
    let mut text = format!("{}, {}\n", entry.path, bytes_text(entry.size_bytes));
    for line in columns(&rows, 1).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a time with its interval, multiplied by `factor`.
fn time(ns: &ConfidenceInterval, factor: f64) -> String {
    let text = |ns: f64| {
        let sign = if ns * factor <= -0.5 { "-" } else { "" };
        format!("{sign}{}", ns_text((ns * factor).abs().round() as u64))
    };
    format!("{} [{}, {}]", text(ns.value), text(ns.low), text(ns.high))
}

/// Lays out `rows` in columns; the first `left` columns are aligned to the left.
fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(at, cell): (usize, &String)| match at < left {
            true => format!("{cell:<width$}", width = widths[at]),
            false => format!("{cell:>width$}", width = widths[at]),
        };
        let line: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 12] = [1.0, 512.0, 4e3, 16e3, 64e3, 128e3, 256e3, 512e3, 1e6, 2e6, 4e6, 16e6];

    fn fit(time: impl Fn(f64) -> f64) -> PiecewiseLinearFit {
        PiecewiseLinearFit::of(&SIZES.map(|size| (size, time(size)))).unwrap()
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
        assert_eq!(PiecewiseLinearFit::of(&[(1.0, 1.0)]), None);
        let two = PiecewiseLinearFit::of(&[(1.0, 2.0), (2.0, 3.0)]).unwrap();
        assert_eq!(two.left_out_median, None);
        assert!(is_near(two.predict_ns(3), 4.0));
    }
}
