//! Digests of content: computed while the content is streamed, and checked against expected values before the content
//! is published.

use std::hash::Hasher as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use sha2::Digest as _;
use twox_hash::{XxHash3_64, XxHash3_128, XxHash64};

use crate::{ETag, ETagPolicy, Error, ErrorKind, Result};

/// The checksum algorithms that S3 supports, ordered by their numbers on disk and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumAlgorithm {
    /// CRC-32 (ISO-HDLC), 4 bytes.
    Crc32,
    /// CRC-32C (Castagnoli), 4 bytes.
    Crc32c,
    /// CRC-64/NVME, 8 bytes.
    Crc64Nvme,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
    /// MD5, 16 bytes.
    Md5,
    /// XXH64 with seed 0, 8 bytes.
    XxHash64,
    /// 64-bit XXH3 with seed 0, 8 bytes.
    XxHash3,
    /// 128-bit XXH3 with seed 0, 16 bytes.
    XxHash128,
}

impl ChecksumAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 10] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Md5,
        Self::XxHash64,
        Self::XxHash3,
        Self::XxHash128,
    ];

    /// Returns the name in S3's headers and XML.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
            Self::Md5 => "MD5",
            Self::XxHash64 => "XXHASH64",
            Self::XxHash3 => "XXHASH3",
            Self::XxHash128 => "XXHASH128",
        }
    }

    /// Returns the lowercase name of S3's checksum header.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
            Self::Sha512 => "x-amz-checksum-sha512",
            Self::Md5 => "x-amz-checksum-md5",
            Self::XxHash64 => "x-amz-checksum-xxhash64",
            Self::XxHash3 => "x-amz-checksum-xxhash3",
            Self::XxHash128 => "x-amz-checksum-xxhash128",
        }
    }

    /// Returns whether the checksum of the whole content can be computed from its parts' checksums.
    const fn is_crc(self) -> bool {
        matches!(self, Self::Crc32 | Self::Crc32c | Self::Crc64Nvme)
    }

    /// Returns the algorithm that has this name in S3's headers and XML, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// Returns the digest's length in bytes.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme | Self::XxHash64 | Self::XxHash3 => 8,
            Self::Md5 | Self::XxHash128 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// The data from which the checksum of a multipart object is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumType {
    /// The whole content, as for an object that is put as a whole. Only the three CRCs support this type, because the
    /// CRCs of parts can be combined.
    FullObject,
    /// The checksums of the parts, one after the other. All algorithms except CRC-64/NVME support this type.
    Composite,
}

impl ChecksumType {
    /// Returns the name in S3's headers and XML.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullObject => "FULL_OBJECT",
            Self::Composite => "COMPOSITE",
        }
    }

    /// Returns the type with the name `FULL_OBJECT` or `COMPOSITE`; `None` for any other name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::FullObject, Self::Composite].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the type that S3 uses if a request specifies none.
    pub const fn default_of(algorithm: ChecksumAlgorithm) -> Self {
        match algorithm {
            ChecksumAlgorithm::Crc64Nvme => Self::FullObject,
            _ => Self::Composite,
        }
    }

    /// Returns `FullObject` if checksums of `algorithm` can be combined, else `Composite`.
    pub const fn widest_of(algorithm: ChecksumAlgorithm) -> Self {
        match algorithm.is_crc() {
            true => Self::FullObject,
            false => Self::Composite,
        }
    }

    /// Checks that S3 supports this type for `algorithm`. Errors: `InvalidArgument`.
    pub fn check(self, algorithm: ChecksumAlgorithm) -> Result<()> {
        let fits = match self {
            Self::FullObject => algorithm.is_crc(),
            Self::Composite => algorithm != ChecksumAlgorithm::Crc64Nvme,
        };
        let misfit = || {
            let detail = format!("{} does not support the checksum type {}", algorithm.name(), self.name());
            Error::new(ErrorKind::InvalidArgument, detail)
        };
        fits.then_some(()).ok_or_else(misfit)
    }
}

/// The algorithm and type of a checksum, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumAlgorithmAndType {
    /// The algorithm.
    pub algorithm: ChecksumAlgorithm,
    /// Whether the checksum covers the whole content or the parts' checksums.
    pub kind: ChecksumType,
}

/// A checksum: its algorithm, and its value in big-endian order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The algorithm.
    pub algorithm: ChecksumAlgorithm,
    /// The value, which is [`ChecksumAlgorithm::len_bytes`] bytes long.
    pub value: Vec<u8>,
    /// For [`ChecksumType::Composite`], the number of parts; `None` if the checksum was computed from the content.
    pub parts: Option<u16>,
}

impl Checksum {
    /// Computes the checksum of `data`.
    pub fn of(algorithm: ChecksumAlgorithm, data: &[u8]) -> Self {
        let mut running = ChecksumHasherState::new(algorithm);
        running.update(data);
        running.finish()
    }

    /// Parses the value of one of S3's checksum headers: base64, followed by `-N` if the checksum was computed from the
    /// checksums of N parts. Errors: `InvalidArgument`.
    pub fn from_base64(algorithm: ChecksumAlgorithm, text: &str) -> Result<Self> {
        let (value, parts) = match text.split_once('-') {
            Some((value, parts)) => (value, parts.parse().ok().filter(|parts| *parts > 0).map(Some)),
            None => (text, Some(None)),
        };
        match (BASE64.decode(value), parts) {
            (Ok(value), Some(parts)) if value.len() == algorithm.len_bytes() => {
                Ok(Checksum { algorithm, value, parts })
            }
            _ => {
                Err(Error::new(ErrorKind::InvalidArgument, format!("{text:?} is not a {}", algorithm.name())))
            }
        }
    }

    /// Returns the value for S3's headers, in the form that [`Checksum::from_base64`] parses.
    pub fn to_base64(&self) -> String {
        let value = BASE64.encode(&self.value);
        self.parts.map_or(value.clone(), |parts| format!("{value}-{parts}"))
    }

    /// Returns whether `stated` equals this checksum. Clients may omit the number of parts.
    pub(crate) fn is_stated_as(&self, stated: &Checksum) -> bool {
        let parts_fit = stated.parts.is_none() || stated.parts == self.parts;
        parts_fit && self.algorithm == stated.algorithm && self.value == stated.value
    }

    /// Returns whether the checksum was computed from the content or from the parts' checksums.
    pub fn checksum_type(&self) -> ChecksumType {
        self.parts.map_or(ChecksumType::FullObject, |_| ChecksumType::Composite)
    }

    /// Returns the algorithm and type, without the value.
    pub fn plan(&self) -> ChecksumAlgorithmAndType {
        ChecksumAlgorithmAndType { algorithm: self.algorithm, kind: self.checksum_type() }
    }

    /// Computes the checksum of the parts' checksums, in order.
    pub fn composite(algorithm: ChecksumAlgorithm, parts: &[&Checksum]) -> Self {
        let mut running = ChecksumHasherState::new(algorithm);
        parts.iter().for_each(|part| running.update(&part.value));
        Checksum { parts: u16::try_from(parts.len()).ok(), ..running.finish() }
    }

    /// Returns whether this is a CRC that was computed from the content, and can therefore be compared with the
    /// [combined](Checksum::followed_by) CRCs of the parts.
    pub fn is_crc_of_content(&self) -> bool {
        self.parts.is_none() && self.algorithm.is_crc()
    }

    /// Returns the CRC of two contents in sequence: the first has the CRC `self`, and the second has `len` bytes and
    /// the CRC `next`. Returns `None` if the algorithm is not a CRC. Cost: a few microseconds, regardless of `len`.
    pub fn followed_by(&self, next: &Checksum, len: u64) -> Option<Self> {
        let kind = crc_kind(self.algorithm)?;
        let number = |value: &[u8]| value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let combined = crc_fast::checksum_combine(kind, number(&self.value), number(&next.value), len);
        Some(Checksum::of_crc(self.algorithm, combined))
    }

    fn of_crc(algorithm: ChecksumAlgorithm, crc: u64) -> Self {
        let value = crc.to_be_bytes()[8 - algorithm.len_bytes()..].to_vec();
        Checksum { algorithm, value, parts: None }
    }
}

/// The size and digests that the sender specified. They are checked against the content before the content is
/// published.
#[derive(Clone, Debug, Default)]
pub struct ExpectedContent {
    /// The length of the content in bytes.
    pub size: Option<u64>,
    /// The MD5 of the content (`Content-MD5`). Setting this field requires a writer that was opened with `check_md5` or
    /// an MD5 ETag. Without these options, most stores fail with `BadDigest`.
    pub md5: Option<[u8; 16]>,
    /// The checksum of the content, computed with the algorithm that the writer was opened with.
    pub checksum: Option<Checksum>,
}

/// Computes an ETag and checksums in one pass.
pub struct ContentHasher {
    size: u64,
    policy: ETagPolicy,
    md5: Option<fast_md5::Md5>,
    checksum: Option<ChecksumHasherState>,
}

enum ChecksumHasherState {
    Crc(ChecksumAlgorithm, crc_fast::Digest),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
    Md5(fast_md5::Md5),
    XxHash64(XxHash64),
    // The hasher is boxed, because the state of XXH3 takes a kilobyte.
    XxHash3(Box<XxHash3_64>),
    XxHash128(Box<XxHash3_128>),
}

/// The size and the digests that a [`ContentHasher`] computed.
#[derive(Clone, Debug)]
pub struct HashResult {
    /// The number of bytes, including skipped bytes.
    pub size: u64,
    /// The MD5 of the content, if `check_md5` or the ETag policy required it.
    pub md5: Option<[u8; 16]>,
    /// The ETag under the policy; `None` if the policy does not compute it from the content.
    pub etag: Option<ETag>,
    /// The requested checksum.
    pub checksum: Option<Checksum>,
}

impl ContentHasher {
    /// Creates a hasher for the ETag `policy`; `check_md5` adds an MD5 under any policy.
    pub fn new(policy: ETagPolicy, check_md5: bool, checksum: Option<ChecksumAlgorithm>) -> Self {
        ContentHasher {
            size: 0,
            policy,
            md5: (check_md5 || policy == ETagPolicy::Md5).then(fast_md5::Md5::new),
            checksum: checksum.map(ChecksumHasherState::new),
        }
    }

    /// Returns whether nothing is computed from the content, in which case bytes may be [skipped](ContentHasher::skip).
    pub fn is_idle(&self) -> bool {
        self.md5.is_none() && self.checksum.is_none()
    }

    /// Counts bytes that are not passed to the hasher, and that no digest covers.
    pub fn skip(&mut self, bytes: u64) {
        self.size += bytes;
    }

    /// Adds the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.size += data.len() as u64;
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        if let Some(checksum) = &mut self.checksum {
            checksum.update(data);
        }
    }

    /// Finishes the computation and checks the result against `expected`. Errors: `IncompleteBody`, `BadDigest`.
    pub fn finish(self, expected: &ExpectedContent) -> Result<HashResult> {
        let md5 = self.md5.map(fast_md5::Md5::finalize);
        let checksum = self.checksum.map(ChecksumHasherState::finish);
        let etag = md5.filter(|_| self.policy == ETagPolicy::Md5).map(ETag::from_md5);
        let found = HashResult { size: self.size, md5, etag, checksum };
        found.check(expected)?;
        Ok(found)
    }
}

impl HashResult {
    fn check(&self, expected: &ExpectedContent) -> Result<()> {
        if let Some(size) = expected.size
            && size != self.size
        {
            let detail = format!("{} bytes arrived, {size} were announced", self.size);
            return Err(Error::new(ErrorKind::IncompleteBody, detail));
        }
        if let Some(wanted) = expected.md5
            && self.md5.is_none_or(|md5| md5 != wanted)
        {
            return Err(Error::new(ErrorKind::BadDigest, "the content does not match its Content-MD5"));
        }
        if let Some(wanted) = &expected.checksum
            && self.checksum.as_ref() != Some(wanted)
        {
            let detail = format!("the content does not match its {}", wanted.algorithm.name());
            return Err(Error::new(ErrorKind::BadDigest, detail));
        }
        Ok(())
    }
}

impl ChecksumHasherState {
    fn new(algorithm: ChecksumAlgorithm) -> Self {
        match algorithm {
            ChecksumAlgorithm::Crc32 => Self::crc(algorithm, CrcAlgorithm::Crc32IsoHdlc),
            ChecksumAlgorithm::Crc32c => Self::crc(algorithm, CrcAlgorithm::Crc32Iscsi),
            ChecksumAlgorithm::Crc64Nvme => Self::crc(algorithm, CrcAlgorithm::Crc64Nvme),
            ChecksumAlgorithm::Sha1 => ChecksumHasherState::Sha1(sha1::Sha1::new()),
            ChecksumAlgorithm::Sha256 => ChecksumHasherState::Sha256(sha2::Sha256::new()),
            ChecksumAlgorithm::Sha512 => ChecksumHasherState::Sha512(sha2::Sha512::new()),
            ChecksumAlgorithm::Md5 => ChecksumHasherState::Md5(fast_md5::Md5::new()),
            ChecksumAlgorithm::XxHash64 => ChecksumHasherState::XxHash64(XxHash64::with_seed(0)),
            ChecksumAlgorithm::XxHash3 => ChecksumHasherState::XxHash3(Box::new(XxHash3_64::with_seed(0))),
            ChecksumAlgorithm::XxHash128 => {
                ChecksumHasherState::XxHash128(Box::new(XxHash3_128::with_seed(0)))
            }
        }
    }

    fn crc(algorithm: ChecksumAlgorithm, kind: CrcAlgorithm) -> Self {
        ChecksumHasherState::Crc(algorithm, crc_fast::Digest::new(kind))
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            ChecksumHasherState::Crc(_, crc) => crc.update(data),
            ChecksumHasherState::Sha1(sha) => sha.update(data),
            ChecksumHasherState::Sha256(sha) => sha.update(data),
            ChecksumHasherState::Sha512(sha) => sha.update(data),
            ChecksumHasherState::Md5(md5) => md5.update(data),
            ChecksumHasherState::XxHash64(hash) => hash.write(data),
            ChecksumHasherState::XxHash3(hash) => hash.write(data),
            ChecksumHasherState::XxHash128(hash) => hash.write(data),
        }
    }

    fn finish(self) -> Checksum {
        let whole = |algorithm, value| Checksum { algorithm, value, parts: None };
        match self {
            ChecksumHasherState::Crc(algorithm, crc) => Checksum::of_crc(algorithm, crc.finalize()),
            ChecksumHasherState::Sha1(found) => whole(ChecksumAlgorithm::Sha1, found.finalize().to_vec()),
            ChecksumHasherState::Sha256(found) => whole(ChecksumAlgorithm::Sha256, found.finalize().to_vec()),
            ChecksumHasherState::Sha512(found) => whole(ChecksumAlgorithm::Sha512, found.finalize().to_vec()),
            ChecksumHasherState::Md5(found) => whole(ChecksumAlgorithm::Md5, found.finalize().to_vec()),
            ChecksumHasherState::XxHash64(found) => {
                whole(ChecksumAlgorithm::XxHash64, found.finish().to_be_bytes().to_vec())
            }
            ChecksumHasherState::XxHash3(found) => {
                whole(ChecksumAlgorithm::XxHash3, found.finish().to_be_bytes().to_vec())
            }
            ChecksumHasherState::XxHash128(found) => {
                whole(ChecksumAlgorithm::XxHash128, found.finish_128().to_be_bytes().to_vec())
            }
        }
    }
}

/// Returns the CRC variant of `algorithm`; `None` if the algorithm is not a CRC.
fn crc_kind(algorithm: ChecksumAlgorithm) -> Option<CrcAlgorithm> {
    match algorithm {
        ChecksumAlgorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
        ChecksumAlgorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
        ChecksumAlgorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn digest(algorithm: ChecksumAlgorithm) -> String {
        let mut hasher = ContentHasher::new(ETagPolicy::Md5, false, Some(algorithm));
        hasher.update(b"1234");
        hasher.update(b"56789");
        let found = hasher.finish(&ExpectedContent::default()).unwrap();
        hex(&found.checksum.unwrap().value)
    }

    /// The check values for "123456789". The values of the CRCs are from the CRC catalogue; the values of the SHAs were
    /// computed according to FIPS 180.
    #[test]
    fn check_values() {
        assert_eq!(digest(ChecksumAlgorithm::Crc32), "cbf43926");
        assert_eq!(digest(ChecksumAlgorithm::Crc32c), "e3069283");
        assert_eq!(digest(ChecksumAlgorithm::Crc64Nvme), "ae8b14860a799888");
        assert_eq!(digest(ChecksumAlgorithm::Sha1), "f7c3bc1d808e04732adf679965ccc34ca7ae3441");
        assert_eq!(
            digest(ChecksumAlgorithm::Sha256),
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
        );
        assert_eq!(
            digest(ChecksumAlgorithm::Sha512),
            "d9e6762dd1c8eaf6d61b3c6192fc408d4d6d5f1176d0c29169bc24e71c3f274a\
             d27fcd5811b313d681f7e55ec02d73d499c95455b6b5bb503acf574fba8ffe85"
        );
        assert_eq!(digest(ChecksumAlgorithm::Md5), "25f9e794323b453885f5181f1b624d0b");
    }

    /// Values for "123456789", computed with Python's xxhash.
    #[test]
    fn check_values_of_xxhash() {
        assert_eq!(digest(ChecksumAlgorithm::XxHash64), "8cb841db40e6ae83");
        assert_eq!(digest(ChecksumAlgorithm::XxHash3), "72dcb18b67a17dff");
        assert_eq!(digest(ChecksumAlgorithm::XxHash128), "33119477ede5dcd5e9716427681d5860");
    }

    #[test]
    fn headers_spell_the_names() {
        for algorithm in ChecksumAlgorithm::ALL {
            let name = format!("x-amz-checksum-{}", algorithm.name().to_ascii_lowercase());
            assert_eq!(algorithm.header(), name);
            assert_eq!(Checksum::of(algorithm, b"").value.len(), algorithm.len_bytes());
        }
    }

    #[test]
    fn a_checksum_of_one_buffer_is_that_of_its_pieces() {
        let whole = Checksum::of(ChecksumAlgorithm::Crc32, b"123456789");
        assert_eq!(hex(&whole.value), "cbf43926");
    }

    #[test]
    fn etags_follow_the_policy() {
        let etag = |policy| {
            ContentHasher::new(policy, false, None).finish(&ExpectedContent::default()).unwrap().etag
        };
        assert_eq!(etag(ETagPolicy::Md5).unwrap().as_str(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(etag(ETagPolicy::Fast), None);
    }

    #[test]
    fn refuses_what_was_not_announced() {
        let kind = |expected: ExpectedContent| {
            let mut hasher = ContentHasher::new(ETagPolicy::Fast, true, Some(ChecksumAlgorithm::Crc32));
            hasher.update(b"123456789");
            hasher.finish(&expected).err().map(|error| error.kind())
        };
        assert_eq!(kind(ExpectedContent { size: Some(9), ..Default::default() }), None);
        assert_eq!(
            kind(ExpectedContent { size: Some(8), ..Default::default() }),
            Some(ErrorKind::IncompleteBody)
        );
        assert_eq!(
            kind(ExpectedContent { md5: Some([0; 16]), ..Default::default() }),
            Some(ErrorKind::BadDigest)
        );
        let crc = |text| Checksum::from_base64(ChecksumAlgorithm::Crc32, text).unwrap();
        assert_eq!(kind(ExpectedContent { checksum: Some(crc("y/Q5Jg==")), ..Default::default() }), None);
        let wrong = ExpectedContent { checksum: Some(crc("AAAAAA==")), ..Default::default() };
        assert_eq!(kind(wrong), Some(ErrorKind::BadDigest));
    }
}
