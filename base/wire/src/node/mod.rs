//! The frames of the node lane: what a client and the gateway of its node say to one another.
//!
//! Bytes in, bytes out; the sockets are in `client` and `serve`. The protocol is written
//! down in `docs/reference/wire.md`.
//!
//! * `handshake`: the first bytes of each side, and the proof that a secret is known
//! * `frame`: where a message begins and ends
//! * `fields`: what messages are made of
//! * `inbox`: bytes as they arrive, and the frames in them
//! * `types`: the store's own types as fields
//! * `request`, `reply`: every operation, and its answer

mod fields;
mod frame;
mod handshake;
mod inbox;
mod reply;
mod request;
mod types;

pub use fields::{Input, Put, Take};
pub use frame::{Flags, Frame, HEADER_BYTES, Header, begin_frame, end_frame};
pub use handshake::{HELLO_BYTES, Hello, MAGIC, NONCE_BYTES, Proof, Side, VERSION, WELCOME_BYTES, Welcome};
pub use inbox::Inbox;
pub use reply::{Committed, Got, ReadDone, Reply, Sent, Started, take_reply};
pub use request::{Request, longest_bytes};

/// The longest frame that either side sends, its header not counted.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The longest fields of a request: decoded, they take several times as much.
pub const FIELDS_BYTES_MAX: usize = 2 << 20;
/// The most objects of one request for many.
pub const BATCH_OBJECTS_MAX: usize = 1024;
/// The most content of the ranges of one `ReadRanges`.
pub const RANGES_BYTES_MAX: u64 = 8 << 20;
/// The most content that goes inline in a reply: from here on a descriptor is cheaper.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// The most entries of one page of a listing.
pub const PAGE_ENTRIES_MAX: usize = 4096;
