//! The C API as programs in C see it.

mod baskets;
mod harness;
mod installed;
mod points;
