//! The context of a command: a lane, the standard streams and the stop flag. A signal sets the stop flag. Long-running
//! functions check the flag and stop, so that temporary files are removed before the process exits.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fordway_http::replicas::MetalinkCache;
use fordway_http::vector::{HttpSession, SessionOptions};
use fordway_lanes::Lane;
use fordway_store::{Error, ErrorKind, Result, Store};
use signal_hook::consts::SIGHUP;

use crate::output::CommandOutputStreams;

/// A function that opens the lane of an endpoint. `None` selects the endpoint from the command line or the environment.
type OpenLaneFunction = Box<dyn Fn(Option<&str>) -> Result<Lane> + Send + Sync>;

/// The context of a command. Commands never create lanes or streams themselves.
pub struct CommandContext {
    open_lane: OpenLaneFunction,
    opened: Mutex<Option<Lane>>,
    /// The streams: standard output, messages and progress.
    pub output: CommandOutputStreams,
    /// The flag that tells the command to stop.
    pub interrupt: InterruptFlag,
    /// The cache of Metalinks and URL lists; `None` disables caching.
    pub metalinks: Option<MetalinkCache>,
    /// The names of the part files that earlier commands may have left, by directory. A directory is listed when the
    /// command first publishes a file in it.
    pub part_files: Mutex<HashMap<PathBuf, Vec<String>>>,
    /// The number of local source files that a transfer has left out, because they have the names of unfinished
    /// downloads.
    pub unfinished_downloads: Arc<AtomicU64>,
    /// Whether standard input was closed when the program started. If it was closed, the program has opened `/dev/null`
    /// in its place.
    pub is_input_closed: bool,
    input: Mutex<Option<Box<dyn Read + Send>>>,
    web: OnceLock<Arc<HttpSession>>,
    web_options: OnceLock<SessionOptions>,
}

impl CommandContext {
    /// Creates a context whose lane is opened when it is first needed, so that operations on local files require
    /// neither an endpoint nor credentials.
    pub fn new(
        open_lane: impl Fn(Option<&str>) -> Result<Lane> + Send + Sync + 'static,
        output: CommandOutputStreams,
        input: impl Read + Send + 'static,
        interrupt: InterruptFlag,
    ) -> Self {
        CommandContext {
            open_lane: Box::new(open_lane),
            opened: Mutex::new(None),
            output,
            interrupt,
            metalinks: None,
            part_files: Mutex::default(),
            unfinished_downloads: Arc::default(),
            is_input_closed: false,
            input: Mutex::new(Some(Box::new(input))),
            web: OnceLock::new(),
            web_options: OnceLock::new(),
        }
    }

    /// Sets the options for connections to web servers, which override the environment. Has no effect after the first
    /// connection.
    pub fn use_web_options(&self, options: SessionOptions) {
        // A second call is a bug in the caller. It has no effect, because it must not replace options that are in use.
        let _ = self.web_options.set(options);
    }

    /// Returns the options for connections to web servers. The defaults come from the environment. Errors:
    /// `InvalidArgument` for an invalid setting in the environment.
    pub fn web_options(&self) -> Result<SessionOptions> {
        self.web_options.get().cloned().map_or_else(|| SessionOptions::discover(None), Ok)
    }

    /// Returns the lane; opens it on the first call.
    pub fn lane(&self) -> Result<Lane> {
        let mut opened = self.opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(lane) = &*opened {
            return Ok(lane.clone());
        }
        let lane = (self.open_lane)(None)?;
        tracing::debug!(lane = lane.store.lane(), "opened");
        *opened = Some(lane.clone());
        Ok(lane)
    }

    /// Opens the lane of `endpoint`, which replaces the command's own endpoint. Each call opens a new lane.
    pub fn lane_at(&self, endpoint: &str) -> Result<Lane> {
        (self.open_lane)(Some(endpoint))
    }

    /// Returns the store of the command's lane. Errors: the errors of opening the lane.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        Ok(self.lane()?.store)
    }

    /// Returns the HTTP session for web servers; creates it on the first call. Errors: the errors of
    /// [`CommandContext::web_options`].
    pub fn web(&self) -> Result<&Arc<HttpSession>> {
        if let Some(session) = self.web.get() {
            return Ok(session);
        }
        // A command has at most 1,024 jobs. Each job may read from a server while it writes to the same server, so it
        // needs up to two connections.
        let options = SessionOptions { connections_per_origin: 2048, ..self.web_options()? };
        Ok(self.web.get_or_init(|| Arc::new(HttpSession::new(options))))
    }

    /// Returns standard input, which can be taken only once. Closed standard input is not treated as empty input.
    /// Errors: `InvalidArgument` if standard input is closed or has already been taken.
    pub fn take_input(&self) -> Result<Box<dyn Read + Send>> {
        if self.is_input_closed {
            return Err(Error::new(ErrorKind::InvalidArgument, "standard input is closed"));
        }
        let taken = self.input.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        taken.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "standard input (-) can be the source only once")
        })
    }
}

/// The flag that requests a stop. Clones share the same flag.
#[derive(Clone, Default)]
pub struct InterruptFlag(Arc<InterruptState>);

#[derive(Default)]
struct InterruptState {
    is_raised: AtomicBool,
    /// Whether the program is a server, which finishes its requests after a signal.
    is_of_server: AtomicBool,
    /// Temporary files, and whether each can be resumed. The names of these files are generated, not chosen by a user.
    temporary: Mutex<BTreeMap<PathBuf, IncompleteFileKind>>,
    on_hang_up: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// The handle for registering further signals.
    signals: OnceLock<signal_hook::iterator::Handle>,
}

impl InterruptFlag {
    /// Tells all functions that share this flag to stop at their next chunk; returns whether the flag was already set.
    pub fn raise(&self) -> bool {
        self.0.is_raised.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the flag is set, in which case the caller must stop.
    pub fn is_raised(&self) -> bool {
        self.0.is_raised.load(Ordering::Relaxed)
    }

    /// Records that the program is a server.
    pub(crate) fn set_of_server(&self) {
        self.0.is_of_server.store(true, Ordering::Relaxed);
    }

    /// Returns whether the program is a server.
    pub(crate) fn is_of_server(&self) -> bool {
        self.0.is_of_server.load(Ordering::Relaxed)
    }

    /// Returns the underlying flag, for code that does not use [`InterruptFlag`].
    pub fn flag(&self) -> &AtomicBool {
        &self.0.is_raised
    }

    /// Checks the flag. Errors: `Interrupted` if the flag is set.
    pub fn check(&self) -> Result<()> {
        if self.is_raised() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        Ok(())
    }

    /// Registers a temporary file or directory. If a signal ends the process immediately, `leftover` determines whether
    /// the file is kept. The registration lasts until the returned value is dropped.
    pub fn temporary(&self, path: &Path, leftover: IncompleteFileKind) -> TemporaryFile {
        self.temporaries().insert(path.to_owned(), leftover);
        TemporaryFile { path: path.to_owned(), interrupt: self.clone() }
    }

    /// Removes all registered temporary files and directories, except non-empty files that the same command can resume
    /// from. Returns the files that it keeps.
    pub fn leave(&self) -> Vec<PathBuf> {
        let mut kept = Vec::new();
        for (path, leftover) in &*self.temporaries() {
            let has_content = path.metadata().is_ok_and(|about| about.len() > 0);
            match leftover {
                IncompleteFileKind::Resumable if has_content => kept.push(path.clone()),
                IncompleteFileKind::Directory => remove_directory(path),
                _ => drop(std::fs::remove_file(path)),
            }
        }
        kept
    }

    fn temporaries(&self) -> MutexGuard<'_, BTreeMap<PathBuf, IncompleteFileKind>> {
        self.0.temporary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes SIGHUP call `reload` on another thread instead of requesting a stop. SIGHUP has this effect even if it is
    /// ignored when the process starts, as under `nohup`.
    pub fn on_hang_up(&self, reload: impl Fn() + Send + 'static) {
        *self.0.on_hang_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(reload));
        if let Some(Err(error)) = self.0.signals.get().map(|signals| signals.add_signal(SIGHUP)) {
            tracing::warn!(%error, "cannot handle SIGHUP");
        }
    }

    /// Sets the handle for registering further signals.
    pub(crate) fn set_signals(&self, signals: signal_hook::iterator::Handle) {
        let _ = self.0.signals.set(signals);
    }

    /// Handles SIGHUP, which the kernel sends when the terminal closes, and which operators send to make a daemon
    /// reload its files. Returns whether a `reload` function was set, and has therefore been called.
    pub fn hang_up(&self) -> bool {
        let reload = self.0.on_hang_up.lock().unwrap_or_else(PoisonError::into_inner);
        reload.as_ref().map(|reload| reload()).is_some()
    }
}

/// The number of attempts to remove a directory. Other processes that exit together with this process may still create
/// files in the directory.
const REMOVALS: usize = 3;

fn remove_directory(path: &Path) {
    for _ in 0..REMOVALS {
        if std::fs::remove_dir_all(path).is_ok() {
            return;
        }
    }
}

/// Whether an incomplete file can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncompleteFileKind {
    /// The file cannot be used again.
    Useless,
    /// The same command can resume from the file.
    Resumable,
    /// A directory. Neither the directory nor its content can be used again.
    Directory,
}

/// A temporary file with a generated name. If a signal ends the process, a file that is not resumable is removed.
pub struct TemporaryFile {
    path: PathBuf,
    interrupt: InterruptFlag,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        self.interrupt.temporaries().remove(&self.path);
    }
}

impl fmt::Debug for InterruptFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupt").field(&self.is_raised()).finish()
    }
}
