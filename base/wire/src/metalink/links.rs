//! What an answer's own headers say of replicas: `Link` and `Digest` (RFC 6249, 8288, 3230).

use super::{FileHash, HashKind, MetalinkFile, MetalinkUrl, PRIORITY_LAST};

/// Replicas that one answer names at most; there may be more in the document that describes them.
const REPLICAS_MAX: usize = 100;

/// What headers say; addresses may be relative to the answer's.
pub type Links = MetalinkFile;

/// Reads the values of `Link` and `Digest` headers. What cannot be read is passed over: these headers
/// are an extra, and other relations stand in them too.
pub fn read_links<'a>(
    links: impl IntoIterator<Item = &'a str>,
    digests: impl IntoIterator<Item = &'a str>,
) -> Links {
    let mut found = Links::default();
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
        let hash = entry
            .trim()
            .split_once('=')
            .and_then(|(name, value)| FileHash::from_digest_header(HashKind::from_name(name)?, value));
        hash.into_iter().for_each(|hash| found.push_hash(hash));
    }
    found
}

/// Whether a media type names a Metalink of either version.
pub fn is_metalink_type(text: &str) -> bool {
    let plain = text.split(';').next().unwrap_or_default().trim();
    ["application/metalink4+xml", "application/metalink+xml"]
        .iter()
        .any(|known| plain.eq_ignore_ascii_case(known))
}

/// The entries of one header: an address, and names with values.
fn entries(value: &str) -> Vec<(String, Vec<(String, String)>)> {
    let (mut found, mut rest) = (Vec::new(), value);
    while let Some((address, after)) = rest.split_once('<').and_then(|(_, after)| after.split_once('>')) {
        let (parameters, next) = parameters(after);
        found.push((address.trim().to_owned(), parameters));
        rest = next;
    }
    found
}

/// `; name=value; name="value"` up to a comma; returns what follows that.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The headers of RFC 6249's section 1.1, with other values.
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
        let expected = [HashKind::Sha256, HashKind::Adler32].map(|kind| FileHash::of(kind, b"abc"));
        assert_eq!(found.hashes, expected);
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(link in "(<|>|;|,|=|\"|\\\\|rel|pri|duplicate|\u{e4}| ){0,40}", digest in "\\PC{0,40}") {
            let _found = read_links([link.as_str()], [digest.as_str()]);
        }
    }
}
