//! Finds lanes that alternate between two speeds, for example because the kernel sometimes runs client and server on one
//! processor. Intervals describe one level, so that such a lane needs a doubt.

use std::collections::HashMap;

use fordway_measure::{
    BlockRecord, DisturbanceCause, LanePhaseKey, MeasurementWarning, RowDescription, RunRecords, two_modes,
};

use super::ComparePhase;

/// Returns a doubt for each lane and phase with two modes. A mode shows in the speed relative to the first lane, over
/// the same block of files, so that neither the sizes of files nor a slower machine are taken for a mode.
pub fn doubts_about_modes(lanes: &[RowDescription], records: &RunRecords) -> Vec<MeasurementWarning> {
    let whole = |block: &&BlockRecord| block.operations > 0 && block.elapsed_ns > 0;
    let reference: HashMap<u32, &BlockRecord> = records
        .blocks
        .iter()
        .filter(|block| block.lane == 0)
        .filter(whole)
        .map(|block| (block.block, block))
        .collect();
    let ratio = |block: &BlockRecord| {
        let other = reference.get(&block.block)?;
        // A block with failures on one lane took less time.
        (other.operations == block.operations).then(|| other.elapsed_ns as f64 / block.elapsed_ns as f64)
    };
    let mut doubts = Vec::new();
    for phase in ComparePhase::ALL {
        for (at, lane) in lanes.iter().enumerate().skip(1) {
            let of_cell = |block: &&BlockRecord| usize::from(block.lane) == at && block.phase == phase as u8;
            let mut blocks: Vec<&BlockRecord> = records.blocks.iter().filter(of_cell).filter(whole).collect();
            blocks.sort_unstable_by_key(|block| block.block);
            let ratios: Vec<f64> = blocks.into_iter().filter_map(ratio).collect();
            if let Some(modes) = two_modes(&ratios) {
                doubts.push(doubt((&lane.name, phase.name()), &lanes[0].name, modes));
            }
        }
    }
    doubts
}

fn doubt(
    (lane, phase): (&str, &str),
    reference: &str,
    modes: fordway_measure::TwoModes,
) -> MeasurementWarning {
    let share_pct = 100.0 * modes.high_share;
    MeasurementWarning {
        cause: DisturbanceCause::TwoModes,
        observed: format!(
            "{phase} on {lane} has two modes: {:.2} x {reference} in {:.0} % of the blocks, and {:.2} x in \
             {share_pct:.0} %, each for many blocks in turn",
            modes.low,
            100.0 - share_pct,
            modes.high,
        ),
        remedy: "quote both modes, not their median; `taskset -c 0,1` on the command may fix one of them"
            .to_owned(),
        cells: vec![LanePhaseKey { lane: lane.to_owned(), phase: phase.to_owned() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the records of 6 rounds with 5 blocks of `get` each, on two lanes. `factor` returns by how much the
    /// second lane is slower in a round.
    fn records(factor: impl Fn(u16) -> u64) -> RunRecords {
        let mut records = RunRecords::default();
        for number in 0..30_u32 {
            let round = (number / 5) as u16;
            // The times of blocks differ with their files.
            let elapsed_ns = 100_000 * (1 + u64::from(number % 3));
            for (lane, elapsed_ns) in [(0, elapsed_ns), (1, elapsed_ns * factor(round) + u64::from(number))] {
                records.blocks.push(BlockRecord {
                    lane,
                    phase: ComparePhase::Get as u8,
                    round,
                    block: number,
                    operations: 64,
                    bytes: 0,
                    elapsed_ns,
                    client_cpu_ns: 0,
                    server_cpu_ns: None,
                });
            }
        }
        records
    }

    fn lanes() -> Vec<RowDescription> {
        let lane = |name: &str| RowDescription { name: name.into(), description: String::new() };
        vec![lane("posix"), lane("node")]
    }

    #[test]
    fn a_lane_with_two_speeds_is_doubted() {
        let found = doubts_about_modes(&lanes(), &records(|round| if round % 3 == 1 { 3 } else { 8 }));
        assert_eq!(found.len(), 1);
        let (cell, said) = (&found[0].cells[0], &found[0].observed);
        assert_eq!((&*cell.lane, &*cell.phase), ("node", "get"));
        assert!(said.starts_with("get on node has two modes: 0.12 x posix in 67 % of the blocks"), "{said}");
        assert!(said.contains("0.33 x in 33 %"), "{said}");
    }

    #[test]
    fn a_lane_with_one_speed_is_not_doubted() {
        assert_eq!(doubts_about_modes(&lanes(), &records(|_| 8)), []);
        assert_eq!(doubts_about_modes(&lanes(), &RunRecords::default()), []);
    }
}
