//! Removes the records of events that have not been delivered for a long time.

use fordway_store::{Bucket, Result};
use fordway_sys::stat_in;

use crate::area::remove_if_file;
use crate::gc::{GarbageFile, GarbageKind, GcRun, removed, size_freed};
use crate::layout::{events_dir, join, webhook_of_event};

impl GcRun<'_> {
    /// Removes records that are older than [`GcOptions::event_age`](crate::GcOptions::event_age). A gateway with
    /// webhooks removes old records earlier, but a root may have no such gateway.
    pub(super) fn events(&mut self, bucket: &Bucket) -> Result<()> {
        let path = events_dir(bucket);
        let limit = self.options.event_age;
        self.each_below(bucket, &path, |sweep, dir, name| {
            if webhook_of_event(name).is_none() {
                return Ok(());
            }
            let Ok(stat) = stat_in(dir, name) else { return Ok(()) };
            // The owner of a file can set its modification time, but not its change time.
            if stat.is_dir || sweep.is_younger(stat.changed_ns, limit) {
                return Ok(());
            }
            let (kind, path, size_bytes) = (GarbageKind::Event, join(&path, name), size_freed(&stat));
            let garbage = GarbageFile { kind, path, size_bytes };
            sweep.remove(bucket, (garbage, stat.user), || removed(remove_if_file(dir, name))).map(drop)
        })
    }
}
