//! HTTP/1.1 on one socket, without a general-purpose server. Content is sent from the page cache to the socket without
//! the copies that a general-purpose server would make. A typical request needs one read and one write.
//!
//! * `head`, `chunked`: codecs that work on bytes, without a socket
//! * `wire`: the socket, with bytes that were read ahead and bytes to send
//! * `incoming`: request bodies
//! * `outgoing`: responses
//! * `fast_path`: plain requests for objects, which bypass the S3 layer
//! * `driver`: serves the requests of a connection, one after another

mod chunked;
mod driver;
mod fast_path;
mod head;
mod incoming;
mod outgoing;
mod wire;

pub(crate) use chunked::{ChunkDecoder, ChunkStep};
pub(crate) use driver::{serve, turn_away};
#[cfg(feature = "fuzzing")]
pub(crate) use fast_path::is_plain_request;
pub(crate) use fast_path::{FastPath, SignatureVerifier};
#[cfg(feature = "fuzzing")]
pub(crate) use head::{HEADERS_MAX, RequestFraming, RequestHead, parse};
pub(crate) use incoming::{BROKEN, STALLED};
