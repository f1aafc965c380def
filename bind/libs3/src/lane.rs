//! Opens the lane for a host name and credentials, once per process.

use std::cell::Cell;
use std::ffi::CStr;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError, RwLock};
use std::time::Duration;

use fordway_client::s3::{BucketAddressing, S3Credentials, S3Store};
use fordway_lanes::{Lane, LaneConfigOverrides};
use fordway_store::{Bucket, Error, ErrorKind, Result};
use fordway_sys::ProcessIdentity;

use super::response::{PIECE_BYTES, RequestResult};
use crate::arguments::{bucket_name, checked};
use crate::queue::RequestSchedulingClass;

/// The endpoint settings and credentials that a program uses for its objects. Empty strings are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointSettings<T> {
    pub(crate) host: Option<T>,
    /// The maximum duration of a request; 0 means the lane's default.
    pub(crate) timeout_ms: u32,
    pub(crate) is_http: bool,
    pub(crate) is_virtual_host: bool,
    pub(crate) access_key: Option<T>,
    pub(crate) secret_key: Option<T>,
    pub(crate) token: Option<T>,
    pub(crate) region: Option<T>,
}

/// An opened lane, and one of its buckets.
pub(crate) struct ConnectedBucket {
    pub(crate) lane: Lane,
    pub(crate) bucket: Bucket,
    /// Whether requests access files on this node, in the calling thread. Cached, because querying the lane would be
    /// the most expensive part of computing a request's scheduling class.
    is_local: bool,
    pool: *const SharedLanePool,
    address: OwnedEndpointSettings,
}

impl ConnectedBucket {
    /// Returns the bucket called `bucket` at an address. If the thread's last request used the same bucket, this
    /// function is fast, because it acquires no lock, copies no name and validates no characters. Errors: as for
    /// [`bucket_name`], a string that is not UTF-8, and errors of the lane.
    pub(crate) fn take(
        address: &EndpointSettings<&CStr>,
        bucket: Option<&CStr>,
    ) -> RequestResult<ConnectedBucketGuard> {
        let bucket = bucket.unwrap_or_default();
        let pool = pool();
        let last = LAST.try_with(Cell::take).ok().flatten().filter(|last| {
            let is_bucket = last.bucket.as_str().as_bytes() == bucket.to_bytes();
            is_bucket && ptr::eq(last.pool, pool) && address.is(&last.address)
        });
        if last.is_some() {
            return Ok(ConnectedBucketGuard(last));
        }
        let address = address.checked()?;
        let (bucket, lane) = (bucket_name(bucket)?, lane(&address)?);
        let (is_local, address) = (is_local(&lane), address.kept());
        Ok(ConnectedBucketGuard(Some(Box::new(ConnectedBucket { bucket, lane, is_local, pool, address }))))
    }
}

impl ConnectedBucket {
    /// Returns the scheduling class of a request to this bucket that transfers `bytes` of content.
    pub(crate) fn weight(&self, bytes: u64) -> RequestSchedulingClass {
        RequestSchedulingClass::of(self.is_local, bytes)
    }

    /// Returns the scheduling class of a put of an object of `bytes`.
    pub(crate) fn weight_of_put(&self, bytes: u64) -> RequestSchedulingClass {
        // Larger objects are sent in parts. A small object is in the buffer of the thread.
        let buffered_bytes = if bytes <= PIECE_BYTES as u64 { 0 } else { bytes.min(PUT_BUFFERED_MAX_BYTES) };
        self.weight_of_upload(bytes, buffered_bytes)
    }

    /// Returns the scheduling class of a put of a part of `bytes`.
    pub(crate) fn weight_of_part(&self, bytes: u64) -> RequestSchedulingClass {
        let buffered_bytes = if self.streams_part(bytes).is_some() { 0 } else { bytes };
        self.weight_of_upload(bytes, buffered_bytes)
    }

    /// Returns the service if it receives a part of `bytes` while the program provides the content.
    pub(crate) fn streams_part(&self, bytes: u64) -> Option<&S3Store> {
        let is_long = bytes > PART_BUFFERED_MAX_BYTES;
        self.lane.service.as_ref().filter(|service| is_long && service.streams_parts())
    }

    /// Returns the scheduling class of an upload of `bytes`, of which the http lane holds up to `buffered_bytes` in
    /// memory. The other lanes write content as it arrives.
    fn weight_of_upload(&self, bytes: u64, buffered_bytes: u64) -> RequestSchedulingClass {
        match self.lane.service {
            Some(_) => RequestSchedulingClass::Remote { buffered_bytes },
            None => self.weight(bytes),
        }
    }
}

/// The maximum size of an object that the http lane buffers as a whole.
const PUT_BUFFERED_MAX_BYTES: u64 = 64 << 20;

/// The maximum size of a part that the http lane buffers, so that it can be sent with a digest, as buckets with object
/// lock require, and sent again. A larger part is sent while the program provides it, unless its signature must cover
/// the content.
const PART_BUFFERED_MAX_BYTES: u64 = 64 << 20;

/// Returns whether requests on `lane` access files on this node, in the calling thread.
pub(crate) fn is_local(lane: &Lane) -> bool {
    lane.store.lane() == "embedded"
}

/// A connected bucket in use by one request. When this value is dropped, the bucket is cached for the thread's next
/// request.
pub(crate) struct ConnectedBucketGuard(
    /// `None` only while the value is being dropped.
    Option<Box<ConnectedBucket>>,
);

impl Deref for ConnectedBucketGuard {
    type Target = ConnectedBucket;

    fn deref(&self) -> &ConnectedBucket {
        self.0.as_deref().expect("it is not being dropped")
    }
}

impl Drop for ConnectedBucketGuard {
    fn drop(&mut self) {
        // A bucket without a host is not kept, because the default host may change.
        let target = self.0.take().filter(|target| target.address.has_host());
        // In an exit handler, the thread-local variable may already have been destroyed.
        let _ = LAST.try_with(|last| last.set(target));
    }
}

/// The default host set by `S3_initialize`, for requests that do not name a host. Several parts of a program may each
/// initialize the library. The host of the first call remains until each part has deinitialized the library, as in
/// libs3.
#[derive(Default)]
struct DefaultHost {
    host: Option<String>,
    initialized: usize,
}

static DEFAULT_HOST: RwLock<DefaultHost> = RwLock::new(DefaultHost { host: None, initialized: 0 });

impl DefaultHost {
    fn initialize(&mut self, host: Option<&str>) {
        if self.initialized == 0 {
            self.host = host.map(str::to_owned);
        }
        self.initialized += 1;
    }

    fn deinitialize(&mut self) {
        self.initialized = self.initialized.saturating_sub(1);
    }
}

/// Sets the default host, unless it is already set. If `host` is `None`, `AWS_ENDPOINT_URL` and related variables
/// determine the host.
pub(crate) fn initialize(host: Option<&str>) {
    DEFAULT_HOST.write().unwrap_or_else(PoisonError::into_inner).initialize(host);
}

/// Undoes one [`initialize`]. The default host remains until the next [`initialize`].
pub(crate) fn deinitialize() {
    DEFAULT_HOST.write().unwrap_or_else(PoisonError::into_inner).deinitialize();
}

/// [`EndpointSettings`] that own their strings.
#[derive(Clone, PartialEq, Eq)]
struct OwnedEndpointSettings {
    texts: [Option<String>; 5],
    settings: (bool, bool, u32),
}

impl OwnedEndpointSettings {
    fn has_host(&self) -> bool {
        self.texts[0].is_some()
    }
}

impl<T: Copy> EndpointSettings<T> {
    fn texts(&self) -> [Option<T>; 5] {
        [self.host, self.access_key, self.secret_key, self.token, self.region]
    }

    fn settings(&self) -> (bool, bool, u32) {
        (self.is_http, self.is_virtual_host, self.timeout_ms)
    }
}

impl<'a> EndpointSettings<&'a CStr> {
    /// Converts the C strings of this address to `&str`. Errors: a string is not UTF-8.
    pub(crate) fn checked(&self) -> RequestResult<EndpointSettings<&'a str>> {
        let text = |bytes: Option<&'a CStr>| bytes.map(checked).transpose();
        Ok(EndpointSettings {
            host: text(self.host)?,
            timeout_ms: self.timeout_ms,
            is_http: self.is_http,
            is_virtual_host: self.is_virtual_host,
            access_key: text(self.access_key)?,
            secret_key: text(self.secret_key)?,
            token: text(self.token)?,
            region: text(self.region)?,
        })
    }

    fn is(&self, kept: &OwnedEndpointSettings) -> bool {
        let same = |(a, b): (&Option<&CStr>, &Option<String>)| match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => a.to_bytes() == b.as_bytes(),
            _ => false,
        };
        self.settings() == kept.settings && self.texts().iter().zip(&kept.texts).all(same)
    }
}

impl EndpointSettings<&str> {
    /// Checks that the program gave both keys or neither, and no session token without keys. Otherwise, the keys of the
    /// environment would be used, and requests would act for a user whom the program did not name. The embedded lane
    /// needs no keys, and ignores them. Errors: `InvalidArgument`.
    fn check_keys(&self, lane: &Lane) -> Result<()> {
        let why = match (self.access_key, self.secret_key, self.token) {
            _ if is_local(lane) => return Ok(()),
            (Some(_), Some(_), _) | (None, None, None) => return Ok(()),
            (None, None, Some(_)) => "securityToken is set, but the keys are not; set the keys of the token",
            (Some(_), None, _) => "accessKeyId is set, but secretAccessKey is not; set both, or neither",
            (None, Some(_), _) => "secretAccessKey is set, but accessKeyId is not; set both, or neither",
        };
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }

    fn kept(&self) -> OwnedEndpointSettings {
        OwnedEndpointSettings {
            texts: self.texts().map(|text| text.map(str::to_owned)),
            settings: self.settings(),
        }
    }

    /// Returns the settings as lane options, without the timeout.
    fn options(&self) -> LaneConfigOverrides {
        let scheme = if self.is_http { "http://" } else { "https://" };
        let endpoint = self.host.map(|host| match host.starts_with('/') || host.contains("://") {
            true => host.to_owned(),
            false => format!("{scheme}{host}"),
        });
        let credentials = self.access_key.zip(self.secret_key).map(|(access_key, secret_key)| {
            let session_token = self.token.map(str::to_owned);
            let source = "the program's bucket context".to_owned();
            S3Credentials::Keys {
                access_key: access_key.to_owned(),
                secret_key: secret_key.to_owned(),
                session_token,
                source,
            }
        });
        let addressing =
            if self.is_virtual_host { BucketAddressing::VirtualHost } else { BucketAddressing::Path };
        let region = self.region.map(str::to_owned);
        LaneConfigOverrides {
            endpoint,
            region,
            credentials,
            addressing: Some(addressing),
            ..Default::default()
        }
    }
}

/// The maximum number of open lanes, not counting lanes in use and the last lane of each thread. Without this limit, a
/// program whose credentials change often would keep connections open for all of its former credentials.
const LANES_MAX: usize = 32;

/// The lanes that this process has opened. The pool is emptied when the process ends, but never freed. After a `fork`,
/// the child cannot determine whether a thread that exists only in the parent was using the pool.
#[derive(Default)]
struct SharedLanePool {
    /// The open lanes; the most recently used lane is the last.
    lanes: Mutex<Vec<PooledLane>>,
    /// The process that opened the lanes.
    opened_by: Option<ProcessIdentity>,
    /// The pool of the parent process, kept reachable so that leak detectors do not report it.
    _of_parent: Option<&'static SharedLanePool>,
}

/// An open lane, for requests with any timeout.
struct PooledLane {
    /// The settings with which the lane was opened, without a timeout.
    settings: OwnedEndpointSettings,
    lane: Lane,
    /// The last timeout of a request in milliseconds, and a lane with this timeout.
    limited: Option<(u32, Lane)>,
}

impl PooledLane {
    /// Returns a lane with this timeout, which shares the connections of all lanes that this function returns. 0 means
    /// the default timeout.
    fn with_timeout(&mut self, timeout_ms: u32) -> Lane {
        match &self.limited {
            _ if timeout_ms == 0 => self.lane.clone(),
            Some((same, lane)) if *same == timeout_ms => lane.clone(),
            _ => {
                let lane = self.lane.with_timeout(Duration::from_millis(timeout_ms.into()));
                self.limited.insert((timeout_ms, lane)).1.clone()
            }
        }
    }
}

/// The pool of this process, or NULL before the first use.
static POOL: AtomicPtr<SharedLanePool> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The bucket of the thread's last request. Destroyed before exit handlers and the destructors of C++ objects run,
    /// which may make requests. These requests open their buckets again.
    static LAST: Cell<Option<Box<ConnectedBucket>>> = const { Cell::new(None) };
}

/// Returns the lane at `address`. Errors: the errors of [`fordway_lanes::open`] and of
/// [`EndpointSettings::check_keys`].
pub(crate) fn lane(address: &EndpointSettings<&str>) -> Result<Lane> {
    if address.host.is_some() {
        return pool().open(address);
    }
    let default = DEFAULT_HOST.read().unwrap_or_else(PoisonError::into_inner).host.clone();
    pool().open(&EndpointSettings { host: default.as_deref(), ..*address })
}

impl SharedLanePool {
    fn open(&self, address: &EndpointSettings<&str>) -> Result<Lane> {
        // Requests may have different timeouts, for example the time that remains until a deadline.
        let settings = EndpointSettings { timeout_ms: 0, ..*address }.kept();
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lanes.iter().position(|opened| opened.settings == settings);
        let mut entry = match known {
            Some(at) => lanes.remove(at),
            None => {
                // The lock may be held while the lane is opened, because opening a lane runs no callback and opens no
                // connection.
                let lane = fordway_lanes::open(&address.options())?;
                address.check_keys(&lane)?;
                tracing::debug!(host = address.host, lane = lane.store.lane(), "opened");
                PooledLane { settings, lane, limited: None }
            }
        };
        let lane = entry.with_timeout(address.timeout_ms);
        lanes.push(entry);
        let oldest = (lanes.len() > LANES_MAX).then(|| lanes.remove(0));
        // Closing a lane may take time, so the lock is released first.
        drop(lanes);
        drop(oldest);
        Ok(lane)
    }
}

fn pool() -> &'static SharedLanePool {
    let current = POOL.load(Ordering::Acquire);
    let process = Some(ProcessIdentity::current());
    // SAFETY: pools are created by `Box::into_raw` and never freed.
    let known = unsafe { current.as_ref() };
    if let Some(pool) = known.filter(|pool| pool.opened_by == process) {
        return pool;
    }
    close_at_exit();
    let new = Box::into_raw(Box::new(SharedLanePool {
        opened_by: process,
        _of_parent: known,
        ..Default::default()
    }));
    match POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `new` was created by `Box::into_raw`, and is never freed once it is the pool.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: `new` was never shared. `other` is a pool, and pools are never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

/// Registers a function that closes the open lanes when the process ends.
fn close_at_exit() {
    static REGISTERED: Once = Once::new();
    extern "C" fn at_exit() {
        // A thread that is still using a lane has its own reference to the lane.
        drop(std::mem::take(&mut *pool().lanes.lock().unwrap_or_else(PoisonError::into_inner)));
    }
    // SAFETY: `at_exit` is an exit handler, which may call any function. If the system has no memory for the
    // registration, the kernel closes the lanes' connections and files.
    REGISTERED.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: EndpointSettings<&str> = EndpointSettings {
        host: None,
        timeout_ms: 0,
        is_http: true,
        is_virtual_host: false,
        access_key: None,
        secret_key: None,
        token: None,
        region: None,
    };

    fn lane_name(host: &str) -> &'static str {
        lane(&EndpointSettings { host: Some(host), ..NOWHERE }).unwrap().store.lane()
    }

    #[test]
    fn the_host_picks_the_lane() {
        assert_eq!(lane_name("/"), "embedded");
        assert_eq!(lane_name("file:///"), "embedded");
        assert_eq!(lane_name("127.0.0.1:9"), "http");
        assert_eq!(lane_name("https://127.0.0.1:9"), "http");
        assert_eq!(lane_name("unix:///run/s"), "node");
    }

    /// If one key were ignored, requests would be signed with the keys of the environment.
    #[test]
    fn an_incomplete_key_is_refused() {
        let kind_of = |host, [access_key, secret_key, token]: [Option<&str>; 3]| {
            let address = EndpointSettings { host: Some(host), access_key, secret_key, token, ..NOWHERE };
            lane(&address).err().map(|error| error.kind())
        };
        let (key, none) = (Some("key"), None);
        for keys in [[key, none, none], [none, key, none], [none, none, key], [key, none, key]] {
            assert_eq!(kind_of("127.0.0.1:9", keys), Some(ErrorKind::InvalidArgument), "{keys:?}");
            assert_eq!(kind_of("/", keys), None);
        }
        assert_eq!(kind_of("127.0.0.1:9", [key, key, none]), None);
        assert_eq!(kind_of("127.0.0.1:9", [key, key, key]), None);
    }

    #[test]
    fn the_first_of_several_initializations_sets_the_host() {
        let mut default = DefaultHost::default();
        default.initialize(Some("first"));
        default.initialize(Some("second"));
        default.deinitialize();
        default.initialize(None);
        assert_eq!(default.host.as_deref(), Some("first"));
        for _ in 0..3 {
            default.deinitialize();
        }
        default.initialize(Some("third"));
        assert_eq!(default.host.as_deref(), Some("third"));
        default.deinitialize();
        default.initialize(None);
        assert_eq!(default.host, None);
    }

    #[test]
    fn the_protocol_counts_where_the_host_has_none() {
        let endpoint = |host, is_http| {
            EndpointSettings { host: Some(host), is_http, ..NOWHERE }.options().endpoint.unwrap()
        };
        assert_eq!(endpoint("h:1", true), "http://h:1");
        assert_eq!(endpoint("h:1", false), "https://h:1");
        assert_eq!(endpoint("http://h", false), "http://h");
        assert_eq!(endpoint("/d", false), "/d");
    }

    #[test]
    fn lanes_differ_by_their_timeouts_only_on_the_http_lane() {
        let pool = SharedLanePool::default();
        let at = |host, timeout_ms| {
            pool.open(&EndpointSettings { host: Some(host), timeout_ms, ..NOWHERE }).unwrap()
        };
        for (host, is_shared) in [("file:///", true), ("unix:///nowhere", true), ("127.0.0.1:9", false)] {
            let (default, first, again) = (at(host, 0), at(host, 250), at(host, 250));
            assert!(std::sync::Arc::ptr_eq(&first.store, &again.store), "{host}");
            for timeout_ms in [0, 251] {
                let other = at(host, timeout_ms);
                assert_eq!(std::sync::Arc::ptr_eq(&first.store, &other.store), is_shared, "{host}");
            }
            assert!(std::sync::Arc::ptr_eq(&default.store, &at(host, 0).store), "{host}");
        }
        assert_eq!(pool.lanes.lock().unwrap().len(), 3);
    }

    #[test]
    fn a_timeout_limits_each_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let lane = lane(&EndpointSettings { host: Some(&host), timeout_ms: 50, ..NOWHERE }).unwrap();
        let begin = std::time::Instant::now();
        let error = lane.store.list_buckets().expect_err("nobody responds");
        assert!(begin.elapsed() < Duration::from_secs(10), "{error}");
        assert_eq!(error.kind(), fordway_store::ErrorKind::Timeout, "{error}");
    }

    #[test]
    fn one_address_is_opened_once_and_another_apart() {
        let at = |key| {
            lane(&EndpointSettings { host: Some("127.0.0.1:9"), access_key: key, secret_key: key, ..NOWHERE })
        };
        let (a, b, again) = (at(Some("a")).unwrap(), at(Some("b")).unwrap(), at(Some("a")).unwrap());
        assert!(std::sync::Arc::ptr_eq(&a.store, &again.store));
        assert!(!std::sync::Arc::ptr_eq(&a.store, &b.store));
    }

    #[test]
    fn lanes_that_were_not_used_lately_are_closed() {
        let pool = SharedLanePool::default();
        let open = |key: &str| {
            let keys = (Some(key), Some(key));
            let host = Some("127.0.0.1:9");
            pool.open(&EndpointSettings { host, access_key: keys.0, secret_key: keys.1, ..NOWHERE }).unwrap()
        };
        let (used, unused) = (open("used"), open("unused"));
        for number in 0..2 * LANES_MAX {
            open(&number.to_string());
            open("used");
        }
        assert_eq!(pool.lanes.lock().unwrap().len(), LANES_MAX);
        assert!(std::sync::Arc::ptr_eq(&used.store, &open("used").store));
        assert!(!std::sync::Arc::ptr_eq(&unused.store, &open("unused").store));
    }
}
