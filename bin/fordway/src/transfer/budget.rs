//! Limits the memory of concurrent uploads. Over HTTP, a part is sent with the checksum of its content at the start of
//! the request, so the whole part is kept in memory until it is sent.

use std::sync::{Condvar, Mutex, MutexGuard};

/// The maximum memory for the content of all concurrent uploads, in bytes.
pub(super) const UPLOAD_MEMORY_BYTES: u64 = 1 << 30;

/// Memory that concurrent uploads share. Requests are served in the order in which they arrive, so that many small
/// requests do not delay a large one for long.
pub(super) struct UploadMemoryBudget {
    limit_bytes: u64,
    state: Mutex<BudgetState>,
    changed: Condvar,
}

#[derive(Default)]
struct BudgetState {
    used_bytes: u64,
    /// The number of requests that have arrived.
    arrived: u64,
    /// The number of requests that have been served.
    served: u64,
}

/// A share of an [`UploadMemoryBudget`]. Dropping it returns the memory to the budget.
pub(super) struct ReservedUploadMemory<'b> {
    budget: &'b UploadMemoryBudget,
    bytes: u64,
}

impl UploadMemoryBudget {
    pub(super) fn new(limit_bytes: u64) -> Self {
        UploadMemoryBudget { limit_bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until `bytes` are available, and reserves them. A larger request than the whole budget waits for the whole
    /// budget. The caller must not hold another reservation.
    pub(super) fn reserve(&self, bytes: u64) -> ReservedUploadMemory<'_> {
        let bytes = bytes.min(self.limit_bytes);
        let mut state = self.lock();
        let ticket = state.arrived;
        state.arrived += 1;
        while state.served != ticket || state.used_bytes + bytes > self.limit_bytes {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.served += 1;
        state.used_bytes += bytes;
        // The next request may fit as well.
        self.changed.notify_all();
        ReservedUploadMemory { budget: self, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for ReservedUploadMemory<'_> {
    fn drop(&mut self) {
        self.budget.lock().used_bytes -= self.bytes;
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn reservations_never_exceed_the_limit() {
        let (budget, used, most) = (UploadMemoryBudget::new(100), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (budget, used, most) = (&budget, &used, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        // Some requests exceed the limit.
                        let bytes = (thread * 31 + round * 17) % 130;
                        let reserved = budget.reserve(bytes);
                        most.fetch_max(used.fetch_add(reserved.bytes, SeqCst) + reserved.bytes, SeqCst);
                        used.fetch_sub(reserved.bytes, SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 100);
        assert_eq!(budget.lock().used_bytes, 0);
    }

    #[test]
    fn a_large_request_is_served_before_later_small_ones() {
        let (budget, order) = (UploadMemoryBudget::new(10), Mutex::new(Vec::new()));
        let first = budget.reserve(1);
        let wait_for = |arrived| {
            while budget.lock().arrived < arrived {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            for (arrived, bytes) in [(2, 10), (3, 1)] {
                let (budget, order) = (&budget, &order);
                scope.spawn(move || {
                    let _reserved = budget.reserve(bytes);
                    order.lock().unwrap().push(bytes);
                });
                wait_for(arrived);
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [10, 1]);
    }
}
