//! Calls a function for many items on a few threads, which share a bounded queue.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

/// Calls `work` for every item, on up to `workers` threads, and returns when all items are done. Uses fewer threads if
/// the system refuses to start more.
///
/// The calling thread takes items from the iterator only as fast as they are processed. At most two items per worker
/// are waiting, regardless of the length of the listing behind the iterator.
pub(crate) fn for_each<T: Send>(workers: u16, items: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    for_each_on(workers, |_| Builder::new(), items, work);
}

/// Like [`for_each`], with the threads that `thread` describes.
fn for_each_on<T: Send>(
    workers: u16,
    thread: impl Fn(u16) -> Builder,
    mut items: impl Iterator<Item = T>,
    work: impl Fn(T) + Sync,
) {
    let Some(first) = items.next() else { return };
    let second = if workers > 1 { items.next() } else { None };
    let Some(second) = second else {
        work(first);
        return items.for_each(work);
    };
    let items = [first, second].into_iter().chain(items);
    let (sender, receiver) = sync_channel(2 * usize::from(workers));
    let (receiver, work) = (Arc::new(Mutex::new(receiver)), &work);
    std::thread::scope(|scope| {
        let started = (0..workers).map_while(|number| {
            let receiver = Arc::clone(&receiver);
            let take_items = move || {
                while let Some(item) = next(&receiver) {
                    work(item);
                }
            };
            thread(number).spawn_scoped(scope, take_items).ok()
        });
        if started.count() == 0 {
            return items.for_each(work);
        }
        // From here on, only the workers own the receiver, so if all workers panic, sending fails and the scope panics.
        drop(receiver);
        for item in items {
            if sender.send(item).is_err() {
                break;
            }
        }
        drop(sender);
    });
}

fn next<T>(receiver: &Mutex<Receiver<T>>) -> Option<T> {
    receiver.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn all_items_are_done_and_few_wait() {
        for (workers, count) in [(1, 100), (3, 1), (3, 2), (3, 1000)] {
            let (taken, done, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
            let items = (0..count).inspect(|_| {
                let waiting = taken.fetch_add(1, SeqCst) - done.load(SeqCst);
                most.fetch_max(waiting, SeqCst);
            });
            for_each(workers, items, |_| {
                done.fetch_add(1, SeqCst);
            });
            assert_eq!(done.load(SeqCst), count);
            assert!(
                most.load(SeqCst) <= 3 * usize::from(workers) + 1,
                "{most:?} of {count} were taken ahead"
            );
        }
    }

    #[test]
    fn fewer_threads_than_requested_do_all_items() {
        // No address space has room for such a stack.
        let refused = || Builder::new().stack_size(1 << 60);
        for started in [0, 1, 3] {
            let done = AtomicUsize::new(0);
            let thread = |number| if number < started { Builder::new() } else { refused() };
            for_each_on(8, thread, 0..1000, |_| {
                done.fetch_add(1, SeqCst);
            });
            assert_eq!(done.load(SeqCst), 1000, "{started}");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let outcome = std::panic::catch_unwind(|| for_each(2, 0..1000, |_| panic!("bug")));
        assert!(outcome.is_err());
    }
}
