//! Checks of pressure stall information: how long tasks wait for processors, memory and disks.

use super::DoctorCheckResult;
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile};

/// Checks the share of time in which at least one task waited for a processor.
pub(super) fn processors(tree: &SystemTree) -> DoctorCheckResult {
    let what = "was ready to run but had no processor";
    finding(
        tree,
        "cpu",
        5.0,
        what,
        "do not start more ranks than processors, and keep other jobs off the node",
    )
}

/// Checks the share of time in which at least one task waited for memory, that is, for pages to be freed or read back.
pub(super) fn memory(tree: &SystemTree) -> DoctorCheckResult {
    let what = "waited for memory";
    finding(tree, "memory", 1.0, what, "use less memory on this node, or nodes with more")
}

/// Checks the share of time in which at least one task waited for a disk.
pub(super) fn disks(tree: &SystemTree) -> DoctorCheckResult {
    let what = "waited for a disk";
    finding(
        tree,
        "io",
        10.0,
        what,
        "read and write less often and in larger blocks, or use another file system",
    )
}

/// Returns the finding about the share of the last minute in which at least one task waited for `resource`. At `limit`
/// percent or more, the verdict is `costs`.
fn finding(tree: &SystemTree, resource: &str, limit: f64, what: &str, advice: &str) -> DoctorCheckResult {
    let path = format!("proc/pressure/{resource}");
    let text = tree.read(&path)?;
    let average = text.split_whitespace().find_map(|field| field.strip_prefix("avg60="));
    let share: Option<f64> =
        average.and_then(|value| value.parse().ok()).filter(|share: &f64| share.is_finite());
    let share = share.ok_or_else(|| UnreadableFile::unknown(&path, &text))?;
    let so = format!("during {share:.1} % of the last minute some task {what}");
    let said = if share >= limit { FindingDraft::costs(so, advice) } else { FindingDraft::ok(so) };
    Ok(said.measured("waited in the last minute", share, "%"))
}
