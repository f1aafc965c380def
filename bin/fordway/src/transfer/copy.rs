//! One object into another, within the store.

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, CompletedPart, Conditions, CopyOptions, GetOptions, Key, PutOptions,
    Result, Tags,
};

use super::Runner;
use super::upload::part_ranges;

/// The most that services copy in one request.
const MAX_COPY_BYTES: u64 = 5 << 30;
/// The most bytes of a part that is copied: nothing passes through this machine, so parts are large.
const COPY_PART_BYTES: u64 = 512 << 20;

impl Runner<'_> {
    /// Answers the number of bytes, where it is known.
    pub(super) fn copy_object(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        size: Option<u64>,
    ) -> Result<Option<u64>> {
        let metadata = Some(self.settings.metadata.clone()).filter(|metadata| !metadata.is_empty());
        let limit = self.copy_limit_bytes();
        let size = match size {
            None if limit.is_some() => Some(self.store().head(from.0, from.1, &self.source())?.size),
            known => known,
        };
        if limit.zip(size).is_some_and(|(limit, size)| size > limit) {
            return self.copy_parts(from, bucket, key, metadata).map(Some);
        }
        let options = CopyOptions {
            metadata,
            source_version: self.settings.source_version.clone(),
            conditions: self.conditions(),
            ..Default::default()
        };
        self.store().copy(from, bucket, key, &options)?;
        self.advance(size.unwrap_or(0))?;
        Ok(size)
    }

    /// Larger objects are copied in parts. Stores within this machine have no limit, and say so by
    /// having no threshold.
    fn copy_limit_bytes(&self) -> Option<u64> {
        let limit = self.lane.multipart_threshold_bytes.map(|_| MAX_COPY_BYTES);
        self.settings.multipart_threshold_bytes.or(limit)
    }

    fn copy_parts(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        metadata: Option<BoxedMetadata>,
    ) -> Result<u64> {
        let info = self.store().head(from.0, from.1, &self.source())?;
        let metadata = metadata.unwrap_or(info.metadata);
        let tags = match info.tag_count {
            0 => Tags::new(),
            _ => self.store().tags(from.0, from.1, self.settings.source_version.as_ref())?,
        };
        let options = PutOptions { metadata, tags, conditions: self.conditions(), ..Default::default() };
        let unchanged = Conditions::only_if(info.etag);
        self.in_parts(bucket, key, &options, |upload| {
            let copy = |(number, offset, len): (u16, u64, u64)| {
                let range = Some(ByteRange::Inclusive(offset, offset + len - 1));
                let source = GetOptions { range, conditions: unchanged.clone(), ..self.source() };
                let made = self.store().copy_part(from, &source, (bucket, key, upload, number))?;
                self.advance(len)?;
                Ok(CompletedPart::new(number, made.etag))
            };
            let part_bytes = COPY_PART_BYTES.min(info.size.div_ceil(2)).max(self.settings.part_size_bytes);
            Ok((self.each_part(part_ranges(info.size, part_bytes), copy)?, info.size))
        })
    }
}
