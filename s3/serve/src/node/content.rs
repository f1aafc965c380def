//! Content on its way out: inline, as a descriptor, or as a stream.

use std::os::fd::AsFd;

use fordway_store::{Bucket, ByteRange, Content, ErrorKind, GetOptions, Key, Object, Result, Store};
use fordway_sys::Errno;
use fordway_wire::node::{Got, INLINE_BYTES_MAX, Put, ReadDone, Sent};

use super::session::Session;

/// From so much content on, a reply to a batch is sent while the rest is read: about what takes as
/// long to read as a client looks out for it.
const BATCH_REPLY_BYTES: usize = 32 << 10;
/// And from this many objects on, of whatever size.
const BATCH_REPLY_OBJECTS: usize = 64;

/// What an object is described with in front of its content.
trait Head: Put {
    fn new(object: &Object, sent: Sent) -> Self;
}

impl Head for Got {
    fn new(object: &Object, sent: Sent) -> Self {
        Got { info: object.info.clone(), range: object.range.clone(), sent }
    }
}

impl Head for ReadDone {
    fn new(object: &Object, sent: Sent) -> Self {
        ReadDone { size: object.info.size, sent }
    }
}

impl Session {
    pub(super) fn get(
        &mut self,
        id: u32,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
    ) -> Result<(), Errno> {
        let object = self.store.get(bucket, key, options);
        self.send_object::<Got>(id, object)
    }

    /// Small content by as few calls of the store as there are; large content as `get` has it.
    pub(super) fn read(
        &mut self,
        id: u32,
        (bucket, key): (&Bucket, &Key),
        options: &GetOptions,
        is_large: bool,
    ) -> Result<(), Errno> {
        // One large object seldom comes alone, and to try whether it is small costs an open.
        let small = match is_large || self.was_large {
            true => None,
            false => read_small(&*self.store, bucket, key, options, &mut self.scratch),
        };
        self.was_large = false;
        match small {
            Some(size) => {
                let done = size.map(|size| ReadDone { size, sent: Sent::Inline });
                self.send_scratch(id, &done)
            }
            None => {
                let object = self.store.get(bucket, key, options);
                self.send_object::<ReadDone>(id, object)
            }
        }
    }

    /// Many small objects, in several replies: the client takes one while the next is read.
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

    /// Answers with the content of the scratch buffer, if all is well.
    pub(super) fn send_scratch<T: Put>(&mut self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        let body = if answer.is_ok() { self.scratch.as_slice() } else { &[] };
        let sent = self.outbox.answer_with_body(id, answer, body);
        // What many ranges needed is not kept for good.
        self.scratch.truncate(INLINE_BYTES_MAX);
        self.scratch.shrink_to(INLINE_BYTES_MAX);
        sent
    }

    fn send_object<H: Head>(&mut self, id: u32, object: Result<Object>) -> Result<(), Errno> {
        let object = match object {
            Ok(object) => object,
            Err(error) => return self.outbox.answer::<H>(id, &Err(error)),
        };
        let len = object.content.len();
        self.was_large = len > INLINE_BYTES_MAX as u64;
        if len <= INLINE_BYTES_MAX as u64 {
            let head = H::new(&object, Sent::Inline);
            let read = object.content.read_to(&mut self.scratch).map(|()| head);
            return self.send_scratch(id, &read);
        }
        if self.takes_descriptors
            && let Content::File(region) = &object.content
        {
            let head = H::new(&object, Sent::Descriptor(region.offset, region.len));
            self.outbox.stats.descriptor_bytes_out.add(region.len);
            return self.outbox.answer_with_descriptor(id, &head, region.file.as_fd());
        }
        self.outbox.answer_before_stream(id, &H::new(&object, Sent::Stream(len)));
        self.stream(object.content)
    }

    /// Content that ends early ends the connection: the client was told how much would come.
    fn stream(&mut self, content: Content) -> Result<(), Errno> {
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

/// Reads what is known to be small, or turns out to be, into `buffer`; `None` where it is not, or
/// where only an open can tell.
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
                // It is empty.
                Err(error) if error.kind() == ErrorKind::InvalidRange => None,
                read => Some(read),
            }
        }
    }
}
