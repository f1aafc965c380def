//! Runs work on threads that may block.
//!
//! tokio's functions are compiled anew for each type of work, and for a hundred types of work this took a fifth of the
//! time in which this crate was compiled. Here, all work has one type.

use std::any::Any;
use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinError;

type ErasedResult = Box<dyn Any + Send>;
type ErasedWork = Box<dyn FnOnce() -> ErasedResult + Send>;

/// Runs `work` on a thread of the calling runtime that may block, as [`on_threads_of`] does.
pub(crate) fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, JoinError>> {
    on_threads_of(&Handle::current(), work)
}

/// Runs `work` on a thread of `runtime` that may block. The work begins even if the result is never awaited, and
/// continues if it is dropped. Errors: `JoinError` if the work panics, or the runtime ends before the work begins.
pub(crate) fn on_threads_of<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    runtime: &Handle,
    work: W,
) -> impl Future<Output = Result<T, JoinError>> + use<T, W> {
    let erased: ErasedWork = Box::new(|| Box::new(work()));
    let task = runtime.spawn_blocking(erased);
    async move {
        let result = task.await?.downcast();
        Ok(*result.expect("the erased work returns the result of `work`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_and_panics_come_back() {
        assert_eq!(run_blocking(|| vec![1, 2]).await.unwrap(), [1, 2]);
        let failed: Result<(), JoinError> = run_blocking(|| panic!("a bug")).await;
        assert!(failed.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn work_begins_and_ends_without_its_caller() {
        let (send, receive) = tokio::sync::oneshot::channel();
        drop(run_blocking(move || send.send(7)));
        assert_eq!(receive.await, Ok(7));
    }
}
