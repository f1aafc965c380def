//! S3 clients: `s3` implements the store over HTTP; `node` implements the store over the node gateway's protocol.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod node;
pub mod s3;
