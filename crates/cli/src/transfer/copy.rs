//! One object into another, within the store.

use fordway_store::{
    Bucket, ByteRange, CompletedPart, Conditions, CopyOptions, GetOptions, Key, Metadata, PutOptions, Result,
};

use super::Runner;
use super::upload::part_ranges;

/// The most that services copy in one request.
const MAX_COPY_BYTES: u64 = 5 << 30;
/// Bytes of a part that is copied: nothing passes through this machine, so parts can be large.
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
        // Stores within this machine have no such limit, and say so by having no threshold.
        if size.is_some_and(|size| size > MAX_COPY_BYTES) && self.threshold_bytes().is_some() {
            return self.copy_parts(from, bucket, key, metadata).map(Some);
        }
        let options = CopyOptions { metadata, conditions: self.conditions(), ..Default::default() };
        self.store().copy(from, bucket, key, &options)?;
        self.advance(size.unwrap_or(0))?;
        Ok(size)
    }

    fn copy_parts(
        &self,
        from: (&Bucket, &Key),
        bucket: &Bucket,
        key: &Key,
        metadata: Option<Metadata>,
    ) -> Result<u64> {
        let info = self.store().head(from.0, from.1, &GetOptions::default())?;
        let metadata = metadata.unwrap_or(info.metadata);
        let options = PutOptions { metadata, conditions: self.conditions(), ..Default::default() };
        let unchanged = Conditions::only_if(info.etag);
        self.in_parts(bucket, key, &options, |upload| {
            let copy = |(number, offset, len): (u16, u64, u64)| {
                let range = Some(ByteRange::Inclusive(offset, offset + len - 1));
                let source = GetOptions { range, conditions: unchanged.clone() };
                let made = self.store().copy_part(from, &source, (bucket, key, upload, number))?;
                self.advance(len)?;
                Ok(CompletedPart { number, etag: made.etag })
            };
            Ok((self.each_part(part_ranges(info.size, COPY_PART_BYTES), copy)?, info.size))
        })
    }
}
