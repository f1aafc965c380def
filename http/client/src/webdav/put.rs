//! Writing files.

use fordway_store::Result;

use super::WebDav;
use super::call::{Body, Call, Produce};
use super::change::check;
use crate::vector::Target as _;

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upload<'u> {
    /// Its bytes, where they are known. If not it goes in chunks, which not every server takes.
    pub size_bytes: Option<u64>,
    /// Its media type.
    pub content_type: Option<&'u str>,
    /// Whether something that is there is an error. Servers differ in whether they look (`If-None-Match: *`):
    /// nginx and XRootD do not, so look yourself before.
    pub only_new: bool,
}

impl WebDav {
    /// Writes a file. `produce` hands its bytes to the function that it is given, in order; it is called
    /// again, to begin anew, if an attempt failed or the server sends us elsewhere.
    ///
    /// A connection to the server is held meanwhile: who reads from the same server needs another one, and
    /// as many have to be allowed.
    ///
    /// When this returns without an error the server said that it has all of it; how durable that is, and
    /// whether a write that broke off leaves a part, is up to the server.
    /// Errors: from `produce`; `NoSuchKey` if the collection that it would be in is missing,
    /// `PreconditionFailed`, `AccessDenied`, `NoSpace`, ... Cost: one request (PUT), and a round trip more
    /// from 64 KiB on, where the server is asked before the body is sent.
    pub fn put<'p>(&self, url: &str, upload: &Upload<'_>, produce: &'p mut Produce<'p>) -> Result<()> {
        let mut call = Call::new("PUT", "put");
        if let Some(kind) = upload.content_type {
            call = call.header("content-type", kind);
        }
        if upload.only_new {
            // Sent twice, it would find what it made itself.
            call = call.header("if-none-match", "*").once();
        }
        let answer = self.ask(url, &mut Call { body: Body::Made(upload.size_bytes, produce), ..call })?;
        check(&answer, "PUT").map_err(|error| answer.file.named("put", error))
    }
}
