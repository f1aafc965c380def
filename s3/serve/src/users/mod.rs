//! The users of a gateway, and the uid and groups under which each user's requests access files. A gateway has either a
//! single user with one key pair, or the users of a credentials file.
//!
//! * `file`: the credentials file
//! * `confined`: a store that enforces the permissions of one user
//! * `summary`: the content of the credentials file without secrets

mod confined;
mod file;
mod summary;

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fordway_policy::Principal;
use fordway_store::{Bucket, Error, ErrorKind, MemoryStore, ROOT_DIR, Result, Store};
use fordway_sys::{PeerCredentials, user_id};
use tokio::sync::Semaphore;

use crate::AccessKeyPair;
use crate::blocking::run_blocking;
use crate::file_server::NetworkFileServer;
use crate::http1::SignatureVerifier;
use crate::limits::{UserLimitOverrides, UserLimits, UserResourceUsage};
use crate::s3::PublishLatency;
use crate::sts::{IdentityProvider, IdentityProviderEntry, RoleTrust, SessionAttributes};
use crate::workers::READERS_MAX;
use confined::ConfinedStore;
pub(crate) use confined::fits;
use file::{FileFingerprint, RoleEntry, UserEntry, UsersDocument};
pub(crate) use file::{UidGidClaimNames, read_private};
pub use summary::{UsersFileEntry, read_users_file};

/// Opens the served store with the identity of the calling thread.
pub type StoreOpenFunction = Arc<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// The kind of a user, by the way in which the gateway identifies the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserKind {
    /// Identified by a key pair.
    Keys,
    /// Identified by the kernel.
    Peer,
    /// Anonymous: the requests have no signature.
    Anonymous,
}

/// The system user whose identity anonymous requests use. The rules of a bucket must permit each of these requests.
#[derive(Clone, Debug)]
pub struct AnonymousUser {
    /// The name, for the access log.
    pub name: String,
    /// The uid and groups that access files; `None` for a store without permissions.
    pub acts_as: Option<PeerCredentials>,
}

/// A user of the gateway.
pub(crate) struct User {
    /// A number that identifies the user and is never reused within this process.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) kind: UserKind,
    /// The uid that accesses files for the user.
    pub(crate) uid: u32,
    /// The store, which enforces this user's permissions.
    pub(crate) store: Arc<dyn Store>,
    /// The keys that sign requests; `None` for a user identified without keys.
    pub(crate) keys: Option<UserKeyPair>,
    /// Limits this user's work on the shared threads, so that some threads remain free for other users.
    pub(crate) share: Arc<Semaphore>,
    /// The typical duration of this user's changes, except uploads.
    pub(crate) changes: PublishLatency,
    /// The counters of this user's requests and bytes, and the user's limits.
    pub(crate) account: Arc<UserResourceUsage>,
    /// The file server that the user's current request has to wait for, if any.
    pub(crate) server: Option<NetworkFileServer>,
    /// The session of a user who signs with temporary credentials.
    pub(crate) session: Option<Arc<SessionAttributes>>,
}

/// The maximum number of threads that the work of one user may occupy while it waits for devices and locks.
const SHARE: usize = READERS_MAX / 2;

/// The keys with which a user signs requests.
pub(crate) struct UserKeyPair {
    pub(crate) secret_key: String,
    /// Checks the signatures of requests on the fast path.
    pub(crate) verifier: SignatureVerifier,
}

impl User {
    fn new(
        name: String,
        keys: AccessKeyPair,
        uid: u32,
        store: Arc<dyn Store>,
        account: Arc<UserResourceUsage>,
    ) -> Arc<Self> {
        let keys =
            UserKeyPair { secret_key: keys.secret_key.clone(), verifier: SignatureVerifier::new(keys) };
        User::with((name, UserKind::Keys, uid), Some(keys), store, account)
    }

    /// Creates a user that the kernel has identified.
    pub(crate) fn of_peer(uid: u32, store: Arc<dyn Store>, account: Arc<UserResourceUsage>) -> Arc<Self> {
        User::with((uid.to_string(), UserKind::Peer, uid), None, store, account)
    }

    #[cfg(test)]
    pub(crate) fn of_tests(uid: u32, store: Arc<dyn Store>) -> Arc<Self> {
        User::of_peer(
            uid,
            store,
            UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default()),
        )
    }

    fn anonymous(user: &AnonymousUser, store: Arc<dyn Store>, account: Arc<UserResourceUsage>) -> Arc<Self> {
        let uid = user.acts_as.as_ref().map_or_else(user_id, |peer| peer.uid);
        User::with((user.name.clone(), UserKind::Anonymous, uid), None, store, account)
    }

    fn with(
        (name, kind, uid): (String, UserKind, u32),
        keys: Option<UserKeyPair>,
        store: Arc<dyn Store>,
        account: Arc<UserResourceUsage>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let share = Arc::new(Semaphore::new(SHARE));
        let changes = PublishLatency::default();
        let (server, session) = (None, None);
        Arc::new(User { id, name, kind, uid, store, keys, share, changes, account, server, session })
    }

    /// Returns a copy of this user with the given server and session, and without keys.
    fn with_server_and_session(
        &self,
        server: Option<NetworkFileServer>,
        session: Option<Arc<SessionAttributes>>,
    ) -> Arc<Self> {
        let User { id, kind, uid, .. } = *self;
        let (name, store, share) = (self.name.clone(), self.store.clone(), self.share.clone());
        let (account, changes) = (self.account.clone(), PublishLatency::default());
        Arc::new(User { id, name, kind, uid, store, keys: None, share, changes, account, server, session })
    }

    /// Returns this user in a session. All sessions of a user share the user's limits.
    pub(crate) fn in_session(&self, facts: SessionAttributes) -> Arc<Self> {
        self.with_server_and_session(None, Some(Arc::new(facts)))
    }

    /// Returns the name of the session of a role; `None` for a user who has not assumed a role.
    pub(crate) fn role_session(&self) -> Option<&str> {
        self.session.as_ref()?.role_session.as_deref()
    }

    /// Returns the user as a principal of policies.
    pub(crate) fn principal(&self) -> Principal<'_> {
        match self.role_session() {
            Some(session) => Principal::Role { name: &self.name, session: Some(session) },
            None => Principal::User(&self.name),
        }
    }

    /// Returns the ARN of the user, or of the role that the user has assumed, for policies.
    pub(crate) fn arn(&self) -> String {
        let kind = if self.role_session().is_some() { "role" } else { "user" };
        format!("arn:aws:iam:::{kind}/{}", self.name)
    }

    /// Returns the ID of the user for policies.
    pub(crate) fn userid(&self) -> Cow<'_, str> {
        self.role_session()
            .map_or(Cow::Borrowed(&*self.name), |session| format!("{}:{session}", self.name).into())
    }

    /// Returns the name of the user for the access log.
    pub(crate) fn label(&self) -> Cow<'_, str> {
        self.role_session()
            .map_or(Cow::Borrowed(&*self.name), |session| format!("{}/{session}", self.name).into())
    }

    /// Returns the user for a request to `bucket`, with `server` set to the file server for which the request has to
    /// wait, if any. Errors: `Io`.
    pub(crate) fn at(self: Arc<Self>, bucket: &str) -> Result<Arc<Self>> {
        // All gateways and users of the process share the threads of a file server. The work of a peer must not run on
        // these threads, because the store of a peer relies on the permissions of the calling thread. Only the thread
        // of the peer's connection, and the threads that it starts, are sure to have the peer's permissions.
        if self.kind == UserKind::Peer {
            return Ok(self);
        }
        let server = NetworkFileServer::of(&*self.store, bucket, self.uid)?;
        if server.is_none() {
            return Ok(self);
        }
        // The keys are no longer needed, because the signature has been checked.
        Ok(self.with_server_and_session(server, self.session.clone()))
    }

    /// Returns whether a call for `bucket` may have to wait for a file server. Cost: no system call.
    pub(crate) fn waits_for_server(&self, bucket: &Bucket) -> bool {
        self.server.is_some() || self.store.file_server(bucket.as_str()).is_some()
    }
}

/// A role: an identity that users assume for a limited time.
pub(crate) struct Role {
    pub(crate) user: Arc<User>,
    /// The names of the users who may assume the role; `*` means all users.
    assumed_by: Vec<String>,
    /// The web identities that may assume the role.
    trusts: Vec<RoleTrust>,
    /// The maximum lifetime of a session, in seconds.
    pub(crate) max_duration_s: u64,
    /// The names of the claims that contain the uid and gid of the role, if claims contain them. If claims contain the
    /// IDs, the store of `user` is empty.
    pub(crate) id_claims: Option<UidGidClaimNames>,
    claimed: ClaimMappedUsers,
}

/// The users of a role that takes the uid and the gid from a token's claims, by uid and gid.
struct ClaimMappedUsers {
    entry: UserEntry,
    open: StoreOpenFunction,
    opened: Mutex<HashMap<(u32, u32), Arc<User>>>,
}

/// The maximum number of users whose stores a role keeps open.
const CLAIMED_MAX: usize = 1024;

impl Role {
    pub(crate) fn may_be_assumed_by(&self, user: &str) -> bool {
        self.assumed_by.iter().any(|name| name == "*" || name == user)
    }

    /// Returns the user whose identity a session of the role uses. `ids` are the uid and the gid from the session's
    /// claims, if claims state them. The role's limits then apply to each uid separately. Returns `None` if the role no
    /// longer permits these IDs, or if the store cannot be opened.
    pub(crate) async fn acting_as(self: &Arc<Self>, ids: Option<(u32, u32)>) -> Option<Arc<User>> {
        let (claims, ids) = match (&self.id_claims, ids) {
            (None, None) => return Some(self.user.clone()),
            (Some(claims), Some(ids)) => (claims, ids),
            _ => return None,
        };
        if ids.0 < claims.min || ids.1 < claims.min {
            return None;
        }
        let opened = || self.claimed.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(user) = opened().get(&ids) {
            return Some(user.clone());
        }
        let role = self.clone();
        // The store is opened on a thread that may block, because opening the directory may wait for a file server.
        let store = run_blocking(move || {
            ConfinedStore::open(&role.claimed.entry.clone().acting_as(Some(ids)), &role.claimed.open)
        });
        let store = store.await.ok()?.inspect_err(|error| tracing::error!(%error, role = self.user.name));
        let who = (self.user.name.clone(), UserKind::Keys, ids.0);
        let user = User::with(who, None, store.ok()?, self.user.account.of_uid(ids.0));
        let mut opened = opened();
        if opened.len() >= CLAIMED_MAX {
            opened.clear();
        }
        Some(opened.entry(ids).or_insert(user).clone())
    }

    /// Returns the conditions on tokens from this issuer. A token must meet one of these conditions.
    pub(crate) fn trusts_of(&self, issuer: &str) -> impl Iterator<Item = &RoleTrust> {
        self.trusts.iter().filter(move |trust| trust.issuer == issuer)
    }
}

/// Roles by name.
pub(crate) type RolesByName = HashMap<String, Arc<Role>>;

/// Users by access key.
pub(crate) type UsersByKey = HashMap<String, Arc<User>>;

/// The users of a gateway, and their stores. All threads of the gateway share this value.
pub struct Users {
    by_key: RwLock<Arc<UsersByKey>>,
    roles: RwLock<Arc<RolesByName>>,
    providers: RwLock<Vec<Arc<IdentityProvider>>>,
    /// The user for anonymous requests; `None` if these requests are refused.
    anonymous: RwLock<Option<Arc<User>>>,
    /// The limits on users whose entries in the credentials file specify no limits.
    limits: Mutex<UserLimits>,
    origin: Option<GatewayUserSource>,
    is_available: AtomicBool,
}

/// The directory and the credentials from which the users and their stores are created, both at the start and at each
/// reload.
struct GatewayUserSource {
    root: PathBuf,
    open: StoreOpenFunction,
    credentials: CredentialSource,
    anonymous: Option<AnonymousUser>,
    /// Locked while a thread reads the credentials file again and applies its changes.
    reading: Mutex<()>,
    state: Mutex<UsersReloadState>,
}

enum CredentialSource {
    One(AccessKeyPair),
    File(PathBuf),
}

/// The directory and the credentials file, as found by the last check.
struct UsersReloadState {
    /// The device and inode numbers of the served directory.
    root: (u64, u64),
    /// The fingerprint of the file at the last check.
    stamp: Option<FileFingerprint>,
    document: UsersDocument,
    /// The error of the last check, if it failed. The next check then tries again, even if the file is the same,
    /// because a failure to open a store may be temporary. An error that repeats is logged only once.
    failed: Option<String>,
}

/// The stores that are opened, and the effect of a store that cannot be opened.
#[derive(Clone, Copy)]
enum OpenMode<'d> {
    /// All stores are opened. If a store cannot be opened, nothing changes.
    All,
    /// The stores of entries that are not in the previous document are opened. If such a store cannot be opened, the
    /// entry has no effect: requests of its user are refused. All other changes apply.
    ChangedSince(&'d UsersDocument),
}

/// The result of reading the credentials again.
enum ReadCredentials {
    /// There is nothing to do.
    Unchanged,
    /// There is no credentials file, and the store must be reopened.
    Reopen,
    File(UsersDocument),
}

impl GatewayUserSource {
    /// Reads the credentials file again if it has changed, if the last check has failed, or if `at_once` is set.
    /// Without a credentials file, requests that the store be reopened in the last two cases. The file may be on a file
    /// server that does not respond. The state is therefore not locked while the file is read, because serving threads
    /// wait for this lock. Errors: as for [`Users::from_file`].
    fn read_again(&self, at_once: bool) -> Result<ReadCredentials> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = at_once || state().failed.is_some();
        let CredentialSource::File(path) = &self.credentials else {
            // The user of a gateway without a credentials file never changes.
            return Ok(if is_due { ReadCredentials::Reopen } else { ReadCredentials::Unchanged });
        };
        let stamp = FileFingerprint::of(path);
        if !is_due && stamp == state().stamp {
            return Ok(ReadCredentials::Unchanged);
        }
        // The fingerprint is taken before the file is read. If the file changes in between, it is read again.
        state().stamp = stamp;
        file::read(path).map(ReadCredentials::File)
    }
}

impl Users {
    /// Creates an empty set, for a gateway that does not identify callers by keys.
    pub(crate) fn without_keys() -> Self {
        Users {
            by_key: RwLock::default(),
            roles: RwLock::default(),
            providers: RwLock::default(),
            anonymous: RwLock::default(),
            limits: Mutex::default(),
            origin: None,
            is_available: true.into(),
        }
    }

    /// Creates a set with one user, who has all rights of the gateway's own user.
    pub fn one(identity: AccessKeyPair, store: Arc<dyn Store>) -> Self {
        Users {
            by_key: RwLock::new(Arc::new(only(identity, store, UserLimits::default()))),
            roles: RwLock::default(),
            providers: RwLock::default(),
            anonymous: RwLock::default(),
            limits: Mutex::default(),
            origin: None,
            is_available: true.into(),
        }
    }

    /// Creates a set with one user, for whom `open` opens the directory `root`. Requests fail while the directory is
    /// missing. When the directory exists again, the gateway reopens the directory. Errors: the errors of opening the
    /// directory.
    pub fn one_of(identity: AccessKeyPair, root: &Path, open: StoreOpenFunction) -> Result<Self> {
        Users::load(root, open, CredentialSource::One(identity))
    }

    /// Creates the users of a credentials file, which is read again when it changes. For each user, `open` opens the
    /// directory `root` with the uid and gid from the file.
    ///
    /// Errors: `InvalidArgument` for a file that does not parse, names a key or a user twice, or names another uid
    /// although the gateway does not run as root; `AccessDenied` for a file that other users may read; errors from
    /// opening the store.
    pub fn from_file(credentials: &Path, root: &Path, open: StoreOpenFunction) -> Result<Self> {
        Users::load(root, open, CredentialSource::File(credentials.to_owned()))
    }

    fn load(root: &Path, open: StoreOpenFunction, credentials: CredentialSource) -> Result<Self> {
        let place = place_of(root).map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::NotFound => "does not exist; correct the path, or create the directory",
                _ => "cannot be examined; correct the path, or the permissions of its parent directories",
            };
            Error::new(ErrorKind::InvalidArgument, format!("{} {why}", root.display())).caused_by(error)
        })?;
        let document = UsersDocument::default();
        let state = UsersReloadState { root: place, stamp: None, document, failed: None };
        let origin = GatewayUserSource {
            root: root.to_owned(),
            open,
            credentials,
            anonymous: None,
            reading: Mutex::default(),
            state: Mutex::new(state),
        };
        let users = Users {
            by_key: RwLock::default(),
            roles: RwLock::default(),
            providers: RwLock::default(),
            anonymous: RwLock::default(),
            limits: Mutex::default(),
            origin: Some(origin),
            is_available: true.into(),
        };
        users.read_first()?;
        Ok(users)
    }

    /// Executes anonymous requests as `user`, if the rules of a bucket permit them.
    ///
    /// Errors: `InvalidArgument` if the uid belongs to root, to the gateway or to a user with keys; `AccessDenied` if
    /// the gateway is not permitted to act as the user; errors from opening the store.
    pub fn with_anonymous(mut self, user: AnonymousUser) -> Result<Self> {
        let Some(origin) = &mut self.origin else {
            let store = self.own_store()?;
            self.anonymous = RwLock::new(Some(User::anonymous(&user, store, self.anonymous_account())));
            return Ok(self);
        };
        let own = user.acts_as.as_ref().is_none_or(|peer| peer.uid == 0 || peer.uid == user_id());
        if own {
            let why = format!(
                "anonymous requests need a separate user, and {:?} is root or the gateway's user; name \
                 another user, such as nobody, and run the gateway as root",
                user.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        origin.anonymous = Some(user);
        let origin = self.origin.as_ref();
        origin.map_or(Ok(()), |origin| {
            let state = origin.state.lock().unwrap_or_else(PoisonError::into_inner);
            check_anonymous(origin, &state.document)?;
            self.open_anonymous(origin)
        })?;
        Ok(self)
    }

    /// Opens the store for anonymous requests. Errors: errors from opening the store.
    fn open_anonymous(&self, origin: &GatewayUserSource) -> Result<()> {
        let Some(user) = &origin.anonymous else { return Ok(()) };
        let store = ConfinedStore::open_as(user, &origin.open)?;
        let user = User::anonymous(user, store, self.anonymous_account());
        *self.anonymous.write().unwrap_or_else(PoisonError::into_inner) = Some(user);
        Ok(())
    }

    /// Returns the counters and limits of anonymous requests. A reload keeps these counters, so that requests in flight
    /// remain counted.
    fn anonymous_account(&self) -> Arc<UserResourceUsage> {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.anonymous().map(|user| user.account.clone());
        before.unwrap_or_else(|| UserResourceUsage::new(UserLimitOverrides::default(), limits))
    }

    /// Returns the user for anonymous requests; `None` if these requests are refused.
    pub(crate) fn anonymous(&self) -> Option<Arc<User>> {
        self.anonymous.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a user with keys has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        by_key.values().any(|user| user.name == name)
    }

    /// Returns the names of the users with keys whose files belong to `uid`, sorted.
    pub(crate) fn names_of(&self, uid: u32) -> Vec<String> {
        let all = self.all();
        let mut names: Vec<_> =
            all.values().filter(|user| user.uid == uid).map(|user| user.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Sets the limits on users whose entries in the credentials file specify no limits.
    pub(crate) fn limit(&self, limits: UserLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        let roles = self.roles();
        let of_roles = roles.values().map(|role| &role.user);
        for user in self.all().values().chain(&self.anonymous()).chain(of_roles) {
            user.account.limit(limits);
        }
    }

    /// Returns all users by access key.
    pub(crate) fn all(&self) -> Arc<UsersByKey> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns all roles by name.
    pub(crate) fn roles(&self) -> Arc<RolesByName> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the role with this name.
    pub(crate) fn role(&self, name: &str) -> Option<Arc<Role>> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns the OIDC provider with this issuer.
    pub(crate) fn provider(&self, issuer: &str) -> Option<Arc<IdentityProvider>> {
        let providers = self.providers.read().unwrap_or_else(PoisonError::into_inner);
        providers.iter().find(|provider| provider.entry.issuer == issuer).cloned()
    }

    /// Returns the user with this access key.
    pub(crate) fn find(&self, access_key: &str) -> Option<Arc<User>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(access_key).cloned()
    }

    /// Returns the store with the permissions of the gateway's own user, for unsigned requests. Errors: the errors of
    /// opening the store.
    pub(crate) fn own_store(&self) -> Result<Arc<dyn Store>> {
        if let Some(origin) = &self.origin {
            return (origin.open)();
        }
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let only = by_key.values().next().map(|user| user.store.clone());
        only.ok_or_else(|| {
            Error::new(ErrorKind::AccessDenied, "nobody may call this gateway; add a user to its users file")
        })
    }

    /// Returns the file server of the whole root or of `bucket`, if there is one. Cost: no system call.
    pub(crate) fn server_of(&self, bucket: &str) -> Option<NetworkFileServer> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let (store, uid) = by_key.values().next().map(|user| (user.store.clone(), user.uid))?;
        NetworkFileServer::of(&*store, bucket, uid).ok().flatten()
    }

    /// Returns whether the served directory exists. For a directory on a file server, relies on the latest check of the
    /// directory and of the server; for any other directory, checks the directory now.
    pub(crate) fn has_root(&self) -> bool {
        match self.server_of(ROOT_DIR) {
            Some(server) => self.is_available() && server.responds(),
            None => self.look_at_root(),
        }
    }

    /// Returns whether the directory existed at the last check.
    pub(crate) fn is_available(&self) -> bool {
        self.is_available.load(Ordering::Relaxed)
    }

    /// Checks the directory and the credentials file. If `at_once` is set, reads the file even if it seems unchanged.
    /// After a failure, the next call tries again. Logs each error once, or always if `at_once` is set.
    pub(crate) fn look(&self, at_once: bool) {
        self.look_at_root();
        let Some(origin) = self.origin.as_ref().filter(|_| self.is_available()) else { return };
        // The order of changes to the file is kept, because only one thread at a time reads it. Serving threads never
        // wait for this lock.
        let _reading = origin.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let read = origin.read_again(at_once);
        let mut state = origin.state.lock().unwrap_or_else(PoisonError::into_inner);
        let error = read.and_then(|read| self.apply(origin, &mut state, read)).err();
        if let Some(error) = &error
            && (at_once || state.failed.as_ref() != Some(&error.to_string()))
        {
            tracing::error!(%error, "the users could not be updated; the gateway tries again every second");
        }
        state.failed = error.map(|error| error.to_string());
    }

    /// Checks whether there is a directory to serve. If another directory has replaced the previous directory, opens
    /// the new directory. If there is no directory, requests fail.
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
                        "{root} is missing; requests are answered with 503 until it is back: mount it, or restore it"
                    );
                }
            }
        }
        self.is_available()
    }

    /// Opens the directory that replaced the previous one.
    fn move_to(&self, origin: &GatewayUserSource, state: &mut UsersReloadState, place: (u64, u64)) {
        let root = origin.root.display();
        let was_available = self.is_available.load(Ordering::Relaxed);
        match self.open_anew(origin, &state.document) {
            Ok(()) => {
                tracing::warn!("{root} is now a different directory, which was opened");
                state.root = place;
                self.is_available.store(true, Ordering::Relaxed);
            }
            Err(error) if was_available => {
                tracing::error!(%error, "{root} is now a different directory; requests are answered with 503 until it can be opened");
                self.is_available.store(false, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }

    /// Reads the credentials file and opens the stores for the first time. Errors: as for [`Users::from_file`].
    fn read_first(&self) -> Result<()> {
        let Some(origin) = &self.origin else { return Ok(()) };
        let mut state = origin.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let CredentialSource::File(path) = &origin.credentials {
            state.stamp = FileFingerprint::of(path);
            state.document = file::read(path)?;
        }
        self.open_all(origin, &state.document, OpenMode::All)
    }

    /// Applies what [`GatewayUserSource::read_again`] has read. Errors: as for [`Users::from_file`]. After an error
    /// from opening a store, the other changes have been applied; after any other error, nothing has changed.
    fn apply(
        &self,
        origin: &GatewayUserSource,
        state: &mut UsersReloadState,
        read: ReadCredentials,
    ) -> Result<()> {
        let document = match read {
            ReadCredentials::Unchanged => return Ok(()),
            ReadCredentials::Reopen => return self.open_anew(origin, &state.document),
            ReadCredentials::File(document) => document,
        };
        if document == state.document && state.failed.is_none() {
            return Ok(());
        }
        check_anonymous(origin, &document)?;
        let opened = self.open_all(origin, &document, OpenMode::ChangedSince(&state.document));
        state.document = document;
        let (users, roles) = (state.document.user.len(), state.document.role.len());
        opened.inspect(|()| tracing::info!(users, roles, "the credentials file was read"))
    }

    /// Opens the stores of all users and roles, and of anonymous requests. Errors: errors from opening a store.
    fn open_anew(&self, origin: &GatewayUserSource, document: &UsersDocument) -> Result<()> {
        self.open_all(origin, document, OpenMode::All)?;
        self.open_anonymous(origin)
    }

    /// Opens the stores of users and roles, and replaces the previous users and roles. Errors: an error from opening a
    /// store, with the effect that `mode` describes.
    fn open_all(
        &self,
        origin: &GatewayUserSource,
        document: &UsersDocument,
        mode: OpenMode<'_>,
    ) -> Result<()> {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let (users, roles) = (self.all(), self.roles());
        let opening = StoreOpening::new(origin, (&users, &roles), mode, limits);
        let mut failed = None;
        let by_key = match &origin.credentials {
            CredentialSource::One(identity) => only(identity.clone(), (origin.open)()?, limits),
            CredentialSource::File(_) => document
                .user
                .iter()
                .filter_map(|entry| Some((entry.access_key.clone(), kept(opening.user(entry), &mut failed)?)))
                .collect(),
        };
        let roles = document
            .role
            .iter()
            .filter_map(|entry| Some((entry.name.clone(), kept(opening.role(entry), &mut failed)?)))
            .collect();
        if matches!(mode, OpenMode::All) {
            failed.take().map_or(Ok(()), Err)?;
        }
        *self.by_key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(by_key);
        *self.roles.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(roles);
        self.replace_providers(&document.oidc);
        failed.map_or(Ok(()), Err)
    }

    /// Replaces the OIDC providers. A provider whose entry has not changed keeps its keys.
    fn replace_providers(&self, entries: &[IdentityProviderEntry]) {
        let mut providers = self.providers.write().unwrap_or_else(PoisonError::into_inner);
        let all = {
            let by_issuer = providers.iter().map(|known| (known.entry.issuer.as_str(), known));
            let by_issuer: HashMap<_, _> = by_issuer.collect();
            let kept = |entry: &IdentityProviderEntry| {
                let known = by_issuer.get(entry.issuer.as_str()).filter(|known| known.entry == *entry);
                known.map(|known| (*known).clone())
            };
            let all = entries
                .iter()
                .map(|entry| kept(entry).unwrap_or_else(|| IdentityProvider::new(entry.clone())));
            all.collect()
        };
        *providers = all;
    }
}

/// Opens the stores of users and roles. A user or a role whose entry has not changed keeps its store.
struct StoreOpening<'a> {
    origin: &'a GatewayUserSource,
    /// The previous entries of users by access key, and the previous users.
    users: (HashMap<&'a str, &'a UserEntry>, &'a UsersByKey),
    /// The previous entries of roles by name, and the previous roles.
    roles: (HashMap<&'a str, &'a RoleEntry>, &'a RolesByName),
    /// The previous users and roles by name.
    by_name: HashMap<&'a str, &'a Arc<User>>,
    limits: UserLimits,
}

impl<'a> StoreOpening<'a> {
    fn new(
        origin: &'a GatewayUserSource,
        (users, roles): (&'a UsersByKey, &'a RolesByName),
        mode: OpenMode<'a>,
        limits: UserLimits,
    ) -> Self {
        let (user_entries, role_entries) = match mode {
            OpenMode::All => (&[][..], &[][..]),
            OpenMode::ChangedSince(document) => (&*document.user, &*document.role),
        };
        let user_entries = user_entries.iter().map(|entry| (entry.access_key.as_str(), entry)).collect();
        let role_entries = role_entries.iter().map(|entry| (entry.name.as_str(), entry)).collect();
        let by_name = users.values().chain(roles.values().map(|role| &role.user));
        let by_name = by_name.map(|user| (user.name.as_str(), user)).collect();
        StoreOpening { origin, users: (user_entries, users), roles: (role_entries, roles), by_name, limits }
    }

    /// Returns the counters of the user with this entry. A known user keeps the counters, so that requests in flight
    /// remain counted after a reload.
    fn account(&self, entry: &UserEntry) -> Arc<UserResourceUsage> {
        let known = self.by_name.get(entry.name.as_str());
        let known = known.filter(|user| user.account.stated() == entry.limits());
        known.map_or_else(|| UserResourceUsage::new(entry.limits(), self.limits), |user| user.account.clone())
    }

    fn open(&self, entry: &UserEntry) -> Result<(u32, Arc<dyn Store>, Arc<UserResourceUsage>)> {
        let uid = entry.acts_as().map_or_else(user_id, |peer| peer.uid);
        Ok((uid, ConfinedStore::open(entry, &self.origin.open)?, self.account(entry)))
    }

    fn user(&self, entry: &UserEntry) -> Result<Arc<User>> {
        let (entries, users) = &self.users;
        let is_unchanged = entries.get(entry.access_key.as_str()).is_some_and(|before| *before == entry);
        if let Some(known) = users.get(&entry.access_key).filter(|_| is_unchanged) {
            return Ok(known.clone());
        }
        let (uid, store, account) = self.open(entry)?;
        Ok(User::new(entry.name.clone(), entry.keys(), uid, store, account))
    }

    fn role(&self, entry: &RoleEntry) -> Result<Arc<Role>> {
        let (entries, roles) = &self.roles;
        let is_unchanged = entries.get(entry.name.as_str()).is_some_and(|before| *before == entry);
        if let Some(known) = roles.get(&entry.name).filter(|_| is_unchanged) {
            return Ok(known.clone());
        }
        let (id_claims, of_user) = (entry.id_claims(), entry.as_user());
        let (uid, store, account) = match id_claims {
            None => self.open(&of_user)?,
            Some(_) => (user_id(), Arc::new(MemoryStore::default()) as _, self.account(&of_user)),
        };
        let user = User::with((entry.name.clone(), UserKind::Keys, uid), None, store, account);
        let (assumed_by, trusts) = (entry.assumed_by.clone(), entry.oidc.clone());
        let (open, opened) = (self.origin.open.clone(), Mutex::default());
        let claimed = ClaimMappedUsers { entry: of_user, open, opened };
        let max_duration_s = entry.max_duration_s();
        Ok(Arc::new(Role { user, assumed_by, trusts, max_duration_s, id_claims, claimed }))
    }
}

/// Returns the opened user or role. After an error, stores the first error in `failed`, and returns `None`.
fn kept<T>(opened: Result<T>, failed: &mut Option<Error>) -> Option<T> {
    opened.map_err(|error| failed.get_or_insert(error)).ok()
}

/// Checks that the user of anonymous requests is none of the users and roles in `document`. Errors: `InvalidArgument`.
fn check_anonymous(origin: &GatewayUserSource, document: &UsersDocument) -> Result<()> {
    let Some(user) = &origin.anonymous else { return Ok(()) };
    let uid = user.acts_as.as_ref().map(|peer| peer.uid);
    let roles = document.role.iter().map(RoleEntry::as_user);
    let mut entries = document.user.iter().cloned().chain(roles);
    match entries.find(|entry| entry.acts_as().map(|peer| peer.uid) == uid) {
        None => Ok(()),
        Some(entry) => {
            let why = format!(
                "anonymous requests need a separate user, and {:?} has the same uid as {:?}; name another user",
                user.name, entry.name
            );
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

fn only(identity: AccessKeyPair, store: Arc<dyn Store>, limits: UserLimits) -> UsersByKey {
    let (name, account) =
        (identity.access_key.clone(), UserResourceUsage::new(UserLimitOverrides::default(), limits));
    HashMap::from([(name.clone(), User::new(name, identity, user_id(), store, account))])
}

/// Returns the device and inode numbers that identify a directory.
fn place_of(root: &Path) -> std::io::Result<(u64, u64)> {
    let found = std::fs::metadata(root)?;
    Ok((found.dev(), found.ino()))
}
