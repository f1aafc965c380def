//! The functions of libs3 2.0 whose arguments differ from the arguments in 4.1. In 2.0, these functions have no
//! arguments for timeouts, security tokens or signing regions.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::time::SystemTime;

use super::requests::{self, CopyDestinationArguments, RequestArguments};
use super::{exported, general};
use crate::abi::{
    AclGrant, BucketContext2 as BucketContext, GetConditions, GetDataCallback, ListBucketCallback,
    ListServiceCallback, PutDataCallback, PutProperties2 as PutProperties, RequestCallbacks, ResponseHandler,
    S3StatusCode,
};
use crate::arguments::{AbiBucketContext as _, key as optional_key, required, text};
use crate::bucket::AclOutputPointers;
use crate::object::{self, CopyOutputPointers};
use crate::queue::RequestContext;
use crate::response::{seconds, write_text};

exported! {
    when feature = "abi-2-0";

    /// Writes a presigned URL (Signature Version 4) that expires at `expires_s`, but after at most seven days.
    /// `expires_s` is in seconds since the epoch; a negative value means as late as possible. If the time has already
    /// passed, the URL is valid for one second.
    fn S3_generate_authenticated_query_string(
        buffer: *mut c_char,
        context: *const BucketContext,
        key: *const c_char,
        expires_s: i64,
        resource: *const c_char,
    ) -> S3StatusCode {
        // SAFETY: the caller guarantees that each pointer is NULL or valid as the header describes.
        general::status_of(|| unsafe {
            let (target, key) = (required(context, "bucket context")?.target(0)?, optional_key(key)?);
            let left_s = expires_s.saturating_sub(seconds(SystemTime::now())).max(0);
            let lifetime_s = if expires_s < 0 { expires_s } else { left_s };
            let url = object::presigned_url(&target, key.as_ref(), lifetime_s, text(resource)?, None)?;
            write_text(buffer, url.len() + 1, &url);
            Ok(())
        })
    }

    /// Lists all buckets.
    fn S3_list_service(
        protocol: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        host_name: *const c_char,
        queue: *mut RequestContext,
        handler: *const RequestCallbacks<ListServiceCallback>,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key];
        let context = context(protocol, 1, keys, [host_name, ptr::null()]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_service(&context, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Checks whether a bucket exists.
    fn S3_test_bucket(
        protocol: c_int,
        uri_style: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        location_size: c_int,
        location: *mut c_char,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key];
        let context = context(protocol, uri_style, keys, [host_name, bucket_name]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::test_bucket(&context, (location, location_size), RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Creates a bucket.
    fn S3_create_bucket(
        protocol: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        canned_acl: c_int,
        location_constraint: *const c_char,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key];
        let context = context(protocol, 1, keys, [host_name, bucket_name]);
        let said = (canned_acl, location_constraint, ptr::null());
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::create_bucket(&context, said, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Removes an empty bucket.
    fn S3_delete_bucket(
        protocol: c_int,
        uri_style: c_int,
        access_key_id: *const c_char,
        secret_access_key: *const c_char,
        host_name: *const c_char,
        bucket_name: *const c_char,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let keys = [access_key_id, secret_access_key];
        let context = context(protocol, uri_style, keys, [host_name, bucket_name]);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::delete_bucket(&context, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Lists one page of a bucket.
    fn S3_list_bucket(
        context: *const BucketContext,
        prefix: *const c_char,
        marker: *const c_char,
        delimiter: *const c_char,
        max_keys: c_int,
        queue: *mut RequestContext,
        handler: *const RequestCallbacks<ListBucketCallback>,
        data: *mut c_void,
    ) {
        let names = [prefix, marker, delimiter];
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::list_bucket(context, names, max_keys, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Stores an object.
    fn S3_put_object(
        context: *const BucketContext,
        key: *const c_char,
        content_length: u64,
        properties: *const PutProperties,
        queue: *mut RequestContext,
        handler: *const RequestCallbacks<PutDataCallback>,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::put_object(context, key, (content_length, properties), RequestArguments { queue, data, timeout_ms: 0 }, handler) }
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
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let returns = CopyOutputPointers { last_modified_s, etag, etag_capacity: etag_size.max(0) as usize };
        let to = CopyDestinationArguments { bucket: to_bucket, key: to_key, part: None, returns };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::copy_object(context, key, to, properties, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Reads an object or a range of it.
    fn S3_get_object(
        context: *const BucketContext,
        key: *const c_char,
        conditions: *const GetConditions,
        start_byte: u64,
        byte_count: u64,
        queue: *mut RequestContext,
        handler: *const RequestCallbacks<GetDataCallback>,
        data: *mut c_void,
    ) {
        let asked = (conditions, start_byte, byte_count);
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_object(context, key, asked, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Returns the properties of an object.
    fn S3_head_object(
        context: *const BucketContext,
        key: *const c_char,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::head_object(context, key, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Removes an object. Succeeds even if the object does not exist.
    fn S3_delete_object(
        context: *const BucketContext,
        key: *const c_char,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::delete_object(context, key, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
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
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        let returns = AclOutputPointers { owner_id, owner_name, count, grants };
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_acl(context, key, returns, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
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
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::set_acl(context, key, (grants, count), RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Reports that access logging is off.
    fn S3_get_server_access_logging(
        context: *const BucketContext,
        bucket: *mut c_char,
        prefix: *mut c_char,
        count: *mut c_int,
        _grants: *mut AclGrant,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::get_logging(context, (bucket, prefix, count), RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

    /// Accepts only a request that turns access logging off.
    fn S3_set_server_access_logging(
        context: *const BucketContext,
        bucket: *const c_char,
        _prefix: *const c_char,
        _count: c_int,
        _grants: *const AclGrant,
        queue: *mut RequestContext,
        handler: *const ResponseHandler,
        data: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that each pointer is NULL or valid, and that the callbacks accept `data`.
        unsafe { requests::set_logging(context, bucket, RequestArguments { queue, data, timeout_ms: 0 }, handler) }
    }

}

/// Creates a context for functions whose arguments are the fields of a context.
fn context(
    protocol: c_int,
    uri_style: c_int,
    [access_key_id, secret_access_key]: [*const c_char; 2],
    [host_name, bucket_name]: [*const c_char; 2],
) -> BucketContext {
    BucketContext { host_name, bucket_name, protocol, uri_style, access_key_id, secret_access_key }
}
