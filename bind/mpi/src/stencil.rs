//! A small parallel program for measuring speed-up: simulates heat spreading over a plate, using the Jacobi method.
//!
//! The plate is divided into strips of rows, one for each rank. In each step, a rank exchanges its outer rows with its
//! neighbours, and replaces every cell with the mean of its four neighbouring cells. At the end, the ranks sum the heat
//! of all cells.

use std::time::{Duration, Instant};

use clap::Args;
use fordway_store::{Error, ErrorKind, Result};
use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};

/// The temperature of the plate's upper edge. All other cells start at 0.
const EDGE: f64 = 1.0;

/// Options of `stencil`.
#[derive(Args)]
#[command(after_help = "Examples:
  mpirun -n 2 fordway-mpi stencil --cells 1000000 --steps 200
  fordway speedup --ranks 1,2 --setup shm,bare,vxlan -- fordway-mpi stencil

Each rank prints a line of JSON with the time of all steps and the time of communication. Apart from rounding,
the final temperatures do not depend on the number of ranks.")]
pub(crate) struct StencilArgs {
    /// Number of cells in the square plate; the number per side is rounded
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(16..=1 << 32))]
    cells: u64,
    /// Number of time steps
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Have this rank fail before the first step
    #[arg(long, value_name = "RANK", hide = true)]
    fail: Option<i32>,
    /// Have this rank wait forever before the first step
    #[arg(long, value_name = "RANK", hide = true)]
    hang: Option<i32>,
}

/// Runs the program on all ranks. Errors: `InvalidArgument` for more ranks than rows.
pub(crate) fn run(args: &StencilArgs, world: &SimpleCommunicator) -> Result<bool> {
    let side = (args.cells as f64).sqrt().round() as usize;
    let mut strip = StencilSubdomain::new(world, side)?;
    assert!(args.fail != Some(world.rank()), "the stencil fails on this rank, as requested");
    while args.hang == Some(world.rank()) {
        std::thread::park();
    }
    // All ranks start together, so that the measured time does not include the wait for a rank that starts late.
    world.barrier();
    let started = Instant::now();
    for _ in 0..args.steps {
        strip.exchange(world);
        strip.relax();
    }
    let heat = strip.heat(world);
    let (all, communication) = (started.elapsed(), strip.communication);
    println!(
        "{{\"rank\": {}, \"ranks\": {}, \"cells\": {}, \"steps\": {}, \"elapsed_ns\": {}, \"communication_ns\": {}, \
         \"heat\": {heat:.9e}}}",
        world.rank(),
        world.size(),
        side * side,
        args.steps,
        all.as_nanos(),
        communication.as_nanos()
    );
    Ok(true)
}

/// The rows of one rank, plus the adjacent row of each neighbour, above and below.
struct StencilSubdomain {
    width: usize,
    rows: usize,
    now: Vec<f64>,
    next: Vec<f64>,
    communication: Duration,
}

impl StencilSubdomain {
    fn new(world: &SimpleCommunicator, side: usize) -> Result<Self> {
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        if ranks > side {
            let why = format!("{ranks} ranks exceed the {side} rows of the plate; increase --cells");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let rows = side / ranks + usize::from(rank < side % ranks);
        let mut now = vec![0.0; (rows + 2) * side];
        if rank == 0 {
            now[..side].fill(EDGE);
        }
        Ok(StencilSubdomain { width: side, rows, next: now.clone(), now, communication: Duration::ZERO })
    }

    /// Sends the outer rows to the neighbours and receives theirs; the edges of the plate do not change.
    fn exchange(&mut self, world: &SimpleCommunicator) {
        let started = Instant::now();
        let (rank, last, width) = (world.rank(), world.size() - 1, self.width);
        // Even ranks first exchange with the rank below, and odd ranks with the rank above, so that no chain of waiting
        // ranks forms.
        for turn in 0..2 {
            let is_below = (rank + turn) % 2 == 0;
            let (other, own, theirs) = match is_below {
                true if rank < last => (rank + 1, self.rows, self.rows + 1),
                false if rank > 0 => (rank - 1, 1, 0),
                _ => continue,
            };
            let out = self.now[own * width..(own + 1) * width].to_vec();
            let other = world.process_at_rank(other);
            send_receive_into(&out[..], &other, &mut self.now[theirs * width..(theirs + 1) * width], &other);
        }
        self.communication += started.elapsed();
    }

    /// Replaces every cell that is not at the left or right edge with the mean of its four neighbours.
    fn relax(&mut self) {
        let width = self.width;
        for row in 1..=self.rows {
            let at = row * width;
            let (above, own, below) =
                (&self.now[at - width..at], &self.now[at..at + width], &self.now[at + width..at + 2 * width]);
            let next = &mut self.next[at + 1..at + width - 1];
            for (x, cell) in next.iter_mut().enumerate() {
                *cell = 0.25 * (above[x + 1] + below[x + 1] + own[x] + own[x + 2]);
            }
        }
        // The buffers can be swapped without a copy, because the neighbours' rows are received again in each step, and
        // both buffers contain the edges of the plate.
        std::mem::swap(&mut self.now, &mut self.next);
    }

    /// Returns the sum of all cells of the plate.
    fn heat(&mut self, world: &SimpleCommunicator) -> f64 {
        let own: f64 = self.now[self.width..(self.rows + 1) * self.width].iter().sum();
        let started = Instant::now();
        let mut all = 0.0;
        world.all_reduce_into(&own, &mut all, SystemOperation::sum());
        self.communication += started.elapsed();
        all
    }
}
