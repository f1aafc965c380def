//! The record of an event, as the journal of a bucket stores it until the event is delivered.
//!
//! ```text
//! fordway-event 1
//! bucket results
//! event ObjectCreated:Put
//! time 1764406000123456789
//! size 3901
//! etag 5d41402abc4b2a76b9719d911017c592
//! version 187b4f...
//! key a/b.txt
//! ```
//!
//! A record contains the name of its bucket, so that a store can ignore a record that was moved to another bucket. The
//! key is last, because it may contain any character; the key ends at the end of the file. The first line may end with
//! spaces, so that a writer can reserve space for a record before the values are known.

use std::fmt::Write as _;

use fordway_store::{Key, MAX_KEY_BYTES};

use crate::notification::EventKind;

const FIRST_LINE: &str = "fordway-event 1";
/// The maximum length of an ETag or of the ID of a version in a record.
const WORD_BYTES_MAX: usize = 1024;
/// The maximum length of a record without its key, in bytes. A record without padding is much shorter.
const HEAD_BYTES_MAX: usize = 2560;
/// The maximum length of a record, in bytes.
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES_MAX + MAX_KEY_BYTES;

/// A change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The name of the bucket.
    pub bucket: String,
    /// The kind of the change.
    pub kind: EventKind,
    /// The key of the object.
    pub key: String,
    /// The time of the change, in nanoseconds since 1970. Later changes of a key have later times.
    pub time_ns: u64,
    /// The size of the new version in bytes; `None` if the event creates no version.
    pub size: Option<u64>,
    /// The ETag, without quotes; `None` if it is unknown.
    pub etag: Option<String>,
    /// The ID of the version; `None` in a bucket without versions.
    pub version: Option<String>,
}

impl EventRecord {
    /// Returns the record, padded to `bytes` bytes if it is shorter.
    pub fn encode(&self, bytes: usize) -> Vec<u8> {
        let EventRecord { bucket, kind, time_ns, .. } = self;
        let mut rest = format!("\nbucket {bucket}\nevent {}\ntime {time_ns}", kind.name());
        // Writing to a string does not fail.
        if let Some(size) = self.size {
            let _ = write!(rest, "\nsize {size}");
        }
        for (name, word) in [("etag", &self.etag), ("version", &self.version)] {
            if let Some(word) = word {
                let _ = write!(rest, "\n{name} {word}");
            }
        }
        let _ = write!(rest, "\nkey {}", self.key);
        let padding = bytes.saturating_sub(FIRST_LINE.len() + rest.len());
        format!("{FIRST_LINE}{}{rest}", " ".repeat(padding)).into_bytes()
    }

    /// Returns the number of bytes to reserve for a record of `key`. Only a record with a very long ETag or version ID
    /// is longer.
    pub fn room_for(key: &str) -> usize {
        768 + key.len()
    }

    /// Parses a record; `None` for a file that no store has written.
    pub fn decode(record: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(record).ok().filter(|text| text.len() <= RECORD_BYTES_MAX)?;
        let (head, key) = text.split_once("\nkey ")?;
        let mut lines = head.split('\n');
        if lines.next()?.trim_end_matches(' ') != FIRST_LINE {
            return None;
        }
        let (mut bucket, mut kind, mut time_ns) = (None, None, None);
        let (mut size, mut etag, mut version) = (None, None, None);
        for line in lines {
            let (name, value) = line.split_once(' ')?;
            match name {
                "bucket" if bucket.is_none() => bucket = Some(word(value)?),
                "event" if kind.is_none() => kind = Some(EventKind::from_name(value)?),
                "time" if time_ns.is_none() => time_ns = Some(number(value)?),
                "size" if size.is_none() => size = Some(number(value)?),
                "etag" if etag.is_none() => etag = Some(word(value)?),
                "version" if version.is_none() => version = Some(word(value)?),
                _ => return None,
            }
        }
        Key::new(key).ok()?;
        let (bucket, kind, time_ns, key) = (bucket?, kind?, time_ns?, key.to_owned());
        Some(EventRecord { bucket, kind, key, time_ns, size, etag, version })
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn word(text: &str) -> Option<String> {
    let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_word && text.len() <= WORD_BYTES_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> EventRecord {
        EventRecord {
            bucket: "results".to_owned(),
            kind: EventKind::Put,
            key: "a\nkey b".to_owned(),
            time_ns: 7,
            size: Some(0),
            etag: Some("d41d8cd98f00b204e9800998ecf8427e".to_owned()),
            version: None,
        }
    }

    #[test]
    fn a_record_survives_writing_and_reading() {
        let bare = EventRecord { kind: EventKind::DeleteMarker, size: None, etag: None, ..record() };
        for record in [record(), bare, EventRecord { version: Some("v".to_owned()), ..record() }] {
            for bytes in [0, 20, 1000] {
                let encoded = record.encode(bytes);
                assert!(encoded.len() >= bytes && EventRecord::decode(&encoded).as_ref() == Some(&record));
            }
        }
        let longest = EventRecord { key: "k".repeat(MAX_KEY_BYTES), ..record() };
        let room = EventRecord::room_for(&longest.key);
        assert_eq!(longest.encode(room).len(), room);
        assert!(room <= RECORD_BYTES_MAX);
    }

    #[test]
    fn nothing_else_is_a_record() {
        let good = String::from_utf8(record().encode(0)).unwrap();
        for (from, to) in [
            ("fordway-event 1", "fordway-event 2"),
            ("ObjectCreated:Put", "ObjectCreated:Pu"),
            ("bucket results\n", ""),
            ("time 7", "time -7"),
            ("time 7", "time 7\ntime 8"),
            ("time 7\n", ""),
            ("size 0", "size 99999999999999999999"),
            ("size 0", "colour 0"),
            ("etag ", "etag \u{7f}"),
            ("\nkey a\nkey b", "\nkey "),
            ("\nkey a\nkey b", ""),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert_eq!(EventRecord::decode(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(EventRecord::decode(b""), None);
        assert_eq!(EventRecord::decode(&[0xff; 100]), None);
        assert_eq!(EventRecord::decode(&record().encode(RECORD_BYTES_MAX + 1)), None);
    }
}
