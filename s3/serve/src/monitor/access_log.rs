//! The access log, and request IDs. Lines are collected in memory, and a separate thread writes them. A request ID
//! links the error response that a client receives to the request's line in the log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fordway_store::{Error, ErrorKind, Result};
use http::{HeaderName, HeaderValue};
use serde::Serialize;

/// The maximum time that a line waits in memory before it is written.
const DELAY: Duration = Duration::from_millis(200);
/// The number of collected bytes that triggers an immediate write.
const FULL_BYTES: usize = 256 * 1024;
/// The maximum number of bytes that wait to be written. If the disk accepts no more writes, further lines are dropped
/// and counted.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Writes lines of JSON to a file or to standard output. Dropping the log writes all lines that have been added.
pub(crate) struct AccessLog {
    queue: Arc<LogQueue>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct LogQueue {
    waiting: Mutex<PendingLogLines>,
    wake: Condvar,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Default)]
struct PendingLogLines {
    text: Vec<u8>,
    /// The number of bytes at the start of `text` that belong in the old file; `None` if no reopening was requested.
    /// The requests of these lines ended before the reopening was requested.
    old_bytes: Option<usize>,
}

impl AccessLog {
    /// Opens the log, which appends to the file at `path`; `-` is standard output. A new file is accessible only to its
    /// owner. Errors: `InvalidArgument` if the file cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            let why = format!(
                "the access log {} cannot be opened; use a directory that exists and that the gateway's user can write",
                path.display()
            );
            Error::new(ErrorKind::InvalidArgument, why).caused_by(error)
        };
        let sink = LogSink::open(path).map_err(failed)?;
        let queue = Arc::new(LogQueue::default());
        let (theirs, path) = (queue.clone(), path.to_owned());
        let named = std::thread::Builder::new().name("fordway-log".to_owned());
        let writer = named.spawn(move || theirs.drain(sink, &path)).map_err(failed)?;
        Ok(AccessLog { queue, writer: Some(writer) })
    }

    /// Adds a line. Cost: serializing the line in memory, and taking a lock to copy it.
    pub(crate) fn write(&self, line: &impl Serialize) {
        // Serialization does not fail, because every line can be represented in JSON.
        if let Ok(mut text) = serde_json::to_vec(line) {
            text.push(b'\n');
            self.queue.push(&text);
        }
    }

    /// Reopens the file at the log's path, after the old file has been renamed. Lines that were added before this call
    /// are still written to the old file.
    pub(crate) fn reopen(&self) {
        let mut waiting = self.queue.locked();
        let before = waiting.text.len();
        waiting.old_bytes.get_or_insert(before);
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue.is_over.store(true, Ordering::Release);
        self.queue.wake.notify_one();
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes the access log panicked");
        }
    }
}

impl LogQueue {
    fn locked(&self) -> MutexGuard<'_, PendingLogLines> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let waiting = &mut self.locked().text;
        if waiting.len() + line.len() > WAITING_BYTES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_full = waiting.len() >= FULL_BYTES;
        waiting.extend_from_slice(line);
        if !was_full && waiting.len() >= FULL_BYTES {
            self.wake.notify_one();
        }
    }

    fn drain(&self, mut sink: LogSink, path: &Path) {
        let mut batch = Vec::new();
        loop {
            let is_over = self.is_over.load(Ordering::Acquire);
            let mut waiting = self.locked();
            if !is_over && waiting.text.len() < FULL_BYTES {
                waiting = self.wake.wait_timeout(waiting, DELAY).unwrap_or_else(PoisonError::into_inner).0;
            }
            // The buffers are swapped, so that no request waits for the lock while the lines are written.
            std::mem::swap(&mut waiting.text, &mut batch);
            let old_bytes = waiting.old_bytes.take();
            drop(waiting);
            let (old, new) = batch.split_at(old_bytes.unwrap_or(0));
            sink.write_or_report(old, path);
            if old_bytes.is_some() {
                sink.reopen(path);
            }
            sink.write_or_report(new, path);
            batch.clear();
            self.report_dropped();
            if is_over {
                return;
            }
        }
    }

    fn report_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::error!(
                dropped,
                "lines of the access log are lost: they could not be written fast enough"
            );
        }
    }
}

enum LogSink {
    Output(io::Stdout),
    File {
        file: File,
        /// Whether the file ends in the middle of a line, because a write failed.
        is_torn: bool,
    },
}

impl LogSink {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(LogSink::Output(io::stdout()));
        }
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map(|file| LogSink::File { file, is_torn: false })
    }

    fn reopen(&mut self, path: &Path) {
        match LogSink::open(path) {
            Ok(opened) => *self = opened,
            Err(error) => tracing::error!(%error, "the access log continues in the old file"),
        }
    }

    fn write_or_report(&mut self, lines: &[u8], path: &Path) {
        if let Err(error) = self.write(lines) {
            tracing::error!(%error, path = %path.display(), "lines of the access log are lost");
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            LogSink::Output(output) => output.write_all(lines).and_then(|()| output.flush()),
            LogSink::File { file, is_torn } => append_lines(file, lines, is_torn),
        }
    }
}

/// Appends lines to a log. If the log ends in the middle of a line, ends that line first, so that every line that is
/// written as a whole can be parsed. Sets `is_torn` to whether the log then ends in the middle of a line.
fn append_lines(log: &mut impl Write, lines: &[u8], is_torn: &mut bool) -> io::Result<()> {
    if *is_torn && !lines.is_empty() {
        log.write_all(b"\n")?;
        *is_torn = false;
    }
    let mut rest = lines;
    while !rest.is_empty() {
        match log.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                *is_torn = rest[written - 1] != b'\n';
                rest = &rest[written..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The response header that contains the ID of the request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// The response header that names the gateway.
pub(crate) const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");

/// The ID of a request: 16 hexadecimal digits, in upper case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId([u8; 16]);

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the ID that consists of a number's hexadecimal digits.
    fn of(number: u64) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        RequestId(std::array::from_fn(|at| DIGITS[(number >> (60 - 4 * at)) as usize & 15]))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Generates the IDs of a gateway's requests. IDs of one gateway never repeat, and IDs of two gateways are almost never
/// equal.
pub(crate) struct RequestIdGenerator {
    next: AtomicU64,
    host: HeaderValue,
}

impl RequestIdGenerator {
    /// Creates a generator that starts at a random number, or at the current time if the operating system provides no
    /// random bytes. The generated IDs may be predictable.
    pub(super) fn new() -> Self {
        let mut random = [0; 32];
        if getrandom::fill(&mut random).is_err() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            random[..16].copy_from_slice(&now.as_nanos().to_le_bytes());
        }
        let (start, host) = random.split_at(8);
        let start = start.iter().fold(0, |start, byte| start << 8 | u64::from(*byte));
        // Base64 is always valid in a header.
        let host = HeaderValue::try_from(BASE64.encode(host)).unwrap_or(HeaderValue::from_static("host"));
        RequestIdGenerator { next: AtomicU64::new(start), host }
    }

    /// Returns the next ID. Cost: one atomic addition, and a few multiplications.
    pub(super) fn next(&self) -> RequestId {
        // A Weyl sequence visits all numbers, and SplitMix64 maps them one to one.
        let number = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        RequestId::of(number ^ (number >> 31))
    }

    /// Returns the name of the gateway, which does not change while the gateway runs.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Returns the name of the gateway as a string.
    pub(crate) fn host_text(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn lines_from_before_a_rotation_are_in_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let [path, old] = ["log", "log.1"].map(|name| dir.path().join(name));
        let log = AccessLog::open(&path).unwrap();
        // The test has several rounds, because a line may be written before the file is renamed.
        for round in 0..5 {
            log.write(&format!("before {round}"));
            std::fs::rename(&path, &old).unwrap();
            log.reopen();
            log.write(&format!("after {round}"));
            let begin = std::time::Instant::now();
            while !std::fs::read_to_string(&path)
                .is_ok_and(|text| text.ends_with(&format!("\"after {round}\"\n")))
            {
                assert!(begin.elapsed() < Duration::from_secs(10), "the file is not reopened");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(std::fs::read_to_string(&old).unwrap().ends_with(&format!("\"before {round}\"\n")));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("\"after {round}\"\n"));
        }
    }

    /// A log on a file system with this many free bytes.
    struct NearlyFull {
        text: Vec<u8>,
        free_bytes: usize,
    }

    impl Write for NearlyFull {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.free_bytes);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.free_bytes -= taken;
            self.text.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_after_a_full_disk_begin_on_a_line_of_their_own() {
        for (free_bytes, expected) in
            [(0, "next\n"), (3, "one\nnext\n"), (4, "one\nnext\n"), (6, "one\ntw\nnext\n")]
        {
            let (mut log, mut is_torn) = (NearlyFull { text: Vec::new(), free_bytes }, false);
            append_lines(&mut log, b"one\ntwo\n", &mut is_torn).expect_err("the disk is full");
            append_lines(&mut log, b"lost\n", &mut is_torn).expect_err("the disk is still full");
            log.free_bytes = 100;
            append_lines(&mut log, b"next\n", &mut is_torn).unwrap();
            assert_eq!(String::from_utf8(log.text).unwrap(), expected, "{free_bytes} bytes were free");
        }
    }

    #[test]
    fn names_are_16_digits_and_differ() {
        assert_eq!(RequestId::of(0x0123_4567_89ab_cdef).as_str(), "0123456789ABCDEF");
        let ids = RequestIdGenerator::new();
        let names: HashSet<_> = (0..10_000).map(|_| ids.next().as_str().to_owned()).collect();
        assert_eq!(names.len(), 10_000);
        assert_ne!(RequestIdGenerator::new().host(), ids.host());
    }
}
