//! What the gateway's S3 layer does to a request: reading it, checking its signature, writing the answer's head.

use std::sync::Arc;

use fordway_serve::{Identity, S3Layer, Users};
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, Key, MemoryStore, Objects, PutOptions, Result};
use fordway_workload::ledger::Rung;
use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};

use super::request::{S3Request, fields};
use super::{Contents, Operation, failed};

/// A request without content answered in memory, over a store that does next to nothing.
pub(in super::super) struct Layer {
    layer: S3Layer,
    runtime: Runtime,
    request: S3Request,
    signed: Request<()>,
    /// What the next operation asks, and what the last was answered.
    next: Option<Request<()>>,
    answered: Response<()>,
}

impl Layer {
    pub(in super::super) fn new(operation: Operation, bucket: &Bucket, contents: &Contents) -> Result<Self> {
        let identity = Identity::generate()?;
        let store = MemoryStore::new(ETagPolicy::Fast);
        store.create_bucket(bucket)?;
        store.put(bucket, &Key::new(operation.name(0))?, &[], &PutOptions::default())?;
        let layer = S3Layer::new(Users::one(identity.clone(), Arc::new(store)));
        let request = S3Request::new(operation, "127.0.0.1:9000", &identity, bucket, contents);
        let runtime = Builder::new_current_thread().build().map_err(failed)?;
        let (signed, answered) = (Request::default(), Response::default());
        Ok(Layer { layer, runtime, request, signed, next: None, answered })
    }
}

impl Rung for Layer {
    /// Of no size: content goes past the layer.
    fn prepare(&mut self, _: u64) -> Result<()> {
        let mut request = Request::builder().method(self.request.method()).uri(self.request.asked(0).path);
        for (name, value) in fields(&self.request.head(0)) {
            request = request.header(name, value);
        }
        self.signed = request.body(()).map_err(failed)?;
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        self.next = Some(self.signed.clone());
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let request = self.next.take().unwrap_or_else(|| self.signed.clone());
        self.answered = self.runtime.block_on(self.layer.answer(request));
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.answered.status().is_success() {
            true => Ok(()),
            false => {
                let detail = format!("the S3 layer answered {}", self.answered.status());
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }
}
