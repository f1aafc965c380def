//! Uploads a file or stream to an object, copies an object to another object in the store, and removes objects. Objects
//! are removed in batches of up to 1,000, the maximum that services accept in one request.

use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use fordway_command::{StorageAddress, file_error};
use fordway_store::{
    Bucket, ByteRange, ChecksumAlgorithm, ChecksumType, CompleteOptions, CompletedPart, Conditions,
    CopyOptions, DeleteResult, Error, ErrorKind, FileRegion, GetOptions, Key, MAX_PARTS, ObjectInfo,
    PartOptions, PutOptions, Result, Tags, UploadId,
};

use super::budget::ReservedUploadMemory;
use super::download::CHUNK_BYTES;
use super::moved::LocalSourceStamps;
use super::{LinkRemoval, OverwritePolicy, TransferAction, TransferRunner, TransferTask};

/// S3's limit for the size of a part, in bytes.
const MAX_PART_BYTES: u64 = 5 << 30;
/// The maximum size of content that the store keeps in memory if the content is not sent in parts.
const WHOLE_BYTES: u64 = 64 << 20;
/// How long a command waits, after a signal, for the server to abort an upload.
const ABORT_GRACE: Duration = Duration::from_secs(1);

impl TransferRunner<'_> {
    /// Uploads a file; returns the number of bytes, and the state of the uploaded file.
    pub(super) fn upload_file(
        &self,
        path: &Path,
        bucket: &Bucket,
        key: &Key,
    ) -> Result<(u64, LocalSourceStamps)> {
        let name = path.display().to_string();
        let failed = |error| super::source_error("opening", path, error);
        let link = path.symlink_metadata().map_err(failed)?;
        let regular = |about: Metadata| match about.is_file() {
            true => Ok(about),
            false => {
                let why = format!("{name} is not a regular file; pipe it in and use - as the source");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        };
        // Check the path before opening it, because opening a pipe would wait for its writer, even after a signal.
        regular(path.metadata().map_err(failed)?)?;
        let file = File::open(path).map_err(failed)?;
        let about = regular(file.metadata().map_err(failed)?)?;
        let (size, source) = (about.len(), LocalSourceStamps::new(&link, &about));
        let options = self.put_options(&name, Some(size));
        let region = FileRegion { file, offset: 0, len: size };
        if self.threshold_bytes().is_some_and(|threshold| size >= threshold && size > 0) {
            self.upload_parts((&name, &about), &region, bucket, key, &options)?;
        } else {
            let _memory = self.upload_memory(size.min(WHOLE_BYTES));
            let writer = self.store().writer(bucket, key, &options)?;
            // Request one byte more than expected, to detect a growing file.
            let mut reader = FileRegion { file: &region.file, offset: 0, len: size.saturating_add(1) };
            let check = || check_unchanged(&name, &about, &region.file);
            self.pump_if(&name, &mut reader, writer, Some(size), &check)?;
        }
        Ok((size, source))
    }

    /// Reserves memory for content that the store keeps in memory until the content is sent. Waits until enough memory
    /// is available. Returns `None` if the store does not keep content in memory.
    fn upload_memory(&self, bytes: u64) -> Option<ReservedUploadMemory<'_>> {
        (self.store().lane() == "http").then(|| self.memory.reserve(bytes))
    }

    /// Uploads standard input, whose length is unknown; returns the number of bytes. If parts are needed, they are sent
    /// one after the other. The first part is kept in memory. The other parts are streamed in chunks, but over HTTP,
    /// the store keeps each part in memory until it is sent.
    pub(super) fn upload_stream(&self, bucket: &Bucket, key: &Key) -> Result<u64> {
        let mut input = BufReader::with_capacity(CHUNK_BYTES, self.context.take_input()?);
        let options = self.put_options(key.as_str(), None);
        let Some(threshold) = self.threshold_bytes() else {
            let writer = self.store().writer(bucket, key, &options)?;
            return Ok(self.pump("standard input", &mut input, writer, None)?.1);
        };
        // Content needs no multipart upload if it is smaller than both the threshold and the size of a part. An upload
        // without any part cannot be completed, so empty content is never sent in parts.
        let first_bytes = threshold.min(self.settings.part_size_bytes).max(1);
        let mut first = Vec::new();
        let read = input.by_ref().take(first_bytes).read_to_end(&mut first);
        read.map_err(|error| file_error("reading", "standard input", error))?;
        if (first.len() as u64) < first_bytes {
            let writer = self.store().writer(bucket, key, &options)?;
            return Ok(self.pump("standard input", &mut &first[..], writer, None)?.1);
        }
        let whole = BufReader::with_capacity(CHUNK_BYTES, std::io::Cursor::new(first).chain(input));
        self.in_parts(bucket, key, &options, |upload| {
            self.stream_parts(whole, (bucket, key, upload), options.checksum)
        })
    }

    fn stream_parts(
        &self,
        mut input: impl BufRead,
        (bucket, key, upload): (&Bucket, &Key, &UploadId),
        checksum: Option<ChecksumAlgorithm>,
    ) -> Result<(Vec<CompletedPart>, u64)> {
        let options = PartOptions { checksum, ..Default::default() };
        let (mut parts, mut total_bytes) = (Vec::new(), 0);
        for number in 1..=MAX_PARTS {
            let rest = input.fill_buf().map_err(|error| file_error("reading", "standard input", error))?;
            if rest.is_empty() {
                return Ok((parts, total_bytes));
            }
            // The size of parts doubles every 1,000 parts, so that 10,000 parts are enough for any stream.
            let part_bytes = (self.settings.part_size_bytes << (number / 1000)).min(MAX_PART_BYTES);
            let _memory = self.upload_memory(part_bytes);
            let writer = self.store().part_writer(bucket, key, upload, number, &options)?;
            let (made, bytes) =
                self.pump("standard input", &mut (&mut input).take(part_bytes), writer, None)?;
            parts.push(CompletedPart { number, etag: made.etag, checksum: made.checksum });
            total_bytes += bytes;
        }
        Err(Error::new(ErrorKind::EntityTooLarge, "standard input; raise --part-size"))
    }

    fn upload_parts(
        &self,
        (name, about): (&str, &Metadata),
        file: &FileRegion,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
    ) -> Result<u64> {
        let ranges = part_ranges(file.len, self.settings.part_size_bytes);
        self.in_parts(bucket, key, options, |upload| {
            let send = |(number, offset, len): (u16, u64, u64)| {
                let part =
                    PartOptions { checksum: options.checksum, size_hint: Some(len), ..Default::default() };
                let _memory = self.upload_memory(len);
                let writer = self.store().part_writer(bucket, key, upload, number, &part)?;
                let mut region = FileRegion { file: &file.file, offset, len };
                let (made, _) = self.pump(name, &mut region, writer, Some(len))?;
                Ok(CompletedPart { number, etag: made.etag, checksum: made.checksum })
            };
            let parts = self.each_part(ranges, send)?;
            check_unchanged(name, about, &file.file)?;
            Ok((parts, file.len))
        })
    }

    /// Starts a multipart upload, calls `send` to fill it, and completes the upload; aborts the upload after a failure.
    /// If the completion times out, does not abort the upload, because the server may still complete it. After a
    /// signal, waits at most [`ABORT_GRACE`] for the server to abort the upload.
    pub(super) fn in_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: &PutOptions,
        send: impl FnOnce(&UploadId) -> Result<(Vec<CompletedPart>, u64)>,
    ) -> Result<u64> {
        let upload = self.store().create_upload(bucket, key, options)?;
        let done = CompleteOptions::conditions(options.conditions.clone());
        let mut is_undecided = false;
        let sent = send(&upload).and_then(|(parts, bytes)| {
            self.context.interrupt.check()?;
            let completed = self.store().complete_upload(bucket, key, &upload, &parts, &done);
            is_undecided = matches!(&completed, Err(error) if error.kind() == ErrorKind::Timeout);
            completed.map(|_| bytes)
        });
        if is_undecided {
            self.context.output.note(&format!(
                "the upload {} of s3://{bucket}/{key} is not aborted, because the server may still complete it",
                upload.as_str()
            ));
            return sent;
        }
        let abort = || self.store().abort_upload(bucket, key, &upload);
        if sent.is_err()
            && let Err(error) = fordway_sys::with_grace(ABORT_GRACE, abort)
        {
            self.context.output.note(&format!(
                "the upload {} of s3://{bucket}/{key} could not be aborted and may still use space: {error}",
                upload.as_str()
            ));
        }
        sent
    }

    /// Calls `send` for every part, several at once. After the first failure, no further parts are sent.
    pub(super) fn each_part(
        &self,
        ranges: impl Iterator<Item = (u16, u64, u64)>,
        send: impl Fn((u16, u64, u64)) -> Result<CompletedPart> + Sync,
    ) -> Result<Vec<CompletedPart>> {
        let outcome = Mutex::new(Ok(Vec::new()));
        let lock = || outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let wanted = ranges.take_while(|_| lock().is_ok());
        super::for_each(self.settings.concurrency, wanted, |range| {
            if lock().is_err() {
                return;
            }
            let result = send(range);
            let mut outcome = lock();
            match (&mut *outcome, result) {
                (Ok(parts), Ok(part)) => parts.push(part),
                (Ok(_), Err(error)) => *outcome = Err(error),
                (Err(_), _) => {}
            }
        });
        let mut parts = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())?;
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    /// Returns the options of an upload, including the metadata that `ObjectMetadataRules::of_upload` determines from
    /// `name`.
    fn put_options(&self, name: &str, size_hint: Option<u64>) -> PutOptions {
        let metadata = self.settings.metadata.of_upload(name);
        let (conditions, checksum) = (self.conditions(), self.checksum());
        let checksum_type = checksum.map(ChecksumType::widest_of);
        PutOptions { metadata, conditions, checksum, checksum_type, size_hint, ..Default::default() }
    }

    /// Returns the conditions on the destination.
    pub(super) fn conditions(&self) -> Conditions {
        match self.settings.existing {
            OverwritePolicy::Replace => Conditions::default(),
            OverwritePolicy::Skip | OverwritePolicy::Fail => Conditions::create_only(),
        }
    }
}

/// Checks that a file has not changed since `before`. If the file has changed, the upload may consist of parts of two
/// versions of the file. Errors: `IncompleteBody`.
pub(crate) fn check_unchanged(name: &str, before: &Metadata, file: &File) -> Result<()> {
    let now = file.metadata().map_err(|error| file_error("reading", name, error))?;
    let content = |about: &Metadata| (about.size(), about.mtime(), about.mtime_nsec());
    if content(&now) == content(before) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::IncompleteBody, format!("{name} changed during the read")))
}

/// Returns the number, first byte and length of each part. There are at most 10,000 parts.
pub(super) fn part_ranges(size: u64, part_size_bytes: u64) -> impl Iterator<Item = (u16, u64, u64)> {
    let least = size.div_ceil(u64::from(MAX_PARTS));
    let part_bytes = part_size_bytes.max(least.next_multiple_of(1 << 20)).max(1);
    (1..)
        .zip((0..size).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX)))
        .map(move |(number, offset)| (number, offset, part_bytes.min(size - offset)))
}

/// The maximum number of bytes that services copy in one request.
const MAX_COPY_BYTES: u64 = 5 << 30;
/// The part size for copies, in bytes. Parts are large, because no content passes through this machine.
const COPY_PART_BYTES: u64 = 512 << 20;

impl TransferRunner<'_> {
    /// Copies an object; returns the number of bytes, if it is known.
    pub(super) fn copy_object(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        size: Option<u64>,
    ) -> Result<Option<u64>> {
        let (rules, limit) = (&self.settings.metadata, self.copy_limit_bytes());
        let needs_info = !rules.keep_all() || (limit.is_some() && size.is_none());
        let info = needs_info.then(|| self.store().head(from.0, from.1, &self.source())).transpose()?;
        let size = info.as_ref().map(|info| info.size).or(size);
        if limit.zip(size).is_some_and(|(limit, size)| size > limit) {
            return self.copy_parts(from, bucket, key).map(Some);
        }
        let mut options = CopyOptions {
            source_version: self.settings.source_version.clone(),
            conditions: self.conditions(),
            checksum: self.settings.checksum,
            ..Default::default()
        };
        if let Some(info) = info.filter(|_| !rules.keep_all()) {
            options.metadata = Some(rules.of_copy(&info, key.as_str()));
            // Copy only the version whose metadata was read.
            options.source_conditions = Conditions::only_if(info.etag);
        }
        self.store()
            .copy(from, bucket, key, &options)
            .map_err(|error| self.check_copied(from, &options, error))?;
        self.advance(size.unwrap_or(0))?;
        Ok(size)
    }

    /// Determines which condition of a copy failed. Returns `ConditionalConflict` if the source was replaced, because
    /// `PreconditionFailed` would mean that the destination exists. Otherwise, returns `error`.
    fn check_copied(&self, from: (&Bucket, &Key), options: &CopyOptions, error: Error) -> Error {
        let is_same =
            |info: ObjectInfo| options.source_conditions.if_match == Conditions::only_if(info.etag).if_match;
        let is_of_source = error.kind() == ErrorKind::PreconditionFailed
            && !options.source_conditions.is_empty()
            && !self.store().head(from.0, from.1, &self.source()).is_ok_and(is_same);
        if is_of_source { replaced(error) } else { error }
    }

    /// Returns the size above which an object is copied in parts. Lanes without a multipart threshold have no default
    /// limit either.
    fn copy_limit_bytes(&self) -> Option<u64> {
        let limit = self.lane.multipart_threshold_bytes.map(|_| MAX_COPY_BYTES);
        // A copy of exactly the threshold is made in parts, like an upload and a download.
        self.settings.multipart_threshold_bytes.map(|threshold| threshold.saturating_sub(1)).or(limit)
    }

    fn copy_parts(&self, from: (&Bucket, &Key), bucket: &Bucket, key: &Key) -> Result<u64> {
        let info = self.store().head(from.0, from.1, &self.source())?;
        let metadata = self.settings.metadata.of_copy(&info, key.as_str());
        let tags = match info.tag_count {
            0 => Tags::new(),
            _ => self.store().tags(from.0, from.1, self.settings.source_version.as_ref())?,
        };
        let (conditions, checksum) = (self.conditions(), self.settings.checksum);
        let checksum_type = checksum.map(ChecksumType::widest_of);
        let options =
            PutOptions { metadata, tags, conditions, checksum, checksum_type, ..Default::default() };
        let unchanged = Conditions::only_if(info.etag);
        self.in_parts(bucket, key, &options, |upload| {
            let copy = |(number, offset, len): (u16, u64, u64)| {
                let range = Some(ByteRange::Inclusive(offset, offset + len - 1));
                let source = GetOptions { range, conditions: unchanged.clone(), ..self.source() };
                let copied = self.store().copy_part(from, &source, (bucket, key, upload, number));
                let made = copied.map_err(replaced)?;
                self.advance(len)?;
                Ok(CompletedPart {
                    number,
                    etag: made.etag,
                    checksum: made.checksum.filter(|_| checksum.is_some()),
                })
            };
            let part_bytes = COPY_PART_BYTES.min(info.size.div_ceil(2)).max(self.settings.part_size_bytes);
            Ok((self.each_part(part_ranges(info.size, part_bytes), copy)?, info.size))
        })
    }
}

/// Converts the error of a read that is limited to one version to `ConditionalConflict`, because `PreconditionFailed`
/// would mean that the destination exists.
pub(super) fn replaced(error: Error) -> Error {
    match error.kind() {
        ErrorKind::PreconditionFailed => {
            let why = "the object was replaced during the copy; copy it again";
            Error::new(ErrorKind::ConditionalConflict, why).caused_by(error)
        }
        _ => error,
    }
}

const BATCH_KEYS: usize = 1000;

/// Converts actions to tasks, and collects removals in the same bucket into batches.
pub(super) fn batched(
    actions: impl Iterator<Item = Result<TransferAction>>,
) -> impl Iterator<Item = TransferTask> {
    TransferTaskBatcher { actions, doomed: None }
}

struct TransferTaskBatcher<I> {
    actions: I,
    doomed: Option<(Bucket, Vec<Key>)>,
}

impl<I: Iterator<Item = Result<TransferAction>>> TransferTaskBatcher<I> {
    /// Adds a key to the batch. If the batch is full or belongs to another bucket, starts a new batch with the key, and
    /// returns the old batch.
    fn gather(&mut self, bucket: Bucket, key: Key) -> Option<TransferTask> {
        match &mut self.doomed {
            Some((same, keys)) if *same == bucket && keys.len() < BATCH_KEYS => {
                keys.push(key);
                None
            }
            other => other
                .replace((bucket, vec![key]))
                .map(|(bucket, keys)| TransferTask::RemoveObjects(bucket, keys)),
        }
    }
}

impl<I: Iterator<Item = Result<TransferAction>>> Iterator for TransferTaskBatcher<I> {
    type Item = TransferTask;

    fn next(&mut self) -> Option<TransferTask> {
        loop {
            let task = match self.actions.next() {
                None => {
                    return self
                        .doomed
                        .take()
                        .map(|(bucket, keys)| TransferTask::RemoveObjects(bucket, keys));
                }
                Some(Err(error)) => Some(TransferTask::Failed(error)),
                Some(Ok(TransferAction::Copy { from, to, size })) => {
                    Some(TransferTask::Copy { from, to, size })
                }
                Some(Ok(TransferAction::Remove(StorageAddress::Local(path)))) => {
                    Some(TransferTask::RemoveFile(path))
                }
                Some(Ok(TransferAction::Remove(place))) => match place.into_object() {
                    Ok((bucket, key)) => self.gather(bucket, key),
                    Err(error) => Some(TransferTask::Failed(error)),
                },
            };
            if task.is_some() {
                return task;
            }
        }
    }
}

impl TransferRunner<'_> {
    /// Removes a batch of objects. After a signal, does nothing.
    pub(super) fn remove_objects(&self, bucket: &Bucket, keys: &[Key]) {
        if self.context.interrupt.is_raised() {
            return;
        }
        let results = match self.settings.dry_run {
            true => keys.iter().map(|_| self.find_bucket(bucket).map(|()| DeleteResult::default())).collect(),
            false => self.store().delete_many(bucket, keys),
        };
        for (key, result) in keys.iter().zip(results) {
            match result {
                Ok(_) => self.removed(&StorageAddress::S3(bucket.clone(), key.as_str().to_owned())),
                Err(error) if error.leaves_bucket() => self.remove_link((bucket, key), &error),
                Err(error) => self.failed(&error),
            }
        }
    }

    /// Removes the link through which `key` leaves the bucket, if the command removes everything below a prefix that
    /// contains the link. The removal of `key` has failed with `error`.
    fn remove_link(&self, (bucket, key): (&Bucket, &Key), error: &Error) {
        let mut prefixes = self.settings.removes_links_below.iter().filter(|(within, _)| within == bucket);
        let prefix = prefixes.find_map(|(_, prefix)| key.as_str().starts_with(prefix).then_some(prefix));
        let Some(prefix) = prefix else { return self.failed(error) };
        match self.links.remove(self.store(), (bucket, key), prefix) {
            Ok(LinkRemoval::Done(link)) => {
                self.removed(&StorageAddress::S3(bucket.clone(), link.as_str().to_owned()));
            }
            Ok(LinkRemoval::DoneBefore) => {}
            Ok(LinkRemoval::NotFound) => self.failed(error),
            Err(error) => self.failed(&error),
        }
    }

    /// Removes a local file. After a signal, does nothing.
    pub(super) fn remove_file(&self, path: PathBuf) {
        if self.context.interrupt.is_raised() {
            return;
        }
        let result = if self.settings.dry_run { Ok(()) } else { std::fs::remove_file(&path) };
        match result {
            Ok(()) => self.removed(&StorageAddress::Local(path)),
            Err(error) => self.failed(&file_error("removing", path.display(), error)),
        }
    }

    fn removed(&self, place: &StorageAddress) {
        self.done("delete", place, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole_in_order() {
        for (size, part) in [(1, 5 << 20), (100 << 20, 16 << 20), (32 << 20, 16 << 20), (5 << 40, 5 << 20)] {
            let ranges: Vec<_> = part_ranges(size, part).collect();
            assert!(ranges.len() <= usize::from(MAX_PARTS), "{size}");
            let mut next = (1, 0);
            for &(number, offset, len) in &ranges {
                assert_eq!((number, offset), next);
                assert!(len > 0);
                next = (number + 1, offset + len);
            }
            assert_eq!(next.1, size);
        }
        assert_eq!(part_ranges(32 << 20, 16 << 20).count(), 2);
    }

    #[test]
    fn batches_are_of_one_bucket_and_at_most_a_thousand() {
        let bucket = |name: &str| Bucket::new(name).unwrap();
        let keys = |name: &'static str, count: usize| {
            (0..count)
                .map(move |i| Ok(TransferAction::Remove(StorageAddress::S3(bucket(name), format!("k{i}")))))
        };
        let sizes: Vec<(String, usize)> = batched(keys("one", 2500).chain(keys("two", 3)))
            .map(|task| match task {
                TransferTask::RemoveObjects(bucket, keys) => (bucket.to_string(), keys.len()),
                _ => panic!("only removals were requested"),
            })
            .collect();
        let expected = [("one", 1000), ("one", 1000), ("one", 500), ("two", 3)];
        assert_eq!(sizes, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
