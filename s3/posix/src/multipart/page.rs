//! Pages of an upload's parts: what a page costs grows with what it shows, and not with the parts there are.

use fordway_store::{Bucket, Key, MAX_PARTS, PartInfo, PartListing, PartsQuery, Result, UploadId};

use crate::Inner;
use crate::parts::part_name;
use crate::read::system_time;

/// This many numbers without a part, one behind the other, are looked up; beyond that the names are read, which costs
/// about as much as that many look-ups of each thousand parts.
const GAP_MAX: u16 = 64;

impl Inner {
    /// Cost: a read for each part of the page, and of one more; where numbers are far apart, the directory too.
    pub(crate) fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        query: &PartsQuery,
    ) -> Result<PartListing> {
        let found = self.upload(bucket, key, upload)?;
        let (dir, checksum) = (found.dir, found.record.upload_checksum);
        let (mut parts, mut gap) = (Vec::new(), 0);
        for number in query.after.saturating_add(1)..=MAX_PARTS {
            if parts.len() > query.max_parts {
                break;
            }
            if gap == GAP_MAX {
                self.add_named_parts(&dir, number, query.max_parts, &mut parts)?;
                break;
            }
            let found = self.part_info(&dir, number)?;
            gap = if found.is_some() { 0 } else { gap + 1 };
            parts.extend(found);
        }
        let truncated = parts.len() > query.max_parts;
        parts.truncate(query.max_parts);
        Ok(PartListing { parts, truncated, checksum })
    }

    /// Adds the parts from number `first` on, as the directory names them, until there is one more than `most`.
    fn add_named_parts(&self, dir: &str, first: u16, most: usize, parts: &mut Vec<PartInfo>) -> Result<()> {
        let names = self.names_in(dir)?;
        let mut numbers: Vec<u16> = names.iter().filter_map(|name| crate::parts::part_number(name)).collect();
        numbers.retain(|number| *number >= first);
        numbers.sort_unstable();
        for number in numbers {
            if parts.len() > most {
                break;
            }
            parts.extend(self.part_info(dir, number)?);
        }
        Ok(())
    }

    /// What the record of a part says; `None` where the part has not arrived.
    fn part_info(&self, dir: &str, number: u16) -> Result<Option<PartInfo>> {
        let Some((record, modified_ns)) = self.read_upload(dir, &part_name(number))? else { return Ok(None) };
        let (Some(seal), Some(etag)) = (record.seal, record.etag) else { return Ok(None) };
        let (size, modified, checksum) = (seal.size, system_time(modified_ns), record.checksum);
        Ok(Some(PartInfo { number, size, etag, modified, checksum }))
    }
}
