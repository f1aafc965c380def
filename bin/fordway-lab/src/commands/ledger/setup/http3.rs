//! The paths over HTTP/3, which consist of three layers: UDP datagrams, QUIC streams over these datagrams, and HTTP/3
//! requests over these streams. A separate round trip measures each layer. The cost of a layer is the difference
//! between its time and the time of the layer below it.

use std::path::Path;

use fordway_posix::Durability;
use fordway_store::{ETagPolicy, ErrorKind, Result};
use fordway_workload::ledger::PathDecomposition;

use super::paths::{GET_PIECES, PUT_CONTENT};
use super::{LedgerObjectLocation, PreparedLedgerRun, names};
use crate::commands::gateway::GatewayProcess;
use crate::commands::ledger::components::ObjectOperation;
use crate::commands::ledger::components::protection::PacketProtectionComponent;
use crate::commands::ledger::components::quic::{
    Http3MessageSizes, Http3RoundTripComponent, QuicRoundTripComponent, UdpRoundTripComponent,
};
use crate::commands::ledger::components::request::{HttpMessageHeads, S3RequestTemplate};
use crate::commands::ledger::components::round_trip::{MessageSizeFunction, MessageSizes};
use crate::commands::ledger::components::socket_pair::SocketPairComponent;
use crate::commands::ledger::echo::ReplySendMethod;

impl PreparedLedgerRun {
    /// Starts a gateway that serves HTTP/3.
    pub(super) fn http3_gateway(root: &Path) -> Result<GatewayProcess> {
        GatewayProcess::start_http3(root, ETagPolicy::Fast, Durability::None)
    }

    /// Adds a path over HTTP/3. Skips the path if the gateway does not support HTTP/3.
    pub(super) fn http3_path(
        &mut self,
        operation: ObjectOperation,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let path = operation.path_over("http3");
        let gateway = match PreparedLedgerRun::http3_gateway(site.root) {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.left_out.push(format!("skipped the path {path}: {error} with --http3"));
                return Ok(());
            }
            started => started?,
        };
        let request = match operation {
            ObjectOperation::Get => self.multiplexed_get_request(site)?,
            ObjectOperation::Put => self.put_request(site)?,
        };
        let description = "content protected in packets of QUIC (RFC 9001) and opened again, both in memory";
        self.add("packet protection", description, || {
            Ok(Box::new(PacketProtectionComponent::new(&site.contents)?))
        })?;
        self.round_trips(operation, &request, site)?;
        let description = "S3 over HTTP/3 on loopback, a gateway process";
        let whole = match operation {
            ObjectOperation::Get => self.whole(&path, description, site, gateway),
            ObjectOperation::Put => self.whole_put(&path, description, site, gateway),
        };
        whole?;
        self.paths.push(decomposition(&path, operation));
        Ok(())
    }

    /// Adds the round trips of the layers, and the round trip between the client's threads.
    fn round_trips(
        &mut self,
        operation: ObjectOperation,
        request: &S3RequestTemplate,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let messages = Http3MessageSizes::new(request, &self.certificate()?);
        let description = "datagrams as many and as long as QUIC's over loopback UDP to a process that only \
                           responds, and back, by QUIC's socket code";
        self.add(&named(names::UDP_ROUND_TRIP, operation), description, || {
            Ok(Box::new(UdpRoundTripComponent::new(&messages)?))
        })?;
        let description = "messages as long as HTTP/3's on a stream of QUIC to a process that only responds";
        self.add(&named(names::QUIC_ROUND_TRIP, operation), description, || {
            Ok(Box::new(QuicRoundTripComponent::new(&messages)?))
        })?;
        let description = "a request over HTTP/3 to a process that responds with the gateway's head";
        self.add(&named(names::HTTP3_ROUND_TRIP, operation), description, || {
            Ok(Box::new(Http3RoundTripComponent::new(&messages, &site.contents)?))
        })?;
        let description =
            "messages as long as HTTP/1.1's over a pair of sockets to a thread that only responds";
        self.add(&named(names::SOCKET_PAIR_ROUND_TRIP, operation), description, || {
            Ok(Box::new(SocketPairComponent::new(pair_messages(request.clone()))))
        })
    }
}

/// Returns the name of a component that is different for gets and puts.
fn named(component: &str, operation: ObjectOperation) -> String {
    match operation {
        ObjectOperation::Get => component.to_owned(),
        ObjectOperation::Put => format!("{component}, put"),
    }
}

/// Returns the sizes of the messages between the caller and the thread that translates HTTP/1.1 to HTTP/3.
fn pair_messages(request: S3RequestTemplate) -> MessageSizeFunction {
    Box::new(move |size_bytes: u64| {
        let HttpMessageHeads { asked, answered } = request.heads(size_bytes)?;
        let (size, form) = (size_bytes as usize, ReplySendMethod::Bytes);
        let (sent, body_bytes) = match request.operation() {
            ObjectOperation::Get => (0, size),
            ObjectOperation::Put => (size, 0),
        };
        let (request_bytes, head_bytes) = (asked.len() + sent, answered.len());
        Ok(MessageSizes { request_bytes, head_bytes, body_bytes, form, rest_bytes: sent })
    })
}

fn decomposition(path: &str, operation: ObjectOperation) -> PathDecomposition {
    let begun = PathDecomposition::new(path);
    let (content, heads, layer) = match operation {
        ObjectOperation::Get => (GET_PIECES, names::HTTP1_HEADS, names::S3_LAYER),
        ObjectOperation::Put => (PUT_CONTENT, names::HTTP1_HEADS_PUT, names::S3_LAYER_PUT),
    };
    let begun = content.into_iter().fold(begun, |path, component| path.with(component));
    let [udp, quic, http3, pair] = [
        names::UDP_ROUND_TRIP,
        names::QUIC_ROUND_TRIP,
        names::HTTP3_ROUND_TRIP,
        names::SOCKET_PAIR_ROUND_TRIP,
    ]
    .map(|component| named(component, operation));
    begun
        .with(&udp)
        .with_beyond(&quic, &udp)
        .with_beyond(&http3, &quic)
        .with(&pair)
        // The client writes its requests in HTTP/1.1 format, and the thread translates them to HTTP/3.
        .with(heads)
        .with(names::SIGN)
        .with(layer)
}
