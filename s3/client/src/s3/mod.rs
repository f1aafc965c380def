//! An S3 service as a [`fordway_store::Store`]: signs and retries requests, and maps error responses
//! to the errors of the store.

mod config;
mod credentials;
mod delete;
mod failure;
mod headers;
mod list;
mod lock;
mod multipart;
mod process;
mod profile;
mod read;
mod request;
mod session;
mod store;
mod writer;

pub use config::{BucketAddressing, S3Config, SignatureVersion};
pub use credentials::S3Credentials;
pub use request::{RequestSigner, UnsignedRequest};
pub use store::S3Store;
