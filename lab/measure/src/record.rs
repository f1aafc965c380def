//! Raw records: every operation, and every block of operations that one lane ran without interruption.

use std::collections::HashSet;

/// One operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationRecord {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The block's number, from 0 at the start of the run.
    pub block: u32,
    /// The thread that made the call, from 0.
    pub thread: u16,
    /// The start, ns since the start of the run.
    pub start_ns: u64,
    /// The duration of the operation.
    pub duration_ns: u64,
    /// Bytes of content transferred.
    pub bytes: u64,
    /// Whether the operation succeeded and its content was correct.
    pub ok: bool,
    /// The intended start, ns since the start of the run; `None` if it equals the start.
    pub intended_ns: Option<u64>,
    /// The time from the start to the first byte of the response; `None` if it is unknown.
    pub first_byte_ns: Option<u64>,
}

/// A block: operations of one phase on one lane, during which no other lane ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRecord {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The number of the block. Blocks with the same number do the same work on different lanes, one lane after the
    /// other.
    pub block: u32,
    /// The number of operations.
    pub operations: u32,
    /// Bytes of content transferred.
    pub bytes: u64,
    /// The time from the start of the first operation to the end of the last.
    pub elapsed_ns: u64,
    /// CPU time of this process during the block.
    pub client_cpu_ns: u64,
    /// CPU time of the lane's server during the block; `None` if there is no server.
    pub server_cpu_ns: Option<u64>,
}

/// The work of one rank in a phase that all ranks started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRecord {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The rank, from 0.
    pub rank: u32,
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed or returned wrong content.
    pub errors: u64,
    /// Bytes of content transferred.
    pub bytes: u64,
    /// The start of the phase, ns since the start of the run.
    pub start_ns: u64,
    /// The time from the start of the phase until this rank finished, excluding `aside_ns`.
    pub elapsed_ns: u64,
    /// Time spent generating and verifying content.
    pub aside_ns: u64,
    /// CPU time of this rank, including generating and verifying content.
    pub cpu_ns: u64,
}

/// An object in one round of a comparison, with the number of directories on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectDirectoryCounts {
    /// The round, from 0.
    pub round: u16,
    /// The size of the object.
    pub bytes: u64,
    /// The number of directories on the object's path.
    pub directories: u16,
    /// The number of directories on the path that contain no earlier object of this round.
    pub made_directories: u16,
    /// The number of directories on the path that become empty when this object is removed.
    pub emptied_directories: u16,
}

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub struct RunRecords {
    /// Every operation. Within a block, operations are grouped by thread (in a run of ranks, by rank). The operations
    /// of a thread are in the order in which they ended.
    pub operations: Vec<OperationRecord>,
    /// Every block. On each lane, the blocks of a phase are in the order of rounds.
    pub blocks: Vec<BlockRecord>,
    /// Every object of every round, in the order in which each phase processes them; empty if the run has no tree.
    pub objects: Vec<ObjectDirectoryCounts>,
    /// The work of each rank in each phase; empty if the run has no ranks.
    pub ranks: Vec<RankRecord>,
}

impl RunRecords {
    /// Returns the blocks in which an operation failed, each as lane, phase and number of the block. Their times are no
    /// measure of speed, because failing takes less time than working.
    pub fn blocks_with_failures(&self) -> HashSet<(u8, u8, u32)> {
        self.operations.iter().filter(|op| !op.ok).map(|op| (op.lane, op.phase, op.block)).collect()
    }
}

impl RunRecords {
    /// Keeps only the records of the first `rounds` rounds, for example if the next round was interrupted.
    pub fn keep_rounds(&mut self, rounds: u16) {
        self.operations.retain(|operation| operation.round < rounds);
        self.blocks.retain(|block| block.round < rounds);
        self.objects.retain(|object| object.round < rounds);
        self.ranks.retain(|rank| rank.round < rounds);
    }
}
