//! The functions of libs3 4.1 that do not exist in 2.0, or whose arguments differ.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr;

use super::requests::{self, CopyDestinationArguments, PartCopyArguments, RequestArguments};
use super::{exported, general};
use crate::abi::{
    AclGrant, BucketContext2, BucketContext4 as BucketContext, CommitHandler, GetConditions, GetDataCallback,
    ListBucketCallback, ListPartsCallback, ListServiceCallback, ListUploadsCallback, PutDataCallback,
    PutProperties4 as PutProperties, RequestCallbacks, ResponseHandler, S3StatusCode, UploadIdCallback,
};
use crate::arguments::{AbiBucketContext as _, key as optional_key, required, text};
use crate::bucket::{self, AclOutputPointers};
use crate::object::{self, CopyOutputPointers};
use crate::queue::{RequestContext, RequestQueue};
use crate::response::{RequestFailure, write_text};
use crate::status::Status;

exported! {
    when not(feature = "abi-2-0");

    /// Creates a request context, like `S3_create_request_context`. Rejects a curl handle or a set-up callback, because
    /// this library does not use curl.
    fn S3_create_request_context_ex(
        made: *mut *mut RequestContext,
        curl_multi: *mut c_void,
        set_up: *const c_void,
        _set_up_data: *mut c_void,
    ) -> S3StatusCode {
        if !curl_multi.is_null() || !set_up.is_null() {
            let why = "requests are not made by curl; pass NULL for its handle and callback";
            return general::status_of(|| Err(RequestFailure::refused(Status::NotSupported, why)));
        }
        // SAFETY: the caller guarantees that `made` is valid for writes.
        unsafe { general::S3_create_request_context(made) }
    }

    /// Starts requests and runs callbacks until neither is possible without waiting.
    fn S3_process_request_context(context: *mut RequestContext) -> S3StatusCode {
        // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed.
        unsafe { general::drive(context, RequestQueue::run_ready) }
    }

    /// Certificates are always verified, regardless of the argument. `AWS_CA_BUNDLE` names a file with the certificates
    /// to trust instead of the system's certificates.
    fn S3_set_request_context_verify_peer(_context: *mut RequestContext, verify: c_int) {
        if verify == 0 {
            tracing::warn!("the program requested unverified certificates; they are verified anyway");
        }
    }

    /// Writes a presigned URL (Signature Version 4) that is valid for `expires_s` seconds; negative means as long as
    /// possible.
    fn S3_generate_authenticated_query_string(
        buffer: *mut c_char,
        context: *const BucketContext,
        key: *const c_char,
        expires_s: c_int,
        resource: *const c_char,
        method: *const c_char,
    ) -> S3StatusCode {
        // SAFETY: the caller guarantees that each pointer is NULL or valid as the header describes.
        general::status_of(|| unsafe {
            let (target, key) = (required(context, "bucket context")?.target(0)?, optional_key(key)?);
            let (resource, method) = (text(resource)?, text(method)?);
            let url = object::presigned_url(&target, key.as_ref(), i64::from(expires_s), resource, method)?;
            write_text(buffer, url.len() + 1, &url);
            Ok(())
        })
    }

    /// Lists all buckets.
    fn S3_list_service(
        protocol: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        security_token: *const c_char,
        host_name: *const c_char,
        auth_region: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<ListServiceCallback>,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key, security_token];
        let context = context(protocol, 1, keys, [host_name, ptr::null(), auth_region]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_service(&context, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Checks whether a bucket exists.
    fn S3_test_bucket(
        protocol: c_int,
        uri_style: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        security_token: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        auth_region: *const c_char,
        location_size: c_int,
        location: *mut c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key, security_token];
        let context = context(protocol, uri_style, keys, [host_name, bucket_name, auth_region]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::test_bucket(&context, (location, location_size), RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Creates a bucket.
    fn S3_create_bucket(
        protocol: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        security_token: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        auth_region: *const c_char,
        canned_acl: c_int,
        location_constraint: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key, security_token];
        let context = context(protocol, 1, keys, [host_name, bucket_name, auth_region]);
        let said = (canned_acl, location_constraint, auth_region);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::create_bucket(&context, said, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Removes an empty bucket.
    fn S3_delete_bucket(
        protocol: c_int,
        uri_style: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        security_token: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        auth_region: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key, security_token];
        let context = context(protocol, uri_style, keys, [host_name, bucket_name, auth_region]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::delete_bucket(&context, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Lists one page of a bucket.
    fn S3_list_bucket(
        context: *const BucketContext,
        prefix: *const c_char,
        marker: *const c_char,
        delimiter: *const c_char,
        max_keys: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<ListBucketCallback>,
        data: *mut c_void,
    ) {
        let names = [prefix, marker, delimiter];
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_bucket(context, names, max_keys, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Stores an object.
    fn S3_put_object(
        context: *const BucketContext,
        key: *const c_char,
        content_length: u64,
        properties: *const PutProperties,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<PutDataCallback>,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::put_object(context, key, (content_length, properties), RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Copies an object.
    fn S3_copy_object(
        context: *const BucketContext,
        key: *const c_char,
        to_bucket: *const c_char,
        to_key: *const c_char,
        properties: *const PutProperties,
        last_modified_s: *mut i64,
        etag_size: c_int,
        etag: *mut c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let returns = CopyOutputPointers { last_modified_s, etag, etag_capacity: etag_size.max(0) as usize };
        let to = CopyDestinationArguments { bucket: to_bucket, key: to_key, part: None, returns };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::copy_object(context, key, to, properties, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Copies the bytes from `start` to `start + count`, inclusive, of an object to a part of an upload. If `count` is
    /// 0, copies the bytes from `start` to the end. Without an upload, or if `number` is not positive, copies the whole
    /// object like `S3_copy_object`.
    fn S3_copy_object_range(
        context: *const BucketContext,
        key: *const c_char,
        to_bucket: *const c_char,
        to_key: *const c_char,
        number: c_int,
        upload: *const c_char,
        start: c_ulong,
        count: c_ulong,
        properties: *const PutProperties,
        last_modified_s: *mut i64,
        etag_size: c_int,
        etag: *mut c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let returns = CopyOutputPointers { last_modified_s, etag, etag_capacity: etag_size.max(0) as usize };
        let part = (number > 0 && !upload.is_null()).then_some(PartCopyArguments { number, upload, start, count });
        let to = CopyDestinationArguments { bucket: to_bucket, key: to_key, part, returns };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::copy_object(context, key, to, properties, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Reads an object or a range of it.
    fn S3_get_object(
        context: *const BucketContext,
        key: *const c_char,
        conditions: *const GetConditions,
        start_byte: u64,
        byte_count: u64,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<GetDataCallback>,
        data: *mut c_void,
    ) {
        let asked = (conditions, start_byte, byte_count);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_object(context, key, asked, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Returns the properties of an object.
    fn S3_head_object(
        context: *const BucketContext,
        key: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::head_object(context, key, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Removes an object. Succeeds even if the object does not exist.
    fn S3_delete_object(
        context: *const BucketContext,
        key: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::delete_object(context, key, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Returns the access control list of a bucket or object.
    fn S3_get_acl(
        context: *const BucketContext,
        key: *const c_char,
        owner_id: *mut c_char,
        owner_name: *mut c_char,
        count: *mut c_int,
        grants: *mut AclGrant,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let returns = AclOutputPointers { owner_id, owner_name, count, grants };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_acl(context, key, returns, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Accepts only an access control list equal to the existing one.
    fn S3_set_acl(
        context: *const BucketContext,
        key: *const c_char,
        _owner_id: *const c_char,
        _owner_name: *const c_char,
        count: c_int,
        grants: *const AclGrant,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::set_acl(context, key, (grants, count), RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Reports that there are no lifecycle rules.
    fn S3_get_lifecycle(
        context: *const BucketContext,
        _document: *mut c_char,
        _document_size: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::lifecycle(context, bucket::get_lifecycle, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Rejects lifecycle rules.
    fn S3_set_lifecycle(
        context: *const BucketContext,
        _document: *const c_char,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::lifecycle(context, bucket::set_lifecycle, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Reports that access logging is off.
    fn S3_get_server_access_logging(
        context: *const BucketContext,
        bucket: *mut c_char,
        prefix: *mut c_char,
        count: *mut c_int,
        _grants: *mut AclGrant,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_logging(context, (bucket, prefix, count), RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Accepts only a request that turns access logging off.
    fn S3_set_server_access_logging(
        context: *const BucketContext,
        bucket: *const c_char,
        _prefix: *const c_char,
        _count: c_int,
        _grants: *const AclGrant,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::set_logging(context, bucket, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Starts a multipart upload.
    fn S3_initiate_multipart(
        context: *mut BucketContext,
        key: *const c_char,
        properties: *mut PutProperties,
        handler: *mut RequestCallbacks<UploadIdCallback>,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        data: *mut c_void,
    ) {
        let (context, properties) = (context.cast_const(), properties.cast_const());
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::initiate_multipart(context, key, properties, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Uploads a part.
    fn S3_upload_part(
        context: *mut BucketContext,
        key: *const c_char,
        properties: *mut PutProperties,
        handler: *mut RequestCallbacks<PutDataCallback>,
        number: c_int,
        upload: *const c_char,
        content_length: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        data: *mut c_void,
    ) {
        let part = (number, upload, content_length, properties.cast_const());
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::upload_part(context.cast_const(), key, part, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Completes a multipart upload: publishes the object that consists of its parts.
    fn S3_complete_multipart_upload(
        context: *mut BucketContext,
        key: *const c_char,
        handler: *mut CommitHandler,
        upload: *const c_char,
        content_length: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        data: *mut c_void,
    ) {
        let document = (upload, content_length);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::complete_multipart(context.cast_const(), key, document, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Lists one page of an upload's parts.
    fn S3_list_parts(
        context: *mut BucketContext,
        key: *const c_char,
        marker: *const c_char,
        upload: *const c_char,
        encoding: *const c_char,
        max_parts: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<ListPartsCallback>,
        data: *mut c_void,
    ) {
        let asked = (upload, marker, encoding, max_parts);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_parts(context.cast_const(), key, asked, RequestArguments { queue, data, timeout_ms }, handler) }
    }

    /// Aborts a multipart upload. As in libs3, the properties callback receives NULL as `data`, and the complete
    /// callback is not called. Failures are only logged.
    fn S3_abort_multipart_upload(
        context: *mut BucketContext,
        key: *const c_char,
        upload: *const c_char,
        timeout_ms: c_int,
        handler: *mut ResponseHandler,
    ) {
        let call = RequestArguments { queue: ptr::null_mut(), data: ptr::null_mut(), timeout_ms };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the properties callback accepts
        // NULL as `data`.
        unsafe { requests::abort_multipart(context.cast_const(), key, upload, call, handler) }
    }

    /// Lists one page of a bucket's uploads.
    fn S3_list_multipart_uploads(
        context: *mut BucketContext,
        prefix: *const c_char,
        key_marker: *const c_char,
        upload_marker: *const c_char,
        encoding: *const c_char,
        delimiter: *const c_char,
        max_uploads: c_int,
        queue: *mut RequestContext,
        timeout_ms: c_int,
        handler: *const RequestCallbacks<ListUploadsCallback>,
        data: *mut c_void,
    ) {
        let names = [prefix, key_marker, upload_marker, encoding, delimiter];
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_uploads(context.cast_const(), names, max_uploads, RequestArguments { queue, data, timeout_ms }, handler) }
    }
}

/// Creates a context for functions whose arguments are the fields of a context.
fn context(
    protocol: c_int,
    uri_style: c_int,
    [access_key_id, secret_access_key, security_token]: [*const c_char; 3],
    [host_name, bucket_name, auth_region]: [*const c_char; 3],
) -> BucketContext {
    let base =
        BucketContext2 { host_name, bucket_name, protocol, uri_style, access_key_id, secret_access_key };
    BucketContext { base, security_token, auth_region }
}
