//! What a way is made of.

use serde::{Deserialize, Serialize};

/// A way that was measured as a whole, and the rungs that it should be the sum of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// The rung that is the whole way; the path has its name.
    pub name: String,
    /// What it is made of.
    pub parts: Vec<Part>,
}

/// A rung as part of a way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The rung's name.
    pub rung: String,
    /// How often it is there; below 0 where it is taken off.
    pub times: f64,
    /// The smallest size, in bytes, at which it is.
    pub from_bytes: u64,
    /// The largest; `None` is any.
    pub to_bytes: Option<u64>,
}

impl Path {
    /// A way without parts yet.
    pub fn new(name: &str) -> Self {
        Path { name: name.to_owned(), parts: Vec::new() }
    }

    /// The same with `rung` in it, once at all sizes.
    pub fn with(self, rung: &str) -> Self {
        self.part(rung, 0, None)
    }

    /// The same without `rung`, which others of its rungs have in them and the way has not.
    pub fn less(mut self, rung: &str) -> Self {
        self.parts.push(Part { rung: rung.to_owned(), times: -1.0, from_bytes: 0, to_bytes: None });
        self
    }

    /// The same with `rung` in it at sizes up to `to_bytes`.
    pub fn with_up_to(self, rung: &str, to_bytes: u64) -> Self {
        self.part(rung, 0, Some(to_bytes))
    }

    /// The same with `rung` in it at sizes over `bytes`.
    pub fn with_over(self, rung: &str, bytes: u64) -> Self {
        self.part(rung, bytes + 1, None)
    }

    /// The same with `rung` in it, from one size to another, both included.
    pub fn part(mut self, rung: &str, from_bytes: u64, to_bytes: Option<u64>) -> Self {
        self.parts.push(Part { rung: rung.to_owned(), times: 1.0, from_bytes, to_bytes });
        self
    }

    /// The parts that are there at a size.
    pub fn parts_at(&self, size_bytes: u64) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| {
            part.from_bytes <= size_bytes && part.to_bytes.is_none_or(|most| size_bytes <= most)
        })
    }
}
