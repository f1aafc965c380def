//! The content of a form's file as the body of an upload, passed on as it arrives.

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fordway_wire::form_data::{FormError, FormFileScanner};
use http::StatusCode;
use http_body::{Body, Frame};

use crate::message::composed;
use crate::s3::error::S3Failure;

type FormBodyError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why the file of a form is refused. The reason is set while the body is read. A body's error can contain
/// only a message, so the complete error is stored in this type.
#[derive(Clone, Default)]
pub(super) struct FileRefusalReason(Arc<Mutex<Option<S3Failure>>>);

impl FileRefusalReason {
    /// Returns the reason, or `None` if the file is not refused.
    pub(super) fn take(&self) -> Option<S3Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn refuse(&self, failure: S3Failure) -> FormBodyError {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        "the form is refused".into()
    }
}

/// A body that yields the content of a form's file. Reading the body fails if the form is incomplete, or if the policy
/// does not allow the size of the file. The rest of the form is read and ignored.
pub(super) struct FileBody {
    inner: s3s::Body,
    reader: FormFileScanner,
    /// Bytes of the form that have arrived but have not been parsed.
    at_hand: Option<Bytes>,
    /// The content of the next frame.
    next: Option<Bytes>,
    sizes: RangeInclusive<u64>,
    received: u64,
    complaint: FileRefusalReason,
}

impl FileBody {
    /// Creates the body of a file whose first bytes are `start`. `sizes` are the allowed sizes in bytes.
    pub(super) fn new(
        boundary: &str,
        start: Bytes,
        inner: s3s::Body,
        sizes: RangeInclusive<u64>,
    ) -> (Self, FileRefusalReason) {
        let complaint = FileRefusalReason::default();
        let reader = FormFileScanner::new(boundary);
        let (at_hand, given) = (Some(start), complaint.clone());
        (FileBody { inner, reader, at_hand, next: None, sizes, received: 0, complaint }, given)
    }

    /// Finds the content in a piece of the form.
    fn read(&mut self, piece: &Bytes) -> Result<(), FormBodyError> {
        let found = self.reader.read(piece);
        let found = found.map_err(|error| self.complaint.refuse(super::refused(error)))?;
        let content = piece.slice(found.content);
        self.received += found.held as u64 + content.len() as u64;
        let held = &self.reader.held()[..found.held];
        self.next = match (held.is_empty(), content.is_empty()) {
            (true, true) => None,
            (true, false) => Some(content),
            // The scanner keeps bytes for the next piece only if the end of a piece could be the start of the boundary.
            (false, _) => Some([held, &content[..]].concat().into()),
        };
        // A file that is too large is not stored, but its bytes are counted to the end, because the error contains the
        // size.
        if self.received > *self.sizes.end() {
            self.next = None;
        }
        Ok(())
    }

    /// Checks, at the end of the body, that the form is complete and that the policy allows the size of the file.
    /// Errors: `MalformedPOSTRequest`, `EntityTooLarge`, `EntityTooSmall`.
    fn check_end(&self) -> Result<(), FormBodyError> {
        let size = |code, words, limit, bytes: u64| {
            let (received, bytes) = (self.received.to_string(), bytes.to_string());
            let text = composed(
                words,
                "the policy limits the size",
                &[("ProposedSize", &received), (limit, &bytes)],
            );
            Err(self.complaint.refuse(S3Failure::new(code, StatusCode::BAD_REQUEST, text)))
        };
        let (min, max) = (*self.sizes.start(), *self.sizes.end());
        match self.received {
            _ if !self.reader.is_over() => {
                let why = "the body ends before the boundary after its file; send all of it";
                Err(self.complaint.refuse(super::refused(FormError::Malformed(why))))
            }
            received if received > max => size("EntityTooLarge", TOO_LARGE, "MaxSizeAllowed", max),
            received if received < min => size("EntityTooSmall", TOO_SMALL, "MinSizeAllowed", min),
            _ => Ok(()),
        }
    }
}

const TOO_LARGE: &str = "Your proposed upload exceeds the maximum allowed object size.";
const TOO_SMALL: &str = "Your proposed upload is smaller than the minimum allowed size";

impl Body for FileBody {
    type Data = Bytes;
    type Error = FormBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, FormBodyError>>> {
        loop {
            if let Some(content) = self.next.take() {
                return Poll::Ready(Some(Ok(Frame::data(content))));
            }
            let piece = match self.at_hand.take() {
                Some(piece) => piece,
                None => match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                    Some(frame) => match frame?.into_data() {
                        Ok(piece) => piece,
                        Err(_) => continue,
                    },
                    None => return Poll::Ready(self.check_end().err().map(Err)),
                },
            };
            self.read(&piece)?;
        }
    }
}
