//! The users, as whom they act, and the store for that.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fordway_store::{Error, ErrorKind, Result, Store};
use fordway_sys::{Helper, Peer, act_as, peer_of, user_id};

use crate::OpenStore;

/// What a caller was admitted to.
pub(super) struct Admitted {
    /// The user; for a client known by a secret, the gateway's own.
    pub(super) uid: u32,
    pub(super) store: Arc<dyn Store>,
    /// Whether files being written may be handed out: only to whom they belong anyway.
    pub(super) lends_files: bool,
}

/// Decides who may call.
pub(super) struct Access {
    open: OpenStore,
    /// The gateway's own user.
    uid: u32,
    /// The store of that user, opened when the gateway started.
    own: Arc<dyn Store>,
    /// Users who may call although the gateway cannot act as them.
    allowed: Vec<u32>,
    /// The stores of other users, for as long as one of their connections is open. What a store
    /// remembers (held directories, sorted names) was found with the permissions of its one user.
    stores: Mutex<HashMap<Peer, Weak<dyn Store>>>,
}

impl Access {
    /// Opens the store of the gateway's own user. Errors: from opening it.
    pub(super) fn new(open: OpenStore, allowed: Vec<u32>) -> Result<Self> {
        let own = open()?;
        if user_id() == 0 {
            // Threads that act as clients for good cannot make what is to be a bucket's owner's.
            Helper::start();
        }
        Ok(Access { open, uid: user_id(), own, allowed, stores: Mutex::default() })
    }

    /// Whether the gateway acts as the caller.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The store for the peer of a Unix socket. If that is another user and the
    /// gateway is root, the calling thread acts as that user from now on, for good.
    /// Errors: `AccessDenied`, and errors of opening the store as that user.
    pub(super) fn admit(&self, socket: impl AsFd) -> Result<Admitted> {
        let peer = peer_of(socket).map_err(|errno| {
            Error::new(ErrorKind::AccessDenied, "the kernel does not say who calls").caused_by(errno)
        })?;
        let uid = peer.uid;
        if peer.uid == self.uid {
            return Ok(Admitted { uid, store: self.own.clone(), lends_files: true });
        }
        if self.is_root() {
            return Ok(Admitted { uid, store: self.store_of(&peer)?, lends_files: true });
        }
        match self.allowed.contains(&peer.uid) {
            true => Ok(Admitted { uid, store: self.own.clone(), lends_files: false }),
            false => Err(Error::new(
                ErrorKind::AccessDenied,
                format!(
                    "this gateway serves the user with the id {0}, and you are {1}; start one of your own, or have \
                     its owner add --allow-uid {1}",
                    self.uid, peer.uid
                ),
            )),
        }
    }

    /// The store for a client that has proved to know the secret.
    pub(super) fn admit_by_secret(&self) -> Admitted {
        Admitted { uid: self.uid, store: self.own.clone(), lends_files: false }
    }

    fn store_of(&self, peer: &Peer) -> Result<Arc<dyn Store>> {
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
