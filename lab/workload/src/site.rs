//! Where a workload works: a bucket or a directory of a lane, and more of the same kind beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_measure::Lane;
use fordway_store::{Bucket, Error, ErrorKind, Result, Store};

use crate::{PosixTarget, StoreTarget, Target};

/// A place that is named but need not exist yet; clones name the same one.
#[derive(Clone)]
pub struct Site {
    lane: Lane,
    name: Bucket,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Files { parent: PathBuf },
    Objects { store: Arc<dyn Store>, server_pid: Option<u32> },
}

/// What can be done at a site beyond whole objects.
pub(crate) enum Means<'s> {
    /// Files in this directory, written and read at offsets.
    Files(PathBuf),
    /// Objects in this bucket, made of parts.
    Objects(&'s Arc<dyn Store>, &'s Bucket),
}

impl Site {
    /// The directory `name` in `parent`: plain files, each written in place.
    pub fn files(parent: &Path, name: Bucket) -> Self {
        let description = "plain open, pwrite, pread, stat and unlink by absolute path, in place".into();
        let lane = Lane { name: "posix".into(), description };
        Site { lane, name, kind: Kind::Files { parent: parent.to_owned() } }
    }

    /// The bucket `name` of `store`. `server_pid` is the process whose CPU time is the server's.
    pub fn objects(lane: Lane, store: Arc<dyn Store>, name: Bucket, server_pid: Option<u32>) -> Self {
        Site { lane, name, kind: Kind::Objects { store, server_pid } }
    }

    /// Another bucket or directory, named after this one.
    pub(crate) fn beside(&self, suffix: &str) -> Result<Self> {
        Ok(Site { name: Bucket::new(format!("{}-{suffix}", self.name))?, ..self.clone() })
    }

    /// Its lane.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The name of its bucket or directory.
    pub(crate) fn name(&self) -> &Bucket {
        &self.name
    }

    pub(crate) fn server_pid(&self) -> Option<u32> {
        match self.kind {
            Kind::Files { .. } => None,
            Kind::Objects { server_pid, .. } => server_pid,
        }
    }

    /// Makes the bucket or directory. Errors: `BucketAlreadyOwnedByYou` if it is there.
    pub(crate) fn make(&self) -> Result<()> {
        match &self.kind {
            Kind::Objects { store, .. } => store.create_bucket(&self.name),
            Kind::Files { parent } => fs::create_dir(parent.join(self.name.as_str())).map_err(|error| {
                let kind = match error.kind() {
                    io::ErrorKind::AlreadyExists => ErrorKind::BucketAlreadyOwnedByYou,
                    io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
                    io::ErrorKind::NotFound => ErrorKind::InvalidArgument,
                    _ => ErrorKind::Io,
                };
                let what = format!("making the directory {} in {}", self.name, parent.display());
                Error::new(kind, what).caused_by(error)
            }),
        }
    }

    /// Its objects or files.
    pub(crate) fn target(&self) -> Box<dyn Target> {
        match &self.kind {
            Kind::Files { .. } => Box::new(PosixTarget::in_place(self.lane.clone(), self.dir())),
            Kind::Objects { store, server_pid } => Box::new(StoreTarget::within(
                self.lane.clone(),
                store.clone(),
                self.name.clone(),
                *server_pid,
            )),
        }
    }

    pub(crate) fn means(&self) -> Means<'_> {
        match &self.kind {
            Kind::Files { .. } => Means::Files(self.dir()),
            Kind::Objects { store, .. } => Means::Objects(store, &self.name),
        }
    }

    /// Removes it with all that is in it; nothing if it is not there.
    pub(crate) fn remove(&self) -> Result<()> {
        match self.target().clean_up() {
            Err(error) if error.kind() == ErrorKind::NoSuchBucket => Ok(()),
            done => done,
        }
    }

    fn dir(&self) -> PathBuf {
        match &self.kind {
            Kind::Files { parent } => parent.join(self.name.as_str()),
            Kind::Objects { .. } => PathBuf::new(),
        }
    }
}
