//! Multipart uploads.

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, ChecksumAlgorithm, CompleteOptions, CompletedPart, Conditions, ETag,
    ETagPolicy, ErrorKind, Expected, GetOptions, MIN_PART_BYTES, Metadata, PartOptions, PartsQuery,
    PutOptions, PutResult, Result, Store, UploadId, UploadsQuery,
};

use super::{all_keys, assert_kind, bucket, bytes, get, head, key, put};

fn put_part(
    store: &dyn Store,
    b: &Bucket,
    name: &str,
    upload: &UploadId,
    number: u16,
    body: &[u8],
) -> CompletedPart {
    let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
    let mut writer = store.part_writer(b, &key(name), upload, number, &options).unwrap();
    body.chunks(1 << 20).for_each(|chunk| writer.write(chunk).unwrap());
    let etag = writer.commit(&Expected::default()).unwrap().etag;
    CompletedPart::new(number, etag)
}

fn complete(
    store: &dyn Store,
    b: &Bucket,
    name: &str,
    upload: &UploadId,
    parts: &[CompletedPart],
) -> Result<PutResult> {
    store.complete_upload(b, &key(name), upload, parts, &CompleteOptions::default())
}

/// Parts in any order make one object with the upload's metadata, visible only when complete.
pub fn multipart_makes_one_object(store: &dyn Store) {
    let b = bucket(store);
    let metadata = BoxedMetadata::from(Metadata {
        content_type: Some("a/b".into()),
        user: [("n".into(), "v".into())].into(),
        ..Default::default()
    });
    let part = MIN_PART_BYTES as usize;
    let (one, two, three) = (bytes(part, 1), bytes(part + 17, 2), bytes(5, 3));
    for name in ["plain/key", "odd//key", "plain"] {
        let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
        let upload = store.create_upload(&b, &key(name), &options).unwrap();
        let third = put_part(store, &b, name, &upload, 30, &three);
        let first = put_part(store, &b, name, &upload, 1, &one);
        let second = put_part(store, &b, name, &upload, 2, &two);
        assert_kind(get(store, &b, name), ErrorKind::NoSuchKey);
        let made = complete(store, &b, name, &upload, &[first, second, third]).unwrap();
        assert!(made.etag.as_str().ends_with("-3"), "{}", made.etag);
        assert!(get(store, &b, name).unwrap() == [&one[..], &two, &three].concat());
        let info = head(store, &b, name).unwrap();
        assert_eq!((info.etag, info.metadata), (made.etag, metadata.clone()));
        assert_kind(complete(store, &b, name, &upload, &[]), ErrorKind::NoSuchUpload);
    }
    assert!(store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads.is_empty());
}

/// Parts of one size with a shorter last one, in any order, sent again, left out: what every client does.
pub fn multipart_of_uniform_parts(store: &dyn Store) {
    let b = bucket(store);
    let size = MIN_PART_BYTES as usize;
    let bodies = [bytes(size, 1), bytes(size, 2), bytes(size, 3), bytes(70_000, 4)];
    let again = bytes(size, 5);
    for (round, order) in [[1u16, 2, 3, 4], [4, 3, 1, 2], [2, 4, 1, 3]].into_iter().enumerate() {
        let name = format!("d{round}/k");
        let upload = store.create_upload(&b, &key(&name), &PutOptions::default()).unwrap();
        let send = |number: u16, body: &[u8]| put_part(store, &b, &name, &upload, number, body);
        let mut parts: Vec<_> = order.iter().map(|n| send(*n, &bodies[usize::from(*n) - 1])).collect();
        parts.sort_by_key(|part| part.number);
        let mut whole = bodies.concat();
        if round == 1 {
            parts[1] = send(2, &again);
            whole[size..2 * size].copy_from_slice(&again);
        }
        if round == 2 {
            parts.truncate(3);
            whole.truncate(3 * size);
        }
        complete(store, &b, &name, &upload, &parts).unwrap();
        assert!(get(store, &b, &name).unwrap() == whole, "round {round}");
        let uploads = store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads;
        assert!(uploads.is_empty(), "round {round}");
    }
}

/// A completion that is refused leaves the upload as it was.
pub fn multipart_outlives_a_failed_completion(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let (first, second) = (bytes(MIN_PART_BYTES as usize, 1), bytes(1000, 2));
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let parts = [put_part(store, &b, "k", &upload, 1, &first), put_part(store, &b, "k", &upload, 2, &second)];
    let create = CompleteOptions::conditions(Conditions::create_only());
    let refused = store.complete_upload(&b, &key("k"), &upload, &parts[..1], &create);
    assert_kind(refused, ErrorKind::PreconditionFailed);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    let listed = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default()).unwrap();
    assert_eq!(listed.parts.len(), 2);
    complete(store, &b, "k", &upload, &parts).unwrap();
    assert!(get(store, &b, "k").unwrap() == [first, second].concat());
}

/// A client that missed the answer to a completion completes again and gets the same answer, as long
/// as the object is the upload's.
pub fn multipart_completion_is_repeatable(store: &dyn Store) {
    let b = bucket(store);
    let options = PutOptions { checksum: Some(ChecksumAlgorithm::Sha256), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let parts = [put_part(store, &b, "k", &upload, 1, b"content")];
    let made = complete(store, &b, "k", &upload, &parts).unwrap();
    let again = complete(store, &b, "k", &upload, &parts).unwrap();
    assert_eq!((&again.etag, &again.checksum), (&made.etag, &made.checksum));
    assert!(made.checksum.is_some());
    assert_kind(complete(store, &b, "other", &upload, &parts), ErrorKind::NoSuchUpload);
    put(store, &b, "k", b"newer");
    assert_kind(complete(store, &b, "k", &upload, &parts), ErrorKind::NoSuchUpload);
    assert_eq!(get(store, &b, "k").unwrap(), b"newer");
}

/// Completion refuses parts that are missing, changed, out of order or too small.
pub fn multipart_refuses_what_does_not_fit(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let small = put_part(store, &b, "k", &upload, 1, b"small");
    let last = put_part(store, &b, "k", &upload, 2, b"last");
    let part = |number, tag: &str| CompletedPart::new(number, ETag::new(tag));
    let complete = |parts: &[CompletedPart]| complete(store, &b, "k", &upload, parts);
    assert_kind(complete(&[small.clone(), last.clone()]), ErrorKind::EntityTooSmall);
    assert_kind(complete(&[last.clone(), small.clone()]), ErrorKind::InvalidPartOrder);
    assert_kind(complete(&[part(9, "00000000000000000000000000000000")]), ErrorKind::InvalidPart);
    assert_kind(complete(&[part(1, "00000000000000000000000000000000")]), ErrorKind::InvalidPart);
    let unknown = UploadId::new("0123456789abcdef").unwrap();
    let elsewhere = store.complete_upload(
        &b,
        &key("k"),
        &unknown,
        std::slice::from_ref(&last),
        &CompleteOptions::default(),
    );
    assert_kind(elsewhere, ErrorKind::NoSuchUpload);
    let other_key = store.complete_upload(
        &b,
        &key("other"),
        &upload,
        std::slice::from_ref(&last),
        &CompleteOptions::default(),
    );
    assert_kind(other_key, ErrorKind::NoSuchUpload);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    complete(&[last]).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"last");
    for number in [0, 10_001] {
        let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
        let writer = store.part_writer(&b, &key("k"), &upload, number, &PartOptions::default());
        let sent = writer.and_then(|writer| writer.commit(&Expected::default()));
        assert_kind(sent, ErrorKind::InvalidArgument);
        store.abort_upload(&b, &key("k"), &upload).unwrap();
    }
}

/// Parts and uploads are listed, in pages.
pub fn multipart_parts_are_listed(store: &dyn Store) {
    let b = bucket(store);
    let uploads: Vec<_> = ["b", "a", "a"]
        .map(|name| store.create_upload(&b, &key(name), &PutOptions::default()).unwrap())
        .into_iter()
        .collect();
    for number in [5, 1, 3] {
        put_part(store, &b, "b", &uploads[0], number, &bytes(usize::from(number) * 100, 1));
    }
    let query = PartsQuery { after: 1, max_parts: 1 };
    let page = store.list_parts(&b, &key("b"), &uploads[0], &query).unwrap();
    assert_eq!((page.parts[0].number, page.parts[0].size, page.truncated), (3, 300, true));
    let all = store.list_parts(&b, &key("b"), &uploads[0], &PartsQuery::default()).unwrap();
    assert_eq!(all.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 3, 5]);
    assert!(!all.truncated);
    let listed = store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads;
    assert_eq!(listed.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["a", "a", "b"]);
    assert_ne!(listed[0].upload, listed[1].upload);
    let query = UploadsQuery { prefix: "b".into(), ..Default::default() };
    assert_eq!(store.list_uploads(&b, &query).unwrap().uploads.len(), 1);
    assert!(all_keys(store, &b).is_empty());
}

/// The last part of a number counts.
pub fn multipart_part_is_replaced(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let old = put_part(store, &b, "k", &upload, 1, b"old and longer");
    let new = put_part(store, &b, "k", &upload, 1, b"new");
    assert_kind(complete(store, &b, "k", &upload, &[old]), ErrorKind::InvalidPart);
    complete(store, &b, "k", &upload, &[new]).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"new");
}

/// An aborted upload is gone with its parts.
pub fn multipart_abort(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let part = put_part(store, &b, "k", &upload, 1, b"x");
    store.abort_upload(&b, &key("k"), &upload).unwrap();
    assert_kind(store.abort_upload(&b, &key("k"), &upload), ErrorKind::NoSuchUpload);
    assert_kind(complete(store, &b, "k", &upload, &[part]), ErrorKind::NoSuchUpload);
    let parts = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default());
    assert_kind(parts, ErrorKind::NoSuchUpload);
    let writer = store.part_writer(&b, &key("k"), &upload, 1, &PartOptions::default());
    let sent = writer.and_then(|writer| writer.commit(&Expected::default()));
    assert_kind(sent, ErrorKind::NoSuchUpload);
    store.delete_bucket(&b).unwrap();
}

/// A part may be a range of another object.
pub fn multipart_copies_parts(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(MIN_PART_BYTES as usize + 1000, 4);
    put(store, &b, "from", &body);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let whole = GetOptions::default();
    let first = store.copy_part((&b, &key("from")), &whole, (&b, &key("k"), &upload, 1)).unwrap();
    let range = GetOptions::range(ByteRange::Inclusive(10, 29));
    let second = store.copy_part((&b, &key("from")), &range, (&b, &key("k"), &upload, 2)).unwrap();
    let parts = [(1, first.etag), (2, second.etag)].map(|(number, etag)| CompletedPart::new(number, etag));
    complete(store, &b, "k", &upload, &parts).unwrap();
    assert!(get(store, &b, "k").unwrap() == [&body[..], &body[10..30]].concat());
}

/// With MD5 tags, a multipart object's tag is what S3 would make of the same parts.
pub fn multipart_etag_is_that_of_s3(store: &dyn Store) {
    let b = bucket(store);
    let options = PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let first = put_part(store, &b, "k", &upload, 1, &vec![0; MIN_PART_BYTES as usize]);
    let second = put_part(store, &b, "k", &upload, 2, b"");
    let made = complete(store, &b, "k", &upload, &[first.clone(), second]).unwrap();
    // md5 of 5 MiB of zeros; and of that digest followed by the md5 of nothing.
    assert_eq!(first.etag.as_str(), "5f363e0e58a95f06cbe9bbc662c5dfb6");
    assert_eq!(made.etag.as_str(), "1faefa44d632065e8bd4fd2a462ed292-2");
}
