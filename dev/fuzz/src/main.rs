//! The fuzzing driver on stable Rust: `fordway-fuzz run TARGET`. `tools/soak-fuzz` builds it with coverage.

mod session;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fordway_fuzz::{FuzzTarget, TARGETS, corpus, coverage::CoverageMap, target};

use session::{FuzzSession, FuzzStopReason};

const USAGE: &str = "\
usage: fordway-fuzz COMMAND

  list                      print the names of all targets
  sources TARGET            print the files of the target's parser
  run TARGET SECONDS DIR    mutate the committed corpus and the inputs in DIR for this long; DIR keeps new inputs,
                            findings, and the sum of all seconds
  replay TARGET [FILE]...   run these inputs, or the committed corpus
  adopt TARGET DIR          add those inputs in DIR to the committed corpus that reach code which it does not reach
  table DIR                 print the seconds and the inputs of all targets
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode> {
    match *arguments {
        ["list"] => TARGETS.iter().for_each(|target| println!("{}", target.name)),
        ["sources", name] => find(name)?.sources.iter().for_each(|source| println!("{source}")),
        ["run", name, seconds, dir] => return fuzz(find(name)?, seconds, Path::new(dir)),
        ["replay", name, ref files @ ..] => replay(find(name)?, files)?,
        ["adopt", name, dir] => adopt(find(name)?, Path::new(dir))?,
        ["table", dir] => table(Path::new(dir))?,
        _ => bail!("{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> Result<&'static FuzzTarget> {
    target(name).with_context(|| format!("there is no target {name:?}; `fordway-fuzz list` prints the names"))
}

fn fuzz(target: &'static FuzzTarget, seconds: &str, dir: &Path) -> Result<ExitCode> {
    let time = Duration::from_secs(seconds.parse().context("SECONDS is not a number")?);
    let mut session = FuzzSession::open(target, dir)?;
    let end = session.run(time)?;
    println!("{}", session.summary());
    Ok(match end {
        FuzzStopReason::TimeUp => ExitCode::SUCCESS,
        FuzzStopReason::Finding(path) => {
            eprintln!("{}: found a failing input: {}", target.name, path.display());
            eprintln!("to repeat: fordway-fuzz replay {} {}", target.name, path.display());
            ExitCode::FAILURE
        }
    })
}

fn replay(target: &FuzzTarget, files: &[&str]) -> Result<()> {
    let inputs = match files {
        [] => corpus::read(&corpus::committed().join(target.name))?,
        files => files
            .iter()
            .map(|file| std::fs::read(file).with_context(|| format!("reading {file}")))
            .collect::<Result<_>>()?,
    };
    inputs.iter().for_each(|input| (target.run)(input));
    println!("{}: {} inputs", target.name, inputs.len());
    Ok(())
}

fn adopt(target: &FuzzTarget, dir: &Path) -> Result<()> {
    if !CoverageMap::is_counted() {
        bail!("this program was built without coverage; use `tools/soak-fuzz adopt`");
    }
    let committed = corpus::committed().join(target.name);
    let (base, found) = (corpus::read(&committed)?, corpus::read(&session::inputs_dir(dir, target))?);
    let adopted = corpus::additions(target, &base, found);
    let paths: Vec<PathBuf> =
        adopted.iter().map(|input| corpus::keep(&committed, input)).collect::<Result<_>>()?;
    println!("{}: {} inputs added to {}", target.name, paths.len(), base.len());
    Ok(())
}

fn table(dir: &Path) -> Result<()> {
    println!("{:<24} {:>8} {:>8} {:>9}", "target", "minutes", "inputs", "findings");
    for target in TARGETS {
        let (seconds, inputs, findings) = session::totals(dir, target)?;
        println!("{:<24} {:>8.1} {inputs:>8} {findings:>9}", target.name, seconds as f64 / 60.0);
    }
    Ok(())
}
