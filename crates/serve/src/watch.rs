//! A thread that looks after what a gateway stands on: the directory, the credentials file.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);

enum Word {
    Reload,
    End,
}

/// Has a gateway read its files anew; clones tell the same one. Usable from any thread.
#[derive(Clone, Debug)]
pub struct Reload(Sender<Word>);

impl Reload {
    /// Reads the credentials file again and opens the access log anew, soon. A file that is broken is
    /// logged, and changes nothing.
    pub fn trigger(&self) {
        // Nobody listens once the gateway has ended.
        let _ = self.0.send(Word::Reload);
    }
}

/// What the thread will be told.
pub(crate) struct Words(Receiver<Word>);

pub(crate) fn words() -> (Reload, Words) {
    let (sender, receiver) = channel();
    (Reload(sender), Words(receiver))
}

/// The thread; it is told to end when this is dropped. Nobody waits for that, because a look at a
/// directory whose server is gone may last.
pub(crate) struct Watch(Reload);

impl Watch {
    /// Calls `look` each second, and with `true` when a reload was asked for.
    pub(crate) fn start(reload: Reload, words: Words, look: impl Fn(bool) + Send + 'static) -> Result<Self> {
        let watch = move || {
            loop {
                match words.0.recv_timeout(PERIOD) {
                    Ok(Word::Reload) => look(true),
                    Err(RecvTimeoutError::Timeout) => look(false),
                    Ok(Word::End) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let started = std::thread::Builder::new().name("fordway-watch".to_owned()).spawn(watch);
        started.map_err(|error| {
            Error::new(ErrorKind::Io, "starting a thread of the gateway").caused_by(error)
        })?;
        Ok(Watch(reload))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.0.send(Word::End);
    }
}
