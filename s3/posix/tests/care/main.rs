//! Tests of `fsck` and `gc`: every kind of damage and garbage is created on purpose and must be found; files in use
//! must not be touched.

mod fsck;
mod gc;
mod support;
