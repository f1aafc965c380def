//! Entity tags and what they are made of.

use std::fmt;

/// An object's entity tag, without the quotes that HTTP puts around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ETag(Box<str>);

impl ETag {
    /// Takes a tag as a client or server writes it: quotes are dropped.
    pub fn new(tag: &str) -> Self {
        match tag.as_bytes() {
            // As we keep it: nothing to drop.
            [first, .., last] if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() => {
                ETag(tag.into())
            }
            _ => ETag(tag.trim().trim_matches('"').into()),
        }
    }

    /// The tag of content whose MD5 is known: 32 hexadecimal digits.
    pub fn from_md5(md5: [u8; 16]) -> Self {
        ETag(hex(&md5).into())
    }

    /// A tag of 128 bits that is *not* an MD5. The `-1` makes it look like that of a multipart
    /// upload, which no client compares with an MD5 of its own.
    pub fn opaque(value: u128) -> Self {
        let mut tag = hex(&value.to_be_bytes());
        tag.push_str("-1");
        ETag(tag.into())
    }

    /// The tag without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The MD5 of the content, where the tag is one.
    pub fn as_md5(&self) -> Option<[u8; 16]> {
        let digits = self.0.as_bytes();
        let mut md5 = [0; 16];
        if digits.len() != 32 {
            return None;
        }
        for (byte, pair) in md5.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(md5)
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lower-case hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // Room for the `-N` of a multipart tag.
    let mut text = Vec::with_capacity(2 * bytes.len() + 2);
    for byte in bytes {
        text.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// What a new object's ETag is made of. It belongs to the object and is the same on every lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ETagPolicy {
    /// The content's MD5, which S3 clients check (about 1.4 ms per MiB).
    #[default]
    Md5,
    /// 128 bits that no other version of any object has, shaped so that no client takes them for
    /// an MD5. Costs nothing per byte; equal content does not have equal tags.
    Fast,
}

impl ETagPolicy {
    /// The policy's name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            ETagPolicy::Md5 => "md5",
            ETagPolicy::Fast => "fast",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let md5 = ETag::from_md5([0xab; 16]);
        assert_eq!(md5.as_str(), "ab".repeat(16));
        assert_eq!(md5.as_md5(), Some([0xab; 16]));
        assert_eq!(ETag::new("\"x\""), ETag::new("x"));
        assert_eq!(ETag::opaque(255).as_str(), "000000000000000000000000000000ff-1");
        assert_eq!(ETag::opaque(255).as_md5(), None);
    }
}
