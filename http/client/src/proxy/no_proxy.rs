//! The hosts that requests reach without a proxy: the `no_proxy` variable.

use std::net::IpAddr;

use crate::Origin;

/// The hosts that requests reach without a proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct NoProxyList(Vec<NoProxyRule>);

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NoProxyRule {
    hosts: NoProxyHosts,
    /// The port to which the entry is limited; `None` for all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NoProxyHosts {
    /// All hosts (`*`); there must be no other entry in the list.
    All,
    /// A host name, and its subdomains.
    Domain(String),
    /// Addresses with this prefix.
    Network(IpAddr, u8),
}

impl NoProxyList {
    /// Parses names and addresses separated by commas or spaces; skips anything else.
    pub(super) fn parse(list: &str) -> Self {
        if list.trim() == "*" {
            return NoProxyList(vec![NoProxyRule { hosts: NoProxyHosts::All, port: None }]);
        }
        let words = list.split([',', ' ', '\t']).filter(|word| !word.is_empty());
        NoProxyList(words.filter_map(NoProxyRule::parse).collect())
    }

    /// Returns whether the list contains the origin's host, with the origin's port or without a port.
    pub(super) fn has(&self, origin: &Origin) -> bool {
        let host = origin.host.strip_suffix('.').unwrap_or(&origin.host);
        let address = host.parse().ok();
        self.0
            .iter()
            .any(|entry| entry.port.is_none_or(|port| port == origin.port) && entry.hosts.have(host, address))
    }
}

impl NoProxyRule {
    /// Parses `HOSTS` or `HOSTS:PORT`. curl does not accept a port here, but Python and Go do, and the meaning is
    /// clear.
    fn parse(word: &str) -> Option<Self> {
        // An IPv6 address without brackets contains colons, but no port.
        let (hosts, port) = match word.rsplit_once(':') {
            Some((hosts, port)) if !hosts.contains(':') || hosts.ends_with(']') => {
                (hosts, Some(port.parse().ok().filter(|port| *port != 0)?))
            }
            _ => (word, None),
        };
        NoProxyHosts::parse(hosts).map(|hosts| NoProxyRule { hosts, port })
    }
}

impl NoProxyHosts {
    fn parse(word: &str) -> Option<Self> {
        let (address, bits) =
            word.split_once('/').map_or((word, None), |(address, bits)| (address, Some(bits)));
        let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        if let Ok(address) = address.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most));
            return bits.map(|bits| NoProxyHosts::Network(address, bits));
        }
        // curl does not support names such as `*.example.org`, but many other programs do, and the meaning is clear.
        let name = word.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(word);
        let name = name.strip_prefix('.').unwrap_or(name);
        let name = name.strip_suffix('.').unwrap_or(name);
        (!name.is_empty()).then(|| NoProxyHosts::Domain(name.to_ascii_lowercase()))
    }

    fn have(&self, host: &str, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (NoProxyHosts::All, _) => true,
            (NoProxyHosts::Domain(name), None) => {
                let host = host.to_ascii_lowercase();
                host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (NoProxyHosts::Network(network, bits), Some(address)) => is_within(*network, *bits, address),
            _ => false,
        }
    }
}

fn is_within(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differs = u32::from(network) ^ u32::from(address);
            differs.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differs = u128::from(network) ^ u128::from(address);
            differs.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_excepted_as_by_curl() {
        for (list, host, is_excepted) in [
            ("*", "anything", true),
            ("a,*", "anything", false),
            ("example.org", "example.org", true),
            ("Example.ORG.", "www.example.org.", true),
            (".example.org", "example.org", true),
            ("a,*.example.org", "www.example.org", true),
            ("*.example.org", "anexample.org", false),
            ("*example.org", "example.org", false),
            ("example.org", "anexample.org", false),
            ("www.example.org", "example.org", false),
            ("a b,,c", "b", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("10.0.0.0/8", "10.200.3.4", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("10.0.0.0/33", "10.0.0.0", false),
            ("fd00::/8", "fdab::1", true),
            ("[::1]", "::1", true),
            ("fd00::/8", "fe80::1", false),
            ("1", "127.0.0.1", false),
            ("", "h", false),
        ] {
            assert_eq!(NoProxyList::parse(list).has(&of_host(host)), is_excepted, "{list:?} {host}");
        }
    }

    /// Returns the origin with the default port of HTTPS.
    fn of_host(host: &str) -> Origin {
        Origin { tls: true, host: host.to_owned(), port: 443 }
    }

    #[test]
    fn exceptions_may_have_a_port() {
        for (list, url, is_excepted) in [
            ("example.org:8443", "https://example.org:8443", true),
            ("example.org:8443", "https://www.example.org:8443", true),
            ("*.example.org:8443", "https://www.example.org:8443", true),
            ("example.org:8443", "https://example.org", false),
            ("example.org:443", "https://example.org", true),
            ("example.org:80", "https://example.org", false),
            ("127.0.0.1:9000", "https://127.0.0.1:9000", true),
            ("127.0.0.1:9000", "https://127.0.0.1:9001", false),
            ("10.0.0.0/8:9000", "https://10.1.2.3:9000", true),
            ("[fd00::1]:9000", "https://[fd00::1]:9000", true),
            ("[fd00::1]:9000", "https://[fd00::1]", false),
            ("fd00::1:9000", "https://[fd00::1:9000]", true),
            ("example.org:", "https://example.org", false),
            ("example.org:x", "https://example.org", false),
            ("example.org:0", "https://example.org", false),
            ("x:1, example.org:8443 y:2", "https://example.org:8443", true),
        ] {
            let origin = Origin::parse(url).unwrap().0;
            assert_eq!(NoProxyList::parse(list).has(&origin), is_excepted, "{list:?} {url}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_read(list in ".{0,60}", host in "[a-z0-9.:]{0,20}") {
            let _ = NoProxyList::parse(&list).has(&of_host(&host));
        }

        #[test]
        fn a_host_that_is_named_is_excepted(before in "[a-z.,/ ]{0,20}", host in "[a-z]{1,9}(\\.[a-z]{1,9}){0,3}") {
            let list = format!("{before} {host}");
            prop_assert!(NoProxyList::parse(&list).has(&of_host(&host)));
        }
    }
}
