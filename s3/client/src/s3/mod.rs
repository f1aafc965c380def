//! An S3 service as a [`fordway_store::Store`]: signs and retries requests, and maps error responses
//! to the errors of the store.

mod config;
mod credentials;
mod delete;
mod failure;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod headers;
mod list;
mod lock;
mod multipart;
mod process;
mod profile;
mod read;
mod renewal;
mod request;
mod session;
mod store;
mod writer;

pub use config::{BucketAddressing, S3Config, SignatureVersion};
pub use credentials::{CurrentCredentials, S3Credentials};
pub use renewal::RenewedKeys;
pub use request::{RequestSigner, UnsignedRequest};
pub use store::S3Store;
