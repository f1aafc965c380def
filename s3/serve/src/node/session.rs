//! Implements each request in terms of the store.

use std::borrow::Cow;
use std::sync::Arc;

use fordway_store::{
    Bucket, Error, ErrorKind, ExpectedContent, Key, PutOptions, PutResult, Result, Store, Writer,
};
use fordway_sys::{Errno, ThreadAffinity};
use fordway_wire::node::{CommitResponse, PAGE_ENTRIES_MAX, Request, StartWriteResponse};

use crate::node::access::AdmittedCaller;
use crate::node::access::{ConnectionResourceLimits, MemoryShare, NodeRequestSlot, answer_bytes};
use crate::node::connection::ConnectionDrainState;
use crate::node::content::ResponseOutbox;
use crate::node::content::{PrecreatedObject, PutParameters};

/// Serves the requests of one client, one after another.
pub(super) struct ClientSession {
    pub(super) store: Arc<dyn Store>,
    pub(super) outbox: ResponseOutbox,
    pub(super) takes_descriptors: bool,
    /// A reused buffer for content that is read from the store and then sent.
    pub(super) scratch: Vec<u8>,
    /// A reused buffer for the content of several objects.
    pub(super) batch: Vec<u8>,
    /// Whether the last object read was too large to be sent inline.
    pub(super) was_large: bool,
    /// The number of bytes that are reserved for the message being answered.
    pub(super) held_bytes: usize,
    pub(super) lends_files: bool,
    pub(super) limits: ConnectionResourceLimits,
    standing: Arc<ConnectionDrainState>,
    /// The write in progress, which has been started, but neither committed nor abandoned.
    writing: Option<PiecewiseWrite>,
    /// A staged file that was passed to the client in advance, for its next object.
    pub(super) spare: Option<PrecreatedObject>,
    cores: ThreadAffinity,
}

/// A write whose content arrives in pieces.
struct PiecewiseWrite {
    writer: Box<dyn Writer>,
    /// The object that is written; `None` for a part of an upload.
    object: Option<PutParameters>,
    /// The first error that occurred during the write, if any.
    failed: Option<Error>,
}

impl ClientSession {
    pub(super) fn new(
        admitted: AdmittedCaller,
        takes_descriptors: bool,
        outbox: ResponseOutbox,
        limits: ConnectionResourceLimits,
        standing: Arc<ConnectionDrainState>,
    ) -> Self {
        ClientSession {
            store: admitted.store,
            outbox,
            takes_descriptors,
            scratch: Vec::new(),
            batch: Vec::new(),
            was_large: false,
            held_bytes: 0,
            lends_files: admitted.lends_files && takes_descriptors,
            limits,
            standing,
            writing: None,
            spare: None,
            cores: ThreadAffinity::of_this_thread(),
        }
    }

    /// Moves the connection's thread to another processor. Returns whether the thread has moved.
    pub(super) fn leave_core(&mut self) -> bool {
        self.cores.leave_current()
    }

    /// Returns whether the client has started a write that it has neither committed nor abandoned.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Serves a request. Errors: the errors of the socket; `PROTO` for a request that is not valid in this state; the
    /// connection then ends.
    pub(super) fn handle(&mut self, id: u32, request: Request<'_>, body: &[u8]) -> Result<(), Errno> {
        self.outbox.stats.note(request.code(), body.len());
        let _admitted = match self.admit(&request) {
            Ok(admitted) => admitted,
            Err(error) => {
                self.outbox.stats.limited.add(1);
                self.discard_files_of(&request);
                return self.outbox.answer::<()>(id, &Err(error));
            }
        };
        match &request {
            // This put runs on the client's processor, because the client's next put will fill the memory that this put
            // frees. The cache of that processor then still contains the memory. Sharing the processor costs nothing,
            // because the client is waiting for this put.
            Request::PutSpare { core, .. } => self.cores.keep_to(*core),
            _ => self.cores.use_all(),
        }
        match request {
            Request::Put { .. }
            | Request::PutMany { .. }
            | Request::Start { .. }
            | Request::StartPart { .. }
            | Request::Append {}
            | Request::Commit { .. }
            | Request::PutSpare { .. }
            | Request::Abandon {} => self.write(id, request, body),
            Request::Get { bucket, key, options } => self.get(id, &bucket, &key, &options),
            Request::Read { bucket, key, options, is_large } => {
                self.read(id, (&bucket, &key), &options, is_large)
            }
            Request::ReadRanges { bucket, key, ranges, options } => {
                let read = self.store.read_ranges(&bucket, &key, &ranges, &options);
                self.scratch.clear();
                let lengths = read.map(|all| {
                    all.iter().for_each(|bytes| self.scratch.extend_from_slice(bytes));
                    all.iter().map(|bytes| bytes.len() as u32).collect::<Vec<_>>()
                });
                self.send_scratch(id, &lengths)
            }
            Request::GetMany { bucket, keys } => self.get_many(id, &bucket, &keys),
            request => self.describe(id, request),
        }
    }

    /// Removes the files that a refused request would have published, because the client does not send the request
    /// again.
    #[cold]
    fn discard_files_of(&mut self, refused: &Request<'_>) {
        match refused {
            Request::Commit { .. } => self.writing = None,
            Request::PutSpare { .. } => self.spare = None,
            _ => {}
        }
    }

    /// Reserves the memory and the slot that the request needs. If necessary, waits until both are free. `Append` needs
    /// neither memory nor a slot, because it has no response that could report a failure. `Stats` needs neither memory
    /// nor a slot, because its response must be able to show which users have reached a limit.
    fn admit(&self, request: &Request<'_>) -> Result<(Option<MemoryShare>, Option<NodeRequestSlot>)> {
        if matches!(request, Request::Append {} | Request::Stats {}) {
            return Ok((None, None));
        }
        let memory = self.limits.memory_for(answer_bytes(request)?, self.held_bytes)?;
        Ok((memory, Some(self.limits.place()?)))
    }

    /// Serves requests that write content.
    fn write(&mut self, id: u32, request: Request<'_>, body: &[u8]) -> Result<(), Errno> {
        match request {
            Request::Put { bucket, key, options, expected } => {
                let put = self.put((&bucket, &key), body, &options, &expected);
                self.outbox.answer(id, &put)
            }
            Request::PutMany { bucket, options, objects } => {
                let put = self.put_many(&bucket, &options, &objects, body);
                self.outbox.answer(id, &put)
            }
            Request::Start { bucket, key, options } => {
                let started = self.store.writer(&bucket, &key, &options);
                let object = (bucket.into_owned(), key.into_owned(), options.into_owned());
                self.start(id, started, Some(object))
            }
            Request::StartPart { bucket, key, upload, number, options } => {
                let started = self.store.part_writer(&bucket, &key, &upload, number, &options);
                self.start(id, started, None)
            }
            Request::Append {} => self.append(body),
            Request::Commit { expected, filled, wants_spare } => {
                if let Some(bytes) = filled {
                    self.outbox.stats.descriptor_bytes_in.add(bytes);
                    self.outbox.let_sleep();
                }
                let object = self.writing.as_mut().and_then(|writing| writing.object.take());
                match self.commit(&expected, filled) {
                    Ok(made) => self.committed(id, made, object.filter(|_| wants_spare), |done| done),
                    Err(error) => self.outbox.answer::<CommitResponse>(id, &Err(error)),
                }
            }
            Request::PutSpare { bucket, key, options, filled, core: _ } => {
                self.put_spare(id, (bucket.into_owned(), key.into_owned(), options.into_owned()), filled)
            }
            _ => {
                self.writing = None;
                self.outbox.answer(id, &Ok(()))
            }
        }
    }

    fn put(
        &self,
        (bucket, key): (&Bucket, &Key),
        body: &[u8],
        options: &PutOptions,
        expected: &ExpectedContent,
    ) -> Result<PutResult> {
        let ExpectedContent { size, md5, checksum } = expected;
        if md5.is_none() && checksum.is_none() && size.is_none_or(|size| size == body.len() as u64) {
            return self.store.put(bucket, key, body, options);
        }
        let mut writer = self.store.writer(bucket, key, options)?;
        writer.write(body)?;
        writer.commit(expected)
    }

    /// Puts objects one by one, because threads that the store starts would not act as the client's user.
    fn put_many(
        &self,
        bucket: &Bucket,
        options: &PutOptions,
        objects: &[(Key, u32)],
        mut body: &[u8],
    ) -> Result<Vec<Result<PutResult>>> {
        let total: u64 = objects.iter().map(|(_, len)| u64::from(*len)).sum();
        if total != body.len() as u64 {
            let why = format!("the objects have {total} bytes, but {} were sent", body.len());
            return Err(Error::new(ErrorKind::IncompleteBody, why));
        }
        let put = |(key, len): &(Key, u32)| {
            let (object, rest) = body.split_at(*len as usize);
            body = rest;
            self.store.put(bucket, key, object, options)
        };
        Ok(objects.iter().map(put).collect())
    }

    fn start(
        &mut self,
        id: u32,
        started: Result<Box<dyn Writer>>,
        object: Option<PutParameters>,
    ) -> Result<(), Errno> {
        if self.writing.is_some() {
            return Err(Errno::PROTO);
        }
        let writer = match started {
            Ok(writer) if self.standing.enter() => writer,
            Ok(_) => return self.outbox.answer::<StartWriteResponse>(id, &Err(stopping())),
            Err(error) => return self.outbox.answer::<StartWriteResponse>(id, &Err(error)),
        };
        match writer.file().filter(|_| self.lends_files) {
            Some(file) => {
                self.outbox.answer_with_descriptor(id, &StartWriteResponse { has_file: true }, file)?
            }
            None => self.outbox.answer(id, &Ok(StartWriteResponse { has_file: false }))?,
        }
        self.writing = Some(PiecewiseWrite { writer, object, failed: None });
        Ok(())
    }

    /// Appends content to the write in progress. After an error, the rest of the content is discarded. The client gets
    /// the error when it commits.
    fn append(&mut self, body: &[u8]) -> Result<(), Errno> {
        let Some(writing) = &mut self.writing else { return Err(Errno::PROTO) };
        if writing.failed.is_none() {
            writing.failed = writing.writer.write(body).err();
        }
        Ok(())
    }

    fn commit(&mut self, expected: &ExpectedContent, filled: Option<u64>) -> Result<PutResult> {
        let Some(PiecewiseWrite { mut writer, failed, .. }) = self.writing.take() else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "no write was started that could be committed",
            ));
        };
        failed.map_or(Ok(()), Err)?;
        if let Some(bytes) = filled {
            writer.filled(bytes)?;
        }
        writer.commit(expected)
    }

    /// Serves requests that transfer no content.
    fn describe(&mut self, id: u32, request: Request<'_>) -> Result<(), Errno> {
        let (store, out) = (&*self.store, &mut self.outbox);
        let version = |version: &Option<Cow<'_, _>>| version.as_deref().cloned();
        match request {
            Request::ListBuckets {} => out.answer(id, &store.list_buckets()),
            Request::CreateBucket { bucket } => out.answer(id, &store.create_bucket(&bucket)),
            Request::HeadBucket { bucket } => out.answer(id, &store.head_bucket(&bucket)),
            Request::DeleteBucket { bucket } => out.answer(id, &store.delete_bucket(&bucket)),
            Request::Versioning { bucket } => out.answer(id, &store.versioning(&bucket)),
            Request::SetVersioning { bucket, versioning } => {
                out.answer(id, &store.set_versioning(&bucket, versioning))
            }
            Request::Head { bucket, key, options } => out.answer(id, &store.head(&bucket, &key, &options)),
            Request::HeadMany { bucket, keys } => out.answer(id, &Ok(store.head_many(&bucket, &keys))),
            Request::ObjectParts { bucket, key, options } => {
                out.answer(id, &store.object_parts(&bucket, &key, &options))
            }
            Request::Tags { bucket, key, version: of } => {
                out.answer(id, &store.tags(&bucket, &key, version(&of).as_ref()))
            }
            Request::SetTags { bucket, key, version: of, tags } => {
                out.answer(id, &store.set_tags(&bucket, &key, version(&of).as_ref(), &tags))
            }
            Request::Delete { bucket, key, options } => {
                out.answer(id, &store.delete(&bucket, &key, &options))
            }
            Request::DeleteMany { bucket, keys } => out.answer(id, &Ok(store.delete_many(&bucket, &keys))),
            Request::Copy { from_bucket, from_key, bucket, key, options } => {
                out.answer(id, &store.copy((&from_bucket, &from_key), &bucket, &key, &options))
            }
            Request::List { bucket, query } => {
                let mut query = query.into_owned();
                query.max_keys = query.max_keys.min(PAGE_ENTRIES_MAX);
                out.answer(id, &store.list(&bucket, &query))
            }
            Request::ListVersions { bucket, query } => {
                let mut query = query.into_owned();
                query.max_keys = query.max_keys.min(PAGE_ENTRIES_MAX);
                out.answer(id, &store.list_versions(&bucket, &query))
            }
            Request::LockConfiguration { bucket } => out.answer(id, &store.lock_configuration(&bucket)),
            Request::SetLockConfiguration { bucket, configuration } => {
                out.answer(id, &store.set_lock_configuration(&bucket, &configuration))
            }
            Request::SetRetention { bucket, key, version: of, retention, bypass } => {
                let set = store.set_retention(&bucket, &key, version(&of).as_ref(), retention, bypass);
                out.answer(id, &set)
            }
            Request::SetLegalHold { bucket, key, version: of, is_on } => {
                out.answer(id, &store.set_legal_hold(&bucket, &key, version(&of).as_ref(), is_on))
            }
            Request::Rename { bucket, from, to, options } => {
                out.answer(id, &store.rename(&bucket, &from, &to, &options))
            }
            Request::Document { bucket, kind } => out.answer(id, &store.document(&bucket, &kind)),
            Request::SetDocument { bucket, kind, document } => {
                out.answer(id, &store.set_document(&bucket, &kind, &document))
            }
            Request::DeleteDocument { bucket, kind } => {
                out.answer(id, &store.delete_document(&bucket, &kind))
            }
            request => self.describe_upload(id, request),
        }
    }

    /// Serves requests about multipart uploads and about the gateway.
    fn describe_upload(&mut self, id: u32, request: Request<'_>) -> Result<(), Errno> {
        let (store, out) = (&*self.store, &mut self.outbox);
        match request {
            Request::CreateUpload { bucket, key, options } => {
                out.answer(id, &store.create_upload(&bucket, &key, &options))
            }
            Request::CopyPart { from_bucket, from_key, options, bucket, key, upload, number } => {
                let (from, to) = ((&*from_bucket, &*from_key), (&*bucket, &*key, &*upload, number));
                out.answer(id, &store.copy_part(from, &options, to))
            }
            Request::ListParts { bucket, key, upload, query } => {
                out.answer(id, &store.list_parts(&bucket, &key, &upload, &query))
            }
            Request::ListUploads { bucket, query } => {
                let mut query = query.into_owned();
                query.max_uploads = query.max_uploads.min(PAGE_ENTRIES_MAX);
                out.answer(id, &store.list_uploads(&bucket, &query))
            }
            Request::CompleteUpload { bucket, key, upload, parts, options } => {
                out.answer(id, &store.complete_upload(&bucket, &key, &upload, &parts, &options))
            }
            Request::AbortUpload { bucket, key, upload } => {
                out.answer(id, &store.abort_upload(&bucket, &key, &upload))
            }
            Request::Stats {} => {
                let counters = out.stats.counters(&self.limits.gateway);
                out.answer(id, &Ok(counters))
            }
            // All other requests are handled above; `Authenticate` is handled before the session starts.
            _ => Err(Errno::PROTO),
        }
    }
}

fn stopping() -> Error {
    let why = "the gateway is stopping and accepts no further writes; try again when it has restarted";
    Error::new(ErrorKind::Unavailable, why)
}
