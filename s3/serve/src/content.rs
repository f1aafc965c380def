//! Content that is read in pieces, because the kernel cannot send it to a client directly. Also defines the extension
//! that carries a response's body through the S3 layer.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fordway_store::{FileRegion, ObjectContent};
use fordway_sys::{Errno, read_cached};
use fordway_wire::byteranges::ByterangesFraming;

use crate::answer::PreparedBody;
use crate::blocking::run_blocking;
use crate::buffers::{BufferChunk, CHUNK_BYTES, lend_buffer, take_buffer};
use crate::file_server::{FileServerRegion, NetworkFileServer};

/// The number of bytes of a file that are read or passed on at a time.
pub(crate) const PIECE_BYTES: u64 = 64 * 1024;

/// The minimum number of bytes for which a reused buffer is used. A smaller read gets a new buffer of its exact size,
/// because a reused buffer would be larger.
const SMALL_BYTES: u64 = 16 * 1024;

/// Content that is read piece by piece.
pub(crate) enum ContentPieces {
    File(FileRegion),
    /// A reader, and the number of remaining bytes.
    Reader(Box<dyn Read + Send>, u64),
    Bytes(Bytes),
    Parts(MultipartContent),
    Remote(FileServerRegion),
}

/// Content that can be read at any offset.
pub(crate) enum RangeSource {
    File(FileRegion),
    Bytes(Bytes),
    Remote(FileServerRegion),
}

/// Ranges of one object. The delimiter and headers before each range are written only when the range is sent, because a
/// request can have a thousand ranges, and the headers contain the content type.
pub(crate) struct MultipartContent {
    pub(crate) source: RangeSource,
    pub(crate) ranges: VecDeque<Range<u64>>,
    pub(crate) texts: MultipartTexts,
    /// Whether the delimiter and headers before the first range of `ranges` have already been returned.
    is_within_part: bool,
    left: u64,
}

/// The delimiters and headers (RFC 2046) between the ranges of a [`MultipartContent`].
pub(crate) struct MultipartTexts {
    pub(crate) boundary: String,
    pub(crate) content_type: String,
    /// The size of the whole object in bytes.
    pub(crate) size: u64,
}

impl MultipartTexts {
    fn framing(&self) -> ByterangesFraming<'_> {
        ByterangesFraming { boundary: &self.boundary, content_type: &self.content_type, size: self.size }
    }

    /// Returns the `Content-Type` of the response.
    pub(crate) fn media_type(&self) -> String {
        self.framing().media_type()
    }

    /// Returns the delimiter and headers before the bytes of `range`, which must not be empty.
    pub(crate) fn before(&self, range: &Range<u64>) -> String {
        self.framing().before(range)
    }

    /// Returns the closing delimiter, which follows the last range.
    pub(crate) fn end(&self) -> String {
        self.framing().end()
    }

    /// Returns the total length of all delimiters and headers in bytes.
    fn len(&self, ranges: &VecDeque<Range<u64>>) -> u64 {
        let digits = |number: u64| u64::from(number.checked_ilog10().unwrap_or(0)) + 1;
        // Apart from the two numbers, the delimiters and headers before all ranges are equal.
        let common = self.before(&(0..1)).len() as u64 - 2;
        let before = |range: &Range<u64>| common + digits(range.start) + digits(range.end - 1);
        ranges.iter().map(before).sum::<u64>() + self.end().len() as u64
    }
}

impl MultipartContent {
    /// None of the ranges may be empty.
    pub(crate) fn new(source: RangeSource, ranges: VecDeque<Range<u64>>, texts: MultipartTexts) -> Self {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let left = bytes + texts.len(&ranges);
        MultipartContent { source, ranges, texts, is_within_part: false, left }
    }

    /// Makes the threads of `server` read the object, if it is in a file.
    fn read_by(self, server: &NetworkFileServer) -> Self {
        let source = match self.source {
            RangeSource::File(region) => RangeSource::Remote(FileServerRegion::new(region, server)),
            other => other,
        };
        MultipartContent { source, ..self }
    }

    /// Returns the number of remaining bytes, including the delimiters and headers between the ranges.
    pub(crate) fn len(&self) -> u64 {
        self.left
    }

    /// Returns the next bytes (about `most`) and the remaining content. Errors: `UnexpectedEof` for content that is
    /// shorter than its declared length.
    async fn next(mut self, most: u64) -> io::Result<(Bytes, Self)> {
        let mut buffer = buffer_for(most);
        while (buffer.len() as u64) < most {
            let Some(range) = self.ranges.pop_front() else {
                buffer.extend_from_slice(self.texts.end().as_bytes());
                break;
            };
            if !std::mem::take(&mut self.is_within_part) {
                buffer.extend_from_slice(self.texts.before(&range).as_bytes());
            }
            let room = most.saturating_sub(buffer.len() as u64);
            let middle = range.end.min(range.start + room);
            append_part(&self.source, range.start..middle, &mut buffer).await?;
            if middle < range.end {
                self.ranges.push_front(middle..range.end);
                self.is_within_part = true;
            }
        }
        self.left -= buffer.len() as u64;
        Ok((lent(buffer, most), self))
    }
}

/// Appends a small range of the content to `buffer`. Errors: `UnexpectedEof` if the file is too short.
pub(crate) async fn append_part(
    source: &RangeSource,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    match source {
        RangeSource::Bytes(bytes) => {
            buffer.extend_from_slice(&bytes[range.start as usize..range.end as usize]);
            Ok(())
        }
        RangeSource::File(FileRegion { file, offset, .. }) => {
            append(file, offset + range.start..offset + range.end, buffer).await
        }
        RangeSource::Remote(region) => {
            buffer.extend_from_slice(&region.read(range).await?);
            Ok(())
        }
    }
}

impl ContentPieces {
    pub(crate) fn new(content: ObjectContent) -> Self {
        match content {
            ObjectContent::Bytes(bytes) => ContentPieces::Bytes(bytes),
            ObjectContent::File(region) => ContentPieces::File(region),
            ObjectContent::Stream(reader, len) => ContentPieces::Reader(reader, len),
        }
    }

    /// Returns the number of remaining bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            ContentPieces::File(region) => region.len,
            ContentPieces::Reader(_, left) => *left,
            ContentPieces::Bytes(bytes) => bytes.len() as u64,
            ContentPieces::Parts(parts) => parts.len(),
            ContentPieces::Remote(region) => region.len,
        }
    }

    /// Returns the next bytes (at most about `most`) and the remaining content. The content must not be exhausted.
    /// Errors: `UnexpectedEof` for content that is shorter than its declared length.
    pub(crate) async fn next(self, most: u64) -> io::Result<(Bytes, Self)> {
        match self {
            ContentPieces::Bytes(mut bytes) => {
                let piece = bytes.split_to(bytes.len().min(most as usize));
                Ok((piece, ContentPieces::Bytes(bytes)))
            }
            ContentPieces::Parts(parts) => {
                let (piece, rest) = parts.next(most).await?;
                Ok((piece, ContentPieces::Parts(rest)))
            }
            ContentPieces::File(FileRegion { file, offset, len }) => {
                let count = len.min(most);
                let piece = read_piece(&file, offset..offset + count).await?;
                let rest = FileRegion { file, offset: offset + count, len: len - count };
                Ok((piece, ContentPieces::File(rest)))
            }
            ContentPieces::Remote(region) => {
                let wanted = if most < PIECE_BYTES { most } else { CHUNK_BYTES as u64 }.min(region.len);
                let piece = region.read(0..wanted).await?;
                Ok((piece, ContentPieces::Remote(region.after(wanted))))
            }
            ContentPieces::Reader(reader, left) => {
                // A reader is read on a thread that may block. To reduce the number of calls, each call may return more
                // than `most` bytes, unless memory is scarce.
                let wanted = if most < PIECE_BYTES { left.min(most) } else { left };
                let (reader, piece) = read_some(reader, wanted).await?;
                let left = left - piece.len() as u64;
                Ok((piece, ContentPieces::Reader(reader, left)))
            }
        }
    }
}

/// Reads at most [`PIECE_BYTES`] of a file. Errors: `UnexpectedEof` if the file is too short.
pub(crate) async fn read_piece(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let most = range.end - range.start;
    let mut buffer = buffer_for(most);
    append(file, range, &mut buffer).await?;
    Ok(lent(buffer, most))
}

/// Returns a buffer for a read of `most` bytes: a new buffer of the exact size if `most` is below [`SMALL_BYTES`], and
/// otherwise a reused buffer.
fn buffer_for(most: u64) -> Vec<u8> {
    if most < SMALL_BYTES { Vec::with_capacity(most as usize) } else { take_buffer() }
}

fn lent(buffer: Vec<u8>, most: u64) -> Bytes {
    if most < SMALL_BYTES { Bytes::from(buffer) } else { lend_buffer(buffer) }
}

/// Reads the next bytes of content that is still arriving, on a thread that may block.
async fn read_some(mut reader: Box<dyn Read + Send>, left: u64) -> io::Result<(Box<dyn Read + Send>, Bytes)> {
    let wanted = left.min(CHUNK_BYTES as u64) as usize;
    elsewhere(move || {
        if wanted < SMALL_BYTES as usize {
            let mut small = vec![0; wanted];
            let count = reader.read(&mut small)?;
            small.truncate(count);
            return if count == 0 {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok((reader, small.into()))
            };
        }
        let mut chunk = BufferChunk::new();
        let count = reader.read(&mut chunk.memory()[..wanted])?;
        match count {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok((reader, chunk.into_bytes(count))),
        }
    })
    .await
}

/// Appends at most [`CHUNK_BYTES`] of a file to `buffer`. Errors: `UnexpectedEof` if the file is too short.
pub(crate) async fn append(file: &File, mut range: Range<u64>, buffer: &mut Vec<u8>) -> io::Result<()> {
    while !range.is_empty() {
        let left = (range.end - range.start) as usize;
        match read_cached(file, buffer, range.start, left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => range.start += count as u64,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                buffer.extend_from_slice(&read_elsewhere(file, range.start, left).await?);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads at most [`CHUNK_BYTES`] on a thread that may block on the device. Errors: `UnexpectedEof` if the file is too
/// short.
pub(crate) async fn read_elsewhere(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let file = file.try_clone()?;
    elsewhere(move || {
        let mut chunk = BufferChunk::new();
        file.read_exact_at(&mut chunk.memory()[..len], offset)?;
        Ok(chunk.into_bytes(len))
    })
    .await
}

/// Runs `work`, which may block on a device, on a thread that may block.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_blocking(work).await.unwrap_or_else(|ended| Err(io::Error::other(ended)))
}

/// A body that is stored as an extension of its response. The extension can contain an open file, which the transport
/// needs. A body of the S3 layer cannot contain an open file.
#[derive(Clone)]
pub(crate) struct BodyExtension(Arc<Mutex<Option<PreparedBody>>>);

impl BodyExtension {
    pub(crate) fn new(reply: PreparedBody) -> Self {
        BodyExtension(Arc::new(Mutex::new(Some(reply))))
    }

    /// If the content is in a file, makes the threads of `server` read the file.
    pub(crate) fn read_by(&self, server: &NetworkFileServer) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = held.take().map(|reply| match reply {
            PreparedBody::Content(ObjectContent::File(region)) => {
                PreparedBody::Remote(FileServerRegion::new(region, server))
            }
            PreparedBody::Parts(parts) => PreparedBody::Parts(parts.read_by(server)),
            other => other,
        });
    }

    /// Returns the body to the first caller, and `None` to any later caller.
    pub(crate) fn take(self) -> Option<PreparedBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A file that another program has truncated causes an error. Missing bytes are never replaced by other bytes.
    #[test]
    fn a_region_is_read_whole_or_not_at_all() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = |range: Range<u64>| {
            let mut buffer = b"head".to_vec();
            runtime.block_on(append(&file, range, &mut buffer)).map(|()| buffer)
        };
        assert_eq!(read(3..10).unwrap(), b"head3456789");
        assert_eq!(read(3..11).expect_err("it is shorter").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(runtime.block_on(read_elsewhere(&file, 3, 7)).unwrap(), &b"3456789"[..]);
        let short = runtime.block_on(read_elsewhere(&file, 3, 8)).expect_err("it is shorter");
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn all_kinds_of_content_come_whole_and_in_order() {
        let content: Vec<u8> = (0..700_000_u32).map(|number| (number / 7) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let len = content.len() as u64 - 5;
        let kinds = [
            ObjectContent::Bytes(Bytes::copy_from_slice(&content[5..])),
            ObjectContent::File(FileRegion { file, offset: 5, len }),
            ObjectContent::Stream(Box::new(io::Cursor::new(content.clone().split_off(5))), len),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for kind in kinds {
            let (mut pieces, mut taken) = (ContentPieces::new(kind), Vec::new());
            while pieces.len() > 0 {
                let piece;
                (piece, pieces) = runtime.block_on(pieces.next(PIECE_BYTES)).unwrap();
                taken.extend_from_slice(&piece);
            }
            assert!(taken == content[5..]);
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let region = FileRegion { file, offset: 5, len };
        let ranges = [0..1, 10..200_000, 300_000..300_001, 99..101];
        let texts = |size| MultipartTexts { boundary: "b".to_owned(), content_type: "t/x".to_owned(), size };
        let source = RangeSource::File(region);
        let parts = MultipartContent::new(source, ranges.clone().into(), texts(len));
        let (mut pieces, mut taken) = (ContentPieces::Parts(parts), Vec::new());
        let mut expected = Vec::new();
        for range in ranges {
            expected.extend_from_slice(texts(len).before(&range).as_bytes());
            expected.extend_from_slice(&content[range.start as usize + 5..range.end as usize + 5]);
        }
        expected.extend_from_slice(texts(len).end().as_bytes());
        assert_eq!(pieces.len(), expected.len() as u64);
        while pieces.len() > 0 {
            let piece;
            (piece, pieces) = runtime.block_on(pieces.next(PIECE_BYTES)).unwrap();
            taken.extend_from_slice(&piece);
        }
        assert!(taken == expected);
        let short = ContentPieces::Reader(Box::new(io::empty()), 1);
        let error = runtime.block_on(short.next(PIECE_BYTES)).err().expect("it is shorter");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
