//! Runs IO500's phases in order on any lane, computes the scores, and formats the result as IO500 does.
//!
//! The `find` phase searches for all files that are not older than the timestamp file, are 3,901 bytes long, and have
//! `01` in their names. Each rank lists and searches the files that the next rank wrote.

pub mod published;

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::Args;
use fordway_measure::{Io500Scores, LaneIo500Score, RunReliability, RunReliabilityReport};
use fordway_store::{Error, ErrorKind, GetOptions, Key, ListEntry, ListQuery, Result};
use fordway_wire::size_text::parse_bytes;
use serde::Serialize;

use crate::bench::MeasuredLane;
use crate::ior::{self, IorMapping, ResolvedIorPlan};
use crate::mdtest::{FileRemoval, HARD_BYTES, ResolvedMdtestPlan};
use crate::phase::{PhaseRecorder, WorkloadRank};
use crate::site::LocationBackend;
use crate::{PhaseResult, WorkloadLocation};

/// The minimum duration (stonewall) of every writing phase, in seconds, that IO500's rules require for a valid result.
pub const COMPLIANT_SECONDS: u64 = 300;

/// The options of IO500's phases.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Io500Plan {
    /// Duration of each writing phase, in seconds; below 300, the result is marked as non-compliant
    #[arg(long, value_name = "SECONDS", default_value_t = COMPLIANT_SECONDS)]
    pub stonewall: u64,
    /// Maximum number of bytes that each rank writes in ior-easy
    #[arg(long, value_name = "SIZE", default_value = "9920000MiB", value_parser = parse_bytes)]
    pub easy_bytes: u64,
    /// Maximum number of transfers per rank in ior-hard
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub hard_transfers: u64,
    /// Maximum number of files per rank in mdtest-easy
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub easy_files: u64,
    /// Maximum number of files per rank in mdtest-hard
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub hard_files: u64,
    /// How to remove a file on S3
    #[arg(long, value_enum, default_value_t = FileRemoval::Direct)]
    pub delete: FileRemoval,
}

/// The size of one transfer of ior-easy, in bytes.
const EASY_TRANSFER_BYTES: u64 = 2 << 20;
/// The size of one transfer of ior-hard, in bytes.
const HARD_TRANSFER_BYTES: u64 = 47_008;

impl Io500Plan {
    /// Returns the reason why a result cannot be compared with other results; `None` if it can be compared.
    pub fn stamp(&self, results: &[PhaseResult]) -> Option<String> {
        let short: Vec<&str> = results
            .iter()
            .filter(|result| result.phase.ends_with("-write"))
            .filter(|result| result.wall_ns() < COMPLIANT_SECONDS * 1_000_000_000)
            .map(|result| result.phase.as_str())
            .collect();
        match short.is_empty() {
            true => None,
            false => {
                Some(format!("non-compliant (short run: {} below {COMPLIANT_SECONDS} s)", short.join(", ")))
            }
        }
    }

    /// Checks the options. Errors: `InvalidArgument` if a duration or a count is 0, or if `easy_bytes` is less than one
    /// transfer.
    pub(crate) fn check(&self) -> Result<()> {
        if self.easy_bytes < EASY_TRANSFER_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "--easy-bytes must be at least 2 MiB, one transfer",
            ));
        }
        if [self.hard_transfers, self.easy_files, self.hard_files, self.stonewall].contains(&0) {
            let why = "--stonewall, --hard-transfers, --easy-files and --hard-files must be at least 1";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(())
    }

    pub(crate) fn run(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<Vec<PhaseResult>> {
        let (easy, hard) = (self.ior("ior-easy"), self.ior("ior-hard"));
        let (many, shared) = (self.mdtest("mdtest-easy"), self.mdtest("mdtest-hard"));
        let mut results = Vec::new();
        let mut keep = |(result, count)| {
            results.push(result);
            count
        };
        let easy_transfers = keep(ior::write(crew, site, &easy)?);
        let many_items = keep(many.create(crew, site, "write")?);
        let stamp = timestamp(crew, site)?;
        let hard_transfers = keep(ior::write(crew, site, &hard)?);
        let shared_items = keep(shared.create(crew, site, "write")?);
        results.push(find(crew, site, &[&many, &shared], stamp, shared_items)?);
        results.push(ior::read(crew, site, &easy, easy_transfers)?);
        results.push(many.stat(crew, site, many_items)?);
        results.push(ior::read(crew, site, &hard, hard_transfers)?);
        results.push(shared.stat(crew, site, shared_items)?);
        results.push(many.delete(crew, site, many_items)?);
        results.push(shared.read(crew, site, shared_items)?);
        results.push(shared.delete(crew, site, shared_items)?);
        Ok(results)
    }

    fn ior(&self, name: &str) -> ResolvedIorPlan {
        let is_easy = name == "ior-easy";
        ResolvedIorPlan {
            name: name.into(),
            transfer_bytes: if is_easy { EASY_TRANSFER_BYTES } else { HARD_TRANSFER_BYTES },
            block_bytes: match is_easy {
                true => self.easy_bytes / EASY_TRANSFER_BYTES * EASY_TRANSFER_BYTES,
                false => HARD_TRANSFER_BYTES,
            },
            segments: if is_easy { 1 } else { self.hard_transfers },
            file_per_process: is_easy,
            is_random: false,
            shift: 1,
            wall: Some(Duration::from_secs(self.stonewall)),
            mapping: IorMapping::Fragment,
            fsync: false,
            seed: 1,
        }
    }

    fn mdtest(&self, name: &str) -> ResolvedMdtestPlan {
        let is_easy = name == "mdtest-easy";
        ResolvedMdtestPlan {
            name: name.into(),
            bytes: if is_easy { 0 } else { HARD_BYTES },
            items: if is_easy { self.easy_files } else { self.hard_files },
            unique_dirs: is_easy,
            shift: 1,
            wall: Some(Duration::from_secs(self.stonewall)),
            removal: self.delete,
        }
    }
}

const TIMESTAMP_KEY: &str = "timestamp";
const WANTED: &str = "01";

/// The number of files that were searched, and the number of files that matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FindCounts {
    seen: u64,
    wanted: u64,
}

/// Writes the timestamp object, with which later objects are compared; returns its modification time according to the
/// lane's clock.
fn timestamp(crew: &WorkloadRank, site: &WorkloadLocation) -> Result<SystemTime> {
    let key = Key::new(TIMESTAMP_KEY)?;
    crew.first_does(|| site.target().put(&key, b"timestamp"))?;
    match site.means() {
        LocationBackend::Files(dir) => modified(&dir.join(TIMESTAMP_KEY)),
        LocationBackend::Objects(store, bucket) => {
            Ok(store.head(bucket, &key, &GetOptions::default())?.modified)
        }
    }
}

/// Searches the files of `sets` that the next rank wrote. Each rank wrote `items` files of the last set, which
/// determines the expected number of matches.
fn find(
    crew: &WorkloadRank,
    site: &WorkloadLocation,
    sets: &[&ResolvedMdtestPlan],
    newer_than: SystemTime,
    items: u64,
) -> Result<PhaseResult> {
    let rank = (crew.team.rank() + 1) % crew.team.size();
    let work = |recorder: &mut PhaseRecorder| {
        let mut found = FindCounts::default();
        for files in sets {
            match look(site, &files.prefix(rank), newer_than) {
                Ok(one) => {
                    found = FindCounts { seen: found.seen + one.seen, wanted: found.wanted + one.wanted }
                }
                Err(error) => recorder.expect(0, Err(error)),
            }
        }
        recorder.passed(0, found.seen);
        let prefix = sets.last().map_or(String::new(), |files| files.prefix(rank));
        let wanted = recorder.aside(|| expected(&prefix, items));
        if found.wanted != wanted {
            let why = format!("find found {} of {wanted} files of rank {rank}", found.wanted);
            recorder.expect(0, Err(Error::new(ErrorKind::Corrupt, why)));
        }
        Ok(())
    };
    Ok(crew.phase(&["find"], site, work)?.0.remove(0))
}

/// Returns how many of the `items` names with this prefix contain the string to find.
fn expected(prefix: &str, items: u64) -> u64 {
    (0..items).filter(|item| is_wanted(&format!("{prefix}{item:010}"))).count() as u64
}

/// Returns whether the last component of the key contains the string to find.
fn is_wanted(key: &str) -> bool {
    key.rsplit('/').next().is_some_and(|name| name.contains(WANTED))
}

fn look(site: &WorkloadLocation, prefix: &str, newer_than: SystemTime) -> Result<FindCounts> {
    match site.means() {
        LocationBackend::Files(dir) => look_at_files(&dir, prefix, newer_than),
        LocationBackend::Objects(..) => look_at_objects(site, prefix, newer_than),
    }
}

/// Searches as find(1) does: checks the names first, then the attributes of the files whose names match.
fn look_at_files(dir: &Path, prefix: &str, newer_than: SystemTime) -> Result<FindCounts> {
    let (parent, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
    let parent = dir.join(parent);
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::from(&error), format!("listing {}", parent.display())).caused_by(error)
    };
    let mut found = FindCounts::default();
    for entry in std::fs::read_dir(&parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(start)) else { continue };
        found.seen += 1;
        if is_wanted(name) {
            let meta = entry.metadata().map_err(failed)?;
            let is_newer = meta.modified().is_ok_and(|modified| modified >= newer_than);
            found.wanted += u64::from(is_newer && meta.len() == HARD_BYTES);
        }
    }
    Ok(found)
}

fn look_at_objects(site: &WorkloadLocation, prefix: &str, newer_than: SystemTime) -> Result<FindCounts> {
    let LocationBackend::Objects(store, bucket) = site.means() else {
        return Err(ErrorKind::Internal.into());
    };
    let (mut query, mut found) = (ListQuery::prefix(prefix), FindCounts::default());
    loop {
        let page = store.list(bucket, &query)?;
        for object in page.entries.iter().filter_map(ListEntry::object) {
            found.seen += 1;
            let is_newer = object.modified >= newer_than;
            found.wanted += u64::from(is_newer && object.size == HARD_BYTES && is_wanted(&object.key));
        }
        match page.next {
            Some(next) => query.start_after = Some(next),
            None => return Ok(found),
        }
    }
}

fn modified(path: &Path) -> Result<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).map_err(|error| {
        Error::new(ErrorKind::from(&error), format!("examining {}", path.display())).caused_by(error)
    })
}

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

/// Returns the scores of `results`; `None` if a phase is missing, had errors, or performed no operations.
fn scores_of(results: &[PhaseResult]) -> Option<Io500Scores> {
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
    Some(Io500Scores { bandwidth_gib_per_s, metadata_kiops, total })
}

/// Returns a phase's figure in IO500's units: GiB/s for IOR, kIOPS for all other phases.
pub(crate) fn figure(result: &PhaseResult) -> Option<f64> {
    match unit(&result.phase) {
        "GiB/s" => result.bytes_per_s().map(|rate| rate / f64::from(1 << 30)),
        _ => result.ops_per_s().map(|rate| rate / 1e3),
    }
}

pub(crate) fn unit(phase: &str) -> &'static str {
    if phase.starts_with("ior") { "GiB/s" } else { "kIOPS" }
}

/// Returns the index of the round that represents a lane: the first round without a score, because a lane with errors
/// in any round has no score; otherwise the round with the median score (the lower of the two middle scores).
pub(crate) fn scored_round(rounds: &[Vec<PhaseResult>]) -> usize {
    let totals: Vec<Option<f64>> =
        rounds.iter().map(|results| scores_of(results).map(|scores| scores.total)).collect();
    if let Some(unscored) = totals.iter().position(Option::is_none) {
        return unscored;
    }
    let mut order: Vec<usize> = (0..totals.len()).collect();
    order.sort_by(|one, other| totals[*one].partial_cmp(&totals[*other]).unwrap_or(Ordering::Equal));
    order.get(order.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Scores each lane by the round with the median score; a lane with errors in any round has no score. Returns, for each
/// lane, the score, and the results of the round in the format of IO500's `result.txt`. These results also state
/// whether the `conditions` of the run make the score doubtful.
pub fn score(
    plan: &Io500Plan,
    lanes: &[MeasuredLane],
    conditions: Option<&RunReliabilityReport>,
) -> Vec<(LaneIo500Score, String)> {
    let in_doubt = conditions.filter(|conditions| conditions.verdict != RunReliability::Measured);
    let of_lane = |lane: &MeasuredLane| {
        let round = scored_round(&lane.rounds);
        let results = lane.rounds.get(round).map_or(&[][..], Vec::as_slice);
        let stamp = plan.stamp(results);
        let doubt = in_doubt.map(|conditions| format!("conditions: {}", conditions.verdict));
        let stamps: Vec<&str> = stamp.iter().chain(&doubt).map(String::as_str).collect();
        let text = result_text(results, (round, lane.rounds.len()), &stamps);
        (LaneIo500Score { lane: lane.lane.name.clone(), scores: scores_of(results), stamp }, text)
    };
    lanes.iter().map(of_lane).collect()
}

/// Formats the results of round `round`, one of `rounds` rounds, as IO500's `result.txt`. `stamps` are the reasons why
/// the result cannot be compared with other results, or is in doubt.
fn result_text(results: &[PhaseResult], (round, rounds): (usize, usize), stamps: &[&str]) -> String {
    let mut text = String::from("IO500 phases by Fordway, not by the official program\n");
    if rounds > 1 {
        let which = if scores_of(results).is_some() { "has the median score" } else { "has no score" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "Round {} of {rounds}, which {which}", round + 1);
    }
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
    let stamp: String = stamps.iter().map(|stamp| format!(" [{stamp}]")).collect();
    let _ = match scores_of(results) {
        Some(Io500Scores { bandwidth_gib_per_s, metadata_kiops, total }) => writeln!(
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
    use crate::RankResult;

    fn phase(name: &str, operations: u64, bytes: u64) -> PhaseResult {
        let ranks =
            vec![RankResult { operations, bytes, elapsed_ns: 1_000_000_000, ..RankResult::default() }];
        PhaseResult { phase: name.into(), ranks, ..PhaseResult::default() }
    }

    /// Returns results with bandwidths of 1, 2, 4 and 8 GiB/s, and rates of 2 kIOPS each.
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
        let text = result_text(&failed, (0, 1), &["non-compliant"]);
        assert!(text.contains("[INVALID: 1 errors]") && text.contains("[SCORE ] none"), "{text}");
        assert!(text.ends_with("[non-compliant]\n"), "{text}");
    }

    #[test]
    fn the_score_is_the_median_round_and_errors_in_any_round_void_it() {
        let slower = |factor: u64| {
            let mut results = results();
            results.iter_mut().for_each(|result| result.ranks[0].elapsed_ns *= factor);
            results
        };
        let lane = |rounds| MeasuredLane {
            lane: fordway_measure::RowDescription { name: "posix".into(), description: String::new() },
            has_unknown_server: false,
            rounds,
        };
        let command = Io500Plan::augment_args(clap::Command::new("io500").no_binary_name(true));
        let matches = command.try_get_matches_from::<_, &str>([]).unwrap();
        let plan = <Io500Plan as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        let scored = |rounds| score(&plan, &[lane(rounds)], None).swap_remove(0);
        let (median, text) = scored(vec![slower(8), slower(1), slower(2)]);
        assert_eq!(median.scores, scores_of(&slower(2)));
        assert!(text.contains("Round 3 of 3, which has the median score\n"), "{text}");
        let mut failed = slower(1);
        failed[5].ranks[0].errors = 1;
        let (none, text) = scored(vec![slower(1), failed, slower(2)]);
        assert_eq!(none.scores, None);
        assert!(text.contains("Round 2 of 3") && text.contains("[SCORE ] none"), "{text}");
    }

    #[test]
    fn the_text_has_a_line_for_each_phase() {
        let text = result_text(&results(), (0, 1), &["non-compliant", "conditions: refused"]);
        assert!(text.ends_with(" [non-compliant] [conditions: refused]\n"), "{text}");
        let text = result_text(&results(), (0, 1), &[]);
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
