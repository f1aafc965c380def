//! The C API, `fordway.h`: open, size, pread, synchronous and asynchronous vectored reads, and advice on future reads.
//! The API opens a file at an `http(s)://` URL, an object `s3://BUCKET/KEY` over the lane that the endpoint selects, or
//! a local file.
//!
//! From the outside in:
//!
//! * [`exports`]: the functions that C calls
//! * [`abi`]: the structures and numbers of the header, which `cargo xtask header` generates from these two modules
//! * `failure`: errors become an errno and a message; a panic becomes `EIO`
//! * `files`: file numbers, tickets for submitted reads, and the caller's memory that these reads fill
//! * `source`: how each kind of file is read

pub mod abi;
pub mod exports;
mod failure;
mod files;
mod source;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;
