//! Published figures: Tables 1 to 6 of F. Gadban and J. Kunkel, "Analyzing the Performance of the S3 Object Storage API
//! for HPC Workloads", Applied Sciences 11 (18), 8540, 2021. The figures were measured on other machines. A run can
//! therefore be compared with the ratios between systems on one machine, but not with the rates.

/// A published table. If the table includes Lustre, Lustre is the first system.
#[derive(Clone, Copy, Debug)]
pub struct PublishedTable {
    /// The table's number, 1 to 6.
    pub table: u8,
    /// The set-up in which the table was measured.
    pub setup: &'static str,
    /// The systems, in the order of the figures.
    pub systems: &'static [&'static str],
    /// The rows, with one row for each phase.
    pub rows: &'static [PublishedTableRow],
}

/// A row: a phase, its unit, and a figure for each system.
#[derive(Clone, Copy, Debug)]
pub struct PublishedTableRow {
    /// The phase's name.
    pub phase: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// The figure of each system; `None` if the table has no figure for the system.
    pub figures: &'static [Option<f64>],
}

impl PublishedTable {
    /// Returns the table with this number, 1 to 6.
    pub fn find(table: u8) -> Option<&'static PublishedTable> {
        TABLES.iter().find(|published| published.table == table)
    }

    /// Returns the figures of a phase; `None` if the table does not have the phase.
    pub fn row(&self, phase: &str) -> Option<&'static PublishedTableRow> {
        self.rows.iter().find(|row| row.phase == phase)
    }
}

const fn row(phase: &'static str, unit: &'static str, figures: &'static [Option<f64>]) -> PublishedTableRow {
    PublishedTableRow { phase, unit, figures }
}

/// All tables.
pub const TABLES: [PublishedTable; 6] = [
    PublishedTable {
        table: 1,
        setup: "4 nodes, 20 processes each",
        systems: &["Lustre", "MinIO disjoint gateway", "MinIO local gateway"],
        rows: &[
            row("md-workbench rate", "IOPS", &[Some(18337.0), Some(37.0), Some(425.0)]),
            row("md-workbench throughput", "MiB/s", &[Some(34.1), Some(0.1), Some(0.8)]),
            row("ior-easy-write", "GiB/s", &[Some(18.671), Some(0.153), Some(0.286)]),
            row("mdtest-easy-write", "kIOPS", &[Some(5.892), Some(0.088), Some(0.132)]),
            row("ior-hard-write", "GiB/s", &[Some(0.014), Some(0.003), Some(0.006)]),
            row("mdtest-hard-write", "kIOPS", &[Some(5.071), Some(0.036), Some(0.076)]),
            row("ior-easy-read", "GiB/s", &[Some(11.475), Some(0.693), Some(2.071)]),
            row("mdtest-easy-stat", "kIOPS", &[Some(24.954), Some(1.198), Some(4.092)]),
            row("ior-hard-read", "GiB/s", &[Some(0.452), Some(0.029), Some(0.094)]),
            row("mdtest-hard-stat", "kIOPS", &[Some(18.296), Some(1.281), Some(3.968)]),
            row("mdtest-easy-delete", "kIOPS", &[Some(9.316), Some(0.025), Some(0.023)]),
            row("mdtest-hard-read", "kIOPS", &[Some(6.95), Some(0.449), Some(1.636)]),
            row("mdtest-hard-delete", "kIOPS", &[Some(4.863), Some(0.029), Some(0.025)]),
        ],
    },
    PublishedTable {
        table: 2,
        setup: "2 nodes, 1 process each; as printed, units scaled by 1,000",
        systems: &["Wasabi", "IBM", "Google", "MinIO local gateway"],
        rows: &[
            row("Score Bandwidth", "MiB/s", &[Some(0.007), Some(1.642), Some(0.46), Some(12.62)]),
            row("ior-easy-write", "MiB/s", &[Some(2.35), Some(35.0), Some(13.35), Some(46.39)]),
            row("mdtest-easy-write", "IOPS", &[Some(13.04), Some(81.72), Some(21.79), Some(27.96)]),
            row("ior-rnd-write", "MiB/s", &[Some(0.01), Some(0.23), Some(0.07), Some(1.231)]),
            row("mdworkbench-bench", "IOPS", &[Some(5.75), Some(47.23), Some(12.83), Some(15.25)]),
            row("ior-easy-read", "MiB/s", &[Some(1.2), Some(45.37), Some(7.81), Some(73.86)]),
            row("mdtest-easy-stat", "IOPS", &[Some(20.92), Some(145.09), Some(51.1), Some(260.97)]),
            row("ior-hard-read", "MiB/s", &[Some(0.05), Some(5.59), Some(1.38), Some(6.01)]),
            row("mdtest-hard-stat", "IOPS", &[Some(20.74), Some(149.64), Some(49.48), Some(297.62)]),
            row("mdtest-easy-delete", "IOPS", &[Some(10.35), Some(35.02), Some(9.37), Some(81.06)]),
            row("mdtest-hard-read", "IOPS", &[Some(8.54), Some(70.06), Some(18.9), Some(130.36)]),
            row("mdtest-hard-delete", "IOPS", &[Some(10.28), Some(35.25), Some(9.48), Some(94.32)]),
        ],
    },
    PublishedTable {
        table: 3,
        setup: "2 nodes, 5 processes each",
        systems: &["Lustre", "MinIO local gateway", "S3Embedded", "S3Remote"],
        rows: &[
            row("ior-easy-write", "GiB/s", &[Some(5.47), Some(0.14), Some(0.61), Some(0.69)]),
            row("mdtest-easy-write", "kIOPS", &[Some(7.97), Some(0.09), Some(2.42), Some(3.13)]),
            row("ior-easy-read", "GiB/s", &[Some(2.78), Some(0.32), Some(0.48), Some(0.42)]),
            row("mdtest-easy-stat", "kIOPS", &[Some(13.82), Some(0.85), Some(8.02), Some(6.94)]),
            row("ior-hard-read", "GiB/s", &[Some(0.139), Some(0.019), Some(0.046), Some(0.042)]),
            row("mdtest-hard-stat", "kIOPS", &[Some(5.1), Some(0.86), Some(7.25), Some(6.65)]),
        ],
    },
    PublishedTable {
        table: 4,
        setup: "5 nodes, 20 processes each",
        systems: &["Lustre", "MinIO local gateway", "S3Embedded", "S3Remote"],
        rows: &[
            row("ior-easy-write", "GiB/s", &[Some(23.49), Some(0.75), Some(3.4), Some(1.99)]),
            row("mdtest-easy-write", "kIOPS", &[Some(17.11), Some(0.39), Some(7.52), Some(1.19)]),
            row("ior-hard-write", "GiB/s", &[Some(0.04), Some(0.01), Some(0.3), Some(0.05)]),
            row("mdtest-hard-write", "kIOPS", &[Some(7.25), Some(0.1), Some(3.41), Some(0.55)]),
            row("ior-easy-read", "GiB/s", &[Some(15.87), Some(2.46), Some(2.4), Some(1.36)]),
            row("mdtest-easy-stat", "kIOPS", &[Some(42.59), Some(5.09), Some(28.53), Some(0.62)]),
            row("ior-hard-read", "GiB/s", &[Some(0.38), Some(0.11), Some(0.11), Some(0.02)]),
            row("mdtest-hard-stat", "kIOPS", &[Some(31.49), Some(4.37), Some(26.66), Some(0.6)]),
            row("mdtest-easy-delete", "kIOPS", &[Some(9.15), None, Some(5.98), Some(0.41)]),
            row("mdtest-hard-read", "kIOPS", &[Some(6.34), None, Some(3.82), Some(0.29)]),
            row("mdtest-hard-delete", "kIOPS", &[Some(6.27), None, Some(5.04), Some(0.41)]),
        ],
    },
    PublishedTable {
        table: 5,
        setup: "10 nodes, 1 process each",
        systems: &["Lustre", "S3Embedded", "S3Remote"],
        rows: &[
            row("ior-easy-write", "GiB/s", &[Some(3.202073), Some(0.990504), Some(0.827451)]),
            row("mdtest-easy-write", "kIOPS", &[Some(13.548102), Some(11.819631), Some(0.240857)]),
            row("ior-hard-write", "GiB/s", &[Some(0.015462), Some(0.215551), Some(0.010041)]),
            row("mdtest-hard-write", "kIOPS", &[Some(5.615789), Some(2.226332), Some(0.111696)]),
            row("ior-easy-read", "GiB/s", &[Some(7.483045), Some(0.375538), Some(0.311502)]),
            row("mdtest-easy-stat", "kIOPS", &[Some(21.884679), Some(20.489986), Some(0.123976)]),
            row("ior-hard-read", "GiB/s", &[Some(0.095884), Some(0.022462), Some(0.005101)]),
            row("mdtest-hard-stat", "kIOPS", &[Some(17.428926), Some(6.90457), Some(0.125178)]),
            row("mdtest-easy-delete", "kIOPS", &[Some(8.995095), Some(7.77739), Some(0.10289)]),
            row("mdtest-hard-read", "kIOPS", &[Some(0.184843), Some(1.287055), Some(0.249273)]),
            row("mdtest-hard-delete", "kIOPS", &[Some(8.108844), Some(6.711771), Some(0.249282)]),
        ],
    },
    PublishedTable {
        table: 6,
        setup: "50 nodes, 1 process each",
        systems: &["Lustre", "S3Embedded", "S3Remote"],
        rows: &[
            row("ior-easy-write", "GiB/s", &[Some(16.262279), Some(5.363676), Some(1.516302)]),
            row("mdtest-easy-write", "kIOPS", &[Some(18.104786), Some(15.952838), Some(1.111315)]),
            row("ior-hard-write", "GiB/s", &[Some(0.030967), Some(0.375326), Some(0.032984)]),
            row("mdtest-hard-write", "kIOPS", &[Some(13.705966), Some(4.337179), Some(0.361589)]),
            row("ior-easy-read", "GiB/s", &[Some(43.390676), Some(2.817122), Some(1.309052)]),
            row("mdtest-easy-stat", "kIOPS", &[Some(46.662299), Some(45.878814), Some(0.620202)]),
            row("ior-hard-read", "GiB/s", &[Some(0.218977), Some(0.128423), Some(0.025549)]),
            row("mdtest-hard-stat", "kIOPS", &[Some(43.834921), Some(44.443974), Some(0.62586)]),
            row("mdtest-easy-delete", "kIOPS", &[Some(9.322632), Some(9.262801), Some(0.585572)]),
            row("mdtest-hard-read", "kIOPS", &[Some(4.079555), Some(6.673985), Some(1.246393)]),
            row("mdtest-hard-delete", "kIOPS", &[Some(8.457431), Some(6.377992), Some(1.246105)]),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_figure_for_each_system() {
        for table in &TABLES {
            assert!(!table.rows.is_empty());
            for row in table.rows {
                assert_eq!(row.figures.len(), table.systems.len(), "table {} {}", table.table, row.phase);
            }
        }
        let found =
            PublishedTable::find(4).and_then(|table| table.row("ior-hard-write")).map(|row| row.figures);
        assert_eq!(found, Some(&[Some(0.04), Some(0.01), Some(0.3), Some(0.05)][..]));
    }
}
