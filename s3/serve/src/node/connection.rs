//! One client: the handshake, reading requests, and waiting for the next request.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Errno, SocketBlockingMode, receive, send_all, user_id};
use fordway_wire::node::{
    CLIENT_HELLO_BYTES, FIELDS_BYTES_MAX, FrameBuffer, FrameHeader, HandshakeProof, HandshakeSide,
    NONCE_BYTES, NodeClientHello, NodeGatewayHello, NodeResponse, Request, ResponseFlags, VERSION,
    WriteField,
};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::AccessKeyPair;
use crate::node::access::{AdmittedCaller, NodeAccessControl};
use crate::node::access::{ConnectionResourceLimits, MemoryShare, NodeLimits, OWN_BYTES};
use crate::node::accounts::{NodeConnectedUsers, NodeUserResources, StrangerSlot, UserConnectionSlot};
use crate::node::content::ResponseOutbox;
use crate::node::http::{HttpService, is_http};
use crate::node::session::ClientSession;
use crate::node::stats::NodeStats;
use crate::node::stats::{AdaptivePollState, BusyConnectionCounter};

/// The state that all connections share.
pub(super) struct NodeGatewayState {
    pub(super) access: NodeAccessControl,
    pub(super) accounts: NodeConnectedUsers,
    /// The keys of clients that connect over TCP.
    pub(super) keys: Option<AccessKeyPair>,
    pub(super) activity: BusyConnectionCounter,
    pub(super) stats: Arc<NodeStats>,
    pub(super) limits: Arc<NodeLimits>,
    /// The time for which a thread polls for the next request before it sleeps.
    pub(super) lookout: Duration,
    pub(super) leaves_client: bool,
    pub(super) http: HttpService,
}

/// The transport of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientTransport {
    /// The Unix socket; the kernel identifies the client.
    Unix,
    /// TCP; the client must prove that it knows the secret.
    Tcp,
}

/// The data of a connection that other threads can access.
pub(super) struct GatewayConnection {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) by: ClientTransport,
    pub(super) standing: Arc<ConnectionDrainState>,
    pub(super) client: ConnectionClient,
}

/// The count of connections that includes a connection.
pub(super) enum ClientSlot {
    /// The client is not authenticated yet.
    Stranger(StrangerSlot),
    User(UserConnectionSlot),
}

/// The client of a connection: its user, as soon as the user is known.
pub(super) struct ConnectionClient {
    /// Empty as soon as the user is known.
    stranger: Mutex<Option<StrangerSlot>>,
    user: OnceLock<UserConnectionSlot>,
}

impl ConnectionClient {
    pub(super) fn new(slot: ClientSlot) -> Self {
        match slot {
            ClientSlot::Stranger(slot) => {
                ConnectionClient { stranger: Mutex::new(Some(slot)), user: OnceLock::new() }
            }
            ClientSlot::User(slot) => ConnectionClient { stranger: Mutex::default(), user: slot.into() },
        }
    }

    /// Records that an authenticated client acts as the gateway's user. Errors: `Unavailable` if the user has too many
    /// connections.
    fn authenticate(&self, accounts: &NodeConnectedUsers) -> Result<()> {
        let slot = accounts.connect(user_id())?;
        self.user.get_or_init(|| slot);
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    /// Returns the resources of the connection's user. Errors: `ACCESS` if the client is not authenticated.
    fn account(&self) -> Result<&Arc<NodeUserResources>, Errno> {
        self.user.get().map(UserConnectionSlot::account).ok_or(Errno::ACCESS)
    }
}

/// Whether a connection is doing work that a stopping gateway waits for.
///
/// If the connection is ended before the work starts, no more work starts on the connection. If the work starts first,
/// the gateway waits for the work.
#[derive(Debug, Default)]
pub(super) struct ConnectionDrainState(AtomicU8);

impl ConnectionDrainState {
    const IDLE: u8 = 0;
    const BUSY: u8 = 1;
    const ENDED: u8 = 2;

    /// Marks the connection as busy. A session must call this function before it tells the client that a write was
    /// started. Returns false if the connection was ended.
    pub(super) fn enter(&self) -> bool {
        self.turn(Self::IDLE, Self::BUSY) != Self::ENDED
    }

    /// Marks the connection as idle, after its work is finished.
    fn leave(&self) {
        self.turn(Self::BUSY, Self::IDLE);
    }

    /// Ends the connection unless it is busy. Returns whether the connection is ended.
    pub(super) fn end(&self) -> bool {
        self.turn(Self::IDLE, Self::ENDED) != Self::BUSY
    }

    /// Changes the state to `to` if the state is `from`. Any other state remains unchanged. Returns the previous state.
    fn turn(&self, from: u8, to: u8) -> u8 {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|stood| stood)
    }
}

impl GatewayConnection {
    /// Serves the client until it disconnects, or until the socket is shut down for reading.
    pub(super) fn serve(&self, shared: &NodeGatewayState) {
        if let Err(errno) = self.greet_and_serve(shared) {
            tracing::debug!(%errno, "a connection ended");
        }
    }

    fn greet_and_serve(&self, shared: &NodeGatewayState) -> Result<(), Errno> {
        let mut inbox = FrameBuffer::default();
        let mut deadline = HandshakeDeadline::new(shared.limits.patience);
        while inbox.waiting().len() < CLIENT_HELLO_BYTES {
            self.receive_until(&mut deadline, &mut inbox)?;
            if self.by == ClientTransport::Unix && is_http(inbox.waiting()) {
                return self.serve_http(inbox.waiting(), shared);
            }
        }
        let hello = inbox.waiting().first_chunk().map(NodeClientHello::from_bytes);
        let Some(Ok(hello)) = hello else {
            shared.stats.malformed.add(1);
            return Err(Errno::PROTO);
        };
        inbox.consume(CLIENT_HELLO_BYTES);
        let takes_descriptors = hello.takes_descriptors && self.by == ClientTransport::Unix;
        let admitted = self.admit(hello, shared, (&mut inbox, &mut deadline))?;
        deadline.finish(&self.socket)?;
        let outbox = ResponseOutbox::new(self.socket.clone(), shared.stats.clone());
        let (limits, standing) = (self.limits(shared)?, self.standing.clone());
        let session = ClientSession::new(admitted, takes_descriptors, outbox, limits, standing);
        RequestReader {
            connection: self,
            shared,
            inbox,
            session,
            lookout: AdaptivePollState::default(),
            has_moved: false,
            held: Vec::new(),
        }
        .run()
    }

    /// Returns the limits of the gateway and of the connection's user.
    fn limits(&self, shared: &NodeGatewayState) -> Result<ConnectionResourceLimits, Errno> {
        let user = self.client.account()?.clone();
        Ok(ConnectionResourceLimits { gateway: shared.limits.clone(), user })
    }

    /// Serves a client that uses HTTP; `ahead` contains the bytes that were already read.
    fn serve_http(&self, ahead: &[u8], shared: &NodeGatewayState) -> Result<(), Errno> {
        shared.stats.http_connections.add(1);
        // An HTTP connection counts as busy for its whole lifetime, because `HttpService` stops the connection after
        // the requests in progress are completed.
        if !self.standing.enter() {
            return Ok(());
        }
        let admitted = shared.access.admit(&self.socket);
        if admitted.is_err() {
            shared.stats.refused.add(1);
        }
        let requests = self.client.account()?.requests.clone();
        shared.http.serve(&self.socket, ahead, (admitted, requests)).unwrap_or_else(|error| {
            tracing::debug!(%error, "an HTTP connection ended early");
        });
        Ok(())
    }

    /// Completes the handshake; the client may first have to authenticate.
    fn admit(
        &self,
        hello: NodeClientHello,
        shared: &NodeGatewayState,
        incoming: (&mut FrameBuffer, &mut HandshakeDeadline),
    ) -> Result<AdmittedCaller, Errno> {
        let admitted = match (hello.version == VERSION, self.by, &shared.keys) {
            (false, ..) => Err(Error::new(
                ErrorKind::NotImplemented,
                format!(
                    "this gateway speaks version {VERSION} of the protocol, the client {}; use the same Fordway on both sides",
                    hello.version
                ),
            )),
            (true, ClientTransport::Unix, _) => shared.access.admit(&self.socket),
            (true, ClientTransport::Tcp, Some(keys)) => return self.challenge(keys, shared, incoming),
            (true, ClientTransport::Tcp, None) => Err(ErrorKind::Internal.into()),
        };
        match admitted {
            Ok(admitted) => {
                self.welcome([0; NONCE_BYTES], false)?;
                Ok(admitted)
            }
            Err(error) => {
                shared.stats.refused.add(1);
                Err(refuse(&self.socket, &error))
            }
        }
    }

    fn welcome(&self, nonce: [u8; NONCE_BYTES], wants_proof: bool) -> Result<(), Errno> {
        let welcome = NodeGatewayHello { version: VERSION, wants_proof, is_refusal: false, nonce };
        send_all(&self.socket, &welcome.to_bytes(), &[], None)
    }

    /// Authenticates the client by the shared secret, and proves to the client that the gateway also knows the secret.
    fn challenge(
        &self,
        keys: &AccessKeyPair,
        shared: &NodeGatewayState,
        (inbox, deadline): (&mut FrameBuffer, &mut HandshakeDeadline),
    ) -> Result<AdmittedCaller, Errno> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| Errno::IO)?;
        self.welcome(nonce, true)?;
        let header = loop {
            match inbox.next_header().map_err(|_| Errno::PROTO)? {
                Some(header) => break header,
                // A client that is not authenticated gets no memory for long messages.
                None if inbox.waiting().len() > 4096 => return Err(Errno::PROTO),
                None => self.receive_until(deadline, inbox)?,
            }
        };
        let request = inbox.frame(&header).map(|frame| Request::take(header.code, frame.fields));
        inbox.consume(header.frame_bytes());
        let Some(Ok(Request::Authenticate { access_key, nonce: theirs, proof })) = request else {
            return Err(Errno::PROTO);
        };
        let expected = |side| HandshakeProof::new(&keys.secret_key, side, &nonce, &theirs, &access_key);
        let admitted = match (access_key == keys.access_key, expected(HandshakeSide::Client).is(&proof)) {
            (true, true) => self.client.authenticate(&shared.accounts),
            (true, false) => Err(ErrorKind::SignatureDoesNotMatch.into()),
            (false, _) => Err(ErrorKind::InvalidAccessKeyId.into()),
        };
        let answer = admitted.map(|()| expected(HandshakeSide::Gateway).to_bytes());
        self.reply(header.id, &answer)?;
        if answer.is_err() {
            shared.stats.refused.add(1);
            return Err(Errno::ACCESS);
        }
        Ok(shared.access.admit_by_secret())
    }

    fn reply<T: WriteField>(&self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        let flags = ResponseFlags::default();
        NodeResponse { id, flags, answer: answer.as_ref(), body_bytes: 0 }.put(&mut bytes);
        send_all(&self.socket, &bytes, &[], None)
    }

    /// Receives bytes of the handshake. Errors: as for [`GatewayConnection::receive`]; `TIMEDOUT` after the deadline.
    fn receive_until(&self, deadline: &mut HandshakeDeadline, inbox: &mut FrameBuffer) -> Result<(), Errno> {
        deadline.limit_next_read(&self.socket)?;
        self.receive(inbox, SocketBlockingMode::Yes)
    }

    /// Receives the available bytes. Errors: the errors of the socket; `CONNRESET` at the end of the stream.
    fn receive(&self, inbox: &mut FrameBuffer, wait: SocketBlockingMode) -> Result<(), Errno> {
        match receive(self.socket.as_fd(), inbox.room(), wait)? {
            0 => Err(Errno::CONNRESET),
            count => {
                inbox.filled(count);
                Ok(())
            }
        }
    }
}

/// Limits the time of a handshake as a whole. Without this limit, a client that occasionally sends a byte could keep a
/// connection open for hours without authentication.
struct HandshakeDeadline {
    since: Instant,
    limit: Duration,
    reads: usize,
}

impl HandshakeDeadline {
    /// Starts a handshake that may take up to `limit`, which is also the socket's time limit for one read.
    fn new(limit: Duration) -> Self {
        HandshakeDeadline { since: Instant::now(), limit, reads: 0 }
    }

    /// Sets the socket's time limit for the next read to the time that is left. Errors: `TIMEDOUT` if none is left.
    /// Cost: no system call for the first read.
    fn limit_next_read(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        self.reads += 1;
        if self.reads == 1 {
            return Ok(());
        }
        let left = self.limit.saturating_sub(self.since.elapsed());
        match left.is_zero() {
            true => Err(Errno::TIMEDOUT),
            false => set_socket_timeout(socket, Timeout::Recv, Some(left)),
        }
    }

    /// Restores the socket's time limit after the handshake.
    fn finish(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self.reads {
            0 | 1 => Ok(()),
            _ => set_socket_timeout(socket, Timeout::Recv, Some(self.limit)),
        }
    }
}

/// Sends a client the reason why its connection is refused. Returns the error that ends the connection.
pub(super) fn refuse(socket: impl AsFd, error: &Error) -> Errno {
    let welcome =
        NodeGatewayHello { version: VERSION, wants_proof: false, is_refusal: true, nonce: [0; NONCE_BYTES] };
    let mut bytes = welcome.to_bytes().to_vec();
    let answer: Result<&(), _> = Err(error);
    NodeResponse { id: 0, flags: ResponseFlags::default(), answer, body_bytes: 0 }.put(&mut bytes);
    // Errors are ignored, because the connection ends even if the client does not receive the reason.
    let _ = send_all(socket, &bytes, &[], None);
    Errno::ACCESS
}

/// Parses the request in a frame. Errors: `InvalidArgument`, including for fields that are too long.
fn take_request(header: &FrameHeader, fields: &[u8]) -> Result<Request<'static>> {
    if fields.len() > FIELDS_BYTES_MAX {
        let why = format!(
            "the request has {} bytes besides its content; the maximum is {FIELDS_BYTES_MAX}",
            fields.len()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Request::take(header.code, fields)
}

/// Reads requests and passes them to the session.
struct RequestReader<'c> {
    connection: &'c GatewayConnection,
    shared: &'c NodeGatewayState,
    inbox: FrameBuffer,
    session: ClientSession,
    lookout: AdaptivePollState,
    /// Whether the thread has moved to another processor since the last response.
    has_moved: bool,
    /// Memory for a message that exceeds the connection's own memory.
    held: Vec<MemoryShare>,
}

impl RequestReader<'_> {
    fn run(mut self) -> Result<(), Errno> {
        loop {
            self.answer_all()?;
            self.hold_enough()?;
            match self.wait() {
                Ok(()) => {}
                // The client has sent nothing for the stall timeout. Between messages, such a pause is allowed.
                Err(Errno::WOULDBLOCK) if self.inbox.waiting().is_empty() => self.inbox.shrink(0),
                Err(Errno::CONNRESET) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Answers every request that has arrived completely.
    fn answer_all(&mut self) -> Result<(), Errno> {
        let mut next = self.next_header()?;
        while let Some(header) = next {
            let has_cores = self.shared.activity.note(&mut self.lookout);
            let is_awake = has_cores && !self.shared.lookout.is_zero();
            self.session.outbox.flags = match (is_awake, std::mem::take(&mut self.has_moved)) {
                (false, _) => ResponseFlags::default(),
                (true, false) => ResponseFlags::AWAKE,
                (true, true) => ResponseFlags::AWAKE.with(ResponseFlags::MOVED),
            };
            let arrived = self.inbox.waiting();
            self.session.outbox.more_to_come = arrived.len() > header.frame_bytes();
            let Some(frame) = header.frame(arrived) else { return Err(Errno::PROTO) };
            match take_request(&header, frame.fields) {
                Ok(request) => self.session.handle(header.id, request, frame.body)?,
                Err(error) => {
                    self.shared.stats.malformed.add(1);
                    self.session.outbox.answer::<()>(header.id, &Err(error))?;
                }
            }
            if !self.session.is_writing() {
                self.connection.standing.leave();
            }
            self.inbox.consume(header.frame_bytes());
            next = self.next_header()?;
        }
        self.session.outbox.flush()
    }

    /// Returns the header of the next frame, if it has arrived. Errors: `PROTO` for bytes that are not a message; the
    /// client is notified first.
    fn next_header(&mut self) -> Result<Option<FrameHeader>, Errno> {
        self.inbox.next_header().map_err(|error| {
            self.shared.stats.malformed.add(1);
            self.last_word(error)
        })
    }

    /// Reserves memory for the message that has begun to arrive, or releases the memory of the last message. Errors:
    /// `PROTO` if no memory is available; the client is notified first.
    fn hold_enough(&mut self) -> Result<(), Errno> {
        let held = self.held.iter().map(MemoryShare::count).sum();
        if self.inbox.waiting().is_empty() {
            if held > 0 {
                self.inbox.shrink(OWN_BYTES);
                self.held.clear();
            }
            return Ok(());
        }
        let wanted = self.inbox.begun_bytes();
        if wanted > held {
            let more =
                self.session.limits.memory_for(wanted - held, held).map_err(|error| self.last_word(error))?;
            self.held.extend(more);
        }
        self.session.held_bytes = self.held.iter().map(MemoryShare::count).sum();
        Ok(())
    }

    /// Sends the client the reason why its connection ends.
    fn last_word(&mut self, error: Error) -> Errno {
        // Errors are ignored, because the connection ends even if the client does not receive the reason.
        let _ = self.session.outbox.answer::<()>(0, &Err(error));
        Errno::PROTO
    }

    /// Waits for more bytes. Polls briefly if polling is worthwhile, and then sleeps until bytes arrive.
    fn wait(&mut self) -> Result<(), Errno> {
        if self.session.outbox.flags.has(ResponseFlags::AWAKE) && self.lookout.pays() {
            let since = Instant::now();
            while since.elapsed() < self.shared.lookout {
                match self.connection.receive(&mut self.inbox, SocketBlockingMode::No) {
                    Err(Errno::WOULDBLOCK) => std::hint::spin_loop(),
                    done => {
                        self.lookout.learn(true);
                        return done;
                    }
                }
            }
            self.lookout.learn(false);
            if self.shared.leaves_client && self.lookout.should_move() {
                self.has_moved = self.session.leave_core();
            }
        } else {
            self.lookout.skip();
        }
        self.connection.receive(&mut self.inbox, SocketBlockingMode::Yes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_not_ended_and_what_is_ended_starts_nothing() {
        let standing = ConnectionDrainState::default();
        assert!(standing.enter());
        assert!(!standing.end(), "something was started");
        standing.leave();
        assert!(standing.end() && standing.end());
        standing.leave();
        assert!(!standing.enter());
    }
}
