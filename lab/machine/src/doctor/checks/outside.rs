//! What no file of a node says, and what the program itself decides. It is told, so that nobody takes
//! its absence from the list for an "ok".

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::Tree;

/// Where launchers are without a module system.
const LAUNCHERS: [&str; 6] = [
    "usr/bin/mpirun.openmpi",
    "usr/bin/mpirun.mpich",
    "usr/bin/mpirun",
    "usr/local/bin/mpirun",
    "usr/lib64/openmpi/bin/mpirun",
    "opt/amazon/openmpi/bin/mpirun",
];

pub(super) fn mpi(tree: &Tree) -> Answer {
    let found: Vec<_> = LAUNCHERS.into_iter().filter(|path| tree.has(path)).collect();
    Ok(match found.first() {
        Some(path) => Said::ok(format!("there is one: /{path}")),
        None => Said::cannot_see(
            "no MPI where systems put it; a module may bring one",
            "install one (Debian: openmpi-bin), or load its module",
        ),
    })
}

pub(super) fn gang(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "whether the processors of all ranks run at the same time is up to the host and the scheduler of the cluster",
        "Slurm starts all tasks of a job together; on Kubernetes use a PodGroup (--fix kubernetes); on a cloud, dedicated processors",
    ))
}

pub(super) fn placement(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "how many switches are between the nodes of a job, and what else the scheduler knows of them, does not show in a node",
        "ask for nearness: sbatch --switches=1, a cluster placement group, podAffinity; measure: fordway-mpi transport on two nodes",
    ))
}

pub(super) fn problem_size(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "how much a rank computes between two messages is the program's matter; Richter found 100,000 grid points the least",
        "use fewer ranks for small problems",
    ))
}
