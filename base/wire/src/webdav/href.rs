//! What the addresses in an answer mean (RFC 4918 section 8.3).

use fordway_store::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

use crate::uri;

/// The collection that was asked about. Its addresses are only compared: nothing is ever sent to an
/// address that a listing states, so a listing can lead nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Without port, in small letters.
    host: String,
    /// Decoded.
    segments: Vec<Vec<u8>>,
}

/// Where something is that a listing of a collection names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is the collection.
    Itself,
    /// It is a member of it.
    Member(Name),
    /// It is a member of a member, which nobody asked about.
    Deeper,
}

/// The name of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// As people read it; percent-encoded where it is not UTF-8.
    pub shown: String,
    /// As it goes into an address.
    pub encoded: String,
}

impl Collection {
    /// Of the host and the path (percent-encoded, a query is not looked at) that were asked.
    pub fn new(host: &str, path: &str) -> Self {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        Collection { host: host.to_ascii_lowercase(), segments: segments.map(decoded).collect() }
    }

    /// What `href` is to the collection: an absolute address, an absolute path, or one relative to
    /// the collection. Scheme and port are not looked at, as a proxy in front of a server changes them;
    /// nor are empty segments.
    /// Errors: `BadResponse` for what lies outside of the collection or could be taken for it.
    pub fn place(&self, href: &str) -> Result<Place> {
        let outside = || {
            let detail =
                format!("the server lists {href:?}, which is outside of the collection that was asked about");
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
            [] => Place::Itself,
            [name] => Place::Member(Name::of(name)),
            _ => Place::Deeper,
        })
    }

    /// The path of an address at this host.
    fn path_of<'h>(&self, href: &'h str) -> Option<&'h str> {
        let scheme_end = href.find("://").filter(|end| !href[..*end].contains(['/', '?', '#']));
        let Some(end) = scheme_end else {
            // `mailto:x` has a scheme too, and is no path.
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

impl Name {
    fn of(name: &[u8]) -> Self {
        let mut encoded = String::new();
        match std::str::from_utf8(name) {
            Ok(text) => {
                uri::push_query(&mut encoded, text);
                Name { shown: text.to_owned(), encoded }
            }
            Err(_) => {
                uri::push_bytes(&mut encoded, name);
                Name { shown: encoded.clone(), encoded }
            }
        }
    }
}

fn decoded(segment: &str) -> Vec<u8> {
    percent_decode_str(segment).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(href: &str) -> Option<Name> {
        match Collection::new("h.org", "/a%20b/c?q=1").place(href) {
            Ok(Place::Member(name)) => Some(name),
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
            let name = Name { shown: "d\u{e4}".into(), encoded: "d%C3%A4".into() };
            assert_eq!(member(href), Some(name), "{href}");
        }
        assert_eq!(
            member("/a%20b/c/%ff%20").unwrap(),
            Name { shown: "%FF%20".into(), encoded: "%FF%20".into() }
        );
        assert_eq!(member("./x:y").unwrap().encoded, "x%3Ay");
        let root = Collection::new("::1", "");
        assert_eq!(root.place("http://[::1]:80").unwrap(), Place::Itself);
        assert_eq!(root.place("/a/b").unwrap(), Place::Deeper);
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
            let _result = Collection::new("h", &path).place(&href);
        }

        #[test]
        fn a_member_never_leads_elsewhere(href in "(/|\\.|%2e|%2F|a|%00|:|http://h|\\?){0,12}") {
            if let Ok(Place::Member(name)) = Collection::new("h", "/a").place(&href) {
                prop_assert!(!name.shown.contains('/') && name.shown != "." && name.shown != "..");
                prop_assert!(!name.encoded.contains(['/', '?', '#']));
            }
        }

        #[test]
        fn names_survive(name in "[^/\0]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let mut encoded = String::new();
            uri::push_query(&mut encoded, &name);
            let place = Collection::new("h", "/a/").place(&format!("/a/{encoded}")).unwrap();
            prop_assert_eq!(place, Place::Member(Name { shown: name, encoded }));
        }
    }
}
