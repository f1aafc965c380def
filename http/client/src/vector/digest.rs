//! What a server states of a file's bytes, checked against the bytes that came: `Content-MD5` (RFC 1864), `Digest`
//! (RFC 3230), `Repr-Digest` and `Content-Digest` (RFC 9530), and the checksums of S3.

use std::io::Read;

use fordway_store::{
    Checksum, ChecksumAlgorithm, ETagPolicy, Error, ErrorKind, Expected, Hasher, PageBuffer, Result,
};
use fordway_wire::file_hash::{FileHash, HashKind, RunningHash};

/// Asks servers for any of them. XRootD makes nothing of weights, and takes the first, which
/// there is the one that it knows.
pub(super) const WANTED: [(&str, &str); 2] = [
    ("want-digest", "adler32;q=0.3, md5;q=0.5, sha;q=0.6, sha-256"),
    ("want-repr-digest", "sha-256=9, md5=3"),
];

/// A digest of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stated {
    /// One of S3.
    Checksum(Checksum),
    Hash(FileHash),
}

/// A digest on its way.
pub(super) enum Running {
    Checksum(Hasher),
    Hash(RunningHash),
}

impl Stated {
    /// The best of those in the headers of an answer; `is_whole` says that its body is the whole file.
    /// What cannot be read, or is of parts' checksums, is passed over.
    pub(super) fn best<'h>(
        headers: impl Iterator<Item = (&'h str, &'h str)>,
        is_whole: bool,
    ) -> Option<Self> {
        let mut found = Vec::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "content-md5" if is_whole => found.extend(of_instance("md5", value.trim())),
                "digest" => found.extend(members(value).filter_map(|(name, value)| of_instance(name, value))),
                "repr-digest" => found.extend(of_fields(value)),
                "content-digest" if is_whole => found.extend(of_fields(value)),
                // Where parts were put together, it ends with their number.
                name if is_whole && !value.contains('-') => {
                    let algorithm =
                        name.strip_prefix("x-amz-checksum-").and_then(ChecksumAlgorithm::from_name);
                    found.extend(algorithm.and_then(|algorithm| checksum(algorithm, value.trim())));
                }
                _ => {}
            }
        }
        found.into_iter().max_by_key(Stated::strength)
    }

    fn strength(&self) -> u8 {
        match self {
            Stated::Hash(hash) => match hash.kind {
                HashKind::Adler32 => 0,
                HashKind::Md5 => 4,
                HashKind::Sha1 => 5,
                HashKind::Sha256 => 6,
                HashKind::Sha384 => 7,
                HashKind::Sha512 => 8,
            },
            Stated::Checksum(Checksum { algorithm, .. }) => match algorithm {
                ChecksumAlgorithm::Crc32 => 1,
                ChecksumAlgorithm::Crc32c => 2,
                ChecksumAlgorithm::Crc64Nvme
                | ChecksumAlgorithm::XxHash64
                | ChecksumAlgorithm::XxHash3
                | ChecksumAlgorithm::XxHash128 => 3,
                ChecksumAlgorithm::Md5 => 4,
                ChecksumAlgorithm::Sha1 => 5,
                ChecksumAlgorithm::Sha256 => 6,
                ChecksumAlgorithm::Sha512 => 8,
            },
        }
    }

    /// How it is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Stated::Checksum(checksum) => checksum.algorithm.name(),
            // As S3 writes those that it has.
            Stated::Hash(hash) => match hash.kind {
                HashKind::Adler32 => "ADLER32",
                HashKind::Md5 => "MD5",
                HashKind::Sha1 => "SHA1",
                HashKind::Sha256 => "SHA256",
                HashKind::Sha384 => "SHA384",
                HashKind::Sha512 => "SHA512",
            },
        }
    }

    pub(super) fn start(&self) -> Running {
        match self {
            Stated::Checksum(Checksum { algorithm, .. }) => {
                Running::Checksum(Hasher::new(ETagPolicy::Fast, false, Some(*algorithm)))
            }
            Stated::Hash(hash) => Running::Hash(RunningHash::new(hash.kind)),
        }
    }

    /// Errors: `BadDigest` for other bytes.
    pub(super) fn check(&self, running: Running) -> Result<()> {
        let is_right = match (self, running) {
            (Stated::Checksum(checksum), Running::Checksum(hasher)) => {
                hasher.finish(&Expected { checksum: Some(checksum.clone()), ..Expected::default() }).is_ok()
            }
            (Stated::Hash(hash), Running::Hash(running)) => running.finish() == *hash,
            _ => false,
        };
        let detail = || format!("what arrived has not the {} that the server states", self.name());
        is_right.then_some(()).ok_or_else(|| Error::new(ErrorKind::BadDigest, detail()))
    }

    /// The same for all that `content` has. Errors: from reading, as `Io`.
    pub(super) fn check_all(&self, mut content: impl Read) -> Result<()> {
        let (mut running, mut chunk) = (self.start(), PageBuffer::new(256 * 1024));
        loop {
            match content.read(&mut chunk) {
                Ok(0) => return self.check(running),
                Ok(count) => running.update(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::new(ErrorKind::Io, "reading back what had arrived").caused_by(error));
                }
            }
        }
    }
}

impl Running {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Running::Checksum(hasher) => hasher.update(bytes),
            Running::Hash(hash) => hash.update(bytes),
        }
    }
}

/// `name=value` between commas; a value may have `=` too.
fn members(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',').filter_map(|member| {
        let (name, value) = member.trim().split_once('=')?;
        Some((name.trim(), value.trim()))
    })
}

/// A member of `Digest`.
fn of_instance(name: &str, value: &str) -> Option<Stated> {
    FileHash::from_digest_header(HashKind::from_name(name)?, value).map(Stated::Hash)
}

/// Byte sequences of a dictionary of structured fields (RFC 8941 section 3.3.5), between colons.
fn of_fields(value: &str) -> impl Iterator<Item = Stated> {
    members(value).filter_map(|(name, value)| {
        let bytes = value.split(';').next()?.trim().strip_prefix(':')?.strip_suffix(':')?;
        // RFC 9530 has no use for sums, and none has this form.
        of_instance(name, bytes).filter(|_| !name.eq_ignore_ascii_case("adler32"))
    })
}

fn checksum(algorithm: ChecksumAlgorithm, text: &str) -> Option<Stated> {
    Checksum::from_base64(algorithm, text).ok().map(Stated::Checksum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: &[u8] = b"Wikipedia";
    const MD5: &str = "nGdyhoZqrTj46bZg9UEYFA==";

    fn best(headers: &[(&str, &str)]) -> Option<&'static str> {
        Stated::best(headers.iter().copied(), true).map(|stated| stated.name())
    }

    fn sha256(data: &[u8]) -> String {
        Checksum::of(ChecksumAlgorithm::Sha256, data).to_base64()
    }

    #[test]
    fn the_strongest_that_can_be_read_is_taken() {
        let sha = sha256(DATA);
        let fields = format!("md5=:{MD5}:, sha-256=:{sha}:;x=1, sha-512=:AA==:");
        assert_eq!(best(&[("Digest", "adler32=11e60398"), ("Content-MD5", MD5)]), Some("MD5"));
        assert_eq!(best(&[("repr-digest", &fields)]), Some("SHA256"));
        assert_eq!(best(&[("digest", &format!("MD5={MD5},SHA-256={sha}"))]), Some("SHA256"));
        assert_eq!(best(&[("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")]), Some("CRC64NVME"));
        for (name, value) in [
            ("digest", "adler32=xyz"),
            ("digest", "adler32=123456789"),
            ("content-md5", "short"),
            ("repr-digest", "md5=plain"),
            ("x-amz-checksum-crc32c", "AAAAAA==-3"),
            ("x-amz-checksum-algorithm", "CRC32C"),
        ] {
            assert_eq!(best(&[(name, value)]), None, "{name}: {value}");
        }
        let of_part =
            [("content-md5", MD5), ("content-digest", &fields), ("x-amz-checksum-crc32", "AAAAAA==")];
        assert_eq!(Stated::best(of_part.into_iter(), false), None);
        assert!(Stated::best([("repr-digest", fields.as_str())].into_iter(), false).is_some());
    }

    #[test]
    fn other_bytes_are_noticed() {
        let stated = [
            of_instance("adler32", "11E60398").unwrap(),
            of_instance("md5", MD5).unwrap(),
            Stated::Checksum(Checksum::of(ChecksumAlgorithm::Crc32c, DATA)),
            checksum(ChecksumAlgorithm::Sha256, &sha256(DATA)).unwrap(),
        ];
        for stated in &stated {
            stated.check_all(DATA).unwrap();
            let error = stated.check_all(&b"Wikipedie"[..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadDigest);
            assert!(error.to_string().contains(stated.name()), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read(name in "digest|repr-digest|content-md5|x-amz-checksum-sha1", value in "\\PC{0,80}") {
            let _ = Stated::best([(name.as_str(), value.as_str())].into_iter(), true);
        }
    }
}
