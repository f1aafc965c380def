//! Documents of buckets: the kind is the name of S3's sub-resource, and the document goes as it is.

use fordway_store::{Bucket, DocumentKind, Error, ErrorKind, Result, check_document};

use super::request::Call;
use super::session::Session;

pub(super) fn get(session: &Session, bucket: &Bucket, kind: &DocumentKind) -> Result<Option<Vec<u8>>> {
    let call = Call::on_bucket("GET", "get document", bucket).for_document(kind);
    match session.run_for_document(&call) {
        Ok(document) => Ok(Some(document)),
        Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn set(session: &Session, bucket: &Bucket, kind: &DocumentKind, document: &[u8]) -> Result<()> {
    let call = Call::on_bucket("PUT", "set document", bucket).for_document(kind);
    check_document(document).map_err(|error| call.named(error))?;
    let text = str::from_utf8(document).map_err(|_| call.named(not_text()))?;
    session.run_for_status(&call.document(text))
}

pub(super) fn delete(session: &Session, bucket: &Bucket, kind: &DocumentKind) -> Result<()> {
    session.run_for_status(&Call::on_bucket("DELETE", "delete document", bucket).for_document(kind))
}

fn not_text() -> Error {
    Error::new(ErrorKind::InvalidArgument, "a document over HTTP is UTF-8")
}
