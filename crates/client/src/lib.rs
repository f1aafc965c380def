//! The lanes to other processes: `http`, an HTTP/1.1 client on blocking sockets with S3 over it, and
//! `node`, the gateway of the same node.

pub mod http;
pub mod node;
mod retry;
pub mod s3;
