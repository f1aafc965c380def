//! The files that can be opened, and how they are read.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fordway_client::s3;
use fordway_http::Timeouts;
use fordway_http::vector::{
    self, AccessAdvice, FragmentMemory as _, HttpSession, ReadAheadSettings, RemoteFile, RemoteReader,
};
use fordway_lanes::Lane;
use fordway_store::{Bucket, ByteRange, Conditions, Error, ErrorKind, GetOptions, Key, Result, Store};

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
    /// An object on a lane without an opener, because it is not worthwhile to save requests on this lane.
    Object(VersionedObject),
    /// A file on this machine.
    Local { file: File, path: PathBuf, size_bytes: u64 },
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
    /// Opens the file that `url` names. Errors: from the lane; `Io` with the errno of a local file.
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
            OpenFileBackend::Local { size_bytes, .. } => *size_bytes,
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
                Ok(mut reader) => drop(reader.read_at(offset, buffer)?),
                // Another thread is using the reader, which tracks the access pattern of only one sequence of reads.
                Err(_) => {
                    let ticket = file.submit(&[(offset, count)], Vec::new())?;
                    buffer.copy_from_slice(&file.wait(ticket)?.bytes);
                }
            },
            OpenFileBackend::Object(object) => {
                let found = object.read(&[(offset, count)])?;
                buffer.copy_from_slice(&found[0]);
            }
            OpenFileBackend::Local { file, path, .. } => {
                file.read_exact_at(buffer, offset).map_err(|error| local_failure("reading", path, &error))?;
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
            for (index, found) in object.read(&ranges)?.iter().enumerate() {
                buffers.slice(index, 0, found.len()).copy_from_slice(found);
            }
            return Ok(());
        }
        for (index, (offset, length)) in ranges.into_iter().enumerate() {
            self.read_at(offset, buffers.slice(index, 0, length))?;
        }
        Ok(())
    }

    /// Applies advice; sources without read-ahead ignore it.
    pub(crate) fn advise(&self, advice: AccessAdvice<'_>) -> Result<(), CallFailure> {
        if let OpenFileBackend::Remote { reader, .. } = self {
            locked(reader).advise(advice)?;
        }
        Ok(())
    }
}

impl VersionedObject {
    /// Returns the bytes of `ranges`, which must be within the object. Errors: `PreconditionFailed` if the object now
    /// has a different version.
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
    let path = PathBuf::from(path);
    let failed = |error: io::Error| local_failure("opening", &path, &error);
    let file = File::open(&path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(CallFailure::new(
            libc::EISDIR,
            format!("{} is a directory; name a file", path.display()),
        ));
    }
    let size_bytes = metadata.len();
    Ok(OpenFileBackend::Local { file, path, size_bytes })
}

fn local_failure(doing: &str, path: &std::path::Path, error: &io::Error) -> CallFailure {
    let shortened = || "it is shorter than it was when it was opened; open it again".to_owned();
    match error.raw_os_error() {
        Some(errno) => CallFailure::new(errno, format!("{doing} {}: {error}", path.display())),
        None => CallFailure::new(libc::ESTALE, format!("{doing} {}: {}", path.display(), shortened())),
    }
}

/// This process's lanes and sessions. Files opened with the same options share their connections, except `s3://` files
/// whose endpoint comes from the environment.
#[derive(Default)]
struct SharedConnections {
    lanes: HashMap<ValidatedOpenOptions, Lane>,
    sessions: HashMap<ValidatedOpenOptions, Arc<HttpSession>>,
}

static OPENED: Mutex<Option<SharedConnections>> = Mutex::new(None);

fn lane(settings: &ValidatedOpenOptions) -> Result<Lane> {
    let of_lane = ValidatedOpenOptions { read_ahead_bytes: 0, ..settings.clone() };
    if let Some(lane) = locked(&OPENED).get_or_insert_default().lanes.get(&of_lane) {
        return Ok(lane.clone());
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
        ca_bundle: settings.ca_bundle.clone(),
        ..Default::default()
    };
    let lane = fordway_lanes::open(&options)?;
    // The environment may change, so only a lane with an explicit endpoint is cached.
    if of_lane.endpoint.is_some() {
        locked(&OPENED).get_or_insert_default().lanes.insert(of_lane, lane.clone());
    }
    Ok(lane)
}

fn session(settings: &ValidatedOpenOptions) -> Result<Arc<HttpSession>> {
    let of_session =
        ValidatedOpenOptions { read_ahead_bytes: 0, endpoint: None, keys: None, ..settings.clone() };
    let mut opened = locked(&OPENED);
    let sessions = &mut opened.get_or_insert_default().sessions;
    if let Some(session) = sessions.get(&of_session) {
        return Ok(session.clone());
    }
    let session = Arc::new(HttpSession::new(session_options(settings)?));
    sessions.insert(of_session, session.clone());
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
