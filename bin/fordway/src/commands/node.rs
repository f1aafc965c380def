//! `node`: a directory for the programs of this node.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_command::program::stop_when_asked;
use fordway_command::{Context, Exit};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::Identity;
use fordway_serve::node::{NodeConfig, NodeGateway, NodeTcp};
use fordway_store::{Error, ErrorKind, Result, Store};
use serde::Serialize;

use super::node_status;
use super::serve::{identity, keys, write_keys};
use crate::args::{ConditionsArg, NodeArgs};

pub(super) fn run(args: &NodeArgs, context: &Context) -> Result<Exit> {
    let variable = |name: &str| std::env::var(name).ok();
    let socket = args.socket.clone().map_or_else(|| default_socket(&variable), Ok)?;
    let Some(root) = &args.root else { return node_status::run(socket, context) };
    let pair = args.tcp.map(|_| identity(&variable)).transpose()?;
    let tcp = args.tcp.zip(pair.clone()).map(|(listen, (keys, _))| NodeTcp {
        listen,
        keys,
        may_be_root: args.tcp_as_root,
    });
    let mut config =
        NodeConfig { mode: args.mode, allow_uids: args.allow_uids.clone(), tcp, ..NodeConfig::new(socket) };
    config.connections_max = args.connections.into();
    config.requests_max = args.requests.map(usize::from);
    config.memory_bytes_max = bytes(args.memory);
    config.connection_bytes_max = bytes(args.connection_memory);
    let gateway = NodeGateway::bind(open_store(root, args)?, config)?;
    if args.tcp.is_some_and(|tcp| !tcp.ip().is_loopback()) {
        context.output.note(
            "listening beyond this machine: clients prove that they know the secret, but data is sent in the clear",
        );
    }
    let ready = Ready {
        root: root.display().to_string(),
        tcp_endpoint: gateway.tcp_addr().map(|address| format!("tcp://{address}")),
        endpoint: gateway.endpoint(),
        generated: pair.as_ref().and_then(|(keys, is_generated)| is_generated.then_some(keys)),
    };
    context.output.record(&ready)?;
    context.output.flush()?;
    let stop = gateway.stop_handle();
    stop_when_asked(move || stop.trigger(), &context.interrupt, args.until_eof)?;
    gateway.run()?;
    Ok(Exit::Ok)
}

/// Opens the store as the user that the calling thread acts as. The path is made absolute once: each user
/// opens the same directory.
fn open_store(root: &Path, args: &NodeArgs) -> Result<fordway_serve::OpenStore> {
    let config = PosixConfig {
        etag_policy: args.etag.into(),
        durability: args.durability.into(),
        if_match: args.conditions == ConditionsArg::All,
        ..PosixConfig::default()
    };
    let root = std::path::absolute(root)
        .map_err(|error| fordway_command::file_error("finding", root.display(), error))?;
    Ok(Arc::new(move || Ok(Arc::new(PosixStore::open(&root, config.clone())?) as Arc<dyn Store>)))
}

/// A size as the address space has room for it.
fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// `$XDG_RUNTIME_DIR/fordway.sock`. Errors: `InvalidArgument` where there is no such directory.
fn default_socket(variable: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    match variable("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Ok(PathBuf::from(dir).join("fordway.sock")),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            "XDG_RUNTIME_DIR is not set, so there is no usual place for the socket; name one with --socket PATH",
        )),
    }
}

/// What is printed when the gateway can be used.
#[derive(Serialize)]
struct Ready<'r> {
    root: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_endpoint: Option<String>,
    endpoint: String,
    #[serde(serialize_with = "keys", skip_serializing_if = "Option::is_none")]
    generated: Option<&'r Identity>,
}

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fordway: serving {}", self.root)?;
        if let Some(tcp) = &self.tcp_endpoint {
            write!(f, " at {tcp} and")?;
        }
        write!(f, " at {}", self.endpoint)?;
        self.generated.map_or(Ok(()), |keys| write_keys(keys, f))
    }
}
