//! Reads that are done where their request was read, unless that has to wait for a device.

use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Store};
use fordway_sys::without_waiting;
use s3s::S3Result;

use super::error::{Failure, Outcome};
use crate::users::User;

/// What `read` makes of the store of `user`. Where names would have to be waited for, the whole of it
/// is done again on a thread where nobody else waits, by the same store and so as the same user.
/// Errors: those of `read`.
pub(super) async fn look_up<T: Send + 'static>(
    user: Arc<User>,
    read: impl Fn(&dyn Store) -> Outcome<T> + Send + 'static,
) -> S3Result<T> {
    let outcome = match without_waiting(|| read(&*user.store)) {
        Some(outcome) => outcome,
        None => tokio::task::spawn_blocking(move || read(&*user.store)).await.unwrap_or_else(|ended| {
            Err(Error::new(ErrorKind::Internal, "reading ended early").caused_by(ended).into())
        }),
    };
    outcome.map_err(|Failure(error)| error)
}
