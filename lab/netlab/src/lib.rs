//! A network inside one machine: two namespaces, each with its own network, joined by a link with a realistic
//! round-trip time, rate, queue and loss. Any program can run in these namespaces unmodified.
//!
//! ```text
//!   client namespace                                        server namespace
//!   program - TCP - fw0 ===> bottleneck (rate, queue, loss) ===> delay ===> fw0 - TCP - program
//!                       <=== delay <=== bottleneck <===
//! ```
//!
//! [`NetworkLab`] contains both networks and the link. Its parts are [`NetworkNamespace`], [`NamespaceProcess`] and
//! [`EmulatedLink`]. [`setup`] adds bridges, overlays and containers, and starts a program at each end; [`tunnel`] is
//! an overlay in user space.
//!
//! Nothing that this crate creates has a persistent name in the system. A namespace exists while a process is in it, or
//! while this process keeps it open. A device exists as long as its namespace or its descriptor. The kernel kills a
//! process when the thread that started it ends. Therefore nothing remains, regardless of how this process ends.

mod lab;
mod link;
mod namespace;
pub mod setup;
pub mod tunnel;

pub use lab::{CLIENT_ADDRESS, LabConfig, NetworkLab, SERVER_ADDRESS};
pub use link::{DirectionStats, EmulatedLink, LinkConfig, LinkStats};
pub use namespace::{MountNamespace, NamespaceProcess, NetworkNamespace};
