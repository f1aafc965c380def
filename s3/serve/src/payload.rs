//! The body of an answer on its way through the S3 layer.

use std::sync::{Arc, Mutex, PoisonError};

use crate::answer::Reply;

/// A body as an extension of the response: the transport sees an open file for what it is.
#[derive(Clone)]
pub(crate) struct Payload(Arc<Mutex<Option<Reply>>>);

impl Payload {
    pub(crate) fn new(reply: Reply) -> Self {
        Payload(Arc::new(Mutex::new(Some(reply))))
    }

    /// The body, for the first who asks.
    pub(crate) fn take(self) -> Option<Reply> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
