//! Bytes that arrive: from the body of a request into a writer, verified before they are published.

use std::future::poll_fn;
use std::pin::Pin;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use fordway_store::{
    Checksum, ChecksumAlgorithm, Error, ErrorKind, Expected, PartOptions, PutOptions, Store,
};
use http::{HeaderMap, StatusCode};
use s3s::dto::{PutObjectInput, PutObjectOutput, StreamingBlob, UploadPartInput, UploadPartOutput};
use s3s::{S3Request, TrailingHeaders};

use super::apart::Pace;
use super::convert::{
    algorithm, etag, metadata_of, names, put_checksum, refuse, refuse_unsupported, stated_checksum, tags,
    type_of, version_name, write_conditions,
};
use super::error::{Failure, Outcome, unreadable_body};
use super::multipart::part_number;
use crate::unsigned::Trailers;

/// What is taken of a client before the others of its thread have their turn: a millisecond or two where
/// it is digested. The runtime alone would look at them after 61 times 8 MiB.
const TURN_BYTES: usize = 1024 * 1024;

pub(super) async fn put(
    store: &dyn Store,
    mut request: S3Request<PutObjectInput>,
    pace: &Pace,
) -> Outcome<PutObjectOutput> {
    let trailers = Trailing::of(&mut request);
    let S3Request { mut input, headers, .. } = request;
    refuse_unsupported!(input)?;
    refuse(&[("x-amz-write-offset-bytes", input.write_offset_bytes.is_some())])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let checks = Checks {
        size: input.content_length.and_then(|length| u64::try_from(length).ok()),
        md5: content_md5(input.content_md5.as_deref())?,
        checksum: Stated::new(stated_checksum!(input)?, &headers, trailers)?,
    };
    let options = PutOptions {
        metadata: metadata_of!(input, &headers),
        tags: tags(input.tagging.as_deref())?,
        conditions: write_conditions(input.if_match, input.if_none_match),
        check_md5: checks.md5.is_some(),
        checksum: checks.checksum.algorithm,
        size_hint: checks.size,
        ..Default::default()
    };
    let mut writer = store.writer(&bucket, &key, &options)?;
    receive(input.body, |data| writer.write(data)).await?;
    let made = pace.publish(writer, checks.expected()?).await?;

    let mut output = PutObjectOutput {
        e_tag: etag(&made.etag),
        checksum_type: made.checksum.as_ref().map(type_of),
        version_id: version_name(made.version),
        ..Default::default()
    };
    put_checksum!(output, &made.checksum);
    Ok(output)
}

pub(super) async fn put_part(
    store: &dyn Store,
    mut request: S3Request<UploadPartInput>,
    pace: &Pace,
) -> Outcome<UploadPartOutput> {
    let trailers = Trailing::of(&mut request);
    let S3Request { input, headers, .. } = request;
    refuse(&[("x-amz-server-side-encryption-customer-key", input.sse_customer_key.is_some())])?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let upload = fordway_store::UploadId::new(input.upload_id.as_str())?;
    let number = part_number(input.part_number)?;
    let checks = Checks {
        size: input.content_length.and_then(|length| u64::try_from(length).ok()),
        md5: content_md5(input.content_md5.as_deref())?,
        checksum: Stated::new(stated_checksum!(input)?, &headers, trailers)?,
    };
    let options = PartOptions {
        check_md5: checks.md5.is_some(),
        checksum: checks.checksum.algorithm,
        size_hint: checks.size,
    };
    let mut part = store.part_writer(&bucket, &key, &upload, number, &options)?;
    receive(input.body, |data| part.write(data)).await?;
    let made = pace.publish(part, checks.expected()?).await?;

    let mut output = UploadPartOutput { e_tag: etag(&made.etag), ..Default::default() };
    put_checksum!(output, &made.checksum);
    Ok(output)
}

/// Feeds a body to `consume`, piece by piece as it arrives.
async fn receive(
    body: Option<StreamingBlob>,
    mut consume: impl FnMut(&[u8]) -> fordway_store::Result<()>,
) -> Outcome<()> {
    let Some(mut body) = body else { return Ok(()) };
    let mut turn_bytes = 0;
    while let Some(piece) = next_piece(&mut body).await {
        let piece = piece.map_err(|error| unreadable_body(&*error))?;
        consume(&piece)?;
        turn_bytes += piece.len();
        if turn_bytes >= TURN_BYTES {
            turn_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

async fn next_piece(body: &mut StreamingBlob) -> Option<Result<Bytes, s3s::StdError>> {
    use futures_core::Stream as _;
    poll_fn(|context| Pin::new(&mut *body).poll_next(context)).await
}

/// What the client says its content is.
struct Checks {
    size: Option<u64>,
    md5: Option<[u8; 16]>,
    checksum: Stated,
}

impl Checks {
    /// To be asked once the body was read: only then are its trailers known.
    fn expected(self) -> Outcome<Expected> {
        Ok(Expected { size: self.size, md5: self.md5, checksum: self.checksum.value()? })
    }
}

/// A checksum that stands in a header, or will stand in a trailer, or is only to be computed.
struct Stated {
    algorithm: Option<ChecksumAlgorithm>,
    value: Option<Checksum>,
    trailer: Option<Trailing>,
}

/// The trailers of a body, from whoever decodes it; there once it was read.
enum Trailing {
    /// The S3 layer, which checks their signature.
    Signed(TrailingHeaders),
    /// Ourselves.
    Unsigned(Trailers),
}

impl Trailing {
    fn of<T>(request: &mut S3Request<T>) -> Option<Self> {
        let signed = request.trailing_headers.take().map(Trailing::Signed);
        signed.or_else(|| request.extensions.remove::<Trailers>().map(Trailing::Unsigned))
    }

    fn get(&self, name: &str) -> Option<String> {
        match self {
            Trailing::Signed(trailers) => {
                trailers.read(|headers| headers.get(name)?.to_str().ok().map(str::to_owned)).flatten()
            }
            Trailing::Unsigned(trailers) => trailers.get(name).map(str::to_owned),
        }
    }
}

impl Stated {
    fn new(value: Option<Checksum>, headers: &HeaderMap, trailing: Option<Trailing>) -> Outcome<Self> {
        let announced = announced_algorithm(headers)?;
        let trailer = trailing.filter(|_| announced.is_some() && value.is_none());
        let named = || -> Outcome<_> {
            let name = headers.get("x-amz-sdk-checksum-algorithm").and_then(|value| value.to_str().ok());
            name.map(algorithm).transpose()
        };
        let algorithm = match value.as_ref().map(|checksum| checksum.algorithm).or(announced) {
            Some(algorithm) => Some(algorithm),
            None => named()?,
        };
        Ok(Stated { algorithm, value, trailer })
    }

    /// The value stated. Errors: `InvalidArgument` if the trailer announced is not there.
    fn value(self) -> Outcome<Option<Checksum>> {
        let (Some(algorithm), Some(trailer)) = (self.algorithm, self.trailer) else {
            return Ok(self.value);
        };
        let name = header_name(algorithm);
        let text = trailer.get(&name);
        let missing = || Error::new(ErrorKind::InvalidArgument, format!("the trailer {name} is missing"));
        Ok(Some(Checksum::from_base64(algorithm, text.ok_or_else(missing)?.trim())?))
    }
}

fn header_name(algorithm: ChecksumAlgorithm) -> String {
    format!("x-amz-checksum-{}", algorithm.name().to_ascii_lowercase())
}

/// The checksum that `x-amz-trailer` announces, if it announces one.
fn announced_algorithm(headers: &HeaderMap) -> Outcome<Option<ChecksumAlgorithm>> {
    let names = headers.get("x-amz-trailer").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut names = names.split(',').filter_map(|name| name.trim().strip_prefix("x-amz-checksum-"));
    names.next().map(algorithm).transpose()
}

/// Reads `Content-MD5`. Errors: `InvalidDigest`.
fn content_md5(text: Option<&str>) -> Outcome<Option<[u8; 16]>> {
    let Some(text) = text else { return Ok(None) };
    let digest = BASE64.decode(text).ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let wrong = || {
        let message = format!("Content-MD5: {text:?} is not the base64 of an MD5");
        Failure::new("InvalidDigest", StatusCode::BAD_REQUEST, message)
    };
    digest.map(Some).ok_or_else(wrong)
}
