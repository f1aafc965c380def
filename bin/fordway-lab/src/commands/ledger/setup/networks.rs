//! Ways through networks of their own: what an overlay adds to one that is known.

use fordway_netlab::setup::{Ends, Setup, Wire};
use fordway_posix::Durability;
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};
use fordway_workload::ledger::Path;

use super::super::rungs::round_trip::Tcp;
use super::super::rungs::store::{Get, Objects};
use super::gets::{http_messages, with_get_request};
use super::{Ladder, Site};
use crate::commands::gateway::GatewayProcess;

impl Ladder {
    /// An HTTP get through the network of a set-up. What this machine or this user cannot set up is left
    /// out, and `left_out` says why. Errors: `InvalidArgument` for what is no set-up of networks alone.
    pub(super) fn network(&mut self, setup: &Setup, site: &Site<'_>) -> Result<()> {
        let fordway = std::env::current_exe()
            .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
        // A wire of a cluster takes large pieces, and its cards cut them.
        let wire = Wire { is_offloading: true, ..Wire::default() };
        match Ends::lay(setup, &wire, &fordway) {
            Ok(ends) => self.http_through(setup, ends, site),
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                self.left_out.push(format!("the network {} is left out: {error}", setup.name));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn http_through(&mut self, setup: &Setup, ends: Ends, site: &Site<'_>) -> Result<()> {
        self.embedded_rungs(site)?;
        let request = self.get_request(site)?;
        let trip = format!("tcp round trip, {}", setup.name);
        let description = format!("messages as long as HTTP/1.1's by TCP through: {}", setup.description);
        self.add(&trip, &description, || {
            Ok(Box::new(Tcp::through(&ends, &site.largest, http_messages(request))?))
        })?;
        let whole = format!("http get, {}", setup.name);
        let description = format!("S3 over HTTP/1.1, a gateway process, through: {}", setup.description);
        let gateway = GatewayProcess::start_at(&ends.far, site.root, ETagPolicy::Fast, Durability::None)?;
        let objects = Objects::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(&whole, &description, || {
            Ok(Box::new(Get::new(objects, Some(pid)).from(&ends.near.network)))
        })?;
        self.networks.push(ends);
        self.paths.push(with_get_request(Path::new(&whole), &trip));
        Ok(())
    }
}
