//! Multipart uploads: a directory each, with a file for every part.

use std::sync::Arc;

use fordway_store::{
    Bucket, CompletedPart, Conditions, ETagPolicy, Error, ErrorKind, Hasher, Key, PartInfo, PartListing,
    PartOptions, PartsQuery, PutOptions, PutResult, Result, UploadId, UploadListing, UploadSummary,
    UploadsQuery, checked_part_number, multipart_etag,
};
use fordway_sys::{Errno, Mode, OFlags, open_in, read_dir, read_into_spare};

use crate::Inner;
use crate::copy::append_range;
use crate::delete::remove_tree;
use crate::errors::from_errno;
use crate::layout::{Place, split, upload_dir, uploads_dir};
use crate::read::{decode_record, system_time};
use crate::record::Record;
use crate::stage::Staged;
use crate::write::{Becomes, PosixWriter, check_metadata};

/// The file that says what an upload will become.
pub(crate) const UPLOAD_FILE: &str = "upload";
/// The most bytes of that file: metadata and a key, with room to spare.
const MAX_UPLOAD_FILE_BYTES: usize = 64 * 1024;

/// An upload in progress.
pub(crate) struct Upload {
    pub(crate) record: Record,
    started_ns: i64,
    dir: String,
}

impl Inner {
    pub(crate) fn create_upload(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
    ) -> Result<UploadId> {
        check_metadata(&options.metadata)?;
        let random = getrandom::u64()
            .map_err(|error| Error::new(ErrorKind::Io, "no random number").caused_by(error))?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        // Identifiers sort by the time of their start.
        let id = UploadId::new(format!("{:016x}{random:016x}", now.as_nanos() as u64))?;
        let record = Record {
            metadata: options.metadata.clone(),
            key: Some(key.as_str().to_owned()),
            etag_policy: Some(options.etag_policy.unwrap_or(self.config.etag_policy)),
            ..Default::default()
        };
        let mut staged = Staged::at(self, bucket, in_upload(&upload_dir(bucket, &id), UPLOAD_FILE))?;
        staged.write(&record.encode())?;
        staged.publish_private()?;
        Ok(id)
    }

    pub(crate) fn part_writer(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        number: u16,
        options: &PartOptions,
    ) -> Result<PosixWriter> {
        checked_part_number(number)?;
        let found = self.upload(bucket, key, upload)?;
        let name = part_name(number);
        Ok(PosixWriter {
            bucket: bucket.clone(),
            key: key.clone(),
            staged: Staged::at(self, bucket, in_upload(&found.dir, &name))?,
            hasher: Hasher::new(found.etag_policy(), options.check_md5, options.checksum),
            becomes: Becomes::Part,
        })
    }

    pub(crate) fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        let mut parts = self.parts(&self.upload(bucket, key, upload)?)?;
        parts.retain(|part| part.number > query.after);
        let truncated = parts.len() > query.max_parts;
        parts.truncate(query.max_parts);
        Ok(PartListing { parts, truncated })
    }

    pub(crate) fn list_uploads(&self, bucket: &Bucket, query: &UploadsQuery) -> Result<UploadListing> {
        self.head_bucket(bucket)?;
        let mut uploads = Vec::new();
        for name in self.names_in(&uploads_dir(bucket))? {
            let Ok(upload) = UploadId::new(name) else { continue };
            // One that ends while we look is no longer in progress.
            let Some(found) = self.find_upload(bucket, &upload)? else { continue };
            let (key, started) = (found.record.key.unwrap_or_default(), system_time(found.started_ns));
            uploads.push(UploadSummary { key, upload, started });
        }
        Ok(query.page(uploads))
    }

    pub(crate) fn complete_upload(
        self: &Arc<Self>,
        (bucket, key): (&Bucket, &Key),
        upload: &UploadId,
        parts: &[CompletedPart],
        conditions: &Conditions,
    ) -> Result<PutResult> {
        let found = self.upload(bucket, key, upload)?;
        let present = self.parts(&found)?;
        let chosen = CompletedPart::select(parts, &present)?;
        let etag = multipart_etag(found.etag_policy(), &chosen);
        let mut staged = self.stage(bucket, key)?;
        for part in chosen {
            let opened = self.open_file(&in_upload(&found.dir, &part_name(part.number)))?;
            let opened =
                opened.ok_or_else(|| Error::new(ErrorKind::InvalidPart, "a part was removed meanwhile"))?;
            append_range(&mut staged, &opened.file, 0, part.size)?;
        }
        let mut record = Record { etag: Some(etag), metadata: found.record.metadata, ..Default::default() };
        let made = staged.seal(&mut record)?;
        staged.publish(key, conditions)?;
        self.remove_upload(&found.dir)?;
        Ok(made)
    }

    pub(crate) fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        self.remove_upload(&self.upload(bucket, key, upload)?.dir)
    }

    fn remove_upload(&self, dir: &str) -> Result<()> {
        let (parent, name) = split(dir);
        self.open_dir(parent)
            .and_then(|parent| remove_tree(&parent, name))
            .map_err(|errno| from_errno(errno, "removing the upload"))
    }

    /// The upload, if it is one of `key`. Errors: `NoSuchUpload`, `NoSuchBucket`.
    fn upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<Upload> {
        // An identifier that we did not make may hold anything, even a path.
        let plain = UploadId::new(upload.as_str())?;
        match self.find_upload(bucket, &plain)? {
            Some(found) if found.record.key.as_deref() == Some(key.as_str()) => Ok(found),
            _ => Err(self.missing(bucket, ErrorKind::NoSuchUpload)),
        }
    }

    /// The upload, if it is there. Errors: `Corrupt` if its record does not decode.
    pub(crate) fn find_upload(&self, bucket: &Bucket, upload: &UploadId) -> Result<Option<Upload>> {
        let dir = upload_dir(bucket, upload);
        let Some(opened) = self.open_file(&in_upload(&dir, UPLOAD_FILE))? else { return Ok(None) };
        let mut bytes = Vec::new();
        read_into_spare(&opened.file, &mut bytes, 0, MAX_UPLOAD_FILE_BYTES)
            .map_err(|errno| from_errno(errno, "reading the upload"))?;
        Ok(Some(Upload { record: decode_record(&bytes)?, started_ns: opened.stat.modified_ns, dir }))
    }

    /// The parts that have arrived, by number.
    fn parts(&self, upload: &Upload) -> Result<Vec<PartInfo>> {
        let mut parts = Vec::new();
        for name in self.names_in(&upload.dir)? {
            let Some(number) = part_number(&name) else { continue };
            let Some(opened) = self.open_file(&in_upload(&upload.dir, &name))? else { continue };
            let (_, info) = opened.into_info();
            parts.push(PartInfo { number, size: info.size, etag: info.etag, modified: info.modified });
        }
        parts.sort_unstable_by_key(|part| part.number);
        Ok(parts)
    }

    fn names_in(&self, path: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let read = self
            .open_dir(path)
            .and_then(|dir| open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()))
            .and_then(|dir| read_dir(dir, |name, _| names.extend(String::from_utf8(name.to_vec()))));
        match read {
            Ok(()) | Err(Errno::NOENT) => Ok(names),
            Err(errno) => Err(from_errno(errno, "reading the uploads")),
        }
    }
}

impl Upload {
    fn etag_policy(&self) -> ETagPolicy {
        self.record.etag_policy.unwrap_or_default()
    }
}

fn part_name(number: u16) -> String {
    format!("{number:05}")
}

/// The number of the part in a file of that name.
pub(crate) fn part_number(name: &str) -> Option<u16> {
    name.parse().ok().filter(|number| part_name(*number) == name)
}

fn in_upload<'p>(dir: &'p str, name: &'p str) -> Place<'p> {
    Place { dir: dir.into(), name: name.into() }
}
