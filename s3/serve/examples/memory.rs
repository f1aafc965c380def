//! Serves an empty in-memory store: `cargo run --release --example memory -- 127.0.0.1:9000`.
//!
//! The keys are read from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or generated. `RUST_LOG` sets the log level,
//! for example `info`.

use std::io::Write as _;
use std::sync::Arc;

use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::MemoryStore;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter: Targets = std::env::var("RUST_LOG").as_deref().unwrap_or("warn").parse()?;
    // The log of the S3 layer (crate `s3s`) is disabled, because the S3 layer logs every refused request as an error.
    let filter = filter.with_target("s3s", LevelFilter::OFF);
    let lines = fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();

    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse()?;
    let identity = match (std::env::var("AWS_ACCESS_KEY_ID"), std::env::var("AWS_SECRET_ACCESS_KEY")) {
        (Ok(access_key), Ok(secret_key)) => AccessKeyPair { access_key, secret_key },
        _ => AccessKeyPair::generate()?,
    };
    let gateway = Gateway::bind(
        Users::one(identity.clone(), Arc::new(MemoryStore::default())),
        GatewayConfig::new(listen),
    )?;
    writeln!(std::io::stdout(), "fordway: serving memory at http://{}", gateway.local_addr())?;
    writeln!(std::io::stdout(), "export AWS_ACCESS_KEY_ID={}", identity.access_key)?;
    writeln!(std::io::stdout(), "export AWS_SECRET_ACCESS_KEY={}", identity.secret_key)?;
    Ok(gateway.run()?)
}
