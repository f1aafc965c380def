//! Where else a file is, and what its bytes must add up to: Metalink 4 (RFC 5854), Metalink 3, the
//! headers of RFC 6249, and plain lists of URLs, all read into one type.
//!
//! What is read comes from strangers. A document type, which is where entities that blow up are declared, is
//! refused, and so are names that lead out of a directory. What is unknown is passed over.

mod links;
mod list;
mod read;
mod write;

use fordway_store::{Error, ErrorKind, Result};

pub use crate::file_hash::{FileHash, HashKind};
pub use links::{Links, is_metalink_type, read_links};

/// The priority of a URL that states none, which is also the last (RFC 5854 section 4.2.16.2).
pub const PRIORITY_LAST: u32 = 999_999;

/// Bytes of a document that are read at most: a file of 64 TiB in pieces of 64 MiB has less.
pub const DOCUMENT_BYTES_MAX: usize = 128 << 20;

/// What a document says of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metalink {
    /// One after the other, as in the document.
    pub files: Vec<MetalinkFile>,
}

/// What is known of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalinkFile {
    /// A relative path without `..`; empty where the source states none.
    pub name: String,
    /// Bytes of the whole.
    pub size_bytes: Option<u64>,
    /// Digests of the whole, at most one of a kind.
    pub hashes: Vec<FileHash>,
    /// Digests of pieces: the strongest, where there are several.
    pub pieces: Option<Pieces>,
    /// Where it is, as the document has it.
    pub replicas: Vec<MetalinkUrl>,
    /// Addresses of documents that describe it further (RFC 6249's `describedby`).
    pub described_by: Vec<String>,
}

/// Digests of a file cut into pieces of one length; the last may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Bytes of each piece, never 0.
    pub length_bytes: u64,
    /// How they were made.
    pub kind: HashKind,
    /// In the order of the file; see [`FileHash::hex`].
    pub hex: Vec<String>,
}

/// One address of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetalinkUrl {
    /// As it is written.
    pub url: String,
    /// 1 is the first choice, [`PRIORITY_LAST`] the last.
    pub priority: u32,
    /// The country (ISO 3166-1, small letters), where it is stated.
    pub location: Option<String>,
}

impl Metalink {
    /// Reads a document: Metalink 4 or 3 if it is XML, a list of URLs if not.
    /// Errors: `InvalidArgument` for what is none, is cut, has a document type, names that lead out
    /// of a directory, or numbers that cannot be.
    pub fn parse(document: &[u8]) -> Result<Self> {
        if document.len() > DOCUMENT_BYTES_MAX {
            return Err(refused(format!("it has more than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let text =
            std::str::from_utf8(document).map_err(|error| refused("it is not UTF-8").caused_by(error))?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let metalink = if text.starts_with('<') { read::document(text)? } else { list::read(text)? };
        metalink.files.iter().try_for_each(MetalinkFile::check)?;
        Ok(metalink)
    }

    /// Whether a document looks like one: it is XML, and its root is called `metalink`.
    pub fn is_likely(document: &[u8]) -> bool {
        let start = String::from_utf8_lossy(&document[..document.len().min(4096)]);
        start.trim_start_matches('\u{feff}').trim_start().starts_with('<') && start.contains("<metalink")
    }

    /// The file of that name, or the only one. Errors: `InvalidArgument`, with the names there are.
    pub fn file(self, name: Option<&str>) -> Result<MetalinkFile> {
        let names: Vec<String> = self.files.iter().take(10).map(|file| format!("{:?}", file.name)).collect();
        let mut files = self.files.into_iter();
        let found = match name {
            Some(name) => {
                let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
                let is_it = |file: &MetalinkFile| file.name == name || base(&file.name) == base(name);
                let mut of_name: Vec<_> = files.filter(is_it).collect();
                if of_name.len() == 1 { of_name.pop() } else { None }
            }
            None if files.len() == 1 => files.next(),
            None => None,
        };
        found.ok_or_else(|| {
            let why = format!("it describes {}; name the one that is meant", names.join(", "));
            refused(if names.is_empty() { "it describes no file".to_owned() } else { why })
        })
    }
}

impl MetalinkFile {
    /// The strongest digest of the whole.
    pub fn strongest_hash(&self) -> Option<&FileHash> {
        self.hashes.iter().max_by_key(|hash| hash.kind)
    }

    /// Whether it names no place, and nothing that would.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty() && self.described_by.is_empty()
    }

    /// Takes over what `other` says of the same file and this one does not.
    pub fn complete_with(&mut self, other: MetalinkFile) {
        self.size_bytes = self.size_bytes.or(other.size_bytes);
        if self.pieces.is_none() {
            self.pieces = other.pieces;
        }
        for hash in other.hashes {
            self.push_hash(hash);
        }
        for replica in other.replicas {
            self.push_replica(replica);
        }
    }

    fn push_hash(&mut self, hash: FileHash) {
        if !self.hashes.iter().any(|known| known.kind == hash.kind) {
            self.hashes.push(hash);
        }
    }

    fn push_replica(&mut self, replica: MetalinkUrl) {
        if !self.replicas.iter().any(|known| known.url == replica.url) {
            self.replicas.push(replica);
        }
    }

    fn push_pieces(&mut self, pieces: Pieces) {
        if self.pieces.as_ref().is_none_or(|known| known.kind < pieces.kind) {
            self.pieces = Some(pieces);
        }
    }

    fn check(&self) -> Result<()> {
        let is_hostile = |segment: &str| matches!(segment, ".." | ".") || segment.contains(['\\', '\0']);
        if self.name.starts_with('/') || self.name.split('/').any(is_hostile) {
            return Err(refused(format!("the name {:?} leads out of its directory", self.name)));
        }
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let covered = pieces.length_bytes.checked_mul(pieces.hex.len() as u64);
        let is_sound = match (covered, self.size_bytes) {
            _ if pieces.length_bytes == 0 => false,
            (None, _) => false,
            (Some(covered), Some(size)) => covered >= size && covered - size < pieces.length_bytes,
            (Some(_), None) => true,
        };
        if !is_sound {
            let (count, length) = (pieces.hex.len(), pieces.length_bytes);
            let why = format!("{count} pieces of {length} bytes do not make {:?}", self.name);
            return Err(refused(format!("{why}, which has {} bytes", self.size_bytes.unwrap_or(0))));
        }
        Ok(())
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the Metalink cannot be used: {}", why.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_hash(kind: HashKind) -> impl Strategy<Value = String> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(move |bytes| FileHash::of(kind, &bytes).hex)
    }

    fn some_file() -> impl Strategy<Value = MetalinkFile> {
        let name = "[a-z \u{e4}&<>\"']{1,8}(/[a-z.]{1,3}x){0,2}";
        let hash = prop::sample::select(HashKind::ALL.to_vec())
            .prop_flat_map(|kind| some_hash(kind).prop_map(move |hex| FileHash { kind, hex }));
        let url = ("https?://[a-z.]{1,9}/[a-z&=?;%2]{0,9}", 1..=PRIORITY_LAST, prop::option::of("[a-z]{2}"))
            .prop_map(|(url, priority, location)| MetalinkUrl { url, priority, location });
        let pieces = (1_u64..9, prop::collection::vec(some_hash(HashKind::Sha256), 1..5));
        let rest = (hash, prop::collection::vec(url, 0..4), prop::option::of(pieces));
        (name, rest).prop_map(|(name, (hash, urls, pieces))| {
            let mut file = MetalinkFile { name, ..MetalinkFile::default() };
            file.push_hash(hash);
            urls.into_iter().for_each(|url| file.push_replica(url));
            file.size_bytes = Some(pieces.as_ref().map_or(7, |(length, hex)| length * hex.len() as u64));
            file.pieces =
                pieces.map(|(length_bytes, hex)| Pieces { length_bytes, kind: HashKind::Sha256, hex });
            file
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(files in prop::collection::vec(some_file(), 0..4)) {
            let metalink = Metalink { files };
            prop_assert_eq!(Metalink::parse(metalink.to_xml().as_bytes()).unwrap(), metalink);
        }

        #[test]
        fn no_bytes_make_it_panic(document in prop::collection::vec(any::<u8>(), 0..300)) {
            let _result = Metalink::parse(&document);
        }

        #[test]
        fn no_text_like_it_makes_it_panic(
            document in "(<|>|/|&|;|#|metalink|files?|name=|\"|'|url|size|hash|pieces|length=|type=|9{1,20}|sha-256|!|\\[|CDATA|DOCTYPE| |\\.\\./){0,60}"
        ) {
            let _result = Metalink::parse(format!("<metalink>{document}").as_bytes());
            let _result = Metalink::parse(document.as_bytes());
        }
    }

    #[test]
    fn names_stay_within_their_directory() {
        for name in ["../x", "a/../../x", "/etc/passwd", "..", "a\\..\\x", "a/./b"] {
            let metalink = Metalink { files: vec![MetalinkFile { name: name.into(), ..Default::default() }] };
            let error = Metalink::parse(metalink.to_xml().as_bytes()).unwrap_err();
            assert!(error.to_string().contains("leads out of"), "{name}: {error}");
        }
    }

    #[test]
    fn one_file_is_picked() {
        let named = |name: &str| MetalinkFile { name: name.into(), ..Default::default() };
        let two = Metalink { files: vec![named("d/a"), named("b")] };
        assert_eq!(two.clone().file(Some("a")).unwrap().name, "d/a");
        assert_eq!(two.clone().file(Some("x/b")).unwrap().name, "b");
        assert!(two.clone().file(None).unwrap_err().to_string().contains("\"d/a\", \"b\""));
        assert!(two.file(Some("c")).is_err() && Metalink::default().file(None).is_err());
        assert_eq!(Metalink { files: vec![named("b")] }.file(None).unwrap().name, "b");
    }
}
