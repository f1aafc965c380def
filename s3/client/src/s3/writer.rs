//! Streamed writes. Content is buffered up to the size of a part, and then sent as one PUT or as a multipart upload.

use std::sync::Arc;
use std::time::Duration;

use fordway_store::{
    Bucket, Checksum, ChecksumAlgorithm, ChecksumType, CompleteOptions, CompletedPart, ContentHasher,
    ETagPolicy, Error, ErrorKind, ExpectedContent, HashResult, Key, MAX_PARTS, PartOptions, PutOptions,
    PutResult, Result, UploadId, Writer, check_tags,
};

use crate::s3::headers::{
    OF_OBJECT, add_checksum, add_conditions, add_lock, add_metadata, add_tags, put_result,
};
use crate::s3::multipart::{self, PartDigest, UploadPartId};
use crate::s3::request::{S3Call, base64_digest};
use crate::s3::session::S3Session;
use crate::s3::store::LANE;

/// The maximum size of a part of an upload, in bytes (S3's limit).
const PART_BYTES_MAX: u64 = 5 << 30;
/// The maximum size of content that is buffered completely and sent in one request, if its size is known.
const SINGLE_PUT_BYTES: u64 = 64 * 1024 * 1024;
/// The maximum time to wait for the server to abort an upload if the program must stop.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Stores `body` in one request. The server verifies the body against `checksum` and `md5`, unless these are `None`.
pub(super) fn put(
    session: &S3Session,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
    (checksum, md5): (Option<&Checksum>, Option<[u8; 16]>),
) -> Result<PutResult> {
    let mut call = S3Call::on_object("PUT", "put", bucket, key).body(body);
    if !options.conditions.is_empty() {
        // The request must not be sent twice. For example, a second "create only" request would find the object that
        // the first request created.
        call = call.once();
    }
    check_tags(&options.tags).map_err(|error| call.named(error))?;
    add_metadata(&mut call, &options.metadata)?;
    add_tags(&mut call, &options.tags);
    add_lock(&mut call, &options.lock);
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    if let Some(checksum) = checksum {
        add_checksum(&mut call, checksum);
    }
    // S3 requires a digest of an object that it must lock.
    let is_digest_required = checksum.is_none() && call.headers.iter().any(|(name, _)| is_lock_header(name));
    let md5 = md5.or_else(|| is_digest_required.then(|| fast_md5::digest(body)));
    if let Some(md5) = md5 {
        call.header("content-md5", base64_digest(md5));
    }
    let checksum = checksum.filter(|_| options.checksum.is_some());
    session.run(&call, |mut response| {
        response.read_document()?;
        Ok(PutResult { checksum: checksum.cloned(), ..put_result(&response)? })
    })
}

fn is_lock_header(name: &str) -> bool {
    name.starts_with("x-amz-object-lock-")
}

/// A writer of an object. The writer buffers at most one part in memory.
pub(super) struct S3ObjectWriter {
    session: Arc<S3Session>,
    bucket: Bucket,
    key: Key,
    options: PutOptions,
    /// Hashes all written content, so that the commit can compare the hash with the caller's expectation.
    hasher: ContentHasher,
    buffer: Vec<u8>,
    /// The maximum number of bytes in the buffer. If the content exceeds this limit, the buffer is sent as a part.
    limit_bytes: usize,
    upload: Option<StartedUpload>,
}

/// A multipart upload. Dropping this value aborts the upload, unless it was completed or a signal ended it.
struct StartedUpload {
    session: Arc<S3Session>,
    bucket: Bucket,
    key: Key,
    id: UploadId,
    checksum: Option<ChecksumAlgorithm>,
    parts: Vec<CompletedPart>,
    is_over: bool,
}

impl S3ObjectWriter {
    /// Creates the writer. Errors: `EntityTooLarge` if S3 has no parts of the necessary size, or there is no memory for
    /// a part. Parts are large if the declared size is large.
    pub(super) fn new(
        session: &Arc<S3Session>,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
    ) -> Result<Self> {
        let part_bytes = session.config.part_bytes;
        let limit_bytes = match options.size_hint {
            Some(size) if size <= SINGLE_PUT_BYTES => part_bytes.max(size as usize),
            // Parts must be large enough for the content to fit into the maximum number of parts.
            Some(size) => part_bytes.max(size.div_ceil(u64::from(MAX_PARTS)) as usize),
            None => part_bytes,
        };
        let expected_bytes = options.size_hint.map_or(0, |size| limit_bytes.min(size as usize));
        // The size that the caller specifies may be wrong (such as -1 for an unknown size). A wrong size must not end
        // the process.
        if expected_bytes as u64 > PART_BYTES_MAX {
            let detail = format!("S3 has no parts of {expected_bytes} bytes; check the stated size");
            let error = Error::new(ErrorKind::EntityTooLarge, detail);
            return Err(error.during("put", LANE, bucket.as_str(), key.as_str()));
        }
        let mut buffer = Vec::new();
        reserve(&mut buffer, expected_bytes)
            .map_err(|error| error.during("put", LANE, bucket.as_str(), key.as_str()))?;
        Ok(S3ObjectWriter {
            session: session.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            hasher: ContentHasher::new(ETagPolicy::Fast, options.check_md5, options.checksum),
            options: options.clone(),
            buffer,
            limit_bytes,
            upload: None,
        })
    }

    /// Sends the buffer as the next part.
    fn flush(&mut self) -> Result<()> {
        if self.upload.is_none() {
            self.upload = Some(StartedUpload::new(&self.session, (&self.bucket, &self.key), &self.options)?);
        }
        if let Some(upload) = &mut self.upload {
            upload.send(&self.buffer)?;
        }
        self.buffer.clear();
        Ok(())
    }

    fn put_whole(&self, found: &HashResult, md5: Option<[u8; 16]>) -> Result<PutResult> {
        let usual = self.session.config.checksum;
        let checksum = found.checksum.clone().or_else(|| usual.map(|kind| Checksum::of(kind, &self.buffer)));
        let digests = (checksum.as_ref(), found.md5.or(md5));
        put(&self.session, (&self.bucket, &self.key), &self.buffer, &self.options, digests)
    }
}

impl Writer for S3ObjectWriter {
    fn write(&mut self, mut data: &[u8]) -> Result<()> {
        self.hasher.update(data);
        while !data.is_empty() {
            if self.buffer.len() == self.limit_bytes {
                self.flush()?;
            }
            let (now, later) = data.split_at(data.len().min(self.limit_bytes - self.buffer.len()));
            append(&mut self.buffer, now)
                .map_err(|error| error.during("put", LANE, self.bucket.as_str(), self.key.as_str()))?;
            data = later;
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let hasher = std::mem::replace(&mut self.hasher, ContentHasher::new(ETagPolicy::Fast, false, None));
        let found = check(hasher, &self.options, expected)
            .map_err(|error| error.during("put", LANE, self.bucket.as_str(), self.key.as_str()))?;
        if self.upload.is_none() {
            return self.put_whole(&found, expected.md5);
        }
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        let Some(upload) = self.upload.take() else { return Err(ErrorKind::Internal.into()) };
        // A checksum of the whole object is sent only if it can be combined from the checksums of the parts. A SHA
        // checksum cannot be combined in this way.
        let checksum = found.checksum.filter(|sum| {
            self.options.checksum.is_some()
                && ChecksumType::widest_of(sum.algorithm) == ChecksumType::FullObject
        });
        let conditions = self.options.conditions.clone();
        let made = upload.complete(&CompleteOptions { conditions, checksum, size: Some(found.size) })?;
        Ok(PutResult { checksum: made.checksum.filter(|_| self.options.checksum.is_some()), ..made })
    }
}

/// Makes room for exactly `bytes` more bytes. Errors: `EntityTooLarge` if there is no memory, with the system's error
/// as its cause.
fn reserve(buffer: &mut Vec<u8>, bytes: usize) -> Result<()> {
    buffer.try_reserve_exact(bytes).map_err(|_| no_memory(buffer.len().saturating_add(bytes)))
}

/// Appends `data`. A buffer that grew automatically would end the process if there were no memory. Errors: as for
/// [`reserve`].
fn append(buffer: &mut Vec<u8>, data: &[u8]) -> Result<()> {
    buffer.try_reserve(data.len()).map_err(|_| no_memory(buffer.len() + data.len()))?;
    buffer.extend_from_slice(data);
    Ok(())
}

fn no_memory(bytes: usize) -> Error {
    let detail =
        format!("there is no memory for a part of {bytes} bytes; send smaller parts, or fewer at a time");
    let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    Error::new(ErrorKind::EntityTooLarge, detail).caused_by(cause)
}

/// Checks the written content against the caller's expectations. This function checks an expected MD5 only if the
/// caller requested an MD5 (`check_md5`) when it opened the writer. A single PUT also sends the expected MD5, and the
/// server checks the content against it.
fn check(hasher: ContentHasher, options: &PutOptions, expected: &ExpectedContent) -> Result<HashResult> {
    let md5 = expected.md5.filter(|_| options.check_md5);
    hasher.finish(&ExpectedContent { md5, ..expected.clone() })
}

impl StartedUpload {
    fn new(session: &Arc<S3Session>, (bucket, key): (&Bucket, &Key), options: &PutOptions) -> Result<Self> {
        let checksum = options.checksum.or(session.config.checksum);
        let checksum_type = checksum.map(ChecksumType::widest_of);
        let options = PutOptions { checksum, checksum_type, ..options.clone() };
        let id = multipart::create(session, (bucket, key), &options)?;
        Ok(StartedUpload {
            session: session.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            id,
            checksum,
            parts: Vec::new(),
            is_over: false,
        })
    }

    fn send(&mut self, body: &[u8]) -> Result<()> {
        let number = self.parts.len() as u16 + 1;
        if number > MAX_PARTS {
            let detail =
                format!("more than {MAX_PARTS} parts of {} bytes; state the size beforehand", body.len());
            let error = Error::new(ErrorKind::EntityTooLarge, detail);
            return Err(error.during("put", LANE, self.bucket.as_str(), self.key.as_str()));
        }
        let part = UploadPartId { bucket: &self.bucket, key: &self.key, upload: &self.id, number };
        let check = self.checksum.map_or(PartDigest::Md5(None), PartDigest::Checksum);
        let put = part.put(&self.session, body, check);
        let PutResult { etag, checksum, .. } = self.left_if_stopped(put)?;
        self.parts.push(CompletedPart { number, etag, checksum });
        Ok(())
    }

    fn complete(mut self, options: &CompleteOptions) -> Result<PutResult> {
        let target = (&self.bucket, &self.key, &self.id);
        let completed = multipart::complete(&self.session, target, &self.parts, options);
        let completed = self.left_if_stopped(completed);
        // After a timeout, the server may still be working on the completion, which an abort would undo.
        let is_undecided = matches!(&completed, Err(error) if error.kind() == ErrorKind::Timeout);
        if is_undecided {
            let upload = self.id.as_str();
            tracing::warn!(upload, "whether the upload will be completed is unknown; it is not aborted");
        }
        self.is_over |= completed.is_ok() || is_undecided;
        completed
    }

    /// If the program must stop, prevents the drop from aborting the upload, because the program must not wait for
    /// another response from the server. In this case, the parts remain until the service removes abandoned uploads.
    fn left_if_stopped<T>(&mut self, done: Result<T>) -> Result<T> {
        self.is_over = matches!(&done, Err(error) if error.kind() == ErrorKind::Interrupted);
        done
    }
}

impl Drop for StartedUpload {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let abort = || multipart::abort(&self.session, &self.bucket, &self.key, &self.id);
        if let Err(error) = fordway_sys::with_grace(ABORT_GRACE, abort) {
            tracing::warn!(%error, upload = self.id.as_str(), "parts of an abandoned upload are left behind");
        }
    }
}

/// A writer of a part. The writer buffers the whole part in memory until the part is committed.
pub(super) struct BufferedPartWriter {
    session: Arc<S3Session>,
    bucket: Bucket,
    key: Key,
    upload: UploadId,
    number: u16,
    checksum: Option<ChecksumAlgorithm>,
    body: Vec<u8>,
}

impl BufferedPartWriter {
    /// Creates the writer. Errors: `EntityTooLarge` if there is no memory for a part of the declared size.
    pub(super) fn new(
        session: &Arc<S3Session>,
        UploadPartId { bucket, key, upload, number }: UploadPartId,
        options: &PartOptions,
    ) -> Result<Self> {
        let mut body = Vec::new();
        // A buffer that grows may reserve twice the memory that it needs.
        let expected_bytes = options.size_hint.unwrap_or_default().min(PART_BYTES_MAX);
        reserve(&mut body, expected_bytes as usize)
            .map_err(|error| error.during("put part", LANE, bucket.as_str(), key.as_str()))?;
        Ok(BufferedPartWriter {
            session: session.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            upload: upload.clone(),
            number,
            checksum: options.checksum,
            body,
        })
    }
}

impl Writer for BufferedPartWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        append(&mut self.body, data)
            .map_err(|error| error.during("put part", LANE, self.bucket.as_str(), self.key.as_str()))
    }

    fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let stated = expected.checksum.as_ref().map(|checksum| checksum.algorithm);
        let algorithm = self.checksum.or(stated);
        let is_md5_wanted = algorithm.is_none() || expected.md5.is_some();
        let mut hasher = ContentHasher::new(ETagPolicy::Fast, is_md5_wanted, algorithm);
        hasher.update(&self.body);
        let found = hasher
            .finish(expected)
            .map_err(|error| error.during("put part", LANE, self.bucket.as_str(), self.key.as_str()))?;
        let part =
            UploadPartId { bucket: &self.bucket, key: &self.key, upload: &self.upload, number: self.number };
        let check = found.checksum.map_or(PartDigest::Md5(found.md5), PartDigest::Known);
        part.put(&self.session, &self.body, check)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn lack_of_memory_is_an_error() {
        let mut buffer = b"content".to_vec();
        let error = reserve(&mut buffer, isize::MAX as usize - 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EntityTooLarge);
        let cause = error.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(cause.kind(), std::io::ErrorKind::OutOfMemory);
        append(&mut buffer, b" and more").unwrap();
        assert_eq!(buffer, b"content and more");
    }
}
