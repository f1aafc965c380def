//! Whether a bucket has odd keys, and the lock table it had, known without a look-up.
//!
//! Most buckets have none, yet every delete, every create-only put and every miss must be sure of
//! it. The answer can change only when `odd/` is made or removed, and that changes the times of the
//! bucket's `.fordway`, which is held open: so an unchanged time is an unchanged answer.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fordway_store::Bucket;
use fordway_sys::{Errno, FileStat, Mode, OFlags, Root, stat, stat_in};

use crate::dirs::HOLD;
use crate::layout::{ODD, private_dir};

/// A change may leave the times as they are if it comes within a tick of the clock that file systems
/// take them from (at most 10 ms): a time counts only once it is older than that.
const TICK: Duration = Duration::from_millis(12);

/// What is known of every bucket that was asked about.
#[derive(Default)]
pub(crate) struct OddKeys(RwLock<HashMap<Bucket, Arc<Known>>>);

struct Known {
    private: File,
    opened: Instant,
    /// The times of `private` for which the rest holds; `None` if they were too young to trust.
    times: Option<(i64, i64)>,
    has_odd: bool,
    /// Whether the lock table that this process has open was seen to lie in `private` since.
    vouches_for_locks: AtomicBool,
}

/// What one look at a bucket's private directory told.
pub(crate) struct Glance {
    /// Whether any key lies apart from its plain path; `None` says no, and that there is nothing to
    /// remember it by.
    pub(crate) has_odd: Option<bool>,
    /// What is remembered, where the directory was seen to be unchanged.
    known: Option<Arc<Known>>,
}

impl Glance {
    /// Whether the bucket's lock table is still the one that was vouched for.
    pub(crate) fn vouches_for_locks(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.vouches_for_locks.load(Ordering::Relaxed))
    }

    /// Remembers that the lock table was found to be current after this glance: it cannot be
    /// replaced without a change that the next glance sees.
    pub(crate) fn vouch_for_locks(&self) {
        if let Some(known) = &self.known {
            known.vouches_for_locks.store(true, Ordering::Relaxed);
        }
    }
}

impl OddKeys {
    /// Looks whether anything changed in the private directory of `bucket`. Cost: one `fstat` as a rule.
    pub(crate) fn glance(&self, root: &Root, bucket: &Bucket) -> Glance {
        let held = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(bucket).cloned();
        if let Some(known) = held.filter(|known| known.opened.elapsed() < HOLD)
            && let Ok(now) = stat(&known.private)
            && now.links > 0
            && known.times == Some(times(&now))
        {
            return Glance { has_odd: Some(known.has_odd), known: Some(known) };
        }
        let has_odd = match self.look(root, bucket) {
            Ok(has_odd) => Some(has_odd),
            // Without a private directory there is no odd key in it.
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            // What cannot be looked at is looked for.
            Err(_) => Some(true),
        };
        Glance { has_odd, known: None }
    }

    fn look(&self, root: &Root, bucket: &Bucket) -> Result<bool, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let private = root.open_beneath(&private_dir(bucket), flags, Mode::empty())?;
        // The times first: what changes after them is seen as a change.
        let before = stat(&private)?;
        let has_odd = match stat_in(&private, ODD) {
            Ok(_) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(errno),
        };
        let times = is_settled(&before).then(|| times(&before));
        let vouches_for_locks = AtomicBool::new(false);
        let known = Known { private, opened: Instant::now(), times, has_odd, vouches_for_locks };
        let mut all = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.insert(bucket.clone(), Arc::new(known));
        Ok(has_odd)
    }
}

pub(crate) fn times(stat: &FileStat) -> (i64, i64) {
    (stat.modified_ns, stat.changed_ns)
}

pub(crate) fn is_settled(stat: &FileStat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let youngest = stat.modified_ns.max(stat.changed_ns);
    now.saturating_sub(youngest) > TICK.as_nanos() as i64
}
