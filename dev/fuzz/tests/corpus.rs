//! Runs every target on its committed corpus, and on a few thousand mutations with a fixed seed.

use fordway_fuzz::mutate::InputMutator;
use fordway_fuzz::{TARGETS, corpus, target};

/// The number of mutations of a target whose cost is 1.
const MUTATIONS: usize = 2000;

fn check(name: &str) {
    let target = target(name).expect("a target");
    let inputs = corpus::read(&corpus::committed().join(name)).expect("a corpus");
    assert!(inputs.len() > 3, "the corpus of {name} has {} inputs", inputs.len());
    inputs.iter().for_each(|input| (target.run)(input));
    let mut mutator = InputMutator::new(1, target.words);
    for number in 0..MUTATIONS / target.cost {
        let input = mutator.next_input(&inputs);
        let ran = std::panic::catch_unwind(|| (target.run)(&input));
        assert!(ran.is_ok(), "mutation {number}: {}", input.escape_ascii());
    }
}

macro_rules! tests {
    ($($test:ident $name:literal)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test] fn $test() { check($name); })*
    };
}

tests! {
    http1_request "http1-request"
    http1_chunks "http1-chunks"
    http1_responses "http1-responses"
    http1_response_chunks "http1-response-chunks"
    http_connection "http-connection"
    http3_frames "http3-frames"
    node_frames "node-frames"
    record "record"
    part_record "part-record"
    odd_name "odd-name"
    byteranges "byteranges"
    metalink "metalink"
    webdav "webdav"
    s3_xml "s3-xml"
    events "events"
    signature "signature"
    tokens "tokens"
    sigv4 "sigv4"
    signed_chunks "signed-chunks"
    object_headers "object-headers"
    header_values "header-values"
    aws_config "aws-config"
    run_file "run-file"
    lab_tables "lab-tables"
}

#[test]
fn every_target_is_tested() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
}

/// cargo-fuzz needs a program for each target.
#[test]
fn cargo_fuzz_has_every_target() {
    let manifest = std::fs::read_to_string(corpus::committed().join("../Cargo.toml")).expect("a manifest");
    let names = manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next());
    assert_eq!(names.collect::<Vec<_>>(), TESTED);
}
