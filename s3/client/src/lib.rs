//! S3 from the client's side: `s3`, the store over HTTP, and `node`, the store over the protocol of the node's gateway.

pub mod node;
pub mod s3;
