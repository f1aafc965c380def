//! A network in one machine: two namespaces, each a network of its own, and between them a link with
//! the round trip, rate, queue and loss of a real one. What runs in them is any program, unmodified.
//!
//! ```text
//!   client namespace                                        server namespace
//!   program - TCP - fw0 ===> bottleneck (rate, queue, loss) ===> delay ===> fw0 - TCP - program
//!                       <=== delay <=== bottleneck <===
//! ```
//!
//! [`NetworkLab`] is both networks and the link; [`NetworkNamespace`], [`NamespaceProcess`] and [`EmulatedLink`] are its pieces.
//! [`setup`] adds bridges, overlays and containers to it, and starts two programs at its ends; [`tunnel`] is
//! one such overlay, in user space.
//!
//! Nothing here has a name in the system: a namespace lives as long as a process is in it or this one
//! holds it open, devices live as long as their namespace or descriptor, and processes end with the
//! thread that started them. So nothing is left, whatever way this process ends.

mod lab;
mod link;
mod namespace;
pub mod setup;
pub mod tunnel;

pub use lab::{CLIENT_ADDRESS, LabConfig, NetworkLab, SERVER_ADDRESS};
pub use link::{DirectionStats, EmulatedLink, LinkConfig, LinkStats};
pub use namespace::{MountNamespace, NamespaceProcess, NetworkNamespace};
