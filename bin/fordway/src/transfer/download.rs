//! Downloads one object to a file. This file also contains the code that copies and verifies bytes, for both uploads
//! and downloads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fordway_command::{IncompleteFileKind, file_error};
use fordway_store::{
    Bucket, ByteRange, Checksum, ChecksumAlgorithm, CompletedPart, Conditions, ContentHasher, ETagPolicy,
    Error, ErrorKind, ExpectedContent, FileRegion, GetOptions, Key, ObjectContent, ObjectInfo, OpenObject,
    PutResult, Result, Writer,
};
use tempfile::NamedTempFile;

use super::MadeDirectories;
use super::access::{FileAccessRights, NEW_FILE_MODE, PRIVATE_MODE};
use super::finish::{finish_file, rename_to_new, sync_content};
use super::special::open_special;
use super::upload::{part_ranges, replaced};
use super::{OverwritePolicy, TransferRunner};

impl TransferRunner<'_> {
    /// Writes a temporary file next to the target, verifies it, and then renames it, so that a failure or a signal does
    /// not change an existing file. The file gets the object's modification time, and the access rights of the file
    /// that it replaces. Other hard links to that file keep the old content. Returns the information on the written
    /// content. Errors: `InvalidArgument` if this command has already moved another object to the same file.
    pub(super) fn download(
        &self,
        from: (&Bucket, &Key),
        size: Option<u64>,
        path: &Path,
    ) -> Result<ObjectInfo> {
        if self.settings.existing == OverwritePolicy::Fail && path.symlink_metadata().is_ok() {
            let why = format!("{} already exists", path.display());
            return Err(Error::new(ErrorKind::PreconditionFailed, why));
        }
        if let Some(opened) = open_special(path, &self.context.output) {
            return self.download_into_special(from, opened, path);
        }
        let path = ResolvedDestination::find(path)?.path(path);
        if self.settings.removes_sources {
            self.written.claim(&path)?;
        }
        let downloaded = self.download_to_file(from, size, &path);
        if downloaded.is_err() {
            self.made.remove_empty(parent(&path));
        }
        downloaded
    }

    fn download_to_file(&self, from: (&Bucket, &Key), size: Option<u64>, path: &Path) -> Result<ObjectInfo> {
        let mut temporary = temporary_beside(path, &self.made)?;
        let _removed_by_signals =
            self.context.interrupt.temporary(temporary.path(), IncompleteFileKind::Useless);
        let info = self.fetch(from, size, temporary.as_file_mut(), path)?;
        let failed = |error| file_error("writing", path.display(), error);
        finish_file(temporary.as_file(), self.settings.source_fate()).map_err(failed)?;
        temporary.as_file().set_modified(info.modified).map_err(failed)?;
        self.context.interrupt.check()?;
        self.give_name(temporary, path)?;
        // The source is removed next, so the new name must survive a power cut.
        if self.settings.removes_sources {
            self.made.sync_names(parent(path)).map_err(failed)?;
        }
        Ok(info)
    }

    /// Renames the temporary file to `path`. Errors: `PreconditionFailed` if an existing file must not be replaced.
    fn give_name(&self, temporary: NamedTempFile, path: &Path) -> Result<()> {
        let failed = |error| file_error("writing", path.display(), error);
        if self.settings.existing == OverwritePolicy::Replace {
            return temporary.persist(path).map(drop).map_err(|error| failed(error.error));
        }
        // Another program may have created the file since the earlier check, so do not replace a file here.
        let temporary = temporary.into_temp_path();
        if !rename_to_new(&temporary, path).map_err(failed)? {
            let why = format!("{} already exists", path.display());
            return Err(Error::new(ErrorKind::PreconditionFailed, why));
        }
        temporary.keep().map(drop).map_err(|error| failed(error.error))
    }

    fn download_into_special(
        &self,
        from: (&Bucket, &Key),
        opened: io::Result<File>,
        path: &Path,
    ) -> Result<ObjectInfo> {
        let mut file = opened.map_err(|error| file_error("opening", path.display(), error))?;
        let object = self.store().get(from.0, from.1, &self.source())?;
        let info = self.fetch_stream(object, from, &mut file, path)?;
        finish_file(&file, self.settings.source_fate())
            .map_err(|error| file_error("writing", path.display(), error))?;
        Ok(info)
    }

    /// Fetches the content in one stream or in parts. If the size is unknown, the first response provides it.
    fn fetch(
        &self,
        from: (&Bucket, &Key),
        size: Option<u64>,
        file: &mut File,
        path: &Path,
    ) -> Result<ObjectInfo> {
        let is_large = |size| size > 0 && self.threshold_bytes().is_some_and(|threshold| size >= threshold);
        if size.is_some_and(is_large) {
            let info = self.store().head(from.0, from.1, &self.source())?;
            return self.fetch_parts(info, from, file, path);
        }
        let object = self.store().get(from.0, from.1, &self.source())?;
        if size.is_none() {
            self.context.output.expect_bytes(object.info.size);
        }
        match is_large(object.info.size) {
            true => self.fetch_parts(object.info, from, file, path),
            false => self.fetch_stream(object, from, file, path),
        }
    }

    fn fetch_stream(
        &self,
        object: OpenObject,
        from: (&Bucket, &Key),
        file: &mut File,
        path: &Path,
    ) -> Result<ObjectInfo> {
        let mut verifier = ContentVerifier::new(&object.info, self.settings.verify);
        let info = object.info.clone();
        self.content_source(from)
            .receive(object, &mut |chunk| {
                verifier.update(chunk);
                file.write_all(chunk).map_err(|error| file_error("writing", path.display(), error))?;
                self.advance(chunk.len() as u64)
            })
            .and_then(|()| verifier.finish())
            .map_err(|error| self.during_get(error, from))?;
        Ok(info)
    }

    /// Fetches the object in several ranges in parallel, all from the same version of the object. If the object has a
    /// CRC, verifies the content with the CRCs of the parts. For an object without a CRC, reads the file again to
    /// verify its content. Forces the content to stable storage, because the file has its full length from the start.
    fn fetch_parts(
        &self,
        info: ObjectInfo,
        from: (&Bucket, &Key),
        file: &File,
        path: &Path,
    ) -> Result<ObjectInfo> {
        file.set_len(info.size).map_err(|error| file_error("writing", path.display(), error))?;
        let ranges = || part_ranges(info.size, self.settings.part_size_bytes);
        let stated = info.checksum.as_ref().filter(|sum| self.settings.verify && sum.is_crc_of_content());
        let algorithm = stated.map(|sum| sum.algorithm);
        let parts =
            self.each_part(ranges(), |part| self.fetch_part(part, &info, from, (file, path), algorithm))?;
        let verified = match stated {
            Some(stated) => {
                let lengths = ranges().map(|(_, _, len)| len);
                verify_parts(stated, parts.iter().map(|part| part.checksum.as_ref()).zip(lengths))
            }
            None => self.verify_file(&info, file, path),
        };
        verified.map_err(|error| self.during_get(error, from))?;
        sync_content(file).map_err(|error| file_error("writing", path.display(), error))?;
        Ok(info)
    }

    /// Fetches a part into the file, and computes its checksum with `algorithm`, if any.
    fn fetch_part(
        &self,
        (number, offset, len): (u16, u64, u64),
        info: &ObjectInfo,
        from: (&Bucket, &Key),
        (file, path): (&File, &Path),
        algorithm: Option<ChecksumAlgorithm>,
    ) -> Result<CompletedPart> {
        let range = Some(ByteRange::Inclusive(offset, offset + len - 1));
        // If the object is replaced in the meantime, the copy fails instead of mixing parts of two versions.
        let conditions = Conditions::only_if(info.etag.clone());
        let options = GetOptions { range, conditions, ..self.source() };
        let opened = self.store().get(from.0, from.1, &options).map_err(replaced);
        let object = opened.map_err(|error| self.during_get(error, from))?;
        // Each part is written at the requested offset, so bytes of a different range would be written at a wrong
        // offset.
        if object.range != (offset..offset + len) || object.info.size != info.size {
            let (range, size) = (&object.range, object.info.size);
            let wanted = format!("{offset}..{} of {}", offset + len, info.size);
            let why = format!("received bytes {range:?} of {size} instead of {wanted}; copy it again");
            return Err(self.during_get(Error::new(ErrorKind::BadResponse, why), from));
        }
        let mut hasher = ContentHasher::new(ETagPolicy::Fast, false, algorithm);
        let mut at = offset;
        let received = self.content_source(from).receive(object, &mut |chunk| {
            hasher.update(chunk);
            file.write_all_at(chunk, at).map_err(|error| file_error("writing", path.display(), error))?;
            at += chunk.len() as u64;
            self.advance(chunk.len() as u64)
        });
        received.map_err(|error| self.during_get(error, from))?;
        let checksum = hasher.finish(&ExpectedContent::default())?.checksum;
        Ok(CompletedPart { number, etag: info.etag.clone(), checksum })
    }

    fn verify_file(&self, info: &ObjectInfo, file: &File, path: &Path) -> Result<()> {
        let mut verifier = ContentVerifier::new(info, self.settings.verify);
        if !verifier.is_needed() {
            return Ok(());
        }
        let again = file.try_clone().map_err(|error| file_error("reading", path.display(), error))?;
        let content = ObjectContent::File(FileRegion { file: again, offset: 0, len: info.size });
        content.for_each_chunk(|chunk| {
            verifier.update(chunk);
            self.context.interrupt.check()
        })?;
        verifier.finish()
    }

    fn during_get(&self, error: Error, (bucket, key): (&Bucket, &Key)) -> Error {
        error.during("get", self.store().lane(), bucket.as_str(), key.as_str())
    }
}

/// Compares the CRC of an object with the combined CRC of its parts. `parts` yields the CRC and the length of each
/// part. Errors: `BadDigest`.
fn verify_parts<'p>(
    stated: &Checksum,
    mut parts: impl Iterator<Item = (Option<&'p Checksum>, u64)>,
) -> Result<()> {
    let empty = Checksum::of(stated.algorithm, b"");
    let joined = parts.try_fold(empty, |before, (part, len)| before.followed_by(part?, len));
    match joined.as_ref() == Some(stated) {
        true => Ok(()),
        false => {
            let why = format!("the content's {} differs from the stated one", stated.algorithm.name());
            Err(Error::new(ErrorKind::BadDigest, why))
        }
    }
}

/// The state of a download's destination, if the destination is not a special file.
#[derive(Debug, PartialEq, Eq)]
enum ResolvedDestination {
    Missing,
    /// The path of a regular file, after following links. If the destination is a link, the file that it points to is
    /// replaced, and the link itself is kept.
    File(PathBuf),
}

impl ResolvedDestination {
    fn find(path: &Path) -> Result<Self> {
        match path.metadata() {
            Ok(about) if about.is_dir() => {
                let why =
                    format!("{} is a directory, but the object needs a file of that name", path.display());
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            Ok(_) => Ok(ResolvedDestination::File(path.canonicalize().unwrap_or(path.to_owned()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ResolvedDestination::Missing),
            Err(error) => Err(file_error("reading", path.display(), error)),
        }
    }

    fn path(self, asked: &Path) -> PathBuf {
        match self {
            ResolvedDestination::File(path) => path,
            ResolvedDestination::Missing => asked.to_owned(),
        }
    }
}

/// Checks that a download can write to `path`. Errors: the errors of a download, such as `InvalidArgument` for a
/// directory.
pub(super) fn check_destination(path: &Path) -> Result<()> {
    ResolvedDestination::find(path).map(drop)
}

/// Returns the directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a hidden file in the target's directory, which is created if missing. If the target exists, the hidden file
/// gets the access rights of the target before any content is written. The file is removed when the returned value is
/// dropped.
pub(crate) fn temporary_beside(path: &Path, made: &MadeDirectories) -> Result<NamedTempFile> {
    let (parent, rights) = (parent(path), FileAccessRights::find(path));
    let mode = if rights.is_some() { PRIVATE_MODE } else { NEW_FILE_MODE };
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY_PREFIX).suffix(TEMPORARY_SUFFIX).rand_bytes(TEMPORARY_RANDOM_BYTES);
    // The errors of `tempfile_in` do not contain the errno, from which the kind of the error follows.
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(mode);
    let opened =
        made.open_in(parent, || builder.make_in(parent, |path| options.open(path))).and_then(|file| {
            rights.map_or(Ok(()), |rights| rights.give_to(file.as_file(), 0))?;
            Ok(file)
        });
    opened.map_err(|error| file_error("creating a file in", parent.display(), error))
}

/// Creates an empty file with a name as [`temporary_beside`] returns it. The file is removed when the returned value is
/// dropped.
pub(super) fn probe_in(directory: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY_PREFIX).suffix(TEMPORARY_SUFFIX).rand_bytes(TEMPORARY_RANDOM_BYTES);
    builder.tempfile_in(directory)
}

const TEMPORARY_PREFIX: &str = ".fordway-";
const TEMPORARY_SUFFIX: &str = ".part";
/// The number of letters and digits between the prefix and the suffix of a hidden file's name.
const TEMPORARY_RANDOM_BYTES: usize = 6;

/// The number of hexadecimal digits in the hidden names of files that are copied from web servers, and of files that
/// the Python package writes.
const HEX_DIGITS: usize = 16;

/// Returns whether the file's name is the name of an unfinished download: a name that [`temporary_beside`] chooses, the
/// name of the part file of a copy from a web server (`.NAME.0123456789abcdef.part`), or a name that the Python package
/// chooses (`.fordway-0123456789abcdef.part`). Such a file belongs to a download, by this process or another, that is
/// in progress, that was killed, or that a later copy resumes.
pub(super) fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(name) = name.strip_suffix(TEMPORARY_SUFFIX) else { return false };
    let is_hex = |text: &str| {
        text.len() == HEX_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if let Some(random) = name.strip_prefix(TEMPORARY_PREFIX)
        && (is_hex(random) || is_random(random))
    {
        return true;
    }
    let copied = name.strip_prefix('.').and_then(|name| name.rsplit_once('.'));
    copied.is_some_and(|(name, hash)| !name.is_empty() && is_hex(hash))
}

fn is_random(text: &str) -> bool {
    text.len() == TEMPORARY_RANDOM_BYTES && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The number of bytes copied at a time. This size is large enough that the cost of a call is negligible, and small
/// enough to fit into the processor's cache.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

/// Compares the bytes read with the checksum or ETag recorded by the object's writer.
///
/// Prefers a stored checksum to an ETag that looks like an MD5. The ETags of some encrypted objects look like an MD5,
/// but are not the MD5 of the content.
pub(crate) struct ContentVerifier(Option<(ContentHasher, ExpectedContent)>);

impl ContentVerifier {
    /// Creates a verifier of the whole object. The verifier checks nothing if the object has neither a checksum nor an
    /// MD5, or if `verify` is false.
    pub(crate) fn new(info: &ObjectInfo, verify: bool) -> Self {
        let size = Some(info.size);
        // A checksum computed from the parts' checksums cannot be compared with the content.
        let checksum = info.checksum.as_ref().filter(|checksum| checksum.parts.is_none());
        ContentVerifier(match (checksum, info.etag.as_md5()) {
            _ if !verify => None,
            (Some(checksum), _) => {
                let hasher = ContentHasher::new(ETagPolicy::Fast, false, Some(checksum.algorithm));
                Some((hasher, ExpectedContent { size, md5: None, checksum: Some(checksum.clone()) }))
            }
            (None, Some(md5)) => {
                let hasher = ContentHasher::new(ETagPolicy::Md5, false, None);
                Some((hasher, ExpectedContent { size, md5: Some(md5), checksum: None }))
            }
            (None, None) => None,
        })
    }

    /// Returns whether the verifier compares the content with a checksum or an MD5.
    pub(crate) fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, data: &[u8]) {
        if let Some((hasher, _)) = &mut self.0 {
            hasher.update(data);
        }
    }

    /// Compares the digest and the size of the content with the expected values. Errors: `BadDigest`, `IncompleteBody`.
    pub(crate) fn finish(self) -> Result<()> {
        match self.0 {
            Some((hasher, expected)) => hasher.finish(&expected).map(drop),
            None => Ok(()),
        }
    }
}

/// Compares the number of bytes read with the size reported by the source. Errors: `InvalidArgument` if the source has
/// content but reports the size 0, as the kernel's files in /proc do; `IncompleteBody` if the two numbers differ in any
/// other way.
fn check_size(name: &str, stated: Option<u64>, read_bytes: u64) -> Result<()> {
    let (kind, why) = match stated {
        Some(0) if read_bytes > 0 => (
            ErrorKind::InvalidArgument,
            format!("{name} reports a size of 0 but has content; pipe it in and use - as the source"),
        ),
        Some(size) if size != read_bytes => (
            ErrorKind::IncompleteBody,
            format!("{name} changed during the read: {read_bytes} bytes instead of {size}"),
        ),
        _ => return Ok(()),
    };
    Err(Error::new(kind, why))
}

impl TransferRunner<'_> {
    /// Copies `reader` to `writer` and publishes the object; `size` is the expected size, if known. Also computes the
    /// checksum, which the store compares with its own checksum.
    pub(super) fn pump(
        &self,
        name: &str,
        reader: &mut dyn Read,
        writer: Box<dyn Writer>,
        size: Option<u64>,
    ) -> Result<(PutResult, u64)> {
        self.pump_if(name, reader, writer, size, &|| Ok(()))
    }

    /// Like [`pump`](Self::pump), but calls `check` after the last read. If `check` fails, the object is not published.
    pub(super) fn pump_if(
        &self,
        name: &str,
        reader: &mut dyn Read,
        mut writer: Box<dyn Writer>,
        size: Option<u64>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<(PutResult, u64)> {
        let mut hasher = self.checksum().map(|name| ContentHasher::new(ETagPolicy::Fast, false, Some(name)));
        let mut buffer = vec![0; size.map_or(CHUNK_BYTES, |size| CHUNK_BYTES.min(size as usize + 1))];
        let mut total_bytes = 0;
        loop {
            let chunk = read_some(reader, &mut buffer).map_err(|error| file_error("reading", name, error))?;
            if chunk.is_empty() {
                break;
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(chunk);
            }
            writer.write(chunk)?;
            total_bytes += chunk.len() as u64;
            self.advance(chunk.len() as u64)?;
        }
        check_size(name, size, total_bytes)?;
        check()?;
        let checksum = match hasher {
            Some(hasher) => hasher.finish(&ExpectedContent::default())?.checksum,
            None => None,
        };
        // Ctrl-C also ends the program that writes to standard input. Truncated input must not become an object.
        self.context.interrupt.check()?;
        let made = writer.commit(&ExpectedContent { size: Some(total_bytes), md5: None, checksum })?;
        Ok((made, total_bytes))
    }

    /// Returns the checksum algorithm for uploads. If the user requested no algorithm, this is the algorithm in the
    /// configuration of the HTTP lane, usually CRC-64/NVME, and `None` on other lanes.
    pub(super) fn checksum(&self) -> Option<ChecksumAlgorithm> {
        let default = || self.lane.service.as_ref()?.usual_checksum();
        self.settings.checksum.or_else(default)
    }
}

/// Reads once; repeats if a signal interrupted the read. Returns an empty slice at the end.
fn read_some<'b>(reader: &mut dyn Read, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(count) => return Ok(&buffer[..count]),
        }
    }
}
