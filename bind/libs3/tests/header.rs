//! Checks the headers against the numbers and layouts of the two libs3 versions, and against the functions that the
//! libraries export.

mod harness;

use std::collections::BTreeSet;
use std::process::Command;

use harness::{TESTS, built, run};

fn check(version: &str) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(built().join("include"));
    run(cc.arg(format!("{TESTS}/layout-{version}.c")));
}

#[test]
fn numbers_and_layouts_are_those_of_4_1() {
    check("4.1");
}

#[test]
fn numbers_and_layouts_are_those_of_2_0() {
    check("2.0");
}

#[test]
fn the_header_is_cxx_too() {
    let header = built().join("include/libs3.h");
    run(Command::new("cc").args(["-x", "c++", "-Wall", "-Werror", "-fsyntax-only"]).arg(header));
}

/// Returns the functions that a preprocessed header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let path = built().join("include").join(header);
    let text = run(Command::new("cc").arg("-E").arg(path));
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('));
    words
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|n| n.starts_with("S3_"))
        .collect()
}

/// Returns the functions that a library exports.
fn exported(library: &str) -> BTreeSet<String> {
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("lib").join(library)));
    text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

fn soname(library: &str) -> String {
    let text = run(Command::new("readelf").arg("-d").arg(built().join("lib").join(library)));
    let line = text.lines().find(|line| line.contains("SONAME")).expect("a library has a name");
    line.split(['[', ']']).nth(1).expect("it is in brackets").to_owned()
}

#[test]
fn each_library_exports_what_its_header_declares_and_nothing_else() {
    for (library, header, functions) in [("libs3.so.4", "libs3.h", 39), ("libs3.so.2", "libs3-2.0.h", 27)] {
        assert_eq!(exported(library), declared(header));
        assert_eq!(exported(library).len(), functions);
        assert_eq!(soname(library), library);
    }
}

/// A statically linked program does not need the shared library at run time.
#[test]
fn the_static_library_links() {
    let directory = tempfile::TempDir::new().unwrap();
    let program = directory.path().join("program");
    let mut cc = Command::new("cc");
    cc.arg("-I")
        .arg(built().join("include"))
        .arg(format!("{TESTS}/probe.c"))
        .arg(built().join("lib/libs3.a"));
    run(cc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&program));
    let lane = harness::Lane::embedded();
    let said = run(Command::new(&program).args([&lane.host, "", "", "1"]));
    assert!(said.ends_with(" 0 failed\n"), "{said}");
}
