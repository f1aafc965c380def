//! Bucket names and object keys. Every value of these types is valid. Short keys need no allocation.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;
use std::ops::Deref;

use arrayvec::ArrayString;

use crate::{Error, ErrorKind, Result};

/// The longest key, in bytes of UTF-8 (S3's limit).
pub const MAX_KEY_BYTES: usize = 1024;

/// The maximum length of a key that is stored inline, without an allocation. With this limit, a `Key` fills one cache
/// line.
const SHORT_KEY_BYTES: usize = 56;

/// A bucket's name.
///
/// Any directory name of 1 to 255 letters, digits, `.`, `-` and `_` that starts with a letter or digit can be
/// *addressed*. Existing directories can therefore be buckets. A *new* bucket must also satisfy
/// [`Bucket::for_creation`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(Box<str>);

impl Bucket {
    /// Checks that `name` is valid for a bucket. Errors: `InvalidBucketName`.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        let first_is_fine = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if first_is_fine && name.len() <= 255 && name.bytes().all(legal) {
            return Ok(Bucket(name.into()));
        }
        Err(Error::new(ErrorKind::InvalidBucketName, format!("{name:?}")))
    }

    /// Checks the rules for names of new buckets: 3 to 255 bytes, not an IPv4 address, and no DNS label that is empty
    /// or starts or ends with a hyphen. Clients could not use a name that breaks these rules as part of a host name.
    /// Amazon allows at most 63 bytes, no capitals and no underscores. Amazon's limits do not apply to this store,
    /// because programs that address buckets by path (such as libs3 programs) use longer names and these characters.
    /// Errors: `InvalidBucketName`.
    pub fn for_creation(&self) -> Result<()> {
        let name = self.as_str();
        let is_label = |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
        let why = match name.len() {
            3..=255 if name.parse::<Ipv4Addr>().is_ok() => "is an address".to_owned(),
            3..=255 if !name.split('.').all(is_label) => {
                "has a hyphen or dot next to a dot or at an end".to_owned()
            }
            3..=255 => return Ok(()),
            length => format!("has {length} bytes"),
        };
        Err(Error::new(ErrorKind::InvalidBucketName, format!("{name:?} {why}")))
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An object's key: 1 to 1,024 bytes of UTF-8 without NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(InlineText<SHORT_KEY_BYTES>);

impl Key {
    /// Checks that `key` is a valid key. Errors: `InvalidKey`, `KeyTooLong`.
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        let key = key.as_ref();
        if key.is_empty() || contains_byte(key.as_bytes(), 0) {
            let why = if key.is_empty() { "a key cannot be empty" } else { "a key cannot hold a NUL byte" };
            return Err(Error::new(ErrorKind::InvalidKey, why));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::new(ErrorKind::KeyTooLong, format!("{} bytes", key.len())));
        }
        Ok(Key(key.into()))
    }

    /// Returns the key as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether `byte` occurs in `text`. For up to 64 bytes, this function executes far fewer instructions than
/// `memchr`, which checks strings of fewer than 32 bytes byte by byte.
pub fn contains_byte(text: &[u8], byte: u8) -> bool {
    const WORD: usize = size_of::<u64>();
    const ONES: u64 = u64::MAX / 255;
    const HIGH_BITS: u64 = ONES << 7;
    // If the high bit of a byte is clear, the subtraction sets this bit in only two cases: the byte is zero, or a lower
    // byte is zero and causes a borrow.
    let in_word = |word: &[u8; WORD]| {
        let difference = u64::from_ne_bytes(*word) ^ (ONES * u64::from(byte));
        difference.wrapping_sub(ONES) & !difference & HIGH_BITS != 0
    };
    match text.last_chunk() {
        None => text.contains(&byte),
        Some(_) if text.len() > 64 => memchr::memchr(byte, text).is_some(),
        // The last word may overlap the word before it.
        Some(last) => in_word(last) || text.as_chunks().0.iter().any(in_word),
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An immutable string. Up to `N` bytes are stored inline; a longer string is allocated.
#[derive(Clone)]
pub(crate) enum InlineText<const N: usize> {
    Short(ArrayString<N>),
    Long(Box<str>),
}

impl<const N: usize> InlineText<N> {
    /// Stores the string in an allocation, even if it is short.
    pub(crate) fn allocated(text: &str) -> Self {
        InlineText::Long(text.into())
    }

    /// Returns whether the string is stored in an allocation.
    pub(crate) fn is_allocated(&self) -> bool {
        matches!(self, InlineText::Long(_))
    }
}

impl<const N: usize> From<&str> for InlineText<N> {
    fn from(text: &str) -> Self {
        ArrayString::from(text).map_or_else(|_| InlineText::Long(text.into()), InlineText::Short)
    }
}

impl<const N: usize> Deref for InlineText<N> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            InlineText::Short(text) => text,
            InlineText::Long(text) => text,
        }
    }
}

impl<const N: usize> PartialEq for InlineText<N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for InlineText<N> {}

impl<const N: usize> PartialOrd for InlineText<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for InlineText<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<const N: usize> Hash for InlineText<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const N: usize> fmt::Debug for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names() {
        for good in ["a", "abc", "My_Data.2024", "0-9", &"x".repeat(255)] {
            assert!(Bucket::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".fordway", "-a", "a/b", "a b", "ä", "a\0", &"x".repeat(256)] {
            assert_eq!(Bucket::new(bad).unwrap_err().kind(), ErrorKind::InvalidBucketName, "{bad:?}");
        }
        assert!(Bucket::new("ab").unwrap().for_creation().is_err());
        for bad in ["192.168.5.123", "alpha-", "alpha.", "al..pha", "al.-pha", "al-.pha"] {
            assert!(Bucket::new(bad).unwrap().for_creation().is_err(), "{bad}");
        }
        for good in ["abc", "My_Data.2024", "a--b", "192.168.5"] {
            assert!(Bucket::new(good).unwrap().for_creation().is_ok(), "{good}");
        }
    }

    #[test]
    fn keys() {
        assert!(Key::new("ä/../b//").is_ok());
        assert!(Key::new("k".repeat(1024)).is_ok());
        assert_eq!(Key::new("k".repeat(1025)).unwrap_err().kind(), ErrorKind::KeyTooLong);
        assert_eq!(Key::new("").unwrap_err().kind(), ErrorKind::InvalidKey);
        assert_eq!(Key::new("a\0b").unwrap_err().kind(), ErrorKind::InvalidKey);
    }

    #[test]
    fn a_byte_is_found_at_each_place_of_each_length() {
        for length in 0..200 {
            // These pairs include bytes for which a carry or borrow from the byte below could cause a wrong result.
            for (filler, byte) in [(b'a', b'/'), (128, 0), (127, 0), (1, 0), (0, 1), (255, 127)] {
                let mut text = vec![filler; length];
                assert!(!contains_byte(&text, byte), "{length} x {filler}");
                for at in 0..length {
                    text[at] = byte;
                    assert!(contains_byte(&text, byte), "{byte} at {at} in {length} x {filler}");
                    text[at] = filler;
                }
            }
        }
    }

    #[test]
    fn the_length_does_not_show() {
        let texts: Vec<InlineText<4>> = ["", "abcd", "abcde", "b"].map(InlineText::from).into();
        assert!(matches!(texts[1], InlineText::Short(_)) && matches!(texts[2], InlineText::Long(_)));
        assert_eq!(texts.iter().map(|text| &**text).collect::<Vec<_>>(), ["", "abcd", "abcde", "b"]);
        assert!(texts.is_sorted(), "{texts:?}");
        let set: std::collections::HashSet<_> = texts.iter().cloned().collect();
        assert!(texts.iter().all(|text| set.contains(text)) && set.len() == texts.len());
    }
}
