//! A thread that looks after what a gateway stands on: the directory, the credentials file.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{give_back_heap, unused_heap_bytes};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);

enum WatchMessage {
    Reload,
    End,
}

/// Has a gateway read its files anew; clones tell the same one. Usable from any thread.
#[derive(Clone, Debug)]
pub struct ReloadSignal(Sender<WatchMessage>);

impl ReloadSignal {
    /// Reads the credentials file again and opens the access log anew, soon. A file that is broken is
    /// logged, and changes nothing.
    pub fn trigger(&self) {
        // Nobody listens once the gateway has ended.
        let _ = self.0.send(WatchMessage::Reload);
    }
}

/// What the thread will be told.
pub(crate) struct WatchReceiver(Receiver<WatchMessage>);

pub(crate) fn words() -> (ReloadSignal, WatchReceiver) {
    let (sender, receiver) = channel();
    (ReloadSignal(sender), WatchReceiver(receiver))
}

/// The thread; it is told to end when this is dropped. Nobody waits for that, because a look at a
/// directory whose server is gone may last.
pub(crate) struct WatchThread(ReloadSignal);

impl WatchThread {
    /// Calls `look` each second, and with `true` when a reload was asked for.
    pub(crate) fn start(
        reload: ReloadSignal,
        words: WatchReceiver,
        mut look: impl FnMut(bool) + Send + 'static,
    ) -> Result<Self> {
        let watch = move || {
            loop {
                match words.0.recv_timeout(PERIOD) {
                    Ok(WatchMessage::Reload) => look(true),
                    Err(RecvTimeoutError::Timeout) => look(false),
                    Ok(WatchMessage::End) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let started = std::thread::Builder::new().name("fordway-watch".to_owned()).spawn(watch);
        started.map_err(|error| {
            Error::new(ErrorKind::Io, "starting a thread of the gateway").caused_by(error)
        })?;
        Ok(WatchThread(reload))
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        let _ = self.0.0.send(WatchMessage::End);
    }
}

/// So much memory may lie idle.
const IDLE_BYTES_MAX: u64 = 32 << 20;
/// Looks after which it is known that nobody uses it.
const LOOKS: u32 = 5;

/// Memory that was freed and is not used again: after a burst of requests that is given back to the system.
#[derive(Default)]
pub(crate) struct IdleHeap {
    looks: u32,
    /// The least that lay idle since.
    least_bytes: u64,
}

impl IdleHeap {
    pub(crate) fn look(&mut self) {
        if self.is_idle(unused_heap_bytes()) {
            give_back_heap();
        }
    }

    /// Whether too much has been idle all the time.
    fn is_idle(&mut self, unused_bytes: u64) -> bool {
        self.least_bytes = if self.looks == 0 { unused_bytes } else { self.least_bytes.min(unused_bytes) };
        self.looks += 1;
        let is_over = self.looks == LOOKS;
        self.looks %= LOOKS;
        is_over && self.least_bytes > IDLE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_idle_is_given_back() {
        let given_back = |unused: &[u64]| {
            let mut heap = IdleHeap::default();
            unused.iter().filter(|unused| heap.is_idle(**unused)).count()
        };
        let much = 2 * IDLE_BYTES_MAX;
        assert_eq!(given_back(&[much; 4]), 0);
        assert_eq!(given_back(&[much; 10]), 2);
        assert_eq!(given_back(&[much, much, 0, much, much, much, 0, much, much, much]), 0);
    }
}
