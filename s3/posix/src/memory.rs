//! One limit for the memory of all caches of all stores in a process.
//!
//! In a gateway, each user has a store with its own caches, because a user must not see names from directories that
//! this user is not permitted to read. The stores share only the limit. If a cache exceeds the limit, the least
//! recently used content is dropped, regardless of its store. No store may use more than half of the memory, so one
//! user cannot displace everything that other users have cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use foldhash::{HashMap, HashMapExt};
use fordway_sys::{CoarseInstant, PerProcess};

/// The maximum memory for the caches of all stores, in bytes.
const PROCESS_BYTES: usize = 256 << 20;
/// The maximum memory for the caches of one store, in bytes.
const STORE_BYTES: usize = if cfg!(test) { 1 << 20 } else { PROCESS_BYTES / 2 };
/// The time after which unused content is dropped.
pub(crate) const UNUSED: Duration = Duration::from_secs(60);

/// The store to which a cache belongs.
#[derive(Debug)]
pub(crate) struct CacheOwner(AtomicU64);

/// Content of a cache, which may be dropped at any time.
pub(crate) struct CacheSlot<T> {
    owner: u64,
    state: Mutex<SlotState<T>>,
}

struct SlotState<T> {
    /// `None` after the content was dropped.
    content: Option<Arc<T>>,
    bytes: usize,
    used: CoarseInstant,
}

/// A [`CacheSlot`] with content of any type.
trait DroppableContent: Send + Sync {
    fn owner(&self) -> u64;
    /// Returns the memory that the content needs, and the time at which it was used last; `None` if it was dropped.
    fn usage(&self) -> Option<(usize, CoarseInstant)>;
    fn drop_content(&self);
}

/// The content of several caches, with a limit for its total memory.
pub(crate) struct CacheMemory {
    process_bytes: usize,
    store_bytes: usize,
    /// The content, in the order in which it was added.
    slots: Mutex<Vec<Weak<dyn DroppableContent>>>,
}

impl Default for CacheOwner {
    /// Returns an owner that no other cache has.
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        CacheOwner(AtomicU64::new(NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl CacheOwner {
    /// Makes this cache belong to the same store as another cache.
    pub(crate) fn join(&self, other: &CacheOwner) {
        self.0.store(other.id(), Ordering::Relaxed);
    }

    fn id(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T> CacheSlot<T> {
    /// Returns the content, unless it was dropped, and records that it was used.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let mut state = self.state();
        state.used = CoarseInstant::now();
        state.content.clone()
    }

    /// Returns whether the content was not dropped. Does not count as a use.
    pub(crate) fn has_content(&self) -> bool {
        self.state().content.is_some()
    }

    fn state(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync> DroppableContent for CacheSlot<T> {
    fn owner(&self) -> u64 {
        self.owner
    }

    fn usage(&self) -> Option<(usize, CoarseInstant)> {
        let state = self.state();
        state.content.as_ref().map(|_| (state.bytes, state.used))
    }

    fn drop_content(&self) {
        self.state().content = None;
    }
}

impl Default for CacheMemory {
    fn default() -> Self {
        CacheMemory::new(PROCESS_BYTES, STORE_BYTES)
    }
}

impl CacheMemory {
    fn new(process_bytes: usize, store_bytes: usize) -> Self {
        CacheMemory { process_bytes, store_bytes, slots: Mutex::default() }
    }

    /// Returns the memory of the caches of this process.
    pub(crate) fn of_process() -> &'static CacheMemory {
        static MEMORY: OnceLock<PerProcess<CacheMemory>> = OnceLock::new();
        MEMORY.get_or_init(PerProcess::default)
    }

    /// Adds content that needs `bytes` of memory, and drops other content if the limits require it.
    pub(crate) fn keep<T: Send + Sync + 'static>(
        &self,
        owner: &CacheOwner,
        content: Arc<T>,
        bytes: usize,
    ) -> Arc<CacheSlot<T>> {
        let state = SlotState { content: Some(content), bytes, used: CoarseInstant::now() };
        let slot = Arc::new(CacheSlot { owner: owner.id(), state: Mutex::new(state) });
        let weak: Weak<CacheSlot<T>> = Arc::downgrade(&slot);
        self.slots().push(weak);
        self.enforce_limits(UNUSED);
        slot
    }

    /// Records that the content of `slot` now needs `bytes` of memory, and drops content if the limits require it.
    pub(crate) fn resize<T>(&self, slot: &CacheSlot<T>, bytes: usize) {
        let grows = bytes > std::mem::replace(&mut slot.state().bytes, bytes);
        if grows {
            self.enforce_limits(UNUSED);
        }
    }

    /// Drops the content that was not used for `unused`, and the content that exceeds the limits.
    pub(crate) fn enforce_limits(&self, unused: Duration) {
        let mut slots = self.slots();
        let mut all = Vec::with_capacity(slots.len());
        slots.retain(|slot| {
            let used = slot.upgrade().and_then(|slot| slot.usage().map(|usage| (slot, usage)));
            all.extend(used.clone());
            used.is_some()
        });
        let (mut total, mut of_store) = (0, HashMap::new());
        for (slot, (bytes, _)) in &all {
            total += bytes;
            *of_store.entry(slot.owner()).or_insert(0) += bytes;
        }
        all.sort_by_key(|(_, (_, used))| *used);
        // A store that exceeds its own limit loses content before other stores do.
        for is_limit_of_store in [true, false] {
            all.retain(|(slot, (bytes, used))| {
                let of_store = of_store.entry(slot.owner()).or_insert(0);
                let exceeds = match is_limit_of_store {
                    true => *of_store > self.store_bytes,
                    false => total > self.process_bytes,
                };
                let is_over = exceeds || used.elapsed() > unused;
                if is_over {
                    slot.drop_content();
                    (total, *of_store) = (total - bytes, *of_store - bytes);
                }
                !is_over
            });
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Weak<dyn DroppableContent>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the slots that have content.
    fn kept(slots: &[Arc<CacheSlot<usize>>]) -> Vec<usize> {
        (0..slots.len()).filter(|at| slots[*at].has_content()).collect()
    }

    /// Waits until the coarse clock has advanced.
    fn tick() {
        let now = CoarseInstant::now();
        while CoarseInstant::now() == now {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_content_that_was_used_least_recently_goes_first_whatever_its_store() {
        let (memory, owners) = (CacheMemory::new(100, 50), [(); 40].map(|()| CacheOwner::default()));
        let mut slots = Vec::new();
        for (at, owner) in owners.iter().enumerate() {
            slots.push(memory.keep(owner, Arc::new(at), 15));
            tick();
            assert_eq!(slots[0].get().as_deref(), Some(&0), "after {at} others");
            tick();
        }
        assert_eq!(kept(&slots), [0, 35, 36, 37, 38, 39]);
    }

    #[test]
    fn a_store_displaces_its_own_content_once_it_has_half_of_the_memory() {
        let (memory, one, other) = (CacheMemory::new(100, 50), CacheOwner::default(), CacheOwner::default());
        let mut slots = vec![memory.keep(&other, Arc::new(0), 40)];
        for at in 1..20 {
            tick();
            slots.push(memory.keep(&one, Arc::new(at), 20));
        }
        assert_eq!(kept(&slots), [0, 18, 19]);
        memory.resize(&slots[18], 40);
        assert_eq!(kept(&slots), [0, 19], "content that grows counts too");
        memory.resize(&slots[19], 60);
        assert_eq!(kept(&slots), [0], "content that is too large alone is not kept");
        let second = CacheOwner::default();
        second.join(&other);
        slots.push(memory.keep(&second, Arc::new(20), 20));
        assert_eq!(kept(&slots), [20], "several caches of a store share its half");
    }

    #[test]
    fn unused_content_is_dropped() {
        let (memory, owner) = (CacheMemory::new(100, 50), CacheOwner::default());
        let mut slots = vec![memory.keep(&owner, Arc::new(0), 10), memory.keep(&owner, Arc::new(1), 10)];
        memory.enforce_limits(UNUSED);
        assert_eq!(kept(&slots), [0, 1]);
        tick();
        tick();
        assert!(slots[1].get().is_some());
        memory.enforce_limits(Duration::from_nanos(1));
        assert_eq!(kept(&slots), [1]);
        slots.clear();
        memory.enforce_limits(UNUSED);
        assert!(memory.slots().is_empty(), "nothing refers to the content of a cache that is gone");
    }
}
