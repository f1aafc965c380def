//! The C API as seen by C programs.

mod baskets;
mod harness;
mod installed;
mod points;
