//! Tests multipart uploads and bucket documents that several nodes use concurrently.

use std::os::unix::fs::MetadataExt;

use fordway_store::{
    BucketDocumentKind, BucketDocumentOperations, CompleteOptions, CompletedPart, UploadId, UploadsQuery,
};

use super::visibility::{FrozenOpener, OPENED_EARLY};
use super::*;

/// The number of uploads of each kind: in a soak test, and in a normal run.
const UPLOADS: [usize; 2] = [20, 2];
/// The lengths of the parts of an upload. Two parts have the same length, and the last part is shorter.
const PART_BYTES: [usize; 3] = [MIN_PART_BYTES as usize, MIN_PART_BYTES as usize, 1000];

fn document_kind() -> BucketDocumentKind {
    BucketDocumentKind::new("cors").unwrap()
}

fn start(store: &PosixStore, name: &str) -> UploadId {
    store.create_upload(&bucket(), &key(name), &PutOptions::default()).unwrap()
}

fn send(
    store: &PosixStore,
    (name, upload): (&str, &UploadId),
    number: u16,
    body: &[u8],
) -> Result<CompletedPart, ErrorKind> {
    let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
    let sent = store.part_writer(&bucket(), &key(name), upload, number, &options).and_then(|mut writer| {
        writer.write(body)?;
        writer.commit(&ExpectedContent::default())
    });
    sent.map(|made| CompletedPart::new(number, made.etag)).map_err(|error| error.kind())
}

fn part(number: usize, round: usize) -> Vec<u8> {
    vec![b'a' + ((number + round) % 26) as u8; PART_BYTES[number]]
}

/// Sends the parts of one upload through both nodes, and then completes the upload through each node.
pub(crate) fn share_uploads(_: &Member) {
    let nodes = [store(0), store(1)];
    for round in 0..at_length(UPLOADS) {
        let (one, other) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let name = format!("uploads/{round}");
        // After these calls, both nodes have cached which uploads exist, and that the object does not exist.
        nodes.iter().for_each(|node| {
            node.list_uploads(&bucket(), &UploadsQuery::default()).unwrap();
            assert_eq!(read(node, &name), Err(ErrorKind::NoSuchKey));
        });
        let upload = start(one, &name);
        let by = [one, other, one];
        let mut parts: Vec<_> = by
            .iter()
            .enumerate()
            .map(|(at, node)| send(node, (&name, &upload), at as u16 + 1, &part(at, round)).unwrap())
            .collect();
        if round % 2 == 1 {
            // A repeated part replaces the earlier part, which the other node has already seen.
            let listed = other.list_parts(&bucket(), &key(&name), &upload, &Default::default()).unwrap();
            assert_eq!(listed.parts.len(), 3);
            parts[0] = send(one, (&name, &upload), 1, &part(0, round + 1)).unwrap();
        }
        let complete = |node: &PosixStore| {
            node.complete_upload(&bucket(), &key(&name), &upload, &parts, &CompleteOptions::default())
        };
        let made = complete(other).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let again = complete(one).unwrap_or_else(|error| panic!("round {round}, sent again: {error}"));
        assert_eq!(again.etag, made.etag);
        let body = [part(0, round + round % 2), part(1, round), part(2, round)].concat();
        for number in 0..2 {
            assert!(read(&strong(number), &name).unwrap() == body, "round {round}, node {number}");
        }
        let refused = send(one, (&name, &upload), 2, &part(1, 0));
        assert_eq!(refused.unwrap_err(), ErrorKind::NoSuchUpload, "it has ended");
    }
}

/// After one node has completed an upload, every kind of read by the other node, which sent a part, must see the whole
/// object.
pub(crate) fn read_completed_uploads(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let calls: [fn(&PosixStore, &str) -> u64; 4] = [
        |store, name| read(store, name).unwrap().len() as u64,
        |store, name| store.get(&bucket(), &key(name), &GetOptions::default()).unwrap().info.size,
        |store, name| {
            let info = store.head(&bucket(), &key(name), &GetOptions::default()).unwrap();
            assert_eq!(info.part_count, Some(3), "{name}");
            info.size
        },
        |store, name| {
            let query = ListQuery { prefix: name.to_owned(), ..Default::default() };
            match &store.list(&bucket(), &query).unwrap().entries[..] {
                [ListEntry::Object(object)] => object.size,
                entries => panic!("{name}: {entries:?}"),
            }
        },
    ];
    for round in 0..at_length(UPLOADS) * calls.len() {
        let call = calls[round % calls.len()];
        let name = format!("completed/{round}");
        let upload = start(&one, &name);
        let by = [&one, &other, &one].into_iter().enumerate();
        let parts: Vec<_> = by
            .map(|(at, node)| send(node, (&name, &upload), at as u16 + 1, &part(at, round)).unwrap())
            .collect();
        one.complete_upload(&bucket(), &key(&name), &upload, &parts, &CompleteOptions::default()).unwrap();
        assert_eq!(call(&other, &name), PART_BYTES.iter().sum::<usize>() as u64, "round {round}");
    }
}

/// A node that has just seen an open upload must not write a part into the upload's data after another node has started
/// to complete the upload. A node that completes an upload must see each part that is still being written.
pub(crate) fn close_uploads(_: &Member) {
    let (one, other) = (store(0), store(1));
    let uploads = Path::new(roots()[1]).join("bucket/.fordway/mpu");
    for round in 0..at_length(UPLOADS) {
        let name = format!("closed/{round}");
        let upload = start(&one, &name);
        send(&one, (&name, &upload), 1, &part(0, round)).unwrap();
        let dir = uploads.join(upload.as_str());
        let completion = fs::File::options().read(true).write(true).open(dir.join("data")).unwrap();
        // A part is refused even if the file system has no locks.
        let _ = fordway_sys::lock_file(&completion, Duration::from_secs(10));
        fs::rename(dir.join("upload"), dir.join("closed")).unwrap();
        let refused = send(&one, (&name, &upload), 2, &part(1, round));
        assert_eq!(refused.unwrap_err(), ErrorKind::LockTimeout, "round {round}");
        drop(completion);
        other.abort_upload(&bucket(), &key(&name), &upload).unwrap();

        let name = format!("claimed/{round}");
        let upload = start(&one, &name);
        let sent = send(&one, (&name, &upload), 1, &part(0, round)).unwrap();
        let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
        let mut late = other.part_writer(&bucket(), &key(&name), &upload, 2, &options).unwrap();
        let done = [sent];
        one.complete_upload(&bucket(), &key(&name), &upload, &done, &CompleteOptions::default()).unwrap();
        // The bytes are written to the upload's data file, which no longer exists, and not to the object.
        let late = late.write(&part(1, round)).and_then(|()| late.commit(&ExpectedContent::default()));
        assert!(late.is_err(), "round {round}: {late:?}");
        assert_eq!(read(&strong(1), &name).unwrap().len(), PART_BYTES[0], "round {round}");
        assert_eq!(fs::metadata(Path::new(roots()[1]).join("bucket").join(&name)).unwrap().nlink(), 1);
    }
}

/// One node sets, replaces and removes a document. The other node must see each change, although it has already read
/// the document or found that the document is missing.
pub(crate) fn share_documents(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let kind = document_kind();
    for round in 0..10 {
        assert_eq!(other.document(&bucket(), &kind).unwrap(), None, "round {round}");
        for text in [b"first".as_slice(), b"second"] {
            one.set_document(&bucket(), &kind, text).unwrap();
            assert_eq!(other.document(&bucket(), &kind).unwrap().as_deref(), Some(text), "round {round}");
        }
        one.delete_document(&bucket(), &kind).unwrap();
    }
}

/// A program on one node opens a document's file just before the other node sets the document. The store on the
/// program's node must find the document, although the NFS client may keep the name cached as missing, as in
/// [`find_what_was_opened_too_early`].
pub(crate) fn find_documents_opened_too_early(_: &Member) {
    let (one, other) = (store(0), strong(1));
    let kind = document_kind();
    let there = Path::new(SharedFileSystemFixture::MOUNTS[1]).join("bucket/.fordway");
    let mut opener = FrozenOpener::start(&there);
    let mut kept_missing = 0;
    for round in 0..at_length(OPENED_EARLY) {
        assert_eq!(other.document(&bucket(), &kind).unwrap(), None);
        let create = || one.set_document(&bucket(), &kind, b"rules").unwrap();
        kept_missing += usize::from(opener.open_too_early("document-cors", create));
        let found = other.document(&bucket(), &kind).unwrap();
        assert_eq!(found.as_deref(), Some(&b"rules"[..]), "round {round}");
        one.delete_document(&bucket(), &kind).unwrap();
    }
    report(format!("{kept_missing} documents were kept as missing"));
}
