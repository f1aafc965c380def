//! Which sizes are measured.

use std::fmt;
use std::str::FromStr;

use fordway_measure::bytes_text;
use fordway_store::{Error, ErrorKind, Key, Result};
use fordway_wire::size_text::parse_bytes;

/// The largest message: MPI counts in 32 bits with a sign.
const MAX_BYTES: u64 = 1 << 30;
/// Sizes of one run: two or three phases are made of each, and a run has at most 255.
const MAX_SIZES: usize = 80;

/// From where to where sizes go, or each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// From the first to the last, each as many times as large as the one before as is asked for.
    Grid(u64, u64),
    /// These.
    List(Vec<u64>),
}

impl Sizes {
    /// The sizes in bytes, ascending. A grid ends with its last size, whether the factor leads there
    /// or not. Errors: `InvalidArgument` where there are too many.
    pub fn all(&self, factor: u64) -> Result<Vec<u64>> {
        let mut sizes = match self {
            Sizes::List(sizes) => sizes.clone(),
            Sizes::Grid(first, last) => grid(*first, *last, factor.max(2)),
        };
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() > MAX_SIZES {
            let why = format!("{} sizes are more than {MAX_SIZES}; name fewer", sizes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(sizes)
    }
}

fn grid(first: u64, last: u64, factor: u64) -> Vec<u64> {
    let next = |size: &u64| size.checked_mul(factor);
    let below = std::iter::successors(Some(first), next).take_while(|size| *size < last);
    below.chain([last]).collect()
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let size = |text: &str| match parse_bytes(text)? {
            size @ 1..=MAX_BYTES => Ok(size),
            size => {
                Err(format!("a message of {size} bytes is not possible; name 1 to {}", bytes_text(MAX_BYTES)))
            }
        };
        let Some((first, last)) = text.split_once("..") else {
            return text.split(',').map(size).collect::<std::result::Result<_, _>>().map(Sizes::List);
        };
        match (size(first)?, size(last)?) {
            (first, last) if first <= last => Ok(Sizes::Grid(first, last)),
            _ => Err(format!("{text:?} goes down; name the smaller size first")),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Grid(first, last) => write!(f, "{first}..{last}"),
            Sizes::List(sizes) => {
                f.write_str(&sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// `4096` is `4 KiB`, and `4097` is `4097 B`: other than rounded texts, these tell all sizes apart.
pub(super) fn exact_text(size_bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
    let fits = |(power, _): &(u32, &str)| size_bytes.is_multiple_of(1 << power);
    let (power, unit) = units.into_iter().find(fits).unwrap_or((0, "B"));
    format!("{} {unit}", size_bytes >> power)
}

/// The key of the object that is a message of that size.
pub fn message_of(size_bytes: u64) -> Result<Key> {
    Key::new(format!("message-{size_bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str, factor: u64) -> Vec<u64> {
        text.parse::<Sizes>().unwrap().all(factor).unwrap()
    }

    #[test]
    fn grids_hold_both_ends() {
        assert_eq!(sizes("1..16", 2), [1, 2, 4, 8, 16]);
        assert_eq!(sizes("1..128", 4), [1, 4, 16, 64, 128]);
        assert_eq!(sizes("4KiB..4KiB", 4), [4096]);
        assert_eq!(sizes("1MiB,1,4KiB,1", 2), [1, 4096, 1 << 20]);
        assert_eq!("1..16".parse::<Sizes>().unwrap().to_string(), "1..16");
    }

    #[test]
    fn no_two_sizes_have_one_name() {
        let names = [1, 1023, 1024, 4096, 4097, 3 << 20, 1 << 30].map(exact_text);
        assert_eq!(names, ["1 B", "1023 B", "1 KiB", "4 KiB", "4097 B", "3 MiB", "1 GiB"]);
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for (text, why) in [
            ("0..4", "0 bytes is not possible"),
            ("2GiB", "not possible"),
            ("8..4", "goes down"),
            ("", "not a size"),
            ("1..", "not a size"),
        ] {
            let error = text.parse::<Sizes>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = Sizes::List((1..=100).collect()).all(2).expect_err("a hundred sizes");
        assert!(many.to_string().contains("name fewer"), "{many}");
    }
}
