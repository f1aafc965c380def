//! Receives the content of an object. If the connection breaks, the missing range is requested again a few times, from
//! the same version of the object.

use std::ops::Range;

use fordway_command::InterruptFlag;
use fordway_http::retry::{RetryBudget, pause};
use fordway_store::{
    Bucket, ByteRange, Conditions, Error, ErrorKind, GetOptions, Key, ObjectContent, ObjectInfo, OpenObject,
    Result, Store, VersionId,
};

use super::upload::replaced;

/// The maximum number of consecutive retries that receive no bytes.
const MAX_RETRIES: u32 = 4;

/// Receives an object version from a store, and retries if the connection breaks.
#[derive(Clone, Copy)]
pub(crate) struct ObjectReceiver<'s> {
    pub(crate) store: &'s dyn Store,
    pub(crate) object: (&'s Bucket, &'s Key),
    pub(crate) version: Option<&'s VersionId>,
    pub(crate) interrupt: &'s InterruptFlag,
}

impl ObjectReceiver<'_> {
    /// Passes each byte of an opened object to `consume` once, in order. Errors: `Unavailable` if the connection breaks
    /// too often; `ConditionalConflict` if the object was replaced in the meantime; `Interrupted`; errors of `consume`.
    pub(crate) fn receive(
        &self,
        opened: OpenObject,
        consume: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let OpenObject { info, range: mut rest, mut content, .. } = opened;
        let mut retries = RetryBudget::new(MAX_RETRIES, None);
        loop {
            let is_stream = matches!(content, ObjectContent::Stream(..));
            let mut has_refused = false;
            let received = content.for_each_chunk(|chunk| {
                consume(chunk).inspect_err(|_| has_refused = true)?;
                rest.start += chunk.len() as u64;
                retries.brought(chunk.len() as u64);
                Ok(())
            });
            let Err(error) = received else { return Ok(()) };
            // After a signal, a wait for content fails like a broken connection.
            self.interrupt.check()?;
            if !is_stream || has_refused || !is_broken(error.kind()) {
                return Err(error);
            }
            let broken = format!("the connection broke with {} bytes to come", rest.end - rest.start);
            tracing::debug!(%error, ?rest, "{broken}");
            let broken = Error::new(ErrorKind::Unavailable, broken).caused_by(error);
            let may_pass = !rest.is_empty() && !info.etag.as_str().is_empty();
            pause(retries.after(broken, may_pass, None)?)?;
            self.interrupt.check()?;
            content = self.open(&info, &rest)?;
        }
    }

    /// Requests `range` of the version that `info` describes.
    fn open(&self, info: &ObjectInfo, range: &Range<u64>) -> Result<ObjectContent> {
        let options = GetOptions {
            range: Some(ByteRange::Inclusive(range.start, range.end - 1)),
            conditions: Conditions::only_if(info.etag.clone()),
            version: self.version.cloned(),
            ..Default::default()
        };
        let object = self.store.get(self.object.0, self.object.1, &options).map_err(replaced)?;
        if object.range != *range || object.info.size != info.size {
            let (got, size) = (&object.range, object.info.size);
            let why = format!("received bytes {got:?} of {size} instead of {range:?} of {}", info.size);
            return Err(Error::new(ErrorKind::BadResponse, why));
        }
        Ok(object.content)
    }
}

/// Returns whether the rest of the content can be requested over another connection.
fn is_broken(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    matches!(kind, K::IncompleteBody | K::Io | K::Timeout | K::Unavailable)
}
