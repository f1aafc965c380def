//! The features that machines are compared by.

use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::{Entry, Feature, similarity};

/// The features that all machines of a comparison have. A similarity is a mean over features, so only
/// similarities over the same features are comparable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// What is compared.
    pub features: Vec<Feature>,
    /// What is not, as it is not known of all.
    pub left_out: Vec<LeftOut>,
}

/// A feature that is known of some machines only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// The feature.
    pub feature: Feature,
    /// Those without it.
    pub missing_in: Vec<String>,
}

impl Choice {
    /// What `entries` have in common. With `asked`, these features and no others.
    /// Errors: `InvalidArgument` if an asked feature is missing somewhere, or nothing is left.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>, asked: &[Feature]) -> Result<Self> {
        let entries: Vec<&Entry> = entries.into_iter().collect();
        let lacking = |feature: Feature| -> Vec<String> {
            let without = entries.iter().filter(|entry| entry.get(feature).is_none());
            without.map(|entry| entry.name.clone()).collect()
        };
        let mut choice = Choice { features: Vec::new(), left_out: Vec::new() };
        for &feature in Feature::ALL {
            let missing_in = lacking(feature);
            match asked.contains(&feature) {
                true if !missing_in.is_empty() => return Err(missing(feature, &missing_in)),
                false if !asked.is_empty() => {}
                _ if missing_in.is_empty() => choice.features.push(feature),
                _ if missing_in.len() < entries.len() => {
                    choice.left_out.push(LeftOut { feature, missing_in })
                }
                _ => {}
            }
        }
        if entries.is_empty() || choice.features.is_empty() {
            let why = "the machines have no feature in common; measure one of them again with `fordway machines measure`";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(choice)
    }

    /// The similarity of two of the machines.
    pub fn similarity(&self, one: &Entry, other: &Entry) -> Option<f64> {
        similarity(&self.vector(one)?, &self.vector(other)?)
    }

    fn vector(&self, entry: &Entry) -> Option<Vec<f64>> {
        self.features.iter().map(|feature| entry.get(*feature)).collect()
    }
}

fn missing(feature: Feature, machines: &[String]) -> Error {
    let (feature, machines) = (feature.name(), machines.join(", "));
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{feature} is not known of {machines}; compare by other features"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    const TWO: &str =
        "[machine.a]\nthreads = 2\nmemory_mb = 100\n[machine.b]\nthreads = 4\ndisk_read_mb_per_s = 5";

    #[test]
    fn what_all_have_is_compared_and_the_rest_is_told() {
        let catalogue = Catalogue::parse(TWO).unwrap();
        let choice = Choice::of(catalogue.entries(), &[]).unwrap();
        assert_eq!(choice.features, [Feature::Threads]);
        let left_out = |feature, name: &str| LeftOut { feature, missing_in: vec![name.to_owned()] };
        assert_eq!(choice.left_out, [left_out(Feature::Memory, "b"), left_out(Feature::DiskRead, "a")]);
        let (a, b) = (catalogue.get("a").unwrap(), catalogue.get("b").unwrap());
        assert_eq!(choice.similarity(a, b), Some(0.75));
    }

    #[test]
    fn nothing_in_common_is_an_error() {
        let catalogue = Catalogue::parse("machine.a.threads = 2\nmachine.b.memory_mb = 4").unwrap();
        let error = Choice::of(catalogue.entries(), &[]).expect_err("nothing was compared");
        assert!(error.to_string().contains("no feature in common"), "{error}");
        assert!(Choice::of([], &[]).is_err());
    }

    #[test]
    fn an_asked_feature_must_be_there() {
        let catalogue = Catalogue::parse(TWO).unwrap();
        let choice = Choice::of(catalogue.entries(), &[Feature::Threads]).unwrap();
        assert_eq!((choice.features, choice.left_out), (vec![Feature::Threads], vec![]));
        let error = Choice::of(catalogue.entries(), &[Feature::Memory]).expect_err("b has no memory_mb");
        assert!(error.to_string().contains("memory_mb is not known of b"), "{error}");
    }
}
