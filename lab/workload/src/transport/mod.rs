//! Bytes from one process to another, by every transport there is: MPI, bare TCP, HTTP, our lanes.
//!
//! All are asked the same: [`Exchange::Fetch`] is a small request, and the time until all bytes of the
//! answer are here, as a GET has it; [`Exchange::Stream`] has several of these under way;
//! [`Exchange::PingPong`] is the half round trip that MPI's benchmarks print, for those that can.
//!
//! A [`Transport`] does an [`Order`] at a time. Two processes with a [`Link`] between them are one
//! ([`Linked`]), and so are objects behind a [`fordway_store::Store`] ([`Objects`]).

mod drive;
mod linked;
mod objects;
mod order;
mod remote;
mod setting;
mod sizes;
mod summary;
mod tcp;

use fordway_measure::Lane;
use fordway_store::Result;

pub use drive::{Outcome, Plan, Progress, run};
pub use linked::{Link, Linked, follow};
pub use objects::Objects;
pub use order::{Done, Exchange, Order};
pub use remote::{Hello, Remote, Side, answer};
pub use setting::Setting;
pub use sizes::{Sizes, message_of};
pub use summary::describe;
pub use tcp::TcpLink;

/// A way to get bytes from another process, or from a store.
pub trait Transport {
    /// Its name and what it does.
    fn lane(&self) -> &Lane;

    /// Whether it can do this at all.
    fn can(&self, exchange: Exchange) -> bool;

    /// Does one block of messages. Errors: those that end the run.
    fn carry_out(&mut self, order: &Order) -> Result<Done>;
}
