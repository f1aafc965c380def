//! An S3 service as a [`fordway_store::Store`]: requests signed and retried, answers mapped to the
//! one list of errors.

mod config;
mod credentials;
mod delete;
mod failure;
mod headers;
mod list;
mod multipart;
mod read;
mod request;
mod session;
mod store;
mod writer;

pub use config::{Addressing, S3Config, Signature};
pub use credentials::Credentials;
pub use request::{Signer, Unsigned};
pub use store::S3Store;
