//! Buckets: the directories of the root.

use fordway_store::{Bucket, BucketInfo, Error, ErrorKind, ListQuery, Result};
use fordway_sys::{EntryKind, Errno, Mode, OFlags, created_ns, make_dir, open_in, read_dir, remove_dir};

use crate::delete::remove_tree;
use crate::errors::from_errno;
use crate::layout::PRIVATE_DIR;
use crate::read::system_time;
use crate::stage::sync_dir;
use crate::{Durability, Inner};

impl Inner {
    pub(crate) fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        let mut names = Vec::new();
        let dir = open_in(self.root.dir(), ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        dir.and_then(|dir| {
            read_dir(dir, |name, kind| {
                let name = std::str::from_utf8(name).ok().and_then(|name| Bucket::new(name).ok());
                let may_be_dir = matches!(kind, EntryKind::Dir | EntryKind::Link | EntryKind::Unknown);
                names.extend(name.filter(|_| may_be_dir));
            })
        })
        .map_err(|errno| from_errno(errno, "reading the root"))?;
        names.sort_unstable();
        // What is gone by now, or is a link to no directory beneath the root, is no bucket.
        Ok(names.iter().filter_map(|name| self.head_bucket(name).ok()).collect())
    }

    pub(crate) fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        let created = self.open_dir(bucket.as_str()).and_then(created_ns);
        match created {
            Ok(created) => Ok(BucketInfo { name: bucket.clone(), created: system_time(created) }),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(ErrorKind::NoSuchBucket.into()),
            Err(errno) => Err(from_errno(errno, "opening the bucket")),
        }
    }

    pub(crate) fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        bucket.for_creation()?;
        match make_dir(self.root.dir(), bucket.as_str(), Mode::from_raw_mode(0o777)) {
            Ok(true) => self.sync_root(),
            Ok(false) => Err(ErrorKind::BucketAlreadyOwnedByYou.into()),
            Err(errno) => Err(from_errno(errno, "making the bucket")),
        }
    }

    /// Forces out which buckets there are, where that is asked for.
    fn sync_root(&self) -> Result<()> {
        match self.config.durability {
            Durability::Full => sync_dir(self.root.dir())
                .map_err(|errno| from_errno(errno, "writing the bucket's name to stable storage")),
            Durability::None | Durability::Data => Ok(()),
        }
    }

    pub(crate) fn delete_bucket(&self, bucket: &Bucket) -> Result<()> {
        self.head_bucket(bucket)?;
        let query = ListQuery { max_keys: 1, ..Default::default() };
        if !self.list(bucket, &query)?.entries.is_empty() || self.has_versions(bucket)? {
            return Err(ErrorKind::BucketNotEmpty.into());
        }
        let dir = self.open_dir(bucket.as_str()).map_err(|errno| from_errno(errno, "opening the bucket"))?;
        self.close_locks(bucket);
        remove_tree(&dir, PRIVATE_DIR).map_err(|errno| match errno {
            // NFS and FUSE keep a file that is open when it is removed under a hidden name.
            Errno::NOTEMPTY | Errno::BUSY => Error::new(
                ErrorKind::ConditionalConflict,
                "another process works in the bucket; delete it again when that has ended",
            ),
            errno => from_errno(errno, "removing the bucket's own files"),
        })?;
        match remove_dir(self.root.dir(), bucket.as_str()) {
            Ok(()) => self.sync_root(),
            Err(Errno::NOTEMPTY) => Err(Error::new(
                ErrorKind::BucketNotEmpty,
                "it holds directories or files that are no objects; remove them with rmdir or rm",
            )),
            Err(errno) => Err(from_errno(errno, "removing the bucket")),
        }
    }
}
