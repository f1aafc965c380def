//! What is varied: connections, load, processors, windows.

use fordway_measure::bytes_text;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{PingpongBenchArgs, PolicyArg};

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) policy: PolicyArg,
    pub(super) concurrency: u16,
    /// Processors for each side; `None` for all.
    pub(super) cores: Option<u16>,
    /// Index into the windows that were asked for.
    pub(super) window: usize,
    /// TCP's first receive window, bytes; `None` for the kernel's.
    pub(super) tcp_rmem_bytes: Option<u64>,
}

impl Point {
    /// How tables call it; what is not varied and not asked for is left out, but never the connections.
    pub(super) fn label(&self) -> String {
        let policy = match self.policy {
            PolicyArg::PerRequest => "per-request",
            PolicyArg::Kept => "kept",
        };
        let cores = self.cores.map(|cores| format!(" cores={cores}")).unwrap_or_default();
        let window = self.tcp_rmem_bytes.map(|bytes| format!(" tcp_rmem={bytes}")).unwrap_or_default();
        format!("{policy} c={}{cores}{window}", self.concurrency)
    }
}

/// The windows that were asked for, or the kernel's.
pub(super) fn windows(args: &PingpongBenchArgs) -> Vec<Option<u64>> {
    match args.tcp_rmem.is_empty() {
        true => vec![None],
        false => args.tcp_rmem.iter().copied().map(Some).collect(),
    }
}

/// All combinations. Errors: `InvalidArgument` for what cannot be.
pub(super) fn points(args: &PingpongBenchArgs, cores: usize) -> Result<Vec<Point>> {
    let refused = |detail: String| Err(Error::new(ErrorKind::InvalidArgument, detail));
    if let Some(too_many) = args.cores.iter().find(|wanted| usize::from(**wanted) > cores) {
        return refused(format!("--cores {too_many} is more than the {cores} that there are"));
    }
    if let Some(small) = args.tcp_rmem.iter().find(|bytes| **bytes < 4096) {
        return refused(format!("--tcp-rmem {} is too small; the least is 4 KiB", bytes_text(*small)));
    }
    let cores: Vec<Option<u16>> = match args.cores.is_empty() {
        true => vec![None],
        false => args.cores.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for (window, tcp_rmem_bytes) in windows(args).into_iter().enumerate() {
        for &cores in &cores {
            for &concurrency in &args.concurrency {
                for &policy in &args.connections {
                    points.push(Point { policy, concurrency, cores, window, tcp_rmem_bytes });
                }
            }
        }
    }
    match u8::try_from(points.len()) {
        Ok(_) => Ok(points),
        Err(_) => refused("there are more than 255 combinations; leave some out".to_owned()),
    }
}
