//! Ranks, which work concurrently, and wait for each other between parts of the work.
//!
//! A workload is written once, for a [`RankTeam`]. The ranks of a team are threads of this process ([`threads`]) or the
//! processes of an MPI job. The `fordway-mpi` crate implements MPI ranks.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, Result};

/// The ranks of a workload, as seen by one rank. Every method except `rank` and `size` is collective: all ranks call
/// it, in the same order. Errors: `Internal` after a rank has ended early, because the other ranks would otherwise wait
/// forever.
pub trait RankTeam {
    /// Returns the number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn size(&self) -> usize;

    /// Waits until all ranks have called this method.
    fn barrier(&self) -> Result<()>;

    /// Returns every rank's `mine`, in the order of ranks.
    fn all_gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// On rank 0, returns every rank's `mine`, in the order of ranks; on the other ranks, returns nothing.
    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Returns rank 0's `mine` on all ranks.
    fn broadcast(&self, mine: Vec<u8>) -> Result<Vec<u8>>;

    /// Returns the largest `mine` of all ranks.
    fn max(&self, mine: u64) -> Result<u64>;

    /// Returns the sum of `mine` over all ranks.
    fn sum(&self, mine: u64) -> Result<u64>;
}

/// Returns the length of each rank's data, and the offset of this data in the data of all ranks, as MPI's signed 32-bit
/// integers. Returns `None` if the total length does not fit into a signed 32-bit integer.
pub fn mpi_layout(lens: &[u64]) -> Option<(Vec<i32>, Vec<i32>)> {
    let mut end = 0i32;
    let place = |len: &u64| {
        let (start, count) = (end, i32::try_from(*len).ok()?);
        end = start.checked_add(count)?;
        Some((count, start))
    };
    lens.iter().map(place).collect()
}

/// Returns the number of processors that the ranks of `team` together may use, over all hosts; `None` if a rank cannot
/// determine its processors. Launchers often bind each rank to its own processors, so the processors of one rank are
/// only a part.
pub fn usable_processors(team: &dyn RankTeam) -> Result<Option<usize>> {
    // Containers on one host have the same boot ID but different host names.
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let cores = fordway_sys::usable_cores().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let told = team.all_gather(format!("{}:{cores}", host.trim()).into_bytes())?;
    Ok(processors_of(told.iter().map(|told| String::from_utf8_lossy(told).into_owned())))
}

/// Counts the distinct processors in strings such as `HOST:0 1 7`; `None` if a string names no host or no processor.
fn processors_of(told: impl Iterator<Item = String>) -> Option<usize> {
    let mut all = HashSet::new();
    for told in told {
        let (host, cores) =
            told.split_once(':').filter(|(host, cores)| !host.is_empty() && !cores.is_empty())?;
        all.extend(cores.split(' ').map(|core| (host.to_owned(), core.to_owned())));
    }
    Some(all.len())
}

/// Runs `work` on `size` ranks (at least 1), with a thread for each rank; returns the results in the order of ranks. If
/// a rank returns an error or panics, the other ranks fail in their next collective call.
pub fn threads<T: Send>(size: usize, work: impl Fn(&dyn RankTeam) -> Result<T> + Sync) -> Vec<Result<T>> {
    let meeting =
        CollectiveRendezvous { size: size.max(1), state: Mutex::default(), changed: Condvar::new() };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..meeting.size)
            .map(|rank| {
                let (meeting, work) = (&meeting, &work);
                scope.spawn(move || {
                    let mut seat = RendezvousParticipant { meeting, rank, done: false };
                    let result = work(&seat);
                    seat.done = result.is_ok();
                    result
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The state that the threads share for collective calls.
struct CollectiveRendezvous {
    size: usize,
    state: Mutex<RendezvousState>,
    changed: Condvar,
}

#[derive(Default)]
struct RendezvousState {
    /// The number of collective calls that are complete.
    round: u64,
    /// The values of the ranks that have arrived, by rank.
    brought: Vec<Option<Vec<u8>>>,
    come: usize,
    /// The values of the last complete call. The next call cannot complete before all ranks have read these values,
    /// because all ranks must first arrive at the next call.
    table: Vec<Vec<u8>>,
    /// The first rank that ended early; `None` if no rank ended early.
    lost: Option<usize>,
}

impl CollectiveRendezvous {
    fn state(&self) -> MutexGuard<'_, RendezvousState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Contributes `mine`, waits until all ranks have arrived, and evaluates all values with `look`.
    fn meet<T>(&self, rank: usize, mine: Vec<u8>, look: impl FnOnce(&[Vec<u8>]) -> T) -> Result<T> {
        let mut state = self.state();
        let round = state.round;
        state.brought.resize(self.size, None);
        state.brought[rank] = Some(mine);
        state.come += 1;
        if state.come == self.size {
            state.table = state.brought.drain(..).map(Option::unwrap_or_default).collect();
            state.come = 0;
            state.round += 1;
            self.changed.notify_all();
        }
        while state.round == round {
            if let Some(lost) = state.lost {
                let why = format!("rank {lost} ended early, so the other ranks cannot go on");
                return Err(Error::new(ErrorKind::Internal, why));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(look(&state.table))
    }
}

struct RendezvousParticipant<'m> {
    meeting: &'m CollectiveRendezvous,
    rank: usize,
    done: bool,
}

impl Drop for RendezvousParticipant<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.meeting.state().lost.get_or_insert(self.rank);
            self.meeting.changed.notify_all();
        }
    }
}

impl RendezvousParticipant<'_> {
    fn reduce(&self, mine: u64, fold: impl Fn(u64, u64) -> u64) -> Result<u64> {
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
        self.meeting
            .meet(self.rank, mine.to_le_bytes().into(), |table| table.iter().map(number).fold(0, fold))
    }
}

impl RankTeam for RendezvousParticipant<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn barrier(&self) -> Result<()> {
        self.meeting.meet(self.rank, Vec::new(), |_| ())
    }

    fn all_gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.meeting.meet(self.rank, mine, <[_]>::to_vec)
    }

    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.meeting.meet(self.rank, mine, |table| if self.rank == 0 { table.to_vec() } else { Vec::new() })
    }

    fn broadcast(&self, mine: Vec<u8>) -> Result<Vec<u8>> {
        self.meeting.meet(self.rank, mine, |table| table[0].clone())
    }

    fn max(&self, mine: u64) -> Result<u64> {
        self.reduce(mine, u64::max)
    }

    fn sum(&self, mine: u64) -> Result<u64> {
        self.reduce(mine, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_all_ranks_on_all_hosts_count_once() {
        let count = |told: &[&str]| processors_of(told.iter().map(|told| (*told).to_owned()));
        assert_eq!(count(&["a:0", "a:1", "b:0", "b:0 1"]), Some(4));
        assert_eq!(count(&["a:0 1", "a:0 1"]), Some(2));
        assert_eq!((count(&["a:0", "a:"]), count(&["a:0", ":1"])), (None, None));
        let of_threads = threads(3, usable_processors);
        let own = Some(fordway_sys::usable_cores().len());
        assert!(of_threads.into_iter().all(|counted| counted.unwrap() == own));
    }

    #[test]
    fn ranks_meet_and_reduce() {
        let found = threads(4, |team| {
            let mut sums = Vec::new();
            for round in 0..200 {
                let mine = (team.rank() as u64 + 1) * round;
                sums.push((team.sum(mine)?, team.max(mine)?));
                team.barrier()?;
            }
            let all = team.all_gather(vec![team.rank() as u8; team.rank()])?;
            let first = team.gather(vec![team.rank() as u8])?;
            Ok((sums, all, first, team.broadcast(vec![7 + team.rank() as u8])?))
        });
        for (rank, one) in found.into_iter().enumerate() {
            let (sums, all, first, broadcast) = one.unwrap();
            assert!((0..200).all(|round| sums[round as usize] == (10 * round, 4 * round)));
            assert_eq!(all, [vec![], vec![1], vec![2, 2], vec![3, 3, 3]]);
            assert_eq!(first.len(), if rank == 0 { 4 } else { 0 });
            assert_eq!(broadcast, [7]);
        }
    }

    #[test]
    fn nobody_waits_for_a_rank_that_ended() {
        let found = threads(3, |team| match team.rank() {
            1 => Err(Error::new(ErrorKind::NoSpace, "full")),
            _ => team.barrier(),
        });
        let kinds: Vec<_> = found.into_iter().map(|one| one.expect_err("it ended").kind()).collect();
        assert_eq!(kinds, [ErrorKind::Internal, ErrorKind::NoSpace, ErrorKind::Internal]);
    }

    #[test]
    fn lengths_are_32_bit_integers_of_mpi_or_too_long() {
        const MAX: u64 = i32::MAX as u64;
        assert_eq!(mpi_layout(&[]), Some((vec![], vec![])));
        assert_eq!(mpi_layout(&[2, 0, 5]), Some((vec![2, 0, 5], vec![0, 2, 2])));
        assert_eq!(mpi_layout(&[MAX - 1, 1]), Some((vec![i32::MAX - 1, 1], vec![0, i32::MAX - 1])));
        for too_long in [&[MAX + 1][..], &[MAX, 1], &[1 << 32], &[1 << 30, 1 << 30], &[u64::MAX, 1]] {
            assert_eq!(mpi_layout(too_long), None, "{too_long:?}");
        }
    }
}
