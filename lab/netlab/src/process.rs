//! Programs inside a namespace.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use crate::namespace::refused;
use crate::{Mounts, Namespace};

/// How long a program has to end by itself when it is asked to.
const GRACE: Duration = Duration::from_secs(1);
/// How often a program is looked after.
const POLL: Duration = Duration::from_millis(5);

/// A program in a namespace. When this is dropped it is asked to end (SIGTERM), and a second later it
/// is killed; when the thread or process that holds it dies, it is killed at once.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The kernel ties the program to the thread that started it, so that thread stays.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Namespace {
    /// Starts a program in the namespace. Errors: `InvalidArgument` if there is no such program.
    pub fn start(&self, command: Command) -> Result<Process> {
        Process::start(Some(self), None, command, false)
    }

    /// Starts a program that is to leave nothing behind: what it starts in turn, in the background or
    /// not, ends with it. It is the first process of a process namespace, so its own number is 1.
    pub fn start_contained(&self, command: Command) -> Result<Process> {
        Process::start(Some(self), None, command, true)
    }

    /// The same for a program that sees the files of `mounts`.
    pub fn start_within(&self, mounts: &Mounts, command: Command) -> Result<Process> {
        Process::start(Some(self), Some(mounts.clone()), command, true)
    }
}

impl Process {
    /// Starts a program in the network of this process that is to leave nothing behind, as
    /// [`Namespace::start_contained`] does. Errors: `NotImplemented` where this process may not.
    pub fn start_contained_here(command: Command) -> Result<Self> {
        Process::start(None, None, command, true)
    }

    /// Starts a program in the network of this process.
    pub fn start_here(command: Command) -> Result<Self> {
        Process::start(None, None, command, false)
    }

    fn start(
        namespace: Option<&Namespace>,
        mounts: Option<Mounts>,
        command: Command,
        is_contained: bool,
    ) -> Result<Self> {
        let namespace = namespace.cloned();
        let (started, child) = mpsc::channel();
        let (keeper, until_dropped) = mpsc::channel::<()>();
        let keep = move || {
            // An answer that nobody takes, and an end without a message, are both in order.
            let _ = started.send(launch(namespace.as_ref(), mounts.as_ref(), command, is_contained));
            let _ = until_dropped.recv();
        };
        let thread = std::thread::Builder::new().name("netlab-process".to_owned());
        let thread = thread
            .spawn(keep)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        let child = child
            .recv()
            .map_err(|_| Error::new(ErrorKind::Internal, "the thread that starts programs is gone"))??;
        Ok(Process { child, keeper: Some((keeper, thread)) })
    }

    /// Its number outside of any process namespace.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` if it runs on.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(|error| Error::new(ErrorKind::Io, "waiting for a program").caused_by(error))
    }

    /// Waits until it has ended, or until `stop` says so (`None`); asks every 5 ms.
    pub fn wait(&mut self, mut stop: impl FnMut() -> bool) -> Result<Option<ExitStatus>> {
        loop {
            match self.ended()? {
                None if stop() => return Ok(None),
                None => std::thread::sleep(POLL),
                ended => return Ok(ended),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An input that ends is a request to end, too, and one that reaches programs elsewhere.
        drop(self.child.stdin.take());
        if let Ok(None) = self.child.try_wait() {
            // It is not yet waited for, so the number is still its own.
            let _ = fordway_sys::terminate(self.child.id());
            let asked = Instant::now();
            if let Ok(None) = self.wait(|| asked.elapsed() > GRACE) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        if let Some((keeper, thread)) = self.keeper.take() {
            drop(keeper);
            let _ = thread.join();
        }
    }
}

/// Starts a program from the calling thread, which is in the namespace from then on.
fn launch(
    namespace: Option<&Namespace>,
    mounts: Option<&Mounts>,
    mut command: Command,
    is_contained: bool,
) -> Result<Child> {
    if let Some(namespace) = namespace {
        namespace.enter()?;
    }
    if let Some(mounts) = mounts {
        mounts.enter()?;
    }
    if is_contained {
        fordway_sys::own_process_namespace()
            .map_err(|error| refused("making a process namespace", error.into()))?;
    }
    fordway_sys::end_with_thread(&mut command);
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| failed_to_start(&program, error))
}

fn failed_to_start(program: &str, error: io::Error) -> Error {
    let (kind, why) = match error.kind() {
        io::ErrorKind::NotFound => (ErrorKind::InvalidArgument, "there is no such program in PATH"),
        _ => (ErrorKind::Io, "it does not start"),
    };
    Error::new(kind, format!("{program}: {why}")).caused_by(error)
}
