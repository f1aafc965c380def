//! A phase: work that all ranks start together, timed operation by operation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fordway_measure::{LatencyHistogram, OperationRecord, RunClock};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{process_cpu_ns, thread_cpu_ns};
use serde::{Deserialize, Serialize};

use crate::result::{PhaseResult, RankResult};
use crate::{RankTeam, WorkloadLocation};

/// The maximum number of individual operations that are kept per rank and phase; the histograms contain all operations.
pub const MAX_RAW_OPERATIONS: usize = 200_000;
/// The number of consecutive failures after which a rank leaves the phase, because the endpoint is then considered
/// unreachable rather than slow.
const GIVES_UP_AFTER: u32 = 10;
/// The number of failures that each rank describes; further failures are only counted.
const MESSAGES: usize = 3;
/// The minimum time between two updates of the progress display.
const SHOWN_EVERY_NS: u64 = 100_000_000;

/// The interface between a run and its caller: the stop flag and the progress display.
pub struct RunControl<'w> {
    stop: &'w AtomicBool,
    show: &'w (dyn Fn(&str, u64) + Sync),
    done: AtomicU64,
}

impl<'w> RunControl<'w> {
    /// Creates the interface. Ranks of this process check `stop`. Rank 0 calls `show` up to ten times a second, with
    /// the current phase and lane, and with the number of operations that the ranks of its process have finished.
    pub fn new(stop: &'w AtomicBool, show: &'w (dyn Fn(&str, u64) + Sync)) -> Self {
        RunControl { stop, show, done: AtomicU64::new(0) }
    }
}

/// One rank of a running workload, with its link to the other ranks.
pub struct WorkloadRank<'c> {
    /// The team of all ranks.
    pub team: &'c dyn RankTeam,
    watch: &'c RunControl<'c>,
    clock: RunClock,
}

impl<'c> WorkloadRank<'c> {
    /// Creates the rank whose number is `team.rank()`. The ranks of a process share `watch` and `clock`.
    pub fn new(team: &'c dyn RankTeam, watch: &'c RunControl<'c>, clock: RunClock) -> Self {
        WorkloadRank { team, watch, clock }
    }

    /// Returns the flag that requests a stop.
    pub(crate) fn stop_flag(&self) -> &AtomicBool {
        self.watch.stop
    }

    pub(crate) fn is_first(&self) -> bool {
        self.team.rank() == 0
    }

    /// Runs `act` on rank 0; if `act` fails, all ranks return an error.
    pub fn first_does(&self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let outcome = if self.is_first() { act() } else { Ok(()) };
        self.agree(outcome)
    }

    /// Returns the common outcome of all ranks: if one rank failed, all ranks return an error.
    pub fn agree(&self, outcome: Result<()>) -> Result<()> {
        let failure = outcome.as_ref().err().map(|error| (error.kind().name(), error.to_string()));
        let all = self.team.all_gather(encoded(&failure)?)?;
        outcome?;
        for (rank, one) in all.iter().enumerate() {
            if let Some((kind, message)) = decoded::<Option<(String, String)>>(one)? {
                return Err(failed_elsewhere(rank, &kind, &message));
            }
        }
        Ok(())
    }

    /// Runs `work` on all ranks concurrently, starting at a barrier. Each of `tracks` is a phase of the run, and every
    /// operation of `work` belongs to one of these phases. Returns the results, and the value that `work` returned.
    /// Errors: the errors of `work` on any rank, and `Interrupted`; every rank returns an error.
    pub(crate) fn phase<T>(
        &self,
        tracks: &[&str],
        site: &WorkloadLocation,
        work: impl FnOnce(&mut PhaseRecorder) -> Result<T>,
    ) -> Result<(Vec<PhaseResult>, T)> {
        let server =
            || site.server_pid().filter(|_| self.is_first()).and_then(|pid| process_cpu_ns(pid).ok());
        self.watch.done.store(0, Ordering::Relaxed);
        self.team.barrier()?;
        let server_before = server();
        let mut recorder = PhaseRecorder::new(self, tracks, &site.lane().name);
        let outcome = work(&mut recorder);
        let shares = recorder.shares();
        self.team.barrier()?;
        let server_cpu_ns = server_before.zip(server()).map(|(before, after)| after.saturating_sub(before));
        // A signal may have reached only some ranks so far. All ranks must stop together; otherwise, the remaining
        // ranks would wait at the next barrier.
        let stopped = self.team.max(u64::from(self.watch.stop.load(Ordering::Relaxed)))? > 0;
        let (outcome, done) = match outcome {
            Ok(done) => (Ok(()), Some(done)),
            Err(error) => (Err(error), None),
        };
        self.agree(outcome)?;
        if stopped {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        let Some(done) = done else { return Err(ErrorKind::Internal.into()) };
        Ok((self.collect(tracks, shares, recorder, server_cpu_ns)?, done))
    }

    fn collect(
        &self,
        tracks: &[&str],
        shares: Vec<RankResult>,
        recorder: PhaseRecorder,
        server_cpu_ns: Option<u64>,
    ) -> Result<Vec<PhaseResult>> {
        let (origin_ns, is_part) = (recorder.origin_ns, tracks.len() > 1);
        let mut results = Vec::new();
        for ((name, share), track) in tracks.iter().zip(shares).zip(recorder.tracks) {
            let all = self.team.all_gather(encoded(&share)?)?;
            let ranks = all.iter().map(|one| decoded(one)).collect::<Result<Vec<RankResult>>>()?;
            let mut operations = Vec::new();
            for (rank, one) in self.team.gather(pack(&track.operations))?.into_iter().enumerate() {
                operations.extend(unpack(&one, rank as u16, origin_ns));
            }
            results.push(PhaseResult {
                phase: (*name).to_owned(),
                ranks,
                operations,
                origin_ns,
                server_cpu_ns,
                is_part,
            });
        }
        Ok(results)
    }
}

fn failed_elsewhere(rank: usize, kind: &str, message: &str) -> Error {
    let known = ErrorKind::ALL.iter().find(|known| known.name() == kind);
    Error::new(known.copied().unwrap_or(ErrorKind::Internal), format!("on rank {rank}: {message}"))
}

pub(crate) fn encoded(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|e| Error::new(ErrorKind::Internal, "a message to the ranks").caused_by(e))
}

pub(crate) fn decoded<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::new(ErrorKind::Internal, "a message from another rank").caused_by(e))
}

/// Times the work of one rank in a phase.
pub(crate) struct PhaseRecorder<'c> {
    crew: &'c WorkloadRank<'c>,
    /// The time at which the rank left the barrier, on this process's clock.
    origin_ns: u64,
    cpu_before_ns: u64,
    /// Time spent generating and verifying content, which is not part of the measured work.
    aside_ns: u64,
    /// The end of the last operation. Time after this end counts as unmeasured (`aside_ns`).
    idle_since_ns: u64,
    tracks: Vec<OperationResultTally>,
    failures_in_a_row: u32,
    phase: String,
    shown: (u64, u64),
}

#[derive(Default)]
struct OperationResultTally {
    operations: Vec<OperationRecord>,
    latencies: LatencyHistogram,
    succeeded: u64,
    errors: u64,
    bytes: u64,
    failures: Vec<String>,
    first_failure: Option<ErrorKind>,
}

impl OperationResultTally {
    fn fail(&mut self, error: &Error) {
        self.errors += 1;
        self.first_failure.get_or_insert(error.kind());
        if self.failures.len() < MESSAGES {
            self.failures.push(error.to_string());
        }
    }
}

impl<'c> PhaseRecorder<'c> {
    fn new(crew: &'c WorkloadRank<'c>, tracks: &[&str], lane: &str) -> Self {
        let origin_ns = crew.clock.now_ns();
        PhaseRecorder {
            crew,
            origin_ns,
            idle_since_ns: origin_ns,
            cpu_before_ns: thread_cpu_ns(),
            aside_ns: 0,
            tracks: tracks.iter().map(|_| OperationResultTally::default()).collect(),
            failures_in_a_row: 0,
            phase: format!("{} on {lane}", tracks.join(" ")),
            shown: (0, 0),
        }
    }

    /// Times `act`, which transfers `bytes`, and then verifies its result with `check`, which is not timed. A failure
    /// or a wrong result is counted and does not end the phase. Within [`PhaseRecorder::repeat`], all time between
    /// operations counts as unmeasured (`aside_ns`). Cost: two clock readings.
    pub(crate) fn operation<A>(
        &mut self,
        track: usize,
        bytes: u64,
        act: impl FnOnce() -> Result<A>,
        check: impl FnOnce(A) -> Result<()>,
    ) {
        let start_ns = self.crew.clock.now_ns();
        self.aside_ns += start_ns - self.idle_since_ns;
        let answer = act();
        let end_ns = self.crew.clock.now_ns();
        self.idle_since_ns = end_ns;
        let outcome = answer.and_then(check);
        self.count(track, bytes, (start_ns, end_ns - start_ns), outcome);
        self.show(end_ns);
    }

    /// Counts operations that were not timed individually.
    pub(crate) fn passed(&mut self, track: usize, operations: u64) {
        self.tracks[track].succeeded += operations;
    }

    /// Counts `outcome` if it is a failure, without attributing the failure to an operation.
    pub(crate) fn expect(&mut self, track: usize, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.tracks[track].fail(&error);
        }
    }

    fn count(&mut self, track: usize, bytes: u64, (start_ns, duration_ns): (u64, u64), outcome: Result<()>) {
        let ok = outcome.is_ok();
        let track = &mut self.tracks[track];
        match outcome {
            Ok(()) => {
                track.latencies.record(duration_ns);
                track.succeeded += 1;
                track.bytes += bytes;
                self.failures_in_a_row = 0;
            }
            Err(error) => {
                track.fail(&error);
                self.failures_in_a_row += 1;
            }
        }
        if track.operations.len() < MAX_RAW_OPERATIONS {
            let start_ns = start_ns - self.origin_ns;
            let bytes = if ok { bytes } else { 0 };
            let (lane, phase, round, block, thread) = (0, 0, 0, 0, 0);
            track.operations.push(OperationRecord {
                lane,
                phase,
                round,
                block,
                thread,
                start_ns,
                duration_ns,
                bytes,
                ok,
                intended_ns: None,
                first_byte_ns: None,
            });
        }
    }

    fn show(&mut self, now_ns: u64) {
        let (shown_ns, shown_operations) = self.shown;
        if now_ns - shown_ns < SHOWN_EVERY_NS {
            return;
        }
        let all = self.tracks.iter().map(|track| track.succeeded + track.errors).sum::<u64>();
        let watch = self.crew.watch;
        let done = watch.done.fetch_add(all - shown_operations, Ordering::Relaxed) + all - shown_operations;
        if self.crew.is_first() {
            (watch.show)(&self.phase, done);
        }
        self.shown = (now_ns, all);
    }

    /// Runs `act` outside the measured work, and counts its time as unmeasured (`aside_ns`).
    pub(crate) fn aside<A>(&mut self, act: impl FnOnce() -> A) -> A {
        let start_ns = self.crew.clock.now_ns();
        let answer = act();
        self.aside_ns += self.crew.clock.now_ns() - start_ns;
        answer
    }

    /// Calls `step` with 0, 1, 2 and so on, at most `limit` times, and only until `wall` has passed. With `wall`, every
    /// rank then continues until it reaches the count of the fastest rank (IOR's wear-out), so that all ranks perform
    /// equal amounts of work. Returns the count.
    pub(crate) fn repeat(
        &mut self,
        limit: u64,
        wall: Option<Duration>,
        mut step: impl FnMut(&mut Self, u64),
    ) -> Result<u64> {
        let end_ns = wall.map_or(u64::MAX, |wall| self.origin_ns.saturating_add(wall.as_nanos() as u64));
        let done = self.steps(0, limit, end_ns, &mut step);
        if wall.is_none() {
            return Ok(done);
        }
        let farthest = self.crew.team.max(done)?;
        self.steps(done, farthest, u64::MAX, &mut step);
        Ok(farthest)
    }

    /// Calls `step` with the numbers from `from` up to, but not including, `to`. Stops earlier at `end_ns`, after a
    /// signal, or after too many consecutive failures. Returns the first number that was not used.
    fn steps(&mut self, from: u64, to: u64, end_ns: u64, step: &mut impl FnMut(&mut Self, u64)) -> u64 {
        self.idle_since_ns = self.crew.clock.now_ns();
        let mut done = from;
        while done < to && self.idle_since_ns < end_ns && self.goes_on() {
            step(self, done);
            done += 1;
        }
        self.aside_ns += self.crew.clock.now_ns() - self.idle_since_ns;
        done
    }

    fn goes_on(&self) -> bool {
        self.failures_in_a_row < GIVES_UP_AFTER && !self.crew.watch.stop.load(Ordering::Relaxed)
    }

    /// Returns the work of this rank, with one result for each track.
    fn shares(&mut self) -> Vec<RankResult> {
        let end_ns = self.crew.clock.now_ns() - self.origin_ns;
        let cpu_ns = thread_cpu_ns().saturating_sub(self.cpu_before_ns);
        let gave_up = self.failures_in_a_row >= GIVES_UP_AFTER;
        let share = |track: &OperationResultTally| {
            let mut failures = track.failures.clone();
            if gave_up && track.errors > 0 {
                failures.push(format!("stopped the phase after {GIVES_UP_AFTER} failures in a row"));
            }
            RankResult {
                operations: track.succeeded,
                errors: track.errors,
                bytes: track.bytes,
                elapsed_ns: end_ns.saturating_sub(self.aside_ns),
                aside_ns: self.aside_ns,
                cpu_ns,
                latencies: track.latencies.to_base64(),
                not_kept: (track.latencies.len() + track.errors)
                    .saturating_sub(track.operations.len() as u64),
                failures,
                first_failure: track.first_failure.map(|kind| kind.name().to_owned()),
            }
        };
        self.tracks.iter().map(share).collect()
    }
}

/// Encodes each operation in three little-endian words of 8 bytes: the start, the duration, and the size with the
/// success in the lowest bit.
fn pack(operations: &[OperationRecord]) -> Vec<u8> {
    let words =
        operations.iter().flat_map(|op| [op.start_ns, op.duration_ns, (op.bytes << 1) | u64::from(op.ok)]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn unpack(bytes: &[u8], rank: u16, origin_ns: u64) -> impl Iterator<Item = OperationRecord> {
    let word = |eight: &[u8]| eight.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(24).map(move |one| OperationRecord {
        lane: 0,
        phase: 0,
        round: 0,
        block: 0,
        thread: rank,
        start_ns: origin_ns + word(&one[..8]),
        duration_ns: word(&one[8..16]),
        bytes: word(&one[16..]) >> 1,
        ok: word(&one[16..]) & 1 == 1,
        intended_ns: None,
        first_byte_ns: None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fordway_store::Bucket;

    use super::*;
    use crate::team::threads;

    fn on_ranks<T: Send>(
        ranks: usize,
        work: impl Fn(&WorkloadRank, &WorkloadLocation) -> Result<T> + Sync,
    ) -> Vec<Result<T>> {
        let stop = AtomicBool::new(false);
        let show = |_: &str, _: u64| {};
        let (watch, clock) = (RunControl::new(&stop, &show), RunClock::start());
        let site = WorkloadLocation::files(Path::new("/does/not/exist"), Bucket::new("none").unwrap());
        threads(ranks, |team| work(&WorkloadRank::new(team, &watch, clock), &site))
    }

    /// If one rank is slower by a known time, the phase must last until that rank finishes, and all ranks must perform
    /// the same number of operations.
    #[test]
    fn stonewalled_ranks_do_the_same() {
        let found = on_ranks(3, |crew, site| {
            let pause = || {
                std::thread::sleep(Duration::from_millis(2 * (1 + crew.team.rank() as u64)));
                Ok(())
            };
            let (mut results, done) = crew.phase(&["p"], site, |recorder| {
                recorder.repeat(1_000_000, Some(Duration::from_millis(60)), |recorder, _| {
                    recorder.operation(0, 10, pause, Ok);
                })
            })?;
            Ok((results.remove(0), done))
        });
        let (first, done) = found[0].as_ref().unwrap();
        assert!((5..=30).contains(done), "{done}");
        assert_eq!(first.operations.len() as u64, 3 * done);
        for one in &found {
            let (result, mine) = one.as_ref().unwrap();
            assert_eq!(mine, done);
            assert!(result.ranks.iter().all(|rank| rank.operations == *done && rank.bytes == 10 * done));
            assert!(result.elapsed_ns() >= 6_000_000 * done, "the slowest rank counts");
        }
    }

    /// Time spent in `aside` must not be measured, and an operation with a wrong result must count as an error without
    /// a latency.
    #[test]
    fn checks_are_untimed_and_failures_counted() {
        let found = on_ranks(1, |crew, site| {
            let pause = || std::thread::sleep(Duration::from_millis(30));
            let work = |recorder: &mut PhaseRecorder| {
                recorder.aside(pause);
                recorder.repeat(2, None, |recorder, turn| {
                    pause();
                    let check = |()| {
                        pause();
                        let wrong = || Err(Error::new(ErrorKind::Corrupt, "other content"));
                        if turn == 0 { Ok(()) } else { wrong() }
                    };
                    recorder.operation(0, 5, || Ok(()), check);
                })
            };
            Ok(crew.phase(&["p"], site, work)?.0.remove(0))
        });
        let result = found[0].as_ref().unwrap();
        assert!(result.elapsed_ns() < 20_000_000, "{}", result.elapsed_ns());
        assert_eq!((result.succeeded(), result.errors(), result.bytes()), (1, 1, 5));
        assert!(result.failures()[0].contains("other content"));
    }

    #[test]
    fn a_dead_endpoint_is_given_up_and_an_error_is_everybodys() {
        let found = on_ranks(2, |crew, site| {
            crew.phase(&["p"], site, |recorder| {
                recorder.repeat(1000, None, |recorder, _| {
                    recorder.operation(0, 0, || Err::<(), _>(ErrorKind::Unavailable.into()), Ok);
                })
            })
        });
        let (results, done) = found[1].as_ref().unwrap();
        assert_eq!((*done, results[0].errors()), (10, 20));
        assert_eq!(results[0].first_failure(), Some(ErrorKind::Unavailable));
        let found = on_ranks(2, |crew, site| {
            let outcome = || match crew.team.rank() {
                1 => Err(Error::new(ErrorKind::NoSpace, "full")),
                _ => Ok(()),
            };
            crew.phase(&["p"], site, |_| outcome()).map(drop)
        });
        let kinds: Vec<_> = found.into_iter().map(|one| one.expect_err("full").kind()).collect();
        assert_eq!(kinds, [ErrorKind::NoSpace; 2]);
    }
}
