//! Parsers of measurement data: run files, and tables in CSV and TOML.

use fordway_machine::{CommonFeatures, MachineCatalogue, SimilarityTable};
use fordway_measure::{RunDocument, load_table, parallel_table, table, transfer_table};
use fordway_workload::speedup;

/// Parses a `run.json`, and prints it in every form of table.
pub(super) fn run_file(bytes: &[u8]) {
    if let Ok(run) = RunDocument::parse(bytes) {
        let _tables = [table(&run), load_table(&run), parallel_table(&run), transfer_table(&run)];
    }
}

/// Parses a table of speed-ups in CSV, and a catalogue of machines and a table of similarities in TOML.
pub(super) fn tables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(rows) = speedup::check(&text) {
        assert!(!rows.is_empty() && rows.len() < text.lines().count(), "a row for each line but the first");
    }
    if let Ok(table) = SimilarityTable::parse(&text) {
        let _pairs = (table.pairs(), table.to_string());
    }
    let Ok(catalogue) = MachineCatalogue::parse(&text) else { return };
    for entry in catalogue.entries() {
        let again = MachineCatalogue::parse(&entry.to_toml()).expect("an entry written by this target");
        assert_eq!(again.entries(), std::slice::from_ref(entry), "written again");
    }
    if let Ok(choice) = CommonFeatures::of(catalogue.entries(), &[]) {
        let _similar = SimilarityTable::of(&catalogue, &catalogue, &choice);
    }
}
