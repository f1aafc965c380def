//! An S3 service as a [`fordway_store::Store`]: requests signed and retried, answers mapped to the
//! one list of errors.

mod config;
mod credentials;
mod delete;
mod documents;
mod failure;
mod headers;
mod list;
mod multipart;
mod pages;
mod parts;
mod profile;
mod ranges;
mod read;
mod request;
mod session;
mod signer;
mod store;
mod versions;
mod writer;

pub use config::{Addressing, S3Config, Signature};
pub use credentials::Credentials;
pub use signer::{Signer, Unsigned};
pub use store::S3Store;
