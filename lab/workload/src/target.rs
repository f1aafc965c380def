//! The targets of operations. [`DelayInjectingTarget`] adds a known delay, to test the instrument.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_measure::{RowDescription, SeededRandom};
use fordway_store::{
    Bucket, ByteRange, DeleteOptions, Error, ErrorKind, GetOptions, Key, ListEntry, ListQuery, PutOptions,
    Result, Store,
};

/// Stores and fetches objects. The speed of these operations is measured. Several threads may call a target
/// concurrently.
pub trait MeasuredTarget: Send + Sync {
    /// Returns the target's name and description.
    fn lane(&self) -> &RowDescription;

    /// Returns the process whose CPU time counts as the server's; `None` if there is no server.
    fn server_pid(&self) -> Option<u32> {
        None
    }

    /// Stores `body` under `key`.
    fn put(&self, key: &Key, body: &[u8]) -> Result<()>;

    /// Returns all keys with their sizes in bytes, in byte order.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// Returns the object's size in bytes.
    fn head(&self, key: &Key) -> Result<u64>;

    /// Reads the object into `buffer`, replacing the content of the buffer.
    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()>;

    /// Reads `len` bytes (at least 1) from `offset` into `buffer`, replacing the content of the buffer.
    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()>;

    /// Removes the object.
    fn delete(&self, key: &Key) -> Result<()>;

    /// Removes everything that the target created.
    fn clean_up(&self) -> Result<()>;
}

/// The process ID of a server, which changes when the server is started again. Clones share one value.
#[derive(Clone, Debug)]
pub struct ServerPid(Arc<AtomicU32>);

impl ServerPid {
    /// Creates a shared process ID.
    pub fn new(pid: u32) -> Self {
        ServerPid(Arc::new(AtomicU32::new(pid)))
    }

    /// Returns the current process ID.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the process ID.
    pub fn set(&self, pid: u32) {
        self.0.store(pid, Ordering::Relaxed);
    }
}

/// A target on any store, in its own bucket or below a prefix in an existing bucket.
pub struct StoreTarget {
    lane: RowDescription,
    store: Arc<dyn Store>,
    bucket: Bucket,
    /// The prefix of all keys; empty if the target has its own bucket, which is removed at the end.
    prefix: String,
    server_pid: Option<ServerPid>,
}

impl StoreTarget {
    /// Creates `bucket` in `store`. [`MeasuredTarget::clean_up`] removes the bucket with its content.
    pub fn new(
        lane: RowDescription,
        store: Arc<dyn Store>,
        bucket: Bucket,
        server_pid: Option<ServerPid>,
    ) -> Result<Self> {
        store.create_bucket(&bucket)?;
        Ok(StoreTarget::within(lane, store, bucket, server_pid))
    }

    /// Creates a target below `prefix` (which must not be empty) in an existing bucket, which is kept.
    pub fn below(lane: RowDescription, store: Arc<dyn Store>, bucket: Bucket, prefix: String) -> Self {
        StoreTarget { lane, store, bucket, prefix, server_pid: None }
    }

    /// Creates a target in a bucket that exists or will exist before the first call.
    pub fn within(
        lane: RowDescription,
        store: Arc<dyn Store>,
        bucket: Bucket,
        server_pid: Option<ServerPid>,
    ) -> Self {
        StoreTarget { lane, store, bucket, prefix: String::new(), server_pid }
    }

    /// Returns the key in the store: the target's prefix and `key`.
    fn key<'k>(&self, key: &'k Key) -> Result<Cow<'k, Key>> {
        match self.prefix.is_empty() {
            // Borrow the key, because copying the key would take a noticeable share of an operation's time on our own
            // lanes.
            true => Ok(Cow::Borrowed(key)),
            false => Key::new(format!("{}{}", self.prefix, key.as_str())).map(Cow::Owned),
        }
    }

    fn pages(&self, mut visit: impl FnMut(ListEntry)) -> Result<()> {
        let mut query = ListQuery { prefix: self.prefix.clone(), ..ListQuery::default() };
        loop {
            let page = self.store.list(&self.bucket, &query)?;
            page.entries.into_iter().for_each(&mut visit);
            match page.next {
                Some(next) => query.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

impl MeasuredTarget for StoreTarget {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid.as_ref().map(ServerPid::get)
    }

    fn put(&self, key: &Key, body: &[u8]) -> Result<()> {
        self.store.put(&self.bucket, &*self.key(key)?, body, &PutOptions::default()).map(drop)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        let mut keys = Vec::new();
        self.pages(|entry| {
            if let ListEntry::Object(mut object) = entry {
                object.key.drain(..self.prefix.len().min(object.key.len()));
                keys.push((object.key, object.size));
            }
        })?;
        Ok(keys)
    }

    fn head(&self, key: &Key) -> Result<u64> {
        self.store.head(&self.bucket, &*self.key(key)?, &GetOptions::default()).map(|info| info.size)
    }

    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()> {
        self.store.read(&self.bucket, &*self.key(key)?, &GetOptions::default(), buffer).map(drop)
    }

    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let options = GetOptions::range(ByteRange::Inclusive(offset, offset + len - 1));
        self.store.read(&self.bucket, &*self.key(key)?, &options, buffer).map(drop)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.store.delete(&self.bucket, &*self.key(key)?, &DeleteOptions::default()).map(drop)
    }

    fn clean_up(&self) -> Result<()> {
        // After a signal, only a second signal ends the removal.
        fordway_sys::with_grace(Duration::MAX, || self.remove_everything())
    }
}

impl StoreTarget {
    /// Removes all objects of this target and, if the target has its own bucket, the bucket.
    fn remove_everything(&self) -> Result<()> {
        let full = |(key, _): (String, u64)| Key::new(self.prefix.clone() + &key);
        let keys = self.list()?.into_iter().map(full).collect::<Result<Vec<_>>>()?;
        for batch in keys.chunks(1000) {
            self.store.delete_many(&self.bucket, batch).into_iter().try_for_each(|done| done.map(drop))?;
        }
        if !self.prefix.is_empty() {
            return Ok(());
        }
        match self.store.delete_bucket(&self.bucket) {
            Err(error) if error.kind() == ErrorKind::NoSuchBucket => Ok(()),
            done => done,
        }
    }
}

/// Creates the error for a failed system call of a target. The message names the operation, the lane and the key.
pub(crate) fn failed(doing: &'static str, lane: &'static str, key: &Key, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NoSuchKey,
        _ => ErrorKind::from(&error),
    };
    Error::new(kind, "").caused_by(error).during(doing, lane, "files", key.as_str())
}

/// A target that sleeps before every operation of the target `within`, and counts the actual sleeping time. A correct
/// measurement reports latencies that are longer by this time.
pub struct DelayInjectingTarget {
    lane: RowDescription,
    within: Box<dyn MeasuredTarget>,
    delay: Duration,
    log: InjectedDelayCounter,
}

/// The time that a [`DelayInjectingTarget`] has slept so far. Clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct InjectedDelayCounter(Arc<InjectedDelayTotals>);

#[derive(Debug, Default)]
struct InjectedDelayTotals {
    calls: AtomicU64,
    ns: AtomicU64,
}

impl InjectedDelayCounter {
    /// Returns the mean duration of a sleep in nanoseconds; `None` before the first sleep.
    pub fn mean_ns(&self) -> Option<f64> {
        let calls = self.0.calls.load(Ordering::Relaxed);
        (calls > 0).then(|| self.0.ns.load(Ordering::Relaxed) as f64 / calls as f64)
    }
}

impl DelayInjectingTarget {
    /// Delays the operations of `within` by `delay`, plus or minus up to a fifth of `delay`.
    pub fn new(within: Box<dyn MeasuredTarget>, delay: Duration) -> Self {
        let name = format!("{}+delay", within.lane().name);
        let description = format!("{}, each call after a sleep of about {delay:?}", within.lane().name);
        DelayInjectingTarget {
            lane: RowDescription { name, description },
            within,
            delay,
            log: InjectedDelayCounter::default(),
        }
    }

    /// Returns the counter of the sleeping time, which can be read even after the target has been moved.
    pub fn log(&self) -> InjectedDelayCounter {
        self.log.clone()
    }

    fn sleep(&self) {
        let call = self.log.0.calls.fetch_add(1, Ordering::Relaxed);
        let fifth = self.delay / 5;
        let spread = SeededRandom::new(call).below(1 + 2 * fifth.as_nanos() as usize) as u64;
        let before = Instant::now();
        std::thread::sleep(self.delay - fifth + Duration::from_nanos(spread));
        self.log.0.ns.fetch_add(before.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl MeasuredTarget for DelayInjectingTarget {
    fn lane(&self) -> &RowDescription {
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
