//! The gateway's resources that each user of the socket uses: connections, requests in progress and
//! memory; and the connections of TCP clients that have not proved yet that they know the secret.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fordway_store::{Error, ErrorKind, Result};

use crate::UserLimits;
use crate::limits::{UserLimitOverrides, UserRequestSlot, UserResourceUsage};
use crate::node::access::ResourceSemaphore;

/// The maximum share of the gateway's resources that one user may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeUserLimits {
    pub(super) connections_max: usize,
    /// The maximum number of connections of all clients together that are not authenticated yet.
    pub(super) strangers_max: usize,
    pub(super) requests: UserLimits,
    /// The maximum number of bytes for long messages and their responses.
    pub(super) memory_bytes_max: usize,
}

/// The users who have open connections, by uid.
pub(super) struct NodeConnectedUsers {
    limits: NodeUserLimits,
    by_uid: Mutex<HashMap<u32, Weak<NodeUserResources>>>,
    strangers: Arc<AtomicUsize>,
}

/// The resources that one user uses. All connections of the user share this value.
pub(super) struct NodeUserResources {
    pub(super) requests: Arc<UserResourceUsage>,
    pub(super) memory: Arc<ResourceSemaphore>,
    connections: AtomicUsize,
}

/// A connection of a user. Dropping this value decrements the user's number of connections.
pub(super) struct UserConnectionSlot(Arc<NodeUserResources>);

/// A connection whose client is not authenticated yet. Dropping this value decrements the number of these connections.
pub(super) struct StrangerSlot(Arc<AtomicUsize>);

impl NodeConnectedUsers {
    pub(super) fn new(limits: NodeUserLimits) -> Self {
        NodeConnectedUsers { limits, by_uid: Mutex::default(), strangers: Arc::default() }
    }

    /// Counts a connection whose client is not authenticated yet. These connections have their own limit, so that they
    /// cannot use up the connections of a user. Errors: `Unavailable` if the maximum number is reached.
    pub(super) fn connect_stranger(&self) -> Result<StrangerSlot> {
        let before = self.strangers.fetch_add(1, Ordering::Relaxed);
        let connection = StrangerSlot(self.strangers.clone());
        if before < self.limits.strangers_max {
            return Ok(connection);
        }
        let most = self.limits.strangers_max;
        let why = format!(
            "the gateway has {most} TCP connections without authentication, its maximum; try again later"
        );
        Err(Error::new(ErrorKind::Unavailable, why))
    }

    /// Counts a connection of a user. Errors: `Unavailable` if the user already has the maximum number.
    pub(super) fn connect(&self, uid: u32) -> Result<UserConnectionSlot> {
        let account = self.account(uid);
        let before = account.connections.fetch_add(1, Ordering::Relaxed);
        let connection = UserConnectionSlot(account);
        if before < self.limits.connections_max {
            return Ok(connection);
        }
        let most = self.limits.connections_max;
        let why = format!(
            "you have {most} connections open, the maximum for one user; close some, or ask for a higher --user-connections"
        );
        Err(Error::new(ErrorKind::Unavailable, why))
    }

    fn account(&self, uid: u32) -> Arc<NodeUserResources> {
        let mut by_uid = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = by_uid.get(&uid).and_then(Weak::upgrade) {
            return account;
        }
        by_uid.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(NodeUserResources {
            requests: UserResourceUsage::new(UserLimitOverrides::default(), self.limits.requests),
            memory: ResourceSemaphore::new(self.limits.memory_bytes_max),
            connections: AtomicUsize::new(0),
        });
        by_uid.insert(uid, Arc::downgrade(&account));
        account
    }
}

impl UserConnectionSlot {
    pub(super) fn account(&self) -> &Arc<NodeUserResources> {
        &self.0
    }
}

impl Drop for UserConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for StrangerSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NodeUserResources {
    /// Counts a request in progress. Errors: `Unavailable` if the user already has the maximum number.
    pub(super) fn begin(&self) -> Result<UserRequestSlot> {
        self.requests.begin_unpaced().map_err(|_| {
            let why = "you have the maximum number of requests in progress for one user; try again \
                       later, or ask for a higher --user-requests";
            Error::new(ErrorKind::Unavailable, why)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn each_user_has_connections_and_requests_of_their_own() {
        let requests = UserLimits { requests_max: 1, ..UserLimits::default() };
        let limits =
            NodeUserLimits { connections_max: 2, strangers_max: 1, requests, memory_bytes_max: 1 << 20 };
        let accounts = NodeConnectedUsers::new(limits);
        let first = accounts.connect(1).unwrap();
        let second = accounts.connect(1).unwrap();
        assert_eq!(accounts.connect(1).map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
        let other = accounts.connect(2).expect("another user has connections of their own");
        let _request = first.account().begin().unwrap();
        assert_eq!(second.account().begin().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
        other.account().begin().unwrap();
        drop(first);
        let _third = accounts.connect(1).unwrap();
        let stranger = accounts.connect_stranger().expect("it is no connection of a user");
        assert_eq!(accounts.connect_stranger().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
        drop(stranger);
        accounts.connect_stranger().unwrap();
    }

    #[test]
    fn a_users_http_traffic_does_not_refuse_requests_without_http() {
        let requests = UserLimits { bytes_per_s_max: NonZeroU64::new(1), ..UserLimits::default() };
        let limits =
            NodeUserLimits { connections_max: 2, strangers_max: 1, requests, memory_bytes_max: 1 << 20 };
        let user = NodeConnectedUsers::new(limits).connect(1).unwrap();
        user.account().requests.charge(1 << 20);
        user.account().requests.begin().map(drop).expect_err("HTTP requests wait for the rate");
        user.account().begin().unwrap();
    }
}
