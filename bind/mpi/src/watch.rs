//! Observes the nodes of an MPI job. On each node, one rank observes the machine for all ranks of the node.

use fordway_machine::MachineWatch;
use fordway_measure::RunReliabilityReport;
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::{RankTeam, WorkloadRank};

use crate::team::MpiTeam;

/// The observation of the nodes of a job, as seen by one rank.
pub(crate) struct NodeWatch {
    node: String,
    /// The observation of this rank's node; `None` if another rank observes the node.
    own: Option<MachineWatch>,
}

impl NodeWatch {
    /// Starts to observe all nodes. All ranks call this function, and get the same result. With `has_unknown_servers`,
    /// CPU time that other processes use during the run is ignored. Errors: `Unavailable` if a node is too busy to
    /// measure, unless `is_forced`.
    pub(crate) fn start(
        (crew, team): (&WorkloadRank, &MpiTeam),
        is_forced: bool,
        has_unknown_servers: bool,
    ) -> Result<Self> {
        let node = node();
        let told = team.all_gather(format!("{} {node}", std::process::id()).into_bytes())?;
        let ranks: Vec<Option<u32>> = told.iter().map(|told| process_on(&node, told)).collect();
        let is_observer = ranks.iter().position(Option::is_some) == Some(team.rank());
        let started = match is_observer {
            true => {
                MachineWatch::start(&ranks.into_iter().flatten().collect::<Vec<_>>(), is_forced).map(Some)
            }
            false => Ok(None),
        };
        team.wait_idly();
        let (own, outcome) = match started {
            Ok(own) => (own, Ok(())),
            Err(error) => (None, Err(Error::new(error.kind(), format!("node {node}: {error}")))),
        };
        crew.agree(outcome)?;
        let own = own.map(|own| if has_unknown_servers { own.beside_unknown_servers() } else { own });
        Ok(NodeWatch { node, own })
    }

    /// Ends the observation. All ranks call this function. Rank 0 gets the conditions of all nodes, and the other ranks
    /// get nothing.
    pub(crate) fn conditions(self, team: &MpiTeam) -> Result<Option<RunReliabilityReport>> {
        let own = self.own.map(|own| (self.node, own.conditions()));
        team.wait_idly();
        let text = serde_json::to_vec(&own)
            .map_err(|error| Error::new(ErrorKind::Internal, "the conditions of a node").caused_by(error))?;
        let told = team.gather(text)?;
        let report = |text: &Vec<u8>| -> Option<(String, RunReliabilityReport)> {
            serde_json::from_slice(text).unwrap_or_default()
        };
        Ok((team.rank() == 0).then(|| RunReliabilityReport::of_nodes(told.iter().filter_map(report))))
    }
}

/// Returns the name of this node. Containers on one host have different names.
fn node() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the process that `told` names, if this process runs on `node`.
fn process_on(node: &str, told: &[u8]) -> Option<u32> {
    let told = String::from_utf8_lossy(told);
    let (process, theirs) = told.split_once(' ')?;
    process.parse().ok().filter(|_| theirs == node)
}
