//! Implements [`RankTeam`] for the ranks of an MPI job.

use std::time::Duration;

use fordway_store::Result;
use fordway_workload::RankTeam;
use fordway_workload::team::mpi_layout;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};

/// All processes of a job. If a process dies, MPI terminates the other processes, so no method waits for a dead
/// process.
pub(crate) struct MpiTeam {
    world: SimpleCommunicator,
}

impl MpiTeam {
    pub(crate) fn new(world: SimpleCommunicator) -> Self {
        MpiTeam { world }
    }

    fn reduce(&self, mine: u64, operation: SystemOperation) -> u64 {
        let mut all = 0;
        self.world.all_reduce_into(&mine, &mut all, operation);
        all
    }

    /// Waits until all ranks have called this method. Unlike [`barrier`](RankTeam::barrier), waiting takes no CPU time.
    pub(crate) fn wait_idly(&self) {
        let mut request = self.world.immediate_barrier();
        while let Err(unfinished) = request.test() {
            request = unfinished;
            std::thread::sleep(IDLE);
        }
    }

    /// Fills `data`, which has the same length on all ranks, with the data of `rank`.
    fn broadcast_from(&self, rank: i32, data: &mut [u8]) {
        let root = self.world.process_at_rank(rank);
        for message in data.chunks_mut(MESSAGE_BYTES) {
            root.broadcast_into(message);
        }
    }

    /// Returns the data of all ranks. `lens` contains the length of each rank's data. Each rank broadcasts its data
    /// separately, because the count of a single message cannot represent the sum of the lengths.
    fn all_broadcast(&self, mine: &[u8], lens: &[u64]) -> Vec<Vec<u8>> {
        let receive = |(rank, len): (usize, &u64)| {
            let mut data = if rank == self.rank() { mine.to_vec() } else { vec![0; *len as usize] };
            self.broadcast_from(rank as i32, &mut data);
            data
        };
        lens.iter().enumerate().map(receive).collect()
    }
}

/// How often a rank that waits without using CPU time checks whether the other ranks have arrived.
const IDLE: Duration = Duration::from_millis(1);
/// The maximum size of a message, in bytes. MPI counts the bytes of a message in a 32-bit integer.
const MESSAGE_BYTES: usize = 1 << 30;

impl RankTeam for MpiTeam {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn barrier(&self) -> Result<()> {
        self.world.barrier();
        Ok(())
    }

    fn all_gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let mut lens = vec![0u64; self.size()];
        self.world.all_gather_into(&(mine.len() as u64), &mut lens[..]);
        let Some((counts, starts)) = mpi_layout(&lens) else { return Ok(self.all_broadcast(&mine, &lens)) };
        let mut joined = vec![0u8; lens.iter().sum::<u64>() as usize];
        let mut parts = PartitionMut::new(&mut joined[..], &counts[..], &starts[..]);
        self.world.all_gather_varcount_into(&mine[..], &mut parts);
        let part = |(start, len): (&i32, &i32)| joined[*start as usize..][..*len as usize].to_vec();
        Ok(starts.iter().zip(&counts).map(part).collect())
    }

    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        // Each rank sends separate messages, because the data of all ranks may exceed the maximum count of a single
        // receive.
        if self.rank() > 0 {
            let root = self.world.process_at_rank(0);
            root.send(&(mine.len() as u64));
            mine.chunks(MESSAGE_BYTES).for_each(|message| root.send(message));
            return Ok(Vec::new());
        }
        let receive = |rank| {
            let other = self.world.process_at_rank(rank);
            let mut theirs = vec![0u8; other.receive::<u64>().0 as usize];
            for message in theirs.chunks_mut(MESSAGE_BYTES) {
                other.receive_into(message);
            }
            theirs
        };
        Ok(std::iter::once(mine).chain((1..self.world.size()).map(receive)).collect())
    }

    fn broadcast(&self, mut mine: Vec<u8>) -> Result<Vec<u8>> {
        let mut len = mine.len() as u64;
        self.world.process_at_rank(0).broadcast_into(&mut len);
        mine.resize(len as usize, 0);
        self.broadcast_from(0, &mut mine);
        Ok(mine)
    }

    fn max(&self, mine: u64) -> Result<u64> {
        Ok(self.reduce(mine, SystemOperation::max()))
    }

    fn sum(&self, mine: u64) -> Result<u64> {
        Ok(self.reduce(mine, SystemOperation::sum()))
    }
}
