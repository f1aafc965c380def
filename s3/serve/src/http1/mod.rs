//! HTTP/1.1 on one socket, by ourselves: what a general server would copy goes from the page cache to
//! the socket, and a request of usual size is one read and one write.
//!
//! * `head`, `chunked`: codecs, bytes in and meaning out
//! * `wire`: the socket, with what was read ahead and what goes out
//! * `incoming`: bodies of requests
//! * `outgoing`: answers
//! * `fast_lane`: plain requests for objects, past the S3 layer
//! * `driver`: one request after the other

mod chunked;
mod driver;
mod fast_lane;
mod head;
mod incoming;
mod outgoing;
mod wire;

pub(crate) use chunked::{ChunkDecoder, ChunkStep};
pub(crate) use driver::{serve, turn_away};
pub(crate) use fast_lane::{FastLane, SignatureVerifier};
pub(crate) use incoming::{BROKEN, STALLED};
