//! The types of the C interface, and compile-time checks that their layout matches C's.
//!
//! libs3 4.1 only appended fields to the structures of 2.0. Structures that we pass to a program can therefore always
//! have the layout of 4.1. Structures that we receive begin with the fields of 2.0 in both versions.

use std::ffi::{c_char, c_int, c_void};

use crate::status::Status;

/// An `S3Status`, as numbered in the caller's ABI.
pub type S3StatusCode = c_int;

/// The version of the interface that the caller was compiled against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbiVersion {
    /// libs3 2.0, the version in Debian (`libs3.so.2`).
    V2_0,
    /// libs3 4.1 (`libs3.so.4`).
    V4_1,
}

impl AbiVersion {
    /// The version whose functions this build exports.
    pub const EXPORTED: AbiVersion =
        if cfg!(feature = "abi-2-0") { AbiVersion::V2_0 } else { AbiVersion::V4_1 };

    /// Returns the number of `status` in this ABI.
    pub fn number(self, status: Status) -> S3StatusCode {
        match self {
            AbiVersion::V2_0 => status.number_in_2_0(),
            AbiVersion::V4_1 => status as S3StatusCode,
        }
    }
}

/// The maximum size of the string that `S3_generate_authenticated_query_string` writes, in bytes, including its NUL.
pub const MAX_QUERY_STRING_BYTES: usize = 3468;
/// The maximum number of grants in an access control list.
pub const MAX_GRANTS: usize = 100;
/// The size of each buffer for an owner's id or name, in bytes, including the NUL.
pub const MAX_OWNER_BYTES: usize = 128;
/// The maximum size of metadata in bytes, including the `x-amz-meta-` prefix of each name.
pub const MAX_METADATA_BYTES: usize = 2048;

/// `S3Protocol`: HTTP without TLS.
pub const PROTOCOL_HTTP: c_int = 1;
/// `S3UriStyle`: the bucket is part of the host name.
pub const STYLE_VIRTUAL_HOST: c_int = 0;
/// `S3CannedAcl`: only the owner has access.
pub const ACL_PRIVATE: c_int = 0;
/// `S3CannedAcl`: the bucket's owner has full control. In a bucket that the caller owns, this list is equivalent to
/// [`ACL_PRIVATE`].
pub const ACL_BUCKET_OWNER_FULL_CONTROL: c_int = 4;
/// `S3Permission`: all rights.
pub const PERMISSION_FULL_CONTROL: c_int = 4;

/// `S3BucketContext` of 2.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BucketContext2 {
    /// Selects the lane; NULL means the default set by `S3_initialize`.
    pub host_name: *const c_char,
    /// The name of the bucket.
    pub bucket_name: *const c_char,
    /// 0 means HTTPS, 1 means HTTP. Used for host names that do not include a protocol.
    pub protocol: c_int,
    /// 0 means that the bucket is part of the host name; 1 means that the bucket is part of the path.
    pub uri_style: c_int,
    /// The access key. NULL or empty means the keys from the environment.
    pub access_key_id: *const c_char,
    /// The secret key, which signs requests.
    pub secret_access_key: *const c_char,
}

/// `S3BucketContext` of 4.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BucketContext4 {
    /// The fields of 2.0.
    pub base: BucketContext2,
    /// The session token of temporary credentials.
    pub security_token: *const c_char,
    /// The region for which requests are signed.
    pub auth_region: *const c_char,
}

/// `S3NameValue`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NameValue {
    /// The name, without the prefix `x-amz-meta-`.
    pub name: *const c_char,
    /// The value.
    pub value: *const c_char,
}

/// `S3PutProperties` of 2.0. NULL and empty strings mean that a property is not set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutProperties2 {
    /// `Content-Type`.
    pub content_type: *const c_char,
    /// `Content-MD5`, base64.
    pub md5: *const c_char,
    /// `Cache-Control`.
    pub cache_control: *const c_char,
    /// The file name in `Content-Disposition`.
    pub content_disposition_filename: *const c_char,
    /// `Content-Encoding`.
    pub content_encoding: *const c_char,
    /// `Expires`, in seconds since the epoch; negative means none.
    pub expires_s: i64,
    /// `S3CannedAcl`.
    pub canned_acl: c_int,
    /// The number of entries in `meta_data`.
    pub meta_data_count: c_int,
    /// User metadata.
    pub meta_data: *const NameValue,
}

/// `S3PutProperties` of 4.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutProperties4 {
    /// The fields of 2.0.
    pub base: PutProperties2,
    /// Whether the service must encrypt the object.
    pub use_server_side_encryption: c_char,
}

/// `S3GetConditions`. A negative time or a NULL tag means no condition.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GetConditions {
    /// The time in seconds since the epoch.
    pub if_modified_since_s: i64,
    /// The time in seconds since the epoch.
    pub if_not_modified_since_s: i64,
    /// An ETag, with or without quotes.
    pub if_match_etag: *const c_char,
    /// An ETag, with or without quotes.
    pub if_not_match_etag: *const c_char,
}

/// `S3ResponseProperties` of 4.1. Programs built for 2.0 do not read the last field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResponseProperties {
    /// Always NULL, because lanes do not keep request IDs.
    pub request_id: *const c_char,
    /// Always NULL.
    pub request_id2: *const c_char,
    /// NULL if there is no content.
    pub content_type: *const c_char,
    /// The number of content bytes that this call transfers or describes.
    pub content_length: u64,
    /// The name of the server that responded.
    pub server: *const c_char,
    /// The ETag with quotes, as in HTTP.
    pub etag: *const c_char,
    /// The time in seconds since the epoch; negative if unknown.
    pub last_modified_s: i64,
    /// The number of entries in `meta_data`.
    pub meta_data_count: c_int,
    /// User metadata.
    pub meta_data: *const NameValue,
    /// Always 0.
    pub uses_server_side_encryption: c_char,
}

/// `S3ErrorDetails`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorDetails {
    /// A message that names the operation, its target, the cause and the remedy.
    pub message: *const c_char,
    /// `s3://BUCKET/KEY`, or NULL.
    pub resource: *const c_char,
    /// Always NULL, because `message` contains all details.
    pub further_details: *const c_char,
    /// Always 0.
    pub extra_details_count: c_int,
    /// Always NULL.
    pub extra_details: *mut NameValue,
}

/// `S3ListBucketContent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListBucketContent {
    /// The key.
    pub key: *const c_char,
    /// The time in seconds since the epoch.
    pub last_modified_s: i64,
    /// The ETag with quotes.
    pub etag: *const c_char,
    /// The size in bytes.
    pub size: u64,
    /// Always NULL.
    pub owner_id: *const c_char,
    /// Always NULL.
    pub owner_display_name: *const c_char,
}

/// `S3ListMultipartUpload`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListMultipartUpload {
    /// The key.
    pub key: *const c_char,
    /// The identifier of the upload.
    pub upload_id: *const c_char,
    /// Always empty.
    pub initiator_id: *const c_char,
    /// Always empty.
    pub initiator_display_name: *const c_char,
    /// Always empty.
    pub owner_id: *const c_char,
    /// Always empty.
    pub owner_display_name: *const c_char,
    /// Always `STANDARD`.
    pub storage_class: *const c_char,
    /// When the upload was started, in seconds since the epoch.
    pub initiated_s: i64,
}

/// `S3ListPart`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListPart {
    /// The ETag with quotes.
    pub etag: *const c_char,
    /// The time in seconds since the epoch.
    pub last_modified_s: i64,
    /// The part number, 1 to 10,000.
    pub part_number: u64,
    /// The size in bytes.
    pub size: u64,
}

/// `S3AclGrant`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AclGrant {
    /// `S3GranteeType`.
    pub grantee_type: c_int,
    /// A union: an e-mail address, or an id and a name, each in 128 bytes.
    pub grantee: [[c_char; MAX_OWNER_BYTES]; 2],
    /// `S3Permission`.
    pub permission: c_int,
}

/// `S3ResponsePropertiesCallback`.
pub type PropertiesCallback =
    unsafe extern "C" fn(properties: *const ResponseProperties, data: *mut c_void) -> S3StatusCode;
/// `S3ResponseCompleteCallback`.
pub type CompleteCallback =
    unsafe extern "C" fn(status: S3StatusCode, details: *const ErrorDetails, data: *mut c_void);
/// `S3ListServiceCallback`, called with the owner's id and name, the bucket's name, and the time at which the bucket
/// was created, in seconds since the epoch.
pub type ListServiceCallback = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    created_s: i64,
    data: *mut c_void,
) -> S3StatusCode;
/// `S3ListBucketCallback`.
pub type ListBucketCallback = unsafe extern "C" fn(
    is_truncated: c_int,
    next_marker: *const c_char,
    contents_count: c_int,
    contents: *const ListBucketContent,
    prefixes_count: c_int,
    prefixes: *const *const c_char,
    data: *mut c_void,
) -> S3StatusCode;
/// `S3PutObjectDataCallback`, which returns the number of bytes put into the buffer, 0 at the end, or a negative number
/// to abort.
pub type PutDataCallback =
    unsafe extern "C" fn(size_bytes: c_int, buffer: *mut c_char, data: *mut c_void) -> c_int;
/// `S3GetObjectDataCallback`.
pub type GetDataCallback =
    unsafe extern "C" fn(size_bytes: c_int, buffer: *const c_char, data: *mut c_void) -> S3StatusCode;
/// `S3MultipartInitialResponseCallback`.
pub type UploadIdCallback = unsafe extern "C" fn(upload_id: *const c_char, data: *mut c_void) -> S3StatusCode;
/// `S3MultipartCommitResponseCallback`.
pub type CommitCallback =
    unsafe extern "C" fn(location: *const c_char, etag: *const c_char, data: *mut c_void) -> S3StatusCode;
/// `S3ListMultipartUploadsResponseCallback`.
pub type ListUploadsCallback = unsafe extern "C" fn(
    is_truncated: c_int,
    next_key_marker: *const c_char,
    next_upload_id_marker: *const c_char,
    uploads_count: c_int,
    uploads: *const ListMultipartUpload,
    prefixes_count: c_int,
    prefixes: *const *const c_char,
    data: *mut c_void,
) -> S3StatusCode;
/// `S3ListPartsResponseCallback`. The four unnamed arguments identify the initiator and the owner. `parts_before` is
/// the number of parts passed in earlier calls.
pub type ListPartsCallback = unsafe extern "C" fn(
    is_truncated: c_int,
    next_part_number_marker: *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    storage_class: *const c_char,
    parts_count: c_int,
    parts_before: c_int,
    parts: *const ListPart,
    data: *mut c_void,
) -> S3StatusCode;

/// `S3ResponseHandler`, and `S3AbortMultipartUploadHandler`, which has the same fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResponseHandler {
    /// Called on success, before any data, at most once.
    pub properties: Option<PropertiesCallback>,
    /// Called exactly once, at the end. Never called for a request that aborts an upload.
    pub complete: Option<CompleteCallback>,
}

/// A handler with one callback in addition to the two callbacks of every request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestCallbacks<Callback> {
    /// The two callbacks of every request.
    pub response: ResponseHandler,
    /// The request's own callback.
    pub callback: Option<Callback>,
}

/// `S3MultipartCommitHandler`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommitHandler {
    /// The two callbacks of every request.
    pub response: ResponseHandler,
    /// Provides the XML document that lists the parts.
    pub put_data: Option<PutDataCallback>,
    /// Receives the location of the object.
    pub callback: Option<CommitCallback>,
}

/// The C layout on 64-bit machines: the size of each structure, and the offsets of its fields.
#[cfg(target_pointer_width = "64")]
mod layout {
    use std::mem::{offset_of, size_of};

    use super::*;

    macro_rules! laid_out {
        ($type:ty, $size:literal $(, $field:ident = $offset:literal)*) => {
            const _: () = assert!(size_of::<$type>() == $size);
            $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
        };
    }

    laid_out!(BucketContext2, 40, host_name = 0, bucket_name = 8, protocol = 16, uri_style = 20);
    laid_out!(BucketContext2, 40, access_key_id = 24, secret_access_key = 32);
    laid_out!(BucketContext4, 56, base = 0, security_token = 40, auth_region = 48);
    laid_out!(NameValue, 16, name = 0, value = 8);
    laid_out!(PutProperties2, 64, content_type = 0, md5 = 8, cache_control = 16);
    laid_out!(PutProperties2, 64, content_disposition_filename = 24, content_encoding = 32);
    laid_out!(PutProperties2, 64, expires_s = 40, canned_acl = 48, meta_data_count = 52, meta_data = 56);
    laid_out!(PutProperties4, 72, base = 0, use_server_side_encryption = 64);
    laid_out!(GetConditions, 32, if_modified_since_s = 0, if_not_modified_since_s = 8);
    laid_out!(GetConditions, 32, if_match_etag = 16, if_not_match_etag = 24);
    laid_out!(ResponseProperties, 80, request_id = 0, request_id2 = 8, content_type = 16);
    laid_out!(ResponseProperties, 80, content_length = 24, server = 32, etag = 40);
    laid_out!(ResponseProperties, 80, last_modified_s = 48, meta_data_count = 56, meta_data = 64);
    laid_out!(ResponseProperties, 80, uses_server_side_encryption = 72);
    laid_out!(ErrorDetails, 40, message = 0, resource = 8, further_details = 16);
    laid_out!(ErrorDetails, 40, extra_details_count = 24, extra_details = 32);
    laid_out!(ListBucketContent, 48, key = 0, last_modified_s = 8, etag = 16, size = 24);
    laid_out!(ListBucketContent, 48, owner_id = 32, owner_display_name = 40);
    laid_out!(ListMultipartUpload, 64, key = 0, upload_id = 8, storage_class = 48, initiated_s = 56);
    laid_out!(ListPart, 32, etag = 0, last_modified_s = 8, part_number = 16, size = 24);
    laid_out!(AclGrant, 264, grantee_type = 0, grantee = 4, permission = 260);
    laid_out!(ResponseHandler, 16, properties = 0, complete = 8);
    laid_out!(RequestCallbacks<PutDataCallback>, 24, response = 0, callback = 16);
    laid_out!(CommitHandler, 32, response = 0, put_data = 16, callback = 24);
}
