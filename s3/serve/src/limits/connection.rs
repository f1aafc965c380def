//! Limits on connections: the number of connections of one user; and, for clients whose user is not known yet, the
//! number of connections from one address without a valid signature, and the number of requests without a valid
//! signature on one connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;

use super::{LimitCounters, LimitRefusal, UserConnectionSlot, UserResourceUsage};

/// The maximum number of consecutive requests on a connection that are refused because they have no valid signature. A
/// legitimate client with a wrong key or clock stops after a few requests.
const UNSIGNED_MAX: u32 = 100;

/// The number of connections without a valid signature, by address.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnections {
    connections_max: u32,
    open: Mutex<HashMap<IpAddr, u32>>,
    counters: Arc<LimitCounters>,
}

/// The entry of a connection in the table of addresses. Dropping the entry removes the connection from the table.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    table: Arc<UnauthenticatedConnections>,
    address: IpAddr,
}

impl UnauthenticatedConnections {
    pub(crate) fn new(connections_max: u32, counters: Arc<LimitCounters>) -> Arc<Self> {
        Arc::new(UnauthenticatedConnections { connections_max, open: Mutex::default(), counters })
    }

    /// Returns the state of a new connection; `None` if its address already has the maximum number of connections.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Arc<ConnectionLimitState>> {
        let slot = self.add(address)?;
        Some(Arc::new(ConnectionLimitState::new(Some(slot), self.counters.clone())))
    }

    /// Adds a connection. Returns `None` if its address already has the maximum number of connections.
    pub(crate) fn add(self: &Arc<Self>, address: IpAddr) -> Option<AddressSlot> {
        let address = network_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.connections_max {
            self.counters.refused_connections.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(AddressSlot { table: self.clone(), address })
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.table.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Returns an IPv4 address unchanged, and the /64 network of an IPv6 address, because one client usually has a whole
/// /64 network.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

/// The data about a connection that the limits need: its slots, its latest user, and its number of requests without a
/// valid signature.
#[derive(Debug)]
pub(crate) struct ConnectionLimitState {
    /// The connection's entry in the table of addresses; `None` after the first valid signature.
    address: Mutex<Option<AddressSlot>>,
    /// Whether `address` may be `Some`.
    has_slot: AtomicBool,
    /// The id of the latest user's [`UserResourceUsage`]; 0 before the first valid signature.
    user_id: AtomicU64,
    user: Mutex<Option<Arc<UserResourceUsage>>>,
    /// The connection's slot among the connections of the latest user who sent a validly signed request.
    user_slot: Mutex<Option<UserConnectionSlot>>,
    /// The id of the user in `user_slot`, or 0.
    counted_for: AtomicU64,
    /// Whether the connection was refused because its user has too many connections.
    is_surplus: AtomicBool,
    unsigned: AtomicU32,
    counters: Arc<LimitCounters>,
}

impl ConnectionLimitState {
    pub(crate) fn new(address: Option<AddressSlot>, counters: Arc<LimitCounters>) -> Self {
        ConnectionLimitState {
            has_slot: AtomicBool::new(address.is_some()),
            address: Mutex::new(address),
            user_id: AtomicU64::new(0),
            user: Mutex::default(),
            user_slot: Mutex::default(),
            counted_for: AtomicU64::new(0),
            is_surplus: AtomicBool::new(false),
            unsigned: AtomicU32::new(0),
            counters,
        }
    }

    /// Counts the connection for a user who has sent a validly signed request. Until the connection ends or another
    /// user sends such a request, it is one of the user's connections. Errors: the user has too many connections, so
    /// the connection may not remain open. Cost: one atomic load if the previous request was from the same user.
    pub(crate) fn connect(&self, user: &Arc<UserResourceUsage>) -> Result<(), LimitRefusal> {
        if self.counted_for.load(Ordering::Relaxed) == user.id() {
            return Ok(());
        }
        let mut slot = self.user_slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request on the same connection may have set the slot first.
        if slot.as_ref().is_some_and(|slot| slot.user_id() == user.id()) {
            return Ok(());
        }
        let taken = user.connect().inspect_err(|_| self.is_surplus.store(true, Ordering::Relaxed))?;
        *slot = Some(taken);
        self.counted_for.store(user.id(), Ordering::Relaxed);
        Ok(())
    }

    /// Records the response to a request. `user` is the user who sent the request, if known, and may be the anonymous
    /// user; `is_signed` tells whether the request had a valid signature. Returns whether the connection may remain
    /// open. Cost: three atomic loads if the previous request was from the same user.
    pub(crate) fn answered(
        &self,
        user: Option<&Arc<UserResourceUsage>>,
        is_signed: bool,
        status: StatusCode,
    ) -> bool {
        if let Some(user) = user.filter(|user| self.user_id() != user.id()) {
            *self.user.lock().unwrap_or_else(PoisonError::into_inner) = Some(user.clone());
            self.user_id.store(user.id(), Ordering::Relaxed);
        }
        if !is_signed {
            return self.answered_stranger(status);
        }
        // A connection that does not count as a connection of its user remains a connection of its address.
        if self.is_surplus.load(Ordering::Relaxed) {
            return false;
        }
        if self.has_slot.load(Ordering::Relaxed) {
            drop(self.address.lock().unwrap_or_else(PoisonError::into_inner).take());
            self.has_slot.store(false, Ordering::Relaxed);
        }
        if self.unsigned.load(Ordering::Relaxed) > 0 {
            self.unsigned.store(0, Ordering::Relaxed);
        }
        true
    }

    fn answered_stranger(&self, status: StatusCode) -> bool {
        if status != StatusCode::FORBIDDEN {
            return self.is_welcome();
        }
        let before = self.unsigned.fetch_add(1, Ordering::Relaxed);
        if before + 1 == UNSIGNED_MAX {
            self.counters.closed_connections.fetch_add(1, Ordering::Relaxed);
        }
        self.is_welcome()
    }

    /// Returns whether the connection may remain open. The connection may not remain open if its user has too many
    /// connections, or if, since its last request with a valid signature, [`UNSIGNED_MAX`] requests without a valid
    /// signature were refused.
    pub(crate) fn is_welcome(&self) -> bool {
        self.unsigned.load(Ordering::Relaxed) < UNSIGNED_MAX && !self.is_surplus.load(Ordering::Relaxed)
    }

    /// Returns whether a validly signed request has arrived on the connection.
    #[cfg(feature = "http3")]
    pub(crate) fn has_signed(&self) -> bool {
        self.counted_for.load(Ordering::Relaxed) != 0
    }

    /// Returns the id of the latest user's [`UserResourceUsage`]; 0 before the first valid signature.
    pub(crate) fn user_id(&self) -> u64 {
        self.user_id.load(Ordering::Relaxed)
    }

    /// Returns the [`UserResourceUsage`] of the latest user.
    pub(crate) fn user(&self) -> Option<Arc<UserResourceUsage>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{UserLimitOverrides, UserLimits};

    #[test]
    fn an_address_has_so_many_connections_until_one_is_signed() {
        let counters = Arc::<LimitCounters>::default();
        let table = UnauthenticatedConnections::new(2, counters.clone());
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let first = ConnectionLimitState::new(table.add(one), counters.clone());
        let _second = table.add(one).unwrap();
        assert!(table.add(one).is_none() && table.add(other).is_some());
        let user = UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default());
        assert!(first.answered(Some(&user), true, StatusCode::OK));
        let _third = table.add(one).expect("the first is signed");
        assert_eq!(counters.refused_connections.load(Ordering::Relaxed), 1);
        assert_eq!(first.user().map(|user| user.id()), Some(user.id()));
    }

    /// An anonymous request has a user, but no signature.
    #[test]
    fn an_anonymous_request_keeps_its_address_and_its_count() {
        let counters = Arc::<LimitCounters>::default();
        let table = UnauthenticatedConnections::new(1, counters.clone());
        let one = "10.0.0.1".parse().unwrap();
        let state = ConnectionLimitState::new(table.add(one), counters);
        let user = UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default());
        assert!(state.answered(Some(&user), false, StatusCode::OK) && table.add(one).is_none());
        assert_eq!(state.user_id(), user.id(), "the user has turns");
        for _ in 1..UNSIGNED_MAX {
            assert!(state.answered(Some(&user), false, StatusCode::FORBIDDEN));
            assert!(state.answered(Some(&user), false, StatusCode::OK));
        }
        assert!(state.answered(Some(&user), true, StatusCode::OK) && table.add(one).is_some(), "signed");
    }

    /// A proxy may send the requests of several users on one connection.
    #[test]
    fn a_connection_counts_for_its_latest_user() {
        let counters = Arc::<LimitCounters>::default();
        let table = UnauthenticatedConnections::new(2, counters);
        let address = "10.0.0.1".parse().unwrap();
        let user = || {
            let limits = UserLimits { connections_max: 1, ..UserLimits::default() };
            UserResourceUsage::new(UserLimitOverrides::default(), limits)
        };
        let (one, other) = (user(), user());
        let [first, second] = [table.admit(address).unwrap(), table.admit(address).unwrap()];
        first.connect(&one).and_then(|()| first.connect(&one)).unwrap();
        assert!(first.answered(Some(&one), true, StatusCode::OK));
        second.connect(&one).expect_err("the user has one");
        assert!(!second.answered(Some(&one), true, StatusCode::SERVICE_UNAVAILABLE) && !second.is_welcome());
        let _third = table.add(address).expect("the first has a user");
        assert!(table.add(address).is_none(), "the second still counts for its address");
        first.connect(&other).unwrap();
        assert_eq!((one.counts().connections, other.counts().connections), (0, 1));
        drop(first);
        assert_eq!(other.counts().connections, 0);
    }

    #[test]
    fn an_address_is_a_network() {
        let network = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn a_connection_without_valid_signatures_ends() {
        let account = ConnectionLimitState::new(None, Arc::default());
        let user = UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default());
        let refuse = |count: u32| {
            (0..count).filter(|_| account.answered(None, false, StatusCode::FORBIDDEN)).count() as u32
        };
        assert_eq!(refuse(UNSIGNED_MAX - 1), UNSIGNED_MAX - 1);
        assert!(account.answered(Some(&user), true, StatusCode::OK), "a valid signature resets the count");
        assert_eq!(refuse(UNSIGNED_MAX - 1), UNSIGNED_MAX - 1);
        assert!(account.answered(None, false, StatusCode::OK), "a preflight request has no signature");
        assert_eq!(refuse(1), 0);
        assert_eq!(account.counters.closed_connections.load(Ordering::Relaxed), 1);
    }
}
