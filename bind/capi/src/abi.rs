//! The structures and numbers of the C header.

use std::ffi::{c_char, c_int, c_void};

/// Options for opening a file. Clear the structure, for example with `= {0}`, and set `size` to its `sizeof`. Fields
/// that later versions add then keep their defaults. A field that is 0 or NULL has its default value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// `sizeof(struct fordway_options)`.
    pub size: usize,
    /// The endpoint for `s3://` URLs, in the format of the `--endpoint` option of `fordway`. If NULL, the endpoint is
    /// read from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the AWS configuration.
    pub endpoint: *const c_char,
    /// A PEM file with the certificates to trust for files and endpoints with `https://` URLs. If NULL, AWS_CA_BUNDLE,
    /// X509_CERT_DIR (for files) or the AWS configuration (for endpoints) selects the certificates; otherwise, the
    /// system's certificates are trusted.
    pub ca_bundle: *const c_char,
    /// The maximum memory for read-ahead, in bytes. The default, 0, means 64 MiB.
    pub read_ahead_bytes: u64,
    /// The maximum number of simultaneous connections to one `http(s)://` server or endpoint. The default, 0, means 8.
    /// Files opened with the same options share connections.
    pub connections: u32,
    /// How long to wait for a server that sends nothing, in milliseconds. The default, 0, means a time that depends on
    /// what the library is waiting for.
    pub timeout_ms: u32,
    /// The access key for `s3://` URLs, if the endpoint requires one. If NULL, the key is read from AWS_ACCESS_KEY_ID
    /// or the AWS configuration.
    pub access_key: *const c_char,
    /// The secret key that belongs to `access_key`; NULL if and only if `access_key` is NULL.
    pub secret_key: *const c_char,
    /// The session token of temporary credentials, or NULL.
    pub session_token: *const c_char,
}

/// The size of [`OpenOptions`] in its first version, in bytes: the fields up to `timeout_ms`.
pub(crate) const OPTIONS_BYTES_MIN: usize = std::mem::offset_of!(OpenOptions, access_key);

/// A range of a file, and the buffer to read it into.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// The offset of the range in the file.
    pub offset: u64,
    /// The number of bytes to read.
    pub length: usize,
    /// A buffer of at least `length` bytes; may be NULL if `length` is 0.
    pub buffer: *mut c_void,
}

/// No advice: the library detects the access pattern itself.
pub const FORDWAY_ADVICE_NORMAL: c_int = 0;
/// Reads will be sequential.
pub const FORDWAY_ADVICE_SEQUENTIAL: c_int = 1;
/// Reads will be in random order: turns read-ahead off.
pub const FORDWAY_ADVICE_RANDOM: c_int = 2;
/// The given fragments will be read soon. Their buffers are ignored.
pub const FORDWAY_ADVICE_WILLNEED: c_int = 3;
/// Data that was read ahead is no longer needed.
pub const FORDWAY_ADVICE_DONTNEED: c_int = 4;
