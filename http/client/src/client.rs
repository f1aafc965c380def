//! One request and its answer, on a pooled connection or a new one.

use std::sync::Arc;

use fordway_store::{Error, ErrorKind};

use super::connection::{Connection, io_error};
use super::connector::Connector;
use super::pool::Pool;
use super::proxy::Proxies;
use super::response::{Head, Response};
use super::{Credentials, Origin, Timeouts, TlsRoots, Version};

/// Sends requests and keeps connections for the next ones. Shared between threads; calls run, and
/// block, in the thread that makes them.
pub struct HttpClient {
    connector: Connector,
    pool: Arc<Pool>,
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Twice is the same as once.
    Safe,
    /// Only if the server cannot have acted on it.
    IfUnsent,
}

/// One request.
pub struct Exchange<'a> {
    /// Where it goes.
    pub origin: &'a Origin,
    /// `GET`, `PUT`, ...; decides whether the answer has a body.
    pub method: &'a str,
    /// Writes the request line and all headers, with the empty line that ends them.
    pub write_head: &'a dyn Fn(&mut Vec<u8>),
    /// Sent after the head; its length must be what the head says.
    pub body: &'a [u8],
    /// Whether it may be sent again when a pooled connection turns out to be closed.
    pub replay: Replay,
}

/// Why there is no answer.
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// Whether the server may have acted on the request.
    pub may_have_acted: bool,
}

impl HttpClient {
    /// A client with an empty pool. Costs nothing before the first request.
    pub fn new(version: Version, timeouts: Timeouts, roots: TlsRoots) -> Self {
        HttpClient::identified(version, timeouts, roots, Credentials::none())
    }

    /// The same with a certificate for servers that ask for one, if `who` has any. Its connections are
    /// used for nobody else. What goes with requests is up to their callers.
    pub fn identified(version: Version, timeouts: Timeouts, roots: TlsRoots, who: Credentials) -> Self {
        let pool = Arc::new(Pool::new(timeouts.idle));
        HttpClient { connector: Connector::new(version, timeouts, roots, who), pool }
    }

    /// By way of these proxies. They are this client's for good, and its connections are used by no
    /// other: an origin in the pool is an origin by one way.
    pub fn through(self, proxies: Proxies) -> Self {
        HttpClient { connector: self.connector.through(proxies), ..self }
    }

    /// The proxies in use.
    pub(super) fn proxies(&self) -> &Proxies {
        self.connector.proxies()
    }

    /// Sends a request and receives the head of the answer, whatever its status. A pooled connection
    /// that the server has closed in the meantime is replaced by a new one, once.
    /// Cost on a pooled connection: one `sendmsg`, one `recv`; for [`Replay::IfUnsent`] one more
    /// `recv` that looks whether the connection is alive.
    pub fn send(&self, exchange: &Exchange) -> Result<Response, Failure> {
        if let Some(connection) = self.pooled(exchange) {
            match self.send_on(connection, exchange) {
                Ok(Some(response)) => return Ok(response),
                Ok(None) if exchange.replay == Replay::Safe => {
                    tracing::debug!(origin = %exchange.origin, "a pooled connection was closed; sending again");
                }
                Ok(None) => return Err(Failure { error: closed(), may_have_acted: true }),
                Err(error) => return Err(Failure { error, may_have_acted: true }),
            }
        }
        let connection = self
            .connector
            .connect(exchange.origin)
            .map_err(|error| Failure { error, may_have_acted: false })?;
        match self.send_on(connection, exchange) {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(Failure { error: closed(), may_have_acted: true }),
            Err(error) => Err(Failure { error, may_have_acted: true }),
        }
    }

    /// An idle connection to `origin`, if there is one. What comes back belongs to the caller.
    pub(super) fn pooled_connection(&self, origin: &Origin) -> Option<Connection> {
        self.pool.take(origin)
    }

    /// A new connection. Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    pub(super) fn connect(&self, origin: &Origin) -> Result<Connection, Error> {
        self.connector.connect(origin)
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn keep(&self, origin: &Origin, connection: Connection) {
        self.pool.put(origin, connection);
    }

    fn pooled(&self, exchange: &Exchange) -> Option<Connection> {
        let mut connection = self.pool.take(exchange.origin)?;
        (exchange.replay == Replay::Safe || connection.is_quiet()).then_some(connection)
    }

    /// `None` if the connection was closed before anything was answered.
    fn send_on(&self, mut connection: Connection, exchange: &Exchange) -> Result<Option<Response>, Error> {
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

    /// A server may refuse a request before it has read the body, and close: its answer says why.
    pub(super) fn early_answer(
        &self,
        mut connection: Connection,
        exchange: &Exchange,
        error: std::io::Error,
    ) -> Result<Option<Response>, Error> {
        if is_timeout(&error) {
            return Err(io_error(error, "sending the request", "the server stopped reading the request"));
        }
        match connection.receive_head() {
            Ok(Some(head)) => self.answered(head, connection, exchange).map(Some),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// An answer of the origin. Errors: `AccessDenied` for one of a proxy that wants to know who asks.
    pub(super) fn answered(
        &self,
        head: Head,
        connection: Connection,
        exchange: &Exchange,
    ) -> Result<Response, Error> {
        match connection.refused_by_proxy(head.status) {
            Some(refused) => Err(refused),
            None => Response::new(head, connection, exchange.method, (exchange.origin, &self.pool)),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the server closed the connection without an answer")
}
