//! The paths through the networks of set-ups, and into containers. These paths show the time that an overlay or a
//! container adds to a path that is also measured without it.

use fordway_netlab::setup::{MachineContainer, NetworkPair, NetworkSetup, WireSettings};
use fordway_posix::Durability;
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};
use fordway_workload::ledger::PathDecomposition;

use super::paths::{http_messages, with_get_request};
use super::{LedgerObjectLocation, PreparedLedgerRun, names};
use crate::args::LedgerPathArg;
use crate::commands::contained::ContainerPlacement;
use crate::commands::gateway::GatewayProcess;
use crate::commands::ledger::components::round_trip::TcpRoundTripComponent;
use crate::commands::ledger::components::storage::{MeasuredObject, ObjectGetComponent};

/// The set-up in which a container uses the network of this machine. `NAME+container` is a container at the far end of
/// the network of the set-up NAME.
const CONTAINER: &str = "container";

/// A set-up to measure: a network, a container, or both.
#[derive(Debug)]
pub(super) struct RequestedNetworkSetup {
    /// The network; `None` for the network of this machine.
    network: Option<NetworkSetup>,
    is_contained: bool,
}

/// Resolves names, so that a mistyped name is reported before anything is measured. Errors: `InvalidArgument` for an
/// unknown name, and for a repeated name, because the names of components contain the names of set-ups.
pub(super) fn chosen(names: &[String]) -> Result<Vec<RequestedNetworkSetup>> {
    let asked = names.iter().map(|name| asked_setup(name)).collect::<Result<Vec<_>>>()?;
    for (at, setup) in asked.iter().enumerate() {
        if asked[..at].iter().any(|other| other.name() == setup.name()) {
            let detail = format!("there are two networks called {:?}; give each only once", setup.name());
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
    }
    Ok(asked)
}

fn asked_setup(name: &str) -> Result<RequestedNetworkSetup> {
    if name == CONTAINER {
        return Ok(RequestedNetworkSetup { network: None, is_contained: true });
    }
    let network = name.strip_suffix(CONTAINER).and_then(|name| name.strip_suffix('+'));
    let is_contained = network.is_some();
    Ok(RequestedNetworkSetup { network: Some(NetworkSetup::load(network.unwrap_or(name))?), is_contained })
}

impl RequestedNetworkSetup {
    fn name(&self) -> String {
        match (&self.network, self.is_contained) {
            (None, _) => CONTAINER.to_owned(),
            (Some(network), false) => network.name.clone(),
            (Some(network), true) => format!("{}+{CONTAINER}", network.name),
        }
    }
}

/// The names of the components with which a get from a container is compared, and the network of the container.
struct ContainerPathComponents<'p> {
    /// The name of the set-up.
    name: String,
    trip: String,
    get: String,
    ends: Option<&'p NetworkPair>,
}

impl PreparedLedgerRun {
    /// Adds HTTP gets through these set-ups. Skips set-ups that this machine or this user cannot bring up, and adds the
    /// reasons to `left_out`. Errors: `InvalidArgument` if a set-up contains anything other than networks.
    pub(super) fn setups(
        &mut self,
        asked: &[RequestedNetworkSetup],
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        for (at, setup) in asked.iter().enumerate() {
            let is_same = |other: &&RequestedNetworkSetup| {
                let name = |setup: &RequestedNetworkSetup| {
                    setup.network.as_ref().map(|network| network.name.clone())
                };
                name(other) == name(setup)
            };
            // Set-ups with the same network share one instance of this network. A set-up with a container then differs
            // from the set-up without a container only in the container.
            if asked[..at].iter().any(|other| is_same(&other)) {
                continue;
            }
            let alike: Vec<&RequestedNetworkSetup> = asked.iter().filter(is_same).collect();
            match &setup.network {
                None => self.machine_container(site)?,
                Some(network) => self.network(network, &alike, site)?,
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, name: &str, error: &Error) {
        self.left_out.push(format!("skipped the network {name}: {error}"));
    }

    fn network(
        &mut self,
        setup: &NetworkSetup,
        asked: &[&RequestedNetworkSetup],
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let fordway = std::env::current_exe()
            .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
        // In a cluster, network cards segment large packets (TSO), so the emulated wire accepts them whole.
        let wire = WireSettings { is_offloading: true, ..WireSettings::default() };
        let ends = match NetworkPair::lay(setup, &wire, &fordway) {
            Ok(ends) => ends,
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                asked.iter().for_each(|asked| self.leave_out(&asked.name(), &error));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.http_through(setup, &ends, site)?;
        if let Some(contained) = asked.iter().find(|asked| asked.is_contained) {
            let path = ContainerPathComponents {
                name: contained.name(),
                trip: format!("tcp round trip, {}", setup.name),
                get: format!("http get, {}", setup.name),
                ends: Some(&ends),
            };
            self.contained(&path, site)?;
        }
        self.networks.push(ends);
        Ok(())
    }

    fn http_through(
        &mut self,
        setup: &NetworkSetup,
        ends: &NetworkPair,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        self.embedded_components(site)?;
        let request = self.get_request(site)?;
        let trip = format!("tcp round trip, {}", setup.name);
        let description = format!("messages as long as HTTP/1.1's, over TCP, through: {}", setup.description);
        self.add(&trip, &description, || {
            Ok(Box::new(TcpRoundTripComponent::through(ends, &site.largest, http_messages(request))?))
        })?;
        let whole = format!("http get, {}", setup.name);
        let description = format!("S3 over HTTP/1.1, a gateway process, through: {}", setup.description);
        let gateway = GatewayProcess::start_at(&ends.far, site.root, ETagPolicy::Fast, Durability::None)?;
        self.get_from(&whole, &description, gateway, Some(ends), site)?;
        self.paths.push(with_get_request(PathDecomposition::new(&whole), &trip));
        Ok(())
    }

    /// Adds a get whose requests are sent from the near end of a network, or from this machine's network.
    fn get_from(
        &mut self,
        name: &str,
        description: &str,
        gateway: GatewayProcess,
        ends: Option<&NetworkPair>,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let objects = MeasuredObject::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(name, description, || {
            let get = ObjectGetComponent::new(objects, Some(pid));
            Ok(Box::new(match ends {
                Some(ends) => get.from(&ends.near.network),
                None => get,
            }))
        })
    }

    /// Adds the get from a gateway in a container that uses this machine's network. For comparison, also adds the get
    /// without a container.
    fn machine_container(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.path(LedgerPathArg::Http, site)?;
        let path = ContainerPathComponents {
            name: CONTAINER.to_owned(),
            trip: names::TCP_ROUND_TRIP.to_owned(),
            get: names::HTTP_GET.to_owned(),
            ends: None,
        };
        self.contained(&path, site)
    }

    /// Adds a get whose gateway runs in a container. Skips the get if the container cannot be started.
    fn contained(
        &mut self,
        path: &ContainerPathComponents<'_>,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        match self.contained_get(path, site) {
            Err(error) if matches!(error.kind(), ErrorKind::NotImplemented | ErrorKind::Unavailable) => {
                self.leave_out(&path.name, &error);
                Ok(())
            }
            added => added,
        }
    }

    /// Adds a get whose gateway runs in a container. Its components are the get without a container, and the time that
    /// the container adds to the round trip. The residual is the time that the container adds outside of the round
    /// trip.
    fn contained_get(
        &mut self,
        path: &ContainerPathComponents<'_>,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let containers = MachineContainer::new()?;
        let place = ContainerPlacement { containers: &containers, far: path.ends.map(|ends| &ends.far) };
        let near = path.ends.map(|ends| &ends.near);
        let messages = http_messages(self.get_request(site)?);
        let trip = TcpRoundTripComponent::contained(place, near, &site.largest, messages)?;
        let gateway = GatewayProcess::start_contained(place, site.root, ETagPolicy::Fast, Durability::None)?;
        let (trip_name, whole) =
            (format!("tcp round trip, {}", path.name), format!("http get, {}", path.name));
        let description = format!("as {}, to a process in a container", path.trip);
        self.add(&trip_name, &description, || Ok(Box::new(trip)))?;
        self.get_from(&whole, &format!("as {}, from a container", path.get), gateway, path.ends, site)?;
        let sum = PathDecomposition::new(&whole).with(&path.get);
        self.paths.push(sum.with_beyond(&trip_name, &path.trip));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Result<Vec<String>> {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        Ok(chosen(&asked)?.iter().map(RequestedNetworkSetup::name).collect())
    }

    #[test]
    fn a_container_has_a_network_of_its_own_or_this_machines() {
        let asked = ["bare", "container", "vxlan+container", "bare+container"];
        assert_eq!(names(&asked).unwrap(), asked);
        for wrong in
            [&["moon+container"][..], &["bare+contaner"], &["+container"], &["container", "container"]]
        {
            assert_eq!(names(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
    }
}
