//! Arguments of calls as the store takes them.

use fordway_store::{
    ByteRange, Conditions, ETag, ETagMatch, Error, ErrorKind, GetOptions, Result, VersionId,
};

/// `start` and `length` as the range of a request; `None` is all of the object.
/// Errors: `InvalidArgument` for a length of 0.
pub(crate) fn range(start: Option<u64>, length: Option<u64>) -> Result<Option<ByteRange>> {
    match (start, length) {
        (None, None) => Ok(None),
        (Some(start), None) => Ok(Some(ByteRange::From(start))),
        (_, Some(0)) => {
            Err(Error::new(ErrorKind::InvalidArgument, "a length of 0; ask for one byte or more"))
        }
        (start, Some(length)) => {
            let start = start.unwrap_or(0);
            Ok(Some(ByteRange::Inclusive(start, start.saturating_add(length - 1))))
        }
    }
}

pub(crate) fn of_version(version: Option<String>) -> Result<GetOptions> {
    Ok(GetOptions { version: version.map(VersionId::new).transpose()?, ..GetOptions::default() })
}

pub(crate) fn conditions(if_match: Option<&str>, if_none_match: Option<&str>) -> Conditions {
    let tags = |text: &str| match text {
        "*" => ETagMatch::Any,
        tag => ETagMatch::Tags(vec![ETag::new(tag)]),
    };
    Conditions {
        if_match: if_match.map(tags),
        if_none_match: if_none_match.map(tags),
        ..Conditions::default()
    }
}
