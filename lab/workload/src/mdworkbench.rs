//! md-workbench's pattern: data sets of constant size. Each rank repeatedly processes the oldest object of another
//! rank's data set (queries its size, reads it and removes it), and adds a new object to a data set of a third rank.
//!
//! The three parts of the benchmark may be separate runs. An object in the site records the state at the end of the
//! last run.

use clap::{Args, ValueEnum};
use fordway_store::{Error, ErrorKind, Key, Result};
use fordway_wire::size_text::parse_bytes;
use serde::{Deserialize, Serialize};

use super::site::PatternBuffer;
use crate::phase::{PhaseRecorder, WorkloadRank, decoded, encoded};
use crate::{MeasuredTarget, PhaseResult, WorkloadLocation};

const PRECREATE: &str = "precreate";
/// The phases of the benchmark, one for each kind of operation.
const STEPS: [&str; 4] = ["benchmark-stat", "benchmark-read", "benchmark-delete", "benchmark-create"];
const STATE_KEY: &str = "mdworkbench-state.json";

/// The options of md-workbench's pattern.
#[derive(Clone, Debug, Args, Serialize)]
pub struct MdworkbenchPlan {
    /// Phases to run; without `precreate`, the run uses the data sets of an earlier run, and without `cleanup`, it
    /// keeps the data sets for a later run. If only some phases run, the default name of the run file contains their
    /// names, such as mdworkbench-benchmark.run
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [MdworkbenchPhase::Precreate, MdworkbenchPhase::Benchmark, MdworkbenchPhase::Cleanup])]
    pub phases: Vec<MdworkbenchPhase>,
    /// Number of data sets per rank
    #[arg(long, short = 'D', value_name = "N", default_value_t = 10)]
    pub datasets: u64,
    /// Number of objects of a data set (the working set)
    #[arg(long, short = 'P', value_name = "N", default_value_t = 100)]
    pub objects: u64,
    /// Number of objects that the benchmark replaces in each data set [default: all]
    #[arg(long, short = 'I', value_name = "N")]
    pub iterations: Option<u64>,
    /// Size of an object
    #[arg(long, short = 'S', value_name = "SIZE", default_value = "3901", value_parser = parse_bytes)]
    pub object_size: u64,
    /// Distance, in ranks, from a rank to the owner of the data sets on which the rank works
    #[arg(long, short = 'o', value_name = "RANKS", default_value_t = 1)]
    pub offset: usize,
    /// Where to store data sets
    #[arg(long, value_enum, default_value_t = DatasetPlacement::One)]
    pub buckets: DatasetPlacement,
}

/// A part of md-workbench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MdworkbenchPhase {
    /// Create the data sets
    Precreate,
    /// Replace the oldest objects with new ones
    Benchmark,
    /// Remove the remaining objects
    Cleanup,
}

/// Where data sets are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetPlacement {
    /// All data sets in one bucket or directory
    One,
    /// Each data set in its own bucket or directory
    Dataset,
}

/// The state that a run saves for the next run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedMdworkbenchState {
    ranks: usize,
    datasets: u64,
    objects: u64,
    object_bytes: u64,
    buckets: DatasetPlacement,
    /// The number of the oldest object of each data set.
    oldest: u64,
    /// Whether a phase has begun and not ended. Ranks stop at different objects, so the objects are then unknown.
    #[serde(default)]
    in_use: bool,
}

impl MdworkbenchPlan {
    fn has(&self, part: MdworkbenchPhase) -> bool {
        self.phases.contains(&part)
    }

    /// Returns the names of the chosen phases, each after a hyphen; an empty string if all phases are chosen.
    pub(crate) fn chosen_phases(&self) -> String {
        let names = MdworkbenchPhase::value_variants().iter().filter(|part| self.has(**part));
        let names: Vec<_> = names.filter_map(|part| part.to_possible_value()).collect();
        match names.len() == MdworkbenchPhase::value_variants().len() {
            true => String::new(),
            false => names.iter().map(|name| format!("-{}", name.get_name())).collect(),
        }
    }

    /// Returns whether the run creates the site.
    pub(crate) fn begins(&self) -> bool {
        self.has(MdworkbenchPhase::Precreate)
    }

    /// Returns whether the run removes the site at its end.
    pub(crate) fn ends(&self) -> bool {
        self.has(MdworkbenchPhase::Cleanup)
    }

    /// Checks the options. Errors: `InvalidArgument` for 0 data sets or objects, for more iterations than objects, or
    /// for objects of more than 1 GiB.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, why));
        if self.datasets == 0 || self.objects == 0 {
            return invalid("--datasets and --objects must be at least 1");
        }
        if self.iterations.is_some_and(|iterations| iterations > self.objects) {
            return invalid(
                "--iterations may be at most --objects: a rank would otherwise read objects that are not created yet",
            );
        }
        if self.object_size > 1 << 30 {
            return invalid(
                "the --object-size is too large, because each object is held in memory; use at most 1 GiB",
            );
        }
        Ok(())
    }

    pub(crate) fn run(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<Vec<PhaseResult>> {
        let sets = RankDatasetContext { plan: self, crew, site };
        let mut results = Vec::new();
        let mut state = match self.begins() {
            true => sets.new_state(),
            false => sets.read_state()?,
        };
        // If this run creates and removes the data set, no other run uses it.
        let is_shared = !(self.begins() && self.ends());
        if self.has(MdworkbenchPhase::Precreate) {
            if is_shared {
                sets.save(&SavedMdworkbenchState { in_use: true, ..state.clone() })?;
            }
            results.push(sets.precreate(&mut state)?);
        }
        if self.has(MdworkbenchPhase::Benchmark) {
            // All ranks have read the state before rank 0 changes it.
            if !self.begins() && crew.team.max(u64::from(state.in_use))? > 0 {
                let why = "the last run on this data set ended early, so the objects of the data set are unknown; \
                           remove them with --phases cleanup, and create new ones with --phases precreate";
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            if is_shared {
                sets.save(&SavedMdworkbenchState { in_use: true, ..state.clone() })?;
            }
            results.extend(sets.benchmark(&mut state)?);
        }
        match self.ends() {
            true => results.push(sets.remove(&state)?),
            false => sets.save(&state)?,
        }
        Ok(results)
    }

    /// Removes the data sets' buckets, if each data set has its own bucket. A bucket that neither this run nor the run
    /// whose state was read has created is kept.
    pub(crate) fn clean_up(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<()> {
        let sets = RankDatasetContext { plan: self, crew, site };
        let mut own = (0..self.datasets).filter(|_| self.buckets == DatasetPlacement::Dataset);
        crew.agree(own.try_for_each(|set| {
            let site = sets.site_of(crew.team.rank(), set)?;
            if self.begins() { site.remove_if_made() } else { site.remove() }
        }))
    }
}

impl SavedMdworkbenchState {
    /// Returns the options that differ from `wanted`, in the form of the command line.
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let options = |state: &Self| {
            let buckets = state.buckets.to_possible_value();
            [
                ("ranks", state.ranks.to_string()),
                ("--datasets", state.datasets.to_string()),
                ("--objects", state.objects.to_string()),
                ("--object-size", state.object_bytes.to_string()),
                ("--buckets", buckets.map_or_else(String::new, |value| value.get_name().to_owned())),
            ]
        };
        let pairs = options(self).into_iter().zip(options(wanted));
        let differ = pairs.filter(|(found, wanted)| found != wanted);
        differ.map(|((name, found), (_, wanted))| format!("{name} {found}, not {wanted}")).collect()
    }
}

/// The data sets, as seen by one rank.
struct RankDatasetContext<'s> {
    plan: &'s MdworkbenchPlan,
    crew: &'s WorkloadRank<'s>,
    site: &'s WorkloadLocation,
}

/// The data sets on which a rank works: the owner and the target of each data set.
type DatasetTargets = Vec<(usize, Box<dyn MeasuredTarget>)>;

impl RankDatasetContext<'_> {
    fn new_state(&self) -> SavedMdworkbenchState {
        let MdworkbenchPlan { datasets, objects, object_size, buckets, .. } = *self.plan;
        SavedMdworkbenchState {
            ranks: self.crew.team.size(),
            datasets,
            objects,
            object_bytes: object_size,
            buckets,
            oldest: 0,
            in_use: false,
        }
    }

    fn save(&self, state: &SavedMdworkbenchState) -> Result<()> {
        self.crew.first_does(|| self.site.target().put(&Key::new(STATE_KEY)?, &encoded(state)?))
    }

    /// Reads the state that an earlier run saved. Errors: `InvalidArgument` if there is no saved state, or if the
    /// options of the earlier run differ from the options of this run.
    fn read_state(&self) -> Result<SavedMdworkbenchState> {
        let mut text = Vec::new();
        self.site.target().get(&Key::new(STATE_KEY)?, &mut text).map_err(|error| {
            let why = "there is no data set to reuse; create one with --phases precreate and the same --name";
            Error::new(ErrorKind::InvalidArgument, why).caused_by(error)
        })?;
        let found: SavedMdworkbenchState = decoded(&text)?;
        let SavedMdworkbenchState { oldest, in_use, .. } = found;
        let wanted = SavedMdworkbenchState { oldest, in_use, ..self.new_state() };
        match found == wanted {
            true => Ok(found),
            false => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the existing data set has other options: {}; use the options that it was created with",
                    found.differences(&wanted).join(", ")
                ),
            )),
        }
    }

    fn site_of(&self, owner: usize, set: u64) -> Result<WorkloadLocation> {
        match self.plan.buckets {
            DatasetPlacement::One => Ok(self.site.clone()),
            DatasetPlacement::Dataset => self.site.beside(&format!("set.{owner}.{set}")),
        }
    }

    fn key(&self, owner: usize, set: u64, number: u64) -> Result<Key> {
        match self.plan.buckets {
            DatasetPlacement::One => Key::new(format!("set.{owner}.{set}/{number:010}")),
            DatasetPlacement::Dataset => Key::new(format!("{number:010}")),
        }
    }

    /// Returns the data sets on which this rank works. The owner of each data set is the rank that is `away` ranks
    /// after this rank.
    fn targets(&self, away: impl Fn(u64) -> isize) -> Result<DatasetTargets> {
        let (rank, ranks) = (self.crew.team.rank() as isize, self.crew.team.size() as isize);
        let owner = |set| (rank + away(set)).rem_euclid(ranks) as usize;
        (0..self.plan.datasets).map(|set| Ok((owner(set), self.site_of(owner(set), set)?.target()))).collect()
    }

    /// Returns the number that identifies an owner and a data set in the content of objects, so that misplaced objects
    /// are detected.
    fn writer(owner: usize, set: u64) -> u64 {
        (owner as u64) << 32 | set
    }

    fn precreate(&self, state: &mut SavedMdworkbenchState) -> Result<PhaseResult> {
        let targets = self.targets(|_| 0)?;
        let mut own = (0..self.plan.datasets).filter(|_| self.plan.buckets == DatasetPlacement::Dataset);
        let made = own.try_for_each(|set| self.site_of(self.crew.team.rank(), set)?.make());
        self.crew.agree(made)?;
        let mut pattern = PatternBuffer::new(self.plan.object_size as usize);
        let turns = self.plan.objects * self.plan.datasets;
        let work = |recorder: &mut PhaseRecorder| {
            recorder.repeat(turns, None, |recorder, turn| {
                let (number, set) = (turn / self.plan.datasets, turn % self.plan.datasets);
                self.write(recorder, 0, &targets, (set, number), &mut pattern);
            })
        };
        let (mut results, done) = self.crew.phase(&[PRECREATE], self.site, work)?;
        self.note_end(state, done, turns)?;
        Ok(results.remove(0))
    }

    fn benchmark(&self, state: &mut SavedMdworkbenchState) -> Result<Vec<PhaseResult>> {
        let step = self.plan.offset as isize;
        let taken = self.targets(|set| -(set as isize + 1) * step)?;
        let made = self.targets(|set| (set as isize + 1) * step)?;
        let mut pattern = PatternBuffer::new(self.plan.object_size as usize);
        let mut buffer = Vec::with_capacity(self.plan.object_size as usize);
        let (oldest, iterations) = (state.oldest, self.plan.iterations.unwrap_or(self.plan.objects));
        let turns = iterations * self.plan.datasets;
        let work = |recorder: &mut PhaseRecorder| {
            recorder.repeat(turns, None, |recorder, turn| {
                let (number, set) = (oldest + turn / self.plan.datasets, turn % self.plan.datasets);
                self.take(recorder, &taken, (set, number), &mut pattern, &mut buffer);
                self.write(recorder, 3, &made, (set, number + self.plan.objects), &mut pattern);
            })
        };
        let (mut results, done) = self.crew.phase(&STEPS, self.site, work)?;
        results.push(PhaseResult::sum("benchmark", &results));
        state.oldest += iterations;
        self.note_end(state, done, turns)?;
        Ok(results)
    }

    /// Notes in `state` whether a rank has given up, which ranks do after many failures.
    fn note_end(&self, state: &mut SavedMdworkbenchState, done: u64, turns: u64) -> Result<()> {
        state.in_use |= self.crew.team.max(u64::from(done < turns))? > 0;
        Ok(())
    }

    /// Queries the size of the oldest object, then reads and removes the object.
    fn take(
        &self,
        recorder: &mut PhaseRecorder,
        targets: &DatasetTargets,
        (set, number): (u64, u64),
        pattern: &mut PatternBuffer,
        buffer: &mut Vec<u8>,
    ) {
        let (owner, target) = &targets[set as usize];
        let bytes = self.plan.object_size;
        let Ok(key) = self.key(*owner, set, number) else { return };
        let wrong = || {
            let what =
                format!("does not have the content that was written, on lane {}", self.site.lane().name);
            Err(Error::new(ErrorKind::Corrupt, format!("{key} {what}")).with_advice(""))
        };
        let has_size = |size| if size == bytes { Ok(()) } else { wrong() };
        recorder.operation(0, 0, || target.head(&key), has_size);
        let is_right =
            |found: &Vec<u8>| match pattern.is(RankDatasetContext::writer(*owner, set), number, found) {
                true => Ok(()),
                false => wrong(),
            };
        recorder.operation(1, bytes, || target.get(&key, buffer).map(|()| &*buffer), is_right);
        recorder.operation(2, 0, || target.delete(&key), Ok);
    }

    fn write(
        &self,
        recorder: &mut PhaseRecorder,
        track: usize,
        targets: &DatasetTargets,
        (set, number): (u64, u64),
        pattern: &mut PatternBuffer,
    ) {
        let (owner, target) = &targets[set as usize];
        let key = self.key(*owner, set, number);
        let content = pattern.stamped(RankDatasetContext::writer(*owner, set), number);
        recorder.operation(track, self.plan.object_size, || target.put(&key?, content), Ok);
    }

    fn remove(&self, state: &SavedMdworkbenchState) -> Result<PhaseResult> {
        let targets = self.targets(|_| 0)?;
        let work = |recorder: &mut PhaseRecorder| {
            recorder.repeat(self.plan.objects * self.plan.datasets, None, |recorder, turn| {
                let (number, set) = (state.oldest + turn / self.plan.datasets, turn % self.plan.datasets);
                let (owner, target) = &targets[set as usize];
                let key = self.key(*owner, set, number);
                recorder.operation(0, 0, || target.delete(&key?), Ok);
            })
        };
        Ok(self.crew.phase(&["cleanup"], self.site, work)?.0.remove(0))
    }
}
