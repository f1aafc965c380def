//! What several commands do with versions: one is named, or all of a bucket are removed.

use std::fmt;

use fordway_command::{Address, Context, Exit};
use fordway_store::{Bucket, DeleteOptions, Error, ErrorKind, Key, Result, VersionId, VersionsQuery};
use serde::Serialize;

use super::source::Source;

/// A version that was removed.
#[derive(Serialize)]
struct Removed<'r> {
    operation: &'static str,
    source: &'r str,
    version_id: &'r str,
    dry_run: bool,
}

impl fmt::Display for Removed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}delete: {} (version {})", self.source, self.version_id)
    }
}

/// The one object that a version is named of. Errors: `InvalidArgument` if the sources are not one.
pub(super) fn only_object(sources: &[Source]) -> Result<(Bucket, Key)> {
    match sources {
        [Source::One(place @ Address::S3(..))] => place.clone().into_object(),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            "--version-id needs exactly one object, named in full (add --raw to take * and ? literally)",
        )),
    }
}

/// Removes a version for good, and tells of it.
pub(super) fn remove(
    context: &Context,
    (bucket, key): (&Bucket, &Key),
    version: &VersionId,
    dry_run: bool,
) -> Result<Exit> {
    if !dry_run {
        let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
        context.store()?.delete(bucket, key, &options)?;
    }
    let source = format!("s3://{bucket}/{key}");
    let removed = Removed { operation: "delete", source: &source, version_id: version.as_str(), dry_run };
    context.output.event(&removed).map(|()| Exit::Ok)
}

/// Removes all versions and delete markers of a bucket.
pub(super) fn remove_all(context: &Context, bucket: &Bucket, dry_run: bool) -> Result<Exit> {
    let mut query = VersionsQuery::default();
    let mut first_failure = Exit::Ok;
    loop {
        let page = context.store()?.list_versions(bucket, &query)?;
        let exit = super::for_each(context, &page.versions, |found| {
            remove(context, (bucket, &Key::new(found.key.as_str())?), &found.version, dry_run)
        })?;
        if first_failure == Exit::Ok {
            first_failure = exit;
        }
        let Some((key, version)) = page.next else { return Ok(first_failure) };
        (query.key_after, query.version_after) = (Some(key), version);
    }
}
