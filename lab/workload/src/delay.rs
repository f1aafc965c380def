//! A target that is slower by a known amount: the check of the instrument.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_measure::{Lane, Shuffle};
use fordway_store::{Key, Result};

use crate::Target;

/// Sleeps before every operation of the target within, and logs how long it really slept: a
/// measurement must recover the difference.
pub struct DelayTarget {
    lane: Lane,
    within: Box<dyn Target>,
    delay: Duration,
    log: DelayLog,
}

/// What a [`DelayTarget`] slept so far; clones share it.
#[derive(Clone, Debug, Default)]
pub struct DelayLog(Arc<Slept>);

#[derive(Debug, Default)]
struct Slept {
    calls: AtomicU64,
    ns: AtomicU64,
}

impl DelayLog {
    /// The mean sleep in nanoseconds; `None` before the first.
    pub fn mean_ns(&self) -> Option<f64> {
        let calls = self.0.calls.load(Ordering::Relaxed);
        (calls > 0).then(|| self.0.ns.load(Ordering::Relaxed) as f64 / calls as f64)
    }
}

impl DelayTarget {
    /// Delays `within` by `delay`, more or less a fifth of it.
    pub fn new(within: Box<dyn Target>, delay: Duration) -> Self {
        let name = format!("{}+delay", within.lane().name);
        let description = format!("{}, each call after a sleep of about {delay:?}", within.lane().name);
        DelayTarget { lane: Lane { name, description }, within, delay, log: DelayLog::default() }
    }

    /// What was slept, to be asked when the target is out of sight.
    pub fn log(&self) -> DelayLog {
        self.log.clone()
    }

    fn sleep(&self) {
        let call = self.log.0.calls.fetch_add(1, Ordering::Relaxed);
        let fifth = self.delay / 5;
        let spread = Shuffle::new(call).below(1 + 2 * fifth.as_nanos() as usize) as u64;
        let before = Instant::now();
        std::thread::sleep(self.delay - fifth + Duration::from_nanos(spread));
        self.log.0.ns.fetch_add(before.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Target for DelayTarget {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn server_pid(&self) -> Option<u32> {
        self.within.server_pid()
    }

    fn put(&self, key: &Key, body: &[u8]) -> Result<()> {
        self.sleep();
        self.within.put(key, body)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.sleep();
        self.within.list()
    }

    fn head(&self, key: &Key) -> Result<u64> {
        self.sleep();
        self.within.head(key)
    }

    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()> {
        self.sleep();
        self.within.get(key, buffer)
    }

    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        self.sleep();
        self.within.get_range(key, offset, len, buffer)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.sleep();
        self.within.delete(key)
    }

    fn clean_up(&self) -> Result<()> {
        self.within.clean_up()
    }
}
