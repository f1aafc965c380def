//! WebDAV (RFC 4918) and third-party copies as WLCG does them: what a client asks and what it is told.
//!
//! [`multistatus`] reads the one document that WebDAV answers with; [`Collection`] says what the
//! addresses in it mean, and refuses those that do not belong there; [`CopyReport`] reads what a
//! server says of a copy while that goes on.

mod copy_report;
mod href;
mod multistatus;

pub use copy_report::{CopyReport, Outcome};
pub use href::{Collection, Name, Place};
pub use multistatus::{Described, PROPFIND, Properties, multistatus};
