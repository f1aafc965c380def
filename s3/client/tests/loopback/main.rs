//! The client against servers on the loopback interface, each following a script.

mod access;
mod hostile;
mod pages;
mod parts;
mod requests;
mod scripted;
mod tls;
