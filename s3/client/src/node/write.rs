//! Writes content to a gateway: in one message, to a file that the gateway passes, or in several messages.

use std::borrow::Cow;
use std::fs::File;
use std::sync::Arc;

use fordway_store::{
    Bucket, Error, ErrorKind, ExpectedContent, Key, PartOptions, PutOptions, PutResult, Result, UploadId,
    Writer,
};
use fordway_sys::{Errno, free_bytes_before, write_all_at};
use fordway_wire::node::{CommitResponse, Request, StartWriteResponse};

use crate::node::session::{ConnectionLease, NodeCallTarget, NodeSession};
use crate::node::spare::{PrecreatedFile, put_spare};

/// The maximum size of content that is sent in one message. Content of this size fits into the socket's buffer. With
/// larger content, the two sides would wait for each other, and writing to a file is faster.
pub(super) const WHOLE_BYTES_MAX: usize = 128 << 10;
/// The maximum number of bytes of content in one message if content is split over several messages.
const PIECE_BYTES: usize = 128 << 10;

/// The object or part to write.
pub(super) struct WriteTarget {
    pub(super) bucket: Bucket,
    pub(super) key: Key,
    pub(super) what: WriteKind,
}

pub(super) enum WriteKind {
    Object(PutOptions),
    Part(UploadId, u16, PartOptions),
}

impl WriteTarget {
    fn call(&self, is_idempotent: bool) -> NodeCallTarget<'_> {
        let operation = match self.what {
            WriteKind::Object(_) => "put",
            WriteKind::Part(..) => "put part",
        };
        NodeCallTarget { operation, bucket: self.bucket.as_str(), key: self.key.as_str(), is_idempotent }
    }

    fn size_hint(&self) -> Option<u64> {
        match &self.what {
            WriteKind::Object(options) => options.size_hint,
            WriteKind::Part(_, _, options) => options.size_hint,
        }
    }

    fn start_request(&self) -> Request<'_> {
        let (bucket, key) = (Cow::Borrowed(&self.bucket), Cow::Borrowed(&self.key));
        match &self.what {
            WriteKind::Object(options) => Request::Start { bucket, key, options: Cow::Borrowed(options) },
            WriteKind::Part(upload, number, options) => {
                let (upload, options) = (Cow::Borrowed(upload), Cow::Borrowed(options));
                Request::StartPart { bucket, key, upload, number: *number, options }
            }
        }
    }
}

/// Stores `body` in one call.
pub(super) fn put(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
) -> Result<PutResult> {
    if body.len() <= WHOLE_BYTES_MAX {
        return put_whole(session, (bucket, key), body, options, &ExpectedContent::default());
    }
    if let Some(made) = put_spare(session, (bucket, key), body, options)? {
        return Ok(made);
    }
    let what = WriteKind::Object(PutOptions { size_hint: None, ..options.clone() });
    let target = WriteTarget { bucket: bucket.clone(), key: key.clone(), what };
    let mut started = start(session, &target)?;
    started.append(&target, body)?;
    started.commit(&target, &ExpectedContent::default(), true)
}

fn put_whole(
    session: &Arc<NodeSession>,
    (bucket, key): (&Bucket, &Key),
    body: &[u8],
    options: &PutOptions,
    expected: &ExpectedContent,
) -> Result<PutResult> {
    let request = Request::Put {
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        options: Cow::Borrowed(options),
        expected: Cow::Borrowed(expected),
    };
    // A conditional request must not be repeated. For example, a second "create only" request would find the object
    // that the first request created.
    let is_idempotent = options.conditions.is_empty();
    let call = NodeCallTarget { operation: "put", bucket: bucket.as_str(), key: key.as_str(), is_idempotent };
    let done = session.run(&call, |connection| {
        let (made, header) = connection.call(&request, body)?;
        connection.finish(&header);
        Ok(made)
    });
    done.map(|(made, _)| made)
}

fn start(session: &Arc<NodeSession>, target: &WriteTarget) -> Result<PendingWrite> {
    // Starting a write twice is harmless, because a write that is never committed has no effect.
    let call = target.call(true);
    let (file, lease) = session.run(&call, |connection| {
        let (StartWriteResponse { has_file }, header) = connection.call(&target.start_request(), &[])?;
        let file = if has_file { Some(connection.file(&header)?) } else { None };
        connection.finish(&header);
        Ok(file)
    })?;
    Ok(PendingWrite { lease, file, written_bytes: 0, is_open: true })
}

/// A write that was started on one connection and is not committed yet.
struct PendingWrite {
    lease: ConnectionLease,
    /// The file to which the content is written; `None` if the gateway passed no file.
    file: Option<File>,
    written_bytes: u64,
    is_open: bool,
}

impl PendingWrite {
    fn append(&mut self, target: &WriteTarget, data: &[u8]) -> Result<()> {
        let call = target.call(false);
        match &self.file {
            Some(file) => write_all_at(file, data, self.written_bytes)
                .map_err(|errno| call.named(failed_write(errno, file, self.written_bytes, data.len())))?,
            None => self.lease.act_here(&call, |connection| {
                data.chunks(PIECE_BYTES)
                    .try_for_each(|piece| connection.send(&Request::Append {}, piece).map(drop))
            })?,
        }
        self.written_bytes += data.len() as u64;
        Ok(())
    }

    /// Publishes the written content. `wants_more` means that the caller will probably store a similar object next. If
    /// the content was written to a file, the commit then also requests a spare file for the next object.
    fn commit(
        mut self,
        target: &WriteTarget,
        expected: &ExpectedContent,
        wants_more: bool,
    ) -> Result<PutResult> {
        let filled = self.file.is_some().then_some(self.written_bytes);
        self.is_open = false;
        self.lease.act_here(&target.call(false), |connection| {
            let wants_spare = wants_more && filled.is_some();
            let request = Request::Commit { expected: Cow::Borrowed(expected), filled, wants_spare };
            let (done, header) = connection.call::<CommitResponse>(&request, &[])?;
            if let (true, WriteKind::Object(options)) = (done.has_spare, &target.what) {
                connection.spare =
                    PrecreatedFile::received(connection, &header, (&target.bucket, &target.key), options);
            }
            connection.finish(&header);
            Ok(done.made)
        })
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let told = self.lease.act(|connection| {
            let ((), header) = connection.call(&Request::Abandon {}, &[])?;
            connection.finish(&header);
            Ok(())
        });
        if told.is_err() {
            // The gateway discards an uncommitted write when its connection closes.
            self.lease.give_up();
        }
    }
}

pub(super) fn failed_write(errno: Errno, file: &File, written_bytes: u64, wanted: usize) -> Error {
    let kind = match errno {
        Errno::NOSPC => ErrorKind::NoSpace,
        Errno::DQUOT => ErrorKind::QuotaExceeded,
        Errno::FBIG => ErrorKind::EntityTooLarge,
        _ => ErrorKind::Io,
    };
    let free = free_bytes_before(file, written_bytes);
    let free = free.map_or(String::new(), |free| format!(", and {free} were free"));
    let why = format!("{written_bytes} bytes were written, {wanted} more were expected{free}");
    Error::new(kind, why).caused_by(errno)
}

/// A writer of an object or part. The writer buffers an object while the object is small, and then passes each write on
/// to the gateway.
pub(super) struct NodeWriter {
    session: Arc<NodeSession>,
    target: WriteTarget,
    buffer: Vec<u8>,
    writing: Option<PendingWrite>,
}

impl NodeWriter {
    /// Creates the writer. For a part, or for an object whose size hint exceeds [`WHOLE_BYTES_MAX`], starts the write
    /// immediately. For any other object, sends nothing yet.
    pub(super) fn new(session: &Arc<NodeSession>, target: WriteTarget) -> Result<Self> {
        let is_large = target.size_hint().is_some_and(|size| size > WHOLE_BYTES_MAX as u64);
        let is_part = matches!(target.what, WriteKind::Part(..));
        let writing = if is_large || is_part { Some(start(session, &target)?) } else { None };
        Ok(NodeWriter { session: session.clone(), target, buffer: Vec::new(), writing })
    }
}

impl Writer for NodeWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        if let Some(writing) = &mut self.writing {
            return writing.append(&self.target, data);
        }
        if self.buffer.len() + data.len() <= WHOLE_BYTES_MAX {
            self.buffer.extend_from_slice(data);
            return Ok(());
        }
        let mut writing = start(&self.session, &self.target)?;
        writing.append(&self.target, &std::mem::take(&mut self.buffer))?;
        let appended = writing.append(&self.target, data);
        self.writing = Some(writing);
        appended
    }

    fn commit(self: Box<Self>, expected: &ExpectedContent) -> Result<PutResult> {
        let NodeWriter { session, target, buffer, writing } = *self;
        match (writing, &target.what) {
            (Some(writing), _) => writing.commit(&target, expected, false),
            (None, WriteKind::Object(options)) => {
                put_whole(&session, (&target.bucket, &target.key), &buffer, options, expected)
            }
            // A part without a started write cannot occur, because `new` starts the write of a part immediately.
            (None, WriteKind::Part(..)) => Err(target.call(false).named(ErrorKind::Internal.into())),
        }
    }
}
