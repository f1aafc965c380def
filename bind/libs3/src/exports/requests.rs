//! Checks and converts the arguments of each request, for both ABIs: contexts and properties may be of either version.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;

use fordway_store::{GetOptions, PartsQuery, UploadsQuery};

use crate::abi::{
    AbiVersion, AclGrant, CommitHandler, GetConditions, GetDataCallback, ListBucketCallback,
    ListPartsCallback, ListServiceCallback, ListUploadsCallback, MAX_GRANTS, PutDataCallback,
    RequestCallbacks, ResponseHandler, UploadIdCallback,
};
use crate::arguments::{
    AbiBucketContext, ParsePutProperties, bytes, check_acl, conditions, count, key, owned, properties,
    required, required_key, text,
};
use crate::bucket::{self, AclOutputPointers};
use crate::lane::{self, ConnectedBucket, ConnectedBucketGuard};
use crate::object::{self, CopyOutputPointers, UploadPartTarget, part_number, upload_id};
use crate::queue::{RequestContext, RequestSchedulingClass, submit};
use crate::response::{
    self, CallbackResponder, MultipartResult, MultipartResultCallback, PutBodySource, RequestFailure,
    RequestResult,
};
use crate::status::Status;

/// The content size that is assumed for a request, such as a listing or a copy, whose arguments do not determine the
/// amount of work.
const UNKNOWN: u64 = u64::MAX;

/// The arguments that all requests have in common.
#[derive(Clone, Copy)]
pub(super) struct RequestArguments {
    pub(super) queue: *mut RequestContext,
    pub(super) data: *mut c_void,
    /// The time limit in milliseconds; 0 means the lane's default.
    pub(super) timeout_ms: c_int,
}

impl RequestArguments {
    /// Checks a request with `prepare`, and then carries out the request or adds it to its context.
    ///
    /// # Safety
    /// The handler is NULL or has callbacks that may be called with `data`. The queue is NULL or has not been
    /// destroyed.
    unsafe fn submit<Work>(
        self,
        handler: *const ResponseHandler,
        prepare: impl FnOnce() -> RequestResult<(RequestSchedulingClass, Work)>,
    ) where
        Work: FnOnce(&CallbackResponder) -> RequestResult + 'static,
    {
        // SAFETY: the requirements are the same.
        unsafe { self.submit_with_result(handler, None, prepare) }
    }

    /// Like [`RequestArguments::submit`], for a request that passes `result` to its callback.
    ///
    /// # Safety
    /// The requirements of [`RequestArguments::submit`] apply. The callback of `result` may be called with `data`.
    unsafe fn submit_with_result<Work>(
        self,
        handler: *const ResponseHandler,
        result: Option<Arc<MultipartResult>>,
        prepare: impl FnOnce() -> RequestResult<(RequestSchedulingClass, Work)>,
    ) where
        Work: FnOnce(&CallbackResponder) -> RequestResult + 'static,
    {
        response::start_diagnosis();
        let nobody = ResponseHandler { properties: None, complete: None };
        // SAFETY: the caller guarantees that the handler and the queue are NULL or valid, and that the callbacks accept
        // `data`.
        unsafe {
            let handler = handler.as_ref().copied().unwrap_or(nobody);
            let responder = CallbackResponder::new(AbiVersion::EXPORTED, handler, self.data);
            submit(self.queue, responder.with_result(result), prepare);
        }
    }

    /// # Safety
    /// `context` is NULL or points to a context whose pointers are NULL or C strings.
    unsafe fn target<C: AbiBucketContext>(self, context: *const C) -> RequestResult<ConnectedBucketGuard> {
        // SAFETY: the caller guarantees that `context`, and each pointer in the context, is NULL or valid.
        unsafe { required(context, "bucket context")?.target(self.timeout_ms) }
    }
}

/// Returns the callback that is specific to a request.
///
/// # Safety
/// `handler` is NULL or points to a handler.
unsafe fn callback<T: Copy>(handler: *const RequestCallbacks<T>) -> Option<T> {
    // SAFETY: the caller guarantees that `handler` is NULL or valid.
    unsafe { handler.as_ref() }.and_then(|handler| handler.callback)
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_list_service`.
pub(super) unsafe fn list_service<C: AbiBucketContext>(
    context: &C,
    call: RequestArguments,
    handler: *const RequestCallbacks<ListServiceCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            let (lane, callback) =
                (lane::lane(&context.address(call.timeout_ms).checked()?)?, callback(handler));
            Ok((
                RequestSchedulingClass::of(lane::is_local(&lane), 0),
                move |responder: &CallbackResponder| bucket::list_all(&lane, callback, responder),
            ))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_test_bucket`.
pub(super) unsafe fn test_bucket<C: AbiBucketContext>(
    context: &C,
    (location, capacity): (*mut c_char, c_int),
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let (target, capacity) =
                (context.target(call.timeout_ms)?, count(capacity, "locationConstraintReturnSize")?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::test(&target, (location, capacity), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_create_bucket`.
pub(super) unsafe fn create_bucket<C: AbiBucketContext>(
    context: &C,
    (acl, location, region): (c_int, *const c_char, *const c_char),
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            check_acl(acl)?;
            let (target, location, region) =
                (context.target(call.timeout_ms)?, owned(location)?, owned(region)?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::create(&target, location.as_deref(), region.as_deref(), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_delete_bucket`.
pub(super) unsafe fn delete_bucket<C: AbiBucketContext>(
    context: &C,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let target = context.target(call.timeout_ms)?;
            Ok((target.weight(0), move |responder: &CallbackResponder| bucket::delete(&target, responder)))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_list_bucket`.
pub(super) unsafe fn list_bucket<C: AbiBucketContext>(
    context: *const C,
    [prefix, marker, delimiter]: [*const c_char; 3],
    max_keys: c_int,
    call: RequestArguments,
    handler: *const RequestCallbacks<ListBucketCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            let max_keys = count(max_keys, "maxkeys")?;
            let query = bucket::query(text(prefix)?, text(marker)?, text(delimiter)?, max_keys);
            let (target, callback) = (call.target(context)?, callback(handler));
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                bucket::list(&target, &query, callback, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_put_object`.
pub(super) unsafe fn put_object<C: AbiBucketContext, P: ParsePutProperties>(
    context: *const C,
    name: *const c_char,
    (length, said): (u64, *const P),
    call: RequestArguments,
    handler: *const RequestCallbacks<PutDataCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            let (target, key, said) =
                (call.target(context)?, key(name)?, properties(said)?.unwrap_or_default());
            let source = PutBodySource::new(callback(handler), call.data, length);
            Ok((target.weight_of_put(length), move |responder: &CallbackResponder| {
                if key.is_none() && length == 0 {
                    return object::touch_bucket(&target, responder);
                }
                let made = object::put(&target, key.as_ref(), said, source, responder)?;
                responder.succeeded(|| response::SuccessProperties::of_written(&made))
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_get_object`.
pub(super) unsafe fn get_object<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    (asked, start, length): (*const GetConditions, u64, u64),
    call: RequestArguments,
    handler: *const RequestCallbacks<GetDataCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            let (target, key, callback) = (call.target(context)?, required_key(name)?, callback(handler));
            let options = GetOptions {
                range: object::range(start, length),
                conditions: conditions(asked)?,
                ..Default::default()
            };
            Ok((target.weight(length), move |responder: &CallbackResponder| {
                object::get(&target, &key, &options, callback, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_head_object`.
pub(super) unsafe fn head_object<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let (target, key) = (call.target(context)?, key(name)?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                object::head(&target, key.as_ref(), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_delete_object`.
pub(super) unsafe fn delete_object<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let (target, key) = (call.target(context)?, key(name)?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                object::delete(&target, key.as_ref(), responder)
            }))
        });
    }
}

/// The destination of a copy. If the bucket or key is NULL, the source's bucket or key is used. For a copy to a part,
/// the structure also contains the upload, the part number and the source range.
pub(super) struct CopyDestinationArguments {
    pub(super) bucket: *const c_char,
    pub(super) key: *const c_char,
    pub(super) part: Option<PartCopyArguments>,
    pub(super) returns: CopyOutputPointers,
}

/// A part to copy.
pub(super) struct PartCopyArguments {
    pub(super) number: c_int,
    pub(super) upload: *const c_char,
    pub(super) start: c_ulong,
    pub(super) count: c_ulong,
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_copy_object` and `S3_copy_object_range`.
pub(super) unsafe fn copy_object<C: AbiBucketContext, P: ParsePutProperties>(
    context: *const C,
    name: *const c_char,
    to: CopyDestinationArguments,
    said: *const P,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    // The memory for the result remains valid until the request is complete.
    unsafe {
        to.returns.clear();
        call.submit(handler, || {
            let (target, from, said) = (call.target(context)?, required_key(name)?, properties(said)?);
            let to_bucket = bucket::named_or_own(bytes(to.bucket), &target.bucket)?;
            let to_key = key(to.key)?.unwrap_or_else(|| from.clone());
            let range = to.part.as_ref().and_then(|part| object::copied_range(part.start, part.count));
            let part = match &to.part {
                Some(PartCopyArguments { number, upload, .. }) => {
                    let (number, upload) = (part_number(*number)?, upload_id(text(*upload)?)?);
                    Some(UploadPartTarget { key: to_key.clone(), upload, number })
                }
                None => None,
            };
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                let made = match &part {
                    Some(part) => object::copy_part(&target, &from, range, (&to_bucket, part))?,
                    None => object::copy(&target, &from, (&to_bucket, &to_key), said)?,
                };
                to.returns.tell(&made, responder)?;
                responder.succeeded(|| response::SuccessProperties::of_written(&made))
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_get_acl`.
pub(super) unsafe fn get_acl<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    returns: AclOutputPointers,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        // If the request fails, the program reads a grant count of 0.
        if let Some(count) = returns.count.as_mut() {
            *count = 0;
        }
        call.submit(handler, || {
            let (target, key) = (call.target(context)?, key(name)?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::get_acl(&target, key.as_ref(), &returns, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_set_acl`.
pub(super) unsafe fn set_acl<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    (grants, number): (*const AclGrant, c_int),
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let number = count(number, "aclGrantCount")?;
            if number > MAX_GRANTS {
                let why = format!("{number} grants are too many; {MAX_GRANTS} fit");
                return Err(RequestFailure::refused(Status::TooManyGrants, why));
            }
            let grants = if grants.is_null() { &[] } else { std::slice::from_raw_parts(grants, number) };
            let (target, key, grants) = (call.target(context)?, key(name)?, grants.to_vec());
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::set_acl(&target, key.as_ref(), &grants, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_get_server_access_logging`.
pub(super) unsafe fn get_logging<C: AbiBucketContext>(
    context: *const C,
    (bucket, prefix, count): (*mut c_char, *mut c_char, *mut c_int),
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        bucket::write_no_logging(bucket, prefix, count);
        call.submit(handler, || {
            let target = call.target(context)?;
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::get_logging(&target, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_set_server_access_logging`.
pub(super) unsafe fn set_logging<C: AbiBucketContext>(
    context: *const C,
    to_bucket: *const c_char,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let (target, bucket) = (call.target(context)?, owned(to_bucket)?);
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                bucket::set_logging(&target, bucket.as_deref(), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_get_lifecycle` and `S3_set_lifecycle`.
pub(super) unsafe fn lifecycle<C: AbiBucketContext>(
    context: *const C,
    answer: fn(&ConnectedBucket) -> RequestResult,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler, || {
            let target = call.target(context)?;
            Ok((target.weight(0), move |_: &CallbackResponder| answer(&target)))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_initiate_multipart`.
pub(super) unsafe fn initiate_multipart<C: AbiBucketContext, P: ParsePutProperties>(
    context: *const C,
    name: *const c_char,
    said: *const P,
    call: RequestArguments,
    handler: *const RequestCallbacks<UploadIdCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        let callback = callback(handler).map(MultipartResultCallback::UploadId);
        let result = callback.map(MultipartResult::new);
        call.submit_with_result(handler.cast(), result.clone(), || {
            let (target, key) = (call.target(context)?, required_key(name)?);
            let said = properties(said)?.unwrap_or_default();
            Ok((target.weight(0), move |responder: &CallbackResponder| {
                object::initiate_upload(&target, &key, said, result.as_deref(), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_upload_part`.
pub(super) unsafe fn upload_part<C: AbiBucketContext, P: ParsePutProperties>(
    context: *const C,
    name: *const c_char,
    (number, upload, length, said): (c_int, *const c_char, c_int, *const P),
    call: RequestArguments,
    handler: *const RequestCallbacks<PutDataCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            let (number, upload) = (part_number(number)?, upload_id(text(upload)?)?);
            let (target, part) =
                (call.target(context)?, UploadPartTarget { key: required_key(name)?, upload, number });
            let md5 = properties(said)?.and_then(|said| said.md5);
            let length = count(length, "partContentLength")? as u64;
            let source = PutBodySource::new(callback(handler), call.data, length);
            Ok((target.weight_of_part(length), move |responder: &CallbackResponder| {
                let made = object::upload_part(&target, &part, md5, source, responder)?;
                responder.succeeded(|| response::SuccessProperties::of_written(&made))
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_complete_multipart_upload`.
pub(super) unsafe fn complete_multipart<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    (upload, length): (*const c_char, c_int),
    call: RequestArguments,
    handler: *const CommitHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        let own = handler.as_ref();
        let callback = own.and_then(|handler| handler.callback).map(MultipartResultCallback::Commit);
        let result = callback.map(MultipartResult::new);
        call.submit_with_result(handler.cast(), result.clone(), || {
            let (target, key, upload) =
                (call.target(context)?, required_key(name)?, upload_id(text(upload)?)?);
            let length = count(length, "contentLength")? as u64;
            let source = PutBodySource::new(own.and_then(|handler| handler.put_data), call.data, length);
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                object::complete_upload(&target, (&key, &upload), source, result.as_deref(), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_abort_multipart_upload`.
pub(super) unsafe fn abort_multipart<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    upload: *const c_char,
    call: RequestArguments,
    handler: *const ResponseHandler,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        // libs3 replaces the complete callback with its own. Programs do not expect this callback with NULL as `data`.
        let handler = handler.as_ref().map(|handler| ResponseHandler { complete: None, ..*handler });
        call.submit(handler.as_ref().map_or(ptr::null(), ptr::from_ref), || {
            let (target, key, upload) =
                (call.target(context)?, required_key(name)?, upload_id(text(upload)?)?);
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                object::abort_upload(&target, (&key, &upload), responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_list_parts`.
pub(super) unsafe fn list_parts<C: AbiBucketContext>(
    context: *const C,
    name: *const c_char,
    (upload, marker, encoding, max_parts): (*const c_char, *const c_char, *const c_char, c_int),
    call: RequestArguments,
    handler: *const RequestCallbacks<ListPartsCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            plain_encoding(text(encoding)?)?;
            let after = text(marker)?.map_or(Ok(0), |marker| {
                let why = format!("the marker {marker:?} is not the number of a part");
                marker.parse().map_err(|_| RequestFailure::refused(Status::ErrorInvalidArgument, why))
            })?;
            let query = PartsQuery { after, max_parts: page_size(max_parts, "maxparts")? };
            let (target, key, upload) =
                (call.target(context)?, required_key(name)?, upload_id(text(upload)?)?);
            let callback = callback(handler);
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                object::list_parts(&target, (&key, &upload), &query, callback, responder)
            }))
        });
    }
}

/// # Safety
/// The arguments meet the requirements of the header for `S3_list_multipart_uploads`.
pub(super) unsafe fn list_uploads<C: AbiBucketContext>(
    context: *const C,
    [prefix, key_marker, upload_marker, encoding, delimiter]: [*const c_char; 5],
    max_uploads: c_int,
    call: RequestArguments,
    handler: *const RequestCallbacks<ListUploadsCallback>,
) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `call.data`.
    unsafe {
        call.submit(handler.cast(), || {
            plain_encoding(text(encoding)?)?;
            if text(delimiter)?.is_some() {
                let why = "uploads are not rolled up by a delimiter; leave it NULL, and use a prefix";
                return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
            }
            let query = UploadsQuery {
                prefix: owned(prefix)?.unwrap_or_default(),
                key_after: owned(key_marker)?,
                upload_after: owned(upload_marker)?,
                max_uploads: page_size(max_uploads, "maxuploads")?,
            };
            let (target, callback) = (call.target(context)?, callback(handler));
            Ok((target.weight(UNKNOWN), move |responder: &CallbackResponder| {
                object::list_uploads(&target, &query, callback, responder)
            }))
        });
    }
}

/// Checks that the program does not request an encoding of names. Errors: an encoding is requested.
fn plain_encoding(encoding: Option<&str>) -> RequestResult {
    match encoding {
        None => Ok(()),
        Some(encoding) => {
            let why = format!(
                "the encoding {encoding:?} is not supported; leave it NULL to receive unencoded names"
            );
            Err(RequestFailure::refused(Status::ErrorNotImplemented, why))
        }
    }
}

/// Returns the page size: `number`, limited to S3's maximum; 0 also means the maximum. Errors: a negative number.
fn page_size(number: c_int, what: &str) -> RequestResult<usize> {
    const MOST: usize = 1000;
    Ok(match count(number, what)? {
        0 => MOST,
        number => number.min(MOST),
    })
}
