//! What every command is given: a lane, the outside world's streams, and the request to stop.

use std::io::Read;
use std::sync::{Arc, Mutex, OnceLock};

use fordway_http::replicas::MetalinkCache;
use fordway_http::vector::{Options, Session};
use fordway_lanes::Lane;
use fordway_store::{Error, ErrorKind, Result, Store};

use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::web;

/// Opens an endpoint; without one, the command line's or the environment's.
type OpenLane = Box<dyn Fn(Option<&str>) -> Result<Lane> + Send + Sync>;

/// The surroundings of a command. Commands never make lanes or streams themselves.
pub struct Context {
    open_lane: OpenLane,
    opened: Mutex<Option<Lane>>,
    /// Standard output, messages and progress.
    pub output: Output,
    /// The request to stop.
    pub interrupt: Interrupt,
    /// Where descriptions of files with replicas are kept, if anywhere.
    pub metalinks: Option<MetalinkCache>,
    input: Mutex<Option<Box<dyn Read + Send>>>,
    web: OnceLock<Arc<Session>>,
}

impl Context {
    /// Surroundings whose lane is opened by the first command that needs one, so that local work
    /// asks for no endpoint and no credentials.
    pub fn new(
        open_lane: impl Fn(Option<&str>) -> Result<Lane> + Send + Sync + 'static,
        output: Output,
        input: impl Read + Send + 'static,
        interrupt: Interrupt,
    ) -> Self {
        Context {
            open_lane: Box::new(open_lane),
            opened: Mutex::new(None),
            output,
            interrupt,
            metalinks: None,
            input: Mutex::new(Some(Box::new(input))),
            web: OnceLock::new(),
        }
    }

    /// The lane, opened at the first call.
    pub fn lane(&self) -> Result<Lane> {
        let mut opened = self.opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(lane) = &*opened {
            return Ok(lane.clone());
        }
        let lane = (self.open_lane)(None)?;
        tracing::debug!(lane = lane.store.lane(), "opened");
        *opened = Some(lane.clone());
        Ok(lane)
    }

    /// The lane of another endpoint than the command's.
    pub fn lane_at(&self, endpoint: &str) -> Result<Lane> {
        (self.open_lane)(Some(endpoint))
    }

    /// The lane's store.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        Ok(self.lane()?.store)
    }

    /// Connections to web servers, made at the first call.
    pub fn web(&self) -> &Arc<Session> {
        self.web.get_or_init(|| {
            // As many as there are jobs, each of which may read from a server while it writes to it.
            web::session(web::ca_bundle(), Options { connections_per_origin: 2048, ..Options::default() })
        })
    }

    /// Standard input, which can be taken once. Errors: `InvalidArgument` the second time.
    pub fn take_input(&self) -> Result<Box<dyn Read + Send>> {
        let taken = self.input.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        taken.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "standard input (-) can be the source only once")
        })
    }
}
