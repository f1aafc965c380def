//! `fordway bench` as a user runs it.

mod ranks;
mod transport;
mod vector;
