//! Tests of the client against scripted servers on the loopback interface.

mod access;
mod completion;
mod endless;
mod hostile;
mod limits;
mod pages;
mod parts;
mod renewal;
mod requests;
mod scripted;
mod tls;
