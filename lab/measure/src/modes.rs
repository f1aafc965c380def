//! Detects results that have two modes: the times are near one level for a while, and near another level at other
//! times, for example because the kernel sometimes runs client and server on one processor. An interval describes only
//! one level, so a result with two modes is marked as doubtful.

use std::collections::{BTreeMap, HashMap};

use crate::{
    BlockRecord, DisturbanceCause, LanePhaseKey, MeasurementWarning, RunDocument, RunRecords, median, ns_text,
};

/// The minimum number of values.
const VALUES_MIN: usize = 8;
/// The minimum number of values whose order can show whether modes last.
const ORDERED_MIN: usize = 20;
/// The minimum share of the values in each mode, and their minimum number.
const SHARE_MIN: f64 = 0.15;
const COUNT_MIN: usize = 3;
/// The minimum ratio of the two levels.
const RATIO_MIN: f64 = 1.2;
/// The minimum distance between the two levels, in standard deviations of a mode, if the order of the values is also
/// considered.
const SEPARATION_MIN: f64 = 4.0;
/// The same minimum for fewer values, whose order is not considered.
const SEPARATION_OF_FEW_MIN: f64 = 10.0;
/// The maximum share of the values in the middle third between the two levels.
const BETWEEN_MAX: f64 = 0.05;
/// The maximum number of changes from one mode to the other, relative to the number in a random order. Above this
/// number, the modes do not last, and the values may simply be of two kinds.
const CHANGES_MAX: f64 = 0.5;
/// The factor by which the standard deviation of a normal distribution exceeds its median absolute deviation.
const DEVIATIONS: f64 = 1.4826;

/// The two levels of a quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TwoModes {
    /// The median of the lower mode.
    low: f64,
    /// The median of the higher mode.
    high: f64,
    /// The share of the values in the higher mode, from 0 to 1.
    high_share: f64,
}

/// Returns a doubt for each result of `run` that has two modes. Each other lane is compared with the first lane on the
/// same block, if the first lane ran this block, so that neither different file sizes nor a slower machine is mistaken
/// for a mode. Omits blocks in which an operation failed.
pub fn doubts_about_modes(run: &RunDocument, records: &RunRecords) -> Vec<MeasurementWarning> {
    let failed = records.blocks_with_failures();
    let is_whole = |block: &&BlockRecord| {
        let is_clean = !failed.contains(&(block.lane, block.phase, block.block));
        is_clean && block.operations > 0 && block.elapsed_ns > 0
    };
    let whole = || records.blocks.iter().filter(is_whole);
    let of_first = |block: &&BlockRecord| block.lane == 0;
    let first: HashMap<(u8, u32), &BlockRecord> =
        whole().filter(of_first).map(|block| ((block.phase, block.block), block)).collect();
    let mut results: BTreeMap<(u8, u8), Vec<&BlockRecord>> = BTreeMap::new();
    whole().for_each(|block| results.entry((block.phase, block.lane)).or_default().push(block));
    let doubt = |((phase, lane), mut blocks): ((u8, u8), Vec<&BlockRecord>)| {
        blocks.sort_unstable_by_key(|block| block.block);
        let cell = LanePhaseKey {
            lane: run.lanes.get(usize::from(lane))?.name.clone(),
            phase: run.phases.get(usize::from(phase))?.clone(),
        };
        // Pair only blocks with equal numbers of operations.
        let mut pairs = Vec::new();
        for block in blocks.iter().filter(|_| lane > 0) {
            let other = first.get(&(block.phase, block.block));
            pairs.extend(
                other.filter(|other| other.operations == block.operations).map(|other| (*block, *other)),
            );
        }
        let modes = match pairs.is_empty() {
            true => {
                two_modes(&levels(&blocks, |block| (block.round, block.elapsed_ns, block.operations.into())))?
                    .in_words(|ns| format!("{} per operation", ns_text(ns.round() as u64)))
            }
            false => {
                two_modes(&levels(&pairs, |(own, other)| (own.round, other.elapsed_ns, own.elapsed_ns)))?
                    .in_words(|ratio| format!("{ratio:.2} x {}", run.lanes[0].name))
            }
        };
        Some(MeasurementWarning {
            cause: DisturbanceCause::TwoModes,
            observed: format!("{} on {} has two modes: {modes}", cell.phase, cell.lane),
            remedy: "quote both modes, not their median; pinning client and server (`taskset`) may fix one"
                .into(),
            cells: vec![cell],
        })
    };
    results.into_iter().filter_map(doubt).collect()
}

/// Returns the quotient of each block, or of each round if there are few blocks. Blocks contain different files, and
/// only the order of many blocks shows that the resulting difference is not a mode. `parts` returns the round, the
/// dividend and the divisor of a block.
fn levels<B>(blocks: &[B], parts: impl Fn(&B) -> (u16, u64, u64)) -> Vec<f64> {
    let quotient = |(dividend, divisor): (u64, u64)| dividend as f64 / divisor as f64;
    if blocks.len() >= ORDERED_MIN {
        let part = |block: &B| (parts(block).1, parts(block).2);
        return blocks.iter().map(|block| quotient(part(block))).collect();
    }
    let mut rounds: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    for (round, dividend, divisor) in blocks.iter().map(parts) {
        let sums = rounds.entry(round).or_default();
        *sums = (sums.0 + dividend, sums.1 + divisor);
    }
    rounds.into_values().map(quotient).collect()
}

impl TwoModes {
    /// Describes both modes. `level` formats a level.
    fn in_words(&self, level: impl Fn(f64) -> String) -> String {
        let TwoModes { low, high, high_share } = *self;
        let high_pct = 100.0 * high_share;
        let (low, high) = (level(low), level(high));
        format!("{low} in {:.0} % of the blocks, and {high} in {high_pct:.0} %", 100.0 - high_pct)
    }
}

/// Returns the two modes of `values`, which are positive and in the order of their measurement. Returns `None` if there
/// is only one mode, or if the values are too few to tell. In simulations, at most 3 % of autocorrelated values with
/// one mode are mistaken for two modes (the test `one_mode_is_not_taken_for_two`).
fn two_modes(values: &[f64]) -> Option<TwoModes> {
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
    let is_ordered = logs.len() >= ORDERED_MIN;
    let separation_min = if is_ordered { SEPARATION_MIN } else { SEPARATION_OF_FEW_MIN };
    let spread = deviation(lower, low).max(deviation(upper, high));
    let is_apart = lower.len().min(upper.len()) >= count_min
        && high - low >= RATIO_MIN.ln().max(separation_min * spread)
        && is_empty_between(&sorted, low, high);
    let is_high: Vec<bool> = logs.iter().map(|log| *log >= upper[0]).collect();
    (is_apart && (!is_ordered || lasts(&is_high))).then(|| TwoModes {
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

/// Returns whether neighbouring values are in the same mode much more often than in a random order.
fn lasts(is_high: &[bool]) -> bool {
    let changes = is_high.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64;
    let share = is_high.iter().filter(|high| **high).count() as f64 / is_high.len() as f64;
    changes < CHANGES_MAX * 2.0 * share * (1.0 - share) * (is_high.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, RowDescription, SCHEMA, SCHEMA_VERSION, SeededRandom};

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
        for count in [8, 19, 25, 100, 400] {
            let noise = found(count, |_, _, random| 0.3 * normal(random));
            let wandering = found(count, |_, last, random| 0.9 * last + 0.1 * normal(random));
            let drift = found(count, |at, _, random| at as f64 / count as f64 + 0.05 * normal(random));
            // Small and large files alternate at random.
            let mixture = match count {
                0..ORDERED_MIN => 0.0,
                _ => found(count, |_, _, random| 0.7 * random.below(2) as f64 + 0.1 * normal(random)),
            };
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
        assert_eq!(two_modes(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]), None);
        assert_eq!(two_modes(&[1.0; 50]), None);
        let mut odd = vec![1.0; 25];
        odd.extend([0.0, f64::NAN, -1.0, f64::INFINITY]);
        odd.extend([5.0; 25]);
        assert_eq!(two_modes(&odd), None);
    }

    fn row(name: &str) -> RowDescription {
        RowDescription { name: name.into(), description: String::new() }
    }

    fn run() -> RunDocument {
        RunDocument {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            fordway_version: String::new(),
            kind: "compare".into(),
            started: String::new(),
            elapsed_ns: 1,
            command: Vec::new(),
            machine: Machine::default(),
            parameters: serde_json::Map::new(),
            lanes: vec![row("posix"), row("node")],
            phases: vec!["put".into(), "get".into()],
            summaries: Vec::new(),
            scores: Vec::new(),
            warnings: Vec::new(),
            conditions: None,
        }
    }

    /// Returns the records of 30 blocks of `get`, 5 in each round, on two lanes. `factor` returns by how much the
    /// second lane is slower in a round.
    fn records(factor: impl Fn(u16) -> u64) -> RunRecords {
        let mut records = RunRecords::default();
        for number in 0..30_u32 {
            let round = (number / 5) as u16;
            // The times of blocks differ with their files.
            let elapsed_ns = 100_000 * (1 + u64::from(number % 3));
            for (lane, elapsed_ns) in [(0, elapsed_ns), (1, elapsed_ns * factor(round) + u64::from(number))] {
                records.blocks.push(BlockRecord {
                    lane,
                    phase: 1,
                    round,
                    block: number,
                    operations: 50,
                    bytes: 0,
                    elapsed_ns,
                    client_cpu_ns: 0,
                    server_cpu_ns: None,
                });
            }
        }
        records
    }

    #[test]
    fn a_lane_with_two_speeds_is_doubted() {
        let found = doubts_about_modes(&run(), &records(|round| if round % 3 == 1 { 3 } else { 8 }));
        assert_eq!(found.len(), 1);
        let (cell, said) = (&found[0].cells[0], &found[0].observed);
        assert_eq!((&*cell.lane, &*cell.phase), ("node", "get"));
        assert!(said.starts_with("get on node has two modes: 0.12 x posix in 67 % of the blocks"), "{said}");
        assert!(said.contains("0.33 x posix in 33 %"), "{said}");
        assert_eq!(doubts_about_modes(&run(), &records(|_| 8)), []);
        assert_eq!(doubts_about_modes(&run(), &RunRecords::default()), []);
    }

    #[test]
    fn fast_failures_are_no_mode() {
        let mut records = records(|round| if round % 3 == 1 { 3 } else { 8 });
        for block in records.blocks.iter().filter(|block| block.lane == 1 && block.round % 3 == 1) {
            records.operations.push(crate::OperationRecord {
                lane: block.lane,
                phase: block.phase,
                round: block.round,
                block: block.block,
                thread: 0,
                start_ns: 0,
                duration_ns: 1,
                bytes: 0,
                ok: false,
                intended_ns: None,
                first_byte_ns: None,
            });
        }
        assert_eq!(doubts_about_modes(&run(), &records), []);
    }

    #[test]
    fn a_large_file_in_one_block_of_each_round_is_no_mode() {
        for rounds in [5, 9, 30] {
            let mut slow = records(|_| 1);
            let template = slow.blocks[0];
            let blocks = (0..2 * rounds).map(|block| {
                let elapsed_ns = 100_000 * (1 + 20 * u64::from(block % 2));
                BlockRecord { block, round: (block / 2) as u16, elapsed_ns, ..template }
            });
            slow.blocks = blocks.collect();
            assert_eq!(doubts_about_modes(&run(), &slow), [], "{rounds} rounds");
        }
    }

    #[test]
    fn a_lane_alone_is_judged_by_its_times() {
        let mut records = RunRecords::default();
        for round in 0..10_u16 {
            let elapsed_ns = if round % 2 == 1 { 2 } else { 1 } * 10_000 * (1_000 + u64::from(round));
            let (lane, phase, block, operations) = (0, 1, u32::from(round), 1_000);
            let (bytes, client_cpu_ns, server_cpu_ns) = (0, 0, None);
            let block = BlockRecord {
                lane,
                phase,
                round,
                block,
                operations,
                bytes,
                elapsed_ns,
                client_cpu_ns,
                server_cpu_ns,
            };
            records.blocks.push(block);
        }
        let found = doubts_about_modes(&run(), &records);
        assert_eq!(found.len(), 1, "{found:?}");
        let start = "get on posix has two modes: 10.0 µs per operation in 50 % of the blocks, and 20.1 µs per operation";
        assert!(found[0].observed.starts_with(start), "{found:?}");
    }
}
