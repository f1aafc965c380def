//! The lanes of a comparison, each with what it needs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fordway_http::Version;
use fordway_measure::Lane;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, Result};
use fordway_workload::{DelayLog, DelayTarget, PosixTarget, StoreTarget, Sync, Target};

use crate::args::{CompareArgs, LaneArg};
use crate::commands::gateway::GatewayProcess;
use fordway_command::file_error;

/// The delay that `--check-instrument` injects.
const DELAY: Duration = Duration::from_millis(1);

/// All lanes, open.
pub(super) struct Lanes {
    targets: Vec<Box<dyn Target>>,
    delays: Option<DelayLog>,
    /// Those that were started, by the lane they are for.
    gateways: Vec<(LaneArg, GatewayProcess)>,
}

impl Lanes {
    /// Opens the lanes that `args` ask for in the empty directory `place`.
    pub(super) fn open(args: &CompareArgs, place: &Path) -> Result<Self> {
        let mut lanes = Lanes { targets: Vec::new(), delays: None, gateways: Vec::new() };
        let mut asked: Vec<LaneArg> = Vec::new();
        for lane in &args.lanes {
            if !asked.contains(lane) {
                asked.push(*lane);
            }
        }
        let root = place.join("s3");
        std::fs::create_dir(&root).map_err(|error| file_error("making", root.display(), error))?;
        for lane in &asked {
            let target = lanes.target(*lane, lane_name(*lane), args, place, &root)?;
            lanes.targets.push(target);
        }
        if let (true, Some(first)) = (args.check_instrument, asked.first()) {
            let within = lanes.target(*first, "instrument-check", args, place, &root)?;
            let delayed = DelayTarget::new(within, DELAY);
            lanes.delays = Some(delayed.log());
            lanes.targets.push(Box::new(delayed));
        }
        Ok(lanes)
    }

    fn target(
        &mut self,
        lane: LaneArg,
        place_name: &str,
        args: &CompareArgs,
        place: &Path,
        root: &Path,
    ) -> Result<Box<dyn Target>> {
        let durability: Durability = args.durability.into();
        let bucket = Bucket::new(place_name)?;
        match lane {
            LaneArg::Posix => Ok(Box::new(PosixTarget::new(&place.join(place_name), waits_for(durability))?)),
            LaneArg::Embedded => {
                let config =
                    PosixConfig { etag_policy: args.etag.into(), durability, ..PosixConfig::default() };
                let store = PosixStore::open(root, config)?;
                let lane = described(lane, "S3 semantics as POSIX calls in this process: no server, no copy");
                Ok(Box::new(StoreTarget::new(lane, Arc::new(store), bucket, None)?))
            }
            LaneArg::Node => {
                let gateway = self.gateway(lane, args, root)?;
                let lane = described(
                    lane,
                    "messages over a Unix socket to a gateway process on the same directory, descriptors of large files",
                );
                Ok(Box::new(StoreTarget::new(lane, gateway.client()?, bucket, Some(gateway.pid()))?))
            }
            LaneArg::Http | LaneArg::Https | LaneArg::Http2 => {
                let gateway = self.gateway(lane, args, root)?;
                let protocol = match lane {
                    LaneArg::Https => "HTTP/1.1 and TLS",
                    LaneArg::Http2 => "HTTP/2",
                    _ => "HTTP/1.1",
                };
                let description =
                    format!("S3 REST over {protocol} on loopback to a gateway process on the same directory");
                let lane = described(lane, &description);
                Ok(Box::new(StoreTarget::new(lane, gateway.client()?, bucket, Some(gateway.pid()))?))
            }
        }
    }

    /// The gateway of `lane`, started when it is first asked for.
    fn gateway(&mut self, lane: LaneArg, args: &CompareArgs, root: &Path) -> Result<&GatewayProcess> {
        let known = self.gateways.iter().position(|(of, _)| *of == lane);
        let at = match known {
            Some(at) => at,
            None => {
                let (etag, durability) = (args.etag.into(), args.durability.into());
                let gateway = match lane {
                    LaneArg::Node => GatewayProcess::start_node(root, etag, durability)?,
                    LaneArg::Https => GatewayProcess::start_tls(root, etag, durability)?,
                    LaneArg::Http2 => GatewayProcess::start(root, etag, durability)?.asked_in(Version::Http2),
                    _ => GatewayProcess::start(root, etag, durability)?,
                };
                self.gateways.push((lane, gateway));
                self.gateways.len() - 1
            }
        };
        Ok(&self.gateways[at].1)
    }

    pub(super) fn targets(&self) -> &[Box<dyn Target>] {
        &self.targets
    }

    pub(super) fn descriptions(&self) -> Vec<Lane> {
        self.targets.iter().map(|target| target.lane().clone()).collect()
    }

    /// The mean of the injected delays, where there were any.
    pub(super) fn mean_slept_ns(&self) -> Option<f64> {
        self.delays.as_ref().and_then(DelayLog::mean_ns)
    }

    /// Removes what the lanes made, buckets first, and ends the gateways.
    pub(super) fn close(self) -> Result<()> {
        for target in &self.targets {
            target.clean_up()?;
        }
        self.gateways.into_iter().try_for_each(|(_, gateway)| gateway.stop())
    }
}

fn waits_for(durability: Durability) -> Sync {
    match durability {
        Durability::None => Sync::Nothing,
        Durability::Data => Sync::Content,
        Durability::Full => Sync::ContentAndName,
    }
}

fn lane_name(lane: LaneArg) -> &'static str {
    match lane {
        LaneArg::Posix => "posix",
        LaneArg::Embedded => "embedded",
        LaneArg::Node => "node",
        LaneArg::Http => "http",
        LaneArg::Https => "https",
        LaneArg::Http2 => "http2",
    }
}

fn described(lane: LaneArg, description: &str) -> Lane {
    Lane { name: lane_name(lane).to_owned(), description: description.to_owned() }
}
