//! The reliability of a run's results: the verdict, its reasons, and the figures from which the verdict was derived.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RunDocument;

/// The reliability of the results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReliabilityReport {
    /// Whether the results can be trusted.
    pub verdict: RunReliability,
    /// Whether the run took place only because of `--force`, although the machine was too busy to measure.
    pub is_forced: bool,
    /// The reasons for the verdict; empty if the verdict is `measured`.
    pub doubts: Vec<MeasurementWarning>,
    /// The figures from which the verdict was derived.
    pub figures: DisturbanceFigures,
}

/// Whether the results of a run can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunReliability {
    /// Nothing disturbed the run.
    #[default]
    Measured,
    /// A disturbance may have changed the results.
    Doubtful,
    /// The machine was too busy to measure.
    Refused,
}

/// A reason to doubt results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurementWarning {
    /// The disturbance that causes the doubt.
    pub cause: DisturbanceCause,
    /// The observation, with its figure and its effect.
    pub observed: String,
    /// The recommended action.
    pub remedy: String,
    /// The results that the doubt concerns; empty if the doubt concerns all results.
    #[serde(default)]
    pub cells: Vec<LanePhaseKey>,
}

/// What disturbed a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DisturbanceCause {
    /// Other processes used the processors.
    OtherProcesses,
    /// The hypervisor ran other guests.
    Hypervisor,
    /// A CPU quota throttled the run.
    Quota,
    /// Memory ran short.
    Memory,
    /// Other processes used the storage.
    Storage,
    /// Processors ran more slowly than before the run.
    Frequency,
    /// The load generator started requests late.
    Generator,
    /// A lane alternated between two speeds.
    TwoModes,
}

/// Identifies one result of a run by its lane and its phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanePhaseKey {
    /// The lane's name.
    pub lane: String,
    /// The phase's name.
    pub phase: String,
}

/// Figures about the machine. Shares are from 0 to 1. A figure that was not measured is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DisturbanceFigures {
    /// The share of time that a fixed task, repeated on each processor, lost to other programs before the run.
    pub lost_before_share: Option<f64>,
    /// The share of time that a fixed task, repeated on each processor, lost to other programs after the run.
    pub lost_after_share: Option<f64>,
    /// The share of the machine's CPU time that processes outside the run used.
    pub others_share: Option<f64>,
    /// The share of the machine's CPU time that the hypervisor gave to other guests.
    pub stolen_share: Option<f64>,
    /// The time that the run's threads waited in run queues, as a share of their total time in run queues and on
    /// processors.
    pub run_queue_share: Option<f64>,
    /// The CPU quota, in processors.
    pub quota_processors: Option<f64>,
    /// The share of the quota's periods in which the run was throttled.
    pub throttled_share: Option<f64>,
    /// The time for which the quota throttled the run, s.
    pub throttled_s: Option<f64>,
    /// The share of time in which at least one task waited for a processor (PSI).
    pub pressure_cpu_share: Option<f64>,
    /// The share of time in which at least one task waited for memory (PSI).
    pub pressure_memory_share: Option<f64>,
    /// The share of time in which at least one task waited for storage (PSI).
    pub pressure_io_share: Option<f64>,
    /// The share of the time before the run in which at least one task waited for storage (PSI).
    pub pressure_io_before_share: Option<f64>,
    /// The CPU time of a fixed task during the run, divided by its CPU time before the run.
    pub work_slowdown: Option<f64>,
    /// The lowest frequency of an allowed processor during the run.
    pub frequency_min_mhz: Option<f64>,
    /// The highest frequency of an allowed processor during the run.
    pub frequency_max_mhz: Option<f64>,
}

impl DisturbanceFigures {
    /// Returns, for each figure, the worse of the two values.
    fn worst(&self, other: &Self) -> Self {
        let most = |of: fn(&Self) -> Option<f64>| of(self).into_iter().chain(of(other)).reduce(f64::max);
        let least = |of: fn(&Self) -> Option<f64>| of(self).into_iter().chain(of(other)).reduce(f64::min);
        DisturbanceFigures {
            lost_before_share: most(|figures| figures.lost_before_share),
            lost_after_share: most(|figures| figures.lost_after_share),
            others_share: most(|figures| figures.others_share),
            stolen_share: most(|figures| figures.stolen_share),
            run_queue_share: most(|figures| figures.run_queue_share),
            quota_processors: least(|figures| figures.quota_processors),
            throttled_share: most(|figures| figures.throttled_share),
            throttled_s: most(|figures| figures.throttled_s),
            pressure_cpu_share: most(|figures| figures.pressure_cpu_share),
            pressure_memory_share: most(|figures| figures.pressure_memory_share),
            pressure_io_share: most(|figures| figures.pressure_io_share),
            pressure_io_before_share: most(|figures| figures.pressure_io_before_share),
            work_slowdown: most(|figures| figures.work_slowdown),
            frequency_min_mhz: least(|figures| figures.frequency_min_mhz),
            frequency_max_mhz: most(|figures| figures.frequency_max_mhz),
        }
    }
}

/// The verdict about one result of a run, and the doubts that concern this result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultReliability<'c> {
    /// The verdict about this result.
    pub verdict: RunReliability,
    /// The doubts that concern this result.
    pub doubts: Vec<&'c MeasurementWarning>,
}

impl RunReliabilityReport {
    /// Returns the reliability of the result of `lane` in `phase`.
    pub fn of_cell(&self, lane: &str, phase: &str) -> ResultReliability<'_> {
        let concerns = |doubt: &&MeasurementWarning| {
            let mut cells = doubt.cells.iter();
            doubt.cells.is_empty() || cells.any(|cell| cell.lane == lane && cell.phase == phase)
        };
        let doubts: Vec<&MeasurementWarning> = self.doubts.iter().filter(concerns).collect();
        let verdict = if doubts.is_empty() { RunReliability::Measured } else { self.verdict };
        ResultReliability { verdict, doubts }
    }

    /// Combines the reports of the nodes of a run, each with the node's name. The combined report contains the worst
    /// verdict, all doubts, and the worst value of each figure.
    pub fn of_nodes(nodes: impl IntoIterator<Item = (String, RunReliabilityReport)>) -> Self {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let is_one = nodes.len() == 1;
        let mut all = RunReliabilityReport::default();
        for (name, mut node) in nodes {
            all.verdict = all.verdict.max(node.verdict);
            all.is_forced |= node.is_forced;
            if !is_one {
                node.doubts
                    .iter_mut()
                    .for_each(|doubt| doubt.observed = format!("{name}: {}", doubt.observed));
            }
            all.doubts.append(&mut node.doubts);
            all.figures = all.figures.worst(&node.figures);
        }
        all
    }

    /// Adds a doubt. A verdict of `measured` becomes `doubtful`.
    pub fn doubt(&mut self, doubt: MeasurementWarning) {
        self.verdict = self.verdict.max(RunReliability::Doubtful);
        self.doubts.push(doubt);
    }
}

impl fmt::Display for RunReliability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunReliability::Measured => "measured",
            RunReliability::Doubtful => "measured, with doubts",
            RunReliability::Refused => "refused, and measured because of --force",
        })
    }
}

impl fmt::Display for MeasurementWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.observed, self.remedy)?;
        let cells: Vec<String> =
            self.cells.iter().map(|cell| format!("{} {}", cell.phase, cell.lane)).collect();
        if cells.is_empty() { Ok(()) } else { write!(f, " ({})", cells.join(", ")) }
    }
}

impl fmt::Display for RunReliabilityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conditions: {}", self.verdict)?;
        self.doubts.iter().try_for_each(|doubt| write!(f, "\n  {doubt}"))?;
        match self.figures.throttled_share.filter(|share| *share > 0.0) {
            Some(share) => write!(
                f,
                "\n  throttled in {:.0} % of the periods of the quota, {:.2} s in total",
                100.0 * share,
                self.figures.throttled_s.unwrap_or(0.0)
            ),
            None => Ok(()),
        }
    }
}

/// The share of throttled periods above which the quota counts as the limit of results.
const THROTTLED_MAX: f64 = 0.05;

impl RunDocument {
    /// Adds the conditions of the run. If a quota throttled the run, the quota becomes the limit of each result whose
    /// limit is `waiting` or `cannot tell`.
    pub fn add_conditions(&mut self, conditions: RunReliabilityReport) {
        if let Some(share) = conditions.figures.throttled_share.filter(|share| *share > THROTTLED_MAX) {
            let unexplained = self.summaries.iter_mut().map(|summary| &mut summary.limit);
            for limit in unexplained.filter(|limit| ["waiting", "cannot tell"].contains(&limit.name.as_str()))
            {
                limit.name = "cpu quota".to_owned();
                limit.evidence +=
                    &format!("; the quota throttled the run in {:.0} % of its periods", 100.0 * share);
            }
        }
        self.conditions = Some(conditions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(cells: Vec<LanePhaseKey>) -> MeasurementWarning {
        MeasurementWarning {
            cause: DisturbanceCause::Generator,
            observed: "requests started late".into(),
            remedy: "add --threads".into(),
            cells,
        }
    }

    #[test]
    fn the_worst_node_decides() {
        let quiet = RunReliabilityReport {
            figures: DisturbanceFigures {
                others_share: Some(0.1),
                frequency_min_mhz: Some(900.0),
                ..DisturbanceFigures::default()
            },
            ..RunReliabilityReport::default()
        };
        let figures =
            DisturbanceFigures { others_share: Some(0.4), frequency_min_mhz: Some(800.0), ..quiet.figures };
        let mut busy = RunReliabilityReport { figures, is_forced: true, ..RunReliabilityReport::default() };
        busy.doubt(doubt(vec![]));
        let all = RunReliabilityReport::of_nodes([("n1".into(), quiet.clone()), ("n2".into(), busy)]);
        assert_eq!((all.verdict, all.is_forced), (RunReliability::Doubtful, true));
        assert_eq!(all.doubts[0].observed, "n2: requests started late");
        assert_eq!((all.figures.others_share, all.figures.frequency_min_mhz), (Some(0.4), Some(800.0)));
        assert_eq!(all.figures.stolen_share, None);
        assert_eq!(RunReliabilityReport::of_nodes([("n1".into(), quiet.clone())]), quiet);
    }

    #[test]
    fn a_doubt_is_told_with_its_cells_and_lowers_the_verdict() {
        let mut conditions = RunReliabilityReport::default();
        assert_eq!(conditions.to_string(), "conditions: measured");
        conditions.doubt(doubt(vec![LanePhaseKey { lane: "http1".into(), phase: "get".into() }]));
        let text = "conditions: measured, with doubts\n  requests started late; add --threads (get http1)";
        assert_eq!(conditions.to_string(), text);
        assert_eq!(conditions.of_cell("http1", "get").verdict, RunReliability::Doubtful);
        assert_eq!(conditions.of_cell("http2", "get").verdict, RunReliability::Measured);
        conditions.verdict = RunReliability::Refused;
        conditions.doubt(doubt(vec![]));
        assert_eq!(conditions.verdict, RunReliability::Refused);
        let json = serde_json::to_string(&conditions).unwrap();
        assert_eq!(serde_json::from_str::<RunReliabilityReport>(&json).unwrap(), conditions);
    }
}
