//! An object's content on its way through the S3 layer.

use std::sync::{Arc, Mutex, PoisonError};

use fordway_store::Content;

/// Content as an extension of the response: the transport sees an open file for what it is.
#[derive(Clone)]
pub(crate) struct Payload(Arc<Mutex<Option<Content>>>);

impl Payload {
    pub(crate) fn new(content: Content) -> Self {
        Payload(Arc::new(Mutex::new(Some(content))))
    }

    /// The content, for the first who asks.
    pub(crate) fn take(self) -> Option<Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
