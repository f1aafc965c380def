//! Tests what other nodes and their file server may do to an operation: a reply that is lost.

use std::path::Path;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, ETagMatch, ErrorKind, ExpectedContent, GetOptions,
    Key, MIN_PART_BYTES, MultipartUploadOperations, ObjectRenameOperations, Objects, PartOptions,
    PutOptions, RenameOptions, Result,
};
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing};

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn open(dir: &Path) -> PosixStore {
    let store = PosixStore::open(dir, PosixConfig::default()).unwrap();
    store.create_bucket(&bucket()).or_else(|_| store.head_bucket(&bucket()).map(drop)).unwrap();
    store
}

fn body(store: &PosixStore, name: &str) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    store.read(&bucket(), &key(name), &GetOptions::default(), &mut body).map(|_| body)
}

/// The calls that give a file a name, and the error of each that a client reports if the server's reply was lost.
const NAMING: [(&str, Errno); 5] = [
    ("linkat", Errno::EXIST),
    ("link_by_descriptor", Errno::EXIST),
    ("renameat", Errno::NOENT),
    ("renameat_with", Errno::EXIST),
    ("renameat_with", Errno::NOENT),
];

/// Loses the reply of each call that gives a file a name. `act` must succeed. `missing` are calls that the file system
/// does not support.
fn lose_each_reply<P>(
    sharing: FileSystemSharing,
    missing: &'static [(&'static str, Errno)],
    prepare: impl Fn(&PosixStore) -> P,
    act: impl Fn(&PosixStore, &P) -> Result<()>,
    check: impl Fn(&PosixStore, &str),
) {
    let plan = |nth| FaultInjectionPlan { nth, missing, sharing: Some(sharing) };
    let run = |nth| {
        let dir = crate::way::scratch();
        let (store, prepared) = fault::run(plan(None), || {
            let store = open(dir.path());
            let prepared = prepare(&store);
            (store, prepared)
        })
        .0;
        let (done, calls) = fault::run(plan(nth), || act(&store, &prepared));
        (dir, done, calls)
    };
    let (.., calls) = run(None);
    let mut lost = 0;
    for (at, call) in (1..).zip(&calls) {
        for (_, errno) in NAMING.iter().filter(|(name, _)| name == call) {
            let (dir, done, made) = run(Some((at, SyscallFault::LoseReply(*errno))));
            if made.get(at - 1) != Some(call) {
                continue;
            }
            lost += 1;
            let place = format!("{sharing:?}, call {at} of {made:?}: {errno}");
            assert!(done.is_ok(), "{place}: {done:?}");
            fault::run(plan(None), || check(&open(dir.path()), &place));
        }
    }
    assert!(lost > 0, "{calls:?}");
}

const SHARED: [FileSystemSharing; 2] = [FileSystemSharing::Nfs, FileSystemSharing::Unknown];
/// A file system without unnamed files, with and without a rename that replaces nothing.
const LACKS: [&[(&str, Errno)]; 3] = [
    &[],
    &[("open_tmpfile", Errno::OPNOTSUPP)],
    &[("open_tmpfile", Errno::OPNOTSUPP), ("renameat_with", Errno::INVAL)],
];

fn each_way(act: impl Fn(FileSystemSharing, &'static [(&'static str, Errno)])) {
    SHARED.into_iter().for_each(|sharing| LACKS.into_iter().for_each(|missing| act(sharing, missing)));
}

#[test]
fn a_put_whose_name_was_given_succeeds_although_the_reply_was_lost() {
    let has = |content: &'static [u8]| {
        move |store: &PosixStore, place: &str| assert_eq!(body(store, "k").unwrap(), content, "{place}")
    };
    let put = |store: &PosixStore, content: &[u8], conditions| {
        let options = PutOptions { conditions, ..PutOptions::default() };
        store.put(&bucket(), &key("k"), content, &options).map(|put| put.etag)
    };
    each_way(|sharing, missing| {
        let create = |store: &PosixStore, _: &()| put(store, b"new", Conditions::create_only()).map(drop);
        lose_each_reply(sharing, missing, |_| (), create, has(b"new"));
        let prepare = |store: &PosixStore| put(store, b"old", Conditions::default()).unwrap();
        let replace = |store: &PosixStore, etag: &fordway_store::ETag| {
            let if_match = Some(ETagMatch::Tags(vec![etag.clone()]));
            put(store, b"newer", Conditions { if_match, ..Conditions::default() }).map(drop)
        };
        lose_each_reply(sharing, missing, prepare, replace, has(b"newer"));
    });
}

#[test]
fn a_rename_that_was_made_succeeds_although_the_reply_was_lost() {
    each_way(|sharing, missing| {
        let put = |store: &PosixStore, name: &str| {
            store.put(&bucket(), &key(name), name.as_bytes(), &PutOptions::default()).map(drop).unwrap();
        };
        let check = |store: &PosixStore, place: &str| {
            assert_eq!(body(store, "to").unwrap(), b"from", "{place}");
            assert_eq!(body(store, "from").unwrap_err().kind(), ErrorKind::NoSuchKey, "{place}");
        };
        let conditions = RenameOptions { conditions: Conditions::create_only(), ..RenameOptions::default() };
        let rename = |store: &PosixStore, options: &RenameOptions| {
            store.rename(&bucket(), &key("from"), &key("to"), options)
        };
        lose_each_reply(
            sharing,
            missing,
            |store| put(store, "from"),
            |store, ()| rename(store, &conditions),
            check,
        );
        let both = |store: &PosixStore| ["from", "to"].iter().for_each(|name| put(store, name));
        lose_each_reply(sharing, missing, both, |store, ()| rename(store, &RenameOptions::default()), check);
    });
}

#[test]
fn an_upload_that_was_completed_succeeds_although_the_reply_was_lost() {
    let size = MIN_PART_BYTES as usize;
    let prepare = |store: &PosixStore| {
        let upload = store.create_upload(&bucket(), &key("k"), &PutOptions::default()).unwrap();
        let parts = [1_u8, 2].map(|number| {
            let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
            let mut writer =
                store.part_writer(&bucket(), &key("k"), &upload, number.into(), &options).unwrap();
            writer.write(&vec![number; size]).unwrap();
            CompletedPart::new(number.into(), writer.commit(&ExpectedContent::default()).unwrap().etag)
        });
        (upload, parts)
    };
    each_way(|sharing, missing| {
        let complete = |store: &PosixStore, (upload, parts): &(_, [CompletedPart; 2])| {
            let options = CompleteOptions::conditions(Conditions::create_only());
            store.complete_upload(&bucket(), &key("k"), upload, parts, &options).map(drop)
        };
        let check = |store: &PosixStore, place: &str| {
            assert!(body(store, "k").unwrap() == [vec![1; size], vec![2; size]].concat(), "{place}");
        };
        lose_each_reply(sharing, missing, prepare, complete, check);
    });
}
