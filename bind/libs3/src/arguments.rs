//! Checks the arguments from C and converts them to our own types. Also contains libs3's rules for bucket names.

use std::ffi::{CStr, c_char, c_int};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fordway_store::{BoxedMetadata, Bucket, Conditions, ETag, ETagMatch, Key, Metadata};
use fordway_wire::date;

use super::response::{RequestFailure, RequestResult};
use crate::abi::{
    ACL_BUCKET_OWNER_FULL_CONTROL, ACL_PRIVATE, BucketContext2, BucketContext4, GetConditions,
    MAX_METADATA_BYTES, NameValue, PROTOCOL_HTTP, PutProperties2, PutProperties4, STYLE_VIRTUAL_HOST,
};
use crate::lane::{ConnectedBucket, ConnectedBucketGuard, EndpointSettings};
use crate::status::Status;

/// The length of `x-amz-meta-`, the prefix of metadata names.
const METADATA_PREFIX_BYTES: usize = 11;

/// Returns the string at `pointer`, or `None` for NULL and for an empty string. Errors: the string is not UTF-8.
///
/// # Safety
/// `pointer` is NULL or a C string that remains unchanged for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> RequestResult<Option<&'a str>> {
    // SAFETY: the caller guarantees that `pointer` is NULL or a C string that remains unchanged for `'a`.
    unsafe { bytes(pointer) }.map(checked).transpose()
}

/// Returns the C string at `pointer`, or `None` for NULL and for an empty string.
///
/// # Safety
/// The requirements of [`text`] apply.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a C string that remains unchanged for `'a`; NULL was excluded above.
    Some(unsafe { CStr::from_ptr(pointer) }).filter(|bytes| !bytes.is_empty())
}

/// Converts a C string to `&str`. Errors: the string is not UTF-8.
pub(crate) fn checked(bytes: &CStr) -> RequestResult<&str> {
    if bytes.to_bytes().is_ascii() {
        // Nearly all names are ASCII, and the check for ASCII takes half the time of the check for UTF-8.
        // SAFETY: ASCII is valid UTF-8.
        return Ok(unsafe { str::from_utf8_unchecked(bytes.to_bytes()) });
    }
    bytes.to_str().map_err(|_| {
        let shown = bytes.to_string_lossy();
        let why = format!("{shown:?} is not UTF-8, which names and metadata of objects must be");
        RequestFailure::refused(Status::ErrorInvalidURI, why)
    })
}

/// Returns a copy of the string at `pointer`, or `None` for NULL and for an empty string. Errors: the string is not
/// UTF-8.
///
/// # Safety
/// The requirements of [`text`] apply.
pub(crate) unsafe fn owned(pointer: *const c_char) -> RequestResult<Option<String>> {
    // SAFETY: the caller guarantees that `pointer` is NULL or a C string.
    Ok(unsafe { text(pointer) }?.map(str::to_owned))
}

/// Returns the value of a header without leading and trailing blanks, as libs3 does. Returns `None` for NULL and for an
/// empty string. Errors: `bad` if the value consists only of blanks or contains a control character; the string is not
/// UTF-8.
///
/// # Safety
/// The requirements of [`text`] apply.
unsafe fn header_value<'a>(pointer: *const c_char, bad: Status) -> RequestResult<Option<&'a str>> {
    // SAFETY: the caller guarantees that `pointer` is NULL or a C string that remains unchanged for `'a`.
    match unsafe { text(pointer) }?.map(|value| value.trim_matches([' ', '\t'])) {
        Some("") => Err(RequestFailure::refused(bad, "the value of a header is blank; pass NULL for none")),
        Some(value) if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') => {
            let why = format!("{value:?} cannot be the value of a header; remove the control characters");
            Err(RequestFailure::refused(bad, why))
        }
        value => Ok(value),
    }
}

/// Returns a key, or `None` for an empty string. An empty string means the bucket itself, which some programs (such as
/// mdtest) use as their top directory. Errors: the string is not a valid key.
///
/// # Safety
/// The requirements of [`text`] apply.
pub(crate) unsafe fn key(pointer: *const c_char) -> RequestResult<Option<Key>> {
    // SAFETY: the caller guarantees that `pointer` is NULL or a C string.
    Ok(unsafe { text(pointer) }?.map(Key::new).transpose()?)
}

/// Returns a key, for an operation that needs one. Errors: the string is empty or not a valid key.
///
/// # Safety
/// The requirements of [`text`] apply.
pub(crate) unsafe fn required_key(pointer: *const c_char) -> RequestResult<Key> {
    // SAFETY: the caller guarantees that `pointer` is NULL or a C string.
    let found = unsafe { key(pointer) }?;
    found.ok_or_else(|| RequestFailure::refused(Status::ErrorInvalidURI, "the key is empty; name an object"))
}

/// Converts a count from C. Errors: the number is negative.
pub(crate) fn count(number: c_int, what: &str) -> RequestResult<usize> {
    usize::try_from(number).map_err(|_| {
        RequestFailure::refused(
            Status::ErrorInvalidArgument,
            format!("{what} is {number}; it cannot be negative"),
        )
    })
}

/// A bucket context of either ABI.
pub(crate) trait AbiBucketContext {
    /// Returns the fields common to both versions.
    fn base(&self) -> &BucketContext2;

    /// Returns the settings with which the lane is opened, for a request with a time limit of `timeout_ms` (0 or less:
    /// the lane's default).
    ///
    /// # Safety
    /// All pointers of the context are NULL or C strings.
    unsafe fn address(&self, timeout_ms: c_int) -> EndpointSettings<&CStr>;

    /// Opens the bucket that the context describes. Errors: the errors of the lane, and an error for an invalid
    /// address.
    ///
    /// # Safety
    /// The requirements of [`AbiBucketContext::address`] apply.
    unsafe fn target(&self, timeout_ms: c_int) -> RequestResult<ConnectedBucketGuard> {
        // SAFETY: the caller guarantees that each pointer is NULL or valid.
        let (address, bucket) = unsafe { (self.address(timeout_ms), bytes(self.base().bucket_name)) };
        ConnectedBucket::take(&address, bucket)
    }
}

impl AbiBucketContext for BucketContext2 {
    fn base(&self) -> &BucketContext2 {
        self
    }

    unsafe fn address(&self, timeout_ms: c_int) -> EndpointSettings<&CStr> {
        // SAFETY: the caller guarantees that each pointer is NULL or valid.
        unsafe {
            let host = bytes(self.host_name);
            let is_directory = host
                .map(CStr::to_bytes)
                .is_some_and(|host| host.starts_with(b"/") || host.starts_with(b"file://"));
            EndpointSettings {
                host,
                // If the host is a directory, no timeout is needed, because no other machine is involved.
                timeout_ms: if is_directory { 0 } else { u32::try_from(timeout_ms).unwrap_or(0) },
                is_http: self.protocol == PROTOCOL_HTTP,
                is_virtual_host: self.uri_style == STYLE_VIRTUAL_HOST,
                access_key: bytes(self.access_key_id),
                secret_key: bytes(self.secret_access_key),
                token: None,
                region: None,
            }
        }
    }
}

impl AbiBucketContext for BucketContext4 {
    fn base(&self) -> &BucketContext2 {
        &self.base
    }

    unsafe fn address(&self, timeout_ms: c_int) -> EndpointSettings<&CStr> {
        // SAFETY: the caller guarantees that each pointer is NULL or valid.
        unsafe {
            let (token, region) = (bytes(self.security_token), bytes(self.auth_region));
            EndpointSettings { token, region, ..self.base.address(timeout_ms) }
        }
    }
}

/// Returns a required structure. Errors: the pointer is NULL.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that remains unchanged for `'a`.
pub(crate) unsafe fn required<'a, T>(pointer: *const T, what: &str) -> RequestResult<&'a T> {
    // SAFETY: the caller guarantees that `pointer` is NULL or points to a `T` that remains unchanged for `'a`.
    let found = unsafe { pointer.as_ref() };
    found.ok_or_else(|| RequestFailure::refused(Status::ErrorInvalidArgument, format!("the {what} is NULL")))
}

/// The properties that a program specifies when it stores content.
#[derive(Debug, Default)]
pub(crate) struct ParsedPutProperties {
    pub(crate) metadata: BoxedMetadata,
    pub(crate) md5: Option<[u8; 16]>,
}

/// Reads the put properties of either ABI.
pub(crate) trait ParsePutProperties {
    /// Reads the properties. Errors: properties that are not supported (encryption, public access), too much metadata,
    /// or an invalid MD5.
    ///
    /// # Safety
    /// All pointers of the properties are NULL or valid for their fields.
    unsafe fn read(&self) -> RequestResult<ParsedPutProperties>;
}

impl ParsePutProperties for PutProperties2 {
    unsafe fn read(&self) -> RequestResult<ParsedPutProperties> {
        check_acl(self.canned_acl)?;
        // SAFETY: the caller guarantees that each pointer is NULL or valid.
        unsafe {
            let value = |pointer, bad| header_value(pointer, bad).map(|value| value.map(str::to_owned));
            let file_name =
                header_value(self.content_disposition_filename, Status::BadContentDispositionFilename)?;
            let metadata = Metadata {
                content_type: value(self.content_type, Status::BadContentType)?,
                content_encoding: value(self.content_encoding, Status::BadContentEncoding)?,
                content_disposition: file_name.map(|name| format!("attachment; filename=\"{name}\"")),
                cache_control: value(self.cache_control, Status::BadCacheControl)?,
                expires: time(self.expires_s).map(date::format_http),
                user: user_metadata(self.meta_data, self.meta_data_count)?,
                ..Default::default()
            };
            Ok(ParsedPutProperties {
                metadata: metadata.into(),
                md5: header_value(self.md5, Status::BadMD5)?.map(read_md5).transpose()?,
            })
        }
    }
}

impl ParsePutProperties for PutProperties4 {
    unsafe fn read(&self) -> RequestResult<ParsedPutProperties> {
        if self.use_server_side_encryption != 0 {
            let why =
                "server-side encryption is not supported; encrypt the content, or the file system below";
            return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
        }
        // SAFETY: the caller guarantees that each pointer is NULL or valid.
        unsafe { self.base.read() }
    }
}

/// Reads the properties at `pointer`; returns `None` for NULL.
///
/// # Safety
/// `pointer` is NULL or points to properties whose pointers are valid for their fields.
pub(crate) unsafe fn properties<P: ParsePutProperties>(
    pointer: *const P,
) -> RequestResult<Option<ParsedPutProperties>> {
    // SAFETY: the caller guarantees that `pointer`, and each pointer in the properties, is NULL or valid.
    unsafe { pointer.as_ref().map(|properties| properties.read()).transpose() }
}

/// Checks a canned access control list. File system permissions, or the service's own configuration, determine which
/// users have access. Errors: any list that grants access to anyone but the owner.
pub(crate) fn check_acl(canned_acl: c_int) -> RequestResult {
    match canned_acl {
        ACL_PRIVATE | ACL_BUCKET_OWNER_FULL_CONTROL => Ok(()),
        other => Err(RequestFailure::refused(
            Status::ErrorNotImplemented,
            format!(
                "the canned ACL {other} is not supported; use private (0), and the permissions of the file system"
            ),
        )),
    }
}

/// # Safety
/// `pairs` points to `number` pairs of C strings, unless `number` is 0 or less.
unsafe fn user_metadata(
    pairs: *const NameValue,
    number: c_int,
) -> RequestResult<std::collections::BTreeMap<String, String>> {
    if pairs.is_null() || number <= 0 {
        return Ok(Default::default());
    }
    // SAFETY: the caller guarantees that `pairs` points to `number` pairs. The pointer is not NULL.
    let pairs = unsafe { std::slice::from_raw_parts(pairs, number as usize) };
    let mut bytes = 0;
    let mut user = std::collections::BTreeMap::new();
    for pair in pairs {
        // SAFETY: the caller guarantees that both strings of each pair are C strings.
        let (name, value) = unsafe { (text(pair.name)?, text(pair.value)?) };
        let Some(name) = name else {
            return Err(RequestFailure::refused(
                Status::BadMetaData,
                "a metadata item has no name; give it one",
            ));
        };
        let value = value.unwrap_or_default();
        bytes += METADATA_PREFIX_BYTES + name.len() + value.len();
        user.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    match bytes <= MAX_METADATA_BYTES {
        true => Ok(user),
        false => Err(RequestFailure::refused(
            Status::MetaDataHeadersTooLong,
            format!("the metadata takes {bytes} bytes; {MAX_METADATA_BYTES} are allowed"),
        )),
    }
}

fn read_md5(base64: &str) -> RequestResult<[u8; 16]> {
    BASE64.decode(base64).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        RequestFailure::refused(
            Status::ErrorInvalidDigest,
            format!("{base64:?} is not an MD5 in base64 (24 characters)"),
        )
    })
}

/// Converts seconds since the epoch; a negative number means no time.
fn time(seconds: i64) -> Option<SystemTime> {
    u64::try_from(seconds).ok().map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Reads the conditions at `pointer`; NULL means no conditions.
///
/// # Safety
/// `pointer` is NULL or points to conditions whose tags are NULL or C strings.
pub(crate) unsafe fn conditions(pointer: *const GetConditions) -> RequestResult<Conditions> {
    // SAFETY: the caller guarantees that `pointer` is NULL or points to conditions.
    let Some(asked) = (unsafe { pointer.as_ref() }) else { return Ok(Conditions::default()) };
    let tags = |tags: &str| match tags {
        "*" => ETagMatch::Any,
        tags => ETagMatch::Tags(tags.split(',').map(ETag::new).collect()),
    };
    // SAFETY: the caller guarantees that the ETags are NULL or C strings.
    let (wanted, unwanted) = unsafe {
        let wanted = header_value(asked.if_match_etag, Status::BadIfMatchETag)?;
        (wanted, header_value(asked.if_not_match_etag, Status::BadIfNotMatchETag)?)
    };
    Ok(Conditions {
        if_match: wanted.map(tags),
        if_none_match: unwanted.map(tags),
        if_modified_since: time(asked.if_modified_since_s),
        if_unmodified_since: time(asked.if_not_modified_since_s),
    })
}

/// Returns the name of a bucket. Errors: the status for the first rule that the name violates, among libs3's rules for
/// names in paths.
pub(crate) fn bucket_name(name: &CStr) -> RequestResult<Bucket> {
    match validate_bucket(name.to_bytes(), false) {
        Status::OK => Ok(Bucket::new(checked(name)?)?),
        fault => {
            let why = format!(
                "{:?} is not valid as the name of a bucket; use 3 to 255 letters, digits, dots, hyphens and \
                 underscores, starting with a letter or digit",
                name.to_string_lossy()
            );
            Err(RequestFailure::refused(fault, why))
        }
    }
}

/// The maximum lengths of a bucket name in bytes: in a path, and in a host name.
const MAX_IN_PATH: usize = 255;
const MAX_IN_HOST: usize = 63;

/// Returns the status for the first of libs3's rules that `name` violates, or `OK`. Some characters that are valid in a
/// path are not valid in a host name.
pub(crate) fn validate_bucket(name: &[u8], in_host: bool) -> Status {
    let max = if in_host { MAX_IN_HOST } else { MAX_IN_PATH };
    let mut before = 0;
    for (index, byte) in name.iter().copied().enumerate() {
        if index == max {
            return Status::InvalidBucketNameTooLong;
        }
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {}
            _ if index == 0 => return Status::InvalidBucketNameFirstCharacter,
            b'_' if in_host => return Status::InvalidBucketNameCharacter,
            b'-' if in_host && before == b'.' => return Status::InvalidBucketNameCharacterSequence,
            b'.' if in_host && before == b'-' => return Status::InvalidBucketNameCharacterSequence,
            b'_' | b'-' | b'.' => {}
            _ => return Status::InvalidBucketNameCharacter,
        }
        before = byte;
    }
    let is_like_address = name.contains(&b'.') && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    match name.len() {
        0..3 => Status::InvalidBucketNameTooShort,
        _ if is_like_address => Status::InvalidBucketNameDotQuadNotation,
        _ => Status::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, in_path, in_host) in [
            ("ior_1", Status::OK, Status::InvalidBucketNameCharacter),
            ("a-b.c", Status::OK, Status::OK),
            ("a.-b", Status::OK, Status::InvalidBucketNameCharacterSequence),
            ("a-.b", Status::OK, Status::InvalidBucketNameCharacterSequence),
            ("ab", Status::InvalidBucketNameTooShort, Status::InvalidBucketNameTooShort),
            ("", Status::InvalidBucketNameTooShort, Status::InvalidBucketNameTooShort),
            ("-ab", Status::InvalidBucketNameFirstCharacter, Status::InvalidBucketNameFirstCharacter),
            ("a b", Status::InvalidBucketNameCharacter, Status::InvalidBucketNameCharacter),
            ("1.2.3.4", Status::InvalidBucketNameDotQuadNotation, Status::InvalidBucketNameDotQuadNotation),
            (&"x".repeat(64), Status::OK, Status::InvalidBucketNameTooLong),
            (&"x".repeat(256), Status::InvalidBucketNameTooLong, Status::InvalidBucketNameTooLong),
        ] {
            assert_eq!(validate_bucket(name.as_bytes(), false), in_path, "{name}");
            assert_eq!(validate_bucket(name.as_bytes(), true), in_host, "{name}");
        }
    }
}
