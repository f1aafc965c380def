//! The location from which a file is read: the address where the file was found, or the address to which the server at
//! that address redirects reads. A [`RemoteResource`] defines how requests are written and what refusals mean. A
//! [`FileVersion`] defines which version is read: one read never mixes two versions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date;

use super::learned::{self, ServerProfile};
use super::open::{FileOrRedirect, by_first_byte_alone};
use super::redirect::{RedirectResponse, RedirectRoute};
use super::{HttpSession, HttpTrafficCounts, WebFileResource};
use crate::Origin;

/// The source of a file, shared by all of its readers.
pub(super) struct RemoteFileSource {
    /// The version that existed when the file was opened.
    pub(super) version: FileVersion,
    pub(super) traffic: AtomicHttpTrafficCounts,
    /// The session and URL that the caller named; `None` for a file at a single target.
    door: Option<(Arc<HttpSession>, WebFileResource)>,
    /// The location from which the file is read now.
    place: Mutex<Arc<SourceLocation>>,
    /// Whether the caller has received any bytes. If so, bytes from another location must be of the same version.
    pub(super) is_begun: AtomicBool,
}

/// One location of the file.
pub(super) struct SourceLocation {
    pub(super) session: Arc<HttpSession>,
    pub(super) target: Box<dyn RemoteResource>,
    /// The version, with the validators of the server at this location.
    pub(super) version: FileVersion,
    /// The base URL of redirections, if they are allowed.
    file: Option<WebFileResource>,
}

/// The numbers of requests and connections that reads have used so far.
#[derive(Default)]
pub(super) struct AtomicHttpTrafficCounts {
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
}

impl From<HttpTrafficCounts> for AtomicHttpTrafficCounts {
    fn from(traffic: HttpTrafficCounts) -> Self {
        AtomicHttpTrafficCounts { requests: traffic.requests.into(), connections: traffic.connections.into() }
    }
}

impl RemoteFileSource {
    /// Creates the source for the file at the end of a route.
    pub(super) fn of_url(
        route: &RedirectRoute,
        version: FileVersion,
        traffic: AtomicHttpTrafficCounts,
    ) -> Self {
        RemoteFileSource::new(SourceLocation::of_url(route, version), Some(route.door()), traffic)
    }

    /// Creates the source for a file at this single target.
    pub(super) fn of_target(
        session: &Arc<HttpSession>,
        target: Box<dyn RemoteResource>,
        version: FileVersion,
        traffic: AtomicHttpTrafficCounts,
    ) -> Self {
        RemoteFileSource::new(
            SourceLocation { session: session.clone(), target, version, file: None },
            None,
            traffic,
        )
    }

    fn new(
        place: SourceLocation,
        door: Option<(Arc<HttpSession>, WebFileResource)>,
        traffic: AtomicHttpTrafficCounts,
    ) -> Self {
        let version = place.version.clone();
        RemoteFileSource {
            version,
            traffic,
            door,
            place: Mutex::new(Arc::new(place)),
            is_begun: AtomicBool::new(false),
        }
    }

    /// Returns the location from which the file is read now.
    pub(super) fn place(&self) -> Arc<SourceLocation> {
        self.locked().clone()
    }

    /// Follows the redirection if a server redirects GET although it responds to HEAD itself. All readers of the file
    /// use the new location, for the lifetime of the file. Requests the first byte at the new location, to learn that
    /// server's validators. `has_bytes` is true if the caller has received bytes from `from`. Errors: as for opening,
    /// and the message names the route; `PreconditionFailed` for a different version.
    pub(super) fn follow(
        &self,
        from: &Arc<SourceLocation>,
        moved: &RedirectResponse,
        has_bytes: bool,
    ) -> Result<Arc<SourceLocation>> {
        let mut current = self.locked();
        if !Arc::ptr_eq(&current, from) {
            // Another thread has already followed the redirection.
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

    /// Returns whether locating the file again may help after an error from `from`. This is the case if a redirection
    /// led to `from` and access has since been lost, for example because a signature has expired.
    pub(super) fn may_be_elsewhere(&self, from: &SourceLocation, error: &Error) -> bool {
        let is_led = |(_, door): &(_, WebFileResource)| {
            from.file.as_ref().is_some_and(|file| file.url() != door.url())
        };
        matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NoSuchKey)
            && self.door.as_ref().is_some_and(is_led)
    }

    /// Locates the file again from the URL that the caller named, because `from` refuses access. All readers of the
    /// file use the new location. Remembered redirections that led to `from` are also requested again. Errors: as for
    /// [`RemoteFileSource::follow`]; `PreconditionFailed` if the version differs from `from`'s, whether or not the
    /// caller has received any bytes. Cost: one request (for the first byte), plus one per redirection.
    pub(super) fn ask_again(&self, from: &Arc<SourceLocation>) -> Result<Arc<SourceLocation>> {
        let mut current = self.locked();
        if !Arc::ptr_eq(&current, from) {
            // Another thread has already located the file again.
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
        tracing::debug!(door = door.shown(), to = route.file.shown(), "reads are redirected again");
        *current = Arc::new(place);
        Ok(current.clone())
    }

    /// Requests the first byte, and follows redirections.
    fn search(&self, route: &mut RedirectRoute) -> Result<FileVersion> {
        let version = loop {
            match by_first_byte_alone(&route.session, &route.file, &self.traffic)? {
                FileOrRedirect::File(version) => break version,
                FileOrRedirect::Elsewhere(moved) => route.follow(&moved)?,
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

    /// Checks that a read that has received bytes of the version `before` can continue at this location. Errors:
    /// `PreconditionFailed`.
    fn check_is_of(&self, before: &FileVersion) -> Result<()> {
        let (etag, modified) = (self.version.etag.as_deref(), self.version.last_modified.as_deref());
        before.check(etag, modified, true).map_err(|error| {
            let why = error.detail().to_owned();
            changed(&format!(
                "reads are now redirected to a server with a different ETag or time of the file: {why}"
            ))
        })
    }

    /// Returns the error for a refusal, without the name of the file.
    pub(super) fn refusal(&self, status: u16, location: Option<&str>, document: &[u8]) -> Error {
        self.target.refusal(status, location, document)
    }
}

/// How requests are limited to one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionPrecondition {
    /// By `If-Range`: if the file has a different version, the server sends the whole file.
    IfRange,
    /// By `If-Match`: if the file has a different version, the server refuses the request. S3 needs this header,
    /// because it does not support `If-Range`.
    IfMatch,
}

/// A resource that has an address and can be read in ranges. The value contains the credentials; `write_head` adds the
/// headers that a request needs.
pub trait RemoteResource: Send + Sync {
    /// Returns the origin to connect to.
    fn origin(&self) -> &Origin;

    /// Adds the operation and the resource to an error, without secrets.
    fn named(&self, operation: &'static str, error: Error) -> Error;

    /// Returns how requests are limited to one version.
    fn pin(&self) -> VersionPrecondition;

    /// Returns whether a request for several ranges is worth trying if nothing is known about the server.
    fn may_know_many_ranges(&self) -> bool;

    /// Returns whether the server certainly implements HEAD, so that a refused HEAD means that a GET is refused too.
    fn implements_head(&self) -> bool {
        false
    }

    /// Appends a request line, all headers (including `headers`, whose names are in lower case) and the empty line.
    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>);

    /// Returns the error that a response without the file reports.
    fn refusal(&self, status: u16, location: Option<&str>, document: &[u8]) -> Error;
}

/// The validators of a file's version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// The size of the file.
    pub size_bytes: u64,
    /// The ETag as the server writes it, with its quotes.
    pub etag: Option<String>,
    /// The value of `Last-Modified` as the server writes it.
    pub last_modified: Option<String>,
    /// The values of `Link` headers, which may name replicas (RFC 6249).
    pub(crate) links: Vec<String>,
    /// The value of `Content-Encoding`.
    coding: Option<String>,
    /// Whether the last change is old enough that a second change cannot have the same time.
    is_settled: bool,
}

impl FileVersion {
    /// Creates a version from the headers of a response.
    pub(super) fn new(size_bytes: u64, header: impl Fn(&str) -> Option<String>) -> Self {
        let (etag, last_modified) = (header("etag"), header("last-modified"));
        let seconds = |text: &Option<String>| text.as_deref().and_then(date::parse_http);
        let is_settled = match (seconds(&last_modified), seconds(&header("date"))) {
            (Some(changed), Some(now)) => now.duration_since(changed).is_ok_and(|age| age.as_secs() >= 1),
            _ => false,
        };
        let coding = header("content-encoding");
        FileVersion { size_bytes, etag, last_modified, links: Vec::new(), coding, is_settled }
    }

    /// Creates a version with this size and strong ETag; `etag` does not include the quotes.
    pub fn tagged(size_bytes: u64, etag: &str) -> Self {
        let etag = (!etag.is_empty()).then(|| format!("\"{etag}\""));
        FileVersion { size_bytes, etag, ..FileVersion::default() }
    }

    /// Returns the coding of the file at `url`, unless the file's name shows that it is compressed. Requests accept
    /// only the file itself (`Accept-Encoding: identity`), but some servers ignore this header. Some servers also send
    /// the coding of a file that is stored compressed, such as `a.gz`; in that case, the server sends the file
    /// unchanged.
    pub fn unexpected_coding(&self, url: &str) -> Option<&str> {
        const ENDINGS: [&str; 9] = [".gz", ".tgz", ".z", ".bz2", ".xz", ".zst", ".br", ".lz", ".svgz"];
        let path = url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        let coding = self.coding.as_deref().filter(|coding| !coding.trim().eq_ignore_ascii_case("identity"));
        coding.filter(|_| !ENDINGS.iter().any(|ending| path.ends_with(ending)))
    }

    /// Returns the header that limits a request to this version, if a validator is strong enough.
    pub(super) fn condition(&self, pin: VersionPrecondition) -> Option<(&'static str, &str)> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        match pin {
            VersionPrecondition::IfMatch => Some(("if-match", strong?)),
            VersionPrecondition::IfRange => {
                // A value without quotes is not an ETag, and a server would not recognize it in `If-Range`.
                let strong = strong.filter(|etag| etag.starts_with('"'));
                let time = self.last_modified.as_deref().filter(|_| self.is_settled && self.etag.is_none());
                Some(("if-range", strong.or(time)?))
            }
        }
    }

    /// Checks that a response with these validators is of this version. A response without validators passes, unless
    /// `must_prove` is set. Callers set `must_prove`, for example, if the server sends the whole file, because the
    /// server may then have a different version.
    pub(super) fn check(
        &self,
        etag: Option<&str>,
        last_modified: Option<&str>,
        must_prove: bool,
    ) -> Result<(), Error> {
        let is_weak = self.etag.as_deref().is_some_and(|etag| etag.starts_with("W/"));
        let (name, ours, theirs) = match (&self.etag, &self.last_modified) {
            // Two versions with the same weak ETag may have different bytes (RFC 9110 section 8.8.1).
            (_, Some(ours)) if is_weak && last_modified.is_some_and(|theirs| theirs != ours) => {
                ("Last-Modified", ours, last_modified)
            }
            (Some(ours), _) if etag.is_some() => ("ETag", ours, etag),
            (_, Some(ours)) if last_modified.is_some() => ("Last-Modified", ours, last_modified),
            (Some(ours), _) | (None, Some(ours)) if must_prove => ("ETag", ours, None),
            _ => return Ok(()),
        };
        match theirs {
            Some(theirs) if theirs == ours => Ok(()),
            // Apache's ETag is weak while a file is new. Later, Apache sends the same ETag as a strong ETag.
            Some(theirs) if name == "ETag" && ours.strip_prefix("W/") == Some(theirs) => Ok(()),
            theirs => {
                Err(changed(&format!("{name} was {ours} and is now {}", theirs.unwrap_or("not stated"))))
            }
        }
    }

    /// Checks that a response with this size of the file can be of this version.
    pub(super) fn check_size(&self, size_bytes: Option<u64>) -> Result<(), Error> {
        match size_bytes {
            Some(size) if size != self.size_bytes => {
                Err(changed(&format!("it had {} bytes and now has {size}", self.size_bytes)))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the error for a file that has changed since it was opened.
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
            version(headers).condition(VersionPrecondition::IfRange).map(|(_, value)| value.to_owned())
        };
        assert_eq!(of(&[("etag", "\"t\""), THEN]).as_deref(), Some("\"t\""));
        assert_eq!(of(&[("etag", "W/\"t\""), THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]), None);
        assert_eq!(of(&[THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]).as_deref(), Some(THEN.1));
        assert_eq!(of(&[THEN, ("date", THEN.1)]), None);
        assert_eq!(of(&[THEN]), None);
        assert_eq!(of(&[("etag", "t")]), None);
        assert_eq!(
            version(&[("etag", "\"t\"")]).condition(VersionPrecondition::IfMatch),
            Some(("if-match", "\"t\""))
        );
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
        let (weak, strong) = (version(&[("etag", "W/\"t\"")]), version(&[("etag", "\"t\"")]));
        assert!(
            weak.check(Some("\"t\""), None, true).is_ok() && weak.check(Some("W/\"t\""), None, true).is_ok()
        );
        assert!(weak.check(Some("\"u\""), None, true).is_err());
        let weak_then = version(&[("etag", "W/\"t\""), THEN]);
        assert!(weak_then.check(Some("W/\"t\""), Some(THEN.1), true).is_ok());
        assert!(weak_then.check(Some("W/\"t\""), Some("another time"), false).is_err());
        assert!(strong.check(Some("W/\"t\""), None, true).is_err(), "weaker than what was opened");
        assert_eq!(both.check_size(Some(8)).unwrap_err().kind(), ErrorKind::PreconditionFailed);
        assert!(both.check_size(Some(9)).is_ok() && both.check_size(None).is_ok());
    }
}
