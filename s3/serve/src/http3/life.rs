//! Tells when QUIC has freed the memory of a connection that has ended.
//!
//! QUIC keeps a connection for three probe timeouts after its end (RFC 9000 section 10.2). The client determines this
//! time: it announces by how much it may delay acknowledgements (up to 16 s, RFC 9000 section 18.2), and its
//! acknowledgements determine the measured round-trip time. quinn does not report when it frees a connection, but each
//! connection owns its congestion controller. The controllers of this module contain a token that is dropped with the
//! connection.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use quinn::TransportConfig;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

/// The interval between two checks whether QUIC has freed a connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

type CongestionControl = Arc<dyn ControllerFactory + Send + Sync>;

/// Lets [`ConnectionLife`] observe the connections with these settings, which use `control`.
pub(super) fn observe(transport: &mut TransportConfig, control: CongestionControl) {
    transport.congestion_controller_factory(Arc::new(ObservedControl(control)));
}

struct ObservedControl(CongestionControl);

impl ControllerFactory for ObservedControl {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let controller = self.0.clone().build(now, current_mtu);
        Box::new(ObservedController { controller, token: Arc::new(()) })
    }
}

/// A congestion controller with a token. The copies of a controller share the token.
struct ObservedController {
    controller: Box<dyn Controller>,
    token: Arc<()>,
}

impl Controller for ObservedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.controller.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        round_trip: &RttEstimator,
    ) {
        self.controller.on_ack(now, sent, bytes, app_limited, round_trip);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.controller.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.controller.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.controller.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.controller.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.controller.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(ObservedController { controller: self.controller.clone_box(), token: self.token.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.controller.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The life of a connection in QUIC, which continues for some time after the connection has ended.
pub(super) struct ConnectionLife(Weak<()>);

impl ConnectionLife {
    /// Observes the connection. A connection that was not prepared by [`observe`] counts as freed.
    pub(super) fn of(connection: &quinn::Connection) -> Self {
        let controller = connection.congestion_state().into_any().downcast::<ObservedController>();
        ConnectionLife(controller.map(|observed| Arc::downgrade(&observed.token)).unwrap_or_default())
    }

    /// Waits until QUIC has freed the connection. The caller has dropped its handles of the connection.
    pub(super) async fn is_over(&self) {
        while self.0.strong_count() > 0 {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
impl ConnectionLife {
    /// The life of a connection that QUIC keeps until the test drops `token`.
    pub(super) fn until_dropped(token: &Arc<()>) -> Self {
        ConnectionLife(Arc::downgrade(token))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use quinn::congestion::CubicConfig;
    use quinn::rustls::RootCertStore;
    use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
    use quinn::{ClientConfig, Endpoint, ServerConfig};

    use super::*;

    /// Connects two endpoints on loopback. Returns them, and both ends of the connection, the server's end last.
    async fn connection() -> ([Endpoint; 2], [quinn::Connection; 2]) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key.into()).unwrap();
        let mut transport = TransportConfig::default();
        observe(&mut transport, Arc::new(CubicConfig::default()));
        config.transport_config(Arc::new(transport));
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (server, client) = (Endpoint::server(config, any).unwrap(), Endpoint::client(any).unwrap());
        let config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
        let connecting = client.connect_with(config, server.local_addr().unwrap(), "localhost").unwrap();
        let accepted = server.accept().await.unwrap();
        let (near, far) = tokio::join!(connecting, accepted);
        ([client, server], [near.unwrap(), far.unwrap()])
    }

    #[tokio::test]
    async fn a_life_ends_when_quic_has_freed_the_connection() {
        let (endpoints, [client, server]) = connection().await;
        let life = ConnectionLife::of(&server);
        let also = ConnectionLife::of(&server);
        client.close(0_u32.into(), b"");
        server.closed().await;
        drop(server);
        assert_eq!(endpoints[1].open_connections(), 1, "QUIC keeps the connection for some time");
        assert!(life.0.strong_count() > 0);
        tokio::time::timeout(Duration::from_secs(20), life.is_over()).await.unwrap();
        assert_eq!(endpoints[1].open_connections(), 0);
        also.is_over().await;
    }
}
