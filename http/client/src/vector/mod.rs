//! Many ranges of a file in few requests.
//!
//! A call's fragments become a [`plan`]: what has to be received, once, and where it goes. The
//! [`engine`] makes [`request`]s of it, as large as the server was [`learned`] to take, and sends as
//! many of them ahead as the window allows on each [`line`], which is a connection: a [`pipeline`] of HTTP/1.1, where an
//! [`answer`] is received straight into the caller's memory, several parts [`ahead`] in a call, or [`streams`] of HTTP/2.
//! What comes is checked against the request as [`content`], and goes into a [`sink`] by way of its [`batch`], which knows what
//! is missing. A [`reader`] submits what it expects to be read next.

mod ahead;
mod answer;
mod batch;
mod content;
mod digest;
pub(crate) mod document;
mod download;
mod engine;
mod file;
mod first;
mod learned;
mod line;
mod open;
mod pace;
mod pattern;
mod pipeline;
mod plan;
mod reader;
pub(super) mod redirect;
mod request;
mod session;
mod sink;
mod source;
#[cfg(feature = "http2")]
mod stream;
#[cfg(feature = "http2")]
mod streams;
mod target;
mod version;
mod web;
mod window;

pub use file::{Ranges, RemoteFile, Ticket, Traffic};
pub use first::Begun;
pub use learned::Learned;
pub use open::is_passing;
pub use reader::{Advice, ReadAhead, Reader};
pub use session::{Options, Session};
pub(super) use sink::in_order;
pub use sink::{Fragment, Memory};
pub use target::{Pin, Target};
pub use version::FileVersion;
pub use web::WebFile;
