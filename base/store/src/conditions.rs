//! Conditional requests (RFC 9110 section 13), with S3's rules for writes, and requested byte ranges (section 14).

use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{ETag, Error, ErrorKind, ObjectInfo, Result};

/// The value of `If-Match` or `If-None-Match`: `*`, or a list of ETags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ETagMatch {
    /// Any object.
    Any,
    /// An object with one of these ETags.
    Tags(Vec<ETag>),
}

impl ETagMatch {
    /// Returns whether `current` matches. `current` is the object's ETag, or `None` if there is no object.
    pub fn matches(&self, current: Option<&ETag>) -> bool {
        match (self, current) {
            (_, None) => false,
            (ETagMatch::Any, Some(_)) => true,
            (ETagMatch::Tags(tags), Some(current)) => tags.contains(current),
        }
    }
}

/// The conditions that must hold for a request to be executed. By default, there are no conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The object must have one of these ETags.
    pub if_match: Option<ETagMatch>,
    /// The object must have none of these ETags; `*` on a write means "only if there is no object".
    pub if_none_match: Option<ETagMatch>,
    /// For reads only: the object must have been modified after this time.
    pub if_modified_since: Option<SystemTime>,
    /// For reads only: the object must not have been modified after this time.
    pub if_unmodified_since: Option<SystemTime>,
}

impl Conditions {
    /// Returns the condition that there is no object, so that a write creates an object and never replaces one.
    pub fn create_only() -> Self {
        Conditions { if_none_match: Some(ETagMatch::Any), ..Default::default() }
    }

    /// Returns the condition that the object still has the ETag `tag`.
    pub fn only_if(tag: ETag) -> Self {
        Conditions { if_match: Some(ETagMatch::Tags(vec![tag])), ..Default::default() }
    }

    /// Returns whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.if_unmodified_since.is_none()
    }

    /// Checks the conditions of a read against the object, in the order of RFC 9110 section 13.2.2. Errors:
    /// `PreconditionFailed`, `NotModified`.
    pub fn check_read(&self, info: &ObjectInfo) -> Result<()> {
        if let Some(wanted) = &self.if_match {
            if !wanted.matches(Some(&info.etag)) {
                return Err(Error::new(ErrorKind::PreconditionFailed, format!("its ETag is {}", info.etag)));
            }
        } else if self.if_unmodified_since.is_some_and(|since| whole_seconds(info.modified) > since) {
            return Err(Error::new(ErrorKind::PreconditionFailed, "it was modified since"));
        }
        if let Some(unwanted) = &self.if_none_match {
            if unwanted.matches(Some(&info.etag)) {
                return Err(Error::new(ErrorKind::NotModified, format!("its ETag is still {}", info.etag)));
            }
        } else if self.if_modified_since.is_some_and(|since| whole_seconds(info.modified) <= since) {
            return Err(Error::new(ErrorKind::NotModified, "it was not modified since"));
        }
        Ok(())
    }

    /// Checks the conditions on the source of a copy. S3 returns 412 where a read would return 304. Errors:
    /// `PreconditionFailed`.
    pub fn check_copy_source(&self, info: &ObjectInfo) -> Result<()> {
        self.check_read(info).map_err(Conditions::of_copy_source)
    }

    /// Converts `error`, from a conditional read of the source of a copy, to the error that the copy returns.
    pub fn of_copy_source(error: Error) -> Error {
        match error.kind() {
            ErrorKind::NotModified => Error::new(ErrorKind::PreconditionFailed, error.detail()),
            _ => error,
        }
    }

    /// Checks the conditions on the object that a rename replaces; `current` is `None` if there is no such object.
    /// Errors: as for [`Conditions::check_write`]; `PreconditionFailed` for date conditions that do not hold.
    pub fn check_replace(&self, current: Option<&ObjectInfo>) -> Result<()> {
        self.check_write(current.map(|info| &info.etag))?;
        let dates = Conditions { if_match: None, if_none_match: None, ..self.clone() };
        current.map_or(Ok(()), |info| dates.check_copy_source(info))
    }

    /// Checks the conditions of a delete; returns whether there is an object, version or delete marker to delete.
    /// `found` is the object's ETag, or the error of the lookup. If the object or version is missing, no condition
    /// fails, and there is nothing to delete. A delete marker can be deleted, but has no ETag to match. Errors:
    /// `PreconditionFailed`, and errors of the lookup except `NoSuchKey` and `NoSuchVersion`.
    pub fn check_delete(&self, found: Result<ETag>) -> Result<bool> {
        match found {
            Ok(tag) => self.check_write(Some(&tag)).map(|()| true),
            Err(error) if error.is_at_delete_marker() => match self.if_match {
                Some(ETagMatch::Tags(_)) => {
                    Err(Error::new(ErrorKind::PreconditionFailed, "the latest version is a delete marker"))
                }
                _ => Ok(true),
            },
            Err(error) if matches!(error.kind(), ErrorKind::NoSuchKey | ErrorKind::NoSuchVersion) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the conditions of a write against the ETag of the current object. Errors: `PreconditionFailed`;
    /// `NoSuchKey` for `If-Match` if there is no object, as in S3.
    pub fn check_write(&self, current: Option<&ETag>) -> Result<()> {
        if let Some(wanted) = &self.if_match
            && !wanted.matches(current)
        {
            return Err(match current {
                None => Error::new(
                    ErrorKind::NoSuchKey,
                    "If-Match requires an existing object, and there is none",
                ),
                // The message does not contain the ETag, because a caller who is permitted to write the object is not
                // necessarily permitted to read it.
                Some(_) => Error::new(ErrorKind::PreconditionFailed, "the object has another ETag"),
            });
        }
        match &self.if_none_match {
            Some(unwanted) if unwanted.matches(current) => {
                Err(Error::new(ErrorKind::PreconditionFailed, "the object exists"))
            }
            _ => Ok(()),
        }
    }
}

/// Drops the fraction of a second, because HTTP dates have no fractions.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UNIX_EPOCH + Duration::from_secs(since_epoch.as_secs())
}

/// One range of an object, not yet checked against its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From this byte to the end of the object.
    From(u64),
    /// First and last byte, inclusive.
    Inclusive(u64, u64),
    /// The last bytes of the object; the value is the number of bytes.
    Last(u64),
}

impl ByteRange {
    /// Returns the range in an object of `size` bytes; an end beyond the object is clamped to the object's end. Errors:
    /// `InvalidRange` if the range contains no byte of the object.
    pub fn resolve(self, size: u64) -> Result<Range<u64>> {
        let range = match self {
            ByteRange::From(first) => first..size,
            ByteRange::Inclusive(first, last) => first..size.min(last.saturating_add(1)),
            ByteRange::Last(count) => size.saturating_sub(count)..size,
        };
        if range.start < range.end {
            return Ok(range);
        }
        Err(Error::new(ErrorKind::InvalidRange, format!("bytes {self} of an object of {size} bytes")))
    }
}

/// Formats the range in the form that follows `bytes=` in a request: `5-10`, `5-`, `-10`.
impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ByteRange::From(first) => write!(f, "{first}-"),
            ByteRange::Inclusive(first, last) => write!(f, "{first}-{last}"),
            ByteRange::Last(count) => write!(f, "-{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes() {
        let (old, new) = (ETag::new("old"), ETag::new("new"));
        let kind = |result: Result<()>| result.err().map(|error| error.kind());
        let create = Conditions::create_only();
        assert_eq!(kind(create.check_write(None)), None);
        assert_eq!(kind(create.check_write(Some(&old))), Some(ErrorKind::PreconditionFailed));
        let replace = Conditions::only_if(old.clone());
        assert_eq!(kind(replace.check_write(Some(&old))), None);
        assert_eq!(kind(replace.check_write(Some(&new))), Some(ErrorKind::PreconditionFailed));
        assert_eq!(kind(replace.check_write(None)), Some(ErrorKind::NoSuchKey));
    }

    #[test]
    fn deletes() {
        let wanted = Conditions::only_if(ETag::new("old"));
        let held = |found| wanted.check_delete(found).map_err(|error| error.kind());
        let missing = |kind| Err(Error::new(kind, ""));
        assert_eq!(held(Ok(ETag::new("old"))), Ok(true));
        assert_eq!(held(Ok(ETag::new("new"))), Err(ErrorKind::PreconditionFailed));
        assert_eq!(held(missing(ErrorKind::NoSuchKey)), Ok(false));
        assert_eq!(held(missing(ErrorKind::NoSuchVersion)), Ok(false));
        assert_eq!(held(missing(ErrorKind::Io)), Err(ErrorKind::Io));
        let marker = || Err(Error::new(ErrorKind::NoSuchKey, "").at_delete_marker());
        assert_eq!(held(marker()), Err(ErrorKind::PreconditionFailed));
        let anything = Conditions { if_match: Some(ETagMatch::Any), ..Default::default() };
        assert!(anything.check_delete(marker()).unwrap());
    }

    #[test]
    fn a_read_compares_times_in_whole_seconds() {
        let modified = UNIX_EPOCH + Duration::from_millis(10_700);
        let info = ObjectInfo { modified, ..ObjectInfo::new(0, ETag::new("t")) };
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        let newer = |seconds| Conditions { if_modified_since: at(seconds), ..Default::default() };
        assert_eq!(newer(10).check_read(&info).unwrap_err().kind(), ErrorKind::NotModified);
        assert!(newer(9).check_read(&info).is_ok());
        let older = |seconds| Conditions { if_unmodified_since: at(seconds), ..Default::default() };
        assert!(older(10).check_read(&info).is_ok());
        assert_eq!(older(9).check_read(&info).unwrap_err().kind(), ErrorKind::PreconditionFailed);
    }

    #[test]
    fn resolves_against_the_size() {
        assert_eq!(ByteRange::From(3).resolve(10).unwrap(), 3..10);
        assert_eq!(ByteRange::Inclusive(0, 0).resolve(10).unwrap(), 0..1);
        assert_eq!(ByteRange::Inclusive(5, u64::MAX).resolve(10).unwrap(), 5..10);
        assert_eq!(ByteRange::Last(20).resolve(10).unwrap(), 0..10);
        for (range, size) in [
            (ByteRange::From(10), 10),
            (ByteRange::Inclusive(4, 3), 10),
            (ByteRange::Last(0), 10),
            (ByteRange::Last(5), 0),
        ] {
            assert_eq!(range.resolve(size).unwrap_err().kind(), ErrorKind::InvalidRange, "{range:?}");
        }
        for (range, shown) in
            [(ByteRange::From(10), "10-"), (ByteRange::Inclusive(4, 3), "4-3"), (ByteRange::Last(0), "-0")]
        {
            let error = range.resolve(10).expect_err("it is empty");
            assert_eq!(error.detail(), format!("bytes {shown} of an object of 10 bytes"));
        }
    }
}
