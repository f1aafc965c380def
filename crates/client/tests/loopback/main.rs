//! The client against servers on the loopback interface, each following a script.

mod hostile;
mod parts;
mod requests;
mod scripted;
mod tls;
