//! S3 over HTTP on the Unix socket, for programs that use HTTP instead of the node protocol. The HTTP driver runs on
//! the thread of the connection. If the gateway runs as root, this thread permanently acts as the client's user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use fordway_store::Error;

use crate::answer::{ConnectionRequestLimits, GatewayState, PreparedBody};
use crate::connection::ClientSocket;
use crate::connection::exchange;
use crate::domains::BucketDomains;
use crate::gateway::{GatewayStopHandle, StopReceiver};
use crate::http1::{FastPath, turn_away};
use crate::limits::{
    BodyTransferLimits, ConnectionLimitState, LimitCounters, UnauthenticatedConnections, UserResourceUsage,
};
use crate::monitor::RequestMonitor;
use crate::node::access::AdmittedCaller;
use crate::s3::PublishLatency;
use crate::unsigned::ConnectionPeer;
use crate::users::{User, Users};
use crate::workers::new_runtime;

/// The region reported to clients. The node gateway does not check signatures, so a client may sign for any region.
const REGION: &str = "us-east-1";
/// The maximum time that a client may take to send a request's head, including the idle time before the head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The minimum rate of a body in bytes per second, in either direction.
const BODY_BYTES_PER_S_MIN: u64 = 100;

/// The state that all HTTP connections share.
pub(crate) struct HttpService {
    shared: Arc<GatewayState>,
    stop: GatewayStopHandle,
}

impl HttpService {
    pub(crate) fn new(stall_timeout: Duration, counters: Arc<LimitCounters>) -> Self {
        let users = Arc::new(Users::without_keys());
        let addresses = UnauthenticatedConnections::new(0, counters.clone());
        let limits = ConnectionRequestLimits {
            header_timeout: HEADER_TIMEOUT,
            body: BodyTransferLimits { stall_timeout, bytes_per_s_min: BODY_BYTES_PER_S_MIN, counters },
            head_bytes_max: HEAD_BYTES_MAX,
            body_bytes_max: u64::MAX,
        };
        let publishing = Arc::new(PublishLatency::default());
        let shared = GatewayState {
            service: crate::s3::service_for_peers(publishing.clone()),
            region: REGION.to_owned(),
            allows_version_2: false,
            limits,
            fast_path: FastPath::new(users.clone(), BucketDomains::none(), publishing),
            domains: BucketDomains::none(),
            tokens: None,
            users,
            monitor: Arc::new(RequestMonitor::new(None)),
            addresses,
            tls: None,
            http3: None,
        };
        HttpService { shared: Arc::new(shared), stop: GatewayStopHandle::new() }
    }

    /// Makes every connection end as soon as its requests in progress have been answered.
    pub(super) fn stop(&self) {
        self.stop.trigger();
    }

    /// Serves a client until it closes the connection, or until [`HttpService::stop`] is called. `ahead` contains the
    /// bytes that were already read. A client that is not admitted gets an error response. The calling thread starts
    /// the threads that read for the client, so these threads also act as the client's user.
    pub(crate) fn serve(
        &self,
        socket: &OwnedFd,
        ahead: &[u8],
        (admitted, requests): (Result<AdmittedCaller, Error>, Arc<UserResourceUsage>),
    ) -> io::Result<()> {
        let stream = UnixStream::from(socket.try_clone()?);
        stream.set_nonblocking(true)?;
        let runtime = new_runtime().map_err(io::Error::other)?;
        let ended = runtime.block_on(async {
            let stream = tokio::net::UnixStream::from_std(stream)?;
            // The wait is needed, because the runtime checks whether a new socket is writable only when a task waits
            // for the socket to become writable.
            stream.writable().await?;
            let socket = ClientSocket::Unix(stream);
            match admitted {
                Ok(admitted) => {
                    let caller = ConnectionPeer::Unix(User::of_peer(admitted.uid, admitted.store, requests));
                    let account =
                        Arc::new(ConnectionLimitState::new(None, self.shared.limits.body.counters.clone()));
                    let stopped = StopReceiver::from(&self.stop);
                    exchange(socket, ahead.to_vec(), (caller, account), &self.shared, stopped).await
                }
                Err(error) => {
                    let refusal = crate::s3::failed(error).map(PreparedBody::Document);
                    turn_away(socket, refusal, self.shared.limits.body.clone()).await
                }
            }
        });
        // The thread does not wait until the runtime has shut down, because a read from a hung device could block the
        // runtime forever.
        runtime.shutdown_background();
        ended
    }
}

/// Returns whether a client that begins with the bytes `start` uses HTTP. The methods of HTTP begin with a letter, and
/// frames of the node protocol never begin with a letter.
pub(super) fn is_http(start: &[u8]) -> bool {
    start.first().is_some_and(u8::is_ascii_uppercase)
}
