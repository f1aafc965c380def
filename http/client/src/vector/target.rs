//! What is read: where it is, how a request for it is written, and what its refusals mean.

use fordway_store::Error;

use crate::Origin;

/// How requests say that they mean one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// By `If-Range`, which answers another version whole.
    IfRange,
    /// By `If-Match`, which refuses another version; S3 knows no `If-Range`.
    IfMatch,
}

/// Something that has an address and ranges. Credentials live here: whatever else a request needs
/// is written with its head.
pub trait Target: Send + Sync {
    /// Where connections go.
    fn origin(&self) -> &Origin;

    /// Says in an error which operation failed on what, without secrets.
    fn named(&self, operation: &'static str, error: Error) -> Error;

    /// How a version is pinned.
    fn pin(&self) -> Pin;

    /// Whether several ranges are worth a try on a server that was never asked.
    fn may_know_many_ranges(&self) -> bool;

    /// Appends a request line, all headers (`headers` among them, names in lower case) and the empty line.
    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>);

    /// The failure that an answer of status 300 and more states.
    fn refusal(&self, status: u16, location: Option<&str>, document: &[u8]) -> Error;
}
