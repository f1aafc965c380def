//! Admits clients. Determines each client's user, the identity under which the client's thread accesses files, and the
//! store for this identity. Also limits the resources that clients can occupy: memory for long messages, and requests
//! in progress.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result, Store};
use fordway_sys::{PeerCredentials, PrivilegedThread, act_as, peer_of, user_id};
use fordway_wire::node::{BATCH_OBJECTS_MAX, PAGE_ENTRIES_MAX, RANGES_BYTES_MAX, Request, longest_bytes};

use crate::StoreOpenFunction;
use crate::limits::UserRequestSlot;
use crate::node::accounts::NodeUserResources;

/// The store and the permissions of an admitted caller.
pub(crate) struct AdmittedCaller {
    /// The caller's uid. A client that authenticated with the shared secret has the gateway's own uid.
    pub(crate) uid: u32,
    pub(crate) store: Arc<dyn Store>,
    /// Whether staged files may be passed to the caller. Passing staged files is safe only if the caller owns the
    /// staged files.
    pub(crate) lends_files: bool,
}

/// Decides which clients may use the gateway.
pub(super) struct NodeAccessControl {
    open: StoreOpenFunction,
    /// The uid of the gateway's own user.
    uid: u32,
    /// The store of the gateway's own user, opened when the gateway started.
    own: Arc<dyn Store>,
    /// The uids of users who may use the gateway even though it cannot act as these users.
    allowed: Vec<u32>,
    /// The stores of other users, for as long as one of their connections is open. A store belongs to one user, because
    /// its cached state (held directories, sorted names) was read with that user's permissions.
    stores: Mutex<HashMap<PeerCredentials, Weak<dyn Store>>>,
}

impl NodeAccessControl {
    /// Opens the store of the gateway's own user. Errors: the errors of opening the store.
    pub(super) fn new(open: StoreOpenFunction, allowed: Vec<u32>) -> Result<Self> {
        let own = open()?;
        if user_id() == 0 {
            // Client threads permanently act as their clients, so they cannot create files that must belong to a
            // bucket's owner. The privileged thread can create such files.
            PrivilegedThread::start();
        }
        Ok(NodeAccessControl { open, uid: user_id(), own, allowed, stores: Mutex::default() })
    }

    /// Returns whether the gateway runs as root, and can therefore act as its callers.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns the store for the peer of a Unix socket. If the peer is another user and the gateway is root, the
    /// calling thread permanently acts as that user from then on. Errors: `AccessDenied`, and errors from opening the
    /// store as that user.
    pub(super) fn admit(&self, socket: impl AsFd) -> Result<AdmittedCaller> {
        let peer = peer_of(socket).map_err(|errno| {
            Error::new(ErrorKind::AccessDenied, "the kernel does not identify the caller").caused_by(errno)
        })?;
        let uid = peer.uid;
        if peer.uid == self.uid {
            return Ok(AdmittedCaller { uid, store: self.own.clone(), lends_files: true });
        }
        if self.is_root() {
            return Ok(AdmittedCaller { uid, store: self.store_of(&peer)?, lends_files: true });
        }
        match self.allowed.contains(&peer.uid) {
            true => Ok(AdmittedCaller { uid, store: self.own.clone(), lends_files: false }),
            false => Err(Error::new(
                ErrorKind::AccessDenied,
                format!(
                    "this gateway serves the user with the id {0}, and you are {1}; start your own gateway, or ask its \
                     owner to add --allow-uid {1}",
                    self.uid, peer.uid
                ),
            )),
        }
    }

    /// Returns the store for a client that authenticated with the shared secret.
    pub(super) fn admit_by_secret(&self) -> AdmittedCaller {
        AdmittedCaller { uid: self.uid, store: self.own.clone(), lends_files: false }
    }

    fn store_of(&self, peer: &PeerCredentials) -> Result<Arc<dyn Store>> {
        act_as(peer).map_err(|errno| {
            let why = format!(
                "the gateway may not act as the user with the id {}; it needs CAP_SETUID and CAP_SETGID",
                peer.uid
            );
            Error::new(ErrorKind::AccessDenied, why).caused_by(errno)
        })?;
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(peer).and_then(Weak::upgrade) {
            return Ok(store);
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = (self.open)()?;
        stores.insert(peer.clone(), Arc::downgrade(&store));
        Ok(store)
    }
}

/// The memory, in bytes, that each connection may use without counting against the limits. This amount is enough for
/// nearly all requests from Fordway's clients.
pub(super) const OWN_BYTES: usize = 256 << 10;
/// The memory, in bytes, needed for one listing entry whose name has the maximum length.
const ENTRY_BYTES: usize = 1 << 10;
/// The memory, in bytes, needed for the description of one object whose metadata has the maximum length.
const DESCRIBED_BYTES: usize = 12 << 10;

/// A limited amount of a resource.
pub(super) struct ResourceSemaphore {
    most: usize,
    taken: Mutex<usize>,
    given_back: Condvar,
}

/// A part of a [`ResourceSemaphore`]. Dropping the permit returns the part.
pub(super) struct ResourcePermit {
    pool: Arc<ResourceSemaphore>,
    count: usize,
}

impl ResourceSemaphore {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(ResourceSemaphore { most, taken: Mutex::new(0), given_back: Condvar::new() })
    }

    /// Takes `count` units; if necessary, waits until other holders have returned enough units. Returns `None` if the
    /// wait takes longer than `patience`, or if `count` exceeds the whole resource.
    pub(super) fn take(self: &Arc<Self>, count: usize, patience: Duration) -> Option<ResourcePermit> {
        let is_short = |taken: &mut usize| taken.saturating_add(count) > self.most;
        if count > self.most {
            return None;
        }
        let waited = self.given_back.wait_timeout_while(self.locked(), patience, is_short);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *taken += count;
        Some(ResourcePermit { pool: self.clone(), count })
    }

    /// Returns the amount that is currently taken.
    pub(super) fn taken(&self) -> usize {
        *self.locked()
    }

    fn locked(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourcePermit {
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

impl Drop for ResourcePermit {
    fn drop(&mut self) {
        *self.pool.locked() -= self.count;
        self.pool.given_back.notify_all();
    }
}

/// The limits on a gateway's resources.
pub(super) struct NodeLimits {
    /// The number of bytes that all connections together may use, beyond [`OWN_BYTES`] for each of them.
    pub(super) memory: Arc<ResourceSemaphore>,
    /// The number of bytes that one connection may use beyond [`OWN_BYTES`].
    pub(super) connection_bytes_max: usize,
    /// The maximum number of requests in progress; `None` for one per connection.
    pub(super) requests: Option<Arc<ResourceSemaphore>>,
    /// The maximum time that a request waits for other requests to end or return memory.
    pub(super) patience: Duration,
}

/// The limits of the gateway and of the user, which both apply to a connection.
pub(super) struct ConnectionResourceLimits {
    pub(super) gateway: Arc<NodeLimits>,
    pub(super) user: Arc<NodeUserResources>,
}

/// Memory of a connection, taken from the gateway's share and from its user's share.
pub(super) struct MemoryShare {
    of_gateway: ResourcePermit,
    _of_user: ResourcePermit,
}

impl MemoryShare {
    pub(super) fn count(&self) -> usize {
        self.of_gateway.count()
    }
}

/// A slot for a request in progress, taken from the gateway's slots and from its user's slots.
pub(super) struct NodeRequestSlot {
    _of_user: UserRequestSlot,
    _of_gateway: Option<ResourcePermit>,
}

impl ConnectionResourceLimits {
    /// Reserves `bytes` bytes of memory for a connection that has already reserved `held` bytes. Reserves nothing if
    /// `bytes` is at most [`OWN_BYTES`]. Errors: `EntityTooLarge` if a connection can never get this much memory;
    /// `Unavailable` if other connections occupy the memory.
    pub(super) fn memory_for(&self, bytes: usize, held: usize) -> Result<Option<MemoryShare>> {
        if bytes <= OWN_BYTES {
            return Ok(None);
        }
        self.gateway.check_bytes(held + bytes, self.user.memory.most)?;
        let of_user = self.user.memory.take(bytes, self.gateway.patience).ok_or_else(|| {
            let why = "your share of the gateway's memory for long messages is used up; try again later, or ask for a \
                       higher --user-memory";
            Error::new(ErrorKind::Unavailable, why)
        })?;
        Ok(Some(MemoryShare { of_gateway: self.gateway.memory_for(bytes)?, _of_user: of_user }))
    }

    /// Reserves a slot for a request in progress. Errors: `Unavailable` if no slot becomes free.
    pub(super) fn place(&self) -> Result<NodeRequestSlot> {
        Ok(NodeRequestSlot { _of_user: self.user.begin()?, _of_gateway: self.gateway.place()? })
    }
}

impl NodeLimits {
    /// Checks that a connection may use `total` bytes. Errors: `EntityTooLarge`.
    fn check_bytes(&self, total: usize, of_user: usize) -> Result<()> {
        let most = self.connection_bytes_max.min(self.memory.most).min(of_user);
        if total > most {
            let why = format!(
                "the request needs {total} bytes of the gateway's memory, and the limit of a connection is {most}; \
                 send smaller requests, or raise --connection-memory and --memory"
            );
            return Err(Error::new(ErrorKind::EntityTooLarge, why));
        }
        Ok(())
    }

    fn memory_for(&self, bytes: usize) -> Result<ResourcePermit> {
        self.memory.take(bytes, self.patience).ok_or_else(|| {
            let why = "the gateway's memory for long messages is used up; try again later, or raise --memory";
            Error::new(ErrorKind::Unavailable, why)
        })
    }

    /// Reserves a slot for a request in progress. Errors: `Unavailable` if no slot becomes free.
    fn place(&self) -> Result<Option<ResourcePermit>> {
        let Some(requests) = &self.requests else { return Ok(None) };
        requests.take(1, self.patience).map(Some).ok_or_else(|| {
            let why = "the gateway has the maximum number of requests in progress; try again later, or raise --requests";
            Error::new(ErrorKind::Unavailable, why)
        })
    }
}

/// Returns the memory, in bytes, that the response to a request needs in addition to the message itself. Errors:
/// `InvalidArgument` if the request names more objects, or more bytes in all its ranges together, than one request may
/// name.
pub(super) fn answer_bytes(request: &Request<'_>) -> Result<usize> {
    let objects = request.batch_objects();
    if objects > BATCH_OBJECTS_MAX {
        let why = format!("{objects} objects are requested at once; the maximum is {BATCH_OBJECTS_MAX}");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(match request {
        Request::ReadRanges { ranges, .. } => match longest_bytes(ranges) {
            // Each range is read into its own buffer, and then copied to one buffer for all ranges.
            bytes if bytes <= RANGES_BYTES_MAX => 2 * bytes as usize,
            _ => {
                let why = format!(
                    "the ranges have over {RANGES_BYTES_MAX} bytes in total; get the whole object instead"
                );
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
        },
        Request::List { query, .. } => page_bytes(query.max_keys),
        Request::ListVersions { query, .. } => page_bytes(query.max_keys),
        Request::ListUploads { query, .. } => page_bytes(query.max_uploads),
        Request::HeadMany { .. } => objects * DESCRIBED_BYTES,
        _ => 0,
    })
}

fn page_bytes(entries: usize) -> usize {
    entries.min(PAGE_ENTRIES_MAX) * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UserLimits;
    use crate::node::accounts::{NodeConnectedUsers, NodeUserLimits, UserConnectionSlot};

    #[test]
    fn what_is_taken_is_waited_for() {
        let pool = ResourceSemaphore::new(10);
        let (soon, late) = (Duration::from_millis(20), Duration::from_secs(20));
        let first = pool.take(6, soon).unwrap();
        assert!(pool.take(5, soon).is_none() && pool.take(11, soon).is_none());
        let second = pool.take(4, soon).unwrap();
        assert_eq!((pool.taken(), first.count(), second.count()), (10, 6, 4));
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take(5, late).map(|share| share.count())
        });
        std::thread::sleep(soon);
        drop(first);
        assert_eq!(waiting.join().unwrap(), Some(5));
        drop(second);
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn what_is_not_there_is_told() {
        let limits = NodeLimits {
            memory: ResourceSemaphore::new(20 << 20),
            connection_bytes_max: 16 << 20,
            requests: Some(ResourceSemaphore::new(1)),
            patience: Duration::from_millis(20),
        };
        let requests = UserLimits::default();
        let of_user =
            NodeUserLimits { connections_max: 9, strangers_max: 9, requests, memory_bytes_max: 12 << 20 };
        let accounts = NodeConnectedUsers::new(of_user);
        let (one, other) = (accounts.connect(1).unwrap(), accounts.connect(2).unwrap());
        let gateway = Arc::new(limits);
        let share = |user: &UserConnectionSlot| ConnectionResourceLimits {
            gateway: gateway.clone(),
            user: user.account().clone(),
        };
        let (limits, other) = (share(&one), share(&other));
        assert!(limits.memory_for(OWN_BYTES, 0).unwrap().is_none());
        let held = limits.memory_for(10 << 20, 0).unwrap().expect("it is counted");
        let kind = |bytes, held| limits.memory_for(bytes, held).map(drop).unwrap_err().kind();
        assert_eq!(kind(7 << 20, 10 << 20), ErrorKind::EntityTooLarge);
        assert_eq!(kind(3 << 20, 0), ErrorKind::Unavailable, "the user has 12 MiB");
        assert_eq!(other.memory_for(10 << 20, 0).unwrap().map(|share| share.count()), Some(10 << 20));
        let beyond = other.memory_for(11 << 20, 0).map(drop).unwrap_err();
        assert!(beyond.to_string().contains("raise --memory"), "the gateway has 20 MiB: {beyond}");
        drop(held);
        assert_eq!(limits.memory_for(11 << 20, 0).unwrap().map(|share| share.count()), Some(11 << 20));
        let place = limits.place().unwrap();
        assert_eq!(limits.place().map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
        drop(place);
        limits.place().unwrap();
    }
}
