//! Gateways: programs that speak S3 over HTTP reach any [`fordway_store::Store`] through here.
//!
//! A [`Gateway`] accepts connections and serves them on as few threads as the load needs, each with a
//! runtime of its own. The store is called right there, for a local file system a hand-over to another
//! thread costs more than the call itself; but for what waits for a device, or may take long.
//!
//! * `gateway`: what is configured, accepting, ending in good order
//! * `workers`: the threads, and which of them serves a connection
//! * `connection`, `tls`: one client, with TLS or without, and which HTTP it speaks
//! * `http1`: HTTP/1.1 on one socket, from its bytes to the store's and back
//! * `http2`, `http3`: many requests at once on one connection; `multiplexed`: what both have in common
//! * `content`, `buffers`: what all versions read and keep in memory
//! * `domains`: buckets that the host names
//! * `answer`: from a request to its answer; `message`: what an error says
//! * `monitor`: access log, counters, health; `watch`: looks after the directory and the credentials
//! * `unsigned`: the peer, and requests that need no signature because the peer is known
//! * `users`: the users, and as whom files are used for them; `identity`: key pairs and signatures
//! * `signature`: the form of a signature, checked before the signature itself
//! * [`node`]: the gateway of a node, which speaks the binary protocol of that lane
//! * `s3`: each S3 operation in terms of the store
//!
//! Logs go through `tracing`. The S3 library reports every refused request as an error of its own
//! (targets starting with `s3s`): a subscriber will want to silence those.

mod answer;
mod buffers;
mod connection;
mod content;
mod domains;
mod gate;
mod gateway;
mod http1;
mod http2;
#[cfg(feature = "http3")]
mod http3;
mod identity;
mod message;
mod monitor;
mod multiplexed;
pub mod node;
mod s3;
mod signature;
mod tls;
mod unsigned;
mod users;
mod watch;
mod workers;

pub use crate::answer::S3Layer;
pub use gateway::{Gateway, GatewayConfig, GatewayStop, RunningGateway};
pub use identity::AccessKeyPair;
pub use tls::TlsCertificate;
pub use users::{OpenStore, Users};
pub use watch::ReloadSignal;
