//! Fuzz targets: functions that pass arbitrary bytes to a parser. A target panics if its parser accepts something that
//! it must not accept, or interprets one message in two ways.
//!
//! Three drivers share the targets and the corpus in `fuzz/corpus`:
//!
//! * the test `corpus` runs the corpus and a few thousand mutations of it with a fixed seed (`make test`);
//! * the `fordway-fuzz` program mutates the corpus for a given time, on stable Rust. If it is built with coverage
//!   (`tools/soak-fuzz` does this), it keeps each input that reaches new code (`make soak`);
//! * cargo-fuzz in `fuzz/` mutates the corpus with libFuzzer, and also keeps each input that reaches new code.
//!   cargo-fuzz needs a nightly toolchain.

pub mod corpus;
pub mod coverage;
pub mod mutate;
mod targets;

pub use targets::TARGETS;

/// A parser under test.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// The name of the target, and of its directory in the corpus.
    pub name: &'static str,
    /// Passes an input to the parser. Panics if the parser's result is wrong.
    pub run: fn(&[u8]),
    /// The source files of the parser, for the coverage table, relative to the root of the repository. A file may be
    /// followed by a colon and the functions, types or modules that the table is limited to.
    pub sources: &'static [&'static str],
    /// Tokens of the format, which mutations insert.
    pub words: &'static [&'static str],
    /// The relative cost of a run: the number of mutations in the test is divided by this number.
    pub cost: usize,
}

/// Returns the target with this name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}
