//! What was measured, as costs: of each rung, and of each way with what remains unexplained.

use fordway_measure::{Interval, Records, Shuffle, median, median_interval};
use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::fit::{Fit, Piece};
use super::path::Path;

/// Resamples of a fit: its ends then move by less than the noise does.
const RESAMPLES: usize = 400;

/// The result of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// What each rung costs, in the order they were given.
    pub rungs: Vec<RungAccount>,
    /// The ways, as they were put together.
    pub paths: Vec<Path>,
    /// One for each way and size, by way.
    pub entries: Vec<Entry>,
}

/// What one rung costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungAccount {
    /// Its name.
    pub rung: String,
    /// Its time at each size, as measured.
    pub costs: Vec<Cost>,
    /// Lines through them; `None` of fewer than two sizes.
    pub fit: Option<Fit>,
    /// Of each line, the interval of its cost per operation in nanoseconds.
    pub per_operation_ns: Vec<Interval>,
    /// And of its cost per byte.
    pub per_byte_ns: Vec<Interval>,
}

/// A time at a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The median over rounds of the medians of their operations, nanoseconds.
    pub ns: Interval,
}

/// One way at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The way's name.
    pub path: String,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The rungs, with their times at this size, each as often as it is there.
    pub parts: Vec<PartCost>,
    /// What they add up to, nanoseconds.
    pub sum_ns: Interval,
    /// The same of the lines, not of the times at this size; `None` where a rung has none.
    pub fitted_sum_ns: Option<f64>,
    /// What the whole way took, nanoseconds.
    pub measured_ns: Interval,
    /// What no rung explains: round by round the whole less the sum, nanoseconds.
    pub residual_ns: Interval,
    /// The same as a share of the whole.
    pub residual_share: Interval,
}

/// A rung within an [`Entry`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartCost {
    /// Its name.
    pub rung: String,
    /// How often it is there.
    pub times: f64,
    /// Nanoseconds, all of them.
    pub ns: Interval,
}

impl Account {
    /// The account of `records` of [`super::measure`], where `names` are the rungs' and `sizes` the sizes in
    /// bytes. Errors: `InvalidArgument` for a way of rungs that were not measured, and for fewer than five
    /// rounds.
    pub fn of(names: &[String], sizes: &[u64], paths: &[Path], records: &Records, seed: u64) -> Result<Self> {
        let book = Book::new(names, sizes, records, seed)?;
        let rungs = (0..names.len()).map(|rung| book.rung(rung)).collect::<Result<Vec<_>>>()?;
        let entries = paths
            .iter()
            .flat_map(|path| (0..sizes.len()).map(|size| book.entry(path, size, &rungs)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Account { rungs, paths: paths.to_vec(), entries })
    }

    /// The entry of a way at a size.
    pub fn entry(&self, path: &str, size_bytes: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.path == path && entry.size_bytes == size_bytes)
    }
}

/// The medians of all blocks, by rung, size and round.
struct Book<'b> {
    names: &'b [String],
    sizes: &'b [u64],
    seed: u64,
    medians_ns: Vec<Vec<Vec<f64>>>,
}

impl<'b> Book<'b> {
    fn new(names: &'b [String], sizes: &'b [u64], records: &Records, seed: u64) -> Result<Self> {
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
        Ok(Book { names, sizes, seed, medians_ns })
    }

    fn interval(&self, values: &[f64]) -> Result<Interval> {
        median_interval(values, self.seed).ok_or_else(|| {
            let why = format!("a ledger needs five rounds for its intervals, and there are {}", values.len());
            Error::new(ErrorKind::InvalidArgument, why)
        })
    }

    fn rung(&self, rung: usize) -> Result<RungAccount> {
        let by_size = &self.medians_ns[rung];
        let costs = self
            .sizes
            .iter()
            .zip(by_size)
            .map(|(&size_bytes, rounds)| Ok(Cost { size_bytes, ns: self.interval(rounds)? }));
        let costs = costs.collect::<Result<Vec<_>>>()?;
        let points: Vec<(f64, f64)> =
            costs.iter().map(|cost| (cost.size_bytes as f64, cost.ns.value)).collect();
        let fit = Fit::of(&points);
        let again = fit.as_ref().map(|fit| self.resampled(fit, by_size)).unwrap_or_default();
        let intervals = |value: fn(&Piece) -> f64| -> Vec<Interval> {
            let pieces = fit.iter().flat_map(|fit| &fit.pieces).enumerate();
            let of_piece = |(at, piece): (usize, &Piece)| {
                let mut values: Vec<f64> = again.iter().map(|pieces| value(&pieces[at])).collect();
                Interval::of_resamples(value(piece), &mut values, by_size[0].len())
            };
            pieces.filter_map(of_piece).collect()
        };
        Ok(RungAccount {
            rung: self.names[rung].clone(),
            costs,
            per_operation_ns: intervals(|piece| piece.per_operation_ns),
            per_byte_ns: intervals(|piece| piece.per_byte_ns),
            fit,
        })
    }

    /// The fit's lines through the medians of rounds drawn with replacement, the same for all sizes.
    fn resampled(&self, fit: &Fit, by_size: &[Vec<f64>]) -> Vec<Vec<Piece>> {
        let mut random = Shuffle::new(self.seed);
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

    fn index(&self, rung: &str) -> Result<usize> {
        self.names.iter().position(|name| name == rung).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("the rung {rung} is part of a path and was not measured"),
            )
        })
    }

    fn entry(&self, path: &Path, size: usize, rungs: &[RungAccount]) -> Result<Entry> {
        let size_bytes = self.sizes[size];
        let whole = &self.medians_ns[self.index(&path.name)?][size];
        let mut sums = vec![0.0; whole.len()];
        let (mut parts, mut fitted_sum_ns) = (Vec::new(), Some(0.0));
        for part in path.parts_at(size_bytes) {
            let rung = self.index(&part.rung)?;
            let ns: Vec<f64> = self.medians_ns[rung][size].iter().map(|ns| ns * part.times).collect();
            sums.iter_mut().zip(&ns).for_each(|(sum, ns)| *sum += ns);
            let line = rungs[rung].fit.as_ref().map(|fit| fit.predict_ns(size_bytes) * part.times);
            fitted_sum_ns = fitted_sum_ns.zip(line).map(|(sum, line)| sum + line);
            parts.push(PartCost { rung: part.rung.clone(), times: part.times, ns: self.interval(&ns)? });
        }
        let residuals: Vec<f64> = whole.iter().zip(&sums).map(|(whole, sum)| whole - sum).collect();
        let shares: Vec<f64> =
            residuals.iter().zip(whole).map(|(residual, whole)| residual / whole).collect();
        Ok(Entry {
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
