//! Runs work that waits for devices on separate threads, so that the serving thread can continue to serve its other
//! clients.
//!
//! No request makes a serving thread wait for a lock, because any user who may write to a bucket can hold the bucket's
//! locks for any length of time. Work that finds a lock taken is repeated after a pause, or waits for the lock on a
//! separate thread. If the lock remains taken for the whole lock timeout, the response is 503, with the time after
//! which the client may retry.
//!
//! Work that needs a file server always runs on the threads of that server ([`NetworkFileServer`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fordway_store::{CommitFailure, Error, ErrorKind, ExpectedContent, PutResult, Store, Writer};
use fordway_sys::{with_lock_patience, without_scanning};

use crate::blocking::run_blocking;
use crate::file_server::NetworkFileServer;
use crate::s3::error::OperationResult;
use crate::users::User;

/// If a user's changes typically take longer than this duration, they run on another thread. The hand-over costs about
/// 20 µs.
const LONG: Duration = Duration::from_micros(200);

/// Runs `work` on a separate thread with the store of `user`. The separate thread uses the calling thread's store
/// object, so `work` acts as the same user. The work of one user occupies at most half of the separate threads, or half
/// of the threads of a file server. A user with large, slow directories therefore delays only their own requests.
/// Errors: the errors of `work`.
pub(super) async fn apart<T: Send + 'static>(
    user: Arc<User>,
    work: impl FnOnce(&dyn Store) -> OperationResult<T> + Send + 'static,
) -> OperationResult<T> {
    if let Some(server) = user.server.clone() {
        return server.run(move || work(&*user.store)).await?;
    }
    let _room = user.share.clone().acquire_owned().await;
    on_its_own(move || work(&*user.store)).await
}

/// Runs `work`, which takes locks, as [`apart`] does. The work waits for locks for at most the lock timeout of a
/// request ([`PATIENCE`]) in total. Errors: the errors of `work`.
pub(super) async fn change_apart<T: Send + 'static>(
    user: Arc<User>,
    work: impl FnOnce(&dyn Store) -> OperationResult<T> + Send + 'static,
) -> OperationResult<T> {
    apart(user, |store| with_lock_patience(PATIENCE, || work(store))).await
}

/// Runs `work`, which must be short, on the calling thread. If the request has to wait for a file server, runs `work`
/// on one of the threads that wait for this file server instead. Errors: the errors of `work`.
pub(super) async fn here_unless_remote<T: Send + 'static>(
    user: &Arc<User>,
    work: impl FnOnce(&dyn Store) -> OperationResult<T> + Send + 'static,
) -> OperationResult<T> {
    if user.server.is_none() { work(&*user.store) } else { apart(user.clone(), work).await }
}

async fn on_its_own<T: Send + 'static>(
    work: impl FnOnce() -> OperationResult<T> + Send + 'static,
) -> OperationResult<T> {
    run_blocking(work).await.unwrap_or_else(|ended| {
        Err(Error::new(ErrorKind::Internal, "work for a request ended early").caused_by(ended).into())
    })
}

/// The typical duration of publishing content, or of one user's other changes. If changes are typically slow, later
/// changes run on separate threads. Changes are slow if they wait for a disk, or read a large directory of old
/// versions. A change in memory costs less than its hand-over to another thread would.
#[derive(Default)]
pub(crate) struct PublishLatency {
    /// A moving average. Each measurement has a weight of one eighth.
    typical_us: AtomicU32,
}

impl PublishLatency {
    /// Publishes the content written to `writer`. `server` is the file server on which the writer depends, if any. If
    /// another writer holds the lock, retries for up to [`PATIENCE`]. Errors: the errors of publishing.
    pub(super) async fn publish(
        &self,
        writer: Box<dyn Writer>,
        expected: ExpectedContent,
        server: Option<&NetworkFileServer>,
    ) -> OperationResult<PutResult> {
        let (mut writer, expected, mut pauses) = (writer, Arc::new(expected), None);
        loop {
            match self.try_publish(writer, expected.clone(), server).await? {
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
        server: Option<&NetworkFileServer>,
    ) -> OperationResult<Result<PutResult, CommitFailure>> {
        let commit = move || {
            let started = Instant::now();
            let made = with_lock_patience(Duration::ZERO, || writer.try_commit(&expected));
            Ok((made, started.elapsed()))
        };
        if let Some(server) = server {
            return Ok(server.run(commit).await??.0);
        }
        let (made, took) = if self.is_long() { on_its_own(commit).await? } else { commit()? };
        self.took(took);
        Ok(made)
    }

    /// Returns whether changes typically take [`LONG`] or longer, in which case they run on a separate thread.
    fn is_long(&self) -> bool {
        u128::from(self.typical_us.load(Ordering::Relaxed)) >= LONG.as_micros()
    }

    /// Updates the average. Threads may overwrite each other's updates; a lost measurement does not matter.
    fn took(&self, time: Duration) {
        let before = i64::from(self.typical_us.load(Ordering::Relaxed));
        let latest = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).min(10_000_000);
        let now = before + (latest - before) / 8;
        self.typical_us.store(u32::try_from(now).unwrap_or(0), Ordering::Relaxed);
    }
}

/// The lock timeout of a request: the total time for which the request waits for locks.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The first pause between two attempts to take a lock.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// The longest pause between two attempts to take a lock.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The pauses of one request between its attempts to take a lock.
pub(super) struct RetryPauses {
    started: Instant,
    next: Duration,
}

impl RetryPauses {
    pub(super) fn new() -> Self {
        RetryPauses { started: Instant::now(), next: PAUSE_MIN }
    }

    /// Pauses before the next attempt. Returns `false` immediately if the request has waited for [`PATIENCE`].
    pub(super) async fn pause(&mut self) -> bool {
        if self.started.elapsed() >= PATIENCE {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }
}

/// Runs `change`. If `change` finds a lock taken, repeats `change` for up to [`PATIENCE`]. `change` runs on a separate
/// thread if the user's changes typically take a long time, or if it reaches a large directory. An attempt that finds a
/// lock taken must not have changed anything. Errors: the errors of `change`.
pub(super) async fn until_unlocked<T: Send + 'static>(
    user: Arc<User>,
    change: impl Fn(&dyn Store) -> OperationResult<T> + Clone + Send + 'static,
) -> OperationResult<T> {
    let mut pauses = None;
    loop {
        let (timed, pace) = (change.clone(), user.clone());
        let attempt = move |store: &dyn Store| {
            let started = Instant::now();
            let done = with_lock_patience(Duration::ZERO, || timed(store));
            pace.changes.took(started.elapsed());
            done
        };
        let here = (user.server.is_none() && !user.changes.is_long())
            .then(|| without_scanning(|| attempt(&*user.store)))
            .flatten();
        let done = match here {
            Some(done) => done,
            None => apart(user.clone(), attempt).await,
        };
        match done {
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
        let (pace, seen) = (PublishLatency::default(), Arc::new(Mutex::new(Vec::new())));
        let runtime = crate::workers::new_runtime().unwrap();
        for time in [Duration::ZERO, 16 * LONG, Duration::ZERO] {
            let writer = store.writer(&bucket, &key, &PutOptions::default()).unwrap();
            let slow = Box::new(Slow(writer, time, seen.clone()));
            let made = pace.publish(slow, ExpectedContent::default(), None);
            runtime.block_on(made).map_err(|_| "it fails").unwrap();
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
        let pace = PublishLatency::default();
        pace.took(100 * LONG);
        assert!(u128::from(pace.typical_us.load(Ordering::Relaxed)) >= LONG.as_micros());
        (0..40).for_each(|_| pace.took(Duration::ZERO));
        assert!(u128::from(pace.typical_us.load(Ordering::Relaxed)) < LONG.as_micros());
    }

    #[test]
    fn work_is_done_on_another_thread_and_its_panic_is_an_error() {
        let runtime = crate::workers::new_runtime().unwrap();
        let user = User::of_tests(1, Arc::new(MemoryStore::default()));
        let at = runtime.block_on(apart(user.clone(), |_| Ok(thread::current().id())));
        assert_ne!(at.map_err(|_| "it fails").unwrap(), thread::current().id());
        let ended = runtime.block_on(apart(user, |_| -> OperationResult<()> { panic!("in the middle") }));
        assert_eq!(ended.err().unwrap().0.code().as_str(), "InternalFailure");
    }

    #[test]
    fn work_is_tried_until_the_lock_is_free() {
        let runtime = crate::workers::new_runtime().unwrap();
        let user = User::of_tests(1, Arc::new(MemoryStore::default()));
        let tries = Arc::new(AtomicU32::new(0));
        let change = move |_: &dyn Store| match tries.fetch_add(1, Ordering::Relaxed) {
            3 => Ok(()),
            _ => Err(Error::from(ErrorKind::LockTimeout).into()),
        };
        assert!(runtime.block_on(until_unlocked(user.clone(), change)).is_ok());
        let fail = |_: &dyn Store| -> OperationResult<()> { Err(Error::from(ErrorKind::Io).into()) };
        let failed = runtime.block_on(until_unlocked(user, fail));
        assert_eq!(failed.err().unwrap().0.code().as_str(), "InternalError");
    }

    #[test]
    fn a_change_that_comes_to_a_large_directory_is_made_apart() {
        let runtime = crate::workers::new_runtime().unwrap();
        let user = User::of_tests(1, Arc::new(MemoryStore::default()));
        let large = tempfile::tempdir().unwrap();
        for number in 0..3000 {
            std::fs::write(large.path().join(format!("{number:020}")), "").unwrap();
        }
        let (path, threads) = (large.path().to_owned(), Arc::new(Mutex::new(Vec::new())));
        let seen = threads.clone();
        let change = move |_: &dyn Store| {
            seen.lock().unwrap().push(thread::current().id());
            let (dir, mut count) = (std::fs::File::open(&path).unwrap(), 0);
            let read = fordway_sys::read_dir_briefly(&dir, |_, _| count += 1);
            read.map(|()| count).map_err(|errno| Error::from(ErrorKind::Io).caused_by(errno).into())
        };
        assert_eq!(runtime.block_on(until_unlocked(user, change)).map_err(|_| "it fails").unwrap(), 3000);
        let here = thread::current().id();
        let threads = threads.lock().unwrap();
        assert_eq!(threads.iter().map(|thread| *thread == here).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn changes_of_a_user_whose_changes_take_long_are_made_apart() {
        let runtime = crate::workers::new_runtime().unwrap();
        let slow = User::of_tests(1, Arc::new(MemoryStore::default()));
        let quick = User::of_tests(2, Arc::new(MemoryStore::default()));
        let change = |time| {
            move |_: &dyn Store| {
                thread::sleep(time);
                Ok(thread::current().id())
            }
        };
        let run = |user: &Arc<User>, time| {
            runtime.block_on(until_unlocked(user.clone(), change(time))).ok().unwrap()
        };
        let here = thread::current().id();
        assert_eq!(run(&slow, 16 * LONG), here, "nobody knew yet");
        assert_ne!(run(&slow, Duration::ZERO), here);
        assert_eq!(run(&quick, Duration::ZERO), here, "another user is not affected");
    }
}
