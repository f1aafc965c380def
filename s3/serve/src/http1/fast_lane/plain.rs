//! What makes a request plain.

use fordway_store::{Bucket, ByteRange, Conditions, ETag, Key};
use fordway_wire::range::parse_range;
use percent_encoding::percent_decode_str;

use crate::domains::Domains;
use crate::http1::head::{Framing, Head};

/// Headers that change nothing about the answer.
const WITHOUT_EFFECT: &[&str] = &[
    "accept",
    "accept-encoding",
    "accept-language",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "connection",
    "content-length",
    "user-agent",
    "x-amz-user-agent",
    "x-fordway-timing",
];

/// A read of an object with nothing unusual about it; the signature is still to be checked.
pub(super) struct Plain<'h> {
    pub(super) is_head: bool,
    host: &'h str,
    path: &'h str,
    /// `None` for the whole object.
    pub(super) range: Option<ByteRange>,
    if_match: Option<&'h str>,
    pub(super) wants_checksum: bool,
    /// `None` where a part of it is missing.
    pub(super) signature: Option<Signature<'h>>,
}

/// What says by whom a request is signed, and over what; still to be checked.
#[derive(Clone, Copy)]
pub(super) struct Signature<'h> {
    pub(super) authorization: &'h str,
    pub(super) amz_date: &'h str,
    pub(super) payload_hash: &'h str,
}

impl<'h> Plain<'h> {
    /// `None` for what is not plain.
    pub(super) fn read(head: &Head<'h>) -> Option<Self> {
        let is_head = match head.method {
            "GET" => false,
            "HEAD" => true,
            _ => return None,
        };
        if head.framing != Framing::Length(0) || !is_canonical(head.target) {
            return None;
        }
        let [mut host, mut authorization, mut amz_date, mut payload_hash] = [None; 4];
        let [mut range, mut checksum, mut if_match] = [None; 3];
        for header in head.headers {
            let field = match header.name {
                name if is(name, "host") => &mut host,
                name if is(name, "authorization") => &mut authorization,
                name if is(name, "x-amz-date") => &mut amz_date,
                name if is(name, "x-amz-content-sha256") => &mut payload_hash,
                name if is(name, "range") => &mut range,
                name if is(name, "if-match") => &mut if_match,
                name if is(name, "x-amz-checksum-mode") => &mut checksum,
                name if WITHOUT_EFFECT.iter().any(|known| is(name, known)) => continue,
                _ => return None,
            };
            let value = std::str::from_utf8(header.value).ok()?;
            if field.replace(value).is_some() {
                return None;
            }
        }
        let plain = Plain {
            is_head,
            host: host?,
            path: head.target,
            range: range.map_or(Some(None), |range| parse_range(range).map(Some))?,
            if_match: if_match.map_or(Some(None), |tag| unquoted(tag).map(Some))?,
            wants_checksum: checksum == Some("ENABLED"),
            signature: authorization.zip(amz_date).zip(payload_hash).map(
                |((authorization, amz_date), payload_hash)| Signature {
                    authorization,
                    amz_date,
                    payload_hash,
                },
            ),
        };
        let is_usual = checksum.is_none() || plain.wants_checksum;
        (is_usual && !(is_head && range.is_some())).then_some(plain)
    }

    /// What must hold of the object.
    pub(super) fn conditions(&self) -> Conditions {
        self.if_match.map_or_else(Conditions::default, |tag| Conditions::only_if(ETag::new(tag)))
    }

    /// The object; `None` where the names are not an object's.
    pub(super) fn names(&self, domains: &Domains) -> Option<(Bucket, Key)> {
        let path = self.path.strip_prefix('/')?;
        let (bucket, key) = match domains.bucket_of(self.host) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/')?,
        };
        let key = percent_decode_str(key).decode_utf8().ok()?;
        Some((Bucket::new(bucket).ok()?, Key::new(key).ok().filter(|key| !key.as_str().is_empty())?))
    }
}

/// The one tag that a condition names, without its quotes.
fn unquoted(tag: &str) -> Option<&str> {
    let tag = tag.strip_prefix('"')?.strip_suffix('"')?;
    tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(tag)
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// Whether a target is a path, encoded exactly as signatures want it: then there is one spelling only,
/// and nothing to argue about.
fn is_canonical(target: &str) -> bool {
    let bytes = target.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        at += match bytes[at] {
            b'%' => match bytes.get(at + 1..at + 3).and_then(decoded) {
                Some(byte) if !is_unreserved(byte) && byte != b'/' => 3,
                _ => return false,
            },
            b'/' => 1,
            byte if is_unreserved(byte) => 1,
            _ => return false,
        };
    }
    target.starts_with('/')
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Two hexadecimal digits in capitals.
fn decoded(digits: &[u8]) -> Option<u8> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    };
    Some(value(digits[0])? * 16 + value(digits[1])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_of_a_path_is_canonical() {
        for good in ["/b/k", "/b/a%20b", "/b/%C3%A4~._-", "/b/a//b", "/b/%25"] {
            assert!(is_canonical(good), "{good}");
        }
        for bad in [
            "",
            "b/k",
            "/b/k?x",
            "/b/k?",
            "/b/a+b",
            "/b/%2F",
            "/b/%41",
            "/b/%2f",
            "/b/%c3",
            "/b/%2",
            "/b/a b",
            "http://h/b/k",
            "*",
            "/b/(1)",
            "/b/%7E",
        ] {
            assert!(!is_canonical(bad), "{bad}");
        }
    }
}
