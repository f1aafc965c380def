//! Many ranges of one object at once, by the reader of vectors.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    Bucket, ByteRange, Conditions, Error, ErrorKind, GetOptions, Key, Result, TRUSTED_BYTES, VersionId,
    receive_rest,
};

use super::failure;
use super::request::Call;
use super::session::{Address, Session};
use super::store::head;
use fordway_http::Origin;
use fordway_http::vector::is_passing;
use fordway_http::vector::{Begun, FileVersion, Fragment, Pin, RemoteFile, Target};

/// What is asked for at once of a range that is too long to take memory for on a server's word.
const PIECE_BYTES: usize = 64 << 20;

/// Reads `ranges` of the version that is there now, or that `options` name. Cost: as few GETs as the service takes, all but
/// the first sent at once; a HEAD before them where there are conditions, or a range has no end.
pub(super) fn read_ranges(
    session: &Arc<Session>,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Vec<Vec<u8>>> {
    if let Some(wanted) = bounded(ranges).filter(|_| options.conditions == Conditions::default()) {
        let object = Box::new(Ranged::new(session, (bucket, key), options.version.clone()));
        let opened = RemoteFile::open_target_reading(&session.vector, object, &wanted);
        match opened.and_then(|(file, begun)| read(&file, ranges, begun)) {
            // Another version may have taken its place in between; and of a refusal more is told below.
            Err(error) if error.kind() != ErrorKind::InvalidRange && !is_passing(error.kind()) => {}
            read => return read,
        }
    }
    let info = head(session, (bucket, key), options)?;
    let version = FileVersion::tagged(info.size, info.etag.as_str());
    let object = Ranged::new(session, (bucket, key), info.version.or_else(|| options.version.clone()));
    read(&RemoteFile::of_version(&session.vector, Box::new(object), version), ranges, None)
}

/// The ranges as (offset, length), if all of them state their end.
fn bounded(ranges: &[ByteRange]) -> Option<Vec<(u64, usize)>> {
    let bounded = |range: &ByteRange| match *range {
        ByteRange::Inclusive(first, last) => {
            let length = last.checked_sub(first)?.checked_add(1)?;
            first.checked_add(length)?;
            Some((first, usize::try_from(length).ok()?))
        }
        _ => None,
    };
    ranges.iter().map(bounded).collect()
}

fn read(file: &RemoteFile, ranges: &[ByteRange], begun: Option<Begun>) -> Result<Vec<Vec<u8>>> {
    let resolved = ranges.iter().map(|range| range.resolve(file.size_bytes())).collect::<Result<Vec<_>>>();
    let resolved = resolved.map_err(|error| file.named(error))?;
    let length = |range: &Range<u64>| usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let at_once = |range: &Range<u64>| length(range).min(TRUSTED_BYTES);
    let mut buffers: Vec<Vec<u8>> = resolved.iter().map(|range| vec![0; at_once(range)]).collect();
    let mut fragments: Vec<_> = resolved
        .iter()
        .zip(&mut buffers)
        .map(|(range, buffer)| Fragment { offset: range.start, buffer })
        .collect();
    file.read_begun(&mut fragments, begun)?;
    for (range, buffer) in resolved.iter().zip(&mut buffers) {
        let mut offset = range.start + buffer.len() as u64;
        receive_rest(buffer, length(range), PIECE_BYTES, |piece| {
            let bytes = piece.len() as u64;
            file.read_ranges(&mut [Fragment { offset, buffer: piece }])?;
            offset += bytes;
            Ok(())
        })?;
    }
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
