//! Instruments on a machine with other work must report that their results are doubtful.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Processes that keep every processor busy (two per processor) until this value is dropped.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Self {
        let count = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let busy =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        BusyLoops((0..count).map(|_| busy()).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the instrument and returns the warnings in its run file.
fn warnings(words: &[&str], run: &Path) -> Vec<String> {
    let done = Command::new(env!("CARGO_BIN_EXE_fordway-lab"))
        .args(words)
        .args(["--out".as_ref(), run])
        .output()
        .unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(run.join("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&text).unwrap();
    run["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_instrument_names_other_work() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    (0..20).for_each(|at| std::fs::write(tree.join(format!("f{at}")), vec![at; 4000]).unwrap());
    let (tree, root) = (tree.to_str().unwrap(), place.path().to_str().unwrap());
    let _busy = BusyLoops::start();
    let runs: [&[&str]; 4] = [
        &["compare", tree, "--root", root, "--lane", "posix,embedded", "--rounds", "20", "--no-report"],
        &["ledger", "--root", root, "--duration", "2s", "--size", "4KiB", "--path", "posix,embedded"],
        &["bench", "mdtest", root, "--items", "20000", "--rounds", "2"],
        &["bench", "transport", "--root", root, "--transport", "tcp", "--size", "1..1MiB", "--no-report"],
    ];
    for (number, words) in runs.iter().enumerate() {
        let told = warnings(words, &place.path().join(format!("{number}.run")));
        assert!(told.iter().any(|text| text.starts_with("other processes took ")), "{words:?}: {told:?}");
    }
}
