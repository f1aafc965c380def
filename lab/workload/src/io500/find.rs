//! IO500's `find`: of all files, those that are newer than the timestamp, of 3,901 bytes, and have
//! `01` in their names. Each rank looks through what one rank wrote, by listing.

use std::path::Path;
use std::time::SystemTime;

use fordway_store::{Entry, Error, ErrorKind, GetOptions, Key, ListQuery, Result};

use crate::mdtest::{Files, HARD_BYTES};
use crate::phase::{Crew, Recorder};
use crate::site::Means;
use crate::{PhaseResult, Site};

const TIMESTAMP_KEY: &str = "timestamp";
const WANTED: &str = "01";

/// What was looked at, and what of it was wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    seen: u64,
    wanted: u64,
}

/// Puts the object that later ones are newer than, and answers when it was written by the clock of
/// the lane.
pub(super) fn timestamp(crew: &Crew, site: &Site) -> Result<SystemTime> {
    let key = Key::new(TIMESTAMP_KEY)?;
    crew.first_does(|| site.target().put(&key, b"timestamp"))?;
    match site.means() {
        Means::Files(dir) => modified(&dir.join(TIMESTAMP_KEY)),
        Means::Objects(store, bucket) => Ok(store.head(bucket, &key, &GetOptions::default())?.modified),
    }
}

/// Looks through the files of `sets`; of the last, each rank wrote `items`, which decides what must be
/// found.
pub(super) fn find(
    crew: &Crew,
    site: &Site,
    sets: &[&Files],
    newer_than: SystemTime,
    items: u64,
) -> Result<PhaseResult> {
    let rank = (crew.team.rank() + 1) % crew.team.size();
    let work = |recorder: &mut Recorder| {
        let mut found = Found::default();
        for files in sets {
            match look(site, &files.prefix(rank), newer_than) {
                Ok(one) => found = Found { seen: found.seen + one.seen, wanted: found.wanted + one.wanted },
                Err(error) => recorder.expect(0, Err(error)),
            }
        }
        recorder.passed(0, found.seen);
        let prefix = sets.last().map_or(String::new(), |files| files.prefix(rank));
        let wanted = recorder.aside(|| expected(&prefix, items));
        if found.wanted != wanted {
            let why = format!("find found {} of {wanted} files of rank {rank}", found.wanted);
            recorder.expect(0, Err(Error::new(ErrorKind::Corrupt, why)));
        }
        Ok(())
    };
    Ok(crew.phase(&["find"], site, work)?.0.remove(0))
}

/// How many of `items` names that begin with `prefix` are wanted.
fn expected(prefix: &str, items: u64) -> u64 {
    (0..items).filter(|item| is_wanted(&format!("{prefix}{item:010}"))).count() as u64
}

/// Whether the last part of the key has what is looked for.
fn is_wanted(key: &str) -> bool {
    key.rsplit('/').next().is_some_and(|name| name.contains(WANTED))
}

fn look(site: &Site, prefix: &str, newer_than: SystemTime) -> Result<Found> {
    match site.means() {
        Means::Files(dir) => look_at_files(&dir, prefix, newer_than),
        Means::Objects(..) => look_at_objects(site, prefix, newer_than),
    }
}

/// As find(1) does: the names first, then the attributes of those that fit.
fn look_at_files(dir: &Path, prefix: &str, newer_than: SystemTime) -> Result<Found> {
    let (parent, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
    let parent = dir.join(parent);
    let failed = |error| Error::new(ErrorKind::Io, format!("listing {}", parent.display())).caused_by(error);
    let mut found = Found::default();
    for entry in std::fs::read_dir(&parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(start)) else { continue };
        found.seen += 1;
        if is_wanted(name) {
            let meta = entry.metadata().map_err(failed)?;
            let is_newer = meta.modified().is_ok_and(|modified| modified >= newer_than);
            found.wanted += u64::from(is_newer && meta.len() == HARD_BYTES);
        }
    }
    Ok(found)
}

fn look_at_objects(site: &Site, prefix: &str, newer_than: SystemTime) -> Result<Found> {
    let Means::Objects(store, bucket) = site.means() else { return Err(ErrorKind::Internal.into()) };
    let (mut query, mut found) = (ListQuery::prefix(prefix), Found::default());
    loop {
        let page = store.list(bucket, &query)?;
        for object in page.entries.iter().filter_map(Entry::object) {
            found.seen += 1;
            let is_newer = object.modified >= newer_than;
            found.wanted += u64::from(is_newer && object.size == HARD_BYTES && is_wanted(&object.key));
        }
        match page.next {
            Some(next) => query.start_after = Some(next),
            None => return Ok(found),
        }
    }
}

fn modified(path: &Path) -> Result<SystemTime> {
    std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .map_err(|error| Error::new(ErrorKind::Io, format!("looking at {}", path.display())).caused_by(error))
}
