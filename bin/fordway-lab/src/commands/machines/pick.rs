//! `machines pick`: what is most like a machine.

use std::fmt;

use fordway_command::{Context, Exit};
use fordway_machine::{Catalogue, Choice, Entry, Feature, LeftOut, ratio};
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use super::{catalogue, warn_of_left_out};
use crate::args::PickArgs;

/// What the JSON says it is.
const SCHEMA: &str = "fordway.pick";

/// All that may be picked, the most similar first.
#[derive(Serialize)]
struct Ranking {
    schema: &'static str,
    like: String,
    left_out: Vec<LeftOut>,
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    name: String,
    similarity: f64,
    features: Vec<FeatureRatio>,
}

/// One feature of two machines.
#[derive(Serialize)]
struct FeatureRatio {
    feature: Feature,
    like: f64,
    value: f64,
    /// The smaller as a share of the larger.
    ratio: f64,
}

pub(super) fn run(args: &PickArgs, context: &Context) -> Result<Exit> {
    let within = catalogue(&args.within)?;
    let like = match &args.of {
        Some(file) => catalogue(file)?.get(&args.like)?.clone(),
        None => within.get(&args.like)?.clone(),
    };
    let allowed = allowed(&within, args, &like);
    if allowed.is_empty() {
        let none = format!("no machine of {} fulfils the conditions", args.within.display());
        context.output.note(&none);
        return Ok(Exit::Failure);
    }
    let ranking = rank(like, &allowed, &args.features)?;
    warn_of_left_out(&ranking.left_out, context);
    context.output.record(&ranking)?;
    Ok(Exit::Ok)
}

/// Those that fulfil the conditions. A feature that is not known fulfils none.
fn allowed<'a>(within: &'a Catalogue, args: &PickArgs, like: &Entry) -> Vec<&'a Entry> {
    let fulfils = |entry: &Entry| {
        let is_large =
            |(feature, least): &(Feature, f64)| entry.get(*feature).is_some_and(|value| value >= *least);
        let is_small =
            |(feature, most): &(Feature, f64)| entry.get(*feature).is_some_and(|value| value <= *most);
        args.at_least.iter().all(is_large) && args.at_most.iter().all(is_small)
    };
    // Within one catalogue a machine is not its own substitute.
    let is_itself = |entry: &Entry| args.of.is_none() && entry.name == like.name;
    within.entries().iter().filter(|entry| fulfils(entry) && !is_itself(entry)).collect()
}

fn rank(like: Entry, allowed: &[&Entry], asked: &[Feature]) -> Result<Ranking> {
    let choice = Choice::of(allowed.iter().copied().chain([&like]), asked)?;
    let candidates = allowed.iter().map(|entry| candidate(entry, &like, &choice));
    let mut candidates = candidates.collect::<Result<Vec<_>>>()?;
    candidates.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
    Ok(Ranking { schema: SCHEMA, like: like.name, left_out: choice.left_out, candidates })
}

fn candidate(entry: &Entry, like: &Entry, choice: &Choice) -> Result<Candidate> {
    let similarity = choice.similarity(entry, like);
    let missing = || Error::new(ErrorKind::InvalidArgument, "a feature that is compared is missing");
    let compared = |feature: &Feature| {
        let (like, value) = (like.get(*feature)?, entry.get(*feature)?);
        Some(FeatureRatio { feature: *feature, like, value, ratio: ratio(like, value) })
    };
    Ok(Candidate {
        name: entry.name.clone(),
        similarity: similarity.ok_or_else(missing)?,
        features: choice.features.iter().filter_map(compared).collect(),
    })
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Most like {}:", self.like)?;
        for Candidate { name, similarity, .. } in &self.candidates {
            write!(f, "\n{similarity:.2}  {name}")?;
        }
        let Some(best) = self.candidates.first() else { return Ok(()) };
        let width = |name: &str| name.chars().count().max(14);
        let (left, right) = (width(&self.like), width(&best.name));
        write!(f, "\n\n{:<22}  {:>left$}  {:>right$}  ratio", "feature", self.like, best.name)?;
        for FeatureRatio { feature, like, value, ratio } in &best.features {
            let [like, value] = [like, value].map(|value| super::figure(*value, feature.unit()));
            write!(f, "\n{:<22}  {like:>left$}  {value:>right$}   {ratio:.2}", feature.name())?;
        }
        Ok(())
    }
}
