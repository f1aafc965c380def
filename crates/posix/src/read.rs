//! Opening and reading objects.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    Bucket, Content, Error, ErrorKind, FileRegion, GetOptions, Key, Object, ObjectInfo, Result,
};
use fordway_sys::{Errno, FileStat, Mode, OFlags, get_xattr, read_into_spare, stat};

use crate::errors::from_errno;
use crate::layout::{ATTRIBUTE, odd_path, plain_path};
use crate::record::{Record, etag_of_file};
use crate::{Inner, layout};

/// Room on the stack for most records; a longer one costs a second call.
const RECORD_BYTES: usize = 512;

/// An object's file, opened.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) stat: FileStat,
    pub(crate) record: Record,
}

impl Opened {
    /// What S3 says of it.
    pub(crate) fn into_info(self) -> (File, ObjectInfo) {
        let etag = self.record.etag.unwrap_or_else(|| etag_of_file(&self.stat));
        let info = ObjectInfo {
            size: self.stat.size,
            modified: system_time(self.stat.modified_ns),
            etag,
            metadata: self.record.metadata,
            checksum: self.record.checksum,
        };
        (self.file, info)
    }
}

impl Inner {
    pub(crate) fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Object> {
        let (file, info) = self.open_object(bucket, key)?.into_info();
        options.conditions.check_read(&info)?;
        let range = options.range.map_or(Ok(0..info.size), |range| range.resolve(info.size))?;
        let region = FileRegion { file: Arc::new(file), offset: range.start, len: range.end - range.start };
        Ok(Object { info, range, content: Content::File(region) })
    }

    pub(crate) fn read(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
        buffer: &mut Vec<u8>,
    ) -> Result<ObjectInfo> {
        let (file, info) = self.open_object(bucket, key)?.into_info();
        options.conditions.check_read(&info)?;
        let range = options.range.map_or(Ok(0..info.size), |range| range.resolve(info.size))?;
        let len =
            usize::try_from(range.end - range.start).map_err(|_| Error::from(ErrorKind::EntityTooLarge))?;
        buffer.clear();
        let got = read_into_spare(&file, buffer, range.start, len).map_err(|e| from_errno(e, "reading"))?;
        match got == len {
            true => Ok(info),
            false => Err(Error::new(ErrorKind::IncompleteBody, "the file was cut while it was read")),
        }
    }

    pub(crate) fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        let (_, info) = self.open_object(bucket, key)?.into_info();
        options.conditions.check_read(&info)?;
        Ok(info)
    }

    /// Opens the object under `key`. Errors: `NoSuchKey`, `NoSuchBucket`.
    pub(crate) fn open_object(&self, bucket: &Bucket, key: &Key) -> Result<Opened> {
        match self.find_object(bucket, key)? {
            Some(opened) => Ok(opened),
            None => Err(self.missing(bucket, ErrorKind::NoSuchKey)),
        }
    }

    /// Opens the object under `key`, if there is one: at its plain path, or else among the odd ones.
    pub(crate) fn find_object(&self, bucket: &Bucket, key: &Key) -> Result<Option<Opened>> {
        if let Some(path) = plain_path(bucket, key)
            && let Some(opened) = self.open_file(&path)?
        {
            return Ok(Some(opened));
        }
        self.open_file(&odd_path(bucket, key))
    }

    /// Opens the regular file at `path`; `None` if there is none. A FIFO, socket or device is told
    /// from a file after a non-blocking open for reading, which neither waits nor moves data.
    pub(crate) fn open_file(&self, path: &str) -> Result<Option<Opened>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.root.open_beneath(path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NAMETOOLONG) => return Ok(None),
            Err(errno) => return Err(from_errno(errno, "opening")),
        };
        let stat = stat(&file).map_err(|errno| from_errno(errno, "reading the file's state"))?;
        if !stat.is_file {
            return Ok(None);
        }
        let record = read_record(&file)?.unseal_for(&stat);
        Ok(Some(Opened { file, stat, record }))
    }

    /// `kind`, unless the bucket itself is what is missing.
    pub(crate) fn missing(&self, bucket: &Bucket, kind: ErrorKind) -> Error {
        match self.open_dir(bucket.as_str()) {
            Ok(_) => kind.into(),
            Err(Errno::NOENT | Errno::NOTDIR) => ErrorKind::NoSuchBucket.into(),
            Err(errno) => from_errno(errno, "opening the bucket"),
        }
    }

    /// Opens a directory as a place to work in.
    pub(crate) fn open_dir(&self, path: &str) -> Result<File, Errno> {
        self.root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }
}

fn read_record(file: &File) -> Result<Record> {
    let mut short = [0; RECORD_BYTES];
    match get_xattr(file, ATTRIBUTE, &mut short) {
        Ok(bytes) => bytes.map_or(Ok(Record::default()), decode_record),
        Err(Errno::RANGE) => {
            let mut long = vec![0; 64 * 1024];
            let bytes =
                get_xattr(file, ATTRIBUTE, &mut long).map_err(|e| from_errno(e, "reading the metadata"))?;
            bytes.map_or(Ok(Record::default()), decode_record)
        }
        Err(errno) => Err(from_errno(errno, "reading the metadata")),
    }
}

pub(crate) fn decode_record(bytes: &[u8]) -> Result<Record> {
    let name = layout::ATTRIBUTE.to_string_lossy();
    Record::decode(bytes).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("the attribute {name} is not what this version writes"))
    })
}

pub(crate) fn system_time(ns: i64) -> SystemTime {
    match u64::try_from(ns) {
        Ok(ns) => UNIX_EPOCH + Duration::from_nanos(ns),
        Err(_) => UNIX_EPOCH - Duration::from_nanos(ns.unsigned_abs()),
    }
}
