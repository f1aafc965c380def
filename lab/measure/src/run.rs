//! The run file: the interface between programs that measure and programs that analyse.
//!
//! A run is a directory `NAME.run/` that contains `run.json` (a [`RunDocument`]), and `operations.arrow` and
//! `blocks.arrow` (Arrow IPC files of [`crate::RunRecords`]). `docs/reference/run-file.md` describes the run file field
//! by field. The figures that are specific to one kind of benchmark ([`LoadGeneratorSummary`], [`ParallelJobSummary`],
//! [`MessageExchangeResult`], [`Io500Scores`]) are at the end of this module.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;
use serde::{Deserialize, Serialize};

use crate::{ConfidenceInterval, Machine, ProcessCounters, RunRecords, RunReliabilityReport};

/// The value of `schema` in `run.json`.
pub const SCHEMA: &str = "fordway.run";
/// The version of the format. The version increases when a reader of the previous version would misread the file.
pub const SCHEMA_VERSION: u32 = 1;

/// The content of `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunDocument {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Version of the program.
    pub fordway_version: String,
    /// The kind of run, such as `compare`.
    pub kind: String,
    /// The start time, RFC 3339 in UTC.
    pub started: String,
    /// The duration of the run.
    pub elapsed_ns: u64,
    /// The exact command line.
    pub command: Vec<String>,
    /// The machine that performed the run.
    pub machine: Machine,
    /// The chosen parameters, by name; each kind of run defines their meaning.
    pub parameters: serde_json::Map<String, serde_json::Value>,
    /// The lanes, in the order of the indices in records; the first is the reference.
    pub lanes: Vec<RowDescription>,
    /// The phases, in the order of the indices in records.
    pub phases: Vec<String>,
    /// The results, one entry for each lane and phase.
    pub summaries: Vec<LanePhaseResult>,
    /// The scores, one entry for each lane of IO500; empty for other kinds of run.
    #[serde(default)]
    pub scores: Vec<LaneIo500Score>,
    /// Warnings about omitted parts of the run and about settings that make a result doubtful, each with a remedy.
    pub warnings: Vec<String>,
    /// Whether the machine's state allowed reliable results; `null` if the machine was not observed.
    #[serde(default)]
    pub conditions: Option<RunReliabilityReport>,
}

/// A row of a run: a lane, an alternative to the lanes (such as plain files), or a component of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowDescription {
    /// The row's name in tables.
    pub name: String,
    /// A description of what the row measures, in one sentence.
    pub description: String,
}

/// The results of one lane in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanePhaseResult {
    /// The lane's name.
    pub lane: String,
    /// The phase's name.
    pub phase: String,
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed or returned wrong content.
    pub errors: u64,
    /// Bytes of content transferred.
    pub bytes: u64,
    /// Operations per second while the lane was running.
    pub ops_per_s: Option<f64>,
    /// Bytes of content per second while the lane was running.
    pub bytes_per_s: Option<f64>,
    /// Latencies of the successful operations.
    pub latency: Option<LatencyQuantiles>,
    /// The latencies of the successful operations as an HdrHistogram V2, base64.
    pub histogram: String,
    /// CPU time of the calling process per operation.
    pub client_cpu_ns_per_op: Option<f64>,
    /// CPU time of the lane's server per operation; `null` if there is no server.
    pub server_cpu_ns_per_op: Option<f64>,
    /// Speed relative to the reference lane; `null` for the reference itself.
    pub ratio: Option<SpeedRatio>,
    /// The resource that limits the speed.
    pub limit: LimitingResource,
    /// Figures of a load generator; `null` for other kinds of run.
    #[serde(default)]
    pub load: Option<LoadGeneratorSummary>,
    /// Figures of a transport benchmark; `null` for other kinds of run.
    #[serde(default)]
    pub transfer: Option<MessageExchangeResult>,
    /// Figures of a speed-up measurement; `null` for other kinds of run.
    #[serde(default)]
    pub parallel: Option<ParallelJobSummary>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    /// The minimum latency.
    pub min_ns: u64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 90th percentile: one latency in ten exceeds it.
    pub p90_ns: u64,
    /// The 99th percentile: one latency in a hundred exceeds it.
    pub p99_ns: u64,
    /// The 99.9th percentile: one latency in a thousand exceeds it.
    pub p999_ns: u64,
    /// The maximum latency.
    pub max_ns: u64,
    /// The mean latency.
    pub mean_ns: u64,
}

/// Speed relative to the reference, computed over pairs of blocks with the same work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedRatio {
    /// The reference lane's name.
    pub to: String,
    /// The median of the ratios, with its interval; `null` if there are too few blocks for an interval.
    pub interval: Option<ConfidenceInterval>,
    /// The conclusion from the interval.
    pub verdict: SpeedVerdict,
}

/// The conclusion about which of two lanes is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpeedVerdict {
    /// The lane is faster: the whole interval is above 1.
    Faster,
    /// The lane is slower: the whole interval is below 1.
    Slower,
    /// The interval contains 1, or there is no interval.
    CannotTell,
}

impl SpeedVerdict {
    /// Returns the verdict for `interval`.
    pub fn of(interval: Option<&ConfidenceInterval>) -> Self {
        match interval {
            Some(interval) if interval.low > 1.0 => SpeedVerdict::Faster,
            Some(interval) if interval.high < 1.0 => SpeedVerdict::Slower,
            _ => SpeedVerdict::CannotTell,
        }
    }
}

/// The resource that limits a result, judging by the run's counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitingResource {
    /// The name of the limit: `client cpu`, `client and server cpu`, `server cpu`, `rate`, `cpu quota`, `waiting`, or
    /// `cannot tell`.
    pub name: String,
    /// The figures from which the limit was derived.
    pub evidence: String,
}

/// An error while writing or reading a run.
#[derive(Debug)]
pub struct RunError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run file {}: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}

impl RunError {
    /// Returns the operating system's error that caused this error. Errors: this error, if it has another cause.
    pub fn into_io(self) -> Result<io::Error, RunError> {
        let RunError { path, source } = self;
        let source = match source.downcast::<io::Error>() {
            Ok(error) => return Ok(*error),
            Err(other) => other,
        };
        match source.downcast::<ArrowError>().map(|error| *error) {
            Ok(ArrowError::IoError(_, error)) => Ok(error),
            Ok(other) => Err(RunError { path, source: other.into() }),
            Err(source) => Err(RunError { path, source }),
        }
    }
}

impl RunDocument {
    /// Writes the run to the directory `dir`, which is created if missing. An existing run is replaced. All files are
    /// first written under temporary names. `dir` has no `run.json` until all other files have their final names.
    pub fn write(&self, dir: &Path, records: &RunRecords) -> Result<(), RunError> {
        self.write_with(dir, records, None)
    }

    /// Writes the run like [`RunDocument::write`], and one more file: `further` is the file's name and content.
    pub fn write_with(
        &self,
        dir: &Path,
        records: &RunRecords,
        further: Option<(&'static str, &[u8])>,
    ) -> Result<(), RunError> {
        let mut files = StagedFiles { dir, names: Vec::new() };
        let failed = |name: &str, source| RunError { path: dir.join(name), source };
        fs::create_dir_all(dir).map_err(|error| failed("", error.into()))?;
        if let Some((name, content)) = further {
            files.stage(name, |mut file| Ok(file.write_all(content)?))?;
        }
        let mut arrow = |name, batch: Result<RecordBatch, ArrowError>| {
            let batch = batch.map_err(|error| failed(name, error.into()))?;
            files.stage(name, |file| write_arrow(file, &batch))
        };
        arrow("operations.arrow", self.operations_batch(records))?;
        arrow("blocks.arrow", self.blocks_batch(records))?;
        if !records.ranks.is_empty() {
            arrow("ranks.arrow", self.ranks_batch(records))?;
        }
        if !records.objects.is_empty() {
            arrow("objects.arrow", objects_batch(records))?;
        }
        // The conversion to `io::Error` preserves an operating system's error inside the JSON error.
        files.stage("run.json", |file| {
            Ok(serde_json::to_writer_pretty(file, self).map_err(io::Error::from)?)
        })?;
        files.publish()
    }

    /// Reads the `run.json` in `dir`. Errors: the file is not a run file, or its format has a later version.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        let path = dir.join("run.json");
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| RunError { path: path.clone(), source };
        let text = fs::read(&path).map_err(|error| failed(error.into()))?;
        RunDocument::parse(&text).map_err(failed)
    }

    /// Returns whether a run may be written to `dir`. The directory must be missing or empty, or contain a run, which
    /// the new run replaces. Errors: `dir` cannot be read, or is not a directory.
    pub fn may_be_written_to(dir: &Path) -> io::Result<bool> {
        #[derive(Deserialize)]
        struct AnyRun {
            schema: String,
        }
        let is_empty = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            entries => entries?.next().is_none(),
        };
        let is_run =
            |text: Vec<u8>| serde_json::from_slice(&text).is_ok_and(|run: AnyRun| run.schema == SCHEMA);
        Ok(is_empty || fs::read(dir.join("run.json")).is_ok_and(is_run))
    }

    /// Parses the content of a `run.json`. Errors: as for [`RunDocument::read`].
    pub fn parse(text: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let run: RunDocument = serde_json::from_slice(text)?;
        if run.schema != SCHEMA || run.schema_version > SCHEMA_VERSION {
            let (schema, version) = (&run.schema, run.schema_version);
            return Err(format!("{schema} version {version} needs a newer fordway").into());
        }
        Ok(run)
    }

    fn operations_batch(&self, records: &RunRecords) -> Result<RecordBatch, ArrowError> {
        let all = &records.operations;
        RecordBatch::try_from_iter_with_nullable([
            ("lane", self.lane_column(all.iter().map(|op| op.lane)), false),
            ("phase", self.phase_column(all.iter().map(|op| op.phase)), false),
            (
                "round",
                Arc::new(UInt16Array::from_iter_values(all.iter().map(|op| op.round))) as ArrayRef,
                false,
            ),
            ("block", Arc::new(UInt32Array::from_iter_values(all.iter().map(|op| op.block))), false),
            ("thread", Arc::new(UInt16Array::from_iter_values(all.iter().map(|op| op.thread))), false),
            ("start_ns", Arc::new(UInt64Array::from_iter_values(all.iter().map(|op| op.start_ns))), false),
            (
                "duration_ns",
                Arc::new(UInt64Array::from_iter_values(all.iter().map(|op| op.duration_ns))),
                false,
            ),
            ("bytes", Arc::new(UInt64Array::from_iter_values(all.iter().map(|op| op.bytes))), false),
            ("ok", Arc::new(BooleanArray::from_iter(all.iter().map(|op| Some(op.ok)))), false),
            ("intended_ns", Arc::new(UInt64Array::from_iter(all.iter().map(|op| op.intended_ns))), true),
            ("first_byte_ns", Arc::new(UInt64Array::from_iter(all.iter().map(|op| op.first_byte_ns))), true),
        ])
    }

    fn blocks_batch(&self, records: &RunRecords) -> Result<RecordBatch, ArrowError> {
        let all = &records.blocks;
        let column = |value: fn(&crate::BlockRecord) -> Option<u64>| {
            Arc::new(UInt64Array::from_iter(all.iter().map(value))) as ArrayRef
        };
        RecordBatch::try_from_iter_with_nullable([
            ("lane", self.lane_column(all.iter().map(|block| block.lane)), false),
            ("phase", self.phase_column(all.iter().map(|block| block.phase)), false),
            ("round", column(|block| Some(u64::from(block.round))), false),
            ("block", column(|block| Some(u64::from(block.block))), false),
            ("operations", column(|block| Some(u64::from(block.operations))), false),
            ("bytes", column(|block| Some(block.bytes)), false),
            ("elapsed_ns", column(|block| Some(block.elapsed_ns)), false),
            ("client_cpu_ns", column(|block| Some(block.client_cpu_ns)), false),
            ("server_cpu_ns", column(|block| block.server_cpu_ns), true),
        ])
    }

    fn ranks_batch(&self, records: &RunRecords) -> Result<RecordBatch, ArrowError> {
        let all = &records.ranks;
        let column = |value: fn(&crate::RankRecord) -> u64| {
            Arc::new(UInt64Array::from_iter_values(all.iter().map(value))) as ArrayRef
        };
        RecordBatch::try_from_iter([
            ("lane", self.lane_column(all.iter().map(|rank| rank.lane))),
            ("phase", self.phase_column(all.iter().map(|rank| rank.phase))),
            ("round", Arc::new(UInt16Array::from_iter_values(all.iter().map(|rank| rank.round))) as ArrayRef),
            ("rank", Arc::new(UInt32Array::from_iter_values(all.iter().map(|rank| rank.rank)))),
            ("operations", column(|rank| rank.operations)),
            ("errors", column(|rank| rank.errors)),
            ("bytes", column(|rank| rank.bytes)),
            ("start_ns", column(|rank| rank.start_ns)),
            ("elapsed_ns", column(|rank| rank.elapsed_ns)),
            ("aside_ns", column(|rank| rank.aside_ns)),
            ("cpu_ns", column(|rank| rank.cpu_ns)),
        ])
    }

    fn lane_column(&self, lanes: impl Iterator<Item = u8>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(lanes.map(|lane| &self.lanes[usize::from(lane)].name)))
    }

    fn phase_column(&self, phases: impl Iterator<Item = u8>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(phases.map(|phase| &self.phases[usize::from(phase)])))
    }
}

fn objects_batch(records: &RunRecords) -> Result<RecordBatch, ArrowError> {
    let all = &records.objects;
    let count = |value: fn(&crate::ObjectDirectoryCounts) -> u16| {
        Arc::new(UInt16Array::from_iter_values(all.iter().map(value))) as ArrayRef
    };
    RecordBatch::try_from_iter([
        ("round", count(|object| object.round)),
        ("bytes", Arc::new(UInt64Array::from_iter_values(all.iter().map(|object| object.bytes))) as ArrayRef),
        ("directories", count(|object| object.directories)),
        ("made_directories", count(|object| object.made_directories)),
        ("emptied_directories", count(|object| object.emptied_directories)),
    ])
}

type RunWriteResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn write_arrow(file: &File, batch: &RecordBatch) -> RunWriteResult {
    let mut writer = FileWriter::try_new_buffered(file, &batch.schema())?;
    writer.write(batch)?;
    Ok(writer.finish()?)
}

/// Every file that a run can contain, except temporary files.
const FILES: [&str; 7] = [
    "run.json",
    "operations.arrow",
    "blocks.arrow",
    "objects.arrow",
    "ranks.arrow",
    "ledger.json",
    "speedup.json",
];

/// Returns the names of the results in IO500's format that the run in `dir` has for each of its lanes.
fn result_files(dir: &Path) -> Vec<String> {
    let lanes = RunDocument::read(dir).map_or_else(|_| Vec::new(), |run| run.lanes);
    lanes.iter().map(|lane| result_file(&lane.name)).collect()
}

/// Returns the name of the file that contains a lane's result in IO500's format.
pub fn result_file(lane: &str) -> String {
    format!("result-{lane}.txt")
}

/// Files of a run that still have temporary names. Dropping this value removes these files.
struct StagedFiles<'d> {
    dir: &'d Path,
    names: Vec<&'static str>,
}

impl StagedFiles<'_> {
    fn staged(&self, name: &str) -> PathBuf {
        self.dir.join(format!(".{name}.tmp"))
    }

    fn stage(
        &mut self,
        name: &'static str,
        write: impl FnOnce(&File) -> RunWriteResult,
    ) -> Result<(), RunError> {
        self.names.push(name);
        let done = File::create(self.staged(name)).map_err(Into::into).and_then(|file| write(&file));
        done.map_err(|source| RunError { path: self.dir.join(name), source })
    }

    /// Removes the files of an earlier run, its `run.json` first, and renames the staged files to their final names, in
    /// the order of `names`.
    fn publish(mut self) -> Result<(), RunError> {
        let failed =
            |name: &str, error: io::Error| RunError { path: self.dir.join(name), source: error.into() };
        let further = result_files(self.dir);
        for name in FILES.into_iter().chain(further.iter().map(String::as_str)) {
            match fs::remove_file(self.dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(name, error)),
                _ => {}
            }
        }
        for name in &self.names {
            fs::rename(self.staged(name), self.dir.join(name)).map_err(|error| failed(name, error))?;
        }
        self.names.clear();
        Ok(())
    }
}

impl Drop for StagedFiles<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = fs::remove_file(self.staged(name));
        }
    }
}

/// The settings of a load generator, and its results other than latency and throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadGeneratorSummary {
    /// `closed`, or the arrival process of the open loop: `fixed` or `poisson`.
    pub arrivals: String,
    /// Requested rate, requests per second; `null` in the closed loop.
    pub rate_asked_per_s: Option<f64>,
    /// The number of concurrent connections.
    pub connections: u64,
    /// Concurrent requests on each connection.
    pub streams: u64,
    /// Threads that sent requests.
    pub threads: u64,
    /// The number of requests that were due within the run but never started.
    pub skipped: u64,
    /// The number of failures by kind; their sum is the summary's `errors`.
    pub errors: BTreeMap<String, u64>,
    /// Times to the first byte of the response, counted from the same start as latencies.
    pub first_byte: Option<LatencyQuantiles>,
    /// The times to the first byte as an HdrHistogram V2, base64.
    pub first_byte_histogram: String,
    /// The delays from the intended starts of requests to their actual starts; `null` in the closed loop.
    pub lateness: Option<LatencyQuantiles>,
    /// Bytes sent per operation, bodies excluded.
    pub header_sent_bytes_per_op: Option<f64>,
    /// Bytes received per operation, bodies excluded.
    pub header_received_bytes_per_op: Option<f64>,
    /// Connections that were reopened during the run.
    pub reconnects: u64,
    /// Retries by this program, and by the programs that received its requests.
    #[serde(default)]
    pub retries: u64,
    /// The kernel's statistics of the connections at the end; `null` if the connections are not TCP.
    pub tcp: Option<TcpConnectionStats>,
    /// Resources that this process used; `null` if they could not be read.
    pub client: Option<ProcessCounters>,
    /// Resources that the server's processes used; `null` if the processes are unknown, or did not run during the whole
    /// measurement.
    pub server: Option<ProcessCounters>,
}

/// Statistics of TCP connections, as recorded by the client's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpConnectionStats {
    /// The number of connections.
    pub count: u64,
    /// The median of the smoothed round-trip times.
    pub rtt_us: u64,
    /// The largest of the smoothed round-trip times.
    pub rtt_max_us: u64,
    /// Retransmitted segments, on all connections since they were opened.
    pub retransmits: u64,
    /// The smallest of the connections' maximum segment sizes.
    pub mss_bytes: u64,
}

/// The results of jobs with the same number of ranks in the same set-up. Intervals are `null` for fewer than five
/// successful jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParallelJobSummary {
    /// The number of ranks of each job.
    pub ranks: u32,
    /// The median wall time of a job, including its launch, ns.
    pub wall_ns: Option<ConfidenceInterval>,
    /// The time from when the first rank was able to communicate until the last rank finished communicating, ns; `null`
    /// if the ranks did not report.
    pub work_ns: Option<ConfidenceInterval>,
    /// The speed-up S: the time of one rank in the reference set-up, divided by the time of these jobs. Each ratio is
    /// computed from two jobs of one round.
    pub speedup: Option<ConfidenceInterval>,
    /// The efficiency E = S / ranks.
    pub efficiency: Option<ConfidenceInterval>,
    /// The share of all ranks' time spent in MPI calls, including waiting; `null` if the ranks did not report.
    pub communication_share: Option<ConfidenceInterval>,
    /// The time from the end of the first rank to the end of the last rank, ns; `null` if the ranks did not report.
    pub late_ns: Option<ConfidenceInterval>,
}

/// The results of messages of one size on one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageExchangeResult {
    /// The exchange: `latency`, `bandwidth` or `half-round-trip`.
    pub exchange: String,
    /// Bytes of each message.
    pub size_bytes: u64,
    /// The number of messages in flight at once.
    pub window: u64,
    /// The number of timed messages.
    pub messages: u64,
    /// The median over blocks of each block's median message time, ns; `null` for fewer than five blocks, or if several
    /// messages are in flight.
    pub time_ns: Option<ConfidenceInterval>,
    /// The median over blocks of the bytes per second; `null` for fewer than five blocks.
    pub bytes_per_s: Option<ConfidenceInterval>,
    /// The requesting side's CPU time per message, as the median over blocks.
    pub client_cpu_ns_per_message: f64,
    /// The responding side's CPU time per message, as the median over blocks; `null` if it is unknown.
    pub server_cpu_ns_per_message: Option<f64>,
    /// The number of processors that both sides together kept busy, as the median over blocks. One message at a time
    /// keeps one processor busy. Any further busy processor was polling.
    pub processors_busy: f64,
}

/// The IO500 scores of one lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneIo500Score {
    /// The lane's name.
    pub lane: String,
    /// The scores of the lane; `null` unless every phase succeeded.
    pub scores: Option<Io500Scores>,
    /// The reason why the scores do not count; `null` if they count.
    pub stamp: Option<String>,
}

/// IO500's scores, which are geometric means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Io500Scores {
    /// The geometric mean of the four bandwidths, GiB/s.
    pub bandwidth_gib_per_s: f64,
    /// The geometric mean of the eight rates, thousands of operations per second.
    pub metadata_kiops: f64,
    /// The total score: the geometric mean of the bandwidth score and the metadata score.
    pub total: f64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use arrow_ipc::reader::FileReader;

    use super::*;
    use crate::{BlockRecord, OperationRecord};

    fn run() -> RunDocument {
        RunDocument {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            fordway_version: "0".into(),
            kind: "test".into(),
            started: "2026-01-01T00:00:00Z".into(),
            elapsed_ns: 1,
            command: vec!["fordway".into()],
            machine: Machine::default(),
            parameters: serde_json::Map::new(),
            lanes: vec![RowDescription { name: "posix".into(), description: String::new() }],
            phases: vec!["put".into()],
            summaries: vec![],
            scores: vec![],
            warnings: vec![],
            conditions: None,
        }
    }

    #[test]
    fn runs_come_back_and_nulls_stay_null() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("x.run");
        let zero = OperationRecord {
            lane: 0,
            phase: 0,
            round: 0,
            block: 0,
            thread: 0,
            start_ns: 5,
            duration_ns: 7,
            bytes: 3,
            ok: true,
            intended_ns: None,
            first_byte_ns: None,
        };
        let block = BlockRecord {
            lane: 0,
            phase: 0,
            round: 0,
            block: 0,
            operations: 1,
            bytes: 3,
            elapsed_ns: 7,
            client_cpu_ns: 6,
            server_cpu_ns: None,
        };
        let object = crate::ObjectDirectoryCounts {
            round: 0,
            bytes: 3,
            directories: 2,
            made_directories: 1,
            emptied_directories: 0,
        };
        let records = RunRecords {
            operations: vec![zero],
            blocks: vec![block],
            objects: vec![object],
            ..RunRecords::default()
        };
        run().write(&dir, &records).unwrap();
        assert_eq!(RunDocument::read(&dir).unwrap(), run());
        let open = |name| FileReader::try_new(File::open(dir.join(name)).unwrap(), None).unwrap();
        let operations = open("operations.arrow").next().unwrap().unwrap();
        assert_eq!((operations.num_rows(), operations.num_columns()), (1, 11));
        let blocks = open("blocks.arrow").next().unwrap().unwrap();
        assert_eq!(blocks.column_by_name("server_cpu_ns").unwrap().null_count(), 1);
        let objects = open("objects.arrow").next().unwrap().unwrap();
        assert_eq!((objects.num_rows(), objects.num_columns()), (1, 5));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 4);
    }

    /// Writing a run over an old run removes all files of the old run. If the new run cannot be written, the old run
    /// remains unchanged.
    #[test]
    fn runs_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let object = crate::ObjectDirectoryCounts {
            round: 0,
            bytes: 3,
            directories: 2,
            made_directories: 1,
            emptied_directories: 0,
        };
        let records = RunRecords { objects: vec![object], ..RunRecords::default() };
        run().write_with(dir, &records, Some(("ledger.json", b"{}"))).unwrap();
        let names = || {
            let entries = fs::read_dir(dir).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let before = ["blocks.arrow", "ledger.json", "objects.arrow", "operations.arrow", "run.json"];
        assert_eq!(names(), before.map(str::to_owned).into());
        fs::create_dir(dir.join(".run.json.tmp")).unwrap();
        let other = RunDocument { kind: "other".into(), ..run() };
        assert!(other.write(dir, &RunRecords::default()).unwrap_err().to_string().contains("run.json"));
        assert_eq!(RunDocument::read(dir).unwrap(), run());
        fs::remove_dir(dir.join(".run.json.tmp")).unwrap();
        assert_eq!(names(), before.map(str::to_owned).into());
        // Results of lanes belong to the old run, and other files do not.
        let lane = &run().lanes[0].name;
        fs::write(dir.join(result_file(lane)), "old").unwrap();
        fs::write(dir.join("result-mine.txt"), "mine").unwrap();
        other.write(dir, &RunRecords::default()).unwrap();
        fs::remove_file(dir.join("result-mine.txt")).unwrap();
        assert_eq!(names(), ["blocks.arrow", "operations.arrow", "run.json"].map(str::to_owned).into());
        assert_eq!(RunDocument::read(dir).unwrap(), other);
    }

    #[test]
    fn later_versions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let later = RunDocument { schema_version: SCHEMA_VERSION + 1, ..run() };
        later.write(dir.path(), &RunRecords::default()).unwrap();
        assert!(RunDocument::read(dir.path()).unwrap_err().to_string().contains("newer"));
        assert!(RunDocument::read(&dir.path().join("none")).is_err());
    }
}
