//! `serve` serves a directory as an S3 endpoint. `node` serves a directory to the programs on this node, or shows the
//! counters of its gateway.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_command::program::stop_when_asked;
use fordway_command::units::human_bytes;
use fordway_command::{CommandContext, CommandExit, InterruptFlag};
use fordway_posix::{OpenStores, PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, NodeTcpConfig};
use fordway_serve::{
    AccessKeyPair, AnonymousUser, Gateway, GatewayConfig, GatewaySockets, ReloadSignal, SessionTokenKeys,
    StoreOpenFunction, TlsCertificate, Users, Webhook,
};
use fordway_store::{Error, ErrorKind, Result, Store};
use serde::{Serialize, Serializer};

use super::{env_file, events, lifecycle};
use crate::args::{GatewayArgs, NodeArgs, ServeArgs};

/// Runs `serve`. `own_region` is the region of the buckets, if there is one.
pub(super) fn run(
    args: &ServeArgs,
    own_region: Option<&str>,
    context: &CommandContext,
) -> Result<CommandExit> {
    // A service manager may ask for a reload as soon as the process exists.
    let hang_ups = ReloadOnHangUp::default();
    hang_ups.register(&context.interrupt);
    let connections = connections_max(args.connections, (raise_open_files(), possible_connections), context);
    check_immutable_locks(args)?;
    let store = PosixConfig { open_stores: Some(closing_unused_files()?), ..args.store() };
    let (users, pair) = users(args, &store)?;
    let webhooks = args.events.configurations()?.into_iter().map(Webhook::new);
    let webhooks = webhooks.collect::<Result<Vec<_>>>()?;
    let tls = tls(args)?;
    let session_key = args.session_key.as_deref().map(SessionTokenKeys::load).transpose()?;
    let config = GatewayConfig {
        region: own_region.map(str::to_owned),
        session_key,
        webhooks: webhooks.clone(),
        ..config(args, connections, tls.clone())
    };
    let region = config.reported_region().to_owned();
    let gateway = Gateway::on(sockets(&config)?, users, config)?;
    if !gateway.local_addr().ip().is_loopback() && tls.is_none() {
        context.output.note(
            "listening beyond loopback without TLS: others can read requests and data on the \
             network",
        );
    }
    note_on_mount(&args.root, context);
    let root = args.root.display().to_string();
    let endpoint = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, gateway.local_addr());
    let published = GatewayCredentialsOutput::of(&args.common, (&endpoint, own_region), pair.as_ref())?;
    let ready = GatewayReadyMessage {
        root: &root,
        endpoint,
        metrics: gateway.metrics_addr().map(|address| format!("http://{address}/metrics")),
        published,
    };
    context.output.record(&ready)?;
    context.output.flush()?;
    let (stop, reload) = (gateway.stop_handle(), gateway.reload_handle());
    if let Some(interval) = args.lifecycle {
        lifecycle::in_background(&args.root, store.clone(), interval, args.lifecycle_day)?;
    }
    for webhook in webhooks {
        events::in_background(&args.root, store.clone(), webhook, (args.events.event_age, &region))?;
    }
    hang_ups.reload_with(reloading(reload, tls));
    stop_when_asked(move || stop.trigger(), &context.interrupt, args.common.until_eof)?;
    gateway.run()?;
    Ok(CommandExit::Ok)
}

/// The time between two searches for files that stores keep open but do not use.
const CLOSING_PERIOD: Duration = Duration::from_secs(1);

/// Returns a list of stores. A thread closes the unused directories and lock tables of these stores every second, so
/// that other programs can unmount the file systems. The thread ends when the process exits.
fn closing_unused_files() -> Result<OpenStores> {
    let stores = OpenStores::default();
    let opened = stores.clone();
    let work = move || {
        loop {
            std::thread::sleep(CLOSING_PERIOD);
            opened.close_unused();
        }
    };
    let started = std::thread::Builder::new().name("fordway-close".to_owned()).spawn(work);
    started.map_err(|error| {
        Error::new(ErrorKind::Io, "starting the thread that closes unused files").caused_by(error)
    })?;
    Ok(stores)
}

/// Raises the limit on open files as far as possible, and returns the limit; `None` means no limit or an unknown limit.
fn raise_open_files() -> Option<u64> {
    fordway_sys::raise_open_files().unwrap_or_else(|error| {
        tracing::warn!(%error, "the limit on open files cannot be raised; clients beyond it must wait");
        None
    })
}

/// Takes the sockets that a service manager passed, or binds the configured addresses.
fn sockets(config: &GatewayConfig) -> Result<GatewaySockets> {
    let passed = fordway_sys::take_passed_sockets().map_err(|errno| {
        let why =
            "the sockets of LISTEN_FDS are missing; make the service manager pass them, or unset LISTEN_PID";
        Error::new(ErrorKind::InvalidArgument, why).caused_by(std::io::Error::from(errno))
    })?;
    if passed.is_empty() { GatewaySockets::bind(config) } else { GatewaySockets::passed(passed, config) }
}

fn config(args: &ServeArgs, connections_max: u32, tls: Option<TlsCertificate>) -> GatewayConfig {
    GatewayConfig {
        tls,
        #[cfg(feature = "http3")]
        http3: args.http3,
        domains: args.domains.clone(),
        metrics: args.metrics,
        access_log: args.access_log.clone(),
        threads: args.threads,
        signature_v2: args.signature_v2,
        connections_max,
        head_bytes_max: args.head_bytes as usize,
        body_bytes_max: args.body_bytes.unwrap_or(u64::MAX),
        header_timeout: args.header_timeout,
        stall_timeout: args.stall_timeout,
        body_bytes_per_s_min: args.body_rate,
        user_limits: args.user_limits(connections_max),
        address_connections_max: args.address_connections,
        drain_timeout: args.drain_timeout,
        ..GatewayConfig::new(args.listen)
    }
}

/// Prints a note if the served mount is read-only, or if other nodes may change files in it and the root has no valid
/// mount verdict.
fn note_on_mount(root: &Path, context: &CommandContext) {
    let notes = [fordway_posix::note_on_read_only_mount(root), fordway_posix::note_on_mount(root)];
    notes.iter().flatten().for_each(|note| context.output.note(note));
}

/// Checks that the process may set the immutable flag, if an option requires it, because otherwise the missing
/// permission would be noticed only when an object is locked. Errors: `AccessDenied`.
fn check_immutable_locks(args: &ServeArgs) -> Result<()> {
    match !args.immutable_locks || fordway_sys::may_set_immutable() {
        true => Ok(()),
        false => {
            let why = "--immutable-locks needs the CAP_LINUX_IMMUTABLE capability; run the gateway as root, and if a \
                       systemd unit has CapabilityBoundingSet=, add the capability there";
            Err(Error::new(ErrorKind::AccessDenied, why))
        }
    }
}

/// Returns the users. If there is only one key pair, also returns the pair and whether it was generated.
fn users(args: &ServeArgs, store: &PosixConfig) -> Result<(Users, Option<(AccessKeyPair, bool)>)> {
    let store = store.clone();
    let root = std::path::absolute(&args.root)
        .map_err(|error| fordway_command::file_error("finding", args.root.display(), error))?;
    let opened = root.clone();
    let open: StoreOpenFunction = Arc::new(move || Ok(Arc::new(PosixStore::open(&opened, store.clone())?)));
    let (users, pair) = match &args.credentials {
        Some(credentials) => (Users::from_file(credentials, &root, open)?, None),
        None => {
            let pair = identity(&|name| std::env::var(name).ok())?;
            (Users::one_of(pair.0.clone(), &root, open)?, Some(pair))
        }
    };
    match &args.anonymous_user {
        None => Ok((users, pair)),
        Some(name) => Ok((users.with_anonymous(anonymous(name)?)?, pair)),
    }
}

/// Looks up the system user that carries out anonymous requests. Errors: `InvalidArgument` if there is no such user.
fn anonymous(name: &str) -> Result<AnonymousUser> {
    let found = fordway_sys::user_named(name).ok_or_else(|| {
        let why = format!("the system has no user {name:?}; use a user from `getent passwd`, such as nobody");
        Error::new(ErrorKind::InvalidArgument, why)
    })?;
    Ok(AnonymousUser { name: name.to_owned(), acts_as: Some(found) })
}

/// Returns the certificate, if one is configured.
fn tls(args: &ServeArgs) -> Result<Option<TlsCertificate>> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    TlsCertificate::load(certificate, key).map(Some)
}

/// Handles SIGHUP. A signal that arrives before the gateway can reload its files is remembered, because it must not
/// stop the gateway.
#[derive(Clone, Default)]
struct ReloadOnHangUp(Arc<Mutex<HangUpState>>);

#[derive(Default)]
struct HangUpState {
    reload: Option<Box<dyn Fn() + Send>>,
    /// Whether a signal has arrived before `reload` was set.
    is_pending: bool,
}

impl ReloadOnHangUp {
    fn register(&self, interrupt: &InterruptFlag) {
        let hang_ups = self.clone();
        interrupt.on_hang_up(move || hang_ups.hang_up());
    }

    fn locked(&self) -> MutexGuard<'_, HangUpState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang_up(&self) {
        let mut state = self.locked();
        match &state.reload {
            Some(reload) => reload(),
            None => state.is_pending = true,
        }
    }

    /// Makes SIGHUP call `reload`. Calls `reload` now if a signal has already arrived.
    fn reload_with(&self, reload: impl Fn() + Send + 'static) {
        let mut state = self.locked();
        if std::mem::take(&mut state.is_pending) {
            reload();
        }
        state.reload = Some(Box::new(reload));
    }
}

/// Returns a function that rereads the credentials file, reopens the access log, and reloads the certificate and its
/// key.
fn reloading(reload: ReloadSignal, tls: Option<TlsCertificate>) -> impl Fn() + Send + 'static {
    move || {
        reload.trigger();
        match tls.as_ref().map(TlsCertificate::reload) {
            None => {}
            Some(Ok(())) => tracing::info!("reloaded the certificate and its key"),
            Some(Err(error)) => tracing::error!(%error, "continuing with the previous certificate"),
        }
    }
}

/// The output when the gateway is ready.
#[derive(Serialize)]
struct GatewayReadyMessage<'r> {
    root: &'r str,
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
    #[serde(flatten)]
    published: GatewayCredentialsOutput<'r>,
}

fn keys<S: serde::Serializer>(identity: &Option<&AccessKeyPair>, serializer: S) -> Result<S::Ok, S::Error> {
    let pair = identity.map(|identity| [&identity.access_key, &identity.secret_key]);
    pair.serialize(serializer)
}

impl fmt::Display for GatewayReadyMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fordway: serving {} at {}", self.root, self.endpoint)?;
        if let Some(metrics) = &self.metrics {
            write!(f, "\nfordway: metrics at {metrics}")?;
        }
        self.published.fmt(f)
    }
}

/// Tells programs how to access the gateway. Contains the path of the file with the address and the keys, or the
/// generated keys.
#[derive(Serialize)]
struct GatewayCredentialsOutput<'r> {
    #[serde(serialize_with = "keys", skip_serializing_if = "Option::is_none")]
    generated: Option<&'r AccessKeyPair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env_file: Option<&'r Path>,
}

impl<'r> GatewayCredentialsOutput<'r> {
    /// Writes the file, if `--write-env` requests one. `pair` is the key pair, if there is only one, with a flag that
    /// is `true` if the pair was generated.
    fn of(
        args: &'r GatewayArgs,
        (endpoint, region): (&str, Option<&str>),
        pair: Option<&'r (AccessKeyPair, bool)>,
    ) -> Result<Self> {
        let generated = pair.and_then(|(keys, is_generated)| is_generated.then_some(keys));
        let Some(path) = &args.write_env else {
            return Ok(GatewayCredentialsOutput { generated, env_file: None });
        };
        env_file::write(path, (endpoint, region), pair.map(|(keys, _)| keys))?;
        // Keys that are in a protected file are not printed, because output may be written to logs.
        Ok(GatewayCredentialsOutput { generated: None, env_file: Some(path) })
    }
}

/// Formats the output: the path of the file, if one was written, and generated keys as lines for a shell.
impl fmt::Display for GatewayCredentialsOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.env_file {
            write!(f, "\nfordway: endpoint and keys are in {}", path.display())?;
        }
        let Some(AccessKeyPair { access_key, secret_key }) = self.generated else { return Ok(()) };
        write!(f, "\nexport AWS_ACCESS_KEY_ID={access_key}\nexport AWS_SECRET_ACCESS_KEY={secret_key}")
    }
}

/// Returns the key pair in the environment, or generates a key pair; the flag is `true` if the pair was generated.
/// Errors: `InvalidArgument` if only one of the two keys is set.
pub(super) fn identity(variable: &dyn Fn(&str) -> Option<String>) -> Result<(AccessKeyPair, bool)> {
    let get = |name: &str| variable(name).filter(|value| !value.is_empty());
    match (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret_key)) => Ok((AccessKeyPair { access_key, secret_key }, false)),
        (None, None) => Ok((AccessKeyPair::generate()?, true)),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both, or neither to \
             generate a key pair",
        )),
    }
}

pub(super) fn node(args: &NodeArgs, context: &CommandContext) -> Result<CommandExit> {
    let variable = |name: &str| std::env::var(name).ok();
    let socket = args.socket.clone().map_or_else(|| default_socket(&variable), Ok)?;
    let Some(root) = &args.root else { return node_status(socket, context) };
    let pair = args.tcp.map(|_| identity(&variable)).transpose()?;
    let tcp = args.tcp.zip(pair.clone()).map(|(listen, (keys, _))| NodeTcpConfig {
        listen,
        keys,
        may_be_root: args.tcp_as_root,
    });
    let mut config = NodeGatewayConfig {
        mode: args.mode,
        allow_uids: args.allow_uids.clone(),
        tcp,
        ..NodeGatewayConfig::new(socket)
    };
    let possible = (raise_open_files(), possible_connections_of_node);
    config.connections_max = connections_max(u32::from(args.connections), possible, context) as usize;
    config.requests_max = args.requests.map(usize::from);
    config.memory_bytes_max = bytes(args.memory);
    config.connection_bytes_max = bytes(args.connection_memory);
    let share = |all: u64| all.div_ceil(args.shares());
    config.user_connections_max =
        bytes(args.user_connections.map_or_else(|| share(config.connections_max as u64), u64::from));
    config.user_memory_bytes_max = bytes(args.user_memory.unwrap_or_else(|| share(args.memory)));
    config.user_limits.requests_max = args.user_requests;
    let gateway = NodeGateway::bind(open_store(root, args)?, config)?;
    if args.tcp.is_some_and(|tcp| !tcp.ip().is_loopback()) {
        context.output.note(
            "listening beyond loopback: clients prove that they know the secret key, but \
             data is not encrypted",
        );
    }
    note_on_mount(root, context);
    let endpoint = gateway.endpoint();
    let ready = NodeReadyMessage {
        root: root.display().to_string(),
        tcp_endpoint: gateway.tcp_addr().map(|address| format!("tcp://{address}")),
        published: GatewayCredentialsOutput::of(&args.common, (&endpoint, None), pair.as_ref())?,
        endpoint,
    };
    context.output.record(&ready)?;
    context.output.flush()?;
    let stop = gateway.stop_handle();
    stop_when_asked(move || stop.trigger(), &context.interrupt, args.common.until_eof)?;
    gateway.run()?;
    Ok(CommandExit::Ok)
}

/// The number of file descriptors that a gateway itself needs.
const OWN_DESCRIPTORS: u64 = 64;
/// The number of file descriptors that a connection of the node gateway may need: its socket, and the files and
/// directories of its request.
const DESCRIPTORS_PER_NODE_CONNECTION: u64 = 4;
/// The number of file descriptors that `serve` reserves for the files and directories of requests, so that idle
/// connections cannot use all descriptors. At most half of all descriptors are reserved.
const DESCRIPTORS_OF_REQUESTS: u64 = 2048;

/// Returns the number of connections of the node gateway that a limit on open files permits.
fn possible_connections_of_node(open_files: u64) -> u64 {
    open_files.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS_PER_NODE_CONNECTION
}

/// Returns the number of connections of `serve` that a limit on open files permits.
fn possible_connections(open_files: u64) -> u64 {
    let available = open_files.saturating_sub(OWN_DESCRIPTORS);
    available - DESCRIPTORS_OF_REQUESTS.min(available.div_ceil(2))
}

/// Returns the maximum number of connections of a gateway: `wanted`, reduced to the number that the limit on open files
/// permits according to `possible`. Prints a note if the number was reduced.
fn connections_max(
    wanted: u32,
    (open_files, possible): (Option<u64>, impl Fn(u64) -> u64),
    context: &CommandContext,
) -> u32 {
    let Some(limit) = open_files else { return wanted };
    let possible = u32::try_from(possible(limit).max(1)).unwrap_or(u32::MAX);
    if possible < wanted {
        context.output.note(&format!(
            "the limit of {limit} open files allows {possible} connections instead of {wanted}; to allow more, raise \
             `ulimit -Hn`"
        ));
    }
    possible.min(wanted)
}

/// Returns a function that opens the store with the calling thread's user ID. The path is made absolute once, so that
/// each user opens the same directory.
fn open_store(root: &Path, args: &NodeArgs) -> Result<fordway_serve::StoreOpenFunction> {
    let config = PosixConfig { open_stores: Some(closing_unused_files()?), ..args.common.store(args.etag) };
    let root = std::path::absolute(root)
        .map_err(|error| fordway_command::file_error("finding", root.display(), error))?;
    Ok(Arc::new(move || Ok(Arc::new(PosixStore::open(&root, config.clone())?) as Arc<dyn Store>)))
}

/// Converts a size to `usize`; returns the largest `usize` if the size does not fit.
fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Returns `$XDG_RUNTIME_DIR/fordway.sock`. Errors: `InvalidArgument` if the variable is not set.
fn default_socket(variable: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    match variable("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Ok(PathBuf::from(dir).join("fordway.sock")),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            "XDG_RUNTIME_DIR is not set, so the socket has no default path; specify one with --socket PATH",
        )),
    }
}

/// The output when the gateway is ready.
#[derive(Serialize)]
struct NodeReadyMessage<'r> {
    root: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_endpoint: Option<String>,
    endpoint: String,
    #[serde(flatten)]
    published: GatewayCredentialsOutput<'r>,
}

impl fmt::Display for NodeReadyMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fordway: serving {}", self.root)?;
        if let Some(tcp) = &self.tcp_endpoint {
            write!(f, " at {tcp} and")?;
        }
        write!(f, " at {}", self.endpoint)?;
        self.published.fmt(f)
    }
}

pub(super) fn node_status(socket: PathBuf, context: &CommandContext) -> Result<CommandExit> {
    let address = NodeAddress::Unix(socket);
    let endpoint = address.to_string();
    let counters = NodeStore::new(address).stats()?;
    context.output.record(&GatewayCounters { endpoint, counters })?;
    Ok(CommandExit::Ok)
}

/// Counters with their names, in the gateway's order.
struct GatewayCounters {
    endpoint: String,
    counters: Vec<(String, u64)>,
}

/// Serializes the counters as one object, `endpoint` first.
impl Serialize for GatewayCounters {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(1 + self.counters.len()))?;
        map.serialize_entry("endpoint", &self.endpoint)?;
        for (name, count) in &self.counters {
            map.serialize_entry(name, count)?;
        }
        map.end()
    }
}

/// Formats the counters as a table, with human-readable sizes.
impl fmt::Display for GatewayCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.endpoint)?;
        let width = self.counters.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, count) in &self.counters {
            let is_bytes = name.split('_').any(|word| word == "bytes");
            let shown = if is_bytes { human_bytes(*count) } else { count.to_string() };
            write!(f, "\n  {name:<width$}  {shown:>12}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_leave_descriptors_to_requests() {
        let possible = [0, 64, 100, 1024, 4096, 20_000].map(possible_connections);
        assert_eq!(possible, [0, 0, 18, 480, 2016, 17_888]);
        assert_eq!([64, 200, 20_000].map(possible_connections_of_node), [0, 34, 4984]);
    }

    #[test]
    fn half_a_pair_is_refused_and_none_makes_one() {
        let (made, is_generated) = identity(&|_| None).unwrap();
        assert!(is_generated && made.secret_key.len() >= 40);
        let half = identity(&|name| (name == "AWS_ACCESS_KEY_ID").then(|| "x".to_owned()));
        assert_eq!(half.err().map(|error| error.kind()), Some(ErrorKind::InvalidArgument));
        let (given, is_generated) = identity(&|name| Some(name.to_owned())).unwrap();
        assert!(!is_generated && given.access_key == "AWS_ACCESS_KEY_ID");
    }
}
