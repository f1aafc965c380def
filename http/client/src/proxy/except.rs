//! Hosts that are asked without a proxy: the list in `no_proxy`, as curl reads it.

use std::net::IpAddr;

/// The list.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions(Vec<Exception>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    /// `*`, which stands alone.
    All,
    /// A name, and all names that end with a dot and it.
    Domain(String),
    /// Addresses that begin with the same bits.
    Network(IpAddr, u8),
}

impl Exceptions {
    /// Names and addresses between commas or blanks; what is neither is passed over.
    pub(super) fn parse(list: &str) -> Self {
        if list.trim() == "*" {
            return Exceptions(vec![Exception::All]);
        }
        let words = list.split([',', ' ', '\t']).filter(|word| !word.is_empty());
        Exceptions(words.filter_map(Exception::parse).collect())
    }

    /// Whether `host`, a name or an address without brackets, is one of them.
    pub(super) fn has(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let address = host.parse().ok();
        self.0.iter().any(|exception| exception.fits(host, address))
    }
}

impl Exception {
    fn parse(word: &str) -> Option<Self> {
        let (address, bits) =
            word.split_once('/').map_or((word, None), |(address, bits)| (address, Some(bits)));
        let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        if let Ok(address) = address.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most));
            return bits.map(|bits| Exception::Network(address, bits));
        }
        let name = word.strip_prefix('.').unwrap_or(word);
        let name = name.strip_suffix('.').unwrap_or(name);
        (!name.is_empty()).then(|| Exception::Domain(name.to_ascii_lowercase()))
    }

    fn fits(&self, host: &str, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Exception::All, _) => true,
            (Exception::Domain(name), None) => {
                let host = host.to_ascii_lowercase();
                host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Exception::Network(network, bits), Some(address)) => is_within(*network, *bits, address),
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
            assert_eq!(Exceptions::parse(list).has(host), is_excepted, "{list:?} {host}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_read(list in ".{0,60}", host in "[a-z0-9.:]{0,20}") {
            let _ = Exceptions::parse(&list).has(&host);
        }

        #[test]
        fn a_host_that_is_named_is_excepted(before in "[a-z.,/ ]{0,20}", host in "[a-z]{1,9}(\\.[a-z]{1,9}){0,3}") {
            let list = format!("{before} {host}");
            prop_assert!(Exceptions::parse(&list).has(&host));
        }
    }
}
