//! Many small objects in one call.
//!
//! A put costs several microseconds in the kernel, so a large batch of them is shared out to a thread
//! for each core: 0.85 of a loop's time for 256 objects of 3,901 B on two cores of a virtual machine,
//! but 0.97 for 64, which is no gain. Gets and heads are shorter than waking a thread costs there
//! (1.2 to 1.5 and 1.1 of a loop's time when they were shared out), so for those the loop stays.
//! `bench/store-vs-posix` measures what is in use.

use std::sync::OnceLock;

use fordway_sys::Process;
use rayon::prelude::*;

/// From this many writes on, a batch is shared out.
pub(crate) const SHARED_FROM: usize = 256;
/// The fewest that are handed to a thread at a time.
const AT_LEAST: usize = 16;

/// `act` on each of `items`, in order; by all cores if there are at least `shared_from`.
pub(crate) fn each<T: Sync, R: Send>(
    items: &[T],
    shared_from: usize,
    act: impl Fn(&T) -> R + Sync + Send,
) -> Vec<R> {
    if items.len() < shared_from || !has_threads() {
        return items.iter().map(act).collect();
    }
    items.par_iter().with_min_len(AT_LEAST).map(act).collect()
}

/// Whether there are threads to share with. A child process has none of those that its parent started.
fn has_threads() -> bool {
    static STARTED_BY: OnceLock<Process> = OnceLock::new();
    let is_ours = STARTED_BY.get_or_init(Process::current).is_current();
    is_ours && rayon::current_num_threads() > 1
}
