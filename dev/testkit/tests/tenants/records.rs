//! Tests records of objects that a user has written with another program. Such records must not break listings, or be
//! copied into another user's bucket.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use fordway_store::{Bucket, CopyOptions, GetOptions, ListEntry, Objects, PartsQuery};

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, is_root, key, put, read};

fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    [&[tag][..], &(value.len() as u16).to_le_bytes(), value].concat()
}

/// Creates a bucket with an object of Alice, and an object of Bob with the record `fields`.
fn with_record(fields: &[Vec<u8>]) -> (Ground, Bucket) {
    let ground = Ground::new();
    let shared = ground.bucket("shared", 0, 0o1777);
    ground.on(Lane::Http, ALICE, |store| put(store, &shared, "alices", b"x").unwrap());
    as_user(BOB, || {
        let path = ground.path("shared/bobs");
        fs::write(&path, "x").unwrap();
        let (file, state) = (File::open(&path).unwrap(), fs::metadata(&path).unwrap());
        let mtime = state.mtime() * 1_000_000_000 + state.mtime_nsec();
        let seal = field(1, &[1_u64.to_le_bytes(), mtime.to_le_bytes()].concat());
        let record = [&[1][..], &seal, &fields.concat()].concat();
        fordway_sys::set_xattr(&file, c"user.fordway", &record).unwrap();
    });
    (ground, shared)
}

#[test]
fn an_invalid_etag_does_not_break_a_listing() {
    if !is_root() {
        return;
    }
    for etag in [&b"a\x01b"[..], b"a\"b", b"", &[b'x'; 1000], "é".as_bytes()] {
        let (ground, shared) = with_record(&[field(2, etag)]);
        for lane in Lane::ALL {
            let listed = ground.on(lane, ALICE, |store| store.list(&shared, &Default::default()).unwrap());
            let mut etags = Vec::new();
            for entry in &listed.entries {
                let ListEntry::Object(object) = entry else { panic!("{entry:?}") };
                etags.push(object.etag.as_str().to_owned());
            }
            assert_eq!(etags.len(), 2, "{lane:?} {etags:?}");
            let is_valid = |etag: &String| {
                (1..=64).contains(&etag.len())
                    && etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            };
            assert!(etags.iter().all(is_valid), "{lane:?} {etags:?}");
        }
    }
}

#[test]
fn a_copy_does_not_inherit_metadata_that_no_gateway_can_send() {
    if !is_root() {
        return;
    }
    let user =
        |name: &str, value: &str| [&[name.len() as u8][..], name.as_bytes(), value.as_bytes()].concat();
    let (ground, shared) = with_record(&[
        field(4, b"text/plain\r\nX-Inj: 1"),
        field(7, b"attachment"),
        field(10, &user("a b", "1")),
        field(10, &user("fine", "2")),
    ]);
    let own = ground.bucket("own", ALICE, 0o755);
    for lane in Lane::ALL {
        ground.on(lane, ALICE, |store| {
            store.copy((&shared, &key("bobs")), &own, &key("copied"), &CopyOptions::default()).unwrap();
        });
        let alice = ground.client("alice");
        let info = alice.head(&own, &key("copied"), &GetOptions::default()).unwrap();
        let metadata = info.metadata;
        assert_eq!(metadata.content_disposition.as_deref(), Some("attachment"), "{lane:?}");
        assert_eq!(metadata.content_type.as_ref().filter(|of| of.contains('\n')), None);
        assert_eq!(metadata.user.iter().collect::<Vec<_>>(), [(&"fine".to_owned(), &"2".to_owned())]);
        assert_eq!(read(&alice, &own, "copied").unwrap(), b"x");
    }
}

#[test]
fn part_sizes_that_do_not_fit_the_file_are_ignored() {
    if !is_root() {
        return;
    }
    let parts = |count: u16, size: u64| field(14, &[&count.to_le_bytes()[..], &size.to_le_bytes()].concat());
    let (ground, shared) = with_record(&[field(2, b"0123456789abcdef-4"), parts(10_000, 1 << 62)]);
    for lane in Lane::ALL {
        ground.on(lane, ALICE, |store| {
            let part = |part| GetOptions { part: Some(part), ..Default::default() };
            let first = store.get(&shared, &key("bobs"), &part(1)).unwrap();
            assert_eq!((first.range.clone(), first.content.into_vec().unwrap()), (0..1, b"x".to_vec()));
            assert!(store.get(&shared, &key("bobs"), &part(10_000)).is_err(), "{lane:?}");
        });
    }
}

/// A file in the directory of an upload whose record belongs to another part, or has an impossible size, is not a part.
/// A completion would not find it.
#[test]
fn what_cannot_be_a_part_is_not_listed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let own = ground.bucket("own", ALICE, 0o755);
    let upload = ground.on(Lane::Embedded, ALICE, |store| {
        let upload = store.create_upload(&own, &key("k"), &Default::default()).unwrap();
        let mut part = store.part_writer(&own, &key("k"), &upload, 1, &Default::default()).unwrap();
        part.write(b"part").unwrap();
        part.commit(&Default::default()).unwrap();
        upload
    });
    let record = |size: u64, more: &[u8]| {
        let seal = field(1, &[size.to_le_bytes(), 1_u64.to_le_bytes()].concat());
        [&[1][..], &seal, &field(2, b"0123456789abcdef"), more].concat()
    };
    let of_another = record(4, &field(11, b"00001-0123456789abcdef"));
    for (number, record) in [(2, record(4, &[])), (3, record(1 << 62, &[])), (4, of_another)] {
        ground.write(&format!("own/.fordway/mpu/{}/{number:05}", upload.as_str()), ALICE, 0o644, record);
    }
    for lane in Lane::ALL {
        let query = PartsQuery::default();
        let listed =
            ground.on(lane, ALICE, |store| store.list_parts(&own, &key("k"), &upload, &query).unwrap());
        let numbers: Vec<_> = listed.parts.iter().map(|part| part.number).collect();
        assert_eq!(numbers, [1, 2], "{lane:?}");
    }
}
