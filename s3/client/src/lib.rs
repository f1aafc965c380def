//! S3 clients: `s3` is the store over HTTP; `node` is the store over the node gateway's protocol.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod node;
pub mod s3;
