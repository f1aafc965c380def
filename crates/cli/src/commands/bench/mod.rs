//! `bench`: one file for each family of benchmarks.

mod pingpong;
mod places;
mod ranks;
mod rest;
pub(super) mod transport;
mod vector;

use fordway_store::Result;
use fordway_workload::bench::Workload;

use crate::args::{BenchArgs, Benchmark, GlobalArgs};
use crate::context::Context;
use crate::exit::Exit;

pub(super) fn run(args: &BenchArgs, global: &GlobalArgs, context: &Context) -> Result<Exit> {
    match &args.benchmark {
        Benchmark::Rest(args) => rest::run(args, global, context),
        Benchmark::Transport(args) => transport::run(args, context),
        Benchmark::Pingpong(args) => pingpong::run(args, context),
        Benchmark::Vector(args) => vector::run(args, context),
        Benchmark::Ior(args) => ranks::run(Workload::Ior(args.plan.clone()), &args.common, &[], context),
        Benchmark::Mdtest(args) => {
            ranks::run(Workload::Mdtest(args.plan.clone()), &args.common, &[], context)
        }
        Benchmark::Mdworkbench(args) => {
            ranks::run(Workload::Mdworkbench(args.plan.clone()), &args.common, &[], context)
        }
        Benchmark::Io500(args) => {
            let plan = args.ranks.plan.clone();
            ranks::run(Workload::Io500(plan), &args.ranks.common, &args.published, context)
        }
    }
}
