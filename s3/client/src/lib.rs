//! S3 clients: `s3` is the store over HTTP; `node` is the store over the protocol of the node gateway.

pub mod node;
pub mod s3;
