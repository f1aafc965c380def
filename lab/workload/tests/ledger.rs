//! Tests the ledger's measurement and evaluation with components that have known costs and advance a fake clock.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fordway_measure::{ConfidenceInterval, RowDescription, RunRecords};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::ledger::{
    LedgerComponent, LedgerCostReport, LedgerPlan, LedgerProgress, NamedComponent, PathDecomposition,
    component_table, entry_table, measure,
};

const SIZES: [u64; 6] = [1, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Advances the clock by a fixed time and a time per byte, with a little noise in some operations.
struct Fake {
    clock: Rc<Cell<u64>>,
    per_operation_ns: u64,
    bytes_per_ns: u64,
    size_bytes: u64,
    runs: u64,
    is_broken: bool,
}

impl LedgerComponent for Fake {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.size_bytes = size_bytes;
        // Time spent here must not be counted for any component.
        self.clock.set(self.clock.get() + 77_777);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.runs += 1;
        let noise_ns = [0, 0, 5, 0, 0][(self.runs % 5) as usize];
        let ns = self.per_operation_ns + self.size_bytes / self.bytes_per_ns + noise_ns;
        self.clock.set(self.clock.get() + ns);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.is_broken {
            true => Err(Error::new(ErrorKind::Corrupt, "not the bytes that were written")),
            false => Ok(()),
        }
    }
}

fn fake(name: &str, clock: &Rc<Cell<u64>>, per_operation_ns: u64, bytes_per_ns: u64) -> NamedComponent {
    let row = RowDescription { name: name.into(), description: String::new() };
    let clock = clock.clone();
    let fake = Fake { clock, per_operation_ns, bytes_per_ns, size_bytes: 0, runs: 0, is_broken: false };
    NamedComponent { row, component: Box::new(fake) }
}

fn plan() -> LedgerPlan {
    LedgerPlan { sizes: SIZES.to_vec(), duration: Duration::from_millis(100), seed: 3 }
}

fn run(components: &mut [NamedComponent], clock: &Rc<Cell<u64>>) -> Result<RunRecords> {
    measure(&plan(), components, &|| clock.get(), &AtomicBool::new(false), &mut |_| {})
}

/// Measures and evaluates a socket (3 µs, plus 1 ns per byte), a copy (100 ns, plus 0.25 ns per byte), and a whole
/// path.
fn account(whole_ns: u64) -> LedgerCostReport {
    let clock = Rc::new(Cell::new(0));
    let mut components =
        [fake("socket", &clock, 3_000, 1), fake("copy", &clock, 100, 4), whole(&clock, whole_ns)];
    let records = run(&mut components, &clock).unwrap();
    let names: Vec<String> = components.iter().map(|component| component.row.name.clone()).collect();
    let path = PathDecomposition::new("path").with("socket").with("copy").with_over("copy", 64 << 10);
    LedgerCostReport::of(&names, &SIZES, &[path], &records, 1).unwrap()
}

/// Creates a component that takes as long as the socket and one copy (two copies above 64 KiB), plus `more_ns`.
fn whole(clock: &Rc<Cell<u64>>, more_ns: u64) -> NamedComponent {
    struct Whole(Fake, u64);
    impl LedgerComponent for Whole {
        fn prepare(&mut self, size_bytes: u64) -> Result<()> {
            self.0.prepare(size_bytes)
        }
        fn run(&mut self) -> Result<()> {
            let size = self.0.size_bytes;
            let copies = if size > 64 << 10 { 2 } else { 1 };
            let ns = 3_000 + size + copies * (100 + size / 4) + self.1;
            self.0.clock.set(self.0.clock.get() + ns);
            Ok(())
        }
    }
    let clock = clock.clone();
    let fake = Fake { clock, per_operation_ns: 0, bytes_per_ns: 1, size_bytes: 0, runs: 0, is_broken: false };
    let row = RowDescription { name: "path".into(), description: String::new() };
    NamedComponent { row, component: Box::new(Whole(fake, more_ns)) }
}

#[test]
fn costs_are_recovered() {
    let account = account(0);
    let socket = &account.components[0];
    let fit = socket.fit.as_ref().unwrap();
    let [piece] = fit.pieces[..] else { panic!("{fit:?}") };
    assert!(
        (piece.per_operation_ns - 3_000.0).abs() < 1.0 && (piece.per_byte_ns - 1.0).abs() < 1e-3,
        "{fit:?}"
    );
    assert!(fit.left_out_max.unwrap() < 0.01, "{fit:?}");
    let interval = socket.per_operation_ns[0];
    assert!(interval.low <= interval.value && interval.value <= interval.high, "{interval:?}");
    assert_eq!(socket.costs.len(), SIZES.len());
    assert!(component_table(&account).contains("socket"));
}

/// A fit needs more than one size. Without a fit, the table contains the measured times.
#[test]
fn the_components_of_one_size_have_rows() {
    let mut account = account(0);
    for component in &mut account.components {
        component.costs.truncate(1);
        (component.fit, component.per_operation_ns, component.per_byte_ns) = (None, vec![], vec![]);
    }
    let table = component_table(&account);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["component", "size", "time"]);
    assert_eq!((rows.len(), rows[1][..4].join(" ").as_str()), (4, "socket 1 B 3.00"), "{table}");
}

#[test]
fn a_whole_that_is_the_sum_leaves_nothing() {
    let account = account(0);
    for size in SIZES {
        let entry = account.entry("path", size).unwrap();
        assert!(entry.residual_ns.value.abs() <= 5.0, "{size}: {entry:?}");
        assert_eq!(entry.parts.len(), if size > 64 << 10 { 3 } else { 2 });
        assert!((entry.fitted_sum_ns.unwrap() / entry.sum_ns.value - 1.0).abs() < 0.01, "{size}: {entry:?}");
    }
}

/// The path takes 3 µs. One component takes 3 µs plus the time of a copy. Another component takes only the time of the
/// copy. The path subtracts the copy's time, so the residual is 0.
#[test]
fn what_a_component_has_too_much_is_taken_off() {
    let clock = Rc::new(Cell::new(0));
    let mut components =
        [fake("path", &clock, 3_000, u64::MAX), fake("both", &clock, 3_100, 4), fake("copy", &clock, 100, 4)];
    let records = run(&mut components, &clock).unwrap();
    let names: Vec<String> = components.iter().map(|component| component.row.name.clone()).collect();
    let path = PathDecomposition::new("path").with("both").less("copy");
    let account = LedgerCostReport::of(&names, &SIZES, &[path], &records, 1).unwrap();
    for size in SIZES {
        let entry = account.entry("path", size).unwrap();
        assert!(entry.residual_ns.value.abs() <= 10.0, "{size}: {entry:?}");
        assert_eq!(entry.parts[1].times, -1.0);
        let ConfidenceInterval { value, low, high, .. } = entry.parts[1].ns;
        assert!(low <= value && value <= high && high < 0.0, "{entry:?}");
        assert!(entry_table(entry).contains("-1 x copy"), "{}", entry_table(entry));
    }
}

/// One component does the work of another component and more. The path counts both components, but their common work
/// only once.
#[test]
fn a_ladder_counts_common_work_once() {
    let clock = Rc::new(Cell::new(0));
    let mut components =
        [fake("path", &clock, 3_100, 4), fake("quic", &clock, 3_100, 4), fake("udp", &clock, 100, 4)];
    let records = run(&mut components, &clock).unwrap();
    let names: Vec<String> = components.iter().map(|component| component.row.name.clone()).collect();
    let path = PathDecomposition::new("path").with("udp").with_beyond("quic", "udp");
    let account = LedgerCostReport::of(&names, &SIZES, &[path], &records, 1).unwrap();
    for size in SIZES {
        let entry = account.entry("path", size).unwrap();
        assert!(entry.residual_ns.value.abs() <= 10.0, "{size}: {entry:?}");
        assert!((entry.fitted_sum_ns.unwrap() / entry.sum_ns.value - 1.0).abs() < 0.01, "{size}: {entry:?}");
        let beyond = &entry.parts[1];
        assert_eq!(beyond.beyond.as_deref(), Some("udp"));
        assert!((beyond.ns.value - 3_000.0).abs() <= 10.0, "{size}: {beyond:?}");
        assert!(beyond.ns.low <= beyond.ns.value && beyond.ns.value <= beyond.ns.high, "{beyond:?}");
        assert!(entry_table(entry).contains("quic beyond udp"), "{}", entry_table(entry));
    }
    let gone = PathDecomposition::new("path").with_beyond("quic", "none");
    let error = LedgerCostReport::of(&names, &SIZES, &[gone], &records, 1).expect_err("no such component");
    assert!(error.to_string().contains("the component none"), "{error}");
}

#[test]
fn a_hidden_cost_is_the_residual() {
    let account = account(1_500);
    for size in SIZES {
        let entry = account.entry("path", size).unwrap();
        let residual = entry.residual_ns;
        assert!((residual.value - 1_500.0).abs() <= 10.0 && residual.low > 1_400.0, "{size}: {residual:?}");
    }
    let entry = account.entry("path", 1).unwrap();
    assert!((entry.residual_share.value - 1_500.0 / 4_601.0).abs() < 0.01, "{entry:?}");
    let table = entry_table(entry);
    assert!(table.contains("residual") && table.contains("1.50 µs") && table.contains("32."), "{table}");
}

#[test]
fn every_round_has_every_component_at_every_size() {
    let clock = Rc::new(Cell::new(0));
    let mut components = [fake("a", &clock, 10, 1), fake("b", &clock, 20, 1)];
    let records = run(&mut components, &clock).unwrap();
    let rounds = 1 + records.blocks.iter().map(|block| block.round).max().unwrap();
    assert!(rounds >= 5, "{rounds}");
    for round in 0..rounds {
        for lane in 0..2 {
            let mut phases: Vec<u8> = records
                .blocks
                .iter()
                .filter(|block| block.round == round && block.lane == lane)
                .map(|block| block.phase)
                .collect();
            phases.sort_unstable();
            assert_eq!(phases, [0, 1, 2, 3, 4, 5], "round {round}, component {lane}");
        }
    }
    let order: Vec<u8> = records.blocks.iter().map(|block| block.lane).collect();
    assert!(order.chunks(2).any(|pair| pair == [0, 1]) && order.chunks(2).any(|pair| pair == [1, 0]));
}

#[test]
fn what_goes_wrong_ends_it_and_is_named() {
    let clock = Rc::new(Cell::new(0));
    let broken = Fake {
        clock: clock.clone(),
        per_operation_ns: 1,
        bytes_per_ns: 1,
        size_bytes: 0,
        runs: 0,
        is_broken: true,
    };
    let row = RowDescription { name: "bad".into(), description: String::new() };
    let error =
        run(&mut [NamedComponent { row, component: Box::new(broken) }], &clock).expect_err("it is broken");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("the component bad at "), "{error}");

    let stopped = AtomicBool::new(true);
    let mut components = [fake("a", &clock, 10, 1)];
    let error =
        measure(&plan(), &mut components, &|| clock.get(), &stopped, &mut |_| {}).expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    stopped.store(false, Ordering::Relaxed);
    let mut progress = |at: LedgerProgress| stopped.store(at.round == 7, Ordering::Relaxed);
    let long = LedgerPlan { duration: Duration::from_secs(1_000), ..plan() };
    let records = measure(&long, &mut components, &|| clock.get(), &stopped, &mut progress).unwrap();
    assert_eq!(records.blocks.iter().map(|block| block.round).max(), Some(5), "round 0 is a warm-up");

    let records = run(&mut components, &clock).unwrap();
    let path = PathDecomposition::new("a").with("none");
    let error =
        LedgerCostReport::of(&["a".into()], &SIZES, &[path], &records, 1).expect_err("no such component");
    assert!(error.to_string().contains("the component none"), "{error}");
}

/// Ctrl-C in a terminal also reaches the gateways, so a component may fail before the ledger checks the stop flag.
#[test]
fn a_failure_after_a_request_to_stop_keeps_the_complete_rounds() {
    struct Gateway {
        round: Rc<Cell<u16>>,
        stopped: Rc<AtomicBool>,
        is_asked: bool,
    }
    impl LedgerComponent for Gateway {
        fn prepare(&mut self, _: u64) -> Result<()> {
            Ok(())
        }
        fn run(&mut self) -> Result<()> {
            if self.round.get() < 7 {
                return Ok(());
            }
            self.stopped.store(self.is_asked, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Unavailable, "the gateway is gone"))
        }
    }
    let clock = Rc::new(Cell::new(0));
    let measured = |is_asked: bool| {
        let (round, stopped) = (Rc::new(Cell::new(0)), Rc::new(AtomicBool::new(false)));
        let component = Box::new(Gateway { round: round.clone(), stopped: stopped.clone(), is_asked });
        let row = RowDescription { name: "gateway".into(), description: String::new() };
        let long = LedgerPlan { duration: Duration::from_secs(1_000), ..plan() };
        let mut progress = |at: LedgerProgress| round.set(at.round);
        let mut components = [NamedComponent { row, component }];
        measure(&long, &mut components, &|| clock.get(), &stopped, &mut progress)
    };
    assert_eq!(measured(false).expect_err("nobody asked to stop").kind(), ErrorKind::Unavailable);
    let records = measured(true).unwrap();
    assert_eq!(records.blocks.iter().map(|block| block.round).max(), Some(5));
}

/// An account that calls components by their old name, rungs, must be readable. When such an account is written again,
/// it must use the current name.
#[test]
fn an_account_of_rungs_is_still_read() {
    let account: LedgerCostReport = serde_json::from_str(include_str!("data/ledger-of-rungs.json")).unwrap();
    assert_eq!(account.components[0].component, "socket");
    assert_eq!(account.paths[0].parts[0].component, "socket");
    assert!(component_table(&account).contains("socket"));
    let entry = account.entry("http get", 4096).unwrap();
    assert_eq!(entry.parts[0].component, "socket");
    assert!(entry_table(entry).contains("sum of components"), "{}", entry_table(entry));
    let written = serde_json::to_string(&account).unwrap();
    assert!(written.contains("\"component\":\"socket\"") && !written.contains("rung"), "{written}");
}
