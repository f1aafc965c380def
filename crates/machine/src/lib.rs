//! What is known of machines, and how similar they are.
//!
//! A [`Catalogue`] holds machines with their [`Feature`]s, as a TOML file does. [`similarity`] is a number
//! from 0 to 1 of two machines, [`Table`] all of two catalogues, and [`heat_map`] a picture of them.

mod catalogue;
mod choice;
mod feature;
mod heat_map;
mod similarity;
mod table;

pub use catalogue::{Catalogue, Entry};
pub use choice::{Choice, LeftOut};
pub use feature::Feature;
pub use heat_map::heat_map;
pub use similarity::{ratio, similarity};
pub use table::{Pair, Table};
