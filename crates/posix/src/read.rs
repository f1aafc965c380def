//! Opening and reading objects.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    Bucket, Content, Error, ErrorKind, FileRegion, GetOptions, Key, Object, ObjectInfo, Result,
};
use fordway_sys::{
    Errno, FileStat, Mode, OFlags, get_xattr, get_xattr_in, open_in, read_into_spare, stat, stat_in,
};

use crate::errors::from_errno;
use crate::layout::{ATTRIBUTE, Place, odd, plain};
use crate::record::{Record, Seal, etag_of_file};
use crate::{Inner, layout};

/// Room on the stack for most records; a longer one costs a second call.
pub(crate) const RECORD_BYTES: usize = 512;

/// An object's file, opened.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) stat: FileStat,
    pub(crate) record: Record,
}

impl Opened {
    /// What S3 says of it.
    pub(crate) fn into_info(self) -> (File, ObjectInfo) {
        (self.file, info_of(&self.stat, self.record))
    }
}

/// What S3 says of a file with that state and (unsealed) record.
pub(crate) fn info_of(stat: &FileStat, record: Record) -> ObjectInfo {
    ObjectInfo {
        size: stat.size,
        modified: system_time(stat.modified_ns),
        etag: record.etag.unwrap_or_else(|| etag_of_file(stat)),
        metadata: record.metadata,
        checksum: record.checksum,
    }
}

fn with_record((file, stat): (File, FileStat)) -> Result<Opened> {
    let record = read_record(&file)?.unseal_for(&stat);
    Ok(Opened { file, stat, record })
}

impl Inner {
    pub(crate) fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<Object> {
        let (file, info) = self.open_object(bucket, key)?.into_info();
        options.conditions.check_read(&info)?;
        let range = options.range.map_or(Ok(0..info.size), |range| range.resolve(info.size))?;
        let region = FileRegion { file: Arc::new(file), offset: range.start, len: range.end - range.start };
        Ok(Object { info, range, content: Content::File(region) })
    }

    /// Bytes alone: the record is read only where a condition asks for the tag in it.
    pub(crate) fn read(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let (file, stat) = if options.conditions.is_empty() {
            let found = self.find_file(bucket, key)?;
            found.ok_or_else(|| self.missing(bucket, ErrorKind::NoSuchKey))?
        } else {
            let opened = self.open_object(bucket, key)?;
            let stat = opened.stat;
            let (file, info) = opened.into_info();
            options.conditions.check_read(&info)?;
            (file, stat)
        };
        let range = options.range.map_or(Ok(0..stat.size), |range| range.resolve(stat.size))?;
        let len =
            usize::try_from(range.end - range.start).map_err(|_| Error::from(ErrorKind::EntityTooLarge))?;
        buffer.clear();
        let got = read_into_spare(&file, buffer, range.start, len).map_err(|e| from_errno(e, "reading"))?;
        match got == len {
            true => Ok(stat.size),
            false => Err(Error::new(ErrorKind::IncompleteBody, "the file was cut while it was read")),
        }
    }

    pub(crate) fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        let info = match plain(bucket, key) {
            Some(place) => self.describe(&place)?,
            None => None,
        };
        let info = match info {
            Some(info) => info,
            None => self.open_object(bucket, key)?.into_info().1,
        };
        options.conditions.check_read(&info)?;
        Ok(info)
    }

    /// Describes the file at `place` by name, without opening it. `None` where only an open can
    /// tell: there is none, it is a link, or what two looks at the name saw was not one version.
    fn describe(&self, place: &Place) -> Result<Option<ObjectInfo>> {
        let Ok(dir) = self.dirs.open(&self.root, &place.dir) else { return Ok(None) };
        self.describe_in(&dir, &place.name)
    }

    /// As [`Inner::describe`], of `name` in `dir`. Cost: one `newfstatat`, one `getxattrat`.
    pub(crate) fn describe_in(&self, dir: impl AsFd, name: &str) -> Result<Option<ObjectInfo>> {
        let stat = match stat_in(&dir, name) {
            Ok(stat) if stat.is_file => stat,
            Ok(_) | Err(_) => return Ok(None),
        };
        let mut buffer = [0; RECORD_BYTES];
        // A record that is sealed for this very size and time belongs to this very version; without
        // that the file may have been replaced between the two calls.
        match get_xattr_in(&dir, name, ATTRIBUTE, &mut buffer) {
            Ok(Some(bytes)) => {
                let record = decode_record(bytes)?;
                let is_sealed = record.seal == Some(Seal::of(&stat));
                Ok(is_sealed.then(|| info_of(&stat, record)))
            }
            _ => Ok(None),
        }
    }

    /// Opens the object under `key`. Errors: `NoSuchKey`, `NoSuchBucket`.
    pub(crate) fn open_object(&self, bucket: &Bucket, key: &Key) -> Result<Opened> {
        match self.find_object(bucket, key)? {
            Some(opened) => Ok(opened),
            None => Err(self.missing(bucket, ErrorKind::NoSuchKey)),
        }
    }

    /// Opens the object under `key`, if there is one.
    pub(crate) fn find_object(&self, bucket: &Bucket, key: &Key) -> Result<Option<Opened>> {
        self.find_file(bucket, key)?.map(with_record).transpose()
    }

    /// Opens the file of `key`, if there is one: at its plain place, or else among the odd ones.
    fn find_file(&self, bucket: &Bucket, key: &Key) -> Result<Option<(File, FileStat)>> {
        if let Some(place) = plain(bucket, key)
            && let Some(found) = self.open_regular(&place)?
        {
            return Ok(Some(found));
        }
        match self.has_odd(bucket) {
            true => self.open_regular(&odd(bucket, key)),
            false => Ok(None),
        }
    }

    /// Whether any key of the bucket lies apart from its plain path.
    pub(crate) fn has_odd(&self, bucket: &Bucket) -> bool {
        self.odd_keys.glance(&self.root, bucket).has_odd.unwrap_or_default()
    }

    /// Opens the object's file at `place`; `None` if there is none.
    pub(crate) fn open_file(&self, place: &Place) -> Result<Option<Opened>> {
        self.open_regular(place)?.map(with_record).transpose()
    }

    /// Opens the regular file at `place`; `None` if there is none. A FIFO, socket or device is told
    /// from a file after a non-blocking open for reading, which neither waits nor moves data.
    fn open_regular(&self, place: &Place) -> Result<Option<(File, FileStat)>> {
        let file = match self.open_to_read(place) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NAMETOOLONG) => return Ok(None),
            Err(errno) => return Err(from_errno(errno, "opening")),
        };
        let stat = stat(&file).map_err(|errno| from_errno(errno, "reading the file's state"))?;
        Ok(stat.is_file.then_some((file, stat)))
    }

    fn open_to_read(&self, place: &Place) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(dir) = self.dirs.open_if_busy(&self.root, &place.dir)? else {
            return self.root.open_beneath(&place.path(), flags, Mode::empty());
        };
        match open_in(&dir, &place.name, flags, Mode::empty()) {
            // A link is followed by a walk from the root, which keeps it beneath that.
            Err(Errno::LOOP) => self.root.open_beneath(&place.path(), flags, Mode::empty()),
            Err(Errno::NOENT | Errno::STALE) if dir.is_gone() => {
                self.dirs.forget(&place.dir);
                self.root.open_beneath(&place.path(), flags, Mode::empty())
            }
            done => done.map(File::from),
        }
    }

    /// `kind`, unless the bucket itself is what is missing.
    pub(crate) fn missing(&self, bucket: &Bucket, kind: ErrorKind) -> Error {
        self.require_bucket(bucket).err().unwrap_or_else(|| kind.into())
    }

    /// Errors: `NoSuchBucket`, and those of a bucket that cannot be opened.
    pub(crate) fn require_bucket(&self, bucket: &Bucket) -> Result<()> {
        match self.open_dir(bucket.as_str()) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(ErrorKind::NoSuchBucket.into()),
            Err(errno) => Err(from_errno(errno, "opening the bucket")),
        }
    }

    /// Opens a directory as a place to work in.
    pub(crate) fn open_dir(&self, path: &str) -> Result<File, Errno> {
        self.root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }
}

/// What the open file's attribute holds; nothing if there is none. Errors: `Corrupt`.
pub(crate) fn read_record(file: &File) -> Result<Record> {
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
