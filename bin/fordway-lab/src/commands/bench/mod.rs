//! `bench`: one file for each family of benchmarks.

mod pingpong;
mod places;
mod ranks;
mod rest;
pub(super) mod transport;
mod vector;

use fordway_command::{Context, Exit};
use fordway_store::Result;
use fordway_workload::bench::Workload;

use crate::args::{BenchArgs, Benchmark, GlobalArgs, RankArgs};

pub(super) fn run(args: &BenchArgs, global: &GlobalArgs, context: &Context) -> Result<Exit> {
    let on_ranks = |workload: Workload, common: &RankArgs, published: &[u8]| {
        places::check_named(common, global)?;
        ranks::run(workload, common, published, context)
    };
    match &args.benchmark {
        Benchmark::Rest(args) => rest::run(args, global, context),
        Benchmark::Transport(args) => transport::run(args, context),
        Benchmark::Pingpong(args) => pingpong::run(args, context),
        Benchmark::Vector(args) => vector::run(args, context),
        Benchmark::Ior(args) => on_ranks(Workload::Ior(args.plan.clone()), &args.common, &[]),
        Benchmark::Mdtest(args) => on_ranks(Workload::Mdtest(args.plan.clone()), &args.common, &[]),
        Benchmark::Mdworkbench(args) => on_ranks(Workload::Mdworkbench(args.plan.clone()), &args.common, &[]),
        Benchmark::Io500(args) => {
            let plan = args.ranks.plan.clone();
            on_ranks(Workload::Io500(plan), &args.ranks.common, &args.published)
        }
    }
}
