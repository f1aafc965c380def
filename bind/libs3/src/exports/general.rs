//! Functions that are the same in both ABIs: the library's own state, names, and request contexts.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::exported;
use crate::abi::{AbiVersion, AclGrant, MAX_OWNER_BYTES, STYLE_VIRTUAL_HOST, StatusNumber};
use crate::arguments::{self, text};
use crate::bucket::AccessControlList;
use crate::lane;
use crate::queue::RequestContext;
use crate::response::{self, Outcome, RequestFailure, without_panic, write_text};
use crate::status::Status;

/// Returns the status number of how `work` ended, for functions without a handler.
pub(super) fn status_of(work: impl FnOnce() -> Outcome) -> StatusNumber {
    response::start_diagnosis();
    match without_panic(work) {
        Ok(()) => AbiVersion::EXPORTED.number(Status::OK),
        Err(failure) => {
            tracing::debug!(message = failure.message(), "a call failed");
            failure.number(AbiVersion::EXPORTED)
        }
    }
}

/// Runs waiting requests until none waits, or until `is_done`, which is called before each, returns true.
///
/// # Safety
/// `context` is NULL or a context that has not been destroyed.
unsafe fn drive(context: *const RequestContext, mut is_done: impl FnMut() -> bool) -> StatusNumber {
    status_of(|| {
        // SAFETY: the caller vouches for it.
        let context = unsafe { crate::arguments::required(context, "request context") }?;
        while !is_done() && context.run_one() {}
        Ok(())
    })
}

exported! {
    when all();

    /// Sets the host for requests that name none. It need not be called, and may be called again.
    fn S3_initialize(_user_agent: *const c_char, _flags: c_int, default_host: *const c_char) -> StatusNumber {
        status_of(|| {
            // SAFETY: the caller vouches for it.
            if let Some(host) = unsafe { text(default_host) }? {
                lane::set_default_host(Some(host));
            }
            Ok(())
        })
    }

    /// Does nothing. Lanes stay open until the process ends, because another part of it may use them.
    fn S3_deinitialize() {}

    /// Returns the status's name without the prefix `S3Status`; `Unknown` for a number that is not a status.
    fn S3_get_status_name(status: StatusNumber) -> *const c_char {
        Status::from_number(AbiVersion::EXPORTED, status).map_or(c"Unknown", Status::name).as_ptr()
    }

    /// Checks whether libs3 allows `name` for a bucket.
    fn S3_validate_bucket_name(name: *const c_char, uri_style: c_int) -> StatusNumber {
        status_of(|| {
            // SAFETY: the caller vouches for it.
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
    ) -> StatusNumber {
        status_of(|| {
            // SAFETY: the caller vouches for the document, two buffers of 128 bytes, the count, and room
            // for 100 grants, which is the most that `AccessControlList` holds.
            unsafe {
                let acl = AccessControlList::read(text(document)?.unwrap_or_default().as_bytes())?;
                write_text(owner_id, MAX_OWNER_BYTES, &acl.owner_id);
                write_text(owner_name, MAX_OWNER_BYTES, &acl.owner_name);
                ptr::copy_nonoverlapping(acl.grants.as_ptr(), grants, acl.grants.len());
                *count = acl.grants.len() as c_int;
            }
            Ok(())
        })
    }

    /// Returns whether a request that ended with this status may succeed if it is repeated.
    fn S3_status_is_retryable(status: StatusNumber) -> c_int {
        c_int::from(Status::from_number(AbiVersion::EXPORTED, status).is_some_and(Status::is_retryable))
    }

    /// Creates a request context.
    fn S3_create_request_context(made: *mut *mut RequestContext) -> StatusNumber {
        status_of(|| {
            let context = RequestContext::new()
                .map_err(|error| RequestFailure::refused(Status::OutOfMemory, format!("no descriptor is left: {error}")))?;
            // SAFETY: the caller vouches for it.
            unsafe { *made = Box::into_raw(Box::new(context)) };
            Ok(())
        })
    }

    /// Ends the waiting requests as interrupted, then destroys the context.
    fn S3_destroy_request_context(context: *mut RequestContext) {
        if !context.is_null() {
            // SAFETY: it was made by `Box::into_raw`, and the caller gives it up.
            let context = unsafe { Box::from_raw(context) };
            context.interrupt();
        }
    }

    /// Runs all waiting requests, and those that their callbacks add.
    fn S3_runall_request_context(context: *mut RequestContext) -> StatusNumber {
        // SAFETY: the caller vouches for it.
        unsafe { drive(context, || false) }
    }

    /// Runs one request, and reports how many are still waiting.
    fn S3_runonce_request_context(context: *mut RequestContext, remaining: *mut c_int) -> StatusNumber {
        let mut ran = 0;
        let is_done = || std::mem::replace(&mut ran, 1) > 0;
        // SAFETY: the caller vouches for both pointers.
        unsafe {
            let status = drive(context, is_done);
            if let (Some(remaining), Some(context)) = (remaining.as_mut(), context.as_ref()) {
                *remaining = context.waiting() as c_int;
            }
            status
        }
    }

    /// Adds the descriptor to wait for, which is ready as long as any request waits.
    fn S3_get_request_context_fdsets(
        context: *mut RequestContext,
        read: *mut libc::fd_set,
        _write: *mut libc::fd_set,
        _except: *mut libc::fd_set,
        max_fd: *mut c_int,
    ) -> StatusNumber {
        status_of(|| {
            // SAFETY: the caller vouches for all pointers; `FD_SET` is given a descriptor that fits.
            unsafe {
                let context = crate::arguments::required(context, "request context")?;
                let fd = context.ready_fd().filter(|fd| (*fd as usize) < libc::FD_SETSIZE);
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

    /// Returns the longest time to wait, in milliseconds: 0 while any request waits, else -1.
    fn S3_get_request_context_timeout(context: *mut RequestContext) -> i64 {
        // SAFETY: the caller vouches for it.
        match unsafe { context.as_ref() } {
            Some(context) if context.waiting() > 0 => 0,
            _ => -1,
        }
    }
}
