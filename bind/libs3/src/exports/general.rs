//! Functions that are the same in both ABIs: library state, names, and request contexts.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::RawFd;
use std::ptr;

use super::exported;
use crate::abi::{AbiVersion, AclGrant, MAX_OWNER_BYTES, S3StatusCode, STYLE_VIRTUAL_HOST};
use crate::arguments::{self, text};
use crate::bucket::AccessControlList;
use crate::lane;
use crate::queue::{RequestContext, RequestQueue};
use crate::response::{self, RequestFailure, RequestResult, without_panic, write_text};
use crate::status::Status;

/// Runs `work` and returns its outcome as a status number, for functions without a handler.
pub(super) fn status_of(work: impl FnOnce() -> RequestResult) -> S3StatusCode {
    response::start_diagnosis();
    match without_panic(work) {
        Ok(()) => AbiVersion::EXPORTED.number(Status::OK),
        Err(failure) => {
            tracing::debug!(message = failure.message(), "a call failed");
            failure.number(AbiVersion::EXPORTED)
        }
    }
}

/// Drives a context with `run`.
///
/// # Safety
/// `context` is NULL or a context that has not been destroyed.
pub(super) unsafe fn drive(
    context: *const RequestContext,
    run: impl FnOnce(&RequestQueue) -> RequestResult,
) -> S3StatusCode {
    status_of(|| {
        // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed.
        let context = unsafe { crate::arguments::required(context, "request context") }?;
        // A callback may destroy the context, so keep its queue alive.
        run(&context.queue())
    })
}

/// The longest timeout returned to a program, in milliseconds. The timeout is limited because some programs do not
/// watch the descriptor.
const WAIT_MAX_MS: i64 = 1000;
/// The longest timeout in milliseconds if `select` cannot wait for the descriptor.
const BLIND_WAIT_MAX_MS: i64 = 10;

fn no_descriptor(error: std::io::Error) -> RequestFailure {
    RequestFailure::refused(Status::OutOfMemory, format!("cannot create a descriptor: {error}"))
}

/// Returns whether `select` can wait for `fd`.
fn fits_a_set(fd: RawFd) -> bool {
    (fd as usize) < libc::FD_SETSIZE
}

exported! {
    when all();

    /// Sets the default host for requests that do not name a host. Calling this function is optional. If a program
    /// calls the function again before `S3_deinitialize`, the first host remains.
    fn S3_initialize(_user_agent: *const c_char, _flags: c_int, default_host: *const c_char) -> S3StatusCode {
        status_of(|| {
            // SAFETY: the caller guarantees that `default_host` is NULL or a C string.
            lane::initialize(unsafe { text(default_host) }?);
            Ok(())
        })
    }

    /// Undoes one call of `S3_initialize`. Lanes remain open until the process ends, because another part of the
    /// process may use them.
    fn S3_deinitialize() {
        lane::deinitialize();
    }

    /// Returns the status's name without the prefix `S3Status`; `Unknown` for a number that is not a status.
    fn S3_get_status_name(status: S3StatusCode) -> *const c_char {
        Status::from_number(AbiVersion::EXPORTED, status).map_or(c"Unknown", Status::name).as_ptr()
    }

    /// Checks whether libs3 allows `name` as a bucket name.
    fn S3_validate_bucket_name(name: *const c_char, uri_style: c_int) -> S3StatusCode {
        status_of(|| {
            // SAFETY: the caller guarantees that `name` is NULL or a C string.
            let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
            match arguments::validate_bucket(name.to_bytes(), uri_style == STYLE_VIRTUAL_HOST) {
                Status::OK => Ok(()),
                fault => Err(RequestFailure::refused(fault, "the name of the bucket")),
            }
        })
    }

    /// Reads an access control list in S3's XML.
    fn S3_convert_acl(
        document: *mut c_char,
        owner_id: *mut c_char,
        owner_name: *mut c_char,
        count: *mut c_int,
        grants: *mut AclGrant,
    ) -> S3StatusCode {
        status_of(|| {
            // SAFETY: the caller passes a valid document, two buffers of 128 bytes, a valid count, and room for 100
            // grants, which is the maximum in an `AccessControlList`.
            unsafe {
                // The program finds these values if the document is not valid.
                write_text(owner_id, MAX_OWNER_BYTES, "");
                write_text(owner_name, MAX_OWNER_BYTES, "");
                *count = 0;
                let acl = AccessControlList::read(text(document)?.unwrap_or_default().as_bytes())?;
                write_text(owner_id, MAX_OWNER_BYTES, &acl.owner_id);
                write_text(owner_name, MAX_OWNER_BYTES, &acl.owner_name);
                ptr::copy_nonoverlapping(acl.grants.as_ptr(), grants, acl.grants.len());
                *count = acl.grants.len() as c_int;
            }
            Ok(())
        })
    }

    /// Returns whether a request that ended with this status may succeed if retried.
    fn S3_status_is_retryable(status: S3StatusCode) -> c_int {
        c_int::from(Status::from_number(AbiVersion::EXPORTED, status).is_some_and(Status::is_retryable))
    }

    /// Creates a request context.
    fn S3_create_request_context(made: *mut *mut RequestContext) -> S3StatusCode {
        status_of(|| {
            // SAFETY: the caller guarantees that `made` is valid for writes.
            unsafe { *made = Box::into_raw(Box::new(RequestContext::new())) };
            Ok(())
        })
    }

    /// Ends all unfinished requests with the status `Interrupted`, then destroys the context. Does not wait for other
    /// machines.
    fn S3_destroy_request_context(context: *mut RequestContext) {
        if !context.is_null() {
            // SAFETY: the pointer comes from `Box::into_raw`, and the caller gives up ownership.
            let context = unsafe { Box::from_raw(context) };
            context.queue().interrupt();
        }
    }

    /// Carries out all requests, including those that callbacks add. Sleeps while there is nothing to do.
    fn S3_runall_request_context(context: *mut RequestContext) -> S3StatusCode {
        // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed.
        unsafe { drive(context, RequestQueue::run_all) }
    }

    /// Starts requests and runs callbacks until neither is possible without waiting, or until a short time has passed.
    /// Returns the number of unfinished requests.
    fn S3_runonce_request_context(context: *mut RequestContext, remaining: *mut c_int) -> S3StatusCode {
        // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed, and that `remaining` is NULL
        // or valid for writes.
        unsafe {
            drive(context, |queue| {
                let ran = queue.run_once();
                if let Some(remaining) = remaining.as_mut() {
                    *remaining = queue.unfinished() as c_int;
                }
                ran
            })
        }
    }

    /// Returns the descriptor to wait for. The descriptor is readable if and only if a callback is waiting or a request
    /// can be started. Returns no descriptor if all requests are finished, or if the descriptor is too large for
    /// `select`.
    fn S3_get_request_context_fdsets(
        context: *mut RequestContext,
        read: *mut libc::fd_set,
        _write: *mut libc::fd_set,
        _except: *mut libc::fd_set,
        max_fd: *mut c_int,
    ) -> S3StatusCode {
        status_of(|| {
            // SAFETY: the caller guarantees that each pointer is NULL or valid. `FD_SET` receives only a descriptor
            // that fits in the set.
            unsafe {
                let context = crate::arguments::required(context, "request context")?;
                let fd = context.queue().signal().map_err(no_descriptor)?.filter(|fd| fits_a_set(*fd));
                if let (Some(fd), Some(read)) = (fd, read.as_mut()) {
                    libc::FD_SET(fd, read);
                }
                if let Some(max_fd) = max_fd.as_mut() {
                    *max_fd = fd.unwrap_or(-1);
                }
            }
            Ok(())
        })
    }

    /// Returns the maximum time to wait in milliseconds: 0 while there is something to do, -1 if all requests are
    /// finished.
    fn S3_get_request_context_timeout(context: *mut RequestContext) -> i64 {
        // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed.
        let Some(context) = (unsafe { context.as_ref() }) else { return -1 };
        let queue = context.queue();
        match queue.signal() {
            Ok(None) => -1,
            _ if queue.has_work() => 0,
            Ok(Some(fd)) if fits_a_set(fd) => WAIT_MAX_MS,
            _ => BLIND_WAIT_MAX_MS,
        }
    }
}
