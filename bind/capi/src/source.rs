//! The files that can be opened, and how they are read.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fordway_client::s3;
use fordway_http::Timeouts;
use fordway_http::vector::{
    self, AccessAdvice, FragmentMemory as _, HttpSession, ReadAheadSettings, RemoteFile, RemoteReader,
};
use fordway_lanes::Lane;
use fordway_store::{Bucket, ByteRange, Conditions, Error, ErrorKind, GetOptions, Key, Result, Store};
use fordway_sys::PerProcess;

use super::files::ReadBuffers;
use crate::failure::CallFailure;

/// The caller's options after validation.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct ValidatedOpenOptions {
    pub(crate) endpoint: Option<String>,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) read_ahead_bytes: u64,
    pub(crate) connections: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) keys: Option<AccessKeys>,
}

/// The keys that sign requests to S3. The keys must never be displayed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct AccessKeys {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) session_token: Option<String>,
}

/// An open file.
pub(crate) enum OpenFileBackend {
    /// A file on a web server or an object on an S3 service. The requests of all threads share connections.
    Remote { file: Arc<RemoteFile>, reader: Mutex<RemoteReader> },
    /// An object on a lane without an [opener](Lane::opener). Requests on these lanes are too cheap for read-ahead to
    /// pay off.
    Object(VersionedObject),
    /// A file on this machine.
    Local(LocalFile),
}

/// The maximum number of bytes of an object that are in memory before they are copied to the caller's memory.
const PIECE_BYTES: usize = 8 << 20;

/// A regular file on this machine.
pub(crate) struct LocalFile {
    file: File,
    path: PathBuf,
    version: LocalFileVersion,
}

/// The properties that change when a file's content changes. The inode's change time is not included, because renaming
/// or removing the file also changes this time, but not the content of the open file.
#[derive(PartialEq, Eq)]
struct LocalFileVersion {
    size_bytes: u64,
    modified: (i64, i64),
}

/// One version of an object.
pub(crate) struct VersionedObject {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    size_bytes: u64,
    options: GetOptions,
}

impl OpenFileBackend {
    /// Opens the file at `url`. Errors: `EINVAL` for an unsupported URL; the errno for the error of the lane or
    /// of the local system call.
    pub(crate) fn open(url: &str, settings: &ValidatedOpenOptions) -> Result<Self, CallFailure> {
        let opened = match url.split_once("://") {
            Some(("http" | "https", _)) => {
                let file = session(settings).and_then(|session| RemoteFile::open(&session, url));
                file.map(|file| OpenFileBackend::remote(file, settings))
            }
            Some(("s3", address)) => open_object(address, settings),
            Some(("file", path)) if path.starts_with('/') => return open_local(path),
            None if !url.is_empty() => return open_local(url),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{url:?} cannot be opened; use http(s)://HOST/PATH, s3://BUCKET/KEY or a path"),
            )),
        };
        opened.map_err(CallFailure::from)
    }

    fn remote(file: RemoteFile, settings: &ValidatedOpenOptions) -> Self {
        let default = ReadAheadSettings::default();
        let max_bytes = Some(settings.read_ahead_bytes).filter(|bytes| *bytes > 0);
        let options = ReadAheadSettings { max_bytes: max_bytes.unwrap_or(default.max_bytes) };
        let file = Arc::new(file);
        OpenFileBackend::Remote { reader: Mutex::new(RemoteReader::new(file.clone(), options)), file }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            OpenFileBackend::Remote { file, .. } => file.size_bytes(),
            OpenFileBackend::Object(object) => object.size_bytes,
            OpenFileBackend::Local(local) => local.version.size_bytes,
        }
    }

    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes read.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, CallFailure> {
        let there = self.size_bytes().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..count];
        match self {
            _ if count == 0 => {}
            OpenFileBackend::Remote { file, reader } => match reader.try_lock() {
                Ok(mut reader) => drop(reader.read_at(offset, buffer).map_err(CallFailure::of_read)?),
                // Another thread is using the reader, which tracks the access pattern of only one sequence of reads.
                Err(_) => {
                    // SAFETY: the buffer is not used before the wait has ended. Nothing is written to it afterwards,
                    // even if the wait fails.
                    let memory = unsafe { ReadBuffers::of(offset, buffer) };
                    let ticket = file.submit_into(&[(offset, count)], Box::new(memory));
                    ticket.and_then(|ticket| file.wait(ticket)).map_err(CallFailure::of_read)?;
                }
            },
            OpenFileBackend::Object(object) => {
                object.read_at(offset, buffer).map_err(CallFailure::of_read)?
            }
            OpenFileBackend::Local(local) => {
                local.read_unchecked(offset, buffer)?;
                local.check_version()?;
            }
        }
        Ok(count)
    }

    /// Fills all of `buffers` before it returns. Errors: `ERANGE` if a range extends past the end of the file.
    pub(crate) fn read_now(&self, buffers: &mut ReadBuffers) -> Result<(), CallFailure> {
        let ranges = buffers.ranges();
        for (index, (offset, length)) in ranges.iter().enumerate() {
            let size = self.size_bytes();
            if offset.checked_add(*length as u64).is_none_or(|end| end > size) {
                let sentence =
                    format!("{length} bytes at {offset} (fragment {index}) of a file of {size} bytes");
                return Err(CallFailure::new(libc::ERANGE, sentence));
            }
        }
        if let OpenFileBackend::Object(object) = self {
            return object.read_into(buffers, &ranges).map_err(CallFailure::of_read);
        }
        for (index, (offset, length)) in ranges.into_iter().enumerate() {
            let buffer = buffers.slice(index, 0, length);
            match self {
                OpenFileBackend::Local(local) => local.read_unchecked(offset, buffer)?,
                _ => drop(self.read_at(offset, buffer)?),
            }
        }
        if let OpenFileBackend::Local(local) = self { local.check_version() } else { Ok(()) }
    }

    /// Applies advice. Has no effect on sources without read-ahead.
    pub(crate) fn advise(&self, advice: AccessAdvice<'_>) -> Result<(), CallFailure> {
        if let OpenFileBackend::Remote { reader, .. } = self {
            locked(reader).advise(advice).map_err(CallFailure::of_read)?;
        }
        Ok(())
    }
}

impl VersionedObject {
    /// Fills `buffer` from `offset`, in pieces. Errors: as for [`VersionedObject::read`].
    fn read_at(&self, mut offset: u64, buffer: &mut [u8]) -> Result<()> {
        for piece in buffer.chunks_mut(PIECE_BYTES) {
            piece.copy_from_slice(&self.read(&[(offset, piece.len())])?[0]);
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Fills all of `buffers` from `ranges`, several ranges at a time if they are short. Errors: as for
    /// [`VersionedObject::read`].
    fn read_into(&self, buffers: &mut ReadBuffers, ranges: &[(u64, usize)]) -> Result<()> {
        let mut first = 0;
        while first < ranges.len() {
            if ranges[first].1 > PIECE_BYTES {
                self.read_at(ranges[first].0, buffers.slice(first, 0, ranges[first].1))?;
                first += 1;
                continue;
            }
            let mut bytes = 0;
            let fits = |(_, length): &&(u64, usize)| {
                bytes += length;
                bytes <= PIECE_BYTES
            };
            let count = ranges[first..].iter().take_while(fits).count();
            let found = self.read(&ranges[first..first + count])?;
            for (index, found) in (first..).zip(&found) {
                buffers.slice(index, 0, found.len()).copy_from_slice(found);
            }
            first += count;
        }
        Ok(())
    }

    /// Returns the bytes of `ranges`, which must be within the object. Errors: `PreconditionFailed` if the object now
    /// has a different version; `NoSuchKey` or `NoSuchBucket` if it was removed.
    fn read(&self, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let is_wanted = |(_, length): &&(u64, usize)| *length > 0;
        let inclusive =
            |(offset, length): &(u64, usize)| ByteRange::Inclusive(*offset, offset + *length as u64 - 1);
        let wanted: Vec<_> = ranges.iter().filter(is_wanted).map(inclusive).collect();
        let mut found = self.store.read_ranges(&self.bucket, &self.key, &wanted, &self.options)?.into_iter();
        let mut all = Vec::with_capacity(ranges.len());
        for (_, length) in ranges {
            let bytes = if *length == 0 { Vec::new() } else { found.next().unwrap_or_default() };
            if bytes.len() != *length {
                let error =
                    Error::new(ErrorKind::BadResponse, "the store returned fewer bytes than requested");
                return Err(error.during("get", self.store.lane(), self.bucket.as_str(), self.key.as_str()));
            }
            all.push(bytes);
        }
        Ok(all)
    }
}

fn open_object(address: &str, settings: &ValidatedOpenOptions) -> Result<OpenFileBackend> {
    let (bucket, key) = address.split_once('/').unwrap_or((address, ""));
    let (bucket, key) = (Bucket::new(bucket)?, Key::new(key)?);
    let lane = lane(settings)?;
    if let Some(opener) = &lane.opener {
        return Ok(OpenFileBackend::remote(opener.open_file(&bucket, &key)?, settings));
    }
    let info = lane.store.head(&bucket, &key, &GetOptions::default())?;
    let options = GetOptions { conditions: Conditions::only_if(info.etag), ..GetOptions::default() };
    Ok(OpenFileBackend::Object(VersionedObject {
        store: lane.store,
        bucket,
        key,
        size_bytes: info.size,
        options,
    }))
}

fn open_local(path: &str) -> Result<OpenFileBackend, CallFailure> {
    LocalFile::open(path.into()).map(OpenFileBackend::Local)
}

impl LocalFile {
    /// Opens a file. Errors: `EISDIR` for a directory; `EINVAL` for any other file that is not regular, or whose size
    /// is unknown.
    fn open(path: PathBuf) -> Result<Self, CallFailure> {
        let failed = |error: io::Error| local_failure("opening", &path, &error);
        let refused = |errno, why: &str| Err(CallFailure::new(errno, format!("{} {why}", path.display())));
        // Without this flag, opening a FIFO would wait for a writer. The flag has no effect on reads of regular files.
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return refused(libc::EISDIR, "is a directory; name a file");
        }
        if !metadata.is_file() {
            return refused(libc::EINVAL, "is not a regular file; copy its content to a regular file");
        }
        if metadata.len() == 0 && file.read_at(&mut [0], 0).map_err(failed)? > 0 {
            let why = "reports a size of 0 but has content, like the kernel's files in /proc; copy it to another file";
            return refused(libc::EINVAL, why);
        }
        let version = LocalFileVersion::new(&metadata);
        Ok(LocalFile { file, path, version })
    }

    /// Fills `buffer` from `offset`. Errors: `ESTALE` if the file is too short, and errors of the system.
    fn read_unchecked(&self, offset: u64, buffer: &mut [u8]) -> Result<(), CallFailure> {
        self.file.read_exact_at(buffer, offset).map_err(|error| local_failure("reading", &self.path, &error))
    }

    /// Checks after a read that the file did not change before or during the read. Errors: `ESTALE`. Cost: one `fstat`.
    fn check_version(&self) -> Result<(), CallFailure> {
        let now = self.file.metadata().map_err(|error| local_failure("reading", &self.path, &error))?;
        match LocalFileVersion::new(&now) == self.version {
            true => Ok(()),
            false => Err(stale(&self.path)),
        }
    }
}

impl LocalFileVersion {
    fn new(metadata: &Metadata) -> Self {
        LocalFileVersion { size_bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

fn local_failure(doing: &str, path: &Path, error: &io::Error) -> CallFailure {
    match error.raw_os_error() {
        Some(errno) => CallFailure::new(errno, format!("{doing} {}: {error}", path.display())),
        None => stale(path),
    }
}

fn stale(path: &Path) -> CallFailure {
    let why = format!("reading {}: it has changed since it was opened; open it again", path.display());
    CallFailure::new(libc::ESTALE, why)
}

/// The maximum number of lanes, and of sessions, that stay open when no file uses them. Without a limit, a program
/// whose keys change often would keep connections open for all of its former keys.
const KEPT_MAX: usize = 32;

/// The environment variable that names a CA bundle.
const CA_BUNDLE_VARIABLE: &str = "AWS_CA_BUNDLE";

/// This process's lanes and sessions. Files opened with the same options and the same `AWS_CA_BUNDLE` share their
/// connections, except `s3://` files whose endpoint comes from the environment.
#[derive(Default)]
struct SharedConnections {
    lanes: Mutex<RecentlyUsed<Lane>>,
    sessions: Mutex<RecentlyUsed<Arc<HttpSession>>>,
}

/// A forked child has its own connections.
static OPENED: LazyLock<PerProcess<SharedConnections>> = LazyLock::new(PerProcess::default);

/// Up to [`KEPT_MAX`] values; the most recently used value is the last.
struct RecentlyUsed<T>(Vec<(ValidatedOpenOptions, T)>);

impl<T> Default for RecentlyUsed<T> {
    fn default() -> Self {
        RecentlyUsed(Vec::new())
    }
}

impl<T: Clone> RecentlyUsed<T> {
    fn get(&mut self, key: &ValidatedOpenOptions) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        let entry = self.0.remove(at);
        let value = entry.1.clone();
        self.0.push(entry);
        Some(value)
    }

    /// Adds a value, and returns the least recently used value if there are now too many.
    #[must_use = "closing connections may take time, so the lock is released first"]
    fn insert(&mut self, key: ValidatedOpenOptions, value: T) -> Option<T> {
        self.0.push((key, value));
        (self.0.len() > KEPT_MAX).then(|| self.0.remove(0).1)
    }
}

/// Returns the CA bundle of the options, else the current CA bundle of the environment. A lane or session is shared
/// only by files with the same bundle, because a program may change its environment between two files.
fn ca_bundle(settings: &ValidatedOpenOptions, environment: Option<OsString>) -> Option<PathBuf> {
    let named = environment.filter(|path| !path.is_empty()).map(PathBuf::from);
    settings.ca_bundle.clone().or(named)
}

fn lane(settings: &ValidatedOpenOptions) -> Result<Lane> {
    let ca_bundle = ca_bundle(settings, std::env::var_os(CA_BUNDLE_VARIABLE));
    let of_lane = ValidatedOpenOptions { read_ahead_bytes: 0, ca_bundle, ..settings.clone() };
    if let Some(lane) = locked(&OPENED.lanes).get(&of_lane) {
        return Ok(lane);
    }
    let timeout = (settings.timeout_ms > 0).then(|| Duration::from_millis(settings.timeout_ms.into()));
    let credentials = settings.keys.clone().map(|keys| s3::S3Credentials::Keys {
        access_key: keys.access_key,
        secret_key: keys.secret_key,
        session_token: keys.session_token,
        source: "access_key of the options".to_owned(),
    });
    let options = fordway_lanes::LaneConfigOverrides {
        endpoint: settings.endpoint.clone(),
        timeout,
        credentials,
        connections: (settings.connections > 0).then_some(settings.connections as usize),
        ca_bundle: of_lane.ca_bundle.clone(),
        ..Default::default()
    };
    let lane = fordway_lanes::open(&options)?;
    // The environment may change, so only a lane with an explicit endpoint is cached.
    if of_lane.endpoint.is_some() {
        let _oldest = locked(&OPENED.lanes).insert(of_lane, lane.clone());
    }
    Ok(lane)
}

fn session(settings: &ValidatedOpenOptions) -> Result<Arc<HttpSession>> {
    let of_session = ValidatedOpenOptions {
        read_ahead_bytes: 0,
        endpoint: None,
        keys: None,
        ca_bundle: ca_bundle(settings, std::env::var_os(CA_BUNDLE_VARIABLE)),
        ..settings.clone()
    };
    let mut sessions = locked(&OPENED.sessions);
    if let Some(session) = sessions.get(&of_session) {
        return Ok(session);
    }
    let session = Arc::new(HttpSession::new(session_options(&of_session)?));
    let _oldest = sessions.insert(of_session, session.clone());
    drop(sessions);
    Ok(session)
}

fn session_options(settings: &ValidatedOpenOptions) -> Result<vector::SessionOptions> {
    let mut options = vector::SessionOptions::discover(settings.ca_bundle.clone())?;
    if settings.timeout_ms > 0 {
        let limit = Duration::from_millis(settings.timeout_ms.into());
        let Timeouts { idle, .. } = options.timeouts;
        options.timeouts = Timeouts { connect: limit, first_byte: limit, progress: limit, idle };
    }
    if settings.connections > 0 {
        options.connections_per_origin = settings.connections as usize;
    }
    Ok(options)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Fragment;

    #[test]
    fn the_ca_bundle_of_the_options_precedes_that_of_the_environment() {
        let plain = ValidatedOpenOptions::default();
        let given = ValidatedOpenOptions { ca_bundle: Some("given".into()), ..Default::default() };
        for (settings, named, bundle) in [
            (&plain, None, None),
            (&plain, Some(""), None),
            (&plain, Some("named"), Some("named")),
            (&given, None, Some("given")),
            (&given, Some("named"), Some("given")),
        ] {
            assert_eq!(ca_bundle(settings, named.map(OsString::from)), bundle.map(PathBuf::from));
        }
    }

    #[test]
    fn an_object_that_is_read_in_pieces_is_whole() {
        let (root, size) = (tempfile::TempDir::new().unwrap(), 2 * PIECE_BYTES + 1000);
        let content: Vec<u8> = (0..size as u32 / 4 + 1).flat_map(u32::to_le_bytes).take(size).collect();
        std::fs::create_dir(root.path().join("bkt")).unwrap();
        std::fs::write(root.path().join("bkt/file"), &content).unwrap();
        let endpoint = Some(root.path().to_str().unwrap().to_owned());
        let settings = ValidatedOpenOptions { endpoint, ..Default::default() };
        let file = OpenFileBackend::open("s3://bkt/file", &settings).unwrap();
        let mut buffer = vec![0; size];
        assert_eq!(file.read_at(3, &mut buffer).unwrap(), size - 3);
        assert!(buffer[..size - 3] == content[3..]);

        let ranges =
            [(5, PIECE_BYTES + 1), (7, 0), (9, PIECE_BYTES / 2), (11, PIECE_BYTES / 2), (13, 17), (7, 100)];
        let mut buffers = ranges.map(|(_, length)| vec![0_u8; length]);
        let fragments: Vec<_> = ranges
            .iter()
            .zip(&mut buffers)
            .map(|((offset, length), buffer)| Fragment {
                offset: *offset,
                length: *length,
                buffer: buffer.as_mut_ptr().cast(),
            })
            .collect();
        // SAFETY: each fragment has its buffer, which outlives the read.
        let mut memory = unsafe { ReadBuffers::new(fragments.as_ptr(), fragments.len()).unwrap() };
        file.read_now(&mut memory).unwrap();
        for ((offset, length), buffer) in ranges.iter().zip(&buffers) {
            assert!(buffer[..] == content[*offset as usize..][..*length], "{length} bytes at {offset}");
        }
    }

    /// Files with the same options share a lane, which keeps its root open.
    #[test]
    fn an_object_in_a_replaced_root_is_opened() {
        let directory = tempfile::TempDir::new().unwrap();
        let root = directory.path().join("root");
        let endpoint = Some(root.to_str().unwrap().to_owned());
        let settings = ValidatedOpenOptions { endpoint, ..Default::default() };
        for content in ["one", "another"] {
            std::fs::create_dir_all(root.join("bkt")).unwrap();
            std::fs::write(root.join("bkt/file"), content).unwrap();
            let file = OpenFileBackend::open("s3://bkt/file", &settings).unwrap();
            assert_eq!(file.size_bytes(), content.len() as u64);
            std::fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn the_least_recently_used_value_is_dropped() {
        let key = |number: u32| ValidatedOpenOptions { connections: number, ..Default::default() };
        let mut kept = RecentlyUsed::default();
        for number in 0..KEPT_MAX as u32 {
            assert_eq!(kept.insert(key(number), number), None);
        }
        assert_eq!(kept.get(&key(0)), Some(0));
        assert_eq!(kept.insert(key(99), 99), Some(1));
        assert_eq!((kept.get(&key(0)), kept.get(&key(1)), kept.0.len()), (Some(0), None, KEPT_MAX));
    }
}
