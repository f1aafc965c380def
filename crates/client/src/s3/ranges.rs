//! Many ranges of one object at once, by the reader of vectors.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{Bucket, ByteRange, Error, GetOptions, Key, Result, VersionId};

use super::failure;
use super::request::Call;
use super::session::{Address, Session};
use super::store::head;
use crate::http::Origin;
use crate::http::vector::{FileVersion, Fragment, Pin, RemoteFile, Target};

/// Reads `ranges` of the version that is there now, or that `options` name. Cost: a HEAD, and as few
/// GETs as the service takes, all sent at once.
pub(super) fn read_ranges(
    session: &Arc<Session>,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Vec<Vec<u8>>> {
    let info = head(session, (bucket, key), options)?;
    let version = FileVersion::tagged(info.size, info.etag.as_str());
    let object = Ranged::new(session, (bucket, key), info.version.or_else(|| options.version.clone()));
    let resolved = ranges.iter().map(|range| range.resolve(info.size)).collect::<Result<Vec<_>>>();
    let resolved = resolved.map_err(|error| object.named("get", error))?;
    let mut buffers: Vec<Vec<u8>> =
        resolved.iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
    let mut fragments: Vec<_> = resolved
        .iter()
        .zip(&mut buffers)
        .map(|(range, buffer)| Fragment { offset: range.start, buffer })
        .collect();
    RemoteFile::of_version(&session.vector, Box::new(object), version).read_ranges(&mut fragments)?;
    Ok(buffers)
}

/// The version that is there now, for any reads of its parts. Cost: a HEAD.
pub(super) fn open(session: &Arc<Session>, (bucket, key): (&Bucket, &Key)) -> Result<RemoteFile> {
    let info = head(session, (bucket, key), &GetOptions::default())?;
    let version = FileVersion::tagged(info.size, info.etag.as_str());
    let object = Ranged::new(session, (bucket, key), info.version);
    Ok(RemoteFile::of_version(&session.vector, Box::new(object), version))
}

/// A version of an object, as something that has ranges.
struct Ranged {
    session: Arc<Session>,
    bucket: Bucket,
    key: Key,
    version: Option<VersionId>,
    address: Address,
}

impl Ranged {
    fn new(session: &Arc<Session>, (bucket, key): (&Bucket, &Key), version: Option<VersionId>) -> Self {
        let call = Call::on_object("GET", "get", bucket, key).version(version.as_ref());
        let address = session.address(&call);
        Ranged { session: session.clone(), bucket: bucket.clone(), key: key.clone(), version, address }
    }

    fn call(&self, method: &'static str) -> Call<'_> {
        Call::on_object(method, "get", &self.bucket, &self.key).version(self.version.as_ref())
    }
}

impl Target for Ranged {
    fn origin(&self) -> &Origin {
        &self.address.origin
    }

    fn named(&self, _: &'static str, error: Error) -> Error {
        self.call("GET").named(error)
    }

    fn pin(&self) -> Pin {
        Pin::IfMatch
    }

    /// S3 itself answers them with the whole object; other services may not.
    fn may_know_many_ranges(&self) -> bool {
        !self.address.origin.host.ends_with(".amazonaws.com")
    }

    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>) {
        let mut call = self.call(method);
        for (name, value) in headers {
            call.header(Cow::Owned((*name).to_owned()), (*value).to_owned());
        }
        self.session.write_head(head, &call, &self.address, SystemTime::now());
    }

    fn refusal(&self, status: u16, _: Option<&str>, document: &[u8]) -> Error {
        failure::of_status(status, document, &self.call("GET"))
    }
}
