//! A file of IOR that is open: a descriptor, a prefix of fragments, or a multipart upload.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use fordway_measure::bytes_text;
use fordway_store::{
    CompleteOptions, CompletedPart, ETag, Error, ErrorKind, Expected, Key, MAX_PARTS, MIN_PART_BYTES,
    PartOptions, PutOptions, Result, UploadId, Writer,
};
use fordway_sys::read_into_spare;

use super::place::Place;
use super::{Mapping, Shape};
use crate::phase::{Crew, decoded, encoded};
use crate::site::Means;
use crate::target::failed;

/// Parts are of at least this many bytes, where a block has as many.
const PART_BYTES: u64 = 8 << 20;

pub(super) enum Open<'p> {
    File(File, Key),
    Fragments(&'p Place),
    Upload(Upload<'p>),
    Ranges(&'p Place, Key),
}

/// A multipart upload that this rank sends parts of.
pub(super) struct Upload<'p> {
    place: &'p Place,
    key: Key,
    id: UploadId,
    part_bytes: u64,
    /// The part at work: its writer, number, and bytes so far.
    current: Option<(Box<dyn Writer>, u16, u64)>,
    /// What was sent: number and tag.
    sent: Vec<(u16, String)>,
}

/// The bytes of a part: whole transfers, about 8 MiB, or the whole block if that is smaller.
fn part_bytes(shape: &Shape) -> u64 {
    let transfers = PART_BYTES.div_ceil(shape.transfer_bytes);
    shape.block_bytes.min(transfers * shape.transfer_bytes)
}

/// Whether the plan fits the rules of multipart uploads. Errors: `InvalidArgument`.
pub(super) fn check_multipart(shape: &Shape, ranks: usize) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
    let part = part_bytes(shape);
    let writers = if shape.file_per_process { 1 } else { ranks as u64 };
    let parts = shape.block_bytes.div_ceil(part) * shape.segments * writers;
    if shape.is_random {
        return invalid("multipart uploads have no random order; use --mapping fragment".into());
    }
    if !shape.block_bytes.is_multiple_of(part) {
        return invalid(format!(
            "a block must be a multiple of the parts of {}; change --block-size",
            bytes_text(part)
        ));
    }
    if part < MIN_PART_BYTES && parts > 1 {
        return invalid(format!("parts of {} are below S3's 5 MiB; use larger blocks", bytes_text(part)));
    }
    if parts > u64::from(MAX_PARTS) {
        return invalid(format!("{parts} parts are more than S3's {MAX_PARTS}; use larger transfers"));
    }
    if shape.wall.is_some() && !shape.file_per_process {
        return invalid("a shared upload that stops early would have holes, which S3 does not know; use --file-per-process or no --stonewall".into());
    }
    Ok(())
}

impl<'p> Open<'p> {
    /// Opens the file to write. All ranks call it; an error of one is an error of all.
    pub(super) fn for_writing(crew: &Crew, place: &'p Place, shape: &Shape) -> Result<Self> {
        let opened = match (place.path(), shape.mapping) {
            (Some(_), _) => Open::file(place, OpenOptions::new().read(true).write(true).create(true)),
            (None, Mapping::Multipart) => return Upload::start(crew, place, shape).map(Open::Upload),
            (None, _) => Ok(Open::Fragments(place)),
        };
        let (opened, outcome) = opened.map_or_else(|error| (None, Err(error)), |open| (Some(open), Ok(())));
        crew.agree(outcome)?;
        opened.ok_or_else(|| ErrorKind::Internal.into())
    }

    /// Opens the file to read.
    pub(super) fn for_reading(place: &'p Place, shape: &Shape) -> Result<Self> {
        match (place.path(), shape.mapping) {
            (Some(_), _) => Open::file(place, OpenOptions::new().read(true)),
            (None, Mapping::Multipart) => Ok(Open::Ranges(place, place.key()?)),
            (None, _) => Ok(Open::Fragments(place)),
        }
    }

    fn file(place: &Place, options: &OpenOptions) -> Result<Self> {
        let (path, key) = (place.path().unwrap_or_default(), place.key()?);
        match options.open(path) {
            Ok(file) => Ok(Open::File(file, key)),
            Err(error) => Err(failed("open", "posix", &key, error)),
        }
    }

    pub(super) fn write(&mut self, offset: u64, content: &[u8]) -> Result<()> {
        match self {
            Open::File(file, key) => {
                file.write_all_at(content, offset).map_err(|error| failed("pwrite", "posix", key, error))
            }
            Open::Fragments(place) => place.target.put(&place.fragment(offset)?, content),
            Open::Upload(upload) => upload.write(offset, content),
            Open::Ranges(..) => Err(ErrorKind::MethodNotAllowed.into()),
        }
    }

    pub(super) fn read(&self, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.clear();
        match self {
            Open::File(file, key) => {
                let read = read_into_spare(file, buffer, offset, len as usize);
                read.map(drop).map_err(|error| failed("pread", "posix", key, error.into()))
            }
            Open::Fragments(place) => place.target.get(&place.fragment(offset)?, buffer),
            Open::Ranges(place, key) => place.target.get_range(key, offset, len, buffer),
            Open::Upload(_) => Err(ErrorKind::MethodNotAllowed.into()),
        }
    }

    /// Closes a file that was written. All ranks call it.
    pub(super) fn close(self, crew: &Crew, shape: &Shape) -> Result<()> {
        match self {
            Open::File(file, key) if shape.fsync => {
                file.sync_all().map_err(|error: io::Error| failed("fsync", "posix", &key, error))
            }
            Open::Upload(upload) => upload.complete(crew, shape),
            _ => Ok(()),
        }
    }
}

impl<'p> Upload<'p> {
    /// Starts the upload of a shared file on rank 0, or one on each rank.
    fn start(crew: &Crew, place: &'p Place, shape: &Shape) -> Result<Self> {
        let key = place.key()?;
        let begins = shape.file_per_process || crew.is_first();
        let begun = match place.site.means() {
            Means::Objects(store, bucket) if begins => {
                store.create_upload(bucket, &key, &PutOptions::default()).map(|id| id.as_str().to_owned())
            }
            _ => Ok(String::new()),
        };
        let (mut id, outcome) = begun.map_or_else(|error| (String::new(), Err(error)), |id| (id, Ok(())));
        crew.agree(outcome)?;
        if !shape.file_per_process {
            id = decoded(&crew.team.broadcast(encoded(&id)?)?)?;
        }
        let (part_bytes, current, sent) = (part_bytes(shape), None, Vec::new());
        Ok(Upload { place, key, id: UploadId::new(id)?, part_bytes, current, sent })
    }

    /// Parts are numbered by where they lie, so that all ranks' parts fit together.
    fn write(&mut self, offset: u64, content: &[u8]) -> Result<()> {
        let Means::Objects(store, bucket) = self.place.site.means() else {
            return Err(ErrorKind::Internal.into());
        };
        if self.current.is_none() {
            let number = (offset / self.part_bytes + 1) as u16;
            let options = PartOptions { size_hint: Some(self.part_bytes), ..Default::default() };
            let writer = store.part_writer(bucket, &self.key, &self.id, number, &options)?;
            self.current = Some((writer, number, 0));
        }
        if let Some((writer, _, bytes)) = &mut self.current {
            writer.write(content)?;
            *bytes += content.len() as u64;
            if *bytes < self.part_bytes {
                return Ok(());
            }
        }
        self.send()
    }

    /// Finishes the part at work, if there is one.
    fn send(&mut self) -> Result<()> {
        if let Some((writer, number, bytes)) = self.current.take() {
            let expected = Expected { size: Some(bytes), ..Default::default() };
            let sent = writer.commit(&expected)?;
            self.sent.push((number, sent.etag.as_str().to_owned()));
        }
        Ok(())
    }

    fn complete(mut self, crew: &Crew, shape: &Shape) -> Result<()> {
        let outcome = self.send();
        let mut sent = std::mem::take(&mut self.sent);
        if !shape.file_per_process {
            let all = crew.team.gather(encoded(&sent)?)?;
            let lists = all.iter().map(|one| decoded(one)).collect::<Result<Vec<Vec<(u16, String)>>>>()?;
            sent = lists.concat();
        }
        outcome?;
        sent.sort_unstable();
        let parts: Vec<_> =
            sent.iter().map(|(number, tag)| CompletedPart::new(*number, ETag::new(tag))).collect();
        match self.place.site.means() {
            Means::Objects(store, bucket) if shape.file_per_process || crew.is_first() => {
                let options = CompleteOptions::default();
                store.complete_upload(bucket, &self.key, &self.id, &parts, &options).map(drop)
            }
            _ => Ok(()),
        }
    }
}
