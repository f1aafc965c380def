//! Gateways that serve any [`fordway_store::Store`] to S3 clients over HTTP.
//!
//! A [`Gateway`] accepts connections and serves them on as few threads as the load needs. Each thread has its own
//! runtime. The serving thread calls the store itself, because passing a call to another thread costs more than the
//! call itself if the file system is local. Calls that wait for a device, or that may take a long time, run on other
//! threads.
//!
//! * `gateway`: configuration, accepting, graceful shutdown; `sockets`: the sockets on which the gateway listens
//! * `workers`: the threads, and the assignment of connections to them
//! * `connection`, `tls`: one client, with or without TLS, and its HTTP version
//! * `http1`: HTTP/1.1 on one socket, without a general-purpose server
//! * `http2`, `http3`: concurrent requests on one connection; `multiplexed`: the code that `http2` and `http3` share
//! * `aws_chunked`: uploads whose body is in chunks
//! * `content`, `buffers`: the content of bodies and its memory, for all HTTP versions
//! * `file_server`: threads for calls that wait for a file server
//! * `limits`: limits on users and on clients whose user is not known yet, and fair scheduling among users
//! * `domains`: virtual-host addressing
//! * `access`: whether the rules of a bucket permit a request
//! * `answer`: turns a request into its response; `message`: the messages in error documents
//! * `monitor`: access log, counters, health; `watch`: watches the directory and the credentials file
//! * `unsigned`: the clients of connections, and requests that need no signature because the kernel has identified the
//!   client
//! * `users`: the users, and the uid that accesses files for each; `identity`: key pairs and signatures
//! * `sts`: temporary credentials (AWS STS)
//! * `outgoing`: requests that the gateway itself sends; `webhook`: the receivers of events
//! * `signature`: checks the form of a signature before the signature itself is verified
//! * [`node`]: the node gateway, which implements the binary protocol of the `node` lane
//! * `s3`: implements each S3 operation in terms of the store
//!
//! This crate logs through `tracing`. The S3 layer also logs an error for every refused request, with targets that
//! start with `s3s`. Subscribers may want to silence these errors.

mod access;
mod answer;
mod aws_chunked;
mod blocking;
mod buffers;
mod connection;
mod content;
mod domains;
mod error_facts;
mod file_server;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod gateway;
mod http1;
mod http2;
#[cfg(feature = "http3")]
mod http3;
mod identity;
mod limits;
mod message;
mod monitor;
mod multiplexed;
pub mod node;
mod outgoing;
mod s3;
mod signature;
mod signature_v2;
mod sockets;
mod sts;
mod tls;
mod unread_body;
mod unsigned;
mod users;
mod watch;
mod webhook;
mod workers;

pub use crate::answer::S3Responder;
#[cfg(feature = "http3")]
pub use crate::http3::{prepare_quic_socket, quic_server_config};
pub use gateway::{Gateway, GatewayConfig, GatewayStopHandle, RunningGateway};
pub use identity::AccessKeyPair;
pub use limits::UserLimits;
pub use s3::acl::{acl_document, acl_of_document, bucket_acl, set_bucket_acl};
pub use s3::documents::{checked_document, document_problem, sound_document};
pub use sockets::GatewaySockets;
pub use sts::SessionTokenKeys;
pub use tls::TlsCertificate;
pub use users::{AnonymousUser, StoreOpenFunction, Users, UsersFileEntry, read_users_file};
pub use watch::ReloadSignal;
pub use webhook::{Webhook, WebhookConfig, WebhookFailure};
