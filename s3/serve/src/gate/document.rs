//! Request bodies that are XML documents. The gate reads each document completely, and compares it with the hashes and
//! checksums in the head of the request. The gate passes the document to the S3 layer only if the document has no
//! unknown elements.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use base64::alphabet::STANDARD;
use base64::engine::{Engine as _, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Bytes, BytesMut};
use fordway_store::{Checksum, ChecksumAlgorithm};
use fordway_wire::s3_xml::unknown_element;
use http::{HeaderMap, HeaderName, Request};
use http_body::{Body, Frame, SizeHint};

use crate::aws_chunked::{CONTENT_SHA256, is_in_chunks};
use crate::gate::table::{PathResource, TABLE};
use crate::gate::{CONTENT_MD5, GateRefusal, OperationRule};
use crate::http1::{BROKEN, STALLED};
use crate::message::composed;

/// The maximum size of a document in bytes. For example, a list of 10,000 parts with checksums is about 2 MiB long.
const DOCUMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The reason why the document in a request's body is refused. The cell is empty until the document is refused. Clones
/// share the reason.
#[derive(Clone, Default)]
pub(crate) struct RequestBodyRefusal(Arc<OnceLock<GateRefusal>>);

impl RequestBodyRefusal {
    /// Returns the reason, or `None` if the document has not been refused.
    pub(crate) fn get(&self) -> Option<&GateRefusal> {
        self.0.get()
    }
}

/// Decodes the value of `Content-MD5`; `None` if the value is not the base64 encoding of 16 bytes. The unused trailing
/// bits may be set, as on AWS.
pub(crate) fn decoded_md5(text: &str) -> Option<[u8; 16]> {
    const BASE64: GeneralPurpose =
        GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
    BASE64.decode(text).ok()?.try_into().ok()
}

/// Replaces the body of a request with a checked document if the operation has a document. Errors: the head shows that
/// the document cannot be checked.
pub(crate) fn take_document(
    operation: &'static OperationRule,
    request: Request<s3s::Body>,
) -> Result<(Request<s3s::Body>, Option<RequestBodyRefusal>), GateRefusal> {
    if operation.resource == PathResource::Bucket && is_in_chunks(request.headers()) {
        let words = "The value of x-amz-content-sha256 header is invalid.";
        let detail = "a document in chunks is not supported; send it in one piece";
        return Err(GateRefusal::bad("InvalidRequest", composed(words, detail, &[])));
    }
    if operation.elements.is_empty() {
        return Ok((request, None));
    }
    let (parts, body) = request.into_parts();
    let claims = DocumentDigests::read(operation, &parts.headers)?;
    if body.size_hint().exact() == Some(0) {
        // The S3 layer does not read an empty body, so this function itself checks the digests of an empty document.
        claims.check(&[])?;
        return Ok((Request::from_parts(parts, s3s::Body::empty()), None));
    }
    let complaint = RequestBodyRefusal::default();
    let document = VerifiedDocumentBody {
        inner: body,
        read: BytesMut::new(),
        claims,
        complaint: complaint.clone(),
        is_over: false,
    };
    Ok((Request::from_parts(parts, s3s::Body::http_body_unsync(document)), Some(complaint)))
}

/// The digests that a request's head contains for the document in the body.
struct DocumentDigests {
    operation: &'static OperationRule,
    sha256: Option<String>,
    md5: Option<[u8; 16]>,
    checksum: Option<Checksum>,
}

impl DocumentDigests {
    fn read(operation: &'static OperationRule, headers: &HeaderMap) -> Result<Self, GateRefusal> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let sha256 = text(&CONTENT_SHA256);
        let md5 = text(&CONTENT_MD5).map(|text| {
            decoded_md5(text).ok_or_else(|| {
                GateRefusal::bad("InvalidDigest", "Content-MD5 is not the base64 of an MD5; compute it again")
            })
        });
        Ok(DocumentDigests {
            operation,
            sha256: sha256.filter(|hash| hash.len() == 64).map(str::to_ascii_lowercase),
            md5: md5.transpose()?,
            // In CompleteMultipartUpload, the head specifies the checksum of the future object, not of the document.
            checksum: if operation.is_completion() { None } else { stated(headers)? },
        })
    }

    fn check(&self, document: &[u8]) -> Result<(), GateRefusal> {
        if self.sha256.as_ref().is_some_and(|hash| *hash != hex(&digest(ChecksumAlgorithm::Sha256, document)))
        {
            let words = "The provided 'x-amz-content-sha256' header does not match what was computed.";
            let (stated, computed) =
                (self.sha256.clone().unwrap_or_default(), hex(&digest(ChecksumAlgorithm::Sha256, document)));
            let facts = [("ClientComputedContentSHA256", &*stated), ("S3ComputedContentSHA256", &*computed)];
            return Err(GateRefusal::bad(
                "XAmzContentSHA256Mismatch",
                composed(words, "send it again", &facts),
            ));
        }
        let wrong = |what: &str| {
            GateRefusal::bad("BadDigest", format!("the body does not match its {what}; send it again"))
        };
        if self.md5.is_some_and(|md5| digest(ChecksumAlgorithm::Md5, document) != md5) {
            let message = "the body does not match its Content-MD5; send it again";
            return Err(GateRefusal::bad("BadDigest", message));
        }
        if let Some(stated) = &self.checksum
            && digest(stated.algorithm, document) != stated.value
        {
            return Err(wrong(stated.algorithm.name()));
        }
        check_elements(self.operation, document)
    }
}

/// Checks that the document of an operation has no unknown elements. Errors: `NotImplemented`.
fn check_elements(operation: &OperationRule, document: &[u8]) -> Result<(), GateRefusal> {
    match unknown_element(document, |path| operation.has_element(path)) {
        None => Ok(()),
        Some(path) => {
            let message = format!("{} does not support the element {path}; remove it", operation.name);
            Err(GateRefusal::not_implemented(message))
        }
    }
}

/// Checks the elements of a document that is not the body of a request. Errors: as for [`check_elements`].
pub(crate) fn check_elements_of(operation: &str, document: &[u8]) -> Result<(), GateRefusal> {
    TABLE.named(operation).map_or(Ok(()), |operation| check_elements(operation, document))
}

/// Returns the digest of a document.
pub(super) fn digest(algorithm: ChecksumAlgorithm, document: &[u8]) -> Vec<u8> {
    Checksum::of(algorithm, document).value
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the checksum in a head. A head may contain only one checksum.
fn stated(headers: &HeaderMap) -> Result<Option<Checksum>, GateRefusal> {
    crate::s3::stated_checksum(headers).map_err(|text| GateRefusal::bad("InvalidRequest", text))
}

/// Returns the error for a document that was not received completely. The S3 layer would report a server error instead.
fn unreadable(error: &str) -> GateRefusal {
    let is = |known: &str| error.contains(known);
    match error {
        _ if is(STALLED) => GateRefusal::bad("RequestTimeout", STALLED),
        _ if is(BROKEN) => GateRefusal::bad("InvalidArgument", BROKEN),
        _ => GateRefusal::bad(
            "IncompleteBody",
            "the document ended before its announced length; send it again",
        ),
    }
}

/// The body that the S3 layer receives, in one piece and after all checks.
struct VerifiedDocumentBody {
    inner: s3s::Body,
    read: BytesMut,
    claims: DocumentDigests,
    complaint: RequestBodyRefusal,
    is_over: bool,
}

impl VerifiedDocumentBody {
    fn refuse(&mut self, refusal: GateRefusal) -> Box<dyn std::error::Error + Send + Sync> {
        let message = refusal.message.clone();
        // If a reason is already stored, `set` fails and the first reason remains.
        let _ = self.complaint.0.set(refusal);
        message.into()
    }
}

impl Body for VerifiedDocumentBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        while !self.is_over {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)) else {
                self.is_over = true;
                let whole = std::mem::take(&mut self.read).freeze();
                return Poll::Ready(Some(match self.claims.check(&whole) {
                    Ok(()) => Ok(Frame::data(whole)),
                    Err(refusal) => Err(self.refuse(refusal)),
                }));
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(self.refuse(unreadable(&error.to_string())))));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            if self.read.len() + data.len() > DOCUMENT_BYTES_MAX {
                self.is_over = true;
                let message = "the document is larger than 4 MiB; request less at a time";
                let refusal = GateRefusal::bad("MaxMessageLengthExceeded", message);
                return Poll::Ready(Some(Err(self.refuse(refusal))));
            }
            self.read.extend_from_slice(&data);
        }
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
