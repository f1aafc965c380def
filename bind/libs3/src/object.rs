//! Requests on objects.

use std::ffi::{c_char, c_void};
use std::io::Read;

use fordway_store::{
    Bucket, ByteRange, Content, CopyOptions, DeleteOptions, Error, ErrorKind, Expected, GetOptions, Key,
    PutOptions, PutResult, Writer,
};

use crate::abi::GetDataCallback;
use crate::arguments::ContentProperties;
use crate::failure::{Failure, Outcome};
use crate::lane::Target;
use crate::piece::{PIECE_BYTES, Source, with_piece};
use crate::response::{Properties, Responder, checked, seconds, write_text};
use crate::status::Status;

/// Where a copy tells its result, beside the callbacks.
pub(crate) struct CopyReturns {
    pub(crate) last_modified_s: *mut i64,
    pub(crate) etag: *mut c_char,
    pub(crate) etag_capacity: usize,
}

impl CopyReturns {
    /// # Safety
    /// The pointers are NULL or may be written, `etag_capacity` bytes at `etag`.
    pub(crate) unsafe fn tell(&self, made: &PutResult) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            if let Some(last_modified_s) = self.last_modified_s.as_mut() {
                *last_modified_s = seconds(made.modified);
            }
            write_text(self.etag, self.etag_capacity, &format!("\"{}\"", made.etag));
        }
    }
}

/// Stores what `source` gives. Without a key, nothing can be stored, and storing nothing succeeds
/// if the bucket is there: that is how programs make a directory at the top.
pub(crate) fn put(
    target: &Target,
    key: Option<&Key>,
    said: ContentProperties,
    source: Source,
) -> Outcome<PutResult> {
    let Some(key) = key else { return Err(no_key()) };
    let options = PutOptions {
        metadata: said.metadata,
        check_md5: said.md5.is_some(),
        size_hint: Some(source.left_bytes()),
        ..Default::default()
    };
    with_piece(|piece| match said.md5 {
        None if source.left_bytes() <= PIECE_BYTES as u64 => put_small(target, key, &options, source, piece),
        md5 => {
            let expected = Expected { size: options.size_hint, md5, ..Default::default() };
            let writer = target.lane.store.writer(&target.bucket, key, &options)?;
            write_all(writer, source, piece, &expected)
        }
    })
}

fn put_small(
    target: &Target,
    key: &Key,
    options: &PutOptions,
    mut source: Source,
    piece: &mut [u8],
) -> Outcome<PutResult> {
    let filled = source.fill(piece)?;
    Ok(target.lane.store.put(&target.bucket, key, &piece[..filled], options)?)
}

/// Feeds `writer` with all of `source`, and publishes.
pub(crate) fn write_all(
    mut writer: Box<dyn Writer>,
    mut source: Source,
    piece: &mut [u8],
    expected: &Expected,
) -> Outcome<PutResult> {
    while source.left_bytes() > 0 {
        let filled = source.fill(piece)?;
        writer.write(&piece[..filled])?;
    }
    Ok(writer.commit(expected)?)
}

/// A put of no bytes to no key. Errors: `NoSuchBucket`.
pub(crate) fn touch_bucket(target: &Target, responder: &Responder) -> Outcome {
    target.lane.store.head_bucket(&target.bucket)?;
    responder.succeeded(Properties::default)
}

/// The range of libs3: `count` bytes from `start` on, or all of them if `count` is 0.
pub(crate) fn range(start: u64, count: u64) -> Option<ByteRange> {
    match (start, count) {
        (0, 0) => None,
        (start, 0) => Some(ByteRange::From(start)),
        (start, count) => Some(ByteRange::Inclusive(start, start.saturating_add(count - 1))),
    }
}

/// Reads an object, and hands it to `callback` piece by piece.
pub(crate) fn get(
    target: &Target,
    key: &Key,
    options: &GetOptions,
    callback: Option<GetDataCallback>,
    responder: &Responder,
) -> Outcome {
    let object = target.lane.store.get(&target.bucket, key, options)?;
    responder.succeeded(|| Properties::of_object(&object.info, object.content.len()))?;
    match callback {
        Some(callback) => deliver(object.content, callback, responder.data()),
        None => Ok(()),
    }
}

fn deliver(content: Content, callback: GetDataCallback, data: *mut c_void) -> Outcome {
    let hand_over = |piece: &[u8]| {
        // SAFETY: the handler's creator vouches for the callback and its data. A piece has at most
        // `PIECE_BYTES` bytes, which fit in an `int`.
        checked(unsafe { callback(piece.len() as i32, piece.as_ptr().cast(), data) })
    };
    match content {
        Content::Bytes(bytes) => bytes.chunks(PIECE_BYTES).try_for_each(hand_over),
        Content::File(region) => {
            let len = region.len;
            pump(region, len, hand_over)
        }
        Content::Stream(reader, len) => pump(reader, len, hand_over),
    }
}

/// Hands over the next `left` bytes of `reader`.
fn pump(mut reader: impl Read, mut left: u64, mut hand_over: impl FnMut(&[u8]) -> Outcome) -> Outcome {
    with_piece(|piece| {
        while left > 0 {
            let wanted = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = reader.read(&mut piece[..wanted]).map_err(|error| broken(error, left))?;
            if got == 0 {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into(), left));
            }
            hand_over(&piece[..got])?;
            left -= got as u64;
        }
        Ok(())
    })
}

fn broken(error: std::io::Error, left: u64) -> Failure {
    let why = format!("reading failed with {left} bytes to come; read the object again");
    let kind = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ErrorKind::IncompleteBody,
        _ => ErrorKind::Io,
    };
    Error::new(kind, why).caused_by(error).into()
}

/// Describes an object; without a key, the bucket.
pub(crate) fn head(target: &Target, key: Option<&Key>, responder: &Responder) -> Outcome {
    let store = &target.lane.store;
    let Some(key) = key else {
        store.head_bucket(&target.bucket).map_err(Failure::Head)?;
        return responder.succeeded(Properties::default);
    };
    let info = store.head(&target.bucket, key, &GetOptions::default()).map_err(Failure::Head)?;
    responder.succeeded(|| Properties::of_object(&info, info.size))
}

/// Removes an object. Without a key, there is nothing to remove if the bucket is there.
pub(crate) fn delete(target: &Target, key: Option<&Key>, responder: &Responder) -> Outcome {
    match key {
        Some(key) => drop(target.lane.store.delete(&target.bucket, key, &DeleteOptions::default())?),
        None => drop(target.lane.store.head_bucket(&target.bucket)?),
    }
    responder.succeeded(Properties::default)
}

/// Copies `key` of the target's bucket to `to`. `said` replaces the metadata.
pub(crate) fn copy(
    target: &Target,
    key: &Key,
    to: (&Bucket, &Key),
    said: Option<ContentProperties>,
) -> Outcome<PutResult> {
    let options = CopyOptions { metadata: said.map(|said| said.metadata), ..Default::default() };
    Ok(target.lane.store.copy((&target.bucket, key), to.0, to.1, &options)?)
}

fn no_key() -> Failure {
    Failure::refused(Status::ErrorInvalidURI, "the key is empty; name the object to store")
}
