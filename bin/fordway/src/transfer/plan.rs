//! What is to be done, decided from listings alone.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::Result;

use super::tree::Item;

/// Which way content flows; `aws s3 sync` reads times differently for downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To a store.
    Upload,
    /// To this machine.
    Download,
    /// Within a store.
    Copy,
}

/// When two items of one name count as equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncRules {
    pub(crate) direction: Direction,
    pub(crate) size_only: bool,
    pub(crate) exact_timestamps: bool,
    pub(crate) delete: bool,
}

/// One step of a synchronisation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The source's item is missing or old at the destination.
    Copy(Item),
    /// The source does not have this item of the destination.
    Remove(Item),
}

impl SyncRules {
    /// Whether the destination's item may stay.
    fn is_current(&self, source: &Item, destination: &Item) -> bool {
        if source.size != destination.size {
            return false;
        }
        let (from, to) = (whole_seconds(source.modified), whole_seconds(destination.modified));
        match self.direction {
            _ if self.size_only => true,
            Direction::Download if self.exact_timestamps => from == to,
            Direction::Download => to <= from,
            Direction::Upload | Direction::Copy => to >= from,
        }
    }
}

/// Services keep times to the second.
fn whole_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Merges two listings, both in byte order, into steps; holds one item of each at a time.
///
/// After an error of the source nothing more is removed: what could not be listed is not gone.
/// After an error of the destination the rest of the source is copied nowhere, for what is
/// there cannot be told.
pub(crate) fn sync(
    source: impl Iterator<Item = Result<Item>>,
    destination: impl Iterator<Item = Result<Item>>,
    rules: SyncRules,
) -> impl Iterator<Item = Result<Step>> {
    Merge { source: source.peekable(), destination: destination.peekable(), rules, blind: false }
}

struct Merge<S: Iterator<Item = Result<Item>>, D: Iterator<Item = Result<Item>>> {
    source: Peekable<S>,
    destination: Peekable<D>,
    rules: SyncRules,
    /// The destination's listing failed.
    blind: bool,
}

impl<S, D> Merge<S, D>
where
    S: Iterator<Item = Result<Item>>,
    D: Iterator<Item = Result<Item>>,
{
    /// Which side has the smaller name; `None` when both are at their end.
    fn smaller(&mut self) -> Option<Ordering> {
        match (self.source.peek(), self.destination.peek()) {
            (None, None) => None,
            (Some(Err(_)), _) | (Some(_), None) => Some(Ordering::Less),
            (_, Some(Err(_))) | (None, Some(_)) => Some(Ordering::Greater),
            (Some(Ok(source)), Some(Ok(destination))) => Some(source.relative.cmp(&destination.relative)),
        }
    }

    fn next_of_source(&mut self) -> Option<Result<Step>> {
        let found = self.source.next()?;
        self.rules.delete &= found.is_ok();
        Some(found.map(Step::Copy))
    }

    /// An item that only the destination has; `None` where it may stay.
    fn next_of_destination(&mut self) -> Option<Result<Step>> {
        match self.destination.next()? {
            Ok(item) => self.rules.delete.then_some(Ok(Step::Remove(item))),
            Err(error) => {
                self.blind = true;
                Some(Err(error))
            }
        }
    }

    fn next_of_both(&mut self) -> Option<Result<Step>> {
        match (self.source.next()?, self.destination.next()?) {
            (Ok(source), Ok(destination)) if self.rules.is_current(&source, &destination) => None,
            (source, _) => Some(source.map(Step::Copy)),
        }
    }
}

impl<S, D> Iterator for Merge<S, D>
where
    S: Iterator<Item = Result<Item>>,
    D: Iterator<Item = Result<Item>>,
{
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        while !self.blind {
            let step = match self.smaller()? {
                Ordering::Less => self.next_of_source(),
                Ordering::Greater => self.next_of_destination(),
                Ordering::Equal => self.next_of_both(),
            };
            if step.is_some() {
                return step;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fordway_store::{Error, ErrorKind};

    use super::*;

    const RULES: SyncRules =
        SyncRules { direction: Direction::Upload, size_only: false, exact_timestamps: false, delete: true };

    fn item(name: &str, size: u64, seconds: u64) -> Result<Item> {
        let modified = UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(Item { relative: name.to_owned(), size, modified })
    }

    fn steps(source: Vec<Result<Item>>, destination: Vec<Result<Item>>, rules: SyncRules) -> String {
        let show = |step: Result<Step>| match step {
            Ok(Step::Copy(item)) => format!("+{}", item.relative),
            Ok(Step::Remove(item)) => format!("-{}", item.relative),
            Err(error) => format!("!{:?}", error.kind()),
        };
        sync(source.into_iter(), destination.into_iter(), rules).map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn missing_changed_equal_and_surplus() {
        let source = || vec![item("a", 1, 5), item("b", 1, 5), item("c", 2, 5), item("d", 1, 9)];
        let destination =
            || vec![item("0", 1, 5), item("b", 1, 5), item("c", 1, 5), item("d", 1, 5), item("e", 1, 5)];
        assert_eq!(steps(source(), destination(), RULES), "-0 +a +c +d -e");
        let keep = SyncRules { delete: false, ..RULES };
        assert_eq!(steps(source(), destination(), keep), "+a +c +d");
        let size_only = SyncRules { size_only: true, ..keep };
        assert_eq!(steps(source(), destination(), size_only), "+a +c");
    }

    #[test]
    fn times_count_by_direction() {
        let copied =
            |from, to, rules| !steps(vec![item("a", 1, from)], vec![item("a", 1, to)], rules).is_empty();
        let download = SyncRules { direction: Direction::Download, ..RULES };
        let exact = SyncRules { exact_timestamps: true, ..download };
        for (from, to, upload, down, exactly) in
            [(5, 5, false, false, false), (5, 6, false, true, true), (6, 5, true, false, true)]
        {
            assert_eq!(copied(from, to, RULES), upload, "upload {from} {to}");
            assert_eq!(copied(from, to, download), down, "download {from} {to}");
            assert_eq!(copied(from, to, exact), exactly, "exact {from} {to}");
        }
    }

    #[test]
    fn what_could_not_be_listed_is_not_removed() {
        let failed = || Err(Error::from(ErrorKind::AccessDenied));
        let source = vec![item("a", 1, 1), failed(), item("z", 1, 1)];
        let destination = vec![item("0", 1, 1), item("m", 1, 1), item("zz", 1, 1)];
        assert_eq!(steps(source, destination, RULES), "-0 +a !AccessDenied +z");
        let blind = steps(vec![item("a", 1, 1), item("b", 1, 1)], vec![item("a", 1, 1), failed()], RULES);
        assert_eq!(blind, "!AccessDenied");
    }
}
