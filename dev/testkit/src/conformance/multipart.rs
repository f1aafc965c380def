//! Multipart uploads, and the parts of completed objects: checksums, sizes, and reads by part number.

use std::time::{Duration, SystemTime};

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, Checksum, ChecksumAlgorithm, ChecksumType, CompleteOptions,
    CompletedPart, Conditions, ETag, ETagMatch, ETagPolicy, ErrorKind, ExpectedContent, GetOptions,
    MIN_PART_BYTES, Metadata, ObjectPart, PartOptions, PartsQuery, PutOptions, PutResult, Result, Store,
    UploadId, UploadsQuery, VersioningState,
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
    let etag = writer.commit(&ExpectedContent::default()).unwrap().etag;
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

/// Parts uploaded in any order form one object with the upload's metadata. The object is visible only after completion.
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

/// Tests parts of equal size with a shorter last part, as clients send them. Parts are uploaded in any order, repeated,
/// or omitted.
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

/// A rejected completion leaves the upload unchanged.
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

/// A client that missed the response to a completion can repeat the request. The client gets the same response as long
/// as the object is still the object that the upload created. A completion with other parts is not a repetition.
pub fn multipart_completion_is_repeatable(store: &dyn Store) {
    let b = bucket(store);
    let options = PutOptions { checksum: Some(ChecksumAlgorithm::Sha256), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let parts = [put_part(store, &b, "k", &upload, 1, b"content")];
    let made = complete(store, &b, "k", &upload, &parts).unwrap();
    let again = complete(store, &b, "k", &upload, &parts).unwrap();
    assert_eq!((&again.etag, &again.checksum), (&made.etag, &made.checksum));
    assert!(made.checksum.is_some());
    let others = [CompletedPart::new(1, ETag::new("00000000000000000000000000000000"))];
    assert_kind(complete(store, &b, "k", &upload, &others), ErrorKind::NoSuchUpload);
    assert_kind(complete(store, &b, "other", &upload, &parts), ErrorKind::NoSuchUpload);
    put(store, &b, "k", b"newer");
    assert_kind(complete(store, &b, "k", &upload, &parts), ErrorKind::NoSuchUpload);
    assert_eq!(get(store, &b, "k").unwrap(), b"newer");
}

/// Completion rejects parts that are missing, changed, out of order or too small.
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
        let sent = writer.and_then(|writer| writer.commit(&ExpectedContent::default()));
        assert_kind(sent, ErrorKind::InvalidArgument);
        store.abort_upload(&b, &key("k"), &upload).unwrap();
    }
}

/// Parts and uploads are listed in pages.
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

/// A repeated part replaces the earlier part with the same number.
pub fn multipart_part_is_replaced(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let old = put_part(store, &b, "k", &upload, 1, b"old and longer");
    let new = put_part(store, &b, "k", &upload, 1, b"new");
    assert_kind(complete(store, &b, "k", &upload, &[old]), ErrorKind::InvalidPart);
    complete(store, &b, "k", &upload, &[new]).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"new");
}

/// Aborting an upload removes it and its parts.
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
    let sent = writer.and_then(|writer| writer.commit(&ExpectedContent::default()));
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

/// A copied part fails with the same error as a copied object if a condition does not hold.
pub fn multipart_copies_parts_on_conditions(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "from", b"content");
    let found = head(store, &b, "from").unwrap();
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let copy = |conditions: Conditions| {
        let options = GetOptions { conditions, ..Default::default() };
        store.copy_part((&b, &key("from")), &options, (&b, &key("k"), &upload, 1))
    };
    let same = || Some(ETagMatch::Tags(vec![found.etag.clone()]));
    copy(Conditions { if_match: same(), ..Default::default() }).unwrap();
    let later = Some(SystemTime::now() + Duration::from_secs(3600));
    for conditions in [
        Conditions { if_none_match: same(), ..Default::default() },
        Conditions { if_modified_since: later, ..Default::default() },
        Conditions::only_if(ETag::new("other")),
    ] {
        assert_kind(copy(conditions), ErrorKind::PreconditionFailed);
    }
}

/// With MD5 ETags, a multipart object has the ETag that S3 would compute from the same parts.
pub fn multipart_etag_is_that_of_s3(store: &dyn Store) {
    let b = bucket(store);
    let options = PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let first = put_part(store, &b, "k", &upload, 1, &vec![0; MIN_PART_BYTES as usize]);
    let second = put_part(store, &b, "k", &upload, 2, b"");
    let made = complete(store, &b, "k", &upload, &[first.clone(), second]).unwrap();
    // The first value is the MD5 of 5 MiB of zeros. The second is the MD5 of two concatenated digests: the first value
    // and the MD5 of empty content.
    assert_eq!(first.etag.as_str(), "5f363e0e58a95f06cbe9bbc662c5dfb6");
    assert_eq!(made.etag.as_str(), "1faefa44d632065e8bd4fd2a462ed292-2");
}

/// An upload of two parts, 5 MiB and 1,000 bytes, to the key `d/k`.
struct TwoPartUpload<'s> {
    store: &'s dyn Store,
    bucket: Bucket,
    id: UploadId,
    bodies: [Vec<u8>; 2],
    parts: Vec<CompletedPart>,
}

impl<'s> TwoPartUpload<'s> {
    fn start(store: &'s dyn Store, bucket: &Bucket, options: &PutOptions) -> Self {
        let id = store.create_upload(bucket, &key("d/k"), options).unwrap();
        let bodies = [bytes(MIN_PART_BYTES as usize, 1), bytes(1000, 2)];
        let mut upload = TwoPartUpload { store, bucket: bucket.clone(), id, bodies, parts: Vec::new() };
        upload.parts = [2, 5].into_iter().zip(&upload.bodies).map(|(n, body)| upload.put(n, body)).collect();
        upload
    }

    fn put(&self, number: u16, body: &[u8]) -> CompletedPart {
        let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
        let writer = self.store.part_writer(&self.bucket, &key("d/k"), &self.id, number, &options);
        let mut writer = writer.unwrap();
        writer.write(body).unwrap();
        let PutResult { etag, checksum, .. } = writer.commit(&ExpectedContent::default()).unwrap();
        CompletedPart { number, etag, checksum }
    }

    fn complete(&self, parts: &[CompletedPart], options: &CompleteOptions) -> Result<PutResult> {
        self.store.complete_upload(&self.bucket, &key("d/k"), &self.id, parts, options)
    }

    fn finish(&self) -> PutResult {
        self.complete(&self.parts, &CompleteOptions::default()).unwrap()
    }
}

fn with_checksum(algorithm: ChecksumAlgorithm, checksum_type: Option<ChecksumType>) -> PutOptions {
    PutOptions { checksum: Some(algorithm), checksum_type, ..Default::default() }
}

/// Computes S3's composite checksum: the checksum of the parts' concatenated checksums, and the number of parts.
fn composite(algorithm: ChecksumAlgorithm, bodies: &[Vec<u8>]) -> Checksum {
    let joined: Vec<u8> = bodies.iter().flat_map(|body| Checksum::of(algorithm, body).value).collect();
    Checksum { parts: Some(bodies.len() as u16), ..Checksum::of(algorithm, &joined) }
}

/// In an upload with a checksum, each part has a checksum, and the object has a checksum derived from the parts'
/// checksums. This is tested for every algorithm and type that S3 supports.
pub fn multipart_checksums_are_kept(store: &dyn Store) {
    let b = bucket(store);
    for algorithm in ChecksumAlgorithm::ALL {
        for kind in [ChecksumType::FullObject, ChecksumType::Composite] {
            if kind.check(algorithm).is_err() {
                let refused = store.create_upload(&b, &key("d/k"), &with_checksum(algorithm, Some(kind)));
                assert_kind(refused, ErrorKind::InvalidArgument);
                continue;
            }
            // If the type is the algorithm's default, omit the type.
            let stated = Some(kind).filter(|kind| *kind != ChecksumType::default_of(algorithm));
            let upload = TwoPartUpload::start(store, &b, &with_checksum(algorithm, stated));
            let listed = store.list_parts(&b, &key("d/k"), &upload.id, &PartsQuery::default()).unwrap();
            let listed: Vec<_> = listed.parts.into_iter().map(|part| part.checksum).collect();
            let sums = upload.bodies.iter().map(|body| Some(Checksum::of(algorithm, body)));
            assert_eq!(listed, sums.collect::<Vec<_>>(), "{algorithm:?}");
            let expected = match kind {
                ChecksumType::FullObject => Checksum::of(algorithm, &upload.bodies.concat()),
                ChecksumType::Composite => composite(algorithm, &upload.bodies),
            };
            assert_eq!(upload.finish().checksum.as_ref(), Some(&expected), "{algorithm:?} {kind:?}");
            assert_eq!(head(store, &b, "d/k").unwrap().checksum, Some(expected), "{algorithm:?} {kind:?}");
            assert!(get(store, &b, "d/k").unwrap() == upload.bodies.concat());
        }
    }
    let without = PutOptions { checksum_type: Some(ChecksumType::Composite), ..Default::default() };
    assert_kind(store.create_upload(&b, &key("d/k"), &without), ErrorKind::InvalidArgument);
}

/// A completion with a wrong checksum or size is refused, and the upload can continue.
pub fn multipart_checksums_are_checked(store: &dyn Store) {
    let b = bucket(store);
    let algorithm = ChecksumAlgorithm::Crc32c;
    let upload = TwoPartUpload::start(store, &b, &with_checksum(algorithm, Some(ChecksumType::FullObject)));
    let mut wrong = upload.parts.clone();
    wrong[0].checksum = Some(Checksum::of(algorithm, b"other"));
    assert_kind(upload.complete(&wrong, &CompleteOptions::default()), ErrorKind::InvalidPart);
    let other = CompleteOptions { checksum: Some(Checksum::of(algorithm, b"other")), ..Default::default() };
    assert_kind(upload.complete(&upload.parts, &other), ErrorKind::BadDigest);
    let short = CompleteOptions { size: Some(MIN_PART_BYTES), ..Default::default() };
    assert_kind(upload.complete(&upload.parts, &short), ErrorKind::IncompleteBody);
    assert_kind(get(store, &b, "d/k"), ErrorKind::NoSuchKey);
    let whole = upload.bodies.concat();
    let right = CompleteOptions {
        checksum: Some(Checksum::of(algorithm, &whole)),
        size: Some(whole.len() as u64),
        ..Default::default()
    };
    upload.complete(&upload.parts, &right).unwrap();
    assert!(get(store, &b, "d/k").unwrap() == whole);
}

/// Clients may send a composite checksum with or without the number of parts.
pub fn multipart_checksum_without_the_number_of_parts(store: &dyn Store) {
    let b = bucket(store);
    let algorithm = ChecksumAlgorithm::Sha256;
    for number in [None, Some(2), Some(3)] {
        let upload = TwoPartUpload::start(store, &b, &with_checksum(algorithm, None));
        let sum = Checksum { parts: number, ..composite(algorithm, &upload.bodies) };
        let done =
            upload.complete(&upload.parts, &CompleteOptions { checksum: Some(sum), ..Default::default() });
        match number {
            Some(3) => drop(assert_kind(done, ErrorKind::BadDigest)),
            _ => drop(done.unwrap()),
        }
    }
}

/// A part is checked against its own checksum when it arrives. The checksum must use the upload's checksum algorithm.
pub fn multipart_parts_are_checked(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &with_checksum(ChecksumAlgorithm::Sha1, None)).unwrap();
    let send = |algorithm, stated: &[u8]| {
        let options = PartOptions { checksum: Some(algorithm), ..Default::default() };
        let mut writer = store.part_writer(&b, &key("k"), &upload, 1, &options)?;
        writer.write(b"content")?;
        writer.commit(&ExpectedContent {
            checksum: Some(Checksum::of(algorithm, stated)),
            ..Default::default()
        })
    };
    assert_kind(send(ChecksumAlgorithm::Sha1, b"other"), ErrorKind::BadDigest);
    assert_kind(send(ChecksumAlgorithm::Crc32, b"content"), ErrorKind::InvalidArgument);
    let listed = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default()).unwrap();
    assert!(listed.parts.is_empty());
    let made = send(ChecksumAlgorithm::Sha1, b"content").unwrap();
    assert_eq!(made.checksum, Some(Checksum::of(ChecksumAlgorithm::Sha1, b"content")));
}

/// A part of an object that was completed from several parts can be read by its number, starting at 1.
pub fn parts_are_read_by_number(store: &dyn Store) {
    let b = bucket(store);
    let upload = TwoPartUpload::start(store, &b, &PutOptions::default());
    upload.finish();
    let whole = upload.bodies.concat();
    let part = |name: &str, part: u16| {
        store.get(&b, &key(name), &GetOptions { part: Some(part), ..Default::default() })
    };
    let first = part("d/k", 1).unwrap();
    assert_eq!((first.range.clone(), first.info.part_count), (0..MIN_PART_BYTES, Some(2)));
    assert_eq!(first.info.size, whole.len() as u64);
    assert!(first.content.into_vec().unwrap() == upload.bodies[0]);
    let second = part("d/k", 2).unwrap();
    assert_eq!(second.range, MIN_PART_BYTES..whole.len() as u64);
    assert!(second.content.into_vec().unwrap() == upload.bodies[1]);
    assert_kind(part("d/k", 3), ErrorKind::InvalidPart);

    put(store, &b, "small", b"small");
    let only = part("small", 1).unwrap();
    assert_eq!((only.range.clone(), only.content.into_vec().unwrap()), (0..5, b"small".to_vec()));
    assert_kind(part("small", 2), ErrorKind::InvalidPart);
    put(store, &b, "empty", b"");
    let empty = part("empty", 1).unwrap();
    assert_eq!((empty.range.clone(), empty.info.size, empty.content.len()), (0..0, 0, 0));
    assert_kind(part("none", 1), ErrorKind::NoSuchKey);
    let upload = store.create_upload(&b, &key("end"), &PutOptions::default()).unwrap();
    let parts = [vec![7; MIN_PART_BYTES as usize], Vec::new()];
    let parts: Vec<_> =
        (1..).zip(&parts).map(|(number, body)| put_part(store, &b, "end", &upload, number, body)).collect();
    complete(store, &b, "end", &upload, &parts).unwrap();
    let last = part("end", 2).unwrap();
    assert_eq!((last.range.clone(), last.info.size), (MIN_PART_BYTES..MIN_PART_BYTES, MIN_PART_BYTES));
    assert!(last.content.into_vec().unwrap().is_empty());
    assert_kind(part("end", 3), ErrorKind::InvalidPart);
    let range = Some(ByteRange::From(1));
    let both = store.get(&b, &key("small"), &GetOptions { range, part: Some(1), ..Default::default() });
    assert_kind(both, ErrorKind::InvalidArgument);
}

/// The parts of an object or version can be listed as long as the object or version exists.
pub fn parts_are_described(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    let algorithm = ChecksumAlgorithm::Crc64Nvme;
    let upload = TwoPartUpload::start(store, &b, &with_checksum(algorithm, None));
    let version = upload.finish().version.unwrap();
    let described: Vec<ObjectPart> = (1..)
        .zip(&upload.bodies)
        .map(|(number, body)| ObjectPart {
            number,
            size: body.len() as u64,
            checksum: Some(Checksum::of(algorithm, body)),
        })
        .collect();
    let parts = |options: &GetOptions| store.object_parts(&b, &key("d/k"), options);
    assert_eq!(parts(&GetOptions::default()).unwrap(), described);
    assert_eq!(head(store, &b, "d/k").unwrap().part_count, Some(2));
    put(store, &b, "d/k", b"whole");
    assert!(parts(&GetOptions::default()).unwrap().is_empty());
    assert_eq!(head(store, &b, "d/k").unwrap().part_count, None);
    let older = GetOptions::version(version);
    assert_eq!(parts(&older).unwrap(), described);
    let last = store.get(&b, &key("d/k"), &GetOptions { part: Some(2), ..older.clone() }).unwrap();
    assert!(last.content.into_vec().unwrap() == upload.bodies[1]);
    assert_kind(store.object_parts(&b, &key("none"), &GetOptions::default()), ErrorKind::NoSuchKey);
}

/// A part can be copied from a version, and from a part of another object.
pub fn parts_are_copied_from_versions_and_parts(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    let source = TwoPartUpload::start(store, &b, &PutOptions::default());
    let version = source.finish().version.unwrap();
    put(store, &b, "d/k", b"newer");
    let upload = store.create_upload(&b, &key("to"), &PutOptions::default()).unwrap();
    let options = GetOptions { part: Some(2), ..GetOptions::version(version) };
    let made = store.copy_part((&b, &key("d/k")), &options, (&b, &key("to"), &upload, 1)).unwrap();
    let parts = [CompletedPart::new(1, made.etag)];
    store.complete_upload(&b, &key("to"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert!(get(store, &b, "to").unwrap() == source.bodies[1]);
}
