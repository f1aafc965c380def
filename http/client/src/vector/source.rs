//! Where a file is read: at the address where it was found, or where its bytes are if the server sends us
//! elsewhere for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, Result};

use super::learned::{self, Learned};
use super::open::{Described, by_first_byte_alone};
use super::redirect::{Moved, Route};
use super::version::{FileVersion, changed};
use super::{Session, Target, WebFile};

/// What is read, by any reader.
pub(super) struct Source {
    /// As it was when the file was opened.
    pub(super) version: FileVersion,
    pub(super) traffic: Counts,
    /// The address that the caller named, and whose credentials go there; `None` for what is at one target alone.
    door: Option<(Arc<Session>, WebFile)>,
    /// Where it is read now.
    place: Mutex<Arc<Place>>,
    /// Whether bytes of it were handed out: those from another place have to be of the same version.
    pub(super) is_begun: AtomicBool,
}

/// A place that has the file.
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    pub(super) target: Box<dyn Target>,
    /// By the marks that the server there puts on it.
    pub(super) version: FileVersion,
    /// Where servers may send us on from, if they may.
    file: Option<WebFile>,
}

/// What reads have cost so far.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
}

impl Source {
    /// What is at an address.
    pub(super) fn of_url(route: &Route, version: FileVersion, traffic: Counts) -> Self {
        Source::new(Place::of_url(route, version), Some(route.door()), traffic)
    }

    /// What is at this target and nowhere else.
    pub(super) fn of_target(
        session: &Arc<Session>,
        target: Box<dyn Target>,
        version: FileVersion,
        traffic: Counts,
    ) -> Self {
        Source::new(Place { session: session.clone(), target, version, file: None }, None, traffic)
    }

    fn new(place: Place, door: Option<(Arc<Session>, WebFile)>, traffic: Counts) -> Self {
        let version = place.version.clone();
        Source {
            version,
            traffic,
            door,
            place: Mutex::new(Arc::new(place)),
            is_begun: AtomicBool::new(false),
        }
    }

    /// Where it is read now.
    pub(super) fn place(&self) -> Arc<Place> {
        self.locked().clone()
    }

    /// Goes where `from` sends a GET, which it answers itself to HEAD: for the life of the file, and for all
    /// of its readers. Asks for the first byte there, to know by which marks the version goes. `has_bytes` says
    /// that the caller was given some by `from`.
    /// Errors: as of opening, with the way; `PreconditionFailed` for another version.
    pub(super) fn follow(&self, from: &Arc<Place>, moved: &Moved, has_bytes: bool) -> Result<Arc<Place>> {
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
        let mut route = Route::onwards(&from.session, file.clone());
        let searched = route.follow(moved).and_then(|()| self.search(&mut route));
        let version = searched.map_err(|error| route.named("read", error))?;
        let place = Place::of_url(&route, version);
        if has_bytes || self.is_begun.load(Ordering::Relaxed) {
            place.check_is_of(&from.version).map_err(|error| route.named("read", error))?;
        }
        tracing::debug!(from = file.shown(), to = route.file.shown(), "reads are redirected");
        *current = Arc::new(place);
        Ok(current.clone())
    }

    /// Whether an answer of `from` can be mended by asking where the file is now: another address led there, and
    /// what was allowed or there at first is so no more, as when a signature has expired.
    pub(super) fn may_be_elsewhere(&self, from: &Place, error: &Error) -> bool {
        let is_led =
            |(_, door): &(_, WebFile)| from.file.as_ref().is_some_and(|file| file.url() != door.url());
        matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NoSuchKey)
            && self.door.as_ref().is_some_and(is_led)
    }

    /// Asks the address that the caller named where the file is now, because `from` refuses: for all who
    /// read it. What was remembered of the way is asked for again too.
    /// Errors: as [`Source::follow`]; `PreconditionFailed` for another version than `from`'s, whether
    /// bytes were handed out or not.
    /// Cost: one request (the first byte), and one for each redirection.
    pub(super) fn ask_again(&self, from: &Arc<Place>) -> Result<Arc<Place>> {
        let mut current = self.locked();
        if !Arc::ptr_eq(&current, from) {
            // Another thread has asked.
            current.check_is_of(&from.version)?;
            return Ok(current.clone());
        }
        let Some((session, door)) = &self.door else { return Ok(current.clone()) };
        let mut route = Route::start(session, door.clone())?;
        let mut found = self.search(&mut route);
        if route.is_recalled() && (found.is_err() || route.leads_to(from.file.as_ref())) {
            route.forget();
            route = Route::start(session, door.clone())?;
            found = self.search(&mut route);
        }
        let place = found.map(|version| Place::of_url(&route, version));
        let place = place.and_then(|place| place.check_is_of(&from.version).map(|()| place));
        let place = place.map_err(|error| route.named("read", error))?;
        tracing::debug!(door = door.shown(), to = route.file.shown(), "reads are redirected anew");
        *current = Arc::new(place);
        Ok(current.clone())
    }

    /// Asks for the first byte from address to address.
    fn search(&self, route: &mut Route) -> Result<FileVersion> {
        let version = loop {
            match by_first_byte_alone(&route.session, &route.file, &self.traffic)? {
                Described::File(version) => break version,
                Described::Elsewhere(moved) => route.follow(&moved)?,
            }
        };
        self.version.check_size(Some(version.size_bytes))?;
        Ok(version)
    }

    fn locked(&self) -> MutexGuard<'_, Arc<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn of_url(route: &Route, version: FileVersion) -> Self {
        let file = route.file.clone();
        Place { session: route.session.clone(), target: Box::new(file.clone()), version, file: Some(file) }
    }

    pub(super) fn learned(&self) -> Learned {
        learned::about(&self.session, &*self.target)
    }

    pub(super) fn learn(&self, change: impl FnOnce(&mut Learned)) -> Learned {
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
