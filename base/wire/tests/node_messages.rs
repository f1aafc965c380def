//! Writes every message of the node lane and reads it back, and reads bytes that differ slightly from a message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::{
    BoxedMetadata, Bucket, BucketDocumentKind, BucketInfo, ByteRange, Checksum, ChecksumAlgorithm,
    ChecksumAlgorithmAndType, ChecksumType, CompleteOptions, CompletedPart, Conditions, CopyOptions,
    DefaultRetention, DeleteOptions, DeleteResult, ETag, ETagMatch, ETagPolicy, Error, ErrorKind,
    ExpectedContent, GetOptions, Key, ListEntry, ListQuery, LockConfiguration, Metadata, ObjectInfo,
    ObjectListing, ObjectLock, ObjectPart, ObjectSummary, PartInfo, PartListing, PartOptions, PartsQuery,
    PutOptions, PutResult, RenameOptions, Result, Retention, RetentionMode, RetentionPeriod, Tags, UploadId,
    UploadListing, UploadSummary, UploadsQuery, VersionId, VersionListing, VersionSummary, VersioningState,
    VersionsQuery,
};
use fordway_wire::node::{
    CommitResponse, ContentTransferMethod, FRAME_BYTES_MAX, FrameBuffer, FrameHeader, GetResponse,
    HEADER_BYTES, MessageCursor, NodeResponse, ReadField, ReadResponse, Request, ResponseFlags,
    StartWriteResponse, WriteField, take_reply,
};
use fordway_wire::s3_error::to_s3;
use proptest::prelude::*;

/// Generates values from a seed.
struct Make(u64);

/// A type whose values can be generated from a seed.
trait Made {
    fn made(make: &mut Make) -> Self;
}

impl Make {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn any<T: Made>(&mut self) -> T {
        T::made(self)
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn name(&mut self) -> String {
        format!("n{}", self.below(u64::MAX))
    }
}

macro_rules! made {
    ($($type:ty = |$make:ident| $value:expr;)*) => {
        $(impl Made for $type {
            fn made($make: &mut Make) -> Self {
                $value
            }
        })*
    };
}

/// Implements [`Made`] for structs by generating each field.
macro_rules! made_structs {
    ($($name:ident { $($field:ident),* })*) => {
        $(impl Made for $name {
            fn made(make: &mut Make) -> Self {
                $name { $($field: make.any()),* }
            }
        })*
    };
}

impl<T: Made> Made for Option<T> {
    fn made(make: &mut Make) -> Self {
        make.any::<bool>().then(|| make.any())
    }
}

impl<T: Made> Made for Vec<T> {
    fn made(make: &mut Make) -> Self {
        (0..make.below(4)).map(|_| make.any()).collect()
    }
}

impl<T: Made> Made for Result<T> {
    fn made(make: &mut Make) -> Self {
        if make.any() { Ok(make.any()) } else { Err(make.any()) }
    }
}

impl<A: Made, B: Made> Made for (A, B) {
    fn made(make: &mut Make) -> Self {
        (make.any(), make.any())
    }
}

impl<T: ToOwned + ?Sized> Made for Cow<'static, T>
where
    T::Owned: Made,
{
    fn made(make: &mut Make) -> Self {
        Cow::Owned(make.any())
    }
}

made! {
    () = |_make| ();
    bool = |make| make.below(2) == 1;
    u8 = |make| make.below(256) as u8;
    u16 = |make| make.below(1 << 16) as u16;
    u32 = |make| make.below(1 << 31) as u32;
    u64 = |make| make.below(1 << 31) << 32 | make.below(1 << 31);
    usize = |make| make.below(1 << 31) as usize;
    [u8; 16] = |make| [make.below(256) as u8; 16];
    [u8; 32] = |make| [make.below(256) as u8; 32];
    String = |make| {
        let parts = ["", "a", "ä/ö", "\n", "with blanks", "\u{1f600}", "x-y_z"];
        (0..make.below(4)).map(|_| make.one_of(&parts)).collect()
    };
    BTreeMap<String, String> = |make| make.any::<Vec<(String, String)>>().into_iter().collect();
    SystemTime = |make| {
        let distance = Duration::new(make.below(1 << 31), make.below(1_000_000_000) as u32);
        if make.any() { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    };
    std::ops::Range<u64> = |make| make.any()..make.any();
    Bucket = |make| Bucket::new(make.name()).unwrap();
    Key = |make| Key::new(format!("k{}", make.any::<String>())).unwrap();
    ETag = |make| ETag::new(&make.name());
    UploadId = |make| UploadId::new(make.name()).unwrap();
    VersionId = |make| VersionId::new(make.name()).unwrap();
    BucketDocumentKind = |_make| BucketDocumentKind::known("cors");
    ChecksumAlgorithm = |make| make.one_of(&ChecksumAlgorithm::ALL);
    ChecksumType = |make| make.one_of(&[ChecksumType::Composite, ChecksumType::FullObject]);
    ETagPolicy = |make| make.one_of(&[ETagPolicy::Md5, ETagPolicy::Fast]);
    VersioningState = |make| make.one_of(&[VersioningState::Unversioned, VersioningState::Enabled, VersioningState::Suspended]);
    Checksum = |make| {
        let algorithm: ChecksumAlgorithm = make.any();
        Checksum { algorithm, value: vec![make.below(256) as u8; algorithm.len_bytes()], parts: make.any() }
    };
    ETagMatch = |make| if make.any() { ETagMatch::Any } else { ETagMatch::Tags(make.any()) };
    BoxedMetadata = |make| if make.any() { make.any::<Metadata>().into() } else { BoxedMetadata::EMPTY };
    ByteRange = |make| {
        let (a, b) = make.any();
        make.one_of(&[ByteRange::From(a), ByteRange::Inclusive(a, b), ByteRange::Last(b)])
    };
    RetentionMode = |make| make.one_of(&RetentionMode::ALL);
    RetentionPeriod = |make| if make.any() { RetentionPeriod::Days(make.any()) } else { RetentionPeriod::Years(make.any()) };
    ListEntry = |make| if make.any() { ListEntry::CommonPrefix(make.any()) } else { ListEntry::Object(make.any()) };
    Error = |make| {
        let kind = make.one_of(ErrorKind::ALL);
        // When a client reads the message, it sets the S3 code that belongs to the error's kind.
        let error = Error::new(kind, make.any::<String>()).with_s3_code(to_s3(kind).1);
        if make.any() { error.at_delete_marker() } else { error }
    };
    ContentTransferMethod = |make| {
        let (a, b) = make.any();
        make.one_of(&[ContentTransferMethod::Inline, ContentTransferMethod::Stream(a), ContentTransferMethod::Descriptor(a, b)])
    };
}

made_structs! {
    BucketInfo { name, created }
    Metadata { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    ObjectInfo { size, modified, etag, metadata, checksum, version, tag_count, part_count, lock }
    ObjectLock { retention, legal_hold }
    Retention { mode, until_ms }
    LockConfiguration { default }
    DefaultRetention { mode, period }
    ObjectPart { number, size, checksum }
    ChecksumAlgorithmAndType { algorithm, kind }
    PutOptions { metadata, tags, conditions, etag_policy, check_md5, checksum, checksum_type, size_hint, lock }
    PartOptions { check_md5, checksum, size_hint }
    PutResult { etag, modified, checksum, version }
    GetOptions { range, part, version, conditions }
    DeleteOptions { conditions, version, bypass_governance }
    RenameOptions { source_conditions, conditions }
    CopyOptions { metadata, tags, source_version, source_conditions, conditions, checksum, lock }
    Conditions { if_match, if_none_match, if_modified_since, if_unmodified_since }
    ExpectedContent { size, md5, checksum }
    ListQuery { prefix, delimiter, start_after, max_keys }
    ObjectListing { entries, next }
    ObjectSummary { key, size, etag, modified, checksum }
    CompletedPart { number, etag, checksum }
    CompleteOptions { conditions, checksum, size }
    PartInfo { number, size, etag, modified, checksum }
    PartsQuery { after, max_parts }
    PartListing { parts, truncated, checksum }
    UploadsQuery { prefix, key_after, upload_after, max_uploads }
    UploadSummary { key, upload, started, checksum }
    UploadListing { uploads, truncated }
    DeleteResult { version, is_marker }
    VersionSummary { key, version, is_latest, modified, content, checksum }
    VersionsQuery { prefix, delimiter, key_after, version_after, max_keys }
    VersionListing { versions, prefixes, next }
    GetResponse { info, range, sent }
    ReadResponse { size, sent }
    StartWriteResponse { has_file }
    CommitResponse { made, has_spare }
}

/// Generates one request of each operation.
macro_rules! one_of_each {
    ($make:ident: $($name:ident { $($field:ident),* })*) => {
        vec![$(Request::$name { $($field: $make.any()),* }),*]
    };
}

fn requests(make: &mut Make) -> Vec<Request<'static>> {
    one_of_each! { make:
        Authenticate { access_key, nonce, proof }
        Stats {}
        ListBuckets {}
        CreateBucket { bucket }
        HeadBucket { bucket }
        DeleteBucket { bucket }
        Versioning { bucket }
        SetVersioning { bucket, versioning }
        Put { bucket, key, options, expected }
        PutMany { bucket, options, objects }
        Start { bucket, key, options }
        StartPart { bucket, key, upload, number, options }
        Append {}
        Commit { expected, filled, wants_spare }
        Abandon {}
        Get { bucket, key, options }
        Read { bucket, key, options, is_large }
        ReadRanges { bucket, key, ranges, options }
        GetMany { bucket, keys }
        Head { bucket, key, options }
        HeadMany { bucket, keys }
        ObjectParts { bucket, key, options }
        Tags { bucket, key, version }
        SetTags { bucket, key, version, tags }
        Delete { bucket, key, options }
        DeleteMany { bucket, keys }
        Copy { from_bucket, from_key, bucket, key, options }
        List { bucket, query }
        ListVersions { bucket, query }
        CreateUpload { bucket, key, options }
        CopyPart { from_bucket, from_key, options, bucket, key, upload, number }
        ListParts { bucket, key, upload, query }
        ListUploads { bucket, query }
        CompleteUpload { bucket, key, upload, parts, options }
        AbortUpload { bucket, key, upload }
        PutSpare { bucket, key, options, filled, core }
        Document { bucket, kind }
        SetDocument { bucket, kind, document }
        DeleteDocument { bucket, kind }
        LockConfiguration { bucket }
        SetLockConfiguration { bucket, configuration }
        SetRetention { bucket, key, version, retention, bypass }
        SetLegalHold { bucket, key, version, is_on }
        Rename { bucket, from, to, options }
    }
}

/// Asserts that the value read equals the value written. Compares their debug output, because some types cannot be
/// compared.
#[track_caller]
fn there_and_back<T: WriteField + ReadField + Debug>(answer: Result<T>) {
    let mut bytes = Vec::new();
    let body = [7; 3];
    NodeResponse { id: 9, flags: ResponseFlags::AWAKE, answer: answer.as_ref(), body_bytes: body.len() }
        .put(&mut bytes);
    bytes.extend_from_slice(&body);
    let header = FrameHeader::read(&bytes).unwrap().unwrap();
    assert_eq!((header.id, header.flags, header.frame_bytes()), (9, ResponseFlags::AWAKE, bytes.len()));
    let frame = header.frame(&bytes).unwrap();
    assert_eq!(frame.body, body);
    let read = take_reply::<T>(&frame);
    let essence = |error: &Error| (error.kind(), error.detail().to_owned(), error.is_at_delete_marker());
    match (&answer, &read) {
        (Ok(put), Ok(taken)) => assert_eq!(format!("{put:?}"), format!("{taken:?}")),
        (Err(put), Err(taken)) => assert_eq!(essence(put), essence(taken)),
        _ => panic!("{answer:?} became {read:?}"),
    }
    // A truncated response is refused.
    for len in 0..frame.fields.len() {
        let cut = MessageCursor::all::<T>(&frame.fields[..len]);
        assert!(answer.is_err() || cut.is_err(), "{len} of {} bytes", frame.fields.len());
    }
}

#[track_caller]
fn request_there_and_back(request: &Request<'_>) {
    let mut bytes = Vec::new();
    request.put(&mut bytes, 5, 0);
    let header = FrameHeader::read(&bytes).unwrap().unwrap();
    let fields = header.frame(&bytes).unwrap().fields;
    let read = Request::take(header.code, fields).unwrap();
    assert_eq!(format!("{read:?}"), format!("{request:?}"));
    for len in 0..fields.len() {
        assert!(Request::take(header.code, &fields[..len]).is_err(), "{len} bytes of {request:?}");
    }
}

#[test]
fn every_operation_is_tried() {
    let tried: Vec<u8> = requests(&mut Make(1)).iter().map(Request::code).collect();
    assert_eq!(tried, Request::CODES);
}

#[test]
fn every_kind_of_error_survives() {
    for kind in ErrorKind::ALL {
        there_and_back::<()>(Err(Error::new(*kind, "why").at_delete_marker()));
    }
    let caused = Error::new(ErrorKind::NoSpace, "writing").caused_by(std::io::Error::other("the cause"));
    let mut bytes = Vec::new();
    caused.put(&mut bytes);
    assert_eq!(MessageCursor::all::<Error>(&bytes).unwrap().detail(), "writing: the cause");
}

#[test]
fn an_answer_without_room_becomes_an_error() {
    let long = vec!["x".repeat(1 << 20); 17];
    let mut bytes = b"before".to_vec();
    NodeResponse { id: 1, flags: ResponseFlags::default(), answer: Ok(&long), body_bytes: 0 }.put(&mut bytes);
    assert!(bytes.len() < 1000 && FRAME_BYTES_MAX == 16 << 20);
    let header = FrameHeader::read(&bytes[6..]).unwrap().unwrap();
    let error = take_reply::<Vec<String>>(&header.frame(&bytes[6..]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EntityTooLarge);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_round_trip(seed in any::<u64>()) {
        requests(&mut Make(seed)).iter().for_each(request_there_and_back);
    }

    #[test]
    fn replies_round_trip(seed in any::<u64>()) {
        let make = &mut Make(seed);
        there_and_back::<()>(make.any());
        there_and_back::<String>(make.any());
        there_and_back::<[u8; 32]>(make.any());
        there_and_back::<Vec<BucketInfo>>(make.any());
        there_and_back::<VersioningState>(make.any());
        there_and_back::<PutResult>(make.any());
        there_and_back::<Vec<Result<PutResult>>>(make.any());
        there_and_back::<Vec<Result<DeleteResult>>>(make.any());
        there_and_back::<Vec<Result<ObjectInfo>>>(make.any());
        there_and_back::<Vec<Result<Option<u32>>>>(make.any());
        there_and_back::<Vec<u32>>(make.any());
        there_and_back::<StartWriteResponse>(make.any());
        there_and_back::<CommitResponse>(make.any());
        there_and_back::<Option<CommitResponse>>(make.any());
        there_and_back::<GetResponse>(make.any());
        there_and_back::<ReadResponse>(make.any());
        there_and_back::<Tags>(make.any());
        there_and_back::<ObjectListing>(make.any());
        there_and_back::<VersionListing>(make.any());
        there_and_back::<UploadId>(make.any());
        there_and_back::<Vec<ObjectPart>>(make.any());
        there_and_back::<PartListing>(make.any());
        there_and_back::<UploadListing>(make.any());
    }

    /// A message with a few changed bytes is refused, or is read as another message. Nothing panics, and no memory is
    /// allocated for bytes that are announced but not sent.
    #[test]
    fn changed_bytes_do_no_harm(
        seed in any::<u64>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        for request in requests(&mut Make(seed)) {
            let mut bytes = Vec::new();
            request.put(&mut bytes, 5, 0);
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            let mut inbox = FrameBuffer::default();
            inbox.room()[..bytes.len()].copy_from_slice(&bytes);
            inbox.filled(bytes.len());
            inbox.room();
            prop_assert!(inbox.capacity_bytes() < 1 << 18);
            if let Ok(Some(header)) = inbox.next_header() {
                let frame = inbox.frame(&header).unwrap();
                if let Ok(read) = Request::take(header.code, frame.fields) {
                    let mut again = Vec::new();
                    read.put(&mut again, header.id, 0);
                    let second = Request::take(header.code, &again[HEADER_BYTES..]).unwrap();
                    prop_assert_eq!(format!("{read:?}"), format!("{second:?}"));
                }
                let _ = take_reply::<ObjectListing>(&frame);
                let _ = take_reply::<Vec<Result<ObjectInfo>>>(&frame);
            }
        }
    }

    #[test]
    fn random_bytes_do_no_harm(code in any::<u8>(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Request::take(code, &bytes);
        let _ = FrameHeader::read(&bytes);
        let _ = MessageCursor::all::<GetResponse>(&bytes);
        let _ = MessageCursor::all::<VersionListing>(&bytes);
    }
}
