//! The gateway: its configuration, accepting connections and distributing them to threads, and graceful shutdown.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use crate::answer::{ConnectionRequestLimits, GatewayState};
use crate::domains::BucketDomains;
use crate::http1::FastPath;
#[cfg(feature = "http3")]
use crate::http3;
use crate::identity::{NAMELESS_REGION, is_region};
use crate::limits::{LimitCounters, UnauthenticatedConnections, UserLimits};
use crate::monitor::{self, AccessLog, HealthMetricsSource, RequestMonitor};
use crate::sockets::{GatewaySockets, cannot_listen};
use crate::sts::TokenService;
use crate::watch::{HeapTrimmer, ReloadSignal, WatchReceiver, WatchThread, words};
use crate::webhook::put_webhooks;
use crate::workers::{ServingThreadPool, new_runtime, no_thread};
use crate::{SessionTokenKeys, TlsCertificate, Users, Webhook, connection, s3};

/// The time for which connections without a request remain open after the gateway begins to stop. If these connections
/// were closed immediately, requests that are in transit would fail. During this time, the gateway answers a request in
/// transit, and the response announces the end of the connection. A longer time would not help a client that reads from
/// its connection only when it sends a request. Such a client notices the end of the connection only with its next
/// request.
pub(crate) const IDLE_CLOSE_DELAY: Duration = Duration::from_secs(1);
/// The pause of the accept loop after an error, for example because the process has run out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// The minimum time between two warnings that a connection cannot be accepted.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The configuration of a gateway. [`GatewayConfig::new`] fills in defaults.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The address to listen on; port 0 picks any free port.
    pub listen: SocketAddr,
    /// The certificate presented to clients; `None` means that connections are not encrypted.
    pub tls: Option<TlsCertificate>,
    /// Whether to serve HTTP/3 as well, over UDP on the same address; requires `tls`.
    #[cfg(feature = "http3")]
    pub http3: bool,
    /// Domains that a bucket's name may precede in a host name, as in `BUCKET.s3.example.org`. For other host names,
    /// the path names the bucket.
    pub domains: Vec<String>,
    /// The address that serves `/metrics`, `/health` and `/ready`. Requests to this address need no signature.
    pub metrics: Option<SocketAddr>,
    /// The file of the access log; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// The maximum number of bytes of a request's head.
    pub head_bytes_max: usize,
    /// The maximum number of bytes of a request's body.
    pub body_bytes_max: u64,
    /// The region of the buckets; signatures for any region are accepted. The gateway refuses to create buckets in
    /// other regions. If this field is `None`, clients may create buckets in any region, and the gateway reports
    /// `us-east-1`.
    pub region: Option<String>,
    /// Whether to also accept version 2 signatures, which clients from before 2014 send. Version 2 signatures cover
    /// less of a request than version 4 signatures.
    pub signature_v2: bool,
    /// The maximum number of threads that serve connections; 0 means one thread per core. The gateway uses only as many
    /// threads as the load needs.
    pub threads: usize,
    /// The maximum number of open connections (0 counts as 1); further clients wait in the listen queue.
    pub connections_max: u32,
    /// The maximum time that a client may take to send a request's head, including the idle time before the head.
    pub header_timeout: Duration,
    /// The maximum pause of a client that is sending or receiving a body.
    pub stall_timeout: Duration,
    /// The minimum rate of a body in bytes per second, in either direction; 0 for no limit. The rate is averaged over
    /// periods. In each period, the gateway waits for the client for a total of `stall_timeout`.
    pub body_bytes_per_s_min: u64,
    /// The limits on users whose entries in the credentials file specify no limits.
    pub user_limits: UserLimits,
    /// The maximum number of open connections from one address that have not carried a request with a valid signature.
    /// All addresses of an IPv6 /64 network count as one.
    pub address_connections_max: u32,
    /// The maximum time for which requests in progress may continue after the gateway begins to stop.
    pub drain_timeout: Duration,
    /// The key that authenticates session tokens. If this field is `None`, the gateway generates a key, so tokens
    /// become invalid when this process exits.
    pub session_key: Option<SessionTokenKeys>,
    /// The webhooks that notification configurations may name. The gateway validates their names and shows their
    /// counters; another thread delivers the events.
    pub webhooks: Vec<Arc<Webhook>>,
}

impl GatewayConfig {
    /// Returns the defaults: no TLS, no HTTP/3, no domain, no region, no access log, no metrics, no webhooks.
    /// The gateway uses at most one thread per core. It accepts at most 16,384 connections, and at most 4,096 of them
    /// from one address without a valid signature. A user may have up to 8,192 connections, and up to 8,192 requests in
    /// flight. A client may take up to 60 s to send a head, which may have up to 64 KiB. Bodies of any size are
    /// accepted, with pauses of up to 30 s and at least 100 bytes per second. Draining may take up to 10 s.
    pub fn new(listen: SocketAddr) -> Self {
        GatewayConfig {
            listen,
            tls: None,
            #[cfg(feature = "http3")]
            http3: false,
            domains: Vec::new(),
            metrics: None,
            access_log: None,
            head_bytes_max: 64 * 1024,
            body_bytes_max: u64::MAX,
            region: None,
            signature_v2: false,
            threads: 0,
            connections_max: 16_384,
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
            body_bytes_per_s_min: 100,
            user_limits: UserLimits::default(),
            address_connections_max: 4096,
            drain_timeout: Duration::from_secs(10),
            session_key: None,
            webhooks: Vec::new(),
        }
    }

    /// Returns the region that the gateway reports to clients.
    pub fn reported_region(&self) -> &str {
        self.region.as_deref().unwrap_or(NAMELESS_REGION)
    }
}

/// Stops a gateway. All clones of a handle stop the same gateway. The handle can be used from any thread.
#[derive(Clone, Debug)]
pub struct GatewayStopHandle(Arc<watch::Sender<bool>>);

impl GatewayStopHandle {
    pub(crate) fn new() -> Self {
        GatewayStopHandle(Arc::new(watch::Sender::new(false)))
    }

    /// Makes the gateway stop accepting connections and finish the requests in progress. Further calls have no effect.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }
}

/// The receiving end of [`GatewayStopHandle`].
#[derive(Clone)]
pub(crate) struct StopReceiver(watch::Receiver<bool>);

impl From<&GatewayStopHandle> for StopReceiver {
    fn from(stop: &GatewayStopHandle) -> Self {
        StopReceiver(stop.0.subscribe())
    }
}

impl StopReceiver {
    /// Returns whether [`GatewayStopHandle::trigger`] has been called.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when [`GatewayStopHandle::trigger`] is called.
    pub(crate) async fn over(mut self) {
        // An error means that the gateway and every `GatewayStopHandle` were dropped.
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }

    /// Completes [`IDLE_CLOSE_DELAY`] after [`GatewayStopHandle::trigger`] is called.
    pub(crate) async fn over_and_left(self) {
        self.over().await;
        sleep(IDLE_CLOSE_DELAY).await;
    }
}

/// An S3 gateway that is bound to its address but is not serving requests yet.
pub struct Gateway {
    sockets: GatewaySockets,
    address: SocketAddr,
    config: GatewayConfig,
    users: Arc<Users>,
    service: s3s::service::S3Service,
    fast_path: FastPath,
    domains: BucketDomains,
    tokens: TokenService,
    monitor: Arc<RequestMonitor>,
    counters: Arc<LimitCounters>,
    reload: ReloadSignal,
    words: Option<WatchReceiver>,
    stop: GatewayStopHandle,
}

impl Gateway {
    /// Binds the address. After this call, clients can connect, but get no response until the gateway runs. Errors:
    /// `InvalidArgument` for an address that is in use or does not belong to this machine, for a region that is not
    /// lower-case letters, digits and hyphens, and for a domain that is not a host name; `AccessDenied`, `Io`.
    pub fn bind(users: Users, config: GatewayConfig) -> Result<Self> {
        let sockets = GatewaySockets::bind(&config)?;
        Gateway::on(sockets, users, config)
    }

    /// Creates a gateway on `sockets` instead of the addresses in `config`. Errors: as for [`Gateway::bind`].
    pub fn on(sockets: GatewaySockets, users: Users, config: GatewayConfig) -> Result<Self> {
        if !is_region(config.reported_region()) {
            let detail = format!(
                "the region {:?} is not lower-case letters, digits and hyphens; correct it",
                config.reported_region()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let domains = BucketDomains::new(&config.domains)?;
        let tokens = TokenService::new(config.session_key.clone())?;
        let address = sockets.local_addr()?;
        let log = config.access_log.as_deref().map(AccessLog::open).transpose()?;
        let monitor = Arc::new(RequestMonitor::new(log));
        users.limit(config.user_limits);
        let users = Arc::new(users);
        let publishing = Arc::new(s3::PublishLatency::default());
        let service = s3::service(users.clone(), &config, domains.clone(), publishing.clone());
        let fast_path = FastPath::new(users.clone(), domains.clone(), publishing);
        let ((reload, words), stop) = (words(), GatewayStopHandle::new());
        Ok(Gateway {
            sockets,
            address,
            config,
            users,
            service,
            fast_path,
            domains,
            tokens,
            monitor,
            counters: Arc::default(),
            reload,
            words: Some(words),
            stop,
        })
    }

    /// Returns the bound address, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bound address of metrics and health responses.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.sockets.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns a handle that stops this gateway.
    pub fn stop_handle(&self) -> GatewayStopHandle {
        self.stop.clone()
    }

    /// Returns a handle that makes this gateway reload its credentials file and reopen its access log. The handle does
    /// not reload the certificate; see [`TlsCertificate::reload`].
    pub fn reload_handle(&self) -> ReloadSignal {
        self.reload.clone()
    }

    /// Serves until [`GatewayStopHandle::trigger`] is called, and then for at most another `drain_timeout`. Errors:
    /// `Io` if threads cannot be started.
    pub fn run(self) -> Result<()> {
        let runtime = new_runtime()?;
        let workers = self.start_workers()?;
        tracing::info!(address = %self.address, threads = workers.len(), "serving S3 over HTTP");
        let drained = runtime.block_on(self.serve(&workers));
        workers.finish();
        drained
    }

    /// Starts to serve on separate threads, until the returned gateway is stopped or dropped.
    pub fn spawn(self) -> Result<RunningGateway> {
        let (address, stop) = (self.address, self.stop_handle());
        let (metrics, reload) = (self.metrics_addr(), self.reload_handle());
        let named = thread::Builder::new().name("fordway-accept".to_owned());
        let thread = named.spawn(move || self.run()).map_err(no_thread)?;
        Ok(RunningGateway { address, metrics, reload, stop, thread: Some(thread) })
    }

    fn start_workers(&self) -> Result<ServingThreadPool> {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        ServingThreadPool::start(if self.config.threads == 0 { cores() } else { self.config.threads })
    }

    async fn serve(mut self, workers: &ServingThreadPool) -> Result<()> {
        let connections_max = self.config.connections_max.max(1);
        let slots = Arc::new(Semaphore::new(connections_max as usize));
        self.serve_metrics(&slots)?;
        let watch = self.watch()?;
        let listener = tokio::net::TcpListener::from_std(self.sockets.http)
            .map_err(|error| cannot_listen(self.address, error))?;
        let drain_timeout = self.config.drain_timeout;
        #[cfg(feature = "http3")]
        let http3 =
            self.sockets.quic.map(|socket| quic_listener(socket, &self.config)).transpose()?.flatten();
        let addresses = UnauthenticatedConnections::new(
            self.config.address_connections_max.max(1),
            self.counters.clone(),
        );
        let mut limits = ConnectionRequestLimits::from(&self.config);
        limits.body.counters = self.counters;
        let shared = Arc::new(GatewayState {
            service: self.service,
            fast_path: self.fast_path,
            domains: self.domains,
            tokens: Some(self.tokens),
            users: self.users,
            monitor: self.monitor,
            #[cfg(feature = "http3")]
            http3: http3.as_ref().and_then(|_| elsewhere(self.address)),
            #[cfg(not(feature = "http3"))]
            http3: None,
            limits,
            addresses,
            region: self.config.reported_region().to_owned(),
            tls: self.config.tls,
            allows_version_2: self.config.signature_v2,
        });
        let clients =
            ClientAcceptor { workers, slots: &slots, shared, stopped: StopReceiver::from(&self.stop) };
        let accept = async {
            #[cfg(feature = "http3")]
            tokio::join!(clients.accept(&listener), clients.accept_http3(http3.as_ref()));
            #[cfg(not(feature = "http3"))]
            clients.accept(&listener).await;
        };
        tokio::select! {
            () = accept => {}
            () = workers.balance() => {}
        }
        // After these values are dropped, no client can connect, and the access log remains open only as long as
        // connections are open.
        drop((listener, watch));
        let all = slots.acquire_many(connections_max);
        if tokio::time::timeout(drain_timeout, all).await.is_err() {
            let open = connections_max as usize - slots.available_permits();
            tracing::warn!(connections = open, "closing connections that did not finish in time");
        }
        #[cfg(feature = "http3")]
        if let Some(http3) = http3 {
            http3.close().await;
        }
        Ok(())
    }

    /// Starts the server for metrics and health if its address is configured.
    fn serve_metrics(&mut self, slots: &Arc<Semaphore>) -> Result<()> {
        let Some(metrics) = self.sockets.metrics.take() else { return Ok(()) };
        let vitals = GatewayHealth {
            monitor: self.monitor.clone(),
            counters: self.counters.clone(),
            users: self.users.clone(),
            webhooks: self.config.webhooks.clone(),
            slots: slots.clone(),
            connections_max: self.config.connections_max.max(1) as usize,
            stopped: StopReceiver::from(&self.stop),
        };
        let failed = |error| Error::new(ErrorKind::Io, "listening for metrics").caused_by(error);
        let listener = tokio::net::TcpListener::from_std(metrics).map_err(failed)?;
        tokio::spawn(monitor::serve(listener, Arc::new(vitals)));
        Ok(())
    }

    /// Starts the thread that watches the gateway's directory and files.
    fn watch(&mut self) -> Result<Option<WatchThread>> {
        let Some(words) = self.words.take() else { return Ok(None) };
        // The access log is flushed when its last owner drops it. The thread may briefly outlive the gateway, so it has
        // only a weak reference to the monitor, which owns the log.
        let (users, monitor) = (self.users.clone(), Arc::downgrade(&self.monitor));
        let mut heap = HeapTrimmer::default();
        let watch = WatchThread::start(self.reload.clone(), words, move |is_asked| {
            heap.look();
            users.look(is_asked);
            if is_asked
                && let Some(monitor) = monitor.upgrade()
                && let Some(log) = &monitor.log
            {
                log.reopen();
            }
        });
        watch.map(Some)
    }
}

/// Accepts TCP and QUIC clients, one for each free slot, and passes their connections to the threads.
struct ClientAcceptor<'w> {
    workers: &'w ServingThreadPool,
    slots: &'w Arc<Semaphore>,
    shared: Arc<GatewayState>,
    stopped: StopReceiver,
}

impl ClientAcceptor<'_> {
    /// Accepts TCP connections until the gateway is stopped.
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        let mut over = pin!(self.stopped.clone().over());
        let mut warned = None;
        loop {
            let (socket, slot) = tokio::select! {
                accepted = next_connection(listener, self.slots, &mut warned) => accepted,
                () = over.as_mut() => break,
            };
            let (shared, stopped) = (self.shared.clone(), self.stopped.clone());
            self.workers.serve(async move {
                connection::serve(socket, &shared, stopped).await;
                drop(slot);
            });
        }
    }

    /// Accepts QUIC connections until the gateway is stopped. The thread that reads the UDP socket distributes its
    /// datagrams to the connections.
    #[cfg(feature = "http3")]
    async fn accept_http3(&self, listener: Option<&http3::QuicListener>) {
        let Some(listener) = listener else { return };
        let mut over = pin!(self.stopped.clone().over());
        loop {
            // An attacker can send Initial packets from many spoofed addresses. Therefore, a client gets a slot only
            // when its address is validated, either now or by the handshake.
            let accepted = async {
                let accepted = listener.accept().await?;
                let slot = match accepted.is_validated() {
                    true => self.slots.clone().acquire_owned().await.ok(),
                    false => None,
                };
                Some((accepted, slot))
            };
            let accepted = tokio::select! {
                accepted = accepted => accepted,
                () = over.as_mut() => None,
            };
            let Some((accepted, slot)) = accepted else { break };
            let (shared, stopped) = (self.shared.clone(), self.stopped.clone());
            let slots = self.slots.clone();
            self.workers.serve(async move {
                crate::workers::stay();
                http3::serve(accepted, (slot, slots), &shared, stopped).await;
            });
        }
        listener.refuse_all();
    }
}

/// Listens for HTTP/3 on a socket; `None` if the gateway has no certificate. Errors: `InvalidArgument`, `Io`.
#[cfg(feature = "http3")]
fn quic_listener(socket: std::net::UdpSocket, config: &GatewayConfig) -> Result<Option<http3::QuicListener>> {
    let Some(tls) = config.tls.clone() else { return Ok(None) };
    let secret = match &config.session_key {
        Some(keys) => keys.secret(),
        None => tls.secret()?,
    };
    let limits = (config.header_timeout, config.connections_max);
    http3::QuicListener::start(socket, tls, &secret, limits).map(Some)
}

/// Returns the `Alt-Svc` value that tells TCP clients that HTTP/3 is available on the same port.
#[cfg(feature = "http3")]
fn elsewhere(address: SocketAddr) -> Option<http::HeaderValue> {
    http::HeaderValue::try_from(format!("h3=\":{}\"; ma=86400", address.port())).ok()
}

/// The data for metrics and health responses.
struct GatewayHealth {
    monitor: Arc<RequestMonitor>,
    counters: Arc<LimitCounters>,
    users: Arc<Users>,
    webhooks: Vec<Arc<Webhook>>,
    slots: Arc<Semaphore>,
    connections_max: usize,
    stopped: StopReceiver,
}

impl HealthMetricsSource for GatewayHealth {
    fn is_ready(&self) -> bool {
        !self.stopped.is_stopped() && self.users.has_root()
    }

    fn metrics(&self) -> String {
        // The accept loop itself holds one slot while it waits for the next connection.
        let taken = self.connections_max - self.slots.available_permits();
        let mut text = self.monitor.metrics.text(taken.saturating_sub(1), self.users.is_available());
        let (users, roles, anonymous) = (self.users.all(), self.users.roles(), self.users.anonymous());
        let all = users.values().chain(roles.values().map(|role| &role.user)).chain(&anonymous);
        // A user with several access keys has one set of counters.
        let accounts: BTreeMap<_, _> = all.map(|user| (user.account.id(), user)).collect();
        let counts = accounts.values().map(|user| (user.name.as_str(), user.account.counts()));
        monitor::put_limits(&mut text, &self.counters, counts);
        put_webhooks(&mut text, &self.webhooks);
        text
    }
}

/// Waits for a free slot, then for the next connection. `warned` is the time of the last warning.
async fn next_connection(
    listener: &tokio::net::TcpListener,
    slots: &Arc<Semaphore>,
    warned: &mut Option<Instant>,
) -> (std::net::TcpStream, OwnedSemaphorePermit) {
    loop {
        let slot = slots.clone().acquire_owned().await.expect("nothing closes the semaphore");
        let accepted = listener.accept().await.and_then(|(socket, peer)| {
            socket.set_nodelay(true)?;
            fordway_sys::send_unpaced_on_loopback(&socket, peer.ip())?;
            socket.into_std()
        });
        match accepted {
            Ok(socket) => return (socket, slot),
            // The client closed the connection before it was accepted, so there is no reason to pause.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if is_warning_due(warned) {
                    tracing::warn!(%error, "cannot accept a connection; if file descriptors ran out, raise `ulimit -n`");
                }
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// Returns whether a warning is due after the previous one at `warned`, and records the new warning.
pub(crate) fn is_warning_due(warned: &mut Option<Instant>) -> bool {
    let is_due = warned.is_none_or(|warned| warned.elapsed() > WARNING_INTERVAL);
    if is_due {
        *warned = Some(Instant::now());
    }
    is_due
}

/// A gateway that serves on its own threads. Dropping this value stops the gateway and waits until the gateway has
/// stopped.
pub struct RunningGateway {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    reload: ReloadSignal,
    stop: GatewayStopHandle,
    thread: Option<JoinHandle<Result<()>>>,
}

impl RunningGateway {
    /// Returns the address that the gateway serves.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the gateway's metrics and health responses.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Returns a handle that makes the gateway reload its files (see [`Gateway::reload_handle`]).
    pub fn reload_handle(&self) -> ReloadSignal {
        self.reload.clone()
    }

    /// Returns a handle that stops the gateway.
    pub fn stop_handle(&self) -> GatewayStopHandle {
        self.stop.clone()
    }

    /// Waits until the gateway has stopped; does not stop the gateway. Errors: from [`Gateway::run`]; `Internal` if
    /// its thread panicked.
    pub fn join(mut self) -> Result<()> {
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the gateway's thread panicked")))
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        self.stop.trigger();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "the gateway ended with an error");
        }
    }
}
