//! Digests of files, as used in Metalinks and HTTP headers. The digests are computed while bytes are streamed, and
//! represented in hexadecimal.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::Digest as _;

/// The hash function of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileHashAlgorithm {
    /// Adler-32 (RFC 1950 section 8.2), used by grid storage: detects most accidental changes.
    Adler32,
    /// MD5: detects accidental changes.
    Md5,
    /// SHA-1: detects accidental changes.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl FileHashAlgorithm {
    /// All hash functions, the strongest last.
    pub const ALL: [Self; 6] =
        [Self::Adler32, Self::Md5, Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the name in the registry of hash functions, which is the name that RFC 5854 uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adler32 => "adler32",
            Self::Md5 => "md5",
            Self::Sha1 => "sha-1",
            Self::Sha256 => "sha-256",
            Self::Sha384 => "sha-384",
            Self::Sha512 => "sha-512",
        }
    }

    /// Returns the hash function with this name, ignoring case, with or without a hyphen (as in Metalink 3 and RFC
    /// 3230).
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |text: &str| text.trim().replace(['-', '_'], "").to_ascii_lowercase();
        let wanted = if plain(name) == "sha" { "sha1".to_owned() } else { plain(name) };
        Self::ALL.into_iter().find(|kind| plain(kind.name()) == wanted)
    }

    /// Returns the length of the digest in bytes.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Adler32 => 4,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// A digest: its hash function and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHash {
    /// The hash function.
    pub kind: FileHashAlgorithm,
    /// The value in lower-case hexadecimal, which has twice [`FileHashAlgorithm::len_bytes`] digits.
    pub hex: String,
}

impl FileHash {
    /// Parses hexadecimal digits in either case. Returns `None` if the digits are not a value of this hash function. An
    /// adler32 may lack leading zeros, because some servers omit them.
    pub fn from_hex(kind: FileHashAlgorithm, text: &str) -> Option<Self> {
        let mut hex = text.trim().to_ascii_lowercase();
        if kind == FileHashAlgorithm::Adler32 && (1..8).contains(&hex.len()) {
            hex.insert_str(0, &"0".repeat(8 - hex.len()));
        }
        let is_whole = hex.len() == 2 * kind.len_bytes() && hex.bytes().all(|b| b.is_ascii_hexdigit());
        is_whole.then_some(FileHash { kind, hex })
    }

    /// Parses the value of a `Digest` header (RFC 3230), which is base64, except for adler32, whose value is
    /// hexadecimal.
    pub fn from_digest_header(kind: FileHashAlgorithm, text: &str) -> Option<Self> {
        if kind == FileHashAlgorithm::Adler32 {
            return Self::from_hex(kind, text);
        }
        let bytes = BASE64.decode(text.trim()).ok()?;
        Self::from_hex(kind, &hex(&bytes))
    }

    /// Computes the digest of `data`.
    pub fn of(kind: FileHashAlgorithm, data: &[u8]) -> Self {
        let mut running = FileHasher::new(kind);
        running.update(data);
        running.finish()
    }
}

/// A digest that is being computed.
pub struct FileHasher(HashAlgorithmState);

enum HashAlgorithmState {
    Adler32(u32, u32),
    Md5(fast_md5::Md5),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl FileHasher {
    /// Creates a hasher, to which the bytes must then be added.
    pub fn new(kind: FileHashAlgorithm) -> Self {
        FileHasher(match kind {
            FileHashAlgorithm::Adler32 => HashAlgorithmState::Adler32(1, 0),
            FileHashAlgorithm::Md5 => HashAlgorithmState::Md5(fast_md5::Md5::new()),
            FileHashAlgorithm::Sha1 => HashAlgorithmState::Sha1(sha1::Sha1::new()),
            FileHashAlgorithm::Sha256 => HashAlgorithmState::Sha256(sha2::Sha256::new()),
            FileHashAlgorithm::Sha384 => HashAlgorithmState::Sha384(sha2::Sha384::new()),
            FileHashAlgorithm::Sha512 => HashAlgorithmState::Sha512(sha2::Sha512::new()),
        })
    }

    /// Adds the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.0 {
            HashAlgorithmState::Adler32(low, high) => adler32(low, high, data),
            HashAlgorithmState::Md5(md5) => md5.update(data),
            HashAlgorithmState::Sha1(sha) => sha.update(data),
            HashAlgorithmState::Sha256(sha) => sha.update(data),
            HashAlgorithmState::Sha384(sha) => sha.update(data),
            HashAlgorithmState::Sha512(sha) => sha.update(data),
        }
    }

    /// Returns the digest of all bytes that were added.
    pub fn finish(self) -> FileHash {
        let (kind, hex) = match self.0 {
            HashAlgorithmState::Adler32(low, high) => {
                (FileHashAlgorithm::Adler32, hex(&(high << 16 | low).to_be_bytes()))
            }
            HashAlgorithmState::Md5(md5) => (FileHashAlgorithm::Md5, hex(&md5.finalize())),
            HashAlgorithmState::Sha1(sha) => (FileHashAlgorithm::Sha1, hex(&sha.finalize())),
            HashAlgorithmState::Sha256(sha) => (FileHashAlgorithm::Sha256, hex(&sha.finalize())),
            HashAlgorithmState::Sha384(sha) => (FileHashAlgorithm::Sha384, hex(&sha.finalize())),
            HashAlgorithmState::Sha512(sha) => (FileHashAlgorithm::Sha512, hex(&sha.finalize())),
        };
        FileHash { kind, hex }
    }
}

/// The number of bytes that can be added before the sums must be reduced.
const ADLER_RUN_BYTES: usize = 5_552;
const ADLER_MODULUS: u32 = 65_521;

fn adler32(low: &mut u32, high: &mut u32, data: &[u8]) {
    for run in data.chunks(ADLER_RUN_BYTES) {
        for byte in run {
            *low += u32::from(*byte);
            *high += *low;
        }
        *low %= ADLER_MODULUS;
        *high %= ADLER_MODULUS;
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values for "abc" are from FIPS 180-4 and RFC 1321; the adler32 (RFC 1950) of "Wikipedia" is from Wikipedia.
    #[test]
    fn known_values() {
        let of = |kind| FileHash::of(kind, b"abc").hex;
        assert_eq!(of(FileHashAlgorithm::Md5), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(of(FileHashAlgorithm::Sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(of(FileHashAlgorithm::Sha256).starts_with("ba7816bf8f01cfea414140de5dae2223"));
        assert!(of(FileHashAlgorithm::Sha384).starts_with("cb00753f45a35e8bb5a03d699ac65007"));
        assert!(of(FileHashAlgorithm::Sha512).starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(FileHash::of(FileHashAlgorithm::Adler32, b"Wikipedia").hex, "11e60398");
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let data: Vec<u8> = (0..40_000_u32).map(|n| (n * 7 % 251) as u8 | 0x80).collect();
        for kind in FileHashAlgorithm::ALL {
            let mut running = FileHasher::new(kind);
            data.chunks(1_713).for_each(|piece| running.update(piece));
            assert_eq!(running.finish(), FileHash::of(kind, &data), "{kind:?}");
            assert_eq!(FileHash::of(kind, b"").hex.len(), 2 * kind.len_bytes());
        }
    }

    #[test]
    fn names_and_values_as_they_are_written() {
        for (name, kind) in [
            ("sha-256", FileHashAlgorithm::Sha256),
            ("SHA256", FileHashAlgorithm::Sha256),
            ("sha", FileHashAlgorithm::Sha1),
            ("sha1", FileHashAlgorithm::Sha1),
            ("ADLER32", FileHashAlgorithm::Adler32),
            ("md5", FileHashAlgorithm::Md5),
        ] {
            assert_eq!(FileHashAlgorithm::from_name(name), Some(kind), "{name}");
        }
        assert_eq!(FileHashAlgorithm::from_name("crc32"), None);
        let read = |kind, text| FileHash::from_hex(kind, text).map(|hash| hash.hex);
        assert_eq!(read(FileHashAlgorithm::Adler32, " 1E60398 ").as_deref(), Some("01e60398"));
        assert_eq!(read(FileHashAlgorithm::Md5, "90"), None);
        assert_eq!(read(FileHashAlgorithm::Adler32, "xyzw"), None);
        let header = FileHash::from_digest_header(FileHashAlgorithm::Md5, "kAFQmDzST7DWlj99KOF/cg==");
        assert_eq!(header, Some(FileHash::of(FileHashAlgorithm::Md5, b"abc")));
    }
}
