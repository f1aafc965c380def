//! File servers, for buckets on a network file system. A call that needs a file server blocks until the server
//! responds, which may take minutes. No signal or deadline interrupts the call. Such calls therefore run on separate
//! threads, and a caller stops waiting if the server does not respond in time. Until the server responds again, further
//! calls fail immediately.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fordway_store::{
    CommitFailure, Error, ErrorKind, ExpectedContent, FileRegion, FileServerProbe, PutResult, Store, Writer,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::blocking::on_threads_of;
use crate::buffers::BufferChunk;
use crate::workers::{READERS_MAX, no_thread};

/// The time after which a pending call triggers a check of whether the server still responds.
const QUIET: Duration = Duration::from_secs(1);
/// The maximum time that the server may take to respond to a check.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The maximum number of calls that wait for one file server.
const CALLS_MAX: usize = 2 * READERS_MAX;
/// The maximum number of one user's calls that wait for one file server. Because of this limit, a user whose calls take
/// a long time delays only their own requests.
const SHARE: usize = READERS_MAX;
/// The interval at which a waiting call checks whether the server has responded.
const TICK: Duration = Duration::from_millis(100);

/// The file servers that this process uses, by the ID of their file system. All gateways of the process share these
/// file servers, and no file server is ever removed.
///
/// A thread that waits for a file server has the permissions of the thread that started it. Work on these threads must
/// therefore set its user itself, as the stores of a credentials file do. [`crate::users::User::at`] ensures this.
static SERVERS: LazyLock<Mutex<HashMap<u64, Arc<FileServerThreads>>>> = LazyLock::new(Mutex::default);

/// One user's access to the file server of a bucket.
#[derive(Clone)]
pub(crate) struct NetworkFileServer {
    threads: Arc<FileServerThreads>,
    /// The [`SHARE`] permits for the user's calls.
    share: Arc<Semaphore>,
    probe: FileServerProbe,
}

/// The threads that wait for one file server.
struct FileServerThreads {
    /// The runtime is used only for its blocking threads. While the server is silent, all of these threads may be
    /// blocked, so each server has its own pool.
    pool: Runtime,
    /// The permits for calls. There is one permit fewer than there are threads, so that one thread is always free to
    /// check whether the server responds.
    room: Arc<Semaphore>,
    /// Each user's share of the permits, by the uid that accesses files. Shares are never removed.
    shares: Mutex<HashMap<u32, Arc<Semaphore>>>,
    dialogue: Mutex<FileServerHealth>,
}

/// The latest check of whether a file server responds.
#[derive(Default)]
struct FileServerHealth {
    /// The time at which the pending check was sent; `None` if the server has responded.
    asked: Option<Instant>,
    /// The time at which the server last responded.
    responded: Option<Instant>,
}

impl NetworkFileServer {
    /// Returns the server on which calls to `store` for `bucket` depend, if there is one. The calls access files as
    /// `uid`. Cost: no system call. Errors: `Io` if no thread can be started.
    pub(crate) fn of(store: &dyn Store, bucket: &str, uid: u32) -> Result<Option<Self>, Error> {
        let Some(probe) = store.file_server(bucket) else { return Ok(None) };
        let mut servers = locked(&SERVERS);
        let threads = match servers.get(&probe.file_system) {
            Some(threads) => threads.clone(),
            None => {
                let threads = Arc::new(FileServerThreads::new()?);
                servers.insert(probe.file_system, threads.clone());
                threads
            }
        };
        Ok(Some(NetworkFileServer { share: threads.share_of(uid), threads, probe }))
    }

    /// Runs `work` on a thread that waits for this server. Errors: `Unavailable` if the server does not respond. After
    /// this error, `work` may still run when the server responds again.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let own = self.while_responding(self.share.clone().acquire_owned()).await?;
        let room = self.while_responding(self.threads.room.clone().acquire_owned()).await?;
        let working = on_threads_of(self.threads.pool.handle(), move || {
            let _held = (own, room);
            work()
        });
        let done = self.while_responding(working).await?;
        done.map_err(|ended| {
            Error::new(ErrorKind::Internal, "work for a request ended early").caused_by(ended)
        })
    }

    /// Waits for `work` as long as the server keeps responding. Errors: `Unavailable`.
    async fn while_responding<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let (mut work, began) = (pin!(work), Instant::now());
        loop {
            if !self.responds() {
                return Err(Error::new(ErrorKind::Unavailable, "the file server does not respond"));
            }
            if let Ok(done) = timeout(TICK, work.as_mut()).await {
                return Ok(done);
            }
            if began.elapsed() >= QUIET {
                self.ask();
            }
        }
    }

    /// Wraps `writer`, so that dropping the wrapper does not block the caller. Even dropping an unused writer may
    /// require a call that waits for this server.
    pub(crate) fn guard(&self, writer: Box<dyn Writer>) -> Box<dyn Writer> {
        Box::new(FileServerWriter { inner: Some(writer), server: self.clone() })
    }

    /// Drops `value` on another thread, because the drop may have to wait for this server. For example, closing a file
    /// may flush its remaining data.
    fn drop_apart<T: Send + 'static>(&self, value: T) {
        drop(on_threads_of(self.threads.pool.handle(), move || drop(value)));
    }

    /// Returns whether the server responds. The result is false if a check has been pending for [`SILENCE_MAX`] or
    /// longer.
    pub(crate) fn responds(&self) -> bool {
        self.silence() < SILENCE_MAX
    }

    /// Returns the time for which the pending check has waited for a response; zero if no check is pending.
    fn silence(&self) -> Duration {
        locked(&self.threads.dialogue).asked.map_or(Duration::ZERO, |asked| asked.elapsed())
    }

    /// Starts a check of whether the server responds, unless an earlier check is still pending or the server has just
    /// responded.
    fn ask(&self) {
        let mut dialogue = locked(&self.threads.dialogue);
        let is_fresh = dialogue.responded.is_some_and(|responded| responded.elapsed() < QUIET);
        if dialogue.asked.is_some() || is_fresh {
            return;
        }
        dialogue.asked = Some(Instant::now());
        let (threads, ask) = (self.threads.clone(), self.probe.ask.clone());
        self.threads.pool.spawn_blocking(move || {
            ask();
            *locked(&threads.dialogue) = FileServerHealth { asked: None, responded: Some(Instant::now()) };
        });
    }
}

/// A writer that is dropped on a thread that may block.
struct FileServerWriter {
    inner: Option<Box<dyn Writer>>,
    server: NetworkFileServer,
}

impl FileServerWriter {
    fn take(&mut self) -> Result<Box<dyn Writer>, Error> {
        self.inner
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the writer was used after commit or abort"))
    }
}

impl Writer for FileServerWriter {
    fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let ended = || Error::new(ErrorKind::Internal, "the writer was used after commit or abort");
        self.inner.as_mut().ok_or_else(ended)?.write(data)
    }

    fn note_form(&mut self) {
        if let Some(writer) = &mut self.inner {
            writer.note_form();
        }
    }

    fn commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult, Error> {
        self.take()?.commit(expected)
    }

    fn try_commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult, CommitFailure> {
        let done = self.take().map_err(CommitFailure::Failed)?.try_commit(expected);
        done.map_err(|why| match why {
            CommitFailure::Locked(writer, error) => CommitFailure::Locked(self.server.guard(writer), error),
            failed => failed,
        })
    }
}

impl Drop for FileServerWriter {
    fn drop(&mut self) {
        if let Some(writer) = self.inner.take() {
            self.server.drop_apart(writer);
        }
    }
}

/// A region of a file from a file server.
pub(crate) struct FileServerRegion {
    /// The open file; `None` only while this value is being dropped.
    file: Option<Arc<File>>,
    offset: u64,
    pub(crate) len: u64,
    server: NetworkFileServer,
}

impl FileServerRegion {
    pub(crate) fn new(region: FileRegion, server: &NetworkFileServer) -> Self {
        let FileRegion { file, offset, len } = region;
        FileServerRegion { file: Some(Arc::new(file)), offset, len, server: server.clone() }
    }

    /// Reads `range` of the region, at most [`crate::buffers::CHUNK_BYTES`]. Errors: `UnexpectedEof` if the file is too
    /// short or the server does not respond.
    pub(crate) async fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let file = self.file.clone().ok_or(io::ErrorKind::UnexpectedEof)?;
        let (offset, len) = (self.offset + range.start, (range.end - range.start) as usize);
        let read = move || {
            let mut chunk = BufferChunk::new();
            file.read_exact_at(&mut chunk.memory()[..len], offset)?;
            Ok(chunk.into_bytes(len))
        };
        self.server.run(read).await.map_err(io::Error::other)?
    }

    /// Returns the region without its first `bytes` bytes.
    pub(crate) fn after(mut self, bytes: u64) -> Self {
        self.offset += bytes;
        self.len -= bytes;
        self
    }
}

impl Drop for FileServerRegion {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.server.drop_apart(file);
        }
    }
}

impl FileServerThreads {
    fn new() -> Result<Self, Error> {
        let mut builder = Builder::new_current_thread();
        builder.thread_name("fordway-server").max_blocking_threads(CALLS_MAX + 1);
        Ok(FileServerThreads {
            pool: builder.build().map_err(no_thread)?,
            room: Arc::new(Semaphore::new(CALLS_MAX)),
            shares: Mutex::default(),
            dialogue: Mutex::default(),
        })
    }

    fn share_of(&self, uid: u32) -> Arc<Semaphore> {
        locked(&self.shares).entry(uid).or_insert_with(|| Arc::new(Semaphore::new(SHARE))).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Returns a server that responds to one check for each message on the channel, and to every check after the sender
    /// was dropped.
    fn silent_server() -> (NetworkFileServer, Sender<()>) {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 60);
        let (respond, responses) = channel::<()>();
        let responses = Mutex::new(responses);
        let ask = Arc::new(move || {
            // An error means that the sender was dropped.
            let _ = locked(&responses).recv();
        });
        let probe = FileServerProbe { file_system: NEXT.fetch_add(1, Ordering::Relaxed), ask };
        let threads = Arc::new(FileServerThreads::new().unwrap());
        (NetworkFileServer { share: threads.share_of(1), threads, probe }, respond)
    }

    #[test]
    fn a_call_ends_when_its_server_falls_silent_and_works_when_it_is_back() {
        let runtime = crate::workers::new_runtime().unwrap();
        let (server, respond) = silent_server();
        let (other, _respond) = silent_server();
        let (stop, stopped) = channel::<()>();
        runtime.block_on(async {
            assert_eq!(server.run(|| 1).await.unwrap(), 1);
            let began = Instant::now();
            let hung = server.run(move || stopped.recv()).await.unwrap_err();
            assert_eq!(hung.kind(), ErrorKind::Unavailable);
            assert!(began.elapsed() >= SILENCE_MAX, "{:?}", began.elapsed());
            let began = Instant::now();
            assert_eq!(server.run(|| 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
            assert!(began.elapsed() < SILENCE_MAX, "it is known to be silent");
            assert_eq!(other.run(|| 1).await.unwrap(), 1, "another server responds");
            drop((respond, stop));
            while server.run(|| 1).await.is_err() {
                tokio::time::sleep(TICK).await;
            }
        });
    }

    #[test]
    fn long_work_goes_on_while_its_server_responds() {
        let runtime = crate::workers::new_runtime().unwrap();
        let (server, respond) = silent_server();
        drop(respond);
        let work = || std::thread::sleep(QUIET + SILENCE_MAX + 2 * TICK);
        runtime.block_on(server.run(work)).unwrap();
    }

    #[test]
    fn calls_beyond_the_room_wait_their_turn() {
        let runtime = crate::workers::new_runtime().unwrap();
        let (server, respond) = silent_server();
        drop(respond);
        let calls: Vec<_> = (0..2 * CALLS_MAX)
            .map(|number| {
                let server = server.clone();
                runtime.spawn(async move {
                    server
                        .run(move || {
                            std::thread::sleep(TICK);
                            number
                        })
                        .await
                })
            })
            .collect();
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(runtime.block_on(call).unwrap().unwrap(), number);
        }
    }

    #[test]
    fn a_user_whose_calls_all_wait_leaves_room_for_others() {
        let runtime = crate::workers::new_runtime().unwrap();
        let (slow, respond) = silent_server();
        drop(respond);
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..2 * CALLS_MAX {
            let (slow, ended) = (slow.clone(), ended.clone());
            runtime.spawn(async move { slow.run(move || locked(&ended).recv()).await });
        }
        let other = NetworkFileServer { share: slow.threads.share_of(2), ..slow.clone() };
        let answered = runtime.block_on(async { timeout(QUIET, other.run(|| 1)).await });
        assert_eq!(answered.expect("the other user does not wait").unwrap(), 1);
        drop(end);
    }
}
