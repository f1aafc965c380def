//! The structures and numbers of the C header.

use std::ffi::{c_char, c_int, c_void};

/// How to open a file. Clear it, for example with `= {0}`, and set `size` to `sizeof` of it: what a later
/// version adds is then left at its default. A field that is 0 or NULL has its default too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// `sizeof(struct fordway_options)`.
    pub size: usize,
    /// Where the objects of `s3://` URLs are, as `--endpoint` of the program says it; NULL is what
    /// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and the AWS configuration say.
    pub endpoint: *const c_char,
    /// A PEM file of the certificates to trust in `https://` URLs, of files and of endpoints; NULL is the
    /// system's.
    pub ca_bundle: *const c_char,
    /// Bytes of memory for what is read ahead, at most; 0 is 64 MiB.
    pub read_ahead_bytes: u64,
    /// Connections to one `http(s)://` server or endpoint at once; 0 is 8. Files that are opened with the
    /// same options share connections.
    pub connections: u32,
    /// Milliseconds to wait for a server that says nothing; 0 is the default of each kind of waiting.
    pub timeout_ms: u32,
    /// The access key for `s3://` URLs, where the endpoint wants one; NULL is what AWS_ACCESS_KEY_ID and the
    /// AWS configuration say.
    pub access_key: *const c_char,
    /// Its secret key; NULL if and only if `access_key` is.
    pub secret_key: *const c_char,
    /// What goes along with temporary keys, or NULL.
    pub session_token: *const c_char,
}

/// The size of [`OpenOptions`] in its first version, in bytes: the fields up to `timeout_ms`.
pub(crate) const OPTIONS_BYTES_MIN: usize = std::mem::offset_of!(OpenOptions, access_key);

/// A part of a file, and where it goes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// Position of its first byte in the file.
    pub offset: u64,
    /// Bytes wanted.
    pub length: usize,
    /// Has room for `length` bytes; may be NULL if that is 0.
    pub buffer: *mut c_void,
}

/// Nothing is known of reads to come: they are watched.
pub const FORDWAY_ADVICE_NORMAL: c_int = 0;
/// What follows a read will be read.
pub const FORDWAY_ADVICE_SEQUENTIAL: c_int = 1;
/// Reads have no order: nothing is read ahead.
pub const FORDWAY_ADVICE_RANDOM: c_int = 2;
/// The fragments given will be read; their buffers are not looked at.
pub const FORDWAY_ADVICE_WILLNEED: c_int = 3;
/// What was read ahead will not be read.
pub const FORDWAY_ADVICE_DONTNEED: c_int = 4;
