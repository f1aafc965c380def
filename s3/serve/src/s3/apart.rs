//! Runs work that waits for devices on separate threads, so that the serving thread can continue with its other
//! clients.
//!
//! No thread waits for a lock. Anyone who may write to a bucket may hold its locks for as long as they like, so work
//! that finds a lock taken is retried later, and finally answered with 503 and a time to come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fordway_store::{CommitFailure, Error, ErrorKind, ExpectedContent, PutResult, Store, Writer};
use fordway_sys::with_lock_patience;

use crate::s3::error::Outcome;
use crate::users::User;

/// Work that takes at least this long is worth handing over to another thread, which costs about 20 µs.
const LONG: Duration = Duration::from_micros(200);

/// Runs `work` on a separate thread with the store of `user`. It is the same store object, so it acts as the same user.
/// Errors: from `work`.
pub(super) async fn apart<T: Send + 'static>(
    user: Arc<User>,
    work: impl FnOnce(&dyn Store) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    on_its_own(move || work(&*user.store)).await
}

/// Like [`apart`], for work that takes locks. A user who holds locks delays only their own requests: each user's work
/// occupies at most half of the threads. Errors: from `work`.
pub(super) async fn change_apart<T: Send + 'static>(
    user: Arc<User>,
    work: impl FnOnce(&dyn Store) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let _room = user.share.clone().acquire_owned().await;
    on_its_own(move || with_lock_patience(PATIENCE, || work(&*user.store))).await
}

async fn on_its_own<T: Send + 'static>(work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Outcome<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| {
        Err(Error::new(ErrorKind::Internal, "work for a request ended early").caused_by(ended).into())
    })
}

/// The typical time of publishing content. If publishing waits for a disk, each publication runs on a separate thread,
/// so that the disk can reorder many requests. If it happens in memory, another thread would cost more.
#[derive(Default)]
pub(crate) struct PublishPace {
    /// A moving average: moves an eighth of the way to each measurement.
    typical_us: AtomicU32,
}

impl PublishPace {
    /// Publishes the content written to `writer`, and retries while another writer holds the lock. Errors: from
    /// publishing.
    pub(super) async fn publish(
        &self,
        writer: Box<dyn Writer>,
        expected: ExpectedContent,
    ) -> Outcome<PutResult> {
        let (mut writer, expected, mut pauses) = (writer, Arc::new(expected), None);
        loop {
            match self.try_publish(writer, expected.clone()).await? {
                Ok(made) => return Ok(made),
                Err(CommitFailure::Failed(error)) => return Err(error.into()),
                Err(CommitFailure::Locked(back, error)) => {
                    if !pauses.get_or_insert_with(RetryPauses::new).pause().await {
                        return Err(error.into());
                    }
                    writer = back;
                }
            }
        }
    }

    async fn try_publish(
        &self,
        writer: Box<dyn Writer>,
        expected: Arc<ExpectedContent>,
    ) -> Outcome<Result<PutResult, CommitFailure>> {
        let commit = move || {
            let started = Instant::now();
            let made = with_lock_patience(Duration::ZERO, || writer.try_commit(&expected));
            Ok((made, started.elapsed()))
        };
        let is_long = u128::from(self.typical_us.load(Ordering::Relaxed)) >= LONG.as_micros();
        let (made, took) = if is_long { on_its_own(commit).await? } else { commit()? };
        self.took(took);
        Ok(made)
    }

    /// Updates the average. Threads may overwrite each other's update; one lost measurement does not matter.
    fn took(&self, time: Duration) {
        let before = i64::from(self.typical_us.load(Ordering::Relaxed));
        let latest = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).min(10_000_000);
        let now = before + (latest - before) / 8;
        self.typical_us.store(u32::try_from(now).unwrap_or(0), Ordering::Relaxed);
    }
}

/// How long a request waits for locks in total.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The first and the longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The pauses of one request between its attempts.
pub(super) struct RetryPauses {
    started: Instant,
    next: Duration,
}

impl RetryPauses {
    pub(super) fn new() -> Self {
        RetryPauses { started: Instant::now(), next: PAUSE_MIN }
    }

    /// Pauses before the next attempt. Returns `false` at once if the request has waited for long enough.
    pub(super) async fn pause(&mut self) -> bool {
        if self.started.elapsed() >= PATIENCE {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }
}

/// Repeats `work` until it finds no lock taken. An attempt that finds a lock taken must not have changed anything.
/// Errors: from `work`.
pub(super) async fn until_unlocked<T>(mut work: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let mut pauses = None;
    loop {
        match with_lock_patience(Duration::ZERO, &mut work) {
            Err(failure) if failure.is_lock_timeout() => {
                if !pauses.get_or_insert_with(RetryPauses::new).pause().await {
                    return Err(failure);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;
    use std::thread::ThreadId;

    use fordway_store::{Bucket, Error, ErrorKind, Key, MemoryStore, Objects, PutOptions, Result};

    use super::*;

    /// A writer that records the thread on which it is committed, and delays the commit.
    struct Slow(Box<dyn Writer>, Duration, Arc<Mutex<Vec<ThreadId>>>);

    impl Writer for Slow {
        fn write(&mut self, data: &[u8]) -> Result<()> {
            self.0.write(data)
        }

        fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
            self.2.lock().unwrap().push(thread::current().id());
            thread::sleep(self.1);
            self.0.commit(expected)
        }
    }

    #[test]
    fn what_takes_long_is_published_apart_from_then_on() {
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        let store = MemoryStore::default();
        store.create_bucket(&bucket).unwrap();
        let (pace, seen) = (PublishPace::default(), Arc::new(Mutex::new(Vec::new())));
        let runtime = crate::workers::new_runtime().unwrap();
        for time in [Duration::ZERO, 16 * LONG, Duration::ZERO] {
            let writer = store.writer(&bucket, &key, &PutOptions::default()).unwrap();
            let slow = Box::new(Slow(writer, time, seen.clone()));
            runtime.block_on(pace.publish(slow, ExpectedContent::default())).map_err(|_| "it fails").unwrap();
        }
        let here = thread::current().id();
        assert_eq!(
            seen.lock().unwrap().iter().map(|at| *at == here).collect::<Vec<_>>(),
            [true, true, false]
        );
        assert!(store.get(&bucket, &key, &Default::default()).is_ok());
    }

    #[test]
    fn what_is_quick_again_is_published_here_again() {
        let pace = PublishPace::default();
        pace.took(100 * LONG);
        assert!(u128::from(pace.typical_us.load(Ordering::Relaxed)) >= LONG.as_micros());
        (0..40).for_each(|_| pace.took(Duration::ZERO));
        assert!(u128::from(pace.typical_us.load(Ordering::Relaxed)) < LONG.as_micros());
    }

    #[test]
    fn work_is_done_on_another_thread_and_its_panic_is_an_error() {
        let runtime = crate::workers::new_runtime().unwrap();
        let user = User::of_peer(1, Arc::new(MemoryStore::default()));
        let at = runtime.block_on(apart(user.clone(), |_| Ok(thread::current().id())));
        assert_ne!(at.map_err(|_| "it fails").unwrap(), thread::current().id());
        let ended = runtime.block_on(apart(user, |_| -> Outcome<()> { panic!("in the middle") }));
        assert_eq!(ended.err().unwrap().0.code().as_str(), "InternalFailure");
    }

    #[test]
    fn work_is_tried_until_the_lock_is_free() {
        let runtime = crate::workers::new_runtime().unwrap();
        let mut tries = 0;
        let done = runtime.block_on(until_unlocked(|| {
            tries += 1;
            if tries < 4 { Err(Error::from(ErrorKind::LockTimeout).into()) } else { Ok(tries) }
        }));
        assert_eq!(done.map_err(|_| "it fails"), Ok(4));
        let failed =
            runtime.block_on(until_unlocked(|| -> Outcome<()> { Err(Error::from(ErrorKind::Io).into()) }));
        assert_eq!(failed.err().unwrap().0.code().as_str(), "InternalError");
    }
}
