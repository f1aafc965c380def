//! Lists of ranges: `offset length` a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};

use crate::context::Context;
use crate::exit::file_error;

/// Reads a list; empty lines and what follows a `#` do not count.
/// Errors: `InvalidArgument` with the number of the line, `Io`.
pub fn read_ranges(path: &Path, context: &Context) -> Result<Vec<(u64, usize)>> {
    let failed = |error| file_error("reading", path.display(), error);
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => context.take_input()?,
        _ => Box::new(File::open(path).map_err(failed)?),
    };
    let mut ranges = Vec::new();
    for (number, line) in BufReader::new(input).lines().enumerate() {
        let line = line.map_err(failed)?;
        let text = line.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            ranges.push(parse(text).ok_or_else(|| unreadable(path, number + 1, text))?);
        }
    }
    Ok(ranges)
}

fn parse(text: &str) -> Option<(u64, usize)> {
    let (offset, length) = text.split_once(char::is_whitespace)?;
    let (offset, length): (u64, usize) = (offset.parse().ok()?, length.trim_start().parse().ok()?);
    offset.checked_add(length as u64)?;
    Some((offset, length))
}

fn unreadable(path: &Path, line: usize, text: &str) -> Error {
    let detail = format!(
        "line {line} of {} is {text:?}; write an offset and a length in bytes, as in: 4096 1000",
        path.display()
    );
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_pairs() {
        assert_eq!(parse("0 10"), Some((0, 10)));
        assert_eq!(parse("7 \t0"), Some((7, 0)));
        for bad in ["7", "a 1", "1 b", "-1 2", "1 2 3", "18446744073709551615 1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
