//! The lanes of a comparison, and the gateways that serve them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use fordway_command::file_error;
use fordway_http::HttpVersion;
use fordway_machine::MachineWatch;
use fordway_measure::RowDescription;
use fordway_netlab::setup::NetworkEndpoint;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, Result};
use fordway_workload::{
    DelayInjectingTarget, InjectedDelayCounter, MeasuredTarget, PosixTarget, ServerPid, StoreTarget,
    SyncLevel,
};

use crate::args::{CompareArgs, LaneArg, TargetArg};
use crate::commands::gateway::{GatewayProcess, RestTransport};

/// The delay that `--check-instrument` injects.
const DELAY: Duration = Duration::from_millis(1);

/// Where the lanes work, and with which options.
pub(super) struct LaneSite<'s> {
    pub args: &'s CompareArgs,
    /// An empty directory on the file system under test.
    pub place: &'s Path,
    /// The end of the link at which the gateways of the HTTP lanes run; `None` for the loopback interface.
    pub far: Option<NetworkEndpoint>,
}

impl LaneSite<'_> {
    /// Returns the directory that all lanes with buckets share.
    fn root(&self) -> PathBuf {
        self.place.join("s3")
    }

    fn durability(&self) -> Durability {
        self.args.durability.into()
    }

    fn start(&self, transport: RestTransport) -> Result<GatewayProcess> {
        let (root, etag) = (self.root(), self.args.etag.into());
        GatewayProcess::start_rest(transport, self.far.as_ref(), &root, etag, self.durability())
    }
}

/// How a lane reaches the objects.
enum LaneAccess {
    /// Plain files, without a store.
    Files,
    /// A store in this process.
    InProcess,
    /// A gateway of the node lane.
    Node,
    /// A gateway that serves S3 over HTTP.
    Rest(RestTransport),
}

impl LaneAccess {
    fn of(lane: LaneArg) -> Self {
        let rest = |version, has_tls| LaneAccess::Rest(RestTransport { version, has_tls });
        match lane {
            LaneArg::Posix => LaneAccess::Files,
            LaneArg::Embedded => LaneAccess::InProcess,
            LaneArg::Node => LaneAccess::Node,
            LaneArg::Http => rest(HttpVersion::Http1, false),
            LaneArg::Https => rest(HttpVersion::Http1, true),
            LaneArg::Http2 => rest(HttpVersion::Http2, false),
            #[cfg(feature = "http3")]
            LaneArg::Http3 => rest(HttpVersion::Http3, true),
        }
    }
}

/// The opened lanes and services, and the gateways that serve the lanes.
#[derive(Default)]
pub(super) struct ComparedLanes {
    targets: Vec<Box<dyn MeasuredTarget>>,
    delays: Option<InjectedDelayCounter>,
    gateways: LaneGateways,
}

/// The gateways that were started.
#[derive(Default)]
pub(super) struct LaneGateways(Vec<LaneGateway>);

/// A gateway, and the lane that it serves.
struct LaneGateway {
    lane: LaneArg,
    process: GatewayProcess,
    pid: ServerPid,
}

impl LaneGateways {
    /// Restarts every gateway. Errors: the first error, after which the remaining gateways are not restarted.
    pub(super) fn start_again(&mut self) -> Result<()> {
        for gateway in &mut self.0 {
            gateway.process.start_again()?;
            gateway.pid.set(gateway.process.pid());
        }
        Ok(())
    }
}

/// The services that have separate rows, and the function that opens a service.
pub(super) type ComparedServices<'s> =
    (&'s [TargetArg], &'s dyn Fn(&TargetArg) -> Result<Box<dyn MeasuredTarget>>);

impl ComparedLanes {
    /// Opens `services`, and the lanes of `site`. Calls `watch` after opening the services, so that an unusable service
    /// is reported before the machine is judged. The lanes are opened after that call, because opening them starts
    /// their gateways. On errors, removes everything that was created.
    pub(super) fn open(
        site: &LaneSite,
        services: ComparedServices,
        watch: impl FnOnce() -> Result<MachineWatch>,
    ) -> Result<(Self, MachineWatch)> {
        let mut lanes = ComparedLanes::default();
        let opened = lanes.add_services(services).and_then(|()| {
            let watch = watch()?;
            lanes.add_own(site).map(|()| watch)
        });
        match opened {
            Ok(watch) => Ok((lanes, watch)),
            Err(error) => {
                // Ignore errors of the clean-up, and return the error that made the clean-up necessary.
                let _ = lanes.close();
                Err(error)
            }
        }
    }

    fn add_services(&mut self, (services, open): ComparedServices) -> Result<()> {
        for service in services {
            self.targets.push(open(service)?);
        }
        Ok(())
    }

    fn add_own(&mut self, site: &LaneSite) -> Result<()> {
        let mut asked: Vec<LaneArg> = Vec::new();
        for lane in &site.args.lanes {
            if !asked.contains(lane) {
                asked.push(*lane);
            }
        }
        let root = site.root();
        std::fs::create_dir(&root).map_err(|error| file_error("creating", root.display(), error))?;
        for (at, lane) in asked.iter().enumerate() {
            let target = self.target(*lane, &lane_name(*lane), site)?;
            // The rows of Fordway's own lanes come before the rows of services, although services were opened first.
            self.targets.insert(at, target);
        }
        if let (true, Some(first)) = (site.args.check_instrument, asked.first()) {
            let within = self.target(*first, "instrument-check", site)?;
            let delayed = DelayInjectingTarget::new(within, DELAY);
            self.delays = Some(delayed.log());
            self.targets.push(Box::new(delayed));
        }
        Ok(())
    }

    fn target(
        &mut self,
        lane: LaneArg,
        place_name: &str,
        site: &LaneSite,
    ) -> Result<Box<dyn MeasuredTarget>> {
        let bucket = Bucket::new(place_name)?;
        match LaneAccess::of(lane) {
            LaneAccess::Files => {
                let target = PosixTarget::new(&site.place.join(place_name), waits_for(site.durability()))?;
                Ok(Box::new(target))
            }
            LaneAccess::InProcess => {
                let (etag_policy, durability) = (site.args.etag.into(), site.durability());
                let config = PosixConfig { etag_policy, durability, ..PosixConfig::default() };
                let store = PosixStore::open(&site.root(), config)?;
                let lane = described(lane, "S3 semantics as POSIX calls in this process: no server, no copy");
                Ok(Box::new(StoreTarget::new(lane, Arc::new(store), bucket, None)?))
            }
            LaneAccess::Node => {
                let description = "messages over a Unix socket to a gateway process on the same directory, \
                                   descriptors of large files";
                let start =
                    || GatewayProcess::start_node(&site.root(), site.args.etag.into(), site.durability());
                self.served(described(lane, description), bucket, (lane, &start))
            }
            LaneAccess::Rest(transport) => {
                let over = match &site.args.link {
                    Some(link) => format!("over an emulated link ({link})"),
                    None => "on loopback".to_owned(),
                };
                let protocol = transport.words();
                let description =
                    format!("S3 REST over {protocol} {over} to a gateway process on the same directory");
                self.served(described(lane, &description), bucket, (lane, &|| site.start(transport)))
            }
        }
    }

    /// Returns a target that sends requests to the gateway of `lane`. The first call for the lane calls `start`.
    fn served(
        &mut self,
        row: RowDescription,
        bucket: Bucket,
        (lane, start): (LaneArg, &dyn Fn() -> Result<GatewayProcess>),
    ) -> Result<Box<dyn MeasuredTarget>> {
        let gateways = &mut self.gateways.0;
        let known = gateways.iter().position(|gateway| gateway.lane == lane);
        let at = match known {
            Some(at) => at,
            None => {
                let process = start()?;
                let pid = ServerPid::new(process.pid());
                gateways.push(LaneGateway { lane, process, pid });
                gateways.len() - 1
            }
        };
        let LaneGateway { process, pid, .. } = &gateways[at];
        Ok(Box::new(StoreTarget::new(row, process.client()?, bucket, Some(pid.clone()))?))
    }

    /// Returns the targets, and the gateways behind some of them.
    pub(super) fn parts(&mut self) -> (&[Box<dyn MeasuredTarget>], &mut LaneGateways) {
        (&self.targets, &mut self.gateways)
    }

    pub(super) fn descriptions(&self) -> Vec<RowDescription> {
        self.targets.iter().map(|target| target.lane().clone()).collect()
    }

    /// Returns the mean of the injected delays; `None` if no delay was injected.
    pub(super) fn mean_slept_ns(&self) -> Option<f64> {
        self.delays.as_ref().and_then(InjectedDelayCounter::mean_ns)
    }

    /// Removes everything that the lanes created (buckets first), and stops the gateways. Continues after an error.
    /// Errors: the first error.
    pub(super) fn close(self) -> Result<()> {
        let cleaned = self.targets.iter().map(|target| target.clean_up()).fold(Ok(()), Result::and);
        let gateways = self.gateways.0.into_iter();
        let stopped = gateways.map(|gateway| gateway.process.stop()).fold(Ok(()), Result::and);
        cleaned.and(stopped)
    }
}

fn waits_for(durability: Durability) -> SyncLevel {
    match durability {
        Durability::None => SyncLevel::Nothing,
        Durability::Data => SyncLevel::Content,
        Durability::Full => SyncLevel::ContentAndName,
    }
}

/// Returns the name of a lane on the command line.
pub(super) fn lane_name(lane: LaneArg) -> String {
    lane.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn described(lane: LaneArg, description: &str) -> RowDescription {
    RowDescription { name: lane_name(lane), description: description.to_owned() }
}
