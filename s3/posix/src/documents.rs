//! Documents of buckets, each a small file in the private area: `document-cors`, `document-tagging`.
//!
//! A document is believed if it is a regular file of no more bytes than a document has and, in a bucket with the sticky
//! bit, if the bucket's owner or root made it. Documents are not cached: each call reads the file.

use std::sync::Arc;

use fordway_store::{Bucket, DocumentKind, Error, ErrorKind, MAX_DOCUMENT_BYTES, Result, check_document};
use fordway_sys::{Errno, Mode, OFlags, file_user};

use crate::Inner;
use crate::area::{not_ours, read_small, remove_if_file};
use crate::errors::from_errno;
use crate::layout::{Place, document_name, join, private_dir};
use crate::stage::Staged;

impl Inner {
    /// Cost: one `openat2`; with a document a read and a few `fstat` more.
    pub(crate) fn document(&self, bucket: &Bucket, kind: &DocumentKind) -> Result<Option<Vec<u8>>> {
        let path = join(&private_dir(bucket), &document_name(kind));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let failed = |errno| from_errno(errno, "reading the document");
        let file = match self.root.open_beneath(&path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return self.require_bucket(bucket).map(|()| None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(not_ours(&path, "is no regular file")),
            Err(errno) => return Err(failed(errno)),
        };
        let Some((document, state)) = read_small(&file, MAX_DOCUMENT_BYTES).map_err(failed)? else {
            return Err(not_ours(&path, "is no small regular file"));
        };
        match self.guard_now(bucket)? {
            Some(guard) if !guard.trusts(state.user) => {
                Err(not_ours(&path, &format!("belongs to the user with the id {}", state.user)))
            }
            _ => Ok(Some(document)),
        }
    }

    pub(crate) fn set_document(
        self: &Arc<Self>,
        bucket: &Bucket,
        kind: &DocumentKind,
        document: &[u8],
    ) -> Result<()> {
        check_document(document)?;
        self.require_bucket(bucket)?;
        self.check_decides(bucket, "has documents")?;
        let place = Place { dir: private_dir(bucket).into(), name: document_name(kind).into() };
        let mut staged = Staged::at(self, bucket, place)?;
        staged.write(document)?;
        staged.publish_private()
    }

    pub(crate) fn delete_document(&self, bucket: &Bucket, kind: &DocumentKind) -> Result<()> {
        self.require_bucket(bucket)?;
        self.check_decides(bucket, "has documents")?;
        let private = match self.open_dir(&private_dir(bucket)) {
            Ok(private) => private,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(from_errno(errno, "opening .fordway")),
        };
        remove_if_file(&private, &document_name(kind))
            .map_err(|errno| from_errno(errno, "removing the document"))
    }

    /// Errors: `AccessDenied` for a user who may not say for all writers of a bucket what `what` names.
    pub(crate) fn check_decides(&self, bucket: &Bucket, what: &str) -> Result<()> {
        match self.guard_now(bucket)? {
            Some(guard) if !guard.trusts(file_user()) => {
                let why =
                    format!("the bucket has the sticky bit, so its owner alone decides whether it {what}");
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
            _ => Ok(()),
        }
    }
}
