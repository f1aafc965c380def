//! Detects results whose rounds have two modes, such as two placements of client and server on processors.

use std::collections::BTreeMap;

use crate::{RunDocument, RunRecords, ns_text};

/// The minimum number of rounds for the detection of two modes.
const ROUNDS_MIN: usize = 8;
/// The minimum number of rounds of a mode.
const MODE_ROUNDS_MIN: usize = 3;
/// The minimum ratio of the times of two modes.
const RATIO_MIN: f64 = 1.25;
/// The minimum distance of two modes, in standard deviations of the rounds of a mode. Rounds with one mode reach this
/// distance in fewer than 1 of 1,000 results.
const DISTANCE_MIN: f64 = 10.0;

/// Two modes of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TwoModes {
    /// The number of rounds, and the mean time of an operation in ns, of each mode; the faster mode is first.
    modes: [(usize, f64); 2],
}

impl TwoModes {
    /// Returns the modes of rounds in which an operation took `times_ns`; `None` if there are no two modes.
    fn of(mut times_ns: Vec<f64>) -> Option<Self> {
        times_ns.retain(|time| *time > 0.0);
        times_ns.sort_by(f64::total_cmp);
        if times_ns.len() < ROUNDS_MIN {
            return None;
        }
        let logs: Vec<f64> = times_ns.iter().map(|time| time.ln()).collect();
        let splits = MODE_ROUNDS_MIN..=logs.len() - MODE_ROUNDS_MIN;
        let scatter = |split: usize| squares(&logs[..split]) + squares(&logs[split..]);
        let split = splits.min_by(|one, other| scatter(*one).total_cmp(&scatter(*other)))?;
        let distance = mean(&logs[split..]) - mean(&logs[..split]);
        let deviation = (scatter(split) / (logs.len() - 2) as f64).sqrt();
        let mode = |times: &[f64]| (times.len(), mean(times));
        let is_clear = distance >= RATIO_MIN.ln() && distance >= DISTANCE_MIN * deviation;
        is_clear.then(|| TwoModes { modes: [mode(&times_ns[..split]), mode(&times_ns[split..])] })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sum of the squared differences from the mean.
fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// Returns a warning for each result of `run` whose rounds have two modes.
pub fn mode_warnings(run: &RunDocument, records: &RunRecords) -> Vec<String> {
    let mut rounds: BTreeMap<(u8, u8), BTreeMap<u16, (u64, u64)>> = BTreeMap::new();
    for block in records.blocks.iter().filter(|block| block.operations > 0) {
        let round = rounds.entry((block.phase, block.lane)).or_default().entry(block.round).or_default();
        *round = (round.0 + block.elapsed_ns, round.1 + u64::from(block.operations));
    }
    let warning = |((phase, lane), rounds): ((u8, u8), BTreeMap<u16, (u64, u64)>)| {
        let times = rounds.values().map(|(ns, operations)| *ns as f64 / *operations as f64).collect();
        let [(fast, fast_ns), (slow, slow_ns)] = TwoModes::of(times)?.modes;
        let (phase, lane) = (run.phases.get(usize::from(phase))?, run.lanes.get(usize::from(lane))?);
        let text = |ns: f64| ns_text(ns.round() as u64);
        Some(format!(
            "the rounds of {phase} on {} have two modes: {fast} rounds with {} per operation, and {slow} rounds with \
             {}; the interval describes neither. A cause may be the placement of client and server: pin both \
             (taskset)",
            lane.name,
            text(fast_ns),
            text(slow_ns)
        ))
    };
    rounds.into_iter().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockRecord, Machine, RowDescription, SCHEMA, SCHEMA_VERSION, SeededRandom};

    /// Returns approximately normally distributed numbers with mean 0 and standard deviation 1.
    fn noise(random: &mut SeededRandom) -> f64 {
        (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
    }

    #[test]
    fn two_modes_are_found() {
        let mut random = SeededRandom::new(1);
        let times = (0..9).map(|round| {
            let mode = if round % 3 == 0 { 1.5 } else { 1.0 };
            1e5 * mode * (1.0 + 0.02 * noise(&mut random))
        });
        let TwoModes { modes: [(fast, fast_ns), (slow, slow_ns)] } = TwoModes::of(times.collect()).unwrap();
        assert_eq!((fast, slow), (6, 3));
        assert!((fast_ns / 1e5 - 1.0).abs() < 0.03 && (slow_ns / 1.5e5 - 1.0).abs() < 0.03);
    }

    #[test]
    fn a_warning_names_the_result_and_both_modes() {
        let row = |name: &str| RowDescription { name: name.into(), description: String::new() };
        let run = RunDocument {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            fordway_version: String::new(),
            kind: "compare".into(),
            started: String::new(),
            elapsed_ns: 1,
            command: Vec::new(),
            machine: Machine::default(),
            parameters: serde_json::Map::new(),
            lanes: vec![row("posix"), row("http")],
            phases: vec!["put".into(), "get".into()],
            summaries: Vec::new(),
            scores: Vec::new(),
            warnings: Vec::new(),
            conditions: None,
        };
        let block = |round: u16, lane: u8| {
            let slow = if lane == 1 && round % 2 == 1 { 2 } else { 1 };
            let elapsed_ns = slow * 10_000 * (1_000 + u64::from(round));
            let (phase, operations, bytes, client_cpu_ns) = (1, 1_000, 0, 0);
            let (block, server_cpu_ns) = (u32::from(round), None);
            BlockRecord {
                lane,
                phase,
                round,
                block,
                operations,
                bytes,
                elapsed_ns,
                client_cpu_ns,
                server_cpu_ns,
            }
        };
        let blocks = (0..10).flat_map(|round| [block(round, 0), block(round, 1)]).collect();
        let warnings = mode_warnings(&run, &RunRecords { blocks, ..RunRecords::default() });
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let start = "the rounds of get on http have two modes: 5 rounds with 10.0 µs per operation, and 5 rounds with 20.1 µs";
        assert!(warnings[0].starts_with(start), "{warnings:?}");
    }

    #[test]
    fn noise_drift_and_outliers_are_no_modes() {
        let mut random = SeededRandom::new(2);
        let mut found = 0;
        for scatter in [0.01, 0.1, 0.3] {
            for _ in 0..500 {
                let times = (0..8).map(|_| (scatter * noise(&mut random)).exp()).collect();
                found += usize::from(TwoModes::of(times).is_some());
            }
        }
        assert!(found <= 3, "{found} of 1500");
        let drift = (0..20).map(|round| 1e5 * (1.0 + 0.05 * f64::from(round))).collect();
        assert_eq!(TwoModes::of(drift), None);
        let mut outliers = vec![1e5; 10];
        outliers[3] = 9e5;
        assert_eq!(TwoModes::of(outliers), None);
        assert_eq!(TwoModes::of(vec![1.0, 1.0, 1.0, 2.0, 2.0, 2.0]), None, "too few rounds");
        assert_eq!(TwoModes::of(vec![0.0; 9]), None);
    }
}
