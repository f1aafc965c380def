//! Implements the object lock calls, and the renaming of objects.

use fordway_store::{
    Bucket, BucketDocumentKind, ErrorKind, Key, LockConfiguration, RenameOptions, Result, Retention,
    VersionId,
};
use fordway_wire::s3_xml::{self, ObjectLockDocument};
use fordway_wire::uri::push_path;

use crate::s3::headers::{OF_OBJECT, OF_RENAME_SOURCE, add_bypass, add_conditions};
use crate::s3::request::S3Call;
use crate::s3::session::S3Session;

/// The kind of bucket document that contains the object lock configuration.
static KIND: BucketDocumentKind = BucketDocumentKind::known("object-lock");

pub(super) fn configuration(session: &S3Session, bucket: &Bucket) -> Result<Option<LockConfiguration>> {
    let call = S3Call::on_bucket("GET", "get object lock", bucket).for_document(&KIND);
    match session.run_for_document(&call) {
        Ok(document) => {
            let read = ObjectLockDocument::read(&document).map_err(|error| call.named(error))?;
            // Even a configuration that this version of Fordway cannot interpret means that objects can be locked.
            Ok(Some(read.configuration().unwrap_or_default()))
        }
        Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn set_configuration(
    session: &S3Session,
    bucket: &Bucket,
    configuration: &LockConfiguration,
) -> Result<()> {
    let document = s3_xml::lock_configuration(configuration);
    let call = S3Call::on_bucket("PUT", "set object lock", bucket).for_document(&KIND);
    configuration.check().map_err(|error| call.named(error))?;
    session.run_for_status(&call.document(&document))
}

pub(super) fn set_retention(
    session: &S3Session,
    (bucket, key, version): (&Bucket, &Key, Option<&VersionId>),
    retention: Option<Retention>,
    bypass: bool,
) -> Result<()> {
    let document = s3_xml::retention_document(retention);
    let call = S3Call::on_object("PUT", "set retention", bucket, key).query("retention", "");
    let mut call = call.version(version).document(&document);
    add_bypass(&mut call, bypass);
    session.run_for_status(&call)
}

pub(super) fn set_legal_hold(
    session: &S3Session,
    (bucket, key, version): (&Bucket, &Key, Option<&VersionId>),
    is_on: bool,
) -> Result<()> {
    let document = s3_xml::legal_hold_document(is_on);
    let call = S3Call::on_object("PUT", "set legal hold", bucket, key).query("legal-hold", "");
    session.run_for_status(&call.version(version).document(&document))
}

pub(super) fn rename(
    session: &S3Session,
    bucket: &Bucket,
    (from, to): (&Key, &Key),
    options: &RenameOptions,
) -> Result<()> {
    let mut source = format!("/{bucket}/");
    push_path(&mut source, from.as_str());
    let mut call = S3Call::on_object("PUT", "rename", bucket, to).query("renameObject", "").once();
    call.header("x-amz-rename-source", source);
    add_conditions(&mut call, &options.source_conditions, &OF_RENAME_SOURCE);
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    session.run_for_status(&call)
}
