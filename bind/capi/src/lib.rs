//! The C API, `fordway.h`: open, size, pread, vectored reads that wait and that do not, advice on reads to
//! come. What is opened is a file at an `http(s)://` URL, an object `s3://BUCKET/KEY` on the lane of its
//! endpoint, or a local file.
//!
//! From the outside in:
//!
//! * [`exports`]: the functions that C calls
//! * [`abi`]: the structures and numbers of the header, which `cargo xtask header` writes of these two
//! * `failure`: errors become an errno and a sentence; a panic becomes `EIO`
//! * `files`: numbers of open files, and tickets of what was submitted
//! * `source`: how each kind of file is read
//! * `buffers`: memory of the caller's

pub mod abi;
pub mod exports;
mod failure;
mod files;
mod source;
