//! Sends one request and receives its response, on a pooled or a new connection. The body of a request may be streamed,
//! that is, produced while it is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::PerProcess;

use super::connection::{BufferedConnection, EarlyResponse, io_error, is_stop};
use super::connector::Connector;
use super::proxy::ProxySettings;
use super::response::{HttpResponse, ResponseHead, lost};
use super::{HttpVersion, Origin, SessionCredentials, Timeouts, TlsRoots};

/// Sends requests, and keeps connections for later requests. Threads may share a client. Calls run in the calling
/// thread, and block it.
pub struct HttpClient {
    connector: Connector,
    pool: Arc<ConnectionPool>,
}

/// Whether a client may send a request twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// Sending the request twice has the same effect as sending it once.
    Idempotent,
    /// The request is sent again only if the server cannot have acted on it.
    IfUnsent,
}

/// A request whose body is in memory.
pub struct HttpExchangeRequest<'a> {
    /// The server.
    pub origin: &'a Origin,
    /// The method, such as `GET` or `PUT`, which determines whether the response has a body.
    pub method: &'a str,
    /// Appends the request line and all headers, with the empty line that ends them.
    pub write_head: &'a dyn Fn(&mut Vec<u8>),
    /// The body, sent after the head; the head must specify the body's length.
    pub body: &'a [u8],
    /// Whether to send the request again when a pooled connection turns out to be closed.
    pub replay: ReplayPolicy,
}

/// An exchange that failed without a response.
pub struct ExchangeFailure {
    /// The cause of the failure.
    pub error: Error,
    /// Whether the server may have acted on the request.
    pub may_have_acted: bool,
}

impl HttpClient {
    /// Creates a client with an empty pool. Cost: none before the first request.
    pub fn new(version: HttpVersion, timeouts: Timeouts, roots: TlsRoots) -> Self {
        HttpClient::identified(version, timeouts, roots, SessionCredentials::none())
    }

    /// Creates a client that presents the certificate of `who`, if any, to servers that request one. No other client
    /// uses its connections. The caller must add other kinds of credentials to the requests.
    pub fn identified(
        version: HttpVersion,
        timeouts: Timeouts,
        roots: TlsRoots,
        who: SessionCredentials,
    ) -> Self {
        let pool = Arc::new(ConnectionPool::new(timeouts.idle));
        HttpClient { connector: Connector::new(version, timeouts, roots, who), pool }
    }

    /// Sends requests through these proxies. A client keeps its proxies for its lifetime, and does not share
    /// connections with other clients. All its pooled connections to an origin therefore take the same route.
    pub fn through(self, proxies: ProxySettings) -> Self {
        HttpClient { connector: self.connector.through(proxies), ..self }
    }

    /// Returns a client that shares this client's connections, but has other timeouts. The time for which idle
    /// connections are kept does not change.
    pub fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        HttpClient { connector: self.connector.with_timeouts(timeouts), pool: self.pool.clone() }
    }

    /// Returns the proxy settings in use.
    pub(super) fn proxies(&self) -> &ProxySettings {
        self.connector.proxies()
    }

    /// Sends a request and receives the head of the response, regardless of its status. A pooled connection that the
    /// server has closed is replaced once with a new connection. Cost on a pooled connection: one `sendmsg`, one
    /// `recv`; for [`ReplayPolicy::IfUnsent`] one more `recv` to check that the connection is alive.
    pub fn send(&self, exchange: &HttpExchangeRequest) -> Result<HttpResponse, ExchangeFailure> {
        self.send_until(exchange, None)
    }

    /// Like [`HttpClient::send`], but every wait for the response or its body ends at `until`, even if bytes keep
    /// arriving.
    pub(super) fn send_until(
        &self,
        exchange: &HttpExchangeRequest,
        until: Option<Instant>,
    ) -> Result<HttpResponse, ExchangeFailure> {
        if let Some(mut connection) = self.pooled(exchange) {
            connection.until = until;
            match self.send_on(connection, exchange) {
                Ok(Some(response)) => return Ok(response),
                Ok(None) if exchange.replay == ReplayPolicy::Idempotent => {
                    tracing::debug!(origin = %exchange.origin, "a pooled connection was closed; sending again");
                }
                Ok(None) => return Err(ExchangeFailure { error: closed(), may_have_acted: true }),
                Err(error) => return Err(ExchangeFailure { error, may_have_acted: true }),
            }
        }
        let mut connection = self
            .connector
            .connect(exchange.origin)
            .map_err(|error| ExchangeFailure { error, may_have_acted: false })?;
        connection.until = until;
        match self.send_on(connection, exchange) {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(ExchangeFailure { error: closed(), may_have_acted: true }),
            Err(error) => Err(ExchangeFailure { error, may_have_acted: true }),
        }
    }

    /// Takes an idle connection to `origin` from the pool, if there is one. The caller then owns the connection.
    pub(super) fn pooled_connection(&self, origin: &Origin) -> Option<BufferedConnection> {
        let mut connection = self.pool.take(origin)?;
        // Another client with other timeouts may have used the connection. A connection whose timeouts cannot be set is
        // broken.
        connection.set_timeouts(self.connector.timeouts()).ok()?;
        Some(connection)
    }

    /// Opens a new connection. Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    pub(super) fn connect(&self, origin: &Origin) -> Result<BufferedConnection, Error> {
        self.connector.connect(origin)
    }

    /// Puts a connection that has no pending request back into the pool.
    pub(super) fn keep(&self, origin: &Origin, connection: BufferedConnection) {
        self.pool.put(origin, connection);
    }

    fn pooled(&self, exchange: &HttpExchangeRequest) -> Option<BufferedConnection> {
        let mut connection = self.pooled_connection(exchange.origin)?;
        (exchange.replay == ReplayPolicy::Idempotent || connection.is_quiet()).then_some(connection)
    }

    /// Sends the request on `connection`, and returns the response; `None` if the connection was closed before any
    /// response arrived.
    fn send_on(
        &self,
        mut connection: BufferedConnection,
        exchange: &HttpExchangeRequest,
    ) -> Result<Option<HttpResponse>, Error> {
        connection.request_head.clear();
        connection.push_head(exchange.write_head);
        let sent = connection.send(exchange.body);
        if let Err(error) = sent {
            return self.early_answer(connection, exchange, error);
        }
        match connection.receive_head()? {
            Some(head) => self.answered(head, connection, exchange).map(Some),
            None => Ok(None),
        }
    }

    /// Receives the response that a server sent before it stopped reading the request's body. The response usually
    /// contains the reason why the server refused the request. Returns `None` if no response arrived. Errors:
    /// `BadResponse` if the response is a success.
    pub(super) fn early_answer(
        &self,
        mut connection: BufferedConnection,
        exchange: &HttpExchangeRequest,
        error: std::io::Error,
    ) -> Result<Option<HttpResponse>, Error> {
        if is_timeout(&error) || is_stop(&error) {
            return Err(io_error(error, "sending the request", "the server stopped reading the request"));
        }
        match connection.receive_head() {
            Ok(Some(head)) => {
                check_refusal(&head)?;
                self.answered(head, connection, exchange).map(Some)
            }
            // The server has refused the client's certificate or sent an invalid response. Another attempt would fail
            // in the same way.
            Err(error) if matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::BadResponse) => {
                Err(error)
            }
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Returns the origin's response. Errors: `AccessDenied` for a response from a proxy that requires authentication.
    pub(super) fn answered(
        &self,
        head: ResponseHead,
        connection: BufferedConnection,
        exchange: &HttpExchangeRequest,
    ) -> Result<HttpResponse, Error> {
        tracing::debug!(method = exchange.method, origin = %exchange.origin, status = head.status, "answered");
        match connection.refused_by_proxy(head.status) {
            Some(refused) => Err(refused),
            None => HttpResponse::new(head, connection, exchange.method, (exchange.origin, &self.pool)),
        }
    }
}

/// Checks that a response to a request whose content was not sent completely is not a success. Errors: `BadResponse`.
fn check_refusal(head: &ResponseHead) -> Result<()> {
    if !(200..300).contains(&head.status) {
        return Ok(());
    }
    Err(success_before_content(head.status))
}

/// Returns the error for a success status that was sent before the server had received the content.
pub(super) fn success_before_content(status: u16) -> Error {
    let detail = format!(
        "the server reported success (HTTP status {status}) before it had received the content; check what it has stored"
    );
    Error::new(ErrorKind::BadResponse, detail)
}

pub(super) fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

pub(super) fn closed() -> Error {
    lost("the server closed the connection without a response")
}

/// The maximum time to wait for a server's `100 Continue`. Some servers never send this response.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A function that consumes a body, piece by piece.
pub type BodySink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// A request body that is produced while it is sent.
pub struct StreamedBody<'a> {
    /// The size of the body, if known; otherwise the body is sent in chunks.
    pub size_bytes: Option<u64>,
    /// Whether the head contains `Expect: 100-continue` (RFC 9110 section 10.1.1). With this header, the body is not
    /// sent needlessly if the request is refused or redirected.
    pub asks_first: bool,
    /// Produces the body, from its first byte.
    pub produce: &'a mut dyn FnMut(&mut BodySink<'_>) -> Result<()>,
    /// The deadline, after which the client neither sends more of the body nor waits for the response.
    pub until: Option<Instant>,
    /// Set when the first attempt to send any of the body begins.
    pub is_begun: bool,
}

impl HttpClient {
    /// Sends a request while `produce` generates its body piece by piece, and receives the head of the response.
    /// Ignores the body of `exchange`. Errors: as for [`HttpClient::send`]; `IncompleteBody` if `produce` generates
    /// more or fewer bytes than the head specifies; any error from `produce`, after which the connection is closed.
    pub fn send_streamed(
        &self,
        exchange: &HttpExchangeRequest,
        streamed: &mut StreamedBody<'_>,
    ) -> Result<HttpResponse, ExchangeFailure> {
        let unsent = |error| ExchangeFailure { error, may_have_acted: false };
        // The caller may be unable to produce the body a second time. A connection that the server has closed must
        // therefore be detected before any part of the body is produced.
        let pooled = self.pooled_connection(exchange.origin);
        let mut connection = match pooled.and_then(|mut pooled| pooled.is_quiet().then_some(pooled)) {
            Some(connection) => connection,
            None => self.connect(exchange.origin).map_err(unsent)?,
        };
        let acted = |error| ExchangeFailure { error, may_have_acted: true };
        connection.until = streamed.until;
        connection.request_head.clear();
        connection.push_head(exchange.write_head);
        connection
            .send_head(streamed.size_bytes)
            .map_err(|error| unsent(io_error(error, "sending the request", "the server stopped reading")))?;
        if streamed.asks_first
            && let EarlyResponse::Answer(head) = connection.first_word(CONTINUE_TIMEOUT).map_err(unsent)?
        {
            check_refusal(&head).map_err(acted)?;
            // The server may still expect the body, so no further request can be sent on this connection.
            return self.answered(head, connection, exchange).map(HttpResponse::into_last).map_err(unsent);
        }
        streamed.is_begun = true;
        match send_body(&mut connection, streamed) {
            Ok(()) => {}
            Err(BodySendFailure::Produce(error)) => return Err(acted(error)),
            Err(BodySendFailure::Send(error)) => {
                // A server that stops reading has often sent a response with the reason. The response is more useful
                // to the caller than the error for a broken pipe.
                let early = self.early_answer(connection, exchange, error).map_err(acted)?;
                return early.map(HttpResponse::into_last).ok_or_else(|| acted(closed()));
            }
        }
        let head = connection.receive_head().map_err(acted)?.ok_or_else(|| acted(closed()))?;
        self.answered(head, connection, exchange).map_err(acted)
    }
}

/// Why a body was not sent completely.
enum BodySendFailure {
    Produce(Error),
    Send(std::io::Error),
}

fn send_body(
    connection: &mut BufferedConnection,
    streamed: &mut StreamedBody<'_>,
) -> Result<(), BodySendFailure> {
    let (mut sent_bytes, mut failed) = (0_u64, None);
    let (size_bytes, until, mut line) = (streamed.size_bytes, streamed.until, String::new());
    let (is_chunked, mut between) = (size_bytes.is_none() && !connection.is_http2(), "");
    let made = (streamed.produce)(&mut |piece| {
        if piece.is_empty() {
            return Ok(());
        }
        sent_bytes += piece.len() as u64;
        if size_bytes.is_some_and(|size| sent_bytes > size) {
            return Err(Error::new(ErrorKind::IncompleteBody, "the source grew while it was sent"));
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return Err(Error::new(ErrorKind::Timeout, "the deadline has passed"));
        }
        if connection.is_answered_early() {
            failed = Some(std::io::ErrorKind::BrokenPipe.into());
            return Err(Error::from(ErrorKind::Unavailable));
        }
        line.clear();
        if is_chunked {
            // A chunk (RFC 9112 section 7.1), after the line break that ends the previous chunk.
            line = format!("{between}{:x}\r\n", piece.len());
            between = "\r\n";
        }
        connection.send_piece(line.as_bytes(), piece).map_err(|error| {
            failed = Some(error);
            Error::from(ErrorKind::Unavailable)
        })
    });
    match (failed, made) {
        (Some(error), _) => return Err(BodySendFailure::Send(error)),
        (None, Err(error)) => return Err(BodySendFailure::Produce(error)),
        (None, Ok(())) => {}
    }
    match size_bytes {
        None if is_chunked => {
            connection.send_piece(between.as_bytes(), b"0\r\n\r\n").map_err(BodySendFailure::Send)
        }
        None => connection.finish_body().map_err(BodySendFailure::Send),
        Some(size) if sent_bytes == size => Ok(()),
        Some(size) => {
            let detail = format!("the source ended after {sent_bytes} of {size} bytes");
            Err(BodySendFailure::Produce(Error::new(ErrorKind::IncompleteBody, detail)))
        }
    }
}

/// The maximum number of idle connections kept per origin.
const MAX_IDLE: usize = 64;
/// The maximum number of origins with idle connections.
const MAX_ORIGINS: usize = 64;

/// Stacks of idle connections, by origin. The most recently used connection is on top, because it is the least likely
/// to have been closed.
pub(super) struct ConnectionPool {
    /// Idle connections. A forked child opens its own connections. If it used the parent's connections, the requests of
    /// the two processes would be mixed.
    idle: PerProcess<Mutex<IdleConnections>>,
    idle_limit: Duration,
}

/// The idle connections to each origin, each with the time at which it became idle.
#[derive(Default)]
struct IdleConnections {
    by_origin: HashMap<Origin, Vec<(BufferedConnection, Instant)>>,
}

impl IdleConnections {
    /// Closes the connections to origins that have not been used within the idle limit. If there are too many origins,
    /// also closes the connections to the least recently used origin. Storage systems redirect reads to many servers,
    /// and a hostile server can redirect reads to any number of servers.
    fn make_room(&mut self, now: Instant, idle_limit: Duration) {
        let last_use = |waiting: &[(BufferedConnection, Instant)]| waiting.last().map(|(_, since)| *since);
        self.by_origin.retain(|_, waiting| {
            last_use(waiting).is_some_and(|since| now.saturating_duration_since(since) < idle_limit)
        });
        if self.by_origin.len() >= MAX_ORIGINS {
            let oldest = self.by_origin.iter().min_by_key(|(_, waiting)| last_use(waiting));
            let oldest = oldest.map(|(origin, _)| origin.clone());
            oldest.map(|origin| self.by_origin.remove(&origin));
        }
    }
}

impl ConnectionPool {
    pub(super) fn new(idle_limit: Duration) -> Self {
        ConnectionPool { idle: PerProcess::default(), idle_limit }
    }

    /// Takes a connection that was used within the idle limit. Closes connections that have been idle for longer.
    pub(super) fn take(&self, origin: &Origin) -> Option<BufferedConnection> {
        let mut idle = self.locked();
        let waiting = idle.by_origin.get_mut(origin)?;
        match waiting.pop() {
            Some((connection, since)) if since.elapsed() < self.idle_limit => Some(connection),
            Some(_) => {
                // All connections below this connection on the stack have been idle for longer.
                waiting.clear();
                None
            }
            None => None,
        }
    }

    /// Keeps a connection whose last response was read to its end.
    pub(super) fn put(&self, origin: &Origin, mut connection: BufferedConnection) {
        (connection.is_reused, connection.until) = (true, None);
        let now = Instant::now();
        let mut idle = self.locked();
        match idle.by_origin.get_mut(origin) {
            Some(waiting) if waiting.len() < MAX_IDLE => waiting.push((connection, now)),
            Some(_) => {}
            None => {
                idle.make_room(now, self.idle_limit);
                idle.by_origin.insert(origin.clone(), vec![(connection, now)]);
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, IdleConnections> {
        // A panic elsewhere leaves the map consistent, because each change is one operation.
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Clients that differ only in their timeouts share connections, and each uses its own timeouts.
    #[test]
    fn a_client_with_other_timeouts_uses_the_same_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (origin, _) = Origin::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let client = HttpClient::new(HttpVersion::Http1, Timeouts::default(), TlsRoots::System);
        let hasty = client.with_timeouts(Timeouts::default().within(Duration::from_millis(50)));
        client.keep(&origin, client.connect(&origin).unwrap());
        let mut connection = hasty.pooled_connection(&origin).expect("the connection of the other client");
        let begin = Instant::now();
        let error = connection.receive_head().err().expect("nobody responds");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        hasty.keep(&origin, connection);
        assert!(client.pooled_connection(&origin).is_some() && client.pooled_connection(&origin).is_none());
    }
    use crate::Timeouts;
    use crate::socket::TcpSocket;

    fn origin(number: usize) -> Origin {
        Origin::parse(&format!("http://h{number}")).unwrap().0
    }

    /// Puts one connection of each origin into a pool, and returns how many connections the pool then contains.
    fn kept(origins: usize, idle_limit: Duration) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = ConnectionPool::new(idle_limit);
        for number in 0..origins {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap();
            let timeouts = Timeouts::default();
            let socket = TcpSocket::over(stream, &timeouts);
            pool.put(&origin(number), BufferedConnection::plain(socket, timeouts));
        }
        let count = pool.locked().by_origin.values().map(Vec::len).sum();
        assert!(idle_limit.is_zero() || pool.take(&origin(origins - 1)).is_some(), "the newest is kept");
        count
    }

    #[test]
    fn idle_connections_to_many_servers_are_closed() {
        assert_eq!(kept(10, Duration::from_secs(60)), 10);
        assert_eq!(kept(500, Duration::from_secs(60)), MAX_ORIGINS);
        assert_eq!(kept(10, Duration::ZERO), 1, "connections that may no longer be used are closed");
    }
}
