//! The ranks of an MPI job as a team.

use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::RankTeam;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};

/// All processes of a job. If a process dies, MPI terminates the others, so nothing here waits for a dead process.
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
}

/// Converts a length to the 32-bit integer that MPI uses for counts.
fn count(len: usize) -> Result<i32> {
    i32::try_from(len).map_err(|_| {
        let why = format!("MPI does not support messages of {len} bytes; use fewer ranks");
        Error::new(ErrorKind::EntityTooLarge, why)
    })
}

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
        let mut counts = vec![0i32; self.size()];
        self.world.all_gather_into(&count(mine.len())?, &mut counts[..]);
        let mut starts = vec![0i32; self.size()];
        let mut total = 0usize;
        for (start, len) in starts.iter_mut().zip(&counts) {
            *start = count(total)?;
            total += *len as usize;
        }
        let mut joined = vec![0u8; total];
        let mut parts = PartitionMut::new(&mut joined[..], &counts[..], &starts[..]);
        self.world.all_gather_varcount_into(&mine[..], &mut parts);
        let part = |(start, len): (&i32, &i32)| joined[*start as usize..(*start + *len) as usize].to_vec();
        Ok(starts.iter().zip(&counts).map(part).collect())
    }

    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        // Use one message per rank, because the data of all ranks together may exceed the maximum count of a single
        // receive.
        count(mine.len())?;
        if self.rank() > 0 {
            self.world.process_at_rank(0).send(&mine[..]);
            return Ok(Vec::new());
        }
        let others =
            (1..self.world.size()).map(|rank| self.world.process_at_rank(rank).receive_vec::<u8>().0);
        Ok(std::iter::once(mine).chain(others).collect())
    }

    fn broadcast(&self, mut mine: Vec<u8>) -> Result<Vec<u8>> {
        let root = self.world.process_at_rank(0);
        let mut len = mine.len() as u64;
        root.broadcast_into(&mut len);
        mine.resize(count(len as usize)? as usize, 0);
        root.broadcast_into(&mut mine[..]);
        Ok(mine)
    }

    fn max(&self, mine: u64) -> Result<u64> {
        Ok(self.reduce(mine, SystemOperation::max()))
    }

    fn sum(&self, mine: u64) -> Result<u64> {
        Ok(self.reduce(mine, SystemOperation::sum()))
    }
}
