//! Programs that a measurement starts, and what connects to it.

use std::io::ErrorKind::WouldBlock;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use fordway_command::file_error;

/// How long a program may take to start, or to end by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked after meanwhile.
const POLL: Duration = Duration::from_millis(5);

/// A program that ends with this: asked by what it reads from, and killed where it does not listen.
pub(super) struct Program {
    name: String,
    child: Child,
}

impl Program {
    pub(super) fn start(name: &str, command: &mut Command) -> Result<Self> {
        // What is killed does not ask anybody to end.
        fordway_sys::end_with_thread(command);
        let child = command.spawn().map_err(|error| file_error("starting", name, error))?;
        Ok(Program { name: name.to_owned(), child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks `is_ready` until it answers. Errors: `Unavailable` if the program ends first, or takes too long.
    pub(super) fn until<T>(&mut self, mut is_ready: impl FnMut() -> Option<T>) -> Result<T> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(ready) = is_ready() {
                return Ok(ready);
            }
            let ended =
                self.child.try_wait().map_err(|error| file_error("waiting for", &self.name, error))?;
            if ended.is_some() || Instant::now() > end {
                let how =
                    ended.map_or("is not ready after a minute".to_owned(), |how| format!("ended with {how}"));
                let why = format!("{} {how}; its messages above may say why", self.name);
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for one that ends when what it is connected to does.
    pub(super) fn finish(mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let ended =
                self.child.try_wait().map_err(|error| file_error("waiting for", &self.name, error))?;
            match ended {
                Some(how) if how.success() => return Ok(()),
                Some(how) => {
                    let why = format!("{} ended with {how}; its messages above may say why", self.name);
                    return Err(Error::new(ErrorKind::Unavailable, why));
                }
                None => std::thread::sleep(POLL),
            }
        }
        Err(Error::new(ErrorKind::Timeout, format!("{} did not end and was killed", self.name)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a program that is started for the purpose connects to.
pub(super) struct Door(TcpListener);

impl Door {
    pub(super) fn open() -> Result<Self> {
        let opened = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Door(listener))
        });
        opened.map_err(|error| file_error("listening on", "the loopback interface", error))
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.0.local_addr().map_err(|error| file_error("listening on", "the loopback interface", error))
    }

    /// The connection that `program` makes. Errors: `Unavailable` if it ends first.
    pub(super) fn wait_for(&self, program: &mut Program) -> Result<TcpStream> {
        let accepted = program.until(|| match self.0.accept() {
            Err(error) if error.kind() == WouldBlock => None,
            done => Some(done.map(|(stream, _)| stream)),
        })?;
        let failed = |error| file_error("accepting a connection of", &program.name, error);
        let stream = accepted.map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        Ok(stream)
    }
}
