//! Options of `bench`: one file for each family of benchmarks.

mod pingpong;
mod ranks;
mod rest;
mod transport;
mod vector;

use clap::{Args, Subcommand};

pub(crate) use pingpong::{PingpongBenchArgs, PolicyArg, ScaleArg};
pub(crate) use ranks::RankArgs;
use ranks::{Io500Args, RanksArgs};
pub(crate) use rest::{ArrivalsArg, HttpArg, MethodArg, RestArgs};
pub(crate) use transport::{TransportArg, TransportArgs};
pub(crate) use vector::VectorArgs;

use fordway_workload::ior::IorPlan;
use fordway_workload::mdtest::MdtestPlan;
use fordway_workload::mdworkbench::MdworkbenchPlan;

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway bench rest http://127.0.0.1:9000/bucket/key --connections 16 --duration 10s
  fordway bench vector http://127.0.0.1:8080/events.root --ranges baskets.txt --window 1,4
  fordway bench transport --sizes 1KiB..16MiB
  fordway bench ior /lustre/scratch --threads 4
  fordway bench mdtest --mode hard file:///lustre/objects http://127.0.0.1:9000
  fordway bench io500 /lustre/scratch --all-lanes --stonewall 10
  fordway bench pingpong --setup bare,vxlan --run out/layers.run")]
pub(crate) struct BenchArgs {
    /// What is run.
    #[command(subcommand)]
    pub(crate) benchmark: Benchmark,
}

const IOR_EXAMPLES: &str = "Examples:
  fordway bench ior /lustre/scratch --all-lanes --threads 4
  fordway bench ior /lustre/scratch http://127.0.0.1:9000 --rounds 5 --run out/ior.run";

const MDTEST_EXAMPLES: &str = "Examples:
  fordway bench mdtest /lustre/scratch --all-lanes --threads 4
  fordway bench mdtest --mode hard file:///lustre/objects https://s3.example.org --items 500";

const MDWORKBENCH_EXAMPLES: &str = "Examples:
  fordway bench mdworkbench /lustre/scratch --all-lanes
  fordway bench mdworkbench --phases precreate /lustre/scratch --threads 4
  fordway bench mdworkbench --phases benchmark /lustre/scratch --threads 4
  fordway bench mdworkbench --phases cleanup /lustre/scratch --threads 4";

const IO500_EXAMPLES: &str = "Examples:
  fordway bench io500 /lustre/scratch --all-lanes --stonewall 10
  fordway bench io500 /lustre/scratch --threads 4 --published 4 --run out/io500.run";

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// HTTP load on a server: open or closed loop, over HTTP/1.1, 2 and 3
    Rest(RestArgs),
    /// Large files in blocks and transfers: bandwidth
    #[command(after_help = IOR_EXAMPLES)]
    Ior(RanksArgs<IorPlan>),
    /// Many small files: create, stat, read, delete
    #[command(after_help = MDTEST_EXAMPLES)]
    Mdtest(RanksArgs<MdtestPlan>),
    /// Data sets of constant size: the latency of each operation
    #[command(after_help = MDWORKBENCH_EXAMPLES)]
    Mdworkbench(RanksArgs<MdworkbenchPlan>),
    /// Many ranges of one file: each call waited for, and several under way
    Vector(VectorArgs),
    /// MPI, TCP, HTTP and the lanes side by side: latency and bandwidth for messages of many sizes
    Transport(TransportArgs),
    /// IO500's phases in their order, and its scores
    #[command(after_help = IO500_EXAMPLES)]
    Io500(Io500Args),
    /// Messages of many sizes over containers and overlay networks, beside bare ones
    Pingpong(PingpongBenchArgs),
}
