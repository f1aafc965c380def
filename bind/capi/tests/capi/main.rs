//! Tests the C API with C programs.

mod baskets;
mod harness;
mod installed;
mod points;
