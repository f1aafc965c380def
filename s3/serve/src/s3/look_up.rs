//! Runs reads on the thread that received the request, unless the reads have to wait for a device.

use std::sync::Arc;

use fordway_store::Store;
use fordway_sys::without_waiting;
use s3s::S3Result;

use crate::s3::apart::apart;
use crate::s3::error::{OperationResult, S3Failure};
use crate::users::User;

/// Runs `read` with the store of `user` on the calling thread. If `read` would have to wait for a name lookup, runs
/// `read` again on a separate thread, with the same store and therefore as the same user. Errors: the errors of `read`.
pub(crate) async fn look_up<T: Send + 'static>(
    user: Arc<User>,
    read: impl Fn(&dyn Store) -> OperationResult<T> + Send + 'static,
) -> S3Result<T> {
    let here = user.server.is_none().then(|| without_waiting(|| read(&*user.store)));
    let outcome = match here.flatten() {
        Some(outcome) => outcome,
        None => apart(user, read).await,
    };
    outcome.map_err(|S3Failure(error)| error)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use fordway_store::{Bucket, Error, ErrorKind, MemoryStore, Objects};
    use fordway_sys::would_wait;

    use super::*;

    /// Runs `read` with the calling thread as the serving thread. Returns the result of `read`, and the ID of the
    /// calling thread.
    fn look<T: Send + 'static>(
        read: impl Fn(&dyn Store) -> OperationResult<T> + Send + 'static,
    ) -> (S3Result<T>, ThreadId) {
        let store = MemoryStore::default();
        store.create_bucket(&Bucket::new("bucket").unwrap()).unwrap();
        let runtime = crate::workers::new_runtime().unwrap();
        let user = User::of_tests(1, Arc::new(store));
        (runtime.block_on(look_up(user, read)), thread::current().id())
    }

    /// Imitates a store whose data is not in memory. If the calling thread must not block, reports the object as
    /// missing.
    fn from_the_device(store: &dyn Store, name: &str) -> OperationResult<ThreadId> {
        if would_wait() {
            return Err(Error::from(ErrorKind::NoSuchKey).into());
        }
        store.head_bucket(&Bucket::new(name)?)?;
        Ok(thread::current().id())
    }

    #[test]
    fn what_is_in_memory_is_read_where_it_was_asked_for() {
        let (read_at, here) = look(|_| Ok(thread::current().id()));
        assert_eq!(read_at.unwrap(), here);
    }

    #[test]
    fn what_is_not_is_read_where_nobody_waits() {
        let (read_at, here) = look(|store| from_the_device(store, "bucket"));
        assert_ne!(read_at.unwrap(), here);
    }

    #[test]
    fn an_error_is_that_of_the_store_which_waited() {
        let (read, _) = look(|store| from_the_device(store, "another"));
        assert_eq!(read.expect_err("there is no such bucket").code().as_str(), "NoSuchBucket");
    }

    /// The text written to the log.
    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log contains failed requests, but not attempts that were repeated on a thread that may block.
    #[test]
    fn only_the_second_answer_is_spoken_of() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let (read, _) = look(|_| match would_wait() {
                true => Err(Error::from(ErrorKind::Io).into()),
                false => Ok(()),
            });
            read.unwrap();
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(text.is_empty(), "{text}");
    }

    /// A panic in the store fails only the request that caused the panic.
    #[test]
    fn a_panic_elsewhere_is_an_error() {
        let (read, _) = look(|_| -> OperationResult<()> {
            assert!(would_wait(), "on purpose");
            Ok(())
        });
        assert_eq!(read.expect_err("it panicked").code().as_str(), "InternalFailure");
    }
}
