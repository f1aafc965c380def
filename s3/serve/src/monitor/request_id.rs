//! Names of requests, by which a client's error finds its line in the access log.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderName, HeaderValue};

/// The header of an answer that names its request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// The header of an answer that names the gateway.
pub(crate) const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");

/// The name of a request: 16 digits and capitals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId([u8; 16]);

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The hexadecimal digits of a number.
    fn of(number: u64) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        RequestId(std::array::from_fn(|at| DIGITS[(number >> (60 - 4 * at)) as usize & 15]))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Makes up the names of a gateway's requests; no two are the same, and names of two gateways hardly ever.
pub(crate) struct RequestIds {
    next: AtomicU64,
    host: HeaderValue,
}

impl RequestIds {
    /// Begins anywhere. Where there are no random bytes, with the time: these names are no secrets.
    pub(super) fn new() -> Self {
        let mut random = [0; 32];
        if getrandom::fill(&mut random).is_err() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            random[..16].copy_from_slice(&now.as_nanos().to_le_bytes());
        }
        let (start, host) = random.split_at(8);
        let start = start.iter().fold(0, |start, byte| start << 8 | u64::from(*byte));
        // Base64 can stand in a header.
        let host = HeaderValue::try_from(BASE64.encode(host)).unwrap_or(HeaderValue::from_static("host"));
        RequestIds { next: AtomicU64::new(start), host }
    }

    /// The next name. Cost: an addition that threads share, and a few multiplications.
    pub(super) fn next(&self) -> RequestId {
        // Weyl steps through all numbers, which SplitMix64 mixes one to one.
        let number = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        RequestId::of(number ^ (number >> 31))
    }

    /// The name of the gateway, for as long as it runs.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// The same as text.
    pub(crate) fn host_text(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_16_digits_and_differ() {
        assert_eq!(RequestId::of(0x0123_4567_89ab_cdef).as_str(), "0123456789ABCDEF");
        let ids = RequestIds::new();
        let names: HashSet<_> = (0..10_000).map(|_| ids.next().as_str().to_owned()).collect();
        assert_eq!(names.len(), 10_000);
        assert_ne!(RequestIds::new().host(), ids.host());
    }
}
