//! The replicas, size and digests of a file. This data is read from Metalink 4 (RFC 5854), Metalink 3, the headers
//! `Link` and `Digest` of a response (RFC 6249, 8288, 3230), and plain lists of URLs. A list has one URL per line, the
//! best first, and is easy to write by hand. All of these formats are read into one type; Metalink 4 can also be
//! written.
//!
//! The input is not trusted. A document type declaration is rejected, because it can declare entities that expand
//! without bound. Names that point outside a directory are also rejected. Unknown elements are ignored.

mod read;

pub use crate::file_hash::{FileHash, FileHashAlgorithm};

use std::collections::HashSet;
use std::fmt::Write as _;

use fordway_store::{Error, ErrorKind, Result};
use quick_xml::escape::escape;

/// The default priority of a URL, which is also the lowest priority (RFC 5854 section 4.2.16.2).
pub const PRIORITY_LAST: u32 = 999_999;

/// The maximum size of a document that is read, in bytes. The document of a file of 64 TiB with a SHA-256 digest of
/// each 64 MiB is smaller.
pub const DOCUMENT_BYTES_MAX: usize = 128 << 20;

/// The files that a document describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metalink {
    /// The files, in the order of the document.
    pub files: Vec<MetalinkFile>,
}

/// The data about one file in one source, such as a document or the headers of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalinkFile {
    /// A relative path without `..`; empty if the source contains no name.
    pub name: String,
    /// The size of the whole file in bytes.
    pub size_bytes: Option<u64>,
    /// Digests of the whole file, at most one of each kind.
    pub hashes: Vec<FileHash>,
    /// Digests of pieces; if the source has several kinds, only the digests of the strongest kind.
    pub pieces: Option<PieceHashes>,
    /// The replicas of the file, in the order of the document.
    pub replicas: Vec<MetalinkUrl>,
    /// URLs of documents that describe the file further (RFC 6249's `describedby`).
    pub described_by: Vec<String>,
}

/// Digests of the pieces of a file. All pieces have the same length, except that the last one may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceHashes {
    /// The length of each piece in bytes, never 0.
    pub length_bytes: u64,
    /// The kind of digest.
    pub kind: FileHashAlgorithm,
    /// The digests in the order of the pieces; see [`FileHash::hex`].
    pub hex: Vec<String>,
}

/// One URL of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetalinkUrl {
    /// The URL in its original spelling.
    pub url: String,
    /// 1 is the highest priority, [`PRIORITY_LAST`] the lowest.
    pub priority: u32,
    /// The country (ISO 3166-1, lower case), if the source contains it.
    pub location: Option<String>,
}

impl Metalink {
    /// Reads a document: Metalink 4 or 3 if it is XML, otherwise a list of URLs. Errors: `InvalidArgument` if the
    /// document has another format or is truncated, or if it contains a document type, a name that points outside a
    /// directory, or an invalid number.
    pub fn parse(document: &[u8]) -> Result<Self> {
        if document.len() > DOCUMENT_BYTES_MAX {
            return Err(refused(format!("it has more than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let text =
            std::str::from_utf8(document).map_err(|error| refused("it is not UTF-8").caused_by(error))?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let metalink = if text.starts_with('<') { read::document(text)? } else { read(text)? };
        metalink.files.iter().try_for_each(MetalinkFile::check)?;
        Ok(metalink)
    }

    /// Returns whether a document looks like a Metalink: it is XML, and has `<metalink` in its first 4,096 bytes.
    pub fn is_likely(document: &[u8]) -> bool {
        let start = String::from_utf8_lossy(&document[..document.len().min(4096)]);
        start.trim_start_matches('\u{feff}').trim_start().starts_with('<') && start.contains("<metalink")
    }

    /// Returns the file with this name, or else the file whose name has the same last component as `name`. Without a
    /// `name`, returns the only file. Errors: `InvalidArgument` if there is no such file, or several; the message lists
    /// the first ten names.
    pub fn file(self, name: Option<&str>) -> Result<MetalinkFile> {
        let names: Vec<String> = self.files.iter().take(10).map(|file| format!("{:?}", file.name)).collect();
        let mut files = self.files.into_iter();
        let found = match name {
            Some(name) => {
                let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
                let (mut exact, others): (Vec<_>, Vec<_>) = files.partition(|file| file.name == name);
                if exact.is_empty() {
                    exact = others.into_iter().filter(|file| base(&file.name) == base(name)).collect();
                }
                if exact.len() == 1 { exact.pop() } else { None }
            }
            None if files.len() == 1 => files.next(),
            None => None,
        };
        found.ok_or_else(|| {
            let why = format!("it describes {}; name one of them", names.join(", "));
            refused(if names.is_empty() { "it describes no file".to_owned() } else { why })
        })
    }
}

impl MetalinkFile {
    /// Returns the strongest digest of the whole file.
    pub fn strongest_hash(&self) -> Option<&FileHash> {
        self.hashes.iter().max_by_key(|hash| hash.kind)
    }

    /// Returns whether the file has neither a replica nor a further document that could name replicas.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty() && self.described_by.is_empty()
    }

    /// Adds the size, digests and replicas of `other` that this value lacks. `other` must describe the same file.
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

    fn push_pieces(&mut self, pieces: PieceHashes) {
        if self.pieces.as_ref().is_none_or(|known| known.kind < pieces.kind) {
            self.pieces = Some(pieces);
        }
    }

    fn check(&self) -> Result<()> {
        let is_hostile = |segment: &str| matches!(segment, ".." | ".") || segment.contains(['\\', '\0']);
        if self.name.starts_with('/') || self.name.split('/').any(is_hostile) {
            return Err(refused(format!("the name {:?} points outside its directory", self.name)));
        }
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let covered = pieces.length_bytes.checked_mul(pieces.hex.len() as u64);
        // Only the last piece may be shorter, so the length of all pieces, counted as full, exceeds the file's size by
        // less than one piece.
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

/// The maximum number of addresses per file, and of files per document.
const ENTRIES_MAX: usize = 10_000;

fn too_many_addresses() -> Error {
    refused(format!("a file has more than {ENTRIES_MAX} addresses"))
}

/// The maximum number of replicas that are read from the headers of one response; the document that describes the file
/// may name more.
const REPLICAS_MAX: usize = 100;

/// The data in the headers of a response. Addresses may be relative to the response's own address.
pub type LinkHeaderMetalink = MetalinkFile;

/// Reads the values of `Link` and `Digest` headers. Invalid values are ignored, because these headers are optional and
/// also have other uses.
pub fn read_links<'a>(
    links: impl IntoIterator<Item = &'a str>,
    digests: impl IntoIterator<Item = &'a str>,
) -> LinkHeaderMetalink {
    let mut found = LinkHeaderMetalink::default();
    for (address, parameters) in links.into_iter().flat_map(entries) {
        let named = |wanted: &str| {
            parameters
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
                .map(|(_, value)| value.as_str())
        };
        let relations = named("rel").unwrap_or_default();
        let is_a =
            |relation: &str| relations.split_ascii_whitespace().any(|r| r.eq_ignore_ascii_case(relation));
        if is_a("duplicate") && found.replicas.len() < REPLICAS_MAX {
            let priority = named("pri").and_then(|text| text.parse().ok()).unwrap_or(PRIORITY_LAST);
            let location = named("geo").map(|text| text.trim().to_ascii_lowercase());
            let priority = priority.clamp(1, PRIORITY_LAST);
            found.push_replica(MetalinkUrl { url: address, priority, location });
        } else if is_a("describedby") && named("type").is_some_and(is_metalink_type) {
            found.described_by.push(address);
        }
    }
    for entry in digests.into_iter().flat_map(|value| value.split(',')) {
        let hash = entry.trim().split_once('=').and_then(|(name, value)| {
            FileHash::from_digest_header(FileHashAlgorithm::from_name(name)?, value)
        });
        hash.into_iter().for_each(|hash| found.push_hash(hash));
    }
    found
}

/// Returns whether a media type belongs to a Metalink of either version.
pub fn is_metalink_type(text: &str) -> bool {
    let plain = text.split(';').next().unwrap_or_default().trim();
    ["application/metalink4+xml", "application/metalink+xml"]
        .iter()
        .any(|known| plain.eq_ignore_ascii_case(known))
}

/// Returns the entries of one header. Each entry is an address with its parameters (names and values).
fn entries(value: &str) -> Vec<(String, Vec<(String, String)>)> {
    let (mut found, mut rest) = (Vec::new(), value);
    while let Some((address, after)) = rest.split_once('<').and_then(|(_, after)| after.split_once('>')) {
        let (parameters, next) = parameters(after);
        found.push((address.trim().to_owned(), parameters));
        rest = next;
    }
    found
}

/// Reads `; name=value; name="value"` up to a comma; also returns the text that follows.
fn parameters(text: &str) -> (Vec<(String, String)>, &str) {
    let (mut found, mut rest) = (Vec::new(), text.trim_start());
    while let Some(after) = rest.strip_prefix(';') {
        let after = after.trim_start();
        let name_end = after.find(['=', ';', ',']).unwrap_or(after.len());
        let (name, tail) = after.split_at(name_end);
        let (value, tail) = match tail.strip_prefix('=') {
            Some(tail) => parameter_value(tail.trim_start()),
            None => (String::new(), tail),
        };
        found.push((name.trim().to_owned(), value));
        rest = tail.trim_start();
    }
    (found, rest)
}

fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_at(text.find([';', ',']).unwrap_or(text.len()));
        return (value.trim().to_owned(), rest);
    };
    let (mut value, mut characters) = (String::new(), quoted.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

/// Reads a list of URLs. Lines that begin with `#` are comments.
fn read(text: &str) -> Result<Metalink> {
    let (mut file, mut known) = (MetalinkFile::default(), HashSet::new());
    let lines = text.lines().map(str::trim).enumerate();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let is_address =
            line.contains("://") && !line.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_address {
            let shown: String = line.chars().take(60).collect();
            return Err(refused(format!("line {} is {shown:?}; write one URL per line, or XML", number + 1)));
        }
        let priority = file.replicas.len() as u32 + 1;
        if known.insert(line) {
            file.replicas.push(MetalinkUrl { url: line.to_owned(), priority, location: None });
        }
        if file.replicas.len() > ENTRIES_MAX {
            return Err(too_many_addresses());
        }
    }
    if file.replicas.is_empty() {
        return Err(refused("it is empty; write one URL per line, or XML"));
    }
    Ok(Metalink { files: vec![file] })
}

impl Metalink {
    /// Returns the data as a Metalink 4 document (RFC 5854), which [`Metalink::parse`] can read.
    pub fn to_xml(&self) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        xml.push_str("<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">\n");
        let generator = concat!("  <generator>fordway/", env!("CARGO_PKG_VERSION"), "</generator>\n");
        xml.push_str(generator);
        // Writing to a string cannot fail.
        let _infallible = self.files.iter().try_for_each(|file| write_file(&mut xml, file));
        xml.push_str("</metalink>\n");
        xml
    }
}

fn write_file(xml: &mut String, file: &MetalinkFile) -> std::fmt::Result {
    // An XML parser replaces a plain tab or line break in an attribute with a space.
    let name = escape(&file.name).replace('\t', "&#9;").replace('\n', "&#10;").replace('\r', "&#13;");
    writeln!(xml, "  <file name=\"{name}\">")?;
    if let Some(size) = file.size_bytes {
        writeln!(xml, "    <size>{size}</size>")?;
    }
    for hash in &file.hashes {
        writeln!(xml, "    <hash type=\"{}\">{}</hash>", hash.kind.name(), hash.hex)?;
    }
    if let Some(pieces) = &file.pieces {
        let (length, kind) = (pieces.length_bytes, pieces.kind.name());
        writeln!(xml, "    <pieces length=\"{length}\" type=\"{kind}\">")?;
        for hex in &pieces.hex {
            writeln!(xml, "      <hash>{hex}</hash>")?;
        }
        writeln!(xml, "    </pieces>")?;
    }
    for replica in &file.replicas {
        xml.push_str("    <url");
        if let Some(location) = &replica.location {
            write!(xml, " location=\"{}\"", escape(location))?;
        }
        if replica.priority != PRIORITY_LAST {
            write!(xml, " priority=\"{}\"", replica.priority)?;
        }
        writeln!(xml, ">{}</url>", escape(&replica.url))?;
    }
    writeln!(xml, "  </file>")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of addresses must be limited: when two descriptions of a file are combined, each address is compared
    /// with all others.
    #[test]
    fn lists_and_documents_have_a_limited_number_of_addresses() {
        let urls = |count: usize| (0..count).map(|number| format!("http://h/{number}"));
        let list = |count| urls(count).collect::<Vec<_>>().join("\n");
        let document = |count| {
            let urls: String = urls(count).map(|url| format!("<url>{url}</url>")).collect();
            format!("<metalink><file name='f'>{urls}</file></metalink>")
        };
        for text in [list(10_000), document(10_000)] {
            let found = Metalink::parse(text.as_bytes()).unwrap();
            assert_eq!(found.files[0].replicas.len(), 10_000);
        }
        for text in [list(10_001), document(10_001)] {
            let error = Metalink::parse(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("more than 10000 addresses"), "{error}");
        }
    }

    fn some_hash(kind: FileHashAlgorithm) -> impl Strategy<Value = String> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(move |bytes| FileHash::of(kind, &bytes).hex)
    }

    fn some_file() -> impl Strategy<Value = MetalinkFile> {
        let name = "[a-z \u{e4}&<>\"']{1,8}(/[a-z.]{1,3}x){0,2}";
        let hash = prop::sample::select(FileHashAlgorithm::ALL.to_vec())
            .prop_flat_map(|kind| some_hash(kind).prop_map(move |hex| FileHash { kind, hex }));
        let url = ("https?://[a-z.]{1,9}/[a-z&=?;%2]{0,9}", 1..=PRIORITY_LAST, prop::option::of("[a-z]{2}"))
            .prop_map(|(url, priority, location)| MetalinkUrl { url, priority, location });
        let pieces = (1_u64..9, prop::collection::vec(some_hash(FileHashAlgorithm::Sha256), 1..5));
        let rest = (hash, prop::collection::vec(url, 0..4), prop::option::of(pieces));
        (name, rest).prop_map(|(name, (hash, urls, pieces))| {
            let mut file = MetalinkFile { name, ..MetalinkFile::default() };
            file.push_hash(hash);
            urls.into_iter().for_each(|url| file.push_replica(url));
            file.size_bytes = Some(pieces.as_ref().map_or(7, |(length, hex)| length * hex.len() as u64));
            file.pieces = pieces.map(|(length_bytes, hex)| PieceHashes {
                length_bytes,
                kind: FileHashAlgorithm::Sha256,
                hex,
            });
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
            assert!(error.to_string().contains("points outside"), "{name}: {error}");
        }
    }

    #[test]
    fn one_file_is_picked() {
        let named = |name: &str| MetalinkFile { name: name.into(), ..Default::default() };
        let two = Metalink { files: vec![named("d/a"), named("b")] };
        assert_eq!(two.clone().file(Some("a")).unwrap().name, "d/a");
        assert_eq!(two.clone().file(Some("x/b")).unwrap().name, "b");
        let alike = Metalink { files: vec![named("d/a"), named("e/a")] };
        assert_eq!(alike.clone().file(Some("e/a")).unwrap().name, "e/a");
        assert!(alike.file(Some("a")).is_err());
        assert!(two.clone().file(None).unwrap_err().to_string().contains("\"d/a\", \"b\""));
        assert!(two.file(Some("c")).is_err() && Metalink::default().file(None).is_err());
        assert_eq!(Metalink { files: vec![named("b")] }.file(None).unwrap().name, "b");
    }

    /// The headers of RFC 6249's section 1.1, with different values.
    #[test]
    fn replicas_descriptions_and_digests() {
        let links = [
            "<http://www2.example.org/f>; rel=duplicate; pri=2; geo=DE, <ftp://f/g>; rel=\"duplicate\"",
            "<https://example.org/f.meta4>; rel=describedby; type=\"application/metalink4+xml\"",
            "<https://example.org/f.asc>; rel=describedby; type=\"application/pgp-signature\"",
            "</style.css>; rel=preload; title=\"a, b; \\\"c\\\"\", <r/f>; rel=duplicate; pri=0",
        ];
        let digests = ["SHA-256=ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=,adler32=024d0127", "crc=1"];
        let found = read_links(links, digests);
        let places: Vec<_> =
            found.replicas.iter().map(|r| (r.url.as_str(), r.priority, r.location.as_deref())).collect();
        let last = PRIORITY_LAST;
        assert_eq!(
            places,
            [("http://www2.example.org/f", 2, Some("de")), ("ftp://f/g", last, None), ("r/f", 1, None)]
        );
        assert_eq!(found.described_by, ["https://example.org/f.meta4"]);
        let expected =
            [FileHashAlgorithm::Sha256, FileHashAlgorithm::Adler32].map(|kind| FileHash::of(kind, b"abc"));
        assert_eq!(found.hashes, expected);
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(link in "(<|>|;|,|=|\"|\\\\|rel|pri|duplicate|\u{e4}| ){0,40}", digest in "\\PC{0,40}") {
            let _found = read_links([link.as_str()], [digest.as_str()]);
        }
    }

    #[test]
    fn a_line_is_a_url() {
        let file = read("# best first\nhttps://a/f\n\n  http://b/f?x  \r\nhttps://a/f\n")
            .unwrap()
            .file(None)
            .unwrap();
        let found: Vec<_> = file.replicas.iter().map(|r| (r.url.as_str(), r.priority)).collect();
        assert_eq!(found, [("https://a/f", 1), ("http://b/f?x", 2)]);
        for bad in ["", "# nothing", "hello", "http://a b/c", "https://a/f\n/local/file"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
