//! File operations with plain system calls, for reading a file and for creating the file of a new object. This file
//! also contains store operations on any lane.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_command::file_error;
use fordway_http::parts::TlsConnector;
use fordway_netlab::NetworkNamespace;
use fordway_store::{Bucket, DeleteOptions, Error, ErrorKind, GetOptions, Key, PutOptions, Result, Store};
use fordway_sys::{
    Errno, Mode, create_unnamed, link_unnamed, read_cached, read_into_spare, remove_file, set_modified, stat,
    stat_in, write_all_at,
};
use fordway_workload::ledger::LedgerComponent;

use super::framing::PIECE_BYTES;
use super::{NonrepeatingContent, ObjectOperation, same};

/// The directory that contains the files of all objects, one for each size, and the content of these files.
#[derive(Clone)]
pub(in crate::commands::ledger) struct FilesBySize(PathBuf, NonrepeatingContent);

impl FilesBySize {
    pub(in crate::commands::ledger) fn new(dir: &Path, contents: &NonrepeatingContent) -> Self {
        FilesBySize(dir.to_owned(), contents.clone())
    }

    /// Returns the path of the file with `size_bytes` of content.
    pub(in crate::commands::ledger) fn path(&self, size_bytes: u64) -> PathBuf {
        self.0.join(name_of_size(size_bytes))
    }
}

/// Returns the key of the object with `size_bytes` of content.
pub(in crate::commands::ledger) fn name_of_size(size_bytes: u64) -> String {
    format!("object-{size_bytes}")
}

fn opened(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| file_error("opening", path.display(), error))
}

/// Opens a file by its absolute path, reads its size, and closes it.
pub(in crate::commands::ledger) struct FileOpenComponent {
    pub(in crate::commands::ledger) files: FilesBySize,
    path: PathBuf,
}

impl FileOpenComponent {
    pub(in crate::commands::ledger) fn new(files: &FilesBySize) -> Self {
        FileOpenComponent { files: files.clone(), path: PathBuf::new() }
    }
}

impl LedgerComponent for FileOpenComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.files.path(size_bytes);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let size = opened(&self.path)?.metadata().map(|meta| meta.len());
        black_box(size.map_err(|error| file_error("examining", self.path.display(), error))?);
        Ok(())
    }
}

/// Reads a whole open file that is in the page cache.
pub(in crate::commands::ledger) struct PreadComponent {
    files: FilesBySize,
    file: Option<File>,
    buffer: Vec<u8>,
    size_bytes: u64,
}

impl PreadComponent {
    pub(in crate::commands::ledger) fn new(files: &FilesBySize) -> Self {
        PreadComponent { files: files.clone(), file: None, buffer: Vec::new(), size_bytes: 0 }
    }
}

impl LedgerComponent for PreadComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.file = Some(opened(&self.files.path(size_bytes))?);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        self.buffer.clear();
        read_into_spare(file, &mut self.buffer, 0, self.size_bytes as usize)
            .map_err(|error| file_error("reading", "a file", error.into()))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.files.1.of(self.size_bytes))
    }
}

/// Reads an open file piece by piece from the page cache, like a gateway that sends one piece after another.
pub(in crate::commands::ledger) struct PiecewisePreadComponent {
    files: FilesBySize,
    file: Option<File>,
    /// The buffers, which are used in round-robin order. The gateway also uses several buffers, because it reads a
    /// piece while it may still be sending earlier pieces.
    buffers: [Vec<u8>; 4],
    size_bytes: u64,
}

impl PiecewisePreadComponent {
    pub(in crate::commands::ledger) fn new(files: &FilesBySize) -> Self {
        PiecewisePreadComponent {
            files: files.clone(),
            file: None,
            buffers: Default::default(),
            size_bytes: 0,
        }
    }
}

impl LedgerComponent for PiecewisePreadComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.file = Some(opened(&self.files.path(size_bytes))?);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let failed = |errno: Errno| file_error("reading", "a file", errno.into());
        for offset in (0..self.size_bytes).step_by(PIECE_BYTES) {
            self.buffers.rotate_left(1);
            let (buffer, len) = (&mut self.buffers[0], PIECE_BYTES.min((self.size_bytes - offset) as usize));
            buffer.clear();
            match read_cached(file, buffer, offset, len) {
                Err(Errno::AGAIN) => read_into_spare(file, buffer, offset, len).map_err(failed)?,
                read => read.map_err(failed)?,
            };
        }
        Ok(())
    }

    /// Compares only the last piece.
    fn check(&self) -> Result<()> {
        let content = self.files.1.of(self.size_bytes);
        same(&self.buffers[0], content.chunks(PIECE_BYTES).last().unwrap_or_default())
    }
}

/// All the system calls that a careful program makes to read a file by its absolute path.
pub(in crate::commands::ledger) struct PosixReadComponent {
    files: FilesBySize,
    path: PathBuf,
    buffer: Vec<u8>,
    size_bytes: u64,
}

impl PosixReadComponent {
    pub(in crate::commands::ledger) fn new(files: &FilesBySize) -> Self {
        PosixReadComponent { files: files.clone(), path: PathBuf::new(), buffer: Vec::new(), size_bytes: 0 }
    }
}

impl LedgerComponent for PosixReadComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.files.path(size_bytes);
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let file = opened(&self.path)?;
        let size = file.metadata().map_err(|e| file_error("examining", self.path.display(), e))?.len();
        self.buffer.clear();
        read_into_spare(&file, &mut self.buffer, 0, size as usize)
            .map_err(|error| file_error("reading", self.path.display(), error.into()))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.files.1.of(self.size_bytes))
    }
}

const NAME: &str = "file";
const MODE: Mode = Mode::from_raw_mode(0o644);

fn errno(errno: Errno) -> Error {
    file_error("writing", "a new file", errno.into())
}

fn opened_dir(dir: &Path) -> Result<File> {
    File::open(dir).map_err(|error| file_error("opening", dir.display(), error))
}

/// Creates an empty file atomically, with all the system calls that the store makes for an object, except the write.
pub(in crate::commands::ledger) struct AtomicFileCreateComponent {
    dir: File,
}

impl AtomicFileCreateComponent {
    /// Creates the component, which works in the new directory `dir`.
    pub(in crate::commands::ledger) fn new(dir: &Path) -> Result<Self> {
        std::fs::create_dir(dir).map_err(|error| file_error("creating", dir.display(), error))?;
        Ok(AtomicFileCreateComponent { dir: opened_dir(dir)? })
    }
}

impl LedgerComponent for AtomicFileCreateComponent {
    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        match remove_file(&self.dir, NAME) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(errno),
        }
    }

    fn run(&mut self) -> Result<()> {
        let file = create_unnamed(&self.dir, MODE).map_err(errno)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        set_modified(&file, now.as_nanos() as i64).map_err(errno)?;
        stat(&file).map_err(errno)?;
        link_unnamed(&file, &self.dir, NAME).map_err(errno)
    }

    fn check(&self) -> Result<()> {
        stat_in(&self.dir, NAME).map(drop).map_err(errno)
    }
}

/// Writes content to a new file. The previous file is closed first, so that its memory is reused.
pub(in crate::commands::ledger) struct FileWriteComponent {
    dir: File,
    file: Option<OwnedFd>,
    contents: NonrepeatingContent,
    size_bytes: u64,
}

impl FileWriteComponent {
    /// Creates the component, which writes to unnamed files on the file system of `dir`.
    pub(in crate::commands::ledger) fn new(dir: &Path, contents: &NonrepeatingContent) -> Result<Self> {
        Ok(FileWriteComponent {
            dir: opened_dir(dir)?,
            file: None,
            contents: contents.clone(),
            size_bytes: 0,
        })
    }
}

impl LedgerComponent for FileWriteComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        self.file = None;
        self.file = Some(create_unnamed(&self.dir, MODE).map_err(errno)?);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        write_all_at(file, self.contents.of(self.size_bytes), 0).map_err(errno)
    }

    fn check(&self) -> Result<()> {
        let Some(file) = &self.file else { return Err(ErrorKind::Internal.into()) };
        match stat(file).map_err(errno)?.size {
            size if size == self.size_bytes => Ok(()),
            size => {
                let why = format!("wrote {size} bytes of {}", self.size_bytes);
                Err(Error::new(ErrorKind::IncompleteBody, why))
            }
        }
    }
}

/// A store and the object that the next operation uses.
#[derive(Clone)]
pub(in crate::commands::ledger) struct MeasuredObject {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    size_bytes: u64,
    contents: NonrepeatingContent,
}

impl MeasuredObject {
    pub(in crate::commands::ledger) fn new(
        store: Arc<dyn Store>,
        bucket: &Bucket,
        contents: &NonrepeatingContent,
    ) -> Result<Self> {
        let (key, contents) = (Key::new(name_of_size(0))?, contents.clone());
        Ok(MeasuredObject { store, bucket: bucket.clone(), key, size_bytes: 0, contents })
    }

    fn take(&mut self, operation: ObjectOperation, size_bytes: u64) -> Result<()> {
        self.key = Key::new(operation.name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }
}

/// Reads a whole object into memory whose pages are already mapped.
pub(in crate::commands::ledger) struct ObjectGetComponent {
    objects: MeasuredObject,
    buffer: Vec<u8>,
    server_pid: Option<u32>,
    /// The network of the requests; `None` for this process's own network.
    network: Option<NetworkNamespace>,
    /// Creates a new client for each operation; `None` if all operations use the same client.
    new_client: Option<ClientFactory>,
}

/// A function that creates a client.
pub(in crate::commands::ledger) type ClientFactory = Box<dyn Fn() -> Result<Arc<dyn Store>>>;

impl ObjectGetComponent {
    pub(in crate::commands::ledger) fn new(objects: MeasuredObject, server_pid: Option<u32>) -> Self {
        ObjectGetComponent { objects, buffer: Vec::new(), server_pid, network: None, new_client: None }
    }

    /// Makes each operation use a new client, which has no open connections.
    pub(in crate::commands::ledger) fn each_by(self, new_client: ClientFactory) -> Self {
        ObjectGetComponent { new_client: Some(new_client), ..self }
    }

    /// Makes the client open its connections in `network`.
    pub(in crate::commands::ledger) fn from(self, network: &NetworkNamespace) -> Self {
        ObjectGetComponent { network: Some(network.clone()), ..self }
    }
}

impl LedgerComponent for ObjectGetComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.objects.take(ObjectOperation::Get, size_bytes)?;
        // Open the client's connection in the configured network. The connection remains in this network, regardless of
        // the thread that uses it.
        let Some(network) = self.network.clone() else { return Ok(()) };
        let MeasuredObject { store, bucket, key, .. } = &self.objects;
        let buffer = &mut self.buffer;
        network.run(|| store.read(bucket, key, &GetOptions::default(), buffer).map(drop))?
    }

    fn before(&mut self) -> Result<()> {
        if let Some(new_client) = &self.new_client {
            // Without this call, the new client would resume a TLS session of the previous client.
            TlsConnector::forget_shared();
            self.objects.store = new_client()?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let MeasuredObject { store, bucket, key, .. } = &self.objects;
        store.read(bucket, key, &GetOptions::default(), &mut self.buffer).map(drop)
    }

    fn check(&self) -> Result<()> {
        same(&self.buffer, self.objects.contents.of(self.objects.size_bytes))
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid
    }
}

/// Opens an object and describes it, without reading its content, as a gateway does before it sends a response.
pub(in crate::commands::ledger) struct ObjectOpenComponent(pub(in crate::commands::ledger) MeasuredObject);

impl LedgerComponent for ObjectOpenComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.0.take(ObjectOperation::Get, size_bytes)
    }

    fn run(&mut self) -> Result<()> {
        let object = self.0.store.get(&self.0.bucket, &self.0.key, &GetOptions::default())?;
        black_box(object.content.len());
        Ok(())
    }
}

/// Writes an object that does not exist yet, in one call.
pub(in crate::commands::ledger) struct ObjectPutComponent {
    objects: MeasuredObject,
    /// If this process itself writes large content to the gateway's files: the minimum size of large content, in bytes,
    /// and a store in this process for the gateway's objects. `None` if the gateway writes all content. The process
    /// that writes an object also removes it, because memory freed on one processor is slow to write when another
    /// processor reuses it.
    written_here: Option<(u64, Arc<dyn Store>)>,
    options: PutOptions,
    server_pid: Option<u32>,
}

impl ObjectPutComponent {
    /// Creates a put to a store in this process, or through a gateway that writes all content to the files itself.
    pub(in crate::commands::ledger) fn new(
        objects: MeasuredObject,
        options: PutOptions,
        server_pid: Option<u32>,
    ) -> Self {
        ObjectPutComponent { objects, written_here: None, options, server_pid }
    }

    /// Makes this process write content of more than `bytes` bytes to files that the gateway provides. `embedded`
    /// contains a store in this process for the gateway's objects.
    pub(in crate::commands::ledger) fn written_here_over(
        self,
        bytes: u64,
        embedded: &MeasuredObject,
    ) -> Self {
        ObjectPutComponent { written_here: Some((bytes + 1, embedded.store.clone())), ..self }
    }

    /// Returns the store of the process that writes the object's file.
    fn writer(&self) -> &dyn Store {
        let here =
            self.written_here.as_ref().filter(|(from_bytes, _)| self.objects.size_bytes >= *from_bytes);
        here.map_or(&*self.objects.store, |(_, store)| &**store)
    }
}

impl LedgerComponent for ObjectPutComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.objects.take(ObjectOperation::Put, size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        match self.writer().delete(&self.objects.bucket, &self.objects.key, &DeleteOptions::default()) {
            Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    fn run(&mut self) -> Result<()> {
        let MeasuredObject { store, bucket, key, size_bytes, contents } = &self.objects;
        store.put(bucket, key, contents.of(*size_bytes), &self.options).map(drop)
    }

    fn check(&self) -> Result<()> {
        let MeasuredObject { bucket, key, size_bytes, contents, .. } = &self.objects;
        let mut stored = Vec::new();
        self.writer().read(bucket, key, &GetOptions::default(), &mut stored)?;
        same(&stored, contents.of(*size_bytes))
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid
    }
}
