//! The users of a gateway, and the uid and groups that each acts as: a single key pair, or the users of a credentials
//! file.
//!
//! * `file`: the credentials file
//! * `confined`: a store limited to what one user may do

mod confined;
mod file;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fordway_store::{Error, ErrorKind, Result, Store};
use tokio::sync::Semaphore;

use crate::AccessKeyPair;
use crate::http1::SignatureVerifier;
use crate::workers::READERS_MAX;
use confined::ConfinedStore;
use file::{FileStamp, UserEntry};

/// Opens the served store as the user that the calling thread acts as.
pub type OpenStore = Arc<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// A user of the gateway.
pub(crate) struct User {
    pub(crate) name: String,
    /// The store, limited to what this user may do.
    pub(crate) store: Arc<dyn Store>,
    /// The keys that sign requests; `None` for a user known without keys.
    pub(crate) keys: Option<UserKeys>,
    /// Limits this user's work on the shared threads, so that some stay free for other users.
    pub(crate) share: Arc<Semaphore>,
}

/// The maximum number of the threads that wait for devices and locks that one user's work may occupy.
const SHARE: usize = READERS_MAX / 2;

/// The keys that a user signs with.
pub(crate) struct UserKeys {
    pub(crate) secret_key: String,
    /// Checks signatures of plain reads.
    pub(crate) verifier: SignatureVerifier,
}

impl User {
    fn new(name: String, keys: AccessKeyPair, store: Arc<dyn Store>) -> Arc<Self> {
        let keys = UserKeys { secret_key: keys.secret_key.clone(), verifier: SignatureVerifier::new(keys) };
        Arc::new(User { name, store, keys: Some(keys), share: Arc::new(Semaphore::new(SHARE)) })
    }

    /// A user identified by the kernel.
    pub(crate) fn of_peer(uid: u32, store: Arc<dyn Store>) -> Arc<Self> {
        let share = Arc::new(Semaphore::new(SHARE));
        Arc::new(User { name: uid.to_string(), store, keys: None, share })
    }
}

/// Users by access key.
type ByKey = HashMap<String, Arc<User>>;

/// The users of a gateway, and their stores. All threads of the gateway share this.
pub struct Users {
    by_key: RwLock<Arc<ByKey>>,
    origin: Option<StoreOrigin>,
    is_available: AtomicBool,
}

/// The source of users and their stores.
struct StoreOrigin {
    root: PathBuf,
    open: OpenStore,
    credentials: CredentialSource,
    state: Mutex<UsersState>,
}

enum CredentialSource {
    One(AccessKeyPair),
    File(PathBuf),
}

/// The state found by the last check.
struct UsersState {
    /// Device and inode of the served directory.
    root: (u64, u64),
    stamp: Option<FileStamp>,
    entries: Vec<UserEntry>,
}

impl Users {
    /// No users with keys: callers are identified in other ways.
    pub(crate) fn without_keys() -> Self {
        Users { by_key: RwLock::default(), origin: None, is_available: true.into() }
    }

    /// A single user, with all rights of the gateway's own user.
    pub fn one(identity: AccessKeyPair, store: Arc<dyn Store>) -> Self {
        Users {
            by_key: RwLock::new(Arc::new(only(identity, store))),
            origin: None,
            is_available: true.into(),
        }
    }

    /// A single user of the directory `root`, which `open` opens. Requests fail while the directory is missing, and it
    /// is opened again when it returns. Errors: from opening it.
    pub fn one_of(identity: AccessKeyPair, root: &Path, open: OpenStore) -> Result<Self> {
        Users::load(root, open, CredentialSource::One(identity))
    }

    /// The users of a credentials file, which is read again when it changes. For each of them, `open` opens the
    /// directory `root` as the user and group that the file states.
    ///
    /// Errors: `InvalidArgument` for a file that does not parse, names a key or a user twice, or a uid
    /// that the gateway, not being root, cannot act as; `AccessDenied` for one that others may read;
    /// errors of opening the store.
    pub fn from_file(credentials: &Path, root: &Path, open: OpenStore) -> Result<Self> {
        Users::load(root, open, CredentialSource::File(credentials.to_owned()))
    }

    fn load(root: &Path, open: OpenStore, credentials: CredentialSource) -> Result<Self> {
        let place = place_of(root).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("{} cannot be looked at", root.display()))
                .caused_by(error)
        })?;
        let state = UsersState { root: place, stamp: None, entries: Vec::new() };
        let origin = StoreOrigin { root: root.to_owned(), open, credentials, state: Mutex::new(state) };
        let users = Users { by_key: RwLock::default(), origin: Some(origin), is_available: true.into() };
        users.read_again(true)?;
        Ok(users)
    }

    /// The user with an access key.
    pub(crate) fn find(&self, access_key: &str) -> Option<Arc<User>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(access_key).cloned()
    }

    /// The store as the gateway's own user, for unsigned requests. Errors: from opening it.
    pub(crate) fn own_store(&self) -> Result<Arc<dyn Store>> {
        if let Some(origin) = &self.origin {
            return (origin.open)();
        }
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let only = by_key.values().next().map(|user| user.store.clone());
        only.ok_or_else(|| Error::new(ErrorKind::AccessDenied, "nobody may call this gateway"))
    }

    /// Whether the directory existed at the last check.
    pub(crate) fn is_available(&self) -> bool {
        self.is_available.load(Ordering::Relaxed)
    }

    /// Checks the directory and the credentials file; with `at_once`, reads the file even if it seems unchanged. On
    /// failure, logs the error and changes nothing.
    pub(crate) fn look(&self, at_once: bool) {
        self.look_at_root();
        if !self.is_available() {
            return;
        }
        if let Err(error) = self.read_again(at_once) {
            tracing::error!(%error, "the users stay as they were, because the credentials file cannot be used");
        }
    }

    /// Whether there is a directory to serve. A directory that has replaced the previous one is opened; if there is
    /// none, requests fail.
    pub(crate) fn look_at_root(&self) -> bool {
        let Some(origin) = &self.origin else { return true };
        let root = origin.root.display();
        let found = place_of(&origin.root);
        let mut state = origin.state.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(place) if place == state.root => {
                if !self.is_available.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{root} is back");
                }
            }
            Ok(place) => self.move_to(origin, &mut state, place),
            Err(error) => {
                if self.is_available.swap(false, Ordering::Relaxed) {
                    tracing::error!(
                        %error,
                        "{root} is gone; requests are answered with 503 until it is back: mount it, or restore it"
                    );
                }
            }
        }
        self.is_available()
    }

    /// Opens the directory that replaced the previous one.
    fn move_to(&self, origin: &StoreOrigin, state: &mut UsersState, place: (u64, u64)) {
        let root = origin.root.display();
        let was_available = self.is_available.load(Ordering::Relaxed);
        match self.open_all(origin, &state.entries) {
            Ok(()) => {
                tracing::warn!("{root} is another directory now, and was opened anew");
                state.root = place;
                self.is_available.store(true, Ordering::Relaxed);
            }
            Err(error) if was_available => {
                tracing::error!(%error, "{root} is another directory now; requests are answered with 503 until it can be opened");
                self.is_available.store(false, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }

    /// Reads the credentials file again, or opens the stores again. Errors: as [`Users::from_file`].
    fn read_again(&self, at_once: bool) -> Result<()> {
        let Some(origin) = &self.origin else { return Ok(()) };
        let mut state = origin.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CredentialSource::File(path) = &origin.credentials else {
            // The user of a gateway without a credentials file never changes.
            return if at_once { self.open_all(origin, &[]) } else { Ok(()) };
        };
        let stamp = FileStamp::of(path);
        if !at_once && stamp == state.stamp {
            return Ok(());
        }
        // An invalid file is logged once, not every second.
        state.stamp = stamp;
        let entries = file::read(path)?;
        if entries != state.entries {
            self.open_all(origin, &entries)?;
            state.entries = entries;
            tracing::info!(users = state.entries.len(), "the credentials file was read");
        }
        Ok(())
    }

    /// Opens the stores of all users, and replaces the previous ones.
    fn open_all(&self, origin: &StoreOrigin, entries: &[UserEntry]) -> Result<()> {
        let by_key = match &origin.credentials {
            CredentialSource::One(identity) => only(identity.clone(), (origin.open)()?),
            CredentialSource::File(_) => entries
                .iter()
                .map(|entry| {
                    let store = ConfinedStore::open(entry, &origin.open)?;
                    Ok((entry.access_key.clone(), User::new(entry.name.clone(), entry.keys(), store)))
                })
                .collect::<Result<ByKey>>()?,
        };
        *self.by_key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(by_key);
        Ok(())
    }
}

fn only(identity: AccessKeyPair, store: Arc<dyn Store>) -> ByKey {
    let name = identity.access_key.clone();
    HashMap::from([(name.clone(), User::new(name, identity, store))])
}

/// The identity of a directory.
fn place_of(root: &Path) -> std::io::Result<(u64, u64)> {
    let found = std::fs::metadata(root)?;
    Ok((found.dev(), found.ino()))
}
