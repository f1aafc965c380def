//! The two callbacks that every request has, called in the right order and number.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use arrayvec::ArrayString;
use fordway_store::{ETag, Metadata, ObjectInfo, PutResult};

use crate::abi::{Abi, ErrorDetails, NameValue, ResponseHandler, ResponseProperties, StatusNumber};
use crate::failure::{Failure, Outcome};
use crate::status::Status;

/// What S3 says of content whose writer said nothing.
const DEFAULT_CONTENT_TYPE: &CStr = c"binary/octet-stream";
const SERVER: &CStr = c"fordway";

thread_local! {
    /// Programs (IOR is one) keep the pointers of the details beyond the callback, and print them.
    static LAST_MESSAGE: RefCell<Option<(CString, CString)>> = const { RefCell::new(None) };
}

/// The caller's side of a request.
pub(crate) struct Responder {
    abi: Abi,
    handler: ResponseHandler,
    data: *mut c_void,
}

/// What is known of a request's success, for the properties callback.
#[derive(Default)]
pub(crate) struct Properties<'a> {
    /// What describes the content, if any follows.
    metadata: Option<&'a Metadata>,
    content_bytes: u64,
    etag: Option<&'a ETag>,
    modified_s: Option<i64>,
}

impl<'a> Properties<'a> {
    /// Of an object of which `content_bytes` bytes follow.
    pub(crate) fn of_object(info: &'a ObjectInfo, content_bytes: u64) -> Self {
        Properties {
            metadata: Some(&info.metadata),
            content_bytes,
            etag: Some(&info.etag),
            modified_s: Some(seconds(info.modified)),
        }
    }

    /// Of something just written.
    pub(crate) fn of_written(made: &'a PutResult) -> Self {
        Properties { etag: Some(&made.etag), ..Default::default() }
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

impl Responder {
    pub(crate) fn new(abi: Abi, handler: ResponseHandler, data: *mut c_void) -> Self {
        Responder { abi, handler, data }
    }

    /// The pointer that the caller wants back in each callback.
    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }

    /// Tells that the request succeeded. `describe` is called only if somebody listens.
    /// Errors: `Callback`.
    pub(crate) fn succeeded<'a>(&self, describe: impl FnOnce() -> Properties<'a>) -> Outcome {
        let Some(callback) = self.handler.properties else { return Ok(()) };
        let told = describe();
        let (content_type, user) = (told.content_type(), told.user());
        let pairs = user.iter().map(|(name, value)| NameValue { name: name.as_ptr(), value: value.as_ptr() });
        let pairs: Vec<NameValue> = pairs.collect();
        let etag = told.etag.map(QuotedTag::new);
        let properties = ResponseProperties {
            request_id: ptr::null(),
            request_id2: ptr::null(),
            content_type: content_type.as_deref().map_or(ptr::null(), CStr::as_ptr),
            content_length: told.content_bytes,
            server: SERVER.as_ptr(),
            etag: etag.as_ref().map_or(ptr::null(), QuotedTag::as_ptr),
            last_modified_s: told.modified_s.unwrap_or(-1),
            meta_data_count: pairs.len() as i32,
            meta_data: pairs.as_ptr(),
            uses_server_side_encryption: 0,
        };
        // SAFETY: the handler's creator vouches for the callback and its data, and everything that
        // `properties` points to lives until the call is over.
        checked(unsafe { callback(&properties, self.data) })
    }

    /// Carries out `work`, and tells how it ended.
    #[inline]
    pub(crate) fn run(self, work: impl FnOnce(&Responder) -> Outcome) {
        let outcome = without_panic(|| work(&self));
        self.complete(outcome);
    }

    /// Ends the request. Consumes the responder, so that nobody hears of it twice.
    pub(crate) fn complete(self, outcome: Outcome) {
        let failure = match outcome {
            Ok(()) => return self.tell(self.abi.number(Status::OK), ptr::null()),
            Err(failure) => failure,
        };
        let (message, resource) = (c_text(&failure.message()), c_text(failure.resource()));
        let number = failure.number(self.abi);
        tracing::debug!(status = number, message = ?message, "a request failed");
        let details = ErrorDetails {
            message: message.as_ptr(),
            resource: if resource.is_empty() { ptr::null() } else { resource.as_ptr() },
            further_details: ptr::null(),
            extra_details_count: 0,
            extra_details: ptr::null_mut(),
        };
        self.tell(number, &details);
        LAST_MESSAGE.set(Some((message, resource)));
    }

    fn tell(&self, number: StatusNumber, details: *const ErrorDetails) {
        if let Some(callback) = self.handler.complete {
            // SAFETY: the handler's creator vouches for the callback and its data; `details` is NULL
            // or lives until the call is over.
            unsafe { callback(number, details, self.data) };
        }
    }
}

/// Turns a panic, which is a bug, into a failure: it must not reach the C program.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // What a panic leaves half done is dropped with the request.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::refused(
            Status::InternalError,
            "a bug in fordway; run with FORDWAY_LOG=debug and report it",
        ))
    })
}

/// What a callback's answer means for its request.
pub(crate) fn checked(answer: StatusNumber) -> Outcome {
    match answer {
        0 => Ok(()),
        number => Err(Failure::Callback(number)),
    }
}

/// A copy for C, up to the first NUL.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or_default());
        CString::new(bytes).unwrap_or_default()
    })
}

/// An entity tag as HTTP and S3's XML have it, in quotes.
pub(crate) enum QuotedTag {
    /// With a NUL.
    Short(ArrayString<48>),
    Long(CString),
}

impl QuotedTag {
    pub(crate) fn new(etag: &ETag) -> Self {
        let mut short = ArrayString::new();
        let pieces = ["\"", etag.as_str(), "\"", "\0"];
        match pieces.iter().try_for_each(|piece| short.try_push_str(piece)) {
            Ok(()) => QuotedTag::Short(short),
            Err(_) => QuotedTag::Long(c_text(&format!("\"{etag}\""))),
        }
    }

    /// Valid for as long as the tag lives where it lies.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        match self {
            QuotedTag::Short(text) => text.as_ptr().cast(),
            QuotedTag::Long(text) => text.as_ptr(),
        }
    }
}

/// Seconds since the epoch.
pub(crate) fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

/// Writes `text` and a NUL to the `capacity` bytes at `to`, cut to what fits.
///
/// # Safety
/// `to` is NULL, or `capacity` bytes there may be written.
pub(crate) unsafe fn write_text(to: *mut c_char, capacity: usize, text: &str) {
    if to.is_null() || capacity == 0 {
        return;
    }
    let len = text.len().min(capacity - 1);
    // SAFETY: `len + 1` is at most `capacity`, and what a caller lends is no part of our `text`.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        to.add(len).write(0);
    }
}
