//! Entity tags (ETags), and the policies for computing them.

use std::fmt;

use super::name::InlineText;

/// The maximum length of a tag that is stored inline, without an allocation; the tag of an upload with 10,000 parts is
/// 38 bytes long.
const SHORT_BYTES: usize = 40;

/// An object's entity tag, without the quotes of HTTP. The tag needs no allocation unless it is longer than S3's own
/// ETags. The alignment of this type lets the compiler move the tag in whole vector registers; moves of odd lengths and
/// offsets would cause store-forwarding stalls.
#[derive(Clone, PartialEq, Eq, Hash)]
#[repr(align(16))]
pub struct ETag(InlineText<SHORT_BYTES>);

impl ETag {
    /// Creates a tag from the string that a client or server sent; quotes are dropped.
    pub fn new(tag: &str) -> Self {
        match tag.as_bytes() {
            // The tag has no quotes or spaces to drop.
            [first, .., last] if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() => {
                ETag::of(tag)
            }
            _ => ETag::of(tag.trim().trim_matches('"')),
        }
    }

    fn of(text: &str) -> Self {
        ETag(text.into())
    }

    /// Returns the tag of content whose MD5 is known: 32 hexadecimal digits.
    pub fn from_md5(md5: [u8; 16]) -> Self {
        ETag::of(text(&hex_digits(md5)))
    }

    /// Returns a tag of 128 bits that is *not* an MD5. The `-1` suffix makes the tag look like the ETag of a multipart
    /// upload, which no client compares with an MD5 of its own.
    pub fn opaque(value: u128) -> Self {
        let mut tag = AlignedETagBuffer([0; 34]);
        let (digits, end) = tag.0.split_at_mut(32);
        digits.copy_from_slice(&hex_digits(value.to_be_bytes()));
        end.copy_from_slice(b"-1");
        ETag::of(text(&tag.0))
    }

    /// Returns the tag of an upload completed from `count` parts; `md5` is the MD5 of the parts' ETags.
    pub(crate) fn of_parts(md5: [u8; 16], count: usize) -> Self {
        ETag::of(&format!("{}-{count}", text(&hex_digits(md5))))
    }

    /// Like [`ETag::new`], for a tag that is not an MD5 even if it looks like one. S3's tags of encrypted objects are
    /// such tags.
    pub fn new_not_md5(tag: &str) -> Self {
        ETag(InlineText::allocated(&ETag::new(tag).0))
    }

    /// Returns the tag without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the MD5 of the content, if the tag is an MD5.
    pub fn as_md5(&self) -> Option<[u8; 16]> {
        let digits = self.as_str().as_bytes();
        let mut md5 = [0; 16];
        // An MD5 is stored inline. A shorter allocation marks a tag of `new_not_md5`.
        if digits.len() != 32 || self.0.is_allocated() {
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
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A buffer for a tag, aligned so that its bytes are validated as UTF-8 word by word instead of byte by byte.
#[repr(align(16))]
struct AlignedETagBuffer([u8; 34]);

/// Returns the 32 lower-case hexadecimal digits of `bytes`. Uses no branch and no table, so that the compiler can
/// compute all digits at once. Speed matters because the tag of an object without a record is computed again for every
/// request.
fn hex_digits(bytes: [u8; 16]) -> [u8; 32] {
    let digit = |value: u8| value + b'0' + u8::from(value > 9) * (b'a' - b'0' - 10);
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = digit(byte >> 4);
        pair[1] = digit(byte & 15);
    }
    digits
}

/// Returns `ascii` as a string; an empty string if `ascii` is not valid UTF-8.
fn text(ascii: &[u8]) -> &str {
    std::str::from_utf8(ascii).unwrap_or_default()
}

/// The method of computing the ETag of a new object. The ETag belongs to the object, and is the same on every lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ETagPolicy {
    /// The content's MD5, which S3 clients check (about 1.4 ms per MiB).
    #[default]
    Md5,
    /// 128 bits that are unique to the object version, in a form that no client mistakes for an MD5. The content need
    /// not be hashed, but objects with the same content have different tags.
    Fast,
}

impl ETagPolicy {
    /// Returns the policy's name on the command line and in reports.
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
        let encrypted = ETag::new_not_md5(&format!("\"{md5}\""));
        assert_eq!(encrypted, md5);
        assert_eq!((encrypted.as_md5(), encrypted.clone().as_md5()), (None, None));
    }
}
