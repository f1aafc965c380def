//! Codecs: what goes over a wire, as functions of bytes. No sockets, and time is an argument.

pub mod s3_error;
