//! One limit for the memory of all caches of all stores in a process.
//!
//! In a gateway, each user has a store with its own caches, because a user must not see names from directories that
//! this user is not permitted to read. The stores share only the limit. If a cache exceeds the limit, the content that
//! was not used for the longest time is dropped, regardless of its store. While several stores have content, none of
//! them may use more than half of the memory, so one user cannot displace everything that other users have cached.
//!
//! Content that is used alternately must not be displaced alternately: if two directories are listed alternately, and
//! only one of them fits, each page would read a whole directory. [`CacheMemory::keep_if_room`] therefore displaces
//! only content that was not used recently.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use foldhash::HashMap;
use fordway_sys::{CoarseInstant, PerProcess};

/// The maximum memory for the caches of all stores, in bytes.
const PROCESS_BYTES: usize = 256 << 20;
/// The maximum memory for the caches of one store while other stores have cached something, in bytes.
pub(crate) const STORE_BYTES: usize = if cfg!(test) { 256 << 10 } else { PROCESS_BYTES / 2 };
/// The time after which unused content is dropped.
pub(crate) const UNUSED: Duration = Duration::from_secs(60);
/// The minimum time between two walks through all slots, except if the memory exceeds a limit.
const BETWEEN_WALKS: Duration = Duration::from_secs(1);

/// The store to which a cache belongs.
#[derive(Debug)]
pub(crate) struct CacheOwner(AtomicU64);

/// Content of a cache, which may be dropped at any time.
pub(crate) struct CacheSlot<T> {
    owner: u64,
    state: Mutex<SlotState<T>>,
    /// The memory that this content counts towards.
    usage: Arc<Mutex<MemoryUsage>>,
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

/// The memory that content needs, in bytes.
#[derive(Default)]
struct MemoryUsage {
    total: usize,
    /// The stores that have content, and the memory of each.
    of_store: HashMap<u64, usize>,
}

/// The content of several caches, with a limit for its total memory.
pub(crate) struct CacheMemory {
    process_bytes: usize,
    store_bytes: usize,
    /// All content. Locked after `slots` and after the state of a slot, never before.
    usage: Arc<Mutex<MemoryUsage>>,
    slots: Mutex<SlotList>,
}

struct SlotList {
    /// The content, in the order in which it was added.
    all: Vec<Weak<dyn DroppableContent>>,
    /// The time of the last walk through all slots.
    walked: CoarseInstant,
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
        let mut state = self.state();
        let content = state.content.take();
        if content.is_some() {
            lock(&self.usage).change(self.owner, state.bytes, 0);
        }
        // Dropping millions of names takes a long time, and must not delay a call that uses the slot.
        drop(state);
        drop(content);
    }
}

impl<T> Drop for CacheSlot<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.content.is_some() {
            lock(&self.usage).change(self.owner, state.bytes, 0);
        }
    }
}

impl MemoryUsage {
    /// Replaces `from` bytes of a store with `to` bytes.
    fn change(&mut self, owner: u64, from: usize, to: usize) {
        self.total = self.total + to - from;
        let of_store = self.of_store.entry(owner).or_default();
        *of_store = *of_store + to - from;
        if *of_store == 0 {
            self.of_store.remove(&owner);
        }
    }

    fn of(&self, owner: u64) -> usize {
        self.of_store.get(&owner).copied().unwrap_or_default()
    }

    /// Returns whether a store other than `owner` has content.
    fn has_others(&self, owner: u64) -> bool {
        self.of_store.len() > usize::from(self.of_store.contains_key(&owner))
    }
}

fn lock<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for CacheMemory {
    fn default() -> Self {
        CacheMemory::new(PROCESS_BYTES, STORE_BYTES)
    }
}

impl CacheMemory {
    fn new(process_bytes: usize, store_bytes: usize) -> Self {
        let slots = SlotList { all: Vec::new(), walked: CoarseInstant::now() };
        CacheMemory { process_bytes, store_bytes, usage: Arc::default(), slots: Mutex::new(slots) }
    }

    /// Returns the memory of the caches of this process.
    pub(crate) fn of_process() -> &'static CacheMemory {
        static MEMORY: OnceLock<PerProcess<CacheMemory>> = OnceLock::new();
        MEMORY.get_or_init(PerProcess::default)
    }

    /// Adds content that needs `bytes` of memory, and drops other content if the limits require it. Cost: a walk
    /// through all slots if a limit is exceeded, or if the last walk was long ago.
    pub(crate) fn keep<T: Send + Sync + 'static>(
        &self,
        owner: &CacheOwner,
        content: Arc<T>,
        bytes: usize,
    ) -> Arc<CacheSlot<T>> {
        let state = SlotState { content: Some(content), bytes, used: CoarseInstant::now() };
        let (owner, usage) = (owner.id(), self.usage.clone());
        lock(&usage).change(owner, 0, bytes);
        let slot = Arc::new(CacheSlot { owner, state: Mutex::new(state), usage });
        let weak: Weak<CacheSlot<T>> = Arc::downgrade(&slot);
        let is_due = {
            let mut slots = lock(&self.slots);
            slots.all.push(weak);
            slots.walked.elapsed() > BETWEEN_WALKS
        };
        if is_due || self.is_exceeded() {
            self.enforce_limits(UNUSED);
        }
        slot
    }

    /// Adds content as [`CacheMemory::keep`] does, but only if the content fits next to all content that was used
    /// within the last `recent`. Otherwise, returns `None`.
    pub(crate) fn keep_if_room<T: Send + Sync + 'static>(
        &self,
        owner: &CacheOwner,
        content: Arc<T>,
        bytes: usize,
        recent: Duration,
    ) -> Option<Arc<CacheSlot<T>>> {
        self.has_room(owner.id(), bytes, recent).then(|| self.keep(owner, content, bytes))
    }

    fn has_room(&self, owner: u64, bytes: usize, recent: Duration) -> bool {
        let has_others = {
            let usage = lock(&self.usage);
            if self.leave_room(&usage, owner, usage.has_others(owner), bytes) {
                return true;
            }
            usage.has_others(owner)
        };
        let mut used_recently = MemoryUsage::default();
        for slot in lock(&self.slots).all.iter().filter_map(Weak::upgrade) {
            if let Some((bytes, _)) = slot.usage().filter(|(_, used)| used.elapsed() <= recent) {
                used_recently.change(slot.owner(), 0, bytes);
            }
        }
        self.leave_room(&used_recently, owner, has_others, bytes)
    }

    /// Returns whether the store `owner` may add `bytes` to `usage`.
    fn leave_room(&self, usage: &MemoryUsage, owner: u64, has_others: bool, bytes: usize) -> bool {
        let of_owner = usage.of(owner) + bytes;
        let others = usage.of_store.iter().filter(|(store, _)| **store != owner);
        // A store that used all of the memory alone has to make room for a second one.
        let of_others: usize = others.map(|(_, bytes)| (*bytes).min(self.store_bytes)).sum();
        of_owner <= self.store_limit(has_others) && of_owner + of_others <= self.process_bytes
    }

    /// Returns the limit for one store.
    fn store_limit(&self, has_others: bool) -> usize {
        if has_others { self.store_bytes } else { self.process_bytes }
    }

    fn is_exceeded(&self) -> bool {
        let usage = lock(&self.usage);
        let limit = self.store_limit(usage.of_store.len() > 1);
        usage.total > self.process_bytes || usage.of_store.values().any(|bytes| *bytes > limit)
    }

    /// Records that the content of `slot` now needs `bytes` of memory, and drops content if the limits require it.
    pub(crate) fn resize<T>(&self, slot: &CacheSlot<T>, bytes: usize) {
        let mut state = slot.state();
        let before = std::mem::replace(&mut state.bytes, bytes);
        if state.content.is_some() {
            lock(&slot.usage).change(slot.owner, before, bytes);
        }
        drop(state);
        if bytes > before && self.is_exceeded() {
            self.enforce_limits(UNUSED);
        }
    }

    /// Drops the content that was not used for `unused`, and the content that exceeds the limits.
    pub(crate) fn enforce_limits(&self, unused: Duration) {
        let mut all = self.walk();
        let mut usage = MemoryUsage::default();
        for (slot, (bytes, _)) in &all {
            usage.change(slot.owner(), 0, *bytes);
        }
        let store_limit = self.store_limit(usage.of_store.len() > 1);
        all.sort_by_key(|(_, (_, used))| *used);
        // A store that exceeds its own limit loses content before other stores do.
        for is_limit_of_store in [true, false] {
            all.retain(|(slot, (bytes, used))| {
                let exceeds = match is_limit_of_store {
                    true => usage.of(slot.owner()) > store_limit,
                    false => usage.total > self.process_bytes,
                };
                let is_over = exceeds || used.elapsed() > unused;
                if is_over {
                    slot.drop_content();
                    usage.change(slot.owner(), *bytes, 0);
                }
                !is_over
            });
        }
    }

    /// Returns all content with its usage, and forgets the slots that have none.
    fn walk(&self) -> Vec<(Arc<dyn DroppableContent>, (usize, CoarseInstant))> {
        let mut slots = lock(&self.slots);
        slots.walked = CoarseInstant::now();
        let mut all = Vec::with_capacity(slots.all.len());
        slots.all.retain(|slot| {
            let used = slot.upgrade().and_then(|slot| slot.usage().map(|usage| (slot, usage)));
            let has_content = used.is_some();
            all.extend(used);
            has_content
        });
        all
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
        slots.push(memory.keep(&one, Arc::new(20), 1));
        slots.push(memory.keep(&second, Arc::new(21), 20));
        assert_eq!(kept(&slots), [20, 21], "several caches of a store share its half");
    }

    #[test]
    fn the_only_store_may_use_all_of_the_memory() {
        let (memory, one, other) = (CacheMemory::new(100, 50), CacheOwner::default(), CacheOwner::default());
        let mut slots = Vec::new();
        for at in 0..3 {
            slots.push(memory.keep(&one, Arc::new(at), 30));
            tick();
        }
        assert_eq!(kept(&slots), [0, 1, 2]);
        slots.push(memory.keep(&other, Arc::new(3), 1));
        assert_eq!(kept(&slots), [2, 3], "it makes room for a second store");
        slots.remove(3);
        slots.push(memory.keep(&one, Arc::new(3), 70));
        assert_eq!(kept(&slots), [2, 3], "a store whose content is gone does not count");
    }

    #[test]
    fn content_that_was_used_recently_is_not_displaced() {
        let (memory, one, other) = (CacheMemory::new(100, 50), CacheOwner::default(), CacheOwner::default());
        let mut slots = vec![memory.keep(&other, Arc::new(0), 40), memory.keep(&one, Arc::new(1), 30)];
        assert!(
            memory.keep_if_room(&one, Arc::new(2), 30, UNUSED).is_none(),
            "a store has half of the memory"
        );
        slots.extend(memory.keep_if_room(&one, Arc::new(2), 20, UNUSED));
        assert_eq!(kept(&slots), [0, 1, 2]);
        let third = CacheOwner::default();
        assert!(memory.keep_if_room(&third, Arc::new(3), 20, UNUSED).is_none(), "the process has 100 bytes");
        tick();
        tick();
        assert!(slots[0].get().is_some());
        slots.extend(memory.keep_if_room(&third, Arc::new(3), 20, Duration::from_nanos(1)));
        assert_eq!(kept(&slots), [0, 2, 3]);
    }

    #[test]
    fn a_second_store_has_room_next_to_one_that_used_all_of_the_memory() {
        let (memory, one, other) = (CacheMemory::new(100, 50), CacheOwner::default(), CacheOwner::default());
        let mut slots = vec![memory.keep(&one, Arc::new(0), 50), memory.keep(&one, Arc::new(1), 50)];
        slots.extend(memory.keep_if_room(&other, Arc::new(2), 50, UNUSED));
        assert_eq!((slots.len(), kept(&slots).len()), (3, 2));
        assert!(slots[2].has_content());
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
        assert!(lock(&memory.slots).all.is_empty(), "nothing refers to the content of a cache that is gone");
    }
}
