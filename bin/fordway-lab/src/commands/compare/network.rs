//! The emulated link of a comparison. The measuring process moves into the network at the near end of the link, and
//! starts the gateways of the HTTP lanes in the network at the far end.

use fordway_netlab::setup::NetworkEndpoint;
use fordway_netlab::{LabConfig, LinkConfig, LinkStats, NetworkLab, SERVER_ADDRESS};
use fordway_store::{Error, ErrorKind, Result};

use serde_json::{Map, Value};

use crate::args::{LinkArg, TargetArg};

/// The maximum size of TCP's buffers, as in `netlab`: large enough for any bandwidth-delay product that can be
/// emulated.
const TCP_BUFFER_BYTES: u64 = 64 << 20;

/// Creates the link, and moves the calling thread into the near network. Threads that the calling thread starts later
/// are also in that network. Errors: `InvalidArgument` if a service could not be reached from there; errors of creating
/// the networks.
pub(super) fn enter(link: &LinkArg, targets: &[TargetArg]) -> Result<NetworkLab> {
    // Sockets of the node gateway and directories are reached by their paths from every network.
    let is_remote =
        |target: &&TargetArg| ["http", "tcp"].iter().any(|scheme| target.endpoint.starts_with(scheme));
    if let Some(target) = targets.iter().find(is_remote) {
        let why = format!(
            "--target {target}: the network of --link contains only the gateways that this command starts; measure the \
             service without --link, or run both with `fordway netlab --server`"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let emulated = LinkConfig {
        rtt: link.rtt,
        rate_bits_per_s: link.rate_bits_per_s,
        loss: link.loss,
        seed: 1,
        ..LinkConfig::default()
    };
    let lab = NetworkLab::new(&LabConfig {
        link: Some(emulated),
        tcp_buffer_bytes: Some(TCP_BUFFER_BYTES),
        congestion_control: link.congestion.clone(),
    })?;
    lab.client.enter()?;
    Ok(lab)
}

/// Returns the end of the link at which the gateways run.
pub(super) fn far_end(lab: &NetworkLab) -> Result<NetworkEndpoint> {
    let address = SERVER_ADDRESS.parse().map_err(|error| {
        Error::new(ErrorKind::Internal, "the address of the emulated link is invalid").caused_by(error)
    })?;
    Ok(NetworkEndpoint { network: lab.server.clone(), address })
}

/// Adds the TCP parameters and the counters of the link to the parameters of a run.
pub(super) fn describe(lab: &NetworkLab, parameters: &mut Map<String, Value>) -> Result<()> {
    for (name, value) in lab.settings()? {
        let name = name.rsplit('/').next().unwrap_or(name);
        parameters.insert(format!("link_{name}"), value.into());
    }
    if let Some(LinkStats { there, back, .. }) = lab.stats() {
        let dropped = there.dropped_by_queue + back.dropped_by_queue;
        parameters.insert("link_packets".into(), (there.packets + back.packets).into());
        parameters.insert("link_packets_dropped_by_queue".into(), dropped.into());
        parameters.insert("link_packets_lost".into(), (there.lost + back.lost).into());
    }
    Ok(())
}
