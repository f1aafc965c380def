//! Tests of the client against scripted servers on the loopback interface.

mod access;
mod endless;
mod hostile;
mod pages;
mod parts;
mod renewal;
mod requests;
mod scripted;
mod tls;
