//! The S3 layer by itself, without a connection: to learn what an answer costs whatever protocol brings it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{Request, Response};
use http_body::SizeHint;

use crate::answer::{Limits, Shared};
use crate::caller::Caller;
use crate::domains::Domains;
use crate::http1::FastLane;
use crate::monitor::Monitor;
use crate::multiplexed::HeldBytes;
use crate::{GatewayConfig, Users, multiplexed, s3};

/// Answers requests without content as a gateway does that was asked over HTTP/2 or HTTP/3, from the head on.
pub struct S3Layer {
    shared: Shared,
    caller: Caller,
    held: HeldBytes,
}

impl S3Layer {
    /// For requests of `users`, with the limits of [`GatewayConfig::new`].
    pub fn new(users: Users) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = GatewayConfig::new(nowhere);
        let users = Arc::new(users);
        let shared = Shared {
            service: s3::service(users.clone(), &config, Domains::none()),
            fast_lane: FastLane::new(users.clone(), Domains::none()),
            domains: Domains::none(),
            users,
            monitor: Arc::new(Monitor::new(None)),
            http3: None,
            tls: None,
            limits: Limits::from(&config),
            region: config.region,
            allows_version_2: false,
        };
        S3Layer { shared, caller: Caller::Remote(nowhere), held: HeldBytes::default() }
    }

    /// The answer, with its content as the store gave it, unread; what goes wrong is part of the answer.
    pub async fn answer(&self, request: Request<()>) -> Response<()> {
        let request = request.map(|()| s3s::Body::empty());
        multiplexed::exchange((&self.shared, &self.held), &self.caller, request, SizeHint::with_exact(0))
            .await
            .map(drop)
    }
}
