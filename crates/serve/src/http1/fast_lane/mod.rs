//! Reads that need no S3 layer: signed GET and HEAD of an object, or of one range of it, as nearly all
//! clients send them.
//!
//! Nothing is ever refused here. A request is answered if its signature is right and everything about
//! it is plain; whatever else it may be, a bad signature and a missing object included, goes the
//! common way, which answers as if this one were not there.

mod plain;
mod signature;
mod written;

use std::sync::Arc;

use fordway_store::{Bucket, GetOptions, Key, Store};
use http::StatusCode;

use super::head::Head;
use super::outgoing::Outgoing;
use crate::Identity;
use crate::answer::Reply;
use plain::Plain;
use signature::Verifier;

pub(crate) struct FastLane {
    store: Arc<dyn Store>,
    verifier: Verifier,
}

impl FastLane {
    pub(crate) fn new(store: Arc<dyn Store>, identity: Identity) -> Self {
        FastLane { store, verifier: Verifier::new(identity) }
    }

    /// The answer to a plain read; `None` for all else.
    pub(super) fn answer(&self, head: &Head<'_>) -> Option<Outgoing> {
        let plain = Plain::read(head)?;
        if !self.verifier.has_signed(head, &plain) {
            return None;
        }
        let (bucket, key) = plain.names()?;
        match plain.is_head {
            true => self.head(&bucket, &key, &plain),
            false => self.get(&bucket, &key, &plain),
        }
    }

    fn head(&self, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
        let info = self.store.head(bucket, key, &GetOptions::default()).ok()?;
        let range = 0..info.size;
        let head = written::head(StatusCode::OK, &info, &range, plain.wants_checksum)?;
        Some(Outgoing::written(StatusCode::OK, head, Reply::Nothing))
    }

    fn get(&self, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
        let options = GetOptions { range: plain.range, ..Default::default() };
        let object = self.store.get(bucket, key, &options).ok()?;
        let is_partial = options.range.is_some();
        let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let wants_checksum = plain.wants_checksum && !is_partial;
        let head = written::head(status, &object.info, &object.range, wants_checksum)?;
        Some(Outgoing::written(status, head, Reply::Content(object.content)))
    }
}
