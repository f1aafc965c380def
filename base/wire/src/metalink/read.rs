//! Reads Metalink documents: version 4 (RFC 5854), and version 3, which grid storage still returns.

use std::collections::{HashMap, HashSet};

use fordway_store::Result;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use super::{
    ENTRIES_MAX, FileHash, FileHashAlgorithm, Metalink, MetalinkFile, MetalinkUrl, PRIORITY_LAST,
    PieceHashes, refused, too_many_addresses,
};
use crate::range::digits;

/// The maximum depth of elements; neither version nests elements that deeply.
const DEPTH_MAX: usize = 32;

/// An element that is being read.
struct OpenElement {
    name: String,
    attributes: HashMap<String, String>,
    text: String,
}

/// The results of reading a document so far.
#[derive(Default)]
struct MetalinkReader {
    metalink: Metalink,
    file: MetalinkFile,
    /// The addresses of the current file so far, to skip duplicates.
    known: HashSet<String>,
    /// The hashes in the `pieces` element that is being read, each with its piece number, if its `hash` element
    /// contains one.
    pieces: Vec<(Option<u64>, String)>,
}

pub(super) fn document(text: &str) -> Result<Metalink> {
    let mut reader = Reader::from_str(text);
    let (mut path, mut reading): (Vec<OpenElement>, _) = (Vec::new(), MetalinkReader::default());
    let mut has_root = false;
    loop {
        match reader.read_event().map_err(not_xml)? {
            Event::Start(start) => {
                path.push(element(&start)?);
                has_root |= begin(&path, &mut reading)?;
            }
            Event::Empty(start) => {
                path.push(element(&start)?);
                has_root |= begin(&path, &mut reading)?;
                end(&mut path, &mut reading)?;
            }
            Event::End(_) => end(&mut path, &mut reading)?,
            Event::Text(more) => push(&mut path, &more),
            Event::CData(more) => push(&mut path, &more),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(not_xml)? {
                Some(character) => push(&mut path, character.encode_utf8(&mut [0; 4])),
                // Only the five entities that XML itself defines are resolved. Other entities would need a document
                // type, which can expand a few bytes to gigabytes.
                None => {
                    let known = quick_xml::escape::resolve_predefined_entity(&reference);
                    push(&mut path, known.ok_or_else(|| refused("it declares an entity"))?);
                }
            },
            Event::DocType(_) => return Err(refused("it has a document type, which no Metalink needs")),
            Event::Eof if path.is_empty() && has_root => return Ok(reading.metalink),
            Event::Eof => return Err(refused("the document is truncated")),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
}

fn element(start: &BytesStart<'_>) -> Result<OpenElement> {
    let mut attributes = HashMap::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| not_xml(error.into()))?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(not_xml)?;
        attributes.insert(attribute.key.local_name().into_inner().to_owned(), value.into_owned());
    }
    Ok(OpenElement { name: start.local_name().into_inner().to_owned(), attributes, text: String::new() })
}

fn push(path: &mut [OpenElement], text: &str) {
    if let Some(element) = path.last_mut() {
        element.text.push_str(text);
    }
}

/// Processes the start of an element; returns whether the element is the root.
fn begin(path: &[OpenElement], reading: &mut MetalinkReader) -> Result<bool> {
    if path.len() > DEPTH_MAX {
        return Err(refused("its elements are nested too deeply"));
    }
    let Some(element) = path.last() else { return Ok(false) };
    if path.len() == 1 {
        return match element.name.as_str() {
            "metalink" => Ok(true),
            other => Err(refused(format!("it is a document of type {other:?}"))),
        };
    }
    match element.name.as_str() {
        "file" => {
            let name = element.attributes.get("name").cloned().unwrap_or_default();
            reading.file = MetalinkFile { name, ..MetalinkFile::default() };
            reading.known.clear();
        }
        "pieces" => reading.pieces.clear(),
        _ => {}
    }
    Ok(false)
}

/// Processes the end of an element, whose text is then complete.
fn end(path: &mut Vec<OpenElement>, reading: &mut MetalinkReader) -> Result<()> {
    let Some(element) = path.pop() else { return Ok(()) };
    let parent = path.last().map_or("", |parent| parent.name.as_str());
    let text = element.text.trim();
    // Version 3 has the elements `verification` and `resources` between a file and its properties.
    match (parent, element.name.as_str()) {
        ("file", "size") => reading.file.size_bytes = Some(number("size", text)?),
        ("file" | "verification", "hash") => {
            let kind = element.attributes.get("type").and_then(|name| FileHashAlgorithm::from_name(name));
            if let Some(hash) = kind.map(|kind| hash(kind, text)).transpose()? {
                reading.file.push_hash(hash);
            }
        }
        ("pieces", "hash") => {
            let at = element.attributes.get("piece").map(|text| number("piece", text)).transpose()?;
            reading.pieces.push((at, text.to_owned()));
        }
        ("file" | "verification", "pieces") => end_pieces(&element, reading)?,
        ("file" | "resources", "url") if !text.is_empty() => {
            let replica = replica(&element, text)?;
            if reading.known.insert(replica.url.clone()) {
                reading.file.replicas.push(replica);
            }
            if reading.file.replicas.len() > ENTRIES_MAX {
                return Err(too_many_addresses());
            }
        }
        ("metalink" | "files", "file") => {
            reading.metalink.files.push(std::mem::take(&mut reading.file));
            if reading.metalink.files.len() > ENTRIES_MAX {
                return Err(refused(format!("it describes more than {ENTRIES_MAX} files")));
            }
        }
        _ => {}
    }
    Ok(())
}

fn end_pieces(element: &OpenElement, reading: &mut MetalinkReader) -> Result<()> {
    let mut values = std::mem::take(&mut reading.pieces);
    let Some(kind) = element.attributes.get("type").and_then(|name| FileHashAlgorithm::from_name(name))
    else {
        return Ok(());
    };
    // Version 3 numbers the pieces; version 4 lists them in order.
    values.sort_by_key(|(at, _)| *at);
    if values.iter().zip(0..).any(|((at, _), expected)| at.is_some_and(|at| at != expected)) {
        return Err(refused("its pieces are not numbered from 0 on"));
    }
    let length = element.attributes.get("length").map(String::as_str).unwrap_or_default();
    let length_bytes = number("the length of pieces", length)?;
    if length_bytes == 0 {
        return Err(refused("its pieces are empty"));
    }
    let hex = values.iter().map(|(_, text)| hash(kind, text).map(|hash| hash.hex));
    let pieces = PieceHashes { length_bytes, kind, hex: hex.collect::<Result<_>>()? };
    reading.file.push_pieces(pieces);
    Ok(())
}

fn replica(element: &OpenElement, url: &str) -> Result<MetalinkUrl> {
    let attribute = |name: &str| element.attributes.get(name).map(|text| text.trim());
    let priority = match (attribute("priority"), attribute("preference")) {
        (Some(priority), _) => number("a priority", priority)?.clamp(1, u64::from(PRIORITY_LAST)) as u32,
        // In version 3, 100 is the highest preference.
        (None, Some(preference)) => 101 - number("a preference", preference)?.clamp(1, 100) as u32,
        (None, None) => PRIORITY_LAST,
    };
    let location = attribute("location").map(str::to_ascii_lowercase).filter(|text| !text.is_empty());
    Ok(MetalinkUrl { url: url.to_owned(), priority, location })
}

fn hash(kind: FileHashAlgorithm, text: &str) -> Result<FileHash> {
    FileHash::from_hex(kind, text).ok_or_else(|| refused(format!("{text:?} is not a {}", kind.name())))
}

fn number(what: &str, text: &str) -> Result<u64> {
    digits(text).ok_or_else(|| refused(format!("{what} is {text:?}, which is not a number in range")))
}

fn not_xml(error: quick_xml::Error) -> fordway_store::Error {
    refused("it is not well-formed XML").caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document in the form of the example in RFC 5854 section 1.1, with different values.
    const VERSION_4: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <metalink xmlns="urn:ietf:params:xml:ns:metalink">
          <published>2026-05-15T12:23:23Z</published>
          <file name="run/events.root">
            <size>7</size>
            <identity>Events</identity>
            <hash type="sha-256">BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD</hash>
            <hash type="whirlpool">00</hash>
            <pieces length="4" type="sha-1">
              <hash>a9993e364706816aba3e25717850c26c9cd0d89d</hash>
              <hash>da39a3ee5e6b4b0d3255bfef95601890afd80709</hash>
            </pieces>
            <url location="DE" priority="2">https://a.example.org/f?x=1&amp;y=2</url>
            <url priority="1"><![CDATA[http://b.example.org/f]]></url>
            <metaurl mediatype="torrent">http://example.org/f.torrent</metaurl>
            <url>ftp://c.example.org/f</url>
          </file>
        </metalink>"#;

    const VERSION_3: &str = r#"<metalink version="3.0" xmlns="http://www.metalinker.org/"><files>
        <file name="f"><size>5</size>
        <verification><hash type="md5">900150983cd24fb0d6963f7d28e17f72</hash>
        <hash type="adler32">1e60398</hash>
        <pieces length="4" type="sha1"><hash piece="1">da39a3ee5e6b4b0d3255bfef95601890afd80709</hash>
        <hash piece="0">a9993e364706816aba3e25717850c26c9cd0d89d</hash></pieces></verification>
        <resources><url type="https" location="ch" preference="100">https://a/f</url>
        <url type="http" preference="10">http://b/f</url></resources></file></files></metalink>"#;

    #[test]
    fn version_4() {
        let file = document(VERSION_4).unwrap().file(None).unwrap();
        assert_eq!((file.name.as_str(), file.size_bytes), ("run/events.root", Some(7)));
        assert_eq!(file.hashes, [FileHash::of(FileHashAlgorithm::Sha256, b"abc")]);
        let pieces = file.pieces.unwrap();
        assert_eq!((pieces.length_bytes, pieces.kind, pieces.hex.len()), (4, FileHashAlgorithm::Sha1, 2));
        assert!(pieces.hex[0].starts_with("a999"));
        let places: Vec<_> =
            file.replicas.iter().map(|r| (r.url.as_str(), r.priority, r.location.as_deref())).collect();
        assert_eq!(
            places,
            [
                ("https://a.example.org/f?x=1&y=2", 2, Some("de")),
                ("http://b.example.org/f", 1, None),
                ("ftp://c.example.org/f", PRIORITY_LAST, None)
            ]
        );
    }

    #[test]
    fn version_3() {
        let file = document(VERSION_3).unwrap().file(None).unwrap();
        assert_eq!((file.name.as_str(), file.size_bytes), ("f", Some(5)));
        assert_eq!(file.hashes.len(), 2);
        assert!(file.pieces.unwrap().hex[0].starts_with("a999"));
        let places: Vec<_> = file.replicas.iter().map(|r| (r.url.as_str(), r.priority)).collect();
        assert_eq!(places, [("https://a/f", 1), ("http://b/f", 91)]);
    }

    #[test]
    fn what_is_hostile_is_refused() {
        let bomb = "<!DOCTYPE m [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><metalink>&b;</metalink>";
        let deep = format!("<metalink>{}", "<a>".repeat(10_000));
        let wide = "9".repeat(30);
        let size = VERSION_4.replace("<size>7<", &format!("<size>{wide}<"));
        let minus = VERSION_4.replace("<size>7<", "<size>-7<");
        let length = VERSION_4.replace("length=\"4\"", "length=\"0\"");
        let hash = VERSION_4.replace("a9993e", "a9993");
        for (text, why) in [
            (bomb, "document type"),
            (&deep, "nested too deep"),
            (&size, "not a number in range"),
            (&minus, "not a number in range"),
            (&length, "pieces are empty"),
            (&hash, "is not a sha-1"),
            ("<metalink>&nope;</metalink>", "declares an entity"),
            ("<html><body/></html>", "of type \"html\""),
            ("<metalink><file name=\"a\">", "is truncated"),
        ] {
            let error = document(text).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let fewer = VERSION_4.replace("<size>7<", "<size>70<");
        assert!(Metalink::parse(fewer.as_bytes()).unwrap_err().to_string().contains("do not make"));
    }
}
