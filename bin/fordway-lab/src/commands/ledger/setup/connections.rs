//! The paths of GETs on new connections. The paths show how much longer a GET takes on a new connection than on a
//! reused connection, and how much time the resumption of a TLS session saves.

use fordway_store::Result;
use fordway_workload::ledger::PathDecomposition;
use rustls::HandshakeKind;

use super::{LedgerObjectLocation, PreparedLedgerRun, names};
use crate::args::LedgerPathArg;
use crate::commands::gateway::GatewayProcess;
use crate::commands::ledger::components::connections::{
    ConnectionHandshakeKind, TcpConnectionComponent, TrustedCertificatesComponent,
};
use crate::commands::ledger::components::handshake::TlsHandshakeComponent;
#[cfg(feature = "http3")]
use crate::commands::ledger::components::quic::{
    Http3MessageSizes, QuicConnectionComponent, QuicHandshakeKind,
};
use crate::commands::ledger::components::storage::{MeasuredObject, ObjectGetComponent};

impl PreparedLedgerRun {
    /// Adds a GET over HTTP/1.1 on new connections, and the GET on a reused connection.
    pub(super) fn http_new(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.path(LedgerPathArg::Http, site)?;
        self.tcp_connections()?;
        let gateway = PreparedLedgerRun::gateway(site.root)?;
        self.fresh_get(names::HTTP_GET_NEW_CONNECTION, "HTTP/1.1", &gateway, site)?;
        self.gateways.push(gateway);
        let path = PathDecomposition::new(names::HTTP_GET_NEW_CONNECTION).with(names::HTTP_GET);
        self.paths.push(path.with_beyond(names::NEW_TCP, names::KEPT_TCP));
        Ok(())
    }

    /// Adds a GET over HTTPS on new connections, the GET on a reused connection, and a GET that resumes a TLS session.
    pub(super) fn https_new(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.path(LedgerPathArg::Https, site)?;
        self.tcp_connections()?;
        self.tls_connections()?;
        let gateway = PreparedLedgerRun::tls_gateway(site.root)?;
        self.fresh_get(names::HTTPS_GET_NEW_CONNECTION, "HTTP/1.1 and TLS", &gateway, site)?;
        self.resuming_get(names::HTTPS_GET_RESUMED_SESSION, "HTTP/1.1 and TLS", &gateway, site)?;
        self.gateways.push(gateway);
        let base = |name| {
            PathDecomposition::new(name).with(names::HTTPS_GET).with_beyond(names::NEW_TCP, names::KEPT_TCP)
        };
        let full = base(names::HTTPS_GET_NEW_CONNECTION).with_beyond(names::NEW_TLS, names::NEW_TCP);
        self.paths.push(full.with(names::TLS_SETTINGS));
        self.paths
            .push(base(names::HTTPS_GET_RESUMED_SESSION).with_beyond(names::RESUMED_TLS, names::NEW_TCP));
        Ok(())
    }

    /// Adds a GET over HTTP/3 on new connections, the GET on a reused connection, and a GET that resumes a TLS session.
    /// If the GET on a reused connection was skipped, also skips the two GETs on new connections.
    #[cfg(feature = "http3")]
    pub(super) fn http3_new(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.path(LedgerPathArg::Http3, site)?;
        if !self.paths.iter().any(|path| path.name == names::HTTP3_GET) {
            self.left_out
                .push("skipped the path http3 get, new connection: http3 get is left out".to_owned());
            return Ok(());
        }
        let request = self.multiplexed_get_request(site)?;
        let messages = Http3MessageSizes::new(&request, &self.certificate()?);
        for (name, description, setup) in [
            (
                names::NEW_QUIC,
                "the same on new connections: full handshake, certificate verified",
                QuicHandshakeKind::Full,
            ),
            (
                names::RESUMED_QUIC,
                "the same on new connections that resume a session",
                QuicHandshakeKind::Resumed,
            ),
        ] {
            self.add(name, description, || Ok(Box::new(QuicConnectionComponent::new(setup, &messages)?)))?;
        }
        self.tls_in_memory()?;
        let gateway = PreparedLedgerRun::http3_gateway(site.root)?;
        self.fresh_get(names::HTTP3_GET_NEW_CONNECTION, "HTTP/3", &gateway, site)?;
        self.resuming_get(names::HTTP3_GET_RESUMED_SESSION, "HTTP/3", &gateway, site)?;
        self.gateways.push(gateway);
        let base = |name| PathDecomposition::new(name).with(names::HTTP3_GET);
        let full = base(names::HTTP3_GET_NEW_CONNECTION).with_beyond(names::NEW_QUIC, names::QUIC_ROUND_TRIP);
        self.paths.push(full.with(names::TLS_SETTINGS));
        self.paths.push(
            base(names::HTTP3_GET_RESUMED_SESSION).with_beyond(names::RESUMED_QUIC, names::QUIC_ROUND_TRIP),
        );
        Ok(())
    }

    /// Records that the path is skipped, because this program is built without HTTP/3.
    #[cfg(not(feature = "http3"))]
    pub(super) fn http3_new(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.path(LedgerPathArg::Http3, site)?;
        self.left_out.push("skipped the path http3 get, new connection: http3 get is left out".to_owned());
        Ok(())
    }

    fn tcp_connections(&mut self) -> Result<()> {
        self.connections([
            (
                names::KEPT_TCP,
                "the smallest messages over TCP on a kept connection",
                ConnectionHandshakeKind::Kept,
            ),
            (names::NEW_TCP, "the same on a new connection", ConnectionHandshakeKind::Tcp),
        ])
    }

    fn tls_connections(&mut self) -> Result<()> {
        self.connections([
            (
                names::NEW_TLS,
                "the same with TLS: full handshake, certificate verified",
                ConnectionHandshakeKind::FullTls,
            ),
            (
                names::RESUMED_TLS,
                "the same with TLS that resumes a session",
                ConnectionHandshakeKind::ResumedTls,
            ),
        ])?;
        self.tls_in_memory()
    }

    fn connections(
        &mut self,
        setups: [(&'static str, &'static str, ConnectionHandshakeKind); 2],
    ) -> Result<()> {
        let certificate = self.certificate()?;
        for (name, description, setup) in setups {
            self.add(name, description, || Ok(Box::new(TcpConnectionComponent::new(setup, &certificate)?)))?;
        }
        Ok(())
    }

    fn tls_in_memory(&mut self) -> Result<()> {
        let certificate = self.certificate()?;
        let description = "our client's TLS settings made, from a file with one trusted certificate";
        self.add(names::TLS_SETTINGS, description, || {
            Ok(Box::new(TrustedCertificatesComponent(certificate)))
        })?;
        let description = "both sides of a full TLS handshake, in memory";
        self.add("tls handshake", description, || {
            Ok(Box::new(TlsHandshakeComponent::new(HandshakeKind::Full)?))
        })?;
        let description = "both sides of a TLS handshake that resumes a session, in memory";
        self.add("tls handshake, resumed", description, || {
            Ok(Box::new(TlsHandshakeComponent::new(HandshakeKind::Resumed)?))
        })
    }

    /// Adds GETs, each of which is the first request of a new client, as in a program that makes only one request.
    fn fresh_get(
        &mut self,
        name: &str,
        protocol: &str,
        gateway: &GatewayProcess,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let objects = MeasuredObject::new(gateway.client()?, &site.bucket, &site.contents)?;
        let (pid, new_client) = (gateway.pid(), gateway.new_clients());
        let description = format!("S3 over {protocol} on loopback, each by a new client");
        self.add(name, &description, || {
            let get = ObjectGetComponent::new(objects, Some(pid));
            Ok(Box::new(get.each_by(Box::new(new_client))))
        })
    }

    /// Adds GETs of one client, which opens a connection for each GET and resumes the TLS session of the previous GET.
    fn resuming_get(
        &mut self,
        name: &str,
        protocol: &str,
        gateway: &GatewayProcess,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<()> {
        let client = gateway.client_without_pool()?;
        let objects = MeasuredObject::new(client, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        let description = format!("S3 over {protocol} on loopback, each on a new connection of one client");
        self.add(name, &description, || Ok(Box::new(ObjectGetComponent::new(objects, Some(pid)))))
    }
}
