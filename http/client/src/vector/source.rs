//! Where a file is read: at the address where it was found, or where its bytes are if the server sends us
//! elsewhere for them. A [`RangeTarget`] says how a request for it is written and what its refusals mean, a [`FileVersion`] which
//! version is read: one read never mixes two.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date;

use super::learned::{self, ServerProfile};
use super::open::{OpenOutcome, by_first_byte_alone};
use super::redirect::{RedirectResponse, RedirectRoute};
use super::{HttpSession, WebFile};
use crate::Origin;

/// What is read, by any reader.
pub(super) struct ReadSource {
    /// As it was when the file was opened.
    pub(super) version: FileVersion,
    pub(super) traffic: ReadCounts,
    /// The address that the caller named, and whose credentials go there; `None` for what is at one target alone.
    door: Option<(Arc<HttpSession>, WebFile)>,
    /// Where it is read now.
    place: Mutex<Arc<SourceLocation>>,
    /// Whether bytes of it were handed out: those from another place have to be of the same version.
    pub(super) is_begun: AtomicBool,
}

/// A place that has the file.
pub(super) struct SourceLocation {
    pub(super) session: Arc<HttpSession>,
    pub(super) target: Box<dyn RangeTarget>,
    /// By the marks that the server there puts on it.
    pub(super) version: FileVersion,
    /// Where servers may send us on from, if they may.
    file: Option<WebFile>,
}

/// What reads have cost so far.
#[derive(Default)]
pub(super) struct ReadCounts {
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
}

impl ReadSource {
    /// What is at an address.
    pub(super) fn of_url(route: &RedirectRoute, version: FileVersion, traffic: ReadCounts) -> Self {
        ReadSource::new(SourceLocation::of_url(route, version), Some(route.door()), traffic)
    }

    /// What is at this target and nowhere else.
    pub(super) fn of_target(
        session: &Arc<HttpSession>,
        target: Box<dyn RangeTarget>,
        version: FileVersion,
        traffic: ReadCounts,
    ) -> Self {
        ReadSource::new(
            SourceLocation { session: session.clone(), target, version, file: None },
            None,
            traffic,
        )
    }

    fn new(place: SourceLocation, door: Option<(Arc<HttpSession>, WebFile)>, traffic: ReadCounts) -> Self {
        let version = place.version.clone();
        ReadSource {
            version,
            traffic,
            door,
            place: Mutex::new(Arc::new(place)),
            is_begun: AtomicBool::new(false),
        }
    }

    /// Where it is read now.
    pub(super) fn place(&self) -> Arc<SourceLocation> {
        self.locked().clone()
    }

    /// Goes where `from` sends a GET, which it answers itself to HEAD: for the life of the file, and for all
    /// of its readers. Asks for the first byte there, to know by which marks the version goes. `has_bytes` says
    /// that the caller was given some by `from`.
    /// Errors: as of opening, with the way; `PreconditionFailed` for another version.
    pub(super) fn follow(
        &self,
        from: &Arc<SourceLocation>,
        moved: &RedirectResponse,
        has_bytes: bool,
    ) -> Result<Arc<SourceLocation>> {
        let mut current = self.locked();
        if !Arc::ptr_eq(&current, from) {
            // Another thread was sent there before.
            if has_bytes {
                current.check_is_of(&from.version)?;
            }
            return Ok(current.clone());
        }
        let Some(file) = &from.file else {
            return Err(from.refusal(moved.status, Some(&moved.location), b""));
        };
        let mut route = RedirectRoute::onwards(&from.session, file.clone());
        let searched = route.follow(moved).and_then(|()| self.search(&mut route));
        let version = searched.map_err(|error| route.named("read", error))?;
        let place = SourceLocation::of_url(&route, version);
        if has_bytes || self.is_begun.load(Ordering::Relaxed) {
            place.check_is_of(&from.version).map_err(|error| route.named("read", error))?;
        }
        tracing::debug!(from = file.shown(), to = route.file.shown(), "reads are redirected");
        *current = Arc::new(place);
        Ok(current.clone())
    }

    /// Whether an answer of `from` can be mended by asking where the file is now: another address led there, and
    /// what was allowed or there at first is so no more, as when a signature has expired.
    pub(super) fn may_be_elsewhere(&self, from: &SourceLocation, error: &Error) -> bool {
        let is_led =
            |(_, door): &(_, WebFile)| from.file.as_ref().is_some_and(|file| file.url() != door.url());
        matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NoSuchKey)
            && self.door.as_ref().is_some_and(is_led)
    }

    /// Asks the address that the caller named where the file is now, because `from` refuses: for all who
    /// read it. What was remembered of the way is asked for again too.
    /// Errors: as [`ReadSource::follow`]; `PreconditionFailed` for another version than `from`'s, whether
    /// bytes were handed out or not.
    /// Cost: one request (the first byte), and one for each redirection.
    pub(super) fn ask_again(&self, from: &Arc<SourceLocation>) -> Result<Arc<SourceLocation>> {
        let mut current = self.locked();
        if !Arc::ptr_eq(&current, from) {
            // Another thread has asked.
            current.check_is_of(&from.version)?;
            return Ok(current.clone());
        }
        let Some((session, door)) = &self.door else { return Ok(current.clone()) };
        let mut route = RedirectRoute::start(session, door.clone())?;
        let mut found = self.search(&mut route);
        if route.is_recalled() && (found.is_err() || route.leads_to(from.file.as_ref())) {
            route.forget();
            route = RedirectRoute::start(session, door.clone())?;
            found = self.search(&mut route);
        }
        let place = found.map(|version| SourceLocation::of_url(&route, version));
        let place = place.and_then(|place| place.check_is_of(&from.version).map(|()| place));
        let place = place.map_err(|error| route.named("read", error))?;
        tracing::debug!(door = door.shown(), to = route.file.shown(), "reads are redirected anew");
        *current = Arc::new(place);
        Ok(current.clone())
    }

    /// Asks for the first byte from address to address.
    fn search(&self, route: &mut RedirectRoute) -> Result<FileVersion> {
        let version = loop {
            match by_first_byte_alone(&route.session, &route.file, &self.traffic)? {
                OpenOutcome::File(version) => break version,
                OpenOutcome::Elsewhere(moved) => route.follow(&moved)?,
            }
        };
        self.version.check_size(Some(version.size_bytes))?;
        Ok(version)
    }

    fn locked(&self) -> MutexGuard<'_, Arc<SourceLocation>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SourceLocation {
    fn of_url(route: &RedirectRoute, version: FileVersion) -> Self {
        let file = route.file.clone();
        SourceLocation {
            session: route.session.clone(),
            target: Box::new(file.clone()),
            version,
            file: Some(file),
        }
    }

    pub(super) fn learned(&self) -> ServerProfile {
        learned::about(&self.session, &*self.target)
    }

    pub(super) fn learn(&self, change: impl FnOnce(&mut ServerProfile)) -> ServerProfile {
        learned::note(&self.session, &*self.target, change)
    }

    /// Whether bytes from here may follow `before`'s. Errors: `PreconditionFailed`.
    fn check_is_of(&self, before: &FileVersion) -> Result<()> {
        let (etag, modified) = (self.version.etag.as_deref(), self.version.last_modified.as_deref());
        before.check(etag, modified, true).map_err(|error| {
            let why = error.detail().to_owned();
            changed(&format!("reads are redirected since, to a server that knows it by another mark: {why}"))
        })
    }

    /// What a refusal means, without the name of what was asked.
    pub(super) fn refusal(&self, status: u16, location: Option<&str>, document: &[u8]) -> Error {
        self.target.refusal(status, location, document)
    }
}

/// How requests say that they mean one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionPin {
    /// By `If-Range`, which answers another version whole.
    IfRange,
    /// By `If-Match`, which refuses another version; S3 knows no `If-Range`.
    IfMatch,
}

/// Something that has an address and ranges. Credentials live here: whatever else a request needs
/// is written with its head.
pub trait RangeTarget: Send + Sync {
    /// Where connections go.
    fn origin(&self) -> &Origin;

    /// Says in an error which operation failed on what, without secrets.
    fn named(&self, operation: &'static str, error: Error) -> Error;

    /// How a version is pinned.
    fn pin(&self) -> VersionPin;

    /// Whether several ranges are worth a try on a server that was never asked.
    fn may_know_many_ranges(&self) -> bool;

    /// Appends a request line, all headers (`headers` among them, names in lower case) and the empty line.
    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>);

    /// The failure that an answer of status 300 and more states.
    fn refusal(&self, status: u16, location: Option<&str>, document: &[u8]) -> Error;
}

/// What tells one version of a file from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// Bytes of the whole.
    pub size_bytes: u64,
    /// As the server writes it, with its quotes.
    pub etag: Option<String>,
    /// As the server writes it.
    pub last_modified: Option<String>,
    /// Values of `Link` headers: where else it may be (RFC 6249).
    pub(crate) links: Vec<String>,
    /// Whether the time of the last change is so long past that no second change can share it.
    is_settled: bool,
}

impl FileVersion {
    /// Of the headers of an answer.
    pub(super) fn new(size_bytes: u64, header: impl Fn(&str) -> Option<String>) -> Self {
        let (etag, last_modified) = (header("etag"), header("last-modified"));
        let seconds = |text: &Option<String>| text.as_deref().and_then(date::parse_http);
        let is_settled = match (seconds(&last_modified), seconds(&header("date"))) {
            (Some(changed), Some(now)) => now.duration_since(changed).is_ok_and(|age| age.as_secs() >= 1),
            _ => false,
        };
        FileVersion { size_bytes, etag, last_modified, links: Vec::new(), is_settled }
    }

    /// Of a size and a strong ETag, without its quotes.
    pub fn tagged(size_bytes: u64, etag: &str) -> Self {
        let etag = (!etag.is_empty()).then(|| format!("\"{etag}\""));
        FileVersion { size_bytes, etag, last_modified: None, links: Vec::new(), is_settled: false }
    }

    /// The header by which a request means this version alone, where there is a strong enough mark of it.
    pub(super) fn condition(&self, pin: VersionPin) -> Option<(&'static str, &str)> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        match pin {
            VersionPin::IfMatch => Some(("if-match", strong?)),
            VersionPin::IfRange => {
                let time = self.last_modified.as_deref().filter(|_| self.is_settled && self.etag.is_none());
                Some(("if-range", strong.or(time)?))
            }
        }
    }

    /// Whether an answer with these marks is of this version. One without any is, unless it must prove
    /// it: an answer of the whole file is also how a server says that it has another version.
    pub(super) fn check(
        &self,
        etag: Option<&str>,
        last_modified: Option<&str>,
        must_prove: bool,
    ) -> Result<(), Error> {
        let (name, ours, theirs) = match (&self.etag, &self.last_modified) {
            (Some(ours), _) if etag.is_some() => ("ETag", ours, etag),
            (_, Some(ours)) if last_modified.is_some() => ("Last-Modified", ours, last_modified),
            (Some(ours), _) | (None, Some(ours)) if must_prove => ("ETag", ours, None),
            _ => return Ok(()),
        };
        match theirs {
            Some(theirs) if theirs == ours => Ok(()),
            theirs => Err(changed(&format!("{name} was {ours}, is now {}", theirs.unwrap_or("not stated")))),
        }
    }

    /// Whether an answer about so large a file can be of this version.
    pub(super) fn check_size(&self, size_bytes: Option<u64>) -> Result<(), Error> {
        match size_bytes {
            Some(size) if size != self.size_bytes => {
                Err(changed(&format!("it had {} bytes, and has {size}", self.size_bytes)))
            }
            _ => Ok(()),
        }
    }
}

/// The file is not what it was when it was opened.
pub(super) fn changed(how: &str) -> Error {
    let detail = format!("the file changed while it was read ({how}); open it again and read all of it");
    Error::new(ErrorKind::PreconditionFailed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(headers: &[(&str, &str)]) -> FileVersion {
        FileVersion::new(9, |name| {
            let found = headers.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const THEN: (&str, &str) = ("last-modified", "Fri, 24 May 2013 00:00:00 GMT");

    #[test]
    fn only_strong_marks_pin() {
        let of = |headers: &[_]| {
            version(headers).condition(VersionPin::IfRange).map(|(_, value)| value.to_owned())
        };
        assert_eq!(of(&[("etag", "\"t\""), THEN]).as_deref(), Some("\"t\""));
        assert_eq!(of(&[("etag", "W/\"t\""), THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]), None);
        assert_eq!(of(&[THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]).as_deref(), Some(THEN.1));
        assert_eq!(of(&[THEN, ("date", THEN.1)]), None);
        assert_eq!(of(&[THEN]), None);
        assert_eq!(version(&[("etag", "\"t\"")]).condition(VersionPin::IfMatch), Some(("if-match", "\"t\"")));
    }

    #[test]
    fn another_version_is_noticed() {
        let both = version(&[("etag", "\"t\""), THEN]);
        assert!(both.check(Some("\"t\""), Some("another time"), true).is_ok());
        assert!(both.check(None, Some(THEN.1), true).is_ok());
        assert!(both.check(None, None, false).is_ok());
        for (etag, time, must_prove) in
            [(Some("\"u\""), Some(THEN.1), false), (None, Some("another time"), false), (None, None, true)]
        {
            let error = both.check(etag, time, must_prove).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PreconditionFailed);
        }
        assert!(version(&[]).check(Some("\"u\""), None, true).is_ok());
        assert_eq!(both.check_size(Some(8)).unwrap_err().kind(), ErrorKind::PreconditionFailed);
        assert!(both.check_size(Some(9)).is_ok() && both.check_size(None).is_ok());
    }
}
