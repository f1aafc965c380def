//! The paths of objects and of Fordway's own files on disk.
//!
//! ```text
//! ROOT/BUCKET/a/b.txt             the object a/b.txt
//! ROOT/BUCKET/.fordway/odd/...    objects whose keys cannot be paths, percent-encoded
//! ROOT/BUCKET/.fordway/mpu/ID/    a multipart upload: `upload`, and its parts `00001` ...
//! ROOT/BUCKET/.fordway/meta/INODE a record that does not fit into an attribute
//! ROOT/BUCKET/.fordway/versioning whether old versions are kept
//! ROOT/BUCKET/.fordway/versions/  old versions, in a directory for each key, percent-encoded
//! ROOT/BUCKET/.fordway/events/    records of changes that were not delivered to a webhook yet
//! ROOT/BUCKET/.fordway/tmp/       staged files on their way to a name
//! ROOT/BUCKET/.fordway/locks      one byte to lock for each hash of a key; never written
//! ROOT/.fordway-removing-RANDOM/  a bucket while it is removed
//! ```

use std::borrow::Cow;
use std::fmt::Write as _;

use fordway_store::{Bucket, BucketDocumentKind, Key, UploadId, contains_byte};
use fordway_sys::{is_text_of_a_name, text_to_name};
use fordway_wire::notification::is_webhook_name;

/// The private directory of a bucket, next to its objects. The private directory is never listed, and no key refers to
/// it. The same applies to a directory with this name in a subdirectory of the bucket, which may be the private
/// directory of another bucket that was moved into this bucket.
pub const PRIVATE_DIR: &str = ".fordway";
/// The subdirectory of the private directory for odd keys.
pub(crate) const ODD: &str = "odd";
/// The subdirectory for old versions.
pub(crate) const VERSIONS: &str = "versions";
/// The subdirectory for sidecar files.
pub(crate) const META: &str = "meta";
/// The subdirectory for staged files.
pub(crate) const TMP: &str = "tmp";
/// The subdirectory for uploads.
pub(crate) const UPLOADS: &str = "mpu";
/// The subdirectory for the journal of events.
pub(crate) const EVENTS: &str = "events";
/// The file in the private directory whose bytes serve as locks.
pub(crate) const LOCKS: &str = "locks";
/// The file in the private directory whose presence means that directories may be objects. If the file is not empty,
/// the bucket may have a notification configuration.
pub(crate) const MARKERS: &str = "markers";
/// The file in the private directory that records whether old versions are kept.
pub(crate) const VERSIONING: &str = "versioning";
/// The names that occur only in the private directories of buckets, not in the root's private directory.
pub(crate) const BUCKET_NAMES: [&str; 9] =
    [ODD, VERSIONS, META, TMP, UPLOADS, EVENTS, LOCKS, MARKERS, VERSIONING];
/// The prefix of the names of document files in a bucket's private directory.
const DOCUMENT: &str = "document-";
/// The prefix of a spare name ([`spare_name`]).
const SPARE: &str = "spare-";
/// The attribute that contains an object's [`crate::record::ObjectRecord`].
pub(crate) const ATTRIBUTE: &std::ffi::CStr = c"user.fordway";
/// The attribute that marks directories created by a put. A delete can remove marked directories.
pub(crate) const OUR_DIR: &std::ffi::CStr = c"user.fordway.dir";
/// The attribute that marks a file to which its owner has given its name (see [`crate::mark`]).
pub(crate) const OWNER_MARK: &std::ffi::CStr = c"user.fordway.owner";

/// The name prefix of the directory in the root to which a bucket is moved while the bucket is being removed.
const REMOVAL: &str = ".fordway-removing-";

/// The maximum length of a file name, in bytes, on every file system that Fordway supports.
const MAX_NAME_BYTES: usize = 255;
/// The maximum number of encoded bytes in a name below `odd/`. The limit leaves room for the `%` that marks a
/// directory.
const ODD_NAME_BYTES: usize = 240;

/// The location of a key's file: a directory, relative to the root, and a name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectPath<'k> {
    pub(crate) dir: Cow<'k, str>,
    pub(crate) name: Cow<'k, str>,
}

impl ObjectPath<'_> {
    /// Splits a file's path, relative to the root, into directory and name.
    pub(crate) fn of_path(path: String) -> ObjectPath<'static> {
        let (dir, name) = split(&path);
        ObjectPath { dir: dir.to_owned().into(), name: name.to_owned().into() }
    }

    /// Returns the path relative to the root.
    pub(crate) fn path(&self) -> String {
        join(&self.dir, &self.name)
    }

    /// Returns the same location with an owned path, independent of the key.
    pub(crate) fn into_owned(self) -> ObjectPath<'static> {
        ObjectPath { dir: self.dir.into_owned().into(), name: self.name.into_owned().into() }
    }
}

/// Returns the plain path of `key` if the key can be a path. The key cannot be a path if a segment is empty, is `.` or
/// `..`, or is too long for a file name. A segment must also not be `.fordway`, or a name that NFS or FUSE gives to
/// removed files.
pub(crate) fn plain<'k>(bucket: &'k Bucket, key: &'k Key) -> Option<ObjectPath<'k>> {
    let text = key.as_str();
    if !is_text_of_a_name(text) {
        return None;
    }
    let mut name_start = 0;
    let slashes = contains_byte(text.as_bytes(), b'/').then(|| memchr::memchr_iter(b'/', text.as_bytes()));
    for at in slashes.into_iter().flatten() {
        let segment = &text[name_start..at];
        if !is_path_segment(segment) {
            return None;
        }
        name_start = at + 1;
    }
    let name = &text[name_start..];
    if !is_path_segment(name) {
        return None;
    }
    Some(match name_start {
        0 => ObjectPath { dir: bucket.as_str().into(), name: name.into() },
        start => ObjectPath { dir: join(bucket.as_str(), &text[..start - 1]).into(), name: name.into() },
    })
}

/// Returns whether `segment`, without any encoding, can be the name of a file or directory.
fn is_path_segment(segment: &str) -> bool {
    let is_name = !matches!(segment, "" | "." | "..") && !is_never_an_object(segment.as_bytes());
    is_name && (segment.len() <= MAX_NAME_BYTES || text_to_name(segment).len() <= MAX_NAME_BYTES)
}

/// Returns whether a file or directory with this name, in any directory of a bucket, is never an object and contains no
/// objects.
pub(crate) fn is_never_an_object(name: &[u8]) -> bool {
    name.starts_with(b".") && (name == PRIVATE_DIR.as_bytes() || is_left_behind(name))
}

/// Returns whether NFS or FUSE gives the name `name` to a file that is removed while a program has it open. On NFS,
/// such a name is `.nfs` and 24 hexadecimal digits; on FUSE, `.fuse_hidden` and 16 hexadecimal digits. A file with this
/// name is never an object.
pub(crate) fn is_left_behind(name: &[u8]) -> bool {
    let is_hex = |rest: &[u8], digits| rest.len() == digits && rest.iter().all(u8::is_ascii_hexdigit);
    name.starts_with(b".")
        && (name.strip_prefix(b".nfs").is_some_and(|rest| is_hex(rest, 24))
            || name.strip_prefix(b".fuse_hidden").is_some_and(|rest| is_hex(rest, 16)))
}

/// Returns the directory that represents the empty object `key`, if the key is a path with a trailing slash.
pub(crate) fn marked_dir(bucket: &Bucket, key: &Key) -> Option<String> {
    let path = Key::new(key.as_str().strip_suffix('/')?).ok()?;
    plain(bucket, &path).map(|place| place.path())
}

/// Returns the odd path of `key`. An object is stored at its odd path if its key has no plain path, or if another key's
/// object blocks the plain path. For example, of the objects `a` and `a/b`, the object that is written later gets its
/// odd path.
pub(crate) fn odd(bucket: &Bucket, key: &Key) -> ObjectPath<'static> {
    encoded_below(odd_dir(bucket), key)
}

/// Returns the directory of the old versions of `key`.
pub(crate) fn versions_of(bucket: &Bucket, key: &Key) -> String {
    encoded_below(versions_dir(bucket), key).path()
}

fn encoded_below(dir: String, key: &Key) -> ObjectPath<'static> {
    ObjectPath::of_path(join(&dir, &path_of(key.as_str())))
}

/// Encodes a key as a path whose names are short enough for a file system.
fn path_of(key: &str) -> String {
    let encoded = encode(key);
    let mut path = String::with_capacity(encoded.len() + 16);
    let mut rest = encoded.as_str();
    while rest.len() > ODD_NAME_BYTES {
        let (head, tail) = rest.split_at(ODD_NAME_BYTES);
        // A trailing `%` is not a valid escape, so no file has such a name. The name belongs to a directory that
        // contains the rest of the key.
        let _ = write!(path, "{head}%/");
        rest = tail;
    }
    path.push_str(rest);
    path
}

/// Returns the directory of all odd keys in a bucket.
pub(crate) fn odd_dir(bucket: &Bucket) -> String {
    private(bucket, ODD)
}

/// Returns the directory of the old versions of all keys in a bucket.
pub(crate) fn versions_dir(bucket: &Bucket) -> String {
    private(bucket, VERSIONS)
}

/// Returns the directory of a bucket's sidecar files.
pub(crate) fn meta_dir(bucket: &Bucket) -> String {
    private(bucket, META)
}

/// Returns the private directory of a bucket.
pub(crate) fn private_dir(bucket: &Bucket) -> String {
    join(bucket.as_str(), PRIVATE_DIR)
}

/// Returns the directory of a bucket's staged files.
pub(crate) fn tmp_dir(bucket: &Bucket) -> String {
    private(bucket, TMP)
}

/// Returns the directory of a bucket's journal of events.
pub(crate) fn events_dir(bucket: &Bucket) -> String {
    private(bucket, EVENTS)
}

/// Returns the directory of all uploads in a bucket.
pub(crate) fn uploads_dir(bucket: &Bucket) -> String {
    private(bucket, UPLOADS)
}

/// Returns the directory of one upload.
pub(crate) fn upload_dir(bucket: &Bucket, upload: &UploadId) -> String {
    join(&uploads_dir(bucket), upload.as_str())
}

/// Returns the offset, in the lock file, of the byte that serves as the lock of `key`.
pub(crate) fn lock_byte(key: &Key) -> u32 {
    // The hash function is fixed (32-bit FNV-1a), because every process on every node must compute the same byte.
    key.as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        & 0x00ff_ffff
}

/// Returns `directory/name`.
pub(crate) fn join(directory: &str, name: &str) -> String {
    let mut path = String::with_capacity(directory.len() + 1 + name.len());
    path.push_str(directory);
    path.push('/');
    path.push_str(name);
    path
}

/// Splits a path into the directory and the last name.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or((".", path))
}

/// Returns whether `path` names a bucket's private directory or anything in it.
pub(crate) fn is_private(path: &str) -> bool {
    // Compares bytes, because every write calls this function, and `str` searches cost several times as much on such
    // short strings.
    let bytes = path.as_bytes();
    let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
    let below =
        bytes[slash..].strip_prefix(b"/").and_then(|below| below.strip_prefix(PRIVATE_DIR.as_bytes()));
    below.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// Returns whether Fordway uses `name` in a bucket's private directory.
pub(crate) fn is_private_name(name: &str) -> bool {
    is_private_dir_name(name) || [LOCKS, MARKERS].contains(&name) || is_setting_name(name)
}

/// Returns whether `name` is the name of a file with a bucket setting (a document or `versioning`) in the private
/// directory, or the spare name ([`spare_name`]) of such a file.
pub(crate) fn is_setting_name(name: &str) -> bool {
    name.strip_prefix(SPARE).unwrap_or(name) == VERSIONING || document_kind(name).is_some()
}

/// Returns the spare name of the private directory's file `name`: the name of a second hard link to the file, or of a
/// copy, which exists while the file is being replaced on NFS.
pub(crate) fn spare_name(name: &str) -> String {
    format!("{SPARE}{name}")
}

/// Returns the name that the bucket's document of this kind has in the private directory.
pub(crate) fn document_name(kind: &BucketDocumentKind) -> String {
    format!("{DOCUMENT}{kind}")
}

/// Returns the kind of the document whose file in the private directory has this name or this spare name
/// ([`spare_name`]).
pub(crate) fn document_kind(name: &str) -> Option<BucketDocumentKind> {
    let name = name.strip_prefix(SPARE).unwrap_or(name);
    BucketDocumentKind::new(name.strip_prefix(DOCUMENT)?).ok()
}

/// Returns whether `name` is the name of one of Fordway's directories in the private directory.
pub(crate) fn is_private_dir_name(name: &str) -> bool {
    [ODD, VERSIONS, META, TMP, UPLOADS, EVENTS].contains(&name)
}

/// Returns whether `path` names a bucket's directory of staged files.
pub(crate) fn is_tmp_dir(path: &str) -> bool {
    path.strip_suffix(TMP).is_some_and(|above| {
        above.ends_with("/.fordway/") && above.bytes().filter(|byte| *byte == b'/').count() == 2
    })
}

/// Returns whether `path` names a bucket's directory of the journal of events.
pub(crate) fn is_events_dir(path: &str) -> bool {
    path.split_once('/').is_some_and(|(_, below)| below.strip_prefix(".fordway/") == Some(EVENTS))
}

/// Returns whether `path` names the directory of one upload.
pub(crate) fn is_upload_dir(path: &str) -> bool {
    let name = path.split_once('/').and_then(|(_, below)| below.strip_prefix(".fordway/mpu/"));
    name.is_some_and(|name| upload_of(name).is_some())
}

/// Returns the upload whose directory is called `name`; `None` if the name does not belong to an upload.
pub(crate) fn upload_of(name: &str) -> Option<UploadId> {
    is_hex(name, 32).then(|| UploadId::new(name).ok()).flatten()
}

/// Returns whether `name` can be the name of a staged file or of a staged file's private directory.
pub(crate) fn is_hidden_name(name: &str) -> bool {
    is_hex(name, 16)
}

/// Returns the name of the directory in the root into which a bucket moves while it is removed. `hidden` is random.
pub(crate) fn removal_name(hidden: &str) -> String {
    format!("{REMOVAL}{hidden}")
}

/// Returns the random part of a name that [`removal_name`] has made; `None` for other names.
pub(crate) fn removal_of(name: &str) -> Option<&str> {
    name.strip_prefix(REMOVAL).filter(|hidden| is_hidden_name(hidden))
}

/// Returns the name for the record of an event that occurred at `time_ns` and must be delivered to `webhook`. `number`
/// is random.
pub(crate) fn event_name(time_ns: u64, number: &str, webhook: &str) -> String {
    format!("{time_ns:016x}-{number}-{webhook}")
}

/// Returns the webhook to which the event in the record `name` must be delivered. Returns `None` if the name is not
/// valid for a record.
pub(crate) fn webhook_of_event(name: &str) -> Option<&str> {
    let (time, rest) = name.split_once('-')?;
    let (number, webhook) = rest.split_once('-')?;
    (is_hex(time, 16) && is_hex(number, 16) && is_webhook_name(webhook)).then_some(webhook)
}

/// Returns whether `name` consists of exactly `digits` lowercase hexadecimal digits.
pub(crate) fn is_hex(name: &str, digits: usize) -> bool {
    name.len() == digits && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn private(bucket: &Bucket, name: &str) -> String {
    join(&private_dir(bucket), name)
}

fn encode(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len() + 16);
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(char::from(byte)),
            // A dot inside a name is harmless, but `.` and `..` would be directory names.
            b'.' if !encoded.len().is_multiple_of(ODD_NAME_BYTES) => encoded.push('.'),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Returns whether a directory with this name contains the rest of a long encoded key.
pub(crate) fn is_part_of_name(name: &str) -> bool {
    name.len() == ODD_NAME_BYTES + 1 && name.ends_with('%')
}

/// Returns the key whose encoded form is `path`, relative to `odd/`; `None` if Fordway never writes this path.
pub(crate) fn decode(path: &str) -> Option<Key> {
    let mut encoded = String::with_capacity(path.len());
    let mut names = path.split('/').peekable();
    while let Some(name) = names.next() {
        encoded.push_str(if names.peek().is_some() { name.strip_suffix('%')? } else { name });
    }
    let (bytes, rest) = decode_bytes(&encoded)?;
    if !rest.is_empty() {
        return None;
    }
    let key = Key::new(String::from_utf8(bytes).ok()?).ok()?;
    // Only the exact spelling that `path_of` produces is accepted, so that no key has two locations.
    (path_of(key.as_str()) == path).then_some(key)
}

/// Decodes `encoded`, and returns the bytes and the incomplete escape at the end; `None` for an invalid escape.
fn decode_bytes(encoded: &str) -> Option<(Vec<u8>, &str)> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some(byte) = rest.bytes().next() {
        let len = if byte == b'%' { 3 } else { 1 };
        let Some((head, tail)) = rest.split_at_checked(len) else { break };
        bytes.push(match byte {
            b'%' if head[1..].bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                u8::from_str_radix(&head[1..], 16).ok()?
            }
            b'%' => return None,
            byte => byte,
        });
        rest = tail;
    }
    Some((bytes, rest))
}

/// Returns the bytes that all keys in the directory `path` begin with. `path` is relative to `odd/`, and each name in
/// it is a [part of a name](is_part_of_name). Returns `None` if no key can be in this directory.
pub(crate) fn decode_start(path: &str) -> Option<Vec<u8>> {
    let mut encoded = String::with_capacity(path.len());
    for name in path.split('/') {
        encoded.push_str(name.strip_suffix('%')?);
    }
    let (bytes, rest) = decode_bytes(&encoded)?;
    (rest.is_empty() || rest.starts_with('%')).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(key: &str) -> (Option<String>, String) {
        let (bucket, key) = (Bucket::new("b").unwrap(), Key::new(key).unwrap());
        (plain(&bucket, &key).map(|place| place.path()), odd(&bucket, &key).path())
    }

    #[test]
    fn paths_stay_paths_and_the_rest_is_encoded() {
        for key in ["a", "a/b.txt", ".hidden", "ä ö", "a/.fordwayx", "%2F", "a\nb"] {
            assert_eq!(place(key).0, Some(format!("b/{key}")), "{key}");
        }
        for (key, odd) in [
            ("a//b", "a%2F%2Fb"),
            ("/a", "%2Fa"),
            ("a/", "a%2F"),
            (".", "%2E"),
            ("..", "%2E."),
            ("../x", "%2E.%2Fx"),
            (".fordway", "%2Efordway"),
            (".fordway/tmp/x", "%2Efordway%2Ftmp%2Fx"),
            ("a/.fordway", "a%2F.fordway"),
            ("a/.fordway/locks", "a%2F.fordway%2Flocks"),
        ] {
            assert_eq!(place(key), (None, format!("b/.fordway/odd/{odd}")), "{key}");
        }
        assert_eq!(place(&"x".repeat(256)).0, None);
    }

    #[test]
    fn a_key_has_one_spelling() {
        let long = "x".repeat(300);
        let (head, tail) = long.split_at(ODD_NAME_BYTES);
        assert!(decode(&format!("{head}%/{tail}")).is_some_and(|key| key.as_str() == long));
        for other in ["%/c%", "c%/d", "%2f", "%/c%/", &format!("{}%/{}", &head[1..], tail), &long] {
            assert_eq!(decode(other), None, "{other}");
        }
        assert_eq!(decode("%2F%2Fc%25"), Some(Key::new("//c%").unwrap()));
    }

    #[test]
    fn what_is_private_is_told_by_its_path() {
        for path in ["b/.fordway", "b/.fordway/tmp/x"] {
            assert!(is_private(path), "{path}");
        }
        for path in ["b", "b/a", "b/.fordwayx/a", "b/a/.fordway", ".fordway/x"] {
            assert!(!is_private(path), "{path}");
        }
    }

    proptest! {
        #[test]
        fn odd_names_fit_and_come_back(key in "\\PC{1,200}|[./%a]{1,1024}") {
            let key = Key::new(key).unwrap();
            let path = odd(&Bucket::new("b").unwrap(), &key).path();
            let below = path.strip_prefix("b/.fordway/odd/").unwrap();
            for name in below.split('/') {
                prop_assert!(!matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES);
            }
            prop_assert_eq!(decode(below), Some(key));
        }

        #[test]
        fn foreign_names_never_panic(path in "[%a-z./0-9]{0,40}") {
            let _ = decode(&path);
        }
    }
}
