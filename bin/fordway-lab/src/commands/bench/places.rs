//! From the places of a command line to sites.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_client::s3::S3Config;
use fordway_measure::Lane;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, Error, ErrorKind, Result, Store};
use fordway_workload::Site;
use fordway_workload::bench::Setting;

use crate::args::{GlobalArgs, RankArgs};
use crate::commands::gateway::GatewayProcess;
use fordway_command::Context;

/// A benchmark that nobody told where to work would make thousands of objects at AWS.
/// Errors: `InvalidArgument` where neither a place nor an endpoint is named.
pub(super) fn check_named(args: &RankArgs, global: &GlobalArgs) -> Result<()> {
    let variable = |name: &str| match name {
        "AWS_PROFILE" if global.profile.is_some() => global.profile.clone(),
        _ => std::env::var(name).ok(),
    };
    if !args.setting.places.is_empty()
        || S3Config::find_endpoint(global.endpoint.as_deref(), &variable)?.is_some()
    {
        return Ok(());
    }
    let why =
        "name where to work: a DIRECTORY, file:///DIRECTORY or http(s)://HOST[:PORT], or set an endpoint";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// All sites, and the gateways that were started for some of them.
#[derive(Default)]
pub(super) struct Places {
    pub(super) sites: Vec<Site>,
    /// The directories, for the description of the machine.
    pub(super) dirs: Vec<PathBuf>,
    gateways: Vec<GatewayProcess>,
}

impl Places {
    /// Opens what `args` ask for. Errors: `InvalidArgument`, and errors of the lanes.
    pub(super) fn open(args: &RankArgs, context: &Context) -> Result<Self> {
        let mut places = Places::default();
        let Setting { places: named, name, .. } = &args.setting;
        for place in named {
            match place.contains("://") {
                true => places.add_store(context.lane_at(place)?.store, place, name, None),
                false => places.add_dir(Path::new(place), args)?,
            }
        }
        if named.is_empty() {
            places.add_store(
                context.store()?,
                "the endpoint of the command line or the environment",
                &args.setting.name,
                None,
            );
        }
        Ok(places)
    }

    fn add_dir(&mut self, dir: &Path, args: &RankArgs) -> Result<()> {
        let dir = dir.canonicalize().ok().filter(|dir| dir.is_dir()).ok_or_else(|| {
            let why = format!("{} is not a directory; name one that is there", dir.display());
            Error::new(ErrorKind::InvalidArgument, why)
        })?;
        self.dirs.push(dir.clone());
        self.sites.push(Site::files(&dir, args.setting.name.clone()));
        if args.all_lanes {
            let name = |lane: &str| Bucket::new(format!("{}-{lane}", args.setting.name));
            let store = PosixStore::open(&dir, PosixConfig::default())?;
            self.add_store(Arc::new(store), "POSIX calls in this process", &name("embedded")?, None);
            let gateway = GatewayProcess::start_node(&dir, ETagPolicy::Fast, Durability::None)?;
            let what = "a gateway process on the same directory, messages over a Unix socket";
            self.add_store(gateway.client()?, what, &name("node")?, Some(gateway.pid()));
            self.gateways.push(gateway);
            let gateway = GatewayProcess::start(&dir, ETagPolicy::Fast, Durability::None)?;
            let what = "a gateway process on the same directory, HTTP/1.1 on loopback";
            self.add_store(gateway.client()?, what, &name("http")?, Some(gateway.pid()));
            self.gateways.push(gateway);
        }
        Ok(())
    }

    fn add_store(&mut self, store: Arc<dyn Store>, behind: &str, name: &Bucket, server_pid: Option<u32>) {
        let lane = store.lane();
        let same = self.sites.iter().filter(|site| site.lane().name.split('-').next() == Some(lane)).count();
        let number = if same == 0 { String::new() } else { format!("-{}", same + 1) };
        let lane = Lane { name: format!("{lane}{number}"), description: format!("S3 on {behind}") };
        self.sites.push(Site::objects(lane, store, name.clone(), server_pid));
    }

    /// Ends the gateways.
    pub(super) fn close(self) -> Result<()> {
        self.gateways.into_iter().try_for_each(GatewayProcess::stop)
    }
}
