//! Tags: the part of an object's record that changes while the object stays.

use std::sync::Arc;

use fordway_store::{Bucket, ETagPolicy, Key, Result, Tags, VersionId, check_tags};

use crate::Inner;

impl Inner {
    pub(crate) fn tags(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<Tags> {
        Ok(self.open_version(bucket, key, version)?.record().tags.clone())
    }

    /// Under the key's lock, so one of two writers is the last for the whole record. Setting
    /// an attribute changes neither size nor modification time, so the seal goes on to hold.
    pub(crate) fn set_tags(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        tags: &Tags,
    ) -> Result<()> {
        check_tags(tags)?;
        self.locked(bucket, key, |_| {
            let mut opened = self.open_version(bucket, key, version)?;
            let record = opened.recorded.get_or_insert_default();
            record.tags = tags.clone();
            // The tag that was answered before is the one that stays.
            let tag_is_kept = (&mut **record, ETagPolicy::Md5);
            self.store_record(bucket, &opened.file, &opened.stat, tag_is_kept)
        })
    }
}
