//! Tests `fordway bench` as a user would run it.

mod ranks;
mod transport;
mod vector;
