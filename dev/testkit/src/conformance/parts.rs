//! What stays known of the parts that an object was completed of: checksums, sizes, and reading one.

use fordway_store::{
    Bucket, ByteRange, Checksum, ChecksumAlgorithm, ChecksumType, CompleteOptions, CompletedPart, ErrorKind,
    Expected, GetOptions, MIN_PART_BYTES, ObjectPart, PartOptions, PartsQuery, PutOptions, PutResult, Result,
    Store, UploadId, Versioning,
};

use super::{assert_kind, bucket, bytes, get, head, key, put};

/// An upload of two parts, 5 MiB and 1,000 bytes, to the key `d/k`.
struct Upload<'s> {
    store: &'s dyn Store,
    bucket: Bucket,
    id: UploadId,
    bodies: [Vec<u8>; 2],
    parts: Vec<CompletedPart>,
}

impl<'s> Upload<'s> {
    fn start(store: &'s dyn Store, bucket: &Bucket, options: &PutOptions) -> Self {
        let id = store.create_upload(bucket, &key("d/k"), options).unwrap();
        let bodies = [bytes(MIN_PART_BYTES as usize, 1), bytes(1000, 2)];
        let mut upload = Upload { store, bucket: bucket.clone(), id, bodies, parts: Vec::new() };
        upload.parts = [2, 5].into_iter().zip(&upload.bodies).map(|(n, body)| upload.put(n, body)).collect();
        upload
    }

    fn put(&self, number: u16, body: &[u8]) -> CompletedPart {
        let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
        let writer = self.store.part_writer(&self.bucket, &key("d/k"), &self.id, number, &options);
        let mut writer = writer.unwrap();
        writer.write(body).unwrap();
        let PutResult { etag, checksum, .. } = writer.commit(&Expected::default()).unwrap();
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

/// What S3 makes of the checksums of parts: theirs joined and summed again, and their number.
fn composite(algorithm: ChecksumAlgorithm, bodies: &[Vec<u8>]) -> Checksum {
    let joined: Vec<u8> = bodies.iter().flat_map(|body| Checksum::of(algorithm, body).value).collect();
    Checksum { parts: Some(bodies.len() as u16), ..Checksum::of(algorithm, &joined) }
}

/// The parts of an upload with a checksum have one each, and its object one made of them, of each
/// algorithm and type that S3 has.
pub fn multipart_checksums_are_kept(store: &dyn Store) {
    let b = bucket(store);
    for algorithm in ChecksumAlgorithm::ALL {
        for kind in [ChecksumType::FullObject, ChecksumType::Composite] {
            if kind.check(algorithm).is_err() {
                let refused = store.create_upload(&b, &key("d/k"), &with_checksum(algorithm, Some(kind)));
                assert_kind(refused, ErrorKind::InvalidArgument);
                continue;
            }
            // Half of them without saying what follows from the algorithm.
            let stated = Some(kind).filter(|kind| *kind != ChecksumType::default_of(algorithm));
            let upload = Upload::start(store, &b, &with_checksum(algorithm, stated));
            let listed = store.list_parts(&b, &key("d/k"), &upload.id, &PartsQuery::default()).unwrap();
            for (part, body) in listed.parts.iter().zip(&upload.bodies) {
                assert_eq!(part.checksum, Some(Checksum::of(algorithm, body)), "{algorithm:?}");
            }
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

/// A completion that states what does not hold is refused, and the upload goes on.
pub fn multipart_checksums_are_checked(store: &dyn Store) {
    let b = bucket(store);
    let algorithm = ChecksumAlgorithm::Crc32c;
    let upload = Upload::start(store, &b, &with_checksum(algorithm, Some(ChecksumType::FullObject)));
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

/// Clients may state a checksum made of parts with or without the number of these.
pub fn multipart_checksum_without_the_number_of_parts(store: &dyn Store) {
    let b = bucket(store);
    let algorithm = ChecksumAlgorithm::Sha256;
    for number in [None, Some(2), Some(3)] {
        let upload = Upload::start(store, &b, &with_checksum(algorithm, None));
        let sum = Checksum { parts: number, ..composite(algorithm, &upload.bodies) };
        let done =
            upload.complete(&upload.parts, &CompleteOptions { checksum: Some(sum), ..Default::default() });
        match number {
            Some(3) => drop(assert_kind(done, ErrorKind::BadDigest)),
            _ => drop(done.unwrap()),
        }
    }
}

/// A part is checked against its own checksum when it arrives, and has the upload's or none.
pub fn multipart_parts_are_checked(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &with_checksum(ChecksumAlgorithm::Sha1, None)).unwrap();
    let send = |algorithm, stated: &[u8]| {
        let options = PartOptions { checksum: Some(algorithm), ..Default::default() };
        let mut writer = store.part_writer(&b, &key("k"), &upload, 1, &options)?;
        writer.write(b"content")?;
        writer.commit(&Expected { checksum: Some(Checksum::of(algorithm, stated)), ..Default::default() })
    };
    assert_kind(send(ChecksumAlgorithm::Sha1, b"other"), ErrorKind::BadDigest);
    assert_kind(send(ChecksumAlgorithm::Crc32, b"content"), ErrorKind::InvalidArgument);
    let listed = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default()).unwrap();
    assert!(listed.parts.is_empty());
    let made = send(ChecksumAlgorithm::Sha1, b"content").unwrap();
    assert_eq!(made.checksum, Some(Checksum::of(ChecksumAlgorithm::Sha1, b"content")));
}

/// A part of an object that was completed of several is read by its number, from 1 on.
pub fn parts_are_read_by_number(store: &dyn Store) {
    let b = bucket(store);
    let upload = Upload::start(store, &b, &PutOptions::default());
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
    let range = Some(ByteRange::From(1));
    let both = store.get(&b, &key("small"), &GetOptions { range, part: Some(1), ..Default::default() });
    assert_kind(both, ErrorKind::InvalidArgument);
}

/// The parts of an object or version are known as long as it exists.
pub fn parts_are_described(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, Versioning::Enabled).unwrap();
    let algorithm = ChecksumAlgorithm::Crc64Nvme;
    let upload = Upload::start(store, &b, &with_checksum(algorithm, None));
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

/// A part may be copied from a version, and from a part of another object.
pub fn parts_are_copied_from_versions_and_parts(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, Versioning::Enabled).unwrap();
    let source = Upload::start(store, &b, &PutOptions::default());
    let version = source.finish().version.unwrap();
    put(store, &b, "d/k", b"newer");
    let upload = store.create_upload(&b, &key("to"), &PutOptions::default()).unwrap();
    let options = GetOptions { part: Some(2), ..GetOptions::version(version) };
    let made = store.copy_part((&b, &key("d/k")), &options, (&b, &key("to"), &upload, 1)).unwrap();
    let parts = [CompletedPart::new(1, made.etag)];
    store.complete_upload(&b, &key("to"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert!(get(store, &b, "to").unwrap() == source.bodies[1]);
}
