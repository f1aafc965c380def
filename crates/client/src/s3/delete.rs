//! Deleting one object or many.

use std::collections::HashMap;

use fordway_store::{Bucket, DeleteOptions, Error, ErrorKind, Key, Result};
use fordway_wire::s3_error;
use fordway_wire::s3_xml::{self, DeleteFailure};

use super::headers::{OF_OBJECT, add_conditions};
use super::request::Call;
use super::session::Session;

/// The most keys one request may name.
const MAX_BATCH: usize = 1000;

pub(super) fn delete(session: &Session, bucket: &Bucket, key: &Key, options: &DeleteOptions) -> Result<()> {
    let mut call = Call::on_object("DELETE", "delete", bucket, key);
    let is_plain = options.conditions.is_empty();
    if !is_plain {
        call = call.once();
    }
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    match session.run_for_status(&call) {
        // Some services say so; S3 itself calls it success.
        Err(error) if is_plain && error.kind() == ErrorKind::NoSuchKey => Ok(()),
        other => other,
    }
}

/// One result per key, in order. Cost: a request per 1,000 keys.
pub(super) fn delete_many(session: &Session, bucket: &Bucket, keys: &[Key]) -> Vec<Result<()>> {
    keys.chunks(MAX_BATCH).flat_map(|batch| delete_batch(session, bucket, batch)).collect()
}

fn delete_batch(session: &Session, bucket: &Bucket, keys: &[Key]) -> Vec<Result<()>> {
    let document = s3_xml::delete(keys.iter().map(Key::as_str));
    let call = Call::on_bucket("POST", "delete", bucket).query("delete", "").document(&document);
    let answer = session
        .run(&call, |mut response| s3_xml::delete_result(&response.read_document()?))
        .map(|failures| by_key(&failures));
    let result_of = |key: &Key| match &answer {
        Ok(failures) => failures.get(key.as_str()).map_or(Ok(()), |failure| Err(explained(failure))),
        Err(error) => Err(Error::new(error.kind(), error.detail()).after_tries(error.tries())),
    };
    let named =
        |error: Error, key: &Key| error.during("delete", super::store::LANE, bucket.as_str(), key.as_str());
    keys.iter().map(|key| result_of(key).map_err(|error| named(error, key))).collect()
}

fn by_key(failures: &[DeleteFailure]) -> HashMap<String, DeleteFailure> {
    let missing = |failure: &&DeleteFailure| s3_error::from_s3(400, &failure.code) == ErrorKind::NoSuchKey;
    let real = failures.iter().filter(|failure| !missing(failure));
    real.map(|failure| (failure.key.clone(), failure.clone())).collect()
}

fn explained(failure: &DeleteFailure) -> Error {
    Error::new(s3_error::from_s3(400, &failure.code), format!("{} ({})", failure.message, failure.code))
}
