//! A thread that watches the directory and the credentials file of a gateway.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{give_back_heap, unused_heap_bytes};

/// The time between two checks.
const PERIOD: Duration = Duration::from_secs(1);

enum WatchThreadCommand {
    Reload,
    End,
}

/// Makes a gateway reload its files. Clones signal the same gateway. The handle can be used from any thread.
#[derive(Clone, Debug)]
pub struct ReloadSignal(Sender<WatchThreadCommand>);

impl ReloadSignal {
    /// Makes the gateway's watch thread reread the credentials file and reopen the access log, and does not wait for
    /// the thread. If the credentials file is invalid, the gateway logs the error and keeps the previous credentials.
    pub fn trigger(&self) {
        // Sending fails only when the gateway has stopped.
        let _ = self.0.send(WatchThreadCommand::Reload);
    }
}

/// The receiving end of the channel to the watching thread.
pub(crate) struct WatchReceiver(Receiver<WatchThreadCommand>);

pub(crate) fn words() -> (ReloadSignal, WatchReceiver) {
    let (sender, receiver) = channel();
    (ReloadSignal(sender), WatchReceiver(receiver))
}

/// The thread that watches a gateway's directory and files. Dropping this value stops the thread. The drop does not
/// wait until the thread has stopped, because checking a directory whose server is unreachable may take a long time.
pub(crate) struct WatchThread(ReloadSignal);

impl WatchThread {
    /// Calls `look` with `false` every second, and with `true` when a reload is requested.
    pub(crate) fn start(
        reload: ReloadSignal,
        words: WatchReceiver,
        mut look: impl FnMut(bool) + Send + 'static,
    ) -> Result<Self> {
        let watch = move || {
            loop {
                match words.0.recv_timeout(PERIOD) {
                    Ok(WatchThreadCommand::Reload) => look(true),
                    Err(RecvTimeoutError::Timeout) => look(false),
                    Ok(WatchThreadCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
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
        let _ = self.0.0.send(WatchThreadCommand::End);
    }
}

/// The maximum amount of unused memory that the process keeps, in bytes.
const IDLE_BYTES_MAX: u64 = 32 << 20;
/// The number of checks after which memory counts as no longer needed.
const LOOKS: u32 = 5;

/// Detects freed memory that is not used again, so that the memory used by a burst of requests is returned to the
/// operating system.
#[derive(Default)]
pub(crate) struct HeapTrimmer {
    looks: u32,
    /// The smallest number of unused bytes in the current series of checks.
    least_bytes: u64,
}

impl HeapTrimmer {
    pub(crate) fn look(&mut self) {
        if self.is_idle(unused_heap_bytes()) {
            give_back_heap();
        }
    }

    /// Returns whether this check completes a series of `LOOKS` checks that all found too much unused memory.
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
            let mut heap = HeapTrimmer::default();
            unused.iter().filter(|unused| heap.is_idle(**unused)).count()
        };
        let much = 2 * IDLE_BYTES_MAX;
        assert_eq!(given_back(&[much; 4]), 0);
        assert_eq!(given_back(&[much; 10]), 2);
        assert_eq!(given_back(&[much, much, 0, much, much, much, 0, much, much, much]), 0);
    }
}
