//! A service that a comparison measures. Before any measurement, this module checks that the service is usable, and
//! creates a bucket or chooses a prefix on the service.

use std::sync::Arc;
use std::time::Duration;

use fordway_client::s3::{S3Config, S3Store};
use fordway_command::CommandContext;
use fordway_measure::RowDescription;
use fordway_store::{Bucket, Error, ErrorKind, Key, Result, Store};
use fordway_workload::{MeasuredTarget, StoreTarget};

use crate::args::{GlobalArgs, TargetArg};

/// The maximum time for a service to respond to the first requests.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// The object used to check whether objects can be written and read back.
const PROBE_KEY: &str = "probe";
const PROBE: &[u8] = b"fordway compare";

/// Opens the service. Creates a bucket on the service, or uses a prefix in the bucket of the URL.
/// [`MeasuredTarget::clean_up`] removes that bucket, or everything below that prefix. Errors: the errors of the
/// service, with advice.
pub(super) fn open(
    target: &TargetArg,
    global: &GlobalArgs,
    context: &CommandContext,
) -> Result<Box<dyn MeasuredTarget>> {
    let refused = |error: Error| refusal(target, &error);
    let stores = ServiceStorePair::of(target, global, context).map_err(refused)?;
    let own = format!("fordway-compare-{:08x}", random()?);
    let at = |store: &Arc<dyn Store>| -> Result<StoreTarget> {
        let (lane, store) = (lane(target), store.clone());
        Ok(match &target.bucket {
            None => StoreTarget::within(lane, store, Bucket::new(own.clone())?, None),
            Some(bucket) => {
                let prefix = format!("{}{own}/", target.prefix);
                StoreTarget::below(lane, store, bucket.clone(), prefix)
            }
        })
    };
    let asked = at(&stores.impatient)?;
    match &target.bucket {
        None => stores.impatient.create_bucket(&Bucket::new(own.clone())?).map_err(refused)?,
        Some(bucket) => stores.impatient.head_bucket(bucket).map(drop).map_err(refused)?,
    }
    if let Err(error) = probe(&asked) {
        // Ignore errors of the clean-up, because the probe's error is more informative than a second error with the
        // same cause.
        let _ = asked.clean_up();
        return Err(refused(error));
    }
    Ok(Box::new(at(&stores.measured)?))
}

/// Stores an object, reads it back, lists the objects, and removes the object.
fn probe(target: &StoreTarget) -> Result<()> {
    let (key, mut buffer) = (Key::new(PROBE_KEY)?, Vec::new());
    target.put(&key, PROBE)?;
    target.get(&key, &mut buffer)?;
    if buffer != PROBE {
        let why = "the content of an object differs from what was written";
        return Err(Error::new(ErrorKind::Corrupt, why));
    }
    target.list()?;
    target.delete(&key)
}

/// A service, opened as two stores: one with a short timeout, and one with the timeouts of our own lanes.
struct ServiceStorePair {
    impatient: Arc<dyn Store>,
    measured: Arc<dyn Store>,
}

impl ServiceStorePair {
    fn of(target: &TargetArg, global: &GlobalArgs, context: &CommandContext) -> Result<Self> {
        if !target.endpoint.starts_with("http") {
            let store = context.lane_at(&target.endpoint)?.store;
            return Ok(ServiceStorePair { impatient: store.clone(), measured: store });
        }
        let config = S3Config::resolve(Some(&target.endpoint), &|name| super::variable(global, name))?;
        let hasty = S3Config { timeout: Some(FIRST_ANSWER), max_retries: 0, ..config.clone() };
        Ok(ServiceStorePair {
            impatient: Arc::new(S3Store::new(hasty)?),
            measured: Arc::new(S3Store::new(config)?),
        })
    }
}

fn lane(target: &TargetArg) -> RowDescription {
    let place = match &target.bucket {
        None => "in its own bucket".to_owned(),
        Some(_) => "below its own prefix".to_owned(),
    };
    let description = format!("the service at {}, not started by this run, {place}", target.url);
    RowDescription { name: target.name.clone(), description }
}

/// Returns the error for a service that cannot be measured, with advice.
fn refusal(target: &TargetArg, error: &Error) -> Error {
    use ErrorKind as K;
    let (what, helps) = match (error.kind(), &target.bucket) {
        (K::NoSuchBucket, Some(bucket)) => {
            (format!("has no bucket {bucket}"), "create it, or omit it from the URL to have one created")
        }
        (K::Unavailable | K::Timeout, _) => ("does not respond".to_owned(), "start it, or correct the URL"),
        (K::AccessDenied | K::InvalidAccessKeyId | K::SignatureDoesNotMatch, None) => (
            "rejects these keys, or does not allow them to create a bucket".to_owned(),
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys of this server, or add an existing bucket to the \
             URL",
        ),
        (K::AccessDenied | K::InvalidAccessKeyId | K::SignatureDoesNotMatch, Some(_)) => (
            "rejects these keys".to_owned(),
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys of this server",
        ),
        _ => ("cannot be measured".to_owned(), "correct this, or omit the target"),
    };
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let said = [error.detail().to_owned(), cause.unwrap_or_default()];
    let said: Vec<_> = said.into_iter().filter(|text| !text.is_empty()).collect();
    let why = if said.is_empty() { String::new() } else { format!(" ({})", said.join(": ")) };
    Error::new(error.kind(), format!("--target {target} {what}{why}: {helps}"))
}

fn random() -> Result<u32> {
    getrandom::u32().map_err(|error| Error::new(ErrorKind::Io, "no random name").caused_by(error))
}
