//! The options of every program that runs transports.

use std::path::PathBuf;

use clap::Args;
use fordway_store::Result;
use fordway_wire::size_text::parse_bytes;
use serde_json::{Map, Value, json};

use super::{Plan, Sizes};

/// What is measured, and how often.
#[derive(Clone, Debug, Args)]
pub struct Setting {
    /// Sizes of the messages: FIRST..LAST, or a list; 1 B to 1 GiB
    #[arg(long, default_value = "1..128MiB")]
    pub sizes: Sizes,
    /// How many times as large as the one before each of FIRST..LAST is
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,
    /// How often each size is measured, the transports in turn; five or more give intervals
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Messages of one turn, at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub messages: u64,
    /// Bytes of one turn, at most, but for a single message that is larger
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_bytes)]
    pub block_bytes: u64,
    /// Messages under way at once for bandwidth, at most, and at most 16 MiB of them
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub window: u64,
    /// Decides in which order the transports take their turns
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the run is written: a directory, made if it is missing
    #[arg(long, value_name = "NAME.run", default_value = "transport.run")]
    pub out: PathBuf,
}

impl Setting {
    /// What that asks for. Errors: `InvalidArgument` for too many sizes.
    pub fn plan(&self) -> Result<Plan> {
        Ok(Plan {
            sizes: self.sizes.all(self.factor)?,
            rounds: self.rounds,
            messages: self.messages,
            block_bytes: self.block_bytes,
            window: self.window,
            seed: self.seed,
        })
    }

    /// What was chosen, for the run file.
    pub fn parameters(&self) -> Map<String, Value> {
        let parameters = json!({
            "sizes": self.sizes.to_string(),
            "factor": self.factor,
            "rounds": self.rounds,
            "messages_max": self.messages,
            "block_bytes_max": self.block_bytes,
            "window_max": self.window,
            "seed": self.seed,
        });
        parameters.as_object().cloned().unwrap_or_default()
    }
}
