//! Sends responses and content to the client: inline, as a descriptor, or as a stream.
//!
//! The gateway may pass a staged file to a client in advance. A client that has just stored a large object often stores
//! a similar object next. If the client already has a staged file for the next object, putting the next object takes
//! one round trip instead of two.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fordway_store::{
    Bucket, ByteRange, Error, ErrorKind, ExpectedContent, GetOptions, Key, ObjectContent, OpenObject,
    PutOptions, PutResult, Result, Store, Writer,
};
use fordway_sys::{Errno, send_all};
use fordway_wire::node::{
    CommitResponse, ContentTransferMethod, GetResponse, INLINE_BYTES_MAX, NodeResponse, ReadResponse,
    ResponseFlags, WriteField,
};

use crate::node::session::ClientSession;
use crate::node::stats::NodeStats;

/// The number of bytes of content after which a partial response to a batch is sent. The rest of the batch is read
/// later. Reading this number of bytes takes about as long as a client polls for a response.
const BATCH_REPLY_BYTES: usize = 32 << 10;
/// The number of objects of a batch, of any size, after which a partial response is sent.
const BATCH_REPLY_OBJECTS: usize = 64;

/// The description of an object, which is sent before the object's content.
trait ContentHead: WriteField {
    fn new(object: &OpenObject, sent: ContentTransferMethod) -> Self;
}

impl ContentHead for GetResponse {
    fn new(object: &OpenObject, sent: ContentTransferMethod) -> Self {
        GetResponse { info: object.info.clone(), range: object.range.clone(), sent }
    }
}

impl ContentHead for ReadResponse {
    fn new(object: &OpenObject, sent: ContentTransferMethod) -> Self {
        ReadResponse { size: object.info.size, sent }
    }
}

impl ClientSession {
    pub(super) fn get(
        &mut self,
        id: u32,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
    ) -> Result<(), Errno> {
        let object = self.store.get(bucket, key, options);
        self.send_object::<GetResponse>(id, object)
    }

    /// Reads an object. Reads small content with as few calls to the store as possible. Sends large content as in the
    /// response to `get`.
    pub(super) fn read(
        &mut self,
        id: u32,
        (bucket, key): (&Bucket, &Key),
        options: &GetOptions,
        is_large: bool,
    ) -> Result<(), Errno> {
        // A client that reads a large object often reads another large object next. After a large object, the gateway
        // therefore does not try to read the next object as a small one. If the next object is large, too, the attempt
        // would cost an additional open.
        let small = match is_large || self.was_large {
            true => None,
            false => read_small(&*self.store, bucket, key, options, &mut self.scratch),
        };
        self.was_large = false;
        match small {
            Some(size) => {
                let done = size.map(|size| ReadResponse { size, sent: ContentTransferMethod::Inline });
                self.send_scratch(id, &done)
            }
            None => {
                let object = self.store.get(bucket, key, options);
                self.send_object::<ReadResponse>(id, object)
            }
        }
    }

    /// Reads many small objects and sends them in several responses. The client can thus process one response while the
    /// gateway reads the objects of the next response.
    pub(super) fn get_many(&mut self, id: u32, bucket: &Bucket, keys: &[Key]) -> Result<(), Errno> {
        let (mut body, options) = (std::mem::take(&mut self.batch), GetOptions::default());
        let mut results = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let read = read_small(&*self.store, bucket, key, &options, &mut self.scratch);
            if let Some(Ok(_)) = read {
                body.extend_from_slice(&self.scratch);
            }
            results.push(read.map(|read| read.map(|_| self.scratch.len() as u32)).transpose());
            let is_full = body.len() >= BATCH_REPLY_BYTES || results.len() == BATCH_REPLY_OBJECTS;
            if is_full && at + 1 < keys.len() {
                self.outbox.answer_before_more(id, &results, &body)?;
                results.clear();
                body.clear();
            }
        }
        let sent = self.outbox.answer_with_body(id, &Ok(results), &body);
        body.clear();
        self.batch = body;
        sent
    }

    /// Sends the response with the content of the scratch buffer, or without content if the response is an error.
    pub(super) fn send_scratch<T: WriteField>(&mut self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        let body = if answer.is_ok() { self.scratch.as_slice() } else { &[] };
        let sent = self.outbox.answer_with_body(id, answer, body);
        // The memory for a vectored read is not kept for reuse.
        self.scratch.truncate(INLINE_BYTES_MAX);
        self.scratch.shrink_to(INLINE_BYTES_MAX);
        sent
    }

    fn send_object<H: ContentHead>(&mut self, id: u32, object: Result<OpenObject>) -> Result<(), Errno> {
        let object = match object {
            Ok(object) => object,
            Err(error) => return self.outbox.answer::<H>(id, &Err(error)),
        };
        let len = object.content.len();
        self.was_large = len > INLINE_BYTES_MAX as u64;
        if len <= INLINE_BYTES_MAX as u64 {
            let head = H::new(&object, ContentTransferMethod::Inline);
            let read = object.content.read_to(&mut self.scratch).map(|()| head);
            return self.send_scratch(id, &read);
        }
        if self.takes_descriptors
            && let ObjectContent::File(region) = &object.content
        {
            let head = H::new(&object, ContentTransferMethod::Descriptor(region.offset, region.len));
            self.outbox.stats.descriptor_bytes_out.add(region.len);
            return self.outbox.answer_with_descriptor(id, &head, region.file.as_fd());
        }
        self.outbox.answer_before_stream(id, &H::new(&object, ContentTransferMethod::Stream(len)));
        self.stream(object.content)
    }

    /// Streams content. If the content ends early, the connection ends, because the client expects the full length.
    fn stream(&mut self, content: ObjectContent) -> Result<(), Errno> {
        let mut sent = Ok(());
        let streamed = content.for_each_chunk(|chunk| {
            sent = self.outbox.stream(chunk);
            sent.map_err(|_| ErrorKind::Io.into())
        });
        match (sent, streamed) {
            (Ok(()), Err(error)) => {
                tracing::warn!(%error, "content ended early");
                Err(Errno::IO)
            }
            (sent, _) => sent,
        }
    }
}

/// Reads content into `buffer` if the request or a read of its first bytes shows that the content is small. Returns
/// `None` if the content is not small, or if only an open would show whether it is small.
pub(super) fn read_small(
    store: &dyn Store,
    bucket: &Bucket,
    key: &Key,
    options: &GetOptions,
    buffer: &mut Vec<u8>,
) -> Option<Result<u64>> {
    const LIMIT: u64 = INLINE_BYTES_MAX as u64;
    match options.range {
        _ if options.part.is_some() => None,
        Some(ByteRange::Inclusive(first, last)) if last.saturating_sub(first) < LIMIT => {
            Some(store.read(bucket, key, options, buffer))
        }
        Some(ByteRange::Last(count)) if count <= LIMIT => Some(store.read(bucket, key, options, buffer)),
        Some(_) => None,
        None => {
            let first = GetOptions { range: Some(ByteRange::Inclusive(0, LIMIT - 1)), ..options.clone() };
            match store.read(bucket, key, &first, buffer) {
                Ok(size) if size > LIMIT => None,
                // In an empty object, no range is valid, so the object has to be opened.
                Err(error) if error.kind() == ErrorKind::InvalidRange => None,
                read => Some(read),
            }
        }
    }
}

/// The number of bytes up to which responses are collected. Responses are sent earlier if no further request is
/// waiting.
const GATHER_BYTES: usize = 64 << 10;

/// Collects responses, and sends them in as few system calls as possible.
pub(super) struct ResponseOutbox {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    pub(super) stats: Arc<NodeStats>,
    /// Whether another request has already arrived, in which case both responses can be sent in one call.
    pub(super) more_to_come: bool,
    /// Flags that are set in all responses.
    pub(super) flags: ResponseFlags,
}

impl ResponseOutbox {
    pub(super) fn new(socket: Arc<OwnedFd>, stats: Arc<NodeStats>) -> Self {
        ResponseOutbox {
            socket,
            buffer: Vec::new(),
            stats,
            more_to_come: false,
            flags: ResponseFlags::default(),
        }
    }

    /// Sends a response. Errors: the errors of the socket. After an error, the connection cannot be used.
    pub(super) fn answer<T: WriteField>(&mut self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        self.answer_with_body(id, answer, &[])
    }

    /// Sends a response and its content. Errors: as for [`ResponseOutbox::answer`].
    pub(super) fn answer_with_body<T: WriteField>(
        &mut self,
        id: u32,
        answer: &Result<T>,
        body: &[u8],
    ) -> Result<(), Errno> {
        self.put(id, self.flags, answer.as_ref(), body.len());
        self.stats.inline_bytes_out.add(body.len() as u64);
        if self.more_to_come && self.buffer.len() + body.len() < GATHER_BYTES {
            self.buffer.extend_from_slice(body);
            return Ok(());
        }
        self.send(body, None)
    }

    /// Sends a response immediately; another response to the same request will follow.
    pub(super) fn answer_before_more<T: WriteField>(
        &mut self,
        id: u32,
        answer: &T,
        body: &[u8],
    ) -> Result<(), Errno> {
        self.put(id, self.flags.with(ResponseFlags::MORE), Ok(answer), body.len());
        self.stats.inline_bytes_out.add(body.len() as u64);
        self.send(body, None)
    }

    /// Makes both sides sleep instead of polling until the next request. A client that reads or writes large content
    /// works for longer than the gateway polls. In addition, two threads that take turns run best on one core.
    pub(super) fn let_sleep(&mut self) {
        self.flags = ResponseFlags::default();
    }

    /// Sends a response together with `descriptor`.
    pub(super) fn answer_with_descriptor<T: WriteField>(
        &mut self,
        id: u32,
        answer: &T,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        // The collected responses are sent first, because a descriptor must be attached to the first byte of its own
        // frame.
        self.flush()?;
        self.let_sleep();
        self.put(id, self.flags.with(ResponseFlags::DESCRIPTOR), Ok(answer), 0);
        self.stats.descriptors_out.add(1);
        self.send(&[], Some(descriptor))
    }

    /// Queues a response whose content follows through [`ResponseOutbox::stream`].
    pub(super) fn answer_before_stream<T: WriteField>(&mut self, id: u32, answer: &T) {
        self.put(id, self.flags.with(ResponseFlags::STREAM), Ok(answer), 0);
    }

    /// Sends content after its response.
    pub(super) fn stream(&mut self, content: &[u8]) -> Result<(), Errno> {
        self.stats.inline_bytes_out.add(content.len() as u64);
        self.send(content, None)
    }

    /// Sends the collected responses.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        match self.buffer.is_empty() {
            true => Ok(()),
            false => self.send(&[], None),
        }
    }

    fn put<T: WriteField>(
        &mut self,
        id: u32,
        flags: ResponseFlags,
        answer: Result<&T, &Error>,
        body_bytes: usize,
    ) {
        if answer.is_err() {
            self.stats.failed.add(1);
        }
        NodeResponse { id, flags, answer, body_bytes }.put(&mut self.buffer);
    }

    fn send(&mut self, body: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let sent = send_all(self.socket.as_fd(), &self.buffer, body, descriptor);
        self.buffer.clear();
        // The memory for a long listing page is not kept for reuse.
        self.buffer.shrink_to(GATHER_BYTES);
        sent
    }
}

/// The bucket and key of an object, and the options of its put.
pub(super) type PutParameters = (Bucket, Key, PutOptions);

/// An object whose write is started before the object's key is known.
pub(super) struct PrecreatedObject {
    bucket: Bucket,
    options: PutOptions,
    writer: Box<dyn Writer>,
}

impl PrecreatedObject {
    /// Starts to write a spare object with the given bucket and options. Returns `None` if the writer has no file, or
    /// if the file has a name. On NFS, for example, an idle client's named file would remain in the bucket, and the
    /// bucket could not be removed.
    fn new(store: &dyn Store, (bucket, key, options): PutParameters) -> Option<Self> {
        // The next object may have a different size.
        let options = PutOptions { size_hint: None, ..options };
        let writer = store.writer(&bucket, &key, &options).ok()?;
        let is_fit = writer.is_unnamed() && writer.file().is_some();
        is_fit.then_some(PrecreatedObject { bucket, options, writer })
    }

    /// Sets the key of the writer to the given key, and returns the writer; `None` if the bucket or the options differ,
    /// or if the writer cannot change its key.
    fn turned_to(mut self, (bucket, key, options): &PutParameters) -> Option<Box<dyn Writer>> {
        let is_fit = self.bucket == *bucket && self.options == *options && self.writer.retarget(key);
        is_fit.then_some(self.writer)
    }
}

impl ClientSession {
    /// Publishes the content that the client has written to the spare file, and passes another spare file to the
    /// client.
    pub(super) fn put_spare(&mut self, id: u32, object: PutParameters, bytes: u64) -> Result<(), Errno> {
        let Some(mut writer) = self.spare.take().and_then(|spare| spare.turned_to(&object)) else {
            return self.outbox.answer(id, &Ok(None::<CommitResponse>));
        };
        self.outbox.stats.descriptor_bytes_in.add(bytes);
        self.outbox.let_sleep();
        match writer.filled(bytes).and_then(|()| writer.commit(&ExpectedContent::default())) {
            Ok(made) => self.committed(id, made, Some(object), Some),
            Err(error) => self.outbox.answer::<Option<CommitResponse>>(id, &Err(error)),
        }
    }

    /// Responds that an object is stored. Also passes a spare file to the client if `next` describes the next object
    /// that the client will probably store.
    pub(super) fn committed<T: WriteField>(
        &mut self,
        id: u32,
        made: PutResult,
        next: Option<PutParameters>,
        answer: impl FnOnce(CommitResponse) -> T,
    ) -> Result<(), Errno> {
        let next = next.filter(|_| self.lends_files);
        let spare = next.and_then(|like| PrecreatedObject::new(&*self.store, like));
        let file = spare.as_ref().and_then(|spare| spare.writer.file());
        let answer = answer(CommitResponse { made, has_spare: file.is_some() });
        match file {
            Some(file) => self.outbox.answer_with_descriptor(id, &answer, file)?,
            None => self.outbox.answer(id, &Ok(answer))?,
        }
        self.spare = spare;
        Ok(())
    }
}
