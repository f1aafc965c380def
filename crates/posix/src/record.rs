//! What S3 knows of an object and POSIX does not, packed into one extended attribute.
//!
//! ```text
//! byte 0       version, 1
//! then fields  tag (1 byte), length (2 bytes, little-endian), that many bytes
//!   1  seal          size (8) and mtime in ns (8), little-endian: what ETag and checksum hold for
//!   2  ETag          text
//!   3  checksum      algorithm (1: 0 CRC32, 1 CRC32C, 2 CRC64NVME, 3 SHA1, 4 SHA256), value
//!   4  Content-Type   5  Content-Encoding   6  Content-Language   7  Content-Disposition
//!   8  Cache-Control  9  Expires            text
//!  10  user metadata name (length 1 byte), value; repeated
//!  11  key           text; in the record of a multipart upload its key, in that of a part its file
//!  12  ETag policy   0 md5, 1 fast; only there
//! ```
//!
//! Fields with unknown tags are skipped, so that a later version can add some. No attribute means
//! a record of nothing: a file that POSIX made.

use fordway_store::{Checksum, ChecksumAlgorithm, ETag, ETagPolicy, Metadata};
use fordway_sys::FileStat;

const VERSION: u8 = 1;

/// Size and time that a stored ETag and checksum hold for. A file that POSIX changed has others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
}

impl Seal {
    pub(crate) fn of(stat: &FileStat) -> Self {
        Seal { size: stat.size, modified_ns: stat.modified_ns }
    }
}

/// The content of the attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seal: Option<Seal>,
    pub(crate) etag: Option<ETag>,
    pub(crate) checksum: Option<Checksum>,
    pub(crate) metadata: Metadata,
    pub(crate) key: Option<String>,
    pub(crate) etag_policy: Option<ETagPolicy>,
}

impl Record {
    /// Drops what holds for the content only, where the file is no longer what was sealed.
    pub(crate) fn unseal_for(mut self, stat: &FileStat) -> Self {
        if self.seal != Some(Seal::of(stat)) {
            self.etag = None;
            self.checksum = None;
        }
        self
    }

    /// The record of a part, whose size no file tells.
    pub(crate) fn with_size(mut self, size: u64) -> Self {
        self.seal = Some(Seal { size, modified_ns: 0 });
        self
    }

    /// The attribute's bytes.
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
            field(&mut bytes, 3, &[&[checksum.algorithm as u8], &checksum.value]);
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
        bytes
    }

    /// Reads the attribute's bytes; `None` if they are not a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, mut rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let mut record = Record::default();
        while let Some((&tag, after)) = rest.split_first() {
            let (length, after) = after.split_first_chunk()?;
            let (value, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            record.take(tag, value)?;
            rest = after;
        }
        Some(record)
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
        let m = &mut self.metadata;
        match tag {
            1 => {
                let (size, time) = value.split_first_chunk()?;
                let (size, modified_ns) =
                    (u64::from_le_bytes(*size), i64::from_le_bytes(time.try_into().ok()?));
                self.seal = Some(Seal { size, modified_ns });
            }
            2 => self.etag = Some(ETag::new(std::str::from_utf8(value).ok()?)),
            3 => self.checksum = Some(checksum(value)?),
            4 => m.content_type = Some(text()?),
            5 => m.content_encoding = Some(text()?),
            6 => m.content_language = Some(text()?),
            7 => m.content_disposition = Some(text()?),
            8 => m.cache_control = Some(text()?),
            9 => m.expires = Some(text()?),
            10 => {
                let (&length, rest) = value.split_first()?;
                let (name, value) = rest.split_at_checked(usize::from(length))?;
                let text = |bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
                m.user.insert(text(name)?, text(value)?);
            }
            11 => self.key = Some(text()?),
            12 => {
                self.etag_policy = Some(if *value.first()? == 1 { ETagPolicy::Fast } else { ETagPolicy::Md5 })
            }
            _ => {}
        }
        Some(())
    }
}

/// The ETag of a file that has no stored one: its inode, size and time of change, which a POSIX
/// program that changes it changes too.
pub(crate) fn etag_of_file(stat: &FileStat) -> ETag {
    let low = stat.inode.rotate_left(32) ^ stat.size;
    ETag::opaque(u128::from(stat.modified_ns as u64) << 64 | u128::from(low))
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
    let algorithm = ChecksumAlgorithm::ALL.into_iter().find(|known| *known as u8 == algorithm)?;
    (value.len() == algorithm.len_bytes()).then(|| Checksum { algorithm, value: value.to_vec() })
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
        ) {
            let checksum = sum.map(|sum| Checksum { algorithm: ChecksumAlgorithm::Crc64Nvme, value: sum.to_vec() });
            let record = Record {
                seal: seal.map(|(size, modified_ns)| Seal { size, modified_ns }),
                etag: seal.map(|_| ETag::opaque(7)),
                checksum,
                metadata: Metadata { content_type, expires, user, ..Default::default() },
                key,
                etag_policy: seal.map(|_| ETagPolicy::Fast),
            };
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes);
            let _ = Record::decode(&[&[VERSION][..], &bytes].concat());
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let mut bytes = Record::default().encode();
        field(&mut bytes, 200, &[b"later"]);
        assert_eq!(Record::decode(&bytes), Some(Record::default()));
        assert_eq!(Record::decode(&[2]), None);
        assert_eq!(Record::decode(&[]), None);
    }
}
