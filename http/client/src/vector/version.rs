//! Which version of a file is read: one read never mixes two.

use fordway_store::{Error, ErrorKind};
use fordway_wire::date;

use super::Pin;

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
    pub(super) fn condition(&self, pin: Pin) -> Option<(&'static str, &str)> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        match pin {
            Pin::IfMatch => Some(("if-match", strong?)),
            Pin::IfRange => {
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
        let of = |headers: &[_]| version(headers).condition(Pin::IfRange).map(|(_, value)| value.to_owned());
        assert_eq!(of(&[("etag", "\"t\""), THEN]).as_deref(), Some("\"t\""));
        assert_eq!(of(&[("etag", "W/\"t\""), THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]), None);
        assert_eq!(of(&[THEN, ("date", "Fri, 24 May 2013 00:00:09 GMT")]).as_deref(), Some(THEN.1));
        assert_eq!(of(&[THEN, ("date", THEN.1)]), None);
        assert_eq!(of(&[THEN]), None);
        assert_eq!(version(&[("etag", "\"t\"")]).condition(Pin::IfMatch), Some(("if-match", "\"t\"")));
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
