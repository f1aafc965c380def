//! Uploads: content is passed from the body of a request to a writer, and verified before it is published.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{
    Bucket, Checksum, ChecksumAlgorithm, ContentHasher, ETagPolicy, ErrorKind, ExpectedContent, Key,
    PartOptions, PutOptions, PutResult, Store, Writer,
};
use fordway_sys::with_lock_patience;
use fordway_wire::s3_error::INVALID_MD5;
use http::{HeaderMap, HeaderName, StatusCode, header};
use http_body::Body as _;
use s3s::{Body, S3Request, S3Response, TrailingHeaders};

use crate::aws_chunked::{TrailerFields, decoded_length, taken_body};
use crate::error_facts::write_condition;
use crate::file_server::NetworkFileServer;
use crate::gate::decoded_md5;
use crate::message::composed;
use crate::s3::apart::{PublishLatency, here_unless_remote};
use crate::s3::convert::{
    CONDITIONS, TAGGING, add_text, add_version, algorithm, checksum_headers, conditions_in, invalid_request,
    metadata, names, parameter, quoted, several_checksums, stated_checksum, tags,
};
use crate::s3::error::{OperationResult, S3Failure, malformed_trailer, unreadable_body, wrong_sha256};
use crate::s3::lock;
use crate::s3::multipart::part_number;
use crate::users::User;

const TRAILER_SIGNATURE: HeaderName = HeaderName::from_static("x-amz-trailer-signature");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
/// Headers that name the algorithm of a checksum, in the order of their precedence.
const ALGORITHM_NAMES: [HeaderName; 2] = [
    HeaderName::from_static("x-amz-sdk-checksum-algorithm"),
    HeaderName::from_static("x-amz-checksum-algorithm"),
];
const TRAILER_NAMES: HeaderName = HeaderName::from_static("x-amz-trailer");

/// The number of bytes read from one client before the thread serves its other clients. Reading and hashing this many
/// bytes takes one or two milliseconds. Without this limit, the runtime would serve other clients only after 61 polls
/// of up to 8 MiB each.
const TURN_BYTES: usize = 1024 * 1024;

pub(super) async fn put(
    user: &Arc<User>,
    (bucket, key): &(String, String),
    mut request: S3Request<Body>,
    pace: &PublishLatency,
) -> OperationResult<S3Response<Body>> {
    let names = names(bucket, key)?;
    let trailing = DecodedTrailers::of(&mut request);
    let size = stated_size(&request.headers, trailing.as_ref());
    let body = taken_body(&mut request.extensions).unwrap_or(request.input);
    let headers = request.headers;
    let begin =
        move |store: &dyn Store| ObjectUpload::begin(store, (&names.0, &names.1), &headers, size, trailing);
    let upload = here_unless_remote(user, begin).await?;
    let made = upload.receive(body, pace, user.server.as_ref()).await?;
    let kind = made.checksum.as_ref().map(Checksum::checksum_type);
    let mut headers = checksum_headers(made.checksum.as_ref(), kind);
    add_text(&mut headers, header::ETAG, &quoted(&made.etag));
    add_version(&mut headers, made.version.as_ref());
    Ok(S3Response::with_headers(Body::empty(), headers))
}

/// An object that is being stored.
pub(crate) struct ObjectUpload {
    writer: Box<dyn Writer>,
    checks: ContentChecks,
    /// The name of the condition in the request.
    pub(crate) condition: Option<&'static str>,
}

impl ObjectUpload {
    /// Starts to store the object that the head of a request describes. Errors: all PutObject errors that can occur
    /// before the content is read.
    pub(super) fn begin(
        store: &dyn Store,
        (bucket, key): (&Bucket, &Key),
        headers: &HeaderMap,
        size: Option<u64>,
        trailing: Option<DecodedTrailers>,
    ) -> OperationResult<Self> {
        let checks = ContentChecks::read(headers, size, trailing)?;
        let options = PutOptions {
            metadata: metadata(headers)?,
            tags: tags(headers.get(TAGGING).and_then(|value| value.to_str().ok()))?,
            conditions: conditions_in(headers, &CONDITIONS)?,
            check_md5: checks.md5.is_some(),
            checksum: checks.checksum.algorithm,
            size_hint: checks.size,
            lock: lock::stated(store, bucket, headers)?,
            ..Default::default()
        };
        let writer = store.writer(bucket, key, &options)?;
        Ok(ObjectUpload { writer, checks, condition: write_condition(headers) })
    }

    /// Starts to store an object of `size` bytes that is uploaded in one piece. If `sha256` is `Some`, the content must
    /// have this SHA-256. Returns `None` on any error.
    pub(crate) fn plain(
        store: &dyn Store,
        names: (&Bucket, &Key),
        headers: &HeaderMap,
        size: u64,
        sha256: Option<[u8; 32]>,
    ) -> Option<Self> {
        let upload = ObjectUpload::begin(store, names, headers, Some(size), None).ok()?;
        Some(ObjectUpload { checks: ContentChecks { sha256, ..upload.checks }, ..upload })
    }

    /// Declares that the content comes from an HTML form.
    pub(super) fn note_form(&mut self) {
        self.writer.note_form();
    }

    /// Receives the content, and publishes the object. Errors: all PutObject errors that can occur while or after the
    /// content is read.
    pub(crate) async fn receive(
        self,
        body: Body,
        pace: &PublishLatency,
        server: Option<&NetworkFileServer>,
    ) -> OperationResult<PutResult> {
        let ObjectUpload { writer, checks, condition: _ } = self;
        let digest = |_| ContentHasher::new(ETagPolicy::Fast, false, Some(ChecksumAlgorithm::Sha256));
        let mut hasher = checks.sha256.map(digest);
        let hash = |data: &[u8]| {
            if let Some(hasher) = &mut hasher {
                hasher.update(data);
            }
        };
        let (writer, received) = receive(body, writer, server, hash).await?;
        let found = hasher.map(|hasher| hasher.finish(&ExpectedContent::default())).transpose()?;
        let found = found.and_then(|digests| digests.checksum);
        if checks.sha256.is_some_and(|stated| found.is_none_or(|found| found.value != stated)) {
            return Err(wrong_sha256());
        }
        pace.publish(writer, checks.expected(received)?, server).await
    }
}

pub(super) async fn put_part(
    user: &Arc<User>,
    (bucket, key): &(String, String),
    mut request: S3Request<Body>,
    pace: &PublishLatency,
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let asked = |name: &str| parameter(&request.uri, name).unwrap_or_default();
    let upload = fordway_store::UploadId::new(asked("uploadId"))?;
    let number = part_number(asked("partNumber").parse().unwrap_or(0))?;
    let trailing = DecodedTrailers::of(&mut request);
    let body = taken_body(&mut request.extensions).unwrap_or(request.input);
    let size = stated_size(&request.headers, trailing.as_ref());
    let checks = ContentChecks::read(&request.headers, size, trailing)?;
    let options = PartOptions {
        check_md5: checks.md5.is_some(),
        checksum: checks.checksum.algorithm,
        size_hint: checks.size,
    };
    let begin = move |store: &dyn Store| -> OperationResult<_> {
        // If the upload is being completed, a serving thread must not wait for the end of the completion.
        let start = || store.part_writer(&bucket, &key, &upload, number, &options);
        with_lock_patience(Duration::ZERO, start).map_err(|error| match error.kind() {
            // `InvalidArgument` means that the part and the upload have different checksum algorithms.
            ErrorKind::InvalidArgument => invalid_request(composed(error.detail(), "", &[])),
            _ => error.into(),
        })
    };
    let (part, server) = (here_unless_remote(user, begin).await?, user.server.as_ref());
    let (part, received) = receive(body, part, server, |_| {}).await?;
    let made = pace.publish(part, checks.expected(received)?, server).await?;
    let mut headers = checksum_headers(made.checksum.as_ref(), None);
    add_text(&mut headers, header::ETAG, &quoted(&made.etag));
    Ok(S3Response::with_headers(Body::empty(), headers))
}

/// Passes a body piece by piece, as it arrives, to `look` and to `writer`. `server` is the file server on which the
/// writer depends, if any. Returns the writer and the number of received bytes.
async fn receive(
    mut body: Body,
    mut writer: Box<dyn Writer>,
    server: Option<&NetworkFileServer>,
    mut look: impl FnMut(&[u8]),
) -> OperationResult<(Box<dyn Writer>, u64)> {
    if let Some(server) = server {
        writer = server.guard(writer);
    }
    let (mut turn_bytes, mut received) = (0, 0);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(piece) = frame.map_err(|error| unreadable_body(&*error))?.into_data() else { continue };
        look(&piece);
        let bytes = piece.len();
        match server {
            None => writer.write(&piece)?,
            Some(server) => {
                let write = move || writer.write(&piece).map(|()| writer);
                writer = server.run(write).await??;
            }
        }
        received += bytes as u64;
        turn_bytes += bytes;
        if turn_bytes >= TURN_BYTES {
            turn_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok((writer, received))
}

/// The values with which the content of an upload is checked.
struct ContentChecks {
    size: Option<u64>,
    md5: Option<[u8; 16]>,
    /// The SHA-256 that the signature covers, if no other layer checks it.
    sha256: Option<[u8; 32]>,
    checksum: StatedChecksum,
}

impl ContentChecks {
    /// Reads the values from the head. Errors: `InvalidDigest`, `BadDigest`, `InvalidArgument`.
    fn read(
        headers: &HeaderMap,
        size: Option<u64>,
        trailing: Option<DecodedTrailers>,
    ) -> OperationResult<Self> {
        let md5 = headers.get(CONTENT_MD5).and_then(|value| value.to_str().ok());
        Ok(ContentChecks {
            size,
            md5: content_md5(md5)?,
            sha256: None,
            checksum: StatedChecksum::new(headers, trailing)?,
        })
    }

    /// Returns the expected values. Call this method only after the body has been read, because the trailers follow the
    /// content. Errors: as for [`StatedChecksum::value`]. For a body of the wrong size, this method returns only the
    /// expected size, because the writer then reports the wrong size.
    fn expected(self, received: u64) -> OperationResult<ExpectedContent> {
        if self.size.is_some_and(|size| size != received) {
            return Ok(ExpectedContent { size: self.size, ..Default::default() });
        }
        Ok(ExpectedContent { size: self.size, md5: self.md5, checksum: self.checksum.value()? })
    }
}

/// Returns the length of the content. `Content-Length` is the length of the encoded body if the body is in chunks.
fn stated_size(headers: &HeaderMap, trailing: Option<&DecodedTrailers>) -> Option<u64> {
    let decoded = trailing.and_then(|_| decoded_length(headers));
    decoded.or_else(|| headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok())
}

/// The checksum of an upload. A header or a trailer contains the value of the checksum. If neither contains the value,
/// the checksum is only computed.
struct StatedChecksum {
    algorithm: Option<ChecksumAlgorithm>,
    value: Option<Checksum>,
    /// The algorithm of the checksum that a trailer will contain.
    announced: Option<ChecksumAlgorithm>,
    trailers: Option<DecodedTrailers>,
}

/// The trailers of a body. The trailers are available after the body has been read.
pub(super) enum DecodedTrailers {
    /// Trailers decoded by the S3 layer, which checks their signature.
    Signed(TrailingHeaders),
    /// Trailers decoded by [`crate::aws_chunked`].
    Unsigned(TrailerFields),
}

impl DecodedTrailers {
    /// Returns the trailers of a request whose body is in chunks.
    fn of<T>(request: &mut S3Request<T>) -> Option<Self> {
        let unsigned = request.extensions.remove::<TrailerFields>().map(DecodedTrailers::Unsigned);
        unsigned.or_else(|| request.trailing_headers.take().map(DecodedTrailers::Signed))
    }

    fn get(&self, name: &str) -> Option<String> {
        self.read(|headers| headers.get(name)?.to_str().ok().map(str::to_owned)).flatten()
    }

    /// Returns the name of a trailer other than the signature and `announced`, if there is one.
    fn unannounced(&self, announced: &str) -> Option<String> {
        let is_other = |name: &&HeaderName| **name != TRAILER_SIGNATURE && name.as_str() != announced;
        self.read(|headers| headers.keys().find(is_other).map(ToString::to_string)).flatten()
    }

    /// Passes the trailers to `read`, if there are any.
    fn read<T>(&self, read: impl FnOnce(&HeaderMap) -> T) -> Option<T> {
        match self {
            DecodedTrailers::Signed(trailers) => trailers.read(read),
            DecodedTrailers::Unsigned(trailers) => trailers.all().map(read),
        }
    }
}

impl StatedChecksum {
    /// Reads the checksum in the head of an upload. `trailing` is `None` if the body cannot have trailers.
    fn new(headers: &HeaderMap, trailing: Option<DecodedTrailers>) -> OperationResult<Self> {
        let value = stated_checksum(headers).map_err(invalid_request)?;
        let announced = announced_algorithm(headers)?;
        if announced.is_some() && value.is_some() {
            return Err(several_checksums());
        }
        if announced.is_some() && trailing.is_none() {
            return Err(malformed_trailer(
                "x-amz-trailer announces a trailer, but the body is not in chunks",
            ));
        }
        let named = || -> OperationResult<_> {
            let name = ALGORITHM_NAMES.iter().find_map(|name| headers.get(name)?.to_str().ok());
            name.map(algorithm).transpose()
        };
        let meant = headers.get(&ALGORITHM_NAMES[0]).and_then(|name| name.to_str().ok());
        let stated = value.as_ref().map(|checksum| checksum.algorithm).or(announced);
        if let (Some(meant), Some(stated)) = (meant.map(algorithm).transpose()?, stated)
            && meant != stated
        {
            let words = "Value for x-amz-sdk-checksum-algorithm header is invalid.";
            let detail = format!("it announces {}, but the checksum is a {}", meant.name(), stated.name());
            return Err(invalid_request(composed(words, &detail, &[])));
        }
        let algorithm = match stated {
            Some(algorithm) => Some(algorithm),
            None => named()?,
        };
        Ok(StatedChecksum { algorithm, value, announced, trailers: trailing })
    }

    /// Returns the checksum from the client. Errors: `MalformedTrailerError` if the announced trailer is missing, or if
    /// a trailer was not announced; `InvalidRequest` if the value of the trailer is not a valid checksum.
    fn value(self) -> OperationResult<Option<Checksum>> {
        let Some(trailers) = self.trailers else { return Ok(self.value) };
        let name = self.announced.map_or("", ChecksumAlgorithm::header);
        if let Some(other) = trailers.unannounced(name) {
            return Err(malformed_trailer(&format!(
                "x-amz-trailer does not name {other}; announce it there"
            )));
        }
        if self.announced.is_none() {
            return Ok(self.value);
        }
        let text = trailers.get(name);
        let text = text.ok_or_else(|| malformed_trailer(&format!("the trailer {name} is missing")))?;
        let checksum = self.announced.map(|algorithm| Checksum::from_base64(algorithm, text.trim()));
        checksum.transpose().map_err(|error| {
            let words = format!("Value for {name} trailing header is invalid.");
            invalid_request(composed(&words, error.detail(), &[]))
        })
    }
}

/// Returns the algorithm of the checksum that `x-amz-trailer` announces, if any. Errors: `InvalidRequest` if
/// `x-amz-trailer` announces any other trailer, because the gateway would ignore it.
fn announced_algorithm(headers: &HeaderMap) -> OperationResult<Option<ChecksumAlgorithm>> {
    let names = headers.get(TRAILER_NAMES).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let Some(name) = names.next() else { return Ok(None) };
    if names.next().is_some() {
        return Err(several_checksums());
    }
    let Some(named) = name.to_ascii_lowercase().strip_prefix("x-amz-checksum-").map(algorithm) else {
        let words = "The value specified in the x-amz-trailer header is not supported";
        return Err(invalid_request(composed(words, &format!("{name:?} is not a checksum"), &[])));
    };
    named.map(Some)
}

/// Reads `Content-MD5`. Errors: `InvalidDigest`.
fn content_md5(text: Option<&str>) -> OperationResult<Option<[u8; 16]>> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || {
        let facts = [("Content-MD5", text)];
        let message = composed(INVALID_MD5, "it is not the base64 of an MD5; compute it again", &facts);
        S3Failure::new("InvalidDigest", StatusCode::BAD_REQUEST, message)
    };
    decoded_md5(text).map(Some).ok_or_else(wrong)
}
