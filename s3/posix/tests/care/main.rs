//! Taking care of a directory: every kind of damage and garbage is made on purpose, and must be
//! found; what is alive must not be touched.

mod fsck;
mod gc;
mod support;
