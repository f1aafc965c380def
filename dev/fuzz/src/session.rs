//! A fuzzing run of one target. The run can be interrupted at any time and resumed later: inputs, findings and the time
//! spent are stored in files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fordway_fuzz::coverage::CoverageMap;
use fordway_fuzz::mutate::InputMutator;
use fordway_fuzz::{FuzzTarget, corpus};

/// The time after which a parser is considered to hang.
const HANG_S: u64 = 10;
/// The interval at which the time spent is saved.
const SAVE_AFTER: Duration = Duration::from_secs(5);

/// Returns the directory for the inputs that runs keep.
pub(crate) fn inputs_dir(dir: &Path, target: &FuzzTarget) -> PathBuf {
    dir.join(target.name).join("inputs")
}

fn findings_dir(dir: &Path, target: &FuzzTarget) -> PathBuf {
    dir.join(target.name).join("findings")
}

fn time_file(dir: &Path, target: &FuzzTarget) -> PathBuf {
    dir.join(target.name).join("seconds")
}

/// Returns the time spent on a target in seconds, and the numbers of its inputs and findings.
pub(crate) fn totals(dir: &Path, target: &FuzzTarget) -> Result<(u64, usize, usize)> {
    let spent = fs::read_to_string(time_file(dir, target)).unwrap_or_default();
    let committed = corpus::read(&corpus::committed().join(target.name))?.len();
    let found = corpus::read(&inputs_dir(dir, target))?.len();
    Ok((
        spent.trim().parse().unwrap_or(0),
        committed + found,
        corpus::read(&findings_dir(dir, target))?.len(),
    ))
}

/// Why a run ended.
pub(crate) enum FuzzStopReason {
    TimeUp,
    /// The path of the failing input.
    Finding(PathBuf),
}

pub(crate) struct FuzzSession {
    target: &'static FuzzTarget,
    dir: PathBuf,
    inputs: Vec<Vec<u8>>,
    reached: CoverageMap,
    mutator: InputMutator,
    /// Whether the corpus has been run.
    mutates: bool,
    runs: u64,
    spent_before_s: u64,
    started: Instant,
    current: CurrentInputFile,
}

impl FuzzSession {
    /// Reads the corpus, and the inputs that earlier runs kept in `dir`.
    pub(crate) fn open(target: &'static FuzzTarget, dir: &Path) -> Result<Self> {
        let (spent_before_s, ..) = totals(dir, target)?;
        let own = dir.join(target.name);
        fs::create_dir_all(&own).with_context(|| format!("creating {}", own.display()))?;
        let mut inputs = corpus::read(&corpus::committed().join(target.name))?;
        inputs.extend(corpus::read(&inputs_dir(dir, target))?);
        Ok(FuzzSession {
            target,
            dir: dir.to_owned(),
            inputs,
            reached: CoverageMap::default(),
            // Each run gets a different seed, so that it makes different choices.
            mutator: InputMutator::new(spent_before_s.wrapping_mul(1 << 20) + 1, target.words),
            mutates: false,
            runs: 0,
            spent_before_s,
            started: Instant::now(),
            current: CurrentInputFile::open(&own, findings_dir(dir, target))?,
        })
    }

    /// Runs the corpus, and then mutations of the corpus until `time` has passed.
    pub(crate) fn run(&mut self, time: Duration) -> Result<FuzzStopReason> {
        for input in std::mem::take(&mut self.inputs) {
            if let Some(finding) = self.try_input(&input)? {
                return Ok(FuzzStopReason::Finding(finding));
            }
            self.inputs.push(input);
        }
        self.mutates = true;
        let mut saved = Instant::now();
        while self.started.elapsed() < time {
            let input = self.mutator.next_input(&self.inputs);
            let before = self.inputs.len();
            if let Some(finding) = self.try_input(&input)? {
                self.save_time()?;
                return Ok(FuzzStopReason::Finding(finding));
            }
            if self.inputs.len() > before || saved.elapsed() > SAVE_AFTER {
                self.save_time()?;
                saved = Instant::now();
            }
        }
        self.save_time()?;
        Ok(FuzzStopReason::TimeUp)
    }

    /// Runs one input. Keeps a mutation if it reaches new code or a new class of hit counts. Returns the path of the
    /// input if the input fails.
    fn try_input(&mut self, input: &[u8]) -> Result<Option<PathBuf>> {
        self.current.begin(input)?;
        let (target, mut panicked) = (self.target, false);
        let new = self.reached.extend_by(|| {
            panicked = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
        });
        self.current.end();
        self.runs += 1;
        if panicked {
            return corpus::keep(&findings_dir(&self.dir, self.target), input).map(Some);
        }
        if new.is_new_class && self.mutates {
            corpus::keep(&inputs_dir(&self.dir, self.target), input)?;
            self.inputs.push(input.to_vec());
        }
        Ok(None)
    }

    fn save_time(&self) -> Result<()> {
        let spent = self.spent_before_s + self.started.elapsed().as_secs();
        fs::write(time_file(&self.dir, self.target), spent.to_string()).context("saving the time spent")
    }

    pub(crate) fn summary(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        format!(
            "{}: {} runs in {seconds:.0} s, {} inputs, {} code regions reached",
            self.target.name,
            self.runs,
            self.inputs.len(),
            self.reached.reached()
        )
    }
}

/// The file with the current input. If the input crashes the process or makes it hang, the input can be read from this
/// file.
struct CurrentInputFile {
    file: File,
    /// The time at which the current input was started, in seconds since the start of the run, plus 1. The value is 0
    /// if no input is running.
    began_s: Arc<AtomicU64>,
    started: Instant,
}

impl CurrentInputFile {
    fn open(own: &Path, findings: PathBuf) -> Result<Self> {
        let path = own.join("current");
        let file = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
        let (began_s, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let watched = began_s.clone();
        thread::spawn(move || watch(&watched, started, &path, &findings));
        Ok(CurrentInputFile { file, began_s, started })
    }

    fn begin(&mut self, input: &[u8]) -> Result<()> {
        self.file
            .write_all_at(input, 0)
            .and_then(|()| self.file.set_len(input.len() as u64))
            .context("writing the input")?;
        self.began_s.store(1 + self.started.elapsed().as_secs(), Ordering::Relaxed);
        Ok(())
    }

    fn end(&self) {
        self.began_s.store(0, Ordering::Relaxed);
    }
}

/// Exits the process if one input takes more than [`HANG_S`] seconds.
fn watch(began_s: &AtomicU64, started: Instant, current: &Path, findings: &Path) {
    loop {
        thread::sleep(Duration::from_secs(1));
        let began = began_s.load(Ordering::Relaxed);
        if began != 0 && 1 + started.elapsed().as_secs() > began + HANG_S {
            let input = fs::read(current).unwrap_or_default();
            let kept = corpus::keep(findings, &input);
            eprintln!("an input takes more than {HANG_S} s: {kept:?}");
            process::exit(1);
        }
    }
}
