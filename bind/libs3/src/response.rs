//! Calls the two callbacks of every request, in the right order and the right number of times. Also defines
//! [`RequestFailure`], which is converted to a status number and a message. Content passes between the caller's
//! callbacks and a store through a buffer, which is also defined here.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::IsTerminal;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Once, OnceLock};
use std::thread::LocalKey;
use std::time::{SystemTime, UNIX_EPOCH};

use arrayvec::ArrayString;
use fordway_store::{ETag, Error, ErrorKind, Metadata, ObjectInfo, PutResult};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::abi::{
    AbiVersion, CommitCallback, ErrorDetails, NameValue, PropertiesCallback, PutDataCallback,
    ResponseHandler, ResponseProperties, S3StatusCode, UploadIdCallback,
};
use crate::relay::{CallbackRelay, RequestWork, interrupted};
use crate::status::Status;

/// The content type that S3 returns for an object stored without a content type.
const DEFAULT_CONTENT_TYPE: &CStr = c"binary/octet-stream";
const SERVER: &CStr = c"fordway";

thread_local! {
    /// The last failure's message and resource. Some programs (such as IOR) keep the pointers from the error details
    /// after the callback, and print the strings they point to.
    static LAST_MESSAGE: Cell<Option<(CString, CString)>> = const { Cell::new(None) };
    /// Replaces `LAST_MESSAGE` after the thread has destroyed that variable.
    static LATE_MESSAGE: Cell<ManuallyDrop<Option<(CString, CString)>>> =
        const { Cell::new(ManuallyDrop::new(None)) };
}

/// Keeps `value` until the thread keeps its next value. Uses `late`, which has no destructor, when the thread has
/// already destroyed `last`. This is the case in exit handlers and in destructors of thread-specific data, which may
/// make requests too.
pub(crate) fn keep<T>(
    last: &'static LocalKey<Cell<Option<T>>>,
    late: &'static LocalKey<Cell<ManuallyDrop<Option<T>>>>,
    mut value: Option<T>,
) {
    let kept = last.try_with(|last| last.set(value.take()));
    if kept.is_err() {
        drop(ManuallyDrop::into_inner(late.replace(ManuallyDrop::new(value))));
    }
}

/// Reports the progress and outcome of a request to its caller.
pub(crate) struct CallbackResponder {
    abi: AbiVersion,
    handler: ResponseHandler,
    data: *mut c_void,
    route: CallbackRoute,
    /// Set only in the responder that completes the request.
    result: Option<Arc<MultipartResult>>,
}

/// A callback that receives the result of a multipart request. As in libs3, it runs after the complete callback, even
/// if the request failed, and its status is ignored.
#[derive(Clone, Copy)]
pub(crate) enum MultipartResultCallback {
    /// The callback of a request that starts an upload; receives the upload's ID.
    UploadId(UploadIdCallback),
    /// The callback of a request that completes an upload; receives the object's location and ETag.
    Commit(CommitCallback),
}

/// The result of a multipart request, and the callback that receives the result.
pub(crate) struct MultipartResult {
    callback: MultipartResultCallback,
    /// The strings for the callback. Empty until the request has succeeded.
    texts: OnceLock<[CString; 2]>,
}

impl MultipartResult {
    pub(crate) fn new(callback: MultipartResultCallback) -> Arc<Self> {
        Arc::new(MultipartResult { callback, texts: OnceLock::new() })
    }

    /// Stores the strings: an upload's ID and an empty string, or an object's location and ETag.
    pub(crate) fn set(&self, texts: [CString; 2]) {
        // A request has only one result.
        let _ = self.texts.set(texts);
    }

    fn tell(&self, data: *mut c_void) {
        let [first, second] = self.texts.get_or_init(Default::default);
        // SAFETY: the program guarantees that its callback may be called with its data. The strings outlive the call.
        let _ignored = unsafe {
            match self.callback {
                MultipartResultCallback::UploadId(callback) => callback(first.as_ptr(), data),
                MultipartResultCallback::Commit(callback) => callback(first.as_ptr(), second.as_ptr(), data),
            }
        };
    }
}

/// How a request's callbacks reach the thread on which they must run.
enum CallbackRoute {
    /// Callbacks run directly, in the thread that makes and carries out the request.
    Direct,
    /// The thread that drives the context carries out the request, so callbacks run directly as long as the context
    /// exists. The cell contains work that a worker must do, because the work would occupy this thread for too long.
    Driver(Arc<CallbackRelay>, Cell<Option<RequestWork>>),
    /// A worker carries out the request, and passes callbacks to the thread that drives the context.
    Worker(Arc<CallbackRelay>),
}

/// The properties of a response that describes no object.
const PLAIN_PROPERTIES: ResponseProperties = ResponseProperties {
    request_id: ptr::null(),
    request_id2: ptr::null(),
    content_type: ptr::null(),
    content_length: 0,
    server: SERVER.as_ptr(),
    etag: ptr::null(),
    last_modified_s: -1,
    meta_data_count: 0,
    meta_data: ptr::null(),
    uses_server_side_encryption: 0,
};

/// The error details of a successful request. libs3 also passes a structure in this case, so programs may read the
/// structure.
const NO_DETAILS: ErrorDetails = ErrorDetails {
    message: ptr::null(),
    resource: ptr::null(),
    further_details: ptr::null(),
    extra_details_count: 0,
    extra_details: ptr::null_mut(),
};

/// The properties that a successful request passes to the properties callback.
#[derive(Default)]
pub(crate) struct SuccessProperties<'a> {
    /// The object's metadata, or `None` if no object is described.
    metadata: Option<&'a Metadata>,
    content_bytes: u64,
    etag: Option<&'a ETag>,
    modified_s: Option<i64>,
}

impl<'a> SuccessProperties<'a> {
    /// Describes an object. `content_bytes` is the number of bytes that the request transfers, or the object's size if
    /// the request only queries the object.
    pub(crate) fn of_object(info: &'a ObjectInfo, content_bytes: u64) -> Self {
        SuccessProperties {
            metadata: Some(&info.metadata),
            content_bytes,
            etag: Some(&info.etag),
            modified_s: Some(seconds(info.modified)),
        }
    }

    /// Describes an object or part that was just written.
    pub(crate) fn of_written(made: &'a PutResult) -> Self {
        SuccessProperties { etag: Some(&made.etag), ..Default::default() }
    }

    fn content_type(&self) -> Option<Cow<'static, CStr>> {
        let said = self.metadata?.content_type.as_deref();
        Some(said.map_or(Cow::Borrowed(DEFAULT_CONTENT_TYPE), |said| c_text(said).into()))
    }

    fn user(&self) -> Vec<(CString, CString)> {
        let Some(metadata) = self.metadata.filter(|metadata| !metadata.user.is_empty()) else {
            return Vec::new();
        };
        metadata.user.iter().map(|(name, value)| (c_text(name), c_text(value))).collect()
    }
}

impl CallbackResponder {
    pub(crate) fn new(abi: AbiVersion, handler: ResponseHandler, data: *mut c_void) -> Self {
        CallbackResponder { abi, handler, data, route: CallbackRoute::Direct, result: None }
    }

    /// Passes `result` to its callback when the request has completed.
    pub(crate) fn with_result(self, result: Option<Arc<MultipartResult>>) -> Self {
        CallbackResponder { result, ..self }
    }

    /// Returns a copy of the responder, for use on the thread that drives `relay`'s context.
    pub(crate) fn on_driver(&self, relay: Arc<CallbackRelay>) -> Self {
        CallbackResponder { route: CallbackRoute::Driver(relay, Cell::default()), result: None, ..*self }
    }

    /// Returns a copy of the responder, for use on a worker of `relay`'s context.
    pub(crate) fn on_worker(&self, relay: Arc<CallbackRelay>) -> Self {
        CallbackResponder { route: CallbackRoute::Worker(relay), result: None, ..*self }
    }

    /// Runs `callback` on the thread on which callbacks must run, and returns its result. The program's memory must be
    /// accessed only inside `callback`; at other times, the program may already have freed the memory. Errors: the
    /// errors of `callback`, `Interrupted`.
    #[inline]
    pub(crate) fn call<T>(&self, callback: impl FnOnce() -> RequestResult<T>) -> RequestResult<T> {
        match &self.route {
            CallbackRoute::Driver(relay, _) if relay.is_closed() => Err(interrupted()),
            CallbackRoute::Direct | CallbackRoute::Driver(..) => callback(),
            CallbackRoute::Worker(relay) => relay.call(callback),
        }
    }

    /// Runs `rest`, the last step of the request, which transfers `bytes`. The step runs immediately, or on a worker if
    /// this thread drives a context and would be busy for too long.
    #[inline]
    pub(crate) fn finish_by(
        &self,
        bytes: u64,
        rest: impl FnOnce(&CallbackResponder) -> RequestResult + 'static,
    ) -> RequestResult {
        match &self.route {
            CallbackRoute::Driver(_, left) if bytes > QUICK_MAX_BYTES => {
                left.set(Some(Box::new(rest)));
                Ok(())
            }
            _ => rest(self),
        }
    }

    /// Returns the minimum number of content bytes that each [`CallbackResponder::call`] except the last passes.
    /// Without a minimum, slow content from a network would wake the driving thread for each segment.
    pub(crate) fn piece_bytes_min(&self) -> usize {
        match &self.route {
            CallbackRoute::Direct | CallbackRoute::Driver(..) => 1,
            CallbackRoute::Worker(_) => PIECE_BYTES / 4,
        }
    }

    /// Removes and returns the work that [`CallbackResponder::finish_by`] has deferred to a worker.
    pub(crate) fn take_rest(&self) -> Option<RequestWork> {
        match &self.route {
            CallbackRoute::Driver(_, left) => left.take(),
            CallbackRoute::Direct | CallbackRoute::Worker(_) => None,
        }
    }

    /// Returns the caller's pointer, which is passed to each callback.
    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }

    /// Reports that a request without an object succeeded. Errors: `Callback`.
    pub(crate) fn succeeded_plainly(&self) -> RequestResult {
        let Some(callback) = self.handler.properties else { return Ok(()) };
        // SAFETY: the program guarantees that its callback may be called with its data.
        self.call(|| checked(unsafe { callback(&PLAIN_PROPERTIES, self.data) }))
    }

    /// Reports that the request succeeded. `describe` is called only if there is a properties callback.
    /// Errors: `Callback`.
    pub(crate) fn succeeded<'a>(&self, describe: impl FnOnce() -> SuccessProperties<'a>) -> RequestResult {
        let Some(callback) = self.handler.properties else { return Ok(()) };
        self.call(|| self.tell_properties(callback, &describe()))
    }

    fn tell_properties(&self, callback: PropertiesCallback, told: &SuccessProperties) -> RequestResult {
        let (content_type, user) = (told.content_type(), told.user());
        let pairs = user.iter().map(|(name, value)| NameValue { name: name.as_ptr(), value: value.as_ptr() });
        let pairs: Vec<NameValue> = pairs.collect();
        let etag = told.etag.map(QuotedETag::new);
        let properties = ResponseProperties {
            content_type: content_type.as_deref().map_or(ptr::null(), CStr::as_ptr),
            content_length: told.content_bytes,
            etag: etag.as_ref().map_or(ptr::null(), QuotedETag::as_ptr),
            last_modified_s: told.modified_s.unwrap_or(-1),
            meta_data_count: pairs.len() as i32,
            meta_data: pairs.as_ptr(),
            ..PLAIN_PROPERTIES
        };
        // SAFETY: the program guarantees that its callback may be called with its data. Everything that `properties`
        // points to outlives the call.
        checked(unsafe { callback(&properties, self.data) })
    }

    /// Runs `work`, and reports its outcome.
    #[inline]
    pub(crate) fn run(self, work: impl FnOnce(&CallbackResponder) -> RequestResult) {
        let outcome = without_panic(|| work(&self));
        self.complete(outcome);
    }

    /// Ends the request and reports its outcome. Consumes the responder, so that the outcome is reported only once.
    pub(crate) fn complete(self, outcome: RequestResult) {
        // A panic after the complete callback must not unwind into the C program either. The panic can no longer be
        // reported.
        let _ = without_panic(|| {
            match outcome {
                Ok(()) => self.tell(self.abi.number(Status::OK), &NO_DETAILS),
                Err(failure) => self.tell_failure(&failure),
            }
            if let Some(result) = &self.result {
                result.tell(self.data);
            }
            Ok(())
        });
    }

    #[cold]
    fn tell_failure(&self, failure: &RequestFailure) {
        let (message, resource) = (c_text(&failure.message()), c_text(failure.resource()));
        let number = failure.number(self.abi);
        tracing::debug!(status = number, message = ?message, "a request failed");
        let details = ErrorDetails {
            message: message.as_ptr(),
            resource: if resource.is_empty() { ptr::null() } else { resource.as_ptr() },
            ..NO_DETAILS
        };
        self.tell(number, &details);
        keep(&LAST_MESSAGE, &LATE_MESSAGE, Some((message, resource)));
    }

    fn tell(&self, number: S3StatusCode, details: &ErrorDetails) {
        if let Some(callback) = self.handler.complete {
            // SAFETY: the program guarantees that its callback may be called with its data. `details` remains valid
            // until the callback returns.
            unsafe { callback(number, details, self.data) };
        }
    }
}

/// Turns a panic, which is a bug, into a failure, because a panic must not unwind into the C program.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> RequestResult<T>) -> RequestResult<T> {
    // Any state that a panic leaves incomplete is dropped with the request.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(RequestFailure::refused(
            Status::InternalError,
            "a bug in fordway; run with FORDWAY_LOG=debug and report it",
        ))
    })
}

/// Converts the return value of a callback to the outcome of its request.
pub(crate) fn checked(answer: S3StatusCode) -> RequestResult {
    match answer {
        0 => Ok(()),
        number => Err(RequestFailure::Callback(number)),
    }
}

/// Copies a string for C, up to the first NUL.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or_default());
        CString::new(bytes).unwrap_or_default()
    })
}

/// An ETag in quotes, as in HTTP and in S3's XML.
pub(crate) enum QuotedETag {
    /// The string includes a NUL at its end.
    Short(ArrayString<48>),
    Long(CString),
}

impl QuotedETag {
    pub(crate) fn new(etag: &ETag) -> Self {
        let mut short = ArrayString::new();
        let pieces = ["\"", etag.as_str(), "\"", "\0"];
        match pieces.iter().try_for_each(|piece| short.try_push_str(piece)) {
            Ok(()) => QuotedETag::Short(short),
            Err(_) => QuotedETag::Long(c_text(&format!("\"{etag}\""))),
        }
    }

    /// Returns a pointer that is valid until the tag is moved or dropped.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        match self {
            QuotedETag::Short(text) => text.as_ptr().cast(),
            QuotedETag::Long(text) => text.as_ptr(),
        }
    }
}

/// Returns the seconds from the epoch to `time`, rounded towards 0.
pub(crate) fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

/// Writes `text` and a NUL to the `capacity` bytes at `to`. A string that does not fit is truncated.
///
/// # Safety
/// `to` is NULL, or valid for writes of `capacity` bytes.
pub(crate) unsafe fn write_text(to: *mut c_char, capacity: usize, text: &str) {
    if to.is_null() || capacity == 0 {
        return;
    }
    let len = text.len().min(capacity - 1);
    // SAFETY: `len + 1` is at most `capacity`, and the caller's memory does not overlap our `text`.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        to.add(len).write(0);
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// The store failed.
    Store(Error),
    /// The store failed in a request to which an S3 service would respond without a body, such as HEAD.
    Head(Error),
    /// The content of an object ended early.
    ShortContent(Error),
    /// This library refused the request. The string gives the reason and the remedy.
    Refused(Status, String),
    /// A callback failed with this status, in the caller's numbering.
    Callback(S3StatusCode),
}

/// The outcome of a request.
pub(crate) type RequestResult<T = ()> = Result<T, RequestFailure>;

impl RequestFailure {
    /// Creates the failure for an error of a get. If the object became shorter, the status is the same as if the
    /// connection had ended, because `IncompleteBody` would mean that the program sent too little.
    #[cold]
    pub(crate) fn of_get(error: Error, lane: &str) -> Self {
        // The node lane adds a code to every kind, so a code comes from an S3 service only on the http lane. The code
        // of a service takes precedence over the kind.
        let is_of_service = lane == "http" && error.s3_code().is_some();
        match error.kind() {
            ErrorKind::IncompleteBody if !is_of_service => RequestFailure::ShortContent(error),
            _ => RequestFailure::Store(error),
        }
    }

    /// Creates a failure for a refused argument or operation. `why` is a sentence with the reason and the remedy.
    pub(crate) fn refused(status: Status, why: impl Into<String>) -> Self {
        RequestFailure::Refused(status, why.into())
    }

    pub(crate) fn number(&self, abi: AbiVersion) -> S3StatusCode {
        match self {
            RequestFailure::Store(error) => abi.number(error.into()),
            RequestFailure::Head(error) => abi.number(Status::from(error).without_body()),
            // Programs retry a request that ended with this status.
            RequestFailure::ShortContent(_) => abi.number(Status::ConnectionFailed),
            RequestFailure::Refused(status, _) => abi.number(*status),
            RequestFailure::Callback(number) => *number,
        }
    }

    /// Returns the human-readable message.
    pub(crate) fn message(&self) -> String {
        match self {
            RequestFailure::Store(error)
            | RequestFailure::Head(error)
            | RequestFailure::ShortContent(error) => error.to_string(),
            RequestFailure::Refused(_, why) => why.clone(),
            RequestFailure::Callback(number) => {
                format!("a callback of the program returned status {number}")
            }
        }
    }

    /// Returns the URL of the resource for which the request failed, or an empty string.
    pub(crate) fn resource(&self) -> &str {
        match self {
            RequestFailure::Store(error)
            | RequestFailure::Head(error)
            | RequestFailure::ShortContent(error) => error.target(),
            RequestFailure::Refused(..) | RequestFailure::Callback(_) => "",
        }
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        RequestFailure::Store(error)
    }
}

/// Starts logging, including panics, to standard error with the filter in `FORDWAY_LOG` (such as `debug` or
/// `fordway_libs3=trace`). Every function that makes a request or returns a status calls this function. Only the first
/// call has an effect.
pub(crate) fn start_diagnosis() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if let Some(filter) =
            std::env::var("FORDWAY_LOG").ok().and_then(|wanted| wanted.parse::<Targets>().ok())
        {
            let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
            let subscriber = tracing_subscriber::registry().with(filter).with(lines).with(LateEventFilter);
            // This call fails if the program has set up its own logging, which then stays in use.
            let _ = tracing::subscriber::set_global_default(subscriber);
        }
        if !cfg!(test) {
            std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a bug")));
        }
    });
}

thread_local! {
    /// Whether the thread has logged an event.
    static HAS_LOGGED: Cell<bool> = const { Cell::new(false) };
    /// A value with a destructor. A thread first accesses the value after its first event.
    static LOGGER_LIFETIME: Box<()> = Box::new(());
}

/// Discards the events of threads that have destroyed their thread-local variables, for example events in exit
/// handlers. The formatter of events keeps a buffer in such a variable, and panics without the buffer.
struct LateEventFilter;

impl<S: Subscriber> Layer<S> for LateEventFilter {
    fn event_enabled(&self, _: &Event<'_>, _: Context<'_, S>) -> bool {
        // A thread destroys its variables in the opposite order of their first access. As long as `LOGGER_LIFETIME`
        // exists, the buffer therefore also exists.
        !HAS_LOGGED.get() || LOGGER_LIFETIME.try_with(|_| ()).is_ok()
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        // This function runs when the formatter has accessed its buffer.
        HAS_LOGGED.set(true);
        let _ = LOGGER_LIFETIME.try_with(|_| ());
    }
}

/// The size of a piece in bytes. A piece must fit in the L2 cache, because larger pieces cost more in cache misses than
/// they save in system calls. The following costs were measured with 2 MiB on tmpfs, relative to one `pwrite` or
/// `pread` without a copy. Pieces of 32 KiB cost 14 % more to write and 18 % more to read. Pieces of 128 or 256 KiB
/// cost 10 % more to write and 14 % more to read. Pieces of 1 MiB cost 23 % more to write and 29 % more to read.
pub(crate) const PIECE_BYTES: usize = 256 * 1024;

/// The maximum size, in bytes, of local file content that the driving thread transfers itself. Exchanging this much
/// content with a worker, piece by piece, would take longer.
pub(crate) const QUICK_MAX_BYTES: u64 = 4 << 20;

thread_local! {
    /// The thread's buffer, kept between requests because newly allocated memory would cost a page fault per 4 KiB.
    static SPARE: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
}

/// Runs `work` with the thread's buffer. A request made inside the callback of another request gets a new buffer.
pub(crate) fn with_piece<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    // In an exit handler, the thread-local variable may already have been destroyed.
    let spare = SPARE.try_with(Cell::take).ok().flatten();
    let mut piece = spare.unwrap_or_else(|| vec![0; PIECE_BYTES]);
    let done = work(&mut piece);
    let _ = SPARE.try_with(|spare| spare.set(Some(piece)));
    done
}

/// The caller's content, requested piece by piece and never beyond the announced size.
pub(crate) struct PutBodySource {
    callback: Option<PutDataCallback>,
    data: *mut c_void,
    left_bytes: u64,
}

impl PutBodySource {
    pub(crate) fn new(callback: Option<PutDataCallback>, data: *mut c_void, total_bytes: u64) -> Self {
        PutBodySource { callback, data, left_bytes: total_bytes }
    }

    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Fills `piece` with the next content, and returns the number of bytes. The number is smaller than the size of
    /// `piece` only at the end of the content. Content beyond the announced size is ignored, as in libs3. Errors: the
    /// caller aborts, or provides less content than announced.
    pub(crate) fn fill(&mut self, piece: &mut [u8], responder: &CallbackResponder) -> RequestResult<usize> {
        let wanted = usize::try_from(self.left_bytes).map_or(piece.len(), |left| left.min(piece.len()));
        let is_last = wanted as u64 == self.left_bytes;
        if wanted > 0 {
            responder.call(|| {
                let mut filled = 0;
                while filled < wanted {
                    filled += self.ask(&mut piece[filled..wanted], is_last)?;
                }
                Ok(())
            })?;
        }
        self.left_bytes -= wanted as u64;
        Ok(wanted)
    }

    /// Calls the content callback once. `is_last` means that the content ends at the end of `room`.
    fn ask(&self, room: &mut [u8], is_last: bool) -> RequestResult<usize> {
        let missing = || self.left_bytes;
        let Some(callback) = self.callback else {
            return Err(RequestFailure::refused(
                Status::ErrorMissingRequestBodyError,
                "the content callback is NULL",
            ));
        };
        let room_bytes = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: the program guarantees that its callback may be called with its data. The callback may write
        // `room_bytes` bytes to `room`.
        let got = unsafe { callback(room_bytes, room.as_mut_ptr().cast(), self.data) };
        match got {
            1.. if got <= room_bytes => Ok(got as usize),
            1.. if is_last => Ok(room_bytes as usize),
            1.. => Err(RequestFailure::refused(
                Status::InternalError,
                format!("the content callback returned {got} bytes for a buffer of {room_bytes} bytes"),
            )),
            0 => Err(RequestFailure::refused(
                Status::ErrorIncompleteBody,
                format!("the content ended within the last {} bytes that were announced", missing()),
            )),
            _ => Err(RequestFailure::refused(
                Status::AbortedByCallback,
                "the content callback cancelled the request",
            )),
        }
    }
}
