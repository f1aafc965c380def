//! Entry points for fuzzing the on-disk formats (`dev/fuzz`). Each function takes arbitrary bytes, and panics if a
//! parser accepts input that it must reject.

use fordway_store::{Bucket, Key};

use crate::layout::{self, ObjectPath};
use crate::multipart::parts::{ArrivedPart, part_name, part_number, role_of, uniform};
use crate::multipart::parts::{UNIFORM_BYTES_MAX, UploadFileRole};
use crate::record::ObjectRecord;
use crate::versions::names::NoncurrentVersionName;

/// The maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Decodes an object's record, which may come from an attribute or a sidecar file. Checks that encoding and decoding
/// the record again yields the same record.
pub fn record(bytes: &[u8]) {
    if let Some(record) = ObjectRecord::decode(bytes) {
        let again = ObjectRecord::decode(&record.encode());
        assert_eq!(again.as_ref(), Some(&record), "encoded again");
    }
}

/// Decodes a part's record and an upload's other files. The part's number is in the first two bytes (little-endian).
/// Checks that the part is stored in the common file, or in a separate file in the upload's directory, and nowhere
/// else.
pub fn part_record(bytes: &[u8]) {
    let Some((number, rest)) = bytes.split_first_chunk() else { return };
    let number = u16::from_le_bytes(*number);
    let text = String::from_utf8_lossy(rest);
    assert!(uniform(text.clone().into_owned()).is_none_or(|size| size <= UNIFORM_BYTES_MAX));
    assert!(part_number(&text).is_none_or(|number| part_name(number) == text));
    assert!(role_of(&text).is_none() || !text.contains(['/', '\0']), "{text:?} is a file of an upload");
    let Some(record) = ObjectRecord::decode(rest) else { return };
    let is_possible = ArrivedPart::is_possible(number, &record);
    let Some(part) = ArrivedPart::of(number, record, 0) else { return assert!(!is_possible) };
    assert!(is_possible && part.info.number == number && part.info.size <= UNIFORM_BYTES_MAX);
    if let Some(file) = part.file {
        let is_own =
            role_of(&file) == Some(UploadFileRole::PartBytes) && file.starts_with(&part_name(number));
        assert!(is_own, "part {number} is recorded to be in {file:?}");
    }
}

/// Encodes the bytes as an odd key. Also decodes the bytes as a path below `odd/`, and as the name of an old version.
pub fn odd_name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(key) = layout::decode(&text) {
        assert_eq!(encoded(&key), text, "a second spelling");
    }
    if let Some(version) = NoncurrentVersionName::parse(&text) {
        assert_eq!(version.name(), text, "a second spelling");
    }
    if let Ok(key) = Key::new(&*text) {
        check_key(&key);
    }
}

/// Checks the paths of a key: its odd path decodes to the same key, its plain path is not private, and all names in
/// both paths are valid file names.
fn check_key(key: &Key) {
    let path = encoded(key);
    check_names(path.as_bytes());
    assert!(path.split('/').all(|name| !name.starts_with('.')), "{path:?} has a hidden name");
    assert_eq!(layout::decode(&path).as_ref(), Some(key), "{path:?} is another key");
    let bucket = bucket();
    if let Some(place) = layout::plain(&bucket, key) {
        let path = place.path();
        assert_eq!(path.strip_prefix("bucket/"), Some(key.as_str()));
        assert!(path.split('/').all(|name| name != layout::PRIVATE_DIR), "{path:?} is private");
        check_names(&fordway_sys::text_to_name(&path));
        assert_eq!(ObjectPath::of_path(path).into_owned(), place.into_owned());
    }
    if let Some(dir) = layout::marked_dir(&bucket, key) {
        assert!(!layout::is_private(&dir) && format!("{dir}/") == format!("bucket/{key}"));
    }
    assert!(layout::is_private(&layout::versions_of(&bucket, key)));
    let _byte = layout::lock_byte(key);
}

/// Checks that every name in a path is a valid file name.
fn check_names(path: &[u8]) {
    for name in path.split(|byte| *byte == b'/') {
        let is_name = !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        assert!(is_name && name.len() <= NAME_BYTES_MAX, "{} is no path of names", path.escape_ascii());
    }
}

fn bucket() -> Bucket {
    Bucket::new("bucket").expect("a valid name")
}

/// Returns the encoded form of a key: its path below `odd/`.
fn encoded(key: &Key) -> String {
    let path = layout::odd(&bucket(), key).path();
    path.strip_prefix(&format!("{}/", layout::odd_dir(&bucket()))).expect("a path below `odd`").to_owned()
}
