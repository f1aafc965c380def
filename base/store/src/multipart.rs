//! Multipart uploads: the types, and the rules that every store applies at completion.

use std::time::SystemTime;

use crate::{
    Checksum, ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, Conditions, ETag, ETagPolicy, Error,
    ErrorKind, Result,
};

/// The maximum number of parts of an upload (S3's limit).
pub const MAX_PARTS: u16 = 10_000;
/// The minimum size in bytes of every part but the last (S3's limit).
pub const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

/// The identifier of an upload: 1 to 128 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(Box<str>);

impl UploadId {
    /// Checks an identifier that a client sent. Errors: `NoSuchUpload` for an identifier that no store creates.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if (1..=128).contains(&id.len()) && id.bytes().all(legal) {
            return Ok(UploadId(id.into()));
        }
        Err(Error::new(ErrorKind::NoSuchUpload, format!("{id:?}")))
    }

    /// Accepts an identifier from a third-party server, in any form.
    pub fn foreign(id: impl Into<String>) -> Self {
        UploadId(id.into().into())
    }

    /// Returns the identifier as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A part in the list of a request that completes an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedPart {
    /// The part number, 1 to 10,000.
    pub number: u16,
    /// The ETag that the upload of the part returned.
    pub etag: ETag,
    /// The checksum of the part, if the client sent it.
    pub checksum: Option<Checksum>,
}

impl CompletedPart {
    /// Creates a part without a checksum.
    pub fn new(number: u16, etag: ETag) -> Self {
        CompletedPart { number, etag, checksum: None }
    }
}

/// Options for completing an upload.
#[derive(Clone, Debug, Default)]
pub struct CompleteOptions {
    /// Conditions that must hold at the moment of publishing.
    pub conditions: Conditions,
    /// The object's checksum, if the client sent it.
    pub checksum: Option<Checksum>,
    /// The object's size in bytes, if the client sent it.
    pub size: Option<u64>,
}

impl CompleteOptions {
    /// Returns options that contain only conditions.
    pub fn conditions(conditions: Conditions) -> Self {
        CompleteOptions { conditions, ..Default::default() }
    }

    /// Checks the size and checksum from the client against the size and checksum computed from the parts. Errors:
    /// `IncompleteBody`, `BadDigest`, and `InvalidArgument` for a checksum if the parts have no checksums.
    pub fn check(&self, size: u64, checksum: Option<&Checksum>) -> Result<()> {
        if let Some(stated) = self.size.filter(|stated| *stated != size) {
            let why = format!("the parts have {size} bytes, but {stated} were stated");
            return Err(Error::new(ErrorKind::IncompleteBody, why));
        }
        match (&self.checksum, checksum) {
            (Some(stated), Some(found)) if !found.is_stated_as(stated) => Err(Error::new(
                ErrorKind::BadDigest,
                format!("the object does not match its {}", found.algorithm.name()),
            )),
            (Some(stated), None) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the parts were not sent with a {}", stated.algorithm.name()),
            )),
            _ => Ok(()),
        }
    }
}

/// A part of an upload in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartInfo {
    /// The part number, 1 to 10,000.
    pub number: u16,
    /// The size in bytes.
    pub size: u64,
    /// The ETag of the part.
    pub etag: ETag,
    /// The time at which the part arrived.
    pub modified: SystemTime,
    /// The checksum of the part, if the client sent one with the part or the upload has a checksum.
    pub checksum: Option<Checksum>,
}

/// Selects the parts to list.
#[derive(Clone, Debug)]
pub struct PartsQuery {
    /// Only parts with numbers larger than this value are returned.
    pub after: u16,
    /// The maximum number of parts to return.
    pub max_parts: usize,
}

impl Default for PartsQuery {
    fn default() -> Self {
        PartsQuery { after: 0, max_parts: 1000 }
    }
}

/// One page of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartListing {
    /// The parts, in ascending order of number.
    pub parts: Vec<PartInfo>,
    /// Whether there are more parts.
    pub truncated: bool,
    /// The algorithm and type of the checksum that the upload was started with.
    pub checksum: Option<ChecksumAlgorithmAndType>,
}

/// Selects the uploads to list.
#[derive(Clone, Debug)]
pub struct UploadsQuery {
    /// Restricts the listing to keys with this prefix.
    pub prefix: String,
    /// Restricts the listing to keys after this key; with `upload_after`, later uploads of this key are also listed.
    pub key_after: Option<String>,
    /// With `key_after`, restricts the listing to uploads of that key with a larger identifier, and to uploads of
    /// later keys.
    pub upload_after: Option<String>,
    /// The maximum number of uploads to return.
    pub max_uploads: usize,
}

impl Default for UploadsQuery {
    fn default() -> Self {
        UploadsQuery { prefix: String::new(), key_after: None, upload_after: None, max_uploads: 1000 }
    }
}

impl UploadsQuery {
    /// Sorts `uploads` and returns the requested page of them.
    pub fn page(&self, mut uploads: Vec<UploadSummary>) -> UploadListing {
        uploads.retain(|upload| self.selects(&upload.key, &upload.upload));
        uploads.sort_by(|a, b| (&a.key, &a.upload).cmp(&(&b.key, &b.upload)));
        let truncated = uploads.len() > self.max_uploads;
        uploads.truncate(self.max_uploads);
        UploadListing { uploads, truncated }
    }

    /// Returns whether `upload`, an upload of `key`, belongs to the requested page or to a later page.
    pub fn selects(&self, key: &str, upload: &UploadId) -> bool {
        let is_after_start = match (self.key_after.as_deref(), &self.upload_after) {
            (None, _) => true,
            (Some(start), Some(id)) if start == key => upload.as_str() > id.as_str(),
            (Some(start), _) => key > start,
        };
        is_after_start && key.starts_with(&self.prefix)
    }
}

/// An upload in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadSummary {
    /// The key of the object to publish.
    pub key: String,
    /// The identifier of the upload.
    pub upload: UploadId,
    /// The time at which the upload was started.
    pub started: SystemTime,
    /// The algorithm and type of the checksum that the upload was started with.
    pub checksum: Option<ChecksumAlgorithmAndType>,
}

/// One page of uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadListing {
    /// The uploads, by key and then by identifier.
    pub uploads: Vec<UploadSummary>,
    /// Whether there are more uploads.
    pub truncated: bool,
}

/// Checks a part number. Errors: `InvalidArgument`.
pub fn checked_part_number(number: u16) -> Result<u16> {
    match number {
        1..=MAX_PARTS => Ok(number),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("part {number} is not within 1 to {MAX_PARTS}"),
        )),
    }
}

impl CompletedPart {
    /// Checks the client's list against the existing parts (in ascending order of number), and returns the listed parts
    /// in order. Errors: `InvalidArgument` for an empty list; `InvalidPartOrder`, `InvalidPart`, `EntityTooSmall`.
    pub fn select<'p>(wanted: &[CompletedPart], present: &'p [PartInfo]) -> Result<Vec<&'p PartInfo>> {
        if wanted.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "an upload without parts cannot be completed",
            ));
        }
        if !wanted.windows(2).all(|pair| pair[0].number < pair[1].number) {
            return Err(ErrorKind::InvalidPartOrder.into());
        }
        let parts = wanted.iter().map(|part| part.find(present)).collect::<Result<Vec<_>>>()?;
        match parts.split_last().and_then(|(_, rest)| rest.iter().find(|part| part.size < MIN_PART_BYTES)) {
            Some(small) => Err(Error::new(
                ErrorKind::EntityTooSmall,
                format!("part {} has {} bytes", small.number, small.size),
            )),
            None => Ok(parts),
        }
    }

    /// Returns whether an object with this ETag could have been completed from the parts `wanted`, under either ETag
    /// policy. Both policies are possible, because a store does not keep the policy of a completed upload.
    pub fn could_make(wanted: &[CompletedPart], object: &ETag) -> bool {
        [ETagPolicy::Md5, ETagPolicy::Fast]
            .into_iter()
            .any(|policy| etag_of_etags(policy, wanted.iter().map(|part| &part.etag)) == *object)
    }

    fn find<'p>(&self, present: &'p [PartInfo]) -> Result<&'p PartInfo> {
        let found =
            present.binary_search_by_key(&self.number, |part| part.number).ok().map(|at| &present[at]);
        match found {
            Some(part) if part.etag == self.etag && self.fits_checksum(part) => Ok(part),
            Some(part) if part.etag == self.etag => Err(Error::new(
                ErrorKind::InvalidPart,
                format!("part {} does not match the stated checksum", self.number),
            )),
            Some(part) => Err(Error::new(
                ErrorKind::InvalidPart,
                format!("part {} has the ETag {}, not {}", self.number, part.etag, self.etag),
            )),
            None => Err(Error::new(ErrorKind::InvalidPart, format!("part {} was never sent", self.number))),
        }
    }
}

/// Returns the ETag of an object completed from `parts`. As in S3, the tag consists of the MD5 of the parts' MD5s and
/// the number of parts. Under [`ETagPolicy::Fast`], the tag has this form too, but is derived from the parts' tags.
pub fn multipart_etag(policy: ETagPolicy, parts: &[&PartInfo]) -> ETag {
    etag_of_etags(policy, parts.iter().map(|part| &part.etag))
}

fn etag_of_etags<'e>(policy: ETagPolicy, etags: impl ExactSizeIterator<Item = &'e ETag>) -> ETag {
    let (mut md5, count) = (fast_md5::Md5::new(), etags.len());
    for etag in etags {
        match (policy, etag.as_md5()) {
            (ETagPolicy::Md5, Some(digest)) => md5.update(&digest),
            _ => md5.update(etag.as_str().as_bytes()),
        }
    }
    ETag::of_parts(md5.finalize(), count)
}

impl CompletedPart {
    fn fits_checksum(&self, part: &PartInfo) -> bool {
        self.checksum.is_none() || self.checksum == part.checksum
    }
}

/// Returns the checksum of an object completed from `parts`; `None` if a part has no checksum of `algorithm`, or if the
/// type is [`ChecksumType::FullObject`] and the algorithm is not a CRC.
pub fn multipart_checksum(
    algorithm: ChecksumAlgorithm,
    checksum_type: ChecksumType,
    parts: &[&PartInfo],
) -> Option<Checksum> {
    let of_part = |part: &&PartInfo| part.checksum.clone().filter(|sum| sum.algorithm == algorithm);
    let sums = parts.iter().map(of_part).collect::<Option<Vec<_>>>()?;
    match checksum_type {
        ChecksumType::Composite => Some(Checksum::composite(algorithm, &sums.iter().collect::<Vec<_>>())),
        ChecksumType::FullObject => {
            let mut joined = Checksum::of(algorithm, b"");
            for (sum, part) in sums.iter().zip(parts) {
                joined = joined.followed_by(sum, part.size)?;
            }
            Some(joined)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn part(number: u16, size: u64) -> PartInfo {
        let etag = ETag::new(&format!("t{number}"));
        PartInfo { number, size, etag, modified: UNIX_EPOCH, checksum: None }
    }

    fn part_of(content: &[u8], algorithm: ChecksumAlgorithm) -> PartInfo {
        PartInfo { checksum: Some(Checksum::of(algorithm, content)), ..part(1, content.len() as u64) }
    }

    /// The combined CRC of the parts equals the CRC of the whole content, wherever the content is split.
    #[test]
    fn crcs_of_parts_combine() {
        let content: Vec<u8> = (0..2000_u32).map(|at| ((at * at) >> 3) as u8).collect();
        for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Crc32c, ChecksumAlgorithm::Crc64Nvme] {
            for cut in [0, 1, 1000, 1999, 2000] {
                let (head, tail) = content.split_at(cut);
                let parts = [part_of(head, algorithm), part_of(tail, algorithm)];
                let joined = multipart_checksum(
                    algorithm,
                    ChecksumType::FullObject,
                    &parts.iter().collect::<Vec<_>>(),
                );
                assert_eq!(joined, Some(Checksum::of(algorithm, &content)), "{algorithm:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn parts_make_the_object_whose_etag_follows_from_theirs() {
        let parts = [part(1, 5), part(2, 5)];
        let named = |tags: &[&str]| -> Vec<_> {
            (1..).zip(tags).map(|(number, tag)| CompletedPart::new(number, ETag::new(tag))).collect()
        };
        for policy in [ETagPolicy::Md5, ETagPolicy::Fast] {
            let made = multipart_etag(policy, &parts.iter().collect::<Vec<_>>());
            assert!(CompletedPart::could_make(&named(&["t1", "t2"]), &made));
            for other in [&["t2", "t1"][..], &["t1"], &["t1", "t3"], &[]] {
                assert!(!CompletedPart::could_make(&named(other), &made), "{other:?}");
            }
        }
    }

    #[test]
    fn a_composite_is_made_of_the_checksums() {
        let algorithm = ChecksumAlgorithm::Sha256;
        let (one, two) = (part_of(b"one", algorithm), part_of(b"two", algorithm));
        let sum = |part: &PartInfo| part.checksum.clone().unwrap().value;
        let found = multipart_checksum(algorithm, ChecksumType::Composite, &[&one, &two]).unwrap();
        assert_eq!(found.value, Checksum::of(algorithm, &[sum(&one), sum(&two)].concat()).value);
        assert!(found.to_base64().ends_with("=-2"));
        assert_eq!(Checksum::from_base64(algorithm, &found.to_base64()).unwrap(), found);
        let other = part_of(b"two", ChecksumAlgorithm::Sha1);
        assert_eq!(multipart_checksum(algorithm, ChecksumType::Composite, &[&one, &other]), None);
    }

    #[test]
    fn what_is_stated_at_completion_must_hold() {
        let sum = |content: &[u8]| Checksum::of(ChecksumAlgorithm::Crc32, content);
        let stated = CompleteOptions { checksum: Some(sum(b"x")), size: Some(1), ..Default::default() };
        assert!(stated.check(1, Some(&sum(b"x"))).is_ok());
        assert_eq!(stated.check(2, Some(&sum(b"x"))).unwrap_err().kind(), ErrorKind::IncompleteBody);
        assert_eq!(stated.check(1, Some(&sum(b"y"))).unwrap_err().kind(), ErrorKind::BadDigest);
        assert_eq!(stated.check(1, None).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn completion_is_checked() {
        let present = [part(1, MIN_PART_BYTES), part(3, 10), part(7, 10)];
        let named = |numbers: &[u16]| -> Vec<CompletedPart> {
            let named = |&number| CompletedPart::new(number, ETag::new(&format!("t{number}")));
            numbers.iter().map(named).collect()
        };
        let kind = |numbers: &[u16]| CompletedPart::select(&named(numbers), &present).err().map(|e| e.kind());
        assert_eq!(kind(&[1, 7]), None);
        assert_eq!(kind(&[]), Some(ErrorKind::InvalidArgument));
        assert_eq!(kind(&[7, 1]), Some(ErrorKind::InvalidPartOrder));
        assert_eq!(kind(&[1, 1]), Some(ErrorKind::InvalidPartOrder));
        assert_eq!(kind(&[1, 2]), Some(ErrorKind::InvalidPart));
        assert_eq!(kind(&[1, 3, 7]), Some(ErrorKind::EntityTooSmall));
        let wrong = [CompletedPart::new(1, ETag::new("other"))];
        assert_eq!(CompletedPart::select(&wrong, &present).unwrap_err().kind(), ErrorKind::InvalidPart);
    }

    /// Two empty parts: the expected value is the MD5 of their two MD5s (32 bytes), computed with md5sum.
    #[test]
    fn etag_of_parts() {
        let empty = PartInfo { etag: ETag::from_md5(fast_md5::digest(b"")), ..part(1, 0) };
        let tag = multipart_etag(ETagPolicy::Md5, &[&empty, &empty]);
        assert_eq!(tag.as_str(), "5873dd45edd01f09c1ef2e7819369e8e-2");
    }

    #[test]
    fn upload_ids_are_plain() {
        assert!(UploadId::new("AZaz09-_").is_ok());
        for bad in ["", "../x", "a/b", "a.b", &"x".repeat(129)] {
            assert_eq!(UploadId::new(bad).unwrap_err().kind(), ErrorKind::NoSuchUpload);
        }
    }
}
