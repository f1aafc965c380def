//! An HTTP/1.1 client, with optional HTTP/2 and 3, on blocking sockets in the calling thread.
//!
//! On a pooled connection, a small request costs one `sendmsg` and one `recv`. Head and body are sent together, and the
//! response's head is parsed in the receive buffer. A large body is received straight into the caller's buffer.

mod access;
mod carrier;
mod client;
mod connection;
mod connector;
mod dial;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(any(feature = "http2", feature = "http3"))]
mod heads;
#[cfg(feature = "http2")]
mod http2;
#[cfg(feature = "http3")]
mod http3;
mod proxy;
pub mod replicas;
mod response;
pub mod retry;
mod socket;
mod tls;
pub mod vector;
pub mod webdav;

pub use access::SessionCredentials;
pub use client::{BodySink, ExchangeFailure, HttpClient, HttpExchangeRequest, ReplayPolicy, StreamedBody};
pub use connector::Origin;
pub use proxy::{ProxySettings, ProxyTunnel};
pub use response::HttpResponse;
pub use tls::TlsRoots;

use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

/// The `User-Agent` of all requests.
pub const USER_AGENT: &str = concat!("fordway/", env!("CARGO_PKG_VERSION"));

/// Unpooled connections, which expose heads and bodies as they arrive. The load generator uses the items of this
/// module.
pub mod parts {
    pub use crate::connection::{BufferedConnection, io_error};
    pub use crate::connector::Connector;
    pub use crate::dial::connect_any;
    #[cfg(feature = "http3")]
    pub use crate::http3::{
        FilteredBidiStream, FilteredConnection, FilteredOpener, FilteredRecvStream, open_quic, quic_transport,
    };
    pub use crate::response::ResponseHead;
    pub use crate::response::{BodyFraming, ChunkDecoderState, short_body};
    pub use crate::socket::TcpSocket;
    pub use crate::tls::TlsConnector;
}

/// The HTTP version that a client is configured to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1; over TLS, HTTP/2 if a server supports only HTTP/2 (with the `http2` feature).
    #[default]
    Http1,
    /// HTTP/2: by prior knowledge without TLS, by ALPN with TLS. Calls to a server that does not support HTTP/2 fail.
    #[cfg(feature = "http2")]
    Http2,
    /// HTTP/3, over TLS only. Calls to a server that does not support HTTP/3 fail.
    #[cfg(feature = "http3")]
    Http3,
}

impl HttpVersion {
    /// Returns whether responses on a connection can arrive interleaved. If so, a head cannot be read twice.
    fn is_multiplexed(self) -> bool {
        match self {
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => true,
            _ => false,
        }
    }

    /// Returns the version number, in the form that [`HttpVersion::named`] parses.
    pub fn number(self) -> &'static str {
        match self {
            HttpVersion::Http1 => "1.1",
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => "2",
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => "3",
        }
    }

    /// Returns the version in `FORDWAY_HTTP_VERSION`, else HTTP/1.1; `variable` returns the value of an
    /// environment variable. Errors: `InvalidArgument`.
    pub fn resolve(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        const NAME: &str = "FORDWAY_HTTP_VERSION";
        let Some(number) = variable(NAME).filter(|number| !number.is_empty()) else {
            return Ok(HttpVersion::default());
        };
        HttpVersion::named(&number)
            .map_err(|error| Error::new(error.kind(), format!("{NAME}: {}", error.detail())))
    }

    /// Parses a version number, `1.1`, `2` or `3`. Errors: `InvalidArgument`.
    pub fn named(number: &str) -> Result<Self> {
        match number {
            "1.1" => Ok(HttpVersion::Http1),
            #[cfg(feature = "http2")]
            "2" => Ok(HttpVersion::Http2),
            #[cfg(feature = "http3")]
            "3" => Ok(HttpVersion::Http3),
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "this program does not support HTTP {other:?}; use 1.1, or 2 or 3 if the program was built with it"
                ),
            )),
        }
    }
}

/// How long a call waits for the server, or for a proxy, before it fails with `Timeout`.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The time to establish a TCP connection, without the TLS handshake; with HTTP/3, the time of the whole handshake.
    pub connect: Duration,
    /// The time from the end of the request to the end of the response's head.
    pub first_byte: Duration,
    /// The time without progress while a body is transferred, in either direction.
    pub progress: Duration,
    /// How long an idle connection is kept.
    pub idle: Duration,
}

/// The longest time limit. A longer limit could not be added to the current time.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Timeouts {
    /// Returns the timeouts of calls whose waits may take up to `limit`, which may be longer or shorter than these
    /// timeouts. Only the time to connect is not extended.
    pub fn of_calls(self, limit: Duration) -> Self {
        let limit = limit.min(TIME_LIMIT_MAX);
        Timeouts { first_byte: limit, progress: limit, ..self.within(limit) }
    }

    /// Returns these timeouts, each capped at `limit`.
    pub fn within(self, limit: Duration) -> Self {
        Timeouts {
            connect: self.connect.min(limit),
            first_byte: self.first_byte.min(limit),
            progress: self.progress.min(limit),
            idle: self.idle,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let wait = Duration::from_secs(30);
        Timeouts {
            connect: Duration::from_secs(5),
            first_byte: wait,
            progress: wait,
            idle: Duration::from_secs(15),
        }
    }
}
