//! A file that is lent ahead. Who has just stored a large object will often store another one like it:
//! with the file for that at hand, it takes one round trip and not two.

use fordway_store::{Bucket, Expected, Key, PutOptions, PutResult, Result, Store, Writer};
use fordway_sys::Errno;
use fordway_wire::node::{Committed, Put};

use super::session::Session;

/// An object by its name, and what is said of it beside its content.
pub(super) type Described = (Bucket, Key, PutOptions);

/// A started object whose key can still change.
pub(super) struct Spare {
    bucket: Bucket,
    options: PutOptions,
    writer: Box<dyn Writer>,
}

impl Spare {
    /// For an object like `(bucket, key, options)`; `None` where its content cannot go to a file.
    fn new(store: &dyn Store, (bucket, key, options): Described) -> Option<Self> {
        // The next one may be shorter or longer.
        let options = PutOptions { size_hint: None, ..options };
        let writer = store.writer(&bucket, &key, &options).ok()?;
        writer.file()?;
        Some(Spare { bucket, options, writer })
    }

    /// The writer, turned to an object that it was not made for; `None` if it does not suit.
    fn turned_to(mut self, (bucket, key, options): &Described) -> Option<Box<dyn Writer>> {
        let is_fit = self.bucket == *bucket && self.options == *options && self.writer.retarget(key);
        is_fit.then_some(self.writer)
    }
}

impl Session {
    /// Publishes what the client has written to the spare file, and lends it another one.
    pub(super) fn put_spare(&mut self, id: u32, object: Described, bytes: u64) -> Result<(), Errno> {
        let Some(mut writer) = self.spare.take().and_then(|spare| spare.turned_to(&object)) else {
            return self.outbox.answer(id, &Ok(None::<Committed>));
        };
        self.outbox.stats.descriptor_bytes_in.add(bytes);
        self.outbox.let_sleep();
        match writer.filled(bytes).and_then(|()| writer.commit(&Expected::default())) {
            Ok(made) => self.committed(id, made, Some(object), Some),
            Err(error) => self.outbox.answer::<Option<Committed>>(id, &Err(error)),
        }
    }

    /// Answers that an object is stored; with a spare file if another one like `next` is to come.
    pub(super) fn committed<T: Put>(
        &mut self,
        id: u32,
        made: PutResult,
        next: Option<Described>,
        answer: impl FnOnce(Committed) -> T,
    ) -> Result<(), Errno> {
        let next = next.filter(|_| self.lends_files);
        let spare = next.and_then(|like| Spare::new(&*self.store, like));
        let file = spare.as_ref().and_then(|spare| spare.writer.file());
        let answer = answer(Committed { made, has_spare: file.is_some() });
        match file {
            Some(file) => self.outbox.answer_with_descriptor(id, &answer, file)?,
            None => self.outbox.answer(id, &Ok(answer))?,
        }
        self.spare = spare;
        Ok(())
    }
}
