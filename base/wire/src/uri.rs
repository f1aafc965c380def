//! Percent-encoding as S3 requires it: all characters except RFC 3986's unreserved ones are encoded, once, with capital
//! hexadecimal digits.

use std::fmt::Write as _;

use percent_encoding::{
    AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode,
};

const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Characters that must not appear in a request line.
const TYPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`');

/// Appends the path and query of a URL that was typed by a person or made by a program; existing percent-encoding is
/// kept.
pub fn push_typed(to: &mut String, rest: &str) {
    let _infallible = write!(to, "{}", utf8_percent_encode(rest, TYPED));
}

/// Appends a key as part of a path; `/` is not encoded.
pub fn push_path(to: &mut String, key: &str) {
    let _infallible = write!(to, "{}", utf8_percent_encode(key, PATH));
}

/// Appends a name or value of a query; `/` is also encoded, and a space becomes `%20`.
pub fn push_query(to: &mut String, text: &str) {
    let _infallible = write!(to, "{}", utf8_percent_encode(text, QUERY));
}

/// Appends a name that may be invalid UTF-8, encoded as by [`push_query`].
pub fn push_bytes(to: &mut String, name: &[u8]) {
    let _infallible = write!(to, "{}", percent_encode(name, QUERY));
}

/// Returns a query string in the order that signatures require: by encoded name, then value.
pub fn canonical_query<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut encoded: Vec<String> = parameters.into_iter().map(pair).collect();
    encoded.sort_unstable_by(|a, b| a.split('=').cmp(b.split('=')));
    encoded.join("&")
}

fn pair((name, value): (&str, &str)) -> String {
    let mut pair = String::with_capacity(name.len() + value.len() + 1);
    push_query(&mut pair, name);
    pair.push('=');
    push_query(&mut pair, value);
    pair
}

/// Undoes `encoding-type=url` of a listing, in which servers may write `+` for a space. `None` if the result is not
/// UTF-8.
pub fn decode_listed(text: &str) -> Option<String> {
    decode(&text.replace('+', " "))
}

/// Undoes percent-encoding (RFC 3986 section 2.1). `None` if the result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|decoded| decoded.into_owned())
}

/// Undoes the percent-encoding of a path's segment. `None` if the result is not UTF-8.
pub fn decode_segment(segment: &str) -> Option<String> {
    percent_decode_str(segment).decode_utf8().ok().map(|decoded| decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_once_and_strictly() {
        let mut path = String::new();
        push_path(&mut path, "a/b c+ä~%2F(1)*");
        assert_eq!(path, "a/b%20c%2B%C3%A4~%252F%281%29%2A");
        assert_eq!(canonical_query([("prefix", "a/b"), ("acl", "")]), "acl=&prefix=a%2Fb");
    }

    #[test]
    fn the_order_is_by_name_even_where_one_begins_another() {
        assert_eq!(canonical_query([("a-b", "1"), ("a", "2"), ("a", "1")]), "a=1&a=2&a-b=1");
    }

    #[test]
    fn decodes_both_ways_of_writing_a_blank() {
        assert_eq!(decode_listed("a+b%20c%2Bd").unwrap(), "a b c+d");
        assert_eq!(decode_listed("%FF"), None);
    }
}
