//! Large objects one after the other: the file for the next one came with the answer to the last.

use std::borrow::Cow;
use std::fs::File;
use std::sync::Arc;

use fordway_store::{Bucket, Key, PutOptions, PutResult, Result};
use fordway_sys::{current_core, write_all_at};
use fordway_wire::node::{Committed, Request};

use super::connection::{Connection, Failure};
use super::session::{Call, Session};
use super::write::failed_write;

/// An empty file of the gateway's, for an object like the one that was stored last.
pub(super) struct Spare {
    file: File,
    bucket: Bucket,
    /// The last key up to its last slash: in another directory the file is of no use.
    directory: String,
    options: PutOptions,
}

impl Spare {
    pub(super) fn new(file: File, (bucket, key): (&Bucket, &Key), options: &PutOptions) -> Self {
        let (directory, options) = (directory(key).to_owned(), options.clone());
        Spare { file, bucket: bucket.clone(), directory, options }
    }

    fn suits(&self, (bucket, key): (&Bucket, &Key), options: &PutOptions) -> bool {
        self.bucket == *bucket && self.directory == directory(key) && self.options == *options
    }
}

fn directory(key: &Key) -> &str {
    key.as_str().rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Stores `body` through a spare file; `None` if there is none, or none that suits, and nothing was done.
/// Cost: one write of the content, and one round trip.
pub(super) fn put_spare(
    session: &Arc<Session>,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
) -> Result<Option<PutResult>> {
    let options = PutOptions { size_hint: None, ..options.clone() };
    // Done twice, "create only" would find what it made itself.
    let is_idempotent = options.conditions.is_empty();
    let call = Call { operation: "put", bucket: bucket.as_str(), key: key.as_str(), is_idempotent };
    let done = session.run(&call, |connection| put_on(connection, (bucket, key), body, &options));
    done.map(|(made, _)| made)
}

fn put_on(
    connection: &mut Connection,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
) -> Result<Option<PutResult>, Failure> {
    let Some(spare) = connection.spare.take_if(|spare| spare.suits((bucket, key), options)) else {
        return Ok(None);
    };
    write_all_at(&spare.file, body, 0)
        .map_err(|errno| Failure::Unusable(failed_write(errno, &spare.file, 0, body.len())))?;
    let request = Request::PutSpare {
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        options: Cow::Borrowed(options),
        filled: body.len() as u64,
        core: current_core(),
    };
    let (done, header) = connection.call::<Option<Committed>>(&request, &[])?;
    if done.as_ref().is_some_and(|done| done.has_spare) {
        connection.spare = Some(Spare::new(connection.file(&header)?, (bucket, key), options));
    }
    connection.finish(&header);
    Ok(done.map(|done| done.made))
}
