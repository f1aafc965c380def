//! The `http` lane: an HTTP/1.1 client on blocking sockets, and S3 over it.

pub mod http;
pub mod s3;
