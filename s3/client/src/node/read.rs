//! Receives content: inline, through a descriptor, or as a stream.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use fordway_store::{
    Bucket, ByteRange, Conditions, Error, ErrorKind, FileRegion, GetOptions, Key, ObjectContent, OpenObject,
    Result, receive_exact,
};
use fordway_sys::read_into_spare;
use fordway_wire::node::{
    ContentTransferMethod, FrameHeader, GetResponse, INLINE_BYTES_MAX, ReadResponse, Request,
};

use crate::node::connection::{NodeConnection, NodeFailure};
use crate::node::session::{ConnectionLease, NodeCallTarget, NodeSession};

/// Opens an object. Returns the content as the gateway delivered it: as inline bytes, an open file or a stream.
pub(super) fn get(
    session: &Arc<NodeSession>,
    call: &NodeCallTarget<'_>,
    request: &Request<'_>,
) -> Result<OpenObject> {
    let mut stream = None;
    let (object, lease) = session.run(call, |connection| {
        let (GetResponse { info, range, sent }, header) = connection.call(request, &[])?;
        let content = match sent {
            ContentTransferMethod::Inline => {
                ObjectContent::Bytes(Bytes::copy_from_slice(connection.body(&header)))
            }
            ContentTransferMethod::Descriptor(offset, len) => {
                let file = connection.file(&header)?;
                ObjectContent::File(FileRegion { file, offset, len })
            }
            ContentTransferMethod::Stream(len) => {
                stream = Some(len);
                ObjectContent::Bytes(Bytes::new())
            }
        };
        connection.finish(&header);
        Ok(OpenObject { info, range, content })
    })?;
    Ok(match stream {
        Some(len) => OpenObject {
            content: ObjectContent::Stream(Box::new(StreamReader { lease, left: len }), len),
            ..object
        },
        None => object,
    })
}

/// Reads only the content, into `buffer`.
pub(super) fn read(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    options: &GetOptions,
    buffer: &mut Vec<u8>,
) -> Result<u64> {
    let call =
        NodeCallTarget { operation: "get", bucket: bucket.as_str(), key: key.as_str(), is_idempotent: true };
    let request = Request::Read {
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        options: Cow::Borrowed(options),
        // A large buffer suggests that the caller's previous objects were large, so this object is probably large as
        // well.
        is_large: buffer.capacity() > INLINE_BYTES_MAX,
    };
    let done = session.run(&call, |connection| {
        buffer.clear();
        let (ReadResponse { size, sent }, header) = connection.call(&request, &[])?;
        fill(connection, &header, sent, buffer)?;
        Ok(size)
    });
    done.map(|(size, _)| size)
}

/// Reads the received content into `buffer`, and finishes the response.
fn fill(
    connection: &mut NodeConnection,
    header: &FrameHeader,
    sent: ContentTransferMethod,
    buffer: &mut Vec<u8>,
) -> Result<(), NodeFailure> {
    let too_large = |_| NodeFailure::Unusable(ErrorKind::EntityTooLarge.into());
    match sent {
        ContentTransferMethod::Inline => buffer.extend_from_slice(connection.body(header)),
        ContentTransferMethod::Descriptor(offset, len) => {
            let (file, wanted) = (connection.file(header)?, usize::try_from(len).map_err(too_large)?);
            connection.finish(header);
            return read_file(&file, offset, wanted, buffer).map_err(NodeFailure::Answered);
        }
        ContentTransferMethod::Stream(len) => {
            connection.finish(header);
            return read_stream(connection, usize::try_from(len).map_err(too_large)?, buffer);
        }
    }
    connection.finish(header);
    Ok(())
}

/// Reads the `len` bytes of a stream into `buffer`.
fn read_stream(connection: &mut NodeConnection, len: usize, buffer: &mut Vec<u8>) -> Result<(), NodeFailure> {
    let mut failed = None;
    let received = receive_exact(buffer, len, |mut piece| {
        while !piece.is_empty() {
            match connection.read_stream(piece) {
                Ok(0) => return Err(cut_short(piece.len())),
                Ok(count) => piece = &mut piece[count..],
                Err(error) => {
                    failed = Some(NodeFailure::Unknown(error));
                    return Err(ErrorKind::Io.into());
                }
            }
        }
        Ok(())
    });
    received.map_err(|error| failed.unwrap_or(NodeFailure::Unusable(error)))
}

/// Reads `wanted` bytes from a file that the gateway passed, and appends them to `buffer`.
fn read_file(file: &File, offset: u64, wanted: usize, buffer: &mut Vec<u8>) -> Result<()> {
    let got = read_into_spare(file, buffer, offset, wanted)
        .map_err(|errno| Error::new(ErrorKind::Io, "reading the file from the gateway").caused_by(errno))?;
    if got < wanted { Err(cut_short(wanted - got)) } else { Ok(()) }
}

fn cut_short(left: usize) -> Error {
    Error::new(ErrorKind::IncompleteBody, format!("the content ended {left} bytes early"))
}

/// Reads ranges of one version that are too large for one message. Opens the object once, and reads the ranges from the
/// open file.
pub(super) fn read_large_ranges(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Vec<Vec<u8>>> {
    let call =
        NodeCallTarget { operation: "get", bucket: bucket.as_str(), key: key.as_str(), is_idempotent: true };
    let whole = GetOptions { range: None, part: None, ..options.clone() };
    let request =
        Request::Get { bucket: Cow::Borrowed(bucket), key: Cow::Borrowed(key), options: Cow::Owned(whole) };
    let object = get(session, &call, &request)?;
    let wanted = ranges.iter().map(|range| range.resolve(object.info.size)).collect::<Result<Vec<_>>>();
    let wanted = wanted.map_err(|error| call.named(error))?;
    let ObjectContent::File(file) = object.content else {
        // Over TCP, the ranges are read one by one, each on the condition that the version has not changed.
        let same = GetOptions { conditions: Conditions::only_if(object.info.etag), ..options.clone() };
        drop(object.content);
        let one = |range: &ByteRange| {
            let mut bytes = Vec::new();
            let options = GetOptions { range: Some(*range), ..same.clone() };
            read(session, (bucket, key), &options, &mut bytes).map(|_| bytes)
        };
        return ranges.iter().map(one).collect();
    };
    let one = |range: std::ops::Range<u64>| {
        let (mut bytes, wanted) = (Vec::new(), (range.end - range.start) as usize);
        read_file(&file.file, file.offset + range.start, wanted, &mut bytes).map(|()| bytes)
    };
    wanted.into_iter().map(one).collect::<Result<_>>().map_err(|error| call.named(error))
}

/// Reads ranges of one version in one message.
pub(super) fn read_ranges(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Vec<Vec<u8>>> {
    let call =
        NodeCallTarget { operation: "get", bucket: bucket.as_str(), key: key.as_str(), is_idempotent: true };
    let request = Request::ReadRanges {
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        ranges: Cow::Borrowed(ranges),
        options: Cow::Borrowed(options),
    };
    let read = session.run(&call, |connection| {
        let (lengths, header): (Vec<u32>, _) = connection.call(&request, &[])?;
        let mut body = connection.body(&header);
        let mut all = Vec::with_capacity(lengths.len());
        for len in lengths {
            let Some((range, rest)) = body.split_at_checked(len as usize) else {
                return Err(NodeFailure::Unusable(Error::new(
                    ErrorKind::BadResponse,
                    "the body is shorter than the stated lengths of the ranges",
                )));
            };
            all.push(range.to_vec());
            body = rest;
        }
        connection.finish(&header);
        Ok(all)
    });
    read.map(|(all, _)| all)
}

/// A stream of content that follows a response. Other calls cannot use the connection until the last byte has been
/// read.
struct StreamReader {
    lease: ConnectionLease,
    left: u64,
}

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let got = self
            .lease
            .act(|connection| connection.read_stream(&mut buffer[..wanted]).map_err(NodeFailure::Unknown));
        match got {
            Ok(0) => {
                self.lease.give_up();
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Ok(count) => {
                self.left -= count as u64;
                Ok(count)
            }
            Err(NodeFailure::Unknown(errno) | NodeFailure::NotSent(errno)) => Err(errno.into()),
            Err(NodeFailure::Answered(error) | NodeFailure::Unusable(error)) => Err(io::Error::other(error)),
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        if self.left > 0 {
            // The connection is closed, because the next call would mistake the unread bytes for a response.
            self.lease.give_up();
        }
    }
}
