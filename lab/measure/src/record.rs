//! Raw records: every operation, and every block of operations that ran without a break on one lane.

/// One operation, as it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationRecord {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The block, counted over the whole run.
    pub block: u32,
    /// The thread that made the call, from 0.
    pub thread: u16,
    /// When it started, ns since the start of the run.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Bytes of content moved.
    pub bytes: u64,
    /// Whether it succeeded and its content was right.
    pub ok: bool,
    /// When it should have started, ns since the start of the run; `None` where that is when it did.
    pub intended_ns: Option<u64>,
    /// From its start to the first byte of the answer; `None` where that is not known.
    pub first_byte_ns: Option<u64>,
}

/// Operations of one phase that ran on one lane while no other lane ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// Index into the run's lanes.
    pub lane: u8,
    /// Index into the run's phases.
    pub phase: u8,
    /// The round, from 0.
    pub round: u16,
    /// The block: equal numbers on different lanes are the same work, done one after the other.
    pub block: u32,
    /// Operations in it.
    pub operations: u32,
    /// Bytes of content moved.
    pub bytes: u64,
    /// From the first start to the last end.
    pub elapsed_ns: u64,
    /// CPU time of this process meanwhile.
    pub client_cpu_ns: u64,
    /// CPU time of the lane's server meanwhile; `None` where there is no server.
    pub server_cpu_ns: Option<u64>,
}

/// What one rank did in one phase that all ranks began together.
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
    /// Operations that failed, or whose content was wrong.
    pub errors: u64,
    /// Bytes of content moved.
    pub bytes: u64,
    /// When the phase began, ns since the start of the run.
    pub start_ns: u64,
    /// From there to this rank's end, without `aside_ns`.
    pub elapsed_ns: u64,
    /// Spent on making and checking content.
    pub aside_ns: u64,
    /// CPU time of this rank, including making and checking content.
    pub cpu_ns: u64,
}

/// One object of one round of a comparison, and what it has to do with directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectDirectories {
    /// The round, from 0.
    pub round: u16,
    /// Its size.
    pub bytes: u64,
    /// Directories that its path goes through.
    pub directories: u16,
    /// Those of them that held no object of this round before it.
    pub made_directories: u16,
    /// Those of them that hold no object once it is removed.
    pub emptied_directories: u16,
}

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub struct RunRecords {
    /// Every operation, in the order of their ends on each lane.
    pub operations: Vec<OperationRecord>,
    /// Every block, in order.
    pub blocks: Vec<BlockRecord>,
    /// Every object of every round, in the order in which each phase takes them; none where a run is of
    /// no tree.
    pub objects: Vec<ObjectDirectories>,
    /// What each rank did in each phase; none where a run has no ranks.
    pub ranks: Vec<RankRecord>,
}
