//! What Python passes as arguments, as the store's types.

use std::collections::BTreeMap;

use fordway_store::{
    BoxedMetadata, ByteRange, Conditions, ETag, ETagMatch, Error, ErrorKind, GetOptions, Metadata,
    PutOptions, Result, Tags, VersionId,
};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::store::to_python;

/// A position in an object, or a length: bytes, 0 or more.
/// Errors: `InvalidArgument` for a negative number or one over 64 bits; `TypeError` for what is no integer.
#[derive(Clone, Copy)]
pub(crate) struct ByteCount(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for ByteCount {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(ByteCount).map_err(|error| {
            if !error.is_instance_of::<PyOverflowError>(given.py()) {
                return error;
            }
            let why = format!("{} is no position or length in an object; count bytes from 0", *given);
            to_python(given.py(), &Error::new(ErrorKind::InvalidArgument, why))
        })
    }
}

/// `start` and `length` as the range of a request; `None` is all of the object.
/// Errors: `InvalidArgument` for a length of 0.
pub(crate) fn range(start: Option<ByteCount>, length: Option<ByteCount>) -> Result<Option<ByteRange>> {
    match (start, length) {
        (None, None) => Ok(None),
        (Some(start), None) => Ok(Some(ByteRange::From(start.0))),
        (_, Some(ByteCount(0))) => {
            Err(Error::new(ErrorKind::InvalidArgument, "a length of 0; ask for one byte or more"))
        }
        (start, Some(length)) => {
            let start = start.map_or(0, |start| start.0);
            Ok(Some(ByteRange::Inclusive(start, start.saturating_add(length.0 - 1))))
        }
    }
}

/// Which bytes of which version, and on what condition.
#[derive(Default)]
pub(crate) struct ReadArguments<'a> {
    pub(crate) start: Option<ByteCount>,
    pub(crate) length: Option<ByteCount>,
    pub(crate) version: Option<String>,
    pub(crate) if_match: Option<&'a str>,
}

impl ReadArguments<'_> {
    /// Errors: `InvalidArgument`, `NoSuchVersion` for what can be none.
    pub(crate) fn options(self) -> Result<GetOptions> {
        Ok(GetOptions {
            range: range(self.start, self.length)?,
            version: self.version.map(VersionId::new).transpose()?,
            conditions: conditions(self.if_match, None),
            ..GetOptions::default()
        })
    }
}

/// What a writer may say of an object besides its bytes.
#[derive(Default)]
pub(crate) struct Description {
    pub(crate) content_type: Option<String>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) tags: Option<Tags>,
}

impl Description {
    /// Whether it says something about the content.
    pub(crate) fn has_metadata(&self) -> bool {
        self.content_type.is_some() || self.metadata.is_some()
    }

    /// The metadata, with its names in lower case.
    pub(crate) fn metadata(&mut self) -> BoxedMetadata {
        let given = self.metadata.take().unwrap_or_default().into_iter();
        let user = given.map(|(name, value)| (name.to_lowercase(), value)).collect();
        BoxedMetadata::from(Metadata { content_type: self.content_type.take(), user, ..Metadata::default() })
    }

    /// The options of a put.
    pub(crate) fn options(mut self, conditions: Conditions) -> PutOptions {
        PutOptions {
            metadata: self.metadata(),
            tags: self.tags.unwrap_or_default(),
            conditions,
            ..PutOptions::default()
        }
    }
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
