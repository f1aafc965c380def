//! On which processors the two sides of a round trip run. A rung and the way that it is part of must run
//! alike: to wake a thread on another processor takes several times as long as on one's own, and where
//! the scheduler chooses, it chooses differently for each pair of processes.

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{pin_process, pin_thread};

use super::setup::Ladder;
use crate::args::PlacementArg;

/// Has this thread, and the processes behind the rungs, run where `wanted` says; answers what was done.
/// Errors: `InvalidArgument` where the processors do not suffice.
pub(super) fn place(ladder: &Ladder, wanted: Option<PlacementArg>) -> Result<PlacementArg> {
    let cpus = allowed();
    let (placement, own, others) = match (wanted, cpus.as_slice()) {
        (None | Some(PlacementArg::Apart), [own, other, ..]) => (PlacementArg::Apart, *own, *other),
        (Some(PlacementArg::Together), [own, ..]) => (PlacementArg::Together, *own, *own),
        (None | Some(PlacementArg::Free), _) => return Ok(PlacementArg::Free),
        (Some(_), _) => {
            let why = format!("--placement needs more processors than the {} here", cpus.len());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    };
    let failed = |errno: fordway_sys::Errno| {
        let why = "keeping the two sides to their processors; use --placement free";
        Error::new(ErrorKind::Io, why).caused_by(errno)
    };
    for process in ladder.rungs.iter().filter_map(|rung| rung.rung.server_pid()) {
        pin_process(process, &[others]).map_err(failed)?;
    }
    pin_thread(&[own]).map_err(failed)?;
    Ok(placement)
}

/// The processors that this process may use, as the kernel lists them; none where it does not tell.
fn allowed() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| numbers(list.trim())).unwrap_or_default()
}

/// `0-2,5` is 0, 1, 2 and 5.
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(numbers("3"), [3]);
        assert_eq!(numbers(""), [0usize; 0]);
        assert!(!allowed().is_empty());
    }
}
