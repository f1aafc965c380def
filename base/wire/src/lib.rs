//! Codecs: wire formats as pure functions of bytes. This crate opens no sockets and reads no clock: time is an
//! argument.

pub mod byteranges;
pub mod date;
pub mod event_record;
pub mod file_hash;
pub mod form_data;
pub mod header_text;
pub mod lifecycle;
pub mod metalink;
pub mod node;
pub mod notification;
pub mod range;
pub mod s3_error;
pub mod s3_xml;
pub mod sigv2;
pub mod sigv4;
pub mod size_text;
pub mod tagging;
pub mod uri;
pub mod webdav;
