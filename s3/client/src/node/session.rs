//! A pool of idle connections to a gateway, and the retries when a connection breaks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Errno, PerProcess};
use fordway_wire::node::{ReadField, Request};

use crate::node::LANE;
use crate::node::connection::NodeAddress;
use crate::node::connection::{NodeConnection, NodeFailure};
use fordway_http::retry::{backoff, pause};

/// The maximum number of idle connections that are kept.
const IDLE_MAX: usize = 64;
/// The maximum number of attempts for each request. Including the waits between them, the attempts take about 2 s, in
/// which a gateway can restart.
const TRIES_MAX: u32 = 6;

/// An operation and its target.
#[derive(Clone, Copy)]
pub(super) struct NodeCallTarget<'c> {
    pub(super) operation: &'static str,
    pub(super) bucket: &'c str,
    pub(super) key: &'c str,
    /// Whether the operation is idempotent, in which case its request may be sent again.
    pub(super) is_idempotent: bool,
}

impl NodeCallTarget<'_> {
    pub(super) fn named(&self, error: Error) -> Error {
        error.during(self.operation, LANE, self.bucket, self.key)
    }
}

/// A gateway, and the connections to it.
pub(super) struct NodeSession {
    pub(super) address: NodeAddress,
    /// Idle connections. A forked child opens its own connections. If it used the parent's connections, the requests of
    /// the two processes would be mixed.
    idle: PerProcess<Mutex<Vec<(ConnectionUser, NodeConnection)>>>,
    /// Whether a connection was ever opened.
    was_reached: AtomicBool,
}

/// The effective uid of the thread that opened a connection through a Unix socket; `None` over TCP. The gateway acts
/// for this user as long as the connection exists, so another user must not use the connection. A program may change
/// its user between two calls.
type ConnectionUser = Option<u32>;

/// A connection in use. When the lease is dropped, the connection becomes idle again, unless a request or response is
/// pending.
pub(super) struct ConnectionLease {
    session: Arc<NodeSession>,
    opened_by: ConnectionUser,
    /// The connection; `None` after it has broken or was closed.
    connection: Option<NodeConnection>,
}

impl NodeSession {
    pub(super) fn new(address: NodeAddress) -> Self {
        NodeSession { address, idle: PerProcess::default(), was_reached: AtomicBool::new(false) }
    }

    /// Sends a request without content and returns the decoded response.
    pub(super) fn ask<T: ReadField>(
        self: &Arc<Self>,
        call: &NodeCallTarget<'_>,
        request: &Request<'_>,
    ) -> Result<T> {
        let asked = self.run(call, |connection| {
            let (answer, header) = connection.call(request, &[])?;
            connection.finish(&header);
            Ok(answer)
        });
        asked.map(|(answer, _)| answer)
    }

    /// Runs `act` on a connection. If the connection breaks and repeating the call is harmless, runs `act` again on
    /// another connection. Returns the result and the connection. Errors: errors that the gateway reports;
    /// `Unavailable`, whose message states whether the call was executed, if the client can tell.
    pub(super) fn run<T>(
        self: &Arc<Self>,
        call: &NodeCallTarget<'_>,
        mut act: impl FnMut(&mut NodeConnection) -> Result<T, NodeFailure>,
    ) -> Result<(T, ConnectionLease)> {
        let mut tries = 1;
        loop {
            let (error, may_retry) = match self.lease(call.is_idempotent) {
                Ok(mut lease) => match lease.act(&mut act) {
                    Ok(done) => return Ok((done, lease)),
                    Err(failure) => self.judge(failure, call),
                },
                Err(error) => {
                    let may_retry =
                        error.kind() == ErrorKind::Unavailable && self.was_reached.load(Ordering::Relaxed);
                    (error, may_retry)
                }
            };
            if !may_retry || tries >= TRIES_MAX {
                return Err(call.named(error.after_tries(tries)));
            }
            // The first retry is immediate, because the first failure may only mean that the idle connection was
            // closed.
            pause(if tries == 1 { Duration::ZERO } else { backoff(tries) })
                .map_err(|error| call.named(error))?;
            tries += 1;
        }
    }

    /// Returns the error for a failure, and whether the request may be sent again.
    fn judge(&self, failure: NodeFailure, call: &NodeCallTarget<'_>) -> (Error, bool) {
        let broke = |why: &str, errno: Errno| {
            let why = format!("the connection to {} broke {why}", self.address);
            Error::new(ErrorKind::Unavailable, why).caused_by(errno)
        };
        match failure {
            NodeFailure::NotSent(Errno::CANCELED) | NodeFailure::Unknown(Errno::CANCELED) => {
                let why = "a signal arrived before the response; check whether the request took effect before you repeat it";
                (Error::new(ErrorKind::Interrupted, why), false)
            }
            NodeFailure::Answered(error) | NodeFailure::Unusable(error) => (error, false),
            NodeFailure::NotSent(errno) => {
                self.locked().clear();
                (broke("before the request was sent: it had no effect", errno), true)
            }
            NodeFailure::Unknown(errno) => {
                // The idle connections are closed as well, because they lead to the same gateway and are probably
                // broken too.
                self.locked().clear();
                let why = match call.is_idempotent {
                    true => "before the response arrived",
                    false => {
                        "before the response arrived: whether the request took effect is unknown; check before you repeat it"
                    }
                };
                (broke(why, errno), call.is_idempotent)
            }
        }
    }

    /// Takes an idle connection of the current user, or opens a new connection. Sending on a TCP connection that the
    /// gateway has closed succeeds, and nothing then shows whether the gateway has received the request. If the request
    /// cannot be repeated, idle TCP connections are therefore checked first. Cost of an idle connection: one `geteuid`;
    /// over TCP, none, or one `recvfrom` for the check.
    fn lease(self: &Arc<Self>, is_idempotent: bool) -> Result<ConnectionLease> {
        let is_local = self.address.is_local();
        let opened_by = is_local.then(fordway_sys::user_id);
        let is_usable = |connection: &NodeConnection| is_local || is_idempotent || !connection.is_closed();
        let idle = std::iter::from_fn(|| self.take_idle(opened_by)).find(is_usable);
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let opened = NodeConnection::open(&self.address)?;
                self.was_reached.store(true, Ordering::Relaxed);
                opened
            }
        };
        Ok(ConnectionLease { session: self.clone(), opened_by, connection: Some(connection) })
    }

    fn take_idle(&self, user: ConnectionUser) -> Option<NodeConnection> {
        let mut idle = self.locked();
        let last = idle.iter().rposition(|(opened_by, _)| *opened_by == user)?;
        Some(idle.remove(last).1)
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(ConnectionUser, NodeConnection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionLease {
    /// Runs `act` on the connection, and closes the connection unless the gateway responded.
    pub(super) fn act<T>(
        &mut self,
        act: impl FnOnce(&mut NodeConnection) -> Result<T, NodeFailure>,
    ) -> Result<T, NodeFailure> {
        let done = match &mut self.connection {
            Some(connection) => act(connection),
            None => Err(NodeFailure::NotSent(Errno::NOTCONN)),
        };
        if !matches!(done, Ok(_) | Err(NodeFailure::Answered(_))) {
            self.give_up();
        }
        done
    }

    /// Runs `act` like [`ConnectionLease::act`], for calls that depend on this connection and therefore cannot be
    /// retried on another connection. Errors: as for [`NodeSession::run`].
    pub(super) fn act_here<T>(
        &mut self,
        call: &NodeCallTarget<'_>,
        act: impl FnOnce(&mut NodeConnection) -> Result<T, NodeFailure>,
    ) -> Result<T> {
        self.act(act).map_err(|failure| call.named(self.session.judge(failure, call).0))
    }

    /// Closes the connection.
    pub(super) fn give_up(&mut self) {
        self.connection = None;
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(NodeConnection::is_at_rest) {
            let mut idle = self.session.locked();
            if idle.len() == IDLE_MAX {
                // The oldest connection may belong to a user who makes no more calls.
                idle.remove(0);
            }
            idle.push((self.opened_by, connection));
        }
    }
}
