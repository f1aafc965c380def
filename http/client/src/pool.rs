//! Connections that wait for their next request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fordway_sys::Process;

use super::Origin;
use super::connection::Connection;

/// The most idle connections kept per origin.
const MAX_IDLE: usize = 64;

/// Idle connections by origin, the last one used on top: it is the least likely to have been closed.
pub(super) struct Pool {
    idle: Mutex<Idle>,
    idle_limit: Duration,
}

/// The connections, and whose they are.
struct Idle {
    opened_by: Process,
    by_origin: HashMap<Origin, Vec<(Connection, Instant)>>,
}

impl Pool {
    pub(super) fn new(idle_limit: Duration) -> Self {
        let idle = Idle { opened_by: Process::current(), by_origin: HashMap::new() };
        Pool { idle: Mutex::new(idle), idle_limit }
    }

    /// A connection that was used within the idle limit; older ones are closed on the way.
    pub(super) fn take(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.locked();
        let waiting = idle.by_origin.get_mut(origin)?;
        match waiting.pop() {
            Some((connection, since)) if since.elapsed() < self.idle_limit => Some(connection),
            Some(_) => {
                // What lies below has waited for longer still.
                waiting.clear();
                None
            }
            None => None,
        }
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(super) fn put(&self, origin: &Origin, mut connection: Connection) {
        connection.is_reused = true;
        let now = Instant::now();
        let mut idle = self.locked();
        match idle.by_origin.get_mut(origin) {
            Some(waiting) if waiting.len() < MAX_IDLE => waiting.push((connection, now)),
            Some(_) => {}
            None => {
                idle.by_origin.insert(origin.clone(), vec![(connection, now)]);
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Idle> {
        // A panic elsewhere leaves the map whole: each change is one operation.
        let mut idle = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !idle.opened_by.is_current() {
            // After a fork the parent uses them too: two requests on one would be mixed up.
            idle.by_origin.clear();
            idle.opened_by = Process::current();
        }
        idle
    }
}
