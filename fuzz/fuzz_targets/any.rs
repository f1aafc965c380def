//! Runs the fuzz target with the same name as the program.

#![no_main]

use std::sync::LazyLock;

use fordway_fuzz::{FuzzTarget, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&FuzzTarget> =
    LazyLock::new(|| target(env!("CARGO_BIN_NAME")).expect("fuzz/Cargo.toml lists the targets of dev/fuzz"));

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
