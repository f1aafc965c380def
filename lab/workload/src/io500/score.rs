//! IO500's scores, and its form of a result.

use std::fmt::Write as _;

use fordway_measure::{LaneScore, Scores};

use super::Io500Plan;
use crate::PhaseResult;
use crate::bench::LaneResults;

const BANDWIDTH: [&str; 4] = ["ior-easy-write", "ior-hard-write", "ior-easy-read", "ior-hard-read"];
const METADATA: [&str; 8] = [
    "mdtest-easy-write",
    "mdtest-hard-write",
    "find",
    "mdtest-easy-stat",
    "mdtest-hard-stat",
    "mdtest-easy-delete",
    "mdtest-hard-read",
    "mdtest-hard-delete",
];

/// The scores of `results`; `None` if a phase is missing, failed in part, or did nothing.
fn scores_of(results: &[PhaseResult]) -> Option<Scores> {
    let mean = |phases: &[&str]| -> Option<f64> {
        let value = |phase: &&str| {
            let found = results.iter().find(|result| result.phase == *phase)?;
            (found.errors() == 0).then(|| figure(found)).flatten()
        };
        let values = phases.iter().map(value).collect::<Option<Vec<f64>>>()?;
        Some((values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
    };
    let (bandwidth_gib_per_s, metadata_kiops) = (mean(&BANDWIDTH)?, mean(&METADATA)?);
    let total = (bandwidth_gib_per_s * metadata_kiops).sqrt();
    Some(Scores { bandwidth_gib_per_s, metadata_kiops, total })
}

/// A phase's figure in IO500's units: GiB/s of IOR, kIOPS of all else.
pub(crate) fn figure(result: &PhaseResult) -> Option<f64> {
    match unit(&result.phase) {
        "GiB/s" => result.bytes_per_s().map(|rate| rate / f64::from(1 << 30)),
        _ => result.ops_per_s().map(|rate| rate / 1e3),
    }
}

pub(crate) fn unit(phase: &str) -> &'static str {
    if phase.starts_with("ior") { "GiB/s" } else { "kIOPS" }
}

/// Scores each lane, by its first round; with each the result in the form of IO500's `result.txt`.
pub fn score(plan: &Io500Plan, lanes: &[LaneResults]) -> Vec<(LaneScore, String)> {
    let of_lane = |lane: &LaneResults| {
        let results = lane.rounds.first().map_or(&[][..], Vec::as_slice);
        let stamp = plan.stamp(results);
        let text = result_text(results, stamp.as_deref());
        (LaneScore { lane: lane.lane.name.clone(), scores: scores_of(results), stamp }, text)
    };
    lanes.iter().map(of_lane).collect()
}

/// The run in the form of IO500's `result.txt`. `stamp` says why it does not count.
fn result_text(results: &[PhaseResult], stamp: Option<&str>) -> String {
    let mut text = String::from("IO500 phases by Fordway, not by the official program\n");
    for result in results {
        let seconds = result.elapsed_ns() as f64 / 1e9;
        let value = figure(result).unwrap_or_default();
        let errors = match result.errors() {
            0 => String::new(),
            errors => format!(" [INVALID: {errors} errors]"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "[RESULT] {:>20} {value:>15.6} {} : time {seconds:.3} seconds{errors}",
            result.phase,
            unit(&result.phase)
        );
    }
    let stamp = stamp.map_or(String::new(), |stamp| format!(" [{stamp}]"));
    let _ = match scores_of(results) {
        Some(Scores { bandwidth_gib_per_s, metadata_kiops, total }) => writeln!(
            text,
            "[SCORE ] Bandwidth {bandwidth_gib_per_s:.6} GiB/s : IOPS {metadata_kiops:.6} kiops : TOTAL {total:.6}{stamp}"
        ),
        None => writeln!(text, "[SCORE ] none: a phase is missing or had errors{stamp}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankShare;

    fn phase(name: &str, operations: u64, bytes: u64) -> PhaseResult {
        let ranks = vec![RankShare { operations, bytes, elapsed_ns: 1_000_000_000, ..RankShare::default() }];
        PhaseResult { phase: name.into(), ranks, ..PhaseResult::default() }
    }

    /// Bandwidths of 1, 2, 4 and 8 GiB/s, rates of 2 kIOPS each.
    fn results() -> Vec<PhaseResult> {
        let ior = BANDWIDTH.iter().zip([1u64, 2, 4, 8]).map(|(name, gib)| phase(name, 1, gib << 30));
        ior.chain(METADATA.iter().map(|name| phase(name, 2000, 0))).collect()
    }

    #[test]
    fn scores_are_geometric_means() {
        let scores = scores_of(&results()).unwrap();
        assert!((scores.bandwidth_gib_per_s - 64f64.powf(0.25)).abs() < 1e-9);
        assert!((scores.metadata_kiops - 2.0).abs() < 1e-9);
        assert!((scores.total - (64f64.powf(0.25) * 2.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn what_failed_or_is_missing_has_no_score() {
        assert_eq!(scores_of(&results()[1..]), None);
        let mut failed = results();
        failed[5].ranks[0].errors = 1;
        assert_eq!(scores_of(&failed), None);
        let text = result_text(&failed, Some("non-compliant"));
        assert!(text.contains("[INVALID: 1 errors]") && text.contains("[SCORE ] none"), "{text}");
        assert!(text.ends_with("[non-compliant]\n"), "{text}");
    }

    #[test]
    fn the_text_has_a_line_for_each_phase() {
        let text = result_text(&results(), None);
        assert!(
            text.contains("[RESULT]       ior-easy-write        1.000000 GiB/s : time 1.000 seconds\n"),
            "{text}"
        );
        assert!(
            text.contains("[RESULT]                 find        2.000000 kIOPS : time 1.000 seconds\n"),
            "{text}"
        );
    }
}
