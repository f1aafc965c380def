//! Changing what is there: collections, removals, and copies and moves within a server.

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::webdav::{CopyReport, Outcome, multistatus};

use super::call::{Answer, Call};
use super::failure::of_members;
use super::{WebDav, collection_url, parent_url};
use crate::vector::{Target as _, WebFile};

impl WebDav {
    /// Makes a collection. Errors: `PreconditionFailed` if something is there, `NoSuchKey` if the collection
    /// that it would be in is not, `AccessDenied`, `NoSpace`, ... Cost: one request (MKCOL), which is
    /// not sent again if the server may have acted on it.
    pub fn make_collection(&self, url: &str) -> Result<()> {
        let url = collection_url(url);
        self.change(&url, &mut Call::new("MKCOL", "make").once())
    }

    /// Makes a collection and those that it is in, of which all may be there already. A server that takes no
    /// MKCOL and no PROPFIND says no more than one where it is there.
    /// Cost: one request, one more if it is there, and two for each that is missing above it.
    pub fn make_collections(&self, url: &str) -> Result<()> {
        match self.make_collection(url) {
            Err(error) if error.kind() == ErrorKind::NoSuchKey => {
                let Some(parent) = parent_url(url) else { return Err(error) };
                self.make_collections(&parent)?;
                // Somebody else may make it just now.
                self.unless_there(url, self.make_collection(url))
            }
            made => self.unless_there(url, made),
        }
    }

    /// What was not made because it is there is good, if it is no file.
    fn unless_there(&self, url: &str, made: Result<()>) -> Result<()> {
        match made {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => match self.list_one(url) {
                Ok(found) if !found.is_collection => Err(error),
                _ => Ok(()),
            },
            made => made,
        }
    }

    /// Removes a file, or the collection that `url` names with a slash at its end. What servers do to
    /// one that is not empty differs: most remove all of it, some refuse.
    /// Errors: `NoSuchKey`, `ConditionalConflict` for what is locked, `AccessDenied`, ...; a failure of
    /// members names them. Cost: one request (DELETE).
    pub fn remove(&self, url: &str) -> Result<()> {
        let answer = self.ask(url, &mut Call::new("DELETE", "remove"))?;
        match check(&answer, "DELETE") {
            // An earlier try removed it, and its answer was lost.
            Err(error) if error.kind() == ErrorKind::NoSuchKey && answer.is_repeated => Ok(()),
            done => done.map_err(|error| answer.file.named("remove", error)),
        }
    }

    /// Copies a file or a whole collection within a server, which does the work.
    /// Errors: `PreconditionFailed` if something is at the destination and is not to be replaced,
    /// `InvalidArgument` if it is at another server, as [`WebDav::remove`].
    /// Cost: one request (COPY), which is not sent again if the server may have acted on it.
    pub fn copy(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        // A copy that seems lost may still be at work, and two would write to one place.
        self.change(from, &mut to_destination("COPY", "copy", (from, to), replaces)?.once())
    }

    /// Moves a file or a whole collection within a server. Errors: as [`WebDav::copy`].
    /// Cost: one request (MOVE), which is not sent again if the server may have acted on it.
    pub fn rename(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        self.change(from, &mut to_destination("MOVE", "move", (from, to), replaces)?.once())
    }

    fn change(&self, url: &str, call: &mut Call<'_>) -> Result<()> {
        let (method, operation) = (call.method, call.operation);
        let answer = self.ask(url, call)?;
        check(&answer, method)
            .and_then(|()| believe(&answer))
            .map_err(|error| answer.file.named(operation, error))
    }
}

/// Whether an answer says that all was done.
pub(super) fn check(answer: &Answer, method: &str) -> Result<()> {
    match answer.status {
        207 => of_members(method, &multistatus(&answer.document)?).map_or(Ok(()), Err),
        200..=299 => Ok(()),
        // Apache names what is locked below a collection in a document that goes with this status.
        424 => {
            let named = multistatus(&answer.document).ok().and_then(|members| of_members(method, &members));
            Err(named.unwrap_or_else(|| answer.refusal(method)))
        }
        _ => Err(answer.refusal(method)),
    }
}

/// XRootD answers COPY by a report of the copy, whose status says only that it began.
/// Errors: `Unavailable` with the server's reason.
fn believe(answer: &Answer) -> Result<()> {
    if !answer.is_plain_text || answer.status == 207 {
        return Ok(());
    }
    let mut report = CopyReport::default();
    report.push(&answer.document)?;
    match report.finish()? {
        Some(Outcome::Failure(reason)) => {
            Err(Error::new(ErrorKind::Unavailable, format!("the server could not do it: {reason}")))
        }
        _ => Ok(()),
    }
}

/// Errors: `InvalidArgument` for another server: some take the path for one of their own.
fn to_destination(
    method: &'static str,
    operation: &'static str,
    (from, to): (&str, &str),
    replaces: bool,
) -> Result<Call<'static>> {
    let (from, to) = (WebFile::parse(from)?, WebFile::parse(to)?);
    if from.origin() != to.origin() {
        let detail = format!("{} is at another server", to.shown());
        return Err(from.named(operation, Error::new(ErrorKind::InvalidArgument, detail)));
    }
    let overwrite = if replaces { "T" } else { "F" };
    Ok(Call::new(method, operation).header("destination", to.url()).header("overwrite", overwrite))
}
