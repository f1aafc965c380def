//! How fast small objects come over the lanes that have a gateway.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_posix::Durability;
use fordway_store::{Bucket, ETagPolicy, GetOptions, Key, PutOptions, Result, Store};

use crate::commands::gateway::GatewayProcess;
use fordway_command::Interrupt;

const OBJECT_BYTES: usize = 4 << 10;
/// How long a round is.
const DURATION: Duration = Duration::from_secs(1);
/// GETs between looks at the clock.
const BATCH: usize = 64;

/// A lane's gateway with an object to get.
pub(super) struct Gets {
    store: Arc<dyn Store>,
    bucket: Bucket,
    key: Key,
    // The last to be dropped, after the store's connections.
    _gateway: GatewayProcess,
}

pub(super) const HOW: &str = "GETs of 4 KiB by one thread for 1 s, from a gateway on the directory of --disk";

impl Gets {
    /// Starts a gateway of the node lane in `root`.
    pub(super) fn by_node(root: &Path) -> Result<Self> {
        Self::new(GatewayProcess::start_node(root, ETagPolicy::Fast, Durability::None)?, "machines-node")
    }

    /// Starts a gateway of HTTP in `root`.
    pub(super) fn by_http(root: &Path) -> Result<Self> {
        Self::new(GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)?, "machines-http")
    }

    fn new(gateway: GatewayProcess, bucket: &str) -> Result<Self> {
        let (store, bucket, key) = (gateway.client()?, Bucket::new(bucket)?, Key::new("object")?);
        store.create_bucket(&bucket)?;
        store.put(&bucket, &key, &[7; OBJECT_BYTES], &PutOptions::default())?;
        Ok(Gets { store, bucket, key, _gateway: gateway })
    }

    /// GETs per second.
    pub(super) fn per_s(&self, interrupt: &Interrupt) -> Result<f64> {
        let (options, mut buffer) = (GetOptions::default(), Vec::new());
        let (since, mut done) = (Instant::now(), 0);
        while since.elapsed() < DURATION {
            interrupt.check()?;
            for _ in 0..BATCH {
                self.store.read(&self.bucket, &self.key, &options, &mut buffer)?;
            }
            done += BATCH;
        }
        Ok(done as f64 / since.elapsed().as_secs_f64())
    }
}
