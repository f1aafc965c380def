//! An object's record: the properties that exist in S3 but not in POSIX, encoded in one extended attribute.
//!
//! ```text
//! byte 0       version, 1
//! then fields  tag (1 byte), length (2 bytes, little-endian), that many bytes
//!   1  seal          size (8) and mtime in ns (8), little-endian, for which ETag and checksum are valid
//!   2  ETag          text
//!   3  checksum      algorithm (1: 0 CRC32, 1 CRC32C, 2 CRC64NVME, 3 SHA1, 4 SHA256,
//!                    5 SHA512, 6 MD5, 7 XXHASH64, 8 XXHASH3, 9 XXHASH128), value; if composite,
//!                    the number of parts (2)
//!   4  Content-Type   5  Content-Encoding   6  Content-Language   7  Content-Disposition
//!   8  Cache-Control  9  Expires            text
//!  10  user metadata name (length 1 byte), value; repeated
//!  11  key           text; the key in the record of an upload, the file in the record of a part
//!  12  ETag policy   0 md5, 1 fast; only in the record of a multipart upload
//!  13  tag           name (length 2 bytes), value; repeated
//!  14  part sizes    count (2), size (8) of this many parts in a row; repeated within and as a field
//!  15  part sums     the checksums of all parts, by the object's algorithm; repeated
//!  16  version       text
//!  17  upload's sum  algorithm (1), type (1: 0 full object, 1 composite); in the record of an upload
//!  18  apart         empty: the rest of the record is in a sidecar file below `meta/`
//!  19  upload        text; the identifier of the multipart upload that the object was completed by
//!  20  retention     mode (1: 0 governance, 1 compliance), date in ms since 1970 (8)
//!  21  legal hold    1 byte: 0 off, 1 on
//! ```
//!
//! Fields with unknown tags are skipped, so that a later version can add fields. A file without the attribute has an
//! empty record: a POSIX program created the file, or the object is bare.

use std::os::unix::fs::MetadataExt;

use fordway_store::{
    BoxedMetadata, Checksum, ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, ETag, ETagPolicy,
    ObjectLock, ObjectPart, Retention, RetentionMode, Tags, UploadId, VersionId,
};
use fordway_sys::FileStat;

const VERSION: u8 = 1;

/// The size and modification time for which a stored ETag and checksum are valid. If a POSIX program has changed the
/// file, the file's current size or time differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentChangeStamp {
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
}

impl ContentChangeStamp {
    pub(crate) fn of(stat: &FileStat) -> Self {
        ContentChangeStamp { size: stat.size, modified_ns: stat.modified_ns }
    }
}

/// The record of an object, stored in the attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    pub(crate) seal: Option<ContentChangeStamp>,
    pub(crate) etag: Option<ETag>,
    pub(crate) checksum: Option<Checksum>,
    pub(crate) metadata: BoxedMetadata,
    pub(crate) key: Option<String>,
    pub(crate) etag_policy: Option<ETagPolicy>,
    pub(crate) tags: Tags,
    pub(crate) parts: Vec<ObjectPart>,
    pub(crate) version: Option<VersionId>,
    /// The checksum algorithm and type of a multipart upload.
    pub(crate) upload_checksum: Option<ChecksumAlgorithmAndType>,
    /// Whether the rest of the record is in a sidecar file.
    pub(crate) is_apart: bool,
    /// The upload from which the object was created. If the completion is requested again, this field shows that the
    /// upload was already completed.
    pub(crate) made_by: Option<UploadId>,
    /// The lock of this version.
    pub(crate) lock: ObjectLock,
}

/// The record of a file that has no attribute.
pub(crate) static NOTHING: ObjectRecord = ObjectRecord {
    seal: None,
    etag: None,
    checksum: None,
    metadata: BoxedMetadata::EMPTY,
    key: None,
    etag_policy: None,
    tags: Tags::new(),
    parts: Vec::new(),
    version: None,
    upload_checksum: None,
    is_apart: false,
    made_by: None,
    lock: ObjectLock::NONE,
};

/// The maximum total size, in bytes, of the part checksums in one field.
const SUMS_BYTES: usize = 32 * 1024;

impl ObjectRecord {
    /// Returns whether the record contains no properties, like [`NOTHING`]. Comparing the record with `NOTHING` would
    /// take several times as long.
    pub(crate) fn is_empty(&self) -> bool {
        let ObjectRecord { seal, etag, checksum, metadata, key, etag_policy, tags, parts, version, .. } =
            self;
        let ObjectRecord { upload_checksum, is_apart, made_by, lock, .. } = self;
        let has_content = seal.is_some() || etag.is_some() || checksum.is_some() || !parts.is_empty();
        let has_names = key.is_some() || version.is_some() || made_by.is_some();
        let has_settings = etag_policy.is_some() || upload_checksum.is_some() || !lock.is_none();
        !(has_content || has_names || has_settings || *is_apart || !metadata.is_empty() || !tags.is_empty())
    }

    /// Returns whether `stat` may come from a stale cache entry: whether the record was sealed for content that is
    /// newer than `stat`, or that has the same time but a different size. This node's clock does not matter, because
    /// the time may come from the clock of another node, and the two clocks may differ by any amount.
    pub(crate) fn is_newer_than(&self, stat: &FileStat) -> bool {
        let differing = self.seal.filter(|seal| *seal != ContentChangeStamp::of(stat));
        differing.is_some_and(|seal| seal.modified_ns >= stat.modified_ns)
    }

    /// Drops the ETag, the checksum and the parts if the file has changed since the record was sealed. Also drops parts
    /// that together do not have the file's size, because another program has written their record.
    pub(crate) fn unseal_for(mut self, stat: &FileStat) -> Self {
        if self.seal != Some(ContentChangeStamp::of(stat)) {
            self.etag = None;
            self.checksum = None;
            self.parts.clear();
        }
        let total = self.parts.iter().try_fold(0_u64, |total, part| total.checked_add(part.size));
        if total != Some(stat.size) {
            self.parts.clear();
        }
        self
    }

    /// Returns the record of a part with this size. The size is recorded because the parts in `data` share one file,
    /// from which the size of a single part cannot be read.
    pub(crate) fn with_size(mut self, size: u64) -> Self {
        self.seal = Some(ContentChangeStamp { size, modified_ns: 0 });
        self
    }

    /// Encodes the record as the attribute's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(96);
        bytes.push(VERSION);
        if let Some(seal) = self.seal {
            field(&mut bytes, 1, &[&seal.size.to_le_bytes(), &seal.modified_ns.to_le_bytes()]);
        }
        if let Some(etag) = &self.etag {
            field(&mut bytes, 2, &[etag.as_str().as_bytes()]);
        }
        if let Some(checksum) = &self.checksum {
            let parts = checksum.parts.map(u16::to_le_bytes);
            let parts = parts.as_ref().map_or(&[][..], |parts| &parts[..]);
            field(&mut bytes, 3, &[&[checksum.algorithm as u8], &checksum.value, parts]);
        }
        for (tag, text) in (4..).zip(self.headers()) {
            if let Some(text) = text {
                field(&mut bytes, tag, &[text.as_bytes()]);
            }
        }
        for (name, value) in &self.metadata.user {
            let name = &name.as_bytes()[..name.len().min(255)];
            field(&mut bytes, 10, &[&[name.len() as u8], name, value.as_bytes()]);
        }
        if let Some(key) = &self.key {
            field(&mut bytes, 11, &[key.as_bytes()]);
        }
        if let Some(policy) = self.etag_policy {
            field(&mut bytes, 12, &[&[u8::from(policy == ETagPolicy::Fast)]]);
        }
        for (name, value) in &self.tags {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes();
            field(&mut bytes, 13, &[&length, name.as_bytes(), value.as_bytes()]);
        }
        self.encode_parts(&mut bytes);
        if let Some(version) = &self.version {
            field(&mut bytes, 16, &[version.as_str().as_bytes()]);
        }
        if let Some(ChecksumAlgorithmAndType { algorithm, kind }) = self.upload_checksum {
            field(&mut bytes, 17, &[&[algorithm as u8, u8::from(kind == ChecksumType::Composite)]]);
        }
        if self.is_apart {
            field(&mut bytes, 18, &[]);
        }
        if let Some(upload) = &self.made_by {
            field(&mut bytes, 19, &[upload.as_str().as_bytes()]);
        }
        if let Some(Retention { mode, until_ms }) = self.lock.retention {
            let mode = u8::from(mode == RetentionMode::Compliance);
            field(&mut bytes, 20, &[&[mode], &until_ms.to_le_bytes()]);
        }
        if let Some(is_on) = self.lock.legal_hold {
            field(&mut bytes, 21, &[&[u8::from(is_on)]]);
        }
        bytes
    }

    /// Appends the sizes of the parts, grouped in runs of equal size. If every part has a checksum, also appends the
    /// checksums.
    fn encode_parts(&self, bytes: &mut Vec<u8>) {
        for run in self.parts.chunk_by(|a, b| a.size == b.size) {
            let count = u16::try_from(run.len()).unwrap_or(u16::MAX);
            field(bytes, 14, &[&count.to_le_bytes(), &run[0].size.to_le_bytes()]);
        }
        let Some(algorithm) = self.checksum.as_ref().map(|checksum| checksum.algorithm) else { return };
        let sums: Option<Vec<&[u8]>> = self.parts.iter().map(|part| sum_of(part, algorithm)).collect();
        let Some(sums) = sums else { return };
        for sums in sums.chunks(SUMS_BYTES / algorithm.len_bytes()) {
            field(bytes, 15, &[&sums.concat()]);
        }
    }

    /// Decodes the attribute's bytes; returns `None` if the bytes are not a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, mut rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let mut record = ObjectRecord::default();
        let mut sums = Vec::new();
        while let Some((&tag, after)) = rest.split_first() {
            let (length, after) = after.split_first_chunk()?;
            let (value, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            match tag {
                15 => sums.extend_from_slice(value),
                _ => record.take(tag, value)?,
            }
            rest = after;
        }
        record.take_part_sums(&sums)?;
        Some(record)
    }

    fn take_part_sums(&mut self, sums: &[u8]) -> Option<()> {
        if sums.is_empty() {
            return Some(());
        }
        let algorithm = self.checksum.as_ref()?.algorithm;
        let mut values = sums.chunks_exact(algorithm.len_bytes());
        if values.len() != self.parts.len() || !values.remainder().is_empty() {
            return None;
        }
        for (part, value) in self.parts.iter_mut().zip(&mut values) {
            part.checksum = Some(Checksum { algorithm, value: value.to_vec(), parts: None });
        }
        Some(())
    }

    fn take_part_sizes(&mut self, value: &[u8]) -> Option<()> {
        let (count, size) = value.split_first_chunk()?;
        let (count, size) = (u16::from_le_bytes(*count), u64::from_le_bytes(size.try_into().ok()?));
        let first = u16::try_from(self.parts.len()).ok()?;
        let last = first.checked_add(count).filter(|last| *last <= fordway_store::MAX_PARTS)?;
        self.parts.extend((first + 1..=last).map(|number| ObjectPart { number, size, checksum: None }));
        Some(())
    }

    fn headers(&self) -> [&Option<String>; 6] {
        let m = &self.metadata;
        [
            &m.content_type,
            &m.content_encoding,
            &m.content_language,
            &m.content_disposition,
            &m.cache_control,
            &m.expires,
        ]
    }

    fn take(&mut self, tag: u8, value: &[u8]) -> Option<()> {
        let text = || std::str::from_utf8(value).ok().map(str::to_owned);
        match tag {
            1 => {
                let (size, time) = value.split_first_chunk()?;
                let (size, modified_ns) =
                    (u64::from_le_bytes(*size), i64::from_le_bytes(time.try_into().ok()?));
                self.seal = Some(ContentChangeStamp { size, modified_ns });
            }
            2 => self.etag = Some(etag(value)?),
            3 => self.checksum = Some(checksum(value)?),
            4 => self.metadata.content_type = Some(text()?),
            5 => self.metadata.content_encoding = Some(text()?),
            6 => self.metadata.content_language = Some(text()?),
            7 => self.metadata.content_disposition = Some(text()?),
            8 => self.metadata.cache_control = Some(text()?),
            9 => self.metadata.expires = Some(text()?),
            10 => {
                let (&length, rest) = value.split_first()?;
                self.metadata.user.extend([name_and_value(usize::from(length), rest)?]);
            }
            11 => self.key = Some(text()?),
            12 => {
                self.etag_policy = Some(if *value.first()? == 1 { ETagPolicy::Fast } else { ETagPolicy::Md5 })
            }
            13 => {
                let (length, rest) = value.split_first_chunk()?;
                self.tags.extend([name_and_value(usize::from(u16::from_le_bytes(*length)), rest)?]);
            }
            14 => self.take_part_sizes(value)?,
            16 => self.version = Some(VersionId::new(text()?).ok()?),
            17 => {
                let (&algorithm, kind) = value.split_first()?;
                let kind =
                    if *kind.first()? == 1 { ChecksumType::Composite } else { ChecksumType::FullObject };
                self.upload_checksum =
                    Some(ChecksumAlgorithmAndType { algorithm: algorithm_of(algorithm)?, kind });
            }
            18 => self.is_apart = true,
            19 => self.made_by = Some(UploadId::new(text()?).ok()?),
            20 => {
                let (&mode, until) = value.split_first()?;
                let mode = RetentionMode::ALL.get(usize::from(mode)).copied()?;
                let until_ms = u64::from_le_bytes(until.try_into().ok()?);
                self.lock.retention = Some(Retention { mode, until_ms });
            }
            21 => self.lock.legal_hold = Some(*value.first()? != 0),
            _ => {}
        }
        Some(())
    }
}

/// The maximum length of an ETag in a record, in bytes. The longest ETag that Fordway stores has 38 bytes.
const ETAG_BYTES_MAX: usize = 64;

/// Decodes an ETag. Returns `None` for a value that Fordway never stores. Any program that may write to the bucket can
/// write a record; without this check, one record could make a listing invalid, or thousands of times as long.
fn etag(value: &[u8]) -> Option<ETag> {
    let is_valid = |byte: &u8| byte.is_ascii_graphic() && !b"\"&<>".contains(byte);
    let is_tag = (1..=ETAG_BYTES_MAX).contains(&value.len()) && value.iter().all(is_valid);
    is_tag.then(|| std::str::from_utf8(value).ok().map(ETag::new)).flatten()
}

/// Returns the value of the part's checksum, if its algorithm is `algorithm`.
fn sum_of(part: &ObjectPart, algorithm: ChecksumAlgorithm) -> Option<&[u8]> {
    part.checksum.as_ref().filter(|sum| sum.algorithm == algorithm).map(|sum| &sum.value[..])
}

/// Returns the ETag of a file that has no stored ETag. The ETag is derived from the file's inode number, size and
/// modification time. At least one of these three values changes when a POSIX program changes the file.
pub(crate) fn etag_of_file(stat: &FileStat) -> ETag {
    etag_of(stat.inode, stat.size, stat.modified_ns)
}

/// Returns the ETag of an object whose file is described by `about` and has no stored ETag. An object with this ETag is
/// almost certainly this file, because the ETag is derived from the file's inode number, size and modification time.
pub fn etag_of_bare_file(about: &std::fs::Metadata) -> ETag {
    let modified_ns = about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec());
    etag_of(about.ino(), about.size(), modified_ns)
}

fn etag_of(inode: u64, size_bytes: u64, modified_ns: i64) -> ETag {
    let low = inode.rotate_left(32) ^ size_bytes;
    ETag::opaque(u128::from(modified_ns as u64) << 64 | u128::from(low))
}

fn field(bytes: &mut Vec<u8>, tag: u8, pieces: &[&[u8]]) {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    bytes.push(tag);
    bytes.extend_from_slice(&length.to_le_bytes());
    let end = bytes.len() + usize::from(length);
    for piece in pieces {
        bytes.extend_from_slice(piece);
    }
    bytes.truncate(end);
}

fn checksum(value: &[u8]) -> Option<Checksum> {
    let (&algorithm, value) = value.split_first()?;
    let algorithm = algorithm_of(algorithm)?;
    let (value, parts) = value.split_at_checked(algorithm.len_bytes())?;
    let parts = match parts {
        [] => None,
        parts => Some(u16::from_le_bytes(parts.try_into().ok()?)),
    };
    Some(Checksum { algorithm, value: value.to_vec(), parts })
}

fn algorithm_of(number: u8) -> Option<ChecksumAlgorithm> {
    ChecksumAlgorithm::ALL.into_iter().find(|known| *known as u8 == number)
}

fn name_and_value(length: usize, rest: &[u8]) -> Option<(String, String)> {
    let (name, value) = rest.split_at_checked(length)?;
    let text = |bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
    Some((text(name)?, text(value)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_round_trip(
            seal in proptest::option::of((any::<u64>(), any::<i64>())),
            content_type in proptest::option::of(".{0,80}"),
            expires in proptest::option::of(".{0,20}"),
            user in proptest::collection::btree_map("[a-z-]{1,40}", ".{0,60}", 0..6),
            sum in proptest::option::of(any::<[u8; 8]>()),
            key in proptest::option::of(".{1,100}"),
            tags in proptest::collection::btree_map(".{1,20}", ".{0,20}", 0..10),
            part_sizes in proptest::collection::vec(0..4_u64, 0..3000),
            composite: bool,
            until_ms in proptest::option::of(any::<u64>()),
            legal_hold: Option<bool>,
        ) {
            let algorithm = ChecksumAlgorithm::Crc64Nvme;
            let sum = sum.map(|sum| Checksum { algorithm, value: sum.to_vec(), parts: None });
            let checksum = sum.clone().map(|sum| Checksum { parts: composite.then_some(7), ..sum });
            let part = |(number, size): (u16, u64)| ObjectPart { number, size, checksum: sum.clone() };
            let record = ObjectRecord {
                seal: seal.map(|(size, modified_ns)| ContentChangeStamp { size, modified_ns }),
                etag: seal.map(|_| ETag::opaque(7)),
                checksum,
                metadata: fordway_store::Metadata { content_type, expires, user, ..Default::default() }.into(),
                key,
                etag_policy: seal.map(|_| ETagPolicy::Fast),
                tags,
                parts: (1..).zip(part_sizes).map(part).collect(),
                version: seal.map(|_| VersionId::null()),
                upload_checksum: composite.then_some(ChecksumAlgorithmAndType { algorithm, kind: ChecksumType::Composite }),
                is_apart: composite,
                made_by: composite.then(|| UploadId::new("0123456789abcdef").unwrap()),
                lock: ObjectLock {
                    retention: until_ms.map(|until_ms| Retention {
                        mode: RetentionMode::ALL[usize::from(composite)],
                        until_ms,
                    }),
                    legal_hold,
                },
            };
            prop_assert_eq!(ObjectRecord::decode(&record.encode()), Some(record));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ObjectRecord::decode(&bytes);
            let _ = ObjectRecord::decode(&[&[VERSION][..], &bytes].concat());
        }
    }

    /// The clock of the node that wrote the record may differ from this node's clock by any amount.
    #[test]
    fn a_record_is_newer_than_a_state_whatever_this_node_s_clock_says() {
        let mut stat = fordway_sys::stat(tempfile::tempfile().unwrap()).unwrap();
        let written = stat.modified_ns;
        for seconds in [-600, -120, -30, 0, 30, 120, 600] {
            let seal = ContentChangeStamp { size: 1, modified_ns: written + seconds * 1_000_000_000 };
            let record = ObjectRecord { seal: Some(seal), ..ObjectRecord::default() };
            for (modified_ns, is_newer) in
                [(seal.modified_ns - 1, true), (seal.modified_ns, true), (seal.modified_ns + 1, false)]
            {
                stat.modified_ns = modified_ns;
                assert_eq!(record.is_newer_than(&stat), is_newer, "{seconds} s");
            }
            (stat.size, stat.modified_ns) = (1, seal.modified_ns);
            assert!(!record.is_newer_than(&stat), "{seconds} s: nothing differs");
            stat.size = 0;
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let mut bytes = ObjectRecord::default().encode();
        field(&mut bytes, 200, &[b"later"]);
        assert_eq!(ObjectRecord::decode(&bytes), Some(ObjectRecord::default()));
        assert_eq!(ObjectRecord::decode(&[2]), None);
        assert_eq!(ObjectRecord::decode(&[]), None);
    }
}
