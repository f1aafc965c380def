//! A drop-in replacement for libs3: the same functions, structures and numbers, over any lane. The host name selects
//! the lane, so an unmodified program can access a directory directly in its own process, or a service over HTTP.
//!
//! From the outside in:
//!
//! * `exports`: the functions that C calls, for libs3 4.1 and (feature `abi-2-0`) for libs3 2.0
//! * [`abi`], [`status`]: types and numbers of both versions; their layout is checked at compile time
//! * `arguments`: checks the arguments from C, and converts them to our own types
//! * `queue`: request contexts; a request without a context is synchronous
//! * `relay`: the threads that carry out a context's requests, and their callbacks on the thread that drives it
//! * `object`, `bucket`: what each request does with a store
//! * `response`: the result of a request, its callbacks, and the buffer through which content passes
//! * `lane`: stores, opened once per process, and again after a fork
//!
//! No lock is held while a callback runs, so a callback may make requests itself. A panic becomes
//! `S3StatusInternalError`. Nothing is printed unless `FORDWAY_LOG` is set.

pub mod abi;
mod arguments;
mod bucket;
pub mod exports;
mod lane;
mod object;
mod queue;
mod relay;
mod response;
pub mod status;

pub use queue::RequestContext;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;
