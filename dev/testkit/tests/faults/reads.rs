//! Makes every file-system call of every operation that reads fail once. The operation must return the complete result
//! or an error. A result that lacks an object would make mirrors of a bucket remove their copies of the object, and a
//! missing object would make clients create it again.

use std::os::unix::fs::symlink;
use std::path::Path;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompletedPart, ErrorKind, ExpectedContent, GetOptions, Key, ListQuery, Objects, PartOptions,
    PartsQuery, PutOptions, Result, Store, UploadId, UploadsQuery, VersioningState, VersionsQuery,
};
use fordway_sys::Errno;
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};

/// The errors with which calls fail: of the process, of the machine, of the disk, and of a network file system.
const FAILURES: [Errno; 4] = [Errno::MFILE, Errno::NOMEM, Errno::IO, Errno::TIMEDOUT];
/// An upper bound on the number of calls that an operation makes.
const MOST_CALLS: usize = 1000;

/// An operation that reads, with its name in messages. The operation returns everything that a client sees.
type Read = (&'static str, fn(&dyn Store) -> Result<String>);

const READS: &[Read] = &[
    ("list", |store| list(store, "", None)),
    ("list a prefix", |store| list(store, "ldir/", None)),
    ("list with a delimiter", |store| list(store, "", Some("/"))),
    ("list versions", |store| {
        let versions = store.list_versions(&bucket("versioned"), &VersionsQuery::default())?;
        Ok(format!("{:?}", versions.versions))
    }),
    ("list uploads", |store| {
        let uploads = store.list_uploads(&bucket("bucket"), &UploadsQuery::default())?;
        Ok(format!("{:?}", uploads.uploads))
    }),
    ("list parts", |store| {
        let parts =
            store.list_parts(&bucket("bucket"), &key("u"), &upload(store)?, &PartsQuery::default())?;
        Ok(format!("{:?}", parts.parts))
    }),
    ("list buckets", |store| Ok(format!("{:?}", store.list_buckets()?))),
    ("head a bucket", |store| Ok(format!("{:?}", store.head_bucket(&bucket("bucket"))?))),
    ("head", |store| head(store, "dir/k")),
    ("head with a long record", |store| head(store, "long")),
    ("head through a link", |store| head(store, "ldir/u")),
    ("head a key that is not a path", |store| head(store, "a//k")),
    ("get", |store| get(store, "dir/k")),
    ("get through a link", |store| get(store, "link")),
    ("get a key that is not a path", |store| get(store, "a//k")),
];

fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn open(dir: &Path) -> PosixStore {
    PosixStore::open(dir, PosixConfig::default()).unwrap()
}

fn list(store: &dyn Store, prefix: &str, delimiter: Option<&str>) -> Result<String> {
    let (prefix, delimiter) = (prefix.to_owned(), delimiter.map(str::to_owned));
    let page = store.list(&bucket("bucket"), &ListQuery { prefix, delimiter, ..Default::default() })?;
    Ok(format!("{:?}, {:?}", page.entries, page.next))
}

fn head(store: &dyn Store, name: &str) -> Result<String> {
    Ok(format!("{:?}", store.head(&bucket("bucket"), &key(name), &GetOptions::default())?))
}

fn get(store: &dyn Store, name: &str) -> Result<String> {
    let object = store.get(&bucket("bucket"), &key(name), &GetOptions::default())?;
    Ok(format!("{:?}, {:?}", object.info, object.content.into_vec()?))
}

/// Returns the upload, whose ID is an object's content.
fn upload(store: &dyn Store) -> Result<UploadId> {
    let object = store.get(&bucket("versioned"), &key("id"), &GetOptions::default())?;
    UploadId::new(String::from_utf8_lossy(&object.content.into_vec()?))
}

/// Creates three buckets. `bucket` has links to a directory and to a file in `real`, a link that leads nowhere, a link
/// out of the root, an object whose record is in a sidecar file, an odd key, and an upload.
fn prepare(dir: &Path) {
    let store = open(dir);
    for name in ["bucket", "real", "versioned"] {
        store.create_bucket(&bucket(name)).unwrap();
    }
    let store: &dyn Store = &store;
    let mut long = PutOptions::default();
    long.metadata.user.insert("long".to_owned(), "x".repeat(5000));
    let put = |name: &str, at: &str, options: &PutOptions| {
        store.put(&bucket(name), &key(at), at.as_bytes(), options).map(drop).unwrap();
    };
    for at in ["dir/k", "a//k", "z"] {
        put("bucket", at, &PutOptions::default());
    }
    put("bucket", "long", &long);
    put("real", "sub/u", &PutOptions::default());
    put("real", "t", &long);
    for (target, link) in
        [("../real/sub", "ldir"), ("../real/t", "link"), ("../real/none", "broken"), ("/etc/hostname", "out")]
    {
        symlink(target, dir.join("bucket").join(link)).unwrap();
    }
    store.set_versioning(&bucket("versioned"), VersioningState::Enabled).unwrap();
    for at in ["k", "k", "dir/k"] {
        put("versioned", at, &long);
    }
    let id = store.create_upload(&bucket("bucket"), &key("u"), &PutOptions::default()).unwrap();
    store.put(&bucket("versioned"), &key("id"), id.as_str().as_bytes(), &PutOptions::default()).unwrap();
    for number in 1..=2 {
        let part = PartOptions::default();
        let mut writer = store.part_writer(&bucket("bucket"), &key("u"), &id, number, &part).unwrap();
        writer.write(b"part").unwrap();
        CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag);
    }
}

#[test]
fn a_read_of_which_a_call_fails_is_complete_or_an_error() {
    let dir = crate::way::scratch();
    prepare(dir.path());
    let mut failed = 0;
    for (name, read) in READS {
        let expected = read(&open(dir.path())).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut at = 0;
        loop {
            at += 1;
            let mut is_reached = false;
            for errno in FAILURES {
                let store = open(dir.path());
                let plan =
                    FaultInjectionPlan { nth: Some((at, SyscallFault::Fail(errno))), ..Default::default() };
                let (seen, calls) = fault::run(plan, || read(&store));
                is_reached |= calls.len() >= at;
                let place = format!("{name}: call {at}, {:?}: {errno}", calls.get(at - 1));
                match seen {
                    Ok(seen) => assert_eq!(seen, expected, "{place}"),
                    Err(error) => {
                        failed += 1;
                        assert!(!is_about_missing(error.kind()), "{place}: {error}");
                    }
                }
            }
            if !is_reached {
                break;
            }
            assert!(at < MOST_CALLS, "{name}");
        }
    }
    // Some operations try another way after the failure of any single call.
    assert!(failed > 100, "{failed}");
}

/// Returns whether an error of this kind says that something does not exist, or is not permitted.
fn is_about_missing(kind: ErrorKind) -> bool {
    use ErrorKind::{AccessDenied, NoSuchBucket, NoSuchKey, NoSuchUpload, NoSuchVersion};
    matches!(kind, AccessDenied | NoSuchBucket | NoSuchKey | NoSuchUpload | NoSuchVersion)
}
