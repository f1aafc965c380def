//! WebDAV (RFC 4918) and WLCG's third-party copies: the client's requests and the server's responses.
//!
//! [`multistatus`] parses the document in a WebDAV response. [`CollectionUrl`] interprets the addresses in the document
//! (section 8.3), and rejects addresses outside the collection. [`PerformanceMarkerParser`] parses a server's report on
//! a copy in progress. The report consists of performance markers, as in GridFTP, and a last line with the outcome
//! (WLCG's HTTP-TPC).
//!
//! ```text
//! Perf Marker
//! Timestamp: 1795311802
//! Stripe Index: 0
//! Stripe Bytes Transferred: 1048576
//! Total Stripe Count: 1
//! End
//! success: Created
//! ```

mod multistatus;

pub use multistatus::{MultistatusEntry, PROPFIND, ResourceProperties, multistatus};

use std::collections::BTreeMap;

use fordway_store::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

use crate::uri;

/// The address of the requested collection. The addresses in a listing are only compared with this address. Nothing is
/// ever sent to an address from a listing, so a listing cannot redirect a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionUrl {
    /// The host without the port, in lower case.
    host: String,
    /// The segments of the path, decoded.
    segments: Vec<Vec<u8>>,
}

/// The location of an entry in a collection's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectionEntryLocation {
    /// The collection itself.
    Itself,
    /// A member of the collection.
    Member(CollectionMemberName),
    /// A member of a nested collection, which was not requested.
    Deeper,
}

/// The name of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectionMemberName {
    /// The name for display; percent-encoded if it is not UTF-8.
    pub shown: String,
    /// The name for use in an address.
    pub encoded: String,
}

impl CollectionUrl {
    /// Creates the address from the host and path of the request. The path is percent-encoded; a query in the path is
    /// ignored.
    pub fn new(host: &str, path: &str) -> Self {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        CollectionUrl { host: host.to_ascii_lowercase(), segments: segments.map(decoded).collect() }
    }

    /// Returns the location of `href` relative to the collection. `href` is an absolute address, an absolute path, or a
    /// path relative to the collection. Scheme and port are ignored, because a proxy in front of a server changes them.
    /// Empty segments are also ignored. Errors: `BadResponse` if `href` is outside the collection, or could be
    /// interpreted as being outside.
    pub fn place(&self, href: &str) -> Result<CollectionEntryLocation> {
        let outside = || {
            let detail = format!("the server lists {href:?}, which is outside of the requested collection");
            Error::new(ErrorKind::BadResponse, detail)
        };
        let path = self.path_of(href).ok_or_else(outside)?;
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let found: Vec<Vec<u8>> =
            path.split('/').filter(|segment| !segment.is_empty()).map(decoded).collect();
        let inner = match path.starts_with('/') {
            true => found.strip_prefix(self.segments.as_slice()).ok_or_else(outside)?,
            false => found.strip_prefix(&[b".".to_vec()]).unwrap_or(&found),
        };
        let is_name = |segment: &Vec<u8>| {
            segment != b"." && segment != b".." && !segment.iter().any(|b| b"/\0".contains(b))
        };
        if !inner.iter().all(is_name) {
            return Err(outside());
        }
        Ok(match inner {
            [] => CollectionEntryLocation::Itself,
            [name] => CollectionEntryLocation::Member(CollectionMemberName::of(name)),
            _ => CollectionEntryLocation::Deeper,
        })
    }

    /// Returns the path in `href`; `None` if `href` is on another host, or has a scheme without a host.
    fn path_of<'h>(&self, href: &'h str) -> Option<&'h str> {
        let scheme_end = href.find("://").filter(|end| !href[..*end].contains(['/', '?', '#']));
        let Some(end) = scheme_end else {
            // `mailto:x` also has a scheme, and is not a path.
            let is_path = href.find(':').is_none_or(|colon| href[..colon].contains(['/', '?', '#']));
            return is_path.then_some(href);
        };
        let rest = &href[end + 3..];
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let host = match authority.strip_prefix('[') {
            Some(bracketed) => bracketed.split(']').next(),
            None => authority.split(':').next(),
        };
        let is_same = host.is_some_and(|host| host.eq_ignore_ascii_case(&self.host));
        is_same.then_some(if path.is_empty() { "/" } else { path })
    }
}

impl CollectionMemberName {
    fn of(name: &[u8]) -> Self {
        let mut encoded = String::new();
        match std::str::from_utf8(name) {
            Ok(text) => {
                uri::push_query(&mut encoded, text);
                CollectionMemberName { shown: text.to_owned(), encoded }
            }
            Err(_) => {
                uri::push_bytes(&mut encoded, name);
                CollectionMemberName { shown: encoded.clone(), encoded }
            }
        }
    }
}

fn decoded(segment: &str) -> Vec<u8> {
    percent_decode_str(segment).collect()
}

/// The maximum length of a line in a report.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// The maximum number of stripes in a copy.
const STRIPES_MAX: usize = 4096;
/// The maximum displayed length of a server's reason.
const REASON_CHARS_MAX: usize = 400;

/// The outcome of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThirdPartyCopyOutcome {
    /// The server reports success.
    Success,
    /// The server reports a failure; the value is its reason, as one line of printable text.
    Failure(String),
}

/// Parses a report as it arrives, in pieces. The parser stores one line, and a number for each stripe.
#[derive(Clone, Debug, Default)]
pub struct PerformanceMarkerParser {
    line: Vec<u8>,
    /// The stripe in the marker that is being parsed.
    stripe: u64,
    /// The number of bytes in the marker that is being parsed.
    bytes: Option<u64>,
    /// The number of bytes copied in each stripe.
    stripes: BTreeMap<u64, u64>,
    outcome: Option<ThirdPartyCopyOutcome>,
}

impl PerformanceMarkerParser {
    /// Parses the next chunk of the report. Returns whether the chunk completed a performance marker. Errors:
    /// `BadResponse` if a line is too long or there are too many stripes.
    pub fn push(&mut self, piece: &[u8]) -> Result<bool> {
        let mut has_marker = false;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > LINE_BYTES_MAX {
                return Err(bad("a line of the report is too long"));
            }
            if part.ends_with(b"\n") {
                has_marker |= self.end_line()?;
            }
        }
        Ok(has_marker)
    }

    /// Returns the total number of bytes copied so far in all stripes.
    pub fn bytes(&self) -> u64 {
        self.stripes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the outcome of the copy; `None` if the report was truncated before its outcome. The last line may lack a
    /// line break. Errors: as for [`PerformanceMarkerParser::push`].
    pub fn finish(mut self) -> Result<Option<ThirdPartyCopyOutcome>> {
        self.end_line()?;
        Ok(self.outcome)
    }

    fn end_line(&mut self) -> Result<bool> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        let number = || crate::range::digits(value.trim());
        let is_end = match name.trim().to_ascii_lowercase().as_str() {
            "perf marker" => {
                (self.stripe, self.bytes) = (0, None);
                false
            }
            "stripe index" => {
                self.stripe = number().unwrap_or(0);
                false
            }
            "stripe bytes transferred" => {
                self.bytes = number();
                false
            }
            "end" => self.end_marker()?,
            // If several lines contain an outcome, the first of these lines counts.
            "success" => self.ended(ThirdPartyCopyOutcome::Success),
            "failure" | "failed" | "error" | "aborted" => {
                self.ended(ThirdPartyCopyOutcome::Failure(shown(value)))
            }
            _ => false,
        };
        Ok(is_end)
    }

    fn end_marker(&mut self) -> Result<bool> {
        let Some(bytes) = self.bytes.take() else { return Ok(false) };
        if self.stripes.len() >= STRIPES_MAX && !self.stripes.contains_key(&self.stripe) {
            return Err(bad("the report has too many stripes"));
        }
        self.stripes.insert(self.stripe, bytes);
        Ok(true)
    }

    fn ended(&mut self, outcome: ThirdPartyCopyOutcome) -> bool {
        self.outcome.get_or_insert(outcome);
        false
    }
}

/// Formats a server's reason for display: on one line of bounded length.
fn shown(reason: &str) -> String {
    let printable = reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(REASON_CHARS_MAX).collect()
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(href: &str) -> Option<CollectionMemberName> {
        match CollectionUrl::new("h.org", "/a%20b/c?q=1").place(href) {
            Ok(CollectionEntryLocation::Member(name)) => Some(name),
            Ok(other) => panic!("{href}: {other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::BadResponse);
                None
            }
        }
    }

    #[test]
    fn all_ways_of_writing_an_address() {
        for href in [
            "/a%20b/c/d%C3%A4",
            "/a b/c/d\u{e4}/",
            "http://h.org/a%20b/c/d%c3%a4",
            "https://H.ORG:8443/a%20b//c/d\u{e4}?x#y",
            "d%C3%A4",
            "./d\u{e4}",
        ] {
            let name = CollectionMemberName { shown: "d\u{e4}".into(), encoded: "d%C3%A4".into() };
            assert_eq!(member(href), Some(name), "{href}");
        }
        assert_eq!(
            member("/a%20b/c/%ff%20").unwrap(),
            CollectionMemberName { shown: "%FF%20".into(), encoded: "%FF%20".into() }
        );
        assert_eq!(member("./x:y").unwrap().encoded, "x%3Ay");
        let root = CollectionUrl::new("::1", "");
        assert_eq!(root.place("http://[::1]:80").unwrap(), CollectionEntryLocation::Itself);
        assert_eq!(root.place("/a/b").unwrap(), CollectionEntryLocation::Deeper);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        for href in [
            "/",
            "/a%20b",
            "/a%20b/cd",
            "/a%20b/c/..",
            "/a%20b/c/%2e%2E",
            "/a%20b/c/../c/d",
            "../d",
            "/a%20b/c/d%2Fe",
            "/a%20b/c/..%2f..%2fetc",
            "/a%20b/c/d%00",
            "http://other/a%20b/c/d",
            "http://h.org@other/a%20b/c/d",
            "mailto:d",
            "http:d",
        ] {
            assert_eq!(member(href), None, "{href}");
        }
    }

    proptest! {
        #[test]
        fn no_address_makes_it_panic(href in any::<String>(), path in any::<String>()) {
            let _result = CollectionUrl::new("h", &path).place(&href);
        }

        #[test]
        fn a_member_never_leads_elsewhere(href in "(/|\\.|%2e|%2F|a|%00|:|http://h|\\?){0,12}") {
            if let Ok(CollectionEntryLocation::Member(name)) = CollectionUrl::new("h", "/a").place(&href) {
                prop_assert!(!name.shown.contains('/') && name.shown != "." && name.shown != "..");
                prop_assert!(!name.encoded.contains(['/', '?', '#']));
            }
        }

        #[test]
        fn names_survive(name in "[^/\0]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let mut encoded = String::new();
            uri::push_query(&mut encoded, &name);
            let place = CollectionUrl::new("h", "/a/").place(&format!("/a/{encoded}")).unwrap();
            prop_assert_eq!(place, CollectionEntryLocation::Member(CollectionMemberName { shown: name, encoded }));
        }
    }

    fn marker(stripe: u64, bytes: u64) -> String {
        format!(
            "Perf Marker\nTimestamp: 1\nStripe Index: {stripe}\nStripe Bytes Transferred: {bytes}\n\
             Total Stripe Count: 2\r\nRemoteConnections: tcp:[::1]:80\nEnd\n"
        )
    }

    fn outcome(text: &str) -> Option<ThirdPartyCopyOutcome> {
        let mut report = PerformanceMarkerParser::default();
        report.push(text.as_bytes()).unwrap();
        report.finish().unwrap()
    }

    #[test]
    fn bytes_of_stripes_add_up() {
        let mut report = PerformanceMarkerParser::default();
        assert!(report.push(marker(0, 5).as_bytes()).unwrap());
        assert!(report.push(marker(1, 7).as_bytes()).unwrap());
        assert!(report.push(marker(0, 6).as_bytes()).unwrap());
        assert!(!report.push(b"Perf Marker\nEnd\nStripe Bytes Transferred: 9\n").unwrap());
        assert_eq!(report.bytes(), 13);
        report.push(b"success: Created").unwrap();
        assert_eq!(report.finish().unwrap(), Some(ThirdPartyCopyOutcome::Success));
    }

    #[test]
    fn the_end_is_said_or_it_is_not() {
        assert_eq!(outcome("Success"), Some(ThirdPartyCopyOutcome::Success));
        assert_eq!(
            outcome("failure: a\tb\nsuccess: c\n"),
            Some(ThirdPartyCopyOutcome::Failure("a b".into()))
        );
        assert_eq!(outcome("ERROR: x"), Some(ThirdPartyCopyOutcome::Failure("x".into())));
        assert_eq!(outcome("Stripe: success\nsuccessful: x\n"), None);
        assert_eq!(outcome(&marker(0, 1)), None);
        assert_eq!(
            outcome(&format!("failure: {}", "x".repeat(5000))),
            Some(ThirdPartyCopyOutcome::Failure("x".repeat(400)))
        );
    }

    #[test]
    fn endless_reports_are_refused() {
        let mut report = PerformanceMarkerParser::default();
        let refused = (0..10).find_map(|_| report.push(&[b'x'; 1024]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::BadResponse));
        let mut report = PerformanceMarkerParser::default();
        let refused = (0..10_000).find_map(|stripe| report.push(marker(stripe, 1).as_bytes()).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::BadResponse));
    }

    proptest! {
        #[test]
        fn how_it_is_cut_makes_no_difference(
            counts in prop::collection::vec((0_u64..4, any::<u64>()), 0..8),
            size in 1_usize..50,
        ) {
            let text: String = counts.iter().map(|(stripe, bytes)| marker(*stripe, *bytes)).collect();
            let (mut whole, mut pieces) = (PerformanceMarkerParser::default(), PerformanceMarkerParser::default());
            whole.push(text.as_bytes()).unwrap();
            for piece in text.as_bytes().chunks(size) {
                pieces.push(piece).unwrap();
            }
            prop_assert_eq!(whole.bytes(), pieces.bytes());
        }

        #[test]
        fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..9)) {
            let mut report = PerformanceMarkerParser::default();
            for piece in &pieces {
                let _result = report.push(piece);
            }
            let _result = report.finish();
        }
    }
}
