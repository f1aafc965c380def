//! What is done by a store, on any lane.

use std::hint::black_box;
use std::sync::Arc;

use fordway_netlab::Namespace;
use fordway_store::{Bucket, DeleteOptions, ErrorKind, GetOptions, Key, PutOptions, Result, Store};
use fordway_workload::ledger::Rung;

use super::files::name;
use super::{Contents, Operation, same};

/// A store and the object at hand.
#[derive(Clone)]
pub(in super::super) struct Objects {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    size_bytes: u64,
    contents: Contents,
}

impl Objects {
    pub(in super::super) fn new(store: Arc<dyn Store>, bucket: &Bucket, contents: &Contents) -> Result<Self> {
        let (key, contents) = (Key::new(name(0))?, contents.clone());
        Ok(Objects { store, bucket: bucket.clone(), key, size_bytes: 0, contents })
    }

    fn take(&mut self, operation: Operation, size_bytes: u64) -> Result<()> {
        self.key = Key::new(operation.name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }
}

/// Reading a whole object into memory that was used before.
pub(in super::super) struct Get {
    objects: Objects,
    buffer: Vec<u8>,
    server_pid: Option<u32>,
    /// Where it is asked from, if not from where this process is.
    network: Option<Namespace>,
}

impl Get {
    pub(in super::super) fn new(objects: Objects, server_pid: Option<u32>) -> Self {
        Get { objects, buffer: Vec::new(), server_pid, network: None }
    }

    /// The same by connections that begin in another network.
    pub(in super::super) fn from(self, network: &Namespace) -> Self {
        Get { network: Some(network.clone()), ..self }
    }
}

impl Rung for Get {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.objects.take(Operation::Get, size_bytes)?;
        // A connection stays in the network where it was made, no matter which thread uses it.
        let Some(network) = self.network.clone() else { return Ok(()) };
        network.run(|| self.run())?
    }

    fn run(&mut self) -> Result<()> {
        let Objects { store, bucket, key, .. } = &self.objects;
        store.read(bucket, key, &GetOptions::default(), &mut self.buffer).map(drop)
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.objects.contents.of(self.objects.size_bytes))
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid
    }
}

/// Opening an object and describing it, without its content: what a gateway does before it sends.
pub(in super::super) struct Describe(pub(in super::super) Objects);

impl Rung for Describe {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.0.take(Operation::Get, size_bytes)
    }

    fn run(&mut self) -> Result<()> {
        let object = self.0.store.get(&self.0.bucket, &self.0.key, &GetOptions::default())?;
        black_box(object.content.len());
        Ok(())
    }
}

/// Writing an object that is not there yet, in one call.
pub(in super::super) struct Put {
    objects: Objects,
    /// The same objects as the writer of their files sees them, by the size from which on that is not
    /// the store itself. The writer removes what it put: memory that was given back on another
    /// processor than the one that takes it again is slow to write to.
    written_here: Option<(u64, Arc<dyn Store>)>,
    options: PutOptions,
    server_pid: Option<u32>,
}

impl Put {
    /// A put in this process, or by a gateway that writes the files itself.
    pub(in super::super) fn new(objects: Objects, options: PutOptions, server_pid: Option<u32>) -> Self {
        Put { objects, written_here: None, options, server_pid }
    }

    /// The same where the gateway has this process write content over `bytes` to its files.
    pub(in super::super) fn written_here_over(self, bytes: u64, embedded: &Objects) -> Self {
        Put { written_here: Some((bytes + 1, embedded.store.clone())), ..self }
    }

    /// The store of the object's writer.
    fn writer(&self) -> &dyn Store {
        let here =
            self.written_here.as_ref().filter(|(from_bytes, _)| self.objects.size_bytes >= *from_bytes);
        here.map_or(&*self.objects.store, |(_, store)| &**store)
    }
}

impl Rung for Put {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.objects.take(Operation::Put, size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        match self.writer().delete(&self.objects.bucket, &self.objects.key, &DeleteOptions::default()) {
            Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    fn run(&mut self) -> Result<()> {
        let Objects { store, bucket, key, size_bytes, contents } = &self.objects;
        store.put(bucket, key, contents.of(*size_bytes), &self.options).map(drop)
    }

    fn check(&self) -> Result<()> {
        let Objects { bucket, key, size_bytes, contents, .. } = &self.objects;
        let mut stored = Vec::new();
        self.writer().read(bucket, key, &GetOptions::default(), &mut stored)?;
        same(&stored, contents.of(*size_bytes))
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid
    }
}
