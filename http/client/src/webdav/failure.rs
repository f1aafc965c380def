//! What refusals of WebDAV requests mean (RFC 4918 section 11, RFC 9110 section 15).

use fordway_store::{Error, ErrorKind};
use fordway_wire::s3_error;
use fordway_wire::webdav::Described;

use super::call::Answer;
use crate::vector::Target as _;

/// Members that are named in an error, at most.
const NAMED_MAX: usize = 5;
/// What is shown of a server's own words.
const WORDS_CHARS_MAX: usize = 200;

impl Answer {
    /// The failure that this answer to `method` states.
    pub(super) fn refusal(&self, method: &str) -> Error {
        if matches!(self.status, 300..=399 | 401 | 403 | 407) {
            let mut error = self.file.refusal(self.status, None, b"");
            if let Some(words) = self.words() {
                error = Error::new(error.kind(), format!("{}: {words}", error.detail()));
            }
            return error;
        }
        let (kind, why) = meaning(self.status, method);
        let words = self.words().map(|words| format!(": {words}")).unwrap_or_default();
        Error::new(kind, format!("{why} (HTTP status {}){words}", self.status))
    }

    /// The first line of a plain text, with which some servers say more than by a status.
    fn words(&self) -> Option<String> {
        if !self.is_plain_text {
            return None;
        }
        let text = String::from_utf8_lossy(&self.document);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(WORDS_CHARS_MAX).collect())
    }
}

/// The kind of a status, and what it says about a request of `method`.
fn meaning(status: u16, method: &str) -> (ErrorKind, String) {
    let said = |kind, why: &str| (kind, why.to_owned());
    match (status, method) {
        (404 | 410, _) => said(ErrorKind::NoSuchKey, "there is nothing at this address"),
        (405, "MKCOL") => said(
            ErrorKind::PreconditionFailed,
            "something is at this address already, or the server does not speak WebDAV here",
        ),
        (409, "PUT") => said(
            ErrorKind::NoSuchKey,
            "the collection that it would be in does not exist (make it with `fordway mkdir --parents`), or it is a collection",
        ),
        (409, "MKCOL" | "COPY" | "MOVE") => said(
            ErrorKind::NoSuchKey,
            "the collection that it would be in does not exist; make it with `fordway mkdir --parents`",
        ),
        (412, _) => said(ErrorKind::PreconditionFailed, "something is at the destination already"),
        (400, _) => said(ErrorKind::InvalidArgument, "the server does not take such a request"),
        (405 | 501, _) => (
            ErrorKind::MethodNotAllowed,
            format!("the server takes no {method} here: it does not speak WebDAV, or not at this address"),
        ),
        (413, _) => said(ErrorKind::EntityTooLarge, "the server does not take so much"),
        (414, _) => said(ErrorKind::KeyTooLong, "the server does not take so long an address"),
        (423, _) => {
            said(ErrorKind::ConditionalConflict, "it is locked by somebody; wait until the lock is gone")
        }
        (424, _) => said(ErrorKind::ConditionalConflict, "something that it depends on failed"),
        (502, "COPY" | "MOVE") => {
            said(ErrorKind::InvalidArgument, "the server does not take that destination")
        }
        (507, _) => said(ErrorKind::NoSpace, "the server has no room left"),
        _ => said(s3_error::from_s3(status, ""), "the server refused"),
    }
}

/// Whether the same request may be answered otherwise soon. What changes something is not sent again
/// after a status that servers also use for good (500 at XRootD, 502 for a destination elsewhere).
pub(super) fn is_passing(status: u16, method: &str) -> bool {
    let changes = !matches!(method, "PROPFIND" | "GET" | "HEAD" | "OPTIONS");
    matches!(status, 408 | 429 | 503 | 504) || (matches!(status, 500 | 502) && !changes)
}

/// The failure of a request of which some members failed; `None` if none did.
pub(super) fn of_members(method: &str, described: &[Described]) -> Option<Error> {
    let failed = |one: &&Described| one.status.is_some_and(|status| status >= 400);
    // What only failed because something else did says nothing (RFC 4918 section 11.4).
    let causes: Vec<_> = described.iter().filter(failed).filter(|one| one.status != Some(424)).collect();
    let all: Vec<_> = described.iter().filter(failed).collect();
    let told = if causes.is_empty() { all } else { causes };
    let (kind, _) = meaning(told.first()?.status?, method);
    let names = told.iter().take(NAMED_MAX).map(|one| {
        let status = one.status.unwrap_or_default();
        let href: String = one.href.chars().filter(|c| !c.is_control()).take(WORDS_CHARS_MAX).collect();
        format!("{href}: {} (HTTP status {status})", meaning(status, method).1)
    });
    let (names, more) = (names.collect::<Vec<_>>().join(", "), told.len().saturating_sub(NAMED_MAX));
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Some(Error::new(kind, format!("not all of it was done: {names}{more}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(href: &str, status: u16) -> Described {
        Described { href: href.to_owned(), status: Some(status), ..Described::default() }
    }

    #[test]
    fn members_that_failed_are_named() {
        let some = [described("/d/a", 204), described("/d/b\r", 423), described("/d", 424)];
        let error = of_members("DELETE", &some).unwrap();
        assert_eq!(error.kind(), ErrorKind::ConditionalConflict);
        assert!(error.detail().contains("/d/b: it is locked") && !error.detail().contains("424"), "{error}");
        let many: Vec<_> = (0..8).map(|n| described(&format!("/{n}"), 507)).collect();
        let error = of_members("COPY", &many).unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.detail().ends_with("and 3 more"), "{error}");
        assert!(of_members("DELETE", &[described("/d", 200)]).is_none());
        assert!(of_members("DELETE", &[]).is_none());
    }

    #[test]
    fn statuses_are_told_apart() {
        for (status, method, kind) in [
            (405, "MKCOL", ErrorKind::PreconditionFailed),
            (405, "PROPFIND", ErrorKind::MethodNotAllowed),
            (409, "MKCOL", ErrorKind::NoSuchKey),
            (412, "MOVE", ErrorKind::PreconditionFailed),
            (423, "DELETE", ErrorKind::ConditionalConflict),
            (507, "PUT", ErrorKind::NoSpace),
            (404, "DELETE", ErrorKind::NoSuchKey),
            (503, "PUT", ErrorKind::Unavailable),
        ] {
            assert_eq!(meaning(status, method).0, kind, "{status} {method}");
        }
        assert!(is_passing(503, "MOVE") && is_passing(500, "PROPFIND") && !is_passing(500, "DELETE"));
    }
}
