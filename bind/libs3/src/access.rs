//! Access control lists, lifecycle rules and access logs: what is answered where there are none.
//!
//! On the embedded lane the permissions of the file system decide. That is the same as S3's private
//! list in which the owner alone has a grant, so this is what is told, and what may be set. Of a
//! service over HTTP this library knows nothing of the kind, and says so.

use std::ffi::c_char;

use fordway_store::{GetOptions, Key};

use crate::abi::{AclGrant, MAX_OWNER_BYTES, PERMISSION_FULL_CONTROL};
use crate::acl_xml::{Grant, Grantee};
use crate::failure::{Failure, Outcome};
use crate::lane::Target;
use crate::response::{Properties, Responder, write_text};
use crate::status::Status;

/// Where an access control list is told.
pub(crate) struct AclReturns {
    pub(crate) owner_id: *mut c_char,
    pub(crate) owner_name: *mut c_char,
    pub(crate) count: *mut i32,
    pub(crate) grants: *mut AclGrant,
}

/// Errors: whatever is not this process's own doing; the object or bucket is missing.
fn check(target: &Target, key: Option<&Key>, what: &str) -> Outcome {
    let store = &target.lane.store;
    if store.lane() == "http" {
        let why = format!("{what} of an S3 service are not offered here; use the service's own tools");
        return Err(Failure::refused(Status::ErrorNotImplemented, why));
    }
    match key {
        Some(key) => drop(store.head(&target.bucket, key, &GetOptions::default())?),
        None => drop(store.head_bucket(&target.bucket)?),
    }
    Ok(())
}

/// The user that this process is.
fn owner() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

/// Tells that the owner alone has a grant, of all rights.
pub(crate) fn get_acl(
    target: &Target,
    key: Option<&Key>,
    returns: &AclReturns,
    responder: &Responder,
) -> Outcome {
    check(target, key, "access control lists")?;
    let id = owner();
    // SAFETY: `S3_get_acl` asks its caller for two buffers of 128 bytes, and for room for 100 grants.
    unsafe {
        write_text(returns.owner_id, MAX_OWNER_BYTES, &id);
        write_text(returns.owner_name, MAX_OWNER_BYTES, &id);
        if let (Some(count), Some(first)) = (returns.count.as_mut(), returns.grants.as_mut()) {
            let grantee = Grantee::User { id: id.clone(), name: id };
            *first = Grant { grantee, permission: PERMISSION_FULL_CONTROL }.to_c()?;
            *count = 1;
        }
    }
    responder.succeeded(Properties::default)
}

/// Accepts the list that there is. Errors: every other.
pub(crate) fn set_acl(
    target: &Target,
    key: Option<&Key>,
    grants: &[AclGrant],
    responder: &Responder,
) -> Outcome {
    check(target, key, "access control lists")?;
    let is_owner_alone = grants.iter().all(|grant| {
        let is_user = matches!(Grantee::of_c(grant), Grantee::User { id, .. } if id == owner());
        is_user && grant.permission == PERMISSION_FULL_CONTROL
    });
    if !is_owner_alone {
        let why = "grants to others are not offered; use the permissions of the file system";
        return Err(Failure::refused(Status::ErrorNotImplemented, why));
    }
    responder.succeeded(Properties::default)
}

/// There are no rules.
pub(crate) fn get_lifecycle(target: &Target) -> Outcome {
    check(target, None, "lifecycle rules")?;
    Err(Failure::refused(Status::ErrorNoSuchLifecycleConfiguration, "the bucket has no lifecycle rules"))
}

/// There can be none.
pub(crate) fn set_lifecycle(target: &Target) -> Outcome {
    check(target, None, "lifecycle rules")?;
    let why = "lifecycle rules are not offered; remove old objects with a job of your own";
    Err(Failure::refused(Status::ErrorNotImplemented, why))
}

/// Accesses are not logged: there is no bucket that they are logged to.
pub(crate) fn get_logging(
    target: &Target,
    (bucket, prefix, count): (*mut c_char, *mut c_char, *mut i32),
    responder: &Responder,
) -> Outcome {
    check(target, None, "access logs")?;
    // SAFETY: `S3_get_server_access_logging` asks its caller for two buffers, of which we write one
    // byte, and for a number.
    unsafe {
        write_text(bucket, 1, "");
        write_text(prefix, 1, "");
        if let Some(count) = count.as_mut() {
            *count = 0;
        }
    }
    responder.succeeded(Properties::default)
}

/// Accepts that nothing is logged. Errors: a bucket to log to.
pub(crate) fn set_logging(target: &Target, bucket: Option<&str>, responder: &Responder) -> Outcome {
    check(target, None, "access logs")?;
    if bucket.is_some() {
        let why = "access logs are not offered; FORDWAY_LOG=debug logs what this process does";
        return Err(Failure::refused(Status::ErrorNotImplemented, why));
    }
    responder.succeeded(Properties::default)
}
