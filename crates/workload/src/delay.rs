//! A target that is slower by a known amount: the check of the instrument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_measure::{Lane, Shuffle};
use fordway_store::{Key, Result};

use crate::Target;

/// Sleeps before every operation of the target within, and logs how long it really slept: a
/// measurement must recover the difference.
pub struct DelayTarget<T> {
    lane: Lane,
    within: T,
    delay: Duration,
    calls: AtomicU64,
    slept_ns: AtomicU64,
}

impl<T: Target> DelayTarget<T> {
    /// Delays `within` by `delay`, more or less a fifth of it.
    pub fn new(within: T, delay: Duration) -> Self {
        let name = format!("{}+delay", within.lane().name);
        let description = format!("{}, each call after a sleep of about {delay:?}", within.lane().name);
        let (calls, slept_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        DelayTarget { lane: Lane { name, description }, within, delay, calls, slept_ns }
    }

    /// The mean of the sleeps so far, in nanoseconds; `None` before the first.
    pub fn mean_slept_ns(&self) -> Option<f64> {
        let calls = self.calls.load(Ordering::Relaxed);
        (calls > 0).then(|| self.slept_ns.load(Ordering::Relaxed) as f64 / calls as f64)
    }

    fn sleep(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let fifth = self.delay / 5;
        let spread = Shuffle::new(call).below(1 + 2 * fifth.as_nanos() as usize) as u64;
        let before = Instant::now();
        std::thread::sleep(self.delay - fifth + Duration::from_nanos(spread));
        self.slept_ns.fetch_add(before.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl<T: Target> Target for DelayTarget<T> {
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
