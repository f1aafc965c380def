//! `admin acl`: shows and sets the canned ACL of a bucket.

use std::fmt;

use fordway_command::{CommandContext, CommandExit, StorageAddress};
use fordway_policy::CannedAcl;
use fordway_serve::{acl_document, acl_of_document, bucket_acl, set_bucket_acl};
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Result, Store};
use fordway_wire::s3_xml::{AclDocument, access_control_policy};
use serde::Serialize;

use super::{is_service, is_unsupported};
use crate::args::AdminBucketAclArgs;

const KIND: BucketDocumentKind = BucketDocumentKind::known("acl");

pub(super) fn run(args: &AdminBucketAclArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let store = context.store()?;
    let acl = match args.name {
        None => read(&*store, &bucket),
        Some(acl) => set(&*store, &bucket, acl).map(|()| acl),
    };
    let acl = acl.map_err(explained)?;
    let shown = BucketAclOutput { bucket: bucket.as_str(), acl: acl.name() };
    match args.name {
        None => context.output.record(&shown)?,
        Some(_) => context.output.completed(&shown)?,
    }
    Ok(CommandExit::Ok)
}

/// Returns the ACL of a bucket. Errors: `NotImplemented` if the endpoint has no ACLs, or if no canned ACL has the
/// grants of the bucket's ACL.
pub(in crate::commands) fn read(store: &dyn Store, bucket: &Bucket) -> Result<CannedAcl> {
    if !is_service(store) {
        return bucket_acl(store, bucket);
    }
    let document = of_service(store, bucket)?;
    acl_of_document(&document, &document.owner_id)
}

fn set(store: &dyn Store, bucket: &Bucket, acl: CannedAcl) -> Result<()> {
    if !is_service(store) {
        return set_bucket_acl(store, bucket, acl);
    }
    // S3 requires the ID of the owner in the document.
    let owner = of_service(store, bucket)?.owner_id;
    store.set_document(bucket, &KIND, acl_document(acl, Some(&owner)).as_bytes())
}

/// Returns the ACL that an S3 service reports.
fn of_service(store: &dyn Store, bucket: &Bucket) -> Result<AclDocument> {
    let document = store.document(bucket, &KIND)?;
    access_control_policy(&document.unwrap_or_default())
}

fn explained(error: Error) -> Error {
    // If the endpoint does not support the request, keep its message only if the message is about grants. Any other
    // message is empty or repeats the error code.
    match is_unsupported(&error) && !error.detail().contains("grant") {
        true => {
            Error::new(ErrorKind::NotImplemented, "this endpoint has no ACLs; use a policy").caused_by(error)
        }
        false => error,
    }
}

/// The output of `admin acl`.
#[derive(Serialize)]
struct BucketAclOutput<'b> {
    bucket: &'b str,
    acl: &'static str,
}

impl fmt::Display for BucketAclOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}: {}", self.bucket, self.acl)
    }
}
