//! The node gateway: its configuration, binding its sockets, accepting connections, and graceful shutdown.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{keep_alive, peer_of, user_id};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};

use crate::node::access::{NodeAccessControl, NodeLimits, ResourceSemaphore};
use crate::node::accounts::{NodeConnectedUsers, NodeUserLimits};
use crate::node::connection::{
    ClientSlot, ClientTransport, ConnectionClient, GatewayConnection, NodeGatewayState, refuse,
};
use crate::node::http::HttpService;
use crate::node::socket_file::SocketFile;
use crate::node::stats::{BusyConnectionCounter, NodeStats};
use crate::{AccessKeyPair, StoreOpenFunction, UserLimits};

/// The pause of the accept loop after an error, for example because the process has run out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// The minimum time between two warnings that clients cannot be accepted.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of TCP connections that are not authenticated yet. The limit is lower if a quarter of the maximum
/// number of connections is less than this number.
const STRANGERS_MAX: usize = 256;
/// The interval at which a stopping gateway checks whether all connections have ended.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// The configuration of a node gateway. [`NodeGatewayConfig::new`] fills in defaults.
#[derive(Clone, Debug)]
pub struct NodeGatewayConfig {
    /// The path of the Unix socket, at most 107 bytes long.
    pub socket: PathBuf,
    /// The socket's permissions. `None` means 0600, or 0666 if the gateway runs as root, because the kernel then
    /// identifies each caller.
    pub mode: Option<u32>,
    /// The uids of other users who may use a gateway that does not run as root. The requests of these users access
    /// files as the gateway's user.
    pub allow_uids: Vec<u32>,
    /// The settings for TCP; `None` means no TCP.
    pub tcp: Option<NodeTcpConfig>,
    /// The maximum number of open connections; further clients are refused.
    pub connections_max: usize,
    /// The number of bytes that all connections together may use for long messages and their responses, in addition to
    /// 256 KiB for each connection.
    pub memory_bytes_max: usize,
    /// The maximum part of `memory_bytes_max`, in bytes, that one connection may use.
    pub connection_bytes_max: usize,
    /// The maximum number of requests in progress; `None` for one per connection.
    pub requests_max: Option<usize>,
    /// The maximum number of open connections of one user; further connections are refused. TCP connections count as
    /// connections of the gateway's user as soon as they are authenticated. Of the connections that are not
    /// authenticated yet, at most 256 are open, and at most a quarter of `connections_max`.
    pub user_connections_max: usize,
    /// The maximum part of `memory_bytes_max`, in bytes, that all connections of one user together may use.
    pub user_memory_bytes_max: usize,
    /// The limits on one user's requests. The rate and the weight apply to connections that use HTTP.
    pub user_limits: UserLimits,
    /// The time for which a thread polls for the next request before it sleeps, if cores are idle.
    pub lookout: Duration,
    /// Whether a thread moves to another processor if its polling never helps. Polling does not help if, for example,
    /// the client runs on the same processor.
    pub leaves_client: bool,
    /// The maximum time for which a client may pause within a message, or may receive none of its responses. Also the
    /// maximum time for a whole handshake.
    pub stall_timeout: Duration,
    /// The maximum time that clients may take to finish writes in progress after the gateway begins to stop.
    pub drain_timeout: Duration,
}

/// The TCP settings of a node gateway.
#[derive(Clone, Debug)]
pub struct NodeTcpConfig {
    /// The address to listen on; port 0 picks any free port.
    pub listen: SocketAddr,
    /// The keys that clients must know. TCP clients act as the gateway's user.
    pub keys: AccessKeyPair,
    /// Whether TCP is allowed for a gateway that runs as root.
    pub may_be_root: bool,
}

impl NodeGatewayConfig {
    /// Returns the defaults: no TCP, no other users allowed, and 4,096 connections. Long messages may use 256 MiB, of
    /// which one connection may use 32 MiB. One user may use all connections and all of this memory, and may have 8,192
    /// requests in progress. A thread polls for 20 µs and may leave the processor of its client. A stall may last for
    /// 30 s, and draining may take 10 s.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        NodeGatewayConfig {
            socket: socket.into(),
            mode: None,
            allow_uids: Vec::new(),
            tcp: None,
            connections_max: 4096,
            memory_bytes_max: 256 << 20,
            connection_bytes_max: 32 << 20,
            requests_max: None,
            user_connections_max: usize::MAX,
            user_memory_bytes_max: usize::MAX,
            user_limits: UserLimits::default(),
            lookout: Duration::from_micros(20),
            leaves_client: true,
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Stops a node gateway. All clones of a handle stop the same gateway. The handle can be used from any thread.
#[derive(Clone, Debug)]
pub struct NodeStopHandle(Arc<(AtomicBool, OwnedFd)>);

impl NodeStopHandle {
    fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| cannot_start(errno.into()))?;
        Ok(NodeStopHandle(Arc::new((AtomicBool::new(false), wake))))
    }

    /// Makes the gateway stop accepting connections and finish the requests in progress. Further calls have no effect.
    pub fn trigger(&self) {
        self.0.0.store(true, Ordering::Release);
        // This write cannot fail, because the counter's limit is far above the number of calls.
        let _ = rustix::io::write(&self.0.1, &1u64.to_ne_bytes());
    }

    fn is_triggered(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }
}

/// A node gateway that is bound to its socket but does not serve yet.
pub struct NodeGateway {
    unix: SocketFile,
    tcp: Option<(TcpListener, SocketAddr)>,
    shared: Arc<NodeGatewayState>,
    config: NodeGatewayConfig,
    connections: Arc<ConnectionTable>,
    reserve: Mutex<DescriptorReserve>,
    stop: NodeStopHandle,
}

/// A spare file descriptor, with which the gateway can refuse a client if the process has no other descriptor left.
struct DescriptorReserve {
    /// This descriptor is closed so that one client can be accepted, and then refused with a reason.
    descriptor: Option<File>,
    /// The time of the last warning.
    warned: Option<Instant>,
}

impl NodeGateway {
    /// Opens the store and creates the socket. After this call, clients can connect, but get no response until the
    /// gateway runs. Errors: the errors of the store; `InvalidArgument` for a socket path that is too long or in use,
    /// for a file at this path that is not a socket, and for TCP as root; `AccessDenied`, `Io`.
    pub fn bind(open: StoreOpenFunction, config: NodeGatewayConfig) -> Result<Self> {
        let access = NodeAccessControl::new(open, config.allow_uids.clone())?;
        if access.is_root() && config.tcp.as_ref().is_some_and(|tcp| !tcp.may_be_root) {
            let why = "anyone who knows the secret would act as root over TCP; run the gateway as the user whose files \
                       it serves, or use --tcp-as-root";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let tcp = config.tcp.as_ref().map(|tcp| listen_tcp(tcp.listen)).transpose()?;
        let unix = SocketFile::listen(
            &config.socket,
            config.mode.unwrap_or(if user_id() == 0 { 0o666 } else { 0o600 }),
        )?;
        let accounts = NodeConnectedUsers::new(NodeUserLimits {
            connections_max: config.user_connections_max,
            strangers_max: (config.connections_max / 4).clamp(1, STRANGERS_MAX),
            requests: config.user_limits,
            memory_bytes_max: config.user_memory_bytes_max.min(config.memory_bytes_max),
        });
        let shared = Arc::new(NodeGatewayState {
            access,
            accounts,
            keys: config.tcp.as_ref().map(|tcp| tcp.keys.clone()),
            activity: BusyConnectionCounter::new(thread::available_parallelism().map_or(1, usize::from)),
            stats: Arc::new(NodeStats::new()),
            limits: Arc::new(NodeLimits {
                memory: ResourceSemaphore::new(config.memory_bytes_max),
                connection_bytes_max: config.connection_bytes_max,
                requests: config.requests_max.map(ResourceSemaphore::new),
                patience: config.stall_timeout,
            }),
            lookout: config.lookout,
            leaves_client: config.leaves_client,
            http: HttpService::new(config.stall_timeout, Arc::default()),
        });
        Ok(NodeGateway {
            unix,
            tcp,
            shared,
            config,
            connections: Arc::default(),
            reserve: Mutex::new(DescriptorReserve { descriptor: File::open("/dev/null").ok(), warned: None }),
            stop: NodeStopHandle::new()?,
        })
    }

    /// Returns the endpoint of the Unix socket, with an absolute path.
    pub fn endpoint(&self) -> String {
        let path = self.unix.path();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!("unix://{}", absolute.display())
    }

    /// Returns the bound TCP address, with the actual port.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, address)| *address)
    }

    /// Returns a handle that stops this gateway.
    pub fn stop_handle(&self) -> NodeStopHandle {
        self.stop.clone()
    }

    /// Serves until [`NodeStopHandle::trigger`] is called, and then for at most another `drain_timeout`.
    pub fn run(self) -> Result<()> {
        tracing::info!(endpoint = self.endpoint(), tcp = ?self.tcp_addr(), "serving the node protocol");
        while !self.stop.is_triggered() {
            let is_tcp_ready = self.wait_for_clients();
            self.accept(ClientTransport::Unix, || {
                self.unix.listener.accept().map(|(socket, _)| socket.into())
            });
            if let Some((listener, _)) = self.tcp.as_ref().filter(|_| is_tcp_ready) {
                self.accept(ClientTransport::Tcp, || {
                    let (socket, peer) = listener.accept()?;
                    socket.set_nodelay(true)?;
                    fordway_sys::send_unpaced_on_loopback(&socket, peer.ip())?;
                    keep_alive(&socket)?;
                    Ok(socket.into())
                });
            }
        }
        let NodeGateway { unix, tcp, shared, connections, config, .. } = self;
        // After the sockets are dropped, new clients cannot connect.
        drop((unix, tcp));
        shared.http.stop();
        connections.drain(config.drain_timeout);
        Ok(())
    }

    /// Starts to serve on separate threads, until the returned gateway is stopped or dropped.
    pub fn spawn(self) -> Result<RunningNodeGateway> {
        let (endpoint, tcp, stop) = (self.endpoint(), self.tcp_addr(), self.stop_handle());
        let named = thread::Builder::new().name("fordway-node".to_owned());
        let thread = named.spawn(move || self.run()).map_err(cannot_start)?;
        Ok(RunningNodeGateway { endpoint, tcp, stop, thread: Some(thread) })
    }

    /// Sleeps until a client connects or [`NodeStopHandle::trigger`] is called. Returns whether a client connected over
    /// TCP.
    fn wait_for_clients(&self) -> bool {
        let mut polled =
            vec![PollFd::new(&self.stop.0.1, PollFlags::IN), PollFd::new(&self.unix.listener, PollFlags::IN)];
        polled.extend(self.tcp.as_ref().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
        // A wait that fails or is interrupted is treated like a wait that succeeds.
        let _ = poll(&mut polled, None);
        polled.get(2).is_some_and(|tcp| !tcp.revents().is_empty())
    }

    /// Accepts all clients that are waiting.
    fn accept(&self, by: ClientTransport, mut next: impl FnMut() -> io::Result<OwnedFd>) {
        while !self.stop.is_triggered() {
            match next() {
                Ok(socket) => self.start(socket, by),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The client closed the connection before it was accepted, so there is no reason to pause.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.without_descriptors(&error, &mut next);
                    thread::sleep(ACCEPT_BACKOFF);
                    return;
                }
            }
        }
    }

    /// Refuses one client after an attempt to accept the client has failed with `error`. First closes the spare
    /// descriptor, so that the client's socket can be opened.
    fn without_descriptors(&self, error: &io::Error, next: &mut impl FnMut() -> io::Result<OwnedFd>) {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        if reserve.warned.is_none_or(|warned| warned.elapsed() > WARNING_INTERVAL) {
            reserve.warned = Some(Instant::now());
            tracing::warn!(%error, "cannot accept a connection; if file descriptors ran out, raise `ulimit -n`");
        }
        reserve.descriptor = None;
        if let Ok(socket) = next() {
            self.shared.stats.refused.add(1);
            let why = "the gateway has no file descriptor left for this connection; close other connections, or raise its `ulimit -n`";
            refuse(&socket, &Error::new(ErrorKind::Unavailable, why));
        }
        reserve.descriptor = File::open("/dev/null").ok();
    }

    fn start(&self, socket: OwnedFd, by: ClientTransport) {
        let limit = Some(self.config.stall_timeout);
        let timed = set_socket_timeout(&socket, Timeout::Recv, limit)
            .and_then(|()| set_socket_timeout(&socket, Timeout::Send, limit));
        if let Err(errno) = timed {
            return tracing::warn!(%errno, "the time limits of a connection cannot be set");
        }
        let slot = match by {
            ClientTransport::Unix => self.shared.accounts.connect(uid_of(&socket)).map(ClientSlot::User),
            ClientTransport::Tcp => self.shared.accounts.connect_stranger().map(ClientSlot::Stranger),
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => {
                self.shared.stats.refused.add(1);
                refuse(&socket, &error);
                return;
            }
        };
        let (socket, client) = (Arc::new(socket), ConnectionClient::new(slot));
        let connection = Arc::new(GatewayConnection { socket, by, standing: Arc::default(), client });
        let Some(slot) = self.connections.add(&connection, self.config.connections_max) else {
            self.shared.stats.refused.add(1);
            let most = self.config.connections_max;
            let why = format!(
                "the gateway has {most} connections open, its maximum; close some, or raise --connections"
            );
            refuse(&connection.socket, &Error::new(ErrorKind::Unavailable, why));
            return;
        };
        self.shared.stats.connections.add(1);
        let shared = self.shared.clone();
        let serve = move || {
            connection.serve(&shared);
            shared.stats.connections_ended.add(1);
            // The socket is closed before the slot is freed, so that there are never more open sockets than slots.
            drop(connection);
            drop(slot);
        };
        if let Err(error) = thread::Builder::new().name("fordway-client".to_owned()).spawn(serve) {
            self.shared.stats.connections_ended.add(1);
            tracing::warn!(%error, "a connection is closed, because no thread can be started for it");
        }
    }
}

/// Returns the uid of the user at the other end of a Unix socket, whose limits apply.
fn uid_of(socket: &OwnedFd) -> u32 {
    peer_of(socket).ok().map_or_else(user_id, |peer| peer.uid)
}

/// The open connections.
#[derive(Default)]
struct ConnectionTable(Mutex<Vec<Arc<GatewayConnection>>>);

/// Keeps a connection in the table of open connections until this value is dropped.
struct ConnectionRegistration {
    connections: Arc<ConnectionTable>,
    socket: Arc<OwnedFd>,
}

impl ConnectionTable {
    fn locked(&self) -> MutexGuard<'_, Vec<Arc<GatewayConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection; returns `None` if `most` connections are already open.
    fn add(
        self: &Arc<Self>,
        connection: &Arc<GatewayConnection>,
        most: usize,
    ) -> Option<ConnectionRegistration> {
        let mut open = self.locked();
        (open.len() < most).then(|| {
            open.push(connection.clone());
            ConnectionRegistration { connections: self.clone(), socket: connection.socket.clone() }
        })
    }

    /// Waits for up to `limit` until all clients have received their responses and finished their writes. Then closes
    /// the remaining connections.
    fn drain(&self, limit: Duration) {
        let since = Instant::now();
        while since.elapsed() < limit {
            let open = self.locked();
            if open.is_empty() {
                return;
            }
            for connection in open.iter().filter(|open| open.standing.end()) {
                // The connection's thread still reads the bytes that have already arrived, and then the end of the
                // stream.
                let _ = shutdown(connection.socket.as_fd(), Shutdown::Read);
            }
            drop(open);
            thread::sleep(DRAIN_POLL);
        }
        let open = self.locked();
        tracing::warn!(connections = open.len(), "closing connections that did not finish in time");
        for connection in open.iter() {
            let _ = shutdown(connection.socket.as_fd(), Shutdown::Both);
        }
    }
}

impl Drop for ConnectionRegistration {
    fn drop(&mut self) {
        self.connections.locked().retain(|open| !Arc::ptr_eq(&open.socket, &self.socket));
    }
}

/// A node gateway that serves on its own threads. Dropping this value stops the gateway and waits until the gateway has
/// stopped.
pub struct RunningNodeGateway {
    endpoint: String,
    tcp: Option<SocketAddr>,
    stop: NodeStopHandle,
    thread: Option<JoinHandle<Result<()>>>,
}

impl RunningNodeGateway {
    /// Returns the endpoint of the Unix socket.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the bound TCP address.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Returns a handle that stops the gateway.
    pub fn stop_handle(&self) -> NodeStopHandle {
        self.stop.clone()
    }
}

impl Drop for RunningNodeGateway {
    fn drop(&mut self) {
        self.stop.trigger();
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => tracing::error!("the gateway's thread panicked"),
            Some(Ok(Err(error))) => tracing::error!(%error, "the gateway ended with an error"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

fn listen_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error| crate::sockets::cannot_listen(address, error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn cannot_start(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "starting the gateway").caused_by(error)
}
