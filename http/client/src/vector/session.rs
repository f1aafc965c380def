//! The resources that reads of many files share: connections, the limits on connections, and the policy for failures.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::PerProcess;

use crate::connection::BufferedConnection;
use crate::retry::{RetryBudget, StagingRetries};
use crate::{
    HttpClient, HttpVersion, Origin, ProxySettings, SessionCredentials, TIME_LIMIT_MAX, Timeouts, TlsRoots,
};

/// The settings of an [`HttpSession`].
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The HTTP version to use.
    pub http: HttpVersion,
    /// The timeouts of connections and requests.
    pub timeouts: Timeouts,
    /// The trusted certificate authorities.
    pub tls_roots: TlsRoots,
    /// Credentials for servers whose files are opened by URL.
    pub credentials: SessionCredentials,
    /// Headers for every request for a file by URL: pairs of a name and a value, which must be valid in HTTP. These
    /// headers replace other headers of the same names. Because their values may be secrets, these headers are sent
    /// only to hosts that the caller named.
    pub headers: Arc<[(String, String)]>,
    /// The proxies through which requests are sent.
    pub proxies: ProxySettings,
    /// The minimum timeout for the second response when two requests are pipelined to a server that has not yet
    /// answered pipelined requests. After the timeout, the second request is sent again, and requests are no longer
    /// pipelined to this server. The timeout is 4 times the wait for the first response, if that time is longer. The
    /// timeout is multiplied by 4 if the server has already responded to a request that was sent before the previous
    /// response had ended.
    pub patience: Duration,
    /// The maximum number of connections to one origin at the same time, at least 1.
    pub connections_per_origin: usize,
    /// The maximum number of outstanding bytes per file; a larger request is sent alone.
    pub window_bytes: u64,
    /// The time limit for a whole operation: an open, a call that waits, a batch (from its submission), or a copy. No
    /// attempt begins after the limit.
    pub deadline: Option<Duration>,
    /// The maximum number of retries without any bytes arriving in between.
    pub max_retries: u32,
    /// Whether to ask the server, before a large body is sent, whether it accepts the request (`Expect: 100-continue`).
    pub asks_first: bool,
    /// The only origin that gets `credentials` and `headers`, and the credentials for the others. With `None`, every
    /// origin that the caller names gets `credentials` and `headers`.
    pub scope: Option<CredentialScope>,
    /// The retries of a read while the server fetches the file, for example from tape (status 202). With `None`, such a
    /// response counts as any other failure that may be temporary.
    pub staging: Option<StagingRetries>,
}

/// Limits credentials and headers to one origin.
#[derive(Clone, Debug)]
pub struct CredentialScope {
    /// The origin that gets the credentials and headers of the session.
    pub origin: Origin,
    /// The credentials for all other origins that the caller names.
    pub elsewhere: SessionCredentials,
}

impl SessionOptions {
    /// Returns options with the credentials, proxies, certificate authorities and HTTP version from the environment.
    /// `ca_bundle` overrides `AWS_CA_BUNDLE`. Errors: `InvalidArgument` for an unknown HTTP version.
    pub fn discover(ca_bundle: Option<PathBuf>) -> Result<Self> {
        let named = || std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(SessionOptions {
            http: HttpVersion::resolve(&|name| std::env::var(name).ok())?,
            tls_roots: TlsRoots::find(ca_bundle.or_else(named)),
            credentials: SessionCredentials::discover(),
            proxies: ProxySettings::discover(),
            ..SessionOptions::default()
        })
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            http: HttpVersion::default(),
            timeouts: Timeouts::default(),
            tls_roots: TlsRoots::System,
            credentials: SessionCredentials::none(),
            headers: Arc::default(),
            proxies: ProxySettings::none(),
            patience: Duration::from_millis(250),
            connections_per_origin: 8,
            window_bytes: 64 << 20,
            deadline: None,
            max_retries: 4,
            asks_first: true,
            scope: None,
            staging: None,
        }
    }
}

/// Connections to servers, with one set of TLS settings and one set of credentials. Sessions never share connections.
/// Threads may share a session. Each call has exclusive use of its connection, and then returns it to the session.
pub struct HttpSession {
    pub(crate) options: SessionOptions,
    pub(crate) http: Arc<HttpClient>,
    in_use: Arc<PerProcess<OriginConnectionLimiter>>,
    /// Permanent redirections, by URL, that were received with these credentials.
    moved: PerProcess<Mutex<HashMap<String, String>>>,
    /// A session without credentials, created when a redirection leads to another host.
    stranger: OnceLock<Arc<HttpSession>>,
    /// A session for origins outside of the scope of the credentials, created when such an origin is first named.
    elsewhere: OnceLock<Arc<HttpSession>>,
}

/// Limits the connections that are in use at each origin.
#[derive(Default)]
struct OriginConnectionLimiter {
    by_origin: Mutex<HashMap<Origin, usize>>,
    freed: Condvar,
}

/// The right to use one of an origin's connections; dropping the permit returns the right.
pub(crate) struct ConnectionPermit {
    origin: Origin,
    in_use: Arc<PerProcess<OriginConnectionLimiter>>,
}

impl HttpSession {
    /// Creates a session without connections.
    pub fn new(mut options: SessionOptions) -> Self {
        options.timeouts = options.deadline.map_or(options.timeouts, |limit| options.timeouts.within(limit));
        let (roots, who) = (options.tls_roots.clone(), options.credentials.clone());
        let http = HttpClient::identified(options.http, options.timeouts, roots, who);
        let http = http.through(options.proxies.clone());
        HttpSession::over(Arc::new(http), options)
    }

    /// Creates a session that uses another client's connections. The options for TLS and proxies are ignored, and the
    /// HTTP version must match the connections' version.
    pub fn over(http: Arc<HttpClient>, mut options: SessionOptions) -> Self {
        options.deadline = options.deadline.map(|limit| limit.min(TIME_LIMIT_MAX));
        HttpSession {
            http,
            options,
            in_use: Arc::default(),
            moved: PerProcess::default(),
            stranger: OnceLock::new(),
            elsewhere: OnceLock::new(),
        }
    }

    /// Returns a session with the same options, but without the credentials and headers of the caller. The new session
    /// is used when a server redirects to another origin. The new session has separate connections, none of which was
    /// opened with credentials.
    pub(crate) fn without_credentials(self: &Arc<Self>) -> Arc<HttpSession> {
        if self.options.credentials.is_none() && self.options.headers.is_empty() {
            return self.clone();
        }
        let (credentials, headers) = (SessionCredentials::none(), Arc::default());
        let options = || SessionOptions { credentials, headers, scope: None, ..self.options.clone() };
        self.stranger.get_or_init(|| Arc::new(HttpSession::new(options()))).clone()
    }

    /// Returns the session for a URL of `origin` that the caller named: this session, or, outside of the scope of its
    /// credentials, a session with the credentials for other origins.
    pub(crate) fn at(self: &Arc<Self>, origin: &Origin) -> Arc<HttpSession> {
        let Some(scope) = self.options.scope.as_ref().filter(|scope| scope.origin != *origin) else {
            return self.clone();
        };
        let (credentials, headers) = (scope.elsewhere.clone(), Arc::default());
        let options = || SessionOptions { credentials, headers, scope: None, ..self.options.clone() };
        self.elsewhere.get_or_init(|| Arc::new(HttpSession::new(options()))).clone()
    }

    /// Returns the permanent redirections known so far.
    pub(super) fn moved(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the deadline of an operation that starts now.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.options.deadline.map(|deadline| Instant::now() + deadline)
    }

    /// Returns the retry budget of an operation that starts now.
    pub(crate) fn retries(&self) -> RetryBudget {
        RetryBudget::new(self.options.max_retries, self.until()).while_staging(self.options.staging)
    }

    /// Returns a permit if one is available without waiting.
    pub(super) fn try_permit(&self, origin: &Origin) -> Option<ConnectionPermit> {
        self.take_permit(&mut self.in_use.locked(), origin)
    }

    /// Waits for a permit. Errors: `Timeout`; `Interrupted` if the program must stop after a signal.
    pub(crate) fn permit(&self, origin: &Origin) -> Result<ConnectionPermit> {
        let limit = self.options.timeouts.first_byte;
        let deadline = Instant::now() + limit;
        let mut in_use = self.in_use.locked();
        loop {
            if let Some(permit) = self.take_permit(&mut in_use, origin) {
                return Ok(permit);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let detail = format!(
                    "all {} connections to {origin} were in use for {limit:?}; wait for submitted reads, or allow more connections",
                    self.options.connections_per_origin
                );
                return Err(Error::new(ErrorKind::Timeout, detail));
            }
            fordway_sys::after_signal()
                .map_err(|_| Error::new(ErrorKind::Interrupted, "a signal interrupted the wait"))?;
            let step = fordway_sys::wait_at_most(left);
            in_use = self.in_use.freed.wait_timeout(in_use, step).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take_permit(&self, in_use: &mut HashMap<Origin, usize>, origin: &Origin) -> Option<ConnectionPermit> {
        match in_use.get_mut(origin) {
            Some(count) if *count >= self.options.connections_per_origin.max(1) => return None,
            Some(count) => *count += 1,
            None => drop(in_use.insert(origin.clone(), 1)),
        }
        Some(ConnectionPermit { origin: origin.clone(), in_use: self.in_use.clone() })
    }

    /// Returns a connection, and whether it is new. Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    pub(super) fn connection(&self, origin: &Origin) -> Result<(BufferedConnection, bool)> {
        match self.http.pooled_connection(origin) {
            Some(connection) => Ok((connection, false)),
            None => Ok((self.http.connect(origin)?, true)),
        }
    }
}

impl OriginConnectionLimiter {
    fn locked(&self) -> MutexGuard<'_, HashMap<Origin, usize>> {
        self.by_origin.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut in_use = self.in_use.locked();
        match in_use.get_mut(&self.origin) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(in_use.remove(&self.origin)),
        }
        drop(in_use);
        // Wake all waiting threads, because some may be waiting for connections to other origins.
        self.in_use.freed.notify_all();
    }
}
