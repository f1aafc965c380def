//! The C API as programs in C see it.

#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod baskets;
mod harness;
mod installed;
mod points;
