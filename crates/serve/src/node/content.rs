//! Content on its way out: inline, as a descriptor, or as a stream.

use std::os::fd::AsFd;

use fordway_store::{Bucket, ByteRange, Content, ErrorKind, GetOptions, Key, Object, Result, Store};
use fordway_sys::Errno;
use fordway_wire::node::{Got, INLINE_BYTES_MAX, Put, ReadDone, Sent};

use super::session::Session;

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
        let small =
            if is_large { None } else { read_small(&*self.store, bucket, key, options, &mut self.scratch) };
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

    /// Answers with the content of the scratch buffer, if all is well.
    pub(super) fn send_scratch<T: Put>(&mut self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        let body = if answer.is_ok() { self.scratch.as_slice() } else { &[] };
        self.outbox.answer_with_body(id, answer, body)
    }

    fn send_object<H: Head>(&mut self, id: u32, object: Result<Object>) -> Result<(), Errno> {
        let object = match object {
            Ok(object) => object,
            Err(error) => return self.outbox.answer::<H>(id, &Err(error)),
        };
        let len = object.content.len();
        if len <= INLINE_BYTES_MAX as u64 {
            let head = H::new(&object, Sent::Inline);
            let read = object.content.read_to(&mut self.scratch).map(|()| head);
            return self.send_scratch(id, &read);
        }
        if self.takes_descriptors
            && let Content::File(region) = &object.content
        {
            let head = H::new(&object, Sent::Descriptor(region.offset, region.len));
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
