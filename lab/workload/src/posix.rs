//! The reference for comparisons: plain files, accessed by absolute paths.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fordway_measure::RowDescription;
use fordway_store::{Error, ErrorKind, Key, Result};
use fordway_sys::read_into_spare;
use walkdir::WalkDir;

use crate::MeasuredTarget;
use crate::target::failed;

const LANE: &str = "posix";

/// Plain files in a directory.
pub struct PosixTarget {
    lane: RowDescription,
    dir: PathBuf,
    sync: SyncLevel,
    publish: PublishMethod,
}

/// How a put publishes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishMethod {
    /// The file is written under a temporary name and renamed, which is as atomic as a put on the other lanes.
    Rename,
    /// The file is written under its final name, as IOR and mdtest do.
    InPlace,
}

/// The durability that a put waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncLevel {
    /// The content is in the page cache.
    Nothing,
    /// The content is on stable storage.
    Content,
    /// The content and the name are on stable storage.
    ContentAndName,
}

impl PosixTarget {
    /// Creates the directory `dir`, and a target that stores files in it. A put writes a file under a temporary name
    /// and renames it.
    pub fn new(dir: &Path, sync: SyncLevel) -> Result<Self> {
        fs::create_dir(dir).map_err(|error| {
            Error::new(ErrorKind::from(&error), format!("creating the directory {}", dir.display()))
                .caused_by(error)
        })?;
        let description =
            "plain open, read, write to a temporary name, rename, unlink by absolute path".into();
        let lane = RowDescription { name: LANE.into(), description };
        Ok(PosixTarget { lane, dir: dir.to_owned(), sync, publish: PublishMethod::Rename })
    }

    /// Creates a target that stores files in the directory `dir`, which exists or will exist before the first call. A
    /// put creates the file under its final name and waits only for the page cache.
    pub(crate) fn in_place(lane: RowDescription, dir: PathBuf) -> Self {
        PosixTarget { lane, dir, sync: SyncLevel::Nothing, publish: PublishMethod::InPlace }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(key.as_str())
    }

    fn write(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        match self.publish {
            PublishMethod::Rename => self.write_and_rename(key, body),
            PublishMethod::InPlace => self.create(&self.path(key))?.write_all(body),
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        match File::create(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&self.dir))?;
                File::create(path)
            }
            done => done,
        }
    }

    fn write_and_rename(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let mut staged = path.clone().into_os_string();
        staged.push(".tmp");
        let open = || OpenOptions::new().write(true).create_new(true).open(&staged);
        let mut file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&self.dir))?;
                open()?
            }
            done => done?,
        };
        file.write_all(body)?;
        if self.sync != SyncLevel::Nothing {
            file.sync_data()?;
        }
        drop(file);
        fs::rename(&staged, &path)?;
        match (self.sync, path.parent()) {
            (SyncLevel::ContentAndName, Some(parent)) => File::open(parent)?.sync_data(),
            _ => Ok(()),
        }
    }

    fn read(&self, key: &Key, range: Option<(u64, u64)>, buffer: &mut Vec<u8>) -> io::Result<()> {
        let file = File::open(self.path(key))?;
        let size = file.metadata()?.len();
        let (offset, len) = range.unwrap_or((0, size));
        buffer.clear();
        read_into_spare(&file, buffer, offset, len as usize)?;
        Ok(())
    }
}

impl MeasuredTarget for PosixTarget {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn put(&self, key: &Key, body: &[u8]) -> Result<()> {
        self.write(key, body).map_err(|error| failed("put", LANE, key, error))
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        let walk = || {
            let mut keys = Vec::new();
            for entry in WalkDir::new(&self.dir) {
                let entry = entry?;
                if entry.file_type().is_file() {
                    let below = entry.path().strip_prefix(&self.dir).unwrap_or(entry.path());
                    keys.push((below.to_string_lossy().into_owned(), entry.metadata()?.len()));
                }
            }
            keys.sort_unstable();
            Ok(keys)
        };
        walk().map_err(|error: walkdir::Error| {
            let kind = error.io_error().map_or(ErrorKind::Io, ErrorKind::from);
            Error::new(kind, "").caused_by(error).during("list", LANE, "files", "")
        })
    }

    fn head(&self, key: &Key) -> Result<u64> {
        let found = fs::metadata(self.path(key)).map(|meta| meta.len());
        found.map_err(|error| failed("head", LANE, key, error))
    }

    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()> {
        self.read(key, None, buffer).map_err(|error| failed("get", LANE, key, error))
    }

    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        self.read(key, Some((offset, len)), buffer).map_err(|error| failed("get", LANE, key, error))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        fs::remove_file(self.path(key)).map_err(|error| failed("delete", LANE, key, error))
    }

    fn clean_up(&self) -> Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new(ErrorKind::from(&error), format!("removing {}", self.dir.display()))
                    .caused_by(error))
            }
            _ => Ok(()),
        }
    }
}
