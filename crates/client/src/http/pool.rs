//! Connections that wait for their next request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Origin;
use super::connection::Connection;

/// The most idle connections kept per origin.
const MAX_IDLE: usize = 64;

/// Idle connections by origin, the last one used on top: it is the least likely to have been closed.
pub(super) struct Pool {
    idle: Mutex<HashMap<Origin, Vec<(Connection, Instant)>>>,
    idle_limit: Duration,
}

impl Pool {
    pub(super) fn new(idle_limit: Duration) -> Self {
        Pool { idle: Mutex::default(), idle_limit }
    }

    /// A connection that was used within the idle limit; older ones are closed on the way.
    pub(super) fn take(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.locked();
        let waiting = idle.get_mut(origin)?;
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
        match idle.get_mut(origin) {
            Some(waiting) if waiting.len() < MAX_IDLE => waiting.push((connection, now)),
            Some(_) => {}
            None => {
                idle.insert(origin.clone(), vec![(connection, now)]);
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Origin, Vec<(Connection, Instant)>>> {
        // A panic elsewhere leaves the map whole: each change is one operation.
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
