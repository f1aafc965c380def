//! Stores large objects through spare files, which the gateway passes in advance, with the response to the previous
//! put.

use std::borrow::Cow;
use std::fs::File;
use std::sync::Arc;

use fordway_store::{Bucket, Key, PutOptions, PutResult, Result};
use fordway_sys::{current_core, write_all_at};
use fordway_wire::node::{CommitResponse, FrameHeader, Request};

use crate::node::connection::{NodeConnection, NodeFailure};
use crate::node::session::{NodeCallTarget, NodeSession};
use crate::node::write::failed_write;

/// An empty file that the gateway has passed for an object that is similar to the last stored object.
pub(super) struct PrecreatedFile {
    file: File,
    bucket: Bucket,
    /// The directory of the last key: the part before its last slash. The file cannot be used for a key in another
    /// directory.
    directory: String,
    options: PutOptions,
}

impl PrecreatedFile {
    /// Returns the file that arrived with the response whose header is `header`. Returns `None` if this process could
    /// not receive the file, for example because it has reached its limit of open files. The put must not fail in this
    /// case, because its object is already stored. The next put then asks the gateway for a file.
    pub(super) fn received(
        connection: &mut NodeConnection,
        header: &FrameHeader,
        (bucket, key): (&Bucket, &Key),
        options: &PutOptions,
    ) -> Option<Self> {
        let file = connection.file(header).ok()?;
        let (directory, options) = (directory(key).to_owned(), options.clone());
        Some(PrecreatedFile { file, bucket: bucket.clone(), directory, options })
    }

    fn suits(&self, (bucket, key): (&Bucket, &Key), options: &PutOptions) -> bool {
        self.bucket == *bucket && self.directory == directory(key) && self.options == *options
    }
}

fn directory(key: &Key) -> &str {
    key.as_str().rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Stores `body` through a spare file. Returns `None`, and does nothing, if there is no suitable spare file. Cost: one
/// write of the content, and one round trip.
pub(super) fn put_spare(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
) -> Result<Option<PutResult>> {
    let options = PutOptions { size_hint: None, ..options.clone() };
    // A conditional request must not be repeated. For example, a second "create only" request would find the object
    // that the first request created.
    let is_idempotent = options.conditions.is_empty();
    let call = NodeCallTarget { operation: "put", bucket: bucket.as_str(), key: key.as_str(), is_idempotent };
    let done = session.run(&call, |connection| put_on(connection, (bucket, key), body, &options));
    done.map(|(made, _)| made)
}

fn put_on(
    connection: &mut NodeConnection,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
) -> Result<Option<PutResult>, NodeFailure> {
    let Some(spare) = connection.spare.take_if(|spare| spare.suits((bucket, key), options)) else {
        return Ok(None);
    };
    write_all_at(&spare.file, body, 0)
        .map_err(|errno| NodeFailure::Unusable(failed_write(errno, &spare.file, 0, body.len())))?;
    let request = Request::PutSpare {
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        options: Cow::Borrowed(options),
        filled: body.len() as u64,
        core: current_core(),
    };
    let (done, header) = connection.call::<Option<CommitResponse>>(&request, &[])?;
    if done.as_ref().is_some_and(|done| done.has_spare) {
        connection.spare = PrecreatedFile::received(connection, &header, (bucket, key), options);
    }
    connection.finish(&header);
    Ok(done.map(|done| done.made))
}
