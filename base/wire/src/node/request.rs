//! All operations as requests, and the responses that consist of more than one of the store's types.

use std::borrow::Cow;
use std::ops::Range;

use fordway_store::{
    Bucket, BucketDocumentKind, ByteRange, CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, Error,
    ErrorKind, ExpectedContent, GetOptions, Key, ListQuery, LockConfiguration, ObjectInfo, PartOptions,
    PartsQuery, PutOptions, PutResult, RenameOptions, Result, Retention, Tags, UploadId, UploadsQuery,
    VersionId, VersioningState, VersionsQuery,
};

use super::fields::{MessageCursor, ReadField, WriteField, malformed};
use super::handshake::NONCE_BYTES;
use super::{FRAME_BYTES_MAX, HEADER_BYTES, ReceivedFrame, ResponseFlags, begin_frame, end_frame};

macro_rules! requests {
    ($($(#[$doc:meta])* $code:literal $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        /// A request. The sender's value borrows the operands; the receiver's value owns them.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "operands are those of the `Store` method that is named")]
        pub enum Request<'a> { $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type),* },)* }

        impl<'a> Request<'a> {
            /// The codes of all operations.
            pub const CODES: &'static [u8] = &[$($code),*];

            /// The names of all operations, in the order of their codes.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Returns the code of the operation.
            pub fn code(&self) -> u8 {
                match self { $(Request::$name { .. } => $code),* }
            }

            fn put_fields(&self, out: &mut Vec<u8>) {
                match self { $(Request::$name { $($field),* } => { $($field.put(out);)* let _ = &out; })* }
            }

            /// Parses the request of a frame. Errors: `InvalidArgument` for an invalid request; `NoSuchUpload` and
            /// `NoSuchVersion` for identifiers that no store creates.
            pub fn take(code: u8, fields: &[u8]) -> Result<Request<'static>> {
                let mut input = MessageCursor::new(fields);
                let request = match code {
                    $($code => Request::$name { $($field: ReadField::take(&mut input)?),* },)*
                    _ => return Err(malformed(&format!("there is no operation {code}"))),
                };
                input.end()?;
                Ok(request)
            }
        }
    };
}

requests! {
    /// Proves that the client knows the secret. Response: the gateway's own proof (32 bytes).
    1 Authenticate { access_key: Cow<'a, str>, nonce: [u8; NONCE_BYTES], proof: [u8; 32] }
    /// Returns the gateway's counters. Response: list of pairs, each a name and an 8-byte number.
    2 Stats {}
    /// `list_buckets`. Response: list of `BucketInfo`.
    3 ListBuckets {}
    /// `create_bucket`.
    4 CreateBucket { bucket: Cow<'a, Bucket> }
    /// `head_bucket`. Response: `BucketInfo`.
    5 HeadBucket { bucket: Cow<'a, Bucket> }
    /// `delete_bucket`.
    6 DeleteBucket { bucket: Cow<'a, Bucket> }
    /// `versioning`. Response: `VersioningState`.
    7 Versioning { bucket: Cow<'a, Bucket> }
    /// `set_versioning`.
    8 SetVersioning { bucket: Cow<'a, Bucket>, versioning: VersioningState }
    /// Puts an object; the body is its content. Response: `PutResult`.
    9 Put { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, PutOptions>, expected: Cow<'a, ExpectedContent> }
    /// `put_many`: the body contains the objects one after the other, with the given lengths. Response: list of
    /// results, each a `PutResult` or an error.
    10 PutMany { bucket: Cow<'a, Bucket>, options: Cow<'a, PutOptions>, objects: Cow<'a, [(Key, u32)]> }
    /// Starts an object. Response: [`super::StartWriteResponse`], perhaps with a descriptor.
    11 Start { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, PutOptions> }
    /// Starts a part. Response: as for `Start`.
    12 StartPart { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, upload: Cow<'a, UploadId>, number: u16, options: Cow<'a, PartOptions> }
    /// Appends the body to the object or part in progress. There is no response to `Append`; the response to `Commit`
    /// reports an error of `Append`.
    13 Append {}
    /// Finishes the object or part in progress; `filled` bytes were written to the descriptor. Response:
    /// [`super::CommitResponse`], with the descriptor of a spare file if `wants_spare` and the gateway has one.
    14 Commit { expected: Cow<'a, ExpectedContent>, filled: Option<u64>, wants_spare: bool }
    /// Discards the object or part in progress.
    15 Abandon {}
    /// `get`. Response: [`super::GetResponse`].
    16 Get { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, GetOptions> }
    /// `read`. `is_large` is true if the client expects a large amount of content. Response: [`super::ReadResponse`].
    17 Read { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, GetOptions>, is_large: bool }
    /// `read_ranges`. Response: a list of 4-byte lengths, one for each range; the body is the content of all ranges.
    18 ReadRanges { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, ranges: Cow<'a, [ByteRange]>, options: Cow<'a, GetOptions> }
    /// `get_many`. Response: one or more frames, all but the last with [`ResponseFlags::MORE`]. A frame contains, for
    /// each of the next keys in order, a result with the length of its content in the body. A result without a length
    /// means that the client must request the object separately.
    19 GetMany { bucket: Cow<'a, Bucket>, keys: Cow<'a, [Key]> }
    /// `head`. Response: `ObjectInfo`.
    20 Head { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, GetOptions> }
    /// `head_many`. Response: list of results, each an `ObjectInfo` or an error.
    21 HeadMany { bucket: Cow<'a, Bucket>, keys: Cow<'a, [Key]> }
    /// `object_parts`. Response: list of `ObjectPart`.
    22 ObjectParts { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, GetOptions> }
    /// `tags`. Response: `Tags`.
    23 Tags { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, version: Option<Cow<'a, VersionId>> }
    /// `set_tags`.
    24 SetTags { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, version: Option<Cow<'a, VersionId>>, tags: Cow<'a, Tags> }
    /// `delete`. Response: `DeleteResult`.
    25 Delete { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, DeleteOptions> }
    /// `delete_many`. Response: list of results, each a `DeleteResult` or an error.
    26 DeleteMany { bucket: Cow<'a, Bucket>, keys: Cow<'a, [Key]> }
    /// `copy`. Response: `PutResult`.
    27 Copy { from_bucket: Cow<'a, Bucket>, from_key: Cow<'a, Key>, bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, CopyOptions> }
    /// `list`, of up to [`super::PAGE_ENTRIES_MAX`] entries. Response: `ObjectListing`.
    28 List { bucket: Cow<'a, Bucket>, query: Cow<'a, ListQuery> }
    /// `list_versions`, of up to [`super::PAGE_ENTRIES_MAX`] entries. Response: `VersionListing`.
    29 ListVersions { bucket: Cow<'a, Bucket>, query: Cow<'a, VersionsQuery> }
    /// `create_upload`. Response: `UploadId`.
    30 CreateUpload { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, PutOptions> }
    /// `copy_part`. Response: `PutResult`.
    31 CopyPart { from_bucket: Cow<'a, Bucket>, from_key: Cow<'a, Key>, options: Cow<'a, GetOptions>, bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, upload: Cow<'a, UploadId>, number: u16 }
    /// `list_parts`. Response: `PartListing`.
    32 ListParts { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, upload: Cow<'a, UploadId>, query: Cow<'a, PartsQuery> }
    /// `list_uploads`. Response: `UploadListing`.
    33 ListUploads { bucket: Cow<'a, Bucket>, query: Cow<'a, UploadsQuery> }
    /// `complete_upload`. Response: `PutResult`.
    34 CompleteUpload { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, upload: Cow<'a, UploadId>, parts: Cow<'a, [CompletedPart]>, options: Cow<'a, CompleteOptions> }
    /// `abort_upload`.
    35 AbortUpload { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, upload: Cow<'a, UploadId> }
    /// Puts an object whose `filled` bytes a thread on processor `core` has written to the spare file. Response: option
    /// of [`super::CommitResponse`], as for `Commit`; no value if the file cannot be used for this object.
    36 PutSpare { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, options: Cow<'a, PutOptions>, filled: u64, core: u32 }
    /// `document`. Response: the document, if there is one.
    37 Document { bucket: Cow<'a, Bucket>, kind: Cow<'a, BucketDocumentKind> }
    /// `set_document`.
    38 SetDocument { bucket: Cow<'a, Bucket>, kind: Cow<'a, BucketDocumentKind>, document: Cow<'a, [u8]> }
    /// `delete_document`.
    39 DeleteDocument { bucket: Cow<'a, Bucket>, kind: Cow<'a, BucketDocumentKind> }
    /// `lock_configuration`. Response: `LockConfiguration`, if there is one.
    40 LockConfiguration { bucket: Cow<'a, Bucket> }
    /// `set_lock_configuration`.
    41 SetLockConfiguration { bucket: Cow<'a, Bucket>, configuration: LockConfiguration }
    /// `set_retention`.
    42 SetRetention { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, version: Option<Cow<'a, VersionId>>, retention: Option<Retention>, bypass: bool }
    /// `set_legal_hold`.
    43 SetLegalHold { bucket: Cow<'a, Bucket>, key: Cow<'a, Key>, version: Option<Cow<'a, VersionId>>, is_on: bool }
    /// `rename`.
    44 Rename { bucket: Cow<'a, Bucket>, from: Cow<'a, Key>, to: Cow<'a, Key>, options: Cow<'a, RenameOptions> }
}

impl Request<'_> {
    /// Returns the number of objects in a batch request; 0 for all other requests.
    pub fn batch_objects(&self) -> usize {
        match self {
            Request::GetMany { keys, .. }
            | Request::HeadMany { keys, .. }
            | Request::DeleteMany { keys, .. } => keys.len(),
            Request::PutMany { objects, .. } => objects.len(),
            _ => 0,
        }
    }

    /// Appends the frame of this request without its body; the caller sends `body_bytes` bytes of body after the frame.
    pub fn put(&self, out: &mut Vec<u8>, id: u32, body_bytes: usize) {
        let start = begin_frame(out);
        self.put_fields(out);
        end_frame(out, start, (id, self.code(), ResponseFlags::default()), body_bytes);
    }
}

/// Returns the maximum total length of `ranges` in any object, in bytes.
pub fn longest_bytes(ranges: &[ByteRange]) -> u64 {
    let longest = |range: &ByteRange| match range {
        ByteRange::From(_) => u64::MAX,
        ByteRange::Inclusive(first, last) => last.saturating_sub(*first).saturating_add(1),
        ByteRange::Last(count) => *count,
    };
    ranges.iter().map(longest).fold(0, u64::saturating_add)
}

/// The code of a successful response.
pub(super) const DONE: u8 = 0;
/// The code of a response that is an error.
pub(super) const FAILED: u8 = 1;

/// How a response carries content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentTransferMethod {
    /// As the frame's body.
    Inline,
    /// As a stream of this number of bytes after the frame.
    Stream(u64),
    /// As bytes of the file whose descriptor was passed with the response; the values are offset and length.
    Descriptor(u64, u64),
}

/// The response to `Get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResponse {
    /// The properties of the whole object.
    pub info: ObjectInfo,
    /// The range of the object that is sent.
    pub range: Range<u64>,
    /// How the bytes are sent.
    pub sent: ContentTransferMethod,
}

/// The response to `Read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResponse {
    /// The size of the whole object in bytes.
    pub size: u64,
    /// How the requested bytes are sent.
    pub sent: ContentTransferMethod,
}

/// The response to `Start` and `StartPart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartWriteResponse {
    /// Whether a descriptor was passed with the response, for writing the content from its first byte.
    pub has_file: bool,
}

/// The response to `Commit`, and to `PutSpare` if that request created an object.
#[derive(Clone, Debug)]
pub struct CommitResponse {
    /// The result of the put.
    pub made: PutResult,
    /// Whether a descriptor was passed with the response, for writing the content of the next object.
    pub has_spare: bool,
}

impl WriteField for ContentTransferMethod {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            ContentTransferMethod::Inline => out.push(0),
            ContentTransferMethod::Stream(len) => (1u8, *len).put(out),
            ContentTransferMethod::Descriptor(offset, len) => (2u8, (*offset, *len)).put(out),
        }
    }
}

impl ReadField for ContentTransferMethod {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        match u8::take(input)? {
            0 => Ok(ContentTransferMethod::Inline),
            1 => Ok(ContentTransferMethod::Stream(u64::take(input)?)),
            2 => Ok(ContentTransferMethod::Descriptor(u64::take(input)?, u64::take(input)?)),
            _ => Err(malformed("unknown way to send content")),
        }
    }
}

impl WriteField for GetResponse {
    fn put(&self, out: &mut Vec<u8>) {
        self.info.put(out);
        (self.range.start, self.range.end).put(out);
        self.sent.put(out);
    }
}

impl ReadField for GetResponse {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let (info, (start, end)) = ReadField::take(input)?;
        Ok(GetResponse { info, range: start..end, sent: ContentTransferMethod::take(input)? })
    }
}

impl WriteField for ReadResponse {
    fn put(&self, out: &mut Vec<u8>) {
        (self.size, self.sent).put(out);
    }
}

impl ReadField for ReadResponse {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        let (size, sent) = ReadField::take(input)?;
        Ok(ReadResponse { size, sent })
    }
}

impl WriteField for StartWriteResponse {
    fn put(&self, out: &mut Vec<u8>) {
        self.has_file.put(out);
    }
}

impl ReadField for StartWriteResponse {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        Ok(StartWriteResponse { has_file: bool::take(input)? })
    }
}

impl WriteField for CommitResponse {
    fn put(&self, out: &mut Vec<u8>) {
        self.made.put(out);
        self.has_spare.put(out);
    }
}

impl ReadField for CommitResponse {
    fn take(input: &mut MessageCursor<'_>) -> Result<Self> {
        Ok(CommitResponse { made: ReadField::take(input)?, has_spare: ReadField::take(input)? })
    }
}

/// Parses the response of a frame. Errors: the error that the gateway returned; `BadResponse` if the frame is not a
/// valid response.
pub fn take_reply<T: ReadField>(frame: &ReceivedFrame<'_>) -> Result<T> {
    let bad = |error: Error| Error::new(ErrorKind::BadResponse, error.detail());
    match frame.header.code {
        DONE => MessageCursor::all(frame.fields).map_err(bad),
        FAILED => Err(MessageCursor::all::<Error>(frame.fields).unwrap_or_else(bad)),
        _ => Err(bad(malformed("there is no such response"))),
    }
}

/// A response to send, without its body.
#[derive(Debug)]
pub struct NodeResponse<'a, T> {
    /// The id of the request.
    pub id: u32,
    /// See [`ResponseFlags`].
    pub flags: ResponseFlags,
    /// The result of the operation.
    pub answer: Result<&'a T, &'a Error>,
    /// The number of body bytes that follow.
    pub body_bytes: usize,
}

impl<T: WriteField> NodeResponse<'_, T> {
    /// Appends the response without its body. A result too large for a frame becomes an error.
    pub fn put(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let room = FRAME_BYTES_MAX.saturating_sub(self.body_bytes);
        if let Ok(answer) = self.answer {
            answer.put(out);
            if out.len() - start - HEADER_BYTES <= room {
                return end_frame(out, start, (self.id, DONE, self.flags), self.body_bytes);
            }
            out.truncate(start + HEADER_BYTES);
        }
        let too_long =
            || Error::new(ErrorKind::EntityTooLarge, "the response is longer than a message may be");
        self.answer.err().unwrap_or(&too_long()).put(out);
        end_frame(out, start, (self.id, FAILED, self.flags), self.body_bytes);
    }
}
