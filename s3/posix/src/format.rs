//! The format version of a root, stored in `ROOT/.fordway/format`. Roots with version 1 do not have this file.
//!
//! The version is increased when a format change would let older programs damage a root. A program refuses to open a
//! root whose version it does not know. For programs that predate the format file, the version byte in each record has
//! the same purpose.

use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    Errno, Mode, OFlags, RootDirectory, SymlinkPolicy, make_dir, open_in, rename, stat, sync_all,
    write_all_at,
};

use crate::area::read_small;
use crate::errors::from_errno;
use crate::layout::PRIVATE_DIR;
use crate::stage::hidden_name;

/// The version that this program writes. In version 2, the private area of a bucket with the sticky bit also has the
/// sticky bit, and belongs to the bucket's owner.
pub(crate) const VERSION: u32 = 2;

const FORMAT: &str = "format";
/// The prefix of the file's content.
const FORMAT_PREFIX: &str = "fordway ";
/// The maximum size of a format file, in bytes. Every valid file is much smaller.
const FORMAT_BYTES: usize = 64;

/// Returns the root's format version, which is 1 if the root has no format file. Errors: `Corrupt` if the format file
/// is not valid; `NotImplemented` if the version is later than this program's.
pub(crate) fn check(root: &RootDirectory, path: &Path) -> Result<u32> {
    let read = read_trusted(root, FORMAT, FORMAT_BYTES);
    let read = read.map_err(|errno| from_errno(errno, "reading .fordway/format of the root"))?;
    let Some((text, _)) = read else { return Ok(1) };
    let version = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.trim_end().strip_prefix(FORMAT_PREFIX)?.parse().ok());
    let path = path.display();
    match version {
        Some(version @ 1..=VERSION) => Ok(version),
        Some(version) => {
            let why = format!(
                "{path} has version {version} of the format, and this program supports versions up to {VERSION}; use \
                 the Fordway that wrote it, or a later release"
            );
            Err(Error::new(ErrorKind::NotImplemented, why))
        }
        None => {
            let why = format!(
                "{path}/{PRIVATE_DIR}/{FORMAT} does not state a version of the format; restore it, or remove it"
            );
            Err(Error::new(ErrorKind::Corrupt, why))
        }
    }
}

/// Returns the content and mode of the file `name` in the root's private directory. The returned content is empty if
/// the file is longer than `bytes_max` bytes. Returns `None` unless the file belongs to the root user or to the owner
/// of the root directory. Any other file could have been created by anyone who may write to the root directory.
pub(crate) fn read_trusted(
    root: &RootDirectory,
    name: &str,
    bytes_max: usize,
) -> Result<Option<(Vec<u8>, u32)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open =
        |path: &str, flags| root.open_from(root.dir(), path, SymlinkPolicy::None, flags, Mode::empty());
    let owner = stat(root.dir())?.user;
    let is_trusted = |user: u32| user == owner || user == 0;
    let dir = match open(PRIVATE_DIR, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(dir) if is_trusted(stat(&dir)?.user) => dir,
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    match open_in(&dir, name, flags, Mode::empty()) {
        Ok(file) => {
            let state = stat(&file)?;
            let text = || read_small(&file, bytes_max).map(|read| read.map_or(Vec::new(), |(text, _)| text));
            is_trusted(state.user).then(|| Ok((text()?, state.mode))).transpose()
        }
        Err(Errno::NOENT | Errno::NXIO | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Writes this program's format version to the root. Errors: the errors of the file system.
pub(crate) fn write(root: &RootDirectory) -> Result<()> {
    let failed = |errno| from_errno(errno, "writing .fordway/format of the root");
    make_dir(root.dir(), PRIVATE_DIR, Mode::from_raw_mode(0o755)).map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = open_in(root.dir(), PRIVATE_DIR, flags, Mode::empty()).map_err(failed)?;
    let name = hidden_name()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_in(&dir, &name, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
    write_all_at(&file, format!("{FORMAT_PREFIX}{VERSION}\n").as_bytes(), 0).map_err(failed)?;
    // Without this call, a power cut could leave an empty file, which would make the root unusable.
    sync_all(&file).map_err(failed)?;
    rename(&dir, &name, &dir, FORMAT).map_err(failed)
}
