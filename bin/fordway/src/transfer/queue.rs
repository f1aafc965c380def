//! A bounded queue between one producer and a few threads.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

/// Does `work` on every item, up to `workers` at once, and returns when all are done.
///
/// Items are taken from the iterator on the calling thread, and only as fast as they are worked
/// off: at most two per worker wait, however long the listing behind the iterator is.
pub(crate) fn for_each<T: Send>(workers: u16, mut items: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let Some(first) = items.next() else { return };
    let second = if workers > 1 { items.next() } else { None };
    let Some(second) = second else {
        work(first);
        return items.for_each(work);
    };
    let (sender, receiver) = sync_channel(2 * usize::from(workers));
    let receiver = Arc::new(Mutex::new(receiver));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (receiver, work) = (Arc::clone(&receiver), &work);
            scope.spawn(move || {
                while let Some(item) = next(&receiver) {
                    work(item);
                }
            });
        }
        // Only the workers hold the receiver now: if they all die, sending fails and the scope panics.
        drop(receiver);
        for item in [first, second].into_iter().chain(items) {
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
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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
    fn a_panic_reaches_the_caller() {
        let outcome = std::panic::catch_unwind(|| for_each(2, 0..1000, |_| panic!("bug")));
        assert!(outcome.is_err());
    }
}
