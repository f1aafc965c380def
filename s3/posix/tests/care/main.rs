//! Tests of `fsck` and `gc`. Every kind of damage and garbage is created on purpose and must be found. Files in use
//! must not be changed or removed.

mod fsck;
mod gc;
mod support;
