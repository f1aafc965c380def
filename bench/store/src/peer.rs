//! The `object_store` crate's `LocalFileSystem`, called from a tokio runtime as its users do.

use std::path::Path;

use fordway_measure::Lane;
use fordway_store::{Error, ErrorKind, Key, Result};
use fordway_workload::Target;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::{Handle, Runtime};

/// Objects below one directory.
pub(crate) struct ObjectStoreTarget {
    lane: Lane,
    store: LocalFileSystem,
    runtime: Runtime,
}

impl ObjectStoreTarget {
    pub(crate) fn new(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir(dir)?;
        let lane = Lane { name: "object_store".into(), description: String::new() };
        let store = LocalFileSystem::new_with_prefix(dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(ObjectStoreTarget { lane, store, runtime })
    }

    fn wait<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        let handle: &Handle = self.runtime.handle();
        handle.block_on(work).map_err(|error| Error::new(ErrorKind::Io, "").caused_by(error))
    }
}

fn path(key: &Key) -> object_store::path::Path {
    object_store::path::Path::from(key.as_str())
}

impl Target for ObjectStoreTarget {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn put(&self, key: &Key, body: &[u8]) -> Result<()> {
        let payload = PutPayload::from(body.to_vec());
        self.wait(self.store.put(&path(key), payload)).map(drop)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        let listed = self.wait(self.store.list_with_delimiter(None))?;
        let mut keys: Vec<_> =
            listed.objects.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn head(&self, key: &Key) -> Result<u64> {
        self.wait(self.store.head(&path(key))).map(|meta| meta.size)
    }

    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()> {
        let bytes = self.wait(async { self.store.get(&path(key)).await?.bytes().await })?;
        buffer.clear();
        buffer.extend_from_slice(&bytes);
        Ok(())
    }

    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let bytes = self.wait(self.store.get_range(&path(key), offset..offset + len))?;
        buffer.clear();
        buffer.extend_from_slice(&bytes);
        Ok(())
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.wait(self.store.delete(&path(key)))
    }

    fn clean_up(&self) -> Result<()> {
        Ok(())
    }
}
