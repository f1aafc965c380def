//! The `multistatus` document (RFC 4918 section 13).

use std::time::SystemTime;

use fordway_store::{Error, ErrorKind, Result};
use quick_xml::NsReader;
use quick_xml::events::Event;
use quick_xml::name::{Namespace, ResolveResult};

use crate::date;

/// The body of a PROPFIND request for the [`ResourceProperties`].
pub const PROPFIND: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><propfind xmlns=\"DAV:\"><prop><resourcetype/>\
     <getcontentlength/><getlastmodified/><getetag/></prop></propfind>";

/// The maximum nesting depth of elements. The deepest element that is read is at the sixth level.
const DEPTH_MAX: usize = 64;

/// The description of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultistatusEntry {
    /// The address of the resource, as the server writes it.
    pub href: String,
    /// The status of the resource as a whole, if the server sent one. Servers usually send it only for a failure.
    pub status: Option<u16>,
    /// The properties that the server was able to return.
    pub properties: ResourceProperties,
}

/// Properties of a resource. A property is missing if the server did not send it, or sent an invalid value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceProperties {
    /// Whether the resource is a collection.
    pub is_collection: bool,
    /// `getcontentlength`: the size in bytes.
    pub size_bytes: Option<u64>,
    /// `getlastmodified`.
    pub modified: Option<SystemTime>,
    /// `getetag`, with its quotes.
    pub etag: Option<String>,
}

/// Parses a document, in time proportional to its length and with memory proportional to its content. Only elements of
/// the namespace `DAV:` count, under any prefix; other elements are ignored. Errors: `BadResponse` if the document is
/// of another kind, is incomplete, or contains a document type declaration. No server needs such a declaration, and it
/// can declare entities that expand without bound.
pub fn multistatus(document: &[u8]) -> Result<Vec<MultistatusEntry>> {
    let text = std::str::from_utf8(document)
        .map_err(|error| bad("the multistatus document is not UTF-8").caused_by(error))?;
    let mut reader = NsReader::from_str(text.trim_start_matches('\u{feff}'));
    let mut parsed = MultistatusParser::default();
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(not_xml)?;
        let is_dav = matches!(namespace, ResolveResult::Bound(Namespace("DAV:")));
        match event {
            Event::Start(start) => parsed.enter(is_dav, start.local_name().into_inner())?,
            Event::Empty(start) => {
                parsed.enter(is_dav, start.local_name().into_inner())?;
                parsed.leave()?;
            }
            Event::End(_) => parsed.leave()?,
            Event::Text(more) => parsed.text.push_str(&more),
            Event::CData(more) => parsed.text.push_str(&more),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(not_xml)? {
                Some(character) => parsed.text.push(character),
                None => parsed.text.push_str(named_entity(&reference)?),
            },
            Event::DocType(_) => return Err(bad("the multistatus document declares a document type")),
            Event::Eof => return parsed.finish(),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
}

/// The parser's position in the document, and its results so far.
#[derive(Default)]
struct MultistatusParser {
    /// Names of the open elements from the root on, each after a slash; `-` for names of other namespaces.
    path: String,
    depth: usize,
    has_root: bool,
    text: String,
    found: Vec<MultistatusEntry>,
    /// The number of results before the current `response`.
    found_before: usize,
    /// The `response` that is being parsed.
    current: MultistatusEntry,
    /// The properties in the `propstat` that is being parsed. The `propstat`'s status, which comes last, determines
    /// whether the properties count.
    properties: ResourceProperties,
    properties_status: Option<u16>,
}

impl MultistatusParser {
    fn enter(&mut self, is_dav: bool, name: &str) -> Result<()> {
        if self.depth == 0 {
            if self.has_root || !is_dav || name != "multistatus" {
                return Err(bad("the response is XML, but not a WebDAV multistatus document"));
            }
            self.has_root = true;
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(bad(format!("the multistatus document is nested deeper than {DEPTH_MAX} elements")));
        }
        self.path.push('/');
        self.path.push_str(if is_dav { name } else { "-" });
        self.text.clear();
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let text = self.text.trim();
        match self.path.as_str() {
            "/multistatus/response/href" => {
                // If a response has several addresses (RFC 4918 section 14.24), all addresses share one status, and
                // none of them has properties. If the server sends properties anyway, only the last address gets them,
                // because a copy for each address could need unbounded memory.
                if !self.current.href.is_empty() {
                    let href = std::mem::take(&mut self.current.href);
                    self.found.push(MultistatusEntry { href, ..MultistatusEntry::default() });
                }
                text.clone_into(&mut self.current.href);
            }
            "/multistatus/response/status" => self.current.status = Some(status(text)?),
            "/multistatus/response/propstat/status" => self.properties_status = Some(status(text)?),
            "/multistatus/response/propstat" => {
                let properties = std::mem::take(&mut self.properties);
                if self.properties_status.take().is_none_or(|status| (200..300).contains(&status)) {
                    self.current.properties.merge(properties);
                }
            }
            "/multistatus/response" => self.end_response()?,
            path => {
                if let Some(name) = path.strip_prefix("/multistatus/response/propstat/prop/") {
                    self.properties.set(name, text);
                }
            }
        }
        self.path.truncate(self.path.rfind('/').unwrap_or(0));
        self.depth -= 1;
        self.text.clear();
        Ok(())
    }

    fn end_response(&mut self) -> Result<()> {
        let described = std::mem::take(&mut self.current);
        if described.href.is_empty() {
            return Err(bad("the multistatus document describes something without an address"));
        }
        for earlier in &mut self.found[self.found_before..] {
            earlier.status = described.status;
        }
        self.found_before = self.found.len() + 1;
        self.found.push(described);
        Ok(())
    }

    fn finish(self) -> Result<Vec<MultistatusEntry>> {
        match (self.has_root, self.depth) {
            (true, 0) => Ok(self.found),
            (true, _) => Err(bad("the multistatus document is truncated")),
            (false, _) => Err(bad("the response is not XML")),
        }
    }
}

impl ResourceProperties {
    fn set(&mut self, name: &str, text: &str) {
        match name {
            "resourcetype/collection" => self.is_collection = true,
            "getcontentlength" => self.size_bytes = crate::range::digits(text),
            "getlastmodified" => {
                self.modified = date::parse_http(text).or_else(|| date::parse_iso8601(text));
            }
            "getetag" => self.etag = Some(text.to_owned()).filter(|etag| !etag.is_empty()),
            _ => {}
        }
    }

    fn merge(&mut self, other: ResourceProperties) {
        self.is_collection |= other.is_collection;
        self.size_bytes = other.size_bytes.or(self.size_bytes);
        self.modified = other.modified.or(self.modified);
        self.etag = other.etag.or_else(|| self.etag.take());
    }
}

/// Parses the status code in a line such as `HTTP/1.1 207 Multi-Status`.
fn status(line: &str) -> Result<u16> {
    let number = line.strip_prefix("HTTP/").and_then(|rest| rest.split_ascii_whitespace().nth(1));
    let status = number.and_then(|digits| digits.parse().ok());
    status
        .filter(|status| (100..1000).contains(status))
        .ok_or_else(|| bad(format!("the multistatus document has the status {line:?}")))
}

fn named_entity(name: &str) -> Result<&'static str> {
    quick_xml::escape::resolve_predefined_entity(name).ok_or_else(|| bad(format!("unknown entity &{name};")))
}

fn not_xml(error: quick_xml::Error) -> Error {
    bad("the response is not XML").caused_by(error)
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    /// A document in Apache's form: with two prefixes, and with a second `propstat` for missing properties.
    const APACHE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\" xmlns:n=\"DAV:\">\n\
        <D:response xmlns:a=\"DAV:\" xmlns:b=\"http://apache.org/dav/props/\"><D:href>/d/</D:href>\n<D:propstat><D:prop>\
        <a:resourcetype><D:collection/></a:resourcetype><a:getlastmodified>Fri, 24 May 2013 00:00:00 GMT</a:getlastmodified>\
        <a:getetag>W/\"1-2\"</a:getetag></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>\
        <D:propstat><D:prop><n:getcontentlength>7</n:getcontentlength></D:prop>\
        <D:status>HTTP/1.1 404 Not Found</D:status></D:propstat></D:response>\n\
        <D:response><D:href> /d/c%20&amp;&#228;.txt </D:href><D:propstat><D:prop><D:resourcetype/>\
        <D:getcontentlength>519</D:getcontentlength><b:getetag>no</b:getetag></D:prop>\
        <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>";

    #[test]
    fn properties_count_by_their_status_and_namespace() {
        let document = APACHE.replace("xmlns:n=", "xmlns:b=\"http://apache.org/dav/props/\" xmlns:n=");
        let found = multistatus(document.as_bytes()).unwrap();
        let folder = ResourceProperties {
            is_collection: true,
            size_bytes: None,
            modified: Some(UNIX_EPOCH + Duration::from_secs(1_369_353_600)),
            etag: Some("W/\"1-2\"".to_owned()),
        };
        let file = ResourceProperties { size_bytes: Some(519), ..ResourceProperties::default() };
        assert_eq!(
            found,
            [
                MultistatusEntry { href: "/d/".into(), status: None, properties: folder },
                MultistatusEntry { href: "/d/c%20&ä.txt".into(), status: None, properties: file },
            ]
        );
    }

    /// A copy of the properties for each address could need unbounded memory.
    #[test]
    fn several_addresses_share_a_status_and_no_properties() {
        let document = "<multistatus xmlns='DAV:'><response><propstat><prop><getetag>\"large\"</getetag></prop></propstat>\
            <href>/a</href><href>/b</href><href>/c</href><status>HTTP/1.1 423 Locked</status></response></multistatus>";
        let found = multistatus(document.as_bytes()).unwrap();
        let described: Vec<_> =
            found.iter().map(|it| (&*it.href, it.status, it.properties.etag.is_some())).collect();
        assert_eq!(described, [("/a", Some(423), false), ("/b", Some(423), false), ("/c", Some(423), true)]);
    }

    #[test]
    fn any_prefix_or_none() {
        let plain = "<P:multistatus xmlns:P=\"DAV:\"><P:response><P:href>/x</P:href>\
            <P:status>HTTP/1.1 423 Locked</P:status></P:response></P:multistatus>";
        let expected = multistatus(plain.as_bytes()).unwrap();
        assert_eq!((expected[0].href.as_str(), expected[0].status), ("/x", Some(423)));
        for prefixed in [
            plain.replace("P:", "").replace("xmlns:P", "xmlns").replace(":P=", "="),
            plain.replace('P', "long.Name"),
        ] {
            let prefixed = prefixed.replace("HTTlong.Name", "HTTP");
            assert_eq!(multistatus(prefixed.as_bytes()).unwrap(), expected, "{prefixed}");
        }
    }

    #[test]
    fn several_addresses_share_a_status() {
        let document = "<multistatus xmlns=\"DAV:\"><response><href>/a</href><href>/b</href>\
            <status>HTTP/1.1 403 Forbidden</status></response></multistatus>";
        let found = multistatus(document.as_bytes()).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.href.as_str(), one.status)).collect();
        assert_eq!(found, [("/a", Some(403)), ("/b", Some(403))]);
    }

    #[test]
    fn what_is_no_whole_multistatus_document_is_refused() {
        let deep = format!("<multistatus xmlns=\"DAV:\">{}", "<a>".repeat(100_000));
        let bomb = "<!DOCTYPE m [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;\">]>\
            <multistatus xmlns=\"DAV:\"><response><href>&b;</href></response></multistatus>";
        for document in [
            "",
            "text",
            "<html/>",
            "<multistatus/>",
            "<multistatus xmlns=\"other\"/>",
            "<multistatus xmlns=\"DAV:\">",
            "<multistatus xmlns=\"DAV:\"/><multistatus xmlns=\"DAV:\"/>",
            "<multistatus xmlns=\"DAV:\"><response/></multistatus>",
            "<multistatus xmlns=\"DAV:\"><response><href>/a</href><status>OK</status></response></multistatus>",
            "<multistatus xmlns=\"DAV:\"><response><href>&b;</href></response></multistatus>",
            bomb,
            &deep,
        ] {
            let error = multistatus(document.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadResponse, "{:.60}", document);
        }
        assert_eq!(multistatus(b"\xef\xbb\xbf<multistatus xmlns=\"DAV:\"/>").unwrap(), []);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(document in prop::collection::vec(any::<u8>(), 0..300)) {
            let _result = multistatus(&document);
        }

        #[test]
        fn no_text_like_xml_makes_it_panic(
            text in "(<|>|/|&|;|#|=|\"|D:|DAV:|xmlns|xmlns:D|multistatus|response|href|propstat|prop|status|HTTP/1.1 |200|!|\\[|CDATA| ){0,60}"
        ) {
            let _result = multistatus(text.as_bytes());
            let _result = multistatus(format!("<D:multistatus xmlns:D=\"DAV:\"><D:response>{text}").as_bytes());
        }

        #[test]
        fn what_is_written_is_read(
            hrefs in prop::collection::vec("/[a-z%&<ä]{1,20}", 0..20),
            prefix in "[A-Za-z][A-Za-z0-9]{0,5}",
            size in any::<u64>(),
        ) {
            prop_assume!(!prefix.eq_ignore_ascii_case("xml") && !prefix.eq_ignore_ascii_case("xmlns"));
            let response = |href: &String| format!(
                "<{prefix}:response><{prefix}:href>{}</{prefix}:href><{prefix}:propstat><{prefix}:prop>\
                 <{prefix}:getcontentlength>{size}</{prefix}:getcontentlength></{prefix}:prop></{prefix}:propstat></{prefix}:response>",
                quick_xml::escape::escape(href)
            );
            let responses: String = hrefs.iter().map(response).collect();
            let document = format!("<{prefix}:multistatus xmlns:{prefix}=\"DAV:\">{responses}</{prefix}:multistatus>");
            let found = multistatus(document.as_bytes()).unwrap();
            prop_assert_eq!(found.iter().map(|one| one.href.clone()).collect::<Vec<_>>(), hrefs);
            prop_assert!(found.iter().all(|one| one.properties.size_bytes == Some(size)));
        }
    }
}
