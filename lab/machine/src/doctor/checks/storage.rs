//! What peripherals there are for programs that do much I/O.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::Tree;

const BLOCK: &str = "sys/block";

pub(super) fn disks(tree: &Tree) -> Answer {
    let is_disk = |name: &String| tree.link(&format!("{BLOCK}/{name}/device")).is_ok();
    let names: Vec<_> = tree.names(BLOCK)?.into_iter().filter(is_disk).collect();
    let turns =
        |name: &&String| tree.read(&format!("{BLOCK}/{name}/queue/rotational")).is_ok_and(|flag| flag == "1");
    // Virtual disks say that they turn, whatever is behind.
    let is_virtual = |name: &&String| name.starts_with("vd") || name.starts_with("xvd");
    let turning: Vec<_> =
        names.iter().filter(|name| !is_virtual(name)).filter(turns).map(String::as_str).collect();
    let is_own = |name: &&String| name.starts_with("nvme");
    let own: Vec<_> = names.iter().filter(is_own).map(String::as_str).collect();
    Ok(match (own.is_empty(), turning.is_empty()) {
        (false, _) => Said::ok(format!("{}: NVMe", own.join(", "))),
        (true, false) => Said::costs(
            format!("{}: turning disks", turning.join(", ")),
            "send jobs that do much I/O to nodes with NVMe (sbatch --constraint, a node selector)",
        ),
        (true, true) if names.is_empty() => Said::cannot_see(
            "no disk is seen: files are on a network, or the disks are not shown here",
            "measure: fordway machines probe --disk DIR",
        ),
        (true, true) => Said::cannot_see(
            format!("{}: what is behind does not show", names.join(", ")),
            "measure: fordway machines probe --disk DIR",
        ),
    })
}
