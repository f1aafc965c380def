//! The functions that C calls. Every function may be called from any thread, including concurrently on the same file.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use fordway_http::vector::AccessAdvice;
use libc::ssize_t;

use super::files::ReadBuffers;
use crate::abi::{
    FORDWAY_ADVICE_DONTNEED, FORDWAY_ADVICE_NORMAL, FORDWAY_ADVICE_RANDOM, FORDWAY_ADVICE_SEQUENTIAL,
    FORDWAY_ADVICE_WILLNEED, Fragment, OPTIONS_BYTES_MIN, OpenOptions,
};
use crate::failure::{CallFailure, guarded, last_sentence};
use crate::files;
use crate::source::{AccessKeys, OpenFileBackend, ValidatedOpenOptions};

/// Returns the version of the library, such as `0.1.0`. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns a message about this thread's last failure: the operation, the file, the cause, and what to do. Never NULL.
/// The text is valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_last_error() -> *const c_char {
    last_sentence()
}

/// Opens a file for reading: `http(s)://HOST/PATH`, `s3://BUCKET/KEY` at the endpoint that `options` or the environment
/// specifies, `file:///PATH`, or a path. `options` may be NULL. Returns a file number, or -1 with errno set: ENOENT,
/// EACCES, EINVAL, EHOSTUNREACH, ECONNRESET, ETIMEDOUT, EPROTO and others. All reads return bytes of the version that
/// was opened; if that version no longer exists, the reads fail with ESTALE. A local file must be a regular file. Its
/// version consists of its size and its modification time.
///
/// # Safety
///
/// `url` is a C string. `options` is NULL, or points to options of `size` bytes. Each pointer in these options is NULL
/// or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_open(url: *const c_char, options: *const OpenOptions) -> c_int {
    guarded(|| {
        // SAFETY: the caller guarantees that `url` is NULL or a C string, and that `options` is NULL or points to valid
        // options.
        let (url, settings) = unsafe { (string(url, "the URL")?, settings(options)?) };
        let url = url.ok_or_else(|| CallFailure::new(libc::EINVAL, "the URL is NULL; name what to open"))?;
        OpenFileBackend::open(&url, &settings).map(files::insert)
    })
}

/// Closes a file, and cancels the submitted reads that no call has waited for. After this call returns, the library no
/// longer writes to the buffers of these reads. Returns 0, or -1 with errno EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_close(file: c_int) -> c_int {
    guarded(|| files::close(file).map(|()| 0))
}

/// Returns the size of the file in bytes, or -1 with errno EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_size(file: c_int) -> i64 {
    guarded(|| Ok(i64::try_from(files::get(file)?.source.size_bytes()).unwrap_or(i64::MAX)))
}

/// Reads up to `length` bytes at `offset`. Returns the number of bytes read, or -1 with errno. The number is smaller
/// than `length` only at the end of the file. If the library detects an access pattern, it reads ahead. errno is
/// ECANCELED if another thread closed the file.
///
/// # Safety
///
/// `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_pread(
    file: c_int,
    buffer: *mut std::ffi::c_void,
    length: usize,
    offset: u64,
) -> ssize_t {
    guarded(|| {
        let file = files::get(file)?;
        if length == 0 {
            return Ok(0);
        }
        let length = length.min(isize::MAX as usize);
        if buffer.is_null() {
            return Err(CallFailure::new(libc::EINVAL, format!("the buffer for {length} bytes is NULL")));
        }
        // SAFETY: the caller guarantees that the buffer has room for `length` bytes; NULL was excluded above.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        Ok(file.read_at(offset, buffer)? as ssize_t)
    })
}

/// Reads `count` fragments, which may overlap and be in any order, in as few requests as the server allows. Returns the
/// sum of the fragments' lengths, or -1 with errno, which is ERANGE if a fragment extends past the end of the file.
/// After a failure, the content of the buffers is undefined.
///
/// # Safety
///
/// `fragments` points to `count` fragments, each with room for `length` bytes at `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_pread_vector(
    file: c_int,
    fragments: *const Fragment,
    count: usize,
) -> ssize_t {
    guarded(|| {
        let file = files::get(file)?;
        // SAFETY: the caller guarantees `count` fragments, each with room for `length` bytes. The submitted reads have
        // ended when this function returns.
        let buffers = unsafe { ReadBuffers::new(fragments, count)? };
        buffers.check()?;
        let ticket = file.submit(buffers)?;
        Ok(file.wait(ticket)? as ssize_t)
    })
}

/// Starts reading `count` fragments without waiting for the result. Returns a ticket for `fordway_wait` or
/// `fordway_cancel`, or -1 with errno. The array of fragments may be freed as soon as this function returns. The
/// fragments' buffers belong to the library until one of these two functions, or `fordway_close`, has returned.
///
/// # Safety
///
/// The requirements of `fordway_pread_vector` apply. The buffers must stay valid until the ticket becomes invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_submit(file: c_int, fragments: *const Fragment, count: usize) -> i64 {
    guarded(|| {
        let file = files::get(file)?;
        // SAFETY: the caller guarantees `count` fragments, whose buffers stay valid until the ticket becomes invalid.
        let buffers = unsafe { ReadBuffers::new(fragments, count)? };
        buffers.check()?;
        file.submit(buffers)
    })
}

/// Waits until the fragments of a ticket have been read; the file's other tickets also make progress in the meantime.
/// Returns the sum of the fragments' lengths, or -1 with errno: EINVAL if the ticket does not belong to this file,
/// ECANCELED if another thread closed the file. The ticket is invalid afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_wait(file: c_int, ticket: i64) -> ssize_t {
    guarded(|| Ok(files::get(file)?.wait(ticket)? as ssize_t))
}

/// Cancels a ticket. After this call returns, the library no longer writes to the ticket's buffers. Returns 0, or -1
/// with errno EINVAL if the ticket does not belong to this file or another thread is waiting for the ticket.
#[unsafe(no_mangle)]
pub extern "C" fn fordway_cancel(file: c_int, ticket: i64) -> c_int {
    guarded(|| files::get(file)?.cancel(ticket).map(|()| 0))
}

/// Announces future reads (`FORDWAY_ADVICE_...`), as posix_fadvise does. Only `FORDWAY_ADVICE_WILLNEED` uses
/// `fragments`, and it ignores their buffers. Returns 0, or -1 with errno.
///
/// # Safety
///
/// `fragments` points to `count` fragments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fordway_advise(
    file: c_int,
    advice: c_int,
    fragments: *const Fragment,
    count: usize,
) -> c_int {
    guarded(|| {
        let file = files::get(file)?;
        // SAFETY: the caller guarantees that `fragments` points to `count` fragments. Their buffers are not used.
        let ranges = unsafe { ReadBuffers::new(fragments, count)? }.ranges();
        let advice = match advice {
            FORDWAY_ADVICE_NORMAL => AccessAdvice::Normal,
            FORDWAY_ADVICE_SEQUENTIAL => AccessAdvice::Sequential,
            FORDWAY_ADVICE_RANDOM => AccessAdvice::Random,
            FORDWAY_ADVICE_WILLNEED => AccessAdvice::WillNeed(&ranges),
            FORDWAY_ADVICE_DONTNEED => AccessAdvice::DontNeed,
            other => {
                let sentence = format!("{other} is not a valid advice; use one of FORDWAY_ADVICE_...");
                return Err(CallFailure::new(libc::EINVAL, sentence));
            }
        };
        file.source.advise(advice).map(|()| 0)
    })
}

/// Copies the caller's options and checks them. Errors: `EINVAL` if `size` is smaller than the first version of the
/// structure or larger than this version, if a string is not UTF-8, or if only one of `access_key` and `secret_key` is
/// set.
///
/// # Safety
///
/// `options` meets the requirements of `fordway_open`.
unsafe fn settings(options: *const OpenOptions) -> Result<ValidatedOpenOptions, CallFailure> {
    if options.is_null() {
        return Ok(ValidatedOpenOptions::default());
    }
    // SAFETY: `size` is the first field of the structure in every version.
    let size = unsafe { options.cast::<usize>().read() };
    if !(OPTIONS_BYTES_MIN..=size_of::<OpenOptions>()).contains(&size) {
        let sentence = format!(
            "options of {size} bytes are not known; set `size` to sizeof(struct fordway_options), which is {}",
            size_of::<OpenOptions>()
        );
        return Err(CallFailure::new(libc::EINVAL, sentence));
    }
    let mut known = MaybeUninit::<OpenOptions>::zeroed();
    // SAFETY: the options have `size` bytes, and `known` has room for them. The remaining bytes of `known` are zero,
    // which is a valid value for each field.
    let options = unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), known.as_mut_ptr().cast::<u8>(), size);
        known.assume_init()
    };
    // SAFETY: the caller guarantees that each pointer in the options is NULL or a C string.
    let text = |text, name| unsafe { string(text, name) };
    Ok(ValidatedOpenOptions {
        endpoint: text(options.endpoint, "the endpoint")?,
        ca_bundle: text(options.ca_bundle, "the CA bundle")?.map(Into::into),
        keys: keys(
            text(options.access_key, "the access key")?,
            text(options.secret_key, "the secret key")?,
            text(options.session_token, "the session token")?,
        )?,
        read_ahead_bytes: options.read_ahead_bytes,
        connections: options.connections,
        timeout_ms: options.timeout_ms,
    })
}

/// Combines the two keys and the session token; returns `None` without keys. Errors: `EINVAL` if only one key is set.
fn keys(
    access_key: Option<String>,
    secret_key: Option<String>,
    session_token: Option<String>,
) -> Result<Option<AccessKeys>, CallFailure> {
    match (access_key, secret_key) {
        (None, None) => Ok(None),
        (Some(access_key), Some(secret_key)) => {
            Ok(Some(AccessKeys { access_key, secret_key, session_token }))
        }
        _ => Err(CallFailure::new(
            libc::EINVAL,
            "one of access_key and secret_key is NULL; set both, or neither",
        )),
    }
}

/// Copies a string from the caller; returns `None` for NULL. Errors: `EINVAL` if the string is not UTF-8.
///
/// # Safety
///
/// `text` is NULL or a C string.
unsafe fn string(text: *const c_char, name: &str) -> Result<Option<String>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees that `text` is a C string; NULL was excluded above.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(|text| Some(text.to_owned()))
        .map_err(|_| CallFailure::new(libc::EINVAL, format!("{name} is not UTF-8; percent-encode it")))
}
