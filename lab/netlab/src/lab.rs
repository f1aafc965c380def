//! Two namespaces and what joins them: the set-up of an experiment.

use std::collections::BTreeMap;

use fordway_store::Result;

use crate::congestion::set_algorithm;
use crate::link::DEVICE;
use crate::{Link, LinkConfig, LinkStats, Namespace};

/// Where the server is, as the client sees it.
pub const SERVER_ADDRESS: &str = "10.77.0.1";
/// Where the client is, as the server sees it.
pub const CLIENT_ADDRESS: &str = "10.77.0.2";

/// What a lab is like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabConfig {
    /// The link; `None` for virtual Ethernet as fast as the machine is.
    pub link: Option<LinkConfig>,
    /// How large TCP lets the buffers of a connection grow by itself, bytes; `None` for the kernel's default.
    pub tcp_buffer_bytes: Option<u64>,
    /// TCP's congestion control; `None` for the kernel's default.
    pub congestion_control: Option<String>,
}

/// A server's and a client's network, joined. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct Lab {
    /// Where [`SERVER_ADDRESS`] is.
    pub server: Namespace,
    /// Where [`CLIENT_ADDRESS`] is.
    pub client: Namespace,
    link: Option<Link>,
}

impl Lab {
    /// Makes both networks and joins them.
    ///
    /// Errors: `NotImplemented` where this process may not, or the machine cannot; `InvalidArgument` for what
    /// no link is like, or a congestion control that the kernel does not know. Cost: about 50 ms.
    pub fn new(config: &LabConfig) -> Result<Self> {
        let (server, client) = (Namespace::new()?, Namespace::new()?);
        let (server_address, client_address) =
            (format!("{SERVER_ADDRESS}/24"), format!("{CLIENT_ADDRESS}/24"));
        let link = match &config.link {
            Some(link) => Some(Link::new([(&client, &client_address), (&server, &server_address)], link)?),
            None => {
                client.connect(&server, DEVICE, &client_address, &server_address)?;
                None
            }
        };
        for namespace in [&server, &client] {
            set_up_tcp(namespace, config)?;
        }
        Ok(Lab { server, client, link })
    }

    /// What went through the link, `there` being from the client to the server; `None` without one.
    pub fn stats(&self) -> Option<LinkStats> {
        self.link.as_ref().map(Link::stats)
    }

    /// The parameters of TCP that decide about throughput, with their values in both namespaces.
    pub fn settings(&self) -> Result<BTreeMap<&'static str, String>> {
        const PARAMETERS: [&str; 4] = [
            "net/ipv4/tcp_rmem",
            "net/ipv4/tcp_wmem",
            "net/ipv4/tcp_congestion_control",
            "net/ipv4/tcp_no_metrics_save",
        ];
        PARAMETERS.into_iter().map(|name| Ok((name, self.client.get(name)?))).collect()
    }
}

fn set_up_tcp(namespace: &Namespace, config: &LabConfig) -> Result<()> {
    if let Some(bytes) = config.tcp_buffer_bytes {
        for (name, start) in [("tcp_rmem", 131_072), ("tcp_wmem", 16_384)] {
            let values = format!("4096 {start} {}", bytes.max(start));
            namespace.set(&format!("net/ipv4/{name}"), &values)?;
        }
    }
    if let Some(name) = &config.congestion_control {
        set_algorithm(namespace, name)?;
    }
    // What one connection learned about the path must not make the next one faster: runs would differ.
    namespace.set("net/ipv4/tcp_no_metrics_save", "1")
}
